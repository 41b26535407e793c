"""Study files: problems x methods x grids x seeds, read from TOML and multiplied."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from fedpage.core.columns import Cost, Target
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.types import AnyMethod
from fedpage.methods.fair import at_step
from fedpage.runs import toml
from fedpage.runs.build import find_method
from fedpage.runs.config import (
    ProblemConfig,
    Settings,
    field_values,
    setting,
    structure,
)
from fedpage.studies.claims import Claim

T = TypeVar("T")
P = TypeVar("P", bound="Selection")
MOST_RUNS = 100_000
"""The most runs of a study; the list of more would fill the memory."""


@dataclass(frozen=True)
class Selection:
    """Select the runs of a study that a figure or a table shows.

    Attributes:
        name: The name of its files.
        title: The heading.
        problems: Names of problems; none for all.
        methods: Names of methods; none for all.
        where: Values of grids, such as {step = [0.1, 0.3]}; other runs are left out.
        best: Whether to show each method only at the setting with the least median cost.
    """

    name: str = ""
    title: str = ""
    problems: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    where: dict[str, Any] = field(default_factory=dict)
    best: bool = False

    def is_about(self, curve: Curve) -> bool:
        """Return True if the figure or table shows a curve."""
        if self.problems and curve.problem not in self.problems:
            return False
        if self.methods and curve.method not in self.methods:
            return False
        return all(
            name not in curve.given
            or curve.given[name] in (values if isinstance(values, list) else [values])
            for name, values in self.where.items()
        )


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
    x: Cost | None = None
    y: str = ""
    columns: int | None = setting(None, at_least=1, at_most=100)
    width: Literal["single", "double", "screen"] = "screen"
    band: Literal["quantiles", "mean-ci"] = "quantiles"

    @property
    def axes(self) -> list[str]:
        """What panels differ by, as a list."""
        return [self.panels] if isinstance(self.panels, str) else self.panels


@dataclass(frozen=True)
class TableConfig(Selection):
    """Describe a table of costs to a target, one for each problem.

    Attributes:
        target: What to reach; by default the study's target.
        cost: The cost; by default the study's.
    """

    target: Target | None = None
    cost: Cost | None = None


@dataclass(frozen=True)
class Defaults:
    """Hold the keys of all problems and of all methods, which their tables may override."""

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
        claims: Sentences to check.
    """

    problems: dict[str, Any]
    methods: dict[str, Any]
    rounds: int = setting(at_least=0)
    seeds: list[int] | int = 5
    record_every: Literal["log"] | int = setting(10, at_least=0)
    target: Target = field(default=Target())
    cost: Cost = field(default=Cost.parse("bytes"))
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
        """Return the settings of the figures by name; by default there is one figure."""
        return dict(_name_parts(self.figures or [FigureConfig()], "figure"))

    def named_tables(self) -> list[tuple[str, TableConfig]]:
        """Return the settings of the tables by name; by default there is one table a problem."""
        return _name_parts(self.tables or [TableConfig()], "costs")


def _name_parts(parts: Sequence[P], noun: str) -> list[tuple[str, P]]:
    """Return figures or tables with their names; those without a name are numbered."""
    return [
        (part.name or (noun if len(parts) == 1 else f"{noun}-{number}"), part)
        for number, part in enumerate(parts, start=1)
    ]


def parse_study(path: Path, table: Settings, changes: Sequence[str] = ()) -> StudyConfig:
    """Read the table of a study file.

    Paths of data and of own losses, partitions, metrics and methods are relative to the file,
    where such a file exists.

    Args:
        path: The file.
        table: Its content.
        changes: Values to change first, such as "methods.fedpage.eta_g=[0.1, 0.3]".

    Raises:
        InputError: A key or value is not one of a study.
    """
    table.setdefault("name", "".join(c if c.isalnum() or c in "-_." else "-" for c in path.stem))
    toml.apply_changes(table, changes)
    config = structure(StudyConfig, table, str(path))
    of_problems, defaults = ("data", "objective", "partition", "metrics"), config.defaults
    _place_files([*config.problems.values(), defaults.problem], of_problems, path.parent)
    _place_files([*config.methods.values(), defaults.method], ("method",), path.parent)
    return config


def _place_files(tables: Iterable[Any], keys: Sequence[str], folder: Path) -> None:
    """Make the paths absolute that are relative to the folder of a study file."""

    def place(text: str) -> str:
        path, at, name = text.rpartition("@") if "@" in text else (text, "", "")
        file = folder / path
        return f"{file.resolve()}{at}{name}" if file.is_file() else text

    for table in filter(lambda each: isinstance(each, dict), tables):
        for key in keys:
            if isinstance(table.get(key), str):
                words = table[key].split(",") if key == "metrics" else [table[key]]
                table[key] = ",".join(place(word.strip()) for word in words)


SPECIAL = ("step", "rho")
"""Grids beside hyper-parameters: the effective step, and K eta_l/eta_g of FedPAGE."""


@dataclass(frozen=True)
class StudyProblem:
    """A problem of a study: its configuration, or the problem itself.

    Attributes:
        title: Its name for readers.
        methods: Hyper-parameters that methods have on this problem, by method.
        grid: Grids that replace the study's.
        source: What `open_source` makes the problem of.
    """

    title: str = ""
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    source: Any = None


class RunKey(NamedTuple):
    """Name a run of a study: problem, method, setting of the grids ("step=0.1"), and seed."""

    problem: str
    method: str
    setting: str
    seed: int


@dataclass(frozen=True)
class Curve:
    """A method with one setting of the grids, on a problem: runs that differ by seeds.

    Attributes:
        problem: The name of the problem.
        method: The name of the method in the file.
        label: The method's name for readers.
        setting: The values of the grids.
        given: All values that the study gives, including the values of the grids.
        value: The method with its hyper-parameters.
    """

    problem: str
    method: str
    label: str
    setting: Mapping[str, Any]
    given: Mapping[str, Any]
    value: AnyMethod

    @property
    def setting_text(self) -> str:
        """The setting in words, such as "step=0.1, K=5"."""
        return describe_setting(self.setting)

    def key(self, seed: int) -> RunKey:
        """Return the name of the run with a seed."""
        return RunKey(self.problem, self.method, self.setting_text, seed)


def describe_setting(values: Mapping[str, Any]) -> str:
    """Write the values of grids.

    >>> describe_setting({"step": 0.1, "K": 5})
    'step=0.1, K=5'
    """
    return ", ".join(f"{name}={format_value(value)}" for name, value in values.items())


def format_value(value: object) -> str:
    """Write a value of a grid."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def list_problems(config: StudyConfig, where: str) -> dict[str, StudyProblem]:
    """Read the problems of a study.

    Args:
        config: The study.
        where: The place that errors name.
    """
    tables = _resolve(config.problems, config.defaults.problem, f"{where}, [problems")
    found = {}
    for name, table in tables.items():
        place = f"{where}, [problems.{name}]"
        if not isinstance(table, dict):
            found[name] = StudyProblem(name, source=table)
            continue
        own, rest = _split(table, StudyProblem, ("title", "methods", "grid"), place)
        unknown = next((key for key in own.methods if key not in config.methods), None)
        if unknown is not None:
            hint = did_you_mean(unknown, config.methods)
            raise InputError(f"{place}: methods has {unknown!r}, which is not a method;{hint}")
        source = structure(ProblemConfig, rest, place)
        found[name] = replace(own, title=own.title or name, source=source)
    return found


def _split(table: Settings, cls: type[T], keys: Sequence[str], place: str) -> tuple[T, Settings]:
    """Read the keys of a study from a table, and return the others as they are."""
    own = {key: value for key, value in table.items() if key in keys}
    rest = {key: value for key, value in table.items() if key not in keys}
    return structure(cls, own, place), rest


def _resolve(tables: Mapping[str, Any], defaults: Settings, where: str) -> dict[str, Any]:
    """Fill in what tables take from others (`like`) and from the defaults."""

    def fill(name: str, path: tuple[str, ...]) -> Any:
        table = tables[name]
        if isinstance(table, (str, int, float, list)):
            found = short_repr(table)
            raise InputError(f"{where}.{name}]: must be a table of keys, not {found}")
        if not isinstance(table, Mapping):
            return table
        other = table.get("like")
        if other is None:
            return {**defaults, **table}
        place = f"{where}.{name}]"
        if other not in tables or other in (*path, name):
            hint = did_you_mean(str(other), [key for key in tables if key != name])
            why = "leads back to itself" if other in tables else "is not there"
            raise InputError(f"{place}: like = {short_repr(other)} {why};{hint}".rstrip(";"))
        base = fill(other, (*path, name))
        if not isinstance(base, dict):
            raise InputError(f"{place}: like = {other!r} is an object, not a table")
        if where.endswith("[methods"):
            base = {"method": other, **base}  # the other's name names its method
        given = {key: value for key, value in table.items() if key != "like"}
        # the title and the label name one table only
        return {k: v for k, v in base.items() if k not in ("title", "label")} | given

    return {name: fill(name, ()) for name in tables}


def list_curves(
    config: StudyConfig, problems: Mapping[str, StudyProblem], where: str
) -> list[Curve]:
    """Multiply problems, methods and grids.

    Args:
        config: The study.
        problems: What `list_problems` returns.
        where: The place that errors name.

    Raises:
        InputError: A name is unknown, or a value is not of its type.
    """
    tables = _resolve(config.methods, config.defaults.method, f"{where}, [methods")
    methods = {
        name: _open_method(name, table, f"{where}, [methods.{name}]")
        for name, table in tables.items()
    }
    labels = [method.label for method in methods.values()]
    curves = []
    for (on, problem), (name, method) in itertools.product(problems.items(), methods.items()):
        is_alone = labels.count(method.label) == 1
        label = method.label if is_alone else f"{method.label} ({name})"
        grid, more = {**config.grid, **problem.grid}, problem.methods.get(name, {})
        for chosen, given in _multiply({**grid, **method.given, **more}, method.place):
            curves.append(Curve(on, name, label, chosen, given, method.build(given)))
    if len(curves) * len(config.seed_list) > MOST_RUNS:
        raise InputError(f"{where}: more than {MOST_RUNS:,} runs; make the grids smaller")
    return curves


@dataclass(frozen=True)
class _MethodKeys:
    """Hold the keys of a method's table that are not hyper-parameters."""

    method: str = ""
    label: str = ""
    step: float = setting(0.0, above=0, at_most=1e300)
    rho: float = setting(0.0, above=0, at_most=1e300)


@dataclass(frozen=True)
class _Method:
    """A method of a study, before its grids are multiplied: the keys of a table, or an object."""

    label: str
    cls: type[AnyMethod]
    make: Callable[..., AnyMethod]
    given: Settings
    place: str

    def build(self, values: Settings) -> AnyMethod:
        """Build the method with these hyper-parameters, effective step and rho."""
        parsed = dict[str, Any]()
        for key, value in values.items():
            is_word = isinstance(value, str) and key not in SPECIAL
            cls = _MethodKeys if key in SPECIAL else self.cls
            parsed |= field_values(cls, {key: value}, self.place, words=is_word)
        step, rho = (parsed.pop(key, None) for key in SPECIAL)
        try:
            method: Any = self.make(**parsed)
            if step is not None:
                method = at_step(method, step)
            if rho is not None:
                if not hasattr(method, "local_step"):
                    raise InputError(f"rho is FedPAGE's; {method.name} has no such ratio of steps")
                method = replace(method, eta_l=rho * method.eta_g / method.K)
        except InputError as error:
            raise InputError(f"{self.place}: {error}") from None
        return method  # type: ignore[no-any-return]


def _open_method(name: str, table: Any, place: str) -> _Method:
    if not isinstance(table, dict):
        return _Method(_label(name, table.name), type(table), partial(replace, table), {}, place)
    own, given = _split(table, _MethodKeys, ("method", "label"), place)
    try:
        entry = find_method(own.method or name)
    except InputError as error:
        hint = "" if own.method else "; a table of another name sets method"
        raise InputError(f"{place}: {error}{hint}") from None
    return _Method(own.label or _label(name, entry.label), entry.cls, entry, given, place)


def _label(name: str, method: str) -> str:
    """Return the label of a method whose table gives none, beginning with the method's name."""
    if name.lower().replace("_", "-") == method.lower():
        return method
    return name if name.startswith(method) else f"{method} ({name})"


def _multiply(table: Settings, place: str) -> Iterator[tuple[Settings, Settings]]:
    """Yield the values of the lists, and all values with these in place of the lists."""
    lists = {key: value for key, value in table.items() if isinstance(value, list)}
    for key, values in lists.items():
        if not values:
            raise InputError(f"{place}: the list of {key} is empty")
        if any(isinstance(value, (list, dict)) for value in values):
            raise InputError(f"{place}: {key} must be a list of values, not {short_repr(values)}")
    for chosen_values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, chosen_values, strict=True))
        yield chosen, {**table, **chosen}
