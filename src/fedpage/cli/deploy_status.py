"""`fedpage deploy status`: what a run is doing, from its directory alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.output import Document, console, with_json
from fedpage.core.errors import InputError

if TYPE_CHECKING:
    from fedpage.runs.follow import FollowedRun

_INTERVAL = 1.0
"""Seconds between two looks at the files."""
_LIVE = ("running", "waiting")
"""States of a run that a process is writing."""


@with_json
def status(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of a run (out, or --out).")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and end, as --json always does.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", help="Seconds to wait for a run that is about to begin.", min=0),
    ] = 0.0,
) -> Document:
    """Show what a run is doing.

    The table is renewed until the run ends or Ctrl-C. It works for federations and simulations.
    """
    import sys
    import time

    from fedpage.report.status import describe_status, status_table

    end = time.monotonic() + wait
    while True:
        try:
            run = _open(directory)
            if run.state in _LIVE or run.history.ended or time.monotonic() >= end:
                break
        except InputError:
            if time.monotonic() >= end:
                raise
        time.sleep(_INTERVAL)
    screen = console()
    if once or sys.stdout is sys.stderr:  # with --json
        screen.print(status_table(run))
        return describe_status(run)
    from rich.live import Live

    try:
        with Live(console=screen, auto_refresh=False) as live:
            while True:
                live.update(status_table(run), refresh=True)
                if run.state not in _LIVE:
                    break
                time.sleep(_INTERVAL)
                run.poll()
    except KeyboardInterrupt:
        pass
    return describe_status(run)


def _open(directory: Path) -> FollowedRun:
    """Return the run in a directory.

    Raises:
        InputError: There is none, or there are several.
    """
    from fedpage.runs.follow import FollowedRun
    from fedpage.runs.status import read_status

    if not directory.is_dir():
        raise InputError(f"{directory}: is not a directory; give the out of a run")
    if not (directory / "history.jsonl").is_file() and read_status(directory) is None:
        if next(directory.glob("*/**/history.jsonl"), None) is not None:
            raise InputError(
                f"{directory}: has several runs; `fedpage watch {directory}` shows them"
            )
        raise InputError(f"{directory}: holds no run; give the out of a run")
    run = FollowedRun(directory)
    run.poll()
    return run
