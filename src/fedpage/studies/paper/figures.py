"""The paper's figures as data: which runs make which panel."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.methods import METHODS
from fedpage.runs import toml

_FIGURE = {
    "name": str, "title": str, "paper": str, "data": str, "rows": int, "objective": str, "rounds": int, "record_every": int,
    "seeds": int, "panel": list, "method": list, "tuning": dict,
}  # fmt: skip
_PLAIN = ("name", "title", "paper", "data", "rows", "objective", "rounds", "record_every", "seeds")
_PANEL = {
    "clients": int, "step": float, "S": int, "S_rivals": int, "b_rivals": int, "eta_g": list, "rho": list,
}  # fmt: skip
_METHOD = {
    "name": str,
    "label": str,
    "S": int,
    "K": int,
    "b": int,
    "b3": int,
    "rho": float,
    "rival": bool,
}
_TUNING = {"eta_g": list, "rho": list, "target": float, "seeds": int}
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Variant:
    """One curve of a panel: a method with all its hyper-parameters."""

    label: str
    method: Any


@dataclass(frozen=True)
class Panel:
    """One plot: a problem and the curves in it."""

    title: str
    clients: int
    step: float | None
    variants: tuple[Variant, ...]

    @property
    def key(self) -> str:
        """Its name in file names."""
        return f"N{self.clients}" + (f"-step{self.step:g}" if self.step is not None else "")


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, or of the same experiments on other data."""

    name: str
    title: str
    paper: str
    data: str
    rows: int
    objective: str
    rounds: int
    record_every: int
    seeds: int
    """Runs of every curve, unless the command line says otherwise."""
    panels: tuple[Panel, ...]
    columns: int
    """Panels in a row of the paper's layout."""
    tuning: Mapping[str, Any] | None = None


def names() -> list[str]:
    """Every figure, in the paper's order."""
    texts = _texts()
    return sorted(texts, key=lambda name: str(tomllib.loads(texts[name])["paper"]))


def load(name: str) -> Figure:
    """The figure of that name; an InputError suggests another where there is none."""
    texts = _texts()
    if name not in texts:
        near = get_close_matches(name, texts, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"unknown figure {name!r}: {hint}`fedpage reproduce --list` shows all")
    return parse(texts[name], name)


def _texts() -> dict[str, str]:
    found = {}
    for entry in files("fedpage.studies.paper").joinpath("figures").iterdir():
        if entry.name.endswith(".toml"):
            text = entry.read_text(encoding="utf-8")
            found[str(tomllib.loads(text)["name"])] = text
    return found


def parse(text: str, source: str) -> Figure:
    """A figure from its TOML; unknown keys, missing ones and values of a wrong kind are errors."""
    table = toml.loads(text, f"figure {source}")
    toml.known(table, _FIGURE, f"figure {source}", optional={"tuning"})
    panels, methods = table["panel"], table["method"]
    _within(table, ("rows", "rounds", "seeds"), f"figure {source}")
    _within(table, ("record_every",), f"figure {source}", least=0)
    for number, panel in enumerate(panels):
        where = f"figure {source}, panel {number + 1}"
        toml.known(panel, _PANEL, where, optional=set(_PANEL) - {"clients"})
        _within(panel, ("clients", "S", "S_rivals", "b_rivals"), where)
    for number, method in enumerate(methods):
        where = f"figure {source}, method {number + 1}"
        toml.known(method, _METHOD, where, optional=set(_METHOD) - {"name", "label"})
        _within(method, ("S", "K", "b", "b3"), where)
        if method["name"] not in METHODS:
            near = get_close_matches(method["name"], METHODS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(METHODS)}"
            raise InputError(f"{where}: unknown method {short_repr(method['name'])}{hint}")
    if "tuning" in table:
        where = f"figure {source}, tuning"
        toml.known(table["tuning"], _TUNING, where, optional=set())
        _within(table["tuning"], ("seeds",), where)
        for key in ("eta_g", "rho"):
            _steps(table["tuning"], key, 1, where)
        _positive(table["tuning"]["target"], f"{where}: target")
    if not panels or not methods:
        raise InputError(f"figure {source}: at least one panel and one method are needed")
    plain = {key: table[key] for key in _PLAIN}
    clients = len({panel["clients"] for panel in panels})
    made = tuple(
        _panel(panel, methods, table["rows"], f"figure {source}, panel {number}")
        for number, panel in enumerate(panels, start=1)
    )
    if len({panel.key for panel in made}) < len(made):
        raise InputError(f"figure {source}: two panels have the same clients and step")
    if len({method["label"] for method in methods}) < len(methods):
        raise InputError(f"figure {source}: two methods have the same label")
    columns = len(panels) // clients if clients < len(panels) else len(panels)
    return Figure(**plain, panels=made, columns=columns, tuning=table.get("tuning"))


def _within(table: Mapping[str, Any], keys: tuple[str, ...], where: str, least: int = 1) -> None:
    """Whole numbers that are given must be sensible ones."""
    for key in keys:
        if key in table and not least <= table[key] <= _LARGEST:
            raise InputError(
                f"{where}: {key} must be from {least} to {_LARGEST:,}, not {short_repr(table[key])}"
            )


def _positive(value: Any, what: str) -> float:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e300:
        raise InputError(f"{what} must be a finite number above 0, not {short_repr(value)}")
    return float(value)


def _steps(table: Mapping[str, Any], key: str, least: int, where: str) -> list[float]:
    """A list of at least so many finite numbers above 0."""
    values = table.get(key, [])
    if len(values) < least:
        raise InputError(f"{where}: {key} needs at least {least} numbers, not {len(values)}")
    return [_positive(value, f"{where}: every {key}") for value in values]


def _panel(panel: Mapping[str, Any], methods: list[dict[str, Any]], rows: int, where: str) -> Panel:
    if panel["clients"] > rows:
        raise InputError(
            f"{where}: {panel['clients']} clients need at least {panel['clients']} rows, not {rows}"
        )
    step = _positive(panel["step"], f"{where}: step") if "step" in panel else None
    tuned = (
        [_steps(panel, key, len(methods), where) for key in ("eta_g", "rho")]
        if "eta_g" in panel
        else None
    )
    if tuned is None and step is None:
        raise InputError(f"{where}: a panel needs step, or eta_g and rho for each method")
    variants = []
    for number, table in enumerate(methods):
        options = {key: table[key] for key in ("S", "K", "b", "b3") if key in table}
        rho = _positive(table["rho"], f"{where}: rho") if "rho" in table else None
        if table.get("rival"):
            missing = [key for key in ("S_rivals", "b_rivals") if key not in panel]
            if missing:
                raise InputError(
                    f"{where}: {missing[0]!r} is missing, and {short_repr(table['label'])} is a rival"
                )
            options |= {"S": panel["S_rivals"], "b": panel["b_rivals"]}
        elif "S" in panel:
            options["S"] = panel["S"]
        try:
            method: Any = METHODS[table["name"]](**options)
            if tuned is not None:
                method = replace(method, eta_g=tuned[0][number])
                rho = tuned[1][number] if method.K > 1 else None
            else:
                method = method.with_step(step)
            if rho is not None:
                method = replace(method, eta_l=rho * method.eta_g / method.K)
            method.init(np.zeros(1), panel["clients"])
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        except (TypeError, AttributeError):
            known = ", ".join(field.name for field in fields(METHODS[table["name"]].cls))
            asked = ", ".join(
                [*options, *(["eta_g"] if tuned else []), *(["rho"] if rho is not None else [])]
            )
            raise InputError(
                f"{where}: {table['name']} has {known}; it cannot take {asked}"
            ) from None
        variants.append(Variant(table["label"], method))
    title = f"{panel['clients']:,} clients" + (f", step {step:g}" if step is not None else "")
    return Panel(title, int(panel["clients"]), step, tuple(variants))


def on_other_data(figure: Figure, data: str, rows: int) -> Figure:
    """The same figure on other data, marked as such; panels that need more rows than there are, keep their clients."""
    title = f"{figure.title} [on {data} instead of {figure.data}]"
    return replace(figure, data=data, rows=min(rows, figure.rows), title=title)
