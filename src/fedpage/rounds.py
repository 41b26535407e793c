"""One round, for any engine: call, ask, the mean in client order, server; what it costs, and what clients remember."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpage.sums import add_rows, mean_rows
from fedpage.types import Draws, InputError, Ints, Method, Replies


@dataclass
class Tally:
    """What a run has cost so far; every field is cumulative."""

    round: int = 0
    clients: int = 0
    floats_down: int = 0
    floats_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    gradients: int = 0
    gradients_per_client: float = 0.0
    evaluations: int = 0
    full_rounds: int = 0


class Memories:
    """What clients remember: a table (N, d) for each field, zero until a client is first called.

    The operating system gives memory to rows that are written, so a million clients of whom a thousand were called
    cost a thousand rows.
    """

    def __init__(self, kind: type[Any] | None, N: int, d: int) -> None:
        self._kind = kind
        try:
            self._tables = [np.zeros((N, d)) for _ in getattr(kind, "_fields", ())]
        except (MemoryError, ValueError):
            raise InputError(f"{N} clients cannot each remember {d} numbers on this machine; use fewer") from None

    def get(self, clients: Ints) -> Any:
        """The called clients' memories: a NamedTuple of (n, d) copies, or None."""
        return None if self._kind is None else self._kind(*[table.take(clients, axis=0) for table in self._tables])

    def put(self, clients: Ints, memory: Any) -> None:
        """Store what the called clients remember from now on."""
        if self._kind is not None:
            for table, rows in zip(self._tables, memory, strict=True):
                table[clients] = rows

    def everyone(self) -> Any:
        """All N clients' memories, (N, d) each; None if they remember nothing."""
        return None if self._kind is None else self._kind(*self._tables)


Ask = Callable[[Ints, Any], Iterable[Any]]
"""Sends a message to clients and yields their replies in client order, some at a time: NamedTuples of (n, d)."""


def play(method: Method, state: Any, draws: Draws, ask: Ask, tally: Tally, N: int) -> Any:
    """One round, for any engine: call, ask, the mean in client order, server. Returns the next state, adds to tally.

    The mean is a running sum, one client after the other, so neither chunks nor threads nor machines change a bit.
    """
    clients, message = method.call(state, draws)
    chunks = iter(ask(clients, message))
    replies: Any = next(chunks)
    kind, count = type(replies), len(replies[0])
    if count == len(clients):
        means = [mean_rows(rows) for rows in replies]
    else:
        sums = [add_rows(None, rows) for rows in replies]
        while True:
            replies = None  # one chunk is gone before the next is made
            replies = next(chunks, None)
            if replies is None:
                break
            count += len(replies[0])
            sums = [add_rows(total, rows) for total, rows in zip(sums, replies, strict=True)]
        means = [total / count for total in sums]
    n = len(clients)
    tally.round += 1
    tally.clients += n
    tally.full_rounds += n == N
    for part in message:
        tally.floats_down += n * part.size
        tally.bytes_down += n * part.nbytes
    for mean in means:
        tally.floats_up += count * mean.size
        tally.bytes_up += count * mean.nbytes
    return method.server(state, Replies(kind(*means), count))
