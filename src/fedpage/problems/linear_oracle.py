"""What the called clients of a linear model compute from their rows, with compiled local steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpage.core.local_steps import FusedOracle
from fedpage.core.types import Batch, Draws, Ints, Rows, Vector
from fedpage.problems.base import RowOracle, as_rows, no_rows

if TYPE_CHECKING:
    from fedpage.problems.linear_model import LinearModel


class LinearOracle(RowOracle, FusedOracle):
    """Answer the called clients of a linear model, with compiled local steps."""

    def __init__(self, problem: LinearModel, clients: Ints, draws: Draws) -> None:
        super().__init__(clients, problem._sizes[clients], draws, problem._equal)
        self._kernels = problem._kernels
        self._data = (*problem._kernel_data, clients)
        self._shape = (len(clients), problem.d)

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """Compute each client's mean gradient (n, d) over its batch, at y (n, d) or (d,)."""
        is_every = batch.rows is None
        rows = no_rows(len(self.clients), 1)[:, 0] if batch.rows is None else batch.rows
        counts = self.sizes if is_every else batch.sizes
        self._count_batch(batch)
        out = np.empty(self._shape)
        self._kernels.batch_grad(*self._data, rows, counts, self._points(y), out)
        return out

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
        return self._local_sgd(x, self._nowhere, shifts, K, eta, b, mu, points=1)

    def local_svrg(
        self, x: Vector, w: Vector, h: Vector, *, K: int, eta: float, b: int | None
    ) -> Vector:
        """Run the local steps of this name (core/local_steps.py), compiled."""
        return self._local_sgd(x, as_rows(w), as_rows(h), K, eta, b, 0.0, points=2)

    @property
    def _nowhere(self) -> Vector:
        """Return (0, d): no reference point, or no shift."""
        return np.empty((0, self._shape[1]))

    def _local_sgd(
        self,
        x: Vector,
        w: Vector,
        shift: Vector,
        K: int,
        eta: float,
        b: int | None,
        mu: float,
        points: int,
    ) -> Vector:
        rows, size = self._draw(b, K, points)
        out = np.empty(self._shape)
        steps = (K, float(eta), float(mu))
        self._kernels.local_sgd(*self._data, rows, size, x, w, shift, *steps, out)
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
        self._kernels.local_page(*self._data, *batches, *points, K, float(eta), out)
        return out

    def _draw(self, size: int | None, count: int, points: int) -> tuple[Rows, int]:
        """Draw minibatches for a kernel, and count the gradients at that many points of each."""
        rows, largest = self._batches(size, count)
        self._count(largest, points * count)
        return (no_rows(self._shape[0], count) if rows is None else rows), largest
