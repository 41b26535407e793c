"""Judge costs on fresh seeds: an interval of the median, and whether two methods can be told apart.

Nothing here assumes a distribution of the costs. A seed that did not reach the target has an
infinite cost, which counts as the largest. The interval consists of two order statistics, and the
comparison is the exact rank-sum test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector

LEVEL = 0.95
"""The least probability with which an interval holds the median, where the seeds suffice."""
_MOST_EXACT = 60
"""Seeds of two methods together up to which the rank-sum test is exact."""
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


@dataclass(frozen=True)
class Judgement:
    """The costs of one method on fresh seeds.

    Attributes:
        costs: The cost of each seed, in the order of the seeds; inf where the target was not
            reached.

    Raises:
        InputError: There is no cost, or a cost is negative or not a number.

    >>> found = Judgement((3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 8.0, 7.0, math.inf, 9.0))
    >>> found.median, found.low, found.high, round(found.level, 3), found.reached
    (5.5, 2.0, 9.0, 0.979, 9)
    """

    costs: tuple[float, ...]

    def __post_init__(self) -> None:
        costs = tuple(float(cost) for cost in self.costs)
        wrong = [cost for cost in costs if not cost >= 0]
        if not costs or wrong:
            raise InputError(
                "a judgement needs the cost of at least one seed, each a number of at least 0 or "
                f"inf, not {short_repr(wrong[0] if wrong else costs)}"
            )
        object.__setattr__(self, "costs", costs)

    def __repr__(self) -> str:
        return f"Judgement({self.text()})"

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.costs)

    @property
    def reached(self) -> int:
        """The number of seeds that reached the target."""
        return sum(math.isfinite(cost) for cost in self.costs)

    @property
    def median(self) -> float:
        """The median cost; inf if it is not finite."""
        return float(np.median(self.costs))

    @property
    def low(self) -> float:
        """The lower end of the interval of the median."""
        return self._sorted[self._place - 1]

    @property
    def high(self) -> float:
        """The upper end of the interval of the median; inf if that seed did not reach."""
        return self._sorted[-self._place]

    @property
    def worst(self) -> float:
        """The largest cost."""
        return self._sorted[-1]

    @property
    def level(self) -> float:
        """The probability with which the interval holds the median of the costs of all seeds.

        It is at least `LEVEL` from six seeds on; with fewer seeds the interval is their range.
        """
        return _coverage(self.seeds, self._place)

    @property
    def order(self) -> tuple[float, int, tuple[float, ...]]:
        """The key by which judgements are ranked: median, then seeds that failed, then costs."""
        return self.median, self.seeds - self.reached, self._sorted

    @cached_property
    def _sorted(self) -> tuple[float, ...]:
        return tuple(sorted(self.costs))

    @cached_property
    def _place(self) -> int:
        """The order statistic at the interval's lower end, counted from 1."""
        places = range((self.seeds + 1) // 2, 1, -1)
        return next((place for place in places if _coverage(self.seeds, place) >= LEVEL), 1)

    def text(self, unit: str = "") -> str:
        """Write the judgement in one line.

        Args:
            unit: The unit of the cost, as in `fedpage.core.columns.Column`.

        >>> Judgement((1.2e6, 1.5e6, 1.0e6)).text("B")
        '1.2 MB [1, 1.5], 3 of 3 seeds'
        >>> Judgement((120.0, math.inf, math.inf)).text()
        'not reached in the median, 1 of 3 seeds'
        """
        seeds = f"{self.reached} of {self.seeds} seeds"
        if not math.isfinite(self.median):
            return f"not reached in the median, {seeds}"
        scale, shown = scale_unit(self.median, unit)
        low, high = (format_digits(value / scale) for value in (self.low, self.high))
        return f"{format_digits(self.median / scale)}{shown} [{low}, {high}], {seeds}"


def _coverage(n: int, place: int) -> float:
    """Return the probability that the order statistics `place` and n+1-`place` hold the median."""
    tail = sum(math.comb(n, k) for k in range(place))  # fewer than `place` of n values below it
    return max(0.0, float(1 - 2 * tail / 2**n))


def scale_unit(value: float, unit: str) -> tuple[float, str]:
    """Return what to divide costs of about this value by, and the unit with its prefix.

    >>> scale_unit(1.2e6, "B"), scale_unit(1.2e6, "")
    ((1000000.0, ' MB'), (1.0, ''))
    """
    if unit not in ("B", "bit"):
        return 1.0, f" {unit}" if unit else ""
    power = sum(value >= 0.9995 * 1000.0**k for k in range(1, len(_PREFIXES)))
    return 1000.0**power, f" {_PREFIXES[power]}{unit}"


def format_digits(value: float) -> str:
    """Write a number with three digits, or four where it is a large count.

    >>> format_digits(1.2345), format_digits(123456), format_digits(math.inf)
    ('1.23', '123500', 'not reached')
    """
    if not math.isfinite(value):
        return "not reached"
    return f"{value:.3g}" if value < 999.5 else f"{float(f'{value:.4g}'):.0f}"


# --- comparisons ----------------------------------------------------------------------------------


def rank_test(a: Judgement, b: Judgement) -> float:
    """Test whether two methods' costs have the same distribution.

    It is the Wilcoxon-Mann-Whitney rank-sum test, two-sided. Equal costs share their mean rank.
    Up to 60 seeds in all the p-value is exact, also with ties: the share of all divisions of the
    ranks that are at least as uneven. Costs of one seed are not paired, because methods that call
    other clients have little in common, and because a paired test of five seeds cannot reject.

    Args:
        a: The costs of one method.
        b: Those of the other.

    Returns:
        The p-value.

    >>> rank_test(Judgement((1.0, 2.0)), Judgement((3.0, math.inf)))
    0.3333333333333333
    """
    from scipy.stats import mannwhitneyu, rankdata

    costs = np.array(a.costs + b.costs)
    if len(costs) > _MOST_EXACT:
        # Ranks replace the costs, because the test refuses infinities.
        ranks = rankdata(costs)
        if np.ptp(ranks) == 0:
            return 1.0
        split = ranks[: a.seeds], ranks[a.seeds :]
        return float(mannwhitneyu(*split, method="asymptotic").pvalue)
    doubled = np.rint(2 * rankdata(costs)).astype(np.int64)  # mean ranks are halves
    counts = _sums(doubled, a.seeds)
    sums = np.arange(len(counts))
    expected = a.seeds * (len(costs) + 1)  # of the doubled ranks
    uneven = np.abs(sums - expected) >= abs(int(doubled[: a.seeds].sum()) - expected)
    return min(1.0, float(counts[uneven].sum() / counts.sum()))


def _sums(values: NDArray[np.int64], size: int) -> Vector:
    """Count the subsets of a size by the sum of their values."""
    counts: Vector = np.zeros((size + 1, int(values.sum()) + 1))
    counts[0, 0] = 1
    for value in values:
        for taken in range(size, 0, -1):
            counts[taken, value:] += counts[taken - 1, : counts.shape[1] - value]
    found: Vector = counts[size]
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number by Holm's method.

    Args:
        p_values: The p-value of each comparison.

    Returns:
        The adjusted p-values in the same order. Rejecting those below alpha rejects a true
        hypothesis with a probability of at most alpha, however the comparisons depend on each
        other.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - done) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def tied(a: Judgement, b: Judgement, *, alpha: float = 0.05) -> bool:
    """Say whether two methods cannot be told apart.

    Args:
        a: The costs of one method.
        b: Those of the other.
        alpha: The probability of calling equal methods different.

    >>> tied(Judgement((1.0, 2.0, 3.0)), Judgement((2.0, 3.0, 4.0)))
    True
    """
    return rank_test(a, b) >= alpha


@dataclass(frozen=True)
class Place:
    """A method's place in a ranking.

    Attributes:
        name: The method.
        judgement: Its costs.
        p_value: The p-value of the comparison with the first, adjusted by Holm's method.
        is_tied: Whether it cannot be told from the first. The first is tied with itself.
    """

    name: str
    judgement: Judgement
    p_value: float
    is_tied: bool


def ranking(judgements: Mapping[str, Judgement], *, alpha: float = 0.05) -> list[Place]:
    """Rank methods by their median costs, and say which cannot be told from the first.

    The first is the best of the same costs that it is then compared by. All pairs are therefore
    compared and adjusted for, not only those with the first, so that the choice does no harm.

    Args:
        judgements: The costs by method.
        alpha: The probability of calling any two equal methods different.

    Returns:
        The places, best first.

    >>> costs = {"b": (5.0, 6.0, 7.0, 8.0), "a": (1.0, 2.0, 3.0, 4.0), "c": (1.5, 2.5, 3.5, 4.5)}
    >>> places = ranking({name: Judgement(values) for name, values in costs.items()}, alpha=0.1)
    >>> [(place.name, place.is_tied) for place in places]
    [('a', True), ('c', True), ('b', False)]
    """
    names = sorted(judgements, key=lambda name: judgements[name].order)
    pairs = list(itertools.combinations(names, 2))
    tests = (rank_test(judgements[one], judgements[other]) for one, other in pairs)
    adjusted = dict(zip(pairs, holm(list(tests)), strict=True))
    places = []
    for name in names:
        p = 1.0 if name == names[0] else adjusted[names[0], name]
        places.append(Place(name, judgements[name], p, p >= alpha))
    return places
