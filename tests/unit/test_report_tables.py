"""The formats of tables: LaTeX, Markdown, CSV and text."""

import csv
import io
import re

import pytest

from fedpage.core.errors import InputError
from fedpage.report.tables import Cell, Table, escape_latex

NASTY = 'a_b & 50% #1 {x} $y$ ~^ \\end{tabular} [1] <i>|"*`'
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
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-4}" in TABLE.to_latex()
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
        (".txt", TABLE.to_text()), (".TEX", TABLE.to_latex()),
    ):  # fmt: skip
        path = TABLE.write(tmp_path / f"new{suffix[1:]}" / f"out{suffix}")
        assert path.read_text(encoding="utf-8") == text + "\n"
    with pytest.raises(InputError, match=r"out\.pdf: a table is written to a file \.txt, \.md"):
        TABLE.write(tmp_path / "out.pdf")


@pytest.mark.parametrize(
    "more", [{"align": "lc"}, {"align": "l"}, {"groups": (("a", 1),)}, {"rows": ((Cell("x"),),)}]
)
def test_a_table_that_does_not_fit_is_refused(more):
    with pytest.raises(InputError, match="a table"):
        Table(**({"headings": ("a", "b"), "rows": ()} | more))
