"""`fedpage watch`, which is also `fedpage deploy status`: follow runs in the terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from fedpage.cli import options
from fedpage.cli.options import Document
from fedpage.cli.output import console
from fedpage.core.errors import InputError
from fedpage.report.watch import RunFollower

app = options.make_app()
_INTERVAL = 1.0
"""Seconds between two looks at the files."""
_LINES_AROUND = 7
"""Lines of the table that are not runs: title, headings, frame and caption."""


@options.command(app, "watch")
def watch(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of a run, or of many at any depth.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and end, as --json always does.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", help="Seconds to wait for a run that is about to begin.", min=0),
    ] = 0.0,
) -> Document:
    """Follow runs in the terminal.

    The table shows the state, round, speed, remaining time and newest values of runs. It is redrawn
    until Ctrl-C, or until the run has ended if DIR is the directory of one run. Simulations and
    federations can be followed.
    """
    follower = _open(directory, wait)
    screen = console()
    if once or sys.stdout is sys.stderr:  # with --json
        return print_runs(follower)
    try:
        with Live(console=screen, auto_refresh=False) as live:
            while True:
                live.update(follower.table(screen.height - _LINES_AROUND), refresh=True)
                if follower.has_ended:
                    break
                time.sleep(_INTERVAL)
                follower.poll()
    except KeyboardInterrupt:
        pass
    return {"runs": follower.describe()}


def print_runs(follower: RunFollower, limit: int | None = None) -> Document:
    """Print the table of runs once, and return its rows."""
    console().print(follower.table(limit))
    return {"runs": follower.describe()}


def _open(directory: Path, wait: float) -> RunFollower:
    """Read the runs in a directory, if need be after waiting until one is running or has ended."""
    end = time.monotonic() + wait
    while True:
        is_late = time.monotonic() >= end
        try:
            follower = RunFollower(directory)
            follower.poll()
            runs = follower.runs.values()
            if is_late or any(run.state.is_live or run.history.ended for run in runs):
                return follower
        except InputError:
            if is_late:
                raise
        time.sleep(_INTERVAL)
