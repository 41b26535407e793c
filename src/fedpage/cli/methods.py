"""`fedpage methods` and `fedpage codecs`: list what there is, and explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.output import Document, console, with_json
from fedpage.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fedpage.codecs import Codec
    from fedpage.methods import MethodEntry

_LEGEND = """\
down/up: vectors that a called client receives and sends back, for each kind of message. keep:
what a client stores between rounds. codecs: what --up takes (see `fedpage codecs`).

`fedpage methods NAME` explains a method."""
_CODECS = """\
Bits are those of a vector of {d:,} float64 numbers, before it is filled up to whole bytes. share:
their share of 64 bits a number. omega: the codec is unbiased, and this is its relative variance.
alpha: it is contractive, and at least this part of the squared length arrives.

Use one as --up natural or --down float32. Two in a row: randk:12+natural. Shortened, so that it is
contractive: scaled(randk:12)."""
_EXAMPLES = {"any": "natural", "unbiased": "natural or randk:0.1", "contractive": "topk:0.1"}
"""A codec of each class."""
_HEADINGS = ("name", "down/up", "keep", "codecs", "assumes", "paper")
_WIDEST = 100
"""The widest text, so that a line is read easily."""
_ROOM_FOR_PAPERS = 140
"""The width from which the list names the papers."""


@with_json
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this method.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of the documentation.")
    ] = False,
) -> Document:
    """List the methods, or explain one.

    The list has what each method sends, what its clients keep, and what it assumes.
    """
    from fedpage.methods import METHODS
    from fedpage.report import methods as describe
    from fedpage.runs.build import find_method

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
    from fedpage.report import methods as describe

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
    from rich.table import Table

    from fedpage.report import methods as describe

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
        table = Table.grid(padding=(0, 2, 0, 0))
        for width in widths:
            table.add_column(width=width, overflow="fold")
        for row in group:
            table.add_row(*row[:shown], style="" if title else "bold")
        screen.print(table)
    print()
    _print_text(screen, _LEGEND)


def _explain(name: str, entry: MethodEntry) -> None:
    from fedpage.methods.registry import GROUPS
    from fedpage.report import methods as describe

    screen = console()
    screen.print(f"{entry.label}, {entry.cls.paper}", style="bold", markup=False)
    assumes = f"; assumes: {entry.assumes}" if entry.assumes else ""
    _print_text(screen, f"{name}; group: {GROUPS[entry.group]}{assumes}")
    print()
    _print_text(screen, describe.purpose(entry))

    meanings, defaults = describe.explain_fields(entry), describe.defaults(entry)
    rows = [(field, default, meanings.get(field, "")) for field, default in defaults.items()]
    _print_section(screen, "Hyper-parameters, and their defaults", rows)
    fixed = ", ".join(f"{field} = {value}" for field, value in entry.preset.items())
    if fixed:
        _print_text(screen, f"Fixed by this name: {fixed}.")
    sizes = describe.scheduled(entry)
    if sizes:
        names = " and ".join(sizes)
        _print_text(screen, f"{names} may follow a schedule, such as cosine:0.1:200.")

    usual = {each.message for each in describe.exchanges(entry)}
    rows = []
    for each in describe.exchanges(entry, every=True):
        meaning = describe.first_sentence(each.message)
        rare = "" if each.message in usual else " (not with the defaults)"
        rows.append((each.vectors, f"{each.down.names} → {each.up.names}", meaning + rare))
    _print_section(screen, "Messages: vectors down/up, fields sent → sent back", rows)

    state = entry.cls.client_state
    stored = "Nothing." if state is None else f"{describe.first_sentence(state)}."  # type: ignore[arg-type]
    _print_section(screen, "A client keeps", [(stored,)])
    if describe.has_codec(entry, "up"):
        passing = {
            field for each in describe.exchanges(entry, every=True) for field in each.compressed
        }
        kind = describe.codecs_of(entry)
        which = "casts such as float32"
        if kind != "casts":
            which = f"{kind} codecs, such as {_EXAMPLES[kind]}, and {which},"
        text = f"--up takes {which} for {', '.join(sorted(passing)) or 'replies'}."
        _print_section(screen, "Codecs", [(text,)])
    if entry.page:
        print(f"\nIn the documentation: methods/{entry.page}.md")


def _print_section(screen: Console, title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Print a title and rows of cells below it; the last cell is wrapped."""
    if not rows:
        return
    screen.print(f"\n{title}", style="bold", markup=False)
    _print_grid(screen, [("", *row) for row in rows])


def _print_grid(
    screen: Console, rows: Sequence[tuple[str, ...]], headings: tuple[str, ...] = ()
) -> None:
    """Print cells without lines. Only the last cell of a row is wrapped."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in rows[0][:-1]:
        grid.add_column(no_wrap=True)
    if headings:
        grid.add_row(*headings, style="bold")
    for row in rows:
        grid.add_row(*row)
    screen.print(grid, width=min(screen.width, _WIDEST))


def _print_text(screen: Console, text: str) -> None:
    """Print paragraphs at a width that is read easily."""
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    screen.print(
        "\n\n".join(paragraphs), markup=False, width=min(screen.width, _WIDEST), highlight=False
    )


@with_json
def codecs(
    d: Annotated[int, typer.Option("--d", help="Parameters of the model.", min=1)] = 1000,
) -> Document:
    """List the codecs, with what each sends and its size in bits."""
    screen = console()
    rows = _describe_codecs(d)
    _print_grid(screen, rows, ("codec", "constant", "bits", "share", ""))
    print()
    _print_text(screen, _CODECS.format(d=d))
    keys = ("codec", "constant", "bits", "share", "description")
    return {"d": d, "codecs": [dict(zip(keys, row, strict=True)) for row in rows]}


_COMPOSED = {"scaled": "scaled(randk:0.1)", "chain": "randk:0.1+natural"}
_ARGUMENTS = {"k": "0.1", "n": "10", "q": "0.1", "s": "4"}
"""Values for examples, by the name of a codec's argument."""


def _describe_codecs(d: int) -> list[tuple[str, str, str, str, str]]:
    """Return an example of each codec: its spelling, constant, bits, their share, and its purpose.

    Args:
        d: The length of the vector.
    """
    from dataclasses import fields

    import numpy as np

    from fedpage.codecs import CODECS, as_codec
    from fedpage.report.methods import first_sentence

    found = []
    for name, cls in CODECS.items():
        arguments = [_ARGUMENTS.get(each.name, "1") for each in fields(cls)]
        codec = as_codec(_COMPOSED.get(name) or ":".join((name, *arguments)))
        try:
            bits = codec.bits(d, np.dtype(np.float64))
            most = "" if codec.has_fixed_size else "<= "
            size = (f"{most}{bits:,}", f"{most}{bits / (64 * d):.2g}")
        except InputError:  # it does not fit so few numbers
            size = ("-", "-")
        found.append((str(codec), _describe_constant(codec, d), *size, first_sentence(cls)))
    return found


def _describe_constant(codec: Codec, d: int) -> str:
    """Return omega of an unbiased codec, such as "omega = 9", or alpha of a contractive one."""
    try:
        omega, alpha = codec.omega(d), codec.alpha(d)
    except InputError:
        return "-"
    if codec.is_cast:
        return "rounding" if str(codec) != "none" else "exact"
    if omega is not None:
        return f"omega = {omega:.3g}"
    return "biased" if alpha is None else f"alpha = {alpha:.3g}"
