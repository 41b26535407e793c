"""Follow runs that other processes write, and show them in one table.

`fedpage watch`, `fedpage deploy status` and `fedpage study status` print this table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from fedpage.core.columns import COLUMNS, MEASURED, describe_column
from fedpage.core.display import format_number
from fedpage.core.errors import InputError
from fedpage.core.types import StopReason
from fedpage.report.summary import format_duration
from fedpage.runs.history import History, is_complete
from fedpage.runs.history_file import parse_lines
from fedpage.runs.lock import is_in_use
from fedpage.runs.status import RunStatus, read_status

if TYPE_CHECKING:
    from rich.table import Table

_FRESH = 5.0
"""A file that was written at most this many seconds ago belongs to a run that is running."""


class RunState(StrEnum):
    """The state of a run, as its files show it."""

    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    DIVERGED = "diverged"
    UNREADABLE = "unreadable"
    INTERRUPTED = "interrupted"
    STALE = "stale"
    STOPPED = "stopped"
    FINISHED = "finished"
    NOT_BEGUN = "not begun"

    @property
    def is_live(self) -> bool:
        """Whether a process is writing the run."""
        return self in (RunState.RUNNING, RunState.WAITING)


_COLOURS = {
    RunState.RUNNING: "green", RunState.WAITING: "green", RunState.INTERRUPTED: "yellow",
    RunState.STALE: "yellow", RunState.FAILED: "red", RunState.DIVERGED: "red",
    RunState.UNREADABLE: "red",
}  # fmt: skip
_UNFINISHED = {
    StopReason.INTERRUPTED.value: RunState.INTERRUPTED,
    StopReason.ROUND_FAILED.value: RunState.FAILED,
}
"""Ends of a process after which the run can be resumed; its history has no end then."""


class FollowedRun:
    """A run directory that another process may be writing; `poll` reads it.

    Args:
        path: The directory, which may not exist yet.

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
        """The time and the size of the history file when it was last read."""

    def poll(self) -> None:
        """Read the files again if they have changed."""
        file = self.path / "history.jsonl"
        self.status = read_status(self.path) or RunStatus()
        try:
            found = file.stat()
            if self._stamp == (found.st_mtime, found.st_size):
                return
            self._stamp = found.st_mtime, found.st_size
            self.history, self.error = History(), ""
            lines, newline, _ = file.read_bytes().rpartition(b"\n")
            if newline:
                parse_lines(self.history, (lines + newline).decode("utf-8", "replace"), file)
        except FileNotFoundError:
            self.history, self.error = History(), ""
        except OSError as error:
            self.error = f"{file}: {error.strerror or error}"
        except InputError as error:
            self.error = str(error)

    @property
    def state(self) -> RunState:
        """The state. A run without an end is running if a process has its directory open."""
        if self.error:
            return RunState.UNREADABLE
        if self.history.diverged:
            return RunState.DIVERGED
        if self.history.ended:
            is_complete = self.history.stop_reason is StopReason.FINISHED
            return RunState.FINISHED if is_complete else RunState.STOPPED
        if self.history.stop_reason is not None:
            return RunState.INTERRUPTED
        status = self.status
        is_fresh = time.time() - max(self._stamp[0], status.written) < _FRESH
        if is_in_use(self.path) or (is_fresh and status.end not in _UNFINISHED):
            has_begun = self.history.rows or (status.rounds and not status.waiting)
            return RunState.RUNNING if has_begun else RunState.WAITING
        if not self.history.meta and not status.written:
            return RunState.NOT_BEGUN
        return _UNFINISHED.get(status.end, RunState.STALE)

    @property
    def last(self) -> Mapping[str, float]:
        """The newest record, or {} if there is none."""
        return self.history.rows[-1] if self.history.rows else {}

    @property
    def round(self) -> int:
        """The number of rounds done, as far as the files say."""
        recorded = int(self.last.get("round", 0))
        is_newer = not self.status.end or self.status.end in _UNFINISHED
        return max(recorded, self.status.round) if is_newer else recorded

    @property
    def rounds(self) -> int:
        """The number of rounds of the complete run, or 0 if not known."""
        return int(self.history.meta.get("rounds", self.status.rounds))

    @property
    def rate(self) -> float:
        """Rounds a second, or 0 if not known."""
        if self.status.seconds_per_round:
            return 1.0 / self.status.seconds_per_round
        last = self.last
        return last["round"] / last["seconds"] if last.get("seconds", 0) > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The time that the remaining rounds of a running run will take, or None if not known."""
        if self.state is not RunState.RUNNING or not self.rate or not self.rounds:
            return None
        return (self.rounds - self.round) / self.rate

    @property
    def detail(self) -> str:
        """An explanation of the state, the lost clients and the newest event."""
        state, status = self.state, self.status
        words = []
        if state is RunState.UNREADABLE:
            return self.error
        if state is RunState.WAITING:
            return status.waiting or "no round has ended yet"
        if state in (RunState.FAILED, RunState.INTERRUPTED, RunState.STALE):
            why = status.detail or "no process is writing this run, and it has not ended"
            words.append(why if "resume" in why else f"{why}; start it again to resume it")
        elif state is RunState.RUNNING:
            age = time.time() - status.written if status.written else 0.0
            if age > _FRESH:
                words.append(f"the last round ended {format_duration(age)} ago")
            if status.lost:
                more = " ..." if status.lost > 1 + status.lost_clients.count(",") else ""
                words.append(f"lost clients: {status.lost_clients}{more}")
        else:
            return self.history.stop_detail
        for event in self.history.events[-1:]:
            words.append(f"round {event['round']}: {event['event']}: {event['text']}")
        return "; ".join(words)

    @property
    def values(self) -> str:
        """The newest values that are not costs."""
        words = [
            f"{describe_column(name).label} {format_number(value) or value}"
            for name, value in self.last.items()
            if name not in COLUMNS or name in ("loss", "grad_norm")
        ]
        if not is_complete(self.last):
            words.append(f"of {self.last[MEASURED]:.0f} clients only")
        return ", ".join(words)

    def describe(self) -> dict[str, object]:
        """Return a row of `--json`."""
        return {
            "state": self.state,
            "detail": self.detail,
            "method": self.history.meta.get("method", {}).get("name", ""),
            "round": self.round,
            "rounds": self.rounds,
            "last": self.last,
            "rate": self.rate,
            "seconds_left": self.seconds_left,
            "events": self.history.events[-5:],
            "status": asdict(self.status),
        }


class RunFollower:
    """Follow the given runs, or all runs at or below a directory.

    Args:
        root: The directory.
        runs: The directories of the runs by name. If None, `poll` looks for them.

    Raises:
        InputError: There is no such directory, and no runs are given.
    """

    def __init__(self, root: Path, runs: Mapping[str, Path] | None = None) -> None:
        if runs is None and not root.is_dir():
            raise InputError(f"{root}: is not a directory; give the --out of a run or a comparison")
        self.root, self._given = root, runs
        self.runs: dict[str, FollowedRun] = {}
        """The runs by name, or by the path below the root."""

    def poll(self) -> None:
        """Look for runs, and read those that have changed."""
        found = self._given
        if found is None:
            files = (self.root.rglob(name) for name in ("history.jsonl", "status.json"))
            folders = sorted({path.parent for each in files for path in each})
            found = {folder.relative_to(self.root).as_posix(): folder for folder in folders}
        self.runs = {n: self.runs.get(n) or FollowedRun(path) for n, path in found.items()}
        for run in self.runs.values():
            run.poll()

    @property
    def has_ended(self) -> bool:
        """Whether the root is the directory of one run, which no process is writing."""
        return list(self.runs) == ["."] and not self.runs["."].state.is_live

    def describe(self) -> list[dict[str, object]]:
        """Return a row for each run, for `--json`."""
        return [{"run": name, **run.describe()} for name, run in self.runs.items()]

    def table(self, limit: int | None = None) -> Table:
        """Return a table for the terminal with a line for each run, or for the first `limit` ones.

        If there are more, running runs are shown first and finished ones last.
        """
        from rich.table import Table
        from rich.text import Text

        states = {name: run.state for name, run in self.runs.items()}
        counts = [f"{n} {s}" for s in RunState if (n := list(states.values()).count(s))]
        heading = f"{self.root}: {', '.join(counts) or 'no runs yet'}"
        table = Table(title=Text(heading), title_justify="left")
        words = [word for name in self.runs for word in name.split()]
        longest = max(map(len, words), default=0)
        table.add_column("run", overflow="fold", min_width=min(max(longest, 12), 30))
        table.add_column("state", no_wrap=True)
        for name in ("round", "rounds/s", "left"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("newest values", overflow="fold")
        shown = list(self.runs)
        if limit is not None and len(shown) > limit:
            order = list(RunState)
            shown = sorted(shown, key=lambda name: order.index(states[name]))[: max(limit, 1)]
            table.caption = f"and {len(states) - len(shown)} more"
        for name in shown:
            run, state = self.runs[name], states[name]
            left = run.seconds_left
            table.add_row(
                Text(run.path.name if name == "." else name),
                Text(state.value, style=_COLOURS.get(state, "")),
                f"{run.round:,}/{run.rounds:,}" if run.rounds else "",
                f"{run.rate:,.0f}" if run.rate >= 10 else f"{run.rate:.2g}" if run.rate else "",
                "" if left is None else format_duration(left),
                Text("; ".join(filter(None, (run.values, run.detail)))),
            )
        return table
