"""Costs: bits beside bytes, and sums of costs, wherever a cost is accepted."""

import math

import numpy as np
import pytest
from support import refusal

import fedpage as fp
from fedpage.core.columns import AXES, COLUMNS, DERIVED, Cost, describe_column, read_column
from fedpage.engine.stopping import Stop
from fedpage.report import summary
from fedpage.runs.history import History
from fedpage.studies import tuning
from fedpage.studies.trials import HELD_OUT_SEED, Question
from fedpage.theory.planner import TimeModel

SMALL = ("--data", "census:rows=500", "--clients", "50", "--S", "5")


def make_history(*, bits: bool = True, name: str = "COFIG") -> History:
    """Make a run whose messages hold 12 bits a number up, and 64 down."""
    history = History({"method": {"name": name, "effective_step": 0.1}, "seed": 0})
    for r in range(5):
        row = {"round": r, "clients": 2 * r, "loss": 1.0 / (1 + r), "grad_norm": 2.0 / (1 + r)}
        row |= {"bytes_up": 20 * r, "bytes_down": 100 * r, "seconds": 0.5 * r, "gradients": r}
        row |= {"gradients_per_client": r}
        row |= {"bits_up": 156 * r, "bits_down": 800 * r} if bits else {}
        history.append(row)
    return history


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("bytes", "bytes", 120.0),
        ("rounds", "round", 1.0),
        ("up", "bytes_up", 20.0),
        ("up+0.1*down", "bytes_up+0.1*bytes_down", 30.0),
        (" bytes_up + 0.1 * bytes_down ", "bytes_up+0.1*bytes_down", 30.0),
        ("up+down", "bytes_up+bytes_down", 120.0),
        ("up+up", "2*bytes_up", 40.0),
        ("1e+2*up+.5e-1*down", "100*bytes_up+0.05*bytes_down", 2005.0),
        ("0.001*bits+2*clients", "0.001*bits+2*clients", 4.956),
    ],
)
def test_a_cost_is_read_and_evaluated(text, name, value):
    cost = Cost.parse(text)
    assert (cost.name, Cost.parse(cost.name), Cost.parse(cost)) == (name, cost, cost)
    assert cost.evaluate(lambda column: read_column(make_history().rows[1], column)) == value
    np.testing.assert_allclose(make_history().cost(text), value * np.arange(5))


def test_labels_and_units():
    assert describe_column("up+0.1*down").label == "bytes up + 0.1 bytes down"
    assert describe_column("up+0.1*down").unit == "B"
    assert describe_column("0.5*bits_up+bits_down").unit == "bit"
    assert describe_column("bits+clients").unit == ""
    assert describe_column("rounds") is COLUMNS["round"]
    assert all(COLUMNS[name].is_cost for name in (*AXES, *DERIVED))


def test_bits_of_a_run_that_did_not_record_them_are_eight_times_its_bytes(tmp_path):
    old = make_history(bits=False)
    for history in (old, History.load(old.to_csv(tmp_path / "old.csv"))):
        assert history["bits_up"].tolist() == [160.0 * r for r in range(5)]
        assert history["bits"].tolist() == (8 * history["bytes"]).tolist()
        assert "bits" not in history.columns
    mixed, new = History(), make_history()
    for row in (old.rows[0], old.rows[1], new.rows[2]):  # a run that a newer version continued
        mixed.append(row)
    assert mixed["bits_up"].tolist() == [0.0, 160.0, 312.0]
    free = History()
    free.append({"round": 0, "loss": 1.0})
    assert "no column 'bits'" in refusal(free.__getitem__, "bits")


def test_the_cost_to_a_target():
    history = make_history()
    assert history.cost_to("loss:0.5,hold=0", "up+0.1*down") == 30.0
    assert history.cost_to("loss:0.5,hold=0", Cost.parse("bits_up")) == 156.0
    assert history.cost_to("loss:0.01,hold=0", "up+0.1*down") == math.inf
    assert "did you mean 'down'" in refusal(history.cost_to, "loss:0.5,hold=0", "up+dwn")


def test_budgets_are_costs_too():
    costs = {"round": 3, "bytes_up": 100, "bytes_down": 200, "seconds": 1.5}
    for name, spent in (("up+0.1*down", 120), ("bits", 2400), ("bytes", 300), ("seconds", 1.5)):
        assert Stop(budgets={name: spent + 1}).check_budgets(costs) is None
        ended = Stop(budgets={name: spent}).check_budgets(costs)
        assert ended.detail == f"spent {spent} {name} at round 3"
    assert Stop(budgets={"bits": 900}).check_budgets({**costs, "bits_up": 90}) is not None
    assert "stop: 'dwn' in 'up+dwn' is not a cost" in refusal(Stop, budgets={"up+dwn": 1})
    problem = fp.Quadratic.random(6, 3, 4, seed=1)
    history = fp.simulate(
        problem, fp.FedAvg(S=2, K=1), rounds=50, seed=0, stop=fp.Stop(budgets={"bits": 5000})
    )
    assert 5000 <= history.last("bits") < 5000 + 2 * 2 * 4 * 64


def test_a_search_for_the_least_sum():
    history = make_history()
    links = TimeModel(latency=2.0)
    for cost, paid in (("bits_up+0.1*bits_down", 236.0), ("seconds+rounds", 3.0)):
        assert (
            Question(fp.Target("loss", 0.5, hold=0), Cost.parse(cost), link=links).cost_of(history)
            == paid
        )
    problem = fp.RobustRegression(fp.load("census", rows=500), clients=50)
    grid = {"eta_g": [0.1, 0.3]}
    found = tuning.tune(
        problem, fp.PAGE(S=5), target=0.05, cost="up+0.1*down", search=grid, rounds=200, seeds=1,
        held_out_seeds=1,
    )  # fmt: skip
    run = fp.simulate(problem, found.method, rounds=200, seed=HELD_OUT_SEED)
    paid = run.cost_to("grad_norm:0.05,hold=0", "up+0.1*down")
    assert found.first.sample.costs == (paid,)
    assert found.goal == "bytes_up+0.1*bytes_down to gradient norm 0.05"
    given = {"target": 0.05, "cost": "seconds+rounds", "search": grid}
    assert "needs at least one of latency" in refusal(tuning.tune, problem, fp.PAGE(S=5), **given)


def test_the_summary_has_up_down_and_the_cost():
    runs = [make_history(), make_history(name="SAGA", bits=False)]

    def texts(target, cost="bytes", shown="bytes"):
        table = summary.table(summary.summarise(runs, f"loss:{target},hold=0", cost), "loss", shown)
        return list(table.headings), [[cell.text for cell in row] for row in table.rows]

    head, cells = texts(0.5)
    assert head[4:7] == ["bytes to target", "bytes up to target", "bytes down to target"]
    assert cells[0][4:7] == ["120 B", "20 B", "100 B"]
    head, cells = texts(0.5, "bits_up", "bits_up")
    assert head[4] == "bits up to target"
    assert [row[4] for row in cells] == ["156 bit", "160 bit"]
    head, cells = texts(0.5, "up+0.1*down", "up+0.1*down")
    assert (head[4], cells[0][4]) == ("up+0.1*down to target", "30 B")
    _, cells = texts(1e-9, "clients+bytes")
    assert cells[0][3:7] == ["not reached", "not reached", "-", "-"]


def test_compare_and_tune_on_the_command_line(run, refused, tmp_path):
    words = (*SMALL, "--rounds", "60", "--seeds", "1", "--target", "0.08", "--cost", "up+0.1*down")
    code, out, err = run("compare", *words, "--methods", "page,fedavg", "--out", "out")
    assert code == 0, err
    assert "up+0.1*down" in out
    assert "bytes down" in " ".join(out.replace("┃", " ").split())
    assert 'value="bytes_up+0.1*bytes_down"' in (tmp_path / "out/report.html").read_text()
    assert run("resume", "out")[1].splitlines()[:9] == out.splitlines()[:9]
    for command in (("compare",), ("tune", "page")):
        refused((*command, "--cost", "up+dwn"), "'dwn' in 'up+dwn' is not a cost")
    code, out, err = run(
        "tune", "page", *words, "--held-out-seeds", "1", "--search", "eta_g=0.1,0.3",
        "--out", "t", "--report", "t.html",
    )  # fmt: skip
    assert code == 0, err
    assert "bytes_up+0.1*bytes_down to gradient norm 0.08" in out
    assert 'value="bytes_up+0.1*bytes_down"' in (tmp_path / "t.html").read_text()
