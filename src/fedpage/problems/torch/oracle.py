"""What called clients may ask of their rows of a torch model: the walks, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedpage.core.local_steps import FusedOracle
from fedpage.core.types import Batch, Draws, Ints, Rows, Vector
from fedpage.problems.base import RowOracle
from fedpage.problems.torch.rows import array_of

if TYPE_CHECKING:
    from fedpage.problems.torch.problem import TorchProblem


class TorchOracle(RowOracle, FusedOracle):
    """The called clients' rows of a torch model. Its walks stay on the device for all K steps."""

    def __init__(self, problem: TorchProblem, clients: Ints, draws: Draws) -> None:
        super().__init__(clients, problem._sizes[clients], draws, problem._equal)
        self._problem = problem

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """(n, d): mean gradient over each client's batch at y (n, d), or at one y (d,)."""
        self._count(self._largest if batch.rows is None else batch.rows.shape[1])
        with self._problem.guarded():
            return array_of(self._at(self._points(y), *batch))

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
        """The walk of the same name, on the device."""
        with self._problem.guarded():
            start = y = self._points(x)
            constant = None if shift is None else self._points(shift)
            total = torch.zeros_like(y)
            for batch in self._steps(b, K):
                direction = self._at(y, *batch)
                if constant is not None:
                    direction = direction + constant
                if mu != 0.0:
                    direction = direction + mu * (y - start)
                y, total = y - eta * direction, total + direction
            return array_of(total / K)

    def local_svrg(
        self, x: Vector, w: Vector, h: Vector, *, K: int, eta: float, b: int | None
    ) -> Vector:
        """The walk of the same name, on the device."""
        with self._problem.guarded():
            y, round_about, constant = self._points(x), self._points(w), self._points(h)
            total = torch.zeros_like(y)
            for batch in self._steps(b, K, 2):
                direction = self._at(y, *batch) - self._at(round_about, *batch) + constant
                y, total = y - eta * direction, total + direction
            return array_of(total / K)

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
        """The walk of the same name, on the device."""
        with self._problem.guarded():
            y, y_prev, estimate = self._points(x), self._points(x_prev), self._points(g)
            total = torch.zeros_like(y)
            for batch in [*self._steps(first, 1, 2), *self._steps(rest, K - 1, 2)]:
                estimate = estimate + self._at(y, *batch) - self._at(y_prev, *batch)
                y, y_prev, total = y - eta * estimate, y, total + estimate
            return array_of(total / K)

    def _at(self, v: Tensor, rows: Rows | None, sizes: Ints, asked: int | None) -> Tensor:
        return self._problem.client_gradients(v, self.clients, rows, sizes, asked)[0]

    def _points(self, y: Vector) -> Tensor:
        """(n, d) on the device, contiguous, so that a shared point gives the bits that n copies of it do."""
        points = self._problem.tensor(y)
        return (
            (points if points.ndim == 2 else points[None, :])
            .expand(len(self.clients), self._problem.d)
            .contiguous()
        )

    def _steps(self, b: int | None, count: int, times: int = 1) -> list[Batch]:
        """The next minibatches, each to be used for `times` gradients."""
        if not count:
            return []
        rows, largest = self._batches(b, count)
        self._count(self._size(b), times * count)
        sizes = self.sizes if rows is None else np.minimum(self.sizes, largest)
        return [Batch(None if rows is None else rows[:, k], sizes, b) for k in range(count)]
