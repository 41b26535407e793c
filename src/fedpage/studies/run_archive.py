"""Make runs, in several processes, and keep them in one directory under names of their content."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from typing import Any, TypeVar

from fedpage.callbacks.base import Callback, check_callbacks
from fedpage.core.errors import InputError
from fedpage.core.types import AnyMethod, Problem
from fedpage.engine.simulate import Simulation
from fedpage.engine.simulate import execute as execute_run
from fedpage.runs import toml
from fedpage.runs.build import build_problem
from fedpage.runs.config import ProblemConfig
from fedpage.runs.fingerprint import fingerprint, result_key
from fedpage.runs.history import History
from fedpage.runs.lock import RunInUse
from fedpage.runs.spec import RunSpec
from fedpage.runs.toml import digest

T = TypeVar("T")
_LOG = logging.getLogger("fedpage")
_SECONDS_BETWEEN_LOOKS = 0.5
CallbackFactory = Callable[[AnyMethod, int], Sequence[Callback]]
"""Makes the callbacks of a run from its method and seed."""


def open_source(source: ProblemConfig | Problem) -> Problem:
    """Return a problem, or build it from its configuration; the last few are kept in memory.

    A problem is built again if one of its files (data, loss, partition, metrics) has changed.
    """
    if not isinstance(source, ProblemConfig):
        return source
    words = [source.objective or "", source.partition or "", *source.metrics.split(",")]
    paths = [Path(source.data), *(Path(word.strip().rpartition("@")[0]) for word in words)]
    stats = (path.stat() for path in paths if path.is_file())
    return _build(source, tuple((stat.st_mtime_ns, stat.st_size) for stat in stats))


@lru_cache(maxsize=4)
def _build(source: ProblemConfig, _stamps: tuple[tuple[int, int], ...]) -> Problem:
    return build_problem(source)


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study needs.

    Attributes:
        spec: Its settings. The problem may be a `ProblemConfig`, which takes little to send to
            another process, and is opened there.
        place: The run's directory, or None if it is kept in memory.
        key: The digest of all that the run's bits depend on, or "" if the directory is not named
            after it.
    """

    spec: RunSpec
    place: Path | None
    key: str = ""

    def load(self, *, warn: bool = True) -> History | None:
        """Load the finished run, or return None if it has not ended or is damaged.

        Args:
            warn: Whether to log what is damaged.
        """
        if self.place is None or not self.key:
            return None
        path = self.place / "history.jsonl"
        if not path.is_file():
            return None
        try:
            history = History.load(path, warn=False)
            self._check_own(history, self.place)
        except InputError as error:
            if warn:
                _LOG.warning("%s; this run is left out", error)
            return None
        return history if history.ended else None

    def _check_own(self, history: History, place: Path) -> None:
        """Refuse a run that was copied here, but has other settings or is of another version."""
        table = toml.read_settings(place / "run.toml")
        stored = table.get("fingerprint", {})
        key = digest({**stored, "versions": table.get("versions", {})})
        if key != self.key or fingerprint(history.meta, {}) != {**stored, "code": {}}:
            raise InputError(
                f"{place}: the run in it is not the one that its name stands for; remove it"
            )

    def execute(self, callbacks: CallbackFactory | None = None) -> History | None:
        """Run it, or continue it where a process was killed.

        Returns:
            The run, or None if another process is writing it.
        """
        spec = replace(self.spec, problem=open_source(self.spec.problem))
        observers = () if callbacks is None else callbacks(spec.method, spec.seed)
        try:
            return execute_run(spec, check_callbacks(list(observers)), self.place)
        except RunInUse:
            if not self.key:
                raise
            return None

    def wait(self) -> None:
        """Wait for the process that is writing the run, and make the run if that process ends."""
        while self.load(warn=False) is None and self.execute() is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def plan_runs(
    store: Path | None,
    source: ProblemConfig | Problem,
    method: AnyMethod,
    seeds: Sequence[int],
    **settings: Any,
) -> list[PlannedRun]:
    """Plan the runs of a method on a problem, one for each seed.

    The name of a run's directory has the method, the data and the seed, and a digest of all that
    the run's bits depend on: method, problem, data, seed, rounds, records, code, and the versions
    of packages.

    Args:
        store: The directory of all runs, or None to keep them in memory.
        source: The problem, or its configuration.
        method: The method.
        seeds: The seeds.
        settings: Further fields of `RunSpec`: rounds, record_every, stop, options.

    Raises:
        InputError: The data cannot be read, or the method does not fit the problem.
    """
    problem = open_source(source)
    spec = RunSpec(problem, method, seed=0, **settings)
    engine = Simulation(problem, method, seed=0)  # refuses what cannot be run
    unopened: Any = source
    specs = [replace(spec, problem=unopened, seed=seed) for seed in seeds]
    if store is None:
        return [PlannedRun(spec, None) for spec in specs]
    about = fingerprint(spec.describe(), engine.code)
    words = [method.name, str(problem.describe().get("data", ""))]
    prefix = "-".join(filter(None, map(slug, words)))
    root = store.absolute()  # a worker may have been started in another directory
    plans = []
    for spec in specs:
        key = result_key(about | {"seed": spec.seed})
        plans.append(PlannedRun(spec, root / f"{prefix}-seed{spec.seed}-{key[:16]}", key))
    return plans


def slug(text: str) -> str:
    """Return a text in lower case without the characters that a file name should not have."""
    return "".join(c if c.isalnum() or c in "-." else "_" for c in text.lower())[:40]


# --- processes ------------------------------------------------------------------------------------


def run_tasks(
    function: Callable[..., T],
    tasks: Sequence[tuple[object, ...]],
    jobs: int | None,
    *,
    in_order: bool = True,
) -> Iterator[T]:
    """Yield the results of a function, each as soon as it is known.

    Worker processes end within a second or two of the death of the process that started them.

    Args:
        function: The function to call.
        tasks: The arguments of each call.
        jobs: Processes; None leaves the choice to `joblib.parallel_config`, for Dask or Ray.
        in_order: Whether results come in the order of the tasks.

    >>> list(run_tasks(pow, [(2, 3), (3, 2)], jobs=1))
    [8, 9]
    """
    if jobs == 1:
        yield from starmap(function, tasks)
        return
    from joblib import Parallel, delayed

    settings: dict[str, Any] = {}
    if jobs is not None:  # the user's backend may not be able to return results one by one
        order = "generator" if in_order else "generator_unordered"
        settings = {"n_jobs": max(1, min(jobs, len(tasks))), "return_as": order}
    parallel = Parallel(initializer=end_with_parent, **settings)
    yield from parallel(delayed(function)(*task) for task in tasks)


def end_with_parent() -> None:
    """End this process when the one that started it is gone; do nothing in a main process.

    It is the initializer of workers that are started with multiprocessing or loky. Dask's backend
    ignores it: the workers of a local cluster end with their client, and others are their owner's.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_wait_for_end_of_parent, daemon=True).start()


def _wait_for_end_of_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    if parent.sentinel is not None:
        parent.join()
    else:  # loky's workers are direct children without a sentinel, but on Windows they have one
        while os.getppid() == parent.pid:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)  # sys.exit would end this thread only
