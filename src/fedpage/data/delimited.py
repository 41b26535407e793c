"""Read CSV and TSV files, plain or compressed.

A compiled parser reads large files (`csv_blocks.py`). A reader in Python reads small files, and
those with a malformed row: it is slower, and names the row of an error.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import refuse_special
from fedpage.core.types import Vector
from fedpage.data import libsvm
from fedpage.data.columns import Codes, Column, Numbers, Table, Text, is_number
from fedpage.data.csv_blocks import MalformedRow, read_blocks

MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
     "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
"""Cells that mean a missing value; pandas has the same list."""
_SAMPLE = 1000
"""Rows that decide how a column is read at first."""
_SMALL = 4 << 20
"""Files of fewer bytes are read in Python: that takes less time than compiling the parser."""
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
            if _parse_numbers([cells[at] for cells in sample if at < len(cells)]) is not None
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
        columns = self._read_compiled(names, as_text)
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

    def _read_compiled(self, names: Collection[str], as_text: set[str]) -> dict[str, Column] | None:
        """Read columns of a large file; return None if it is small, or has a malformed row."""
        if len(self.names) == 1 or self.path.stat().st_size < _SMALL:
            return None
        places = [self.names.index(name) for name in names]
        while True:
            texts = {self.names.index(name) for name in as_text}
            try:
                with self._open_binary() as file:
                    columns = read_blocks(
                        file, self.delimiter, len(self.names), places, texts, _parse_number
                    )
            except MalformedRow:
                return None
            by_name = dict(zip(names, columns, strict=True))
            read = {name: column for name, column in by_name.items() if column is not None}
            if len(read) == len(by_name):
                return read
            as_text |= by_name.keys() - read.keys()

    @property
    def _is_packed(self) -> bool:
        return self.path.suffix in libsvm.SUFFIXES[1:]

    def _read_python(self, names: Collection[str], as_text: set[str]) -> dict[str, Column] | None:
        """Read columns in Python; return None if more of them must be read as text."""
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
        refuse_special(self.path)
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
        numbers = None if self.is_mixed else _parse_numbers(cells)
        if numbers is None:
            self.is_mixed = True
        else:
            self._parts.append(np.array(numbers))

    def finish(self) -> Numbers:
        """Return the column."""
        numbers = np.concatenate(self._parts) if self._parts else np.empty(0)
        self._parts = []
        return Numbers(len(numbers), lambda start, stop: numbers[start:stop])


class _TextParser:
    """Collect the cells of a column of text."""

    is_mixed = False

    def __init__(self) -> None:
        self._codes: Codes[str] = Codes()
        self._parts: list[NDArray[np.int32]] = []

    def add(self, cells: list[str]) -> None:
        """Collect some more cells."""
        self._parts.append(self._codes.encode(cells))

    def finish(self) -> Text:
        """Return the column."""
        return Text.from_codes(self._parts, list(self._codes))


def _parse_numbers(cells: list[str]) -> list[float] | None:
    """Return the numbers in cells, NaN where one is missing, or None if there is text."""
    joined = "".join(cells)
    if "_" not in joined and joined.isascii():  # float would accept 1_000
        try:
            numbers = list(map(float, cells))
        except ValueError:
            pass
        else:
            if not any(map(math.isnan, numbers)):  # float would accept NAN
                return numbers
    parsed = [_parse_number(cell) for cell in cells]
    return None if None in parsed else cast("list[float]", parsed)


def _parse_number(cell: str) -> float | None:
    """Return the number in a cell, NaN if it is missing, or None for text."""
    stripped = cell.strip()
    if is_number(stripped):
        return float(stripped)
    return math.nan if stripped in MISSING else None


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
