"""Split and parse blocks of a CSV file, compiled by numba.

`split_rows` reads what nearly all files hold: plain decimal numbers, missing numbers, cells in
quotes. It reports where every other cell is, so that Python decides what it means.

A number of at most 19 digits is m * 10**e with integers m < 2**64 and e. If m is at most 2**53 and
|e| at most 22, then m and 10**|e| are floats and one operation rounds correctly (Clinger, "How to
read floating point numbers accurately", 1990). Otherwise the product is computed with about 95
bits, and used only if every real number within the error bound rounds to the same float. The
remaining numbers, such as ties, are left to Python, so every number equals Python's `float`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedpage.core.jit import compile_kernel

_fast: Any = compile_kernel
_inline: Any = njit(nogil=True, error_model="numpy", inline="always")

Bytes = NDArray[np.uint8]
Index = np.uint64

_RANGE = 250
"""Largest |e|: neither m * 10**e nor the parts of the product overflow or lose bits."""
_EXACT = tuple(Fraction(10) ** e for e in range(-_RANGE, _RANGE + 1))
_HIGH = np.array([float(power) for power in _EXACT])
_LOW = np.array([float(power - Fraction(float(power))) for power in _EXACT])
"""10**e for e from -250 to 250 is the sum of two floats, with a relative error below 2**-105."""
_DIGITS, _FLOATS = 19, np.uint64(2**53)
_ERROR = 2.0**-92
"""A bound of the relative error of `_scale`, whose terms are below 2**-95."""
_SPLITTER = 2.0**27 + 1.0
_ONE = np.uint64(1)
"""Unsigned, as are all places in the bytes: a place that may be negative takes longer to read."""
_ZERO, _NINE, _TEN = np.uint64(48), np.uint64(9), np.uint64(10)
_PLUS, _MINUS, _POINT = 43, 45, 46
_QUOTE, _LF, _CR, _SPACE, _TAB = 34, 10, 13, 32, 9


@_inline
def _scale(m: np.uint64, e: int) -> tuple[float, bool]:
    """Return m * 10**e and whether it is correctly rounded."""
    if m <= _FLOATS and -22 <= e <= 22:
        number = np.float64(m)
        return (number * _HIGH[_RANGE + e] if e >= 0 else number / _HIGH[_RANGE - e]), True
    if e < -_RANGE or e > _RANGE:
        return 0.0, False
    low_bits = m & np.uint64(2047) if m > _FLOATS else np.uint64(0)
    a, b = np.float64(m - low_bits), np.float64(low_bits)
    power, rest = _HIGH[_RANGE + e], _LOW[_RANGE + e]
    product = a * power
    t = _SPLITTER * a  # Dekker's exact product: each factor is the sum of two of 26 bits
    a_high = t - (t - a)
    a_low = a - a_high
    t = _SPLITTER * power
    p_high = t - (t - power)
    p_low = power - p_high
    error = ((a_high * p_high - product) + a_high * p_low + a_low * p_high) + a_low * p_low
    error += a * rest + b * power
    number = product + error
    error -= number - product
    bound = number * _ERROR
    return number, number + (error - bound) == number + (error + bound)


@_inline
def _ends_cell(byte: int, delimiter: int) -> bool:
    return (byte == delimiter) | (byte == _LF) | (byte == _CR)


@_inline
def _parse_number(data: Bytes, at: Index) -> tuple[float, bool, Index]:
    """Return the number that begins at a byte, whether it is right, and where it ends.

    The zero byte after the block ends every number, so that no place is compared with the end.
    """
    negative = data[at] == _MINUS
    if negative or data[at] == _PLUS:
        at += _ONE
    first, m = at, np.uint64(0)
    while np.uint64(data[at]) - _ZERO <= _NINE:
        m = m * _TEN + (np.uint64(data[at]) - _ZERO)
        at += _ONE
    digits, e = np.int64(at - first), np.int64(0)
    if data[at] == _POINT:
        at += _ONE
        point = at
        while np.uint64(data[at]) - _ZERO <= _NINE:
            m = m * _TEN + (np.uint64(data[at]) - _ZERO)
            at += _ONE
        e = -np.int64(at - point)
        digits -= e
    is_right = digits > 0
    if digits > _DIGITS:
        while first < at and (data[first] == _ZERO or data[first] == _POINT):
            digits -= data[first] == _ZERO
            first += _ONE
        is_right = digits <= _DIGITS
    if (data[at] | 32) == 101:  # e E
        at += _ONE
        sign, exponent = np.int64(1), np.int64(0)
        if data[at] == _PLUS or data[at] == _MINUS:
            sign = 44 - np.int64(data[at])
            at += _ONE
        first = at
        while np.uint64(data[at]) - _ZERO <= _NINE:
            exponent = exponent * 10 + np.int64(data[at]) - 48
            at += _ONE
        e += sign * exponent
        is_right = is_right and 0 < np.int64(at - first) < 5
    if not is_right:
        return 0.0, False, at
    number, is_right = _scale(m, e)
    return (-number if negative else number), is_right, at


@_fast
def split_rows(
    data: Bytes,
    is_last: bool,
    skip: int,
    delimiter: int,
    slots: NDArray[np.int64],
    is_text: NDArray[np.bool_],
    values: NDArray[np.float64],
    rows: NDArray[np.int32],
    starts: NDArray[np.int32],
    stops: NDArray[np.int32],
    counts: NDArray[np.int64],
) -> tuple[int, Index, bool]:
    """Split the complete rows of a block into cells, and parse the cells that hold numbers.

    Args:
        data: the bytes of the block, which begins at the start of a row, and a zero byte.
        is_last: whether the file ends with the block.
        skip: how many rows to skip at first, such as the column names.
        delimiter: the byte between cells.
        slots: (width,) the number of each column of the file in the arrays below, or -1.
        is_text: (c,) whether no cell of a column is parsed.
        values: (c, n) receives the numbers, NaN where a cell is empty.
        rows: (c, n) receives the rows of the cells that are not parsed.
        starts: (c, n) receives where these cells begin, as -1 - start if they hold doubled quotes.
        stops: (c, n) receives where they end.
        counts: (c,) receives how many they are.

    Returns:
        The number of rows, the number of bytes that they take, and whether the rows are well
        formed. If not, the other results mean nothing. A row that is not complete may have left
        cells that are not parsed, under its number.
    """
    end, width, most = np.uint64(len(data) - 1), len(slots), values.shape[1]
    counts[:] = 0
    row, at, done = -skip, np.uint64(0), np.uint64(0)
    while at < end and row < most:
        first = at  # an empty line, or one of spaces, is no row
        while at < end and (data[at] == _SPACE or data[at] == _TAB) and data[at] != delimiter:
            at += _ONE
        if at < end and (data[at] == _LF or data[at] == _CR):
            at += _ONE
            done = at
            continue
        if at == end:
            return row, end if is_last else done, True
        at = first
        column = 0
        while True:
            slot = slots[column] if row >= 0 and column < width else -1
            if slot >= 0 and not is_text[slot]:
                number, is_parsed, stop = _parse_number(data, at)
                if is_parsed and stop < end and _ends_cell(data[stop], delimiter):
                    values[slot, row] = number
                    column += 1
                    at = stop
                    if data[at] != delimiter:
                        break
                    at += _ONE
                    continue
            start, doubled = at, False
            if at < end and data[at] == _QUOTE:
                start += _ONE
                at += _ONE
                while at < end:
                    if data[at] == _QUOTE:
                        if at + _ONE < end and data[at + _ONE] == _QUOTE:
                            doubled = True
                            at += _ONE
                        else:
                            break
                    at += _ONE
                if at >= end:
                    return row, done, not is_last
                stop = at
                at += _ONE
                if at < end and not _ends_cell(data[at], delimiter):
                    return row, done, False
            else:
                while at < end and not _ends_cell(data[at], delimiter):
                    at += _ONE
                stop = at
            if at == end and not is_last:
                return row, done, True
            if slot >= 0:
                number, is_parsed = np.nan, False
                if not is_text[slot]:
                    left, right = start, stop
                    while left < right and data[left] == _SPACE:
                        left += _ONE
                    while left < right and data[right - _ONE] == _SPACE:
                        right -= _ONE
                    is_parsed = left == right
                    if not is_parsed:
                        number, is_parsed, left = _parse_number(data, left)
                        is_parsed = is_parsed and left == right
                values[slot, row] = number
                if not is_parsed:
                    count = counts[slot]
                    rows[slot, count] = row
                    starts[slot, count] = -1 - np.int64(start) if doubled else np.int64(start)
                    stops[slot, count] = stop
                    counts[slot] = count + 1
            column += 1
            if at == end or data[at] != delimiter:
                break
            at += _ONE
        if column != width:
            return row, done, False
        if at < end:
            at += _ONE  # of \r\n, the \n is then an empty line
        done = at
        row += 1
    return row, done, True
