"""Sparsifiers: send some of the numbers. The others count as 0.

A sparsifier hands the numbers it keeps to a second codec: the identity, or the second of a `Chain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedpage.codecs import kernels
from fedpage.codecs.base import (
    IDENTITY,
    Codec,
    Field,
    Keys,
    Payload,
    Symbols,
    bits_of,
    check_count,
    check_length,
    count_of,
    read_rows,
    register_codec,
    row_bits,
    row_bytes,
    times,
    write_rows,
)
from fedpage.codecs.kernels import Positions
from fedpage.core import validate
from fedpage.core.errors import InputError
from fedpage.core.random import subsets
from fedpage.core.types import Ints, Vector

_SECOND = 1
"""The word of the second codec's keys below the sparsifier's keys."""


class Part(NamedTuple):
    """Rows that keep the same number of numbers, and which ones."""

    rows: Ints | None
    """(m,) row numbers, or None for all rows."""
    kept: int
    """How many numbers each of these rows keeps."""
    positions: Positions | None
    """(m, kept) where they are. If None, they are everywhere or in the payload."""


@dataclass(frozen=True)
class Sparsifier(Codec):
    """Keep some of the numbers; the base class of sparsifiers.

    A sparsifier defines `kept`, `parts`, `share` and `gain`, and its place in the payload if it has
    to say which numbers it keeps. A row that is in no part sends nothing.
    """

    def kept(self, d: int) -> int:
        """Return how many of d numbers a row keeps at most."""
        raise NotImplementedError

    def share(self, d: int) -> float:
        """Return the probability that a number is kept."""
        return self.kept(d) / d

    def parts(self, d: int, keys: Keys) -> list[Part]:
        """Return what rows keep, as far as client and server both know it."""
        raise NotImplementedError

    def choose(self, v: Vector, keys: Keys) -> list[Part]:
        """Return what the rows of v keep, as the client knows it."""
        return self.parts(v.shape[1], keys)

    def index_layout(self, d: int) -> list[Field]:
        """Return the parts of a payload that say which numbers are kept."""
        return []

    def index_symbols(self, positions: Positions | None, d: int) -> list[Symbols]:
        """Return what these parts hold."""
        return []

    def read_positions(self, parts: list[Symbols], part: Part, d: int) -> Positions | None:
        """Return which numbers are kept, from these parts or from the keys.

        Raises:
            InputError: No vector has these symbols.
        """
        return part.positions

    def gain_when_scaled(self, d: int) -> float:
        """Return 1: a sparsifier's gain is 1 + omega."""
        return 1.0

    def floats(self, d: int) -> int:
        """Return how many numbers are kept at most."""
        return self.kept(d)

    # A second codec, if there is one, compresses the kept numbers.

    def numbers(self, d: int, keys: Keys, second: Codec = IDENTITY) -> Ints:
        """Return how many numbers each row sends, (n,)."""
        out = np.zeros(len(keys.own), np.int64)
        for rows, count, _ in self.parts(d, keys):
            out[_index(rows)] = second.floats(count)
        return out

    def bits(self, d: int, dtype: DTypeLike, second: Codec = IDENTITY) -> int:
        """Return the bits of one vector, before padding; the largest if they vary."""
        return row_bits(self.index_layout(d) + second.layout(self.kept(d), dtype))

    def sizes(self, d: int, dtype: DTypeLike, keys: Keys, second: Codec = IDENTITY) -> Ints:
        """Return the bits of each row, before padding, (n,)."""
        if self.has_fixed_size:
            return np.full(len(keys.own), self.bits(d, dtype, second), np.int64)
        out = np.zeros(len(keys.own), np.int64)
        for rows, count, _ in self.parts(d, keys):
            out[_index(rows)] = row_bits(self.index_layout(d) + second.layout(count, dtype))
        return out

    def transform(self, v: Vector, keys: Keys, gain: float, second: Codec = IDENTITY) -> Vector:
        """Return the vectors that the receiver will see."""
        chosen = self.choose(v, keys)
        if second is IDENTITY and len(chosen) == 1 and chosen[0].rows is None:
            out: Vector = kernels.spread(v, chosen[0].positions, gain)
            return out
        out = np.zeros_like(v)
        for rows, _, positions in chosen:
            seen = second.transform(
                _take(v, rows, positions), _keys_of_second(keys, rows, second), 1.0
            )
            _put(seen, rows, positions, gain, out)
        return out

    def encode_rows(self, v: Vector, keys: Keys, second: Codec = IDENTITY) -> Payload:
        """Return the bytes to send."""
        d = v.shape[1]
        sent = []
        for rows, count, positions in self.choose(v, keys):
            layout = second.layout(count, v.dtype) + self.index_layout(d)
            symbols = second.symbols(_take(v, rows, positions), _keys_of_second(keys, rows, second))
            symbols += self.index_symbols(positions, d)
            sent.append((rows, write_rows(symbols, layout), row_bytes(layout)))
        if len(sent) == 1 and sent[0][0] is None:
            return sent[0][1]
        sizes = -(-self.sizes(d, v.dtype, keys, second) // 8)
        payload = np.zeros(int(sizes.sum()), np.uint8)
        for rows, own, size in sent:
            payload[_bytes_of(rows, sizes, size)] = own
        return payload

    def decode_with(
        self, payload: Payload, d: int, dtype: DTypeLike, keys: Keys, gain: float,
        second: Codec = IDENTITY,
    ) -> Vector:  # fmt: skip
        """Return the vectors that were sent."""
        index, name = self.index_layout(d), str(self)
        sizes = -(-self.sizes(d, dtype, keys, second) // 8)
        if self.is_random or second.is_random:
            n = len(keys.own)
            check_length(payload, int(sizes.sum()), name)
        else:
            n = self.count_rows(payload, -(-self.bits(d, dtype, second) // 8), keys)
        out: Vector = np.zeros((n, d), dtype)
        for part in self.parts(d, keys):
            rows, count, _ = part
            layout = second.layout(count, dtype) + index
            own = payload if rows is None else payload[_bytes_of(rows, sizes, row_bytes(layout))]
            symbols = read_rows(own, n if rows is None else len(rows), layout, name)
            positions = self.read_positions(symbols[len(layout) - len(index) :], part, d)
            second_keys = _keys_of_second(keys, rows, second)
            seen = second.values(symbols, count, dtype, second_keys, 1.0)
            _put(seen, rows, positions, gain, out)
        return out


def _index(rows: Ints | None) -> Ints | slice:
    return slice(None) if rows is None else rows


def _keys_of_second(keys: Keys, rows: Ints | None, second: Codec) -> Keys:
    """Return the second codec's keys, whose streams differ from the sparsifier's."""
    if rows is not None:
        keys = keys.at(rows)
    return keys.below(_SECOND) if second.is_random else keys


def _take(v: Vector, rows: Ints | None, positions: Positions | None) -> Vector:
    """Return the kept numbers, (m, count)."""
    own = v if rows is None else v[rows]
    out: Vector = own if positions is None else kernels.gather(own, positions)
    return out


def _put(
    values: Vector, rows: Ints | None, positions: Positions | None, gain: float, out: Vector
) -> None:
    """Write kept numbers times the gain to their places."""
    if positions is None:
        out[_index(rows)] = times(values, gain)
    elif rows is None:
        kernels.scatter(values, positions, gain, out)
    else:
        own = np.zeros((len(rows), out.shape[1]), out.dtype)
        kernels.scatter(values, positions, gain, own)
        out[rows] = own


def _bytes_of(rows: Ints | None, sizes: Ints, size: int) -> Ints:
    """Return where the payloads of these rows are, each of `size` bytes."""
    starts = np.cumsum(sizes) - sizes
    places: Ints = (starts[_index(rows)][:, None] + np.arange(size)).ravel()
    return places


@register_codec("randk")
@dataclass(frozen=True)
class RandK(Sparsifier):
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

    def kept(self, d: int) -> int:
        """Return k."""
        return count_of(self, self.k, d)

    def omega(self, d: int) -> float:
        """Return d/k - 1."""
        return d / self.kept(d) - 1.0

    def gain(self, d: int, keys: Keys) -> float:
        """Return d/k."""
        return d / self.kept(d)

    def parts(self, d: int, keys: Keys) -> list[Part]:
        """Draw k positions for each row."""
        k = self.kept(d)
        return [Part(None, k, subsets(keys.own, d, k))]


@register_codec("permk")
@dataclass(frozen=True)
class PermK(Sparsifier):
    """Send a block of a random partition of the numbers, which the called clients share.

    The n called clients send d/n numbers each, times n, so the mean has every number from one of
    them (Szlendak, Tyurin, Richtárik 2021). Each number is equally likely to come from any client:
    the mean is unbiased, has variance mean |v_i|^2 - |mean v_i|^2, and is exact if all clients
    agree. With some of the called clients missing it would be biased. A client alone has
    omega = n - 1.

    Args:
        n: How many clients are called. If None, any number may be, and `omega` is the bound d - 1,
            because n is at most d.

    >>> PermK(20).bits(d=123, dtype="float64"), PermK(20).omega(d=123)  # 7 numbers, or 6
    (448, 19.0)
    """

    n: int | None = None
    is_random: ClassVar[bool] = True
    needs_ranks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.plain(self)
        if self.n is not None:
            validate.whole(self.label, "n", self.n)

    @property
    def has_fixed_size(self) -> bool:
        """Whether every row keeps equally many numbers: no, unless n divides d."""
        return False

    def kept(self, d: int) -> int:
        """Return d/n, rounded up."""
        n = 1 if self.n is None else self.n
        self._check_clients(n, d)
        return -(-d // n)

    def share(self, d: int) -> float:
        """Return 1/n."""
        return 1.0 / (d if self.n is None else self.n)

    def omega(self, d: int) -> float:
        """Return n - 1, or its bound d - 1 if n is not known."""
        return (d if self.n is None else self.n) - 1.0

    def gain(self, d: int, keys: Keys) -> float:
        """Return the number of called clients."""
        return float(keys.called)

    def parts(self, d: int, keys: Keys) -> list[Part]:
        """Cut a shared permutation into n blocks, of two lengths if n does not divide d."""
        ranks = self._check_ranks(d, keys)
        # which client has which block is random too: else those with longer blocks weigh more
        order, blocks = kernels.partition(keys.shared, d, keys.called)
        block = blocks[ranks].astype(np.int64)
        short, longer = divmod(d, keys.called)
        found = []
        for count, is_in in ((short + 1, block < longer), (short, block >= longer)):
            rows = np.flatnonzero(is_in)
            if len(rows):
                starts = block[rows] * short + np.minimum(block[rows], longer)
                found.append(Part(rows, count, order[starts[:, None] + np.arange(count)]))
        return found

    def transform(self, v: Vector, keys: Keys, gain: float, second: Codec = IDENTITY) -> Vector:
        """Return the vectors that the receiver will see; without a second codec in one loop."""
        if second is not IDENTITY:
            return super().transform(v, keys, gain, second)
        ranks = self._check_ranks(v.shape[1], keys)
        order, blocks = kernels.partition(keys.shared, v.shape[1], keys.called)
        out: Vector = kernels.spread_blocks(v, order, blocks, ranks, gain)
        return out

    def _check_ranks(self, d: int, keys: Keys) -> Ints:
        n, ranks = keys.called, keys.ranks
        if ranks is None or n < 1 or (len(ranks) and not 0 <= ranks.min() <= ranks.max() < n):
            raise InputError("permk: needs the number of called clients and each client's rank")
        if self.n not in (None, n):
            raise InputError(
                f"{self}: {n} clients are called, not {self.n}; write permk:{n}, or permk for any "
                "number"
            )
        self._check_clients(n, d)
        return ranks

    def _check_clients(self, n: int, d: int) -> None:
        if n > d:
            raise InputError(f"{self}: {n} clients cannot share {d} numbers; use another codec")


@register_codec("topk")
@dataclass(frozen=True)
class TopK(Sparsifier):
    """Send the k numbers with the largest absolute values, and their positions.

    Contractive with alpha = k/d. Of equal absolute values the one at the lower position is kept;
    NaN counts as the largest. Positions take the smaller of k ceil(log2 d) bits (a list) and d bits
    (a bitmap).

    Args:
        k: How many numbers to send: a whole number, or a share of d between 0 and 1.

    >>> TopK(12).bits(d=123, dtype="float64")  # 12 * 64 + 12 * 7
    852
    """

    k: float

    def __post_init__(self) -> None:
        validate.plain(self)
        check_count(self, "k", self.k)

    def kept(self, d: int) -> int:
        """Return k."""
        return count_of(self, self.k, d)

    def alpha(self, d: int) -> float:
        """Return k/d."""
        return self.kept(d) / d

    def parts(self, d: int, keys: Keys) -> list[Part]:
        """Leave the positions to the payload."""
        return [Part(None, self.kept(d), None)]

    def choose(self, v: Vector, keys: Keys) -> list[Part]:
        """Find the k largest absolute values of each row."""
        k = self.kept(v.shape[1])
        bits = bits_of(np.asarray(v, np.float64))
        return [Part(None, k, kernels.largest(bits, k))]

    def index_layout(self, d: int) -> list[Field]:
        """Send a list of positions or a bitmap, whichever is shorter."""
        return [Field(self.kept(d), _position_bits(d)) if self.sends_list(d) else Field(d, 1)]

    def sends_list(self, d: int) -> bool:
        """Return whether a list of positions is no longer than a bitmap."""
        return self.kept(d) * _position_bits(d) <= d

    def index_symbols(self, positions: Positions | None, d: int) -> list[Symbols]:
        """Return the list of positions, or the bitmap."""
        assert positions is not None
        if self.sends_list(d):
            return [positions.astype(np.uint64)]
        bitmap = np.zeros((len(positions), d), np.uint64)
        np.put_along_axis(bitmap, positions.astype(np.int64), np.uint64(1), axis=1)
        return [bitmap]

    def read_positions(self, parts: list[Symbols], part: Part, d: int) -> Positions:
        """Return the positions; a list must be ascending, and a bitmap must have k ones."""
        (symbols,) = parts
        if self.sends_list(d):
            if (symbols >= d).any() or (symbols[:, 1:] <= symbols[:, :-1]).any():
                raise InputError(f"{self}: positions must be ascending and below {d}")
            return symbols.astype(np.uint32)
        if (symbols.sum(axis=1) != part.kept).any():
            raise InputError(f"{self}: the bitmap does not have {part.kept} ones")
        positions: Positions = kernels.ones(symbols, part.kept)
        return positions


def _position_bits(d: int) -> int:
    """Return ceil(log2 d)."""
    return (d - 1).bit_length()


@register_codec("bernoulli")
@dataclass(frozen=True)
class Bernoulli(Sparsifier):
    """Send all numbers, times 1/q, with probability q, and nothing otherwise.

    Unbiased with omega = 1/q - 1. The server draws the same coin from the client's key, so it knows
    who sends, and a client that does not send costs nothing.

    Args:
        q: The probability of sending, in (0, 1].
    """

    q: float
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.probability(self.label, "q", self.q)

    @property
    def has_fixed_size(self) -> bool:
        """Whether every row takes the same number of bits: only if all are sent."""
        return self.q == 1.0

    def kept(self, d: int) -> int:
        """Return d."""
        return d

    def share(self, d: int) -> float:
        """Return q."""
        return self.q

    def omega(self, d: int) -> float:
        """Return 1/q - 1."""
        return 1.0 / self.q - 1.0

    def gain(self, d: int, keys: Keys) -> float:
        """Return 1/q."""
        return 1.0 / self.q

    def parts(self, d: int, keys: Keys) -> list[Part]:
        """Throw each row's coin."""
        return [Part(np.flatnonzero(kernels.coins(keys.own) < self.q), d, None)]
