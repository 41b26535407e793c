"""`fedpage methods`: list the methods."""

from __future__ import annotations

from typing import Annotated

import typer

from fedpage.cli.output import console


def methods(
    name: Annotated[str | None, typer.Argument(help="Show only this method.")] = None,
) -> None:
    """List the methods, or explain one.

    The list has their hyper-parameters, papers and what their clients store.
    """
    from rich.table import Table

    from fedpage.methods import METHODS
    from fedpage.runs.build import find_method

    chosen = dict(METHODS) if name is None else {_spell(name): find_method(name)}
    table = Table(show_lines=True)
    for heading in ("name", "hyper-parameters (defaults)", "paper", "clients store"):
        table.add_column(heading, overflow="fold")
    for key, entry in chosen.items():
        hyper = entry.hyper_parameters.items()
        defaults = ", ".join(f"{field}={_format(default)}" for field, default in hyper)
        state = entry.cls.client_state
        stored = "nothing" if state is None else str(state.__doc__).rstrip(".")
        table.add_row(key, defaults, entry.cls.paper, stored)
    console().print(table)
    if name is not None:
        print((chosen[_spell(name)].cls.__doc__ or "").strip())
    else:
        print(
            "None stands for a default that depends on other values, or for a minibatch of all "
            "rows.\n`fedpage methods NAME` explains a method."
        )


def _spell(name: str) -> str:
    """Spell a method as `--methods` lists it; file.py@Class stays as it is."""
    return name if "@" in name else name.lower()


def _format(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)
