"""The status of runs: status.json, which a run writes, and runs that other processes write.

The checkpoint callback writes status.json for those who watch the run between two records. A run
never reads it, and a run that cannot write it continues.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import msgspec

from fedpage.core.errors import InputError
from fedpage.core.files import replace_file
from fedpage.core.types import StopReason
from fedpage.runs import toml
from fedpage.runs.history import History
from fedpage.runs.history_file import parse_lines
from fedpage.runs.lock import is_in_use

_NAME = "status.json"
_FRESH = 5.0
"""A file that was written so many seconds ago belongs to a run that is running."""


@dataclass
class RunStatus:
    """The last round of a run, its costs so far, and how it ended.

    Attributes:
        round: The number of rounds done, of `rounds`.
        waiting: Why the first round has not begun, such as "2 of 3 nodes", or "" afterwards.
        called: The number of clients that the last round called.
        answered: The number of them whose replies counted.
        slowest_client: The client whose reply took longest, or -1 if time is not measured.
        slowest_seconds: The time of its reply.
        lost: The number of lost clients.
        lost_clients: Some of them, separated by commas.
        bytes_down: Bytes sent to clients so far, and received from them as `bytes_up`.
        seconds_per_round: The mean over the last rounds, evaluations included, or 0 if unknown.
        end: How the process ended: a `StopReason`, or "" while it runs.
        detail: A sentence about the end.
        written: When this was written, in seconds since 1970.
    """

    round: int = 0
    rounds: int = 0
    waiting: str = ""
    called: int = 0
    answered: int = 0
    slowest_client: int = -1
    slowest_seconds: float = 0.0
    lost: int = 0
    lost_clients: str = ""
    bytes_down: int = 0
    bytes_up: int = 0
    seconds_per_round: float = 0.0
    end: str = ""
    detail: str = ""
    written: float = 0.0

    @property
    def seconds_left(self) -> float:
        """The time that the remaining rounds will take, or NaN if not known."""
        if not self.seconds_per_round or not self.rounds:
            return math.nan
        return (self.rounds - self.round) * self.seconds_per_round


class Pace:
    """Measure the time of a round over the last 20 rounds, evaluations included.

    Args:
        round: The number of rounds done at the start.
        clock: Returns seconds; replaced in tests.
    """

    def __init__(self, round: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._observed = deque([(clock(), round)], maxlen=21)

    def observe(self, round: int) -> float:
        """Note the number of rounds done now; return the seconds of a round, or 0 if unknown."""
        self._observed.append((self._clock(), round))
        (t0, r0), (t1, r1) = self._observed[0], self._observed[-1]
        return (t1 - t0) / (r1 - r0) if r1 > r0 else 0.0


def write_status(folder: Path, status: RunStatus) -> None:
    """Write the status to a run directory, if the file system allows it."""
    status.written = time.time()
    with suppress(OSError):
        replace_file(folder / _NAME, msgspec.json.encode(status))


def read_status(folder: Path) -> RunStatus | None:
    """Read the status of a run directory, or return None if there is no usable one."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=RunStatus)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


# --- following runs -------------------------------------------------------------------------------


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
