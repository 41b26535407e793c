"""Compile the loops of the codecs: bits, sparse rows, roundings.

Every kernel works on one row after the other and never mixes them, so a row of the result does not
depend on the other rows. Sums have one fixed order. A row's payload is a string of bits: symbol
after symbol, each with its least significant bit first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpage.core.jit import compile_kernel
from fedpage.core.random import fold_each, shuffle, word_at
from fedpage.core.types import Ints, Vector

Symbols = NDArray[np.uint64]
Positions = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

_fast: Any = compile_kernel
_0, _1, _52 = np.uint64(0), np.uint64(1), np.uint64(52)


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
def gather(v: Vector, rows: Ints, positions: Positions) -> Vector:
    """Return the values at the positions of each of these rows."""
    m, k = positions.shape
    out = np.empty((m, k), v.dtype)
    for i in range(m):
        for j in range(k):
            out[i, j] = v[rows[i], np.int64(positions[i, j])]
    return out


@_fast
def scatter(values: Vector, rows: Ints, positions: Positions, gain: float, out: Vector) -> None:
    """Write values times gain to the positions of each of these rows."""
    m, k = positions.shape
    for i in range(m):
        for j in range(k):
            out[rows[i], np.int64(positions[i, j])] = values[i, j] * gain


@_fast
def spread(v: Vector, rows: Ints, positions: Positions, gain: float) -> Vector:
    """Return v times gain at the positions of each of these rows, and 0 elsewhere."""
    m, k = positions.shape
    out = np.zeros(v.shape, v.dtype)
    for i in range(m):
        for j in range(k):
            at = np.int64(positions[i, j])
            out[rows[i], at] = v[rows[i], at] * gain
    return out


@_fast
def partition(shared: np.uint64, d: int, n: int) -> tuple[Positions, Positions]:
    """Return an order of 0..d-1, and which of its n blocks each of n clients has."""
    other = fold_each(np.full(1, shared), _1)[0]
    return shuffle(shared, d), shuffle(other, n)


@_fast
def spread_blocks(
    v: Vector, order: Positions, blocks: Positions, ranks: NDArray[np.int64], gain: float
) -> Vector:
    """Return v times gain in each row's block of the order and 0 elsewhere."""
    n, d = v.shape
    out = np.zeros((n, d), v.dtype)
    short, longer = d // len(blocks), d % len(blocks)
    for i in range(n):
        block = np.int64(blocks[ranks[i]])
        start = block * short + min(block, longer)
        for j in range(start, start + short + (block < longer)):
            at = np.int64(order[j])
            out[i, at] = v[i, at] * gain
    return out


@_fast
def natural(bits: Any, keys: NDArray[np.uint64]) -> Symbols:
    """Round the bits of float64 or float32 to sign and exponent at random."""
    n, d = bits.shape
    out = np.empty((n, d), np.uint64)
    digits = np.uint64(52 if bits.itemsize == 8 else 23)
    infinite = np.uint64(0x7FF if bits.itemsize == 8 else 0xFF)
    for i in range(n):
        for j in range(d):
            symbol = np.uint64(bits[i, j]) >> digits
            mantissa = np.uint64(bits[i, j]) & ((_1 << digits) - _1)
            exponent = symbol & infinite
            # exponent 0: zero and subnormals; infinite - 1: the largest; infinite: also NaN
            is_between = (exponent > _0) & (exponent < infinite - _1)
            goes_up = is_between & ((word_at(keys[i], j) >> (np.uint64(64) - digits)) < mantissa)
            out[i, j] = symbol + np.uint64(goes_up)
    return out


@_fast
def largest(bits: NDArray[np.uint64], k: int) -> Positions:
    """Find each row's k largest absolute values, positions ascending; bits are of float64.

    Non-negative floats are ordered as their bits are. The k-th largest is found eight bits at a
    time, from the highest on (a radix selection): at most eight passes over ever fewer candidates,
    so a row takes O(d) for any content.
    """
    n, d = bits.shape
    out = np.empty((n, k), np.uint32)
    sizes = np.empty(d, np.uint64)
    candidates = np.empty(d, np.uint64)
    found = np.empty(d, np.uint32)
    counts = np.empty(256, np.int64)
    for i in range(n):
        for j in range(d):
            size = bits[i, j] & np.uint64(0x7FFFFFFFFFFFFFFF)
            # NaN: all are equal, and above infinity
            size = min(size, np.uint64(0x7FF0000000000001)) << _1
            sizes[j] = size
            candidates[j] = size
        left, ties, shift, threshold = d, k, np.uint64(64), _0
        while shift > _0 and ties < left:
            differ = _0
            for j in range(left):
                differ |= candidates[j] ^ candidates[0]
            shift -= np.uint64(8)
            while shift > _0 and differ >> shift == _0:  # such as many zeros
                shift -= np.uint64(8)
            counts[:] = 0
            for j in range(left):
                counts[np.int64((candidates[j] >> shift) & np.uint64(255))] += 1
            byte = np.int64(255)
            while counts[byte] < ties:
                ties -= counts[byte]
                byte -= 1
            if counts[byte] < left:
                kept = 0
                for j in range(left):  # without a branch, which could not be predicted
                    candidate = candidates[j]
                    candidates[kept] = candidate
                    kept += np.int64((candidate >> shift) & np.uint64(255)) == byte
                left = kept
            threshold = candidates[0] >> shift
        if shift == np.uint64(64):  # all are kept
            for j in range(d):
                out[i, j] = np.uint32(j)
            continue
        filled = 0
        for j in range(d):
            high = sizes[j] >> shift
            is_tie = (high == threshold) & (ties > 0)
            found[filled] = np.uint32(j)
            filled += is_tie | (high > threshold)
            ties -= is_tie
            if filled == k:
                break
        out[i, :] = found[:k]
    return out


@_fast
def norms(v: Vector) -> Vector:
    """Return each row's Euclidean norm, in the type of v: at least as large as any of its numbers.

    Squares that would overflow or underflow are taken of the numbers divided by the largest.
    """
    n, d = v.shape
    out = np.empty(n, v.dtype)
    for i in range(n):
        a = b = 0.0
        for j in range(0, d - 1, 2):  # two sums side by side: additions need not wait
            x, y = np.float64(v[i, j]), np.float64(v[i, j + 1])
            a += x * x
            b += y * y
        if d % 2:
            x = np.float64(v[i, d - 1])
            a += x * x
        total = a + b
        if 1e-280 < total < 1e300:
            out[i] = np.sqrt(total)
            continue
        top = 0.0
        for j in range(d):
            x = abs(np.float64(v[i, j]))
            if not x <= top:  # a NaN stays
                top = x
            if np.isnan(x):
                break
        if top > 0.0 and np.isfinite(top):
            total = 0.0
            for j in range(d):
                x = np.float64(v[i, j]) / top
                total += x * x
            out[i] = top * np.sqrt(total)
        else:
            out[i] = top
    return out


@_fast
def dither(v: Vector, norm: Vector, keys: NDArray[np.uint64], s: int) -> Symbols:
    """Round s abs(v)/norm to one of its two neighbours at random; symbols are 2 level + sign."""
    n, d = v.shape
    out = np.zeros((n, d), np.uint64)
    for i in range(n):
        length = np.float64(norm[i])
        if not (length > 0.0 and np.isfinite(length)):
            continue
        for j in range(d):
            x = np.float64(v[i, j])
            exact = abs(x) / length * s
            level = np.floor(exact)
            u = np.float64(word_at(keys[i], j) >> np.uint64(11)) * 2.0**-53
            whole = np.uint64(level) + np.uint64(u < exact - level)
            out[i, j] = (whole << _1) | np.uint64((x < 0.0) & (whole > _0))
    return out


@_fast
def undither(symbols: Symbols, norm: Vector, s: int, gain: float, out: Vector) -> None:
    """Write norm * level/s with its sign, times gain; NaN if the norm is not finite."""
    n, d = symbols.shape
    for i in range(n):
        length = np.float64(norm[i])
        if not np.isfinite(length):
            out[i, :] = np.nan
            continue
        for j in range(d):
            x = length * (np.float64(symbols[i, j] >> _1) / s) * gain
            out[i, j] = -x if symbols[i, j] & _1 else x


@_fast
def mean_sizes(v: Vector) -> Vector:
    """Return each row's mean absolute value, in the type of v."""
    n, d = v.shape
    out = np.empty(n, v.dtype)
    for i in range(n):
        a = b = 0.0
        for j in range(0, d - 1, 2):
            a += abs(np.float64(v[i, j]))
            b += abs(np.float64(v[i, j + 1]))
        if d % 2:
            a += abs(np.float64(v[i, d - 1]))
        if np.isinf(a + b):  # the mean may be in range though the sum is not
            a = b = 0.0
            for j in range(d):
                a += abs(np.float64(v[i, j])) / d
            out[i] = a
        else:
            out[i] = (a + b) / d
    return out


@_fast
def signs(negative: NDArray[np.bool_], scale: Vector, gain: float, out: Vector) -> None:
    """Write each row's scale times gain, with signs."""
    n, d = negative.shape
    for i in range(n):
        x = scale[i] * gain
        for j in range(d):
            out[i, j] = -x if negative[i, j] else x


@_fast
def shorten(v: Vector, bits: NDArray[np.uint64], digits: int, bias: int) -> Symbols:
    """Round float64 to a 16-bit format, ties to even; symbols are its bits.

    Args:
        v: The numbers.
        bits: Their bits.
        digits: The bits of the format's mantissa.
        bias: The bias of its exponent.
    """
    n, d = v.shape
    out = np.empty((n, d), np.uint64)
    normal = np.uint64(1024 - bias) << _52  # the smallest number with all digits
    step = 2.0 ** (bias + digits - 1)  # smaller ones are multiples of 1/step
    cut, infinite = np.uint64(52 - digits), np.uint64((2 * bias + 1) << digits)
    half, offset = (_1 << (cut - _1)) - _1, np.uint64((1023 - bias) << digits)
    for i in range(n):
        for j in range(d):
            size = bits[i, j] & np.uint64(0x7FFFFFFFFFFFFFFF)
            if size < normal:
                symbol = np.uint64(np.rint(abs(v[i, j]) * step))
            else:
                symbol = ((size + half + ((size >> cut) & _1)) >> cut) - offset
                symbol = min(symbol, infinite)
                if size > np.uint64(0x7FF0000000000000):
                    symbol = infinite | (_1 << np.uint64(digits - 1))  # NaN
            out[i, j] = symbol | ((bits[i, j] >> np.uint64(63)) << np.uint64(15))
    return out
