"""Compare methods on paired seeds, and rank them over problems.

A seed gives every method the same coins and clients, so two methods are compared seed by seed. The
interval and the p-value are those of Student's t on the logarithms of the ratios:

- costs are positive and differ by factors, so their logarithms are what is nearly normal;
- with five to ten seeds a bootstrap, BCa included, holds the truth less often than it states,
  because resampling five values cannot show what five values leave open; t can;
- the interval and the test are the same computation, so they never contradict each other. An exact
  test of flipped signs cannot reject with five seeds: its least p-value is 2/32.

A run that does not reach the target has no cost but inf, and no ratio. Then nothing is averaged:
the exact rank-sum test of `fedpage.studies.judge` decides, for which inf is the largest cost.
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
from fedpage.studies.judge import LEVEL, Judgement, holm, rank_test

MIN_SEEDS = 5
"""The fewest seeds from which a verdict is given."""
ALPHA = 0.05
"""The probability of calling equal methods different."""


def t_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    """Compute the mean of normal values and its interval by Student's t.

    Args:
        values: (n,) finite values.
        level: The probability with which the interval holds the mean.

    Returns:
        The mean, the lower and the upper end; -inf and inf where n is 1.

    Raises:
        InputError: There is no value, or one is not finite.

    >>> [round(value, 3) for value in t_interval([1.0, 2.0, 3.0, 4.0, 5.0])]
    [3.0, 1.037, 4.963]
    """
    from scipy.special import stdtrit

    if len(values) == 0 or not np.isfinite(values).all():
        raise InputError(f"an interval needs finite values, not {short_repr(values)}")
    mean, error = _mean_and_error(values)
    if len(values) == 1:
        return mean, -math.inf, math.inf
    half = float(stdtrit(len(values) - 1, (1 + level) / 2)) * error
    return mean, mean - half, mean + half


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, which is NaN for one value."""
    data = np.asarray(values, dtype=np.float64)
    if np.ptp(data) == 0:  # without the rounding of the mean
        return float(data[0]), 0.0 if len(data) > 1 else math.nan
    return float(data.mean()), float(data.std(ddof=1) / math.sqrt(len(data)))


def no_verdict(seeds: int) -> str:
    """Say that there are too few seeds, and how many are needed.

    >>> no_verdict(3)
    'no verdict from 3 seeds: at least 5 are needed; add --seeds 5'
    """
    number = "1 seed" if seeds == 1 else f"{seeds} seeds"
    return f"no verdict from {number}: at least {MIN_SEEDS} are needed; add --seeds {MIN_SEEDS}"


def format_beside(value: float, *limits: float) -> str:
    """Write a number with two decimals, or more where rounding would move it across a limit.

    >>> [format_beside(value, 1.0) for value in (0.42, 0.9996, 1.0, 0.0123, 1234.5)]
    ['0.42', '0.9996', '1.00', '0.012', '1234']
    """
    if not math.isfinite(value):
        return "unbounded"
    size = math.floor(math.log10(abs(value))) if value else 0
    first = 0 if size >= 2 else max(2, 1 - size)
    texts = [f"{value:.{decimals}f}" for decimals in range(first, first + 7)]
    for text in texts:
        if all(_side(float(text), limit) == _side(value, limit) for limit in limits):
            return text
    return texts[0]


def _side(value: float, limit: float) -> int:
    return 0 if math.isclose(value, limit, rel_tol=1e-9) else 1 if value > limit else -1


def format_p(p: float) -> str:
    """Write a p-value with two digits, or more where rounding would move it across 0.05.

    >>> [format_p(p) for p in (0.00001, 0.0021, 0.0497, 0.7)]
    ['p < 0.001', 'p = 0.0021', 'p = 0.0497', 'p = 0.7']
    """
    if p < 0.001:
        return "p < 0.001"
    text = next(
        (t for t in (f"{p:.{k}g}" for k in (2, 3, 4, 5)) if (float(t) < ALPHA) == (p < ALPHA)),
        f"{p:g}",
    )
    return f"p = {text}"


# --- pairs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Two methods on the seeds that both have run.

    Attributes:
        first: The name of one method.
        second: The name of the other.
        a: The values of the first, one for each shared seed; inf where it did not reach the target
            or diverged (-inf where higher values are better).
        b: The values of the second, in the same order.
        scale: "ratio" compares costs by their ratio a/b, "difference" any values by a - b.
        higher_is_better: Whether larger values are better; costs are better if lower.
        adjusted: The p-value adjusted by Holm's method for all pairs that were compared.
        pairs: The number of these pairs.

    Raises:
        InputError: The numbers of values differ, there is none, one is NaN, or a cost is negative.

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

    def __post_init__(self) -> None:
        where = f"{self.first} and {self.second}"
        if not self.a or len(self.a) != len(self.b):
            raise InputError(
                f"{where}: give one value of each for every shared seed, "
                f"not {len(self.a)} and {len(self.b)}"
            )
        least = 0.0 if self.scale == "ratio" else -math.inf
        wrong = [value for value in (*self.a, *self.b) if not value >= least]
        if wrong:
            kind = "costs of at least 0" if self.scale == "ratio" else "numbers"
            raise InputError(f"{where}: values must be {kind}, not {short_repr(wrong[0])}")

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
        """log(a/b) or a - b of each seed; None where a seed has no finite one."""
        values = np.array([self.a, self.b], dtype=np.float64)
        if not np.isfinite(values).all() or (self.scale == "ratio" and (values == 0).any()):
            return None
        one, two = np.log(values) if self.scale == "ratio" else values
        return tuple((one - two).tolist())

    @property
    def interval(self) -> tuple[float, float, float]:
        """The geometric mean of the ratios, or the mean difference, and its 95 % interval.

        All three are NaN where a run did not reach the target.
        """
        if self.differences is None:
            return math.nan, math.nan, math.nan
        found = t_interval(self.differences)
        return tuple(map(_exp, found)) if self.scale == "ratio" else found  # type: ignore[return-value]

    @property
    def effect_size(self) -> float:
        """Cohen's d_z: the mean log ratio (or difference) in standard deviations of the seeds.

        It is 0 where the mean is 0, inf or -inf where all seeds agree, and NaN where a run did not
        reach the target or there is one seed.
        """
        if self.differences is None or self.seeds == 1:
            return math.nan
        mean, error = _mean_and_error(self.differences)
        if error == 0:
            return math.copysign(math.inf, mean) if mean else 0.0
        return mean / (error * math.sqrt(self.seeds))

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

        It is that of the t test of the differences, or of the rank-sum test where a run did not
        reach the target. One seed gives 1.
        """
        from scipy.special import stdtr
        from scipy.stats import rankdata

        if self.differences is None:
            ranks = rankdata((*self.a, *self.b))  # a Judgement takes no negative value
            return rank_test(*(Judgement(tuple(half)) for half in np.split(ranks, 2)))
        mean, error = _mean_and_error(self.differences)
        if mean == 0 or self.seeds == 1:
            return 1.0
        if error == 0:  # every seed has the same ratio: nothing is left to chance
            return 0.0
        return float(2 * stdtr(self.seeds - 1, -abs(mean) / error))

    @property
    def is_different(self) -> bool:
        """Whether the seeds tell the two apart, after the adjustment."""
        return self.has_verdict and self._p < ALPHA

    @property
    def better(self) -> str | None:
        """The name of the better one; None where they cannot be told apart."""
        if not self.is_different:
            return None
        if self.differences is None:
            ahead = self.superiority > 0.5
        else:
            ahead = (sum(self.differences) > 0) == self.higher_is_better
        return self.first if ahead else self.second

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

    >>> costs = {"a": (1.0, 1.1, 0.9, 1.0, 1.2), "b": (2.0, 2.1, 2.2, 1.9, 2.0)}
    >>> (pair,) = compare_pairs({name: dict(enumerate(c)) for name, c in costs.items()})
    >>> pair.better, pair.adjusted == pair.p_value
    ('a', True)
    """
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


def tied_with_best(best: str, pairs: Sequence[Pair]) -> frozenset[str]:
    """Return the best method and those that its pairs do not tell from it.

    Args:
        best: The best method.
        pairs: All pairs, adjusted together, so that choosing the best by the same values does no
            harm.

    Returns:
        The names; none where a pair of the best has no verdict, because then nobody is known to be
        behind.
    """
    own = [pair for pair in pairs if best in (pair.first, pair.second)]
    if not own or not all(pair.has_verdict for pair in own):
        return frozenset()
    others = {pair.second if pair.first == best else pair.first: pair for pair in own}
    return frozenset({best, *(name for name, pair in others.items() if not pair.is_different)})
