"""The random numbers of a node's client."""

from __future__ import annotations

import numpy as np

from fedpage.core.random import RoundDraws
from fedpage.core.types import Ints, Keys64, Rows


class NodeDraws:
    """One round's random numbers for a node's client.

    The node's problem has one client, number 0; the random numbers are those of the client's number
    in the federation.

    Args:
        seed: the run's seed.
        round: the round's number.
        client: the client's number in the federation.
    """

    def __init__(self, seed: int, round: int, client: int) -> None:
        self._draws, self.round = RoundDraws(seed, round), round
        self._client = np.array([client], dtype=np.int64)

    def rows(self, clients: Ints, sizes: Ints, b: int, first: int, count: int) -> Rows:
        """Draw the rows (1, count, min(b, M)) of this client's minibatches."""
        return self._draws.rows(self._client, sizes, b, first, count)

    def row_orders(self, clients: Ints, sizes: Ints, numbers: Ints) -> Rows:
        """Order this client's rows for a pass over them, (1, M)."""
        return self._draws.row_orders(self._client, sizes, numbers)

    def client_keys(self, clients: Ints, field: int) -> Keys64:
        """Return the key of this client's own random numbers for a field of its reply, (1,)."""
        return self._draws.client_keys(self._client, field)

    def shared_key(self, field: int) -> np.uint64:
        """Return the key that all clients of the round share, for a field of their replies."""
        return self._draws.shared_key(field)
