"""Comparisons of histories, the tables of them, and their formats."""

from __future__ import annotations

import csv
import io
import math
import re

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.report import summary
from fedpage.report.tables import Cell, Table, escape_latex
from fedpage.runs.build import hyper_words
from fedpage.studies.comparison import compare_costs

NASTY = 'a_b & 50% #1 {x} $y$ ~^ \\end{tabular} [1] <i>|"*`'
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


def test_tune_choose_study_sweep_and_compare_agree_on_costs(run, tmp_path):
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
    code, _, err = run(
        "compare", "--data", "census:rows=300", "--clients", "30", "--objective", "logistic",
        "--rounds", "400", "--seed", str(seeds[0]), "--seeds", "5", "--record-every", "1",
        "--target", "0.12", "--methods", ",".join(words), "--table", "costs.csv",
    )  # fmt: skip
    assert code == 0, err
    assert (tmp_path / "costs.csv").read_text() == table.to_csv() + "\n"
    medians = [row[4].value for row in table.rows]
    assert medians == pytest.approx([1e-3 * sorted(costs)[2] for costs in wanted])


def test_compare_writes_the_table(run, tmp_path):
    words = (
        "compare", "--data", "census:rows=300", "--clients", "30", "--rounds", "30", "--S", "5",
        "--record-every", "2", "--target", "0.3", "--methods", "page,fedavg",
    )  # fmt: skip
    code, out, _ = run(*words, "--seeds", "5", "--out", "a", "--table", "t/out.tex")
    assert code == 0
    check_latex((tmp_path / "t" / "out.tex").read_text(encoding="utf-8"))
    pattern = r"needs \S+ times the bytes of \w+ \[.*\] on 5 paired seeds \(p"
    assert re.search(pattern, " ".join(out.split()))
    assert "on 5 paired seeds" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    code, _, err = run(*words, "--seeds", "2", "--out", "c", "--table", "out.pdf")
    assert code == 2
    assert "out.pdf: a table is written to a file .txt, .md, .tex, .csv" in err
    assert not (tmp_path / "c").exists()


# --- formats --------------------------------------------------------------------------------------

TABLE = Table(
    ("method", NASTY, "cost", "p"),
    (
        (Cell(NASTY), Cell("x"), Cell("1.5", 1.512345, True), Cell("< 0.001", 1e-5)),
        (Cell("[0, 1]"), Cell(""), Cell("20", 20.0), Cell("", "", True)),
    ),
    caption=NASTY,
    notes=(NASTY, "Bold: the best."),
    groups=(("", 1), (NASTY, 2), ("p & q", 1)),
)
COMMANDS = re.findall(
    r"\w+",
    "begin end centering small setlength tabcolsep caption toprule midrule bottomrule cmidrule "
    "multicolumn textbf par smallskip footnotesize textbackslash textless textasciitilde "
    "textasciicircum textgreater textbar",
)
"""The commands of LaTeX that a table may use."""


def check_latex(text):
    """Check what a parser of tables would: braces, environments, cells of each row, specials."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    depth = 0
    for brace in re.findall(r"(?<!\\)(?:\\\\)*([{}])", body):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    stack: list[str] = []
    for what, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        assert what == "begin" or stack.pop() == name
        stack += [name] if what == "begin" else []
    assert stack == []
    columns = len(re.search(r"\\begin\{tabular\}\{([lr]+)\}", body).group(1))
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    for row in rows:
        spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        assert len(re.findall(r"(?<!\\)&", row)) + 1 + sum(n - 1 for n in spans) == columns
        assert not row.strip().startswith("[")
    assert set(re.findall(r"\\([a-zA-Z]+)", body)) <= {*COMMANDS}
    assert not re.search(r"(?<!\\)[$#_%~^|<>\"]", body)
    return rows


def test_latex_is_well_formed():
    rows = check_latex(TABLE.to_latex())
    assert len(rows) == 4
    assert r"\textbf{1.5}" in rows[2]
    assert r"\textbf{}" not in rows[3]
    assert rows[3].strip().startswith("{[}0, 1]")
    text = fp.table(histories(), target=TARGET).to_latex()
    check_latex(text)
    assert r"\cmidrule(lr){5-7} \cmidrule(lr){8-11}" in text
    plain = Table(("a", "b"), ((Cell("x"), Cell("1")),)).to_latex()
    check_latex(plain)
    assert not {"caption", "cmidrule"} & set(re.findall(r"\w+", plain))
    for letter in '\\{}$&#_%~^<>|"[':
        assert escape_latex(letter) != letter
        check_latex(Table(("h" + letter,), ((Cell(2 * letter),),), caption=letter).to_latex())


def test_markdown_and_csv_have_a_cell_for_each_column():
    rows = [line for line in TABLE.to_markdown().splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [5] * 4
    assert "**1.5**" in rows[2]
    assert "\\*" in rows[2]
    assert "****" not in rows[3]
    cells = list(csv.reader(io.StringIO(TABLE.to_csv())))
    assert cells[1] == [NASTY, "x", "1.512345", "1e-05"]
    assert (cells[0][2], len(cells)) == (f"{NASTY}: cost", 3)


def test_text_aligns_and_marks_bold():
    table = Table(
        ("m", "cost"),
        ((Cell("a"), Cell("1.25", None, True)), (Cell("bb"), Cell("20.00"))),
        "A caption.",
        ("Bold: the best.",),
        (("", 1), ("a wide heading", 1)),
    )
    assert table.to_text().splitlines() == [
        "A caption.",
        "    a wide heading",
        "m             cost",
        "--  --------------",
        "a            1.25*",
        "bb          20.00",
        "*: the best.",
    ]
    assert str(table) == table.to_text()
    assert "1.25*" in table._repr_html_()


def test_the_suffix_chooses_the_format(tmp_path):
    for suffix, text in (
        (".tex", TABLE.to_latex()), (".md", TABLE.to_markdown()), (".csv", TABLE.to_csv()),
        (".txt", TABLE.to_text()), (".TEX", TABLE.render("latex")),
    ):  # fmt: skip
        path = TABLE.write(tmp_path / f"new{suffix[1:]}" / f"out{suffix}")
        assert path.read_text(encoding="utf-8") == text + "\n"
    with pytest.raises(InputError, match=r"out\.pdf: a table is written to a file \.txt, \.md"):
        TABLE.write(tmp_path / "out.pdf")
    with pytest.raises(InputError, match="no format 'pdf'"):
        TABLE.render("pdf")


@pytest.mark.parametrize(
    "more", [{"align": "lc"}, {"align": "l"}, {"groups": (("a", 1),)}, {"rows": ((Cell("x"),),)}]
)
def test_a_table_that_does_not_fit_is_refused(more):
    with pytest.raises(InputError, match="a table"):
        Table(**({"headings": ("a", "b"), "rows": ()} | more))
