"""Messages and replies as Flower's records. What arrives is decoded without trusting a byte, and never unpickled."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy

from fedpage.core.messages import Layout, layout_of
from fedpage.core.types import Vector

PARTS, SAY = "parts", "say"
_HEADER = 1024
"""Bytes that an array's header may take."""


class ProtocolError(ValueError):
    """Something arrived that is not what was agreed on; the message says what."""


class Measures(NamedTuple):
    """A client's own loss, (1,), and gradient, (d,), at a point."""

    loss: Vector
    grad: Vector


class Point(NamedTuple):
    """Where to measure."""

    x: Vector


def packed(parts: Any, say: Mapping[str, Any]) -> RecordDict:
    """A NamedTuple of arrays, and words about it."""
    arrays = {
        name: Array(np.ascontiguousarray(part))
        for name, part in zip(parts._fields, parts, strict=True)
    }
    return RecordDict({PARTS: ArrayRecord(arrays), SAY: ConfigRecord(dict(say))})


def words(say: Mapping[str, Any]) -> RecordDict:
    """Words alone."""
    return RecordDict({SAY: ConfigRecord(dict(say))})


def said(content: RecordDict, schema: Mapping[str, type]) -> dict[str, Any]:
    """The words that came, exactly those of the schema."""
    record = dict(content).get(SAY)
    if not isinstance(record, ConfigRecord):
        raise ProtocolError("no words with it")
    found = dict(record)
    for name, kind in schema.items():
        if type(found.get(name)) is not kind:
            raise ProtocolError(
                f"{name!r} should be of type {kind.__name__}, not {type(found.get(name)).__name__}"
            )
    if len(found) != len(schema):
        raise ProtocolError("more words than were agreed on")
    return found


def unpacked(content: RecordDict, layout: Layout[Any]) -> Any:
    """The arrays that came, as the NamedTuple of a form; nothing is allocated before its size is known to be right."""
    records = dict(content)
    arrays = records.get(PARTS)
    if not isinstance(arrays, ArrayRecord) or set(records) != {PARTS, SAY}:
        raise ProtocolError("not one record of arrays and one of words")
    fields: tuple[str, ...] = layout.fields
    if set(arrays) != set(fields):
        raise ProtocolError(
            f"arrays {', '.join(sorted(map(str, arrays)))[:80]} instead of {', '.join(fields)}"
        )
    return layout.type(*(
        decoded(arrays[name], name, (size,), dtype)
        for name, size, dtype in zip(fields, layout.sizes, layout.dtypes, strict=True)
    ))  # fmt: skip


def decoded(array: Array, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """One array of a known shape and type. Flower's own decoder would allocate whatever the bytes declare."""
    wanted = int(np.prod(shape)) * dtype.itemsize
    if array.stype != "numpy.ndarray":
        raise ProtocolError(f"{name} serialised as {str(array.stype)[:40]!r}")
    if len(array.data) > wanted + _HEADER:
        raise ProtocolError(f"{name} of {len(array.data):,} bytes, where {wanted:,} were expected")
    stream = io.BytesIO(array.data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise ProtocolError(f"{name} in another version of .npy")
        found, fortran, kind = npy.read_array_header_1_0(stream, max_header_size=_HEADER)
    except ProtocolError:
        raise
    except Exception:
        raise ProtocolError(f"{name} is not an array") from None
    if found != shape or fortran:
        raise ProtocolError(f"{name} of shape {str(found)[:40]} instead of {shape}")
    if kind != dtype:
        raise ProtocolError(f"{name} of type {str(kind)[:40]} instead of {dtype}")
    if len(array.data) - stream.tell() != wanted:
        raise ProtocolError(f"{name} is not whole")
    return np.frombuffer(array.data, dtype=dtype, offset=stream.tell()).reshape(shape).copy()


def vectors(kind: type[Any], d: int, dtype: Any = np.float64) -> Layout[Any]:
    """Return the layout of a message: every field a vector of d numbers."""
    return layout_of(kind, d, np.dtype(dtype))


def unpacked_measures(content: RecordDict, d: int, dtype: Any) -> Measures:
    """Decode a client's loss (1,), always float64, and its gradient (d,)."""
    arrays = dict(content).get(PARTS)
    if not isinstance(arrays, ArrayRecord) or set(arrays) != {"loss", "grad"}:
        raise ProtocolError("not the arrays of an evaluation")
    loss = decoded(arrays["loss"], "loss", (1,), np.dtype(np.float64))
    return Measures(loss, decoded(arrays["grad"], "grad", (d,), np.dtype(dtype)))


def kinds(method: Any) -> dict[str, type[Any]]:
    """Return a method's message types by name."""
    return {message.__name__: message for message in method.messages}
