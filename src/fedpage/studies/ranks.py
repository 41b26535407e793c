"""Rank methods over problems: mean ranks, Friedman's test and Nemenyi's critical difference.

As Demšar advises (Statistical comparisons of classifiers over multiple data sets, JMLR 2006): ranks
are used because costs of different problems have no common scale.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.validate import as_number
from fedpage.report.numbers import format_p
from fedpage.studies.statistics import ALPHA


@dataclass(frozen=True)
class MeanRanks:
    """Mean ranks of methods over problems, best first.

    Attributes:
        mean_ranks: The mean rank of each method, at best 1.
        problems: The number of problems.
        chi_square: Friedman's statistic, corrected for ties.
        p_value: The p-value of the hypothesis that all methods are equal, by Iman and Davenport's
            F statistic, which is less conservative than the chi-square.
        critical_difference: Methods whose mean ranks differ by less do not differ significantly
            (Nemenyi's test of all pairs, 5 %).
    """

    mean_ranks: Mapping[str, float]
    problems: int
    chi_square: float
    p_value: float
    critical_difference: float

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The largest groups of two or more methods without significant differences, best first."""
        names, ranks = list(self.mean_ranks), list(self.mean_ranks.values())
        found: list[tuple[str, ...]] = []
        reached = 0
        for start in range(len(names)):
            end = start
            while end < len(names) and ranks[end] - ranks[start] < self.critical_difference:
                end += 1
            if end - start > 1 and end > reached:
                found.append(tuple(names[start:end]))
                reached = end
        return tuple(found)

    def sentence(self) -> str:
        """Write the result as a sentence."""
        (best, rank), *_ = self.mean_ranks.items()
        start = f"{best} has the best mean rank, {rank:.2f} over {self.problems} problems"
        test = f"Friedman's test: {format_p(self.p_value)}"
        if self.p_value >= ALPHA:
            return f"{start}, but the problems do not tell the methods apart ({test})"
        tied = [name for group in self.groups if best in group for name in group[1:]]
        rest = f"; not told from it: {', '.join(tied)}" if tied else ""
        return f"{start} ({test}; critical difference {self.critical_difference:.2f}){rest}"


def rank_over_problems(
    costs: Mapping[str, Mapping[str, float]], *, alpha: float = ALPHA
) -> MeanRanks:
    """Rank methods on each problem, and test whether their mean ranks differ.

    Args:
        costs: By problem, the cost of each method, such as its median over seeds, or inf if it
            did not reach the target. Equal costs share their mean rank.
        alpha: The probability of calling any two equal methods different.

    Returns:
        The mean ranks with the tests.

    Raises:
        InputError: There are fewer than two problems or methods, a problem lacks a method, or a
            cost is NaN.

    >>> costs = {f"problem {i}": {"a": 1.0, "b": 2.0 + i, "c": 9.0} for i in range(8)}
    >>> ranks = rank_over_problems(costs)
    >>> ranks.mean_ranks, round(ranks.critical_difference, 2), ranks.groups
    ({'a': 1.0, 'b': 2.0625, 'c': 2.9375}, 1.17, (('a', 'b'), ('b', 'c')))
    """
    from scipy.stats import f as f_distribution
    from scipy.stats import rankdata, studentized_range

    names = list(dict.fromkeys(itertools.chain.from_iterable(costs.values())))
    N, k = len(costs), len(names)
    if N < 2 or k < 2:
        raise InputError(
            f"ranks over problems need at least 2 problems and 2 methods, not {N} and {k}"
        )
    for problem, row in costs.items():
        wrong = [name for name in names if name not in row or math.isnan(row[name])]
        if wrong:
            raise InputError(f"problem {problem}: {wrong[0]} has no cost; run it there too")
    ranks = np.array([rankdata([row[name] for name in names]) for row in costs.values()])
    means = ranks.mean(axis=0)
    # The variance of the ranks that occur, which ties reduce.
    spread = float(((ranks - (k + 1) / 2) ** 2).sum()) / (k - 1)
    between = float(N**2 * ((means - (k + 1) / 2) ** 2).sum())
    chi_square = between / spread if spread else 0.0
    rest = N * (k - 1) - chi_square
    if rest <= 1e-12 * N * k:  # the same ranks on every problem
        p = 0.0
    else:
        p = float(f_distribution.sf((N - 1) * chi_square / rest, k - 1, (k - 1) * (N - 1)))
    if not 0 < as_number(alpha) < 1:
        raise InputError(f"alpha must be between 0 and 1, not {short_repr(alpha)}")
    q = float(studentized_range.ppf(1 - alpha, k, np.inf)) / math.sqrt(2)
    order = np.argsort(means, kind="stable")
    return MeanRanks(
        {names[i]: float(means[i]) for i in order},
        N,
        chi_square,
        p,
        q * math.sqrt(k * (k + 1) / (6 * N)),
    )
