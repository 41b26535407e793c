"""Comparisons of histories, and the tables of them."""

import math
import re

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.report import summary
from fedpage.runs.build import hyper_words
from fedpage.studies.comparison import compare_costs

TARGET = "loss:0.1,hold=0"
COSTS = {
    "slow": (21.0, 20.0, 22.0, 19.0, 20.5),
    "fast": (10.0, 11.0, 9.0, 10.5, 9.5),
    "near": (10.2, 10.8, 9.3, 10.4, 9.6),
}


def history(name, seed, cost):
    """Return a run that reaches a loss of 0.1 at the given number of rounds, or never."""
    run = fp.History({"seed": seed, "method": {"name": name}, "problem": {"data": "d"}})
    end, loss = (50.0, 0.9) if math.isinf(cost) else (cost, 0.1)
    for r, value in ((0.0, 1.0), (end, loss)):
        row = {"round": r, "clients": 2 * r, "loss": value, "grad_norm": value, "seconds": r / end}
        run.append(row | {"bytes_up": 1000.0 * r, "bytes_down": 2000.0 * r})
    return run


def histories(costs=COSTS):
    return [history(name, s, c) for name, row in costs.items() for s, c in enumerate(row)]


def texts(table):
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


# --- comparisons ----------------------------------------------------------------------------------


def test_the_best_and_those_tied_with_it_are_bold():
    table = fp.table(histories(), target=TARGET)
    bold = {row[0].text: row[4].is_bold for row in table.rows}
    assert bold == {"slow": False, "fast": True, "near": True}  # in the order of the runs
    assert table.headings[4] == "median (kB)"
    assert texts(table)["slow"][:6] == ["5/5", "5/5", "0.1", "61.5", "[57.0,", "66.0]"]
    assert table.rows[0][5].value == pytest.approx(57.0)
    assert table.rows[0][7].value == pytest.approx(2.05, abs=0.01)  # times the best
    brackets = "Brackets: 94 % intervals of the median (order statistics); "
    assert table.notes[0] == f"{brackets}95 % t-intervals of the ratio of paired costs."
    assert table.groups == (("", 4), ("bytes to loss 0.1", 3), ("times fast", 4))
    rows = summary.summarise(histories(), TARGET, "round")
    table = summary.table(rows, "loss", "round", bold={"fast"})
    at = table.headings.index("rounds to target")
    assert [[cell.is_bold for cell in row].index(True) for row in table.rows[1:2]] == [at]
    assert not any(cell.is_bold for row in (table.rows[0], table.rows[2]) for cell in row)
    assert table.notes == (summary.BOLD_NOTE,)


def test_a_sentence_for_each_pair_or_of_many_for_those_with_the_best():
    sentences = compare_costs(histories(), target=TARGET, cost="round").sentences()
    assert len(sentences) == 3
    pattern = r"fast needs 0\.49 times the rounds of slow \[0\.\d\d, 0\.\d\d\] on 5 paired seeds "
    assert any(re.match(pattern, sentence) for sentence in sentences)
    assert any("cannot be told apart" in sentence for sentence in sentences)
    many = {f"m{i}": tuple((i + 1) * cost for cost in COSTS["fast"]) for i in range(6)}
    found = compare_costs(histories(many), target=TARGET)
    assert (len(found.pairs), len(found.sentences())) == (15, 5)
    assert all("m0" in sentence for sentence in found.sentences())


def test_costs_are_interpolated_between_records():
    run = history("fast", 0, 10.0)
    run.rows[1]["loss"] = 0.01  # log-linear from 1 at round 0: 0.1 is half way
    found = compare_costs([run], target=TARGET, cost="round")
    assert found.costs["fast"][0] == pytest.approx(5.0)
    assert found.sentences() == []
    assert texts(found.table()) == {"fast": ["1/1", "1/1", "0.01", "5.00", "[5.00,", "5.00]"]}


def test_three_seeds_make_no_verdict_and_nothing_bold():
    few = {name: costs[:3] for name, costs in COSTS.items()}
    found = compare_costs(histories(few), target=TARGET)
    assert found.sentences() == ["No verdict from 3 seeds: at least 5 are needed; add --seeds 5."]
    table = found.table()
    assert not any(cell.is_bold for row in table.rows for cell in row)
    assert "Nothing is bold: no verdict from 3 seeds" in table.to_text()
    assert table.notes[0].startswith("Brackets: 75 % intervals of the median")
    assert [row[-1].text for row in table.rows] == ["-", "", "-"]


def test_methods_that_do_not_reach_the_target():
    costs = COSTS | {"lost": (math.inf,) * 5, "half": (12.0, 13.0, 11.0, math.inf, math.inf)}
    found = compare_costs(histories(costs), target=TARGET)
    cells = texts(found.table())
    assert cells["lost"][:9] == ["0/5", "0/5", "0.9", "-", "-", "-", "-", "-", "-"]
    assert cells["half"][:7] == ["3/5", "3/5", "0.1", "39.0", "[33.0,", "-]", "-"]
    # Five seeds cannot tell half from fast among ten pairs, but lost has no cost to be bold.
    assert found.tied == {"fast", "near", "half"}
    assert found.level == pytest.approx(1 - 2 / 2**5)  # the range of five seeds, not 95 %
    assert "Dashes: runs did not reach the target" in " ".join(found.table().notes)
    never = compare_costs(histories(), target="loss:1e-9,hold=0")
    assert never.tied == frozenset()
    assert "cannot be compared" in never.sentences()[0]
    assert never.table().headings[4] == "median (B)"
    assert {text for row in texts(never.table()).values() for text in row[3:]} == {"-"}


@pytest.mark.parametrize(
    ("runs", "cost", "fault"),
    [
        ([history("fast", 0, 1.0)] * 2, "bytes", "two runs with seed 0"),
        ([], "bytes", "give histories"),
        ([1], "bytes", "give histories"),
        (histories(), "nothing", "not a cost"),
    ],
)
def test_wrong_histories_are_refused(runs, cost, fault):
    with pytest.raises(InputError, match=fault):
        fp.table(runs, target=0.1, cost=cost)


def test_tune_choose_study_sweep_and_compare_agree_on_costs(run, refused, tmp_path):
    """The costs of the same runs are the same numbers, whoever made the runs and the table."""
    problem = fp.LogisticRegression(fp.load("census", rows=300), clients=30)
    question = {"target": 0.12, "cost": "bytes", "rounds": 400, "record_every": 1}
    tuned = fp.tune(
        problem, fp.FedAvg(S=5), search={"eta_l": [0.1, 0.3]}, seeds=2, held_out_seeds=5, **question
    )
    chosen = fp.choose(
        problem, methods=["page"], codecs=False, budget=60, seeds=2, held_out_seeds=5, **question
    )
    methods, seeds = [tuned.method, chosen.method], list(tuned.held_out_seeds)
    wanted = [found.first.sample.costs for found in (tuned, chosen)]
    assert math.isfinite(sum(map(sum, wanted)))
    settings = {"rounds": 400, "seeds": seeds, "record_every": 1}
    named = {"tuned": tuned.method, "chosen": chosen.method}
    study = fp.Study({"p": problem}, named, target="0.12", store=tmp_path, **settings).run()
    (comparison,) = study.comparisons().values()
    assert [tuple(costs.values()) for costs in comparison.costs.values()] == wanted
    runs = fp.sweep(problem, methods, **settings)
    assert [each.cost_to(0.12) for each in runs] == [*wanted[0], *wanted[1]]
    table = fp.table(runs, target=0.12)
    words = [
        ":".join([name, *(f"{key}={value}" for key, value in hyper_words(method).items())])
        for name, method in (("fedavg", tuned.method), ("page", chosen.method))
    ]
    compare = (
        "compare", "--data", "census:rows=300", "--clients", "30", "--objective", "logistic",
        "--rounds", "400", "--seed", str(seeds[0]), "--seeds", "5", "--record-every", "1",
        "--target", "0.12", "--methods", ",".join(words), "--out", "a",
    )  # fmt: skip
    refused((*compare, "--table", "out.pdf"), "out.pdf")
    assert not (tmp_path / "a").exists()
    code, out, err = run(*compare, "--table", "t/costs.csv")
    assert code == 0, err
    assert (tmp_path / "t" / "costs.csv").read_text() == table.to_csv() + "\n"
    pattern = r"needs \S+ times the bytes of \w+ \[.*\] on 5 paired seeds \(p"
    for text in (out, (tmp_path / "a" / "report.html").read_text(encoding="utf-8")):
        assert re.search(pattern, " ".join(text.split()))
    medians = [row[4].value for row in table.rows]
    assert medians == pytest.approx([1e-3 * sorted(costs)[2] for costs in wanted])
