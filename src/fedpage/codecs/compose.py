"""Codecs made of codecs: a scaled one, and one after another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import Any

from fedpage.codecs.base import Codec, Keys, as_codec, register_codec
from fedpage.codecs.casts import Cast
from fedpage.codecs.quantise import Dither, Natural, ScaledSign
from fedpage.codecs.sparse import Sparsifier
from fedpage.core.errors import InputError


def _pass_on(name: str) -> Any:
    """Return a method of `Wrapped` that calls the method of this name of the inner codec."""

    @wraps(getattr(Codec, name))
    def method(self: Wrapped, *args: Any, **named: Any) -> Any:
        codec, *second = self.inner
        if second:
            named["second"] = second[0]
        return getattr(codec, name)(*args, **named)

    return method


@dataclass(frozen=True)
class Wrapped(Codec):
    """Send what another codec sends; the base class of `Chain` and `Scaled`."""

    @property
    def inner(self) -> tuple[Codec, ...]:
        """The codec that does the work, and perhaps a second one for the numbers it keeps."""
        raise NotImplementedError

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """Whether one of the codecs uses keys."""
        return any(codec.is_random for codec in self.inner)

    @property
    def needs_ranks(self) -> bool:  # type: ignore[override]
        """Whether the inner codec needs the ranks of all called clients."""
        return self.inner[0].needs_ranks

    @property
    def has_fixed_size(self) -> bool:  # type: ignore[override]
        """Whether every vector takes the same number of bits."""
        return self.inner[0].has_fixed_size

    numbers = _pass_on("numbers")
    bits = _pass_on("bits")
    sizes = _pass_on("sizes")
    transform = _pass_on("transform")
    encode_rows = _pass_on("encode_rows")
    decode_with = _pass_on("decode_with")


@register_codec("chain")
@dataclass(frozen=True)
class Chain(Wrapped):
    """Keep some of the numbers, then compress these: RandK(12) and Natural() send 12 k bits.

    Two unbiased codecs make one with omega = (1+omega_1)(1+omega_2) - 1, where the second's is that
    for k numbers. TopK before an unbiased codec with omega < 1 has alpha = k/d (1-omega). Before
    ScaledSign, which is biased, a sparsifier does without its factor (RandK's d/k), and alpha is
    k/d times the second's alpha.

    Args:
        sparsifier: RandK, PermK, TopK or Bernoulli.
        second: Natural, Dither, ScaledSign or a cast.

    >>> chain = as_codec("randk:12+natural")
    >>> chain.bits(d=123, dtype="float64"), chain.omega(d=123)
    (144, 10.53125)
    """

    sparsifier: Sparsifier
    second: Codec

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsifier", as_codec(self.sparsifier))
        object.__setattr__(self, "second", as_codec(self.second))
        first, second = self.sparsifier, self.second
        if not isinstance(first, Sparsifier):
            raise InputError(
                f"codec '{first}+{second}': the first must be randk, permk, topk or bernoulli"
            )
        if not isinstance(second, (Natural, Dither, ScaledSign, Cast)):
            raise InputError(
                f"codec '{first}+{second}': the second must be natural, dither, sign or a cast"
            )

    @property
    def inner(self) -> tuple[Sparsifier, Codec]:
        """The sparsifier, with the second codec for the numbers that it keeps."""
        return self.sparsifier, self.second

    @property
    def is_unbiased(self) -> bool:
        """Whether both are unbiased."""
        return self.sparsifier.is_unbiased and self.second.is_unbiased

    def omega(self, d: int) -> float | None:
        """Return (1+omega_1)(1+omega_2) - 1."""
        first, second = self.sparsifier.omega(d), self.second.omega(self.sparsifier.kept(d))
        if first is None or second is None:
            return None
        return (1.0 + first) * (1.0 + second) - 1.0

    def alpha(self, d: int) -> float | None:
        """Return the share of kept numbers times the contraction of the second codec."""
        share, second = self.sparsifier.share(d), self.second.alpha(self.sparsifier.kept(d))
        if self.is_unbiased:
            return super().alpha(d)
        return None if second is None else share * second

    def gain(self, d: int, keys: Keys) -> float:
        """Return the sparsifier's factor, or 1 if the result is biased anyway."""
        return self.sparsifier.gain(d, keys) if self.is_unbiased else 1.0

    def gain_when_scaled(self, d: int) -> float:
        """Return the factor of Scaled(self): the sparsifier's own cancels."""
        return self.second.gain_when_scaled(self.sparsifier.kept(d))

    def floats(self, d: int) -> int:
        """Return how many numbers are sent at most."""
        return self.second.floats(self.sparsifier.kept(d))

    def __str__(self) -> str:
        return f"{self.sparsifier}+{self.second}"


@register_codec("scaled")
@dataclass(frozen=True)
class Scaled(Wrapped):
    """Divide an unbiased codec by 1 + omega, which makes it contractive: alpha = 1/(1+omega).

    Methods for contractive codecs, such as EF21, take an unbiased one in this form. The numbers
    that Scaled(RandK(k)) keeps stay as they are.

    Args:
        codec: An unbiased codec.

    >>> as_codec("scaled(randk:12)").alpha(d=123) == 12 / 123
    True
    """

    codec: Codec

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", as_codec(self.codec))
        if not self.codec.is_unbiased:
            raise InputError(f"scaled({self.codec}): only an unbiased codec can be scaled")

    @property
    def inner(self) -> tuple[Codec]:
        """The codec."""
        return (self.codec,)

    def alpha(self, d: int) -> float:
        """Return 1/(1+omega)."""
        omega = self.codec.omega(d)
        assert omega is not None
        return 1.0 / (1.0 + omega)

    def gain(self, d: int, keys: Keys) -> float:
        """Return the codec's factor over 1 + omega."""
        return self.codec.gain_when_scaled(d)

    def floats(self, d: int) -> int:
        """Return how many numbers a vector is sent as; the most if they vary."""
        return self.codec.floats(d)

    def __str__(self) -> str:
        return f"scaled({self.codec})"
