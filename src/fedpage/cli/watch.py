"""`fedpage watch` and `fedpage serve`: follow runs while they go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.output import Document, console, with_json

if TYPE_CHECKING:
    from fedpage.report.watch import RunFollower

_Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A directory with runs in it, at any depth.")
]
_Column = Annotated[
    str, typer.Option("--column", help="The recorded column to show (default: the target's).")
]
_INTERVAL = 1.0
"""Seconds between two looks at the files."""
_LINES_AROUND = 7
"""Lines of the table that are not runs: title, headings, frame and caption."""


@with_json
def watch(
    directory: _Directory,
    column: _Column = "",
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and end, as --json always does.")
    ] = False,
) -> Document:
    """Follow runs in the terminal.

    A table shows each run's state, round, rate and course until Ctrl-C.
    """
    import sys
    import time

    from fedpage.report.watch import RunFollower, watch_table

    follower = RunFollower(directory)
    follower.poll()
    screen = console()
    if once or sys.stdout is sys.stderr:  # with --json
        screen.print(watch_table(follower, column))
        return _describe(follower)
    from rich.live import Live

    try:
        with Live(console=screen, auto_refresh=False) as live:
            while True:
                limit = screen.height - _LINES_AROUND
                live.update(watch_table(follower, column, limit), refresh=True)
                time.sleep(_INTERVAL)
                follower.poll()
    except KeyboardInterrupt:
        return _describe(follower)


def _describe(follower: RunFollower) -> Document:
    """Return what the table shows, for `--json`."""
    return {
        "runs": [
            {
                "run": name,
                "state": run.state,
                "round": run.round,
                "rounds": run.rounds,
                "rate": run.rate,
                "last": run.history.rows[-1] if run.history.rows else {},
                "error": run.error,
            }
            for name, run in follower.runs.items()
        ]
    }


def serve(
    directory: _Directory,
    column: _Column = "",
    port: Annotated[
        int, typer.Option("--port", help="The port; 0 for any that is free.", min=0, max=65535)
    ] = 8765,
) -> None:
    """Serve the report of runs while they go on.

    The page is for this machine only (127.0.0.1), and changes when there are new records.
    """
    from fedpage.report.live import LiveReport, LiveServer

    with LiveServer(LiveReport(directory, column), port) as server:
        print(f"Report of {directory}: {server.url} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
