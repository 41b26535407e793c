"""Quantisers: send each number with a few bits, rounded at random so that the mean is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from fedpage.codecs import kernels
from fedpage.codecs.base import Codec, Field, Keys, Symbols, register_codec, times, width_of
from fedpage.core.types import Vector


@register_codec("natural")
@dataclass(frozen=True)
class Natural(Codec):
    """Round each number at random to one of the two nearest powers of two: sign and exponent.

    Unbiased with omega = 1/8 (Horváth et al. 2019) for numbers in the normal range. Subnormal
    numbers become 0; numbers from the largest power of two on are rounded down; infinity and NaN
    become infinite.

    >>> Natural().bits(d=123, dtype="float64"), Natural().bits(d=123, dtype="float32")
    (1476, 1107)
    """

    is_random: ClassVar[bool] = True

    def omega(self, d: int) -> float:
        """Return 1/8."""
        return 0.125

    def layout(self, d: int, dtype: DTypeLike) -> list[Field]:
        """Send a sign and an exponent of 11 (float64) or 8 bits for each number."""
        return [Field(d, 12 if width_of(dtype) == 64 else 9)]

    def symbols(self, v: Vector, keys: Keys) -> list[Symbols]:
        """Return signs and exponents."""
        v = np.ascontiguousarray(v)
        if v.itemsize == 8:
            return [kernels.natural64(v.view(np.uint64), keys.own)]
        return [kernels.natural32(v.view(np.uint32), keys.own)]

    def values(
        self, parts: list[Symbols], d: int, dtype: DTypeLike, keys: Keys, gain: float
    ) -> Vector:
        """Return the powers of two."""
        if width_of(dtype) == 64:
            v: Vector = (parts[0] << np.uint64(52)).view(np.float64)
        else:
            v = (parts[0].astype(np.uint32, copy=False) << np.uint32(23)).view(np.float32)  # type: ignore[assignment]
        return times(v, gain)
