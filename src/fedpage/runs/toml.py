"""Read and write TOML files; errors are one line that names the file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from fedpage.core.errors import InputError
from fedpage.core.files import refuse_special
from fedpage.runs.config import Table

_LARGEST = 1 << 20
"""The most bytes of a TOML file; those of fedpage have some hundred."""


def read(path: str | os.PathLike[str]) -> Table:
    """Read the table of a TOML file.

    Raises:
        InputError: the file cannot be read, or is not TOML.
    """
    refuse_special(path)
    path = Path(path)
    try:
        with open(path, "rb") as stream:
            text = stream.read(_LARGEST + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(text) > _LARGEST:
        raise InputError(f"{path}: larger than {_LARGEST:,} bytes, which no configuration is")
    try:
        return loads(text.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 text") from None


def loads(text: str, source: str) -> Table:
    """Parse TOML text.

    Args:
        text: the text.
        source: what errors call it.

    Raises:
        InputError: the text is not TOML; the message names the line where it is known.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise InputError(f"{source}: not TOML ({' '.join(str(error).split())[:200]})") from None
    except RecursionError:
        raise InputError(f"{source}: nested too deeply to be read") from None


def dumps(table: Mapping[str, object]) -> str:
    """Write a table of tables, text, numbers, booleans and lists as TOML; None is left out.

    >>> print(dumps({"seed": 0, "method": {"name": "fedpage", "eta_g": 0.1}}), end="")
    seed = 0
    <BLANKLINE>
    [method]
    name = "fedpage"
    eta_g = 0.1
    """
    lines: list[str] = []
    _write(table, "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write(table: Mapping[str, object], name: str, lines: list[str]) -> None:
    plain = {
        key: value
        for key, value in table.items()
        if value is not None and not isinstance(value, Mapping)
    }
    if name and (plain or not table):
        lines.extend(["", f"[{name}]"])
    lines.extend(f"{_key(key)} = {_value(value)}" for key, value in plain.items())
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write(value, f"{name}.{_key(key)}" if name else _key(key), lines)


def _key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)
    return key if bare else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_character(c) for c in value) + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} cannot be written to a TOML file")


def _character(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    if ord(c) < 32 or ord(c) == 127:
        return f"\\u{ord(c):04x}"
    return c
