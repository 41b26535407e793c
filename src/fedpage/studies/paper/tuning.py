"""The local-steps figure's own search: eta_g and eta_l of FedPAGE-1, -10 and -20 in each panel."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpage.core.errors import InputError
from fedpage.studies.paper.figures import Figure
from fedpage.studies.paper.runs import problem
from fedpage.studies.tune import tune


def search(
    figure: Figure, out: Path, jobs: int, progress: Callable[[str, int, int, str], None]
) -> list[dict[str, Any]]:
    """Tune every curve of the figure; a row for each, written to tuning/<figure>.json. Goes on where it ended."""
    if figure.tuning is None:
        raise InputError(
            f"figure {figure.name} has nothing to tune; local-steps/a9a and local-steps/w8a have"
        )
    grid = figure.tuning
    rows = []
    for panel in figure.panels:
        made = problem(figure.data, figure.rows, figure.objective, panel.clients)
        for variant in panel.variants:
            what = f"{panel.key} {variant.label}"
            values = {"eta_g": grid["eta_g"]} | (
                {"rho": grid["rho"]} if variant.method.K > 1 else {}
            )
            found = tune(
                made, variant.method, target=float(grid["target"]), cost="rounds", grid=values, rounds=figure.rounds,
                record_every=figure.record_every, seeds=int(grid["seeds"]), fresh=int(grid["seeds"]), jobs=jobs,
                store=out / "tuning" / f"{figure.name}.jsonl",
                progress=lambda done, whole, note, what=what: progress(what, done, whole, note),  # type: ignore[misc]
            )  # fmt: skip
            best, least = found.method, found.scores[0][1].cost
            near = (
                sorted({m.eta_g for m, s in found.scores if s.cost <= 1.1 * least})
                if math.isfinite(least)
                else []
            )
            rows.append(
                {
                    "panel": panel.key,
                    "clients": panel.clients,
                    "label": variant.label,
                    "K": best.K,
                    "eta_g": best.eta_g,
                    "rho": round(best.K * best.local_step / best.eta_g, 6) if best.K > 1 else None,
                    "rounds_on_fresh_seeds": [None if math.isinf(v) else v for v in found.judged],
                    "within_tenth": near,
                }
            )
    path = out / "tuning" / f"{figure.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return rows
