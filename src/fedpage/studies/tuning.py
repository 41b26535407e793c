"""Find the settings, or the method, that reach a target at the least cost: `tune` and `choose`.

`fedpage.studies.space` lists what is searched, `fedpage.studies.search` searches one method, and
`fedpage.studies.halving` reduces many methods to a few. The winners run on held-out seeds, which
had no part in the search, and their costs there are the numbers to report.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from fedpage.core.columns import Cost, describe_column
from fedpage.core.display import html_table
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.target import Target, TargetLike
from fedpage.core.types import AnyMethod, HyperParameter, Problem
from fedpage.core.validate import check_whole
from fedpage.engine.devices import Devices
from fedpage.engine.simulate import execute
from fedpage.methods.schedules import effective_step, with_step
from fedpage.report.summary import format_duration
from fedpage.runs import build
from fedpage.runs.history import History
from fedpage.studies.halving import (
    FINAL,
    Candidate,
    Eliminated,
    Halving,
    find_entry,
    list_candidates,
)
from fedpage.studies.search import Score, Search
from fedpage.studies.space import (
    Axis,
    Point,
    Tunable,
    Values,
    all_points,
    counts_bytes,
    given_axes,
    search_space,
    unit_step,
    with_codecs,
)
from fedpage.studies.statistics import CostSample, needed_seeds, ranking
from fedpage.studies.trials import (
    HELD_OUT_SEED,
    Progress,
    Question,
    SearchEnded,
    Trial,
    Trials,
    check_link,
    parse_budget,
    resolve_target,
)
from fedpage.theory.planner import TimeModel

_PILOT = 200
"""The most rounds of the run that measures what a round costs."""
_MORE = 10
"""How many times more rounds, or gradients, a run may take than `rounds` rounds of the method."""
_RECORDS = 5
"""The least number of records until the target, for a cost between records to be reported."""
_LEAST_SEEDS = 6
"""Held-out seeds that run whatever time is left: with fewer, intervals have less than 95 %."""
_EVALUATION_LIMIT = 10.0
"""A run of the evaluation ends when it has cost this many times what the best method needs."""


@dataclass(frozen=True)
class Result:
    """A method with the settings that were found, and its evaluation on held-out seeds.

    Attributes:
        candidate: The method as it entered the search.
        method: The best settings.
        searched: The hyper-parameters that were searched, "step" and "rho" among them.
        scores: The settings that were tried with their scores, the best first.
        sample: The costs on the held-out seeds, or None if no run of the search reached the target.
        at_end: How many of the held-out runs end at the target.
        value: The median value of the target's column at the end of these runs.
        rounds: The most rounds of these runs.
        is_local_optimum: Whether no neighbour on any axis is better.
        edges: The axes on which the best is at an end of a grid that the user fixed.
        note: The reason why better settings may exist, or "".
        is_tied: Whether the held-out seeds do not tell it apart from the first.
        p_value: The adjusted p-value of that comparison.
    """

    candidate: Candidate
    method: Tunable
    searched: tuple[str, ...]
    scores: tuple[tuple[AnyMethod, Score], ...]
    sample: CostSample | None = None
    at_end: int = 0
    value: float = math.nan
    rounds: int = 0
    is_local_optimum: bool = False
    edges: tuple[str, ...] = ()
    note: str = ""
    is_tied: bool = True
    p_value: float = 1.0

    @property
    def name(self) -> str:
        """The method's name on the command line."""
        return self.candidate.name

    @property
    def label(self) -> str:
        """The method's name as papers print it."""
        return self.candidate.label

    @property
    def hyper(self) -> str:
        """Its hyper-parameters with all digits, as `hyper` of a Flower app takes them."""
        return " ".join(f"{name}={text}" for name, text in build.hyper_words(self.method).items())

    @property
    def settings(self) -> str:
        """Its hyper-parameters that are not defaults, in short."""
        words = build.hyper_words(self.method).items()
        return " ".join(f"{name}={_shorten(text)}" for name, text in words) or "defaults"

    @property
    def is_reached(self) -> bool:
        """Whether the target was reached on at least half of the held-out seeds."""
        return self.sample is not None and math.isfinite(self.sample.median)

    def describe(self, unit: str) -> str:
        """Return the cost on the held-out seeds in one line."""
        return "not evaluated" if self.sample is None else self.sample.text(unit)


@dataclass(frozen=True)
class Tuning:
    """The result of `tune` or `choose`.

    Attributes:
        question: The target, and the cost that was minimised.
        ranking: The methods by their median cost on the held-out seeds, the best first. `tune` has
            one.
        eliminated: The methods that were eliminated before, the best first.
        left_out: The methods that did not take part, with the reason, by name.
        seeds: The number of seeds of the search; each is paired over all candidates.
        held_out_seeds: The held-out seeds.
        codecs: Whether codecs were searched.
        runs: The number of new runs.
        reused: The number of runs that were taken from the store.
        seconds: The time taken.
        cut: A sentence about what the time budget cut, or "" if the search ended by itself. The
            result then depends on the arguments alone.
        trials: The trials; they hold the runs of the evaluation.
    """

    question: Question
    ranking: tuple[Result, ...]
    eliminated: tuple[Eliminated, ...]
    left_out: Mapping[str, str]
    seeds: int
    held_out_seeds: tuple[int, ...]
    codecs: bool
    runs: int
    reused: int
    seconds: float
    cut: str
    trials: Trials = field(compare=False, repr=False)

    @property
    def first(self) -> Result:
        """The method with the least median cost."""
        return self.ranking[0]

    @property
    def tied(self) -> tuple[Result, ...]:
        """The first, and the methods that the held-out seeds do not tell apart from it."""
        return tuple(each for each in self.ranking if each.is_tied)

    @property
    def recommended(self) -> Result:
        """The first of the tied methods that asks the least of the clients.

        A method without client states is preferred to one with them, and one that does not need
        all clients in every round to one that does. The median decides among equals. A method that
        does not reach the target in the median is recommended only if none does.
        """
        reaching = [each for each in self.tied if each.is_reached] or self.tied
        return min(reaching, key=lambda each: len(each.candidate.notes))

    @property
    def method(self) -> Tunable:
        """The recommended method with its settings."""
        return self.recommended.method

    @property
    def name(self) -> str:
        """The recommended method's name, as papers print it."""
        return self.recommended.label

    @property
    def goal(self) -> str:
        """The question, such as "rounds to gradient norm 0.01"."""
        cost = self.question.cost
        short = "rounds" if cost.name == "round" else cost.name
        return f"{short} to {self.question.target.title}"

    @property
    def title(self) -> str:
        """The question and the number of held-out seeds."""
        count = len(self.held_out_seeds)
        return f"{self.goal}: median and its interval over {count} held-out seeds"

    @property
    def points(self) -> list[tuple[dict[str, float | str], float]]:
        """The recommended method's tried values, and their cost over that of the best settings."""
        chosen = self.recommended
        return [
            ({name: coordinate(method, name) for name in chosen.searched}, score.ratio)
            for method, score in chosen.scores
        ]

    def histories(self) -> list[History]:
        """Return the runs of the evaluation, in the order methods x held-out seeds.

        If there was no evaluation, it is one run of each method on the first held-out seed.
        """
        return [
            self.trials.history(each.method, seed)
            for each in self.ranking
            for seed in self.held_out_seeds or (HELD_OUT_SEED,)
        ]

    # --- texts ------------------------------------------------------------------------------------

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Arrange the ranking as headings and cells."""
        cost, column = self.question.cost.column, self.question.target.column
        at_end = f"{describe_column(column).label} at the end"
        head = ["method", cost.label, "", "end at target", at_end, "settings", "remarks"]
        rows = [
            [
                each.label,
                each.describe(cost.unit),
                "tied" if each.is_tied and len(self.tied) > 1 else "",
                f"{each.at_end}/{0 if each.sample is None else each.sample.seeds}",
                f"{each.value:.3g}",
                each.settings,
                "; ".join([*each.candidate.notes, *([each.note] if each.note else [])]),
            ]
            for each in self.ranking
        ]
        return head, rows

    def eliminations(self) -> list[str]:
        """Return a line for each reason of elimination, with costs over the first's."""
        found: dict[str, list[str]] = defaultdict(list)
        for one in self.eliminated:
            times = f" ({one.times:.1f}x)" if math.isfinite(one.times) else ""
            found[one.reason].append(f"{one.candidate.label}{times}")
        return [
            f"{reason[0].upper()}{reason[1:]}: {', '.join(labels)}."
            for reason, labels in found.items()
        ]

    @property
    def effort(self) -> str:
        """The number of runs, the time, the codecs and what was cut, in sentences."""
        count = len(self.ranking) + len(self.eliminated)
        methods = f"{count} methods, " if count > 1 else ""
        reused = f" and {self.reused:,} from the store" if self.reused else ""
        parts = [f"{methods}{self.runs:,} runs{reused}, {format_duration(self.seconds)}."]
        if self.codecs:
            parts.append("Codecs were searched too, because they change this cost.")
            every = [each.candidate for each in self.ranking]
            every += [each.candidate for each in self.eliminated]
            without = [each.label for each in every if not each.has_codecs]
            if without and len(without) < count:
                verb = "has" if len(without) == 1 else "have"
                parts.append(f"{_join(without)} {verb} no codec in at least one direction.")
        return " ".join([*parts, *([self.cut] if self.cut else [])])

    @property
    def reason(self) -> str:
        """The recommendation with its reasons, in sentences."""
        chosen, unit = self.recommended, self.question.cost.column.unit
        parts = [f"{chosen.label} ({chosen.settings}), with {chosen.describe(unit)}."]
        if chosen.sample is not None:
            parts.append(f"{chosen.at_end} of {chosen.sample.seeds} runs end at the target.")
        others = [each for each in self.tied if each is not chosen]
        if others:
            names = _join([each.label for each in others])
            parts.append(
                f"{names} {'is' if len(others) == 1 else 'are'} tied with it: "
                f"{len(self.held_out_seeds)} held-out seeds do not tell them apart."
            )
        first = self.first
        if chosen is not first and first.sample is not None and chosen.sample is not None:
            is_lower = first.sample.median < chosen.sample.median
            parts.append(
                f"{first.label} has the {'lower' if is_lower else 'same'} median, but asks "
                f"more: {_join(first.candidate.notes)}."
            )
        parts += self._compare_next(chosen)
        parts.append(_describe_needs(chosen))
        stateless = [each for each in self.ranking if each.candidate.is_stateless]
        if stateless and not chosen.candidate.is_stateless:
            other = stateless[0]
            parts.append(f"Without client states: {other.label}, {other.describe(unit)}.")
        return " ".join(parts)

    def _compare_next(self, chosen: Result) -> list[str]:
        """Compare with the best method that is not tied."""
        behind = [each for each in self.ranking if not each.is_tied]
        if not behind or behind[0].sample is None or chosen.sample is None:
            return []
        other, mine = behind[0], chosen.sample.median
        if not other.is_reached:
            return [f"{other.label}, the next, does not reach the target in the median."]
        times = behind[0].sample.median / mine if mine > 0 else math.inf
        digits = f"{times:.2g}" if times >= 1.05 else f"{times:.3f}"
        return [f"{other.label}, the next, needs {digits} times as much."]

    @property
    def advice(self) -> str:
        """Whether the cost of the recommended method can be reported, and what to do if not."""
        chosen, every = self.recommended, self.question.record_every
        if chosen.edges:
            ends = ", ".join(f"{name} = {coordinate(chosen.method, name)}" for name in chosen.edges)
            return (
                f"The winner is at an end of the fixed grid ({ends}): a better value may be "
                "outside. Let the grid grow, or give more values."
            )
        if chosen.sample is None:
            return (
                "No candidate reached the target within the limit: raise the limit (more rounds), "
                "or choose an easier target."
            )
        if not chosen.is_local_optimum:
            return (
                "The search ended before a local optimum, so better values may be next to the "
                "winner. Give it more time or more runs."
            )
        if not chosen.is_reached:
            return (
                "The winner does not reach the target reliably: raise the limit (more rounds), or "
                "choose an easier target."
            )
        if every > 1 and chosen.rounds < _RECORDS * every:
            less = max(1, chosen.rounds // 10)
            return (
                f"The winner needs at most {chosen.rounds} rounds, and one in {every} was "
                "recorded, so its cost is a guess between records: search again with "
                f"--record-every {less} (record_every={less})."
            )
        return "The winner is a local optimum: no neighbour on any axis is better."

    def __repr__(self) -> str:
        chosen = self.recommended
        cost = chosen.describe(self.question.cost.column.unit)
        text = f"{chosen.label} ({chosen.settings}) for {self.goal}: {cost}"
        return f"Tuning({text}; {self.runs} runs; print it for the table)"

    def _notes(self) -> list[str]:
        last = f"Recommended: {self.reason}" if len(self.ranking) > 1 else self.advice
        return [*self.eliminations(), self.effort, last]

    def _repr_html_(self) -> str:
        return html_table(self.title, *self.rows(), *self._notes())

    def __str__(self) -> str:
        from tabulate import tabulate

        lines = tabulate(self.rows()[1], tablefmt="plain", disable_numparse=True)
        return "\n".join([self.title, lines, *self._notes()])


def _describe_needs(result: Result) -> str:
    """Return what a method asks of its users, in sentences."""
    candidate = result.candidate
    state = "no state" if candidate.is_stateless else "a state"
    tuned = "" if build.hyper_words(result.method) else ", with the defaults and without tuning"
    assumes = f" It assumes: {candidate.entry.assumes}." if candidate.entry.assumes else ""
    return (
        f"The clients of {result.label} keep {state}, and the server needs only the mean of their "
        f"replies{tuned}.{assumes}"
    )


def _join(words: Sequence[str]) -> str:
    """Write words as a list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _shorten(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text


def coordinate(method: Tunable, name: str) -> float | str:
    """Return a method's value of a searched hyper-parameter.

    Args:
        method: The method.
        name: A field of the method, "step" or "rho".

    Returns:
        The value to four digits, inf for None, or the text of a value that is not a number.
    """
    value: HyperParameter
    if name == "step":
        value = effective_step(method)
    elif name == "rho":
        value = method.K * method.local_step / method.eta_g
    else:
        value = getattr(method, name)
    if value is None:
        return math.inf
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(f"{value:.4g}") if is_number else str(value)


# --- one method -----------------------------------------------------------------------------------


def tune(
    problem: Problem,
    method: AnyMethod,
    *,
    target: TargetLike,
    cost: str | Cost = "rounds",
    search: Values | None = None,
    fixed: Collection[str] | None = None,
    fixed_grid: bool = False,
    codecs: bool | None = None,
    rounds: int = 2000,
    limit: float | None = None,
    record_every: int = 10,
    seeds: int = 10,
    held_out_seeds: int = 10,
    jobs: int | None = 1,
    costs: TimeModel | None = None,
    devices: Devices | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    max_runs: int | None = None,
    budget: str | float | None = None,
) -> Tuning:
    """Search the hyper-parameters that reach a target at the least cost.

    All hyper-parameters of the method are searched (`search_space`), except those that are given.
    The search ends at a local optimum, and the winner then runs on held-out seeds.

    Args:
        problem: A linear model, a quadratic or a network.
        method: The method. Hyper-parameters that differ from its class's defaults are taken as
            given and keep their values.
        target: The target to reach and hold, such as "accuracy:0.9", "gap:0.01", which is the
            loss above its minimum, or a number, which is a gradient norm.
        cost: The cost to minimise: a recorded cost, such as "bytes", "bits_up" or "clients", a sum
            such as "up+0.1*down", "seconds", which are estimated from `costs`, or
            "seconds_simulated" with `devices`.
        search: Values by hyper-parameter, "step" or "rho". Only these are searched, and all their
            combinations are tried first. Numbers continue beyond the list if the best is at its
            end. An empty list stands for the usual values.
        fixed: Hyper-parameters that keep their values. If None, those that differ from the
            defaults.
        fixed_grid: Whether the lists of `search` are complete.
        codecs: Whether to search codecs too. If None, they are searched if bytes, bits or
            simulated seconds count and `search` is not given.
        rounds: The length of a run: the limit is the cost of so many rounds of the method. A run
            with cheaper rounds may take more of them, up to ten times as many, and may compute up
            to ten times as many gradients.
        limit: The most that a run may cost, in units of the cost. If None, it follows from
            `rounds`.
        record_every: Rounds between records. Costs are interpolated between them.
        seeds: The most seeds of a comparison.
        held_out_seeds: The number of other seeds, on which the winner is evaluated.
        jobs: Processes. If None, joblib's current backend decides.
        costs: Latency, bandwidth and speed, for estimated seconds.
        devices: The clients' devices of every run, for simulated seconds and deadlines.
        store: A file of finished runs, from which a search continues.
        progress: Called with runs done, runs at most, and a note.
        max_runs: The most new runs of the search, or None for any number.
        budget: The most time for the search: "60s", "5m", "1h", or seconds. If None, any time.

    Returns:
        The winner with its cost on the held-out seeds.

    Raises:
        InputError: If an argument cannot be used.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=300), clients=30)
    >>> asked = {"target": 0.05, "search": {"step": []}, "seeds": 2, "held_out_seeds": 2}
    >>> found = fp.tune(problem, fp.PAGE(S=3), **asked)
    >>> found.first.is_local_optimum, found.first.sample.reached
    (True, 2)
    """
    began = time.monotonic()
    deadline = None if budget is None else began + parse_budget(budget)
    counts = {"rounds": rounds, "seeds": seeds, "held_out_seeds": held_out_seeds}
    goal = check_question(
        problem,
        target,
        cost,
        costs or TimeModel(),
        counts | {"record_every": record_every},
        devices,
    )
    given = _find_given(method, search, fixed)
    codecs = counts_bytes(Cost.parse(cost)) if codecs is None else codecs
    codecs = codecs and search is None
    if search is None:
        method = with_codecs(method, given) if codecs else method
        axes, design = search_space(method, problem, fixed=given, codecs=codecs), None
        codecs = bool(axes.keys() & {"up", "down"})
    else:
        axes, design = _given_space(method, problem, search, fixed_grid)
    question = make_question(
        problem, method, target=goal, cost=cost, rounds=rounds, limit=limit,
        record_every=record_every, costs=costs, devices=devices,
    )  # fmt: skip
    trials = Trials(
        problem, question, store=store, jobs=jobs, progress=progress, max_runs=max_runs,
        deadline=deadline,
    )  # fmt: skip
    found = Search(trials, method, axes, seeds=seeds, design=design)
    cut = ""
    try:
        found.run()
    except SearchEnded:
        cut = "The search was cut; more time or runs may change the result."
        if not found.has_run:
            raise InputError(
                "the search ended before its first runs; give it more time or more runs"
            ) from None
    scores, edges = found.scores(), found.edges()
    is_optimum = found.is_local_optimum and not edges
    winner = Result(
        Candidate(*find_entry(method), method), found.best, tuple(axes), tuple(scores),
        rounds=rounds, is_local_optimum=is_optimum, edges=edges,
    )  # fmt: skip
    held_out: list[int] = []
    if math.isfinite(min(trials.stored(winner.method, s).cost for s in range(scores[0][1].seeds))):
        trials.max_runs = trials.deadline = None
        (winner,) = _evaluate(trials, [winner], held_out_seeds, held_out)
    return Tuning(
        question, (winner,), (), {}, seeds, tuple(held_out), codecs, trials.done, trials.reused,
        time.monotonic() - began, cut, trials,
    )  # fmt: skip


def _given_space(
    method: Tunable, problem: Problem, search: Values, fixed_grid: bool
) -> tuple[dict[str, Axis], list[Point] | None]:
    """Return the axes of given values, and all combinations of those that are listed."""
    axes = given_axes(method, problem, search, fixed=fixed_grid)
    listed = [name for name, values in search.items() if values]
    return axes, all_points(axes, listed) if listed else None


def check_space(
    problem: Problem, method: Tunable, search: Values | None, fixed_grid: bool = False
) -> None:
    """Check the values of `search` as `tune` does, without running anything.

    Raises:
        InputError: If a hyper-parameter is unknown, or the method refuses all combinations.
    """
    if search is not None:
        axes, design = _given_space(method, problem, search, fixed_grid)
        trials = Trials(problem, Question(Target("loss"), Cost.parse("rounds")))
        Search(trials, method, axes, design=design)


def _find_given(
    method: AnyMethod, search: Values | None, fixed: Collection[str] | None
) -> list[str]:
    """Return the hyper-parameters that keep their values."""
    defaults = {entry.name: entry.default for entry in fields(method)}
    unknown = [name for name in fixed or () if name not in (*defaults, "step", "rho")]
    if unknown:
        raise InputError(
            f"fixed: {method.name} has no hyper-parameter {unknown[0]!r};"
            f"{did_you_mean(unknown[0], list(defaults))} it has {', '.join(defaults)}"
        )
    if fixed is None:
        fixed = [name for name, value in defaults.items() if getattr(method, name) != value]
    return [name for name in fixed if name not in (search or ())]


def make_question(
    problem: Problem,
    method: AnyMethod,
    *,
    target: TargetLike,
    cost: str | Cost = "rounds",
    rounds: int = 2000,
    limit: float | None = None,
    record_every: int = 10,
    costs: TimeModel | None = None,
    devices: Devices | None = None,
) -> Question:
    """Return the question of `tune`, whose limit is the cost of `rounds` rounds of the method.

    The arguments are those of `tune`. The cost of a round is measured in a short run with a tiny
    step. A run may take ten times as many rounds, and compute ten times as many gradients.
    """
    question = Question(
        Target.parse(target), Cost.parse(cost), record_every=record_every,
        rounds=_MORE * rounds, link=costs or TimeModel(), devices=devices,
    )  # fmt: skip
    length = min(rounds, _PILOT)
    pilot = with_step(method, 1e-3 * unit_step(method, problem))
    spec = question.make_spec(problem, pilot, seed=0)
    history = execute(replace(spec, rounds=length, record_every=length))
    times = rounds / max(1.0, history.last("round"))
    limit = times * float(question.costs(history)[-1]) if limit is None else limit
    gradients = _MORE * times * history.last("gradients")
    return replace(question, limit=limit, gradients=gradients)


def check_question(
    problem: Problem,
    target: TargetLike,
    cost: str | Cost,
    costs: TimeModel,
    counts: Mapping[str, int],
    devices: Devices | None = None,
) -> Target:
    """Check arguments of `tune` and `choose` without running anything.

    Args:
        problem: The problem.
        target: The target.
        cost: The cost to minimise.
        costs: Latency, bandwidth and speed.
        counts: Whole numbers of at least 1, by the names that error messages use.
        devices: The clients' devices.

    Returns:
        The target, as `resolve_target` returns it.

    Raises:
        InputError: If an argument cannot be used.
    """
    check_link(Cost.parse(cost), costs, devices)
    for name, value in counts.items():
        check_whole(name, value, 1)
    return resolve_target(problem, target)


# --- many methods ---------------------------------------------------------------------------------


def choose(
    problem: Problem,
    *,
    target: TargetLike,
    cost: str | Cost = "bytes",
    budget: str | float = "5m",
    methods: Sequence[str | AnyMethod] | None = None,
    stateless: bool = False,
    codecs: bool | None = None,
    seeds: int = 6,
    held_out_seeds: int = 10,
    record_every: int = 10,
    rounds: int = 20_000,
    jobs: int | None = 1,
    costs: TimeModel | None = None,
    devices: Devices | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Find the method and the settings that reach a target at the least cost.

    Args:
        problem: The problem.
        target: The target, as in `tune`.
        cost: The cost to save, as in `tune`.
        budget: The time for the search and the evaluation: "60s", "5m", "1h", or seconds.
        methods: Names of methods, or methods to start from. If None, all that apply.
        stateless: Whether to leave out methods whose clients keep a state.
        codecs: Whether to search codecs too. If None, they are searched if bytes, bits or
            simulated seconds count.
        seeds: The seeds of the last stage; each is paired over all candidates.
        held_out_seeds: The number of other seeds, on which the last methods are evaluated.
        record_every: Rounds between records, fewer if the best method needs few rounds. Costs
            are interpolated between records.
        rounds: The most rounds of a run.
        jobs: The most processes, for runs that are long enough for several. If None, joblib's
            current backend decides.
        costs: Latency, bandwidth and speed, for estimated seconds.
        devices: The clients' devices of every run, for simulated seconds and deadlines.
        store: A file of finished runs, from which a search continues.
        progress: Called with the seconds that have passed, those of the budget, and a note.

    Returns:
        The ranking with intervals, the recommendation, and the methods that were eliminated. It
        depends on the arguments alone unless `Tuning.cut` says that the time budget cut the search.

    Raises:
        InputError: If an argument cannot be used, the held-out seeds are too few to tell the
            methods apart, or no method reached the target.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20, reg="l2")
    >>> found = fp.choose(problem, target=0.05, methods=["page", "saga"], seeds=1, held_out_seeds=5)
    >>> [result.label for result in found.ranking if result.is_tied]
    ['SAGA', 'PAGE']
    >>> found.recommended.label  # of those that are tied, one whose clients keep no state
    'PAGE'
    """
    began = time.monotonic()
    end = began + parse_budget(budget)
    counts = {"rounds": rounds, "seeds": seeds, "held_out_seeds": held_out_seeds}
    price, link = Cost.parse(cost), costs or TimeModel()
    goal = check_question(
        problem, target, price, link, counts | {"record_every": record_every}, devices
    )
    codecs = counts_bytes(price) if codecs is None else codecs
    candidates, left_out = list_candidates(
        problem, methods=methods, stateless=stateless, codecs=codecs, devices=devices
    )
    check_held_out_seeds(held_out_seeds, len(candidates))
    every = min(record_every, max(1, rounds // 40))  # a target must hold for several records
    question = Question(goal, price, record_every=every, rounds=rounds, link=link, devices=devices)
    trials = Trials(problem, question, jobs=jobs, store=store)
    halving = Halving(trials, candidates, seeds, codecs, end, progress)
    halving.run()
    halving.set_deadline("evaluation", 1.0)
    halving.set_limit(_EVALUATION_LIMIT * halving.contenders[0].cost)
    results = [
        Result(
            each.candidate, each.method, tuple(each.search.axes), tuple(each.search.scores()),
            is_local_optimum=each.search.is_local_optimum, note=each.note,
        )
        for each in halving.contenders
    ]  # fmt: skip
    held_out: list[int] = []
    ranked = _evaluate(trials, results, held_out_seeds, held_out)
    cut = halving.cut
    if len(held_out) < held_out_seeds:
        cut = [*cut, f"the evaluation to {len(held_out)} held-out seeds"]
    return Tuning(
        trials.question, tuple(ranked), tuple(halving.eliminated), left_out, seeds, tuple(held_out),
        codecs, trials.done, trials.reused, time.monotonic() - began,
        f"The time budget cut {_join(cut)}; more time may change the result." if cut else "",
        trials,
    )  # fmt: skip


def check_held_out_seeds(count: int, methods: int) -> None:
    """Refuse a number of held-out seeds with which no two methods could be told apart.

    Args:
        count: The number of held-out seeds.
        methods: The number of methods that take part. The evaluation has at most four, and the
            best one without client states.

    Raises:
        InputError: If `count` is too small. The error says how many are needed.
    """
    least = needed_seeds(methods if methods < FINAL else FINAL + 1)
    if count < least:
        raise InputError(
            f"{count} held-out seeds cannot tell the methods apart, after the adjustment for all "
            f"pairs; use at least {least}"
        )


def _evaluate(
    trials: Trials, results: Sequence[Result], seeds: int, held_out: list[int]
) -> list[Result]:
    """Run methods on held-out seeds and rank them.

    Args:
        trials: Runs the trials. Its deadline may end the evaluation after six seeds.
        results: The methods.
        seeds: The number of seeds.
        held_out: The list to which the seeds are added.
    """
    deadline = trials.deadline
    found: list[list[Trial]] = [[] for _ in results]
    for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + seeds):
        trials.deadline = deadline if len(held_out) >= _LEAST_SEEDS else None
        try:
            ran = trials.run([(each.method, seed, math.inf) for each in results])
        except SearchEnded:
            break
        held_out.append(seed)
        for own, trial in zip(found, ran, strict=True):
            own.append(trial)
    ranked = ranking(
        {str(i): CostSample(tuple(t.cost for t in own)) for i, own in enumerate(found)}
    )
    return [
        replace(
            results[int(each.name)],
            sample=each.sample,
            at_end=sum(trial.at_end for trial in found[int(each.name)]),
            value=float(np.median([trial.value for trial in found[int(each.name)]])),
            rounds=max(trial.rounds for trial in found[int(each.name)]),
            is_tied=each.is_tied,
            p_value=each.p_value,
        )
        for each in ranked
    ]
