"""How the columns of a table become features, recorded so that new rows can be encoded alike."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.data.columns import (
    Numbers,
    Table,
    Text,
    column_names,
    no_column,
    read_columns,
    short_list,
)
from fedpage.data.dataset import Sparse
from fedpage.data.features import (
    MISSING_CELL,
    MISSING_IN_NEW_ROW,
    CategoryColumn,
    NumberColumn,
    check_finite,
    encode,
)

_FORMAT = "fedpage-encoding-1"


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
            InputError: a column cannot be encoded, or a cell of one that is standardised or filled
                is not finite; the message names row and column.

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
        if unknown not in ("error", "ignore"):
            raise InputError(f"unknown must be 'error' or 'ignore', not {short_repr(unknown)}")
        matrix = encode(rows, self.columns, unknown=unknown, advice=MISSING_IN_NEW_ROW)
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

    def find_difference(self, other: Encoding) -> str:
        """Return the name of the first column that two encodings encode differently, or "".

        What they put in place of missing numbers may differ.
        """
        for one, two in zip_longest(self.columns, other.columns):
            if one is None or two is None or _essence(one) != _essence(two):
                return str((one or two).name)
        return ""

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
        kinds = [isinstance(column, CategoryColumn) for column in self.columns]
        words = [
            f"columns: {kinds.count(False)} of numbers, {kinds.count(True)} of categories",
            f"features: {len(self.feature_names)}",
        ]
        if self.standardised:
            words.append("standardised")
        return f"Encoding({'; '.join(words)})"


def _essence(column: NumberColumn | CategoryColumn) -> tuple[Any, ...]:
    if isinstance(column, CategoryColumn):
        return column.features
    return column.name, column.mean, column.scale


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
    """Compute the mean, the scale and the fill value of a column, if they are needed."""
    standardise = standardise and not column.is_bool
    if not standardise and missing == "error":
        return NumberColumn(name, is_bool=column.is_bool)
    total, count, least, most = 0.0, 0, math.inf, -math.inf
    for start, block in column.blocks():
        with np.errstate(over="ignore", invalid="ignore"):
            part = float(block.sum())
        if not math.isfinite(part):  # rare: a missing number, an infinity or an overflow
            check_finite(table, name, start, block, missing == "mean", MISSING_CELL)
            block = block[~np.isnan(block)]
            part = math.fsum(block)
        total += part
        count += len(block)
        if standardise and len(block):
            least, most = min(least, float(block.min())), max(most, float(block.max()))
    if count == 0:
        raise InputError(
            f"{table.source}: column {name!r} has no number in any row; "
            "leave it out with drop= (--drop)"
        )
    mean = total / count
    fill = mean if missing == "mean" else None
    if not standardise:
        return NumberColumn(name, fill=fill, is_bool=column.is_bool)
    if least == most:
        return NumberColumn(name, mean=least, fill=None if fill is None else least)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = sum(float(np.nansum((block - mean) ** 2)) for _, block in column.blocks())
    scale = math.sqrt(squares / count)
    if not (math.isfinite(mean) and math.isfinite(scale) and scale > 0.0):
        raise InputError(
            f"{table.source}: column {name!r} cannot be standardised: its numbers range from "
            f"{least:g} to {most:g}; rescale it or leave it out with drop= (--drop)"
        )
    return NumberColumn(name, mean, scale, fill)


def _fit_text(table: Table, name: str, column: Text, missing: str) -> CategoryColumn:
    has_missing = bool((column.codes < 0).any())
    if has_missing and missing != "mean":
        raise InputError(f"{table.cell(int((column.codes < 0).argmax()), name)}: {MISSING_CELL}")
    if not column.values:
        raise InputError(
            f"{table.source}: column {name!r} has no value in any row; "
            "leave it out with drop= (--drop)"
        )
    return CategoryColumn(name, column.values, has_missing)
