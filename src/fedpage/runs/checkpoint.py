"""Checkpoints: a run's state as a `.npz` without pickle, read back without trusting a byte of it.

A tree of dictionaries, lists, strings, numbers, booleans, None and arrays becomes a zip of `.npy` files, stored and not
packed; the tree's outline is JSON in the first of them. `numpy.load` opens the file too.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy

from fedpage.core.errors import InputError

_OUTLINE = "outline"
_KINDS = "fiub"
_SCHEMA = "fedpage-checkpoint-1"


def pack(tree: Mapping[str, Any]) -> bytes:
    """The bytes of a checkpoint."""
    arrays: list[np.ndarray[Any, Any]] = []
    outline = json.dumps({"format": _SCHEMA, "tree": _outlined(tree, arrays)})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, _OUTLINE, np.frombuffer(outline.encode("utf-8"), dtype=np.uint8))
        for number, array in enumerate(arrays):
            _add(archive, str(number), array)
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, array: np.ndarray[Any, Any]) -> None:
    entry = zipfile.ZipInfo(f"{name}.npy")  # with a fixed date: the same state gives the same bytes
    with archive.open(entry, "w", force_zip64=array.nbytes > 1 << 30) as stream:
        npy.write_array(stream, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)


def _outlined(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray) and value.ndim:
        if value.dtype.kind not in _KINDS:
            raise InputError(f"an array of type {value.dtype} cannot be kept in a checkpoint")
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, (np.generic, np.ndarray)):
        return _outlined(value.item(), arrays)
    if isinstance(value, Mapping):
        return {"table": {str(key): _outlined(one, arrays) for key, one in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_outlined(one, arrays) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(
        f"a {type(value).__name__} cannot be kept in a checkpoint; use arrays, numbers, strings, NamedTuples"
    )


def unpack(data: bytes, source: str) -> dict[str, Any]:
    """The tree in a checkpoint's bytes; an InputError for anything that `pack` has not written.

    No size that the bytes declare is believed: an array is a view of bytes that are there, or an error.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if any(one.compress_type != zipfile.ZIP_STORED or one.flag_bits & 1 for one in entries):
                raise ValueError("packed or encrypted")
            if sum(one.file_size for one in entries) > len(data):
                raise ValueError("sizes that cannot be")
            parts = {one.filename: _array(archive.read(one)) for one in entries}
        if len(parts) != len(entries):
            raise ValueError("two parts of one name")
        text = parts.pop(f"{_OUTLINE}.npy")
        if text.dtype != np.uint8 or text.ndim != 1:
            raise ValueError("no outline")
        outline = json.loads(text.tobytes().decode("utf-8"))
        if outline["format"] != _SCHEMA:
            raise ValueError(f"format {outline['format']!r:.40}")
        tree = _grown(outline["tree"], parts)
        if not isinstance(tree, dict):
            raise ValueError("no table")
        return tree
    except (
        Exception
    ) as error:  # zipfile alone raises half a dozen kinds for bytes that are no archive
        why = " ".join(str(error).split())[:100] or type(error).__name__
        raise InputError(f"{source}: not a checkpoint of fedpage's ({why})") from None


def _array(data: bytes) -> np.ndarray[Any, Any]:
    """One `.npy`, version 1.0, of numbers."""
    stream = io.BytesIO(data)
    if npy.read_magic(stream) != (1, 0):
        raise ValueError("another version of .npy")
    shape, fortran, dtype = npy.read_array_header_1_0(stream, max_header_size=1000)
    if fortran or dtype.kind not in _KINDS or dtype.hasobject or dtype.itemsize not in (1, 2, 4, 8):
        raise ValueError("an array of another kind")
    rest = len(data) - stream.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != rest:
        raise ValueError("an array that is not whole")
    return np.frombuffer(data, dtype=dtype, offset=stream.tell()).reshape(shape).copy()


def _grown(value: Any, parts: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"array"}:
            return parts[f"{int(value['array'])}.npy"]
        if set(value) == {"table"}:
            return {key: _grown(one, parts) for key, one in value["table"].items()}
        raise ValueError("an unknown outline")
    if isinstance(value, list):
        return [_grown(one, parts) for one in value]
    return value


def outline_of(state: Any) -> Any:
    """A method's state as a tree: NamedTuples become tables of their fields."""
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return {name: outline_of(part) for name, part in zip(state._fields, state, strict=True)}
    return state


def filled(template: Any, tree: Any, source: str) -> Any:
    """The state that `outline_of` made a tree of, in the types and shapes of a template, such as `Method.init`'s."""
    if isinstance(template, tuple) and hasattr(template, "_fields"):
        if not isinstance(tree, dict) or list(tree) != list(template._fields):
            raise InputError(f"{source}: the state is not one of {type(template).__name__}'s")
        parts = (
            filled(old, tree[name], source)
            for name, old in zip(template._fields, template, strict=True)
        )
        return type(template)(*parts)
    if isinstance(template, np.generic) or (isinstance(template, np.ndarray) and not template.ndim):
        if not isinstance(tree, (bool, int, float)):
            raise InputError(f"{source}: a number of the state is a {type(tree).__name__}")
        number = np.asarray(tree, dtype=template.dtype)
        return number if isinstance(template, np.ndarray) else number[()]
    if isinstance(template, np.ndarray):
        sound = (
            isinstance(tree, np.ndarray)
            and tree.shape == template.shape
            and tree.dtype == template.dtype
        )
        if not sound:
            raise InputError(
                f"{source}: an array of the state has another shape or type than the method's"
            )
        return tree
    numbers = type(tree) in (int, float) and type(template) in (int, float)
    if type(tree) is not type(template) and not numbers and template is not None:
        raise InputError(
            f"{source}: a value of the state is a {type(tree).__name__}, not a {type(template).__name__}"
        )
    return tree
