"""`fedpage methods`: list the methods, or explain one."""

from __future__ import annotations

from collections.abc import Sequence
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
_EXAMPLES = {"any": "natural", "unbiased": "natural or randk:0.1", "contractive": "topk:0.1"}
"""A codec of each class."""
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
        return {**_describe(name, entry), "fields": describe.explain_fields(entry)}
    else:
        _print_list()
    return {"methods": [_describe(name, entry) for name, entry in METHODS.items()]}


def _describe(name: str, entry: MethodEntry) -> Document:
    """Return what the list says of a method, for `--json`."""
    return {
        "name": name,
        "label": entry.label,
        "group": entry.group,
        "traffic": describe.traffic(entry),
        "keeps": describe.kept(entry),
        "codecs": describe.codecs_of(entry),
        "assumes": entry.assumes,
        "paper": entry.cls.paper,
        "purpose": describe.purpose(entry),
        "defaults": describe.defaults(entry),
    }


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
    screen = console()
    screen.print(f"{entry.label}, {entry.cls.paper}", style="bold", markup=False)
    assumes = f"; assumes: {entry.assumes}" if entry.assumes else ""
    print_text(f"{name}; group: {GROUPS[entry.group]}{assumes}")
    print()
    print_text(describe.purpose(entry))

    meanings, defaults = describe.explain_fields(entry), describe.defaults(entry)
    rows = [(field, default, meanings.get(field, "")) for field, default in defaults.items()]
    _print_section("Hyper-parameters, and their defaults", rows)
    fixed = ", ".join(f"{field} = {value}" for field, value in entry.preset.items())
    if fixed:
        print_text(f"Fixed by this name: {fixed}.")
    sizes = describe.scheduled(entry)
    if sizes:
        names = " and ".join(sizes)
        print_text(f"{names} may follow a schedule, such as cosine:0.1:200.")

    usual = {each.message for each in describe.exchanges(entry)}
    rows = []
    for each in describe.exchanges(entry, every=True):
        meaning = describe.first_sentence(each.message)
        rare = "" if each.message in usual else " (only if clients fail to answer)"
        rows.append((each.vectors, f"{each.down.names} → {each.up.names}", meaning + rare))
    _print_section("Messages: vectors down/up, fields sent → sent back", rows)

    state = entry.cls.client_state
    stored = "Nothing." if state is None else f"{describe.first_sentence(state)}."  # type: ignore[arg-type]
    _print_section("A client keeps", [(stored,)])
    if describe.has_codec(entry, "up"):
        passing = {
            field for each in describe.exchanges(entry, every=True) for field in each.compressed
        }
        kind = describe.codecs_of(entry)
        which = "casts such as float32"
        if kind != "casts":
            which = f"{kind} codecs, such as {_EXAMPLES[kind]}, and {which},"
        text = f"--up takes {which} for {', '.join(sorted(passing)) or 'replies'}."
        _print_section("Codecs", [(text,)])
    if entry.page:
        print(f"\nIn the documentation: methods/{entry.page}.md")


def _print_section(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Print a title and rows of cells below it; the last cell is wrapped."""
    if not rows:
        return
    console().print(f"\n{title}", style="bold", markup=False)
    print_grid([("", *row) for row in rows])
