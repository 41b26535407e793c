"""Comparisons of histories, the tables of them, and their formats."""

from __future__ import annotations

import csv
import io
import math
import re

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.report import summary
from fedpage.report.tables import Cell, Table, escape_latex
from fedpage.studies.comparison import compare_costs

NASTY = 'a_b & 50% #1 {x} $y$ ~^ \\end{tabular} [1] <i>|"*`'


def history(name, seed, cost):
    """Return a run that reaches a loss of 0.1 at the given number of rounds, or never."""
    run = fp.History({"seed": seed, "method": {"name": name}, "problem": {"data": "d"}})
    run.append({"round": 0, "clients": 0, "loss": 1.0, "grad_norm": 1.0, "seconds": 0.0})
    end = 50.0 if math.isinf(cost) else cost
    loss = 0.9 if math.isinf(cost) else 0.1
    row = {"round": end, "clients": 2 * end, "loss": loss, "grad_norm": loss, "seconds": 1.0}
    run.append(row)
    for row in run.rows:
        row["bytes_up"], row["bytes_down"] = 1000.0 * row["round"], 2000.0 * row["round"]
    return run


COSTS = {
    "slow": (21.0, 20.0, 22.0, 19.0, 20.5),
    "fast": (10.0, 11.0, 9.0, 10.5, 9.5),
    "near": (10.2, 10.8, 9.3, 10.4, 9.6),
}


def histories(costs=COSTS):
    return [history(name, s, c) for name, row in costs.items() for s, c in enumerate(row)]


def test_the_best_and_those_tied_with_it_are_bold():
    table = fp.table(histories(), target="loss:0.1,hold=0")
    bold = {row[0].text: row[4].is_bold for row in table.rows}
    assert bold == {"slow": False, "fast": True, "near": True}
    assert [row[0].text for row in table.rows] == list(COSTS)  # in the order of the runs
    assert table.headings[4] == "median (kB)"
    cells = ["slow", "5/5", "5/5", "0.1", "61.5", "[57.0,", "66.0]"]
    assert [cell.text for cell in table.rows[0][:7]] == cells
    assert table.rows[0][5].value == pytest.approx(57.0)
    assert table.rows[0][7].value == pytest.approx(2.05, abs=0.01)  # times the best
    brackets = "Brackets: 94 % intervals of the median (order statistics); "
    assert table.notes[0] == f"{brackets}95 % t-intervals of the ratio of paired costs."
    assert table.groups == (("", 4), ("bytes to loss 0.1", 3), ("times fast", 4))


def test_a_sentence_for_each_pair():
    found = compare_costs(histories(), target="loss:0.1,hold=0")
    sentences = found.sentences()
    assert len(sentences) == 3
    pattern = r"fast needs 0\.49 times the bytes of slow \[0\.\d\d, 0\.\d\d\] on 5 paired seeds "
    assert any(re.match(pattern, sentence) for sentence in sentences)
    assert any("cannot be told apart" in sentence for sentence in sentences)
    rounds = compare_costs(histories(), target="loss:0.1,hold=0", cost="round")
    assert "times the rounds of" in rounds.sentences()[0]


def test_costs_are_interpolated_between_records():
    run = history("fast", 0, 10.0)
    run.rows[1]["loss"] = 0.01  # log-linear from 1 at round 0: 0.1 is half way
    found = compare_costs([run], target="loss:0.1,hold=0", cost="round")
    assert found.costs["fast"][0] == pytest.approx(5.0)


def test_of_many_pairs_those_with_the_best_are_told():
    many = {f"m{i}": tuple((i + 1) * cost for cost in COSTS["fast"]) for i in range(6)}
    found = compare_costs(histories(many), target="loss:0.1,hold=0")
    assert len(found.pairs) == 15
    assert len(found.sentences()) == 5
    assert all("m0" in sentence for sentence in found.sentences())


def test_three_seeds_make_no_verdict_and_nothing_bold():
    few = {name: costs[:3] for name, costs in COSTS.items()}
    found = compare_costs(histories(few), target="loss:0.1,hold=0")
    assert found.sentences() == ["No verdict from 3 seeds: at least 5 are needed; add --seeds 5."]
    table = found.table()
    assert not any(cell.is_bold for row in table.rows for cell in row)
    assert "Nothing is bold: no verdict from 3 seeds" in table.to_text()
    assert table.notes[0].startswith("Brackets: 75 % intervals of the median")
    assert [row[-1].text for row in table.rows] == ["-", "", "-"]


def test_methods_that_do_not_reach_the_target():
    costs = COSTS | {"lost": (math.inf,) * 5, "half": (12.0, 13.0, 11.0, math.inf, math.inf)}
    found = compare_costs(histories(costs), target="loss:0.1,hold=0")
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in found.table().rows}
    assert cells["lost"][:9] == ["0/5", "0/5", "0.9", "-", "-", "-", "-", "-", "-"]
    assert cells["half"][:7] == ["3/5", "3/5", "0.1", "39.0", "[33.0,", "-]", "-"]
    # Five seeds cannot tell half from fast among ten pairs, but lost has no cost to be bold.
    assert found.tied == {"fast", "near", "half"}
    assert found.level == 1 - 2 / 2**5  # the range of five seeds, not 95 %
    assert "Dashes: runs did not reach the target" in " ".join(found.table().notes)
    never = compare_costs(histories(), target="loss:1e-9,hold=0")
    assert never.tied == frozenset()
    assert "cannot be compared" in never.sentences()[0]
    table = never.table()
    assert table.headings[4] == "median (B)"
    assert {cell.text for row in table.rows for cell in row[4:]} == {"-"}


def test_one_method_and_one_seed():
    table = fp.table([history("fast", 0, 10.0)], target="loss:0.1,hold=0")
    cells = ["fast", "1/1", "1/1", "0.1", "30.0", "[30.0,", "30.0]"]
    assert [cell.text for cell in table.rows[0]] == cells
    assert compare_costs([history("fast", 0, 1.0)], target="loss:0.1,hold=0").sentences() == []


def test_wrong_histories_are_refused():
    with pytest.raises(InputError, match="fast has two runs with seed 0; leave one"):
        fp.table([history("fast", 0, 1.0)] * 2, target="loss:0.1,hold=0")
    with pytest.raises(InputError, match="give histories"):
        fp.table([], target=0.1)
    with pytest.raises(InputError, match="give histories"):
        fp.table([1], target=0.1)
    with pytest.raises(InputError, match="not a cost"):
        fp.table(histories(), target=0.1, cost="nothing")


def test_the_summary_marks_the_cost():
    rows = summary.summarise(histories(), "loss:0.1,hold=0", "round")
    table = summary.table(rows, "loss", "round", bold={"fast"})
    at = table.headings.index("rounds to target")
    assert [[cell.is_bold for cell in row].index(True) for row in table.rows[1:2]] == [at]
    assert not any(cell.is_bold for row in (table.rows[0], table.rows[2]) for cell in row)
    assert table.notes == (summary.BOLD_NOTE,)


# --- formats --------------------------------------------------------------------------------------


def nasty_table():
    return Table(
        ("method", NASTY, "cost", "p"),
        (
            (Cell(NASTY), Cell("x"), Cell("1.5", 1.512345, True), Cell("< 0.001", 1e-5)),
            (Cell("[0, 1]"), Cell(""), Cell("20", 20.0), Cell("", "", True)),
        ),
        caption=NASTY,
        notes=(NASTY, "Bold: the best."),
        groups=(("", 1), (NASTY, 2), ("p & q", 1)),
    )


def check_latex(text):
    """Check what a parser of tables would: braces, environments, cells of each row, specials."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    depth = 0
    for brace in re.findall(r"(?<!\\)(?:\\\\)*([{}])", body):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    stack = []
    for what, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        if what == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    columns = len(re.search(r"\\begin\{tabular\}\{([lr]+)\}", body).group(1))
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    for row in rows:
        spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        assert len(re.findall(r"(?<!\\)&", row)) + 1 + sum(n - 1 for n in spans) == columns
        assert not row.strip().startswith("[")
    known = (
        "begin end centering small setlength tabcolsep caption toprule midrule bottomrule cmidrule "
        "multicolumn textbf par smallskip footnotesize textbackslash textasciitilde "
        "textasciicircum textless textgreater textbar"
    )
    assert set(re.findall(r"\\([a-zA-Z]+)", body)) <= set(known.split())
    assert not re.search(r"(?<!\\)[$#_%~^|<>\"]", body)
    return rows


def test_latex_is_well_formed():
    rows = check_latex(nasty_table().to_latex())
    assert len(rows) == 4
    assert r"\textbf{1.5}" in rows[2]
    assert r"\textbf{}" not in rows[3]
    assert rows[3].strip().startswith("{[}0, 1]")
    text = fp.table(histories(), target="loss:0.1,hold=0").to_latex()
    check_latex(text)
    assert r"\cmidrule(lr){5-7} \cmidrule(lr){8-11}" in text
    plain = Table(("a", "b"), ((Cell("x"), Cell("1")),)).to_latex()
    check_latex(plain)
    assert "caption" not in plain
    assert "cmidrule" not in plain


@pytest.mark.parametrize("letter", '\\{}$&#_%~^<>|"[')
def test_every_special_letter_of_latex_is_escaped(letter):
    assert escape_latex(letter) != letter
    check_latex(Table(("h" + letter,), ((Cell(letter + letter),),), caption=letter).to_latex())


def test_markdown_has_a_cell_for_each_column():
    lines = nasty_table().to_markdown().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [5] * 4
    assert "**1.5**" in rows[2]
    assert "\\*" in rows[2]
    assert "****" not in rows[3]


def test_csv_has_values_and_no_rounding():
    rows = list(csv.reader(io.StringIO(nasty_table().to_csv())))
    assert rows[1] == [NASTY, "x", "1.512345", "1e-05"]
    assert rows[0][2] == f"{NASTY}: cost"
    assert len(rows) == 3


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
    table = nasty_table()
    for suffix, text in (
        (".tex", table.to_latex()), (".md", table.to_markdown()), (".csv", table.to_csv()),
        (".txt", table.to_text()), (".TEX", table.render("latex")),
    ):  # fmt: skip
        path = table.write(tmp_path / f"new{suffix[1:]}" / f"out{suffix}")
        assert path.read_text(encoding="utf-8") == text + "\n"
    with pytest.raises(InputError, match=r"out\.pdf: a table is written to a file \.txt, \.md"):
        table.write(tmp_path / "out.pdf")
    with pytest.raises(InputError, match="no format 'pdf'"):
        table.render("pdf")


@pytest.mark.parametrize(
    "more", [{"align": "lc"}, {"align": "l"}, {"groups": (("a", 1),)}, {"rows": ((Cell("x"),),)}]
)
def test_a_table_that_does_not_fit_is_refused(more):
    with pytest.raises(InputError, match="a table"):
        Table(**({"headings": ("a", "b"), "rows": ()} | more))


def test_compare_writes_the_table(run, tmp_path):
    words = (
        "compare", "--data", "census:rows=300", "--clients", "30", "--rounds", "30", "--S", "5",
        "--record-every", "2", "--target", "0.3", "--methods", "page,fedavg",
    )  # fmt: skip
    code, out, _ = run(*words, "--seeds", "5", "--out", "a", "--table", "t/out.tex")
    assert code == 0
    check_latex((tmp_path / "t" / "out.tex").read_text(encoding="utf-8"))
    text = " ".join(out.split())
    assert re.search(r"needs \S+ times the bytes of \w+ \[.*\] on 5 paired seeds \(p", text)
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert "on 5 paired seeds" in page
    code, out, _ = run(*words, "--seeds", "2", "--out", "b")
    assert "No verdict from 2 seeds: at least 5 are needed; add --seeds 5." in out
    code, _, err = run(*words, "--seeds", "2", "--out", "c", "--table", "out.pdf")
    assert code == 2
    assert "out.pdf: a table is written to a file .txt, .md, .tex, .csv" in err
    assert not (tmp_path / "c").exists()


# --- the diagram of ranks -------------------------------------------------------------------------


def test_the_diagram_shows_every_method_and_group(tmp_path):
    rows = [(1.0, 2.0, 3.0, 4.0)] * 12 + [(2.0, 1.0, 4.0, 3.0)] * 8
    names = ("FedPAGE", "SCAFFOLD", "FedAvg", "FedProx")
    ranks = fp.rank_over_problems(
        {str(i): dict(zip(names, r, strict=True)) for i, r in enumerate(rows)}
    )
    figure = fp.plot_critical_difference(ranks, tmp_path / "cd.png")
    assert (tmp_path / "cd.png").stat().st_size > 3000
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert {"FedPAGE  1.40", "SCAFFOLD  1.60", "3.40  FedAvg", "3.60  FedProx"} <= set(texts)
    assert "critical difference 1.05" in texts
    bars = [line for line in axes.lines if line.get_linewidth() == 2.6]
    assert len(bars) == len(ranks.groups) == 2
    for bar, group in zip(bars, ranks.groups, strict=True):
        low, high = np.asarray(bar.get_xdata(), dtype=float)
        assert low <= ranks.mean_ranks[group[0]] < ranks.mean_ranks[group[-1]] <= high
    with pytest.raises(InputError, match=r"cd\.xyz"):
        fp.plot_critical_difference(ranks, tmp_path / "cd.xyz")
