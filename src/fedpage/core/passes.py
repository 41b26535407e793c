"""Which clients a pass over all clients without replacement has had, and who is next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpage.core.jit import compile_kernel
from fedpage.core.types import Flags, Ints


@compile_kernel
def _next_clients(
    order: NDArray[np.int64], seen: NDArray[np.bool_], first: int, S: int
) -> NDArray[np.int64]:
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


def next_clients(order: Ints, seen: Flags, first: int, S: int) -> Ints:
    """Return the next S clients of an order that have not been seen, ascending.

    Args:
        order: All clients, (N,).
        seen: Whether each client has been seen, (N,).
        first: The place in the order to begin at; after its end it begins again.
        S: The number of clients; fewer if fewer are left.

    >>> seen = np.array([True, False, False, False])
    >>> next_clients(np.array([2, 0, 3, 1]), seen, 1, 2).tolist()
    [1, 3]
    """
    found: Ints = _next_clients(order, seen, first % len(order), S)
    return found


def flags(N: int, value: bool) -> Flags:
    """Return the same flag for each of N clients."""
    return np.full(N, value)


def add_clients(seen: Flags, clients: Ints) -> Flags:
    """Return the flags with those of some clients set.

    >>> add_clients(flags(3, False), np.array([1])).tolist()
    [False, True, False]
    """
    added = seen.copy()
    added[clients] = True
    return added


def count(seen: Flags) -> int:
    """Return how many flags are set."""
    return int(np.count_nonzero(seen))
