"""Search hyper-parameters that reach a target at the least cost: `fedpage tune`.

The search is successive halving over seeds: every candidate runs on a few seeds, and the better
third continues with more. The winner then runs on fresh seeds, which had no part in the choice.
Its cost there is the number to report, unless the winner is at the edge of the grid.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedpage._version import __version__
from fedpage.core.columns import Cost, describe_column
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.types import HyperParameter, Problem, dtype_of
from fedpage.core.validate import check_whole
from fedpage.engine.simulate import simulate
from fedpage.engine.stopping import Stop
from fedpage.methods import FedPAGE
from fedpage.runs.history import History
from fedpage.studies.parallel import run_tasks
from fedpage.studies.trials import Candidate, Trial, TrialStore
from fedpage.theory.planner import Costs

FRESH_SEED = 10_000
"""The first seed on which the winner is judged."""

_STEPS = {"step": (True, True), "eta_g": (True, True), "eta_l": (True, True), "rho": (False, True)}
"""Step sizes, and whether their lower and their upper edge count. FedPAGE with a small rho is
close to its limit rho -> 0, so that smaller values change nothing."""

Grid: TypeAlias = Mapping[str, Sequence[HyperParameter]]
"""Values to search by hyper-parameter; also "step" (effective) and "rho" = K eta_l/eta_g."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A candidate's medians over its seeds: the cost, and the best value of the column."""

    cost: float
    best: float
    seeds: int

    def rank(self, higher_is_better: bool) -> tuple[float, float]:
        """Return the key that candidates are sorted by: the cost, then the best value."""
        return self.cost, -self.best if higher_is_better else self.best


@dataclasses.dataclass(frozen=True)
class Edge:
    """A step size whose best value is the smallest or the largest of those searched.

    Attributes:
        name: The hyper-parameter.
        value: The winner's value.
        is_upper: Whether it is the largest value; otherwise it is the smallest.
        wider: The searched values with two more beyond the edge.
    """

    name: str
    value: float
    is_upper: bool
    wider: tuple[float, ...]

    def __str__(self) -> str:
        side, way = ("largest", "larger") if self.is_upper else ("smallest", "smaller")
        return f"{self.name} = {self.value:g} is the {side} value searched; search {way} values too"


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The result of a search.

    Attributes:
        method: The winner.
        cost: What was minimised, as it was given.
        target: The value that counts as reached.
        column: The recorded column that the target is about.
        grid: The searched values.
        judged: Lower quartile, median and upper quartile of the winner's cost on fresh seeds.
        fresh: How many fresh seeds.
        scores: Every candidate with its score at the level where it left the search, best first.
        runs: Runs made by this search.
        reused: Runs taken from an earlier search.
        edges: Step sizes at the edge of the grid.
    """

    method: Candidate
    cost: str
    target: float
    column: str
    grid: Grid
    judged: tuple[float, float, float]
    fresh: int
    scores: list[tuple[Candidate, Score]]
    runs: int
    reused: int
    edges: tuple[Edge, ...]

    @property
    def at_edge(self) -> bool:
        """Whether a better step size may be outside of the grid."""
        return bool(self.edges)

    @property
    def is_reached(self) -> bool:
        """Whether the winner reached the target on at least half of the fresh seeds."""
        return math.isfinite(self.judged[1])

    @property
    def wider_grid(self) -> dict[str, list[HyperParameter]]:
        """The grid with two more values beyond each edge at which the winner is."""
        grid = {name: list(values) for name, values in self.grid.items()}
        return grid | {edge.name: list(edge.wider) for edge in self.edges}

    @property
    def name(self) -> str:
        """The tuned method's name."""
        return str(self.method.name)

    @property
    def goal(self) -> str:
        """What was minimised, such as "rounds to gradient norm 0.01"."""
        return f"{self.cost} to {describe_column(self.column).label} {self.target:g}"

    @property
    def points(self) -> list[tuple[dict[str, float | str], float]]:
        """Each candidate's searched values and its cost, best first."""
        return [
            ({name: coordinate(candidate, name) for name in self.grid}, score.cost)
            for candidate, score in self.scores
        ]

    @property
    def advice(self) -> str:
        """Whether the judged cost can be reported, and what to do if not."""
        if self.edges:
            edges = "; ".join(str(edge) for edge in self.edges)
            return f"The winner is at the edge of the grid; a better value may be outside: {edges}."
        if not self.is_reached:
            return "The target was not reached: run more rounds, or choose an easier target."
        return "Report this number."


def coordinate(method: Candidate, name: str) -> float | str:
    """Return a candidate's value of a searched hyper-parameter.

    Args:
        method: The candidate.
        name: A field of the method, "step" or "rho".

    Returns:
        The value to six digits; inf for None; text for what is no number, such as a codec.
    """
    if name == "step":
        value: Any = method.effective_step
    elif name == "rho":
        value = method.K * method.local_step / method.eta_g
    else:
        value = getattr(method, name)
    if value is None:
        return math.inf
    return float(f"{value:.6g}") if isinstance(value, (int, float)) else str(value)


def find_edges(method: Candidate, candidates: Sequence[Candidate], grid: Grid) -> tuple[Edge, ...]:
    """Find the step sizes at which a winner is at the edge of its grid.

    Args:
        method: The winner.
        candidates: All candidates of the search.
        grid: The searched values.

    Returns:
        An edge for each such step size; none for a step size of which one value was searched.
    """
    edges = []
    for name in grid:
        if name not in _STEPS:
            continue
        reached = {float(coordinate(candidate, name)) for candidate in candidates}
        values = sorted(value for value in reached if 0 < value < math.inf)
        value = float(coordinate(method, name))
        if len(values) < 2 or value not in (values[0], values[-1]):
            continue
        is_upper = value == values[-1]
        if not _STEPS[name][is_upper]:
            continue
        ratio = values[-1] / values[-2] if is_upper else values[0] / values[1]
        beyond = [_round_off(value * ratio), _round_off(value * ratio**2)]
        kept = [float(v) for v in grid[name] if v is not None]
        edges.append(Edge(name, value, is_upper, tuple(sorted({*kept, *beyond}))))
    return tuple(edges)


def list_candidates(method: Candidate, grid: Grid) -> list[Candidate]:
    """Put every combination of the grid's values into a method.

    Args:
        method: The method whose other hyper-parameters stay.
        grid: The values to combine.

    Returns:
        The methods, without duplicates and without combinations that the method refuses.

    Raises:
        InputError: A hyper-parameter is unknown or has no value, or all combinations are refused.
    """
    names = {field.name for field in dataclasses.fields(method)}
    unknown = [name for name in grid if name not in names | {"rho", "step"}]
    if unknown:
        raise InputError(
            f"{method.name} has no hyper-parameter {unknown[0]!r} to search; "
            f"it has {', '.join(sorted(names))}"
        )
    if any(len(values) == 0 for values in grid.values()):
        raise InputError("every searched hyper-parameter needs at least one value")
    candidates: list[Candidate] = []
    refusal: InputError | None = None
    for combination in itertools.product(*grid.values()):
        values = dict(zip(grid, combination, strict=True))
        rho, step = values.pop("rho", None), values.pop("step", None)
        try:
            candidate = dataclasses.replace(method, **values)
            if step is not None:
                candidate = candidate.with_step(step)
            if rho is not None:
                eta_l = rho * candidate.eta_g / candidate.K
                candidate = dataclasses.replace(candidate, eta_l=eta_l)
        except InputError as error:
            refusal = error
            continue
        if candidate not in candidates:
            candidates.append(candidate)
    if not candidates and refusal is not None:
        raise refusal
    return candidates


def default_grid(method: Candidate, problem: Problem) -> dict[str, list[float]]:
    """Choose a grid from the smoothness L of f.

    Args:
        method: The method to tune.
        problem: The problem.

    Returns:
        Effective steps from 1/(16 L) to 4/L, half an octave apart; for FedPAGE with K > 1 also
        rho = 0.01, 0.1, 1; for other methods with eta_g and eta_l also eta_g = 0.5, 1, 2.

    Raises:
        InputError: L is not a finite number above 0.
    """
    L = problem.smoothness().whole
    if not (math.isfinite(L) and L > 0):
        raise InputError(
            "the problem's smoothness is not a finite number above 0; give the steps to search"
        )
    grid = {"step": [_round_off(2.0 ** (k / 2) / L) for k in range(-8, 5)]}
    if isinstance(method, FedPAGE):
        return grid | ({"rho": [0.01, 0.1, 1.0]} if method.K > 1 else {})
    if {"eta_g", "eta_l"} <= {field.name for field in dataclasses.fields(method)}:
        grid["eta_g"] = [0.5, 1.0, 2.0]
    return grid


def _round_off(value: float) -> float:
    """Round to two significant digits: a step that a person can type."""
    return float(f"{value:.2g}")


def cost_of(
    history: History, target: float, cost: str | Cost, costs: Costs, column: str = "grad_norm"
) -> float:
    """Compute what a run paid until a recorded column reached its target.

    Args:
        history: The run.
        target: The value that counts as reached, at a record with f(x) <= f(x0).
        cost: A column or a sum of columns; "seconds" are estimated.
        costs: What estimated seconds depend on.
        column: The recorded column.

    Returns:
        The cost; inf if the target was not reached.
    """
    rounds = history.cost_to(column, target, "round")
    if not math.isfinite(rounds):
        return math.inf
    at = int(np.flatnonzero(history["round"] == rounds)[0])

    def read(name: str) -> float:
        return _seconds(history, at, costs) if name == "seconds" else float(history[name][at])

    return Cost.parse(cost).evaluate(read)


def _seconds(history: History, at: int, costs: Costs) -> float:
    """Estimate the seconds that a run has taken at a record."""
    rounds = float(history["round"][at])
    called = max(float(history["clients"][at]), 1.0)
    down, up = history["bytes_down"][at] / called, history["bytes_up"][at] / called
    work = history["gradients_per_client"][at] / max(rounds, 1.0)
    return costs.seconds(rounds, float(down), float(up), float(work))


@dataclasses.dataclass(frozen=True)
class _Question:
    """What every run of a search has in common."""

    target: float
    column: str
    rounds: int
    record_every: int
    cost: Cost
    costs: Costs

    def describe(self, problem: Problem) -> dict[str, object]:
        """Return plain values that tell this search from others."""
        about = {"problem": problem.describe(), "version": __version__}
        return about | dataclasses.asdict(self) | {"cost": self.cost.name}


def _run_trial(problem: Problem, method: Candidate, seed: int, question: _Question) -> Trial:
    column, target = question.column, question.target
    stop = Stop(grad_norm=target) if column == "grad_norm" else Stop(targets={column: target})
    history = simulate(
        problem,
        method,
        rounds=question.rounds,
        seed=seed,
        record_every=question.record_every,
        stop=stop,
    )
    cost = cost_of(history, target, question.cost, question.costs, column)
    return Trial(cost, history.best(column), history.diverged)


def tune(
    problem: Problem,
    method: Candidate,
    *,
    target: float,
    column: str = "grad_norm",
    cost: str | Cost = "rounds",
    grid: Grid | None = None,
    rounds: int = 2000,
    record_every: int = 10,
    seeds: int = 8,
    fresh: int = 5,
    jobs: int | None = 1,
    costs: Costs | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Tuning:
    """Search hyper-parameters for the least cost to reach a target.

    At each level the better third of the candidates continues with three times as many seeds, up
    to `seeds`. The winner is judged on `fresh` seeds that had no part in the choice. Records with
    f(x) > f(x0) do not reach the target.

    Args:
        problem: The problem.
        method: The method whose other hyper-parameters stay.
        target: The value of the column to reach.
        column: Any recorded column; its direction decides what reaching means.
        cost: What to minimise: a cost that is recorded, such as "bytes", "bits_up" or "clients",
            a sum such as "up+0.1*down", or "seconds", which are estimated from `costs`.
        grid: Values by hyper-parameter, "step" or "rho"; None: `default_grid`.
        rounds: The most rounds of a run.
        record_every: Rounds between records.
        seeds: Seeds of the last level.
        fresh: Seeds on which the winner is judged.
        jobs: Processes; None uses joblib's current backend.
        costs: Latency, bandwidth and speed, for estimated seconds.
        store: A file of finished runs, from which a search continues.
        progress: Called with runs done, runs in all, and a note.

    Returns:
        The winner with its cost on fresh seeds. `Tuning.at_edge` tells whether the grid is too
        narrow for that cost to be reported.

    Raises:
        InputError: The question cannot be asked.
    """
    costs = costs or Costs()
    grid = default_grid(method, problem) if grid is None else grid
    counts = {"rounds": rounds, "record_every": record_every, "seeds": seeds, "fresh": fresh}
    alive = candidates = check_search(problem, method, target, column, cost, costs, grid, counts)
    question = _Question(float(target), column, rounds, record_every, Cost.parse(cost), costs)
    trials = TrialStore(store, question.describe(problem))
    runner = _TrialRunner(problem, trials, question, jobs, progress)
    levels = _plan_levels(len(alive), seeds)
    runner.expected = sum(count * (upto - before) for count, before, upto in levels) + fresh
    higher = History({"problem": problem.describe()}).higher_is_better(column)
    scores: dict[Candidate, Score] = {}
    for count, before, upto in levels:
        alive = alive[:count]
        runner.run([(candidate, seed) for candidate in alive for seed in range(before, upto)])
        scores |= {candidate: runner.score(candidate, range(upto), higher) for candidate in alive}
        alive = sorted(alive, key=lambda candidate: scores[candidate].rank(higher))
    winner = alive[0]
    ranking = sorted(scores.items(), key=lambda pair: (-pair[1].seeds, pair[1].rank(higher)))
    new_seeds = [FRESH_SEED + i for i in range(fresh)]
    runner.run([(winner, seed) for seed in new_seeds])
    paid = [runner.trial(winner, seed).cost for seed in new_seeds]
    low, middle, high = np.quantile(paid, (0.25, 0.5, 0.75), method="nearest")
    return Tuning(
        method=winner,
        cost=str(cost),
        target=target,
        column=column,
        grid=grid,
        judged=(float(low), float(middle), float(high)),
        fresh=fresh,
        scores=ranking,
        runs=runner.done,
        reused=runner.reused,
        edges=find_edges(winner, candidates, grid),
    )


def check_search(
    problem: Problem,
    method: Candidate,
    target: float,
    column: str,
    cost: str | Cost,
    costs: Costs,
    grid: Grid,
    counts: Mapping[str, int],
) -> list[Candidate]:
    """Check the arguments of `tune` without running anything.

    Args:
        problem: As in `tune`, and so on.
        method: The method.
        target: The target.
        column: The target's column.
        cost: What to minimise.
        costs: Latency, bandwidth and speed.
        grid: The values to search.
        counts: Whole numbers of at least 1, by the names that error messages use.

    Returns:
        The candidates.

    Raises:
        InputError: The question cannot be asked.
    """
    parts = [name for name, _ in Cost.parse(cost).terms]
    if not math.isfinite(target) or (column == "grad_norm" and target <= 0):
        raise InputError(f"target must be a finite number above 0, not {target!r}")
    if "seconds" in parts and not costs.given:
        raise InputError(
            "cost 'seconds' needs at least one of latency, uplink, downlink or seconds per gradient"
        )
    for name, value in counts.items():
        check_whole(name, value, 1)
    candidates = list_candidates(method, grid)
    for candidate in candidates:
        candidate.init(np.zeros(problem.d, dtype_of(problem)), problem.N)
    if column not in ("grad_norm", "loss"):
        recorded = problem.evaluate(np.zeros(problem.d, dtype_of(problem)))
        if column not in recorded:
            raise InputError(
                f"column {column!r} is not recorded;{did_you_mean(column, recorded)} "
                f"the problem records {', '.join(recorded)}"
            )
        History({"problem": problem.describe()}).higher_is_better(column)  # it must be known
    return candidates


def _plan_levels(count: int, seeds: int) -> list[tuple[int, int, int]]:
    """List (candidates, seeds before, seeds after) of each level."""
    levels, have, upto = [], 0, 1 if count > 3 else seeds
    while True:
        levels.append((count, have, upto))
        if upto >= seeds:
            return levels
        count, have, upto = max(min(3, count), math.ceil(count / 3)), upto, min(seeds, 3 * upto)


class _TrialRunner:
    """Run the trials that are not in the store, and count them."""

    def __init__(
        self,
        problem: Problem,
        store: TrialStore,
        question: _Question,
        jobs: int | None,
        progress: Callable[[int, int, str], None] | None,
    ) -> None:
        self._problem, self._store, self._question = problem, store, question
        self._jobs, self._progress = jobs, progress
        self.done = self.reused = self.expected = 0

    def run(self, tasks: Sequence[tuple[Candidate, int]]) -> None:
        todo = [task for task in tasks if self._store.get(*task) is None]
        self.reused += len(tasks) - len(todo)
        self._report("")
        arguments = [(self._problem, *task, self._question) for task in todo]
        trials = run_tasks(_run_trial, arguments, self._jobs)
        for (candidate, seed), trial in zip(todo, trials, strict=True):
            self._store.put(candidate, seed, trial)
            self.done += 1
            self._report(f"{candidate.name} step {candidate.effective_step:.3g}: {trial.cost:.4g}")

    def _report(self, note: str) -> None:
        if self._progress:
            self._progress(self.done + self.reused, self.expected, note)

    def trial(self, candidate: Candidate, seed: int) -> Trial:
        trial = self._store.get(candidate, seed)
        assert trial is not None
        return trial

    def score(self, candidate: Candidate, seeds: Iterable[int], higher_is_better: bool) -> Score:
        trials = [self.trial(candidate, seed) for seed in seeds]
        cost = np.quantile([trial.cost for trial in trials], 0.5, method="higher")
        bests = [trial.best for trial in trials]
        best = (
            np.quantile(bests, 0.5, method="lower")
            if higher_is_better
            else np.quantile(bests, 0.5, method="higher")
        )
        return Score(float(cost), float(best), len(trials))
