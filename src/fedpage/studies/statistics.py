"""Compare the costs of methods on separate and on paired seeds.

- `CostSample` summarises one method's costs by order statistics, and the exact rank-sum test
  compares two samples. Neither assumes a distribution. A seed that did not reach the target has an
  infinite cost, which counts as the largest.
- `Pair` compares two methods seed by seed: a seed gives every method the same coins and clients.
  The interval and the p-value are from Student's t on the logarithms of the ratios, because costs
  are positive and differ by factors. With five to ten seeds the intervals of a bootstrap (also BCa)
  are too narrow. Interval and test are one computation, so they never contradict each other. If a
  run did not reach the target, the rank-sum test decides.

P-values of several pairs are adjusted by Holm's method.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.report.numbers import format_beside, format_digits, format_p, scale_unit

LEVEL = 0.95
"""The least probability with which an interval contains its value, if the seeds suffice."""
ALPHA = 0.05
"""The probability of calling equal methods different."""
MIN_SEEDS = 5
"""The fewest seeds from which a verdict is given."""
_MOST_EXACT = 60
"""Seeds of two methods together up to which the rank-sum test is exact."""


# --- the costs of one method ----------------------------------------------------------------------


@dataclass(frozen=True)
class CostSample:
    """The costs of one method on several seeds.

    Attributes:
        costs: The cost of each seed, in the order of the seeds. A seed that did not reach the
            target has the cost inf.

    >>> found = CostSample((3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 8.0, 7.0, math.inf, 9.0))
    >>> found.median, found.low, found.high, round(found.level, 3), found.reached
    (5.5, 2.0, 9.0, 0.979, 9)
    """

    costs: tuple[float, ...]

    def __repr__(self) -> str:
        return f"CostSample({self.text()})"

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.costs)

    @property
    def reached(self) -> int:
        """The number of seeds that reached the target."""
        return sum(map(math.isfinite, self.costs))

    @property
    def median(self) -> float:
        """The median cost, inf if half of the seeds did not reach the target."""
        return float(np.median(self.costs))

    @property
    def low(self) -> float:
        """The lower end of the interval of the median."""
        return sorted(self.costs)[self._rank - 1]

    @property
    def high(self) -> float:
        """The upper end of the interval of the median."""
        return sorted(self.costs)[-self._rank]

    @property
    def worst(self) -> float:
        """The largest cost."""
        return max(self.costs)

    @property
    def level(self) -> float:
        """The probability with which the interval contains the median over all possible seeds.

        It is at least `LEVEL` from six seeds on. With fewer seeds the interval is their range.
        """
        return _coverage(self.seeds, self._rank)

    @property
    def order(self) -> tuple[float, int, tuple[float, ...]]:
        """The key by which samples are ranked: median, then seeds that failed, then costs."""
        return self.median, self.seeds - self.reached, tuple(sorted(self.costs))

    @cached_property
    def _rank(self) -> int:
        """The order statistic at the interval's lower end, counted from 1."""
        ranks = range((self.seeds + 1) // 2, 1, -1)
        return next((rank for rank in ranks if _coverage(self.seeds, rank) >= LEVEL), 1)

    def text(self, unit: str = "") -> str:
        """Write the sample in one line.

        Args:
            unit: The unit of the cost, as in `fedpage.core.columns.Column`.

        >>> CostSample((1.2e6, 1.5e6, 1.0e6)).text("B")
        '1.2 MB [1, 1.5], 3 of 3 seeds'
        >>> CostSample((120.0, math.inf, math.inf)).text()
        'not reached in the median, 1 of 3 seeds'
        """
        seeds = f"{self.reached} of {self.seeds} seeds"
        if not math.isfinite(self.median):
            return f"not reached in the median, {seeds}"
        scale, shown = scale_unit(self.median, unit)
        low, high = (format_digits(value / scale) for value in (self.low, self.high))
        return f"{format_digits(self.median / scale)}{shown} [{low}, {high}], {seeds}"


def _coverage(n: int, rank: int) -> float:
    """Return the probability that the median is between order statistics `rank` and n+1-`rank`."""
    tail = sum(math.comb(n, k) for k in range(rank))  # fewer than `rank` of n values below it
    return max(0.0, float(1 - 2 * tail / 2**n))


# --- tests of separate seeds ----------------------------------------------------------------------


def rank_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value of the Wilcoxon-Mann-Whitney rank-sum test.

    Equal costs share their mean rank. Up to 60 seeds in all the p-value is exact, also with ties:
    the share of all divisions of the ranks that are at least as uneven. Counting them takes half a
    millisecond for ten seeds each, `scipy.stats.permutation_test` about a second. Seeds are not
    paired here, because methods that call other clients have little in common, and because a paired
    test of five seeds cannot reject.

    Args:
        a: (n,) the costs of one method.
        b: (m,) the costs of the other.

    >>> rank_test((1.0, 2.0), (3.0, math.inf))
    0.3333333333333333
    """
    from scipy.stats import mannwhitneyu, rankdata

    ranks, n = rankdata([*a, *b]), len(a)
    if len(ranks) > _MOST_EXACT:
        if np.ptp(ranks) == 0:
            return 1.0
        # Ranks replace the costs, because the test refuses infinities.
        return float(mannwhitneyu(ranks[:n], ranks[n:], method="asymptotic").pvalue)
    doubled = np.rint(2 * ranks).astype(np.int64)  # mean ranks are halves
    # counts[k, s]: the subsets of k ranks with the sum s
    counts: Vector = np.zeros((n + 1, int(doubled.sum()) + 1))
    counts[0, 0] = 1
    for rank in doubled:
        counts[1:, rank:] += counts[:-1, : counts.shape[1] - rank]  # numpy copies what overlaps
    expected = n * (len(ranks) + 1)  # of the doubled ranks
    distances = np.abs(np.arange(counts.shape[1]) - expected)
    is_uneven = distances >= abs(int(doubled[:n].sum()) - expected)
    return min(1.0, float(counts[n, is_uneven].sum() / counts[n].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number by Holm's method, in the same order.

    Rejecting the hypotheses with an adjusted p-value below alpha rejects a true one with a
    probability of at most alpha, however the comparisons depend on each other.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - done) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def ranking(
    samples: Mapping[str, CostSample], *, alpha: float = ALPHA
) -> dict[str, tuple[float, bool]]:
    """Rank methods by their median costs, and test which differ from the first.

    The first is chosen by the same costs that it is then compared by. All pairs are therefore
    compared and adjusted for, not only those with the first. A method that no seed brings to the
    target is not tied with one that all seeds bring there.

    Args:
        samples: The costs by method.
        alpha: The probability of calling any two equal methods different.

    Returns:
        By method, best first: the p-value of the comparison with the first, adjusted by Holm's
        method, and whether the method is tied with the first, or is the first.

    >>> costs = {"b": (5.0, 6.0, 7.0, 8.0), "a": (1.0, 2.0, 3.0, 4.0), "c": (1.5, 2.5, 3.5, 4.5)}
    >>> found = ranking({name: CostSample(values) for name, values in costs.items()}, alpha=0.1)
    >>> [(name, is_tied) for name, (p, is_tied) in found.items()]
    [('a', True), ('c', True), ('b', False)]
    """
    names = sorted(samples, key=lambda name: samples[name].order)
    pairs = list(itertools.combinations(names, 2))
    tests = [rank_test(samples[one].costs, samples[other].costs) for one, other in pairs]
    adjusted = dict(zip(pairs, holm(tests), strict=True))
    first, found = samples[names[0]], {}
    for name in names:
        p = adjusted.get((names[0], name), 1.0)
        fails = samples[name].reached == 0 and first.reached == first.seeds
        found[name] = p, p >= alpha and not fails
    return found


def needed_seeds(methods: int, *, alpha: float = ALPHA) -> int:
    """Return the least number of seeds with which `ranking` can tell methods apart.

    With n seeds each, the p-value of two methods whose costs do not overlap is 2 / C(2n, n), and
    Holm's method multiplies it by the number of pairs.

    >>> [needed_seeds(methods) for methods in (1, 2, 3, 5)]
    [1, 4, 5, 6]
    """
    pairs, seeds = math.comb(methods, 2), 1
    while pairs * 2 / math.comb(2 * seeds, seeds) >= alpha:
        seeds += 1
    return seeds


# --- paired seeds ---------------------------------------------------------------------------------


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of finite values and its 95 % interval by Student's t.

    The ends of the interval of one value are -inf and inf.

    >>> [round(value, 3) for value in t_interval([1.0, 2.0, 3.0, 4.0, 5.0])]
    [3.0, 1.037, 4.963]
    """
    from scipy.special import stdtrit

    mean, error = _mean_and_error(values)
    if len(values) == 1:
        return mean, -math.inf, math.inf
    half = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * error
    return mean, mean - half, mean + half


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, which is NaN for one value."""
    if len(set(values)) == 1:  # without the rounding of the mean
        return float(values[0]), 0.0 if len(values) > 1 else math.nan
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def no_verdict(seeds: int) -> str:
    """Write that there are too few seeds, and how many are needed.

    >>> no_verdict(3)
    'no verdict from 3 seeds: at least 5 are needed; add --seeds 5'
    """
    number = "1 seed" if seeds == 1 else f"{seeds} seeds"
    return f"no verdict from {number}: at least {MIN_SEEDS} are needed; add --seeds {MIN_SEEDS}"


@dataclass(frozen=True)
class Pair:
    """Two methods on the seeds that both have run.

    Attributes:
        first: The name of one method.
        second: The name of the other.
        a: The values of the first, one for each shared seed: inf if it did not reach the target
            or diverged (-inf if higher values are better).
        b: The values of the second, in the same order.
        scale: "ratio" compares costs by their ratio a/b, "difference" any values by a - b.
        higher_is_better: Whether larger values are better; costs are better if lower.
        adjusted: The p-value adjusted by Holm's method for all pairs that were compared.
        pairs: The number of these pairs.

    >>> pair = Pair("FedPAGE", "SCAFFOLD", (4.0, 5.0, 3.0, 4.0, 4.0), (10.0, 11.0, 9.0, 9.0, 11.0))
    >>> pair.sentence("bytes")
    'FedPAGE needs 0.40 times the bytes of SCAFFOLD [0.34, 0.47] on 5 paired seeds (p < 0.001)'
    """

    first: str
    second: str
    a: tuple[float, ...]
    b: tuple[float, ...]
    scale: Literal["ratio", "difference"] = "ratio"
    higher_is_better: bool = False
    adjusted: float | None = None
    pairs: int = 1

    @property
    def seeds(self) -> int:
        """The number of shared seeds."""
        return len(self.a)

    @property
    def has_verdict(self) -> bool:
        """Whether there are enough seeds, and a run that reached the target."""
        return self.seeds >= MIN_SEEDS and any(map(math.isfinite, (*self.a, *self.b)))

    @cached_property
    def differences(self) -> tuple[float, ...] | None:
        """log(a/b) or a - b of each seed, or None if one is not finite."""
        values = np.array([self.a, self.b], dtype=np.float64)
        if not np.isfinite(values).all() or (self.scale == "ratio" and (values == 0).any()):
            return None
        one, two = np.log(values) if self.scale == "ratio" else values
        return tuple((one - two).tolist())

    @property
    def interval(self) -> tuple[float, float, float]:
        """The geometric mean of the ratios, or the mean difference, and its 95 % interval.

        All three are NaN if a run did not reach the target.
        """
        if self.differences is None:
            return math.nan, math.nan, math.nan
        mean, low, high = t_interval(self.differences)
        is_ratio = self.scale == "ratio"
        return (_exp(mean), _exp(low), _exp(high)) if is_ratio else (mean, low, high)

    @property
    def effect_size(self) -> float:
        """Cohen's d_z: the mean log ratio (or difference) in standard deviations of the seeds.

        It is 0 if the mean is 0, inf or -inf if all seeds agree, and NaN if a run did not reach
        the target or there is one seed.
        """
        return self._t / math.sqrt(self.seeds)

    @cached_property
    def _t(self) -> float:
        """Student's t of the differences."""
        if self.differences is None or self.seeds == 1:
            return math.nan
        mean, error = _mean_and_error(self.differences)
        if error == 0:  # every seed has the same ratio: nothing is left to chance
            return math.copysign(math.inf, mean) if mean else 0.0
        return mean / error

    @property
    def wins(self) -> tuple[int, int]:
        """On how many seeds the first is better, and on how many the second."""
        lower = sum(x < y for x, y in zip(self.a, self.b, strict=True))
        higher = sum(x > y for x, y in zip(self.a, self.b, strict=True))
        return (higher, lower) if self.higher_is_better else (lower, higher)

    @property
    def superiority(self) -> float:
        """The share of seeds on which the first is better; a tie counts as half."""
        won, lost = self.wins
        return (won + (self.seeds - won - lost) / 2) / self.seeds

    @cached_property
    def p_value(self) -> float:
        """The p-value of this pair alone, two-sided.

        It is from the t test of the differences, or from the rank-sum test if a run did not reach
        the target. One seed gives 1.
        """
        from scipy.special import stdtr

        if self.differences is None:
            return rank_test(self.a, self.b)
        return 1.0 if self.seeds == 1 else float(2 * stdtr(self.seeds - 1, -abs(self._t)))

    @property
    def is_different(self) -> bool:
        """Whether the two differ significantly, after the adjustment."""
        return self.has_verdict and self._p < ALPHA

    @property
    def better(self) -> str | None:
        """The name of the better one, or None if they do not differ significantly."""
        if not self.is_different:
            return None
        if self.differences is None:
            is_first = self.superiority > 0.5
        else:
            is_first = (sum(self.differences) > 0) == self.higher_is_better
        return self.first if is_first else self.second

    def swap(self) -> Pair:
        """Return the same comparison with the second method first."""
        return replace(self, first=self.second, second=self.first, a=self.b, b=self.a)

    @property
    def _p(self) -> float:
        return self.p_value if self.adjusted is None else self.adjusted

    def sentence(self, what: str = "cost") -> str:
        """Write the comparison as a sentence.

        Args:
            what: What the values are, such as "bytes" or "held-out accuracy".
        """
        if self.seeds < MIN_SEEDS:
            return f"{self.first} and {self.second}: {no_verdict(self.seeds)}"
        p = format_p(self._p) + ("" if self.adjusted is None else " after Holm")
        end = "" if self.is_different else ": they cannot be told apart"
        if end and self.p_value < ALPHA:  # the interval, which is of this pair alone, leaves out 1
            end = f": not told apart, because {self.pairs} pairs were compared"
        if self.differences is None:
            return self._ranked_sentence(p, end)
        mean, low, high = self.interval
        if self.scale == "ratio":
            limits = [format_beside(value, 1.0) for value in (mean, low, high)]
            body = f"{self.first} needs {limits[0]} times the {what} of {self.second}"
            return f"{body} [{limits[1]}, {limits[2]}] on {self.seeds} paired seeds ({p}){end}"
        body = f"{self.first} has {abs(mean):.3g} {'more' if mean >= 0 else 'less'} {what}"
        interval = f"[{low:+.3g}, {high:+.3g}]"
        return f"{body} than {self.second} {interval} on {self.seeds} paired seeds ({p}){end}"

    def _ranked_sentence(self, p: str, end: str) -> str:
        reached = [sum(map(math.isfinite, values)) for values in (self.a, self.b)]
        if not any(reached):
            return (
                f"{self.first} and {self.second} cannot be compared: neither reaches the target "
                f"on any of {self.seeds} seeds; add rounds or choose an easier target"
            )
        won, lost = self.wins
        return (
            f"{self.first} reaches the target on {reached[0]} of {self.seeds} seeds and "
            f"{self.second} on {reached[1]}; {self.first} is ahead on {won} and {self.second} on "
            f"{lost} ({p}, rank-sum test){end}"
        )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def compare_pairs(
    values: Mapping[str, Mapping[int, float]],
    *,
    scale: Literal["ratio", "difference"] = "ratio",
    higher_is_better: bool = False,
) -> tuple[Pair, ...]:
    """Compare all pairs of methods on the seeds that they share, and adjust by Holm's method.

    Args:
        values: By method, the value of each seed; see `Pair`.
        scale: See `Pair`.
        higher_is_better: See `Pair`.

    Returns:
        The pairs in the order of the methods. A pair without a verdict is not adjusted and not
        counted by the adjustment. Methods without a shared seed make no pair.

    Raises:
        InputError: A value is NaN, or a cost is negative.

    >>> costs = {"a": (1.0, 1.1, 0.9, 1.0, 1.2), "b": (2.0, 2.1, 2.2, 1.9, 2.0)}
    >>> (pair,) = compare_pairs({name: dict(enumerate(c)) for name, c in costs.items()})
    >>> pair.better, pair.adjusted == pair.p_value
    ('a', True)
    """
    least = 0.0 if scale == "ratio" else -math.inf
    for name, own in values.items():
        wrong = next((value for value in own.values() if not value >= least), None)
        if wrong is not None:
            kind = "costs of at least 0" if scale == "ratio" else "numbers"
            raise InputError(f"{name}: values must be {kind}, not {short_repr(wrong)}")
    pairs = []
    for one, two in itertools.combinations(values, 2):
        shared = [seed for seed in values[one] if seed in values[two]]
        if shared:
            a, b = (tuple(values[name][seed] for seed in shared) for name in (one, two))
            pairs.append(Pair(one, two, a, b, scale, higher_is_better))
    tested = [pair.p_value for pair in pairs if pair.has_verdict]
    adjusted = iter(holm(tested))
    return tuple(
        replace(pair, adjusted=next(adjusted), pairs=len(tested)) if pair.has_verdict else pair
        for pair in pairs
    )
