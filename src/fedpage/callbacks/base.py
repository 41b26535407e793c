"""The base class of callbacks, which observe a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import StopReason, Vector
from fedpage.runs.checkpoint import Snapshot
from fedpage.runs.history import History
from fedpage.runs.history_file import Meta


class Event(NamedTuple):
    """A fault of clients in a round, as the history records it."""

    kind: str
    """The event's name: "rejected", "fallback", "lost", "back", or an engine's own."""
    round: int
    """The round it happened in, counted from 0."""
    text: str
    """A sentence that describes it."""


@dataclass(frozen=True)
class RunInfo:
    """A run that is about to start or to resume."""

    meta: Meta
    """The run's provenance: method, problem, seed, versions."""
    rounds: int
    """The number of rounds of the whole run."""
    start: int
    """The number of rounds done before; above 0 for a resumed run."""
    snapshot: Callable[[], Snapshot]
    """Return everything that the coming rounds depend on, with read-only arrays."""


class Slowest(NamedTuple):
    """The client of a round whose reply took longest."""

    client: int
    seconds: float


class RoundEnd(NamedTuple):
    """A round that has just ended."""

    round: int
    """The number of rounds done."""
    rounds: int
    """The number of rounds of the whole run."""
    is_last: bool
    """Whether the run ends here: all rounds are done, or a rule has stopped it."""
    called: int = 0
    """The number of clients that the round called."""
    answered: int = 0
    """The number of clients whose replies counted."""
    slowest: Slowest | None = None
    """The client whose reply took longest; None where time is not measured, as in a simulation."""
    lost: Sequence[int] = ()
    """Clients that have missed so many rounds in a row that they count as lost."""
    seconds: float = 0.0
    """The time that the round took, without evaluation."""
    bytes_down: int = 0
    """Bytes that the round sent to clients."""
    bytes_up: int = 0
    """Bytes that the round received from clients."""
    total_down: int = 0
    """Bytes that the run has sent to clients so far."""
    total_up: int = 0
    """Bytes that the run has received from clients so far."""


class Stopped(NamedTuple):
    """Why a run ended, or should end."""

    reason: StopReason
    detail: str = ""


class Callback:
    """Observe a run; every hook does nothing unless a subclass overrides it.

    A callback cannot change the run: it gets copies and read-only arrays. It can only end it, by
    returning a `Stopped` from `on_round_end`. An exception in a hook ends the run and reaches the
    caller, after `on_run_end` of every callback that was started.

    In each round the hooks are called in the order `on_event`, `on_record`, `on_round_end`.

    >>> import fedpage as fp
    >>> class PrintLoss(fp.Callback):
    ...     def on_record(self, record, x):
    ...         print(record["round"], round(record["loss"], 2))
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20)
    >>> history = fp.simulate(
    ...     problem, fp.FedPAGE(S=2), rounds=2, seed=0, record_every=2, callbacks=[PrintLoss()]
    ... )
    0 0.69
    2 0.6...
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def on_run_start(self, info: RunInfo) -> None:
        """Prepare for a run that starts, or resumes after `info.start` rounds.

        Args:
            info: The run's provenance and its number of rounds.
        """

    def on_event(self, event: Event) -> None:
        """Handle what happened to clients in this round, such as a rejected reply.

        Args:
            event: The event's kind, round and text.
        """

    def on_record(self, record: Mapping[str, float], x: Vector) -> None:
        """Handle a new record.

        Args:
            record: A copy of the record: costs, loss, gradient norm, metrics.
            x: (d,) the model that was evaluated, read-only.
        """

    def on_round_end(self, info: RoundEnd) -> Stopped | None:
        """Handle the end of a round.

        Args:
            info: How many rounds are done, of how many.

        Returns:
            A `Stopped` to end the run after this round, or None to continue.
        """
        return None

    def on_run_end(self, history: History) -> None:
        """Clean up after a run that has ended in any way.

        Args:
            history: The run's history; `history.stop_reason` says why it ended.
        """


class FunctionCallback(Callback):
    """Call functions of your own at a record, at the end of a round, or at the end of a run.

    Args:
        on_record: Called with the record and the model x (d,).
        on_round_end: Called with a `RoundEnd`; may return a `Stopped`.
        on_run_end: Called with the history.
    """

    def __init__(
        self,
        on_record: Callable[[Mapping[str, float], Vector], object] | None = None,
        on_round_end: Callable[[RoundEnd], Stopped | None] | None = None,
        on_run_end: Callable[[History], object] | None = None,
    ) -> None:
        hooks = {"on_record": on_record, "on_round_end": on_round_end, "on_run_end": on_run_end}
        self._given = {name: function for name, function in hooks.items() if function is not None}
        for name, function in self._given.items():
            if not callable(function):
                raise InputError(f"{name} must be a function, not {short_repr(function)}")
            setattr(self, name, function)  # in place of the method, which does nothing

    def __repr__(self) -> str:
        words = (
            f"{hook}={getattr(function, '__name__', type(function).__name__)}"
            for hook, function in self._given.items()
        )
        return f"FunctionCallback({', '.join(words)})"


def check_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple, or raise an InputError if one is not a Callback."""
    if not isinstance(callbacks, (list, tuple)) or not all(
        isinstance(callback, Callback) for callback in callbacks
    ):
        raise InputError(
            "callbacks must be a list of fp.Callback objects such as [fp.Track('tensorboard')], "
            f"not {short_repr(callbacks)}"
        )
    return tuple(callbacks)
