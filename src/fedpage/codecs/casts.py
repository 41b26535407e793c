"""Casts: send each number in a shorter floating-point format, rounded to nearest even.

A cast is deterministic. Its omega is 0 and its alpha 1, which leaves out the rounding. A number
beyond the format's range becomes infinite, so that a run which needs it is seen to diverge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedpage.codecs import kernels
from fedpage.codecs.base import Codec, Field, Keys, Parts, register_codec, times, width_of
from fedpage.core.types import Vector


@dataclass(frozen=True)
class Cast(Codec):
    """Round each number to nearest even in a shorter format; the base class of casts."""

    is_cast: ClassVar[bool] = True
    _width: ClassVar[int] = 16
    """The bits of a number."""
    digits: ClassVar[int]
    """The bits of the mantissa."""
    bias: ClassVar[int]
    """The bias of the exponent."""
    _stored: ClassVar[tuple[type[np.unsignedinteger[Any]], type[np.floating[Any]]]]
    """Integers and floats of numpy whose upper bits are the format."""

    def omega(self, d: int) -> float:
        """Return 0: the rounding is left out."""
        return 0.0

    def layout(self, d: int, dtype: DTypeLike) -> list[Field]:
        """Send d floats of the format."""
        width_of(dtype)
        return [Field(d, self._width)]

    def symbols(self, v: Vector, keys: Keys) -> Parts:
        """Return the bits of the rounded numbers."""
        wide = np.ascontiguousarray(v, np.float64)
        return [kernels.shorten(wide, wide.view(np.uint64), self.digits, self.bias)]

    def values(self, parts: Parts, d: int, dtype: DTypeLike, keys: Keys, gain: float) -> Vector:
        """Return the numbers with these bits."""
        integers, floats = self._stored
        words = parts[0].astype(integers)
        if unused := 8 * words.itemsize - self._width:
            words <<= integers(unused)
        with np.errstate(invalid="ignore"):  # what is received may be any NaN
            return times(words.view(floats).astype(dtype), gain)


@register_codec("float32")
@dataclass(frozen=True)
class Float32(Cast):
    """Send 32-bit floats: relative error 6e-8 from 1e-38 to 3e38, absolute 7e-46 below.

    Vectors of float32 are sent unchanged.
    """

    _width: ClassVar[int] = 32
    digits: ClassVar[int] = 23
    bias: ClassVar[int] = 127
    _stored = (np.uint32, np.float32)

    def symbols(self, v: Vector, keys: Keys) -> Parts:
        """Return the bits of the rounded numbers."""
        return [self._round(v).view(np.uint32).astype(np.uint64)]

    def transform(self, v: Vector, keys: Keys, gain: float) -> Vector:
        """Return the rounded numbers."""
        return times(self._round(v).astype(v.dtype), gain)

    def _round(self, v: Vector) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(v, np.float32)


@register_codec("float16")
@dataclass(frozen=True)
class Float16(Cast):
    """Send 16-bit floats: relative error 5e-4 from 6e-5 to 65504, absolute 3e-8 below.

    Numbers below 3e-8 become 0, so a run whose vectors get that small stops moving.
    """

    digits: ClassVar[int] = 10
    bias: ClassVar[int] = 15
    _stored = (np.uint16, np.float16)


@register_codec("bfloat16")
@dataclass(frozen=True)
class BFloat16(Cast):
    """Send the upper half of 32-bit floats: relative error 4e-3 from 1e-38 to 3e38."""

    digits: ClassVar[int] = 7
    bias: ClassVar[int] = 127
    _stored = (np.uint32, np.float32)
