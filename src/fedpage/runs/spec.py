"""The settings of a run as one frozen value: what to run, for how long, with which seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, Union

import numpy as np

from fedpage.core.capabilities import dtype_of, own_start
from fedpage.core.columns import RecordEvery
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError, short_repr
from fedpage.core.function_digest import function_digest
from fedpage.core.types import AnyMethod, Problem, Vector
from fedpage.problems.scores import ClientScoring
from fedpage.runs.fingerprint import describe_run

if TYPE_CHECKING:
    from fedpage.engine.aggregation import Aggregation
    from fedpage.engine.devices import Devices
    from fedpage.engine.faults import Faults
    from fedpage.engine.policy import Policy
    from fedpage.engine.stopping import Stop

StopRule: TypeAlias = Union["Stop", Callable[[Mapping[str, float]], str | None], None]
"""When to end a run: a Stop, or a function of the newest record that returns a reason or None."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `simulate` and `sweep` that few runs need.

    The result has the same bits for any `threads`, `chunk`, `checkpoint_every` and `resume`.
    """

    x0: Vector | None = None
    """(d,) the first model; by default the problem's own (a network's parameters), or zero."""
    threads: int = 1
    """Threads that compute the clients' work."""
    chunk: int | None = None
    """The most clients computed at once; by default as many as fit 4 MiB, at most 512."""
    faults: Faults | None = None
    """How clients fail."""
    policy: Policy | None = None
    """What a round does about clients that fail."""
    aggregation: Aggregation | None = None
    """How replies are combined, such as TrimmedMean(0.1); by default by their mean."""
    devices: Devices | None = None
    """The clients' devices, which add the column seconds_simulated."""
    evaluate: Literal["pooled", "per_client"] = "pooled"
    """Evaluate f at once, or take the mean of the clients' evaluations, as a federation does."""
    resume: bool = False
    """Resume the run in the directory `out`, begin it if there is none, or read it if it ended.

    A run that has done all its rounds continues if `rounds` is larger now."""
    overwrite: bool = False
    """Delete a run that is already in the directory `out`, and begin anew."""
    checkpoint_every: str | int = "10s"
    """Rounds (100) or seconds ("10s", "5m") between checkpoints in `out`."""

    __repr__ = repr_settings


def as_options(options: RunOptions | None) -> RunOptions:
    """Return the given options or, for None, the defaults; refuse other types."""
    if options is not None and not isinstance(options, RunOptions):
        raise InputError(
            f"options must be RunOptions such as RunOptions(threads=2), not {short_repr(options)}"
        )
    return RunOptions() if options is None else options


@dataclass(frozen=True)
class RunSpec:
    """All settings of one run, which functions hand on as a whole.

    Use `dataclasses.replace(spec, seed=1)` for a run that differs in one setting.

    Args:
        problem: The problem.
        method: The method with its hyper-parameters.
        rounds: The number of rounds.
        seed: The seed of all random numbers.
        record_every: The number of rounds between two records, or "log".
        stop: When to end early.
        options: Rarely used options.
    """

    problem: Problem
    method: AnyMethod
    rounds: int
    seed: int
    record_every: RecordEvery = 10
    stop: StopRule = None
    options: RunOptions = field(default_factory=RunOptions)

    def describe(self) -> dict[str, object]:
        """Return the run's provenance as plain values, as `History.meta` holds it."""
        problem, stop, options = self.problem, self.stop, self.options
        ending: Mapping[str, object] = {}
        if stop is not None:
            ending = {"function": function_digest(stop)} if callable(stop) else stop.describe()
        has_start = options.x0 is not None or own_start(problem) is not None
        x0 = start_of(problem, options.x0) if has_start else None
        meta = describe_run(self.method, problem.describe(), self, x0, ending)
        if isinstance(problem, ClientScoring):
            meta |= problem.describe_reference()
        if options.evaluate != "pooled":
            meta["evaluate"] = options.evaluate
        for name in ("faults", "devices", "aggregation", "policy"):
            part = getattr(options, name)
            about = {} if part is None else part.describe()
            if about not in ({}, {"name": "mean"}):
                meta[name] = about
        return meta


def start_of(problem: Problem, x0: object = None) -> Vector:
    """Return a copy of the given start, or of the problem's own, or zeros.

    Args:
        problem: The problem.
        x0: (d,) numbers; if None, use the problem's start.

    Returns:
        The start, (d,).

    Raises:
        InputError: The start is not d finite numbers.
    """
    d, dtype = problem.d, dtype_of(problem)
    x0 = own_start(problem) if x0 is None else x0
    if x0 is None:
        return np.zeros(d, dtype)
    try:
        start = np.array(x0)
        if start.dtype.kind not in "fiu":
            raise ValueError
        start = start.astype(dtype)
        if start.shape != (d,) or not np.isfinite(start).all():
            raise ValueError
        return start
    except (TypeError, ValueError):
        raise InputError(f"x0 must be {d} finite numbers, not {short_repr(x0)}") from None
