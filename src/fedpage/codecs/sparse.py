"""Sparsifiers: send some of the numbers. The others count as 0.

A sparsifier hands the numbers it keeps to a second codec: the identity, or the second of a `Chain`.
"""

from __future__ import annotations

from collections.abc import Callable
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
    Parts,
    Payload,
    bits_of,
    check_length,
    read_rows,
    register_codec,
    row_bits,
    times,
    write_rows,
)
from fedpage.codecs.kernels import Positions
from fedpage.core import validate
from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import coins, subsets
from fedpage.core.types import Ints, Vector

_SECOND = 1
"""The word of the second codec's keys below the sparsifier's keys."""


class Group(NamedTuple):
    """Rows that keep equally many numbers, and the positions of these numbers."""

    rows: Ints
    """(m,) row numbers, ascending."""
    kept: int
    """How many numbers each of these rows keeps."""
    positions: Positions | None
    """(m, kept). If None, all numbers are kept or the payload has the positions."""

    def take(self, v: Vector) -> Vector:
        """Return the kept numbers of these rows, (m, kept)."""
        if self.positions is None:
            return v[self.rows]
        taken: Vector = kernels.gather(v, self.rows, self.positions)
        return taken

    def put(self, values: Vector, gain: float, out: Vector) -> None:
        """Write kept numbers times the gain to their places in out, (n, d)."""
        if self.positions is None:
            out[self.rows] = times(values, gain)
        else:
            kernels.scatter(values, self.rows, self.positions, gain, out)


@dataclass(frozen=True)
class Sparsifier(Codec):
    """Keep some of the numbers; the base class of sparsifiers.

    A sparsifier defines `kept`, `groups`, `share` and `gain`. If the keys do not tell which numbers
    it keeps, it also defines `choose` and the index, a part of the payload. A row that is in no
    group sends nothing.
    """

    def kept(self, d: int) -> int:
        """Return how many of d numbers a row keeps at most."""
        raise NotImplementedError

    def share(self, d: int) -> float:
        """Return the probability that a number is kept."""
        return self.kept(d) / d

    def groups(self, n: int, d: int, keys: Keys) -> list[Group]:
        """Return what n rows keep, as far as client and server both know it."""
        raise NotImplementedError

    def choose(self, v: Vector, keys: Keys) -> list[Group]:
        """Return what the rows of v keep, as the client knows it."""
        return self.groups(len(v), v.shape[1], keys)

    def index_layout(self, d: int) -> list[Field]:
        """Return the parts of a payload that say which numbers are kept."""
        return []

    def index_symbols(self, positions: Positions | None, d: int) -> Parts:
        """Return the symbols of the index."""
        return []

    def read_positions(self, index: Parts, group: Group, d: int) -> Positions | None:
        """Return which numbers are kept, from the index or from the keys.

        Raises:
            InputError: No vector has these symbols.
        """
        return group.positions

    def gain_when_scaled(self, d: int) -> float:
        """Return 1: a sparsifier's gain is 1 + omega."""
        return 1.0

    def floats(self, d: int) -> int:
        """Return how many numbers are kept at most."""
        return self.kept(d)

    # A second codec, if there is one, compresses the kept numbers.

    def numbers(self, d: int, keys: Keys, second: Codec = IDENTITY) -> Ints:
        """Return how many numbers each row sends, (n,)."""
        return self._measure(d, keys, second.floats)

    def bits(self, d: int, dtype: DTypeLike, second: Codec = IDENTITY) -> int:
        """Return the bits of one vector, before padding; the largest if they vary."""
        return row_bits(self.index_layout(d) + second.layout(self.kept(d), dtype))

    def sizes(self, d: int, dtype: DTypeLike, keys: Keys, second: Codec = IDENTITY) -> Ints:
        """Return the bits of each row, before padding, (n,)."""
        index = self.index_layout(d)
        return self._measure(d, keys, lambda kept: row_bits(index + second.layout(kept, dtype)))

    def _measure(self, d: int, keys: Keys, measure: Callable[[int], int]) -> Ints:
        """Return a measure of how many numbers each row keeps, 0 for rows that send nothing."""
        out = np.zeros(len(keys.own), np.int64)
        for group in self.groups(len(out), d, keys):
            out[group.rows] = measure(group.kept)
        return out

    def transform(self, v: Vector, keys: Keys, gain: float, second: Codec = IDENTITY) -> Vector:
        """Return the vectors that the receiver will see."""
        chosen = self.choose(v, keys)
        if second is IDENTITY and len(chosen) == 1 and chosen[0].positions is not None:
            out: Vector = kernels.spread(v, chosen[0].rows, chosen[0].positions, gain)
            return out
        out = np.zeros_like(v)
        for group in chosen:
            own = _keys_of_second(keys, group, second)
            group.put(second.transform(group.take(v), own, 1.0), gain, out)
        return out

    def encode_rows(self, v: Vector, keys: Keys, second: Codec = IDENTITY) -> Payload:
        """Return the bytes to send."""
        n, d = v.shape
        payload = np.empty(0, np.uint8)
        for group in self.choose(v, keys):
            layout = second.layout(group.kept, v.dtype) + self.index_layout(d)
            symbols = second.symbols(group.take(v), _keys_of_second(keys, group, second))
            sent = write_rows(symbols + self.index_symbols(group.positions, d), layout)
            if len(group.rows) == n:
                return sent
            sizes = -(-self.sizes(d, v.dtype, keys, second) // 8)
            payload = payload if len(payload) else np.zeros(int(sizes.sum()), np.uint8)
            payload[_bytes_of(group.rows, sizes)] = sent
        return payload

    def decode_with(
        self, payload: Payload, d: int, dtype: DTypeLike, keys: Keys, gain: float,
        second: Codec = IDENTITY,
    ) -> Vector:  # fmt: skip
        """Return the vectors that were sent."""
        index, name = self.index_layout(d), str(self)
        size = -(-self.bits(d, dtype, second) // 8)
        is_random = self.is_random or second.is_random
        n = len(keys.own) if is_random else max(1, len(payload) // size)
        sizes = np.full(n, size)
        if not self.has_fixed_size:
            sizes = -(-self.sizes(d, dtype, keys, second) // 8)
        check_length(payload, int(sizes.sum()), name)
        out: Vector = np.zeros((n, d), dtype)
        for group in self.groups(n, d, keys):
            rows, kept, _ = group
            layout = second.layout(kept, dtype) + index
            sent = payload if len(rows) == n else payload[_bytes_of(rows, sizes)]
            symbols = read_rows(sent, len(rows), layout, name)
            positions = self.read_positions(symbols[len(layout) - len(index) :], group, d)
            own = _keys_of_second(keys, group, second)
            values = second.values(symbols, kept, dtype, own, 1.0)
            group._replace(positions=positions).put(values, gain, out)
        return out


def _keys_of_second(keys: Keys, group: Group, second: Codec) -> Keys:
    """Return the second codec's keys, whose streams differ from the sparsifier's."""
    return keys.at(group.rows).below(_SECOND) if second.is_random else keys


def _bytes_of(rows: Ints, sizes: Ints) -> Ints:
    """Return where the payloads of these rows are, which are equally long."""
    starts = np.cumsum(sizes) - sizes
    places: Ints = (starts[rows][:, None] + np.arange(sizes[rows].max(initial=0))).ravel()
    return places


@dataclass(frozen=True)
class _KeepK(Sparsifier):
    """Keep k numbers of each row; the base class of RandK and TopK."""

    k: float

    def __post_init__(self) -> None:
        validate.plain(self)
        if not isinstance(self.k, float):
            validate.whole(self.label, "k", self.k)
        elif not 0.0 < self.k < 1.0:
            raise InputError(
                f"{self.label}: k must be a whole number, or a share of d between 0 and 1, "
                f"not {short_repr(self.k)}"
            )

    def kept(self, d: int) -> int:
        """Return k, or this share of d, at least 1.

        Raises:
            InputError: There are fewer than k numbers.
        """
        k = max(1, round(self.k * d)) if isinstance(self.k, float) else int(self.k)
        if k > d:
            raise InputError(f"{self}: cannot keep {k} of {d} numbers; choose k of at most {d}")
        return k


@register_codec("randk")
@dataclass(frozen=True)
class RandK(_KeepK):
    """Send k numbers that are chosen uniformly at random, times d/k.

    Unbiased with omega = d/k - 1. Client and server draw the same positions from the client's key,
    so no positions are sent.

    Args:
        k: How many numbers to send: a whole number, or a share of d between 0 and 1.

    >>> RandK(12).bits(d=123, dtype="float64"), RandK(12).omega(d=123)
    (768, 9.25)
    """

    is_random: ClassVar[bool] = True

    def omega(self, d: int) -> float:
        """Return d/k - 1."""
        return d / self.kept(d) - 1.0

    def gain(self, d: int, keys: Keys) -> float:
        """Return d/k."""
        return d / self.kept(d)

    def groups(self, n: int, d: int, keys: Keys) -> list[Group]:
        """Draw k positions for each row."""
        k = self.kept(d)
        return [Group(np.arange(n), k, subsets(keys.own, d, k))]


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
    has_fixed_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate.plain(self)
        if self.n is not None:
            validate.whole(self.label, "n", self.n)

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

    def groups(self, n: int, d: int, keys: Keys) -> list[Group]:
        """Cut a shared permutation into a block for each called client, of at most two lengths."""
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
                found.append(Group(rows, count, order[starts[:, None] + np.arange(count)]))
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
class TopK(_KeepK):
    """Send the k numbers with the largest absolute values, and their positions.

    Contractive with alpha = k/d. Of equal absolute values the one at the lower position is kept;
    NaN counts as the largest. Positions take the smaller of k ceil(log2 d) bits (a list) and d bits
    (a bitmap).

    Args:
        k: How many numbers to send: a whole number, or a share of d between 0 and 1.

    >>> TopK(12).bits(d=123, dtype="float64")  # 12 * 64 + 12 * 7
    852
    """

    def alpha(self, d: int) -> float:
        """Return k/d."""
        return self.kept(d) / d

    def groups(self, n: int, d: int, keys: Keys) -> list[Group]:
        """Leave the positions to the payload."""
        return [Group(np.arange(n), self.kept(d), None)]

    def choose(self, v: Vector, keys: Keys) -> list[Group]:
        """Find the k largest absolute values of each row."""
        n, d = v.shape
        k = self.kept(d)
        bits = bits_of(np.asarray(v, np.float64))
        return [Group(np.arange(n), k, kernels.largest(bits, k))]

    def index_layout(self, d: int) -> list[Field]:
        """Send a list of positions or a bitmap, whichever is shorter."""
        return [Field(self.kept(d), _position_bits(d)) if self.sends_list(d) else Field(d, 1)]

    def sends_list(self, d: int) -> bool:
        """Return whether a list of positions is no longer than a bitmap."""
        return self.kept(d) * _position_bits(d) <= d

    def index_symbols(self, positions: Positions | None, d: int) -> Parts:
        """Return the list of positions, or the bitmap."""
        assert positions is not None
        if self.sends_list(d):
            return [positions.astype(np.uint64)]
        bitmap = np.zeros((len(positions), d), np.uint64)
        np.put_along_axis(bitmap, positions.astype(np.int64), np.uint64(1), axis=1)
        return [bitmap]

    def read_positions(self, index: Parts, group: Group, d: int) -> Positions:
        """Return the positions; a list must be ascending, and a bitmap must have k ones."""
        (symbols,) = index
        if self.sends_list(d):
            if (symbols >= d).any() or (symbols[:, 1:] <= symbols[:, :-1]).any():
                raise InputError(f"{self}: positions must be ascending and below {d}")
            return symbols.astype(np.uint32)
        if (symbols.sum(axis=1) != group.kept).any():
            raise InputError(f"{self}: the bitmap does not have {group.kept} ones")
        columns = np.broadcast_to(np.arange(d, dtype=np.uint32), symbols.shape)
        return columns[symbols > 0].reshape(-1, group.kept)


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
    def has_fixed_size(self) -> bool:  # type: ignore[override]
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

    def groups(self, n: int, d: int, keys: Keys) -> list[Group]:
        """Throw each row's coin."""
        return [Group(np.flatnonzero(coins(keys.own) < self.q), d, None)]
