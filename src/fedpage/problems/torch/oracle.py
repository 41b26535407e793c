"""Answer the called clients of a torch model: gradients and local steps, computed on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedpage.core import local_steps
from fedpage.core.optimizers import Optimizer
from fedpage.core.types import Batch, Draws, Ints, Vector
from fedpage.problems.base import RowOracle
from fedpage.problems.torch.rows import to_numpy

if TYPE_CHECKING:
    from fedpage.problems.torch.objective import Objective


class TensorOracle(RowOracle):
    """Draw minibatches and compute gradients on the device, from tensors to tensors."""

    def __init__(self, objective: Objective, clients: Ints, draws: Draws) -> None:
        super().__init__(clients, objective.sizes[clients], draws, objective.equal_size)
        self._objective = objective

    def grad(self, y: Tensor, batch: Batch) -> Tensor:
        """Return the mean gradient (n, d) over each client's batch at its own row of y (n, d)."""
        self._count(self._largest if batch.rows is None else batch.rows.shape[1])
        return self._objective.client_gradients(y, self.clients, batch)[0]

    def lift(self, v: Vector) -> Tensor:
        """Copy v (d,) or (n, d) to the device as (n, d).

        It is contiguous, so that a shared vector gives the bits that n copies of it give.
        """
        tensor = self._objective.tensor(v)
        rows = tensor if tensor.ndim == 2 else tensor[None, :]
        return rows.expand(len(self.clients), self._objective.d).contiguous()


class TorchOracle(local_steps.FusedOracle):
    """Compute gradients and local steps of the called clients, from numpy arrays to numpy arrays.

    Local steps are those of `core.local_steps`, run on tensors: vectors are copied to the device
    once before the first step, and the mean direction is copied back once after the last.
    """

    def __init__(self, objective: Objective, clients: Ints, draws: Draws) -> None:
        self._tensors = TensorOracle(objective, clients, draws)
        self._deterministic = objective.guard

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

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """Return the mean gradient (n, d) over each client's batch at y (n, d), or at y (d,)."""
        with self._deterministic():
            return to_numpy(self._tensors.grad(self._tensors.lift(y), batch))

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
        oracle = self._tensors
        with self._deterministic():
            constant = None if shift is None else oracle.lift(shift)
            return to_numpy(
                local_steps.local_sgd(
                    oracle, oracle.lift(x), K=K, eta=eta, b=b, shift=constant, mu=mu
                )
            )

    def local_training(
        self,
        x: Vector,
        *,
        K: int,
        eta: float,
        b: int | None,
        mu: float,
        optimizer: Optimizer | None,
    ) -> Vector:
        """Run `core.local_steps.local_training` on the device."""
        oracle = self._tensors
        with self._deterministic():
            return to_numpy(
                local_steps.training_steps(
                    oracle, oracle.lift(x), K=K, eta=eta, b=b, mu=mu, optimizer=optimizer
                )
            )

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
        oracle = self._tensors
        with self._deterministic():
            vectors = (oracle.lift(v) for v in (x, x_prev, g))
            return to_numpy(
                local_steps.local_page(oracle, *vectors, K=K, eta=eta, first=first, rest=rest)
            )

    def local_svrg(
        self, x: Vector, w: Vector, h: Vector, *, K: int, eta: float, b: int | None
    ) -> Vector:
        """Run `core.local_steps.local_svrg` on the device."""
        oracle = self._tensors
        with self._deterministic():
            vectors = (oracle.lift(v) for v in (x, w, h))
            return to_numpy(local_steps.local_svrg(oracle, *vectors, K=K, eta=eta, b=b))
