"""Follow runs that other processes write: their records so far, and what they are doing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from fedpage.core.errors import InputError
from fedpage.core.types import StopReason
from fedpage.runs import toml
from fedpage.runs.history import History
from fedpage.runs.history_file import parse_lines
from fedpage.runs.lock import is_in_use
from fedpage.runs.status import RunStatus, read_status

_FRESH = 5.0
"""A file that was written so many seconds ago belongs to a run that is running."""
_OBSERVED = 30
"""The observations of a run's round that its rate is computed from."""


class RunState(StrEnum):
    """What a followed run is doing."""

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
        self._observed: deque[tuple[float, float]] = deque(maxlen=_OBSERVED)
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
        if self.history.rows:
            self._observed.append((time.monotonic(), self.history.rows[-1]["round"]))
        return True

    @property
    def state(self) -> RunState:
        """What the run is doing; without an end it runs if a process has its directory open."""
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
        """The number of rounds that the run is to have; 0 if it is not known."""
        rounds = self.history.meta.get("rounds", self.status.rounds)
        return rounds if isinstance(rounds, int) else 0

    @property
    def rate(self) -> float:
        """Rounds a second: observed, or else from the recorded seconds; 0 if neither is known."""
        if len(self._observed) > 1:
            (t0, r0), (t1, r1) = self._observed[0], self._observed[-1]
            if t1 - t0 > 0.5 and r1 > r0:
                return (r1 - r0) / (t1 - t0)
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
        InputError: It is not a directory.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError(f"{root}: is not a directory; give the --out of a run or a comparison")
        self.root = root
        self.runs: dict[str, FollowedRun] = {}
        """The runs by their directory's path below the root, sorted."""

    def poll(self) -> bool:
        """Look for runs and for new records; return whether anything is new."""
        found = {folder.relative_to(self.root).as_posix(): folder for folder in self._folders()}
        changed = set(found) != set(self.runs)
        self.runs = {
            name: self.runs.get(name) or FollowedRun(found[name]) for name in sorted(found)
        }
        news = [run.poll() for run in self.runs.values()]
        return changed or any(news)

    def _folders(self) -> Iterator[Path]:
        return (path.parent for path in self.root.rglob("history.jsonl"))
