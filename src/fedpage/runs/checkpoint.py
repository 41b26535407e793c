"""Turn the state of a run into the bytes of a checkpoint, and back.

A checkpoint is an uncompressed `.npz` file, which `numpy.load` opens too. It holds a tree of
dictionaries, lists, strings, numbers, booleans, None and arrays: the outline of the tree as JSON,
and its arrays. Nothing is pickled.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from fedpage.core.errors import InputError

Snapshot: TypeAlias = dict[str, Any]
"""Everything that the coming rounds of a run depend on: a table that `pack` can write."""

_OUTLINE = "outline"
_ARRAY = "__array__"
"""The key by which the outline names the array that stands there."""
_DTYPE_KINDS = "fiub"
_FORMAT = "fedpage-checkpoint-2"


def pack(tree: Mapping[str, object]) -> bytes:
    """Return the bytes of a checkpoint; the same tree gives the same bytes.

    Args:
        tree: A table of texts, numbers, arrays, lists and tables.

    Raises:
        InputError: If the tree holds a value of another type.
    """
    arrays: dict[str, Any] = {}

    def encode(value: object) -> object:
        if isinstance(value, np.ndarray) and value.ndim:
            if value.dtype.kind not in _DTYPE_KINDS:
                raise InputError(f"a checkpoint cannot hold an array of type {value.dtype}")
            name = str(len(arrays))
            arrays[name] = np.ascontiguousarray(value)
            return {_ARRAY: name}
        if isinstance(value, (np.generic, np.ndarray)):
            return value.item()
        raise InputError(
            f"a checkpoint cannot hold a {type(value).__name__}; "
            "use arrays, numbers, strings and NamedTuples"
        )

    outline = json.dumps({"format": _FORMAT, "tree": tree}, default=encode)
    text = np.frombuffer(outline.encode("utf-8"), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **{_OUTLINE: text, **arrays})
    return buffer.getvalue()


def unpack(data: bytes, source: str) -> Snapshot:
    """Return the tree in the bytes of a checkpoint.

    Args:
        data: Bytes that `pack` returned.
        source: The file's name, for errors.

    Raises:
        InputError: If the bytes are not those of a checkpoint.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = dict(archive.items())
        outline = json.loads(
            arrays.pop(_OUTLINE).tobytes(),
            object_hook=lambda table: arrays[table[_ARRAY]] if _ARRAY in table else table,
        )
        if outline["format"] != _FORMAT:
            raise ValueError(f"format {outline['format']!r:.40}")
        return cast("Snapshot", outline["tree"])
    except Exception as error:  # zipfile and numpy raise many types for damaged bytes
        raise InputError(f"{source}: not a checkpoint of fedpage ({error})") from None


def state_to_tree(state: object) -> object:
    """Return the state of a method as a tree: a NamedTuple becomes a table of its fields."""
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return {name: state_to_tree(part) for name, part in zip(state._fields, state, strict=True)}
    return state


def state_from_tree(template: Any, tree: Any, source: str) -> Any:
    """Return the state that `state_to_tree` turned into a tree.

    Args:
        template: A state of the same types and shapes, such as `Method.init` returns.
        tree: The tree.
        source: The file's name, for errors.

    Raises:
        InputError: If the tree does not fit the template.
    """
    if isinstance(template, tuple) and hasattr(template, "_fields"):
        if not isinstance(tree, dict) or list(tree) != list(template._fields):
            raise InputError(f"{source}: the state is not a {type(template).__name__}")
        parts = zip(template, tree.values(), strict=True)
        return type(template)(*(state_from_tree(old, part, source) for old, part in parts))
    if isinstance(template, np.generic):
        return template.dtype.type(tree)
    if isinstance(template, np.ndarray):
        found = np.asarray(tree, dtype=None if template.ndim else template.dtype)
        if (found.shape, found.dtype) != (template.shape, template.dtype):
            raise InputError(
                f"{source}: an array of the state has another shape or type than the method's"
            )
        return found
    return tree
