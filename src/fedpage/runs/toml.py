"""Read and write TOML files, and the run.toml of a run directory, which has a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from fedpage.core.errors import InputError
from fedpage.core.files import check_file, put
from fedpage.runs.config import Settings, drop_none

_FORMAT = 3
"""The layout of run.toml and compare.toml."""


def read(path: str | os.PathLike[str]) -> Settings:
    """Read the table of a TOML file.

    Raises:
        InputError: If the file cannot be read, or is not TOML.
    """
    return loads(check_file(path).read_bytes(), os.fspath(path))


def loads(text: str | bytes, source: str) -> Settings:
    """Parse TOML text; an InputError names its source and the line."""
    try:
        return tomllib.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except ValueError as error:
        raise InputError(f"{source}: not TOML ({error})") from None


def dumps(table: Mapping[str, object]) -> str:
    """Write a table as TOML, without the values that are None.

    >>> print(dumps({"seed": 0, "note": None, "method": {"name": "fedpage", "eta_g": 0.1}}), end="")
    seed = 0
    <BLANKLINE>
    [method]
    name = "fedpage"
    eta_g = 0.1
    """
    return tomli_w.dumps(drop_none(table))


def flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the values of nested tables by their keys with dots.

    >>> flatten({"seed": 0, "method": {"name": "FedPAGE", "S": 10}})
    {'seed': 0, 'method.name': 'FedPAGE', 'method.S': 10}
    """
    flat: dict[str, object] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def apply_changes(table: Settings, changes: Sequence[str]) -> None:
    """Change values of nested tables as `--set` does.

    Args:
        table: The table, which is changed.
        changes: Changes such as "methods.fedpage.S=20". A value that is not TOML is text.

    Raises:
        InputError: A change has no key or no value, or its key passes through a value.

    >>> table = {"run": {"seed": 0}}
    >>> apply_changes(table, ["run.seed=3", "problem.data=a9a"])
    >>> table
    {'run': {'seed': 3}, 'problem': {'data': 'a9a'}}
    """
    for change in changes:
        key, equals, text = change.partition("=")
        *parents, name = [part.strip() for part in key.split(".")]
        if not equals or not all((*parents, name)):
            raise InputError(f"--set {change}: expected KEY=VALUE, such as rounds=4000")
        place = table
        for part in parents:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise InputError(f"--set {change}: {part} is a value, not a table")
            place = inner
        try:
            value = tomllib.loads(f"value = {text}")
        except ValueError:
            value = {}
        place[name] = value["value"] if set(value) == {"value"} else text.strip()


# --- run.toml and compare.toml --------------------------------------------------------------------


def write_settings(path: Path, table: Mapping[str, object]) -> None:
    """Write run.toml or compare.toml as a whole, with a checksum of its values."""
    table = drop_none({**table, "format": _FORMAT})
    put(path, dumps({"checksum": digest(table), **table}).encode("utf-8"))


def read_settings(path: Path) -> Settings:
    """Read run.toml or compare.toml, and check that its values are those that fedpage wrote.

    A run with other settings is another run: its records would not belong to its settings.

    Raises:
        InputError: If the file is of another version of fedpage, damaged, or edited by hand.
    """
    table = read(path)
    if table.get("format") != _FORMAT:
        raise InputError(f"{path}: not the settings of a run of this version of fedpage")
    if table.pop("checksum", None) != digest(table):
        more = f"`fedpage resume {path.parent} --rounds N`"
        other = f"`fedpage run --config {path} --set KEY=VALUE --out NEW`"
        if path.name != "run.toml":
            other = "`fedpage compare` with another --out"
        raise InputError(
            f"{path}: damaged or edited by hand (its checksum differs); undo it; for more rounds "
            f"use {more}, for another run {other}"
        )
    return table


def digest(table: Mapping[str, object]) -> str:
    """Return the SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()
