"""Read columns of a large CSV file a block of bytes at a time, by a compiled parser."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedpage.core.types import Vector
from fedpage.data.columns import Codes, Column, Numbers, Text

BLOCK = 1 << 20
"""Bytes that are parsed at a time."""
_ROWS = 1 << 10
"""The fewest rows that are held together: a file of many columns has few in a block."""
_LONGEST = 1 << 26
"""The most bytes of a row; in a longer one, a quote is probably not closed."""


class MalformedRow(Exception):
    """A row that the compiled parser cannot split into cells."""


def read_blocks(
    file: IO[bytes],
    delimiter: str,
    width: int,
    places: Sequence[int],
    as_text: Collection[int],
    parse: Callable[[str], float | None],
) -> list[Column | None]:
    """Read columns of a file.

    Args:
        file: the file, whose first row holds the column names.
        delimiter: the character between cells.
        width: the number of columns of the file, at least 2.
        places: which of them to read.
        as_text: which of them to read as text.
        parse: returns the number in a cell, NaN where it is missing, or None for text.

    Returns:
        The columns. One of numbers with text in it is None.

    Raises:
        MalformedRow: a row has wrong quotes, another number of cells, or bytes that are not UTF-8.
    """
    from fedpage.data.csv_kernels import split_rows  # only large files need it

    slots = np.full(width, -1, dtype=np.int64)
    slots[list(places)] = np.arange(len(places))
    columns = [_TextCells() if place in as_text else _NumberCells(parse) for place in places]
    is_text = np.array([isinstance(column, _TextCells) for column in columns])
    numeric = np.flatnonzero(~is_text)
    blocks = _Blocks()
    rest = file.read(3).removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    skip, is_last, capacity = 1, False, 0
    while not is_last:
        piece = file.read(max(BLOCK, len(rest)))
        block, is_last = b"".join((rest, piece, b"\0")), not piece
        if len(block) // width >= capacity:  # a row has a byte after each cell
            capacity = 8 * (len(block) // width // 8 + 2 | 1)  # odd: columns differ in cache lines
            values = np.empty((len(places), capacity))
            cells = np.empty((3, len(places), capacity), dtype=np.int32)
            counts = np.empty(len(places), dtype=np.int64)
        row, done, is_well_formed = split_rows(
            np.frombuffer(block, dtype=np.uint8), is_last, skip, ord(delimiter), slots, is_text,
            values, *cells, counts,
        )  # fmt: skip
        rest = block[done:-1]
        if not is_well_formed or len(rest) > _LONGEST or not _is_utf8(block, done):
            raise MalformedRow
        skip, rows = max(-row, 0), max(row, 0)
        for slot in np.flatnonzero(counts).tolist():
            found = cells[:, slot, : counts[slot]]
            columns[slot].add(block, found[:, found[0] < rows], values[slot])
            if columns[slot].is_mixed:
                slots[places[slot]] = -1
        blocks.add(values[numeric, :rows])
    blocks.join()
    row_of = {slot: row for row, slot in enumerate(numeric.tolist())}
    return [
        column.finish() if isinstance(column, _TextCells)
        else None if column.is_mixed
        else blocks.column(row_of[slot])
        for slot, column in enumerate(columns)
    ]  # fmt: skip


def _is_utf8(block: bytes, stop: int) -> bool:
    if block.isascii():
        return True
    try:
        block[:stop].decode()
    except UnicodeDecodeError:
        return False
    return True


class _Blocks:
    """Hold the numbers of all columns, an array (columns, rows) for each block of the file."""

    def __init__(self) -> None:
        self._blocks: list[Vector] = []
        self._firsts = [0]
        self._pending: list[Vector] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, block: Vector) -> None:
        """Add the next rows."""
        self._pending.append(block)
        if sum(part.shape[1] for part in self._pending) >= _ROWS:
            self.join()

    def join(self) -> None:
        """Join the rows since the last block to one block."""
        parts, self._pending = self._pending, []
        if parts:
            self._blocks.append(np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0])
            self._firsts.append(self._firsts[-1] + self._blocks[-1].shape[1])

    def column(self, at: int) -> Numbers:
        """Return a column, which reads its rows from the blocks."""

        def read(start: int, stop: int) -> Vector:
            pieces = [np.empty(0)]
            number = bisect_right(self._firsts, start) - 1
            while start < stop:
                first = self._firsts[number]
                pieces.append(self._blocks[number][at, start - first : stop - first])
                start, number = start + len(pieces[-1]), number + 1
            return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

        return Numbers(self._firsts[-1], read)


Cells = NDArray[np.int32]
"""(3, n) the rows, starts and stops of cells, as `split_rows` reports them."""


class _NumberCells:
    """Parse the cells of a column of numbers that the compiled parser leaves over."""

    def __init__(self, parse: Callable[[str], float | None]) -> None:
        self.is_mixed = False
        self._parse = parse

    def add(self, block: bytes, cells: Cells, values: Vector) -> None:
        """Parse cells into the values of their rows; text makes the column mixed."""
        known: dict[bytes, float | None] = {}
        for row, cell in zip(cells[0].tolist(), _slices(block, cells), strict=True):
            if cell not in known:
                known[cell] = self._parse(cell.decode())
            number = known[cell]
            if number is None:
                self.is_mixed = True
                return
            values[row] = number


class _TextCells:
    """Collect the cells of a column of text."""

    is_mixed = False

    def __init__(self) -> None:
        self._codes: Codes[bytes] = Codes()
        self._parts: list[Cells] = []

    def add(self, block: bytes, cells: Cells, values: Vector) -> None:
        """Collect some more cells."""
        self._parts.append(self._codes.encode(_slices(block, cells)))

    def finish(self) -> Text:
        """Return the column."""
        return Text.from_codes(self._parts, [cell.decode() for cell in self._codes])


def _slices(block: bytes, cells: Cells) -> list[bytes]:
    """Return the content of cells; a doubled quote in a cell stands for one."""
    return [
        block[start:stop] if start >= 0 else block[-1 - start : stop].replace(b'""', b'"')
        for start, stop in zip(cells[1].tolist(), cells[2].tolist(), strict=True)
    ]
