"""Sparsifiers: send some of the numbers. The others count as 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from fedpage.codecs import kernels
from fedpage.codecs.base import (
    IDENTITY,
    Codec,
    Field,
    Keys,
    Symbols,
    check_count,
    count_of,
    register_codec,
)
from fedpage.core import validate
from fedpage.core.random import subsets
from fedpage.core.types import Vector


@register_codec("randk")
@dataclass(frozen=True)
class RandK(Codec):
    """Send k numbers that are chosen uniformly at random, times d/k.

    Unbiased with omega = d/k - 1. Client and server draw the same positions from the client's key,
    so no positions are sent.

    Args:
        k: How many numbers to send: a whole number, or a share of d between 0 and 1.

    >>> RandK(12).bits(d=123, dtype="float64"), RandK(12).omega(d=123)
    (768, 9.25)
    """

    k: float
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.plain(self)
        check_count(self, "k", self.k)

    def omega(self, d: int) -> float:
        """Return d/k - 1."""
        return d / count_of(self, self.k, d) - 1.0

    def gain(self, d: int, keys: Keys) -> float:
        """Return d/k."""
        return d / count_of(self, self.k, d)

    def floats(self, d: int) -> int:
        """Return k."""
        return count_of(self, self.k, d)

    def layout(self, d: int, dtype: DTypeLike) -> list[Field]:
        """Send k floats."""
        return IDENTITY.layout(count_of(self, self.k, d), dtype)

    def symbols(self, v: Vector, keys: Keys) -> list[Symbols]:
        """Return the bits of the chosen numbers."""
        positions = subsets(keys.own, v.shape[1], count_of(self, self.k, v.shape[1]))
        return IDENTITY.symbols(kernels.gather(v, positions), keys)

    def values(
        self, parts: list[Symbols], d: int, dtype: DTypeLike, keys: Keys, gain: float
    ) -> Vector:
        """Return the numbers at their positions."""
        k = count_of(self, self.k, d)
        out = np.zeros((len(keys.own), d), dtype)
        sent = IDENTITY.values(parts, k, dtype, keys, 1.0)
        kernels.scatter(sent, subsets(keys.own, d, k), gain, out)
        return out

    def transform(self, v: Vector, keys: Keys, gain: float) -> Vector:
        """Return the chosen numbers times the gain."""
        positions = subsets(keys.own, v.shape[1], count_of(self, self.k, v.shape[1]))
        out: Vector = kernels.spread(v, positions, gain)
        return out
