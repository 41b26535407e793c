"""Columns of a table, from a frame (pandas, polars, pyarrow), a mapping or a list of dicts.

A column is `Numbers` or `Text`. Frames of every library are read through narwhals. Numbers are read
in blocks of rows, so that a table of any size needs no second copy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.types import Vector

BLOCK = 1 << 14
"""Rows that are converted at a time."""
DATES = (
    "it holds dates or times; leave it out with drop= (--drop), or replace it by a number such as "
    "the days since a date"
)
"""What the error about a column of dates says."""
_NUMBER = re.compile(
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|inf|infinity)\Z", re.IGNORECASE
)
_WITH_COMMAS = re.compile(r"[+-]?[0-9]+(,[0-9]+)+(\.[0-9]*)?\Z")


@dataclass(frozen=True, eq=False)
class Numbers:
    """Hold a column of numbers.

    Attributes:
        rows: the number of rows, n.
        read: returns the numbers of rows start to stop as float64, NaN where one is missing.
        is_bool: whether the column holds booleans, as 0 and 1.
    """

    rows: int
    read: Callable[[int, int], Vector]
    is_bool: bool = False

    def blocks(self) -> Iterator[tuple[int, Vector]]:
        """Yield the first row of each block, and its numbers."""
        for start in range(0, self.rows, BLOCK):
            yield start, self.read(start, min(start + BLOCK, self.rows))

    def take(self, rows: NDArray[np.int64]) -> Numbers:
        """Keep some rows, given in ascending order."""

        def read(start: int, stop: int) -> Vector:
            chosen = rows[start:stop]
            if len(chosen) == 0:
                return np.empty(0)
            first, last = int(chosen[0]), int(chosen[-1])
            return np.take(self.read(first, last + 1), chosen - first)

        return Numbers(len(rows), read, self.is_bool)

    def is_missing(self) -> NDArray[np.bool_]:
        """Say for each row whether its number is missing, (n,)."""
        missing = np.empty(self.rows, dtype=bool)
        for start, block in self.blocks():
            np.isnan(block, out=missing[start : start + len(block)])
        return missing

    def to_array(self) -> Vector:
        """Return all numbers, (n,)."""
        return self.read(0, self.rows)


@dataclass(frozen=True, eq=False)
class Text:
    """Hold a column of text.

    Attributes:
        codes: (n,) which of the values each row has, -1 where it is missing.
        values: the distinct values, sorted.
        is_category: whether its type says that it is categorical, so that it is never a number.
    """

    codes: NDArray[np.int32]
    values: tuple[str, ...]
    is_category: bool = False

    @classmethod
    def from_codes(cls, parts: list[NDArray[np.int32]], values: Sequence[str]) -> Text:
        """Make a column from the codes of some rows after another, of values in any order."""
        order = sorted(range(len(values)), key=values.__getitem__)
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        return cls(rank[np.concatenate(parts)], tuple(values[code] for code in order))

    @property
    def rows(self) -> int:
        """The number of rows, n."""
        return len(self.codes)

    def take(self, rows: NDArray[np.int64]) -> Text:
        """Keep some rows, and the values that occur in them."""
        codes = self.codes[rows]
        used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(self.values)))
        return self._recode(codes, {int(old): self.values[old] for old in used})

    def is_missing(self) -> NDArray[np.bool_]:
        """Say for each row whether its text is missing, (n,)."""
        return self.codes < 0

    def clean(self, missing: Collection[str]) -> Text:
        """Strip spaces around the values, and make some values missing."""
        stripped = {old: value.strip() for old, value in enumerate(self.values)}
        kept = {old: value for old, value in stripped.items() if value not in missing}
        if len(kept) == len(self.values) and all(kept[i] == v for i, v in enumerate(self.values)):
            return self
        return self._recode(self.codes, kept)

    def _recode(self, codes: NDArray[np.int32], kept: Mapping[int, str]) -> Text:
        """Assign new codes to the kept values; other codes become missing."""
        values = tuple(sorted(set(kept.values())))
        number = {value: new for new, value in enumerate(values)}
        table = np.full(len(self.values) + 1, -1, dtype=np.int32)  # the last one is code -1
        for old, value in kept.items():
            table[old] = number[value]
        return Text(table[codes], values, self.is_category)

    def first_row(self, chosen: Callable[[str], bool]) -> int | None:
        """Return the first row whose value is chosen, or None."""
        flags = np.array([chosen(value) for value in self.values] + [False])
        hits = flags[self.codes]
        return int(hits.argmax()) if hits.any() else None

    def to_numbers(self) -> Numbers:
        """Read the values, each of which must be a number or a boolean, as numbers."""
        words = {"true": 1.0, "false": 0.0}
        lookup = np.array(
            [words.get(v.lower(), 0.0) if v.lower() in words else float(v) for v in self.values]
            + [math.nan]
        )
        is_bool = bool(self.values) and all(value.lower() in words for value in self.values)
        codes = self.codes
        return Numbers(len(codes), lambda start, stop: lookup[codes[start:stop]], is_bool)

    def to_array(self) -> NDArray[Any]:
        """Return all values as an array of str, (n,)."""
        return np.array(self.values or ("",))[self.codes]

    def counts(self) -> NDArray[np.int64]:
        """Count the rows of each value."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))


Column = Numbers | Text
Value = TypeVar("Value", str, bytes)


class Codes(dict[Value, int]):
    """Number distinct values in the order in which they occur."""

    def __missing__(self, value: Value) -> int:
        self[value] = code = len(self)
        return code

    def encode(self, values: list[Value]) -> NDArray[np.int32]:
        """Return the number of each value."""
        return np.array(list(map(self.__getitem__, values)), dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Table:
    """Hold named columns of one length.

    Attributes:
        source: what errors call the table, such as "patients.csv".
        columns: the columns by name.
        locate: returns the text that names a row in errors, such as "row 17".
        rows: the number of rows, n.
    """

    source: str
    columns: dict[str, Column]
    rows: int
    locate: Callable[[int], str] = "row {} (the first is 0)".format

    def cell(self, row: int, name: str) -> str:
        """Name a cell, as in "patients.csv, row 17, column 'age'"."""
        return f"{self.source}, {self.locate(row)}, column {name!r}"

    def replace(self, name: str, column: Column) -> Table:
        """Return the table with another column in place of one."""
        return Table(self.source, {**self.columns, name: column}, self.rows, self.locate)

    def take(self, rows: NDArray[np.int64]) -> Table:
        """Keep some rows, given in ascending order."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        locate = self.locate
        return Table(self.source, columns, len(rows), lambda row: locate(int(rows[row])))


def is_number(text: str) -> bool:
    """Say whether text is a decimal number, such as -1.5e3, or an infinity."""
    return _NUMBER.match(text) is not None


def has_commas(text: str) -> bool:
    """Say whether text is a number with commas, such as 1,234 or 0,5."""
    return _WITH_COMMAS.match(text) is not None


def column_names(frame: Any, source: str) -> list[str]:
    """Return the names of the columns of a frame, a mapping of columns or a list of dicts.

    Raises:
        InputError: it is none of these, or its names are not distinct strings.
    """
    opened = _open(frame, source)
    names = list(opened.columns if not isinstance(opened, Mapping) else opened)
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"{source}: a column's name is {short_repr(name)}; names must be strings: "
                "use df.columns = df.columns.astype(str) or fp.Dataset.from_arrays"
            )
    return names


def read_columns(
    frame: Any, names: Iterable[str], source: str, text: Collection[str] = ()
) -> Table:
    """Read columns of a frame, a mapping of columns or a list of dicts.

    Args:
        frame: a frame of pandas, polars, pyarrow or another library that narwhals knows; or
            columns {name: values}; or rows [{name: value}].
        names: the columns to read.
        source: what errors call the frame.
        text: columns that are read as text whatever their type.

    Raises:
        InputError: a column is missing or of a type that cannot be used, such as dates.
    """
    opened = _open(frame, source)
    known = list(opened.columns if not isinstance(opened, Mapping) else opened)
    columns: dict[str, Column] = {}
    for name in names:
        if name not in known:
            raise InputError(f"{source}: {no_column(name, known)}")
        make = _from_values if isinstance(opened, Mapping) else _from_series
        columns[name] = make(opened[name], f"{source}, column {name!r}", name in text)
    lengths = {name: column.rows for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{source}: columns have different lengths: {short_repr(lengths)}")
    rows = next(iter(lengths.values()), 0)
    return Table(source, columns, rows)


def no_column(name: str, known: Collection[str]) -> str:
    """Say that there is no column of a name, and which columns there are."""
    if not known:
        return f"there is no column {name!r}; the table has no columns"
    return (
        f"there is no column {name!r};{did_you_mean(name, known)} the columns are "
        f"{short_list(known)}"
    )


def short_list(names: Iterable[str]) -> str:
    """Join names for an error message, in at most 300 characters."""
    text = ", ".join(names)
    return text if len(text) <= 300 else text[:297] + "..."


def _open(frame: Any, source: str) -> Any:
    """Return a narwhals frame, or a mapping of columns."""
    if isinstance(frame, Mapping):
        return frame
    if isinstance(frame, (list, tuple)) and frame and isinstance(frame[0], Mapping):
        return _from_dicts(frame, source)
    import narwhals.stable.v2 as nw

    if isinstance(frame, nw.DataFrame):
        return frame
    try:
        opened = nw.from_native(frame)
    except (TypeError, ValueError) as error:  # a ValueError: names that occur twice
        if "nique" in str(error) or "uplicate" in str(error):
            raise InputError(f"{source}: a column name occurs twice; rename one") from None
        raise InputError(
            f"{source}: expected a frame (pandas, polars, pyarrow), columns {{name: values}} or "
            f"rows [{{name: value}}], not {type(frame).__name__}"
        ) from None
    if isinstance(opened, nw.LazyFrame):
        raise InputError(f"{source}: the frame is lazy; call .collect() first")
    return opened


def _from_dicts(rows: Any, source: str) -> dict[str, list[Any]]:
    names = list(rows[0])
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or set(row) != set(names):
            different = sorted(map(str, set(names) ^ set(row))) if isinstance(row, Mapping) else row
            raise InputError(
                f"{source}, row {number} (the first is 0): every row must be a dict with the "
                f"names of the first; different: {short_repr(different)}"
            )
    return {name: [row[name] for row in rows] for name in names}


def _from_series(series: Any, where: str, as_text: bool) -> Column:
    """Convert a column of a frame."""
    import narwhals.stable.v2 as nw

    kind = series.dtype
    is_category = isinstance(kind, (nw.Categorical, nw.Enum)) or kind in (nw.Categorical, nw.Enum)
    if as_text or is_category or kind == nw.String:
        return _codes(series.cast(nw.String), is_category or as_text)
    if kind.is_numeric() or kind == nw.Boolean:
        return _numbers(series)
    if kind == nw.Object or kind == nw.Unknown:
        return _from_values(series.to_list(), where, as_text)
    if kind.is_temporal():
        raise InputError(f"{where}: {DATES}")
    raise InputError(
        f"{where}: values of type {kind} cannot be features; leave it out with drop= (--drop)"
    )


def _numbers(series: Any) -> Numbers:
    import narwhals.stable.v2 as nw

    is_float = series.dtype == nw.Float64

    def read(start: int, stop: int) -> Vector:
        part = series[start:stop]
        values = (part if is_float else part.cast(nw.Float64)).to_numpy()
        return np.ascontiguousarray(values, dtype=np.float64)

    return Numbers(len(series), read, is_bool=series.dtype == nw.Boolean)


def _codes(series: Any, is_category: bool) -> Text:
    import narwhals.stable.v2 as nw

    values = sorted(series.unique().drop_nulls().to_list())
    if not values:
        return Text(np.full(len(series), -1, dtype=np.int32), (), is_category)
    found = series.replace_strict(
        values, list(range(len(values))), default=None, return_dtype=nw.Float64
    ).to_numpy()
    codes = np.where(np.isnan(found), -1.0, found).astype(np.int32)
    return Text(codes, tuple(values), is_category)


def _from_values(values: Any, where: str, as_text: bool) -> Column:
    """Convert a sequence of Python values or an array."""
    array = values if isinstance(values, np.ndarray) else None
    if array is None and hasattr(values, "to_numpy"):
        array = values.to_numpy()
    if array is not None and array.ndim != 1:
        raise InputError(f"{where}: a column must have one dimension, not {array.ndim}")
    if array is not None and array.dtype.kind in "biuf" and not as_text:
        return _from_array(array)
    try:
        cells = array.tolist() if array is not None else list(values)
    except TypeError:
        raise InputError(
            f"{where}: a column must be a sequence, not {short_repr(values)}"
        ) from None
    present = [cell for cell in cells if not _is_none(cell)]
    if not as_text and all(isinstance(cell, Real) for cell in present):
        is_bool = bool(present) and all(isinstance(cell, (bool, np.bool_)) for cell in present)
        numbers = np.array([math.nan if _is_none(c) else _to_float(c) for c in cells], np.float64)
        return Numbers(len(numbers), lambda start, stop: numbers[start:stop], is_bool)
    odd = next((cell for cell in present if not isinstance(cell, (str, Real))), None)
    if odd is not None:
        raise InputError(
            f"{where}: {short_repr(odd)} is a {type(odd).__name__}, neither a number nor text; "
            "leave the column out with drop= (--drop), or convert it"
        )
    words = ["" if _is_none(cell) else str(cell) for cell in cells]
    distinct = sorted({str(cell) for cell in present})
    number = {value: code for code, value in enumerate(distinct)}
    codes = [
        -1 if _is_none(cell) else number[word] for cell, word in zip(cells, words, strict=True)
    ]
    return Text(np.array(codes, dtype=np.int32), tuple(distinct), as_text)


def _to_float(number: Any) -> float:
    """Return a number as a float, one that is too large as an infinity."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _from_array(array: NDArray[Any]) -> Numbers:
    def read(start: int, stop: int) -> Vector:
        return np.ascontiguousarray(array[start:stop], dtype=np.float64)

    return Numbers(len(array), read, array.dtype.kind == "b")


def _is_none(cell: Any) -> bool:
    """Say whether a Python value means that a cell is missing: None, NaN, pandas' NA or NaT."""
    return (
        cell is None
        or (isinstance(cell, float) and math.isnan(cell))
        or (type(cell).__name__ in ("NAType", "NaTType"))
    )
