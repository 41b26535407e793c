"""Studies: problems x methods x grids x seeds, run once, kept, compared and drawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.core.columns import RecordEvery
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.files import check_path
from fedpage.core.types import AnyMethod, Problem
from fedpage.core.validate import check_whole
from fedpage.engine.simulate import check_is_method
from fedpage.engine.stopping import Stop
from fedpage.report.plots import FigureRuns
from fedpage.report.watch import RunFollower
from fedpage.runs import toml
from fedpage.runs.build import record_target
from fedpage.runs.config import ProblemConfig, structure
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions, StopRule, as_options
from fedpage.studies.claims import CheckedClaim
from fedpage.studies.comparison import Comparison
from fedpage.studies.grid import (
    Curve,
    FigureConfig,
    RunKey,
    StudyConfig,
    StudyProblem,
    list_curves,
    list_problems,
    parse_study,
)
from fedpage.studies.results import StudyResults
from fedpage.studies.run_archive import CallbackFactory, PlannedRun, plan_runs, run_tasks, slug

DEFAULT_STORE = Path("runs") / "store"


class Study:
    """Run methods on problems over grids and seeds, and compare them.

    Runs are kept in a store, under names made from all that their bits depend on. So no run is made
    twice, studies share runs, and a killed study continues where it was.

    Args:
        problems: By name, a problem, or a table with the keys of `ProblemConfig`.
        methods: By name, a method, or a table of hyper-parameters, in which lists are grids.
        rounds: The number of rounds of a run.
        seeds: A number of seeds (0, 1, ...), or a list of them.
        grid: Values that every method takes, such as {"step": [0.1, 0.3]}.
        record_every: The number of rounds between two records, or "log".
        target: What is to be reached, such as "grad_norm:0.01".
        cost: The cost to the target, such as "bytes".
        store: The directory of the runs. If None, they are kept in memory.
        options: Rarely used options of every run, such as faults or devices.
        **more: Other keys of a study file, such as figures and tables.

    Raises:
        InputError: A name or a value is not one of a study.

    >>> import fedpage as fp
    >>> import tempfile
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     study = fp.Study({"census": problem}, {"page": fp.PAGE(S=4), "fedavg": {"S": 8}},
    ...                      rounds=20, seeds=2, grid={"step": [0.1, 0.2]}, store=folder)
    ...     [key.setting for key in study.run().runs()][::2]
    ['step=0.1', 'step=0.2', 'step=0.1', 'step=0.2']
    """

    def __init__(
        self,
        problems: Mapping[str, Problem | Mapping[str, Any]],
        methods: Mapping[str, AnyMethod | Mapping[str, Any]],
        *,
        rounds: int,
        seeds: int | Iterable[int] = 5,
        grid: Mapping[str, Sequence[Any]] | None = None,
        record_every: RecordEvery = 10,
        target: str = "0.01",
        cost: str = "bytes",
        store: str | os.PathLike[str] | None = DEFAULT_STORE,
        options: RunOptions | None = None,
        **more: Any,
    ) -> None:
        table = {
            "problems": problems,
            "methods": methods,
            "rounds": rounds,
            "seeds": _plain_seeds(seeds),
            "grid": {name: list(values) for name, values in (grid or {}).items()},
            "record_every": record_every,
            "target": target,
            "cost": cost,
        }
        config = structure(StudyConfig, table | more, "study")
        self._set(config, None if store is None else Path(store), "study")
        self.options = as_options(options)

    def _set(self, config: StudyConfig, store: Path | None, where: str) -> None:
        self.config = config
        """The tables of the study file."""
        self.store = store
        """The directory of the runs, or None if they are kept in memory."""
        self.options = RunOptions()
        """Options of every run."""
        self.stop: StopRule = Stop(config.target) if config.stop else None
        """When runs end early."""
        self._kept: dict[RunKey, History] = {}
        self.new_runs = 0
        """How many runs the last call of `run` made."""
        self._where = where
        self.problems: dict[str, StudyProblem] = list_problems(config, where)
        self.curves: list[Curve] = list_curves(config, self.problems, where)
        """All problems x methods x settings."""
        self._check_names()

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        changes: Sequence[str] = (),
        store: str | os.PathLike[str] = DEFAULT_STORE,
    ) -> Study:
        """Read a study file.

        Args:
            path: The TOML file.
            changes: Values to change, such as "methods.fedpage.eta_g=[0.1, 0.3]".
            store: The directory of the runs.

        Raises:
            InputError: The file cannot be read, or a key or value is not one of a study.
        """
        config = parse_study(Path(path), toml.read(path), changes)
        return cls.of(config, store=store, where=str(path))

    @classmethod
    def of(
        cls, config: StudyConfig, *, store: str | os.PathLike[str] | None, where: str = "study"
    ) -> Study:
        """Make a study of its configuration; `where` is the place that errors name."""
        study = cls.__new__(cls)
        study._set(config, None if store is None else Path(store), where)
        return study

    def __repr__(self) -> str:
        return (
            f"Study({self.config.name!r}, {len(self.problems)} problems x "
            f"{len(self.config.methods)} methods: {len(self.curves)} curves x "
            f"{len(self.config.seed_list)} seeds)"
        )

    def _check_names(self) -> None:
        """Refuse figures and tables about what the study does not have."""
        config = self.config
        grids = dict.fromkeys(name for curve in self.curves for name in curve.given)
        for kind, parts in (("figures", config.figures), ("tables", config.tables)):
            for number, part in enumerate(parts, start=1):
                place = f"{self._where}, [{kind}] {number}"
                _check_known(part.problems, config.problems, f"{place}: problems")
                _check_known(part.methods, config.methods, f"{place}: methods")
                _check_known(part.where, grids, f"{place}: where")
                if isinstance(part, FigureConfig):
                    axes = {"problem", "method", *grids, *_PROBLEM_AXES}
                    _check_known(part.axes, axes, f"{place}: panels")

    def restrict(self, figures: Sequence[str]) -> Study:
        """Return the study with some of its figures, and with the runs that these need."""
        known = self.config.named_figures()
        _check_known(figures, known, f"{self._where}: figures")
        kept = [known[name] for name in figures]
        study = Study.of(replace(self.config, figures=kept), store=self.store, where=self._where)
        study.curves = [curve for curve in study.curves if any(f.is_about(curve) for f in kept)]
        return study

    # --- runs ---

    @cached_property
    def plans(self) -> dict[RunKey, PlannedRun]:
        """The runs that the study needs, with their directories."""
        config, found = self.config, dict[RunKey, PlannedRun]()
        options = self.options if self.store is None else replace(self.options, resume=True)
        sources = self.sources()
        for curve in self.curves:
            try:
                plans = plan_runs(
                    self.store, sources[curve.problem], curve.value, config.seed_list,
                    rounds=config.rounds, record_every=config.record_every, stop=self.stop,
                    options=options,
                )  # fmt: skip
            except InputError as error:
                if self.store is None and len(self.problems) == 1:
                    raise
                place = f"{self._where}: {curve.label} on {curve.problem}"
                raise InputError(f"{place}: {error}") from None
            found |= {curve.key(plan.spec.seed): plan for plan in plans}
        return found

    def sources(self) -> dict[str, ProblemConfig | Problem]:
        """Return the problems that are run, or their configurations, by name."""
        targets = [self.config.target, *filter(None, (part.target for part in self.config.tables))]
        found = {}
        for name in dict.fromkeys(curve.problem for curve in self.curves):
            source = self.problems[name].source
            if isinstance(source, ProblemConfig):
                source = reduce(record_target, targets, source)
            found[name] = source
        return found

    def run(
        self,
        *,
        jobs: int | None = 1,
        progress: Callable[[int, int], None] | None = None,
        callbacks: CallbackFactory | None = None,
    ) -> Study:
        """Make all runs that are not in the store, or in memory, yet.

        A run that was killed continues from its last checkpoint. A run that another process is
        writing is awaited.

        Args:
            jobs: Processes; None leaves the choice to `joblib.parallel_config`, for Dask or Ray.
            progress: Called with the number of finished runs and of all runs.
            callbacks: Makes the callbacks of each run, in the process of that run.

        Returns:
            The study.

        Raises:
            InputError: The data cannot be read, or a method does not fit its problem.
        """
        if jobs is not None:
            check_whole("jobs", jobs, 1)
        report, plans = progress or (lambda finished, total: None), self.plans
        every = {plan.key or key: key for key, plan in plans.items()}.values()  # a run has one key
        left = [
            key
            for key in every
            if key not in self._kept and plans[key].load(warn=False) is None  # the store will warn
        ]
        done, self.new_runs, elsewhere = len(every) - len(left), 0, []
        report(done, len(every))
        tasks = [(key, plans[key], callbacks) for key in left]
        for key, found in run_tasks(_execute, tasks, jobs, in_order=self.store is None):
            if found is None:
                elsewhere.append(key)
                continue
            self.new_runs += 1
            if isinstance(found, History):
                self._kept[key] = found
            report(done := done + 1, len(every))
        for key in elsewhere:
            plans[key].wait()
            report(done := done + 1, len(every))
        return self

    def runs(self) -> dict[RunKey, History]:
        """Load the finished runs by (problem, method, setting, seed), in the study's order."""
        if self.store is None:
            return dict(self._kept)
        places = {plan.place: plan for plan in self.plans.values()}
        loaded = {place: plan.load() for place, plan in places.items()}
        found = {key: loaded[plan.place] for key, plan in self.plans.items()}
        return {key: history for key, history in found.items() if history is not None}

    def status(self) -> RunFollower:
        """Return the states of the study's runs, by problem, method, setting and seed."""
        if self.store is None:
            raise InputError("a study in memory has no directory to look at")
        places = {}
        for key, plan in self.plans.items():
            assert plan.place is not None
            words = (key.problem, key.method, key.setting, f"seed {key.seed}")
            places[", ".join(filter(None, words))] = plan.place
        follower = RunFollower(self.store, places)
        follower.poll()
        return follower

    # --- figures, tables, claims ---

    def figures(self) -> dict[str, FigureRuns]:
        """Return the figures with their finished runs, by name."""
        return StudyResults(self).figures

    def comparisons(self) -> dict[str, Comparison]:
        """Compare the costs to the target, by table and problem."""
        return StudyResults(self).comparisons

    def claims(self) -> list[CheckedClaim]:
        """Check the study's claims on the finished runs."""
        return StudyResults(self).claims


def _execute(
    key: RunKey, plan: PlannedRun, callbacks: CallbackFactory | None
) -> tuple[RunKey, History | bool | None]:
    """Make a run; a worker does not send back a history that is in the store."""
    history = plan.execute(callbacks)
    return key, history if history is None or not plan.key else True


_PROBLEM_AXES = ("data", "clients", "objective", "partition", "alpha", "weights")


def _plain_seeds(seeds: object) -> object:
    """Make Python's integers of numpy's; `StudyConfig` refuses other things."""
    if isinstance(seeds, Iterable) and not isinstance(seeds, (str, bytes)):
        return [_plain_seeds(seed) for seed in seeds]
    return int(seeds) if isinstance(seeds, np.integer) else seeds


def _check_known(names: Iterable[str], known: Iterable[str], place: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f" there are {', '.join(known) or 'none'}"
            raise InputError(f"{place}: unknown {name!r};{hint}")


# --- a study of one problem, without grids -------------------------------------------------------


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
    return list(study.run(jobs=jobs, callbacks=callbacks).runs().values())


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
