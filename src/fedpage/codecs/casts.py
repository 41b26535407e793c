"""Casts: send each number in a shorter floating-point format, rounded to nearest even.

A cast is deterministic. Its omega is 0 and its alpha 1, which leaves out the rounding. A number
beyond the format's range becomes infinite, so that a run which needs it is seen to diverge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedpage.codecs import kernels
from fedpage.codecs.base import Codec, Field, Keys, Symbols, register_codec, times, width_of
from fedpage.core.types import AnyArray, Vector


@dataclass(frozen=True)
class Cast(Codec):
    """Round each number to nearest even in a shorter format; the base class of casts."""

    _width: ClassVar[int]
    """The bits of a number."""

    @property
    def is_cast(self) -> bool:
        """Whether it only rounds: yes."""
        return True

    def omega(self, d: int) -> float:
        """Return 0: the rounding is left out."""
        return 0.0

    def layout(self, d: int, dtype: DTypeLike) -> list[Field]:
        """Send d floats of the format."""
        width_of(dtype)
        return [Field(d, self._width)]


@register_codec("float32")
@dataclass(frozen=True)
class Float32(Cast):
    """Send 32-bit floats: relative error 6e-8 from 1e-38 to 3e38, absolute 7e-46 below.

    Vectors of float32 are sent unchanged.
    """

    _width: ClassVar[int] = 32

    def symbols(self, v: Vector, keys: Keys) -> list[Symbols]:
        """Return the bits of the rounded numbers."""
        return [_to_float32(v).view(np.uint32).astype(np.uint64)]

    def values(
        self, parts: list[Symbols], d: int, dtype: DTypeLike, keys: Keys, gain: float
    ) -> Vector:
        """Return the numbers with these bits."""
        return times(_to_dtype(parts[0].astype(np.uint32).view(np.float32), dtype), gain)

    def transform(self, v: Vector, keys: Keys, gain: float) -> Vector:
        """Return the rounded numbers."""
        return times(_to_float32(v).astype(v.dtype), gain)


@dataclass(frozen=True)
class _Short(Cast):
    """Send floats of 16 bits; the base class of both formats."""

    _width: ClassVar[int] = 16
    digits: ClassVar[int]
    """The bits of the mantissa."""
    bias: ClassVar[int]
    """The bias of the exponent."""

    def symbols(self, v: Vector, keys: Keys) -> list[Symbols]:
        """Return the bits of the rounded numbers."""
        wide = np.ascontiguousarray(v, np.float64)
        return [kernels.shorten(wide, wide.view(np.uint64), self.digits, self.bias)]


@register_codec("float16")
@dataclass(frozen=True)
class Float16(_Short):
    """Send 16-bit floats: relative error 5e-4 from 6e-5 to 65504, absolute 3e-8 below.

    Numbers below 3e-8 become 0, so a run whose vectors get that small stops moving.
    """

    digits: ClassVar[int] = 10
    bias: ClassVar[int] = 15

    def values(
        self, parts: list[Symbols], d: int, dtype: DTypeLike, keys: Keys, gain: float
    ) -> Vector:
        """Return the numbers with these bits."""
        return times(_to_dtype(parts[0].astype(np.uint16).view(np.float16), dtype), gain)


@register_codec("bfloat16")
@dataclass(frozen=True)
class BFloat16(_Short):
    """Send the upper half of 32-bit floats: relative error 4e-3 from 1e-38 to 3e38."""

    digits: ClassVar[int] = 7
    bias: ClassVar[int] = 127

    def values(
        self, parts: list[Symbols], d: int, dtype: DTypeLike, keys: Keys, gain: float
    ) -> Vector:
        """Return the numbers with these bits."""
        bits = parts[0].astype(np.uint32) << np.uint32(16)
        return times(_to_dtype(bits.view(np.float32), dtype), gain)


def _to_float32(v: Vector) -> NDArray[np.float32]:
    """Round to nearest even; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(v, np.float32)


def _to_dtype(short: AnyArray, dtype: DTypeLike) -> Vector:
    """Return the same numbers in another type; what is received may be any NaN."""
    with np.errstate(invalid="ignore"):
        return short.astype(dtype)
