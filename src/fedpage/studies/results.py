"""Make figures, tables, records and a page of the runs of a study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpage.core.columns import AXES, Cost, Target
from fedpage.core.errors import InputError
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
from fedpage.studies.grid import Curve, FigureConfig, Selection, describe_setting, format_value
from fedpage.studies.statistics import CostSample

if TYPE_CHECKING:
    from fedpage.studies.study import Study

_LISTED = 100
"""The most runs that a page lists one by one; `fedpage study export` has the records of all."""


class StudyResults:
    """The finished runs of a study, and all that is made from them.

    Args:
        study: The study, whose finished runs are loaded once.
    """

    def __init__(self, study: Study) -> None:
        self.study, self.runs = study, study.runs()

    def check(self) -> StudyResults:
        """Return the results, or raise InputError if no run has ended."""
        if not self.runs:
            name = self.study.config.name
            raise InputError(f"study {name}: no run has ended; `fedpage study run` it")
        return self

    # --- figures ---

    @cached_property
    def figures(self) -> dict[str, FigureRuns]:
        """The figures with their finished runs, by name."""
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

    # --- the choice of curves ---

    def _select(self, part: Selection, target: Target, cost: Cost) -> list[Curve]:
        """Return the curves that a figure or a table is about."""
        found = [curve for curve in self.study.curves if part.is_about(curve)]
        if not part.best:
            return found
        rivals: dict[tuple[str, str], list[Curve]] = {}
        for curve in found:
            if self._runs_of(curve):
                rivals.setdefault((curve.problem, curve.method), []).append(curve)

        def order(curve: Curve) -> tuple[object, ...]:
            runs = self._runs_of(curve)
            sample = CostSample(tuple(run.cost_to(target, cost) for run in runs))
            # Between equal costs the median value at the end decides, which is less if better.
            return (*sample.order, float(np.median([_end(run, target.column) for run in runs])))

        return [min(curves, key=order) for curves in rivals.values()]

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
            and part.is_about(other)
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
        """Name the best settings that are the least or the largest value of their grids."""
        edges = []
        for label, curve in labels.items() if part.best else ():
            for name, value in curve.setting.items():
                values = self._values(part, curve, name)
                is_grid = len(values) > 1 and all(type(v) in (int, float) for v in values)
                if is_grid and value in (min(values), max(values)):
                    edge = "least" if value == min(values) else "largest"
                    edges.append(f"{label} has the {edge} {name}")
        if not edges:
            return ()
        return (f"At the edge of a grid: {'; '.join(edges)}. Better values may lie beyond.",)

    # --- comparisons and claims ---

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """The costs to the target, by table and problem."""
        found, config = {}, self.study.config
        for stem, part in config.named_tables():
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
                name = stem if len(self.study.problems) == 1 else f"{stem}-{problem}"
                remarks = self._edge_notes(part, labels)
                found[name] = Comparison.of_runs(groups, target, cost, title, remarks)
        return found

    @cached_property
    def claims(self) -> list[CheckedClaim]:
        """The study's claims with their verdicts."""
        return [evaluate(claim, self.figures) for claim in self.study.config.claims]

    # --- files ---

    def write_page(self, path: Path) -> Path:
        """Write a page with the tables, the sentences for pairs, the figures and the settings."""
        config = self.study.config
        return write_page(
            path,
            [self],
            title=config.title or f"Study {config.name}",
            comparisons=list(self.comparisons.values()),
            claims=self.claims,
        )

    def write_figures(self, folder: Path) -> list[Path]:
        """Draw the figures as .png, .pdf, .svg and, if TeX is installed, .pgf files."""
        config, files = self.study.config, []
        for name, figure in self.figures.items():
            about = config.named_figures()[name]
            drawn = draw_figure(
                figure,
                (about.x or config.cost).name,
                about.y or config.target.column,
                width=about.width,
                summary=Summary(about.band),
            )
            stem = folder / name.replace("/", "-")
            for end in (".png", ".pdf", ".svg", *((".pgf",) if find_tex() else ())):
                try:
                    files.append(write_figure(drawn, stem.with_name(stem.name + end)))
                except InputError:  # a TeX that lacks a package
                    if end != ".pgf":
                        raise
        return files

    def write_tables(self, folder: Path) -> list[Path]:
        """Write the comparisons as LaTeX, Markdown and CSV, and return the files."""
        return [
            comparison.table().write(folder / f"{name}{suffix}")
            for name, comparison in self.comparisons.items()
            for suffix in (".tex", ".md", ".csv")
        ]

    def write_records(self, path: Path) -> Path:
        """Write all records as one table, a row for each record.

        Columns are the problem, the method, the values of the grids and the seed, then what was
        recorded.

        Args:
            path: A file .csv or .parquet.

        Returns:
            The path.

        Raises:
            InputError: The suffix is another one.
        """
        import polars

        if path.suffix not in (".csv", ".parquet"):
            raise InputError(f"{path}: records are written as .csv or .parquet")
        rows = [
            {"problem": curve.problem, "method": curve.label, **curve.setting, "seed": seed, **row}
            for curve, seed in product(self.study.curves, self.study.config.seed_list)
            if (history := self.runs.get(curve.key(seed))) is not None
            for row in history.rows
        ]
        table = polars.DataFrame(rows, infer_schema_length=None, strict=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        (table.write_csv if path.suffix == ".csv" else table.write_parquet)(path)
        return path

    def export(self, folder: Path, *, records: str = "csv") -> list[Path]:
        """Write the page, the figures, the tables and the records into a directory.

        Args:
            folder: The directory.
            records: The format of the records: "csv" or "parquet".

        Returns:
            The files.

        Raises:
            InputError: The format is unknown.
        """
        table = self.write_records(folder / f"records.{records}")
        page = self.write_page(folder / "report.html")
        drawn = self.write_figures(folder / "figures")
        return [page, *drawn, *self.write_tables(folder / "tables"), table]


def _end(run: History, column: str) -> float:
    """Return the value at the end, with the sign that makes less better; inf if f rose."""
    value = end_value(run, column) if run.progress()[-1] else math.nan
    return math.inf if math.isnan(value) else -value if run.higher_is_better(column) else value


def _label(curve: Curve, names: Sequence[str], several: bool = False) -> str:
    """Return the label of a curve with its values of these grids, and its problem if `several`."""
    shown = {name: value for name, value in curve.setting.items() if name in names}
    words = [curve.problem] * several + [describe_setting(shown)] * bool(shown)
    return f"{curve.label} ({', '.join(words)})" if words else curve.label


def write_page(
    path: Path,
    parts: Sequence[StudyResults],
    *,
    title: str,
    comparisons: Sequence[Comparison] = (),
    claims: Sequence[CheckedClaim] = (),
) -> Path:
    """Write the page of one or more studies.

    Args:
        path: The HTML file.
        parts: The studies with their finished runs.
        title: The page's title.
        comparisons: Costs to targets; each becomes a table with its sentences.
        claims: The checked claims.

    Returns:
        The path.
    """
    first = parts[0].study.config
    shown = next(iter(first.named_figures().values()))
    x, y = (shown.x or first.cost).name, shown.y or first.target.column
    runs = [run for part in parts for run in part.runs.values()]
    shared = set.intersection(*(set(run.columns) for run in runs)) if runs else set[str]()
    notes = dict.fromkeys(run.meta.get("problem", {}).get("data_note") for run in runs)
    note = "; ".join(filter(None, notes))
    page = Page(
        title=title,
        figures=[figure for part in parts for figure in part.figures.values()],
        settings={part.study.config.name: _settings(part.study) for part in parts}
        | {"versions": runs[0].meta.get("versions", {}) if runs else {}},
        columns=[name for name in dict.fromkeys((y, "grad_norm", "loss")) if name in shared],
        axes=list(dict.fromkeys((x, *AXES))),
        claims=claims,
        tables=[replace(each.table(), details=tuple(each.sentences())) for each in comparisons],
        note=f"Data: {note}." if note else "",
        target=first.target,
        runs=runs if len(runs) <= _LISTED else (),
    )
    return page.write(path)


def _settings(study: Study) -> dict[str, Any]:
    """Return the settings with which a reader can repeat a study."""
    config = study.config
    return {
        "rounds": config.rounds,
        "record_every": config.record_every,
        "seeds": config.seed_list,
        "target": str(config.target),
        "cost": str(config.cost),
        "problems": {name: str(problem.source) for name, problem in study.problems.items()},
        "methods": [
            {"problem": c.problem, "label": c.label, "setting": c.setting_text, "is": repr(c.value)}
            for c in study.curves
        ],
    }
