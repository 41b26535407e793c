"""Curves of runs: gradient norm or loss against rounds, bytes or gradients; median and quantile band over seeds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import Vector
from fedpage.runs.history import History, by_method

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's palette (2008), which colour-blind readers can tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
NAMES = {
    "round": "communication rounds",
    "bytes": "bytes, up and down",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "clients": "clients called",
    "gradients": "gradients of single rows, all clients",
    "gradients_per_client": "gradients per called client",
    "seconds": "seconds in rounds",
    "grad_norm": "gradient norm",
    "loss": "loss",
}


def _given(histories: Iterable[History]) -> list[History]:
    """The histories as a list; one alone will do."""
    runs = [histories] if isinstance(histories, History) else list(histories)
    if not any(len(run) for run in runs):
        raise InputError("nothing to plot: no histories given")
    return [run for run in runs if len(run)]


def band(
    runs: Sequence[History], x: str, y: str, quantiles: tuple[float, float]
) -> tuple[Vector, Vector]:
    """Grid (m,) of costs, and (3, m) low, median and high of y at them over the runs.

    A run's value at a cost is its newest record by then. Where fewer than half of the runs have come so far, the band
    ends; where one run ended early (it reached its target or diverged), its last value stands.
    """
    costs = [run[x] for run in runs]
    values = [run[y] for run in runs]
    if x == "round":
        grid = np.unique(np.concatenate(costs))
    else:
        low, high = max(c[0] for c in costs), float(np.median([c[-1] for c in costs]))
        grid = np.unique(np.concatenate([[low], np.linspace(low, high, 300)]))
    table = np.empty((len(runs), len(grid)))
    for row, run, cost, value in zip(table, runs, costs, values, strict=True):
        row[:] = value[np.searchsorted(cost, grid, side="right").clip(min=1) - 1]
        row[~np.isfinite(row)] = np.inf  # worse than any number
        if run.diverged:  # nothing is known of it after its last finite record
            row[grid > cost[np.isfinite(value)].max(initial=-1.0)] = np.inf
    low, high = np.quantile(table, quantiles, axis=0, method="nearest")
    return grid, np.array([low, np.median(table, axis=0), high])


def scale(ax: Any, drawn: Iterable[Vector], name: str) -> None:
    """Label the y axis, and make it logarithmic where the drawn values allow it: some positive, none negative.

    An exact 0 has no place on such an axis; its curve leaves through the lower edge, and the label says so.
    """
    values = np.concatenate([*drawn, []])
    if (values > 0).any() and not (values < 0).any():
        ax.set_yscale("log")
        if (values == 0).any():
            name += " (0: through the lower edge)"
    ax.set_ylabel(name)


def curves(
    histories: Iterable[History],
    *,
    x: str = "round",
    y: str = "grad_norm",
    ax: Any = None,
    quantiles: tuple[float, float] = (0.25, 0.75),
    title: str | None = None,
) -> Any:
    """Draw one curve per method (median over seeds, with a band) on a log axis; returns the matplotlib Axes.

    x: "round", "bytes", "bytes_up", "bytes_down", "clients", "gradients", "gradients_per_client" or "seconds".
    ax: where to draw; None makes a new figure, which is `ax.figure`.
    """
    runs = _given(histories)
    low_high = tuple(quantiles)
    if len(low_high) != 2 or not 0 <= low_high[0] <= low_high[1] <= 1:
        raise InputError(
            f"quantiles must be two numbers from 0 to 1, the smaller first, not {quantiles!r}"
        )
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(6.4, 4.2), layout="constrained").subplots()
    medians = []
    for number, (label, group) in enumerate(by_method(runs).items()):
        grid, (low, middle, high) = band(group, x, y, quantiles)
        drawn = np.isfinite(middle)
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        every = max(1, int(drawn.sum()) // 9)
        ax.plot(
            grid[drawn], middle[drawn], color=colour, marker=marker, markevery=(number * every // 4, every),
            markersize=5, linewidth=1.6, label=label + _gone(group),
        )  # fmt: skip
        if len(group) > 1:
            ax.fill_between(
                grid[drawn],
                low[drawn],
                np.minimum(high, 1e300)[drawn],
                color=colour,
                alpha=0.18,
                linewidth=0,
            )
        medians.append(middle[drawn])
    scale(ax, medians, NAMES.get(y, y))
    if x.startswith("bytes"):
        from matplotlib.ticker import EngFormatter

        ax.xaxis.set_major_formatter(EngFormatter(unit="B", places=None))
    ax.set_xlabel(NAMES.get(x, x))
    if title:
        ax.set_title(title)
    ax.grid(True, which="major", alpha=0.25, linewidth=0.6)
    ax.legend(frameon=False)
    return ax


def _gone(group: Sequence[History]) -> str:
    gone = sum(run.diverged for run in group)
    return (
        ""
        if not gone
        else f" ({gone} of {len(group)} diverged)"
        if len(group) > 1
        else " (diverged)"
    )


def save(
    histories: Iterable[History], path: str | os.PathLike[str], *, dpi: int = 160, **options: Any
) -> Path:
    """Draw `curves` into a file; the suffix chooses PNG, PDF, SVG or PGF."""
    path = Path(path)
    ax = curves(histories, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        ax.figure.savefig(path, dpi=dpi)
    except ValueError as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    return path


def heat_map(found: Any, grid: Mapping[str, Sequence[Any]], path: str | os.PathLike[str]) -> Path:
    """The costs of a search (`fedpage.studies.tune.Tuning`) over the first two searched hyper-parameters; crosses: not reached.

    Other searched ones are at their best. Axes are in the order of the values, which need not be evenly spaced.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    names = list(grid)[:2]
    axes = [sorted({_coordinate(method, name) for method, _ in found.scores}) for name in names]
    rows = axes[1] if len(names) > 1 else [0.0]
    table = np.full((len(rows), len(axes[0])), np.inf)
    for method, score in found.scores:
        at = axes[0].index(_coordinate(method, names[0]))
        row = rows.index(_coordinate(method, names[1])) if len(names) > 1 else 0
        table[row, at] = min(table[row, at], score.cost)
    figure = Figure(
        figsize=(1.6 + 0.62 * len(axes[0]), 1.7 + 0.5 * len(rows)), layout="constrained"
    )
    ax = figure.subplots()
    reached = np.isfinite(table)
    if reached.any():
        low, high = float(table[reached].min()), float(table[reached].max())
        norm = LogNorm(low, high) if 0 < low < high else None
        image = ax.imshow(
            np.where(reached, table, np.nan), cmap="viridis_r", norm=norm, aspect="auto"
        )
        figure.colorbar(image, ax=ax, label=f"{found.cost} to {found.target:g}")
    for row, column in zip(*np.nonzero(~reached), strict=True):
        ax.plot(column, row, marker="x", color="#888888", markersize=6)
    best = found.method
    at = axes[0].index(_coordinate(best, names[0]))
    row = rows.index(_coordinate(best, names[1])) if len(names) > 1 else 0
    ax.plot(at, row, marker="*", color="#D55E00", markersize=13)
    ax.set_xticks(range(len(axes[0])), [f"{v:.3g}" for v in axes[0]], rotation=45)
    ax.set_yticks(range(len(rows)), [f"{v:.3g}" for v in rows] if len(names) > 1 else [""])
    ax.set_xlim(-0.5, len(axes[0]) - 0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel({"step": "effective step", "rho": "K eta_l / eta_g"}.get(names[0], names[0]))
    ax.set_ylabel(
        ({"step": "effective step", "rho": "K eta_l / eta_g"} | {}).get(names[1], names[1])
        if len(names) > 1
        else ""
    )
    ax.set_title(f"{best.name}: star, the winner; cross, not reached", fontsize=10)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path


def _coordinate(method: Any, name: str) -> float:
    """A candidate's value of a searched hyper-parameter."""
    if name == "step":
        return float(f"{method.effective_step:.6g}")
    if name == "rho":
        return float(f"{method.K * method.local_step / method.eta_g:.6g}")
    value = getattr(method, name)
    return float("inf") if value is None else float(f"{value:.6g}")


def pair(
    histories: Iterable[History], path: str | os.PathLike[str], title: str, dpi: int = 160
) -> Path:
    """Two panels in one file: gradient norm against rounds and against bytes."""
    from matplotlib.figure import Figure

    runs, path = _given(histories), Path(path)
    figure = Figure(figsize=(10.4, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    curves(runs, x="round", ax=left)
    curves(runs, x="bytes", ax=right)
    right.set_ylabel("")
    right.get_legend().remove()
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    return path
