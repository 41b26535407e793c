"""Describe a run in plain values: method, problem, seed, start, versions."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache

from fedpage._version import __version__
from fedpage.codecs.base import Codec
from fedpage.core.capabilities import measures_step
from fedpage.core.columns import RecordEvery, check_record_every
from fedpage.core.optimizers import Optimizer
from fedpage.core.schedules import Schedule, effective_step
from fedpage.core.types import AnyMethod, Vector


def describe_run(
    method: AnyMethod,
    problem: Mapping[str, object],
    *,
    seed: int,
    rounds: int,
    record_every: RecordEvery,
    x0: Vector | None,
    stop: Mapping[str, object],
) -> dict[str, object]:
    """Return the provenance of a run, as `History.meta` holds it.

    Args:
        method: The method.
        problem: What `Problem.describe` returns.
        seed: The run's seed.
        rounds: The run's number of rounds.
        record_every: The number of rounds between two records, or "log".
        x0: (d,) the first model, or None if it is zero by default.
        stop: The fields of a `Stop`, or the digest of a function.

    Returns:
        Plain values, which JSON and TOML can hold.
    """
    return {
        "method": describe_method(method),
        "problem": problem,
        "seed": int(seed),
        "rounds": int(rounds),
        "record_every": check_record_every(record_every),
        "x0": describe_start(x0),
        "stop": stop,
        "versions": versions(),
    }


def describe_method(method: AnyMethod) -> dict[str, object]:
    """Return the name, hyper-parameters and effective step of a method, as plain values.

    The step is None where the method measures it in the run, and that of the largest values where
    it has schedules.
    """
    parameters: dict[str, object] = {}
    if is_dataclass(method):
        values = {field.name: getattr(method, field.name) for field in fields(method)}
        parameters = {
            name: str(value) if isinstance(value, (Codec, Optimizer, Schedule)) else value
            for name, value in values.items()
        }
    return {
        "name": method.name,
        "class": type(method).__name__,
        **parameters,
        "effective_step": None if measures_step(method) else effective_step(method),
    }


def describe_start(x0: Vector | None) -> str:
    """Return "zeros" for None, or a digest of the first model (d,)."""
    return "zeros" if x0 is None else "sha256:" + hashlib.sha256(x0.tobytes()).hexdigest()


@cache
def versions() -> dict[str, str]:
    """Return the versions of fedpage, Python and the packages that a run's bits depend on."""
    others = {name: importlib.metadata.version(name) for name in ("numpy", "numba", "scipy")}
    return {"fedpage": __version__, "python": platform.python_version(), **others}
