"""Compute the counts, tables and plot of communication.py from histories."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fedpage as fp
from fedpage.report.style import OTHER_STYLES
from fedpage.runs.provenance import versions as provenance_versions

IMAGE = Path(__file__).parents[1] / "docs" / "img" / "communication.png"
TITLES = {"robust": "robust regression", "logistic-nonconvex": "logistic, nonconvex regulariser"}


@dataclass(frozen=True)
class Cost:
    """Median costs of a target over seeds; inf where fewer than half of the seeds reached it."""

    rounds: float
    clients: float
    up: float
    down: float
    """Bytes down as the library sends them: FedPAGE's local steps need two vectors."""
    down_paper: float
    """Bytes down as the paper sends them: FedPAGE's local steps need three vectors."""
    total: float
    """Bytes up and down, as the library sends them."""
    gradients: float
    """Gradients of single rows per called client, summed over rounds."""
    reached: int
    seeds: int
    best: float
    """The median over seeds of the smallest gradient norm; a run ends at its last target."""


@dataclass(frozen=True)
class Line:
    """A method's line in a table."""

    name: str
    title: str
    costs: Mapping[float, Cost]
    chosen: Mapping[float, Mapping[str, Any]]
    """For each search's target: the keys "method" (the winner), "command", "reached", "edge"."""


def bytes_down_in_paper(history: fp.History) -> np.ndarray:
    """Return the (records,) bytes down if FedPAGE sent x, x_prev and g, as in the paper.

    The library sends x_prev and g, which give x = x_prev - eta_g g. A client receives one vector in
    a full round and two for local steps, so the bytes sent tell how many clients made local steps.
    Other methods, the leak-free FedPAGE, and FedPAGE with a codec for messages, which the paper
    does not have, are counted as they are sent.
    """
    down, method = history["bytes_down"], history.meta["method"]
    if not issubclass(getattr(fp, method["class"], object), fp.FedPAGE) or method["leak_free"]:
        return down
    if method.get("down", "none") != "none":
        return down
    vector = 8 * history.meta["problem"]["d"]
    clients_with_local_steps = down / vector - history["clients"]
    return down + vector * clients_with_local_steps


def _middle(values: Iterable[float]) -> float:
    return statistics.median_high(values)


def cost(histories: Sequence[fp.History], target: float) -> Cost:
    """Return the costs at which runs reached a gradient norm, where f(x) <= f(x0)."""
    paid: dict[str, list[float]] = {
        name: [] for name in ("rounds", "clients", "up", "down", "down_paper", "total", "gradients")
    }
    for history in histories:
        hit = np.flatnonzero((history["grad_norm"] <= target) & history.progress())
        columns = {
            "rounds": history["round"], "clients": history["clients"], "up": history["bytes_up"],
            "down": history["bytes_down"], "down_paper": bytes_down_in_paper(history),
            "total": history["bytes"], "gradients": history["gradients_per_client"],
        }  # fmt: skip
        for name, column in columns.items():
            paid[name].append(float(column[hit[0]]) if len(hit) else math.inf)
    return Cost(
        **{name: _middle(values) for name, values in paid.items()},
        reached=sum(math.isfinite(value) for value in paid["rounds"]),
        seeds=len(histories),
        best=_middle(history.best("grad_norm") for history in histories),
    )


def _number(value: float, scale: float = 1.0) -> str:
    if not math.isfinite(value):
        return "-"
    value /= scale
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _cells(costs: Sequence[Cost], what: str, scale: float = 1.0) -> str:
    return " / ".join(_number(getattr(each, what), scale) for each in costs)


def _norm(value: float) -> str:
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def table(heading: str, lines: Sequence[Line], terms: Any) -> str:
    """Return a Markdown table: one line per method, one number per target in each cell."""
    targets = [target for _, aims in terms.tuned_for for target in aims]
    norms = " / ".join(_norm(target).replace(".0", "") for target in targets)
    heads = [
        "method", "rounds", "clients called", "MB up", "MB down, three vectors",
        "MB down, two vectors", "gradients per client", f"seeds of {terms.seeds}", "best norm",
    ]  # fmt: skip
    rows = [
        f"**{heading}**, to {norms}:",
        "",
        f"| {' | '.join(heads)} |",
        "|---" + "|---:" * (len(heads) - 1) + "|",
    ]
    for line in lines:
        costs = [line.costs[target] for target in targets]
        mega = [_cells(costs, what, 1e6) for what in ("up", "down_paper", "down")]
        cells = [
            line.title,
            _cells(costs, "rounds"),
            _cells(costs, "clients"),
            *mega,
            _cells(costs, "gradients"),
        ]
        cells += [" / ".join(str(each.reached) for each in costs)]
        cells += ["" if costs[-1].reached == terms.seeds else _norm(costs[-1].best)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def short_table(heading: str, lines: Sequence[Line], terms: Any) -> str:
    """Return a Markdown table of bytes: one line per method, one number per target in a cell."""
    targets = [target for _, aims in terms.tuned_for for target in aims]
    norms = " / ".join(_norm(target).replace(".0", "") for target in targets)
    heads = ["method", "rounds", "MB up", "MB down", "MB total"]
    heads += ["gradients per client", f"seeds of {terms.seeds}", "best norm"]
    rows = [
        f"**{heading}**, to {norms}:",
        "",
        f"| {' | '.join(heads)} |",
        "|---" + "|---:" * (len(heads) - 1) + "|",
    ]
    for line in lines:
        costs = [line.costs[target] for target in targets]
        cells = [line.title, _cells(costs, "rounds")]
        cells += [_cells(costs, what, 1e6) for what in ("up", "down", "total")]
        cells += [_cells(costs, "gradients"), " / ".join(str(each.reached) for each in costs)]
        cells += ["" if costs[-1].reached == terms.seeds else _norm(costs[-1].best)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def label(method: Any, settings: Mapping[str, str]) -> str:
    """Return a method's name and what was set, such as "FedPAGE, up=natural"."""
    return ", ".join([method.name, *(f"{key}={value}" for key, value in settings.items())])


def _winner(found: Mapping[str, Any]) -> str:
    """Return the winner's step and second parameter; * means that the target was not reached."""
    method = found["method"]
    if isinstance(method, fp.FedPAGE):
        second = f", rho {method.K * method.local_step / method.eta_g:g}" if method.K > 1 else ""
    else:
        both = hasattr(method, "eta_g") and hasattr(method, "eta_l")
        second = f", eta_g {method.eta_g:g}" if both else ""
    marks = ("" if found["reached"] else "*") + (" (edge)" if found["edge"] else "")
    return f"{method.effective_step:g}{second}{marks}"


def steps(tables: Mapping[Any, Sequence[Line]]) -> str:
    """Return a Markdown table of the searches' winners: one entry per target in each cell."""
    rows = [
        "| method | " + " | ".join(title(case) for case in tables) + " |",
        "|---" + "|---" * len(tables) + "|",
    ]
    for lines in zip(*tables.values(), strict=True):
        cells = ["; ".join(_winner(found) for found in line.chosen.values()) for line in lines]
        rows.append(f"| {' | '.join([lines[0].title, *cells])} |")
    return "\n".join(rows)


def title(case: Any) -> str:
    return f"{case.data}, {TITLES.get(case.objective, case.objective)}"


def tuned(tables: Mapping[Any, Sequence[Line]]) -> list[dict[str, Any]]:
    """Return every search: its winner, whether the target was reached, and the command line."""
    return [
        {
            "case": case.name,
            "target": aim,
            **found,
            "method": {
                "name": line.name,
                **{
                    field.name: getattr(found["method"], field.name)
                    for field in fields(found["method"])
                },
            },
        }
        for case, lines in tables.items()
        for line in lines
        for aim, found in line.chosen.items()
    ]


def draw(tables: Mapping[Any, Sequence[Line]], terms: Any, path: Path) -> None:
    """Plot the bytes to each target, a panel per problem; bars are the paper's third vector."""
    targets = [target for _, aims in terms.tuned_for for target in aims]
    rows = math.ceil(len(tables) / 2)
    size = (10, 3.6 * rows)
    figure, axes = plt.subplots(rows, 2, figsize=size, layout="constrained", squeeze=False)
    for ax, (case, lines) in zip(axes.flat, tables.items(), strict=False):
        for row, line in enumerate(lines):
            for number, target in enumerate(targets):
                each, y = line.costs[target], row + 0.22 * (number - 1)
                if not math.isfinite(each.rounds):
                    continue
                two, three = (each.up + each.down) / 1e6, (each.up + each.down_paper) / 1e6
                ax.plot([two, three], [y, y], "-", color=OTHER_STYLES[number][0], lw=2)
                ax.plot(two, y, OTHER_STYLES[number][1], color=OTHER_STYLES[number][0], ms=6)
        ax.axvline(terms.run * 8 * case.problem().d / 1e6, color="0.6", ls=":", lw=1)
        ax.set_xscale("log")
        ax.set_yticks(range(len(lines)), [line.title for line in lines])
        ax.set_ylim(len(lines) - 0.5, -0.5)
        ax.grid(axis="x", which="both", color="0.92", lw=0.6)
        ax.set_axisbelow(True)
        for row in range(1, len(lines)):
            ax.axhline(row - 0.5, color="0.92", lw=0.6)
        ax.set_title(title(case), fontsize=11)
        ax.set_xlabel("MB up and down")
    handles = [
        plt.Line2D(
            [],
            [],
            color=OTHER_STYLES[i][0],
            marker=OTHER_STYLES[i][1],
            ls="",
            label=f"gradient norm {_norm(t).replace('.0', '')}",
        )
        for i, t in enumerate(targets)
    ]
    handles.append(
        plt.Line2D([], [], color="0.3", lw=2, label="the third vector of FedPAGE's downlink")
    )
    handles.append(
        plt.Line2D(
            [], [], color="0.6", ls=":", label="the budget; no marker: not reached within it"
        )
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def versions() -> str:
    return ", ".join(f"{name} {version}" for name, version in provenance_versions().items())
