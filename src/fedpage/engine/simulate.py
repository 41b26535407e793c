"""Run a method on a problem in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpage.callbacks.base import Callback, check_callbacks
from fedpage.callbacks.checkpointing import Checkpointing
from fedpage.callbacks.progress import Progress
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError, short_repr
from fedpage.core.function_digest import function_digest
from fedpage.core.recording import RecordEvery
from fedpage.core.types import AnyMethod, HasStart, Problem, Vector
from fedpage.engine.aggregation import Aggregation, Mean
from fedpage.engine.devices import Devices, check_time
from fedpage.engine.faults import Faults
from fedpage.engine.loop import Run, StopRule
from fedpage.engine.policy import Policy
from fedpage.engine.simulation import Evaluation, Simulation, start_of
from fedpage.engine.stopping import Stop
from fedpage.problems.client_scores import ClientScoring
from fedpage.runs.history import History
from fedpage.runs.provenance import describe_run
from fedpage.runs.store import RunStore


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
    evaluate: Evaluation = "pooled"
    """Evaluate f at once, or take the mean of the clients' evaluations, as a federation does."""
    resume: bool = False
    """Resume the run in the directory `out`, begin it if there is none, or read it if it ended.

    A run that has done all its rounds continues if `rounds` is larger now."""
    overwrite: bool = False
    """Delete a run that is already in the directory `out`, and begin anew."""
    checkpoint_every: str | int = "10s"
    """Rounds (100) or seconds ("10s", "5m") between checkpoints in `out`."""

    __repr__ = repr_settings


def simulate(
    problem: Problem,
    method: AnyMethod,
    *,
    rounds: int,
    seed: int,
    record_every: RecordEvery = 10,
    stop: StopRule = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    out: str | os.PathLike[str] | None = None,
    options: RunOptions | None = None,
) -> History:
    """Run a method on a problem and return the history.

    The same seed gives the same history, bit for bit. A run that diverges ends early.

    Args:
        problem: The problem.
        method: The method with its hyper-parameters.
        rounds: The number of rounds.
        seed: The seed of all random numbers.
        record_every: The number of rounds between two records of loss, gradient norm and metrics;
            0 records the end only. "log" records rounds 1, 2, ..., 10, 12, 14, 17, 20, ..., 90,
            100, 120, ..., which takes little time in a long run.
        stop: When to end early: a `Stop`, or a function of the newest record that returns a reason
            or None.
        callbacks: Observers such as `Track("tensorboard")` or `Best(problem, "best.npz")`.
        progress: Whether to show a progress bar.
        out: A directory to write the run to while it runs. If the process dies,
            `RunOptions(resume=True)` continues from the newest checkpoint, with the same bits.
            A run that is already there is refused unless `RunOptions` says to resume it or to
            overwrite it.
        options: Rarely used options: first model, threads, faults, devices, resuming.

    Returns:
        The history: its records, the last model `x` (d,), and `stop_reason`.

    Raises:
        InputError: If an argument cannot be used.
        Interrupted: If the run was interrupted by a signal, after it had written a checkpoint.

    >>> import fedpage as fp
    >>> problem = fp.RobustRegression(fp.load("census", rows=200), clients=20)
    >>> history = fp.simulate(problem, fp.FedPAGE(S=2, K=5, eta_g=0.1), rounds=50, seed=0)
    >>> bool(history.last("grad_norm") < history["grad_norm"][0])
    True
    """
    run = prepare(
        problem,
        method,
        rounds=rounds,
        seed=seed,
        record_every=record_every,
        stop=stop,
        options=options,
    )
    if not isinstance(progress, bool):
        raise InputError(
            f"progress must be True or False, not {short_repr(progress)}; "
            "for a function of yours, see fp.FunctionCallback"
        )
    observers = check_callbacks(callbacks) + ((Progress(),) if progress else ())
    options = options or RunOptions()
    if out is None:
        if options.resume:
            raise InputError("resume=True needs out=, the directory of the run")
        return run.run(observers)
    with RunStore(out, checkpoint_every=options.checkpoint_every) as store:
        finished = store.open_run(run, resume=options.resume, overwrite=options.overwrite)
        # The store comes last: a checkpoint says that every other callback has seen the round.
        return run.run([*observers, Checkpointing(store)]) if finished is None else finished


def prepare(
    problem: Problem,
    method: AnyMethod,
    *,
    rounds: int,
    seed: int,
    record_every: RecordEvery = 10,
    stop: StopRule = None,
    options: RunOptions | None = None,
) -> Run:
    """Return a run that has not begun.

    Args:
        problem: The problem.
        method: The method with its hyper-parameters.
        rounds: The number of rounds.
        seed: The seed of all random numbers.
        record_every: The number of rounds between two records, or "log".
        stop: When to end early.
        options: Rarely used options.

    Returns:
        The run, whose history holds its provenance.

    Raises:
        InputError: If an argument cannot be used.
    """
    if options is None:
        options = RunOptions()
    if not isinstance(options, RunOptions):
        raise InputError(
            f"options must be RunOptions such as RunOptions(threads=2), not {short_repr(options)}"
        )
    engine = Simulation(
        problem,
        method,
        seed=seed,
        x0=options.x0,
        threads=options.threads,
        chunk=options.chunk,
        faults=options.faults,
        policy=options.policy,
        evaluate=options.evaluate,
        devices=options.devices,
        aggregation=options.aggregation,
    )
    if isinstance(stop, Stop):
        for budget in stop.budgets:
            check_time(budget, options.devices)
    run = Run(engine, History(), rounds=rounds, record_every=record_every, stop=stop)
    run.history.meta = describe_simulation(
        problem,
        method,
        rounds=rounds,
        seed=seed,
        record_every=record_every,
        stop=stop,
        options=options,
    )
    return run


def describe_simulation(
    problem: Problem,
    method: AnyMethod,
    *,
    rounds: int,
    seed: int,
    record_every: RecordEvery,
    stop: StopRule = None,
    options: RunOptions | None = None,
) -> dict[str, object]:
    """Return the provenance of a run of `simulate`, given the same arguments."""
    options = options or RunOptions()
    ending: Mapping[str, object] = {}
    if isinstance(stop, Stop):
        ending = stop.describe()
    elif stop is not None:
        ending = {"function": function_digest(stop)}
    own = problem.x0 if isinstance(problem, HasStart) else None
    has_start = options.x0 is not None or own is not None
    meta = describe_run(
        method,
        problem.describe(),
        seed=seed,
        rounds=rounds,
        record_every=record_every,
        x0=start_of(problem, options.x0) if has_start else None,
        stop=ending,
    )
    if isinstance(problem, ClientScoring):
        meta |= problem.describe_reference()
    if options.evaluate != "pooled":
        meta["evaluate"] = options.evaluate
    if options.faults is not None:
        meta["faults"] = options.faults.describe()
    if options.devices is not None:
        meta["devices"] = options.devices.describe()
    if options.aggregation is not None and not isinstance(options.aggregation, Mean):
        meta["aggregation"] = options.aggregation.describe()
    if options.policy is not None and options.policy != Policy():
        meta["policy"] = vars(options.policy).copy()
    return meta
