"""Tables as polars frames: from CSV, TSV and parquet files, and from frames of other libraries."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.files import check_file
from fedpage.core.types import Vector
from fedpage.data.dataset import is_missing
from fedpage.data.files import read_bytes

MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
"""Cells of a CSV file that mean a missing value; pandas has the same list."""
DATES = (
    "it holds dates or times; leave it out with drop= (--drop), or replace it by a number such as "
    "the days since a date"
)
"""The advice about a column of dates."""
_NUMBER = re.compile(
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|inf|infinity)\Z", re.IGNORECASE
)
_SAMPLE = 1000
"""The rows of a CSV file that decide which columns are read as numbers at first."""
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}


@dataclass(frozen=True, eq=False)
class DataTable:
    """Hold columns of numbers, booleans and text.

    Attributes:
        source: the name of the table in errors, such as "patients.csv".
        frame: the columns, Float64, Boolean or String, with null for a missing cell.
        categorical: the columns of text that are categories even if they hold numbers.
        locate: returns the text that names a row in errors, such as "row 17".
    """

    source: str
    frame: pl.DataFrame
    categorical: Collection[str] = ()
    locate: Callable[[int], str] = "row {} (the first is 0)".format

    @property
    def rows(self) -> int:
        """The number of rows, n."""
        return self.frame.height

    def is_text(self, name: str) -> bool:
        """Return True for a column of text."""
        return self.frame[name].dtype == pl.String

    def is_bool(self, name: str) -> bool:
        """Return True for a column of booleans."""
        return self.frame[name].dtype == pl.Boolean

    def is_missing(self, name: str) -> NDArray[np.bool_]:
        """Return a mask (n,) of the rows whose cell is missing."""
        column = self.frame[name]
        has_missing = column.null_count() > 0  # known without a look at the cells
        return column.is_null().to_numpy() if has_missing else np.zeros(self.rows, dtype=bool)

    def numbers(self, name: str) -> Vector:
        """Return a column of numbers or booleans (n,), NaN for a missing cell."""
        return np.ascontiguousarray(self.frame[name].cast(pl.Float64).to_numpy())

    def codes(self, name: str) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """Return a column of text as codes (n,), -1 for a missing cell, and its sorted values."""
        values = tuple(self.frame[name].drop_nulls().unique().sort())
        codes = self.frame[name].cast(pl.Enum(values)).to_physical().cast(pl.Int32)
        return codes.fill_null(-1).to_numpy(), values

    def refuse(self, wrong: NDArray[np.bool_], name: str, reason: str) -> None:
        """Raise InputError about the first cell of a column that a mask (n,) marks, if any."""
        if wrong.any():
            raise InputError(f"{self.cell(int(wrong.argmax()), name)}: {reason}")

    def cell(self, row: int, name: str) -> str:
        """Name a cell, as in "patients.csv, row 17, column 'age'"."""
        return f"{self.source}, {self.locate(row)}, column {name!r}"

    def take(self, kept: NDArray[np.bool_]) -> DataTable:
        """Return the table of the rows that a mask (n,) chooses."""
        rows, locate = np.flatnonzero(kept), self.locate
        frame = self.frame[rows]
        return DataTable(self.source, frame, self.categorical, lambda row: locate(int(rows[row])))


def is_number(text: str) -> bool:
    """Return True if a text is a decimal number, such as -1.5e3, or an infinity."""
    return _NUMBER.match(text) is not None


def check_names(names: Iterable[str], known: Collection[str], source: str) -> None:
    """Raise InputError unless every name is the name of a known column."""
    for name in names:
        if name not in known:
            raise InputError(
                f"{source}: there is no column {name!r};{did_you_mean(name, known)} "
                f"the columns are {short_list(known)}"
            )


def short_list(names: Iterable[str]) -> str:
    """Join names for an error message, as many as fit into 300 characters."""
    names = [repr(name) if "," in name else name for name in names]
    while len(", ".join(names)) > 300 and len(names) > 1:
        names = [*names[: len(names) // 2], "..."]
    return ", ".join(names)


def _check_header(names: Sequence[Any], source: str) -> None:
    """Check that the names of columns are different strings."""
    for name, count in Counter(names).items():
        if not isinstance(name, str) or count > 1:
            reason = "occurs twice" if count > 1 else "is not a string"
            raise InputError(f"{source}: the column name {short_repr(name)} {reason}; rename it")


class RowsReader:
    """Read some rows of a table.

    Args:
        reader: The reader of the table.
        kept: A mask (n,) of its rows.
    """

    def __init__(self, reader: DelimitedReader | FrameReader, kept: NDArray[np.bool_]) -> None:
        self.source, self.names = reader.source, reader.names
        self._reader, self._kept = reader, kept

    def read(self, names: Iterable[str], text: Collection[str] = ()) -> DataTable:
        """Read columns, those in `text` as text whatever their type."""
        return self._reader.read(names, text).take(self._kept)


# Frames of other libraries


class FrameReader:
    """Read columns of a frame.

    Args:
        frame: a frame of pandas, polars or pyarrow; any object with `__arrow_c_stream__` or the
            dataframe interchange protocol; columns {name: values}; or rows [{name: value}].
        source: the name of the frame in errors.

    Attributes:
        names: the names of the columns.
    """

    def __init__(self, frame: Any, source: str) -> None:
        self.source, self._columns = source, _open(frame, source)
        self.names = list(self._columns)

    def read(self, names: Iterable[str], text: Collection[str] = ()) -> DataTable:
        """Read columns, those in `text` as text whatever their type."""
        columns, categorical = {}, set(text)
        for name in names:
            values = self._columns[name]
            kind = getattr(values, "dtype", None)
            if str(kind).lower().startswith(("categor", "enum")):
                categorical.add(name)
            where = f"{self.source}, column {name!r}"
            columns[name] = _to_series(values, kind, where, name in categorical)
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"{self.source}: columns of different lengths: {short_repr(lengths)}")
        return DataTable(self.source, pl.DataFrame(columns), categorical)


def _open(frame: Any, source: str) -> Mapping[str, Any]:
    """Return the columns of a frame by name."""
    if isinstance(frame, pl.LazyFrame):
        raise InputError(f"{source}: the frame is lazy; call .collect() first")
    if isinstance(frame, (list, tuple)) and frame and isinstance(frame[0], Mapping):
        for number, row in enumerate(frame):
            different = set(frame[0]) ^ set(row)
            if different:
                raise InputError(
                    f"{source}, row {number} (the first is 0): every row must have the names of "
                    f"the first; different: {short_repr(sorted(map(str, different)))}"
                )
        frame = {name: [row[name] for row in frame] for name in frame[0]}
    try:
        # pandas has iloc; it could export to arrow only if pyarrow is installed
        if not hasattr(frame, "iloc") and hasattr(frame, "__arrow_c_stream__"):
            frame = pl.DataFrame(frame)
        elif not hasattr(frame, "iloc") and hasattr(frame, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            frame = pl.DataFrame(from_dataframe(frame))
        names = list(frame if isinstance(frame, Mapping) else frame.columns)
    except pl.exceptions.DuplicateError:
        names = ["", ""]
    except (AttributeError, ImportError):
        raise InputError(
            f"{source}: expected a frame (pandas, polars, pyarrow), columns {{name: values}} or "
            f"rows [{{name: value}}], not {type(frame).__name__}"
        ) from None
    _check_header(names, source)
    return {name: frame[name] for name in names}


def _to_series(values: Any, kind: Any, where: str, as_text: bool) -> pl.Series:
    """Convert a column to Float64, Boolean or String."""
    if getattr(values, "ndim", 1) != 1:
        raise InputError(f"{where}: a column must have one dimension, not {values.ndim}")
    if getattr(kind, "kind", "") in ("M", "m"):
        values = pl.Series(dtype=pl.Datetime)
    if isinstance(kind, np.dtype) and kind.kind in "biuf" and not as_text:
        values = pl.Series(np.ascontiguousarray(values))
    elif not hasattr(values, "iloc") and hasattr(values, "__arrow_c_stream__"):
        values = pl.Series(values)
    if not isinstance(values, pl.Series) or values.dtype == pl.Object:
        return _from_cells(values, where, as_text)
    if as_text or values.dtype == pl.String:
        return values.cast(pl.String)
    if values.dtype == pl.Boolean:
        return values
    if values.dtype.is_numeric() or values.dtype == pl.Null:
        return values.cast(pl.Float64).fill_nan(None)
    reason = f"values of type {values.dtype} cannot be features; leave it out with drop= (--drop)"
    raise InputError(f"{where}: {DATES if values.dtype.is_temporal() else reason}")


def _from_cells(values: Any, where: str, as_text: bool) -> pl.Series:
    """Convert Python values; a column with a text among them is a column of text."""
    try:
        cells = values.tolist() if hasattr(values, "tolist") else list(values)
    except TypeError:
        raise InputError(f"{where}: {short_repr(values)} is not a sequence") from None
    cells = [None if is_missing(cell) else cell for cell in cells]
    present = [cell for cell in cells if cell is not None]
    odd = next((cell for cell in present if not isinstance(cell, (str, Real, np.bool_))), None)
    if odd is not None:
        raise InputError(
            f"{where}: {short_repr(odd)} is a {type(odd).__name__}, neither a number nor text; "
            "leave the column out with drop= (--drop), or convert it"
        )
    if as_text or any(isinstance(cell, str) for cell in present):
        words = [None if cell is None else str(cell) for cell in cells]
        return pl.Series(words, dtype=pl.String)
    if present and all(isinstance(cell, (bool, np.bool_)) for cell in present):
        return pl.Series(cells, dtype=pl.Boolean)
    try:
        numbers = [None if cell is None else float(cell) for cell in cells]
    except OverflowError:
        raise InputError(f"{where}: a number is too large to be a float") from None
    return pl.Series(numbers, dtype=pl.Float64)


# Files


def read_parquet(path: Path) -> FrameReader:
    """Read a parquet file."""
    check_file(path)
    try:
        return FrameReader(pl.read_parquet(path, glob=False), path.name)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: not a parquet file ({short_repr(error)})") from None


class DelimitedReader:
    """Read columns of a CSV or TSV file, plain or compressed.

    polars splits the rows. It accepts rows with too few cells and reads empty lines as rows. So if
    the last column has missing cells, the delimiters are counted too. If their number is wrong, a
    look at each line finds the row.

    Args:
        path: the file; its suffix says whether it is compressed.

    Attributes:
        names: the names of the columns, without spaces around them.
        delimiter: a comma, semicolon, tab or vertical bar, the most frequent in the first line.
    """

    def __init__(self, path: Path) -> None:
        self.source = path.name
        self._content = read_bytes(path)
        if b"\n" not in self._content:  # as Macs wrote lines long ago
            self._content = self._content.replace(b"\r", b"\n")
        end = self._content.find(b"\n", 1 << 16)
        lines = list(io.StringIO(self._decode(self._content[: end if end >= 0 else None])))
        self._skipped = next((at for at, line in enumerate(lines) if line.strip()), -1)
        if self._skipped < 0:
            raise InputError(f"{self.source}: it is empty; a table begins with its column names")
        unquoted = re.sub(r'"[^"]*"', "", lines[self._skipped])
        self.delimiter = max(_DELIMITERS, key=unquoted.count)
        header = next(csv.reader(lines[self._skipped :], delimiter=self.delimiter))
        names = [cell.strip() for cell in header]
        if all(map(is_number, names)):
            raise InputError(
                f"{self.source}, row {self._skipped + 1}: it holds numbers ({names[0]!r}, ...) "
                "where column names are expected; add a first line with a name for each column"
            )
        self.names = [name or f"column {at}" for at, name in enumerate(names, start=1)]
        _check_header(self.names, self.source)

    def read(self, names: Iterable[str], text: Collection[str] = ()) -> DataTable:
        """Read columns, each as numbers if every cell is a number, a boolean or missing.

        Args:
            names: the columns to read.
            text: columns to read as text even if they hold numbers.
        """
        try:
            head = self._scan(n_rows=_SAMPLE)
            numeric = [n for n in self.names if _clean(head[n], n in text).dtype == pl.Float64]
            has_words = any(head[name].is_in(MISSING).any() for name in self.names)
            null_values = list(MISSING) if has_words else None  # they take time
            frame = self._scan(numeric, null_values=null_values)
            # a row with too few cells has none in the last column
            if frame[:, -1].null_count() and not self._is_regular(frame.height):
                frame = frame.filter([bool(cells) for _, cells in self._rows()])
        except pl.exceptions.PolarsError:  # text below numbers, or a quote within a cell
            filled = (cells for _, cells in self._rows() if cells)
            frame = pl.DataFrame(filled, dict.fromkeys(self.names, pl.String), orient="row")
        columns = {name: _clean(frame[name], name in text) for name in names}
        return DataTable(self.source, pl.DataFrame(columns), frozenset(text), self._locate)

    def _locate(self, row: int) -> str:
        """Name a row by its line in the file."""
        return f"row {[line for line, cells in self._rows() if cells][row]}"

    def _decode(self, content: bytes) -> str:
        """Decode the content or its beginning."""
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            row = content.count(b"\n", 0, error.start) + 1
            raise InputError(
                f"{self.source}, row {row}: the byte 0x{content[error.start]:02x} is not UTF-8; "
                "save the file in the encoding UTF-8"
            ) from None

    def _scan(self, numeric: Collection[str] = (), **options: Any) -> pl.DataFrame:
        """Read all columns, some as numbers and the others as text."""
        return pl.read_csv(
            self._content,
            separator=self.delimiter,
            skip_lines=self._skipped,
            schema_overrides=[pl.Float64 if n in numeric else pl.String for n in self.names],
            new_columns=self.names,
            glob=False,
            **options,
        )

    def _is_regular(self, rows: int) -> bool:
        """Return True if no line is empty and no row has too few cells.

        polars refuses a row with too many cells, so counting the delimiters is enough.
        """
        unquoted = re.sub(rb'"[^"]*"', b"", self._content)
        delimiters, width = unquoted.count(self.delimiter.encode()), len(self.names)
        return width > 1 and delimiters == (width - 1) * (rows + 1)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line and the cells of each row below the names, no cells for a blank line."""
        text = io.StringIO(self._decode(self._content), newline="")
        reader = csv.reader(text, delimiter=self.delimiter, strict=True)
        line, width = 1, len(self.names)
        try:
            for number, cells in enumerate(reader):
                is_blank = len(cells) < 2 and not "".join(cells).strip()
                if not is_blank and len(cells) != width:
                    raise InputError(
                        f"{self.source}, row {line}: it has {len(cells)} cells, and the first line "
                        f"{width} column names; correct the row (a {_DELIMITERS[self.delimiter]} "
                        "within a cell needs quotes around the cell)"
                    )
                if number > self._skipped:
                    yield line, [] if is_blank else cells
                line = reader.line_num + 1
        except csv.Error as error:
            raise InputError(
                f"{self.source}, row {line}: the quotes are wrong ({error}); a cell in quotes ends "
                'with a quote, and a quote within it is written ""'
            ) from None


def _clean(column: pl.Series, as_text: bool) -> pl.Series:
    """Return a column of a file as numbers or booleans if all its cells are, or else as text."""
    if column.dtype == pl.Float64:
        return column.fill_nan(None) if column.is_nan().any() else column
    words = column.str.strip_chars()
    words = words.set(words.is_in(MISSING), None)
    if as_text:
        return words
    numbers = words.cast(pl.Float64, strict=False)
    if numbers.null_count() == words.null_count():
        return numbers.fill_nan(None)
    lower = words.str.to_lowercase()
    return lower == "true" if lower.is_in(("true", "false")).all() else words


class SitesReader:
    """Read a table of several files, one of each site, with a column that names the file.

    Files may have their columns in another order.

    Args:
        readers: The reader of each file, by its path.
        site: The name of the column of the sites.
        unused: The columns that are not read, which a file may lack.

    Attributes:
        names: The columns of the files, and that of the sites.

    Raises:
        InputError: If the files do not have the same columns; the message names them.
    """

    def __init__(
        self,
        readers: Mapping[str, DelimitedReader | FrameReader],
        site: str,
        unused: Collection[str] = (),
    ) -> None:
        self._readers, self._site = dict(readers), site
        self.source = f"{len(self._readers)} files"
        (one, first), *others = self._readers.items()
        for path, reader in others:
            missing = sorted(set(first.names) - set(reader.names) - set(unused))
            extra = sorted(set(reader.names) - set(first.names) - set(unused))
            if missing or extra:
                words = (("missing", missing), ("extra", extra))
                found = "; ".join(f"{w}: {short_list(map(repr, n))}" for w, n in words if n)
                raise InputError(
                    f"{path}: its columns are not those of {one}; {found}; rename them, or leave "
                    "them out with drop= (--drop)"
                )
        names = (name for reader in self._readers.values() for name in reader.names)
        self.names = [*dict.fromkeys(names), site]

    def read(self, names: Iterable[str], text: Collection[str] = ()) -> DataTable:
        """Read columns, those in `text` as text whatever their type.

        Raises:
            InputError: If a column holds text at one site and numbers at another.
        """
        names = list(names)
        own = [name for name in names if name != self._site]
        tables = {
            path: reader.read(own, set(text) - {self._site})
            for path, reader in self._readers.items()
        }
        for name in own:
            _check_types(tables, name)
        frames = []
        for path, table in tables.items():
            columns = {
                name: pl.Series([path], dtype=pl.String).new_from_index(0, table.rows)
                if name == self._site
                else table.frame[name]
                for name in names
            }
            frames.append(pl.DataFrame(columns))
        starts = np.cumsum([0, *(table.rows for table in tables.values())])
        found = list(tables.items())

        def locate(row: int) -> str:
            place = int(np.searchsorted(starts, row, side="right")) - 1
            path, table = found[place]
            return f"{table.locate(row - int(starts[place]))} of {path}"

        categorical = frozenset(text).union(*(table.categorical for table in tables.values()))
        whole = pl.concat(frames, how="vertical_relaxed")
        return DataTable(self.source, whole, categorical, locate)


def _check_types(tables: Mapping[str, DataTable], name: str) -> None:
    """Refuse a column that holds text at one site and numbers at another."""
    filled = {p: t for p, t in tables.items() if not t.is_missing(name).all()}
    texts = [path for path, table in filled.items() if table.is_text(name)]
    others = [path for path in filled if path not in texts]
    if not (texts and others):
        return
    path, table = next(iter((path, filled[path]) for path in texts))
    codes, values = table.codes(name)
    is_odd = np.array([not is_number(value) for value in values])
    row = int(np.append(is_odd, False)[codes].argmax())
    raise InputError(
        f"{path}, {table.locate(row)}, column {name!r}: it holds text at one site "
        f"({short_repr(values[codes[row]])}) and numbers at another ({others[0]}); correct the "
        "cells, or give categorical= (--categorical)"
    )
