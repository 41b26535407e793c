"""How the columns of a table become features, recorded so that new rows can be encoded alike."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.data.columns import (
    BLOCK,
    Numbers,
    Table,
    Text,
    column_names,
    is_number,
    no_column,
    read_columns,
)
from fedpage.data.dataset import Sparse

_SPARSE_BELOW = 0.25
"""Features are stored as a sparse matrix where less than this share of them is non-zero."""
_FORMAT = "fedpage-encoding-1"
MISSING_VALUE = "(missing)"
"""The value in a feature's name that stands for a missing category, as in "smoker=(missing)"."""
MISSING_CELL = (
    'the value is missing; give missing="drop" to leave out such rows, missing="mean" to fill in '
    "(numbers: the mean; categories: one of their own), or correct the cell"
)
_NEW = "the value is missing; correct the cell or leave the row out"


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


@dataclass(frozen=True)
class Encoding:
    """Describe how the columns of a table become features.

    Features are stored as a sparse matrix where less than a quarter of them is non-zero (many
    categories), otherwise as a dense array.

    Attributes:
        columns: the encoded columns, in the order of the features.
        label: the column of the labels, which new rows may have or not.
        client: the column of the client ids, which new rows may have or not.
        left_out: columns that are no features, which new rows may have or not.
        standardised: whether numbers were standardised.
        dropped_rows: how many rows were left out because a value was missing.
    """

    columns: tuple[NumberColumn | CategoryColumn, ...]
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
            table: a Table, a frame, columns {name: values} or rows [{name: value}].
            standardise: whether numbers get mean 0 and standard deviation 1; a constant column
                becomes 0.
            missing: "error" refuses missing cells; "mean" replaces a missing number by the mean of
                its column, and makes missing categories a category of their own.

        Raises:
            InputError: a cell is missing or not finite; the message names row and column.

        >>> Encoding.fit({"age": [30, 50], "smoker": ["yes", "no"]}).feature_names
        ('age', 'smoker=no', 'smoker=yes')
        """
        if not isinstance(table, Table):
            table = read_columns(table, column_names(table, "frame"), "frame")
        columns = tuple(
            _fit_text(table, name, column, missing)
            if isinstance(column, Text)
            else _fit_numbers(table, name, column, standardise, missing)
            for name, column in table.columns.items()
        )
        return cls(columns, standardised=standardise)

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
            rows: a frame (pandas, polars, pyarrow), columns {name: values} or rows
                [{name: value}]. It has the columns of the encoding, in any order, and may also have
                the label, the client ids and the columns that were left out.
            unknown: "error" refuses a category that is not known; "ignore" encodes it by zeros.
            source: what errors call the rows.

        Returns:
            (n, p) features, a dense array or a scipy.sparse CSR array.

        Raises:
            InputError: a column is missing or not known, or a cell cannot be encoded; the message
                names row and column.

        >>> encoding = Encoding.fit({"age": [30, 50], "smoker": ["yes", "no"]})
        >>> encoding.transform([{"smoker": "no", "age": 41}]).tolist()
        [[41.0, 1.0, 0.0]]
        """
        if not isinstance(rows, Table):
            self.check_names(column_names(rows, source), source)
            names = [column.name for column in self.columns]
            rows = read_columns(rows, names, source, self.text_columns)
        matrix = self.encode(rows, unknown=unknown)
        if not isinstance(matrix, Sparse):
            return matrix
        from scipy.sparse import csr_array

        indptr, indices, values, features = matrix
        return csr_array((values, indices, indptr), shape=(len(indptr) - 1, features))

    def check_names(self, names: list[str], source: str) -> None:
        """Check that new rows have every column of the encoding and no unknown one.

        Raises:
            InputError: a column is missing or unknown.
        """
        for column in self.columns:
            if column.name not in names:
                raise InputError(f"{source}: {no_column(column.name, names)}")
        others = (self.label, self.client, *self.left_out)
        known = [column.name for column in self.columns] + [name for name in others if name]
        for name in names:
            if name not in known:
                raise InputError(
                    f"{source}: column {name!r} was not there when the data was encoded; "
                    f"leave it out (the columns are {short_list(known)})"
                )

    def encode(self, table: Table, *, unknown: Literal["error", "ignore"] = "error") -> Any:
        """Encode the columns of a table as `Sparse` or a dense array (n, p).

        Raises:
            InputError: a cell cannot be encoded.
        """
        if unknown not in ("error", "ignore"):
            raise InputError(f"unknown must be 'error' or 'ignore', not {short_repr(unknown)}")
        parts = [_prepare(table, spec, unknown == "ignore") for spec in self.columns]
        widths = [len(spec.features) for spec in self.columns]
        nonzeros = sum(part.count_nonzeros() for part in parts)
        build = _to_sparse if nonzeros < _SPARSE_BELOW * sum(widths) * table.rows else _to_dense
        return build(parts, widths, table.rows)

    def describe(self) -> dict[str, Any]:
        """Return a summary in plain values: the numbers, the categories and what was done."""
        numbers = [c for c in self.columns if isinstance(c, NumberColumn)]
        categories = [c for c in self.columns if isinstance(c, CategoryColumn)]
        return {
            "numbers": len(numbers),
            "categories": {c.name: len(c.values) for c in categories},
            "features": len(self.feature_names),
            "standardised": self.standardised,
            "missing_filled": self.fills_missing,
            "dropped_rows": self.dropped_rows,
            "label": self.label,
            "client": self.client,
            "left_out": list(self.left_out),
        }

    @property
    def fills_missing(self) -> bool:
        """Whether missing cells are replaced."""
        return any(
            c.has_missing if isinstance(c, CategoryColumn) else c.fill is not None
            for c in self.columns
        )

    def to_json(self) -> str:
        """Return the encoding as JSON, from which `from_json` makes an equal one."""
        columns = [
            {"kind": "category" if isinstance(c, CategoryColumn) else "number", **asdict(c)}
            for c in self.columns
        ]
        return json.dumps({"format": _FORMAT, **asdict(self), "columns": columns})

    @classmethod
    def from_json(cls, text: str) -> Encoding:
        """Make the encoding that `to_json` described.

        Raises:
            InputError: it is not such a description.
        """
        try:
            content = json.loads(text)
            if content["format"] != _FORMAT:
                raise ValueError(f"its format is {short_repr(content['format'])}")
            return cls(
                tuple(_column_from(dict(column)) for column in content["columns"]),
                label=_text_or_none(content["label"]),
                client=_text_or_none(content["client"]),
                left_out=tuple(map(str, content["left_out"])),
                standardised=bool(content["standardised"]),
                dropped_rows=int(content["dropped_rows"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"not the JSON of an encoding ({error!r})") from None

    def __repr__(self) -> str:
        said = self.describe()
        words = [f"{said['numbers']} numbers"] if said["numbers"] else []
        if said["categories"]:
            words.append(f"{len(said['categories'])} categories")
        words.append(f"{said['features']} features")
        if self.standardised:
            words.append("standardised")
        return f"Encoding({', '.join(words)})"


def short_list(names: list[str]) -> str:
    """Join names for an error message, in at most 300 characters."""
    text = ", ".join(names)
    return text if len(text) <= 300 else text[:297] + "..."


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _column_from(fields: dict[str, Any]) -> NumberColumn | CategoryColumn:
    kind = fields.pop("kind")
    if kind == "category":
        return CategoryColumn(
            str(fields["name"]), tuple(map(str, fields["values"])), bool(fields["has_missing"])
        )
    if kind != "number":
        raise ValueError(f"a column of kind {short_repr(kind)}")
    fill = fields["fill"]
    column = NumberColumn(
        str(fields["name"]),
        float(fields["mean"]),
        float(fields["scale"]),
        None if fill is None else float(fill),
        bool(fields["is_bool"]),
    )
    numbers = (column.mean, column.scale, 0.0 if column.fill is None else column.fill)
    if not all(map(math.isfinite, numbers)) or column.scale <= 0.0:
        raise ValueError(f"mean, scale or fill of {short_repr(column.name)} is not a valid number")
    return column


def _fit_numbers(
    table: Table, name: str, column: Numbers, standardise: bool, missing: str
) -> NumberColumn:
    """Compute the mean, the scale and the fill value of a column."""
    total, count, least, most = 0.0, 0, math.inf, -math.inf
    for start, block in column.blocks():
        with np.errstate(over="ignore", invalid="ignore"):
            part = float(block.sum())
        if not math.isfinite(part):  # rare: a missing number, an infinity or an overflow
            _check_finite(table, name, start, block, missing == "mean", MISSING_CELL)
            block = block[~np.isnan(block)]
            part = math.fsum(block)
        total += part
        count += len(block)
        if standardise and len(block):
            least, most = min(least, float(block.min())), max(most, float(block.max()))
    if count == 0:
        raise InputError(
            f"{table.source}: column {name!r} has no number in any row; leave it out with drop="
        )
    mean = total / count
    fill = mean if missing == "mean" else None
    if not standardise or column.is_bool:
        return NumberColumn(name, fill=fill, is_bool=column.is_bool)
    if least == most:
        return NumberColumn(name, mean=least, fill=None if fill is None else least)
    squares = sum(float(np.nansum((block - mean) ** 2)) for _, block in column.blocks())
    scale = math.sqrt(squares / count)
    if not (math.isfinite(mean) and math.isfinite(scale) and scale > 0.0):
        raise InputError(
            f"{table.source}: column {name!r} cannot be standardised: its numbers range from "
            f"{least:g} to {most:g}; rescale it or leave it out with drop="
        )
    return NumberColumn(name, mean, scale, fill)


def _fit_text(table: Table, name: str, column: Text, missing: str) -> CategoryColumn:
    has_missing = bool((column.codes < 0).any())
    if has_missing and missing != "mean":
        raise InputError(f"{table.cell(int((column.codes < 0).argmax()), name)}: {MISSING_CELL}")
    if not column.values:
        raise InputError(
            f"{table.source}: column {name!r} has no value in any row; leave it out with drop="
        )
    return CategoryColumn(name, column.values, has_missing)


def _check_finite(
    table: Table, name: str, start: int, block: Vector, allow_missing: bool, advice: str
) -> None:
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

    def read(self, start: int, stop: int) -> Vector:
        """Return the feature in a block of rows."""
        spec, block = self.spec, self.column.read(start, stop)
        with np.errstate(over="ignore", invalid="ignore"):
            is_finite = math.isfinite(float(block.sum()))
        if not is_finite:
            _check_finite(self.table, spec.name, start, block, spec.fill is not None, _NEW)
            block = np.where(np.isnan(block), spec.fill or 0.0, block)
        if spec.mean == 0.0 and spec.scale == 1.0:
            return block
        return (block - spec.mean) / spec.scale

    def count_nonzeros(self) -> int:
        """Count the non-zero features; standardised ones are not looked at."""
        if self.spec.mean != 0.0 or self.spec.scale != 1.0:
            return self.column.rows
        return sum(int(np.count_nonzero(block)) for _, block in self.column.blocks())


@dataclass(frozen=True)
class _Features:
    """A text column of a table, with the number of the feature that each of its values sets."""

    column: Text
    feature_of: NDArray[np.int64]

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the feature that is 1 in each row of a block, -1 for none."""
        return self.feature_of[self.column.codes[start:stop]]

    def count_nonzeros(self) -> int:
        """Return the number of rows, each of which has one non-zero feature at most."""
        return self.column.rows


def _prepare(
    table: Table, spec: NumberColumn | CategoryColumn, ignore: bool
) -> _Feature | _Features:
    """Check the cells of a column against its spec."""
    column = table.columns[spec.name]
    if isinstance(spec, NumberColumn):
        numbers = _parse_numbers(table, spec, column) if isinstance(column, Text) else column
        return _Feature(table, spec, numbers)
    if isinstance(column, Numbers):
        raise InputError(f"{table.source}: column {spec.name!r} holds numbers, not categories")
    number = {value: code for code, value in enumerate(spec.values)}
    feature_of = np.array([number.get(v, -1) for v in column.values] + [-1], dtype=np.int64)
    if not ignore and (feature_of[:-1] < 0).any():
        row = column.first_row(lambda value: value not in number)
        if row is not None:
            raise InputError(
                f"{table.cell(row, spec.name)}: "
                f"{short_repr(column.values[column.codes[row]])} is not one of the known values "
                f"({short_list([*spec.values])}); correct it, or encode the rows with "
                'encoding.transform(rows, unknown="ignore")'
            )
    if spec.has_missing:
        feature_of[-1] = len(spec.values)
    elif not ignore and (column.codes < 0).any():
        raise InputError(f"{table.cell(int((column.codes < 0).argmax()), spec.name)}: {_NEW}")
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
