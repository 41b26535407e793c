"""Tune the hyper-parameters of a method: `fedpage tune` and `fp.tune`.

`fedpage.studies.space` says what is searched, `fedpage.studies.search` how. The winner runs on
fresh seeds, which had no part in the choice, and its cost there is the number to report. A winner
that could not be enclosed is not judged.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Collection, Mapping

from fedpage.core.columns import Cost
from fedpage.core.display import format_number, html_table
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.target import Target, TargetLike
from fedpage.core.types import HyperParameter, Problem
from fedpage.core.validate import check_whole
from fedpage.engine.devices import Devices
from fedpage.engine.simulate import execute
from fedpage.methods.schedules import effective_step, with_step
from fedpage.studies.question import (
    FRESH_SEED,
    Progress,
    Question,
    SearchEnded,
    Trials,
    check_link,
    resolve_target,
)
from fedpage.studies.search import Score, Search
from fedpage.studies.space import (
    Axis,
    Candidate,
    Point,
    Values,
    all_points,
    given_axes,
    search_space,
    unit_step,
)
from fedpage.studies.statistics import CostSample
from fedpage.studies.trials import Trial, TrialStore
from fedpage.theory.planner import TimeModel

_PILOT = 200
"""The most rounds of the run that measures what a round costs."""
_MORE = 10
"""How many times more rounds, or gradients, a run may take than `rounds` rounds of the method."""
_RECORDS = 5
"""The least number of records until the target, for a cost between records to be reported."""


@dataclasses.dataclass(frozen=True)
class ChangedSetting:
    """A hyper-parameter of the winner that differs from the class's default.

    Attributes:
        name: The hyper-parameter.
        default: The default of the method's class.
        value: The winner's value.
        is_given: Whether the value was given, and therefore not searched.
    """

    name: str
    default: HyperParameter
    value: HyperParameter
    is_given: bool


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The result of a search.

    Attributes:
        method: The winner.
        question: What was asked of every run.
        axes: The searched hyper-parameters with their values.
        given: Hyper-parameters that the search was told to leave as they were.
        judged: The winner's costs on fresh seeds; None: it was not enclosed, or no run reached the
            target, and nothing was judged.
        fresh: The fresh seeds.
        rounds: Rounds that suffice to repeat each of the judged runs.
        scores: Every candidate with its costs on the seeds it had, the winner first.
        runs: Runs made by this search.
        reused: Runs taken from an earlier search.
        is_enclosed: Whether on every axis the winner's neighbours were run and are not better.
        edges: Axes whose values were fixed, and on which the winner is at an end.
    """

    method: Candidate
    question: Question
    axes: Mapping[str, Axis]
    given: tuple[str, ...]
    judged: CostSample | None
    fresh: tuple[int, ...]
    rounds: int
    scores: list[tuple[Candidate, Score]]
    runs: int
    reused: int
    is_enclosed: bool
    edges: tuple[str, ...]

    @property
    def is_reached(self) -> bool:
        """Whether the winner reached the target on at least half of the fresh seeds."""
        return self.judged is not None and math.isfinite(self.judged.median)

    @property
    def name(self) -> str:
        """The tuned method's name."""
        return str(self.method.name)

    @property
    def goal(self) -> str:
        """What was minimised, such as "rounds to gradient norm 0.01"."""
        cost, question = self.question.cost, self.question
        short = "rounds" if cost.name == "round" else cost.name
        return f"{short} to {question.target.title}"

    @property
    def points(self) -> list[tuple[dict[str, float | str], float]]:
        """Each candidate's searched values and its cost in units of the winner's, winner first."""
        return [
            ({name: coordinate(candidate, name) for name in self.axes}, score.ratio)
            for candidate, score in self.scores
        ]

    def __repr__(self) -> str:
        settings = ", ".join(f"{change.name}={change.value}" for change in self.changes)
        method = f"{self.name} ({settings or 'defaults'})"
        return f"Tuning({method} for {self.goal}: {self._found()}; {self.runs} runs)"

    def _repr_html_(self) -> str:
        head = (*self.axes, "cost over the winner's", "seeds")
        rows = [
            (*map(_show, point.values()), format_number(ratio), score.seeds)
            for (point, ratio), (_, score) in zip(self.points, self.scores, strict=True)
        ]
        changes = ", ".join(f"{c.name}={c.value} (default {c.default})" for c in self.changes)
        return html_table(
            f"{self.name}: {self.goal}: {self._found()}", head, rows[:10],
            f"Winner: {changes}" if changes else "",
            f"Searched: {', '.join(self.axes)}; {self.enclosure} {self.advice}",
        )  # fmt: skip

    def _found(self) -> str:
        """Return the cost on fresh seeds, or that nothing was judged."""
        unit = self.question.cost.column.unit
        return "not judged" if self.judged is None else self.judged.text(unit)

    @property
    def changes(self) -> list[ChangedSetting]:
        """The winner's hyper-parameters that differ from the defaults of its class."""
        found = []
        for field in dataclasses.fields(self.method):
            value = getattr(self.method, field.name)
            if value != field.default:
                found.append(
                    ChangedSetting(field.name, field.default, value, field.name in self.given)
                )
        return found

    @property
    def enclosure(self) -> str:
        """Whether the winner is enclosed, in a few words."""
        if self.is_enclosed:
            return "the winner is enclosed: no neighbour on any axis is better."
        return "the winner is not enclosed."

    @property
    def advice(self) -> str:
        """Whether the judged cost can be reported, and what to do if not."""
        if not math.isfinite(self.scores[0][1].cost) and self.judged is None:
            return (
                "No candidate reached the target within the limit, and nothing was judged: raise "
                "the limit (more rounds), or choose an easier target."
            )
        if self.edges:
            ends = ", ".join(f"{name} = {coordinate(self.method, name):g}" for name in self.edges)
            return (
                f"The winner is at an end of the fixed grid ({ends}): a better value may be "
                "outside, and nothing was judged. Let the grid grow, or give more values."
            )
        if not self.is_enclosed:
            return (
                "The search ended before the winner was enclosed: better values may be next to "
                "it, and nothing was judged. Give it more time or more runs."
            )
        if not self.is_reached:
            return (
                "The winner does not reach the target reliably: raise the limit (more rounds), or "
                "choose an easier target."
            )
        if self.question.record_every > 1 and self.rounds < _RECORDS * self.question.record_every:
            every = max(1, self.rounds // 10)
            return (
                f"The winner needs at most {self.rounds} rounds, and one in "
                f"{self.question.record_every} was recorded, so its cost is a guess between "
                f"records: search again with --record-every {every} (record_every={every})."
            )
        return "Report this number."


def _show(value: float | str) -> str:
    return value if isinstance(value, str) else format_number(value)


def coordinate(method: Candidate, name: str) -> float | str:
    """Return a candidate's value of a searched hyper-parameter.

    Args:
        method: The candidate.
        name: A field of the method, "step" or "rho".

    Returns:
        The value to four digits; inf for None; text for what is no number, such as a codec.
    """
    if name == "step":
        value: HyperParameter = effective_step(method)
    elif name == "rho":
        value = method.K * method.local_step / method.eta_g
    else:
        value = getattr(method, name)
    if value is None:
        return math.inf
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(f"{value:.4g}") if is_number else str(value)


def tune(
    problem: Problem,
    method: Candidate,
    *,
    target: TargetLike,
    cost: str | Cost = "rounds",
    search: Values | None = None,
    fixed: Collection[str] | None = None,
    fixed_grid: bool = False,
    rounds: int = 2000,
    limit: float | None = None,
    record_every: int = 10,
    seeds: int = 10,
    fresh: int = 10,
    jobs: int | None = 1,
    costs: TimeModel | None = None,
    devices: Devices | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    max_runs: int | None = None,
    budget: float | None = None,
) -> Tuning:
    """Search the hyper-parameters that reach a target at the least cost.

    All of the method's own hyper-parameters are searched (`search_space`), except those that are
    given. The search ends when no neighbour of the winner is better on any axis. Only then the
    winner runs on fresh seeds. Records with f(x) > f(x0) do not reach the target.

    Args:
        problem: The problem: a linear model, a quadratic, a network.
        method: The method. Hyper-parameters that differ from its class's defaults are taken as
            given and keep their values.
        target: What is to be reached and held, such as "accuracy:0.9", "gap:0.01", which is the
            loss above its minimum, or a number, which is a gradient norm.
        cost: What to minimise: a cost that is recorded, such as "bytes", "bits_up" or "clients",
            a sum such as "up+0.1*down", "seconds", which are estimated from `costs`, or
            "seconds_simulated" with `devices`.
        search: Values by hyper-parameter, "step" or "rho". Only these are searched, and all their
            combinations are tried first. Numbers continue beyond the list if the best is at its
            end. An empty list stands for the usual values.
        fixed: Hyper-parameters that keep their values; None: those that differ from the defaults.
        fixed_grid: Whether the lists of `search` end where they end.
        rounds: The length of a run: the limit is what the method costs in so many rounds. A run
            with cheaper rounds may take more of them, up to ten times as many, and may compute up
            to ten times as many gradients.
        limit: The most that a run may cost, in units of the cost; None: by `rounds`.
        record_every: Rounds between records; the cost is interpolated between them.
        seeds: The most seeds of a comparison.
        fresh: Seeds on which the winner is judged.
        jobs: Processes; None uses joblib's current backend.
        costs: Latency, bandwidth and speed, for estimated seconds.
        devices: The clients' devices of every run, for simulated seconds and deadlines.
        store: A file of finished runs, from which a search continues.
        progress: Called with runs done, runs at most, and a note.
        max_runs: The most new runs of the search; None: any number.
        budget: The most seconds of the search; None: any time.

    Returns:
        The winner with its cost on fresh seeds.

    Raises:
        InputError: The question cannot be asked.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=300), clients=30)
    >>> found = fp.tune(problem, fp.PAGE(S=3), target=0.05, search={"step": []}, seeds=2, fresh=2)
    >>> found.is_enclosed, found.judged.reached
    (True, 2)
    """
    began = time.monotonic()
    counts = {"rounds": rounds, "record_every": record_every, "seeds": seeds, "fresh": fresh}
    goal = check_question(problem, target, cost, costs or TimeModel(), counts, devices)
    given = _given(method, search, fixed)
    if search is None:
        axes, design = search_space(method, problem, fixed=given), None
    else:
        axes = given_axes(method, problem, search, fixed=fixed_grid)
        design = _design(axes, search)
    question = make_question(
        problem, method, target=goal, cost=cost, rounds=rounds, limit=limit,
        record_every=record_every, costs=costs, devices=devices,
    )  # fmt: skip
    trials = Trials(
        problem,
        question,
        store=TrialStore(store, question.describe(problem)),
        jobs=jobs,
        progress=progress,
        max_runs=max_runs,
        deadline=None if budget is None else began + budget,
    )
    searched = Search(trials, method, axes, seeds=seeds, design=design)
    try:
        searched.run()
    except SearchEnded:
        if not searched.has_run:
            raise InputError(
                "the search ended before its first runs; give it more time or more runs"
            ) from None
    winner, edges = searched.best, searched.edges()
    scores = searched.scores()
    judged, finals = None, list[Trial]()
    seeds_of_judge = tuple(range(FRESH_SEED, FRESH_SEED + fresh))
    is_enclosed = searched.is_enclosed and not edges
    if is_enclosed and math.isfinite(min(trials.stored(winner, s).cost for s in range(seeds))):
        trials.max_runs = trials.deadline = None
        finals = trials.run([(winner, seed, math.inf) for seed in seeds_of_judge])
        judged = CostSample(tuple(trial.cost for trial in finals))
    return Tuning(
        method=winner,
        question=question,
        axes=axes,
        given=tuple(given),
        judged=judged,
        fresh=seeds_of_judge,
        rounds=max((trial.rounds for trial in finals), default=rounds),
        scores=scores,
        runs=trials.done,
        reused=trials.reused,
        is_enclosed=is_enclosed,
        edges=edges,
    )


def check_space(
    problem: Problem, method: Candidate, search: Values | None, fixed_grid: bool = False
) -> None:
    """Check the values of a search without running anything.

    Raises:
        InputError: A hyper-parameter is unknown, or the method refuses all combinations.
    """
    if search is None:
        return
    axes = given_axes(method, problem, search, fixed=fixed_grid)
    design = _design(axes, search)
    Search(
        Trials(problem, Question(Target("loss"), Cost.parse("rounds"))), method, axes, design=design
    )


def _design(axes: Mapping[str, Axis], search: Values) -> list[Point] | None:
    """Return every combination of the listed values; without any, the usual first design."""
    listed = [name for name, values in search.items() if values]
    return all_points(axes, listed) if listed else None


def _given(method: Candidate, search: Values | None, fixed: Collection[str] | None) -> list[str]:
    """Return the hyper-parameters that keep their values."""
    names = [field.name for field in dataclasses.fields(method)]
    unknown = [name for name in fixed or () if name not in (*names, "step", "rho")]
    if unknown:
        raise InputError(
            f"fixed: {method.name} has no hyper-parameter {unknown[0]!r};"
            f"{did_you_mean(unknown[0], names)} it has {', '.join(names)}"
        )
    if fixed is None:
        defaults = {field.name: field.default for field in dataclasses.fields(method)}
        fixed = [name for name in names if getattr(method, name) != defaults[name]]
    return [name for name in fixed if name not in (search or ())]


def make_question(
    problem: Problem,
    method: Candidate,
    *,
    target: TargetLike,
    cost: str | Cost = "rounds",
    rounds: int = 2000,
    limit: float | None = None,
    record_every: int = 10,
    costs: TimeModel | None = None,
    devices: Devices | None = None,
) -> Question:
    """Return the question of a search, with a limit that is what `rounds` rounds cost.

    A run may take ten times as many rounds, and compute ten times as many gradients.

    Args:
        problem: The problem.
        method: The method whose rounds the limit is measured by, in a short run with a tiny step.
        target: As in `tune`, and so on.
        cost: What to minimise.
        rounds: The length of a run of this method.
        limit: The limit, if it is known.
        record_every: Rounds between records.
        costs: Latency, bandwidth and speed.
        devices: The clients' devices.
    """
    question = Question(
        Target.parse(target), Cost.parse(cost), record_every=record_every,
        rounds=_MORE * rounds, link=costs or TimeModel(), devices=devices,
    )  # fmt: skip
    length = min(rounds, _PILOT)
    pilot = with_step(method, 1e-3 * unit_step(method, problem))
    spec = question.make_spec(problem, pilot, seed=0)
    history = execute(dataclasses.replace(spec, rounds=length, record_every=length))
    times = rounds / max(1.0, history.last("round"))
    limit = times * float(question.costs(history)[-1]) if limit is None else limit
    gradients = _MORE * times * history.last("gradients")
    return dataclasses.replace(question, limit=limit, gradients=gradients)


def check_question(
    problem: Problem,
    target: TargetLike,
    cost: str | Cost,
    costs: TimeModel,
    counts: Mapping[str, int],
    devices: Devices | None = None,
) -> Target:
    """Check the arguments of `tune` without running anything.

    Args:
        problem: As in `tune`, and so on.
        target: The target.
        cost: What to minimise.
        costs: Latency, bandwidth and speed.
        counts: Whole numbers of at least 1, by the names that error messages use.
        devices: The clients' devices.

    Returns:
        The target, as `resolve_target` returns it.

    Raises:
        InputError: The question cannot be asked.
    """
    check_link(Cost.parse(cost), costs, devices)
    for name, value in counts.items():
        check_whole(name, value, 1)
    return resolve_target(problem, target)
