"""The file status.json of a run directory: what a run does between two records.

The checkpoint callback writes it for those who watch the run. A run never reads it, and a run that
cannot write it continues.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedpage.core.files import replace_file

_NAME = "status.json"


@dataclass
class RunStatus:
    """The last round of a run, its costs so far, and how it ended."""

    round: int = 0
    """The number of rounds done."""
    rounds: int = 0
    """The number of rounds of the whole run."""
    waiting: str = ""
    """Why the first round has not begun, such as "2 of 3 nodes", or "" afterwards."""
    called: int = 0
    """The number of clients that the last round called."""
    answered: int = 0
    """The number of them whose replies counted."""
    slowest_client: int = -1
    """The client whose reply took longest, or -1 if time is not measured."""
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
    """The mean over the last rounds, evaluations included, or 0 if not known yet."""
    end: str = ""
    """How the process ended: a `StopReason`, or "" while it runs."""
    detail: str = ""
    """A sentence about the end."""
    written: float = 0.0
    """When this was written, in seconds since 1970."""

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
