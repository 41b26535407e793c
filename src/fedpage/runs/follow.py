"""Follow runs that other processes write: what is new in each history.jsonl, and its state."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from fedpage.core.errors import InputError
from fedpage.core.types import StopReason
from fedpage.runs import toml
from fedpage.runs.history import History
from fedpage.runs.history_lines import HistoryReader
from fedpage.runs.lock import is_in_use
from fedpage.runs.status import RunStatus, read_status

_TAIL = 200
"""The bytes before the end of what was read that must be unchanged, or the file is read anew."""
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
    """A run directory that another process may be writing; `poll` reads what is new.

    Args:
        path: The directory, which has a history.jsonl.

    Attributes:
        history: What has been read. Its model is not loaded.
        error: Why the file cannot be read, or "".
        status: What status.json says; its defaults if there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error = ""
        self.status = RunStatus()
        self._observed: list[tuple[float, float]] = []
        self._written_at = 0.0
        self._restart()

    def _restart(self) -> None:
        self.history = History()
        self._reader = HistoryReader(self.history, self.path / "history.jsonl")
        self._size, self._tail = 0, b""

    def poll(self) -> bool:
        """Read new lines.

        Returns:
            Whether there were any, or the file was begun anew.
        """
        file = self.path / "history.jsonl"
        self.status = read_status(self.path) or RunStatus()
        try:
            with open(file, "rb") as stream:
                stream.seek(self._size - len(self._tail))
                text = stream.read()
                self._written_at = file.stat().st_mtime
                is_cut = not text.startswith(self._tail)
                if is_cut:  # a resumed run cuts its file, and a new run begins it
                    self._restart()
                    stream.seek(0)
                    text = stream.read()
        except OSError as error:
            if self.status.waiting and isinstance(error, FileNotFoundError):
                return False  # the run waits for its nodes, and has no history yet
            changed, self.error = not self.error, f"{file}: {error.strerror or error}"
            return changed
        complete = text[len(self._tail) : text.rfind(b"\n") + 1]
        if complete and (is_cut or not self.error):
            self._read(complete)
        return bool(complete) or is_cut

    def _read(self, text: bytes) -> None:
        """Add complete lines to the history."""
        lines = text.decode("utf-8", "replace").split("\n")[:-1]
        self._size += len(text)
        self._tail = (self._tail + text)[-_TAIL:]
        try:
            self._reader.read(lines)
            self.error = ""
        except InputError as error:
            self.error = str(error)
        if self.history.rows:
            self._observed.append((time.monotonic(), self.history.rows[-1]["round"]))
            del self._observed[:-_OBSERVED]

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
        is_fresh = time.time() - max(self._written_at, status.written) < _FRESH
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
            except (InputError, OSError, AttributeError, KeyError, TypeError, ValueError):
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
