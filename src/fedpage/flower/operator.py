"""What an operator sees of a run: the log, its status, experiment trackers, the best model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedpage.callbacks.base import Callback, Event, RoundEnd, RunInfo
from fedpage.callbacks.best_model import Best
from fedpage.callbacks.progress import Pace, summarise_record
from fedpage.callbacks.trackers import TensorBoard, Track, Tracker, WandB, make_tracker
from fedpage.core.columns import explain_epsilon
from fedpage.core.errors import InputError
from fedpage.core.types import Problem, StopReason, Vector
from fedpage.flower.config import AppConfig
from fedpage.report.summary import format_bytes, format_duration
from fedpage.runs.status import RunStatus, write_status
from fedpage.runs.store import RunStore

log = logging.getLogger("flwr")


class LogProgress(Callback):
    """Write a line for every round, record and event to Flower's log."""

    def __init__(self) -> None:
        self._rounds, self._pace = 0, Pace(0)
        self._has_warned = False

    def on_run_start(self, info: RunInfo) -> None:
        """Note the number of rounds, and start the clock."""
        self._rounds, self._pace = info.rounds, Pace(info.start)

    def on_record(self, record: Mapping[str, float], x: Vector) -> None:
        """Log the round and what was measured, and once that epsilon protects little."""
        done = record["round"]
        log.info("fedpage: round %s of %s: %s", done, self._rounds, summarise_record(record))
        if (text := explain_epsilon(record)) and not self._has_warned:
            self._has_warned = True
            log.warning("fedpage: %s", text)

    def on_event(self, event: Event) -> None:
        """Log what happened to a client."""
        log.warning("fedpage: round %s: %s: %s", event.round, event.kind, event.text)

    def on_round_end(self, info: RoundEnd) -> None:
        """Log who answered, the slowest client, the round's bytes and time, and what is left."""
        words = [f"{info.answered} of {info.called} clients answered"]
        if info.slowest is not None:
            words.append(f"slowest {info.slowest.client} ({format_duration(info.slowest.seconds)})")
        words.append(f"{format_bytes(info.bytes_down)} down, {format_bytes(info.bytes_up)} up")
        words.append(format_duration(info.seconds))
        left = self._pace.observe(info.round) * (info.rounds - info.round)
        if left and not info.is_last:
            words.append(f"about {format_duration(left)} left")
        log.info("fedpage: round %s of %s: %s", info.round, info.rounds, ", ".join(words))


@contextmanager
def waiting_for_nodes(out: Path, config: AppConfig) -> Iterator[Callable[[str], None]]:
    """Write to the run's status that it waits for its nodes, and why it cannot begin.

    The directory is locked meanwhile, so that no other process can run in it.

    Args:
        out: The run's directory.
        config: The run's configuration.

    Yields:
        A function that writes another text about the waiting.
    """
    with RunStore(out) as store:
        status = RunStatus(rounds=config.rounds)

        def wait_for(text: str) -> None:
            if text != status.waiting or time.time() - status.written >= 1.0:
                status.waiting = text
                write_status(store.path, status)

        wait_for(f"waiting for the nodes of {config.clients} clients")
        try:
            yield wait_for
        except BaseException as error:
            status.end = StopReason.ROUND_FAILED.value
            status.detail = " ".join(str(error).split()) or type(error).__name__
            write_status(store.path, status)
            raise


def make_observers(config: AppConfig, out: Path, problem: Problem | None) -> list[Callback]:
    """Return the callbacks that the run's configuration asks for.

    Args:
        config: The run's configuration.
        out: The run's directory, where trackers and the best model are written.
        problem: The server's problem of an app with an objective of its own.

    Raises:
        InputError: A tracker is unknown or not installed, or the best model's column is unknown.
    """
    observers: list[Callback] = [LogProgress()]
    names = [name.strip() for name in config.track.split(",") if name.strip()]
    try:
        if names:
            observers.append(Track(*(_make_tracker(name, out) for name in names)))
        if config.best:
            observers.append(Best(problem, out / "best.npz", config.best))
    except (ImportError, InputError) as error:
        raise InputError(f"run config: {error}") from None
    return observers


def _make_tracker(name: str, out: Path) -> Tracker:
    """Return a tracker; without a location of its own it writes to the run's directory."""
    if name == "tensorboard":
        return TensorBoard(out / "tensorboard")
    if name == "wandb":
        return WandB(folder=out)
    return make_tracker(name)
