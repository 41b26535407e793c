"""How the columns of a table become features, recorded so that new rows can be encoded alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.core.validate import choice
from fedpage.data.dataset import Sparse
from fedpage.data.frames import (
    DataTable,
    DelimitedReader,
    FrameReader,
    check_names,
    is_number,
    short_list,
)

MISSING_VALUE = "(missing)"
"""The value in a feature's name that stands for a missing category, as in "smoker=(missing)"."""
MISSING_LABEL = (
    'the value is missing; correct the cell, or give missing="drop" (--missing drop) to leave '
    "such rows out"
)
MISSING_CELL = f'{MISSING_LABEL}, or "mean" to fill them in'
MISSING_IN_NEW_ROW = "the value is missing; correct the cell or leave the row out"
INFINITE = "inf is not a finite number; correct it"
_SPARSE_BELOW = 0.25
"""Features are sparse if less than this share of the first rows' entries is non-zero."""
_REFERENCE = -2
"""The feature of the rows that have the reference category."""
_BLOCK = 1 << 14
"""The rows that are summed at a time, and the first rows that decide between sparse and dense."""


class UnknownCategory(InputError):
    """A cell holds a category that the encoding does not know."""


@dataclass(frozen=True)
class NumberColumn:
    """Encode a column of numbers as one feature, (value - mean) / scale.

    Attributes:
        name: the column's name.
        mean: the number to subtract; 0 if numbers are not standardised.
        scale: the number to divide by; 1 if numbers are not standardised.
        fill: the number in place of a missing one. If None, a missing number is an error.
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
        has_missing: whether missing cells are one more category, the last feature.
        reference: the category that has no feature, because the others are compared with it.
    """

    name: str
    values: tuple[str, ...]
    has_missing: bool = False
    reference: str | None = None

    @property
    def kept(self) -> tuple[str, ...]:
        """The categories that have a feature."""
        return tuple(value for value in self.values if value != self.reference)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features, such as "smoker=yes"."""
        values = (*self.kept, MISSING_VALUE) if self.has_missing else self.kept
        return tuple(f"{self.name}={value}" for value in values)


EncodedColumn = NumberColumn | CategoryColumn


@dataclass(frozen=True, repr=False)
class Encoding:
    """Describe how the columns of a table become features.

    Features are stored as a sparse matrix if less than a quarter of them is non-zero (many
    categories), otherwise as a dense array.

    Attributes:
        columns: the encoded columns, in the order of the features.
        label: the column of the labels, which new rows may have or not.
        client: the column of the client ids, which new rows may have or not.
        left_out: the columns that are not used, which new rows may have or not.
        standardised: whether numbers were standardised.
        dropped_rows: how many rows were left out because a value was missing.
    """

    columns: tuple[EncodedColumn, ...]
    label: str | None = None
    client: str | None = None
    left_out: tuple[str, ...] = ()
    standardised: bool = False
    dropped_rows: int = 0

    @classmethod
    def fit(
        cls,
        table: Any,
        *,
        standardise: bool = False,
        missing: Literal["error", "mean"] = "error",
    ) -> Encoding:
        """Choose the encoding of a table's columns: numbers, or one feature a category.

        Args:
            table: a DataTable, a frame, columns {name: values} or rows [{name: value}].
            standardise: whether numbers get mean 0 and standard deviation 1; a constant column
                becomes 0.
            missing: "error" refuses missing cells. "mean" replaces a missing number by the mean of
                its column, and makes one more category of missing categories.

        Raises:
            InputError: a column cannot be encoded, or a cell of one that is standardised or filled
                is not finite; the message names row and column.

        >>> Encoding.fit({"age": [30, 50], "smoker": ["yes", "no"]}).feature_names
        ('age', 'smoker=no', 'smoker=yes')
        """
        if not isinstance(table, DataTable):
            reader = FrameReader(table, "frame")
            table = reader.read(reader.names)
        columns: list[EncodedColumn] = []
        for name in table.frame.columns:
            absent = table.is_missing(name)
            if absent.all():
                raise InputError(
                    f"{table.source}: column {name!r} has no value in any row; leave it out with "
                    f"drop=({name!r},)"
                )
            if not table.is_text(name):
                columns.append(_fit_numbers(table, name, standardise, missing))
                continue
            if missing != "mean":
                table.refuse(absent, name, MISSING_CELL)
            columns.append(CategoryColumn(name, table.codes(name)[1], bool(absent.any())))
        return cls(tuple(columns), standardised=standardise)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, in order."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def text_columns(self) -> frozenset[str]:
        """The names of the columns that hold categories."""
        return frozenset(c.name for c in self.columns if isinstance(c, CategoryColumn))

    def transform(
        self, rows: Any, *, unknown: Literal["error", "ignore"] = "error", source: str = "new rows"
    ) -> Any:
        """Encode new rows.

        Args:
            rows: a frame (pandas, polars, pyarrow), columns {name: values}, rows [{name: value}],
                or the reader of a table. They have the columns of the encoding, in any order, and
                may also have the label, the client ids and the columns that were left out.
            unknown: "error" refuses a category that is not known; "ignore" encodes it by zeros.
            source: the name of the rows in errors.

        Returns:
            (n, p) features, a dense array or a scipy.sparse CSR array.

        Raises:
            InputError: a column is missing or not known, or a cell cannot be encoded; the message
                names row and column.

        >>> encoding = Encoding.fit({"age": [30, 50], "smoker": ["yes", "no"]})
        >>> encoding.transform([{"smoker": "no", "age": 41}]).tolist()
        [[41.0, 1.0, 0.0]]
        """
        choice("transform", "unknown", unknown, ("error", "ignore"))
        is_open = isinstance(rows, (FrameReader, DelimitedReader))
        reader = rows if is_open else FrameReader(rows, source)
        self.check_names(reader.names, reader.source)
        table = reader.read([column.name for column in self.columns], self.text_columns)
        matrix = encode(table, self.columns, unknown=unknown, advice=MISSING_IN_NEW_ROW)
        return matrix.to_scipy() if isinstance(matrix, Sparse) else matrix

    def check_names(self, names: list[str], source: str) -> None:
        """Check that new rows have every column of the encoding and no unknown one.

        Raises:
            InputError: a column is missing or unknown.
        """
        own = [column.name for column in self.columns]
        check_names(own, names, source)
        known = [*own, *filter(None, (self.label, self.client, *self.left_out))]
        for name in names:
            if name not in known:
                raise InputError(
                    f"{source}: column {name!r} was not there when the data was encoded; "
                    f"leave it out (the columns are {short_list(known)})"
                )

    def find_difference(self, other: Encoding) -> str:
        """Return the name of the first column that two encodings encode differently, or "".

        The numbers in place of missing ones may differ.
        """

        def essence(column: EncodedColumn | None) -> Any:
            if isinstance(column, NumberColumn):
                return replace(column, fill=None, is_bool=False)
            return column

        pairs = zip_longest(self.columns, other.columns)
        return next((str((a or b).name) for a, b in pairs if essence(a) != essence(b)), "")

    def __repr__(self) -> str:
        categories, features = len(self.text_columns), len(self.feature_names)
        columns = f"{len(self.columns) - categories} of numbers, {categories} of categories"
        end = "; standardised" if self.standardised else ""
        return f"Encoding(columns: {columns}; features: {features}{end})"


def _fit_numbers(table: DataTable, name: str, standardise: bool, missing: str) -> NumberColumn:
    """Compute the mean, the scale and the fill value of a column, if they are needed."""
    # scikit-learn's StandardScaler adds in another order, so recorded runs would change
    is_bool = table.is_bool(name)
    standardise = standardise and not is_bool
    if not standardise and missing == "error":
        return NumberColumn(name, is_bool=is_bool)
    numbers = table.numbers(name)
    table.refuse(np.isinf(numbers), name, INFINITE)
    if missing != "mean":
        table.refuse(np.isnan(numbers), name, MISSING_CELL)
    blocks = [numbers[at : at + _BLOCK] for at in range(0, len(numbers), _BLOCK)]
    present = numbers[~np.isnan(numbers)]
    least, most = float(present.min()), float(present.max())
    with np.errstate(over="ignore", invalid="ignore"):
        total = 0.0
        for block in blocks:  # sum() would compensate rounding errors
            added = float(block.sum())
            try:
                total += added if math.isfinite(added) else math.fsum(block[~np.isnan(block)])
            except OverflowError:
                total = math.inf
        mean = total / len(present)
        squares = sum(float(np.nansum((block - mean) ** 2)) for block in blocks)
    scale = math.sqrt(squares / len(present)) if standardise else 1.0
    if least == most and standardise:
        mean, scale = least, 1.0
    if not (math.isfinite(mean) and math.isfinite(scale) and scale > 0.0):
        raise InputError(
            f"{table.source}: column {name!r} cannot be standardised: its numbers range from "
            f"{least:g} to {most:g}; rescale it or leave it out with drop= (--drop)"
        )
    fill = mean if missing == "mean" else None
    return NumberColumn(name, mean if standardise else 0.0, scale, fill, is_bool)


def encode(
    table: DataTable,
    columns: Sequence[EncodedColumn],
    *,
    unknown: Literal["error", "ignore"],
    advice: str,
    sparse: bool | None = None,
) -> Sparse | Vector:
    """Encode columns of a table as `Sparse` or a dense array (n, p).

    `advice` is the error about a missing value. If `sparse` is None, the result is sparse if less
    than a quarter of the features of the first 16,384 rows is non-zero.
    """
    parts = [
        _encode_numbers(table, spec, advice)
        if isinstance(spec, NumberColumn)
        else _encode_categories(table, spec, unknown == "ignore", advice)
        for spec in columns
    ]
    firsts = np.cumsum([0, *(len(spec.features) for spec in columns)])
    if sparse is None:
        nonzeros = sum(
            len(part[:_BLOCK]) if part.dtype.kind == "i" else np.count_nonzero(part[:_BLOCK])
            for part in parts
        )
        sparse = bool(nonzeros < _SPARSE_BELOW * firsts[-1] * min(_BLOCK, table.rows))
    if not sparse:
        out = np.zeros((table.rows, firsts[-1]))
        for part, first in zip(parts, firsts, strict=False):
            if part.dtype.kind == "i":
                known = np.flatnonzero(part >= 0)
                out[known, first + part[known]] = 1.0
            else:
                out[:, first] = part
        return out
    indices = np.empty((table.rows, len(parts)), dtype=np.int32)
    values = np.empty((table.rows, len(parts)))
    for at, part in enumerate(parts):
        is_category = part.dtype.kind == "i"
        indices[:, at] = firsts[at] + part if is_category else firsts[at]
        values[:, at] = part >= 0 if is_category else part
    kept = values != 0.0
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return Sparse(indptr.astype(np.int64), indices[kept], values[kept], int(firsts[-1]))


def _encode_numbers(table: DataTable, spec: NumberColumn, advice: str) -> Vector:
    """Return the feature (n,) of a column of numbers; text must hold numbers or booleans."""
    name = spec.name
    if table.is_text(name):
        words = {"true": "1", "false": "0"} if spec.is_bool else {}
        cells = [word and words.get(word.lower(), word) for word in table.frame[name]]
        wrong = np.array([word is not None and not is_number(word) for word in cells], dtype=bool)
        if wrong.any():
            word = short_repr(cells[int(wrong.argmax())])
            table.refuse(wrong, name, f"{word} is not a number; correct it")
        numbers = np.array([math.nan if word is None else float(word) for word in cells])
    else:
        numbers = table.numbers(name)
    if not np.isfinite(numbers).all():
        table.refuse(np.isinf(numbers), name, INFINITE)
        if spec.fill is None:
            table.refuse(np.isnan(numbers), name, advice)
        numbers = np.where(np.isnan(numbers), spec.fill or 0.0, numbers)
    if spec.mean == 0.0 and spec.scale == 1.0:
        return numbers
    return np.asarray((numbers - spec.mean) / spec.scale)


def _encode_categories(
    table: DataTable, spec: CategoryColumn, ignore: bool, advice: str
) -> NDArray[np.int64]:
    """Return for each row (n,) which feature of the column is 1, or a negative number for none."""
    name = spec.name
    if not table.is_text(name):
        raise InputError(f"{table.source}: column {name!r} holds numbers, not categories")
    codes, values = table.codes(name)
    number = {value: code for code, value in enumerate(spec.kept)}
    if spec.reference is not None:
        number[spec.reference] = _REFERENCE
    for value, code in list(number.items()):  # a frame holds 1 as 1.0 where other rows have none
        if is_number(value):
            number.setdefault(value[:-2] if value.endswith(".0") else f"{value}.0", code)
    missing = len(spec.kept) if spec.has_missing else -1
    feature = np.array([*(number.get(value, -1) for value in values), missing], dtype=np.int64)
    found = feature[codes]
    if not ignore:
        unknown = (found == -1) & (codes >= 0)
        if unknown.any():
            row = int(unknown.argmax())
            raise UnknownCategory(
                f"{table.cell(row, name)}: {short_repr(values[codes[row]])} is not one of the "
                f"known values ({short_list(spec.values)}); correct it, or encode the rows with "
                'encoding.transform(rows, unknown="ignore")'
            )
        table.refuse(found == -1, name, advice)
    return found
