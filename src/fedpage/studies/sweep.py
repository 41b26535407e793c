"""Run every method with every seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.callbacks.base import Callback, check_callbacks
from fedpage.core.columns import RecordEvery
from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import check_file
from fedpage.core.types import AnyMethod, Problem
from fedpage.core.validate import check_whole
from fedpage.engine.simulate import Simulation, execute
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions, RunSpec, StopRule, as_options
from fedpage.studies.parallel import run_tasks

CallbackFactory = Callable[[AnyMethod, int], Sequence[Callback]]
"""Makes the callbacks of a run from its method and seed."""


def sweep(
    problem: Problem,
    methods: Sequence[AnyMethod],
    *,
    rounds: int,
    seeds: int | Iterable[int] = 5,
    record_every: RecordEvery = 10,
    stop: StopRule = None,
    jobs: int | None = 1,
    callbacks: CallbackFactory | None = None,
    out: str | os.PathLike[str] | None = None,
    options: RunOptions | None = None,
) -> list[History]:
    """Run every method with every seed, and return the histories in the order methods x seeds.

    A seed gives the same coins and the same clients to every method, so comparisons are paired.

    Args:
        problem: The problem.
        methods: The methods with their hyper-parameters.
        rounds: The number of rounds of each run.
        seeds: How many seeds (0, 1, ..., seeds-1), or a list of them.
        record_every: The number of rounds between two records, or "log"; see `simulate`.
        stop: When to end a run early.
        jobs: Processes; None leaves the choice to `joblib.parallel_config`, for Dask or Ray.
        callbacks: Makes the callbacks of each run, in the process of that run:
            `callbacks=lambda method, seed: [fp.Track("tensorboard")]`.
        out: A directory for one run directory per run. With `RunOptions(resume=True)` the same
            call continues where the process died.
        options: Rarely used options of every run.

    Returns:
        A history per method and seed.

    Raises:
        InputError: If an argument cannot be used.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20)
    >>> runs = fp.sweep(problem, [fp.FedPAGE(S=2), fp.FedAvg(S=2)], rounds=10, seeds=2)
    >>> [(run.label, run.meta["seed"]) for run in runs]
    [('FedPAGE', 0), ('FedPAGE', 1), ('FedAvg', 0), ('FedAvg', 1)]
    """
    settings = {"rounds": rounds, "record_every": record_every, "stop": stop}
    return list(
        iterate_sweep(
            problem, methods, seeds,
            jobs=jobs, callbacks=callbacks, out=out, options=as_options(options), **settings,
        )
    )  # fmt: skip


def iterate_sweep(
    problem: Problem,
    methods: Sequence[AnyMethod],
    seeds: int | Iterable[int],
    *,
    jobs: int | None = 1,
    callbacks: CallbackFactory | None = None,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Iterator[History]:
    """Yield the histories of `sweep`, each as soon as its run and all runs before it have ended.

    Args and errors are those of `sweep`; arguments are checked at the first history.
    """
    if isinstance(methods, (str, bytes)) or not isinstance(methods, Iterable):
        raise InputError(f"methods must be a list of methods, not {short_repr(methods)}")
    if isinstance(seeds, (bool, str)) or not isinstance(seeds, (int, np.integer, Iterable)):
        raise InputError(
            f"seeds must be a number of seeds or a list of seeds, not {short_repr(seeds)}"
        )
    if callbacks is not None and not callable(callbacks):
        raise InputError(
            "sweep: callbacks must be a function that makes the callbacks of a run, "
            "callbacks=lambda method, seed: [...]"
        )
    if jobs is not None:
        check_whole("jobs", jobs, 1)
    if isinstance(seeds, (int, np.integer)):
        check_whole("seeds", seeds, 1, 1_000_000)
        seeds = range(int(seeds))
    methods, seeds = list(methods), list(seeds)
    specs = [
        RunSpec(problem, method, seed=seed, **settings) for method in methods for seed in seeds
    ]
    if not specs:
        raise InputError("nothing to run: give at least one method and one seed")
    for spec in specs:  # so that a wrong argument is refused here, not in a worker
        Simulation(problem, spec.method, seed=spec.seed)
    # A worker may have been started in another directory.
    root = None if out is None else check_file(out).resolve()
    places = [None if root is None else root / name for name in run_names(methods, seeds)]
    run_one = partial(_run_one, callbacks=callbacks)
    yield from run_tasks(run_one, list(zip(specs, places, strict=True)), jobs)


def _run_one(spec: RunSpec, out: Path | None, *, callbacks: CallbackFactory | None) -> History:
    """Run one method with one seed, in the process that is to run it."""
    observers = () if callbacks is None else callbacks(spec.method, spec.seed)
    return execute(spec, check_callbacks(list(observers)), out)


def run_names(methods: Sequence[AnyMethod], seeds: Sequence[int]) -> list[str]:
    """Return the directory name of each run of a sweep, in the order methods x seeds.

    >>> import fedpage as fp
    >>> run_names([fp.FedPAGE(), fp.FedAvg()], [0, 1])
    ['0-fedpage-seed0', '0-fedpage-seed1', '1-fedavg-seed0', '1-fedavg-seed1']
    """
    short = [
        "".join(c if c.isalnum() or c in "-." else "_" for c in method.name.lower())
        for method in methods
    ]
    return [f"{number}-{name}-seed{seed}" for number, name in enumerate(short) for seed in seeds]
