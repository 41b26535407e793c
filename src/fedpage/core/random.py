"""Draw random numbers as pure functions of (seed, purpose, round, client, draw).

No generator advances: the same arguments give the same numbers. So a run has the same bits on any
number of threads, with any chunking of clients, in the simulator or on a real federation, and after
a resume.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood 2014, with Stafford's
constants). Bounded integers come from Lemire's multiplication (2019) with its rejection step, and
subsets from Floyd's algorithm (1987), which costs O(S) for any N.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedpage.core.errors import InputError, short_repr
from fedpage.core.jit import Kernel, compile_kernel
from fedpage.core.types import Flags, Ints, Keys64, Rows, Vector

COIN, CLIENTS, BATCH, DATA, FAULTS, CODEC, CODEC_SHARED, STEPS, ORDER, EPOCH = range(1, 11)
WEIGHTED, INDEPENDENT, NORMAL = range(11, 14)
"""Purposes, which keep the streams of random numbers apart."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
_S30, _S27, _S31, _S32, _S11 = (np.uint64(s) for s in (30, 27, 31, 32, 11))
_ONE = np.uint64(1)
_UNIT = 2.0**-53
_SMALL = 24
"""Subsets of at most this many are searched for a duplicate one by one, larger ones by a table."""


def _inline(function: Kernel) -> Kernel:
    return compile_kernel(function, inline="always")


@_inline
def _mix(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


@compile_kernel
def _fold(key: np.uint64, word: np.uint64) -> np.uint64:
    """Return the key of the stream `word` below `key`."""
    return _mix(_mix(key + _GOLDEN) ^ (word + _GOLDEN))


@compile_kernel
def _floyd(
    key: np.uint64, n: int, k: int, table: NDArray[np.int64], out: NDArray[np.uint32]
) -> None:
    """Write k of the numbers 0..n-1, without replacement, into out.

    table is scratch space: a power of two of at least 2k entries.
    """
    mask = np.int64(len(table) - 1)
    state = key
    word, half_left = key, False
    small = k <= _SMALL
    if not small:
        table[:] = -1
    for filled in range(k):
        top = n - k + filled
        bound = np.uint64(top + 1)
        while True:
            if half_left:  # two numbers of 32 bits from each mixing
                word = word >> _S32
            else:
                state = state + _GOLDEN
                word = _mix(state)
            half_left = not half_left
            product = (word & _LOW) * bound
            low = product & _LOW
            if low >= bound or low >= ((_LOW - bound + _ONE) % bound):
                break
        pick = np.int64(product >> _S32)
        if small:
            for i in range(filled):
                if np.int64(out[i]) == pick:
                    pick = np.int64(top)
                    break
        else:
            slot = pick & mask
            while table[slot] >= 0:
                if table[slot] == pick:
                    pick = np.int64(top)
                    break
                slot = (slot + 1) & mask
            slot = pick & mask
            while table[slot] >= 0:
                slot = (slot + 1) & mask
            table[slot] = pick
        out[filled] = np.uint32(pick)


@compile_kernel
def _scratch(k: int) -> NDArray[np.int64]:
    size = 64
    while size < 2 * k:
        size *= 2
    return np.empty(size, np.int64)


@compile_kernel
def _round_keys(run: NDArray[np.uint64], r: int, keys: NDArray[np.uint64]) -> None:
    """Write the keys (3,) of round r below the run's keys (3,)."""
    for purpose in range(len(run)):
        keys[purpose] = _fold(run[purpose], np.uint64(r))


@compile_kernel
def _choose(keys: NDArray[np.uint64], n: int, k: int) -> NDArray[np.int64]:
    drawn = np.empty(k, np.uint32)
    _floyd(keys[1], n, k, _scratch(k), drawn)
    if k > 64:
        return np.sort(drawn).astype(np.int64)
    out = np.empty(k, np.int64)
    for i in range(k):  # insertion sort: faster than numpy's for the few clients of a round
        value = np.int64(drawn[i])
        j = i
        while j > 0 and out[j - 1] > value:
            out[j] = out[j - 1]
            j -= 1
        out[j] = value
    return out


@compile_kernel
def _minibatches(
    keys: NDArray[np.uint64],
    clients: NDArray[np.int64],
    sizes: NDArray[np.int64],
    b: int,
    first: int,
    count: int,
) -> NDArray[np.uint32]:
    n = len(clients)
    width = 0
    for i in range(n):
        width = max(width, min(b, sizes[i]))
    out = np.empty((n, count, width), np.uint32)
    table = _scratch(width)
    for i in range(n):
        M = sizes[i]
        if b >= M:
            for draw in range(count):
                for j in range(width):
                    out[i, draw, j] = np.uint32(j if j < M else 0)
            continue
        mine = _fold(keys[2], np.uint64(clients[i]))
        for draw in range(count):
            key = _fold(mine, np.uint64(first + draw))
            if b > _SMALL:
                _floyd(key, M, b, table, out[i, draw])
                continue
            # _floyd for few rows, written here again: handing out[i, draw] to a function would
            # cost as much as the draw (measured by benchmarks/rounds.py)
            word, half_left = key, False
            for filled in range(b):
                top = M - b + filled
                bound = np.uint64(top + 1)
                while True:
                    if half_left:
                        word = word >> _S32
                    else:
                        key = key + _GOLDEN
                        word = _mix(key)
                    half_left = not half_left
                    product = (word & _LOW) * bound
                    low = product & _LOW
                    if low >= bound or low >= ((_LOW - bound + _ONE) % bound):
                        break
                pick = np.uint32(product >> _S32)
                is_taken = False
                for j in range(filled):  # without a branch, which could not be predicted
                    is_taken |= out[i, draw, j] == pick
                out[i, draw, filled] = np.uint32(top) if is_taken else pick
    return out


@compile_kernel
def _uniforms(key: np.uint64, n: int) -> NDArray[np.float64]:
    out = np.empty(n)
    state = key
    for i in range(n):
        state = state + _GOLDEN
        out[i] = np.float64(_mix(state) >> _S11) * _UNIT
    return out


@_inline
def word_at(key: np.uint64, i: int) -> np.uint64:
    """Return word i of a key's stream: 64 random bits."""
    return _mix(key + np.uint64(i + 1) * _GOLDEN)


@compile_kernel
def coins(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each key, the first of its stream, (n,)."""
    out = np.empty(len(keys))
    for i in range(len(keys)):
        out[i] = np.float64(word_at(keys[i], 0) >> _S11) * _UNIT
    return out


@compile_kernel
def _coin(keys: NDArray[np.uint64]) -> float:
    return np.float64(word_at(keys[0], 0) >> _S11) * _UNIT


@compile_kernel
def subsets(keys: NDArray[np.uint64], n: int, k: int) -> NDArray[np.uint32]:
    """Draw k of the numbers 0..n-1 for each key, without replacement, in any order, (rows, k)."""
    out = np.empty((len(keys), k), np.uint32)
    table = _scratch(k)
    for i in range(len(keys)):
        _floyd(keys[i], n, k, table, out[i])
    return out


@compile_kernel
def shuffle(key: np.uint64, n: int) -> NDArray[np.uint32]:
    """Draw a permutation of 0..n-1 (Fisher and Yates)."""
    out = np.arange(n).astype(np.uint32)
    state = key
    for top in range(n - 1, 0, -1):
        bound = np.uint64(top + 1)
        while True:
            state = state + _GOLDEN
            product = (_mix(state) >> _S32) * bound
            low = product & _LOW
            if low >= bound or low >= ((_LOW - bound + _ONE) % bound):
                break
        pick = np.int64(product >> _S32)
        out[top], out[pick] = out[pick], out[top]
    return out


@compile_kernel
def _row_orders(
    key: np.uint64, clients: NDArray[np.int64], sizes: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.uint32]:
    out = np.zeros((len(clients), sizes.max()), np.uint32)
    for i in range(len(clients)):
        own = _fold(_fold(key, np.uint64(clients[i])), np.uint64(numbers[i]))
        out[i, : sizes[i]] = shuffle(own, sizes[i])
    return out


@compile_kernel
def fold_each(keys: NDArray[np.uint64], word: np.uint64) -> NDArray[np.uint64]:
    """Return the key of the stream `word` below each of the keys, (n,)."""
    out = np.empty_like(keys)
    for i in range(len(keys)):
        out[i] = _fold(keys[i], word)
    return out


@compile_kernel
def _client_keys(key: np.uint64, clients: NDArray[np.int64]) -> NDArray[np.uint64]:
    out = np.empty(len(clients), np.uint64)
    for i in range(len(clients)):
        out[i] = _fold(key, np.uint64(clients[i]))
    return out


@lru_cache(maxsize=64)
def _run_keys(seed: int) -> NDArray[np.uint64]:
    """Return the part of a round's keys that all rounds of a run share, by purpose, (3,)."""
    return np.array([_key(seed, purpose) for purpose in (COIN, CLIENTS, BATCH)], dtype=np.uint64)


def check_seed(seed: int) -> int:
    """Return the seed if it is a whole number of 64 bits.

    Raises:
        InputError: It is not.
    """
    is_whole = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if not is_whole or not 0 <= int(seed) < 2**64:
        raise InputError(f"seed must be a whole number from 0 to 2**64-1, not {short_repr(seed)}")
    return int(seed)


class RoundDraws:
    """Draw the random numbers of one round of one run.

    Args:
        seed: The run's seed.
        round: The round's number.

    >>> draws = RoundDraws(seed=0, round=7)
    >>> bool((draws.clients(N=1000, S=3) == RoundDraws(0, 7).clients(1000, 3)).all())
    True
    >>> draws.clients(N=4, S=4).tolist()
    [0, 1, 2, 3]
    """

    __slots__ = ("_keys", "_seed", "round")

    def __init__(self, seed: int, round: int) -> None:
        self.round, self._seed = round, seed
        self._keys = np.empty(3, dtype=np.uint64)
        _round_keys(_run_keys(seed), round, self._keys)

    def coin(self, p: float) -> bool:
        """Return u < p, where u depends on seed and round only."""
        return bool(_coin(self._keys) < p)

    def geometric(self, p: float) -> int:
        """Draw the number of tosses of a coin of probability p up to its first success.

        It is 1 + floor(log(1-u)/log(1-p)), where u depends on seed and round only and has 53 bits;
        so it is at most 1 + 36.8/p.

        >>> [RoundDraws(0, r).geometric(0.2) for r in range(5)], RoundDraws(0, 0).geometric(1.0)
        ([1, 6, 9, 13, 12], 1)
        """
        if p >= 1.0:
            return 1
        u = float(_uniforms(_key(self._seed, STEPS, self.round), 1)[0])
        return 1 + math.floor(math.log1p(-u) / math.log1p(-p))

    def clients(self, N: int, S: int, ago: int = 0) -> Ints:
        """Sample S of N clients without replacement, ascending, in O(S).

        >>> now, next_round = RoundDraws(0, 7), RoundDraws(0, 8)
        >>> bool((next_round.clients(1000, 3, ago=1) == now.clients(1000, 3)).all())
        True
        """
        if S >= N:
            return np.arange(N, dtype=np.int64)
        if ago:
            return RoundDraws(self._seed, self.round - ago).clients(N, S)
        if N > 2**32 - 1:
            raise InputError(f"clients are numbered in 32 bits: {N:,} are too many")
        return _choose(self._keys, N, S)

    def weighted_clients(self, weights: Vector, S: int) -> Ints:
        """Sample S clients, client i with probability p_i = S w_i/sum(w), ascending.

        This is systematic sampling of the clients in a random order (Madow 1949).

        Args:
            weights: Weights w_i > 0, (N,).
            S: The number of clients.

        Raises:
            InputError: If a p_i is above 1 or a weight is not positive.

        >>> RoundDraws(0, 7).weighted_clients(np.array([1.0, 2.0, 1.0, 4.0]), 2).tolist()
        [1, 3]
        """
        weights = np.asarray(weights, dtype=np.float64)
        p = S * (weights / weights.sum())
        if not (weights > 0).all() or not float(p.max()) <= 1.0 + 1e-9:
            raise InputError(
                f"weights must be positive and each at most 1/S = 1/{S} of their sum, so that no "
                "client is sampled with a probability above 1"
            )
        key = _key(self._seed, WEIGHTED, self.round)
        order = shuffle(key, len(p)).astype(np.int64)
        u = float(_uniforms(np.uint64(_fold(key, _ONE)), 1)[0])
        ends = np.minimum(np.cumsum(p[order]), S)  # the last is S but for rounding
        return np.sort(order[np.searchsorted(ends[:-1], np.arange(S) + u, side="right")])

    def independent_clients(self, p: Vector) -> Ints:
        """Sample each client by itself with probability p_i, ascending, perhaps none.

        Args:
            p: Probabilities, (N,).

        >>> RoundDraws(0, 7).independent_clients(np.array([1.0, 0.0, 0.5])).tolist()
        [0]
        """
        clients = np.arange(len(p), dtype=np.int64)
        keys = _client_keys(_key(self._seed, INDEPENDENT, self.round), clients)
        return clients[coins(keys) < p]

    def normal(self, d: int, number: int = 0) -> Vector:
        """Draw a standard normal vector (d,), by the inverse of its distribution.

        Args:
            d: The number of entries.
            number: Other numbers give other vectors of the round.

        >>> RoundDraws(0, 7).normal(2).tolist() == RoundDraws(0, 7).normal(5)[:2].tolist()
        True
        """
        u = _uniforms(_key(self._seed, NORMAL, self.round, number), d)
        drawn: Vector = ndtri(u + 0.5 * _UNIT)
        return drawn

    def order(self, N: int, number: int = 0) -> Ints:
        """Return all N clients in the run's random order of this number, in any round.

        >>> RoundDraws(0, 7).order(5).tolist() == RoundDraws(0, 8).order(5).tolist()
        True
        """
        return _order(self._seed, N, number)

    def rows(self, clients: Ints, sizes: Ints, b: int, first: int, count: int) -> Rows:
        """Draw minibatches first..first+count-1 of each client: (n, count, min(b, max M_i))."""
        return _minibatches(self._keys, clients, sizes, b, first, count)

    def row_orders(self, clients: Ints, sizes: Ints, numbers: Ints) -> Rows:
        """Order each client's rows for a pass over them: (n, max M_i), the first M_i count.

        >>> orders = RoundDraws(0, 7).row_orders(np.array([3]), np.array([4]), np.array([0]))
        >>> sorted(orders[0].tolist())
        [0, 1, 2, 3]
        """
        return _row_orders(_key(self._seed, EPOCH, self.round), clients, sizes, numbers)

    def client_keys(self, clients: Ints, field: int) -> Keys64:
        """Return a key for each client's own random numbers for a field of its reply, (n,)."""
        return _client_keys(_key(self._seed, CODEC, self.round, field), clients)

    def shared_key(self, field: int) -> np.uint64:
        """Return a key that all clients of the round share, for a field of their replies."""
        return _key(self._seed, CODEC_SHARED, self.round, field)


@lru_cache(maxsize=8)
def _order(seed: int, N: int, number: int) -> Ints:
    """Return an order of a run's clients, read-only because rounds share it."""
    order: Ints = shuffle(_key(seed, ORDER, number), N).astype(np.int64)
    order.flags.writeable = False
    return order


def _key(seed: int, *words: int) -> np.uint64:
    """Return the key of the stream of a seed and some words, the purpose first."""
    key = np.uint64(0)
    for word in (check_seed(seed), *words):
        key = np.uint64(_fold(key, np.uint64(word)))
    return key


def uniforms(seed: int, *words: int, size: int) -> Vector:
    """Draw `size` numbers in [0, 1) for generated data and partitions.

    Args:
        seed: The seed.
        words: Whole numbers that tell this use of the seed from others.
        size: How many numbers.

    >>> uniforms(0, 1, size=2).tolist() == uniforms(0, 1, size=5)[:2].tolist()
    True
    """
    return _uniforms(_key(seed, DATA, *words), size)


def uniform_per_client(seed: int, *words: int, clients: Ints) -> Vector:
    """Draw a number in [0, 1) for each client, (n,), independent of the other clients.

    The arguments are those of `uniforms`, with the client numbers (n,) for the size.

    >>> both = uniform_per_client(0, 7, clients=np.array([3, 9]))
    >>> bool(both[1] == uniform_per_client(0, 7, clients=np.array([9]))[0])
    True
    """
    return coins(_client_keys(_key(seed, FAULTS, *words), clients))


def normal_per_client(seed: int, *words: int, clients: Ints) -> Vector:
    """Draw a standard normal number for each client by Box and Muller, as `uniform_per_client`."""
    radius = np.sqrt(-2.0 * np.log1p(-uniform_per_client(seed, *words, 0, clients=clients)))
    angle = 2.0 * np.pi * uniform_per_client(seed, *words, 1, clients=clients)
    return np.asarray(radius * np.cos(angle))


def permutation(seed: int, *words: int, size: int) -> Ints:
    """Return the numbers 0..size-1 in an order given by the seed and the words.

    >>> sorted(permutation(3, size=4).tolist())
    [0, 1, 2, 3]
    """
    return np.argsort(uniforms(seed, *words, size=size), kind="stable").astype(np.int64)


@compile_kernel
def next_clients(order: Ints, seen: Flags, first: int, S: int) -> Ints:
    """Return the next S clients of a pass over an order that have not been seen, ascending.

    Args:
        order: All clients, (N,).
        seen: Whether each client has been seen, (N,).
        first: The place in the order to begin at; after its end it begins again.
        S: The number of clients; fewer if fewer are left.

    >>> seen = np.array([True, False, False, False])
    >>> next_clients(np.array([2, 0, 3, 1]), seen, 1, 2).tolist()
    [1, 3]
    """
    N = len(order)
    out = np.empty(min(S, N), np.int64)
    found = 0
    for place in range(N):
        client = order[(first + place) % N]
        if not seen[client]:
            out[found] = client
            found += 1
            if found == len(out):
                break
    return np.sort(out[:found])


def no_clients(N: int) -> Flags:
    """Return N flags of which none is set."""
    return np.zeros(N, np.bool_)
