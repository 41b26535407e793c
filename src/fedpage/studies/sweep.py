"""`sweep`: every method with every seed, through joblib."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import AnyMethod, Problem
from fedpage.engine.loop import check_whole
from fedpage.engine.simulate import simulate
from fedpage.engine.simulation import Simulation
from fedpage.runs.history import History


def sweep(
    problem: Problem,
    methods: Sequence[AnyMethod],
    *,
    rounds: int,
    seeds: int | Iterable[int] = 5,
    jobs: int | None = 1,
    progress: Callable[[int, int, History], None] | None = None,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> list[History]:
    """Every method with every seed: independent runs through joblib, in the order methods x seeds.

    seeds: how many (0..seeds-1), or which. jobs: processes; None leaves it to `joblib.parallel_config`, so that a
    cluster's backend (Dask, Ray) can be plugged in. Same seed, same coins and clients for every method, so that
    comparisons are paired. progress: called with runs done, runs in all, and the run. out: a directory with one for
    each run in it, so that the same call with resume=True goes on where this one died. Other options: `simulate`'s.
    """
    if options.get("callbacks"):
        raise InputError("sweep: callbacks watch one run each; give them to simulate")
    if isinstance(methods, (str, bytes)) or not isinstance(methods, Iterable):
        raise InputError(f"methods must be a list of methods, not {methods!r}")
    if isinstance(seeds, (bool, str)) or not isinstance(seeds, (int, np.integer, Iterable)):
        raise InputError(f"seeds must be a number of seeds or a list of them, not {seeds!r}")
    chosen = list(range(int(seeds))) if isinstance(seeds, (int, np.integer)) else list(seeds)
    if jobs is not None:
        check_whole("jobs", jobs, 1)
    tasks = [(method, seed) for method in methods for seed in chosen]
    if not tasks:
        raise InputError("nothing to run: give at least one method and one seed")
    for method, seed in tasks:  # nonsense is refused here, not in a worker
        Simulation(problem, method, seed=seed)
    home = (
        None if out is None else Path(out).resolve()
    )  # a worker may have been started somewhere else
    places = [None if home is None else home / name for name in run_names(methods, chosen)]
    done: list[History] = []
    for history in _runs(problem, tasks, places, rounds, jobs, options):
        done.append(history)
        if progress:
            progress(len(done), len(tasks), history)
    return done


def run_names(methods: Sequence[AnyMethod], seeds: Sequence[int]) -> list[str]:
    """A name for each run of a sweep, in its order: where `out` has it.

    >>> import fedpage as fp
    >>> run_names([fp.FedPAGE(), fp.FedAvg()], [0, 1])
    ['0-fedpage-seed0', '0-fedpage-seed1', '1-fedavg-seed0', '1-fedavg-seed1']
    """
    short = [
        "".join(c if c.isalnum() or c in "-." else "_" for c in method.name.lower())
        for method in methods
    ]
    return [f"{number}-{name}-seed{seed}" for number, name in enumerate(short) for seed in seeds]


def _runs(
    problem: Problem, tasks: list[tuple[AnyMethod, int]], places: Sequence[Path | None], rounds: int, jobs: int | None,
    options: dict[str, Any],
) -> Iterator[History]:  # fmt: skip
    each: list[tuple[AnyMethod, dict[str, Any]]] = [
        (method, {"seed": seed, "out": out})
        for (method, seed), out in zip(tasks, places, strict=True)
    ]
    if jobs == 1:
        for method, own in each:
            yield simulate(problem, method, rounds=rounds, **own, **options)
        return
    from joblib import Parallel, delayed

    work = (
        delayed(simulate)(problem, method, rounds=rounds, **own, **options) for method, own in each
    )
    if (
        jobs is None
    ):  # a backend of the user's, which may not be able to hand results over one by one
        yield from Parallel()(work)
    else:
        yield from Parallel(n_jobs=min(jobs, len(tasks)), return_as="generator")(work)
