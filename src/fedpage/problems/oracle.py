"""Oracles: the gradients that called clients compute from minibatches of their own rows."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedpage.core.types import Batch, ClientDraws, Ints, Rows, Vector, triangle_size
from fedpage.problems import curvature_kernels, kernels

if TYPE_CHECKING:
    from fedpage.problems.linear import LinearModel


def as_rows(y: Vector) -> Vector:
    """Return points (n, d), or a shared point (d,) as (1, d), contiguous."""
    rows = y if y.ndim == 2 else y[None, :]
    return rows if rows.flags.c_contiguous else np.ascontiguousarray(rows)


@lru_cache(maxsize=256)
def no_rows(n: int, count: int) -> Rows:
    """Return (n, count, 0) row numbers, which stand for every row in a kernel."""
    return np.empty((n, count, 0), dtype=np.uint32)


class RowOracle:
    """Draw minibatches of the called clients' rows and count gradients. Subclasses add `grad`."""

    def __init__(self, clients: Ints, sizes: Ints, draws: ClientDraws, equal: int | None) -> None:
        self.clients = clients
        self.sizes = sizes
        """(n,) rows M_i of the called clients; `equal` is M where all clients have as many."""
        self.gradients = 0
        self.evaluations = 0
        self._times: dict[int, int] = {}
        """How many gradients over b rows every client has computed, by b."""
        self._each: Ints = np.zeros(len(clients), dtype=np.int64)
        """(n,) row gradients of each client beside those of `_times`."""
        self._order: Rows | None = None
        """(n, max M_i) the order of each client's rows in its present pass over them."""
        self._draws = draws
        self._drawn = 0
        self._equal = equal
        self._largest = int(sizes.max()) if equal is None else equal

    def batch(self, size: int | None) -> Batch:
        """Draw a fresh minibatch at each client. If size is None, take every row.

        It is a function of its number within the round; no generator is advanced.
        """
        rows, b = self._batches(size, 1)
        if rows is None:
            return Batch(None, self.sizes, size)
        return Batch(rows[:, 0], np.minimum(self.sizes, b), size)

    def _batches(self, size: int | None, count: int) -> tuple[Rows | None, int]:
        """Draw minibatches (n, count, w), None for all rows; return them and their size."""
        first = self._drawn
        self._drawn = first + count
        if size is None or size >= self._largest:
            return None, self._largest
        return self._draws.rows(self.clients, self.sizes, size, first, count), size

    def _count(self, b: int, times: int = 1) -> None:
        """Count `times` gradients of every called client over batches of min(b, M_i) rows."""
        n, M = len(self.clients), self._equal
        rows = int(np.minimum(self.sizes, b).sum()) if M is None else n * min(b, M)
        self.gradients += times * rows
        self.evaluations += times * n
        self._times[b] = self._times.get(b, 0) + times

    def epoch_steps(self, size: int | None, epochs: int) -> Ints:
        """Return the number of minibatches of each client in so many passes, (n,)."""
        b = self._largest if size is None else size
        return epochs * -(-self.sizes // b)

    def epoch_batch(self, size: int | None, epochs: int, step: int) -> Batch:
        """Return minibatch number `step` of each client's passes over its rows.

        Every pass has a fresh order, a function of seed, round, client and pass. A client with no
        more rows than a batch takes them as they are stored.
        """
        if size is None or size >= self._largest:
            return Batch(None, self.sizes, size)
        batches = -(-self.sizes // size)  # of a pass
        number, place = step // batches, step % batches
        is_done = number >= epochs
        if self._order is None:
            every = np.arange(self._largest, dtype=np.uint32)
            self._order = np.tile(every, (len(self.clients), 1))
        new = np.flatnonzero((place == 0) & ~is_done & (batches > 1))
        if len(new):
            drawn = self._draws.row_orders(self.clients[new], self.sizes[new], number[new])
            self._order[new, : drawn.shape[1]] = drawn
        first = place * size
        places = np.minimum(first[:, None] + np.arange(size), self._largest - 1)
        counts = np.where(is_done, 0, np.minimum(size, self.sizes - first))
        return Batch(np.take_along_axis(self._order, places, axis=1), counts, size)

    def _count_batch(self, batch: Batch, times: int = 1) -> None:
        """Count `times` gradients of every called client over its batch."""
        if batch.rows is None:
            self._count(self._largest, times)
            return
        self.gradients += times * int(batch.sizes.sum())
        self.evaluations += times * int(np.count_nonzero(batch.sizes))
        self._each = self._each + times * batch.sizes

    def count_each(self) -> Ints:
        """Return the row gradients that each called client has computed so far, (n,)."""
        each = self._each.copy()
        for b, times in self._times.items():
            each += times * np.minimum(self.sizes, b)
        return each


class LinearOracle(RowOracle):
    """Answer the called clients of a linear model, with compiled local steps."""

    def __init__(self, problem: LinearModel, clients: Ints, draws: ClientDraws) -> None:
        super().__init__(clients, problem._sizes[clients], draws, problem._equal)
        self._data = (*problem._kernel_data, clients)
        self._shape = (len(clients), problem.d)

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """Compute each client's mean gradient (n, d) over its batch, at y (n, d) or (d,)."""
        self._count_batch(batch)
        out = np.empty(self._shape)
        kernels.batch_grad(*self._data, *self._rows(batch), self._points(y), out)
        return out

    def loss(self, y: Vector, batch: Batch) -> Vector:
        """Compute each client's mean loss (n, 1) over its batch; it counts as a gradient."""
        self._count_batch(batch)
        out = np.empty((self._shape[0], 1))
        curvature_kernels.batch_loss(*self._data, *self._rows(batch), self._points(y), out)
        return out

    def hessian(self, y: Vector, batch: Batch) -> Vector:
        """Compute the triangle of each client's mean Hessian (n, d(d+1)/2) over its batch."""
        n, d = self._shape
        self._count_batch(batch, d)
        out = np.empty((n, triangle_size(d)))
        curvature_kernels.batch_hessian(*self._data, *self._rows(batch), self._points(y), out)
        return out

    def hvp(self, y: Vector, v: Vector, batch: Batch) -> Vector:
        """Compute each client's mean Hessian over its batch at y, times v (d,) or (n, d)."""
        self._count_batch(batch)
        out, points = np.empty(self._shape), (self._points(y), self._points(v))
        curvature_kernels.batch_product(*self._data, *self._rows(batch), *points, out)
        return out

    def _rows(self, batch: Batch) -> tuple[Rows, Ints]:
        """Return a batch's row numbers as kernels take them, and its sizes."""
        if batch.rows is None:
            return no_rows(len(self.clients), 1)[:, 0], self.sizes
        return batch.rows, batch.sizes

    def _points(self, y: Vector) -> Vector:
        """Check the shape of points (n, d) or (d,): kernels do not."""
        rows = as_rows(y)
        if rows.shape[1] != self._shape[1] or rows.shape[0] not in (1, self._shape[0]):
            raise ValueError(
                f"points of shape {y.shape} for {self._shape[0]} clients "
                f"and {self._shape[1]} parameters"
            )
        return rows

    def local_sgd(
        self,
        x: Vector,
        *,
        K: int,
        eta: float,
        b: int | None,
        shift: Vector | None = None,
        mu: float = 0.0,
    ) -> Vector:
        """Run the local steps of this name (core/local_steps.py), compiled."""
        shifts = self._nowhere if shift is None else as_rows(shift)
        return self._local_sgd(x, self._nowhere, shifts, K, eta, b, mu)

    def local_svrg(
        self, x: Vector, w: Vector, h: Vector, *, K: int, eta: float, b: int | None
    ) -> Vector:
        """Run the local steps of this name (core/local_steps.py), compiled."""
        return self._local_sgd(x, as_rows(w), as_rows(h), K, eta, b, 0.0)

    @property
    def _nowhere(self) -> Vector:
        """Return (0, d): no reference point, or no shift."""
        return np.empty((0, self._shape[1]))

    def _local_sgd(
        self, x: Vector, w: Vector, shift: Vector, K: int, eta: float, b: int | None, mu: float
    ) -> Vector:
        rows, size = self._draw(b, K, 2 if len(w) else 1)
        out = np.empty(self._shape)
        kernels.local_sgd(*self._data, rows, size, x, w, shift, K, float(eta), float(mu), out)
        return out

    def local_page(
        self,
        x: Vector,
        x_prev: Vector,
        g: Vector,
        *,
        K: int,
        eta: float,
        first: int | None,
        rest: int | None,
    ) -> Vector:
        """Run the local steps of this name (core/local_steps.py), compiled."""
        rows, size = self._draw(first, 1, 2)
        more, more_size = no_rows(self._shape[0], 0), 1
        if K > 1:
            more, more_size = self._draw(rest, K - 1, 2)
        points = as_rows(x), as_rows(x_prev), as_rows(g)
        out = np.empty(self._shape)
        batches = (rows, size, more, more_size)
        kernels.local_page(*self._data, *batches, *points, K, float(eta), out)
        return out

    def _draw(self, size: int | None, count: int, points: int) -> tuple[Rows, int]:
        """Draw minibatches for a kernel, and count the gradients at that many points of each."""
        rows, largest = self._batches(size, count)
        self._count(largest, points * count)
        return (no_rows(self._shape[0], count) if rows is None else rows), largest
