"""Identify runs by their settings, their data and their code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple, TypeAlias

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.errors import InputError, short_repr
from fedpage.core.function_digest import is_installed
from fedpage.core.schedules import Schedule, schedules_of
from fedpage.core.types import AnyMethod
from fedpage.runs import provenance
from fedpage.runs.toml import drop_none, flatten

_PACKAGE = Path(__file__).resolve().parents[1]
_CODECS = _PACKAGE / "codecs"
_OF_CODECS = ("code.up", "code.down")
Code: TypeAlias = type | Schedule
"""A class that computes something, or a schedule, which may hold a function."""


def fingerprint(meta: Mapping[str, object], code: Mapping[str, Code]) -> dict[str, object]:
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
        about: What identifies it, such as a `fingerprint`: settings, data and code.

    Returns:
        64 hexadecimal digits of these values and of the versions of fedpage, Python and the
        packages that a run's bits depend on.
    """
    return digest({**about, "versions": provenance.versions()})


def digest(table: Mapping[str, object]) -> str:
    """Return the SHA-256 of plain values."""
    text = json.dumps(table, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def check_same_run(then: Mapping[str, object], now: Mapping[str, object], source: str) -> None:
    """Raise an InputError that names the first difference between two fingerprints.

    Args:
        then: The fingerprint of the run in a directory.
        now: The fingerprint of the run that should resume it.
        source: The directory's name.
    """
    old, new = flatten(then), flatten(now)
    changed = [key for key in {*old, *new} if old.get(key) != new.get(key)]
    changed.sort(key=lambda key: (key in _OF_CODECS, key))  # name another codec before its code
    if not changed:
        return
    first = changed[0]
    if first.startswith("code.") or first == "problem.loss_digest":
        method = new.get("method.name", "the method")
        owners = {"code.method": method, **dict.fromkeys(_OF_CODECS, "the codec")}
        owners["problem.loss_digest"] = "the loss"
        role = first.removeprefix("code.")
        if f"method.{role}" in new:
            kind = "" if role == "client_optimizer" else "the schedule of "
            owners.setdefault(first, kind + role)
        whose = owners.get(first, "the problem")
        raise InputError(
            f"{source}: cannot resume: the code of {whose} has changed since the run began; "
            "begin a new run"
        )
    if first == "stop.function" and first in old and first in new:
        raise InputError(
            f"{source}: cannot resume: the function `stop`, or a value it uses, has changed since "
            "the run began; give the same function, or begin a new run"
        )
    more = f" (and {', '.join(changed[1:4])})" if len(changed) > 1 else ""
    raise InputError(
        f"{source}: cannot resume: {first} was {short_repr(old.get(first))} and is now "
        f"{short_repr(new.get(first))}{more}; give the old value, or begin a new run"
    )


def method_code(method: AnyMethod) -> dict[str, Code]:
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


def code_digest(cls: Code) -> str:
    """Return the SHA-256 of the source files that a class or a schedule computes with.

    These are the files of the class, of its bases, and of the functions that they use, of this
    package and of files that are not installed, such as the user's own. Random numbers and sums
    belong to every class, and all codecs to each of them, because a codec may contain others. A
    function without a file, such as one typed at a prompt, counts with its compiled code.

    Args:
        cls: The class of a method, of a problem or of a codec, or a schedule.

    Returns:
        64 hexadecimal digits.
    """
    if isinstance(cls, Schedule):
        own = {"class": code_digest(type(cls)), "function": getattr(cls, "digest", "")}
        return digest({**own, **{n: code_digest(each) for n, each in schedules_of(cls).items()}})
    files = {name: _PACKAGE / name for name in ("core/random.py", "core/aggregate.py")}
    if issubclass(cls, Codec):
        files |= {f"codecs/{path.name}": path for path in _CODECS.glob("*.py")}
    sources: dict[str, bytes] = {}
    own_modules = {base.__module__ for base in cls.__mro__}
    seen: set[int] = set()
    stack: list[object] = [*cls.__mro__]
    while stack:
        item = _unwrap(stack.pop())
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, type):
            stack += vars(item).values()
        elif isinstance(item, ModuleType):
            file = _locate(str(getattr(item, "__file__", None)))
            if (file.inside or not file.installed) and file.path.is_file():
                files[file.name] = file.path
        elif isinstance(item, FunctionType) and not item.__name__.startswith("__"):
            # dataclasses generate the functions with two underscores
            file = _locate(item.__code__.co_filename)
            if not file.inside and item.__module__ not in own_modules and file.installed:
                continue
            if files.get(file.name) == file.path or file.path.is_file():
                files[file.name] = file.path
            else:
                sources[f"{file.name} {item.__qualname__}"] = _byte_code(item)
            used = item.__code__.co_names
            stack += [item.__globals__[part] for part in used if part in item.__globals__]
    sources |= {name: path.read_bytes() for name, path in files.items()}
    total = hashlib.sha256()
    for name in sorted(sources):
        total.update(f"{name} {len(sources[name])} ".encode() + sources[name])
    return total.hexdigest()


class _File(NamedTuple):
    """A source file, the name it counts with, and whether it is of this package or installed."""

    path: Path
    name: str
    inside: bool
    installed: bool


@cache  # thousands of functions are in a few files
def _locate(file: str) -> _File:
    path = Path(file)
    inside = path.is_relative_to(_PACKAGE)
    name = path.relative_to(_PACKAGE).as_posix() if inside else path.name
    return _File(path, name, inside, is_installed(file))


def _unwrap(item: object) -> object:
    """Return the plain function behind a numba function, a property or a method."""
    for attribute in ("py_func", "fget", "__func__"):
        inner: object = getattr(item, attribute, None)
        if inner is not None:
            return inner
    return item


def _byte_code(function: FunctionType) -> bytes:
    """Return the byte code, names and plain constants of a function."""
    code = function.__code__
    plain = [c for c in code.co_consts if isinstance(c, (int, float, str, bool, type(None)))]
    return code.co_code + repr((code.co_names, plain)).encode()
