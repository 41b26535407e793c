"""The paper's figures and claims, which come with the package as studies.

Two figures also have a search for eta_g and eta_l of FedPAGE-1, -10 and -20 in each panel.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from fedpage.core.columns import Target
from fedpage.core.errors import InputError, did_you_mean
from fedpage.report.plots import FigureRuns
from fedpage.report.tables import Table
from fedpage.runs import toml
from fedpage.runs.config import Settings, structure
from fedpage.studies.claims import FAILS, HOLDS, UNDECIDED, Claim, Finding
from fedpage.studies.grid import FigureConfig, StudyConfig, list_problems
from fedpage.studies.run_archive import open_source
from fedpage.studies.study import Study
from fedpage.studies.trials import Progress
from fedpage.studies.tuning import tune

STUDIES = ("local-steps", "comparison", "clients", "full")
"""The study files, in the paper's order."""


@dataclass(frozen=True)
class TuningTable:
    """The grid that a search for step sizes covers: a table `[tuning.FIGURE]`."""

    eta_g: list[float]
    rho: list[float]
    target: float
    seeds: int


@cache
def _read(name: str) -> tuple[StudyConfig, dict[str, TuningTable]]:
    """Read a study of the package, and the searches that it describes."""
    source = f"studies/paper/{name}.toml"
    file = files("fedpage.studies.paper").joinpath(f"{name}.toml")
    table: Settings = toml.loads(file.read_text(encoding="utf-8"), source)
    searches = table.pop("tuning", {})
    tunings = {figure: TuningTable(**search) for figure, search in searches.items()}
    return structure(StudyConfig, table, source), tunings


def figures() -> dict[str, tuple[str, FigureConfig]]:
    """List every figure in the paper's order: its study and its settings, by name."""
    return {figure.name: (study, figure) for study in STUDIES for figure in _read(study)[0].figures}


def claims() -> list[Claim]:
    """List the paper's claims."""
    return [claim for study in STUDIES for claim in _read(study)[0].claims]


def tuning(figure: str) -> TuningTable | None:
    """Return the search for the step sizes of a figure, or None."""
    return _read(figures()[figure][0])[1].get(figure)


def load(
    names: Sequence[str],
    *,
    store: str | os.PathLike[str],
    seeds: int | None = None,
    data: str | None = None,
    quick: bool = False,
) -> list[Study]:
    """Load the studies of some figures, without what other figures need.

    Args:
        names: Names of figures, such as "comparison/a9a-robust".
        store: The directory of the runs.
        seeds: Runs of each curve; by default as in the files.
        data: Other data, which titles name.
        quick: Whether to run 2 seeds and a tenth of the rounds.

    Raises:
        InputError: There is no figure of a name, or the data cannot be read.
    """
    known = figures()
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(f"unknown figure {name!r};{hint} `fedpage reproduce --list` shows all")
    studies = []
    for study in dict.fromkeys(known[name][0] for name in names):
        config = _read(study)[0]
        if seeds is not None:
            config = replace(config, seeds=seeds)
        if data is not None:
            config = _on_other_data(config, data)
        if quick:
            config = _shorten(config)
        full = Study.of(config, store=store, where=f"studies/paper/{study}.toml")
        studies.append(full.restrict([name for name in names if known[name][0] == study]))
    return studies


def _on_other_data(config: StudyConfig, data: str) -> StudyConfig:
    """Return a study on other data; a figure uses at most as many rows as before."""
    from fedpage.data import load

    rows = load(data).rows
    old = {name: problem.source.data for name, problem in list_problems(config, "").items()}

    def change(table: Mapping[str, Any]) -> dict[str, Any]:
        changed = dict(table)
        if "data" in table:
            changed["data"] = data
        used = str(table.get("partition", "")).partition(":")[2]
        if used and int(used) > rows:
            changed["partition"] = "blocks"
        return changed

    def mark(figure: FigureConfig) -> FigureConfig:
        own = old[(figure.problems or list(old))[0]]
        return replace(figure, title=f"{figure.title} [on {data} instead of {own}]")

    return replace(
        config,
        problems={name: change(table) for name, table in config.problems.items()},
        defaults=replace(config.defaults, problem=change(config.defaults.problem)),
        figures=list(map(mark, config.figures)),
    )


def _shorten(config: StudyConfig) -> StudyConfig:
    """Return a study with a tenth of the rounds and at most 2 seeds."""
    every = config.record_every
    return replace(
        config,
        rounds=config.rounds // 10,
        record_every=max(1, every // 2) if isinstance(every, int) else every,
        seeds=min(len(config.seed_list), 2),
        figures=[replace(f, title=f"{f.title} [quick look]") for f in config.figures],
    )


# --- searches for step sizes ----------------------------------------------------------------------

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


def load_search(study: Study, figure: str, grid: TuningTable, out: Path) -> list[TunedCurve] | None:
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


def search_table(figure: str, grid: TuningTable, rows: Sequence[TunedCurve]) -> Table:
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
