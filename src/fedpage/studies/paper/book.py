"""The paper's figures and claims: studies that come with the package."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from fedpage.core.errors import InputError, did_you_mean
from fedpage.runs import toml
from fedpage.runs.config import Settings, structure
from fedpage.studies.claims import Claim
from fedpage.studies.grid import FigureConfig, StudyConfig, list_problems
from fedpage.studies.study import Study

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
