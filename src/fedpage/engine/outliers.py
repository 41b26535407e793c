"""Find replies that are so much longer than those of other clients that they must be wrong.

A server that averages vectors cannot see what honest ones look like, but it can compare them. The
reference is the median norm, which no minority of clients can raise. Three choices keep honest
clients within the bound:

- the factor is large (`Policy.outlier_factor`), because clients' data differ;
- each client counts with the largest norm that it has sent so far, because gradients of clients
  that fit the model early vanish while those of others do not;
- where all replies of a round grow together, as in a run that diverges, their own median counts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedpage.core.types import Ints
from fedpage.runs.checkpoint import Snapshot

_FEWEST = 3
"""Clients below which a median says nothing about who is wrong."""


class OutlierCheck:
    """Compare the norms of replies with the median norm of the clients.

    Args:
        N: The number of clients.
        factor: How many times the median a norm may be; 0: any.
    """

    def __init__(self, N: int, factor: float) -> None:
        self._N, self._factor = N, factor
        self._largest: dict[str, NDArray[np.float64]] = {}

    def find(self, kind: str, clients: Ints, norms: NDArray[np.float64]) -> dict[int, str]:
        """Return the clients whose norms are outliers, each with a sentence; remember the others.

        Args:
            kind: What the norms are of; norms of different kinds are not compared.
            clients: The clients that answered, (n,).
            norms: The norms of what they sent, (n,); infinity where it is too large for a float.
        """
        if not self._factor or not len(clients):
            return {}
        known = self._largest.get(kind, np.full(self._N, math.nan))
        seen = known.copy()
        seen[clients] = np.fmax(seen[clients], norms)
        reference = max(_lower_median(norms), _lower_median(seen[~np.isnan(seen)]))
        bound = self._factor * reference
        wrong = {
            int(client): f"its norm {norm:.3g} is far above the others' (median {reference:.3g})"
            for client, norm in zip(clients, norms, strict=True)
            if norm == math.inf or (reference > 0 and norm > bound)
        }
        honest = ~np.isin(clients, list(wrong))
        known[clients[honest]] = seen[clients[honest]]
        self._largest[kind] = known
        return wrong

    def snapshot(self) -> Snapshot:
        """Return the largest norms so far, for a checkpoint."""
        return {kind: norms.copy() for kind, norms in self._largest.items()}

    def restore(self, tree: Snapshot) -> None:
        """Return to a snapshot.

        Raises:
            TypeError, ValueError, AttributeError: It is not one of this federation.
        """
        for norms in tree.values():
            if norms.shape != (self._N,) or norms.dtype != np.float64:
                raise ValueError
        self._largest = {str(kind): norms.copy() for kind, norms in tree.items()}


def _lower_median(norms: NDArray[np.float64]) -> float:
    """Return the median, the lower one of two; 0 where there are too few values."""
    if len(norms) < _FEWEST:
        return 0.0
    return float(np.sort(norms)[(len(norms) - 1) // 2])
