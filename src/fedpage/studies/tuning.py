"""Find the settings, or the method, that reach a target at the least cost: `tune` and `choose`.

`fedpage.studies.space` lists what is searched, `fedpage.studies.search` searches one method, and
`fedpage.studies.halving` reduces many methods to a few. The winners run on held-out seeds, which
had no part in the search, and their costs there are the numbers to report.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from statistics import median

from fedpage.core.columns import Cost, Target, TargetLike
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.types import AnyMethod, Problem
from fedpage.core.validate import check_whole
from fedpage.engine.devices import Devices
from fedpage.engine.simulate import execute
from fedpage.methods.schedules import with_step
from fedpage.studies.candidates import Candidate, find_entry, list_candidates
from fedpage.studies.halving import FINAL, Halving
from fedpage.studies.search import Search
from fedpage.studies.space import (
    Values,
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
    parse_budget,
)
from fedpage.studies.tuning_result import Tuning, join
from fedpage.theory.planner import TimeModel

_PILOT = 200
"""The most rounds of the run that measures what a round costs."""
_ROUNDS = 2000
"""Rounds of the method whose cost is the limit of a run by default."""
_MORE = 10
"""How many times more rounds, or gradients, a run may take than `rounds` rounds of the method."""
_LEAST_SEEDS = 6
"""Held-out seeds that run whatever time is left: with fewer, intervals have less than 95 %."""
_EVALUATION_LIMIT = 10.0
"""A run of the evaluation ends when it has cost this many times what the best method needs."""


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
    rounds: int = _ROUNDS,
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
            simulated seconds count. They are not searched if `search` is given.
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
    question = Question(
        Target.parse(target), Cost.parse(cost), record_every, rounds,
        link=costs or TimeModel(), devices=devices,
    ).checked(problem)  # fmt: skip
    check_whole("seeds", seeds, 1)
    check_whole("held_out_seeds", held_out_seeds, 1)
    deadline = math.inf if budget is None else began + parse_budget(budget)
    given = _find_given(method, search, fixed)
    codecs = (counts_bytes(question.cost) if codecs is None else codecs) and search is None
    design = None
    if search is None:
        method = with_codecs(method, given) if codecs else method
        axes = search_space(method, problem, fixed=given, codecs=codecs)
    else:
        axes, design = given_axes(method, problem, search, is_fixed=fixed_grid)
    question, measured = limit_runs(question, problem, method)
    limit = measured if limit is None else limit
    trials = Trials(problem, question, limit, store, jobs, progress, max_runs, deadline)
    found = Search(trials, method, axes, seeds=seeds, design=design)
    cut = ""
    try:
        found.run()
    except SearchEnded:
        cut = "The search was cut; more time or runs may change the result."
    if not found.scores():
        raise InputError("the search ended before its first runs; give it more time or more runs")
    start = Candidate(*find_entry(method), method, tuple(given), rounds=rounds)
    winner = start.with_search(found)
    held_out, ranked = 0, [winner]
    if any(math.isfinite(each.cost) for each in trials.find(winner.method, seeds)):
        trials.max_runs, trials.deadline = None, math.inf
        held_out, ranked = _evaluate(trials, [winner], held_out_seeds)
    return Tuning(
        trials, tuple(ranked), (), {}, seeds, held_out, codecs and bool({"up", "down"} & {*axes}),
        time.monotonic() - began, cut,
    )  # fmt: skip


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


def limit_runs(question: Question, problem: Problem, method: AnyMethod) -> tuple[Question, float]:
    """Measure the cost of the question's rounds of a method, which is the limit of a run.

    Args:
        question: The question.
        problem: The problem.
        method: The method, of which a short run with a tiny step measures the cost of a round.

    Returns:
        The question with ten times as many rounds, and as many gradients as they take, and the
        limit.
    """
    length = min(question.rounds, _PILOT)
    pilot = with_step(method, 1e-3 * unit_step(method, problem))
    spec = question.make_spec(problem, pilot, seed=0)
    history = execute(replace(spec, rounds=length, record_every=length))
    times = question.rounds / max(1.0, history.last("round"))
    gradients = _MORE * times * history.last("gradients")
    limited = replace(question, rounds=_MORE * question.rounds, gradients=gradients)
    return limited, times * float(question.costs(history)[-1])


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
        codecs: Whether to search codecs too, as in `tune`.
        seeds: The seeds of the last stage; each is paired over all candidates.
        held_out_seeds: The number of other seeds, on which the last methods are evaluated.
        record_every: Rounds between records, fewer if the best method needs few rounds.
        rounds: The most rounds of a run. As in `tune`, no run computes more than ten times the
            gradients of 2000 rounds, or of so many if they are fewer, of the median method.
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
    question = Question(
        Target.parse(target), Cost.parse(cost), record_every, rounds,
        link=costs or TimeModel(), devices=devices,
    ).checked(problem)  # fmt: skip
    check_whole("seeds", seeds, 1)
    check_whole("held_out_seeds", held_out_seeds, 1)
    codecs = counts_bytes(question.cost) if codecs is None else codecs
    candidates, left_out = list_candidates(
        problem, methods=methods, stateless=stateless, codecs=codecs, devices=devices
    )
    # The evaluation has at most FINAL methods and the best one without client states.
    least = needed_seeds(len(candidates) if len(candidates) < FINAL else FINAL + 1)
    if held_out_seeds < least:
        raise InputError(
            f"{held_out_seeds} held-out seeds cannot tell the methods apart, after the adjustment "
            f"for all pairs; use at least {least}"
        )
    every = min(record_every, max(1, rounds // 40))  # a target must hold for several records
    gradients = median(each.probe.last("gradients") for each in candidates)
    gradients *= _MORE * min(rounds, _ROUNDS)
    question = replace(question, record_every=every, gradients=gradients)
    trials = Trials(problem, question, store=store, jobs=jobs, progress=progress)
    halving = Halving(trials, candidates, seeds, codecs, end)
    halving.run()
    halving.begin("evaluation", 1.0)
    trials.limit = _EVALUATION_LIMIT * halving.contenders[0].cost
    results = [contender.result() for contender in halving.contenders]
    held_out, ranked = _evaluate(trials, results, held_out_seeds)
    cut = list(halving.cut)
    if held_out < held_out_seeds:
        cut.append(f"the evaluation to {held_out} held-out seeds")
    return Tuning(
        trials, tuple(ranked), tuple(halving.eliminated), left_out, seeds, held_out, codecs,
        time.monotonic() - began,
        f"The time budget cut {join(cut)}; more time may change the result." if cut else "",
    )  # fmt: skip


def _evaluate(
    trials: Trials, results: Sequence[Candidate], seeds: int
) -> tuple[int, list[Candidate]]:
    """Run methods on held-out seeds, at least six, and return their number and the ranking."""
    deadline = trials.deadline
    rows: list[list[Trial]] = []
    for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + seeds):
        trials.deadline = deadline if len(rows) >= _LEAST_SEEDS else math.inf
        try:
            rows.append(trials.run([(each.method, seed, math.inf) for each in results]))
        except SearchEnded:
            break
    ran = dict(zip((each.name for each in results), zip(*rows, strict=True), strict=True))
    samples = {name: CostSample(tuple(t.cost for t in own)) for name, own in ran.items()}
    named = {each.name: each for each in results}
    return len(rows), [
        replace(
            named[name],
            sample=samples[name],
            at_end=sum(trial.at_end for trial in ran[name]),
            value=median(trial.value for trial in ran[name]),
            rounds=max(trial.rounds for trial in ran[name]),
            is_tied=is_tied,
            p_value=p,
        )
        for name, (p, is_tied) in ranking(samples).items()
    ]
