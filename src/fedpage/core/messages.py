"""The layout of messages and replies, and the sum of replies.

A layout is derived from the types that a method declares. A sum adds one client after the other in
client order, so it has the same bits for any chunks, threads and engine. numpy's own sum may add in
pairs, and does so for (n, 1) arrays; a Python loop over rows would take as long as the clients'
work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.jit import compile_kernel
from fedpage.core.types import (
    ClientStateT,
    DType,
    Fields,
    MessageT,
    Method,
    ReplyT,
    StateT,
    Vector,
    triangle_size,
)

T = TypeVar("T", bound=Fields)


class Layout(NamedTuple, Generic[T]):
    """The names, sizes and types of the fields of a message, reply or client state."""

    type: type[T]
    """The NamedTuple."""
    sizes: tuple[int, ...]
    """Numbers in each field: d, 1 for a `Scalar`, or d(d+1)/2 for a `Triangle`."""
    dtypes: tuple[DType, ...]
    """The type of each field's numbers: the model's, or float64 for a `Scalar`."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return field_names(self.type)

    @property
    def floats(self) -> int:
        """Numbers in all fields."""
        return sum(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes of all fields."""
        each = zip(self.sizes, self.dtypes, strict=True)
        return sum(size * dtype.itemsize for size, dtype in each)

    def build(self, parts: Iterable[Vector]) -> T:
        """Return the NamedTuple of these fields."""
        build: Callable[..., T] = self.type
        return build(*parts)

    def find_fault(self, value: object, n: int) -> str:
        """Describe the fault of a value for n clients; "" if its type and shapes are right."""
        if type(value) is not self.type:
            return f"is a {type(value).__name__} instead of a {self.type.__name__}"
        parts: Any = value
        for i, part in enumerate(parts):
            size, dtype = self.sizes[i], self.dtypes[i]
            is_usual = type(part) is np.ndarray and part.dtype is dtype
            if is_usual and part.shape == (n, size):
                continue
            name, found = self.fields[i], getattr(part, "dtype", None)
            if found is None:
                return f"has {name} as a {type(part).__name__} instead of an array"
            if tuple(part.shape) != (n, size):
                return f"has {name} of shape {tuple(part.shape)} instead of {(n, size)}"
            # a device's type is named such as torch.float32
            if found is not dtype and str(found).rpartition(".")[2] != dtype.name:
                return f"has {name} of type {found} instead of {dtype}"
        return ""


def layout_of(type_: type[T], d: int, dtype: DType) -> Layout[T]:
    """Return the layout of a NamedTuple of vectors for models of d numbers.

    Args:
        type_: A NamedTuple; a field annotated with `Scalar` holds one number, one annotated with
            `Triangle` d(d+1)/2, any other d.
        d: The number of parameters.
        dtype: The type of the model's numbers.
    """
    scalars, triangles, names = scalar_fields(type_), triangle_fields(type_), field_names(type_)
    sizes = tuple(
        1 if name in scalars else triangle_size(d) if name in triangles else d for name in names
    )
    dtypes = tuple(np.dtype(np.float64 if name in scalars else dtype) for name in names)
    return Layout(type_, sizes, dtypes)


def field_names(type_: type) -> tuple[str, ...]:
    """Return the names of a NamedTuple's fields."""
    names: tuple[str, ...] | None = getattr(type_, "_fields", None)
    if names is None:
        raise InputError(f"{type_.__name__} must be a NamedTuple of vectors")
    return names


def scalar_fields(type_: type) -> frozenset[str]:
    """Return the names of the fields that hold one number for any d."""
    return _annotated_fields(type_, "Scalar", 1)


def triangle_fields(type_: type) -> frozenset[str]:
    """Return the names of the fields that hold the triangle of a d x d matrix."""
    return _annotated_fields(type_, "Triangle", triangle_size)


@cache
def _annotated_fields(type_: type, alias: str, size: object) -> frozenset[str]:
    """Return the names of the fields whose annotation is this alias, which has this size."""
    try:
        hints = get_type_hints(type_, include_extras=True)
    except NameError:  # a type that was defined within a function, with postponed annotations
        return frozenset(name for name, text in type_.__annotations__.items() if alias in str(text))
    return frozenset(
        name for name, hint in hints.items() if getattr(hint, "__metadata__", ()) == (size,)
    )


def as_scalar(number: float) -> Vector:
    """Return a number as a message's field of the type `Scalar`, (1,) float64."""
    return np.array([number], dtype=np.float64)


def reply_layouts(
    method: Method[StateT, MessageT, ReplyT, ClientStateT], d: int, dtype: DType
) -> dict[type, Layout[ReplyT]]:
    """Return the layout of the reply to each of a method's messages, by message type.

    Raises:
        InputError: The method does not declare its messages, or declares them wrongly.
    """
    messages = getattr(method, "messages", None)
    if not isinstance(messages, dict) or not messages:
        raise InputError(
            f"{type(method).__name__}: declare `messages`, a dict from each message type to the "
            f"type of its reply, such as {{Model: Reply}}; not {short_repr(messages)}"
        )
    return {message: layout_of(reply, d, dtype) for message, reply in messages.items()}


@compile_kernel
def _add_rows(total: NDArray[np.float64], rows: NDArray[np.float64]) -> None:
    for i in range(rows.shape[0]):
        for l in range(rows.shape[1]):
            total[l] += rows[i, l]


@compile_kernel
def _mean_rows(rows: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    out[:] = 0.0
    _add_rows(out, rows)
    for l in range(rows.shape[1]):
        out[l] /= rows.shape[0]


def mean_rows(rows: Vector) -> Vector:
    """Return the mean of rows (n, d): bit for bit `add_rows(None, rows)` divided by n.

    >>> mean_rows(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [2.0, 3.0]
    """
    if not isinstance(rows, np.ndarray):
        return add_rows(None, rows) / len(rows)  # on a device
    out = np.empty(rows.shape[1], rows.dtype)
    _mean_rows(np.ascontiguousarray(rows), out)
    return out


def add_rows(total: Vector | None, rows: Vector) -> Vector:
    """Add each row of rows (n, d) to total (d,), one after the other.

    Args:
        total: The sum so far, which may be changed in place; None is zero.
        rows: The rows to add, (n, d).

    >>> add_rows(None, np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [4.0, 6.0]
    """
    if not isinstance(rows, np.ndarray):  # on a device, which adds whole rows
        for row in rows:
            total = row if total is None else total + row
        return total
    if total is None:
        total = np.zeros(rows.shape[1], rows.dtype)
    _add_rows(total, np.ascontiguousarray(rows))
    return total
