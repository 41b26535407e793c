"""Encode the columns of a table as features, block by block: a dense array or a sparse matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.data.columns import BLOCK, Numbers, Table, Text, is_number, short_list
from fedpage.data.dataset import Sparse

_SPARSE_BELOW = 0.25
"""Features are sparse where less than this share of those of the first block is non-zero."""
MISSING_VALUE = "(missing)"
"""The value in a feature's name that stands for a missing category, as in "smoker=(missing)"."""
MISSING_CELL = (
    'the value is missing; correct the cell, or give missing="drop" (--missing drop) to leave '
    'such rows out, or "mean" to fill them in'
)
MISSING_IN_NEW_ROW = "the value is missing; correct the cell or leave the row out"


class UnknownCategory(InputError):
    """A cell holds a category that the encoding does not know."""


@dataclass(frozen=True)
class NumberColumn:
    """Encode a column of numbers as one feature, (value - mean) / scale.

    Attributes:
        name: the column's name.
        mean: what is subtracted; 0 where numbers are not standardised.
        scale: what is divided by; 1 where numbers are not standardised.
        fill: the number in place of a missing one; None refuses missing numbers.
        is_bool: whether the column holds booleans, which become 0 and 1 and are not standardised.
    """

    name: str
    mean: float = 0.0
    scale: float = 1.0
    fill: float | None = None
    is_bool: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """The name of the feature."""
        return (self.name,)


@dataclass(frozen=True)
class CategoryColumn:
    """Encode a column of categories as one feature a value, which is 1 in the rows that have it.

    Attributes:
        name: the column's name.
        values: the categories, sorted.
        has_missing: whether missing cells are a category of their own, the last feature.
    """

    name: str
    values: tuple[str, ...]
    has_missing: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features, such as "smoker=yes"."""
        values = (*self.values, MISSING_VALUE) if self.has_missing else self.values
        return tuple(f"{self.name}={value}" for value in values)


def encode(
    table: Table,
    columns: Sequence[NumberColumn | CategoryColumn],
    *,
    unknown: Literal["error", "ignore"],
    advice: str,
    sparse: bool | None = None,
) -> Sparse | Vector:
    """Encode columns of a table.

    Args:
        table: the table, which has the columns.
        columns: how each column is encoded.
        unknown: whether an unknown category is an "error", or encoded by zeros ("ignore").
        advice: what the error about a missing value says.
        sparse: whether the result is sparse; None chooses by the first rows.

    Returns:
        `Sparse`, if so chosen, or where less than a quarter of the features of the first 16,384
        rows is non-zero, or else a dense array (n, p). Beside the table and the result, only a
        block of rows is held in memory.

    Raises:
        InputError: a cell cannot be encoded; the message names row and column.
    """
    parts = [_prepare(table, spec, unknown == "ignore", advice) for spec in columns]
    widths = [len(spec.features) for spec in columns]
    if sparse is None:
        sample = min(BLOCK, table.rows)
        nonzeros = sum(part.count_nonzeros(sample) for part in parts)
        sparse = nonzeros < _SPARSE_BELOW * sum(widths) * sample
    if sparse:
        return _to_sparse(parts, widths, table.rows)
    return _to_dense(parts, widths, table.rows)


def check_finite(
    table: Table, name: str, start: int, block: Vector, allow_missing: bool, advice: str
) -> None:
    """Check a block of numbers that begins at row `start`.

    Raises:
        InputError: a number is infinite, or missing where that is not allowed.
    """
    infinite = np.isinf(block)
    if infinite.any():
        row = start + int(infinite.argmax())
        raise InputError(
            f"{table.cell(row, name)}: {block[row - start]} is not a finite number; correct it"
        )
    absent = np.isnan(block)
    if absent.any() and not allow_missing:
        raise InputError(f"{table.cell(start + int(absent.argmax()), name)}: {advice}")


@dataclass(frozen=True)
class _Feature:
    """A number column of a table, with the spec that turns it into a feature."""

    table: Table
    spec: NumberColumn
    column: Numbers
    advice: str

    def read(self, start: int, stop: int) -> Vector:
        """Return the feature in a block of rows."""
        spec, block = self.spec, self.column.read(start, stop)
        with np.errstate(over="ignore", invalid="ignore"):
            is_finite = math.isfinite(float(block.sum()))
        if not is_finite:
            check_finite(self.table, spec.name, start, block, spec.fill is not None, self.advice)
            block = np.where(np.isnan(block), spec.fill or 0.0, block)
        if spec.mean == 0.0 and spec.scale == 1.0:
            return block
        return (block - spec.mean) / spec.scale

    def count_nonzeros(self, rows: int) -> int:
        """Count the non-zero features of the first rows."""
        return int(np.count_nonzero(self.read(0, rows)))


@dataclass(frozen=True)
class _Features:
    """A text column of a table, with the number of the feature that each of its values sets."""

    column: Text
    feature_of: NDArray[np.int64]

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the feature that is 1 in each row of a block, -1 for none."""
        return self.feature_of[self.column.codes[start:stop]]

    def count_nonzeros(self, rows: int) -> int:
        """Return the number of rows, each of which has one non-zero feature."""
        return rows


def _prepare(
    table: Table, spec: NumberColumn | CategoryColumn, ignore: bool, advice: str
) -> _Feature | _Features:
    """Check the cells of a column against its spec."""
    column = table.columns[spec.name]
    if isinstance(spec, NumberColumn):
        numbers = _parse_numbers(table, spec, column) if isinstance(column, Text) else column
        return _Feature(table, spec, numbers, advice)
    if isinstance(column, Numbers):
        raise InputError(f"{table.source}: column {spec.name!r} holds numbers, not categories")
    number = {value: code for code, value in enumerate(spec.values)}
    for value, code in list(number.items()):  # a frame holds 1 as 1.0 where other rows have none
        if is_number(value):
            number.setdefault(value[:-2] if value.endswith(".0") else f"{value}.0", code)
    feature_of = np.array([number.get(v, -1) for v in column.values] + [-1], dtype=np.int64)
    if not ignore and (feature_of[:-1] < 0).any():
        row = column.first_row(lambda value: value not in number)
        if row is not None:
            raise UnknownCategory(
                f"{table.cell(row, spec.name)}: "
                f"{short_repr(column.values[column.codes[row]])} is not one of the known values "
                f"({short_list(spec.values)}); correct it, or encode the rows with "
                'encoding.transform(rows, unknown="ignore")'
            )
    if spec.has_missing:
        feature_of[-1] = len(spec.values)
    elif not ignore and (column.codes < 0).any():
        raise InputError(f"{table.cell(int((column.codes < 0).argmax()), spec.name)}: {advice}")
    return _Features(column, feature_of)


def _parse_numbers(table: Table, spec: NumberColumn, column: Text) -> Numbers:
    """Read text as the numbers, or booleans, that an encoding expects."""

    def is_wrong(value: str) -> bool:
        return not (is_number(value) or (spec.is_bool and value.lower() in ("true", "false")))

    row = column.first_row(is_wrong)
    if row is not None:
        raise InputError(
            f"{table.cell(row, spec.name)}: {short_repr(column.values[column.codes[row]])} is not "
            "a number; correct it"
        )
    return column.to_numbers()


def _blocks(rows: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, BLOCK):
        yield start, min(start + BLOCK, rows)


def _to_dense(parts: list[_Feature | _Features], widths: list[int], rows: int) -> Vector:
    out = np.zeros((rows, sum(widths)))
    for start, stop in _blocks(rows):
        first = 0
        for part, width in zip(parts, widths, strict=True):
            if isinstance(part, _Feature):
                out[start:stop, first] = part.read(start, stop)
            else:
                codes = part.read(start, stop)
                known = np.flatnonzero(codes >= 0)
                out[start + known, first + codes[known]] = 1.0
            first += width
    return out


def _to_sparse(parts: list[_Feature | _Features], widths: list[int], rows: int) -> Sparse:
    indptr = np.zeros(rows + 1, dtype=np.int64)
    all_indices, all_values = [np.empty(0, np.int32)], [np.empty(0)]
    for start, stop in _blocks(rows):
        indices = np.empty((stop - start, len(parts)), dtype=np.int32)
        values = np.empty((stop - start, len(parts)))
        first = 0
        for at, (part, width) in enumerate(zip(parts, widths, strict=True)):
            if isinstance(part, _Feature):
                indices[:, at] = first
                values[:, at] = part.read(start, stop)
            else:
                codes = part.read(start, stop)
                indices[:, at] = first + codes
                values[:, at] = codes >= 0
            first += width
        kept = values != 0.0
        indptr[start + 1 : stop + 1] = kept.sum(axis=1)
        all_indices.append(indices[kept])
        all_values.append(values[kept])
    return Sparse(
        np.cumsum(indptr), np.concatenate(all_indices), np.concatenate(all_values), sum(widths)
    )
