"""Keep runs of many studies in one directory, each under a name made from its content."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedpage.core.errors import InputError
from fedpage.core.types import AnyMethod, Problem
from fedpage.engine.simulate import Simulation
from fedpage.engine.simulate import execute as execute_run
from fedpage.runs import toml
from fedpage.runs.build import build_problem
from fedpage.runs.config import ProblemConfig
from fedpage.runs.fingerprint import digest, fingerprint, result_key
from fedpage.runs.history import History
from fedpage.runs.lock import RunInUse, is_in_use
from fedpage.runs.spec import RunOptions, RunSpec

_LOG = logging.getLogger("fedpage")
_SECONDS_BETWEEN_LOOKS = 0.5


@lru_cache(maxsize=4)
def _build(source: ProblemConfig, stamps: tuple[tuple[int, int], ...]) -> Problem:
    """Build a problem whose files have given times and sizes, so that an edit is noticed."""
    return build_problem(source)


def _stamps(source: ProblemConfig) -> tuple[tuple[int, int], ...]:
    """Return the time and size of the files of a problem: its data, loss, partition, metrics."""
    words = [source.objective or "", source.partition or "", *source.metrics.split(",")]
    paths = [Path(source.data), *(Path(word.strip().rpartition("@")[0]) for word in words)]
    found = (path.stat() for path in paths if path.is_file())
    return tuple((stat.st_mtime_ns, stat.st_size) for stat in found)


def open_source(source: ProblemConfig | Problem) -> Problem:
    """Return a problem, or build it from its configuration; the last few are kept in memory.

    A problem is built again if a file of it has changed.
    """
    return _build(source, _stamps(source)) if isinstance(source, ProblemConfig) else source


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study needs.

    Attributes:
        spec: Its settings. The problem may be a `ProblemConfig`, which takes little to send to
            another process, and is opened there.
        place: The run's directory.
        key: The digest of all that the run's bits depend on.
    """

    spec: RunSpec
    place: Path
    key: str

    def load(self, *, warn: bool = True) -> History | None:
        """Load the finished run, or return None if it has not ended, or is damaged.

        Args:
            warn: Whether to log what is damaged.
        """
        path = self.place / "history.jsonl"
        if not path.is_file():
            return None
        try:
            history = History.load(path, warn=False)
            self._check_own(history)
        except InputError as error:
            if warn:
                _LOG.warning("%s; this run is left out", error)
            return None
        return history if history.ended else None

    def _check_own(self, history: History) -> None:
        """Refuse a run that was put here, but is another one or of another version."""
        table = toml.read_settings(self.place / "run.toml")
        stored = table.get("fingerprint", {})
        about = {key: value for key, value in stored.items() if key != "code"}
        key = digest({**stored, "versions": table.get("versions", {})})
        if key != self.key or fingerprint(history.meta, {}) != {**about, "code": {}}:
            raise InputError(
                f"{self.place}: the run in it is not the one that its name stands for; remove it"
            )

    @property
    def is_running(self) -> bool:
        """Whether a process is writing the run."""
        return is_in_use(self.place)

    def execute(self) -> bool:
        """Run it, or continue it where a process was killed.

        Returns:
            False if another process is writing it.
        """
        try:
            execute_run(replace(self.spec, problem=open_source(self.spec.problem)), out=self.place)
        except RunInUse:
            return False
        return True


def plan_runs(
    store: str | os.PathLike[str],
    source: ProblemConfig | Problem,
    method: AnyMethod,
    seeds: Sequence[int],
    **settings: Any,
) -> list[PlannedRun]:
    """Find the directory of the runs of a method on a problem.

    Its name has the method, the data and the seed, and a digest of all that the run's bits depend
    on: method, problem, data, seed, rounds, records, code, and the versions of packages.

    Args:
        store: The directory of all runs.
        source: The problem, or its configuration.
        method: The method.
        seeds: The seeds.
        settings: Further fields of `RunSpec`: rounds, record_every, stop.

    Returns:
        A run for each seed.

    Raises:
        InputError: The data cannot be read, or the method does not fit the problem.
    """
    problem = open_source(source)
    spec = RunSpec(problem, method, seed=0, options=RunOptions(resume=True), **settings)
    engine = Simulation(problem, method, seed=0)  # refuses what cannot be run
    about = fingerprint(spec.describe(), engine.code)
    root = Path(store).resolve()  # a worker may have been started in another directory
    words = [method.name, str(problem.describe().get("data", ""))]
    prefix = "-".join(filter(None, (_slug(word) for word in words)))
    unopened: Any = source
    plans = []
    for seed in seeds:
        key = result_key(about | {"seed": seed})
        place = root / f"{prefix}-seed{seed}-{key[:16]}"
        plans.append(PlannedRun(replace(spec, problem=unopened, seed=seed), place, key))
    return plans


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in text.lower())[:40]


def execute(plan: PlannedRun) -> tuple[PlannedRun, bool]:
    """Execute a plan, in the process that is to run it; see `PlannedRun.execute`."""
    return plan, plan.execute()


def wait_for(plan: PlannedRun) -> None:
    """Wait for a run that another process is writing; if that process dies, continue the run."""
    while plan.load(warn=False) is None and not plan.execute():
        time.sleep(_SECONDS_BETWEEN_LOOKS)
