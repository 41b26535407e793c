"""What every problem over rows shares: minibatches, counting, client weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpage.types import Batch, Draws, InputError, Ints, Rows, Vector


class RowOracle:
    """Minibatches of the called clients' rows, and the count of what was computed. Subclasses add `grad`."""

    def __init__(self, clients: Ints, sizes: Ints, draws: Draws, equal: int | None) -> None:
        self.clients = clients
        self.sizes = sizes
        """(n,) rows M_i of the called clients; `equal` is M where all clients have the same."""
        self.gradients = 0
        self.evaluations = 0
        self._draws = draws
        self._drawn = 0
        self._equal = equal
        self._largest = int(sizes.max()) if equal is None else equal

    def batch(self, size: int | None) -> Batch:
        """A fresh minibatch at each client; its number within the round makes it fresh, not a generator's state."""
        rows, b = self._batches(size, 1)
        if rows is None:
            return Batch(None, self.sizes)
        return Batch(rows[:, 0], np.minimum(self.sizes, b))

    def _batches(self, size: int | None, count: int) -> tuple[Rows | None, int]:
        """The next `count` minibatches: (n, count, w) row numbers, or None for every row; and their largest size."""
        first, self._drawn = self._drawn, self._drawn + count
        if size is None or size >= self._largest:
            return None, self._largest
        return self._draws.rows(self.clients, self.sizes, size, first, count), size

    def _count(self, b: int, times: int = 1) -> None:
        """Note that every called client computed `times` gradients over batches of min(b, M_i) rows."""
        n = len(self.clients)
        rows = n * min(b, self._equal) if self._equal is not None else int(np.minimum(self.sizes, b).sum())
        self.gradients += times * rows
        self.evaluations += times * n


def equal_size(sizes: Ints) -> int | None:
    """M, if every client has M rows."""
    return int(sizes[0]) if int(sizes.min()) == int(sizes.max()) else None


def as_rows(y: Vector) -> Vector:
    """(1, d) of a shared point (d,), or (n, d) as it is; contiguous."""
    return np.ascontiguousarray(y if y.ndim == 2 else y[None, :])


def no_rows(n: int, count: int) -> Rows:
    """(n, count, 0): how a kernel is told to take every row."""
    return np.empty((n, count, 0), dtype=np.uint32)


def client_scale(weights: Any, sizes: Ints) -> Vector:
    """(N,) the factors N w_i by which each client's objective is scaled; 1 for the paper's uniform mean.

    weights: "uniform", "size" (w_i proportional to M_i), or any N positive numbers, which are normalised.
    """
    N = len(sizes)
    if isinstance(weights, str):
        if weights == "uniform":
            return np.ones(N)
        if weights != "size":
            raise InputError(f"weights must be 'uniform', 'size' or {N} positive numbers, not {weights!r}")
        weights = sizes
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (N,) or not np.isfinite(w).all() or (w <= 0).any():
        raise InputError(f"weights must be 'uniform', 'size' or {N} positive numbers")
    return np.asarray(N * w / w.sum(), dtype=np.float64)
