"""Read the paper's figures from TOML: which runs make which panel."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from typing import Any

import numpy as np

from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.types import HyperParameter
from fedpage.methods import METHODS
from fedpage.runs import toml
from fedpage.runs.config import setting, structure

_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Variant:
    """One curve of a panel: a method with all its hyper-parameters."""

    label: str
    method: Any


@dataclass(frozen=True)
class Panel:
    """One plot: a problem and its curves."""

    title: str
    clients: int
    step: float | None
    variants: tuple[Variant, ...]

    @property
    def key(self) -> str:
        """The panel's name in file names."""
        return f"N{self.clients}" + (f"-step{self.step:g}" if self.step is not None else "")


@dataclass(frozen=True)
class TuningTable:
    """The grid that a search for step sizes covers: the table `[tuning]`."""

    eta_g: list[float]
    rho: list[float]
    target: float = setting(above=0)
    seeds: int = setting(at_least=1, at_most=_LARGEST)

    def __post_init__(self) -> None:
        _check_steps(self.eta_g, "eta_g", 1)
        _check_steps(self.rho, "rho", 1)


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, or of the same experiment on other data.

    Attributes:
        name: Its name on the command line.
        title: The heading.
        paper: The number of the figure in the paper.
        data: The data set.
        rows: How many rows of it are used.
        objective: The loss.
        rounds: Rounds of a run.
        record_every: Rounds between records.
        seeds: Runs of every curve, unless the command line gives another number.
        panels: The plots.
        columns: Panels in a row of the paper's layout.
        tuning: The grid of the search for step sizes, if the figure has one.
    """

    name: str
    title: str
    paper: str
    data: str
    rows: int
    objective: str
    rounds: int
    record_every: int
    seeds: int
    panels: tuple[Panel, ...]
    columns: int
    tuning: TuningTable | None = None


@dataclass(frozen=True)
class _PanelTable:
    """A table `[[panel]]`."""

    clients: int = setting(at_least=1, at_most=_LARGEST)
    step: float | None = setting(None, above=0, at_most=1e300)
    S: int | None = setting(None, at_least=1, at_most=_LARGEST)
    S_rivals: int | None = setting(None, at_least=1, at_most=_LARGEST)
    b_rivals: int | None = setting(None, at_least=1, at_most=_LARGEST)
    eta_g: list[float] | None = None
    rho: list[float] | None = None


@dataclass(frozen=True)
class _MethodTable:
    """A table `[[method]]`."""

    name: str
    label: str
    S: int | None = setting(None, at_least=1, at_most=_LARGEST)
    K: int | None = setting(None, at_least=1, at_most=_LARGEST)
    b: int | None = setting(None, at_least=1, at_most=_LARGEST)
    b3: int | None = setting(None, at_least=1, at_most=_LARGEST)
    rho: float | None = setting(None, above=0, at_most=1e300)
    rival: bool = False

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            hint = did_you_mean(self.name, METHODS) or f" known are {', '.join(METHODS)}"
            raise InputError(f"unknown method {short_repr(self.name)};{hint}")


@dataclass(frozen=True)
class _FigureTable:
    """A figure's TOML document."""

    name: str
    title: str
    paper: str
    data: str
    objective: str
    panel: list[_PanelTable]
    method: list[_MethodTable]
    rows: int = setting(at_least=1, at_most=_LARGEST)
    rounds: int = setting(at_least=1, at_most=_LARGEST)
    record_every: int = setting(at_least=0, at_most=_LARGEST)
    seeds: int = setting(at_least=1, at_most=_LARGEST)
    tuning: TuningTable | None = None

    def __post_init__(self) -> None:
        if not self.panel or not self.method:
            raise InputError("at least one panel and one method are needed")
        if len({method.label for method in self.method}) < len(self.method):
            raise InputError("two methods have the same label")


def names() -> list[str]:
    """List every figure, in the paper's order."""
    texts = _read_texts()
    return sorted(texts, key=lambda name: str(tomllib.loads(texts[name])["paper"]))


def load(name: str) -> Figure:
    """Load a figure of the paper.

    Args:
        name: Its name, such as "comparison/a9a-robust".

    Returns:
        The figure.

    Raises:
        InputError: There is no figure of that name.
    """
    texts = _read_texts()
    if name not in texts:
        hint = did_you_mean(name, texts)
        raise InputError(f"unknown figure {name!r};{hint} `fedpage reproduce --list` shows all")
    return parse(texts[name], name)


def _read_texts() -> dict[str, str]:
    """Read the TOML documents of all figures, by name."""
    texts = {}
    for entry in files("fedpage.studies.paper").joinpath("figures").iterdir():
        if entry.name.endswith(".toml"):
            text = entry.read_text(encoding="utf-8")
            texts[str(tomllib.loads(text)["name"])] = text
    return texts


def parse(text: str, source: str) -> Figure:
    """Parse a figure from its TOML document.

    Args:
        text: The document.
        source: The figure's name, for error messages.

    Returns:
        The figure.

    Raises:
        InputError: A key is unknown or missing, or a value has a wrong type or range.
    """
    where = f"figure {source}"
    table = structure(_FigureTable, toml.loads(text, where), where)
    panels = tuple(
        _build_panel(panel, table.method, table.rows, f"{where}, [panel] {number}")
        for number, panel in enumerate(table.panel, start=1)
    )
    if len({panel.key for panel in panels}) < len(panels):
        raise InputError(f"{where}: two panels have the same clients and step")
    clients = len({panel.clients for panel in panels})
    columns = len(panels) // clients if clients < len(panels) else len(panels)
    return Figure(
        table.name, table.title, table.paper, table.data, table.rows, table.objective,
        table.rounds, table.record_every, table.seeds, panels, columns, table.tuning,
    )  # fmt: skip


def _check_steps(values: Sequence[float] | None, name: str, least: int) -> None:
    """Require at least so many numbers above 0."""
    count = 0 if values is None else len(values)
    if values is None or count < least:
        raise InputError(f"{name} needs at least {least} numbers, not {count}")
    for value in values:
        if not 0 < value < 1e300:
            raise InputError(f"every {name} must be a finite number above 0, not {value!r}")


def _build_panel(
    panel: _PanelTable, methods: Sequence[_MethodTable], rows: int, where: str
) -> Panel:
    if panel.clients > rows:
        raise InputError(
            f"{where}: {panel.clients} clients need at least {panel.clients} rows, not {rows}"
        )
    if panel.eta_g is None and panel.step is None:
        raise InputError(f"{where}: a panel needs step, or eta_g and rho for each method")
    try:
        if panel.eta_g is not None:
            _check_steps(panel.eta_g, "eta_g", len(methods))
            _check_steps(panel.rho, "rho", len(methods))
        variants = tuple(
            Variant(table.label, _build_method(table, panel, number))
            for number, table in enumerate(methods)
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    step = f", step {panel.step:g}" if panel.step is not None else ""
    return Panel(f"{panel.clients:,} clients{step}", panel.clients, panel.step, variants)


def _build_method(table: _MethodTable, panel: _PanelTable, number: int) -> Any:
    """Build a method with the hyper-parameters of its table and of the panel."""
    keys = ("S", "K", "b", "b3")
    options: dict[str, HyperParameter] = {
        key: v for key, v in asdict(table).items() if key in keys and v
    }
    rho = table.rho
    if table.rival:
        for key in ("S_rivals", "b_rivals"):
            if getattr(panel, key) is None:
                raise InputError(f"{key!r} is missing, and {short_repr(table.label)} is a rival")
        options |= {"S": panel.S_rivals, "b": panel.b_rivals}
    elif panel.S is not None:
        options["S"] = panel.S
    try:
        method: Any = METHODS[table.name](**options)
        if panel.eta_g is not None and panel.rho is not None:
            method = replace(method, eta_g=panel.eta_g[number])
            rho = panel.rho[number] if method.K > 1 else None
        else:
            method = method.with_step(panel.step)
        if rho is not None:
            method = replace(method, eta_l=rho * method.eta_g / method.K)
        method.init(np.zeros(1), panel.clients)
    except (TypeError, AttributeError):
        known = ", ".join(field.name for field in fields(METHODS[table.name]()))
        asked = [*options, *(["eta_g"] if panel.eta_g else []), *(["rho"] if rho else [])]
        raise InputError(f"{table.name} has {known}; it cannot take {', '.join(asked)}") from None
    return method


def on_other_data(figure: Figure, data: str, rows: int) -> Figure:
    """Return the same figure on other data, marked in its title.

    Args:
        figure: The figure.
        data: The other data set.
        rows: Its rows; the figure uses at most as many as before.

    Returns:
        The changed figure; its panels keep their clients.
    """
    title = f"{figure.title} [on {data} instead of {figure.data}]"
    return replace(figure, data=data, rows=min(rows, figure.rows), title=title)
