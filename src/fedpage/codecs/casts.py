"""Casts: send each number in a shorter floating-point format, rounded to nearest even.

A cast is deterministic and has no constant omega of its own: omega is 0 and alpha is 1, which
leaves out the rounding. A number beyond the format's range becomes infinite, so a run that needs
it is seen to diverge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from fedpage.codecs.base import Codec, Field, Keys, Symbols, register_codec, times, width_of
from fedpage.core.types import Vector


@dataclass(frozen=True)
class Cast(Codec):
    """Round each number to nearest even in a shorter format; the base class of casts."""

    @property
    def is_cast(self) -> bool:
        """It rounds each number and does nothing else."""
        return True

    def omega(self, d: int) -> float:
        """Return 0: the rounding is left out."""
        return 0.0


@register_codec("float32")
@dataclass(frozen=True)
class Float32(Cast):
    """Send 32-bit floats: relative error 6e-8, range 1e-38 to 3e38 (to 1e-45 with fewer digits).

    Vectors of float32 are sent as they are.
    """

    def layout(self, d: int, dtype: DTypeLike) -> list[Field]:
        """Send d floats of 32 bits."""
        width_of(dtype)
        return [Field(d, 32)]

    def symbols(self, v: Vector, keys: Keys) -> list[Symbols]:
        """Return the bits of the rounded numbers."""
        with np.errstate(over="ignore"):
            return [np.ascontiguousarray(v, np.float32).view(np.uint32).astype(np.uint64)]

    def values(
        self, parts: list[Symbols], d: int, dtype: DTypeLike, keys: Keys, gain: float
    ) -> Vector:
        """Return the numbers with these bits."""
        short = parts[0].astype(np.uint32).view(np.float32)
        return times(short.astype(dtype), gain)

    def transform(self, v: Vector, keys: Keys, gain: float) -> Vector:
        """Return the rounded numbers."""
        with np.errstate(over="ignore"):
            return times(v.astype(np.float32).astype(v.dtype), gain)
