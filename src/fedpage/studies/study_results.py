"""Select the runs of a study for its figures and tables, and label them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedpage.core.columns import Cost
from fedpage.core.target import Target
from fedpage.report.plots import FigureRuns
from fedpage.report.titles import describe_runs
from fedpage.runs.config import ProblemConfig
from fedpage.runs.history import History
from fedpage.studies.claims import Panel
from fedpage.studies.comparison import Comparison
from fedpage.studies.study_file import (
    FigureConfig,
    Selection,
    StudyConfig,
    TableConfig,
)
from fedpage.studies.study_grid import Curve, StudyProblem, describe_setting, format_value


class RunKey(NamedTuple):
    """Name a run of a study: problem, method, setting of the grids ("step=0.1"), and seed."""

    problem: str
    method: str
    setting: str
    seed: int


def key_of(curve: Curve, seed: int) -> RunKey:
    """Return the name of a curve's run."""
    return RunKey(curve.problem, curve.method, curve.setting_text, seed)


@dataclass(frozen=True)
class StudyResults:
    """The finished runs of a study.

    Attributes:
        config: The study.
        problems: Its problems.
        curves: Its problems x methods x settings.
        runs: The finished runs.
    """

    config: StudyConfig
    problems: Mapping[str, StudyProblem]
    curves: Sequence[Curve]
    runs: Mapping[RunKey, History]

    def figures(self) -> dict[str, FigureRuns]:
        """Return the figures with their finished runs, by name."""
        found = {}
        for name, figure in self.config.named_figures().items():
            panels = tuple(self._panels(figure))
            if panels:
                columns = figure.columns or min(3, len(panels))
                drawn = [run for panel in panels for some in panel.curves.values() for run in some]
                title = figure.title or self.config.title or describe_runs(drawn)
                found[name] = FigureRuns(name, title, figure.note, columns, panels)
        return found

    def _panels(self, figure: FigureConfig) -> list[Panel]:
        names = panel_names(figure.panels)
        groups: dict[tuple[object, ...], list[Curve]] = {}
        for curve in self._select(figure, self.config.target, self.config.cost):
            groups.setdefault(tuple(self._axis(curve, name) for name in names), []).append(curve)
        panels = []
        for values, curves in groups.items():
            known = {name: v for name, v in zip(names, values, strict=True) if v is not None}
            title = ", ".join(self._axis_title(name, value) for name, value in known.items())
            labels = _label_curves(curves, names)
            drawn = {
                label: [
                    self.runs[key]
                    for seed in self.config.seed_list
                    if (key := key_of(curve, seed)) in self.runs
                ]
                for label, curve in labels.items()
            }
            if any(drawn.values()):
                panels.append(Panel(title, drawn, known))
        return panels

    def _axis(self, curve: Curve, name: str) -> object:
        """Return the value of a curve by which panels differ."""
        if name in ("problem", "method"):
            return curve.problem if name == "problem" else curve.label
        if name in curve.given:
            return curve.given[name]
        source = self.problems[curve.problem].source
        if isinstance(source, ProblemConfig):
            return getattr(source, name, None)
        about: dict[str, Any] = source.describe()
        return about.get({"clients": "N"}.get(name, name))

    def _axis_title(self, name: str, value: object) -> str:
        if name == "problem":
            return self.problems[str(value)].title
        if name == "clients" and isinstance(value, int):
            return f"{value:,} clients"
        return str(value) if name in ("method", "data") else f"{name} {format_value(value)}"

    def _select(self, part: Selection, target: Target, cost: str) -> list[Curve]:
        """Return the curves that a figure or a table is about."""
        found = [curve for curve in self.curves if is_about(part, curve)]
        if not part.best:
            return found
        best: dict[tuple[str, str], tuple[tuple[float, ...], Curve]] = {}
        for curve in found:
            costs = self._costs(curve, target, cost)
            if costs:
                order = _median_order(list(costs.values()))
                place = (curve.problem, curve.method)
                if place not in best or order < best[place][0]:
                    best[place] = (order, curve)
        return [curve for _, curve in best.values()]

    def _costs(self, curve: Curve, target: Target, cost: str) -> dict[int, float]:
        """Return the cost of each seed to the target."""
        found = {}
        for seed in self.config.seed_list:
            history = self.runs.get(key_of(curve, seed))
            if history is not None:
                found[seed] = history.cost_to(target, cost)
        return found

    def comparisons(self) -> dict[str, Comparison]:
        """Compare the costs to the target, by table and problem."""
        parts = self.config.tables or [TableConfig()]
        found = {}
        for number, part in enumerate(parts, start=1):
            target, cost = part.target or self.config.target, part.cost or self.config.cost
            curves = self._select(part, target, cost)
            for problem in dict.fromkeys(curve.problem for curve in curves):
                own = [curve for curve in curves if curve.problem == problem]
                labels = _label_curves(own, ["problem"])
                costs = {
                    label: paid
                    for label, curve in labels.items()
                    if (paid := self._costs(curve, target, cost))
                }
                if not costs:
                    continue
                title = part.title or self.problems[problem].title
                stem = part.name or ("costs" if len(parts) == 1 else f"costs-{number}")
                name = stem if len(self.problems) == 1 else f"{stem}-{problem}"
                found[name] = Comparison(costs, target.title, Cost.parse(cost), title)
        return found


def panel_names(panels: list[str] | str) -> list[str]:
    """Return what panels differ by, as a list."""
    return [panels] if isinstance(panels, str) else list(panels)


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


def _median_order(costs: Sequence[float]) -> tuple[float, ...]:
    """Order settings by their median cost, then by the seeds that did not reach the target."""
    ranked = sorted(costs)
    return ranked[len(ranked) // 2], sum(map(math.isinf, costs)), ranked[0]


def _label_curves(curves: Sequence[Curve], panels: Sequence[str]) -> dict[str, Curve]:
    """Label the curves of a panel by method and by what else tells them apart."""
    several = len({curve.problem for curve in curves}) > 1
    names = {
        name: None
        for curve in curves
        for name in curve.setting
        if name not in panels and _varies(curves, name)
    }
    found = {}
    for curve in curves:
        shown = {name: curve.setting[name] for name in names if name in curve.setting}
        words = [curve.problem] if several else []
        words += [describe_setting(shown)] if shown else []
        found[f"{curve.label} ({', '.join(words)})" if words else curve.label] = curve
    return found


def _varies(curves: Sequence[Curve], name: str) -> bool:
    return len({format_value(curve.setting.get(name)) for curve in curves}) > 1
