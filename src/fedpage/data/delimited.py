"""Read CSV and TSV files, plain or compressed.

pyarrow reads large files if it is installed. Otherwise, and wherever pyarrow meets an error, a
reader in Python does: it is slower, needs numpy only, and names the row of an error.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import mmap
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.data import libsvm
from fedpage.data.columns import Column, Numbers, Table, Text, is_number, read_columns

MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
     "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
"""Cells that mean a missing value; pandas has the same list."""
_SAMPLE = 1000
"""Rows that decide how a column is read at first."""
_SMALL = 4 << 20
"""Files of fewer bytes are read in Python: that takes less time than the import of pyarrow."""
_CHUNK = 1 << 20
"""Characters that the reader in Python splits at a time."""


class _Record(NamedTuple):
    """The cells of a row, and the lines of the file that it takes, counted from 1."""

    first: int
    last: int
    cells: list[str]


class Delimited:
    """Describe a CSV or TSV file by its first lines, and read columns of it.

    Args:
        path: the file; its suffix says whether it is compressed.

    Attributes:
        names: the names of the columns, without spaces around them.
        delimiter: a comma, semicolon, tab or vertical bar: the most frequent in the first line.

    Raises:
        InputError: the file cannot be read, is empty or has no valid line of column names.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.source = path, path.name
        with self._open() as text:
            line = next((line for line in text if line.strip()), None)
        if line is None:
            raise InputError(f"{self.source}: it is empty; a table begins with its column names")
        unquoted = re.sub(r'"[^"]*"', "", line)
        self.delimiter = max(",;\t|", key=unquoted.count)
        with self._open() as text:
            records = self._records(text)
            self._header = next(records)
            self.names = self._check_names([cell.strip() for cell in self._header.cells])
            sample = [record.cells for record in islice(records, _SAMPLE)]
        if not sample:
            raise InputError(f"{self.source}: there are column names but no rows")
        self._numeric = {
            name
            for at, name in enumerate(self.names)
            if all(_is_numeric(cells[at]) for cells in sample if at < len(cells))
        }

    def _check_names(self, names: list[str]) -> list[str]:
        if all(map(is_number, names)):
            raise InputError(
                f"{self.source}, row {self._header.first}: it holds numbers "
                f"({short_repr(names[0])}, ...) where column names are expected; add a first line "
                "with a name for each column"
            )
        names = [name or f"column {at}" for at, name in enumerate(names, start=1)]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise InputError(
                    f"{self.source}: columns {names.index(name) + 1} and {at + 1} are both named "
                    f"{name!r}; rename one"
                )
        return names

    def read(self, names: Collection[str], text: Collection[str] = ()) -> Table:
        """Read columns, each as numbers if every cell is a number, a boolean or missing.

        Args:
            names: the columns to read.
            text: columns to read as text even if they hold numbers.

        Raises:
            InputError: the file is malformed; the message names the row.
        """
        as_text = {name for name in names if name in text or name not in self._numeric}
        columns = self._read_pyarrow(names, as_text)
        while columns is None:
            columns = self._read_python(names, as_text)
        resolved = {
            name: _resolve(column.clean(MISSING), name in text)
            if isinstance(column, Text)
            else column
            for name, column in columns.items()
        }
        rows = next(iter(columns.values())).rows
        return Table(self.source, resolved, rows, self._locate)

    def _read_pyarrow(self, names: Collection[str], as_text: set[str]) -> dict[str, Column] | None:
        """Read columns by pyarrow; return None if it is not there or cannot read the file."""
        if self._header.first != self._header.last or self.path.stat().st_size < _SMALL:
            return None  # pyarrow cannot skip a header of several lines
        try:
            import pyarrow as pa
            from pyarrow import csv as reader
        except ImportError:
            return None
        has_quotes = self._has_quotes()
        while True:
            options = {
                "read_options": reader.ReadOptions(
                    column_names=self.names, skip_rows=self._header.last
                ),
                "parse_options": reader.ParseOptions(
                    delimiter=self.delimiter,
                    quote_char='"' if has_quotes else False,
                    newlines_in_values=has_quotes,
                ),
                "convert_options": reader.ConvertOptions(
                    column_types={
                        name: pa.string() if name in as_text else pa.float64() for name in names
                    },
                    include_columns=list(names),
                    null_values=sorted(MISSING),
                ),
            }
            try:
                if self._is_packed:
                    with self._open_binary() as file:
                        table = reader.read_csv(file, **options)
                else:
                    table = reader.read_csv(str(self.path), **options)
            except pa.ArrowInvalid as error:
                found = re.match(r"In CSV column #(\d+): CSV conversion error", str(error))
                name = self.names[int(found[1])] if found else None
                if name is None or name in as_text:
                    return None
                as_text.add(name)
            else:
                return read_columns(table, names, self.source).columns

    @property
    def _is_packed(self) -> bool:
        return self.path.suffix in libsvm.SUFFIXES[1:]

    def _has_quotes(self) -> bool:
        """Say whether there may be quotes in the file; without any, pyarrow reads it faster."""
        if self._is_packed:
            return True
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(b'"') >= 0

    def _read_python(self, names: Collection[str], as_text: set[str]) -> dict[str, Column] | None:
        """Read columns without pyarrow; return None if more of them must be read as text."""
        parsers = [_TextParser() if name in as_text else _NumberParser() for name in names]
        places = [self.names.index(name) for name in names]
        with self._open() as text:
            for columns in self._chunks(text, places):
                for parser, cells in zip(parsers, columns, strict=True):
                    parser.add(cells)
        by_name = dict(zip(names, parsers, strict=True))
        mixed = {name for name, parser in by_name.items() if parser.is_mixed}
        as_text |= mixed
        return None if mixed else {name: parser.finish() for name, parser in by_name.items()}

    def _chunks(self, text: IO[str], places: list[int]) -> Iterator[list[list[str]]]:
        """Yield the cells of the columns at some places, for some thousand rows at a time."""
        width = len(self.names)
        line = next(self._records(text)).last
        while lines := text.readlines(_CHUNK):
            if any('"' in row for row in lines):
                cells = []
                end = line + len(lines)  # a quoted cell may go on beyond it
                for record in self._records(chain(lines, text), line):
                    self._check_width(record.first, len(record.cells))
                    cells += record.cells
                    line = record.last
                    if line >= end:
                        break
                line = max(line, end)
            else:
                whole = [row.rstrip("\r\n") for row in lines]
                for number, row in enumerate(whole, start=line + 1):
                    if not _is_blank(row, self.delimiter):
                        self._check_width(number, row.count(self.delimiter) + 1)
                line += len(lines)
                rows = [row for row in whole if not _is_blank(row, self.delimiter)]
                cells = self.delimiter.join(rows).split(self.delimiter) if rows else []
            yield [cells[place::width] for place in places]

    def _check_width(self, line: int, cells: int) -> None:
        if cells != len(self.names):
            raise InputError(
                f"{self.source}, row {line}: it has {cells} cells, and the first line "
                f"{len(self.names)} column names; correct the row (a {_NAMES[self.delimiter]} "
                "within a cell needs quotes around the cell)"
            )

    def _records(self, lines: Iterable[str], before: int = 0) -> Iterator[_Record]:
        """Yield the rows of a file, without empty lines, after `before` lines."""
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        first = before + 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InputError(
                    f"{self.source}, row {first}: the quotes are wrong ({error}); a cell in quotes "
                    'ends with a quote, and a quote within it is written ""'
                ) from None
            last = before + reader.line_num
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield _Record(first, last, cells)
            first = last + 1

    def _locate(self, row: int) -> str:
        """Name a row by its line in the file, the header being line 1."""
        with self._open() as text:
            record = next(islice(self._records(text), row + 1, None))
        return f"row {record.first}"

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[str]]:
        """Open the file as text, and report what is not UTF-8."""
        with (
            self._open_binary() as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text,
        ):
            try:
                yield text
            except UnicodeDecodeError as error:
                raise InputError(self._not_utf8(error)) from None
            except OSError as error:
                raise InputError(f"{self.source}: cannot be read ({error.strerror})") from None

    def _open_binary(self) -> IO[bytes]:
        if self._is_packed:
            packed = libsvm.read_packed(self.path)
            pieces = libsvm.unpack_pieces(packed, self.path.suffix, self.source)
            return io.BufferedReader(_Stream(pieces), _CHUNK)
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            raise InputError(f"{self.path}: there is no such file") from None
        except (OSError, ValueError) as error:  # a ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self.path}: cannot be read ({reason})") from None

    def _not_utf8(self, error: UnicodeDecodeError) -> str:
        line = 0
        with self._open_binary() as file:
            for line, raw in enumerate(file, start=1):  # noqa: B007
                try:
                    raw.decode()
                except UnicodeDecodeError as found:
                    error = found
                    break
        byte = error.object[error.start]
        return (
            f"{self.source}, row {line}: the byte 0x{byte:02x} is not UTF-8; save the file in the "
            "encoding UTF-8"
        )


_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}


class _Stream(io.RawIOBase):
    """Read pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes, and return their number."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class _NumberParser:
    """Collect the cells of a column that holds numbers, as far as is known."""

    def __init__(self) -> None:
        self.is_mixed = False
        self._parts: list[Vector] = []

    def add(self, cells: list[str]) -> None:
        """Parse some more cells; text makes the column mixed."""
        if self.is_mixed:
            return
        joined = "".join(cells)
        try:
            if "_" in joined or not joined.isascii():  # float would accept 1_000
                raise ValueError
            numbers = list(map(float, cells))
        except ValueError:
            if not all(map(_is_numeric, cells)):
                self.is_mixed = True
                return
            numbers = [math.nan if cell.strip() in MISSING else float(cell) for cell in cells]
        self._parts.append(np.array(numbers))

    def finish(self) -> Numbers:
        """Return the column."""
        numbers = np.concatenate(self._parts) if self._parts else np.empty(0)
        self._parts = []
        return Numbers(len(numbers), lambda start, stop: numbers[start:stop])


class _Codes(dict[str, int]):
    def __missing__(self, cell: str) -> int:
        self[cell] = code = len(self)
        return code


class _TextParser:
    """Collect the cells of a column of text."""

    is_mixed = False

    def __init__(self) -> None:
        self._codes = _Codes()
        self._parts: list[NDArray[np.int32]] = []

    def add(self, cells: list[str]) -> None:
        """Collect some more cells."""
        self._parts.append(np.array(list(map(self._codes.__getitem__, cells)), dtype=np.int32))

    def finish(self) -> Text:
        """Return the column."""
        order = sorted(self._codes)
        rank = np.empty(len(order), dtype=np.int32)
        rank[[self._codes[value] for value in order]] = np.arange(len(order), dtype=np.int32)
        codes = np.concatenate(self._parts) if self._parts else np.empty(0, np.int32)
        return Text(rank[codes], tuple(order))


def _is_numeric(cell: str) -> bool:
    """Say whether a cell is a number or missing."""
    stripped = cell.strip()
    return is_number(stripped) or stripped in MISSING


def _is_blank(line: str, delimiter: str) -> bool:
    return delimiter not in line and not line.strip()


def _resolve(column: Text, is_category: bool) -> Column:
    """Return a column as numbers if all its values are numbers, or true and false."""
    if is_category:
        return Text(column.codes, column.values, is_category=True)
    if all(map(is_number, column.values)):
        return column.to_numbers()
    if all(value.lower() in ("true", "false") for value in column.values):
        return column.to_numbers()
    return column
