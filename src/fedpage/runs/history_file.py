"""The files of a history: JSON lines whose last line has a checksum of all, and the model beside.

The first line is the provenance, then come records and events, and the last line says how the run
ended. A run appends lines as they come, so the file of a run that is going on or was killed has no
last line.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.core.types import StopReason

if TYPE_CHECKING:
    from fedpage.runs.history import History

Meta: TypeAlias = dict[str, Any]
"""Provenance: plain values in nested tables, whose shape depends on the method and the problem."""
Model: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

_FORMAT = "fedpage-history-4"
WORDS = {repr(value): value for value in (math.inf, -math.inf, math.nan)}
"""How a file has the numbers that JSON lacks."""
_Number: TypeAlias = int | float | Literal["inf", "-inf", "nan"]


class EventRow(TypedDict):
    """Something that happened to clients, as a file has it."""

    event: str
    round: int
    text: str


class _Header(msgspec.Struct):
    """The first line of a file."""

    format: str
    meta: dict[str, Any]
    whole: bool = False
    """Whether the file was written as a whole, so that it must have a last line."""


class HistoryEnd(msgspec.Struct):
    """The last line of a file."""

    end: StopReason | None
    detail: str
    records: int
    first_loss: _Number | None
    model: str | None
    """The SHA-256 of the model's file, or None if there is no model."""
    digest: str = ""
    """The SHA-256 of all lines and of this one up to here."""


# --- writing --------------------------------------------------------------------------------------


def write_history(history: History, path: Path) -> None:
    """Write a history as JSON lines, and its model beside them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = header_line(history.meta, is_whole=True)
    body = b"".join(map(encode_line, [*map(encode_row, history.rows), *history.events]))
    end = end_line(history, path, header, hashlib.sha256(body))
    put(path, header + body + end)


def encode_row(row: Mapping[str, float]) -> dict[str, float | str]:
    """Return a record as JSON can hold it: infinities and NaN as words."""
    return {name: _encode(value) for name, value in row.items()}


def model_path(path: Path) -> Path:
    """Return the file of the model beside a history file: run.model.npz of run.jsonl."""
    return path.with_suffix(".model.npz")


def _encode(value: float) -> float | str:
    return value if isinstance(value, int) or math.isfinite(value) else repr(value)


def encode_line(entry: Mapping[str, object]) -> bytes:
    """Return the line of a record or an event."""
    return json.dumps(entry, allow_nan=False).encode("utf-8") + b"\n"


def header_line(meta: Mapping[str, object], *, is_whole: bool = False) -> bytes:
    """Return the first line; `is_whole` promises that the file has its last line too."""
    whole = {"whole": True} if is_whole else {}
    return json.dumps({"format": _FORMAT, **whole, "meta": meta}).encode("utf-8") + b"\n"


def end_line(history: History, path: Path, header: bytes, body: hashlib._Hash) -> bytes:
    """Write the model beside `path`, and return the last line."""
    model, target = None, model_path(path)
    if history.x is None:
        target.unlink(missing_ok=True)
    else:
        buffer = io.BytesIO()
        np.savez(buffer, x=history.x)
        put(target, buffer.getvalue())
        model = hashlib.sha256(buffer.getbuffer()).hexdigest()
    reason, first = history.stop_reason, history.first_loss
    end = {
        "end": None if reason is None else reason.value,
        "detail": history.stop_detail,
        "records": len(history.rows),
        "first_loss": None if first is None else _encode(first),
        "model": model,
    }
    return _seal(json.dumps(end)[:-1], header, body).encode("utf-8") + b"\n"


def _seal(text: str, header: bytes, body: hashlib._Hash) -> str:
    """Return the last line: its text up to the digest, and the digest of the whole file.

    The first line counts last, because a run that gets more rounds replaces it.
    """
    total = body.copy()
    total.update(header + text.encode("utf-8"))
    return f'{text}, "digest": "{total.hexdigest()}"}}'


# --- reading --------------------------------------------------------------------------------------


def parse_lines(history: History, text: str, path: Path) -> HistoryEnd | None:
    """Add the lines of a file to an empty history.

    Args:
        history: The history; it has no stop reason if the file has no last line.
        text: The lines. An incomplete last one, which a killed process leaves, is left out.
        path: The file, for errors.

    Returns:
        The last line, or None if the file has no end.

    Raises:
        InputError: If a line cannot be used, the checksum differs, or a file that was written as a
            whole is cut short.
    """
    lines = text.split("\n")
    if not lines[-1].endswith("}"):
        lines.pop()
    header: _Header | None = None
    end: HistoryEnd | None = None
    body = hashlib.sha256()
    for number, line in enumerate(lines, 1):
        try:
            entry = msgspec.json.decode(line, type=dict[str, Any])
            if end is not None:
                raise ValueError
            if number == 1:
                header = msgspec.convert(entry, _Header)
                history.meta = header.meta
                if header.format != _FORMAT:
                    raise InputError(f"{path}: not a history of this version of fedpage")
            elif "end" in entry:
                end = msgspec.convert(entry, HistoryEnd)
                sealed = _seal(line.rpartition(', "digest": ')[0], f"{lines[0]}\n".encode(), body)
                if line != sealed or end.records != len(history.rows):
                    raise InputError(
                        f"{path}: damaged (its checksum differs); restore a copy, or resume the "
                        "run, which computes again what is damaged"
                    )
            else:
                body.update(f"{line}\n".encode())
                if "event" in entry:
                    history.events.append(msgspec.convert(entry, EventRow))
                else:
                    add_record(history, msgspec.convert(entry, dict[str, _Number]))
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}, line {number}: not a line of a fedpage history") from None
    if header is None:
        raise InputError(f"{path}: empty, not a fedpage history")
    if end is None:
        if header.whole:
            raise cut_short(history, path)
        return None
    history.stop_reason, history.stop_detail = end.end, end.detail
    history.first_loss = None if end.first_loss is None else float(end.first_loss)
    return end


def cut_short(history: History, path: Path) -> InputError:
    """Return the error for a file that has lost its last lines."""
    return InputError(
        f"{path}: cut short, only {len(history.rows)} records are left; restore a copy, or resume "
        "the run, which computes again what is missing"
    )


def add_record(history: History, row: Mapping[str, float | str]) -> None:
    """Append a record that was read; a ValueError if its round is not after the last one's."""
    record = {name: WORDS[v] if isinstance(v, str) else v for name, v in row.items()}
    if not record["round"] > (history.rows[-1]["round"] if history.rows else -1):
        raise ValueError
    history.append(record)


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
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return np.asarray(arrays["x"])


def renew_header(line: bytes, meta: Meta) -> bytes:
    """Return the first line of a run that is resumed, with its number of rounds now.

    The stored provenance is kept, with the versions that the run began with. If the line is damaged
    or belongs to another run, the provenance is `meta`.
    """
    try:
        stored = msgspec.json.decode(line, type=_Header).meta
    except (UnicodeDecodeError, msgspec.MsgspecError):
        stored = {}
    kept = stored if _identity(stored) == _identity(meta) else meta
    return header_line({**kept, "rounds": meta["rounds"]})


def _identity(meta: Meta) -> str:
    """Return the provenance that a run has on every machine, with any number of rounds."""
    changing = ("rounds", "versions", "reference")
    return json.dumps({key: meta[key] for key in meta if key not in changing}, sort_keys=True)
