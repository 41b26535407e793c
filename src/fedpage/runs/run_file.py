"""The file run.toml of a run directory: write it, change its rounds, notice edits by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from fedpage.core.atomic import put
from fedpage.core.errors import InputError
from fedpage.runs import toml
from fedpage.runs.config import Table

_FORMAT = 2


def write(path: Path, table: Mapping[str, object]) -> None:
    """Write run.toml or compare.toml whole, with a digest of all, and of each [command] value.

    The digests tell a value that was edited, or damaged, from one that fedpage has written.
    """
    command = table.get("command")
    digests = _digests(command) if isinstance(command, Mapping) else None
    content = toml.loads(toml.dumps({**table, "format": _FORMAT, "digests": digests}), str(path))
    text = toml.dumps({**content, "checksum": _checksum(content)})
    put(path, text.encode("utf-8"))


def change_rounds(path: Path, rounds: int) -> None:
    """Write another number of rounds into a run.toml: in its fingerprint and in its command."""
    table = toml.read(path)
    table["fingerprint"]["rounds"] = rounds
    command = table.get("command")
    if isinstance(command, dict) and isinstance(command.get("run"), dict):
        command["run"]["rounds"] = rounds
    write(path, {key: value for key, value in table.items() if key != "checksum"})


def read(path: Path) -> Table:
    """Read run.toml or compare.toml, and check that it is as fedpage has written it.

    A run with other settings is another run: its records would not belong to its settings.

    Raises:
        InputError: The file is not one that this version writes, or a value was changed.
    """
    table = toml.read(path)
    if table.get("format") != _FORMAT:
        raise InputError(f"{path}: not the settings of a run of this version of fedpage")
    command = table.get("command")
    if isinstance(command, dict):
        _check_unedited(command, table.get("digests"), path)
    checksum = table.pop("checksum", None)
    if checksum != _checksum(table):
        raise InputError(
            f"{path}: damaged, or edited by hand (its checksum differs); "
            "undo that, or begin a new run in another directory"
        )
    return table


def _check_unedited(command: Table, then: object, path: Path) -> None:
    """Refuse a file whose [command] was edited by hand, and name the keys."""
    if not isinstance(then, dict):
        return  # the checksum differs too
    now = _digests(command)
    edited = sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
    if not edited:
        return
    names = f"{', '.join(edited[:3])}{' and others' if len(edited) > 3 else ''}"
    another = f"`fedpage run --config {path} --set KEY=VALUE --out NEW`"
    if path.name != "run.toml":
        another = "`fedpage compare` with another --out"
    raise InputError(
        f"{path}: {names} of [command] was edited by hand; undo it; for more rounds, "
        f"`fedpage resume {path.parent} --rounds N`; for another run, {another}"
    )


def _checksum(table: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()


def _digests(command: Mapping[str, object]) -> dict[str, object]:
    return {
        key: hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:8]
        for key, value in flatten(command).items()
        if value is not None
    }


def flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the values of nested tables by their keys with dots.

    >>> flatten({"seed": 0, "method": {"name": "FedPAGE", "S": 10}})
    {'seed': 0, 'method.name': 'FedPAGE', 'method.S': 10}
    """
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
