"""Planning and tuning, from Python and from the command line."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.report import plots
from fedpage.runs import build
from fedpage.runs.config import field_values
from fedpage.studies import tune as tuning
from fedpage.theory import Setting, nonconvex_fedpage, nonconvex_page
from fedpage.theory import planner as planning
from fedpage.theory.tables import RIVALS

SETTING = Setting(
    N=1000, S=10, K=10, M=20, epsilon=0.1, sigma=1.0, G=1.0, B=1.0, L=2.0, D0=3.0, R2=4.0
)


@pytest.mark.parametrize("words", [(), ("--latency", "0.5")])
def test_a_plan_fits_a_terminal_of_80_columns(run, monkeypatch, words):
    from rich.console import Console

    from fedpage.cli import plan

    monkeypatch.setattr(plan, "console", lambda: Console(width=80))
    code, out, _ = run("plan", "--epsilon", "0.01", *words)
    assert code == 0
    table = [line for line in out.splitlines() if line[:1] in "┏┃┡│└"]
    assert {len(line) for line in table} == {80}
    for word in ("S-Local-SVRG", "Karimireddy", "434,766", "analysis"):
        assert any(word in line for line in table)
    assert "In a wider terminal or with --json:" in out


def test_a_plan_has_every_method_and_the_source_of_its_numbers():
    rows = planning.plan(SETTING, d=100, convex=False, average_L=1.5)
    assert [r.method for r in rows[:2]] == ["FedPAGE", "PAGE"]
    assert [r.kind for r in rows[:2]] == ["bound", "bound"]
    rivals = {entry.method for entry in RIVALS if entry.nonconvex and not entry.nonconvex_needs}
    assert {r.method for r in rows} - rivals == {
        "FedPAGE", "PAGE", "FedAvg", "FedProx", "VRL-SGD", "S-Local-SVRG", "SCAFFOLD",
    }  # fmt: skip
    assert rivals <= {r.method for r in rows}
    bound = nonconvex_fedpage(L=2.0, N=1000, S=10, K=10, D0=3.0, epsilon=0.1)
    assert rows[0].rounds == math.ceil(bound.rounds)
    assert rows[0].steps == {"eta_g": bound.method.eta_g, "eta_l": bound.method.eta_l}
    assert rows[1].rounds == math.ceil(
        nonconvex_page(L=1.5, N=1000, S=10, D0=3.0, epsilon=0.1).rounds
    )
    dashes = {r.method for r in rows if r.kind == "no result"}
    assert dashes == {"FedProx", "S-Local-SVRG"}
    convex = planning.plan(SETTING, d=100, convex=True)
    assert {r.method for r in convex if r.kind == "no result"} == {"FedAvg", "VRL-SGD"}


def test_a_plans_bytes_are_those_of_real_runs():
    """Clients and bytes per round of the plan against what the engine counts, for every method."""
    problem = fp.RobustRegression(fp.load("census", rows=2000), clients=100)
    setting = Setting(N=100, S=5, K=4, M=20, epsilon=0.1)
    rows = planning.plan(setting, d=123, convex=False) + planning.plan(setting, d=123, convex=True)
    planned = {r.method: r for r in rows if r.rounds is not None and r.source != "Yu et al. 2019"}
    methods = {
        "FedPAGE": fp.FedPAGE(S=5, K=4),
        "PAGE": fp.PAGE(S=5),
        "FedAvg": fp.FedAvg(S=5, K=4, b=1),
        "FedProx": fp.FedProx(S=100, K=4, b=1),
        "VRL-SGD": fp.VRLSGD(K=4, b=1),
        "SCAFFOLD": fp.SCAFFOLD(S=5, K=4, b=1),
        "S-Local-SVRG": fp.SLocalSVRG(K=4, b=1, eta_l=0.001),
    }
    for name, method in methods.items():
        rounds = 1500
        history = fp.simulate(problem, method, rounds=rounds, seed=3, record_every=0)
        row = planned[name]
        assert history.last("clients") / rounds == pytest.approx(
            row.clients / row.rounds, rel=0.12
        ), name
        assert history.last("bytes_up") / rounds == pytest.approx(
            row.bytes_up / row.rounds, rel=0.12
        ), name
        assert history.last("bytes_down") / rounds == pytest.approx(
            row.bytes_down / row.rounds, rel=0.12
        ), name


def test_wall_clock_is_linear_in_the_users_costs():
    costs = planning.Costs(latency=2.0, uplink=100.0, downlink=400.0, gradient=0.5)
    assert costs.seconds(10, down=800.0, up=300.0, gradients=4) == 10 * (2 + 2 + 3 + 2)
    assert not planning.Costs().given
    rows = planning.plan(SETTING, d=100, convex=False, costs=planning.Costs(latency=1.0))
    assert rows[0].seconds == rows[0].rounds
    for bad in ({"latency": -1}, {"uplink": 0.0}, {"downlink": math.nan}, {"gradient": math.inf}):
        with pytest.raises(InputError):
            planning.Costs(**bad)


def test_plan_on_the_command_line(run):
    code, out, _ = run(
        "plan",
        "--clients",
        "1000",
        "--S",
        "10",
        "--rows",
        "20",
        "--epsilon",
        "0.1",
        "--latency",
        "1",
    )
    assert code == 0
    assert all(
        word in out for word in ("bound", "order", "SCAFFOLD", "Theorem 2", "estimated", "default")
    )
    code, out, _ = run(
        "plan",
        "--data",
        "census:rows=1000",
        "--clients",
        "50",
        "--S",
        "5",
        "--epsilon",
        "0.1",
        "--json",
    )
    found = json.loads(out)
    assert found["origin"]["L"] == "computed"
    assert found["origin"]["sigma"] == "estimated"
    assert found["setting"]["M"] == 20
    assert (
        found["setting"]["L"]
        == fp.RobustRegression(fp.load("census", rows=1000), clients=50).smoothness().row
    )
    assert found["methods"][0]["method"] == "FedPAGE"
    code, out, _ = run(
        "plan", "--data", "census:rows=1000", "--clients", "50", "--S", "5", "--epsilon", "0.1",
        "--json", "--objective", "logistic", "--L", "7",
    )  # fmt: skip
    found = json.loads(out)
    assert found["setting"]["convex"] is True
    assert (found["setting"]["L"], found["origin"]["L"]) == (7.0, "given")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("plan",), "Missing option"),
        (("plan", "--epsilon", "0"), "epsilon must be"),
        (("plan", "--epsilon", "nan"), "epsilon must be"),
        (("plan", "--epsilon", "0.1", "--S", "5000"), "S must be"),
        (("plan", "--epsilon", "0.1", "--L", "inf"), "L must be"),
        (("plan", "--epsilon", "0.1", "--rows", "0"), "M must be"),
        (("plan", "--epsilon", "0.1", "--parameters", "0"), "d must be"),
        (("plan", "--epsilon", "0.1", "--latency", "-1"), "latency must be"),
        (("plan", "--epsilon", "0.1", "--data", "a9b"), "did you mean 'a9a'"),
        (("tune", "fedpge"), "did you mean 'fedpage'"),
        (("tune", "fedpage", "--target", "0"), "a gradient norm must be above 0"),
        (("tune", "fedpage", "--cost", "money"), "is not a cost; costs are"),
        (("tune", "fedpage", "--cost", "seconds"), "needs at least one of latency"),
        (("tune", "fedpage", "--search", "eta=1"), "unknown key 'eta'; did you mean"),
        (("tune", "fedpage", "--search", "eta_g"), "expected name=value"),
        (("tune", "fedpage", "--search", "eta_g=fast"), "eta_g must be"),
        (("tune", "fedpage", "--search", "eta_g=-1"), "eta_g must be"),
        (("tune", "fedavg", "--search", "rho=1"), "rho is FedPAGE's"),
        (("tune", "fedpage", "--S", "5000"), "cannot sample"),
        (("tune", "fedpage", "--jobs", "0"), "Invalid value for '--jobs'"),
        (("tune", "fedpage", "--seeds", "0"), "seeds must be"),
        (("run", "fedpage", "--steps", "magic"), "--steps must be"),
        (("run", "fedpage", "--steps", "theory", "--eta-g", "0.1"), "chooses eta_g; leave it out"),
        (("run", "vrl-sgd", "--steps", "theory"), "step sizes for VRL-SGD; give eta_l, or"),
        (("run", "fedadam", "--steps", "theory"), "no theorem gives step sizes for FedAdam"),
        (("run", "fedavgm", "--steps", "theory"), "no theorem gives step sizes for FedAvgM"),
        (("run", "svrp", "--steps", "theory"), "SVRP needs mu; choose --objective logistic-l2"),
        (
            ("run", "svrp", "--objective", "squares-l2", "--gamma", "0.5", "--steps", "theory"),
            "--steps theory chooses gamma; leave it out",
        ),
    ],
)
def test_bad_input_is_one_line(refused, words, what):
    refused(words, what)


SMALL = ("--data", "census:rows=500", "--clients", "50")


@pytest.mark.parametrize("method", ["fedpage", "page", "fedpage-full", "scaffold", "fedavg"])
def test_steps_by_theory_on_the_command_line(run, tmp_path, method):
    code, out, _ = run(
        "run", method, *SMALL, "--rounds", "30", "--S", "5", "--steps", "theory", "--out", "t"
    )
    assert code == 0, out
    history = fp.History.load(tmp_path / "t" / "history.jsonl")
    assert "Steps from theory: fedpage run" in out
    problem = fp.RobustRegression(fp.load("census", rows=500), clients=50)
    about = history.meta["method"]
    if "page" in method:
        kind = fp.PAGE if method == "page" else fp.FedPAGE
        tuned = kind.from_theory(problem, S=5, K=about["K"])
        assert (about["eta_g"], about["eta_l"], about["p"]) == (tuned.eta_g, tuned.eta_l, tuned.p)
    assert about["effective_step"] < 0.1
    assert history.last("loss") < history["loss"][0]


# Tuning


@pytest.fixture(scope="module")
def problem():
    return fp.RobustRegression(fp.load("census", rows=500), clients=50)


def test_tuning_finds_the_best_of_a_grid_and_judges_it_on_fresh_seeds(problem, tmp_path):
    grid = {"eta_g": [0.003, 0.3, 30.0]}
    found = tuning.tune(
        problem, fp.FedPAGE(S=5), target=0.03, grid=grid, rounds=600, seeds=3, fresh=3
    )
    assert found.method.eta_g == 0.3
    fresh = [
        fp.simulate(
            problem, found.method, rounds=600, seed=10_000 + i, stop=fp.Stop(grad_norm=0.03)
        )
        for i in range(3)
    ]
    assert found.judged[1] == sorted(h.cost_to("grad_norm", 0.03, "round") for h in fresh)[1]
    costs = {m.eta_g: s.cost for m, s in found.scores}
    assert costs[0.003] == math.inf
    assert costs[30.0] == math.inf  # far away, where the gradient is tiny and the loss is high


def test_halving_spends_seeds_on_the_better_candidates(problem):
    grid = {"eta_g": [0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5]}
    found = tuning.tune(problem, fp.PAGE(S=5), target=0.04, grid=grid, rounds=300, seeds=9, fresh=2)
    seeds = [score.seeds for _, score in found.scores]
    assert seeds == sorted(seeds, reverse=True)
    assert seeds[0] == 9
    assert seeds[-1] == 1
    assert len(found.scores) == 7
    assert found.runs == 7 * 1 + 3 * 2 + 3 * 6 + 2
    best_level = [s.cost for _, s in found.scores if s.seeds == 9]
    assert best_level == sorted(best_level)


def test_tuning_resumes_and_is_the_same_in_parallel(problem, tmp_path):
    options = {
        "target": 0.04,
        "grid": {"eta_g": [0.05, 0.1, 0.2, 0.4]},
        "rounds": 300,
        "seeds": 3,
        "fresh": 2,
    }
    store = tmp_path / "trials.jsonl"
    first = tuning.tune(problem, fp.FedPAGE(S=5), **options, store=store, cost="bytes")
    lines = store.read_text().splitlines()
    assert (first.runs, first.reused) == (len(lines), 0)
    store.write_text("\n".join(lines[:4]) + "\n" + lines[4][:25])  # killed in the middle of a line
    second = tuning.tune(problem, fp.FedPAGE(S=5), **options, store=store, cost="bytes", jobs=2)
    assert second.reused == 4
    assert second.runs == first.runs - 4
    assert (second.method, second.judged, second.scores) == (
        first.method,
        first.judged,
        first.scores,
    )
    third = tuning.tune(problem, fp.FedPAGE(S=5), **options, store=store, cost="bytes")
    assert (third.runs, third.reused) == (0, first.runs)
    other = tuning.tune(
        problem, fp.FedPAGE(S=5), **{**options, "target": 0.05}, store=store, cost="bytes"
    )
    assert other.reused == 0  # another target is another search


def test_every_cost(problem):
    history = fp.simulate(problem, fp.FedPAGE(S=5), rounds=600, seed=0)
    free = planning.Costs()
    for cost in ("rounds", "clients", "bytes", "bytes_up", "bytes_down", "gradients"):
        column = "round" if cost == "rounds" else cost
        assert tuning.cost_of(history, 0.03, cost, free) == history.cost_to(
            "grad_norm", 0.03, column
        )
    rounds = history.cost_to("grad_norm", 0.03, "round")
    assert tuning.cost_of(history, 0.03, "seconds", planning.Costs(latency=2.0)) == 2 * rounds
    work = history["gradients_per_client"][int(rounds) // 10]
    assert tuning.cost_of(history, 0.03, "seconds", planning.Costs(gradient=2.0)) == pytest.approx(
        2 * work
    )
    assert tuning.cost_of(history, 1e-9, "seconds", planning.Costs(latency=2.0)) == math.inf


def test_grids():
    made = tuning.list_candidates(fp.FedPAGE(K=5), {"step": [0.1, 0.2], "rho": [0.01, 1.0]})
    assert [(m.eta_g, round(m.K * m.eta_l / m.eta_g, 9)) for m in made] == [
        (0.1, 0.01), (0.1, 1.0), (0.2, 0.01), (0.2, 1.0),
    ]  # fmt: skip
    made = tuning.list_candidates(
        fp.FedAvg(K=5), {"step": [0.1], "eta_g": [0.5, 2.0], "K": [5, 10]}
    )
    assert [m.effective_step for m in made] == pytest.approx([0.1] * 4)
    assert len({(m.eta_g, m.K) for m in made}) == 4
    with pytest.raises(InputError, match="no hyper-parameter 'eta'"):
        tuning.list_candidates(fp.FedAvg(), {"eta": [1.0]})
    with pytest.raises(InputError, match="at least one value"):
        tuning.list_candidates(fp.FedAvg(), {"eta_g": []})


def test_tune_on_the_command_line_prints_a_command_that_runs(run, tmp_path):
    words: tuple[str, ...] = (
        "tune",
        "fedpage",
        *SMALL,
        "--S",
        "5",
        "--target",
        "0.04",
        "--rounds",
        "300",
        "--seeds",
        "3",
    )
    words += ("--fresh", "2", "--cost", "clients", "--out", "tuned")
    code, out, _ = run(*words, "--search", "eta_g=0.1,0.3", "--search", "rho=0.01,1")
    assert code == 0
    assert "Report this number" not in out  # two values cannot bracket a best one
    assert "The winner is at the edge of the grid" in out
    assert (tmp_path / "tuned" / "grid.png").stat().st_size > 5000
    (line,) = [line for line in out.splitlines() if line.startswith("Run it: ")]
    command = line.removeprefix("Run it: fedpage ").split()
    code, out, _ = run(*command)
    assert code == 0
    code, out, _ = run(*words, "--search", "eta_g=0.1,0.3", "--search", "rho=0.01,1")
    assert "0 runs, and" in out
    assert (
        run("tune", "fedavg", *SMALL, "--S", "5", "--rounds", "20", "--seeds", "1", "--out", "d")[0]
        == 0
    )


@pytest.mark.parametrize(
    ("values", "edge", "wider"),
    [
        ([0.003, 0.3, 30.0], None, None),
        ([0.03, 0.1, 0.3], "eta_g = 0.3 is the largest value searched; search larger", [0.9, 2.7]),
        (
            [0.3, 3.0, 30.0],
            "eta_g = 0.3 is the smallest value searched; search smaller",
            [0.003, 0.03],
        ),
    ],
)
def test_a_winner_at_the_edge_of_the_grid_is_not_reported(problem, values, edge, wider):
    found = tuning.tune(
        problem, fp.PAGE(S=5), target=0.03, grid={"eta_g": values}, rounds=600, seeds=2, fresh=2
    )
    assert found.method.eta_g == 0.3
    assert found.at_edge == (edge is not None)
    assert ("Report this number" in found.advice) != found.at_edge
    if edge:
        assert edge in found.advice
        assert found.wider_grid == {"eta_g": sorted([*values, *wider])}


def test_edges_concern_step_sizes_only():
    grid = {"step": [0.1, 0.2, 0.4], "rho": [0.01, 1.0], "K": [5, 10]}
    candidates = tuning.list_candidates(fp.FedPAGE(K=5), grid)

    def edges(step, rho, K):
        (winner,) = [
            c
            for c in candidates
            if [tuning.coordinate(c, n) for n in grid] == pytest.approx([step, rho, K])
        ]
        return [(e.name, e.is_upper) for e in tuning.find_edges(winner, candidates, grid)]

    assert edges(0.2, 0.01, 10) == []  # small rho is the limit, and K is no step size
    assert edges(0.4, 0.01, 5) == [("step", True)]
    assert edges(0.1, 1.0, 5) == [("step", False), ("rho", True)]
    one = tuning.list_candidates(fp.FedPAGE(), {"step": [0.1]})
    assert tuning.find_edges(one[0], one, {"step": [0.1]}) == ()


def test_a_target_that_nobody_reaches_is_not_reported(problem):
    grid = {"eta_g": [0.01, 0.1, 0.2, 0.4]}
    found = tuning.tune(problem, fp.PAGE(S=5), target=1e-9, grid=grid, rounds=20, seeds=1, fresh=1)
    assert not found.is_reached
    assert "Report this number" not in found.advice


def test_the_command_that_widens_the_grid_runs(run):
    words: tuple[str, ...] = (
        "tune",
        "page",
        *SMALL,
        "--S",
        "5",
        "--target",
        "0.04",
        "--rounds",
        "300",
        "--seeds",
        "1",
    )
    words += ("--fresh", "1", "--out", "tuned", "--search", "eta_g=0.01,0.02,0.03")
    code, out, _ = run(*words)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("Widen the grid: ")]
    command = line.removeprefix("Widen the grid: fedpage ").split()
    assert "eta_g=0.01,0.02,0.03,0.045,0.068" in command
    code, out, _ = run(*command)
    assert code == 0, out
    assert ", and 3 from an earlier search" in out


def test_any_recorded_column_is_a_target(problem):
    grid = {"eta_g": [0.01, 0.1, 0.3]}
    found = tuning.tune(
        problem, fp.PAGE(S=5), target=0.3, column="loss", grid=grid, rounds=100, seeds=2, fresh=2
    )
    history = fp.simulate(problem, found.method, rounds=100, seed=tuning.FRESH_SEED)
    assert found.goal == "rounds to loss 0.3"
    assert found.judged[0] <= history.cost_to("loss", 0.3, "round") <= found.judged[2]
    measured = fp.LogisticRegression(fp.load("census", rows=500), clients=50, metrics=["accuracy"])
    found = tuning.tune(
        measured, fp.PAGE(S=5), target=0.8, column="accuracy", grid={"eta_g": [1e-6, 1.0]},
        rounds=60, seeds=1, fresh=1,
    )  # fmt: skip
    assert found.method.eta_g == 1.0
    assert found.is_reached
    assert found.judged[1] > 0  # x0 has not reached it
    better, worse = tuning.Score(3.0, 0.9, 1), tuning.Score(3.0, 0.8, 1)
    assert better.rank(True) < worse.rank(True)
    assert better.rank(False) > worse.rank(False)
    with pytest.raises(InputError, match="'accurcy' is not recorded"):
        tuning.tune(problem, fp.PAGE(S=5), target=0.9, column="accurcy", grid=grid)


def test_the_heat_map_marks_winner_and_failures(problem, tmp_path):
    grid = {"step": [0.003, 0.1, 0.3], "rho": [0.01, 1.0]}
    found = tuning.tune(
        problem, fp.FedPAGE(S=5), target=0.04, grid=grid, rounds=300, seeds=1, fresh=1
    )
    assert plots.heat_map(found, tmp_path / "a.png").stat().st_size > 5000
    one = tuning.tune(
        problem, fp.PAGE(S=5), target=1e-9, grid={"eta_g": [0.1, 0.2]}, rounds=20, seeds=1, fresh=1
    )
    assert one.judged[1] == math.inf
    assert plots.heat_map(one, tmp_path / "b.png").stat().st_size > 3000


def test_command_lines_say_everything_that_differs_from_the_defaults():
    line = build.command_line(
        "fedpage", fp.FedPAGE(S=3, eta_g=0.25, b3=None, periodic=True), {"--data": "a9a"}
    )
    assert line == "fedpage run fedpage --data a9a --S 3 --eta-g 0.25 --b3 all --periodic True"
    words = {"S": "3", "eta_g": "0.25", "b3": "all", "periodic": "True"}
    again = field_values(fp.FedPAGE, words, "test", words=True)
    assert fp.FedPAGE(**again) == fp.FedPAGE(S=3, eta_g=0.25, b3=None, periodic=True)
    assert np.isfinite(again["eta_g"])
