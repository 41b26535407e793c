"""Compare the costs of methods to a target, by sentences and a table, and their ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedpage.core.columns import Cost, Target, TargetLike, describe_column
from fedpage.core.errors import InputError, short_repr
from fedpage.core.validate import as_number
from fedpage.report.numbers import format_beside, format_digits, format_p, scale_unit
from fedpage.report.summary import end_value
from fedpage.report.tables import Cell, Table
from fedpage.report.titles import by_method, list_runs
from fedpage.runs.history import History
from fedpage.studies.statistics import (
    ALPHA,
    MIN_SEEDS,
    CostSample,
    Pair,
    compare_pairs,
    no_verdict,
)

_NOUNS = {"bytes": "bytes", "bits": "bits", "round": "rounds"}
"""Costs whose names are shorter than their labels."""
_MOST_PAIRS = 10
"""The most pairs of which each has a sentence; of more, those with the best have."""


@dataclass(frozen=True)
class Comparison:
    """The costs of methods to a target, on seeds that they share.

    Attributes:
        costs: By method, the cost of each seed, interpolated between records; inf if the target
            was not reached.
        ends: By method, how many runs end at the target, and their median value at the end.
        target: The target.
        cost: The cost.
        title: What the runs are about, for the caption.
        remarks: Further notes of the table.
    """

    costs: Mapping[str, Mapping[int, float]]
    ends: Mapping[str, tuple[int, float]]
    target: Target
    cost: Cost
    title: str = ""
    remarks: tuple[str, ...] = ()

    @classmethod
    def of_runs(
        cls,
        groups: Mapping[str, Sequence[History]],
        target: Target,
        cost: str | Cost,
        title: str = "",
        remarks: tuple[str, ...] = (),
    ) -> Comparison:
        """Compare runs that are grouped by method.

        Raises:
            InputError: A method has two runs with one seed, or a column is not recorded.
        """
        cost = Cost.parse(cost)
        costs: dict[str, dict[int, float]] = {}
        ends = {}
        for label, runs in groups.items():
            own = costs.setdefault(label, {})
            for number, run in enumerate(runs):
                seed = int(run.meta.get("seed", number))
                if seed in own:
                    raise InputError(f"{label} has two runs with seed {seed}; leave one out")
                own[seed] = run.cost_to(target, cost)
            value = float(np.median([end_value(run, target.column) for run in runs]))
            ends[label] = (sum(run.ends_at(target) for run in runs), value)
        return cls(costs, ends, target, cost, title, remarks)

    @cached_property
    def samples(self) -> dict[str, CostSample]:
        """The median cost of each method with its interval, the best method first."""
        found = {name: CostSample(tuple(costs.values())) for name, costs in self.costs.items()}
        return dict(sorted(found.items(), key=lambda item: item[1].order))

    @property
    def best(self) -> str:
        """The method with the least median cost."""
        return next(iter(self.samples))

    @property
    def seeds(self) -> int:
        """The least number of seeds of a method."""
        return min(map(len, self.costs.values()))

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs, adjusted by Holm's method, the method with the smaller median first."""
        return compare_pairs({name: self.costs[name] for name in self.samples})

    @property
    def tied(self) -> frozenset[str]:
        """The best method and all methods not significantly different from it.

        It is empty with too few seeds. A method whose median did not reach the target is left out.
        All pairs are adjusted for, so that choosing the best by the same costs does no harm.
        """
        own = [pair for pair in self.pairs if pair.first == self.best]
        if not own or not all(pair.has_verdict for pair in own):
            return frozenset()
        found = [self.best, *(pair.second for pair in own if not pair.is_different)]
        return frozenset(name for name in found if math.isfinite(self.samples[name].median))

    @property
    def noun(self) -> str:
        """The cost in words, such as "bytes"."""
        return _NOUNS.get(self.cost.name, self.cost.short_name)

    def sentences(self) -> list[str]:
        """Write a sentence for each pair, or for those with the best if the pairs are many."""
        if not self.pairs:
            return []
        most = max(pair.seeds for pair in self.pairs)
        if most < MIN_SEEDS:
            text = no_verdict(most)
            return [f"{text[0].upper()}{text[1:]}."]
        every = len(self.pairs) <= _MOST_PAIRS
        shown = [pair for pair in self.pairs if every or pair.first == self.best]
        return [f"{pair.sentence(self.noun)}." for pair in shown]

    def lines(self) -> list[str]:
        """Write a line for each method's cost, and then the sentences."""
        column = self.cost.column
        head = f"{column.label.capitalize()} to {self.target.title}, interpolated between records; "
        costs = [f"  {name}: {self.samples[name].text(column.unit)}" for name in self.costs]
        head += f"medians and {100 * self.level:.0f} % intervals:"
        return [head, *costs, *self.sentences()]

    def table(self) -> Table:
        """Make a table with medians, intervals, ends of runs and ratios to the best.

        Bold are the best median and the medians that do not differ significantly from it.
        """
        least = self.samples[self.best].median
        scale, unit = scale_unit(least if math.isfinite(least) else 0.0, self.cost.column.unit)
        heading = f"median ({unit.strip()})" if unit.strip() else "median"
        columns = ["method", "reached", "at end", "end value", heading, "low", "high"]
        groups = [("", 4), (f"{self.noun} to {self.target.title}", 3)]
        if self.pairs:
            columns += ["ratio", "low", "high", "p"]
            groups.append((f"times {self.best}", 4))
        rows = []
        for name in self.costs:
            found, (at_end, value) = self.samples[name], self.ends[name]
            scaled = [cost / scale for cost in (found.median, found.low, found.high)]
            middle, low, high = (Cell(_three_digits(cost), cost) for cost in scaled)
            row = [
                Cell(name),
                Cell(f"{found.reached}/{found.seeds}"),
                Cell(f"{at_end}/{found.seeds}"),
                Cell("-" if math.isnan(value) else f"{value:.3g}", value),
                replace(middle, is_bold=name in self.tied),
                *_in_brackets(low, high),
            ]
            rows.append((*row, *(self._ratio_cells(name) if self.pairs else ())))
        caption = (
            f"{self.noun.capitalize()} to {self.target.title}, medians over {self.seeds} seeds."
        )
        caption = f"{self.title}: {caption}" if self.title else caption
        notes = (*self._notes(), *self.remarks)
        return Table(tuple(columns), tuple(rows), caption, notes, tuple(groups))

    def _ratio_cells(self, name: str) -> tuple[Cell, ...]:
        """Return the ratio to the best, its interval and its p-value."""
        if name == self.best and math.isfinite(self.samples[name].median):
            return Cell("1", 1.0), Cell("", ""), Cell("", ""), Cell("", "")
        pair = next((p for p in self.pairs if (p.first, p.second) == (self.best, name)), None)
        if pair is None:  # no shared seed
            return (Cell("-", math.nan),) * 4
        ratio, low, high = (
            Cell("-" if math.isnan(value) else format_beside(value, 1.0), value)
            for value in pair.swap().interval
        )
        p = pair.adjusted
        shown = "-" if p is None else format_p(p).removeprefix("p ").removeprefix("= ")
        return ratio, *_in_brackets(low, high), Cell(shown, math.nan if p is None else p)

    @property
    def level(self) -> float:
        """The least probability with which the interval of a median holds it."""
        return min((found.level for found in self.samples.values()), default=0.0)

    def _notes(self) -> tuple[str, ...]:
        brackets = f"Brackets: {100 * self.level:.0f} % intervals of the median (order statistics)"
        notes = [f"{brackets}."]
        if self.pairs:
            notes = [f"{brackets}; 95 % t-intervals of the ratio of paired costs."]
            notes.append("p: adjusted by Holm's method for all pairs.")
        value = f"median {describe_column(self.target.column).label}"
        notes.append(f"At end: runs whose last record is at the target; end value: {value}.")
        if self.tied:
            notes.append(
                "Bold: the least median, and medians that do not differ significantly from it "
                f"(p at least {ALPHA:g})."
            )
        elif self.pairs and self.seeds < MIN_SEEDS:
            notes.append(f"Nothing is bold: {no_verdict(self.seeds)}.")
        if any(not math.isfinite(cost) for costs in self.costs.values() for cost in costs.values()):
            notes.append("Dashes: runs did not reach the target; p is then of the rank-sum test.")
        return tuple(notes)


def _in_brackets(low: Cell, high: Cell) -> tuple[Cell, Cell]:
    """Write an interval over two columns, "[1.2," and "3.4]"."""
    if {low.text, high.text} == {"-"}:
        return low, high
    return replace(low, text=f"[{low.text},"), replace(high, text=f"{high.text}]")


def _three_digits(value: float) -> str:
    """Write a number with three digits, zeros included; "-" stands for inf."""
    if not math.isfinite(value):
        return "-"
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else format_digits(value)


def compare_costs(
    histories: Iterable[History],
    *,
    target: TargetLike,
    cost: str | Cost = "bytes",
) -> Comparison:
    """Compare what methods cost to reach a target, with the arguments of `fp.table`.

    Returns:
        The comparison, with sentences and a table.

    Raises:
        InputError: There is no history, a method has two runs with one seed, or a column is not
            recorded.
    """
    return Comparison.of_runs(by_method(list_runs(histories)), Target.parse(target), cost)


def table(
    histories: Iterable[History],
    *,
    target: TargetLike,
    cost: str | Cost = "bytes",
) -> Table:
    """Make a table of what methods cost to reach a target, the best values in bold.

    Args:
        histories: Runs of any methods and seeds, as `fp.sweep` returns them.
        target: What is to be reached and held, such as "accuracy:0.9"; see `History.cost_to`.
        cost: The cost: a column, or a sum such as "up+0.1*down".

    Returns:
        The table. `str` gives plain text, `to_latex`, `to_markdown` and `to_csv` other formats, and
        `write` writes a file in the format of its suffix.

    Raises:
        InputError: As `compare_costs`.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20)
    >>> runs = fp.sweep(problem, [fp.PAGE(S=5), fp.FedAvg(S=5)], rounds=40, seeds=5)
    >>> fp.table(runs, target=0.1, cost="round").headings[:7]
    ('method', 'reached', 'at end', 'end value', 'median', 'low', 'high')
    """
    return compare_costs(histories, target=target, cost=cost).table()


# --- several problems -----------------------------------------------------------------------------
# Costs of different problems have no common scale, so methods are ranked, as Demšar advises
# (Statistical comparisons of classifiers over multiple data sets, JMLR 2006).


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
