"""Optional abilities of problems and oracles, as protocols that an engine asks for.

A problem needs only `fedpage.core.types.Problem`. Whatever offers more, such as client by client
evaluation or vectors on a graphics processor, has the properties or methods of a protocol here, or
one of these:

- `clients_at_once`, the most clients that compute at once, if memory is short;
- `convex`, whether f is known to be convex, and `x0`, its own start (d,) or None;
- `mean_labels()`, the mean label of each client (N,), for faults that depend on labels;
- `evaluate_held_out(x)`, the held_out_loss and held_out_METRIC of x (d,), {} without such rows;
- `start_digest`, of a model with its initial parameters, its loss and its dtype;
- of an oracle, `count_each()`, the row gradients of each called client so far (n,), which simulated
  time needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from fedpage.core.types import Batch, DType, Ints, Oracle, Problem, Vector


@runtime_checkable
class EpochOracle(Oracle, Protocol):
    """An oracle that can pass over all rows of its clients in minibatches."""

    def epoch_steps(self, size: int | None, epochs: int) -> Ints:
        """Return the number of minibatches of each client in so many passes, (n,)."""

    def epoch_batch(self, size: int | None, epochs: int, step: int) -> Batch:
        """Return minibatch number `step` of each client; steps must be asked for in order.

        The last batch of a pass may be smaller. A client that has passed its rows has no rows in
        its batch.
        """


@runtime_checkable
class LossOracle(Oracle, Protocol):
    """An oracle that can compute losses. One counts as a gradient."""

    def loss(self, y: Vector, batch: Batch) -> Vector:
        """Return each client's mean loss (n, 1) over its batch, at its row of y or y (d,)."""


@runtime_checkable
class ProductOracle(Oracle, Protocol):
    """An oracle that can compute products of Hessians with vectors. One counts as a gradient."""

    def hvp(self, y: Vector, v: Vector, batch: Batch) -> Vector:
        """Return each client's mean Hessian over its batch at y, times v (d,) or (n, d): (n, d)."""


@runtime_checkable
class HessianOracle(LossOracle, Protocol):
    """An oracle that can compute losses and second derivatives. One counts as d gradients."""

    def hessian(self, y: Vector, batch: Batch) -> Vector:
        """Return the upper triangle of each client's mean Hessian, row after row, (n, d(d+1)/2)."""


@runtime_checkable
class HasCode(Protocol):
    """A problem whose arithmetic depends on more code than its own class."""

    code: Mapping[str, type]
    """The user's classes that decide what is computed, by name."""


class ClientEvaluations(NamedTuple):
    """The values that n clients report of a model, each on its own rows."""

    losses: Vector
    """(n,) each client's own N w_i f_i(x)."""
    gradients: Vector
    """(n, d) the gradients of these."""
    metrics: Mapping[str, Vector]
    """(n,) values of each metric on the client's rows, by name."""


@runtime_checkable
class ClientEvaluator(Protocol):
    """A problem that can be evaluated client by client, as a federation has to."""

    def evaluate_clients(self, clients: Ints, x: Vector) -> ClientEvaluations:
        """Evaluate x (d,) on the rows of each of these clients (n,)."""


@runtime_checkable
class NodeProblem(Problem, ClientEvaluator, Protocol):
    """A problem that can run on a node: it has one client, whose objective can be scaled."""

    def rescale(self, factor: float) -> Self:
        """Return the problem with every client's objective multiplied by a factor."""


@runtime_checkable
class SavesModels(Protocol):
    """A problem that can write a model to a file, such as a `TorchProblem`."""

    def save(
        self, path: str | os.PathLike[str], x: Vector, about: Mapping[str, str] | None = None
    ) -> None:
        """Write the model with parameters x (d,) and a table of texts about it."""

    def about(self, path: str | os.PathLike[str]) -> Mapping[str, str]:
        """Read the table of texts of a saved model."""

    def check_model_path(self, path: Path) -> None:
        """Raise an InputError for a file name that no model can be saved under."""


def dtype_of(problem: object) -> DType:
    """Return the type of a problem's numbers: its `dtype`, or float64."""
    return np.dtype(getattr(problem, "dtype", np.float64))


def is_convex(problem: object) -> bool:
    """Return whether a problem is known to be convex: its property `convex`, or False."""
    return bool(getattr(problem, "convex", False))


def own_start(problem: object) -> Vector | None:
    """Return a problem's own start (d,), such as a network's initial parameters, or None."""
    return getattr(problem, "x0", None)


def measures_step(method: object) -> bool:
    """Return whether a method measures its step size in a run: its property of this name."""
    return bool(getattr(method, "measures_step", False))


# --- vectors on a device --------------------------------------------------------------------------
# A problem may keep its vectors on a graphics processor. Then the state of a method, its messages,
# replies and client states are arrays of the device, and no round copies them to the host. Methods
# that use arithmetic operators only need no change for that.


class DeviceArrays(Protocol):
    """Copies vectors to a device and back, and makes tables there."""

    def to_device(self, values: Vector) -> Any:
        """Return a copy on the device."""

    def to_host(self, values: Any) -> Vector:
        """Return a copy as a numpy array."""

    def zeros(self, rows: int, d: int) -> Any:
        """Return a table of zeros, (rows, d), on the device."""


def device_arrays_of(problem: object) -> DeviceArrays | None:
    """Return how a problem keeps vectors on a device, or None if they are numpy arrays."""
    return getattr(problem, "device_arrays", None)


def to_host(arrays: DeviceArrays, value: Any) -> Any:
    """Return a tree of NamedTuples with numpy arrays in place of the device's."""
    return _copy(arrays.to_host, value, value)


def to_device(arrays: DeviceArrays, value: Any, template: Any) -> Any:
    """Return a tree with arrays of the device where the template has them."""
    return _copy(arrays.to_device, value, template)


def _copy(copy: Callable[[Any], Any], value: Any, template: Any) -> Any:
    """Copy the arrays of a tree for which the template has arrays of the device."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = zip(value, template, strict=True)
        return type(value)(*(_copy(copy, part, like) for part, like in parts))
    is_on_host = isinstance(template, np.ndarray) or not getattr(template, "ndim", 0)
    return value if is_on_host else copy(value)
