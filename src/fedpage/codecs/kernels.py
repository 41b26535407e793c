"""Compile the loops of the codecs: bits, sparse rows, roundings.

Every kernel works on one row after the other and never mixes them, so a row of the result does not
depend on the other rows. Sums have one fixed order. A row's payload is a string of bits: symbol
after symbol, each with its least significant bit first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedpage.core.random import word_at
from fedpage.core.types import Vector

Symbols = NDArray[np.uint64]
Positions = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

_fast: Any = njit(cache=True, nogil=True, error_model="numpy")
_0, _1, _12, _41, _52 = (np.uint64(s) for s in (0, 1, 12, 41, 52))


@_fast
def pack(symbols: Symbols, width: int, starts: NDArray[np.int64], out: Bytes) -> None:
    """Write each row's symbols of `width` bits into out, from bit starts[i] on."""
    n, m = symbols.shape
    for i in range(n):
        at = starts[i]
        for j in range(m):
            symbol = symbols[i, j]
            left = width
            while left > 0:
                shift = at & 7
                taken = min(8 - shift, left)
                low = symbol & ((_1 << np.uint64(taken)) - _1)
                out[at >> 3] |= np.uint8(low << np.uint64(shift))
                symbol = symbol >> np.uint64(taken)
                at += taken
                left -= taken


@_fast
def unpack(payload: Bytes, width: int, starts: NDArray[np.int64], out: Symbols) -> None:
    """Read out.shape[1] symbols of `width` bits for each row, from bit starts[i] on."""
    n, m = out.shape
    for i in range(n):
        at = starts[i]
        for j in range(m):
            symbol = _0
            filled = 0
            while filled < width:
                shift = at & 7
                taken = min(8 - shift, width - filled)
                low = (np.uint64(payload[at >> 3]) >> np.uint64(shift)) & (
                    (_1 << np.uint64(taken)) - _1
                )
                symbol |= low << np.uint64(filled)
                at += taken
                filled += taken
            out[i, j] = symbol


@_fast
def spread(v: Vector, positions: Positions, gain: float) -> Vector:
    """Return v times gain at each row's positions and 0 elsewhere."""
    n, d = v.shape
    out = np.zeros((n, d), v.dtype)
    for i in range(n):
        for j in range(positions.shape[1]):
            at = np.int64(positions[i, j])
            out[i, at] = v[i, at] * gain
    return out


@_fast
def gather(v: Vector, positions: Positions) -> Vector:
    """Return the values at each row's positions."""
    n, k = positions.shape
    out = np.empty((n, k), v.dtype)
    for i in range(n):
        for j in range(k):
            out[i, j] = v[i, np.int64(positions[i, j])]
    return out


@_fast
def scatter(values: Vector, positions: Positions, gain: float, out: Vector) -> None:
    """Write values times gain to each row's positions."""
    n, k = positions.shape
    for i in range(n):
        for j in range(k):
            out[i, np.int64(positions[i, j])] = values[i, j] * gain


@_fast
def natural64(bits: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Round float64 bits to sign and exponent at random, as 12-bit symbols."""
    n, d = bits.shape
    out = np.empty((n, d), np.uint64)
    for i in range(n):
        for j in range(d):
            symbol = bits[i, j] >> _52
            mantissa = bits[i, j] & np.uint64(0xFFFFFFFFFFFFF)
            exponent = symbol & np.uint64(0x7FF)
            # exponent 0: zero and subnormals; 0x7FE: the largest; 0x7FF: infinity and NaN
            is_between = (exponent > _0) & (exponent < np.uint64(0x7FE))
            goes_up = is_between & ((word_at(keys[i], j) >> _12) < mantissa)
            out[i, j] = symbol + np.uint64(goes_up)
    return out


@_fast
def natural32(bits: NDArray[np.uint32], keys: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Round float32 bits to sign and exponent at random, as 9-bit symbols."""
    n, d = bits.shape
    out = np.empty((n, d), np.uint32)
    for i in range(n):
        for j in range(d):
            symbol = bits[i, j] >> np.uint32(23)
            mantissa = np.uint64(bits[i, j] & np.uint32(0x7FFFFF))
            exponent = symbol & np.uint32(0xFF)
            is_between = (exponent > np.uint32(0)) & (exponent < np.uint32(0xFE))
            goes_up = is_between & ((word_at(keys[i], j) >> _41) < mantissa)
            out[i, j] = symbol + np.uint32(goes_up)
    return out
