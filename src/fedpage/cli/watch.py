"""`fedpage watch` and `fedpage serve`: follow runs while they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpage.cli.output import console

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


def watch(
    directory: _Directory,
    column: _Column = "",
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
) -> None:
    """Follow runs in the terminal.

    A table shows each run's state, round, rate and course until Ctrl-C.
    """
    import time

    from fedpage.report.watch import watch_table
    from fedpage.runs.follow import RunFollower

    follower = RunFollower(directory)
    follower.poll()
    screen = console()
    if once:
        screen.print(watch_table(follower, column))
        return
    from rich.live import Live

    try:
        with Live(console=screen, auto_refresh=False) as live:
            while True:
                limit = screen.height - _LINES_AROUND
                live.update(watch_table(follower, column, limit), refresh=True)
                time.sleep(_INTERVAL)
                follower.poll()
    except KeyboardInterrupt:
        return


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
