"""Quantisers: send each number with a few bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from fedpage.codecs import kernels
from fedpage.codecs.base import (
    Codec,
    Field,
    Keys,
    Parts,
    bits_of,
    floats_of,
    register_codec,
    times,
    width_of,
)
from fedpage.core import validate
from fedpage.core.errors import InputError
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

    def symbols(self, v: Vector, keys: Keys) -> Parts:
        """Return signs and exponents."""
        words = np.uint64 if v.itemsize == 8 else np.uint32
        return [kernels.natural(np.ascontiguousarray(v).view(words), keys.own)]

    def values(self, parts: Parts, d: int, dtype: DTypeLike, keys: Keys, gain: float) -> Vector:
        """Return the powers of two."""
        if width_of(dtype) == 64:
            v: Vector = (parts[0] << np.uint64(52)).view(np.float64)
        else:
            v = (parts[0].astype(np.uint32) << np.uint32(23)).view(np.float32)
        return times(v, gain)


@register_codec("dither")
@dataclass(frozen=True)
class Dither(Codec):
    """Send the norm, and each number as one of s+1 levels of it, rounded at random (QSGD).

    Unbiased with omega = min(d/(4 s^2), sqrt(d)/s). Alistarh et al. (2017), Lemma 3.1, have d/s^2;
    the 4 holds because a number between two levels has at most a quarter of their squared distance
    as variance. A vector whose norm is not finite becomes NaN.

    Args:
        s: The number of steps between 0 and the norm, at least 1.

    >>> Dither(4).bits(d=123, dtype="float64")  # 64 + 123 (1 + 3): five levels need three bits
    556
    """

    s: int
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.label, "s", self.s)

    def omega(self, d: int) -> float:
        """Return min(d/(4 s^2), sqrt(d)/s)."""
        return min(d / (4.0 * self.s**2), math.sqrt(d) / self.s)

    def floats(self, d: int) -> int:
        """Return d + 1: the norm is sent, too."""
        return d + 1

    def layout(self, d: int, dtype: DTypeLike) -> list[Field]:
        """Send the norm, then a sign and a level from 0 to s for each number."""
        return [Field(1, width_of(dtype)), Field(d, 1 + self.s.bit_length())]

    def symbols(self, v: Vector, keys: Keys) -> Parts:
        """Return norms and levels."""
        norm = kernels.norms(v)
        return [bits_of(norm)[:, None], kernels.dither(v, norm, keys.own, self.s)]

    def values(self, parts: Parts, d: int, dtype: DTypeLike, keys: Keys, gain: float) -> Vector:
        """Return the levels times the norm."""
        norm = floats_of(parts[0], dtype)[:, 0]
        if (norm < 0.0).any():
            raise InputError(f"{self}: a norm is negative")
        if (parts[1] >= np.uint64(2 * self.s + 2)).any():
            raise InputError(f"{self}: a level is above {self.s}")
        out = np.empty((len(norm), d), dtype)
        kernels.undither(parts[1], norm, self.s, gain, out)
        return out

    def transform(self, v: Vector, keys: Keys, gain: float) -> Vector:
        """Return the levels times the norm, without checks."""
        norm = kernels.norms(v)
        out = np.empty_like(v)
        kernels.undither(kernels.dither(v, norm, keys.own, self.s), norm, self.s, gain, out)
        return out


@register_codec("sign")
@dataclass(frozen=True)
class ScaledSign(Codec):
    """Send the signs and the mean absolute value; the sign of 0 is +1.

    Contractive with alpha = |v|_1^2 / (d |v|^2), which is at least 1/d (Karimireddy et al. 2019).

    >>> ScaledSign().bits(d=123, dtype="float64")
    187
    """

    def alpha(self, d: int) -> float:
        """Return 1/d, which a vector with one number other than 0 attains."""
        return 1.0 / d

    def floats(self, d: int) -> int:
        """Return d + 1: the mean absolute value is sent, too."""
        return d + 1

    def layout(self, d: int, dtype: DTypeLike) -> list[Field]:
        """Send the mean absolute value, then the signs."""
        return [Field(1, width_of(dtype)), Field(d, 1)]

    def symbols(self, v: Vector, keys: Keys) -> Parts:
        """Return mean absolute values and signs."""
        return [bits_of(kernels.mean_sizes(v))[:, None], (v < 0.0).astype(np.uint64)]

    def values(self, parts: Parts, d: int, dtype: DTypeLike, keys: Keys, gain: float) -> Vector:
        """Return the signs times the mean absolute value."""
        scale = floats_of(parts[0], dtype)[:, 0]
        if (scale < 0.0).any():
            raise InputError(f"{self}: a mean absolute value is negative")
        out = np.empty((len(scale), d), dtype)
        kernels.signs(parts[1] > 0, scale, gain, out)
        return out

    def transform(self, v: Vector, keys: Keys, gain: float) -> Vector:
        """Return the signs times the mean absolute value."""
        out = np.empty_like(v)
        kernels.signs(v < 0.0, kernels.mean_sizes(v), gain, out)
        return out
