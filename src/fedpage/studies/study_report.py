"""Write what comes of a study: figures, tables, the records of its runs, and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpage.core.columns import AXES, Cost
from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import put
from fedpage.report import page
from fedpage.report.figure_file import find_tex, write_figure
from fedpage.report.panel import Summary
from fedpage.report.plots import FigureRuns, draw_figure
from fedpage.runs.history import History
from fedpage.studies.claims import Verdict
from fedpage.studies.comparison import Comparison
from fedpage.studies.study import Study
from fedpage.studies.study_results import RunKey

_RECORDS = ("csv", "parquet")
_LISTED = 100
"""The most runs that a page lists one by one; `fedpage study export` has the records of all."""


def write_report(study: Study, path: Path) -> Path:
    """Write a page with the tables, the sentences for pairs, the figures and the settings.

    Args:
        study: A study of which some runs have ended.
        path: The HTML file.

    Returns:
        The path.

    Raises:
        InputError: No run has ended.
    """
    runs = _finished(study)
    figures, comparisons = study.figures(runs), study.comparisons(runs)
    return write_page(
        path,
        title=study.config.title or f"Study {study.config.name}",
        studies=[study],
        runs=list(runs.values()),
        figures=list(figures.values()),
        comparisons=list(comparisons.values()),
        verdicts=study.verdicts(figures),
    )


def write_page(
    path: Path,
    *,
    title: str,
    studies: Sequence[Study],
    runs: Sequence[History],
    figures: Sequence[FigureRuns],
    comparisons: Sequence[Comparison] = (),
    verdicts: Sequence[Verdict] = (),
) -> Path:
    """Write the page of one or more studies.

    Args:
        path: The HTML file.
        title: The page's title.
        studies: The studies.
        runs: Their finished runs.
        figures: The figures.
        comparisons: Costs to targets; each becomes a table with its sentences.
        verdicts: The judged claims.

    Returns:
        The path.
    """
    tables = []
    for comparison in comparisons:
        table = comparison.table()
        tables.append(replace(table, details=tuple(comparison.sentences())))
    first = studies[0]
    shown = next(iter(first.figure_configs().values()))
    x, y = shown.x or first.config.cost, shown.y or first.config.target.column
    costs = list(dict.fromkeys((Cost.parse(x).name, *AXES)))
    notes = dict.fromkeys(run.meta.get("problem", {}).get("data_note") for run in runs)
    note = "; ".join(filter(None, notes))
    return page.write(
        path,
        title=title,
        figures=figures,
        settings={study.config.name: _settings(study) for study in studies}
        | {"versions": runs[0].meta.get("versions", {}) if runs else {}},
        columns=_recorded(runs, y),
        axes=costs,
        claims=verdicts,
        tables=tables,
        note=f"Data: {note}." if note else "",
        target=first.config.target,
        runs=runs if len(runs) <= _LISTED else (),
    )


def _recorded(runs: Sequence[History], first: str) -> list[str]:
    """Return the columns for the vertical axis that every run has recorded."""
    shared = set.intersection(*(set(run.columns) for run in runs)) if runs else set[str]()
    return [name for name in dict.fromkeys((first, "grad_norm", "loss")) if name in shared]


def _settings(study: Study) -> dict[str, Any]:
    """Return what a reader needs to repeat a study."""
    config = study.config
    return {
        "rounds": config.rounds,
        "record_every": config.record_every,
        "seeds": config.seed_list,
        "target": str(config.target),
        "cost": config.cost,
        "problems": {name: str(problem.source) for name, problem in study.problems.items()},
        "methods": [
            {"problem": c.problem, "label": c.label, "setting": c.setting_text, "is": repr(c.value)}
            for c in study.curves
        ],
    }


def write_figures(study: Study, folder: Path, suffixes: Sequence[str] | None = None) -> list[Path]:
    """Draw the figures of a study into files.

    Args:
        study: A study of which some runs have ended.
        folder: The directory.
        suffixes: The formats; by default .png, .pdf, .svg and, where there is a TeX, .pgf.

    Returns:
        The files.
    """
    if suffixes is None:
        suffixes = (".png", ".pdf", ".svg", *((".pgf",) if find_tex() else ()))
    files = []
    for name, figure in study.figures(_finished(study)).items():
        about = study.figure_configs()[name]
        drawn = draw_figure(
            figure,
            about.x or study.config.cost,
            about.y or study.config.target.column,
            width=about.width,
            summary=Summary(about.band),
        )
        stem = folder / name.replace("/", "-")
        for end in suffixes:
            try:
                files.append(write_figure(drawn, stem.with_name(stem.name + end)))
            except InputError:  # a TeX that lacks a package
                if end != ".pgf":
                    raise
    return files


def write_tables(comparisons: Mapping[str, Comparison], folder: Path) -> list[Path]:
    """Write tables as LaTeX, Markdown and CSV, and return the files."""
    return [
        comparison.table().write(folder / f"{name}{suffix}")
        for name, comparison in comparisons.items()
        for suffix in (".tex", ".md", ".csv")
    ]


def write_records(study: Study, path: Path) -> Path:
    """Write all records of the finished runs as one table, a row for each record.

    Columns are the problem, the method, the values of the grids and the seed, then what was
    recorded.

    Args:
        study: The study.
        path: A file .csv or .parquet.

    Returns:
        The path.

    Raises:
        InputError: No run has ended, or the suffix is another.
    """
    rows = list_records(study, _finished(study))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import polars

        table = {name: [row.get(name) for row in rows] for name in columns}
        polars.DataFrame(table, strict=False).write_parquet(path)
        return path
    if path.suffix != ".csv":
        raise InputError(f"{path}: records are written as .csv or .parquet")
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    put(path, text.getvalue().encode("utf-8"))
    return path


def list_records(study: Study, runs: Mapping[RunKey, History]) -> list[dict[str, Any]]:
    """Return a row for each record of each run, with the settings of its curve."""
    rows = []
    for curve in study.curves:
        for seed in study.config.seed_list:
            history = runs.get(RunKey(curve.problem, curve.method, curve.setting_text, seed))
            about = {"problem": curve.problem, "method": curve.label, **curve.setting, "seed": seed}
            rows += [about | dict(row) for row in (history.rows if history else ())]
    return rows


def export(study: Study, folder: Path, *, records: str = "csv") -> list[Path]:
    """Write the page, the figures, the tables and the records of a study into a directory.

    Args:
        study: A study of which some runs have ended.
        folder: The directory.
        records: The format of the records: "csv" or "parquet".

    Returns:
        The files.

    Raises:
        InputError: No run has ended, or the format is unknown.
    """
    if records not in _RECORDS:
        raise InputError(f"records are written as csv or parquet, not {short_repr(records)}")
    runs = _finished(study)
    return [
        write_report(study, folder / "report.html"),
        *write_figures(study, folder / "figures"),
        *write_tables(study.comparisons(runs), folder / "tables"),
        write_records(study, folder / f"records.{records}"),
    ]


def _finished(study: Study) -> dict[RunKey, History]:
    runs = study.runs()
    if not runs:
        raise InputError(f"study {study.config.name}: no run has ended; `fedpage study run` it")
    return runs
