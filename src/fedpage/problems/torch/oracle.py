"""Answer the called clients of a torch model: gradients and local steps, computed on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedpage.core import local_steps
from fedpage.core.errors import InputError
from fedpage.core.optimizers import Optimizer
from fedpage.core.types import Batch, ClientDraws, Ints, Vector
from fedpage.problems.oracle import RowOracle
from fedpage.problems.torch.gradients import join_parts
from fedpage.problems.torch.rows import to_numpy

if TYPE_CHECKING:
    from fedpage.problems.torch.gradients import ClientBatches
    from fedpage.problems.torch.objective import NetworkObjective


class ReadBatch(NamedTuple):
    """A minibatch of each client that has been read already."""

    size: int
    batches: ClientBatches


class KeyedBatch(NamedTuple):
    """A minibatch of each client, and the keys of the masks of dropout."""

    batch: Batch
    keys: Tensor


_FIRST_FIELD = 2**32
"""Keys of dropout are those of fields from here on; the fields of replies have smaller numbers."""


class TensorOracle(RowOracle):
    """Draw minibatches and compute gradients on the device, from tensors to tensors."""

    def __init__(self, objective: NetworkObjective, clients: Ints, draws: ClientDraws) -> None:
        super().__init__(clients, objective.sizes[clients], draws, objective.equal_size)
        self._objective = objective
        self._each = np.zeros(len(clients), dtype=np.int64)
        self._read: deque[ReadBatch] = deque()

    def read_ahead(self, size: int | None, count: int) -> bool:
        """Draw and read the next `count` minibatches at once, if memory allows it."""
        first = self._drawn
        rows, b = self._batches(size, count)
        batch = Batch(rows, np.minimum(self.sizes, b), size)
        batches = self._objective.gather(self.clients, batch, count, self._keys(first, count))
        if batches is None:
            self._drawn = first
            return False
        self._read.extend(ReadBatch(b, own) for own in batches)
        return True

    @property
    def has_read(self) -> bool:
        """Whether the next minibatches were read ahead."""
        return bool(self._read)

    def batch(self, size: int | None) -> Any:
        """Draw a fresh minibatch at each client, or return the next one that was read ahead."""
        if self._read:
            return self._read.popleft()
        keys = self._keys(self._drawn, 1)
        batch = super().batch(size)
        return batch if keys is None else KeyedBatch(batch, keys[0])

    def epoch_batch(self, size: int | None, epochs: int, step: int) -> Any:
        """Return minibatch number `step` of each client's passes over its rows."""
        batch, keys = super().epoch_batch(size, epochs, step), self._keys(_FIRST_FIELD + step, 1)
        return batch if keys is None else KeyedBatch(batch, keys[0])

    def grad(self, y: Tensor, batch: Batch | ReadBatch | KeyedBatch) -> Tensor:
        """Return the mean gradient (n, d) over each client's batch at its own row of y (n, d)."""
        if isinstance(batch, ReadBatch):
            self._count(batch.size)
            return join_parts(self._objective.gradient_parts(y, batch.batches))
        return self.derive(y, batch)[0]

    def derive(
        self, y: Tensor, batch: Batch | KeyedBatch, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return gradients (n, d) and losses (n,), or with `along` (n, d) Hessians times it."""
        own, keys = batch if isinstance(batch, KeyedBatch) else (batch, None)
        self._count_batch(own)
        rows, sizes, asked = own
        if rows is None or bool(sizes.all()):
            return self._objective.client_gradients(y, self.clients, own, keys, along)
        on = np.flatnonzero(sizes)  # all derivatives over a batch without rows are 0
        part, on_keys = Batch(rows[on], sizes[on], asked), None if keys is None else keys[on]
        directions = None if along is None else along[on]
        found, losses = torch.zeros_like(y), y.new_zeros(len(y))
        found[on], losses[on] = self._objective.client_gradients(
            y[on], self.clients[on], part, on_keys, directions
        )
        return found, losses

    def sgd_in_place(
        self, x: Tensor, K: int, eta: float, b: int | None, shift: Tensor | None, mu: float
    ) -> Tensor:
        """Take the steps of `local_sgd` on minibatches that were read ahead, in two vectors.

        The sum of the directions grows in place, and y_k is x - eta times it. The mean direction
        comes from this sum, because x - y_K would have few digits where eta is small.
        """
        y, total = x.clone(), torch.zeros_like(x)
        parts = self._objective.model.split(total)
        compiled, left = self._objective.compiled_steps(), K
        while compiled is not None and mu == 0.0 and left >= compiled.block:
            batches = [self.batch(b).batches for _ in range(compiled.block)]
            compiled.take_steps(x, total, batches, eta, shift)
            left -= compiled.block
        if left < K:
            torch.sub(x, total, alpha=eta, out=y)
        with self._objective.bind(y) as gradients:
            for _ in range(left):
                found = gradients(self.batch(b).batches)
                if mu != 0.0:
                    total.add_(y - x, alpha=mu)
                if shift is not None:
                    total.add_(shift)
                for part, gradient in zip(parts, found, strict=True):
                    part.add_(gradient)
                torch.sub(x, total, alpha=eta, out=y)
        self._count(b if b is not None else self._largest, K)
        return total.div_(K)

    def _keys(self, first: int, count: int) -> Tensor | None:
        """Return keys (count, n) for minibatches first..first+count-1; None without dropout."""
        if not self._objective.model.key_names:
            return None
        fields = range(_FIRST_FIELD + first, _FIRST_FIELD + first + count)
        keys = np.array([self._draws.client_keys(self.clients, field) for field in fields])
        return torch.from_numpy(keys.view(np.int64)).to(self._objective.device)

    def lift(self, v: Vector | Tensor) -> Tensor:
        """Return v (d,) or (n, d) on the device as (n, d).

        It is contiguous, so that a shared vector gives the bits that n copies of it give.
        """
        tensor = self._objective.tensor(v)
        rows = tensor if tensor.ndim == 2 else tensor[None, :]
        return rows.expand(len(self.clients), self._objective.d).contiguous()

    def select(self, group: slice) -> Self:
        """Return an oracle of some of the clients that has computed nothing yet."""
        part = copy(self)
        part.clients, part.sizes = self.clients[group], self.sizes[group]
        part._largest = int(part.sizes.max())
        part._each = np.zeros(len(part.clients), dtype=np.int64)
        part.gradients = part.evaluations = 0
        part._read = deque()
        part._order = None
        return part

    def add(self, group: slice, part: Self) -> None:
        """Add what an oracle of some of the clients has computed."""
        self._each[group] += part._each
        self.gradients += part.gradients
        self.evaluations += part.evaluations

    def skip_to(self, part: Self) -> None:
        """Continue with the draws that follow those of an oracle of some of the clients."""
        self._drawn = part._drawn

    def _count(self, b: int, times: int = 1) -> None:
        rows = times * np.minimum(self.sizes, b)
        self._each += rows
        self.gradients += int(rows.sum())
        self.evaluations += times * len(self.clients)

    def count_each(self) -> Ints:
        """Return the row gradients that each called client has computed so far, (n,)."""
        return self._each.copy()


class TorchOracle:
    """Compute gradients and local steps of the called clients, from numpy arrays to numpy arrays.

    Local steps are those of `core.local_steps`, run on tensors: vectors are copied to the device
    once before the first step, and the mean direction is copied back once after the last. A group
    of clients takes all its steps before the next group, so that its vectors stay in the cache.
    """

    def __init__(self, objective: NetworkObjective, clients: Ints, draws: ClientDraws) -> None:
        self._tensors = TensorOracle(objective, clients, draws)
        self._objective = objective

    @property
    def gradients(self) -> int:
        """Gradients of single rows computed so far, over all called clients."""
        return self._tensors.gradients

    @property
    def evaluations(self) -> int:
        """Evaluations of a client's gradient so far, over all called clients."""
        return self._tensors.evaluations

    def count_each(self) -> Ints:
        """Return the row gradients that each called client has computed so far, (n,)."""
        return self._tensors.count_each()

    def batch(self, size: int | None) -> Batch:
        """Draw a fresh minibatch at each client."""
        return self._tensors.batch(size)

    def epoch_steps(self, size: int | None, epochs: int) -> Ints:
        """Return the number of minibatches of each client in so many passes, (n,)."""
        return self._tensors.epoch_steps(size, epochs)

    def epoch_batch(self, size: int | None, epochs: int, step: int) -> Batch:
        """Return minibatch number `step` of each client's passes over its rows."""
        return self._tensors.epoch_batch(size, epochs, step)

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """Return the mean gradient (n, d) over each client's batch at y (n, d), or at y (d,).

        It is a tensor where y is one, and an array otherwise.
        """
        with self._objective.guard():
            return _like(y, self._tensors.grad(self._tensors.lift(y), batch))

    def loss(self, y: Vector, batch: Batch) -> Vector:
        """Return each client's mean loss (n, 1) over its batch; it counts as a gradient."""
        with self._objective.guard():
            return _like(y, self._tensors.derive(self._tensors.lift(y), batch)[1][:, None])

    def hvp(self, y: Vector, v: Vector, batch: Batch) -> Vector:
        """Return each client's mean Hessian over its batch at y, times v (d,) or (n, d)."""
        lift = self._tensors.lift
        with self._objective.guard():
            return _like(y, self._tensors.derive(lift(y), batch, lift(v))[0])

    def hessian(self, y: Vector, batch: Batch) -> Vector:
        """Refuse: a Hessian would take d products.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "TorchProblem: it has no Hessians, only their products with vectors (hvp); Newton is "
            "for linear models and quadratics, use SecantPAGE here"
        )

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
        """Run `core.local_steps.local_sgd` on the device."""

        def steps(oracle: TensorOracle, x: Tensor, shift: Tensor | None = None) -> Tensor:
            if oracle.has_read:
                return oracle.sgd_in_place(x, K, eta, b, shift, mu)
            return local_steps.local_sgd(oracle, x, K=K, eta=eta, b=b, shift=shift, mu=mu)

        return self._run(steps, (x,) if shift is None else (x, shift), [(b, K)])

    def local_training(
        self,
        x: Vector,
        *,
        K: int | None,
        epochs: int | None = None,
        eta: float,
        b: int | None,
        mu: float = 0.0,
        optimizer: Optimizer | None = None,
    ) -> Vector:
        """Run `core.local_steps.local_training` on the device."""

        def steps(oracle: TensorOracle, x: Tensor) -> Tensor:
            return local_steps.local_training(
                oracle, x, K=K, epochs=epochs, eta=eta, b=b, mu=mu, optimizer=optimizer
            )

        return self._run(steps, (x,), [(b, 0 if K is None else K)])

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
        """Run `core.local_steps.local_page` on the device."""

        def steps(oracle: TensorOracle, x: Tensor, x_prev: Tensor, g: Tensor) -> Tensor:
            return local_steps.local_page(
                oracle, x, x_prev, g, K=K, eta=eta, first=first, rest=rest
            )

        return self._run(steps, (x, x_prev, g), [(first, 1), (rest, K - 1)])

    def local_svrg(
        self, x: Vector, w: Vector, h: Vector, *, K: int, eta: float, b: int | None
    ) -> Vector:
        """Run `core.local_steps.local_svrg` on the device."""

        def steps(oracle: TensorOracle, x: Tensor, w: Tensor, h: Tensor) -> Tensor:
            return local_steps.local_svrg(oracle, x, w, h, K=K, eta=eta, b=b)

        return self._run(steps, (x, w, h), [(b, K)])

    def _run(
        self,
        steps: Callable[..., Tensor],
        vectors: tuple[Vector, ...],
        minibatches: list[tuple[int | None, int]],
    ) -> Vector:
        """Take local steps, one group of clients after the other.

        Args:
            steps: The steps, as a function of an oracle and of vectors (n, d) on the device.
            vectors: Its vectors, (d,) or (n, d).
            minibatches: The sizes of the minibatches that it draws, and how many of each.
        """
        whole = self._tensors
        count, most = len(whole.clients), int(whole.sizes.max())
        size = self._objective.how.group_size(max(min(b or most, most) for b, _ in minibatches))
        with self._objective.guard():
            on_device = [self._objective.tensor(v) for v in vectors]
            if count > size:
                directions = on_device[0].new_empty(count, self._objective.d)
            for start in range(0, count, size):
                group = slice(start, start + size)
                oracle = whole.select(group)
                for b, times in minibatches:
                    if not oracle.read_ahead(b, times):
                        break
                own = (oracle.lift(v if v.ndim == 1 else v[group]) for v in on_device)
                if count > size:
                    directions[group] = steps(oracle, *own)
                else:
                    directions = steps(oracle, *own)
                whole.add(group, oracle)
            whole.skip_to(oracle)
            return _like(vectors[0], directions)


def _like(given: Vector | Tensor, found: Tensor) -> Any:
    """Return a tensor as it is where a tensor was given, and as an array otherwise."""
    return found if isinstance(given, Tensor) else to_numpy(found)
