"""Compute f_i, f and their gradients over the clients' rows of a torch model, on the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Literal, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad_and_value

from fedpage.core.types import Batch, DType, Ints, Rows, Vector
from fedpage.problems.base import equal_size
from fedpage.problems.torch.batch_norm import rows_statistics
from fedpage.problems.torch.deterministic import deterministic_algorithms
from fedpage.problems.torch.gradients import (
    BatchedGradients,
    ClientBatches,
    GradientFunction,
    PartsFunction,
    SequentialGradients,
    join_parts,
)
from fedpage.problems.torch.model import FlatModel, Outputs, join_outputs, map_tensors
from fedpage.problems.torch.rows import AnyTable, TensorTable, to_numpy

Mode: TypeAlias = Literal["batched", "sequential"]
"""How clients' gradients are computed: all clients in one call of `vmap`, or one after the other
without `vmap`."""


class Computation(NamedTuple):
    """How gradients are computed."""

    mode: Mode
    is_compiled: bool
    is_deterministic: bool
    """Whether a client's bits must depend on its rows and its parameters alone."""
    memory: int
    """Bytes that one call may take, about."""
    vector_bytes: int
    """Bytes of a vector of parameters."""
    row_bytes: int
    """Bytes that a row more takes in a gradient, about."""

    def guard(self) -> AbstractContextManager[None]:
        """Return the context of torch's settings in which gradients are computed."""
        return deterministic_algorithms() if self.is_deterministic else nullcontext()

    def block_rows(self) -> int:
        """Return how many rows of one client fit in a call."""
        return max(1, (self.memory - _COPIES * self.vector_bytes) // self.row_bytes)

    def group_size(self, rows: int) -> int:
        """Return how many clients with so many rows each are computed in one call."""
        if self.mode == "sequential":
            return 1
        each = min(rows, self.block_rows()) * self.row_bytes + _COPIES * self.vector_bytes
        return max(1, self.memory // each)


_COPIES = 3
"""Vectors (d,) of each client in a call: parameters, their parts, the gradient."""


class PooledEvaluation(NamedTuple):
    """The whole objective at one point."""

    gradient: Vector
    """(d,) of f, in float64."""
    loss: float
    outputs: Outputs
    """The model's outputs for all rows, or None where they were not requested."""


class NetworkObjective:
    """Compute losses and gradients of clients whose rows are one table on the device.

    Args:
        model: The module and its loss as functions of a vector.
        table: The rows of all clients, one client after the other.
        sizes: (N,) rows of each client.
        scale: (N,) the factor N w_i of each client's objective.
        dtype: The type of vectors outside.
        device: Where to compute.
        how: How clients' gradients are computed.
    """

    def __init__(
        self,
        model: FlatModel,
        table: AnyTable,
        sizes: Ints,
        scale: Vector,
        dtype: DType,
        device: torch.device,
        how: Computation,
    ) -> None:
        self.model, self.table, self.sizes, self.scale = model, table, sizes, scale
        self.dtype, self.device, self.how = dtype, device, how
        self.equal_size = equal_size(sizes)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._block = how.block_rows()
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
        twin._gradients = self._gradients  # with what is compiled
        return twin

    def guard(self) -> AbstractContextManager[None]:
        """Return the context of torch's settings in which gradients are computed."""
        return self.how.guard()

    def tensor(self, x: Vector | Tensor) -> Tensor:
        """Copy x (d,) or (n, d) to the device; a tensor is there already.

        The copy is in memory that torch aligns, because alignment may change bits.
        """
        if isinstance(x, Tensor):
            return x
        values = np.ascontiguousarray(x, dtype=self.dtype)
        if values.ndim not in (1, 2) or values.shape[-1] != self.d:
            raise ValueError(f"points of shape {values.shape} for {self.d} parameters")
        return torch.tensor(values, device=self.device)

    def client_rows(self, client: int) -> AnyTable:
        """Return the rows of one client."""
        return self.table.slice(int(self._starts[client]), int(self._starts[client + 1]))

    def mean_targets(self) -> Vector:
        """Return the mean target (N,) of each client."""
        targets = self.table.targets
        means = to_numpy(targets.reshape(len(targets), -1).double().mean(1))
        return np.asarray(np.add.reduceat(means, self._starts[:-1]) / self.sizes)

    def client_gradients(
        self,
        v: Tensor,
        clients: Ints,
        batch: Batch,
        keys: Tensor | None = None,
        along: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute each client's gradient and loss over its batch, at its own row of v.

        Clients are grouped by the width that their batch is padded to, and by memory.

        Args:
            v: (n, d) points.
            clients: (n,) client numbers.
            batch: The minibatch of each client.
            keys: (n,) integers that the masks of dropout depend on; None: an evaluation.
            along: (n, d) directions, or None.

        Returns:
            Gradients (n, d) and losses (n,), or with directions the derivatives of the gradients
            along them and zeros.
        """
        rows, sizes, asked = batch
        widths = self._widths(sizes, asked, keys)
        first, count = int(widths[0]), len(clients)
        size = self.how.group_size(int(widths.max()))
        if count <= size and (count == 1 or bool((widths == first).all())):
            return self._equal_width(v.contiguous(), clients, rows, sizes, first, keys, along)
        gradients, losses = torch.empty_like(v), torch.empty(len(v), dtype=v.dtype, device=v.device)
        for width in np.unique(widths):
            members = np.flatnonzero(widths == width)
            size = self.how.group_size(int(width))
            for start in range(0, len(members), size):
                group = members[start : start + size]
                own_rows = None if rows is None else rows[group]
                gradients[group], losses[group] = self._equal_width(
                    v[group],
                    clients[group],
                    own_rows,
                    sizes[group],
                    int(width),
                    None if keys is None else keys[group],
                    None if along is None else along[group],
                )
        return gradients, losses

    def gather(
        self, clients: Ints, batch: Batch, steps: int, keys: Tensor | None
    ) -> list[ClientBatches] | None:
        """Read the minibatches of several steps at once.

        Args:
            clients: (n,) client numbers.
            batch: Minibatches whose rows are (n, steps, w), or None for all rows.
            steps: Number of steps.
            keys: (steps, n) integers that the masks of dropout depend on, or None.

        Returns:
            The minibatches of each step, or None where one call cannot compute them.
        """
        rows, sizes, asked = batch
        widths = self._widths(sizes, asked, keys)
        width = int(widths[0])
        bytes_read = (1 if rows is None else steps) * len(clients) * width * self.table.row_bytes()
        if (
            bool((widths != width).any())
            or width > self._block
            or len(clients) > self.how.group_size(width)
            or bytes_read > self.how.memory // 4
        ):
            return None
        own_keys = [None] * steps if keys is None else list(keys)
        if rows is None:
            whole = self._read(clients, None, sizes, np.arange(width))
            return [whole._replace(keys=own) for own in own_keys]
        inside = np.arange(width) < sizes[:, None]
        numbers = np.where(inside[:, None], _widen(rows, width), 0)
        chosen = np.ascontiguousarray(
            (self._starts[clients][:, None, None] + numbers).swapaxes(0, 1)
        )
        inputs, targets = self.table.take(chosen)
        weights = self._weigh(clients, inside, sizes)
        return [
            ClientBatches(
                map_tensors(lambda x, k=k: x[k], inputs), targets[k], weights, sizes, own_keys[k]
            )
            for k in range(steps)
        ]

    def _widths(self, sizes: Ints, asked: int | None, keys: Tensor | None) -> Ints:
        """Return the widths (n,) of batches, without padding where rows depend on one another."""
        is_exact = self.model.mixes_rows(keys is not None)
        return sizes if is_exact else _batch_widths(sizes, asked)

    def gradient_parts(self, v: Tensor, batches: ClientBatches) -> list[Tensor]:
        """Return each client's gradient over minibatches that were read before.

        It has a part (n, *shape) for each parameter.
        """
        return self._gradients(v, batches)[0]

    def bind(self, v: Tensor) -> AbstractContextManager[PartsFunction]:
        """Yield `gradient_parts` at v (n, d), which may be changed in place between two calls."""
        return self._gradients.bind(v)

    def compiled_steps(self) -> BatchedGradients | None:
        """Return what takes several steps of local SGD in one compiled call, if there is any."""
        found = self._gradients
        return found if isinstance(found, BatchedGradients) and found.block > 1 else None

    def _equal_width(
        self,
        v: Tensor,
        clients: Ints,
        rows: Rows | None,
        sizes: Ints,
        width: int,
        keys: Tensor | None,
        along: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute gradients and losses of clients whose batches are padded to one width."""
        gradients, losses = None, None
        # A batch whose rows depend on one another is never divided.
        block = width if self.model.mixes_rows(keys is not None) else self._block
        for start in range(0, min(width, int(sizes.max())), block):
            places = np.arange(start, min(start + block, width))
            batches = self._read(clients, rows, sizes, places)
            if keys is not None:
                batches = batches._replace(keys=keys + start)
            if along is None:
                parts, each = self._gradients(v, batches)
            else:
                parts, each = self._gradients.products(v, along, batches), v.new_zeros(len(v), 1)
            gradient, loss = join_parts(parts), _weighted_sum(batches.weights, each)
            gradients = gradient if gradients is None else gradients + gradient
            losses = loss if losses is None else losses + loss
        assert gradients is not None
        assert losses is not None
        return gradients, losses

    def _read(self, clients: Ints, rows: Rows | None, sizes: Ints, places: Ints) -> ClientBatches:
        """Read the rows at some places of each client's batch; padding is row 0 with weight 0."""
        inside = places < sizes[:, None]
        own = places if rows is None else _widen(rows, int(places[-1]) + 1)[:, places]
        chosen = self._starts[clients][:, None] + np.where(inside, own, 0)
        inputs, targets = self.table.take(chosen)
        weights, used = self._weigh(clients, inside, sizes), inside.sum(1)
        return ClientBatches(inputs, targets, weights, used)

    def _weigh(self, clients: Ints, inside: NDArray[np.bool_], sizes: Ints) -> Tensor:
        """Return the weights (n, w) of rows: N w_i / b_i inside a client's batch, else 0."""
        weights = inside * (self.scale[clients] / sizes)[:, None]
        return torch.from_numpy(weights.astype(self.dtype)).to(self.device)

    def evaluate_pooled(self, x: Vector, want_outputs: bool) -> PooledEvaluation:
        """Compute f, its gradient and the outputs of all rows at x (d,), block by block."""
        if self.how.mode == "sequential" or self.model.mixes_rows(is_training=False):
            return self._pooled_by_client(x, want_outputs)
        v = self.tensor(x)
        shares = self.scale / (self.N * self.sizes)
        weights = torch.from_numpy(np.repeat(shares, self.sizes).astype(self.dtype))

        def weighted_loss(
            point: Tensor, rows: TensorTable, weight: Tensor
        ) -> tuple[Tensor, Outputs]:
            outputs = self.model.outputs(point, rows.inputs)
            return (self.model.row_losses(outputs, rows.targets) * weight).sum(), outputs

        gradient, loss, outputs = np.zeros(self.d), 0.0, []
        blocks = zip(self.table.blocks(self._block), weights.split(self._block), strict=True)
        for rows, own_weights in blocks:
            with self.guard():
                part, (own_loss, own_outputs) = grad_and_value(weighted_loss, has_aux=True)(
                    v, rows, own_weights.to(self.device)
                )
            gradient += to_numpy(part)
            loss += float(own_loss)
            if want_outputs:
                outputs.append(own_outputs)
        return PooledEvaluation(gradient, loss, join_outputs(outputs) if want_outputs else None)

    def _pooled_by_client(self, x: Vector, want_outputs: bool) -> PooledEvaluation:
        v = self.tensor(x)
        gradient, loss = np.zeros(self.d), 0.0
        for i in range(self.N):
            losses, gradients = self.evaluate_clients(np.array([i], dtype=np.int64), x)
            gradient += gradients[0]
            loss += float(losses[0])
        outputs = self._all_outputs(v) if want_outputs else None
        return PooledEvaluation(gradient / self.N, loss / self.N, outputs)

    def _all_outputs(self, v: Tensor) -> Outputs:
        if not self.model.mixes_rows(is_training=False):
            return self.outputs(v, self.table)
        return join_outputs([self.outputs(v, self.client_rows(i)) for i in range(self.N)])

    def evaluate_clients(self, clients: Ints, x: Vector) -> tuple[Vector, Vector]:
        """Return each client's N w_i f_i(x) (n,) in float64, and its gradient (n, d)."""
        point = self.tensor(x).expand(len(clients), self.d)
        with self.guard():
            gradients, losses = self.client_gradients(
                point, clients, Batch(None, self.sizes[clients])
            )
        return to_numpy(losses).astype(np.float64), to_numpy(gradients)

    def outputs(self, v: Tensor, rows: AnyTable) -> Outputs:
        """Compute the model's outputs for all rows of a table at v (d,), block by block."""
        block = len(rows.targets) if self.model.mixes_rows(is_training=False) else self._block
        with torch.no_grad(), self.guard():
            return join_outputs([self.model.outputs(v, part.inputs) for part in rows.blocks(block)])

    def set_statistics(self, module: nn.Module, client: int | None) -> None:
        """Give a module the running statistics of a client's rows, or their mean over clients."""
        clients = range(self.N) if client is None else [client]
        shares = self.scale[clients] / self.scale[clients].sum()
        means: dict[str, Tensor] = {}
        for i, share in zip(clients, shares, strict=True):
            with self.guard():
                own = rows_statistics(
                    module, self.client_rows(i).take(np.arange(self.sizes[i])).inputs
                )
            for name, value in own.items():
                means[name] = means.get(name, 0.0) + float(share) * value
        buffers = dict(module.named_buffers())
        for name, value in means.items():
            buffers[name].copy_(value)

    def _choose_gradients(self) -> GradientFunction:
        kind = SequentialGradients if self.how.mode == "sequential" else BatchedGradients
        return kind(self.model, self.how.is_compiled)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_gradients"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._gradients = self._choose_gradients()  # functions cannot be pickled


def padded_width(sizes: Ints) -> Ints:
    """Return the width that a batch of all rows is padded to: few widths serve many sizes.

    It is at least 8, and rounded up to three binary digits.

    >>> padded_width(np.array([1, 9, 17, 100, 1000])).tolist()
    [8, 10, 20, 112, 1024]
    """
    least = np.maximum(sizes, 8)
    unit = 2 ** (np.frexp(least)[1] - 3).astype(np.int64)
    return np.asarray(-(-least // unit) * unit)


def _weighted_sum(weights: Tensor, losses: Tensor) -> Tensor:
    """Return the clients' losses (n,) from those of rows (n, w), or from their means (n, 1)."""
    return (weights * losses).sum(1)


def _widen(rows: Rows, width: int) -> Rows:
    """Return row numbers (n, ..., width): more places repeat the last one."""
    return rows[..., np.minimum(np.arange(width), rows.shape[-1] - 1)]


def _batch_widths(sizes: Ints, asked: int | None) -> Ints:
    """Return the widths (n,) of batches: the requested size, unless half of it is padding."""
    if asked is None:
        return padded_width(sizes)
    is_full = asked < 2 * sizes
    if is_full.all():
        return np.full(len(sizes), asked)
    return np.where(is_full, asked, padded_width(sizes))
