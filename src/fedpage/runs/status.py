"""The file status.json of a run directory: what the run is doing, for those who watch it.

The file adds to history.jsonl what happens between two records. A run never reads it, and a run
that cannot write it continues.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedpage.core.atomic import replace_file

_SECONDS_BETWEEN_WRITES = 1.0
_ROUNDS_OBSERVED = 20
_NAME = "status.json"


@dataclass
class RunStatus:
    """What a run did last."""

    round: int = 0
    """The number of rounds done."""
    rounds: int = 0
    """The number of rounds of the whole run."""
    waiting: str = ""
    """What the run waits for before its first round, such as "2 of 3 nodes"; "" afterwards."""
    called: int = 0
    """The number of clients that the last round called."""
    answered: int = 0
    """The number of them whose replies counted."""
    slowest_client: int = -1
    """The client whose reply took longest; -1: time is not measured."""
    slowest_seconds: float = 0.0
    """How long its reply took."""
    lost: int = 0
    """The number of lost clients."""
    lost_clients: str = ""
    """Some of them, separated by commas."""
    bytes_down: int = 0
    """Bytes sent to clients so far."""
    bytes_up: int = 0
    """Bytes received from clients so far."""
    seconds_per_round: float = 0.0
    """The mean over the last rounds, evaluations included; 0: not known yet."""
    end: str = ""
    """How the process ended: a `StopReason`, or ""."""
    detail: str = ""
    """A sentence about the end."""
    written: float = 0.0
    """When this was written, in seconds since 1970."""

    @property
    def seconds_left(self) -> float:
        """The time that the remaining rounds will take; NaN: not known."""
        if not self.seconds_per_round or not self.rounds:
            return math.nan
        return (self.rounds - self.round) * self.seconds_per_round


class Pace:
    """Measure the time of a round over the last rounds, evaluations included.

    Args:
        round: The number of rounds done at the start.
        clock: Returns seconds; replaced in tests.
    """

    def __init__(self, round: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._observed = deque([(clock(), round)], maxlen=_ROUNDS_OBSERVED + 1)

    def observe(self, round: int) -> float:
        """Note the number of rounds done now, and return the seconds of a round; 0: not known."""
        self._observed.append((self._clock(), round))
        (t0, r0), (t1, r1) = self._observed[0], self._observed[-1]
        return (t1 - t0) / (r1 - r0) if r1 > r0 else 0.0


class StatusFile:
    """Write the status of a run to its directory, at most once a second.

    Args:
        folder: The run's directory.
        clock: Returns seconds; replaced in tests.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = folder / _NAME, clock
        self._written_at = -math.inf
        self.status = RunStatus()

    @property
    def is_due(self) -> bool:
        """Whether the last write is at least a second ago."""
        return self._clock() - self._written_at >= _SECONDS_BETWEEN_WRITES

    def write(self) -> None:
        """Write the status; a file system that refuses it does not matter to the run."""
        self._written_at = self._clock()
        self.status.written = time.time()
        data = json.dumps(asdict(self.status), indent=1).encode("utf-8")
        with suppress(OSError):
            replace_file(self._path, data)

    def wait_for(self, text: str) -> None:
        """Write what the run waits for before its first round."""
        if self.is_due or text != self.status.waiting:
            self.status.waiting = text
            self.write()


def read_status(folder: Path) -> RunStatus | None:
    """Read the status of a run directory; None if there is none, or it cannot be used."""
    try:
        table = json.loads((folder / _NAME).read_bytes())
        status = RunStatus(**{entry.name: table[entry.name] for entry in fields(RunStatus)})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    known = RunStatus()
    for entry in fields(RunStatus):
        default, value = getattr(known, entry.name), getattr(status, entry.name)
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default) or (isinstance(value, float) and not value >= 0):
            return None
    return status
