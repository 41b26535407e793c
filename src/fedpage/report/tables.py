"""Hold a table once, and write it as plain text, Markdown, LaTeX or CSV.

LaTeX needs the package booktabs. CSV has the numbers behind the cells, unrounded, and neither
caption nor notes.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpage.core.display import html_table
from fedpage.core.errors import InputError, short_repr

FORMATS: dict[str, str] = {".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv"}
"""The format of a table's file by its suffix."""

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "_": r"\_", "%": r"\%", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    "[": "{[}",  # after a row's end it would be read as an option of \\
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text for readers.
        value: The value in CSV. If None, the text.
        is_bold: Whether it is among the best.
    """

    text: str
    value: float | str | None = None
    is_bold: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    """A table for readers.

    Attributes:
        headings: The heading of each column.
        rows: The cells of each row.
        caption: A sentence above it.
        notes: Sentences below it.
        groups: Headings above neighbouring columns, each with the number of its columns, which are
            all columns together. Use "" for columns without such a heading.
        align: "l" or "r" for each column. If empty, the first is left and the others right.
        details: Sentences that pages show below it, folded if there are many.

    Raises:
        InputError: The number of cells, groups or letters does not fit the headings.

    >>> rows = ((Cell("FedPAGE"), Cell("1.2 MB", 1.2e6, True)), (Cell("SCAFFOLD"), Cell("9 MB")))
    >>> table = Table(("method", "bytes"), rows)
    >>> print(table.to_text())
    method      bytes
    --------  -------
    FedPAGE   1.2 MB*
    SCAFFOLD    9 MB
    >>> print(table.to_markdown())
    | method   |      bytes |
    |:---------|-----------:|
    | FedPAGE  | **1.2 MB** |
    | SCAFFOLD |       9 MB |
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()
    align: str = ""
    details: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.headings)
        object.__setattr__(self, "align", self.align or "l" + "r" * (count - 1))
        spans = sum(span for _, span in self.groups) if self.groups else count
        if not count or {count} != {spans, len(self.align), *map(len, self.rows)}:
            raise InputError(
                f"a table of {count} headings needs as many cells in each row, as many letters of "
                "align, and groups over all columns"
            )
        if not set(self.align) <= {"l", "r"}:
            raise InputError(f"align of a table has letters l and r, not {short_repr(self.align)}")

    @classmethod
    def of_texts(
        cls, headings: Iterable[str], rows: Iterable[Iterable[str]], note: str = ""
    ) -> Table:
        """Make a table of words, left-aligned."""
        head = tuple(headings)
        cells = tuple(tuple(Cell(text) for text in row) for row in rows)
        return cls(head, cells, notes=(note,) if note else (), align="l" * len(head))

    @property
    def is_text(self) -> bool:
        """Whether the cells are words, not numbers."""
        return set(self.align) == {"l"}

    @property
    def flat_headings(self) -> list[str]:
        """The headings, each after the heading of its group."""
        above = [name for name, span in self.groups for _ in range(span)] or [""] * len(self.align)
        return [
            f"{group}: {word}" if group else word
            for group, word in zip(above, self.headings, strict=True)
        ]

    def __str__(self) -> str:
        return self.to_text()

    def starred(self) -> Table:
        """Return the table with asterisks in place of bold cells."""
        columns = []
        for cells in zip(*self.rows, strict=True):
            marks = [("*" if cell.is_bold else " ") for cell in cells]
            marks = marks if "*" in marks else [""] * len(cells)
            columns.append(
                [
                    replace(cell, text=cell.text + mark, is_bold=False)
                    for cell, mark in zip(cells, marks, strict=True)
                ]
            )
        rows = tuple(zip(*columns, strict=True))
        notes = tuple(re.sub("^Bold:", "*:", note) for note in self.notes)
        return replace(self, rows=rows, notes=notes)

    def _repr_html_(self) -> str:
        """Show the table in a notebook. Bold cells have an asterisk."""
        plain = self.starred()
        cells = [[cell.text for cell in row] for row in plain.rows]
        return html_table(self.caption, self.flat_headings, cells, *plain.notes)

    def to_text(self) -> str:
        """Write plain text. Bold cells have an asterisk."""
        plain = self.starred()
        cells = [self.headings, *([cell.text for cell in row] for row in plain.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        above, first = [], 0
        for name, span in self.groups:
            own = slice(first, first + span)
            first += span
            width = sum(widths[own]) + 2 * (span - 1)
            widths[first - 1] += max(0, len(name) - width)
            above.append(name.center(max(width, len(name))))
        rows = [cells[0], ["-" * width for width in widths], *cells[1:]]
        lines = [self.caption, "  ".join(above).rstrip(), _tabulate(rows, self.align, "plain")]
        return "\n".join([*filter(None, lines), *plain.notes])

    def to_markdown(self) -> str:
        """Write Markdown."""
        words = [[(_escape_markdown(cell.text), cell.is_bold) for cell in row] for row in self.rows]
        rows = [[f"**{w}**" if bold and w else w for w, bold in row] for row in words]
        rows.insert(0, [_escape_markdown(heading) for heading in self.flat_headings])
        table = _tabulate(rows, self.align, "pipe", headers="firstrow")
        caption = f"**{_escape_markdown(self.caption)}**" if self.caption else ""
        return "\n\n".join([*filter(None, (caption, table)), *map(_escape_markdown, self.notes)])

    def to_latex(self) -> str:
        r"""Write a LaTeX table, which needs `\usepackage{booktabs}`."""
        lines = [r"% needs \usepackage{booktabs}", r"\begin{table}", r"  \centering\small"]
        if self.caption:
            lines.append(rf"  \caption{{{escape_latex(self.caption)}}}")
        lines.append(r"  \setlength{\tabcolsep}{4pt}")  # nine columns fit the width of an article
        lines += [rf"  \begin{{tabular}}{{{self.align}}}", r"    \toprule"]
        if self.groups:
            names, rules, first = [], [], 1
            for name, span in self.groups:
                names.append(rf"\multicolumn{{{span}}}{{c}}{{{escape_latex(name)}}}")
                if name:
                    rules.append(rf"\cmidrule(lr){{{first}-{first + span - 1}}}")
                first += span
            lines += [_latex_row(names), f"    {' '.join(rules)}"]
        lines += [_latex_row(map(escape_latex, self.headings)), r"    \midrule"]
        for row in self.rows:
            words = ((escape_latex(cell.text), cell.is_bold) for cell in row)
            lines.append(_latex_row(rf"\textbf{{{w}}}" if bold and w else w for w, bold in words))
        lines += [r"    \bottomrule", r"  \end{tabular}"]
        if self.notes:
            notes = " ".join(map(escape_latex, self.notes))
            lines += [r"  \par\smallskip", rf"  {{\footnotesize {notes}\par}}"]
        return "\n".join([*lines, r"\end{table}"])

    def to_csv(self) -> str:
        """Write CSV with the values of the cells."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.flat_headings)
        for row in self.rows:
            writer.writerow([cell.text if cell.value is None else cell.value for cell in row])
        return stream.getvalue().rstrip("\n")

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a file, in the format of its suffix: .txt, .md, .tex or .csv.

        Raises:
            InputError: The suffix is another one.
        """
        file = Path(path)
        text: str = getattr(self, f"to_{table_format(file)}")()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
        return file


def table_format(path: Path) -> str:
    """Return the format of a table's file, or raise an InputError if no format has its suffix."""
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise InputError(f"{path}: a table is written to a file {', '.join(FORMATS)}")
    return found


def escape_latex(text: str) -> str:
    r"""Escape characters that LaTeX would read as commands.

    >>> escape_latex("eta_g = 10 %")
    'eta\\_g = 10 \\%'
    """
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_|<\[\]])", r"\\\1", " ".join(text.split()))


def _tabulate(rows: Sequence[Sequence[str]], align: str, style: str, headers: str = "") -> str:
    from tabulate import tabulate

    sides = ["left" if side == "l" else "right" for side in align]
    options = {"disable_numparse": True, "preserve_whitespace": True}
    return str(tabulate(rows, headers, style, colalign=sides, **options))


def _latex_row(words: Iterable[str]) -> str:
    return f"    {' & '.join(words)} \\\\"
