"""Describe a run in plain values, and identify it by its settings, its data and its code."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

from fedpage._version import __version__
from fedpage.codecs import IDENTITY, Codec
from fedpage.core.columns import check_record_every
from fedpage.core.errors import InputError, short_repr
from fedpage.core.function_digest import PACKAGE, source_digest
from fedpage.core.types import AnyMethod, Vector
from fedpage.methods.registry import describe_method
from fedpage.methods.schedules import Schedule, schedules_of
from fedpage.runs.config import drop_none
from fedpage.runs.toml import digest, flatten

_OWNERS = {
    "code.up": "the codec",
    "code.down": "the codec",
    "code.client_optimizer": "client_optimizer",
    "problem.loss_digest": "the loss",
    "problem.metrics_digest": "a metric",
    "stop.function": "the function `stop`",
}
"""The owner of the code that a value of a fingerprint is the digest of."""
CodeOwner: TypeAlias = type | Schedule
"""A class that computes something, or a schedule, which may hold a function."""


# --- provenance -----------------------------------------------------------------------------------


def describe_run(
    method: AnyMethod, problem: Mapping[str, object], run: Any, x0: Vector | None, stop: object
) -> dict[str, object]:
    """Return the provenance of a run as plain values, as `History.meta` holds it.

    Args:
        method: The method.
        problem: What `Problem.describe` returns.
        run: A `RunSpec` or a run config, with `seed`, `rounds` and `record_every`.
        x0: (d,) the first model, or None if it is zero by default.
        stop: The fields of a `Stop`, or the digest of a function.
    """
    return {
        "method": describe_method(method),
        "problem": problem,
        "seed": int(run.seed),
        "rounds": int(run.rounds),
        "record_every": check_record_every(run.record_every),
        "x0": describe_start(x0),
        "stop": stop,
        "versions": versions(),
    }


def describe_start(x0: Vector | None) -> str:
    """Return "zeros" for None, or a digest of the first model (d,)."""
    return "zeros" if x0 is None else "sha256:" + hashlib.sha256(x0.tobytes()).hexdigest()


@cache
def versions() -> dict[str, str]:
    """Return the versions of fedpage, Python and the packages that a run's bits depend on."""
    others = {name: importlib.metadata.version(name) for name in ("numpy", "numba", "scipy")}
    return {"fedpage": __version__, "python": platform.python_version(), **others}


# --- fingerprints ---------------------------------------------------------------------------------


def fingerprint(meta: Mapping[str, object], code: Mapping[str, CodeOwner]) -> dict[str, object]:
    """Return the values that identify a run.

    Args:
        meta: The run's provenance, `History.meta`; its versions are left out, and the reference
            solution, whose last bits may differ on another machine.
        code: The classes and schedules that compute the rounds, by name.

    Returns:
        Plain values without None, which TOML can hold.
    """
    about = {key: value for key, value in meta.items() if key not in ("versions", "reference")}
    about["code"] = {name: code_digest(cls) for name, cls in code.items()}
    return drop_none(json.loads(json.dumps(about, default=str)))


def result_key(about: Mapping[str, object]) -> str:
    """Return the key under which a result is stored and found again.

    Args:
        about: Settings, data and code, such as a `fingerprint`.

    Returns:
        A SHA-256 of these values and of the versions of fedpage, Python and the packages that a
        run's bits depend on.
    """
    return digest({**about, "versions": versions()})


def check_same_run(then: Mapping[str, object], now: Mapping[str, object], source: str) -> None:
    """Raise an InputError that names the first difference between two fingerprints.

    Args:
        then: The fingerprint of the run in a directory.
        now: The fingerprint of the run that should resume it.
        source: The directory's name.
    """
    old, new = flatten(then), flatten(now)
    different = (key for key in {*old, *new} if old.get(key) != new.get(key))
    # another codec is named before its code
    changed = sorted(different, key=lambda key: (_OWNERS.get(key) == "the codec", key))
    if not changed:
        return
    first = changed[0]
    if first.startswith("code.") or (first in _OWNERS and first in old and first in new):
        role = first.rpartition(".")[2]
        other = f"the schedule of {role}" if f"method.{role}" in new else "the problem"
        owner = new.get("method.name") if role == "method" else _OWNERS.get(first, other)
        raise InputError(
            f"{source}: cannot resume: the code of {owner} has changed since the run began; "
            "begin a new run"
        )
    more = f" (and {', '.join(changed[1:4])})" if len(changed) > 1 else ""
    raise InputError(
        f"{source}: cannot resume: {first} was {short_repr(old.get(first))} and is now "
        f"{short_repr(new.get(first))}{more}; give the old value, or begin a new run"
    )


def method_code(method: AnyMethod) -> dict[str, CodeOwner]:
    """Return the classes of a method, its codecs and its optimiser, and its schedules."""
    codecs = {way: getattr(method, way, IDENTITY) for way in ("up", "down")}
    used = {way: type(codec) for way, codec in codecs.items() if codec != IDENTITY}
    optimizer = getattr(method, "client_optimizer", None)
    if optimizer is not None:
        used["client_optimizer"] = type(optimizer)
    return {"method": type(method), **used, **schedules_of(method)}


def method_digest(method: AnyMethod) -> str:
    """Return the SHA-256 of the code of a method, of its codecs and of its schedules."""
    return digest({role: code_digest(cls) for role, cls in method_code(method).items()})


def code_digest(cls: CodeOwner) -> str:
    """Return the SHA-256 of the source files that a class or a schedule computes with.

    Random numbers and sums belong to every class, and all codecs to each of them, because a codec
    may contain others. A schedule of a function counts with the function's digest.

    Args:
        cls: The class of a method, of a problem or of a codec, or a schedule.

    Returns:
        64 hexadecimal digits.
    """
    if isinstance(cls, Schedule):
        own = {"class": code_digest(type(cls)), "function": getattr(cls, "digest", "")}
        return digest({**own, **{n: code_digest(each) for n, each in schedules_of(cls).items()}})
    files = [PACKAGE / "core" / "random.py", PACKAGE / "core" / "messages.py"]
    if issubclass(cls, Codec):
        files += (PACKAGE / "codecs").glob("*.py")
    return source_digest(cls, files)
