"""Read studies from TOML: problems x methods x grids x seeds, and what to make of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedpage.core.columns import Cost
from fedpage.core.errors import InputError, short_repr
from fedpage.core.target import Target
from fedpage.runs import toml
from fedpage.runs.config import Settings, setting, structure
from fedpage.studies.claims import Claim

MOST_RUNS = 100_000
"""The most runs of a study; the list of more would fill the memory."""


@dataclass(frozen=True)
class Selection:
    """Say which runs of a study a figure or a table is about.

    Attributes:
        name: The name of its files.
        title: The heading.
        problems: Names of problems; none for all.
        methods: Names of methods; none for all.
        where: Values of grids, such as {step = [0.1, 0.3]}; other runs are left out.
        best: Whether each method stands at its best setting only: that of the least median cost.
    """

    name: str = ""
    title: str = ""
    problems: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    where: dict[str, Any] = field(default_factory=dict)
    best: bool = False


@dataclass(frozen=True)
class FigureConfig(Selection):
    """Describe a figure.

    Attributes:
        note: A line below the heading.
        panels: What panels differ by: "problem", a grid such as "step", or a key of problems such
            as "clients"; or several of them.
        x: The cost on the horizontal axis; by default the study's.
        y: The recorded column; by default the target's.
        columns: Panels in a row.
        width: "single", "double" or "screen"; see `fp.plot`.
        band: "quantiles" or "mean-ci"; see `fp.plot`.
    """

    note: str = ""
    panels: list[str] | str = "problem"
    x: str = ""
    y: str = ""
    columns: int | None = setting(None, at_least=1, at_most=100)
    width: Literal["single", "double", "screen"] = "screen"
    band: Literal["quantiles", "mean-ci"] = "quantiles"


@dataclass(frozen=True)
class TableConfig(Selection):
    """Describe a table of costs to a target, one for each problem.

    Attributes:
        target: What to reach; by default the study's target.
        cost: The cost; by default the study's.
    """

    target: Target | None = None
    cost: str = ""


@dataclass(frozen=True)
class Defaults:
    """Hold what all problems and all methods have, unless they say otherwise."""

    problem: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyConfig:
    """Describe a study: the tables of its file.

    Attributes:
        problems: By name, the keys of `ProblemConfig` and `like`, `title`, `methods` and `grid`;
            or a problem.
        methods: By name, hyper-parameters and `method`, `label`, `like`, `step`, `rho`; or a
            method. A list is a grid.
        grid: Values that every method takes, such as {step = [0.1, 0.3]}.
        rounds: Rounds of a run.
        seeds: A number of seeds (0, 1, ...), or a list of them.
        record_every: Rounds between two records, or "log".
        target: What tables compare the cost of.
        cost: The cost.
        stop: Whether a run ends where it reaches the target.
        name: A short name, for directories.
        title: The heading of the report.
        defaults: What all problems and all methods have.
        figures: Figures to draw; by default one with a panel for each problem.
        tables: Tables to write; by default one for each problem.
        claims: Sentences to judge.
    """

    problems: dict[str, Any]
    methods: dict[str, Any]
    rounds: int = setting(at_least=0)
    seeds: list[int] | int = 5
    record_every: Literal["log"] | int = setting(10, at_least=0)
    target: Target = field(default=Target())
    cost: str = "bytes"
    stop: bool = False
    name: str = "study"
    title: str = ""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    defaults: Defaults = field(default=Defaults())
    figures: list[FigureConfig] = field(default_factory=list)
    tables: list[TableConfig] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def __post_init__(self) -> None:
        for what in ("problems", "methods"):
            if not getattr(self, what):
                raise InputError(f"give at least one table in [{what}]")
        seeds = self.seed_list
        if not seeds or min(seeds) < 0 or len(seeds) > MOST_RUNS or len(set(seeds)) < len(seeds):
            raise InputError(
                "seeds must be a number from 1 to 100,000, or a list of different seeds of at "
                f"least 0, not {short_repr(self.seeds)}"
            )
        Cost.parse(self.cost)
        if not self.name or any(not (c.isalnum() or c in "-_.") for c in self.name):
            raise InputError(
                "name must consist of letters, digits, '-', '_' and '.', not "
                f"{short_repr(self.name)}"
            )

    @property
    def seed_list(self) -> list[int]:
        """The seeds."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)

    def named_figures(self) -> dict[str, FigureConfig]:
        """Return what the study says about its figures, by name; by default there is one."""
        figures = self.figures or [FigureConfig()]
        return {
            figure.name or ("figure" if len(figures) == 1 else f"figure-{number}"): figure
            for number, figure in enumerate(figures, start=1)
        }


def read_study(path: Path, changes: Sequence[str] = ()) -> StudyConfig:
    """Read a study file.

    Paths of data and of own losses, partitions, metrics and methods are relative to the file,
    where such a file exists.

    Args:
        path: The file.
        changes: Values to change first, such as "methods.fedpage.eta_g=[0.1, 0.3]".

    Raises:
        InputError: The file cannot be read, or a key or value is not one of a study.
    """
    table = toml.read(path)
    table.setdefault("name", "".join(c if c.isalnum() or c in "-_." else "-" for c in path.stem))
    toml.apply_changes(table, changes)
    of_problems = ("data", "objective", "partition", "metrics")
    for section, keys in (("problems", of_problems), ("methods", ("method",))):
        for entry in _tables(table.get(section)):
            _place_files(entry, keys, path.parent)
    for section, keys in (("problem", of_problems), ("method", ("method",))):
        defaults = table.get("defaults")
        if isinstance(defaults, dict) and isinstance(defaults.get(section), dict):
            _place_files(defaults[section], keys, path.parent)
    return structure(StudyConfig, table, str(path))


def _tables(section: object) -> list[Settings]:
    if not isinstance(section, dict):
        return []
    return [entry for entry in section.values() if isinstance(entry, dict)]


def _place_files(table: Settings, keys: Sequence[str], folder: Path) -> None:
    """Make paths absolute that are relative to the folder of a study file."""
    for key in keys:
        value = table.get(key)
        if isinstance(value, str):
            words = [word.strip() for word in value.split(",")] if key == "metrics" else [value]
            table[key] = ",".join(_place_file(word, folder) for word in words)


def _place_file(text: str, folder: Path) -> str:
    path, at, rest = text.rpartition("@")
    file = folder / (path if at else text)
    return f"{file.resolve()}{at}{rest if at else ''}" if file.is_file() else text
