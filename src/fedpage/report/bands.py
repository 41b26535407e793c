"""Summarise runs that differ by their seed: medians, means and bands over them at equal costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.runs.history import History

Band: TypeAlias = Literal["quantiles", "mean-ci"]
LEVEL = 0.95
"""The confidence of the interval of a mean."""


@dataclass(frozen=True)
class Summary:
    """How curves summarise runs that differ by their seed.

    Attributes:
        band: "quantiles": the median and two quantiles. "mean-ci": the mean and its confidence
            interval.
        quantiles: The lower and the upper quantile, from 0 to 1.
    """

    band: Band = "quantiles"
    quantiles: tuple[float, float] = (0.25, 0.75)

    def __post_init__(self) -> None:
        if self.band not in ("quantiles", "mean-ci"):
            raise InputError(f"band must be 'quantiles' or 'mean-ci', not {short_repr(self.band)}")
        pair = tuple(self.quantiles)
        if len(pair) != 2 or not 0 <= pair[0] <= pair[1] <= 1:
            raise InputError(
                "quantiles must be two numbers from 0 to 1, the smaller first, not "
                f"{short_repr(pair)}"
            )

    def compute(
        self, runs: Sequence[History], x: str, y: str, *, is_log: bool = False
    ) -> tuple[Vector, Vector]:
        """Compute the line and the band of a column over runs of one method, at equal costs.

        A run's value at a cost is its newest record by then. The band ends where fewer than half of
        the runs have come so far. A run that ended early keeps its last value; a diverged run
        counts as worse than any number from its last finite record on.

        On a logarithmic axis mean and interval are computed from logarithms, so that the line is
        the geometric mean and no interval reaches below 0. A single run has no interval, and there
        is no mean where a run has diverged.

        Args:
            runs: The runs.
            x: The cost.
            y: The recorded column.
            is_log: Whether the column is drawn on a logarithmic axis.

        Returns:
            The costs (m,), and low, middle and high (3, m) at them.
        """
        grid, table = _align(runs, x, y)
        if self.band == "quantiles":
            low, high = np.quantile(table, self.quantiles, axis=0, method="nearest")
            return grid, np.array([low, np.median(table, axis=0), high])
        from scipy.stats import t

        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(table) if is_log else table
            middle = values.mean(axis=0)
            reach = np.zeros_like(middle)
            if len(runs) > 1:
                spread = values.std(axis=0, ddof=1) / np.sqrt(len(runs))
                reach = t.ppf((1 + LEVEL) / 2, len(runs) - 1) * spread
            reach[~np.isfinite(reach)] = 0.0  # a value is infinite, or 0 on a logarithmic axis
            band = np.array([middle - reach, middle, middle + reach])
            return grid, np.exp(band) if is_log else band

    def describe(self, groups: Mapping[str, Sequence[History]], *, is_log: bool) -> str:
        """Describe lines and bands, such as "median and quartiles, 5 seeds".

        The text is "" if no curve has more than one run.
        """
        counts = sorted({len(group) for group in groups.values() if group})
        if not counts or counts[-1] < 2:
            return ""
        seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
        low, high = self.quantiles
        if self.band == "quantiles":
            words = f"median, {100 * low:g} % to {100 * high:g} % quantiles"
            return f"{'median and quartiles' if (low, high) == (0.25, 0.75) else words}, {seeds}"
        interval = f"{100 * LEVEL:g} % t-interval"
        if is_log:
            return f"geometric mean, {interval} of logarithms, {seeds}"
        return f"mean, {interval}, {seeds}"


def _align(runs: Sequence[History], x: str, y: str) -> tuple[Vector, Vector]:
    """Return a grid of costs (m,) and each run's values at them (runs, m).

    A value is NaN, which makes a gap, where the newest record is of some of the clients only.
    """
    worst = -np.inf if find_direction(runs, y) else np.inf
    costs = [run.cost(x) for run in runs]
    if x in ("round", "rounds"):
        grid = np.unique(np.concatenate(costs))
    else:
        low, high = max(c[0] for c in costs), float(np.median([c[-1] for c in costs]))
        grid = np.unique(np.concatenate([[low], np.linspace(low, high, 300)]))
    table = np.empty((len(runs), len(grid)))
    for row, run, cost in zip(table, runs, costs, strict=True):
        value, whole = run[y], run.measured_by_all(y)
        newest = np.searchsorted(cost, grid, side="right").clip(min=1) - 1
        row[:] = value[newest]
        row[~np.isfinite(row)] = worst
        row[np.isnan(whole[newest]) & ~np.isnan(value[newest])] = np.nan
        if run.diverged:  # nothing is known of it after its last finite record
            row[grid > cost[np.isfinite(value)].max(initial=-1.0)] = worst
    return grid, table


def find_direction(runs: Iterable[History], column: str) -> bool | None:
    """Look up whether higher values of a column are better; None if no run declares it."""
    for run in runs:
        try:
            return run.higher_is_better(column)
        except InputError:
            continue
    return None


def use_log_axis(direction: bool | None, drawn: Iterable[Vector]) -> bool:
    """Decide whether the axis of drawn values is logarithmic.

    It is where lower values are known to be better, none is negative, and the values fall by a
    factor of ten or more, or to exactly 0.
    """
    values = np.concatenate([*drawn, []])
    values = values[~np.isnan(values)]
    if direction is not False or not (values > 0).any() or (values < 0).any():
        return False
    return bool(values.max() >= 10 * values.min())


def diverged_note(group: Sequence[History]) -> str:
    """Return notes such as " (1 of 3 diverged)" on the runs of a group; "" if there are none.

    Another note says that records of some of the clients are left out, as gaps.
    """
    count = sum(run.diverged for run in group)
    notes = [f"{count} of {len(group)} diverged" if len(group) > 1 else "diverged"] if count else []
    partial = sum(int((~run.complete()).sum()) for run in group)
    if partial:
        notes.append(f"gaps: {partial} record{'s' * (partial > 1)} of some clients")
    return f" ({'; '.join(notes)})" if notes else ""
