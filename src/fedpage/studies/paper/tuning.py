"""Search eta_g and eta_l of FedPAGE-1, -10 and -20 in each panel of the local-steps figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from fedpage.core.columns import Target
from fedpage.core.errors import InputError
from fedpage.report.plots import FigureRuns
from fedpage.report.tables import Table
from fedpage.studies.claims import FAILS, HOLDS, UNDECIDED, Claim, Finding
from fedpage.studies.paper.book import TuningTable
from fedpage.studies.run_archive import open_source
from fedpage.studies.study import Study
from fedpage.studies.trials import Progress
from fedpage.studies.tuning import tune

_HOLDS = (Target().hold, 0.0)
"""The searches are for a target that holds, as elsewhere, and for its first touch."""


class TunedCurve(TypedDict):
    """What a search for step sizes found for one curve of a panel."""

    panel: str
    label: str
    hold: float
    """How long the target had to hold; 0 counts the first record at the target."""
    K: int
    eta_g: float
    rho: float | None
    rounds_on_held_out_seeds: list[float | None]
    within_tenth: list[float]
    """Every eta_g whose cost is at most 1.1 times the least."""


def search(
    study: Study, figure: str, grid: TuningTable, out: Path, jobs: int, progress: Progress
) -> list[TunedCurve]:
    """Tune every curve of a figure, and keep the trials in tuning/<figure>.jsonl.

    A search that was interrupted continues from its finished runs.

    Args:
        study: The study of the figure.
        figure: The figure's name.
        grid: The step sizes to search.
        out: The directory of the reproduction.
        jobs: Processes.
        progress: Called with the runs done, None (the total is unknown) and the curve.

    Returns:
        A row for each curve and each meaning of the target.
    """
    return list(_tune_curves(study, figure, grid, out, jobs=jobs, report=progress))


def load(study: Study, figure: str, grid: TuningTable, out: Path) -> list[TunedCurve] | None:
    """Return what `search` has found, or None if it has not ended.

    Trials of other data, code or versions do not count.
    """
    with suppress(InputError):  # no trial is known
        return list(_tune_curves(study, figure, grid, out, max_runs=0))
    return None


def _tune_curves(
    study: Study, figure: str, grid: TuningTable, out: Path, report: Progress | None = None,
    **options: Any,
) -> Iterator[TunedCurve]:  # fmt: skip
    sources, every = study.restrict([figure]).sources(), study.config.record_every
    curves = [curve for name in sources for curve in study.curves if curve.problem == name]
    for curve, hold in product(curves, _HOLDS):
        problem, method = open_source(sources[curve.problem]), cast(Any, curve.value)
        panel = f"{problem.N:,} clients"
        note = f"{panel}, {curve.label}"
        found = tune(
            problem, method, target=Target(value=grid.target, hold=hold),
            search={"eta_g": grid.eta_g} | ({"rho": grid.rho} if method.K > 1 else {}),
            fixed_grid=True, rounds=study.config.rounds, limit=study.config.rounds,
            record_every=every if isinstance(every, int) else 10,
            seeds=grid.seeds, held_out_seeds=grid.seeds, store=out / "tuning" / f"{figure}.jsonl",
            progress=report and (lambda done, *_, note=note: report(done, None, note)), **options,
        )  # fmt: skip
        if found.cut:
            raise InputError(f"{figure}: {found.cut}")
        chosen = found.first
        best: Any = chosen.method
        paid = (math.inf,) if chosen.sample is None else chosen.sample.costs
        quartiles = np.quantile(paid, (0.25, 0.5, 0.75), method="nearest").tolist()
        near = {cast(Any, tried).eta_g for tried, score in chosen.scores if score.ratio <= 1.1}
        yield TunedCurve(
            panel=panel,
            label=curve.label,
            hold=hold,
            K=best.K,
            eta_g=best.eta_g,
            rho=round(best.K * best.local_step / best.eta_g, 6) if best.K > 1 else None,
            rounds_on_held_out_seeds=[v if math.isfinite(v) else None for v in quartiles],
            within_tenth=sorted(near),
        )


def table(figure: str, grid: TuningTable, rows: Sequence[TunedCurve]) -> Table:
    """Return a table of the rows of `search`."""
    headings = (
        "panel", "curve", "target", "eta_g", "rho", "rounds on held-out seeds",
        "eta_g within a tenth of the best",
    )  # fmt: skip
    cells = []
    for row in rows:
        median = row["rounds_on_held_out_seeds"][1]
        near = ", ".join(f"{v:g}" for v in row["within_tenth"])
        reached = "held" if row["hold"] else "first touch"
        rho = "-" if row["rho"] is None else f"{row['rho']:g}"
        paid = "not reached" if median is None else f"{median:.0f}"
        cells.append((row["panel"], row["label"], reached, f"{row['eta_g']:g}", rho, paid, near))
    caption = f"{figure}: fewest rounds to {grid.target:g}"
    return replace(Table.of_texts(headings, cells), caption=caption)


def check_steps(
    tuned: Mapping[str, Sequence[TunedCurve]],
    claim: Claim,
    figure: FigureRuns,
    choices: Mapping[str, str],
) -> Iterator[Finding]:
    """Compare the tuned eta_g of a figure's curves, as `fedpage.studies.claims.Check`.

    Args:
        tuned: The results of the searches, by figure.
        claim: A claim about "steps".
        figure: The figure.
        choices: If there are any, compare searches for the first touch of the target, and
            otherwise those for a target that holds.
    """
    panels: dict[str, list[TunedCurve]] = {}
    for row in tuned.get(figure.name, ()):
        if (row["hold"] == 0) == bool(choices):
            panels.setdefault(row["panel"], []).append(row)
    printed = iter(claim.printed if figure.name.endswith("a9a") else ())
    for panel, rows in panels.items():
        near = [row["within_tenth"] for row in rows]
        verdict = UNDECIDED  # also if the target was not reached
        if near[0] and near[-1] and min(near[-1]) > max(near[0]):
            verdict = HOLDS
        elif near[0] and near[-1] and max(near[-1]) <= max(near[0]):
            verdict = FAILS
        chosen = "/".join(f"{row['eta_g']:g}" for row in rows)
        paper = "/".join(f"{v:g}" for v in next(printed, ()))
        theirs = f"; the paper: {paper}" if paper else ""
        ranges = " | ".join(",".join(f"{v:g}" for v in values) for values in near)
        measured = f"{chosen}{theirs}; within a tenth of the best: {ranges}"
        needed = "every eta_g within a tenth of the best is larger for the largest K"
        where = f"{figure.name}, {panel}"
        yield Finding(where, "eta_g rises with K", verdict, measured, needed)
