"""`fedpage methods`: list the methods, or explain one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table as RichTable

from fedpage.cli import options
from fedpage.cli.options import Document
from fedpage.cli.output import console, print_grid, print_text
from fedpage.core.errors import InputError
from fedpage.methods import METHODS, MethodEntry
from fedpage.methods.registry import GROUPS
from fedpage.report import methods as describe
from fedpage.runs.build import find_method

app = options.make_app()
_LEGEND = """\
down/up: vectors that a called client receives and sends back, for each kind of message. keep:
what a client stores between rounds. codecs: what --up takes (see `fedpage codecs`).

`fedpage methods NAME` explains a method."""
_HEADINGS = ("name", "down/up", "keep", "codecs", "assumes", "paper")
_ROOM_FOR_PAPERS = 140
"""The width from which the list names the papers."""


@options.command(app, "methods")
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this method.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of the documentation.")
    ] = False,
) -> Document:
    """List the methods, or explain one.

    The list has what each method sends, what its clients keep, and what it assumes.
    """
    if markdown and name is not None:
        raise InputError("--markdown prints the table of all methods; leave out the name")
    if markdown:
        print(describe.markdown(), end="")
    elif name is not None:
        name = name if "@" in name else name.lower()
        entry = find_method(name)
        _explain(name, entry)
        return {**describe.describe(name, entry), "fields": describe.explain_fields(entry)}
    else:
        _print_list()
    return {"methods": [describe.describe(name, entry) for name, entry in METHODS.items()]}


def _print_list() -> None:
    """Print the methods by group. A narrow screen has no papers and wraps "assumes"."""
    groups = {
        title: [
            (
                name, describe.traffic(entry), describe.kept(entry), describe.codecs_of(entry),
                entry.assumes or "-", entry.cls.paper,
            )
            for name, entry in entries.items()
        ]
        for title, entries in describe.by_group().items()
    }  # fmt: skip
    screen = console()
    rows = [_HEADINGS, *(row for group in groups.values() for row in group)]
    shown = len(_HEADINGS) - (screen.width < _ROOM_FOR_PAPERS)
    widths = [max(len(row[i]) for row in rows) for i in range(shown)]
    widths[4] = max(20, min(widths[4], screen.width - sum(widths) + widths[4] - 2 * shown))
    for title, group in ({"": [_HEADINGS]} | groups).items():
        if title:
            screen.print(f"\n{title}", style="bold")
        table = RichTable.grid(padding=(0, 2, 0, 0))
        for width in widths:
            table.add_column(width=width, overflow="fold")
        for row in group:
            table.add_row(*row[:shown], style="" if title else "bold")
        screen.print(table)
    print()
    print_text(_LEGEND)


def _explain(name: str, entry: MethodEntry) -> None:
    console().print(f"{entry.label}, {entry.cls.paper}", style="bold", markup=False)
    assumes = f"; assumes: {entry.assumes}" if entry.assumes else ""
    print_text(f"{name}; group: {GROUPS[entry.group]}{assumes}")
    print()
    print_text(describe.purpose(entry))
    for title, rows in describe.sections(entry).items():
        console().print(f"\n{title}", style="bold", markup=False)
        if rows:
            print_grid([("", *row) for row in rows])
    if entry.page:
        print(f"\nIn the documentation: methods/{entry.page}.md")
