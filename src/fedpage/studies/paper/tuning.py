"""Search eta_g and eta_l of FedPAGE-1, -10 and -20 in each panel of the local-steps figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import numpy as np

from fedpage.core.columns import Cost
from fedpage.core.errors import InputError
from fedpage.studies.paper.figures import Figure
from fedpage.studies.paper.runs import build_problem
from fedpage.studies.question import FRESH_SEED, Question, Trials
from fedpage.studies.search import Search
from fedpage.studies.space import all_points, given_axes
from fedpage.studies.trials import TrialStore


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
    figure: Figure, out: Path, jobs: int, progress: Callable[[str, int, int | None, str], None]
) -> list[TunedCurve]:
    """Tune every curve of a figure and write the results to tuning/<figure>.json.

    A search that was interrupted continues from its finished runs.

    Args:
        figure: A figure with a table `[tuning]`.
        out: The directory of the reproduction.
        jobs: Processes.
        progress: Called with the curve, runs done, None (the runs in all are unknown), and a note.

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

            def report(done: int, _: int | None, note: str, name: str = variant.label) -> None:
                progress(f"{panel.key} {name}", done, None, note)  # noqa: B023

            grid = {"eta_g": figure.tuning.eta_g}
            grid |= {"rho": figure.tuning.rho} if variant.method.K > 1 else {}
            question = Question(
                figure.tuning.target, "grad_norm", Cost.parse("rounds"),
                record_every=figure.record_every, rounds=figure.rounds,
            )  # fmt: skip
            store = TrialStore(out / "tuning" / f"{figure.name}.jsonl", question.describe(problem))
            trials = Trials(problem, question, store=store, jobs=jobs, progress=report)
            axes = given_axes(variant.method, problem, grid, fixed=True)
            found = Search(
                trials, variant.method, axes, seeds=figure.tuning.seeds, design=all_points(axes)
            )
            found.run()
            best, scores = found.best, found.scores()
            near = sorted({m.eta_g for m, score in scores if score.ratio <= 1.1})
            rho = round(best.K * best.local_step / best.eta_g, 6) if best.K > 1 else None
            fresh = range(FRESH_SEED, FRESH_SEED + figure.tuning.seeds)
            paid = [trial.cost for trial in trials.run([(best, s, math.inf) for s in fresh])]
            quartiles = np.quantile(paid, (0.25, 0.5, 0.75), method="nearest").tolist()
            rows.append(
                TunedCurve(
                    panel=panel.key,
                    clients=panel.clients,
                    label=variant.label,
                    K=best.K,
                    eta_g=best.eta_g,
                    rho=rho,
                    rounds_on_fresh_seeds=[v if math.isfinite(v) else None for v in quartiles],
                    within_tenth=near,
                )
            )
    path = out / "tuning" / f"{figure.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return rows
