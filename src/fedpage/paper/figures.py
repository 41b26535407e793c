"""The paper's figures as data: which runs make which panel."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from fedpage.methods import METHODS
from fedpage.types import InputError

_FIGURE = {
    "name": str, "title": str, "paper": str, "data": str, "rows": int, "objective": str, "rounds": int, "record": int,
    "seeds": int, "panel": list, "method": list, "tuning": dict,
}  # fmt: skip
_PLAIN = ("name", "title", "paper", "data", "rows", "objective", "rounds", "record", "seeds")
_PANEL = {
    "clients": int, "step": float, "S": int, "S_rivals": int, "b_rivals": int, "eta_g": list, "rho": list,
}  # fmt: skip
_METHOD = {"name": str, "label": str, "S": int, "K": int, "b": int, "b3": int, "rho": float, "rival": bool}
_TUNING = {"eta_g": list, "rho": list, "target": float, "seeds": int}


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
    record: int
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
    for entry in files("fedpage.paper").joinpath("figures").iterdir():
        if entry.name.endswith(".toml"):
            text = entry.read_text(encoding="utf-8")
            found[str(tomllib.loads(text)["name"])] = text
    return found


def parse(text: str, source: str) -> Figure:
    """A figure from its TOML; unknown keys, missing ones and values of a wrong kind are errors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"figure {source}: not TOML ({error})") from None
    _known(table, _FIGURE, f"figure {source}", optional={"tuning"})
    panels, methods = table["panel"], table["method"]
    for number, panel in enumerate(panels):
        _known(panel, _PANEL, f"figure {source}, panel {number + 1}", optional=set(_PANEL) - {"clients"})
    for number, method in enumerate(methods):
        where = f"figure {source}, method {number + 1}"
        _known(method, _METHOD, where, optional=set(_METHOD) - {"name", "label"})
        if method["name"] not in METHODS:
            raise InputError(f"{where}: unknown method {method['name']!r}")
    if "tuning" in table:
        _known(table["tuning"], _TUNING, f"figure {source}, tuning", optional=set())
    if not panels or not methods:
        raise InputError(f"figure {source}: at least one panel and one method are needed")
    plain = {key: table[key] for key in _PLAIN}
    clients = len({panel["clients"] for panel in panels})
    made = tuple(_panel(panel, methods, source) for panel in panels)
    columns = len(panels) // clients if clients < len(panels) else len(panels)
    return Figure(**plain, panels=made, columns=columns, tuning=table.get("tuning"))


def _known(table: Mapping[str, Any], schema: Mapping[str, type], where: str, optional: set[str]) -> None:
    for key, value in table.items():
        if key not in schema:
            near = get_close_matches(key, schema, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(schema)}"
            raise InputError(f"{where}: unknown key {key!r}{hint}")
        wanted = (int, float) if schema[key] is float else schema[key]
        if not isinstance(value, wanted) or (isinstance(value, bool) and schema[key] is not bool):
            raise InputError(f"{where}: {key} must be of type {schema[key].__name__}, not {value!r}")
    missing = [key for key in schema if key not in table and key not in optional]
    if missing:
        raise InputError(f"{where}: {missing[0]!r} is missing")


def _panel(panel: Mapping[str, Any], methods: list[dict[str, Any]], source: str) -> Panel:
    variants = []
    for number, table in enumerate(methods):
        options = {key: table[key] for key in ("S", "K", "b", "b3") if key in table}
        rho = table.get("rho")
        if table.get("rival"):
            options |= {"S": panel["S_rivals"], "b": panel["b_rivals"]}
        elif "S" in panel:
            options["S"] = panel["S"]
        method = METHODS[table["name"]](**options)
        if "eta_g" in panel:
            method = replace(method, eta_g=float(panel["eta_g"][number]))
            rho = float(panel["rho"][number]) if method.K > 1 else None
        elif "step" in panel:
            method = method.with_step(float(panel["step"]))
        else:
            raise InputError(f"figure {source}: a panel needs step, or eta_g and rho for each method")
        if rho is not None:
            method = replace(method, eta_l=rho * method.eta_g / method.K)
        variants.append(Variant(table["label"], method))
    step = float(panel["step"]) if "step" in panel else None
    title = f"{panel['clients']:,} clients" + (f", step {step:g}" if step is not None else "")
    return Panel(title, int(panel["clients"]), step, tuple(variants))


def on_other_data(figure: Figure, data: str, rows: int) -> Figure:
    """The same figure on other data, marked as such; panels that need more rows than there are, keep their clients."""
    title = f"{figure.title} [on {data} instead of {figure.data}]"
    return replace(figure, data=data, rows=min(rows, figure.rows), title=title)
