"""Compute f_i, f and their gradients over the clients' rows of a torch model, on the device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from copy import copy
from typing import Literal, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value

from fedpage.core.types import Batch, DType, Ints, Rows, Vector
from fedpage.problems.base import equal_size
from fedpage.problems.torch.deterministic import guard
from fedpage.problems.torch.gradients import AutogradGradients, BatchedGradients, GradientFunction
from fedpage.problems.torch.model import FlatModel, Outputs, join_outputs
from fedpage.problems.torch.rows import Table, to_numpy

Mode: TypeAlias = Literal["batched", "sequential", "autograd"]
"""How clients' gradients are computed: all clients in one call of `vmap`; one client per call of
`vmap`; or one client after the other by autograd, without `vmap`."""

BLOCK = 1024
"""Rows of a client in memory at once; a gradient over more rows is a sum over blocks, in order."""


class PooledEvaluation(NamedTuple):
    """The whole objective at one point."""

    gradient: Vector
    """(d,) of f, in float64."""
    loss: float
    outputs: Outputs
    """The model's outputs for all rows, or None where they were not requested."""


class Objective:
    """Compute losses and gradients of clients whose rows are one table on the device.

    Args:
        model: The module and its loss as functions of a vector.
        table: The rows of all clients, one client after the other.
        sizes: (N,) rows of each client.
        scale: (N,) the factor N w_i of each client's objective.
        deterministic: Whether a client's bits must depend on nothing but its rows and parameters.
        mode: How clients' gradients are computed.
    """

    def __init__(
        self,
        model: FlatModel,
        table: Table,
        sizes: Ints,
        scale: Vector,
        dtype: DType,
        device: torch.device,
        deterministic: bool,
        mode: Mode,
    ) -> None:
        self.model, self.table, self.sizes, self.scale = model, table, sizes, scale
        self.dtype, self.device, self.deterministic, self.mode = dtype, device, deterministic, mode
        self.equal_size = equal_size(sizes)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._gradients = self._choose_gradients()

    @property
    def N(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    @property
    def d(self) -> int:
        """Number of trainable parameters."""
        return self.model.d

    def rescale(self, factor: float) -> Self:
        """Return the same objective with every client's part times a factor."""
        twin = copy(self)
        twin.scale = self.scale * factor
        twin._gradients = self._gradients  # with its traces
        return twin

    def guard(self) -> AbstractContextManager[None]:
        """Return the context in which bits are deterministic, where that is requested."""
        return guard(self.device, self.deterministic)

    def tensor(self, x: Vector) -> Tensor:
        """Copy x (d,) or (n, d) to the device.

        The copy is in memory that torch aligns, because alignment may change bits.
        """
        values = np.ascontiguousarray(x, dtype=self.dtype)
        if values.ndim not in (1, 2) or values.shape[-1] != self.d:
            raise ValueError(f"points of shape {values.shape} for {self.d} parameters")
        return torch.tensor(values, device=self.device)

    def client_rows(self, client: int) -> Table:
        """Return the rows of one client."""
        return self.table.slice(int(self._starts[client]), int(self._starts[client + 1]))

    def mean_targets(self) -> Vector:
        """Return the mean target (N,) of each client."""
        targets = self.table.targets
        means = to_numpy(targets.reshape(len(targets), -1).double().mean(1))
        return np.asarray(np.add.reduceat(means, self._starts[:-1]) / self.sizes)

    def client_gradients(self, v: Tensor, clients: Ints, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute each client's gradient and loss over its batch, at its own row of v.

        Clients are grouped by the width that their batch is padded to. The width depends on the
        client alone, so that its bits do not depend on who else is called.

        Args:
            v: (n, d) points.
            clients: (n,) client numbers.
            batch: The minibatch of each client.

        Returns:
            Gradients (n, d) and losses (n,).
        """
        v = v.contiguous()
        rows, sizes, asked = batch
        widths = _batch_widths(sizes, asked)
        first = int(widths[0])
        if len(clients) == 1 or bool((widths == first).all()):
            return self._equal_width(v, clients, rows, sizes, first)
        gradients, losses = torch.empty_like(v), torch.empty(len(v), dtype=v.dtype, device=v.device)
        for width in np.unique(widths):
            group = np.flatnonzero(widths == width)
            own_rows = None if rows is None else rows[group]
            gradients[group], losses[group] = self._equal_width(
                v[group], clients[group], own_rows, sizes[group], int(width)
            )
        return gradients, losses

    def _equal_width(
        self, v: Tensor, clients: Ints, rows: Rows | None, sizes: Ints, width: int
    ) -> tuple[Tensor, Tensor]:
        """Compute gradients and losses of clients whose batches are padded to one width."""
        shares = self.scale[clients] / sizes
        parts = []
        for start in range(0, width, BLOCK):
            places = np.arange(start, min(start + BLOCK, width))
            inside = places < sizes[:, None]
            if rows is None:
                numbers = np.where(inside, places, 0)  # padding repeats row 0 with weight 0
            else:
                numbers = np.where(inside, rows[:, np.minimum(places, rows.shape[1] - 1)], 0)
            chosen = torch.from_numpy(self._starts[clients][:, None] + numbers).to(self.device)
            weights = torch.from_numpy((inside * shares[:, None]).astype(self.dtype))
            inputs, targets = self.table.take(chosen)
            parts.append(self._gradients(v, inputs, targets, weights.to(self.device)))
        gradients, losses = parts[0]
        for gradient, loss in parts[1:]:
            gradients, losses = gradients + gradient, losses + loss
        return gradients, losses

    def evaluate_pooled(self, x: Vector, threads: int, want_outputs: bool) -> PooledEvaluation:
        """Compute f, its gradient and the outputs of all rows at x (d,).

        Blocks of rows are added in order, so that the bits are the same for any number of threads.
        """
        if self.mode == "autograd":
            return self._pooled_by_client(x, want_outputs)
        v = self.tensor(x)
        shares = self.scale / (self.N * self.sizes)
        weights = torch.from_numpy(np.repeat(shares, self.sizes).astype(self.dtype))

        def weighted_loss(point: Tensor, rows: Table, weight: Tensor) -> tuple[Tensor, Outputs]:
            outputs = self.model.outputs(point, rows.inputs)
            return (self.model.row_losses(outputs, rows.targets) * weight).sum(), outputs

        def block(start: int) -> PooledEvaluation:
            numbers = torch.arange(start, min(start + BLOCK, len(weights)), device=self.device)
            weight = weights[start : start + BLOCK].to(self.device)
            with self.guard():
                gradient, (loss, outputs) = grad_and_value(weighted_loss, has_aux=True)(
                    v, self.table.take(numbers), weight
                )
            return PooledEvaluation(
                to_numpy(gradient).astype(np.float64),
                float(loss),
                outputs if want_outputs else None,
            )

        blocks = _map(block, range(0, len(weights), BLOCK), threads)
        gradient, loss = np.zeros(self.d), 0.0
        for part in blocks:
            gradient += part.gradient
            loss += part.loss
        outputs = join_outputs([part.outputs for part in blocks]) if want_outputs else None
        return PooledEvaluation(gradient, loss, outputs)

    def _pooled_by_client(self, x: Vector, want_outputs: bool) -> PooledEvaluation:
        v = self.tensor(x)
        gradient, loss = np.zeros(self.d), 0.0
        for i in range(self.N):
            losses, gradients = self.evaluate_clients(np.array([i], dtype=np.int64), x)
            gradient += gradients[0]
            loss += float(losses[0])
        outputs = self.outputs(v, self.table) if want_outputs else None
        return PooledEvaluation(gradient / self.N, loss / self.N, outputs)

    def evaluate_clients(self, clients: Ints, x: Vector) -> tuple[Vector, Vector]:
        """Return each client's N w_i f_i(x) (n,) in float64, and its gradient (n, d)."""
        point = self.tensor(x).expand(len(clients), self.d)
        with self.guard():
            gradients, losses = self.client_gradients(
                point, clients, Batch(None, self.sizes[clients])
            )
        return to_numpy(losses).astype(np.float64), to_numpy(gradients)

    def outputs(self, v: Tensor, rows: Table) -> Outputs:
        """Compute the model's outputs for all rows of a table at v (d,), block by block."""
        with torch.no_grad(), self.guard():
            return join_outputs([self.model.outputs(v, part.inputs) for part in rows.blocks(BLOCK)])

    def _choose_gradients(self) -> GradientFunction:
        if self.mode == "autograd":
            return AutogradGradients(self.model, self.deterministic)
        sequential = self.mode == "sequential"
        return BatchedGradients(self.model, self.deterministic, sequential)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_gradients"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._gradients = self._choose_gradients()  # traces cannot be pickled


def padded_width(sizes: Ints) -> Ints:
    """Return the width that a batch of all rows is padded to: few widths serve many sizes.

    It is at least 8, and rounded up to three binary digits.

    >>> padded_width(np.array([1, 9, 17, 100, 1000])).tolist()
    [8, 10, 20, 112, 1024]
    """
    least = np.maximum(sizes, 8)
    unit = 2 ** (np.frexp(least)[1] - 3).astype(np.int64)
    return np.asarray(-(-least // unit) * unit)


def _batch_widths(sizes: Ints, asked: int | None) -> Ints:
    """Return the widths (n,) of batches: the requested size, unless half of it is padding."""
    if asked is None:
        return padded_width(sizes)
    is_full = asked < 2 * sizes
    if is_full.all():
        return np.full(len(sizes), asked)
    return np.where(is_full, asked, padded_width(sizes))


def _map(
    block: Callable[[int], PooledEvaluation], starts: range, threads: int
) -> list[PooledEvaluation]:
    """Compute blocks in order, in a pool of threads where that helps."""
    if threads == 1 or len(starts) == 1:
        return [block(start) for start in starts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(block, starts))
