"""A progress bar over the rounds of a run, and the time that a round takes."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedpage.callbacks.base import Callback, RoundEnd, RunInfo
from fedpage.core.columns import EPSILON, MEASURED
from fedpage.core.types import Vector
from fedpage.runs.history import History

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_SECONDS_BETWEEN_UPDATES = 0.1


class Progress(Callback):
    """Show a progress bar on stderr; `simulate(progress=True)` adds this callback.

    Args:
        bars: Bars to add a task to, as `progress_bars` makes them. They stay open when the run
            ends, so that several runs can share them. By default the run has its own.
        task: A task of `bars` to advance, instead of a new one.
        offset: The rounds of `task` that earlier runs have already done.
    """

    def __init__(
        self, bars: Bars | None = None, task: TaskID | None = None, offset: int = 0
    ) -> None:
        self._given, self._task, self._offset = bars, task, offset
        self._bars: Bars | None = None
        self._updated_at, self._note = 0.0, ""

    def on_run_start(self, info: RunInfo) -> None:
        """Show the bar."""
        self._bars = progress_bars() if self._given is None else self._given
        if self._task is None:
            name = str(info.meta.get("method", {}).get("name", "run"))
            self._task = self._bars.add_task(name, total=info.rounds)
        self._update(info.start)
        if self._given is None:
            self._bars.start()

    def on_record(self, record: Mapping[str, float], x: Vector) -> None:
        """Show the newest values."""
        self._note = summarise_record(record)
        self._update(int(record["round"]))

    def on_round_end(self, info: RoundEnd) -> None:
        """Advance the bar."""
        if info.is_last or time.monotonic() - self._updated_at > _SECONDS_BETWEEN_UPDATES:
            self._update(info.round)

    def _update(self, done: int) -> None:
        if self._bars is not None and self._task is not None:
            self._updated_at = time.monotonic()
            self._bars.update(self._task, completed=self._offset + done, note=self._note)

    def on_run_end(self, history: History) -> None:
        """Close the bar, if the run has its own."""
        if self._given is None and self._bars is not None:
            self._bars.stop()
            self._bars = self._task = None


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


def progress_bars() -> Bars:
    """Return progress bars on stderr whose tasks may carry a `note`.

    Returns:
        A `rich.progress.Progress`, to be used as a context manager.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    class BarsWithNotes(Bars):
        """Bars whose tasks have an empty note at first."""

        def add_task(self, description: str, *args: Any, **fields: Any) -> TaskID:
            return super().add_task(description, *args, **{"note": "", **fields})

    return BarsWithNotes(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True, width=None if sys.stderr.isatty() else 140, highlight=False),
    )


def summarise_record(record: Mapping[str, float]) -> str:
    """Return a record's loss, with its accuracies or else its gradient norm, as a short text.

    >>> summarise_record({"round": 1, "loss": 0.5, "grad_norm": 0.25})
    'loss 0.5 grad_norm 0.25'
    >>> summarise_record({"round": 1, "loss": 0.5, "measured_clients": 7})
    'loss 0.5 measured_clients 7'
    """
    shown = [name for name in record if name.endswith("accuracy")][:2] or ["grad_norm"]
    names = ("loss", *shown, MEASURED, EPSILON)
    return " ".join(f"{name} {record[name]:.4g}" for name in names if name in record)
