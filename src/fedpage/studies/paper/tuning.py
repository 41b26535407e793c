"""Search eta_g and eta_l of FedPAGE-1, -10 and -20 in each panel of the local-steps figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from fedpage.core.columns import Target
from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.report.plots import FigureRuns
from fedpage.report.tables import Table
from fedpage.runs.toml import digest
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
    study: Study,
    figure: str,
    grid: TuningTable,
    out: Path,
    jobs: int,
    progress: Progress,
) -> list[TunedCurve]:
    """Tune every curve of a figure and write the results to tuning/<figure>.json.

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
    rows = []
    sources, every = study.restrict([figure]).sources(), study.config.record_every
    curves = [curve for name in sources for curve in study.curves if curve.problem == name]
    for curve, hold in product(curves, _HOLDS):
        problem, method = open_source(sources[curve.problem]), cast(Any, curve.value)
        panel = f"{problem.N:,} clients"
        found = tune(
            problem, method, target=Target(value=grid.target, hold=hold),
            search={"eta_g": grid.eta_g} | ({"rho": grid.rho} if method.K > 1 else {}),
            fixed_grid=True, rounds=study.config.rounds, limit=study.config.rounds,
            record_every=every if isinstance(every, int) else 10,
            seeds=grid.seeds, held_out_seeds=grid.seeds, jobs=jobs,
            store=out / "tuning" / f"{figure}.jsonl",
            progress=lambda done, *_, what=f"{panel}, {curve.label}": progress(done, None, what),
        ).first  # fmt: skip
        best: Any = found.method
        paid = (math.inf,) if found.sample is None else found.sample.costs
        quartiles = np.quantile(paid, (0.25, 0.5, 0.75), method="nearest").tolist()
        near = {cast(Any, tried).eta_g for tried, score in found.scores if score.ratio <= 1.1}
        rows.append(
            TunedCurve(
                panel=panel,
                label=curve.label,
                hold=hold,
                K=best.K,
                eta_g=best.eta_g,
                rho=round(best.K * best.local_step / best.eta_g, 6) if best.K > 1 else None,
                rounds_on_held_out_seeds=[v if math.isfinite(v) else None for v in quartiles],
                within_tenth=sorted(near),
            )
        )
    path = result_file(out, figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"key": _key(study, figure, grid), "digest": digest({"rows": rows}), "rows": rows}
    put(path, json.dumps(table, indent=2).encode("utf-8") + b"\n")
    return rows


def result_file(out: Path, figure: str) -> Path:
    """Return the file of the results of a search."""
    return out / "tuning" / f"{figure}.json"


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


def load(study: Study, figure: str, grid: TuningTable, path: Path) -> list[TunedCurve] | None:
    """Load what `search` has found for this study, or None if it found nothing for it.

    Raises:
        InputError: The file is damaged, or is not the result of a search.
    """
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_bytes())
        rows: list[TunedCurve] = table["rows"]
        if table["digest"] != digest({"rows": rows}):
            raise ValueError
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise InputError(
            f"{path}: not a result of the search; remove it and run with --tune again"
        ) from None
    return rows if table["key"] == _key(study, figure, grid) else None


def _key(study: Study, figure: str, grid: TuningTable) -> str:
    """Return a digest of the search's grid and of all that the figure's runs depend on."""
    first = study.config.seed_list[0]
    plans = study.restrict([figure]).plans
    runs = sorted(plan.key for key, plan in plans.items() if key.seed == first)
    return digest({"grid": asdict(grid), "holds": _HOLDS, "runs": runs})


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
