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
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

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
ModelVector: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

_FORMAT = "fedpage-history-4"
_MACHINE_KEYS = ("versions", "reference")


class EventRow(TypedDict):
    """Something that happened to clients, as a file has it."""

    event: str
    round: int
    text: str


class _Header(msgspec.Struct):
    """The first line of a file."""

    format: str
    meta: dict[str, Any]


class HistoryEnd(msgspec.Struct):
    """The last line of a file."""

    end: StopReason | None
    detail: str
    records: int
    first_loss: float | None
    model: str | None
    """The SHA-256 of the model's file, or None if there is no model."""
    digest: str = ""
    """The SHA-256 of all lines and of this one up to here."""


# --- writing --------------------------------------------------------------------------------------


def model_path(path: Path) -> Path:
    """Return the file of the model beside a history file: run.model.npz of run.jsonl."""
    return path.with_suffix(".model.npz")


def encode_line(entry: Mapping[str, object]) -> bytes:
    """Return the line of a record or an event; infinities and NaN, which JSON lacks, are words."""
    odd = {k: str(v) for k, v in entry.items() if isinstance(v, float) and not math.isfinite(v)}
    return json.dumps({**entry, **odd}).encode("utf-8") + b"\n"


def header_line(meta: Mapping[str, object]) -> bytes:
    """Return the first line."""
    return encode_line({"format": _FORMAT, "meta": meta})


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
    end = {
        "end": None if history.stop_reason is None else history.stop_reason.value,
        "detail": history.stop_detail,
        "records": len(history.rows),
        "first_loss": history.first_loss,
        "model": model,
    }
    return _seal(encode_line(end).removesuffix(b"}\n"), header, body)


def _seal(text: bytes, header: bytes, body: hashlib._Hash) -> bytes:
    """Return the last line: its text up to the digest, and the digest of the whole file.

    The first line counts last, because a run that gets more rounds replaces it.
    """
    total = body.copy()
    total.update(header + text)
    return text + f', "digest": "{total.hexdigest()}"}}\n'.encode()


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
                end = msgspec.convert(entry, HistoryEnd, strict=False)
                text, header_text = line.rpartition(', "digest": ')[0], f"{lines[0]}\n"
                sealed = _seal(text.encode(), header_text.encode(), body)
                if f"{line}\n".encode() != sealed or end.records != len(history.rows):
                    raise InputError(
                        f"{path}: damaged (its checksum differs); restore a copy, or resume the "
                        "run, which computes again what is damaged"
                    )
            else:
                body.update(f"{line}\n".encode())
                if "event" in entry:
                    history.events.append(msgspec.convert(entry, EventRow))
                else:
                    add_record(history, entry)
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}, line {number}: not a line of a fedpage history") from None
    if header is None:
        raise InputError(f"{path}: empty, not a fedpage history")
    if end is not None:
        history.stop_reason, history.stop_detail = end.end, end.detail
        history.first_loss = end.first_loss
    return end


def add_record(history: History, row: Mapping[str, object]) -> None:
    """Append a record that was read, whose numbers may be words.

    Raises:
        ValueError: If its round is not after the last one's.
        msgspec.ValidationError: If a value is not a number.
    """
    record = msgspec.convert(row, dict[str, int | float], strict=False)
    if not record["round"] > (history.rows[-1]["round"] if history.rows else -1):
        raise ValueError
    history.append(record)


def read_model(path: Path, digest: str) -> ModelVector:
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

    The versions that the run began with are kept, and the reference solution, whose last bits may
    differ on another machine, unless the line is damaged.
    """
    try:
        stored = msgspec.json.decode(line, type=_Header).meta
    except (UnicodeDecodeError, msgspec.MsgspecError):
        stored = {}
    return header_line({**meta, **{k: v for k, v in stored.items() if k in _MACHINE_KEYS}})
