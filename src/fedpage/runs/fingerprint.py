"""What makes a run this run and no other: its settings, its data, the code of its arithmetic."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from fedpage.core.errors import InputError, short_repr
from fedpage.engine.loop import Run

_PACKAGE = Path(__file__).resolve().parents[1]


def identity(run: Run) -> dict[str, Any]:
    """What makes a run this run: its provenance without versions, and its code, as plain values without None."""
    meta = {key: value for key, value in run.history.meta.items() if key != "versions"}
    meta["code"] = {name: code_digest(kind) for name, kind in run.engine.code.items()}
    plain: dict[str, Any] = _without_none(json.loads(json.dumps(meta, default=str)))
    return plain


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return value


def digest_of(about: Mapping[str, Any]) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode("utf-8")).hexdigest()


def refuse(then: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """An InputError that says what of a run's identity is not what it was."""
    old, new = _flat(then), _flat(now)
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if not changed:
        return
    first = changed[0]
    if first.startswith("code."):
        title = now.get("method", {}).get("name", "the method")
        whose = title if first == "code.method" else "the problem"
        raise InputError(
            f"{where}: cannot go on: the code of {whose} has changed since the run began; begin a new run"
        )
    more = f" (and {', '.join(changed[1:4])})" if len(changed) > 1 else ""
    raise InputError(
        f"{where}: cannot go on: {first} was {short_repr(old.get(first))} and is now "
        f"{short_repr(new.get(first))}{more}; give what it was, or begin a new run"
    )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= (
            _flat(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": value}
        )
    return flat


def code_digest(kind: type[Any]) -> str:
    """SHA-256 of the source files that a class's arithmetic is in: its own, its bases', and what they use of ours.

    What was typed at a prompt has no file; then the compiled code stands for it. The random numbers and the order of
    sums belong to every class.
    """
    sources = {
        name: (_PACKAGE / name).read_bytes() for name in ("core/random.py", "core/aggregate.py")
    }
    mine = {base.__module__ for base in kind.__mro__}
    seen: set[int] = set()
    left: list[Any] = [*kind.__mro__]
    while left:
        thing = left.pop()
        thing = (
            getattr(thing, "py_func", None)
            or getattr(thing, "fget", None)
            or getattr(thing, "__func__", thing)
        )
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, type):
            left += vars(thing).values()
            continue
        if isinstance(thing, ModuleType):
            file = str(getattr(thing, "__file__", None))
        elif isinstance(thing, FunctionType) and not thing.__name__.startswith(
            "__"
        ):  # dataclasses makes those
            file, code = thing.__code__.co_filename, thing.__code__
        else:
            continue
        path = Path(file)
        inside = path.is_relative_to(_PACKAGE)
        if inside or (isinstance(thing, FunctionType) and thing.__module__ in mine):
            name = path.relative_to(_PACKAGE).as_posix() if inside else path.name
            if path.is_file():
                sources[name] = path.read_bytes()
            elif isinstance(thing, FunctionType):
                plain = [
                    one
                    for one in code.co_consts
                    if isinstance(one, (int, float, str, bool, type(None)))
                ]
                sources[f"{name} {thing.__qualname__}"] = (
                    code.co_code + repr((code.co_names, plain)).encode()
                )
            if isinstance(thing, FunctionType):
                left += [
                    thing.__globals__[used] for used in code.co_names if used in thing.__globals__
                ]
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(f"{name} {len(sources[name])} ".encode() + sources[name])
    return digest.hexdigest()
