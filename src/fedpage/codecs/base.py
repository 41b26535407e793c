"""Codecs: frozen values that compress the vectors between clients and the server.

A codec such as `RandK(12)` states its class (unbiased with variance omega,
or contractive with alpha) and its exact size in bits. Two paths give the same bits: `apply`, which
a simulation uses, and `encode` followed by `decode`, which a federation uses.

Random codecs draw from `Keys`, which client and server both know. So a random mask is never sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedpage.codecs import kernels
from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import RoundDraws, fold_each
from fedpage.core.spec import Registry, parse, split_sum, split_wrapper
from fedpage.core.types import Ints, Vector

C = TypeVar("C", bound="type[Codec]")
Payload = NDArray[np.uint8]
Symbols = NDArray[np.uint64]
Parts = list[Symbols]
"""The symbols of each part of a layout, (n, count)."""


class Keys(NamedTuple):
    """The randomness of one field of n clients' vectors, known to client and server."""

    own: NDArray[np.uint64]
    """(n,) a key of each client's own stream."""
    shared: np.uint64
    """A key that all clients of the round share."""
    ranks: Ints | None = None
    """(n,) each client's place among the called, 0..called-1; only PermK needs it."""
    called: int = 0
    """How many clients are called."""

    @classmethod
    def draw(
        cls, seed: int, round: int, clients: Ints, field: int = 0, called: Ints | None = None
    ) -> Keys:
        """Return the keys of some clients, as a pure function of the arguments.

        Args:
            seed: The run's seed.
            round: The round's number.
            clients: Client numbers, (n,).
            field: The number of the field that is compressed.
            called: The numbers of all called clients, ascending. If None, use `clients`.
        """
        called = clients if called is None else called
        draws = RoundDraws(seed, round)
        return cls(
            own=draws.client_keys(clients, field),
            shared=draws.shared_key(field),
            ranks=np.searchsorted(called, clients).astype(np.int64),
            called=len(called),
        )

    def at(self, rows: Ints) -> Keys:
        """Return the keys of some of the rows."""
        ranks = None if self.ranks is None else self.ranks[rows]
        return self._replace(own=self.own[rows], ranks=ranks)

    def below(self, word: int) -> Keys:
        """Return keys of other own streams, for the second of two codecs in a row."""
        return Keys(fold_each(self.own, np.uint64(word)), self.shared, self.ranks, self.called)


NO_KEYS = Keys(np.empty(0, dtype=np.uint64), np.uint64(0))
"""The keys of codecs that draw nothing."""


class Field(NamedTuple):
    """A part of a row's payload: `number` symbols of `width` bits each."""

    number: int
    width: int


def width_of(dtype: DTypeLike) -> int:
    """Return the bits of a number: 64 or 32.

    Raises:
        InputError: The numbers are neither float64 nor float32.
    """
    kind = np.dtype(dtype)
    if kind not in (np.float64, np.float32):
        raise InputError(f"codecs take float64 and float32, not {kind}")
    return 8 * kind.itemsize


def bits_of(v: Vector) -> Symbols:
    """Return the bit patterns of floats."""
    v = np.ascontiguousarray(v)
    return v.view(np.uint64) if v.itemsize == 8 else v.view(np.uint32).astype(np.uint64)


def floats_of(symbols: Symbols, dtype: DTypeLike) -> Vector:
    """Return the floats that have these bit patterns."""
    if np.dtype(dtype).itemsize == 8:
        return symbols.view(np.float64)
    return symbols.astype(np.uint32).view(np.float32)


def write_rows(parts: Parts, layout: list[Field]) -> Payload:
    """Pack each row's symbols into bits; each row is padded to whole bytes."""
    n = len(parts[0])
    size = row_bytes(layout)
    payload = np.zeros((n, size), np.uint8)
    starts = np.arange(n, dtype=np.int64) * (8 * size)
    at = 0
    for symbols, (count, width) in zip(parts, layout, strict=True):
        end = at + count * width
        if _is_plain(at, width):
            words = np.ascontiguousarray(symbols.astype(f"<u{width // 8}", copy=False))
            payload[:, at // 8 : end // 8] = words.view(np.uint8).reshape(n, end // 8 - at // 8)
        else:
            words = np.ascontiguousarray(symbols, np.uint64)
            kernels.pack(words, width, starts + at, payload.reshape(-1))
        at = end
    return payload.reshape(-1)


def read_rows(payload: Payload, n: int, layout: list[Field], name: str) -> Parts:
    """Unpack what `write_rows` has packed.

    Raises:
        InputError: The payload has another length, or bits where there must be none.
    """
    size = row_bytes(layout)
    check_length(payload, n * size, name)
    rows = np.array(payload, order="C").reshape(n, size)  # what is received may be read-only
    starts = np.arange(n, dtype=np.int64) * (8 * size)
    parts = []
    at = 0
    for count, width in layout:
        end = at + count * width
        if _is_plain(at, width):
            words = np.ascontiguousarray(rows[:, at // 8 : end // 8]).view(f"<u{width // 8}")
            symbols = words.reshape(n, count).astype(np.uint64)
        else:
            symbols = np.empty((n, count), np.uint64)
            kernels.unpack(rows.reshape(-1), width, starts + at, symbols)
        parts.append(symbols)
        at = end
    if at % 8 and (rows[:, -1] >> (at % 8)).any():
        raise InputError(f"{name}: the last byte of a payload has bits that mean nothing")
    return parts


def _is_plain(at: int, width: int) -> bool:
    """Return whether symbols are whole numbers of 8 to 64 bits at whole bytes: numpy's own."""
    return at % 8 == 0 and width in (8, 16, 32, 64)


def row_bits(layout: list[Field]) -> int:
    """Return the bits of a row."""
    return sum(count * width for count, width in layout)


def row_bytes(layout: list[Field]) -> int:
    """Return the whole bytes that a row takes."""
    return -(-row_bits(layout) // 8)


def check_length(payload: Payload, length: int, name: str) -> None:
    """Refuse a payload of another length.

    Raises:
        InputError: It has another length, or is not an array of bytes.
    """
    if not isinstance(payload, np.ndarray) or payload.dtype != np.uint8 or payload.ndim != 1:
        raise InputError(f"{name}: a payload is a 1-D array of bytes (uint8)")
    if len(payload) != length:
        raise InputError(f"{name}: the payload has {len(payload):,} bytes, not {length:,}")


@dataclass(frozen=True)
class Codec:
    """Compress vectors; the base class of all codecs.

    A new codec defines `layout`, `symbols` and `values`; the rest follows. `apply` may
    be written again where a loop without symbols is faster: a law holds the two equal.
    """

    label: ClassVar[str] = ""
    """Its name in text."""
    is_random: ClassVar[bool] = False
    """Whether it uses keys."""
    needs_ranks: ClassVar[bool] = False
    """Whether it needs the ranks of all called clients: then only their mean is usable."""
    has_fixed_size: ClassVar[bool] = True
    """Whether every vector takes the same number of bits."""
    is_cast: ClassVar[bool] = False
    """Whether it only rounds each number to a shorter format, or changes nothing."""

    @property
    def is_unbiased(self) -> bool:
        """Whether E C(v) = v; casts count as exact."""
        return self.omega(2**31 - 1) is not None  # whatever k is, d is larger

    def omega(self, d: int) -> float | None:
        """Return the variance of an unbiased codec: E|C(v)-v|^2 <= omega |v|^2, or None."""
        return None

    def alpha(self, d: int) -> float | None:
        """Return the contraction: E|C(v)-v|^2 <= (1-alpha)|v|^2, or None."""
        omega = self.omega(d)
        return 1.0 - omega if omega is not None and omega < 1.0 else None

    def gain(self, d: int, keys: Keys) -> float:
        """Return the factor that the receiver applies to the values, such as d/k for RandK."""
        return 1.0

    def gain_when_scaled(self, d: int) -> float:
        """Return the gain of `Scaled` of this codec."""
        omega = self.omega(d)
        return 1.0 if omega is None else 1.0 / (1.0 + omega)

    def layout(self, d: int, dtype: DTypeLike) -> list[Field]:
        """Return the parts of a row's payload."""
        raise NotImplementedError

    def symbols(self, v: Vector, keys: Keys) -> Parts:
        """Return what is sent, a (n, count) array for each part of the layout."""
        raise NotImplementedError

    def values(self, parts: Parts, d: int, dtype: DTypeLike, keys: Keys, gain: float) -> Vector:
        """Return the vectors that were sent, times the gain.

        Raises:
            InputError: No vector has these symbols.
        """
        raise NotImplementedError

    def transform(self, v: Vector, keys: Keys, gain: float) -> Vector:
        """Return what `values` makes of the symbols of v."""
        return self.values(self.symbols(v, keys), v.shape[1], v.dtype, keys, gain)

    def apply(self, v: Vector, keys: Keys) -> Vector:
        """Return what the receiver will see.

        Args:
            v: A vector for each client, (n, d), float64 or float32.
            keys: Their keys.

        Returns:
            The vectors after encoding and decoding, of the same shape and type.

        Raises:
            InputError: v has another shape or type, or the keys do not fit its rows.
        """
        return self.transform(self.check_rows(v, keys), keys, self.gain(v.shape[1], keys))

    def encode(self, v: Vector, keys: Keys) -> Payload:
        """Return the bytes to send: the rows' payloads one after the other, in whole bytes each.

        The arguments are those of `apply`.
        """
        return self.encode_rows(self.check_rows(v, keys), keys)

    def check_rows(self, v: Vector, keys: Keys) -> Vector:
        """Return v as a block of memory, for which alone the kernels are compiled.

        Raises:
            InputError: v does not have a row for each client, or a row does not have a key.
        """
        if not isinstance(v, np.ndarray) or v.ndim != 2:
            raise InputError(f"{self}: give an array of a row for each client, (n, d): v[None]")
        width_of(v.dtype)  # refuses other types
        if self.is_random and (not isinstance(keys, Keys) or len(keys.own) != len(v)):
            raise InputError(
                f"{self}: give a key for each of the {len(v)} rows: Keys.draw(seed, round, clients)"
            )
        return v if v.flags.c_contiguous and v.flags.writeable else np.array(v, order="C")

    def encode_rows(self, v: Vector, keys: Keys) -> Payload:
        """Encode rows that are one block of memory."""
        return write_rows(self.symbols(v, keys), self.layout(v.shape[1], v.dtype))

    def decode(self, payload: Payload, d: int, dtype: DTypeLike, keys: Keys) -> Vector:
        """Return the vectors that were sent, (n, d).

        Args:
            payload: The bytes from `encode`.
            d: The length of the vectors.
            dtype: The type of the numbers that were encoded.
            keys: The senders' keys, one for each vector.

        Raises:
            InputError: The payload has the wrong length or an impossible content.
        """
        return self.decode_with(payload, d, dtype, keys, self.gain(d, keys))

    def decode_with(
        self, payload: Payload, d: int, dtype: DTypeLike, keys: Keys, gain: float
    ) -> Vector:
        """Decode with another gain."""
        layout = self.layout(d, dtype)
        n = len(keys.own) if self.is_random else max(1, len(payload) // row_bytes(layout))
        return self.values(read_rows(payload, n, layout, str(self)), d, dtype, keys, gain)

    def bits(self, d: int, dtype: DTypeLike) -> int:
        """Return the bits of one vector, before padding; the largest if they vary."""
        return row_bits(self.layout(d, dtype))

    def sizes(self, d: int, dtype: DTypeLike, keys: Keys) -> Ints:
        """Return the bits of each row, before padding, (n,)."""
        return np.full(len(keys.own), self.bits(d, dtype), np.int64)

    def floats(self, d: int) -> int:
        """Return how many numbers a vector is sent as, of any width; the most if they vary."""
        return d

    def numbers(self, d: int, keys: Keys) -> Ints:
        """Return how many numbers each row is sent as, (n,)."""
        return np.full(len(keys.own), self.floats(d), np.int64)

    @classmethod
    def from_text(cls, text: str) -> Codec:
        """Return the codec that a text describes, as `as_codec` does."""
        return as_codec(text)

    def __str__(self) -> str:
        values = [getattr(self, field.name) for field in fields(self)]
        return self.label + "".join(f":{value!r}" for value in values if value is not None)


CODECS: Registry[type[Codec]] = Registry("codec")
"""Every codec by its name in text."""


def register_codec(name: str) -> Callable[[C], C]:
    """Register the decorated codec under a name."""
    return CODECS.register(name)


@register_codec("none")
@dataclass(frozen=True)
class Identity(Codec):
    """Send every number as it is.

    >>> Identity().bits(d=123, dtype="float64")
    7872
    """

    is_cast: ClassVar[bool] = True

    def omega(self, d: int) -> float:
        """Return 0: nothing is lost."""
        return 0.0

    def layout(self, d: int, dtype: DTypeLike) -> list[Field]:
        """Send d floats."""
        return [Field(d, width_of(dtype))]

    def symbols(self, v: Vector, keys: Keys) -> Parts:
        """Return the bits of the numbers."""
        return [bits_of(v)]

    def values(self, parts: Parts, d: int, dtype: DTypeLike, keys: Keys, gain: float) -> Vector:
        """Return the numbers with these bits."""
        return times(floats_of(parts[0], dtype), gain)

    def transform(self, v: Vector, keys: Keys, gain: float) -> Vector:
        """Return v itself."""
        return times(v, gain)


IDENTITY = Identity()
"""The codec that changes nothing."""


def times(v: Vector, gain: float) -> Vector:
    """Return v times gain, rounded once."""
    if gain == 1.0:
        return v
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.asarray(v, np.float64) * gain).astype(v.dtype, copy=False)


def as_codec(value: Any) -> Codec:
    """Return the codec that a text describes.

    Args:
        value: A codec, None, or text: "none", "float32", "randk:12", "topk:0.1" (a share of d),
            "scaled(randk:12)", "randk:12+natural".

    Returns:
        The codec; `as_codec(str(codec)) == codec`.

    Raises:
        InputError: The codec is unknown.

    >>> as_codec("randk:12")
    RandK(k=12)
    >>> str(as_codec("scaled(randk:0.1+natural)"))
    'scaled(randk:0.1+natural)'
    """
    if value is None:
        return IDENTITY
    if isinstance(value, Codec):
        return value
    if not isinstance(value, str):
        raise InputError(f"a codec is a text such as 'randk:12', not {short_repr(value)}")
    text = "".join(value.split()).lower()
    wrapper, inner = split_wrapper(text)
    parts = [_simple(part, value) for part in split_sum(inner)]
    if len(parts) > 2:
        raise InputError(f"codec {short_repr(value)}: at most two codecs can follow each other")
    codec: Any = CODECS["chain"](*parts) if len(parts) == 2 else parts[0]
    if wrapper not in ("", "scaled"):
        raise InputError(f"codec {short_repr(value)}: {_FORMS}")
    return CODECS["scaled"](codec) if wrapper else codec  # type: ignore[call-arg]


_FORMS = "write name, name:number, first+second or scaled(codec)"


def _simple(text: str, whole: str) -> Codec:
    """Parse "name" or "name:number"."""
    spec = parse(text)
    name = {"identity": "none", "scaledsign": "sign"}.get(spec.name, spec.name)
    if name in ("scaled", "chain") or not re.fullmatch(r"[a-z0-9_]*", name):
        raise InputError(f"codec {short_repr(whole)}: {_FORMS}")
    if name not in CODECS:
        raise InputError(f"{CODECS.unknown(name)} (see `fedpage codecs`)")
    return spec.build(CODECS[name], "codec")
