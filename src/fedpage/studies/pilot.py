"""Predict from short runs what a method needs to reach a target: the pilots of `fedpage plan`.

A pilot searches the step by doubling, on half of its rounds and two seeds. It then runs the best
step on a few other seeds and extrapolates them (`extrapolate.py`). Traffic and work per round are
those that these runs counted. All of it depends on the arguments alone, but for the time limit,
which may leave out methods.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.capabilities import measures_step
from fedpage.core.columns import Cost, read_column
from fedpage.core.errors import InputError, short_repr
from fedpage.core.schedules import effective_step, with_step
from fedpage.core.types import AnyMethod, Problem, Vector
from fedpage.core.validate import check_whole
from fedpage.engine.simulate import simulate
from fedpage.methods import METHODS, PAGE, MethodEntry
from fedpage.runs.history import History
from fedpage.runs.spec import start_of
from fedpage.studies.extrapolate import Curve, Forecast, forecast
from fedpage.theory import reference
from fedpage.theory.planner import DESCENT, Measure, TimeModel

MOST_ROUNDS = 600
LEAST_ROUNDS = 40
SEEDS = 4
FIRST_STEP = 0.9
"""The first step in units of 1/L. At its double, below 2/L, gradient descent still converges in
the direction of the largest curvature; at 2/L it would not."""
_WORK = 2_000_000
"""Row gradients that a pilot run may take, unless it would have fewer than `LEAST_ROUNDS`."""
_TRIES = 9
"""The most steps that are tried."""
_COUNTED = (
    "clients", "bytes_up", "bytes_down", "bits_up", "bits_down", "gradients_per_client",
)  # fmt: skip
_NORMAL = 1.645
"""The standard deviations that a 90 % interval extends to each side."""
OUT_OF_TIME = "out of time"


class Traffic(NamedTuple):
    """A cost as a function of the rounds, as the pilots counted it."""

    start: float
    """What the first rounds cost more than later ones."""
    growth: float
    """The mean cost of a round."""
    variance: float
    """The variance of a round's cost, which is large where full rounds come by a coin."""


@dataclass(frozen=True)
class Pilot:
    """What short runs of a method predict.

    Attributes:
        method: The method, with the step that was used; None where no step made progress.
        forecast: The rounds to the target.
        rounds: Rounds of a pilot run, at most.
        seeds: Seeds that were run with this step.
        tried: Steps that were tried.
        traffic: Each cost by name, as a function of the rounds.
    """

    method: AnyMethod | None
    forecast: Forecast
    rounds: int = 0
    seeds: int = 0
    tried: int = 0
    traffic: Mapping[str, Traffic] = field(default_factory=dict)

    def __repr__(self) -> str:
        found, name = self.forecast, "no method" if self.method is None else self.method.name
        if found.rounds is None:
            return f"Pilot({name}: no prediction, {found.reason})"
        interval = f"[{found.low:,.0f}, {found.high:,.0f}]"
        return f"Pilot({name}: {found.kind} {found.rounds:,.0f} rounds {interval})"

    @property
    def step(self) -> float | None:
        """The effective step that was used; None where the method measures its own."""
        if self.method is None or measures_step(self.method):
            return None
        return effective_step(self.method)

    def cost(
        self, cost: str | Cost, costs: TimeModel | None = None
    ) -> tuple[float, float, float] | None:
        """Convert the predicted rounds to a cost, at the traffic of the pilot's rounds.

        Args:
            cost: A cost such as "bytes" or "up+0.1*down".
            costs: What "seconds" depend on.

        Returns:
            The cost, and the ends of its interval; None without a prediction.

        Raises:
            InputError: Pilots do not count this cost, or seconds without `costs`.
        """
        cost = Cost.parse(cost)
        known = {"round", "bytes", "bits", *_COUNTED}
        known |= {"seconds"} if costs is not None and costs.given else set()
        unknown = [name for name, _ in cost.terms if name not in known]
        if unknown:
            raise InputError(f"a pilot has no {unknown[0]}; it has {', '.join(sorted(known))}")
        found = self.forecast
        if found.rounds is None or found.low is None or found.high is None:
            return None
        rows = [self._row(rounds, costs) for rounds in (found.rounds, found.low, found.high)]
        middle, low, high = (cost.evaluate(partial(read_column, row)) for row in rows)
        # Costs of a run deviate together: a full round adds to all of them.
        deviations = dict.fromkeys(rows[0], 0.0)
        for name, each in self.traffic.items():
            deviations[name] = math.sqrt(each.variance * found.rounds)
        noise = _NORMAL * cost.evaluate(partial(read_column, deviations))
        low = max(middle - math.hypot(middle - low, noise), 0.0)
        return middle, low, middle + math.hypot(high - middle, noise)

    def _row(self, rounds: float, costs: TimeModel | None) -> dict[str, float]:
        """Return all columns after so many rounds."""
        row = {key: each.start + each.growth * rounds for key, each in self.traffic.items()}
        if costs is not None and costs.given:
            calls = max(row["clients"], 1.0)
            down, up = row["bytes_down"] / calls, row["bytes_up"] / calls
            work = row["gradients_per_client"] / max(rounds, 1.0)
            row["seconds"] = costs.seconds(rounds, down, up, work)
        return row | {"round": rounds}


def pilot_methods(labels: Sequence[str], N: int, S: int, K: int, up: Codec) -> dict[str, AnyMethod]:
    """Return the methods of a plan's rows, as pilots run them.

    Methods that sample clients sample S, local steps use all rows, and replies go through the
    codec where the method has one for them and takes this one. Other hyper-parameters are defaults.

    Args:
        labels: Names as papers print them, such as "FedPAGE", or "gradient descent".
        N: Clients.
        S: Sampled clients.
        K: Local steps.
        up: The codec of replies.

    Returns:
        The methods of those labels that the library has.
    """
    entries = {entry.label: entry for entry in METHODS.values()}
    methods: dict[str, AnyMethod] = {}
    for label in dict.fromkeys(labels):
        if label == DESCENT:
            methods[label] = PAGE(S=N, p=1.0)
        elif label in entries:
            methods[label] = _pilot_method(entries[label], N, S, K, up)
    return methods


def _pilot_method(entry: MethodEntry, N: int, S: int, K: int, up: Codec) -> AnyMethod:
    defaults, options = entry.hyper_parameters, dict[str, Any]()
    if "K" in defaults:
        options["K"] = K
    if defaults.get("S") is not None:
        options["S"] = min(S, N)
    options |= {name: None for name in ("b", "b0") if name in defaults}
    if getattr(entry.cls, "is_geometric", False):  # K steps on average
        options["p"] = 1 / K
    if up != IDENTITY and entry.group == "compressed" and "up" in defaults:
        try:
            return entry(**options, up=up)
        except InputError:  # not for this method: biased, say
            pass
    return entry(**options)


def has_floor(method: AnyMethod) -> bool:
    """Say whether a method with a fixed step stops at some distance from a solution.

    Its clients drift apart ("biased otherwise" in the registry), or its minibatches leave noise
    that nothing reduces.
    """
    biased = any(
        entry.cls is type(method) and "biased" in entry.assumes for entry in METHODS.values()
    )
    noisy = getattr(method, "b", None) is not None and not getattr(
        method, "reduces_row_noise", False
    )
    return biased or noisy


def run_pilots(
    problem: Problem,
    methods: Mapping[str, AnyMethod],
    *,
    target: float,
    measure: Measure = "grad_norm",
    f_star: float | None = None,
    first_step: float | None = None,
    rounds: int | None = None,
    seed: int = 0,
    seeds: int = SEEDS,
    budget: float = math.inf,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Pilot]:
    """Run a short pilot of each method, and predict its rounds to a target.

    Args:
        problem: The problem.
        methods: The methods by name; their step sizes are searched.
        target: The value to reach.
        measure: "grad_norm", or "gap" for f(x) - f*.
        f_star: f* of a gap; None: by L-BFGS.
        first_step: The effective step that is tried first; None: 0.9/L, L of f.
        rounds: Rounds of a pilot run; None: 600, or two passes over the clients, four where full
            rounds come by a coin; fewer, at least 40, where a round takes much work.
        seed: The first of two seeds of the search; those that follow are for the chosen step.
        seeds: Seeds of the chosen step.
        budget: Seconds for all pilots. Methods whose turn does not come have no prediction; those
            with the least work come first.
        progress: Called with the pilots done, their number, and the name of the next one.

    Returns:
        A pilot for each name, in the given order.

    Raises:
        InputError: An argument is out of range, the problem's smoothness is not finite, or the
            start has reached the target already.
    """
    check_whole("seeds", seeds, 2)
    if rounds is not None:
        check_whole("rounds", rounds, 10)
    if math.isnan(budget) or budget < 0:
        raise InputError(
            f"budget must be a number of seconds of at least 0, not {short_repr(budget)}"
        )
    if first_step is None:
        L = problem.smoothness().whole
        first_step = FIRST_STEP / L if math.isfinite(L) and L > 0 else math.nan
    if not (math.isfinite(first_step) and first_step > 0):
        raise InputError("the smoothness is not a finite number above 0; give first_step")
    if measure == "gap" and f_star is None:
        f_star = reference(problem).loss
    check_start(problem, target, measure, f_star or 0.0)
    deadline = time.monotonic() + budget
    lengths = {name: rounds or _choose_rounds(problem, each) for name, each in methods.items()}
    runs = {
        name: _Runs(problem, target, measure, f_star or 0.0, lengths[name], deadline, seed)
        for name in methods
    }
    work = {name: lengths[name] * _work_per_round(problem, methods[name]) for name in methods}
    order = sorted(methods, key=work.__getitem__)
    found: dict[str, Pilot] = {}
    for number, name in enumerate(order):
        if progress:
            progress(number, len(order), name)
        try:
            found[name] = _run_pilot(runs[name], methods[name], first_step, seeds)
        except _OutOfTime:
            found[name] = Pilot(None, Forecast("none", reason=OUT_OF_TIME), lengths[name])
    if progress:
        progress(len(order), len(order), "")
    return {name: found[name] for name in methods}


def check_start(problem: Problem, target: float, measure: Measure, f_star: float) -> None:
    """Check that the start has not reached the target.

    Raises:
        InputError: It has.
    """
    start = problem.evaluate(start_of(problem, None))
    value = start["grad_norm"] if measure == "grad_norm" else start["loss"] - f_star
    if value <= target:
        words = "gradient norm" if measure == "grad_norm" else "gap"
        raise InputError(
            f"the start has a {words} of {value:.3g} already; choose a target below it"
        )


def _work_per_round(problem: Problem, method: AnyMethod) -> float:
    """Estimate the row gradients of a round: called clients times local steps times rows."""
    called = getattr(method, "S", None) or problem.N
    return float(called * getattr(method, "K", 1) * problem.sizes.mean())


def _choose_rounds(problem: Problem, method: AnyMethod) -> int:
    """Allow for the work of a round, for two passes over the clients, and for four full rounds."""
    passes = 4 if hasattr(method, "p") else 2  # p: full rounds come by a coin, S/N by default
    most = max(MOST_ROUNDS, passes * problem.N / (getattr(method, "S", None) or problem.N))
    return int(np.clip(_WORK / _work_per_round(problem, method), LEAST_ROUNDS, most))


class _OutOfTime(Exception):
    pass


@dataclass(frozen=True)
class _Runs:
    """Make the runs of a pilot, and read the measured values from them."""

    problem: Problem
    target: float
    measure: Measure
    f_star: float
    rounds: int
    deadline: float
    seed: int

    def run(self, method: AnyMethod, seed: int, rounds: int, records: int) -> History:
        """Run until the target is reached, with about so many records.

        Raises:
            _OutOfTime: The time for all pilots is over.
        """
        first: list[float] = []

        def stop(row: Mapping[str, float]) -> str | None:
            first.append(row["loss"]) if not first else None
            if time.monotonic() > self.deadline:
                return OUT_OF_TIME
            reached = self._value(row["grad_norm"], row["loss"]) <= self.target
            return "reached the target" if reached and row["loss"] <= first[0] else None

        every = max(1, rounds // records)
        history = simulate(
            self.problem, method, rounds=rounds, seed=seed, record_every=every, stop=stop
        )
        if OUT_OF_TIME in history.stop_text:
            raise _OutOfTime
        return history

    def _value(self, grad_norm: float, loss: float) -> float:
        return grad_norm if self.measure == "grad_norm" else loss - self.f_star

    def curve(self, history: History) -> Curve:
        """Return a run's rounds and values; inf where f(x) > f(x0)."""
        values = history["grad_norm"] if self.measure == "grad_norm" else self._gap(history)
        counts = history.progress() & np.isfinite(values)
        return history["round"], np.where(counts, np.maximum(values, 1e-300), math.inf)

    def _gap(self, history: History) -> Vector:
        return history["loss"] - self.f_star

    def score(
        self, method: AnyMethod, best: tuple[float, float] = (math.inf, math.inf)
    ) -> tuple[float, float]:
        """Return the rounds to the target, or inf, and the value at the end; less is better.

        Where clients are sampled, it is the worse of two seeds. The second is left out where the
        first is not better than `best`.
        """
        first = self._score(method, self.seed)
        samples = getattr(method, "S", None) not in (None, self.problem.N)
        return max(first, self._score(method, self.seed + 1)) if samples and first < best else first

    def _score(self, method: AnyMethod, seed: int) -> tuple[float, float]:
        try:
            history = self.run(method, seed, max(10, self.rounds // 2), 20)
        except InputError:  # the method refuses such a step
            return math.inf, math.inf
        rounds, values = self.curve(history)
        if history.diverged:
            return math.inf, math.inf
        if values[-1] <= self.target:
            return float(rounds[-1]), float(values[-1])
        return math.inf, float(np.median(values[-max(1, len(values) // 6) :]))


def _search_step(runs: _Runs, method: AnyMethod, start: float) -> tuple[AnyMethod | None, int]:
    """Find a step by doubling or halving from `start` until it gets worse.

    Returns:
        The method with its step, None where every run diverged; and the steps tried.
    """
    if measures_step(method):
        return method, 0
    tried: dict[int, tuple[float, float]] = {}
    worst = (math.inf, math.inf)

    def score(power: int) -> tuple[float, float]:
        if power not in tried:
            best = min(tried.values(), default=worst)
            tried[power] = runs.score(with_step(method, start * 2.0**power), best)
        return tried[power]

    best = 0
    while score(best) == worst and len(tried) < _TRIES:
        best -= 1
    direction = 1 if best == 0 and score(1) < score(0) else -1
    while len(tried) < _TRIES and score(best + direction) < score(best):
        best += direction
    return (None if score(best) == worst else with_step(method, start * 2.0**best)), len(tried)


def _run_pilot(runs: _Runs, method: AnyMethod, start: float, seeds: int) -> Pilot:
    chosen, tried = _search_step(runs, method, start)
    if chosen is None:
        reason = "the pilot diverges at every step tried"
        return Pilot(None, Forecast("none", reason=reason), runs.rounds, tried=tried)
    histories: list[History] = []
    for seed in range(runs.seed + 2, runs.seed + 2 + seeds):
        histories.append(runs.run(chosen, seed, runs.rounds, 40))
        if len(histories) == 2 and histories[0].same(histories[1]):
            break  # nothing is random in it
    found = forecast(
        [runs.curve(history) for history in histories], runs.target, has_floor=has_floor(chosen)
    )
    return Pilot(
        replace(chosen),
        found,
        runs.rounds,
        len(histories),
        tried,
        _count_traffic(histories),
    )


def _count_traffic(histories: Sequence[History]) -> dict[str, Traffic]:
    """Fit a line to each cost, from the first record after the start to the last."""
    traffic = {}
    for name in _COUNTED:
        first = [min(1, len(history) - 1) for history in histories]
        at = [history["round"][k:] for history, k in zip(histories, first, strict=True)]
        paid = [history[name][k:] for history, k in zip(histories, first, strict=True)]
        rounds, costs = np.hstack([np.diff(each) for each in at]), np.hstack([*map(np.diff, paid)])
        start = float(np.median([each[0] for each in at]))
        spent = float(np.median([each[0] for each in paid]))
        if rounds.sum() == 0:  # every run ended at its first record
            traffic[name] = Traffic(0.0, spent / max(start, 1.0), 0.0)
            continue
        growth = float(costs.sum() / rounds.sum())
        variance = float(((costs - growth * rounds) ** 2).sum() / rounds.sum())
        traffic[name] = Traffic(max(spent - growth * start, 0.0), growth, variance)
    return traffic
