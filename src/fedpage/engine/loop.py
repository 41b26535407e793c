"""The loop over the rounds of a run: records, stopping, callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from fedpage.callbacks.base import Callback, Event, RoundEnd, RunInfo, Stopped, check_callbacks
from fedpage.core.columns import RecordEvery, check_record_every, is_recorded
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import StopReason
from fedpage.core.validate import check_whole
from fedpage.engine.round import AnyEngine
from fedpage.engine.stopping import Stop, Watch
from fedpage.engine.transport import RoundFailed
from fedpage.runs.checkpoint import Snapshot
from fedpage.runs.fingerprint import CodeOwner
from fedpage.runs.history import History, is_complete
from fedpage.runs.spec import StopRule

_EVENTS_KEPT = 1000
_FREQUENT_EVENTS = ("rejected", "measured")


class Interrupted(Exception):
    """A run was asked to end early, after it had written a checkpoint."""


class Run:
    """A run of an engine's rounds, which can be saved and restored between two rounds.

    It begins with an engine before its first round, and an empty history. `simulate` explains the
    other arguments, and raises an InputError if one of them is out of range.
    """

    def __init__(
        self,
        engine: AnyEngine,
        history: History,
        *,
        rounds: int,
        record_every: RecordEvery,
        stop: StopRule = None,
    ) -> None:
        check_whole("rounds", rounds, 0)
        if stop is not None and not callable(stop) and not isinstance(stop, Stop):
            raise InputError(f"stop must be a function or a Stop, not {short_repr(stop)}")
        self.engine, self.history, self.rounds = engine, history, int(rounds)
        self._stop = stop if isinstance(stop, Stop) else Stop()
        self._stop_function = None if isinstance(stop, Stop) else stop
        self.record_every = check_record_every(record_every)
        self.seconds = 0.0
        """The time spent in rounds."""
        self._watch: Watch | None = None
        self._callbacks: tuple[Callback, ...] = ()

    @property
    def code(self) -> Mapping[str, CodeOwner]:
        """The classes that compute the rounds, by name."""
        return self.engine.code

    @property
    def rounds_done(self) -> int:
        """The number of rounds done."""
        return self.engine.costs.round

    def run(self, callbacks: Sequence[Callback] = ()) -> History:
        """Run the rounds that are left.

        Args:
            callbacks: The observers. Their hooks are called in this order, `on_run_end` in reverse.

        Returns:
            The history; its `stop_reason` and `stop_detail` say why the run ended.

        Raises:
            Interrupted: If a callback ended the run with StopReason.INTERRUPTED.
            InputError: If one of the callbacks is not a Callback.
        """
        self._callbacks = check_callbacks(callbacks)
        history = self.history
        info = RunInfo(
            history.meta, self.rounds, self.rounds_done, lambda: _make_read_only(self.snapshot())
        )
        with ExitStack() as stack:  # every on_run_end is called, even if another one raises
            try:
                for callback in self._callbacks:
                    stack.callback(callback.on_run_end, history)
                    callback.on_run_start(info)
                reason, detail = self._run_rounds()
            except BaseException as error:
                text = " ".join(f"{type(error).__name__}: {error}".split())
                history.stop_reason, history.stop_detail = StopReason.INTERRUPTED, text
                raise
            history.stop_reason, history.stop_detail = reason, detail
            history.x = np.array(self.engine.x)
        if history.stop_reason is StopReason.INTERRUPTED:
            raise Interrupted(f"interrupted {history.stop_detail}")
        return history

    def _run_rounds(self) -> Stopped:
        """Run rounds until the end, and return why it is the end."""
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is reported in words
            try:
                stopped = self._start() if self._watch is None else None
                while stopped is None and self.rounds_done < self.rounds:
                    stopped = self._run_round()
                if (stopped is None or stopped.reason is not StopReason.INTERRUPTED) and (
                    not self._has_record()
                ):
                    record = self._record(self._evaluate())
                    stopped = stopped or self._check_record(record, is_last=True)
            except RoundFailed as error:
                stopped = Stopped(StopReason.ROUND_FAILED, str(error))
                self._add_events([*error.events, *self.engine.pop_events()])
                with suppress(RoundFailed):
                    if not self._has_record():
                        self._record(self._evaluate())
        return stopped or Stopped(StopReason.FINISHED)

    def _start(self) -> Stopped | None:
        """Evaluate the first model; return why the run ends there, if it does."""
        history = self.history
        history.rows, history.events = [], []
        record = self._evaluate()
        first = record.get("loss", math.nan) if is_complete(record) else math.nan
        self._watch = self._make_watch(first)
        history.first_loss = first
        if not self.record_every:
            return None
        self._record(record)
        return self._check_record(record)

    def _run_round(self) -> Stopped | None:
        """Run a round and record it if it is due; return why the run ends, if it does."""
        engine, costs = self.engine, self.engine.costs
        down, up = costs.bytes_down, costs.bytes_up
        began = time.perf_counter()
        info = engine.step()
        seconds = time.perf_counter() - began + engine.seconds_ahead
        self.seconds += seconds
        if info.events:
            self._add_events(info.events)
        done, is_last = costs.round, costs.round == self.rounds
        stopped = self._check_model() or self._check_budget()
        if is_recorded(done, self.record_every) or is_last or stopped is not None:
            record = self._record(self._evaluate())
            stopped = stopped or self._check_record(record, is_last) or self._check_budget()
        if self._callbacks:
            ended = RoundEnd(
                done, self.rounds, is_last or stopped is not None,
                info.called, info.count, info.slowest, engine.lost_clients,
                seconds, costs.bytes_down - down, costs.bytes_up - up,
                costs.bytes_down, costs.bytes_up,
            )  # fmt: skip
            for callback in self._callbacks:
                request = callback.on_round_end(ended)
                stopped = stopped or request
        return stopped

    def _check_model(self) -> Stopped | None:
        """Return why the run ends before its newest model is evaluated, if it does."""
        x = self.engine.x
        if math.isfinite(x.dot(x)):
            return None
        text = f"|x|^2 is not finite after round {self.rounds_done}, with {self.engine.step_text}"
        return Stopped(StopReason.DIVERGED, text)

    def _check_budget(self) -> Stopped | None:
        """Return the end of the run if a budget is used up and no target is holding."""
        assert self._watch is not None
        if not self._stop.budgets or self._watch.is_holding:
            return None
        return self._stop.check_budgets({**vars(self.engine.costs), "seconds": self.seconds})

    def _check_record(self, record: Mapping[str, float], is_last: bool = False) -> Stopped | None:
        """Return why the run ends at this record, if it does."""
        assert self._watch is not None
        stopped = self._watch.check(record, is_last)
        if stopped is None and self._stop_function is not None:
            text = self._stop_function(record)
            return Stopped(StopReason.CALLBACK, str(text)) if text else None
        return stopped

    def _make_watch(self, first_loss: float) -> Watch:
        return Watch(first_loss, self.engine.step_text, self._stop, self.history.directions)

    def _has_record(self) -> bool:
        """Return whether the current model has been recorded."""
        rows = self.history.rows
        return bool(rows) and rows[-1]["round"] == self.rounds_done

    def _evaluate(self) -> dict[str, float]:
        values = self.engine.evaluate()
        self._add_events(self.engine.pop_events())
        spent = self.engine.measure_privacy()
        return {**vars(self.engine.costs), "seconds": self.seconds, **values, **spent}

    def _record(self, record: Mapping[str, float]) -> Mapping[str, float]:
        self.history.append(record)
        for callback in self._callbacks:
            callback.on_record(dict(self.history.rows[-1]), _make_read_only(self.engine.x))
        return self.history.rows[-1]

    def _add_events(self, events: Sequence[Event]) -> None:
        """Keep events; of those that can happen in every round, keep the first thousand."""
        kept = self.history.events
        for event in events:
            if len(kept) < _EVENTS_KEPT or event.kind not in _FREQUENT_EVENTS:
                kept.append({"event": event.kind, "round": event.round, "text": event.text})
                for callback in self._callbacks:
                    callback.on_event(event)

    def snapshot(self) -> Snapshot:
        """Return everything that the rest of the run depends on, except the history."""
        assert self._watch is not None
        return {
            "round": self.rounds_done,
            "seconds": self.seconds,
            "watch": dict(self._watch.snapshot()),
            "engine": self.engine.snapshot(),
        }

    def restore(self, snapshot: Snapshot, source: str) -> None:
        """Return to a snapshot; the caller cuts the history to the records made before it.

        Raises:
            InputError: If the snapshot, from the file `source`, does not belong to this run.
        """
        watch = self._make_watch(math.nan)
        try:
            watch.restore(snapshot["watch"])
            self.engine.restore(snapshot["engine"], source)
            self.seconds = float(snapshot["seconds"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise InputError(f"{source}: not a checkpoint of this run") from None
        self._watch, self.history.first_loss = watch, watch.first


def _make_read_only(tree: Any) -> Any:
    """Return a tree with read-only views of its arrays."""
    if isinstance(tree, np.ndarray):
        view = tree.view()
        view.flags.writeable = False
        return view
    if isinstance(tree, Mapping):
        return {key: _make_read_only(part) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_make_read_only(part) for part in tree]
    return tree
