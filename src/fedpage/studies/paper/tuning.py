"""Search eta_g and eta_l of FedPAGE-1, -10 and -20 in each panel of the local-steps figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from fedpage.core.columns import Cost, Target
from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.methods.registry import describe_method
from fedpage.report.plots import FigureRuns
from fedpage.report.tables import Table
from fedpage.runs.fingerprint import method_digest, result_key
from fedpage.runs.toml import digest
from fedpage.studies.claims import FAILS, HOLDS, UNDECIDED, Claim, Finding
from fedpage.studies.paper.book import TuningTable
from fedpage.studies.run_archive import open_source
from fedpage.studies.search import Search
from fedpage.studies.space import given_axes
from fedpage.studies.study import Study
from fedpage.studies.trials import HELD_OUT_SEED, Question, Trials, describe_problem

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
    progress: Callable[[str, int, int | None, str], None],
) -> list[TunedCurve]:
    """Tune every curve of a figure and write the results to tuning/<figure>.json.

    A search that was interrupted continues from its finished runs.

    Args:
        study: The study of the figure.
        figure: The figure's name.
        grid: The step sizes to search.
        out: The directory of the reproduction.
        jobs: Processes.
        progress: Called with the curve, runs done, None (the runs in all are unknown), and a note.

    Returns:
        A row for each curve and each meaning of the target.
    """
    rows = []
    about, every = study.config, study.config.record_every
    sources = study.restrict([figure]).sources()
    curves = [curve for name in sources for curve in study.curves if curve.problem == name]
    for curve, hold in ((curve, hold) for curve in curves for hold in _HOLDS):
        problem, method = open_source(sources[curve.problem]), cast(Any, curve.value)
        panel = f"{problem.N:,} clients"

        def report(
            done: int, _: int | None, note: str, what: str = f"{panel}, {curve.label}"
        ) -> None:
            progress(what, done, None, note)

        values = {"eta_g": grid.eta_g} | ({"rho": grid.rho} if method.K > 1 else {})
        question = Question(
            Target(value=grid.target, hold=hold), Cost.parse("rounds"),
            record_every=every if isinstance(every, int) else 10,
            rounds=math.ceil((1 + hold) * about.rounds),  # a stretch may end after the limit
        )  # fmt: skip
        store = out / "tuning" / f"{figure}.jsonl"
        trials = Trials(problem, question, about.rounds, store, jobs, report)
        axes, design = given_axes(method, problem, values, is_fixed=True)
        found = Search(trials, method, axes, seeds=grid.seeds, design=design)
        found.run()
        best: Any = found.best
        held_out = range(HELD_OUT_SEED, HELD_OUT_SEED + grid.seeds)
        paid = [trial.cost for trial in trials.run([(best, s, math.inf) for s in held_out])]
        quartiles = np.quantile(paid, (0.25, 0.5, 0.75), method="nearest").tolist()
        rows.append(
            TunedCurve(
                panel=panel,
                label=curve.label,
                hold=hold,
                K=best.K,
                eta_g=best.eta_g,
                rho=round(best.K * best.local_step / best.eta_g, 6) if best.K > 1 else None,
                rounds_on_held_out_seeds=[v if math.isfinite(v) else None for v in quartiles],
                within_tenth=sorted({m.eta_g for m, score in found.scores() if score.ratio <= 1.1}),
            )
        )
    path = out / "tuning" / f"{figure}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"key": _key(study, figure, grid), "digest": digest({"rows": rows}), "rows": rows}
    put(path, json.dumps(table, indent=2).encode("utf-8") + b"\n")
    return rows


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
    """Return a key of all that a search depends on: step sizes, problems, methods, data, code."""
    part = study.restrict([figure])
    problems = {name: open_source(source) for name, source in part.sources().items()}
    about = {
        "grid": asdict(grid),
        "holds": _HOLDS,
        "rounds": study.config.rounds,
        "record_every": study.config.record_every,
        "problems": {name: describe_problem(problem) for name, problem in sorted(problems.items())},
        "methods": [
            [curve.problem, describe_method(curve.value), method_digest(curve.value)]
            for curve in part.curves
        ],
    }
    return result_key(about)


def check_steps(
    tuned: Mapping[str, Sequence[TunedCurve]],
    claim: Claim,
    figure: FigureRuns,
    choices: Mapping[str, str],
) -> list[Finding]:
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
    findings = []
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
        findings.append(Finding(where, "eta_g rises with K", verdict, measured, needed))
    return findings
