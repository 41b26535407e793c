"""The lines of a history file: provenance, records, events, and an end with a checksum of all."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError
from fedpage.core.types import StopReason

if TYPE_CHECKING:
    from fedpage.runs.history import History

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
Meta: TypeAlias = dict[str, Any]
"""Provenance: plain values in nested tables, whose shape depends on the method and the problem."""
Model: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

FORMAT = "fedpage-history-3"
_WITHOUT_CHECKSUM = "fedpage-history-2"
WORDS = {repr(value): value for value in (math.inf, -math.inf, math.nan)}
"""How a file has the numbers that JSON lacks."""


class EventRow(TypedDict):
    """Something that happened to clients, as a file has it."""

    event: str
    round: int
    text: str


class Checksum:
    """The SHA-256 of the lines of a file, which its last line states.

    The digest is of all bytes before it: a changed bit anywhere in the file is noticed.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, line: bytes) -> None:
        """Add a line, with its line feed."""
        self._hash.update(line)

    def of_end(self, text: str) -> str:
        """Return the digest of the lines so far, and of the end up to its digest."""
        total = self._hash.copy()
        total.update(text.encode("utf-8"))
        return total.hexdigest()

    def seal(self, end: Mapping[str, object]) -> dict[str, object]:
        """Return the entry of the last line, with the digest as its last value."""
        return {**end, "digest": self.of_end(json.dumps(end, allow_nan=False)[:-1])}

    def is_sealed(self, line: str) -> bool:
        """Say whether the last line states the digest of all that is before it."""
        text = line.rpartition(', "digest": ')[0]
        return line == f'{text}, "digest": "{self.of_end(text)}"}}'


class HistoryReader:
    """Add the lines of a file to a history, as they come.

    Args:
        history: An empty history.
        path: The file, which errors name.

    Attributes:
        model: The digest of the model, which is not read; None if there is none.
        has_end: Whether the last line has been read.
    """

    def __init__(self, history: History, path: str | os.PathLike[str]) -> None:
        self.history, self.path = history, path
        self.model: str | None = None
        self.has_end = False
        self._number = 0
        self._checksum = Checksum()

    def read(self, lines: Iterable[str]) -> None:
        """Add complete lines; the first of the file is the provenance.

        Raises:
            InputError: A line is not one of a history, or the checksum of the last one differs.
        """
        for line in lines:
            self._number += 1
            try:
                self._add(json.loads(line), line)
            except InputError:
                raise
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
                raise InputError(
                    f"{self.path}, line {self._number}: not a line of a fedpage history"
                ) from None
            self._checksum.add(line.encode("utf-8") + b"\n")

    def _add(self, entry: dict[str, Json], line: str) -> None:
        history = self.history
        if self.has_end:
            raise ValueError
        if self._number == 1:
            if entry["format"] == _WITHOUT_CHECKSUM:
                raise InputError(
                    f"{self.path}: of an earlier fedpage, whose files had no checksum; run it again"
                )
            history.meta = _read_header(entry)
        elif "event" in entry:
            history.events.append(_read_event(entry))
        elif "end" in entry:
            self._read_end(entry)
            if not self._checksum.is_sealed(line):
                raise _damaged(self.path)
            self.has_end = True
        else:
            add_record(history, {name: _decode(value) for name, value in entry.items()})

    def read_last(self, line: str) -> None:
        """Add what follows the last line feed: nothing, a whole line, or a part of one.

        The part that a killed process has left is dropped.

        Raises:
            InputError: It is a line with something after it, which no process leaves behind.
        """
        if line.endswith("}"):
            self.read([line])
            return
        try:
            entry, _ = json.JSONDecoder().raw_decode(line)
        except (ValueError, RecursionError):
            return
        if isinstance(entry, dict):
            raise _damaged(self.path)

    def _read_end(self, entry: dict[str, Json]) -> None:
        reason, detail, first, model = (
            entry[name] for name in ("end", "detail", "first_loss", "model")
        )
        history = self.history
        if entry["records"] != len(history.rows) or not isinstance(detail, str):
            raise ValueError
        history.stop_reason = None if reason is None else StopReason(str(reason))
        history.stop_detail = detail
        history.first_loss = None if first is None else float(_decode(first))
        if model is not None and not isinstance(model, str):
            raise ValueError
        self.model = model


def add_record(history: History, row: Mapping[str, float]) -> None:
    """Append a record that was read; its round must come after the last one's."""
    if not row["round"] > (history.rows[-1]["round"] if history.rows else -1):
        raise ValueError
    history.append(row)


def encode_row(row: Mapping[str, float]) -> dict[str, float | str]:
    """Return a record as JSON can hold it: infinities and NaN as words."""
    return {name: encode_number(value) for name, value in row.items()}


def encode_number(value: float) -> float | str:
    """Return a number as JSON can hold it."""
    return value if isinstance(value, int) or math.isfinite(value) else repr(value)


def _decode(value: Json) -> float:
    """Return the number that `encode_number` wrote; a whole number must fit a float."""
    if isinstance(value, str):
        return WORDS[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    float(value)
    return value


def _read_header(entry: dict[str, Json]) -> Meta:
    meta = entry["meta"]
    if entry["format"] != FORMAT or not isinstance(meta, dict):
        raise ValueError
    if not all(isinstance(meta.get(name, {}), dict) for name in ("method", "problem")):
        raise ValueError
    return {**meta}


def _read_event(entry: dict[str, Json]) -> EventRow:
    kind, round, text = entry["event"], entry["round"], entry["text"]
    if not isinstance(kind, str) or type(round) is not int or not isinstance(text, str):
        raise ValueError
    return {"event": kind, "round": round, "text": text}


def _damaged(path: str | os.PathLike[str]) -> InputError:
    return InputError(
        f"{path}: damaged (its checksum differs); restore a copy, or resume the run, which "
        "computes again what is damaged"
    )


def model_path(path: Path) -> Path:
    """Return where the model of a history file is: run.model.npz beside run.jsonl."""
    return path.with_suffix(".model.npz")


def read_model(path: Path, digest: str) -> Model:
    """Read the model (d,) beside a history; its bytes must be those that were written."""
    file = model_path(path)
    try:
        data = file.read_bytes()
    except OSError:
        raise InputError(
            f"{path}: its model {file.name} is missing; put it back beside the history"
        ) from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(f"{file}: damaged, or the model of another run (its checksum differs)")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            x = arrays["x"]
    except Exception:  # numpy and zipfile raise several types for bytes that are no archive
        x = None
    if x is None or x.ndim != 1 or x.dtype not in (np.float32, np.float64):
        raise InputError(f"{file}: not the model of a fedpage history")
    return np.asarray(x)
