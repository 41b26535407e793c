"""The status of a run, which the checkpoint callback writes to status.json for those who watch.

A run never reads its status, and a run that cannot write it continues.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedpage.core.files import put

_NAME = "status.json"


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


def write_status(folder: Path, status: RunStatus) -> None:
    """Write the status to a run directory, if the file system allows it."""
    status.written = time.time()
    with suppress(OSError):
        put(folder / _NAME, msgspec.json.encode(status), is_durable=False)


def read_status(folder: Path) -> RunStatus | None:
    """Read the status of a run directory, or return None if there is no usable one."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=RunStatus)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
