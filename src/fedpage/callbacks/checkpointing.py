"""Write a run to its directory while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fedpage.callbacks.base import Callback, Event, RoundEnd, RunInfo, Stopped
from fedpage.callbacks.progress import Pace
from fedpage.core.columns import is_recorded
from fedpage.core.types import StopReason, Vector
from fedpage.runs.checkpoint import Snapshot
from fedpage.runs.history import History
from fedpage.runs.status import RunStatus, write_status
from fedpage.runs.store import HistoryMark, RunStore

_STATUS_SECONDS = 1.0
"""The least time between two writes of status.json."""
_is_interrupt_requested = False


def request_interrupt(is_requested: bool = True) -> None:
    """End every run that has a directory after its round, with a checkpoint.

    Signal handlers call this function.

    Args:
        is_requested: False withdraws the request.
    """
    global _is_interrupt_requested
    _is_interrupt_requested = is_requested


class Checkpointing(Callback):
    """Write records, events and checkpoints to a run directory; `simulate(out=...)` adds this.

    Args:
        store: The run directory, opened, and begun or resumed.
    """

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self._info: RunInfo | None = None
        self._saved_at = 0.0
        self._end: tuple[Snapshot, HistoryMark] | None = None
        self._status, self._pace = RunStatus(), Pace(0)
        self._status_at = 0.0
        self._last: RoundEnd | None = None

    def on_run_start(self, info: RunInfo) -> None:
        """Start the clock of the checkpoints, and write the run's first status."""
        self._info, self._saved_at, self._end = info, time.monotonic(), None
        self._status, self._pace = RunStatus(info.start, info.rounds), Pace(info.start)
        self._last = None
        self._write_status()

    def on_event(self, event: Event) -> None:
        """Append the event to history.jsonl."""
        self.store.append({"event": event.kind, "round": event.round, "text": event.text})

    def on_record(self, record: Mapping[str, float], x: Vector) -> None:
        """Append the record to history.jsonl."""
        info, done = self._info, int(record["round"])
        assert info is not None
        if done == info.rounds and not is_recorded(done, info.meta["record_every"]):
            # A longer run has no such record, so a checkpoint of the end comes before it.
            self._end = info.snapshot(), self.store.mark()
        self.store.append(record)

    def on_round_end(self, info: RoundEnd) -> Stopped | None:
        """Write a checkpoint if it is due; end the run if an interrupt was requested."""
        self._last = info
        if info.is_last:
            return None
        if time.monotonic() - self._status_at >= _STATUS_SECONDS:
            self._write_status()
        if _is_interrupt_requested or self._is_due(info.round):
            assert self._info is not None
            self.store.write_checkpoint(info.round, self._info.snapshot())
            self._saved_at = time.monotonic()
        if _is_interrupt_requested:
            detail = f"after round {info.round}; {self.store.advice}"
            return Stopped(StopReason.INTERRUPTED, detail)
        return None

    def _is_due(self, round: int) -> bool:
        store = self.store
        if store.rounds_between is not None:
            return round - store.checkpoint_round >= store.rounds_between
        assert store.seconds_between is not None
        return time.monotonic() - self._saved_at >= store.seconds_between

    def on_run_end(self, history: History) -> None:
        """Write the end of the run, unless the run can still be resumed.

        A run that has done all its rounds has a last checkpoint, from which it can be extended.
        """
        if history.stop_reason is StopReason.FINISHED:
            assert self._info is not None
            snapshot, mark = self._end or (self._info.snapshot(), self.store.mark())
            self.store.write_checkpoint(self._info.rounds, snapshot, mark)
        if history.ended:
            self.store.write_end(history)
        reason = history.stop_reason
        self._status.end = "" if reason is None else reason.value
        self._status.detail = history.stop_detail
        self._write_status()

    def _write_status(self) -> None:
        """Write what the last round did to status.json."""
        info, status = self._last, self._status
        if info is not None:
            status.round, status.rounds = info.round, info.rounds
            status.called, status.answered = info.called, info.answered
            if info.slowest is not None:
                status.slowest_client, status.slowest_seconds = info.slowest
            status.lost = len(info.lost)
            status.lost_clients = ", ".join(map(str, info.lost[:10]))
            status.bytes_down, status.bytes_up = info.total_down, info.total_up
            status.seconds_per_round = self._pace.observe(info.round) or status.seconds_per_round
        self._status_at = time.monotonic()
        write_status(self.store.path, status)
