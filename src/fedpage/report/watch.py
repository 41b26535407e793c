"""Follow runs that other processes write, and show them as a table with sparklines."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedpage.core.columns import MEASURED, describe_column, read_column
from fedpage.core.display import format_number
from fedpage.core.errors import InputError
from fedpage.core.types import StopReason
from fedpage.report.summary import format_duration
from fedpage.runs import toml
from fedpage.runs.history import History, is_complete
from fedpage.runs.history_file import parse_lines
from fedpage.runs.lock import is_in_use
from fedpage.runs.status import RunStatus, read_status

if TYPE_CHECKING:
    from rich.table import Table

_BLOCKS = "▁▂▃▄▅▆▇█"
_FRESH = 5.0
"""A file that was written so many seconds ago belongs to a run that is running."""


class RunState(StrEnum):
    """The state of a run, as its files show it."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    STALE = "stale"
    DIVERGED = "diverged"
    UNREADABLE = "unreadable"


_UNFINISHED = {
    StopReason.INTERRUPTED.value: RunState.INTERRUPTED,
    StopReason.ROUND_FAILED.value: RunState.FAILED,
}
"""Ends of a process after which the run can be resumed; its history has no end then."""


class FollowedRun:
    """A run directory that another process may be writing; `poll` reads it.

    Args:
        path: The directory, which has a history.jsonl.

    Attributes:
        history: The records so far, without the model.
        error: Why the file cannot be read, or "".
        status: The content of status.json, or its defaults if there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history, self.status = History(), RunStatus()
        self.error = ""
        self._stamp: tuple[float, int] = (0.0, 0)
        """When the file was changed that was read last, and its size."""

    def poll(self) -> bool:
        """Read the files again if they have changed; return True if the history has."""
        file = self.path / "history.jsonl"
        self.status = read_status(self.path) or RunStatus()
        try:
            found = file.stat()
            if self._stamp == (found.st_mtime, found.st_size):
                return False
            self._stamp = found.st_mtime, found.st_size
            text = file.read_bytes()
        except OSError as error:
            if self.status.waiting and isinstance(error, FileNotFoundError):
                return False  # the run waits for its nodes, and has no history yet
            changed, self.error = not self.error, f"{file}: {error.strerror or error}"
            return changed
        self.history, self.error = History(), ""
        try:
            if lines := text[: text.rfind(b"\n") + 1]:
                parse_lines(self.history, lines.decode("utf-8", "replace"), file)
        except InputError as error:
            self.error = str(error)
        return True

    @property
    def state(self) -> RunState:
        """The state: without an end, a run is running if a process has its directory open."""
        if self.error:
            return RunState.UNREADABLE
        if self.history.diverged:
            return RunState.DIVERGED
        if self.history.ended:
            is_whole = self.history.stop_reason is StopReason.FINISHED
            return RunState.FINISHED if is_whole else RunState.STOPPED
        if self.history.stop_reason is not None:
            return RunState.INTERRUPTED
        status = self.status
        is_fresh = time.time() - max(self._stamp[0], status.written) < _FRESH
        if is_in_use(self.path) or (is_fresh and status.end not in _UNFINISHED):
            has_begun = self.history.rows or (status.rounds and not status.waiting)
            return RunState.RUNNING if has_begun else RunState.WAITING
        return _UNFINISHED.get(status.end, RunState.STALE)

    @property
    def round(self) -> int:
        """The number of rounds done, as far as the files say."""
        recorded = int(self.history.rows[-1]["round"]) if self.history.rows else 0
        is_newer = not self.status.end or self.status.end in _UNFINISHED
        return max(recorded, self.status.round) if is_newer else recorded

    @property
    def rounds(self) -> int:
        """The number of rounds of the whole run, or 0 if not known."""
        return int(self.history.meta.get("rounds", self.status.rounds))

    @property
    def rate(self) -> float:
        """Rounds a second, or 0 if not known."""
        if self.status.seconds_per_round:
            return 1.0 / self.status.seconds_per_round
        last = self.history.rows[-1] if self.history.rows else {}
        return last["round"] / last["seconds"] if last.get("seconds", 0) > 0 else 0.0

    @cached_property
    def target(self) -> tuple[str, float] | None:
        """The target that the command line was given, from run.toml or compare.toml."""
        for path in (self.path / "run.toml", self.path.parent.parent / "compare.toml"):
            try:
                command = toml.read(path).get("command", {})
                table = command.get("run", command.get("compare", {})).get("target")
                return str(table["column"]), float(table["value"])
            except (InputError, AttributeError, KeyError, TypeError, ValueError):
                continue
        return None


class RunFollower:
    """All runs at or below a directory; `poll` finds new ones and reads what is new.

    Args:
        root: The directory.

    Raises:
        InputError: If it is not a directory.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError(f"{root}: is not a directory; give the --out of a run or a comparison")
        self.root = root
        self.runs: dict[str, FollowedRun] = {}
        """The runs by their directory's path below the root, sorted."""

    def poll(self) -> bool:
        """Look for runs and for new records; return True if anything is new."""
        folders = sorted(path.parent for path in self.root.rglob("history.jsonl"))
        found = {folder.relative_to(self.root).as_posix(): folder for folder in folders}
        changed = set(found) != set(self.runs)
        self.runs = {n: self.runs.get(n) or FollowedRun(path) for n, path in found.items()}
        news = [run.poll() for run in self.runs.values()]
        return changed or any(news)


# --- the table ------------------------------------------------------------------------------------

COLOURS = {
    RunState.RUNNING: "green", RunState.WAITING: "green", RunState.INTERRUPTED: "yellow",
    RunState.STALE: "yellow", RunState.FAILED: "red",
    RunState.DIVERGED: "red", RunState.UNREADABLE: "red",
}  # fmt: skip


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Draw values as a line of blocks.

    The scale is logarithmic where all finite values are above 0 and the largest is at least ten
    times the smallest. A value that is not finite is "x".

    Args:
        values: The values, oldest first.
        width: The number of blocks; each stands for the last of the values in its place.

    >>> sparkline([1, 2, 3, 4, 5, 6, 7, 8]), sparkline([1.0, 0.1, 0.001, math.nan])
    ('▁▂▃▄▅▆▇█', '█▆▁x')
    """
    count = min(width, len(values))
    shown = [values[(i + 1) * len(values) // count - 1] for i in range(count)]
    finite = [value for value in shown if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) >= 10 * min(finite):
        shown = [math.log(value) if value > 0 else value for value in shown]
        finite = [math.log(value) for value in finite]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)
    return "".join(
        "x" if not math.isfinite(value)
        else _BLOCKS[round(7 * (value - low) / span) if span else 0]
        for value in shown
    )  # fmt: skip


def watched_column(run: FollowedRun, column: str = "") -> str:
    """Choose the column to show: the given one, the target's, or the first that is recorded."""
    target = run.target
    names = [column, target[0] if target else "", "grad_norm", "loss"]
    recorded = run.history.columns
    return next((name for name in names if name in recorded), "")


def watch_table(follower: RunFollower, column: str = "", limit: int | None = None) -> Table:
    """Return a table of the runs: state, rounds, rate, remaining time and the column's course.

    Args:
        follower: The runs.
        column: The recorded column to show; by default that of each run's target.
        limit: The most runs to show, those that have not finished first; None for all.
    """
    from rich.table import Table
    from rich.text import Text

    states = [run.state for run in follower.runs.values()]
    counts = [f"{states.count(s)} {s.value}" for s in RunState if s in states]
    heading = f"{follower.root}: {', '.join(counts) or 'no runs yet'}"
    table = Table(title=Text(heading), title_justify="left")
    table.add_column("run", overflow="fold", min_width=12)
    for name in ("state", "round", "rounds/s", "left"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    table.add_column("course", no_wrap=True)
    table.add_column("value", overflow="fold")
    rows = list(zip(follower.runs.items(), states, strict=True))
    if limit is not None and len(rows) > limit:
        rows = sorted(rows, key=lambda row: row[1] is RunState.FINISHED)[: max(limit, 1)]
        table.caption = f"and {len(states) - len(rows)} more"
    for (name, run), state in rows:
        chosen = watched_column(run, column)
        values = [float(value) for value in run.history[chosen]] if chosen else []
        is_running = state is RunState.RUNNING
        left = (run.rounds - run.round) / run.rate if is_running and run.rate else 0.0
        table.add_row(
            Text(run.path.name if name == "." else name),
            Text(state.value, style=COLOURS.get(state, "")),
            f"{run.round:,}/{run.rounds:,}" if run.rounds else f"{run.round:,}",
            f"{run.rate:,.0f}" if run.rate >= 10 else f"{run.rate:.2g}" if run.rate else "",
            format_duration(left) if left > 0 else "",
            sparkline(values) if values else "",
            Text(run.error or (_describe_value(chosen, run.history.rows[-1]) if values else "")),
        )
    return table


def _describe_value(column: str, record: Mapping[str, float]) -> str:
    value = read_column(record, column)
    number = format_number(value) or str(value)
    part = "" if is_complete(record) else f" of {record[MEASURED]:.0f} clients only"
    return f"{describe_column(column).label} {number}{part}"
