"""Search eta_g and eta_l of FedPAGE-1, -10 and -20 in each panel of the local-steps figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from fedpage.core.errors import InputError
from fedpage.studies.paper.figures import Figure
from fedpage.studies.paper.runs import build_problem
from fedpage.studies.tune import tune


class TunedCurve(TypedDict):
    """The search's result for one curve of a panel."""

    panel: str
    clients: int
    label: str
    K: int
    eta_g: float
    rho: float | None
    rounds_on_fresh_seeds: list[float | None]
    within_tenth: list[float]
    """Every eta_g whose cost is at most 1.1 times the least."""


def search(
    figure: Figure, out: Path, jobs: int, progress: Callable[[str, int, int, str], None]
) -> list[TunedCurve]:
    """Tune every curve of a figure and write the results to tuning/<figure>.json.

    A search that was interrupted continues from its finished runs.

    Args:
        figure: A figure with a table `[tuning]`.
        out: The directory of the reproduction.
        jobs: Processes.
        progress: Called with the curve, runs done, runs in all, and a note.

    Returns:
        A row for each curve.

    Raises:
        InputError: The figure has nothing to tune.
    """
    if figure.tuning is None:
        raise InputError(
            f"figure {figure.name} has nothing to tune; local-steps/a9a and local-steps/w8a have"
        )
    rows = []
    for panel in figure.panels:
        problem = build_problem(figure.data, figure.rows, figure.objective, panel.clients)
        for variant in panel.variants:

            def report(done: int, total: int, note: str, name: str = variant.label) -> None:
                progress(f"{panel.key} {name}", done, total, note)  # noqa: B023

            grid = {"eta_g": figure.tuning.eta_g}
            grid |= {"rho": figure.tuning.rho} if variant.method.K > 1 else {}
            found = tune(
                problem, variant.method, target=figure.tuning.target, cost="rounds", grid=grid,
                rounds=figure.rounds, record_every=figure.record_every, jobs=jobs,
                seeds=figure.tuning.seeds, fresh=figure.tuning.seeds,
                store=out / "tuning" / f"{figure.name}.jsonl", progress=report,
            )  # fmt: skip
            best, least = found.method, found.scores[0][1].cost
            near = sorted({m.eta_g for m, score in found.scores if score.cost <= 1.1 * least})
            rho = round(best.K * best.local_step / best.eta_g, 6) if best.K > 1 else None
            rows.append(
                TunedCurve(
                    panel=panel.key,
                    clients=panel.clients,
                    label=variant.label,
                    K=best.K,
                    eta_g=best.eta_g,
                    rho=rho,
                    rounds_on_fresh_seeds=[v if math.isfinite(v) else None for v in found.judged],
                    within_tenth=near if math.isfinite(least) else [],
                )
            )
    path = out / "tuning" / f"{figure.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return rows
