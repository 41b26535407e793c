"""Make figures, tables, records and a page of the runs of a study."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpage.core.columns import AXES, Cost, Target
from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import put
from fedpage.report.bands import Summary
from fedpage.report.figure_file import find_tex, write_figure
from fedpage.report.page import Page
from fedpage.report.plots import FigureRuns, PanelRuns, draw_figure
from fedpage.report.summary import end_value
from fedpage.report.titles import describe_runs
from fedpage.runs.config import ProblemConfig
from fedpage.runs.history import History
from fedpage.studies.claims import CheckedClaim, evaluate
from fedpage.studies.comparison import Comparison
from fedpage.studies.grid import (
    Curve,
    FigureConfig,
    RunKey,
    Selection,
    TableConfig,
    describe_setting,
    format_value,
)
from fedpage.studies.statistics import CostSample

if TYPE_CHECKING:
    from fedpage.studies.study import Study


@dataclass(frozen=True)
class StudyResults:
    """A study with its finished runs, from which figures and tables are made."""

    study: Study
    runs: Mapping[RunKey, History]

    def figures(self) -> dict[str, FigureRuns]:
        """Return the figures with their finished runs, by name."""
        found, config = {}, self.study.config
        for name, figure in config.named_figures().items():
            panels = tuple(self._panels(figure))
            if panels:
                columns = figure.columns or min(3, len(panels))
                drawn = [run for panel in panels for some in panel.curves.values() for run in some]
                title = figure.title or config.title or describe_runs(drawn)
                found[name] = FigureRuns(name, title, figure.note, columns, panels)
        return found

    def _panels(self, figure: FigureConfig) -> list[PanelRuns]:
        names, config = figure.axes, self.study.config
        groups: dict[tuple[object, ...], list[Curve]] = {}
        for curve in self._select(figure, config.target, config.cost):
            groups.setdefault(tuple(self._axis(curve, name) for name in names), []).append(curve)
        shown = [name for name in self._shown_names(figure, groups.values()) if name not in names]
        several = any(len({curve.problem for curve in curves}) > 1 for curves in groups.values())
        panels = []
        for values, curves in groups.items():
            known = {name: v for name, v in zip(names, values, strict=True) if v is not None}
            title = ", ".join(self._axis_title(name, value) for name, value in known.items())
            drawn = {_label(curve, shown, several): self._runs_of(curve) for curve in curves}
            if any(drawn.values()):
                panels.append(PanelRuns(title, drawn, known))
        return panels

    def _axis(self, curve: Curve, name: str) -> object:
        """Return the value of a curve by which panels differ."""
        if name in ("problem", "method"):
            return curve.problem if name == "problem" else curve.label
        if name in curve.given:
            return curve.given[name]
        source = self.study.problems[curve.problem].source
        if isinstance(source, ProblemConfig):
            return getattr(source, name, None)
        about: dict[str, Any] = source.describe()
        return about.get({"clients": "N"}.get(name, name))

    def _axis_title(self, name: str, value: object) -> str:
        if name == "problem":
            return self.study.problems[str(value)].title
        if name == "clients" and isinstance(value, int):
            return f"{value:,} clients"
        return str(value) if name in ("method", "data") else f"{name} {format_value(value)}"

    def _select(self, part: Selection, target: Target, cost: str) -> list[Curve]:
        """Return the curves that a figure or a table is about."""
        found = [curve for curve in self.study.curves if is_about(part, curve)]
        if not part.best:
            return found
        best: dict[tuple[str, str], tuple[tuple[object, ...], Curve]] = {}
        for curve in found:
            runs = self._runs_of(curve)
            if not runs:
                continue
            sample = CostSample(tuple(run.cost_to(target, cost) for run in runs))
            # Between equal costs the median value at the end decides, which is less if better.
            order = (*sample.order, float(np.median([_end(run, target.column) for run in runs])))
            place = (curve.problem, curve.method)
            if place not in best or order < best[place][0]:
                best[place] = (order, curve)
        return [curve for _, curve in best.values()]

    def _runs_of(self, curve: Curve) -> list[History]:
        """Return the finished runs of a curve, in the order of the seeds."""
        keys = (curve.key(seed) for seed in self.study.config.seed_list)
        return [self.runs[key] for key in keys if key in self.runs]

    def _values(self, part: Selection, curve: Curve, name: str) -> set[Any]:
        """Return the values of a grid among which `best` chooses for a curve."""
        return {
            other.setting[name]
            for other in self.study.curves
            if (other.problem, other.method) == (curve.problem, curve.method)
            and is_about(part, other)
        }

    def _shown_names(self, part: Selection, groups: Iterable[Sequence[Curve]]) -> list[str]:
        """Return the grids that labels name: those that vary in a group, or that `best` chose from.

        All panels of a figure and all tables share them, so that one setting has one label.
        """
        found: dict[str, None] = {}
        for curves in groups:
            for curve in curves:
                for name in curve.setting:
                    shown = {format_value(other.setting.get(name)) for other in curves}
                    if len(shown) > 1 or (part.best and len(self._values(part, curve, name)) > 1):
                        found[name] = None
        return list(found)

    def _edge_notes(self, part: Selection, labels: Mapping[str, Curve]) -> tuple[str, ...]:
        """Say which of the best settings are the least or the largest value of their grids."""
        edges = []
        for label, curve in labels.items():
            for name, value in curve.setting.items():
                values = self._values(part, curve, name)
                is_grid = len(values) > 1 and all(type(v) in (int, float) for v in values)
                if part.best and is_grid and value in (min(values), max(values)):
                    edge = "least" if value == min(values) else "largest"
                    edges.append(f"{label} has the {edge} {name}")
        if not edges:
            return ()
        return (f"At the edge of a grid: {'; '.join(edges)}. Better values may lie beyond.",)

    def comparisons(self) -> dict[str, Comparison]:
        """Compare the costs to the target, by table and problem."""
        found, config = {}, self.study.config
        parts = config.tables or [TableConfig()]
        for number, part in enumerate(parts, start=1):
            target, cost = part.target or config.target, part.cost or config.cost
            chosen: dict[str, list[Curve]] = {}
            for curve in self._select(part, target, cost):
                if self._runs_of(curve):
                    chosen.setdefault(curve.problem, []).append(curve)
            shown = self._shown_names(part, chosen.values())
            for problem, curves in chosen.items():
                labels = {_label(curve, shown): curve for curve in curves}
                groups = {label: self._runs_of(curve) for label, curve in labels.items()}
                title = part.title or self.study.problems[problem].title
                stem = part.name or ("costs" if len(parts) == 1 else f"costs-{number}")
                name = stem if len(self.study.problems) == 1 else f"{stem}-{problem}"
                remarks = self._edge_notes(part, labels)
                found[name] = Comparison.of_runs(groups, target, cost, title, remarks)
        return found

    def claims(self) -> list[CheckedClaim]:
        """Check the study's claims."""
        figures = self.figures()
        return [evaluate(claim, figures) for claim in self.study.config.claims]


def _end(run: History, column: str) -> float:
    """Return the value at the end, with the sign that makes less better; inf if f rose."""
    value = end_value(run, column) if run.progress()[-1] else math.nan
    return math.inf if math.isnan(value) else -value if run.higher_is_better(column) else value


def is_about(part: Selection, curve: Curve) -> bool:
    """Say whether a figure or a table is about a curve."""
    if part.problems and curve.problem not in part.problems:
        return False
    if part.methods and curve.method not in part.methods:
        return False
    return all(
        name not in curve.given
        or curve.given[name] in (values if isinstance(values, list) else [values])
        for name, values in part.where.items()
    )


def _label(curve: Curve, names: Sequence[str], several: bool = False) -> str:
    """Return the label of a curve with its values of these grids, and its problem if `several`."""
    shown = {name: value for name, value in curve.setting.items() if name in names}
    words = [curve.problem] * several + [describe_setting(shown)] * bool(shown)
    return f"{curve.label} ({', '.join(words)})" if words else curve.label


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
    found = StudyResults(study, _finished(study))
    return write_page(
        path,
        title=study.config.title or f"Study {study.config.name}",
        studies=[study],
        runs=list(found.runs.values()),
        figures=list(found.figures().values()),
        comparisons=list(found.comparisons().values()),
        claims=found.claims(),
    )


def write_page(
    path: Path,
    *,
    title: str,
    studies: Sequence[Study],
    runs: Sequence[History],
    figures: Sequence[FigureRuns],
    comparisons: Sequence[Comparison] = (),
    claims: Sequence[CheckedClaim] = (),
) -> Path:
    """Write the page of one or more studies.

    Args:
        path: The HTML file.
        title: The page's title.
        studies: The studies.
        runs: Their finished runs.
        figures: The figures.
        comparisons: Costs to targets; each becomes a table with its sentences.
        claims: The checked claims.

    Returns:
        The path.
    """
    tables = [replace(each.table(), details=tuple(each.sentences())) for each in comparisons]
    first = studies[0]
    shown = next(iter(first.config.named_figures().values()))
    x, y = shown.x or first.config.cost, shown.y or first.config.target.column
    costs = list(dict.fromkeys((Cost.parse(x).name, *AXES)))
    notes = dict.fromkeys(run.meta.get("problem", {}).get("data_note") for run in runs)
    note = "; ".join(filter(None, notes))
    page = Page(
        title=title,
        figures=figures,
        settings={study.config.name: _settings(study) for study in studies}
        | {"versions": runs[0].meta.get("versions", {}) if runs else {}},
        columns=_recorded(runs, y),
        axes=costs,
        claims=claims,
        tables=tables,
        note=f"Data: {note}." if note else "",
        target=first.config.target,
        runs=runs if len(runs) <= _LISTED else (),
    )
    return page.write(path)


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
    for name, figure in StudyResults(study, _finished(study)).figures().items():
        about = study.config.named_figures()[name]
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
    import polars

    rows = []
    runs = _finished(study)
    for curve, seed in product(study.curves, study.config.seed_list):
        history = runs.get(curve.key(seed))
        about = {"problem": curve.problem, "method": curve.label, **curve.setting, "seed": seed}
        rows += [about | dict(row) for row in (history.rows if history else ())]
    columns = dict.fromkeys(name for row in rows for name in row)
    table = polars.DataFrame(
        {name: [row.get(name) for row in rows] for name in columns}, strict=False
    )
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: records are written as .csv or .parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    if path.suffix == ".csv":
        table.write_csv(content)
    else:
        table.write_parquet(content)
    put(path, content.getvalue())
    return path


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
    if records not in ("csv", "parquet"):
        raise InputError(f"records are written as csv or parquet, not {short_repr(records)}")
    return [
        write_report(study, folder / "report.html"),
        *write_figures(study, folder / "figures"),
        *write_tables(study.comparisons(), folder / "tables"),
        write_records(study, folder / f"records.{records}"),
    ]


def _finished(study: Study) -> dict[RunKey, History]:
    runs = study.runs()
    if not runs:
        raise InputError(f"study {study.config.name}: no run has ended; `fedpage study run` it")
    return runs
