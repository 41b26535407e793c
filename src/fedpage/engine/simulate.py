"""Run a method on a problem in this process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fedpage.callbacks.base import Callback, check_callbacks
from fedpage.callbacks.checkpointing import Checkpointing
from fedpage.callbacks.progress import Progress
from fedpage.core.errors import InputError, short_repr
from fedpage.core.recording import RecordEvery
from fedpage.core.types import AnyMethod, Problem
from fedpage.engine.devices import check_time
from fedpage.engine.loop import Run
from fedpage.engine.simulation import Simulation
from fedpage.engine.stopping import Stop
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions, RunSpec, StopRule
from fedpage.runs.store import RunStore


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
    spec = RunSpec(problem, method, rounds, seed, record_every, stop, options or RunOptions())
    if not isinstance(progress, bool):
        raise InputError(
            f"progress must be True or False, not {short_repr(progress)}; "
            "for a function of yours, see fp.FunctionCallback"
        )
    observers = check_callbacks(callbacks) + ((Progress(),) if progress else ())
    return execute(spec, observers, out)


def execute(
    spec: RunSpec, callbacks: Sequence[Callback] = (), out: str | os.PathLike[str] | None = None
) -> History:
    """Run what a spec describes, as `simulate` does.

    Args:
        spec: The run's settings.
        callbacks: Observers of the run.
        out: A directory to write the run to, or None.

    Returns:
        The history.

    Raises:
        InputError: If a setting cannot be used.
        Interrupted: If the run was interrupted by a signal, after it had written a checkpoint.
    """
    run, options = prepare(spec), spec.options
    if out is None:
        if options.resume:
            raise InputError("resume=True needs out=, the directory of the run")
        return run.run(callbacks)
    with RunStore(out, checkpoint_every=options.checkpoint_every) as store:
        finished = store.open_run(run, resume=options.resume, overwrite=options.overwrite)
        # The store comes last: a checkpoint says that every other callback has seen the round.
        return run.run([*callbacks, Checkpointing(store)]) if finished is None else finished


def prepare(spec: RunSpec) -> Run:
    """Return a run that has not begun, whose history holds its provenance.

    Raises:
        InputError: If a setting cannot be used.
    """
    options = spec.options
    engine = Simulation(
        spec.problem,
        spec.method,
        seed=spec.seed,
        x0=options.x0,
        threads=options.threads,
        chunk=options.chunk,
        faults=options.faults,
        policy=options.policy,
        evaluate=options.evaluate,
        devices=options.devices,
        aggregation=options.aggregation,
    )
    if isinstance(spec.stop, Stop):
        for budget in spec.stop.budgets:
            check_time(budget, options.devices)
    run = Run(engine, History(), rounds=spec.rounds, record_every=spec.record_every, stop=spec.stop)
    run.history.meta = spec.describe()
    return run
