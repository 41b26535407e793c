"""The loop round an engine's rounds: records, targets, divergence, the clock; and where it can be taken up again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Protocol

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import StopReason, Vector
from fedpage.engine.round import Costs, RoundInfo
from fedpage.engine.stopping import Stop, Verdict, Watch
from fedpage.engine.transport import Event, RoundFailed
from fedpage.runs.history import History

Progress = Callable[[int, int, Mapping[str, float]], None]
"""Called now and then with rounds done, rounds in all, and the newest record."""


_EVENTS = 1000


class Engine(Protocol):
    """What a run needs of whoever does its rounds."""

    @property
    def costs(self) -> Costs:
        """Costs so far, and the number of rounds."""
        ...

    @property
    def x(self) -> Vector:
        """(d,) the current model."""
        ...

    @property
    def effective_step(self) -> float:
        """The method's."""
        ...

    @property
    def code(self) -> dict[str, type[Any]]:
        """The classes whose code decides what a round computes, by name."""
        ...

    def step(self) -> RoundInfo:
        """One round."""
        ...

    def pop_events(self) -> list[Event]:
        """Return what happened outside a round, and forget it."""
        ...

    def evaluate(self) -> Mapping[str, float]:
        """At least "loss" and "grad_norm" of x."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """All that the coming rounds depend on, as a tree that a checkpoint can hold."""
        ...

    def restore(self, tree: Mapping[str, Any], source: str) -> None:
        """Go back to a snapshot."""
        ...


class Keeper(Protocol):
    """Who writes a run down while it goes on."""

    def record(self, row: Mapping[str, float]) -> None:
        """A record was made."""
        ...

    def event(self, entry: Mapping[str, Any]) -> None:
        """Something happened that a reader of the history wants to know."""
        ...

    def after_round(self, run: Run) -> None:
        """A round is over; may raise Interrupted once the run is safe."""
        ...


class Watcher(Protocol):
    """Who watches a run without changing it: `fedpage.callbacks.Callback`."""

    def begin(self, meta: Mapping[str, Any], rounds: int, done: int) -> None:
        """The run begins, or is taken up after `done` rounds."""
        ...

    def record(self, row: Mapping[str, float], x: Vector) -> None:
        """A record was made."""
        ...

    def after_round(self, done: int) -> None:
        """A round is over."""
        ...

    def end(self, history: History) -> None:
        """The run is over; `history.stopped` is empty where it was interrupted."""
        ...


class Interrupted(Exception):
    """The run was asked to stop, and has been written down so that it can go on."""


class Run:
    """A run: begins, goes on until something ends it, and can be snapshot between any two rounds."""

    def __init__(
        self, engine: Engine, history: History, *, rounds: int, record_every: int,
        stop: Stop | Callable[[Mapping[str, float]], str | None] | None = None,
    ) -> None:  # fmt: skip
        for name, value in (("rounds", rounds), ("record_every", record_every)):
            check_whole(name, value, 0)
        if stop is not None and not callable(stop) and not isinstance(stop, Stop):
            raise InputError(f"stop must be a function or a Stop, not {stop!r}")
        self.engine, self.history = engine, history
        self.rounds, self.every, self.stop = int(rounds), int(record_every), stop
        self.seconds = 0.0
        self.watch: Watch | None = None
        self._keeper: Keeper | None = None
        self._watchers: Sequence[Watcher] = ()

    def happened(self, round: int, event: str, text: str) -> None:
        """Note what a round has to tell; of what may come every round, the first thousand are kept."""
        if len(self.history.events) < _EVENTS or event not in ("rejected", "measured"):
            entry = {"event": event, "round": round, "text": text}
            self.history.events.append(entry)
            if self._keeper is not None:
                self._keeper.event(entry)

    def go(
        self,
        progress: Progress | None = None,
        keeper: Keeper | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> History:
        """Rounds until the end; the history says why it ended. What a keeper or a watcher raises goes through."""
        if progress is not None and not callable(progress):
            raise InputError(f"progress must be a function, not {progress!r}")
        check_watchers(watchers)
        self._watchers = tuple(watchers)
        begun: list[Watcher] = []
        try:
            for one in self._watchers:
                begun.append(one)
                one.begin(self.history.meta, self.rounds, self.engine.costs.round)
            return self._go(progress, keeper)
        finally:
            self._end(begun)

    def _end(self, watchers: Sequence[Watcher]) -> None:
        """End every one of them, whatever another does; an error goes on when all have ended."""
        with ExitStack() as ends:
            for one in reversed(watchers):
                ends.callback(one.end, self.history)

    def _go(self, progress: Progress | None, keeper: Keeper | None) -> History:
        engine, history = self.engine, self.history
        self._keeper = keeper
        limit = self.stop if isinstance(self.stop, Stop) else Stop()
        why: Verdict | None
        try:
            why = self._rounds(progress, keeper, limit)
        except RoundFailed as error:
            why = Verdict(StopReason.ROUND_FAILED, str(error))
            for event in error.events:
                self.happened(event.round, event.kind, event.text)
            with np.errstate(over="ignore", invalid="ignore"), suppress(RoundFailed):
                if not history.rows or history.rows[-1]["round"] != engine.costs.round:
                    self._note(self._measure(), None)
        history.stop_reason, history.stop_detail = why or Verdict(StopReason.FINISHED, "")
        history.x = np.array(engine.x)
        return history

    def _rounds(
        self, progress: Progress | None, keeper: Keeper | None, limit: Stop
    ) -> Verdict | None:
        """Rounds until the end, and why it is the end; None for the last round."""
        engine, history, costs = self.engine, self.history, self.engine.costs
        why: Verdict | None = None
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # what diverges is reported below, in words
            if self.watch is None:
                history.rows, history.events = [], []
                start = self._measure()
                self.watch = Watch(start["loss"], engine.effective_step, limit, history.directions)
                history.first_loss = start["loss"]
                if self.every:
                    self._note(start, keeper)
                    why = self._reason(start)
            tick = self.every or max(1, self.rounds // 100)
            while why is None and costs.round < self.rounds:
                began = time.perf_counter()
                info = engine.step()
                self.seconds += time.perf_counter() - began
                done, x = costs.round, engine.x
                for event in (*info.events, *engine.pop_events()):
                    self.happened(event.round, event.kind, event.text)
                for one in self._watchers:
                    one.after_round(done)
                if not math.isfinite(x.dot(x)):
                    step = engine.effective_step
                    why = Verdict(
                        StopReason.DIVERGED,
                        f"|x|^2 is not finite after round {done}, with effective step {step:g}",
                    )
                else:
                    why = limit.spent({**vars(costs), "seconds": self.seconds})
                if done % tick == 0 and done < self.rounds and why is None:
                    if self.every:
                        self._note(self._measure(), keeper)
                        why = self._reason(history.rows[-1])
                    if progress:
                        progress(
                            done, self.rounds, history.rows[-1] if history.rows else vars(costs)
                        )
                if keeper is not None and why is None and done < self.rounds:
                    keeper.after_round(self)
            if not history.rows or history.rows[-1]["round"] != costs.round:
                self._note(self._measure(), keeper)
                if why is None:
                    why = self._reason(history.rows[-1], last=True)
            if progress:
                progress(costs.round, self.rounds, history.rows[-1])
        return why

    def _measure(self) -> dict[str, float]:
        return {**vars(self.engine.costs), "seconds": self.seconds, **self.engine.evaluate()}

    def _note(self, row: dict[str, float], keeper: Keeper | None) -> None:
        self.history.append(row)
        if keeper is not None:
            keeper.record(self.history.rows[-1])
        for one in self._watchers:
            seen = self.engine.x.view()
            seen.flags.writeable = False  # whoever watches does not steer
            one.record(dict(self.history.rows[-1]), seen)

    def _reason(self, row: Mapping[str, float], last: bool = False) -> Verdict | None:
        """Why the run should end at this record, if it should."""
        assert self.watch is not None
        why = self.watch.judge(row, last)
        if why is None and callable(self.stop):
            said = self.stop(row)
            return Verdict(StopReason.CALLBACK, str(said)) if said else None
        return why

    def snapshot(self) -> dict[str, Any]:
        """All that the rest of the run depends on, but for the history's records."""
        assert self.watch is not None
        return {
            "round": self.engine.costs.round,
            "seconds": self.seconds,
            "watch": dict(self.watch.snapshot()),
            "engine": self.engine.snapshot(),
        }

    def restore(self, tree: Mapping[str, Any], source: str) -> None:
        """Go back to a snapshot; the history must be cut to the records made before it."""
        try:
            seconds = float(tree["seconds"])
            stop = self.stop if isinstance(self.stop, Stop) else None
            watch = Watch(math.nan, self.engine.effective_step, stop, self.history.directions)
            watch.restore(tree["watch"])
            engine = tree["engine"]
            if not isinstance(engine, dict) or not seconds >= 0.0:
                raise TypeError
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{source}: not the checkpoint of a run") from None
        self.engine.restore(engine, source)
        self.seconds = seconds
        self.watch = watch
        self.history.first_loss = watch.first


def check_watchers(watchers: object) -> None:
    """Refuse what cannot watch a run."""
    sound = isinstance(watchers, (list, tuple)) and all(
        callable(getattr(one, name, None)) and not isinstance(one, type)
        for one in watchers for name in ("begin", "record", "after_round", "end")
    )  # fmt: skip
    if not sound:
        raise InputError(
            f"callbacks must be a list of callbacks such as [fp.Track()], not {watchers!r:.80}"
        )


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")
