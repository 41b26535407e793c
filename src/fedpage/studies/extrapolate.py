"""Extrapolate the decay of short runs: after how many rounds is a target reached?

The decay is described by its first passages: t(v) is the first round at which a run has come down
to the value v. Two shapes are usual. An exponential decay has t = a + c log(1/v), a power law has
t = a + c v^-shape. Both belong to one family with u = log(v0/v),

    t(u) = a + c (exp(shape u) - 1)/shape,

which is linear in u, the exponential decay, at shape 0. The shape is chosen by backtests: the early
part of the runs predicts their late part, whose end is known. Shapes that did well get more weight,
and the errors of the backtests decide how wide the interval is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector

_Kind: TypeAlias = Literal["measured", "predicted", "none"]
Curve: TypeAlias = tuple[Vector, Vector]
"""The rounds (records,) of a run's records, and the values (records,) there."""

LEVEL = 0.9
"""The intended probability that the interval holds the rounds of a further run."""
_SHAPES = np.arange(0.0, 2.01, 0.125)
_LEVELS = 200
"""Values between the first and the lowest at which first passages are computed."""
_WINDOW = 0.1
"""A fit uses passages from this share of its last round on: what came before is the transient."""
_CUTS = (1 / 3, 1 / 2, 2 / 3)
"""The shares of the rounds from which the backtests predict the last passage."""
_TOLERANCE = 0.08
"""Log error of a backtest, per doubling of the rounds, that does not yet speak against a shape."""
_LEAST_ERROR = 0.15
"""Log error per doubling of the rounds that is assumed even after better backtests. Chosen so that
nine in ten intervals of a first run of benchmarks/pilot.py would have held (docs/planning.md)."""
_LEAST_DEVIATION = 0.02
"""Log error that is assumed of every number, since passages are interpolated between records."""
_LEAST_PROGRESS = 0.05
"""Runs stall where the last third of their rounds lowers the value by less than this share."""
_MOST_ERROR = 0.4
_MOST_DOUBLINGS = 4.0
_MOST_WIDTH = 20.0


@dataclass(frozen=True)
class Forecast:
    """When a target is reached.

    Attributes:
        kind: "measured" where every run reached the target, "predicted" where at least one did not,
            or "none".
        rounds: The median number of rounds; None without a forecast, as in the next two.
        low: The interval's lower end, for one further run.
        high: Its upper end.
        shape: The decay's shape: 0 is exponential, 1 is 1/rounds, 2 is 1/sqrt(rounds); None where
            nothing was fitted.
        reason: Why there is no forecast.
    """

    kind: _Kind
    rounds: float | None = None
    low: float | None = None
    high: float | None = None
    shape: float | None = None
    reason: str = ""


def first_passages(rounds: Vector, values: Vector, levels: Vector) -> Vector:
    """Compute the first rounds at which a run is at most at given values.

    Args:
        rounds: (records,) rounds of the records, increasing.
        values: (records,) values there, above 0; inf where a record does not count.
        levels: (n,) the values to reach, above 0.

    Returns:
        (n,) rounds, interpolated between records on the logarithm of the values; inf where the
        value is not reached.

    >>> first_passages(np.array([0.0, 10.0, 20.0]), np.array([4.0, 1.0, 2.0]), np.array([2.0, 0.5]))
    array([ 5., inf])
    """
    lowest = np.log(np.minimum.accumulate(np.clip(values, 1e-300, 1e300)))
    goal = np.log(levels)
    after = np.searchsorted(-lowest, -goal, side="left")
    k = np.clip(after, 1, max(len(lowest) - 1, 1))
    if len(lowest) == 1:
        return np.where(after == 0, float(rounds[0]), math.inf)
    drop = lowest[k - 1] - lowest[k]
    share = np.clip((lowest[k - 1] - goal) / np.where(drop > 0, drop, 1.0), 0.0, 1.0)
    between = rounds[k - 1] + share * (rounds[k] - rounds[k - 1])
    found = np.where(after == 0, rounds[0], between)
    return np.where(after < len(lowest), found, math.inf)


def forecast(curves: Sequence[Curve], target: float, *, has_floor: bool = False) -> Forecast:
    """Predict when further runs like these reach a target.

    Args:
        curves: Runs of one method with different seeds.
        target: The value to reach, from above.
        has_floor: Whether the method stops at some value above 0, which short runs need not show.
            It is then not extrapolated.

    Returns:
        The forecast. It has no number where the runs hardly move, stall, contradict their own
        first part, or are too short for the target.

    Raises:
        InputError: The target is not a finite number above 0, or there is no run.
    """
    if not (math.isfinite(target) and target > 0):
        raise InputError(f"target must be a finite number above 0, not {short_repr(target)}")
    if not curves:
        raise InputError("a forecast needs at least one run")
    goal = np.array([target])
    reached = np.array([first_passages(*curve, goal)[0] for curve in curves])
    first = max(float(values[0]) for _, values in curves)
    lowest = float(np.median([float(np.min(values)) for _, values in curves]))
    if not (math.isfinite(first) and lowest < first):
        return _refuse("the pilot makes no progress at any step tried")
    levels = np.geomspace(first, lowest, _LEVELS)
    passages = np.array([first_passages(*curve, levels) for curve in curves])
    middle = np.median(passages, axis=0)
    known = np.isfinite(middle)
    levels, passages, middle = levels[known], passages[:, known], middle[known]
    decay = _Decay(np.log(first / levels), middle)
    ends = np.array([float(rounds[-1]) for rounds, _ in curves])[:, None]
    fitted = np.minimum(passages[:, decay.window(decay.end)], ends)  # at least that many rounds
    if np.median(reached) < math.inf:
        spread = _spread(np.hstack([fitted, np.minimum(reached[:, None], ends)]))
        kind: _Kind = "measured" if np.isfinite(reached).all() else "predicted"
        return _interval(kind, float(np.median(reached)), spread, None)
    before = [float(np.min(values[rounds <= 2 / 3 * rounds[-1]])) for rounds, values in curves]
    if lowest > (1 - _LEAST_PROGRESS) * float(np.median(before)):
        return _refuse(f"it stalls at {lowest:.2g}")
    if has_floor:
        count = int(np.isfinite(reached).sum())
        some = f"{count} of {len(curves)} runs reached it" if count else f"came to {lowest:.2g}"
        return _refuse(f"{some}; it has a floor, so nothing is extrapolated")
    return _extrapolate(decay, math.log(first / target), _spread(fitted))


def _refuse(reason: str) -> Forecast:
    return Forecast("none", reason=reason)


class _Decay:
    """The median first passages `rounds` (n,) at `drops` (n,), the logs of v0/v, increasing."""

    def __init__(self, drops: Vector, rounds: Vector) -> None:
        self.drops, self.rounds = drops, rounds
        self.end = float(rounds[-1])

    def window(self, end: float) -> np.ndarray:
        """Select the passages (n,) that a fit up to a round uses."""
        return (self.rounds <= end) & (self.rounds >= _WINDOW * end)

    def predict(self, end: float, drop: float) -> Vector | None:
        """Predict the round of a drop with each shape, from the passages up to a round.

        Returns:
            (shapes,) rounds, at least `end`; None where there are too few passages.
        """
        used = self.window(end)
        if used.sum() < 8:
            return None
        t, u = self.rounds[used], self.drops[used] - self.drops[used][-1]
        predictions = []
        for shape in _SHAPES:
            # An error in log v moves t by dt/du = c exp(shape u), hence the weights.
            weights = np.exp(-shape * u)
            columns = np.stack([np.ones_like(u), _grow(u, shape)], axis=1)
            (a, c), *_ = np.linalg.lstsq(columns * weights[:, None], t * weights, rcond=None)
            value = a + c * float(_grow(drop - self.drops[used][-1], shape))
            predictions.append(max(float(value), end))
        return np.array(predictions)


def _grow(u: Vector | float, shape: float) -> Vector:
    return np.asarray(u if shape == 0 else np.expm1(shape * np.asarray(u)) / shape)


def _extrapolate(decay: _Decay, drop: float, spread: float) -> Forecast:
    """Weigh the shapes by their backtests, and predict the round of a drop."""
    errors = []
    for cut in (share * decay.end for share in _CUTS):
        backtest = decay.predict(cut, float(decay.drops[-1]))
        if backtest is not None:
            doublings = math.log2(decay.end / cut)
            errors.append(np.log(backtest / decay.end) / doublings)
    predicted = decay.predict(decay.end, drop)
    if not errors or predicted is None:
        return _refuse("the pilot is too short to show a trend")
    squares = np.mean(np.square(errors), axis=0)
    least = float(squares.min())
    if least > _MOST_ERROR**2:
        return _refuse("its early part does not predict its late part")
    weights = np.exp(-(squares - least) / (2 * (least + _TOLERANCE**2)))
    weights /= weights.sum()
    logs = np.log(predicted)
    doublings = (float(weights @ logs) - math.log(decay.end)) / math.log(2)
    if doublings > _MOST_DOUBLINGS:
        return _refuse(f"more than {2**_MOST_DOUBLINGS:.0f} times the pilot's rounds")
    deviation = math.hypot(math.sqrt(least + _LEAST_ERROR**2) * doublings, spread)
    shape = float(weights @ _SHAPES)
    return _interval("predicted", logs, deviation, shape, weights)


def _interval(
    kind: _Kind,
    rounds: float | Vector,
    deviation: float,
    shape: float | None,
    weights: Vector | None = None,
) -> Forecast:
    """Return quantiles of a mixture of lognormal distributions; `rounds` are logs with weights."""
    deviation = max(deviation, _LEAST_DEVIATION)
    centres = np.atleast_1d(math.log(max(rounds, 1.0)) if weights is None else rounds)
    weights = np.ones(1) if weights is None else weights
    z = np.linspace(-3.5, 3.5, 141)
    points = (centres[:, None] + deviation * z).ravel()
    mass = (weights[:, None] * np.exp(-(z**2) / 2)).ravel()
    order = np.argsort(points)
    below = (np.cumsum(mass[order]) - mass[order] / 2) / mass.sum()
    tail = (1 - LEVEL) / 2
    low, middle, high = np.exp(np.interp([tail, 0.5, 1 - tail], below, points[order]))
    if kind == "predicted" and high > _MOST_WIDTH * low:
        return _refuse(f"anything from {low:,.0f} to {high:,.0f} rounds")
    return Forecast(kind, float(middle), float(low), float(high), shape)


def _spread(passages: Vector) -> float:
    """Estimate the standard deviation of a further run's log passage from the median of these.

    Args:
        passages: (runs, levels) passages of the levels of a fit.

    Returns:
        The larger of the median over levels and the value at the last level, times a factor for
        the small number of runs: that of Student's t with 2 (runs - 1) degrees of freedom, because
        neighbouring levels add little.
    """
    runs = len(passages)
    if runs < 2 or passages.shape[1] == 0:
        return 0.0
    deviations = np.std(np.log(np.maximum(passages, 1.0)), axis=0, ddof=1)
    deviation = max(float(np.median(deviations)), float(deviations[-1]))
    return deviation * math.sqrt(1 + 1 / runs) * _student(2 * (runs - 1)) / _student(10**6)


def _student(degrees: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + LEVEL) / 2))
