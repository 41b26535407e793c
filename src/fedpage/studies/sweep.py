"""Run every method with every seed: a study of one problem, without grids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedpage.core.columns import RecordEvery
from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import check_path
from fedpage.core.types import AnyMethod, Problem
from fedpage.engine.simulate import check_is_method
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions, StopRule
from fedpage.studies.run_archive import CallbackFactory, slug
from fedpage.studies.study import Study


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
    if callbacks is not None and not callable(callbacks):
        raise InputError(
            "sweep: callbacks must be a function that makes the callbacks of a run, "
            "callbacks=lambda method, seed: [...]"
        )
    study = study_of_methods(
        problem, methods, seeds, stop, out,
        rounds=rounds, record_every=record_every, options=options,
    )  # fmt: skip
    return list(study.iterate(jobs=jobs, callbacks=callbacks))


def study_of_methods(
    problem: Problem,
    methods: Sequence[AnyMethod],
    seeds: int | Iterable[int],
    stop: StopRule = None,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Study:
    """Make the study of `sweep`: one problem, and methods that are named by their numbers.

    The study keeps its runs in memory. They are written to `out` too, if it is given, in
    directories such as 0-fedpage-seed0, where a run can be given more rounds.
    """
    if isinstance(methods, (str, bytes)) or not isinstance(methods, Iterable):
        raise InputError(f"methods must be a list of methods, not {short_repr(methods)}")
    methods = list(methods)
    if not methods:
        raise InputError("nothing to run: give at least one method")
    for method in methods:
        check_is_method(method)
    names = [f"{number}-{slug(method.name)}" for number, method in enumerate(methods)]
    tables = dict(zip(names, methods, strict=True))
    study = Study({"problem": problem}, tables, seeds=seeds, store=None, **settings)
    study.stop = stop
    if out is not None:
        root = check_path(out).absolute()  # a worker may have been started in another directory
        study.plans = {
            key: replace(plan, place=root / f"{key.method}-seed{key.seed}")
            for key, plan in study.plans.items()
        }
    return study
