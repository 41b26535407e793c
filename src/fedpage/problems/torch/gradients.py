"""Compute the gradients of a torch model for many clients: in one call, or one at a time."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedpage.core.errors import InputError
from fedpage.core.types import Ints
from fedpage.data.registry import platform_cache
from fedpage.problems.torch.inputs import Inputs, list_tensors
from fedpage.problems.torch.model import FlatModel, Outputs, map_tensors


class ClientBatches(NamedTuple):
    """Minibatches of n clients, padded to one width w with rows of weight 0."""

    inputs: Inputs
    """Each (n, w, ...)."""
    targets: Tensor
    """(n, w, ...)."""
    weights: Tensor
    """(n, w), the weight of each row in its client's loss: equal, or 0 for padding at the end."""
    sizes: Ints
    """(n,) rows of weight above 0; on the host, because they choose what is computed."""
    keys: Tensor | None = None
    """(n,) integers that the clients' masks of dropout depend on; None: an evaluation."""


PartsFunction: TypeAlias = Callable[[ClientBatches], list[Tensor]]
"""Gradients over batches, with a part (n, *shape) for each parameter."""
_ClientGradient: TypeAlias = Callable[[ClientBatches, int], tuple[Sequence[Tensor], Tensor]]


class GradientFunction(Protocol):
    """Computes gradients of sum_j weights_ij f_ij at each client's own row of v (n, d).

    A gradient has a part (n, *shape) for each parameter.
    """

    def __call__(self, v: Tensor, batches: ClientBatches) -> tuple[list[Tensor], Tensor]:
        """Return gradients, and the losses of rows (n, w), or (n, 1) with their means."""
        ...

    def products(self, v: Tensor, u: Tensor, batches: ClientBatches) -> list[Tensor]:
        """Return the derivatives of the gradients along each client's own row of u (n, d)."""
        ...

    def bind(self, v: Tensor) -> AbstractContextManager[PartsFunction]:
        """Yield the gradients at v, which may be changed in place between two calls."""
        ...


_Function: TypeAlias = Callable[..., Any]

_BLOCK = 5
"""Steps that are compiled as one function: more take longer to compile and save little
(benchmarks/torch_speed.py)."""


class BatchedGradients:
    """Compute all clients in one call: `vmap` over clients, and one backward pass for all.

    The gradient of the sum of the clients' losses with respect to all their parameters has each
    client's gradient in its own row. It is the same as `vmap(grad(loss))`, but fewer operations
    pass through vmap, which costs more than the arithmetic of a small network.

    Args:
        model: The model and its loss.
        is_compiled: Whether to compile the call. Few shapes are compiled: the number of clients is
            rounded up, and what is added has weight 0.
    """

    def __init__(self, model: FlatModel, is_compiled: bool = False) -> None:
        self.model = model.for_compiler() if is_compiled else model.for_vmap()
        self._is_compiled = is_compiled
        self._all_outputs, self._all_penalised = vmap(self._outputs), vmap(self.model.call)
        self.block = _BLOCK if is_compiled else 1
        """How many steps of local SGD `take_steps` takes in one compiled call; 1: it is none."""
        if is_compiled:
            self._compiled = _compile(grad(self._weighted_losses, has_aux=True))
            self._compiled_steps = _compile(self._steps)

    def __call__(self, v: Tensor, batches: ClientBatches) -> tuple[list[Tensor], Tensor]:
        """Return the parts of the gradients (n, *shape) and the losses of rows."""
        n = len(v)
        if self._is_compiled:
            v, batches = _pad_clients(v, batches, padded_count(n))
            inputs, targets, weights, _, keys = batches
            gradients, losses = self._compiled(self.model.split(v), inputs, targets, weights, keys)
            return [part[:n] for part in gradients], losses[:n]
        gradients, each = self._compute(v, batches)
        return gradients, each.detach().reshape(batches.weights.shape)

    def products(self, v: Tensor, u: Tensor, batches: ClientBatches) -> list[Tensor]:
        """Return the parts of the Hessians' products with u; they are not compiled."""
        return self._compute(v, batches, u)[0]

    def _compute(
        self, v: Tensor, batches: ClientBatches, u: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Return the parts of the gradients and the losses of all rows (n w,), not compiled.

        With u (n, d) the parts are the derivatives of the gradients along u.
        """
        parts = [part.detach().requires_grad_(True) for part in self.model.split(v)]
        inputs, targets, weights, _, keys = batches
        with torch.enable_grad():
            each, penalties = self._row_losses(parts, inputs, targets, keys)
            terms, factors = [each], [weights.flatten()]
            if penalties is not None:
                terms, factors = [each, penalties], [weights.flatten(), weights.sum(1)]
            along = None if u is None else self.model.split(u)
            found = _differentiate(terms, parts, factors, along)
        return found, each

    @contextmanager
    def bind(self, v: Tensor) -> Iterator[PartsFunction]:
        """Yield the gradients at v (n, d), which may be changed in place between two calls."""
        compute = self if self._is_compiled else self._compute
        yield lambda batches: compute(v, batches)[0]

    def take_steps(
        self,
        x: Tensor,
        total: Tensor,
        batches: Sequence[ClientBatches],
        eta: float,
        shift: Tensor | None,
    ) -> None:
        """Take further steps of local SGD from x (n, d) in one compiled call.

        Args:
            x: The start.
            total: The sum of the directions so far, (n, d), which grows in place.
            batches: The minibatches of the steps, of equal sizes.
            eta: The step size.
            shift: A constant to add to the gradients, (n, d), or None.
        """
        n, split = len(x), self.model.split
        extra = padded_count(n) - n
        padded = [_pad_clients(x, own, n + extra) for own in batches]
        grown = self._compiled_steps(
            split(padded[0][0]),
            split(_repeat_last(total, extra)),
            [own.inputs for _, own in padded],
            [own.targets for _, own in padded],
            padded[0][1].weights,
            torch.tensor(eta, dtype=x.dtype, device=x.device),
            None if shift is None else split(_repeat_last(shift, extra)),
        )
        for part, new in zip(split(total), grown, strict=True):
            part.copy_(new[:n])

    def _steps(
        self,
        starts: list[Tensor],
        totals: list[Tensor],
        inputs: list[Inputs],
        targets: list[Tensor],
        weights: Tensor,
        eta: Tensor,
        shifts: list[Tensor] | None,
    ) -> list[Tensor]:
        """Return the sums of directions after a step on each of the minibatches."""
        gradient = grad(self._weighted_losses, has_aux=True)
        for own_inputs, own_targets in zip(inputs, targets, strict=True):
            points = [x - eta * total for x, total in zip(starts, totals, strict=True)]
            found = gradient(points, own_inputs, own_targets, weights, None)[0]
            if shifts is not None:
                found = [g + shift for g, shift in zip(found, shifts, strict=True)]
            totals = [total + g for total, g in zip(totals, found, strict=True)]
        return totals

    def _row_losses(
        self, parts: list[Tensor], inputs: Inputs, targets: Tensor, keys: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the loss of each row of each client (n w,), and the clients' penalties (n,)."""
        penalties = None
        if keys is not None and self.model.statistics:
            outputs, penalties = self._all_penalised(parts, inputs, keys)
        else:
            own = (parts, inputs) if keys is None else (parts, inputs, keys)
            outputs = self._all_outputs(*own)
        rows = map_tensors(lambda part: part.flatten(0, 1), outputs)
        return self.model.row_losses(rows, targets.flatten(0, 1)), penalties

    def _outputs(self, parts: list[Tensor], inputs: Inputs, key: Tensor | None = None) -> Outputs:
        return self.model.call(parts, inputs, key)[0]

    def _weighted_losses(
        self,
        parts: list[Tensor],
        inputs: Inputs,
        targets: Tensor,
        weights: Tensor,
        keys: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of the clients' weighted losses, and the losses of rows (n, w)."""
        each, penalties = self._row_losses(parts, inputs, targets, keys)
        each = each.reshape(weights.shape)
        total = (each * weights).sum()
        if penalties is not None:
            total = total + (penalties * weights.sum(1)).sum()
        return total, each


class SequentialGradients:
    """Compute one client after the other, without `vmap` and without padding.

    Args:
        model: The model and its loss.
        is_compiled: Whether to compile the gradient of a client.
    """

    def __init__(self, model: FlatModel, is_compiled: bool = False) -> None:
        self._model, self._is_compiled = model, is_compiled
        if is_compiled:
            self._model = model.for_compiler()
            self._compiled = _compile(grad(self._scaled_loss, has_aux=True))

    def __call__(self, v: Tensor, batches: ClientBatches) -> tuple[list[Tensor], Tensor]:
        """Return the parts of the gradients (n, *shape) and the losses of rows.

        A client's parameters are a copy where there are several, because the last bits of a
        product may depend on where in memory its operands lie.
        """
        each = []
        for i in range(len(v)):
            point = v[i].detach().clone() if len(v) > 1 else v[0].detach()
            with self._bind(point) as gradient:
                each.append(gradient(batches, i))
        gradients, losses = zip(*each, strict=True)
        parts = [torch.stack(own) for own in zip(*gradients, strict=True)]
        return parts, torch.stack(losses)[:, None]

    @contextmanager
    def bind(self, v: Tensor) -> Iterator[PartsFunction]:
        """Yield the gradients at v (1, d), which may be changed in place between two calls."""
        with self._bind(v[0].detach()) as gradient:
            yield lambda batches: [part[None] for part in gradient(batches, 0)[0]]

    def products(self, v: Tensor, u: Tensor, batches: ClientBatches) -> list[Tensor]:
        """Return the parts of the Hessians' products with u; they are not compiled."""
        each = []
        for i in range(len(v)):
            with self._bind(v[i].detach().clone(), u[i].clone()) as product:
                each.append(product(batches, i)[0])
        return [torch.stack(own) for own in zip(*each, strict=True)]

    @contextmanager
    def _bind(self, point: Tensor, u: Tensor | None = None) -> Iterator[_ClientGradient]:
        """Yield the gradient and the loss of client i at a point (d,), as a function of batches.

        With u (d,) it is the derivative of the gradient along u.
        """
        if self._is_compiled and u is None:
            parts = self._model.split(point)
            yield lambda batches, i: self._compiled(parts, *_read_client(batches, i))
            return
        with self._model.set_parameters(point) as own:

            def gradient(batches: ClientBatches, i: int) -> tuple[Sequence[Tensor], Tensor]:
                inputs, targets, factor, key = _read_client(batches, i)
                with torch.enable_grad():
                    outputs, penalty = self._model.call_copy(own, inputs, key)
                    loss = self._model.loss_fn(outputs, targets).reshape(())
                    total = loss if penalty is None else loss + penalty
                    along = None if u is None else self._model.split(u)
                    found = _differentiate([total], own.parameters, [factor], along)
                return found, loss.detach()

            yield gradient

    def _scaled_loss(
        self,
        parts: list[Tensor],
        inputs: Inputs,
        targets: Tensor,
        factor: Tensor,
        key: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss over all rows, times a factor and as it is."""
        outputs, _ = self._model.call(parts, inputs, key)
        loss = self._model.loss_fn(outputs, targets).reshape(())
        return loss * factor, loss


def _read_client(batches: ClientBatches, i: int) -> tuple[Inputs, Tensor, Tensor, Tensor | None]:
    """Return the inputs and targets of client i without padding, its factor and its key."""
    used = int(batches.sizes[i])
    inputs = map_tensors(lambda x: x[i, :used].clone(), batches.inputs)
    key = None if batches.keys is None else batches.keys[i]
    return inputs, batches.targets[i, :used].clone(), used * batches.weights[i, 0], key


def _differentiate(
    terms: Sequence[Tensor],
    parts: Sequence[Tensor],
    factors: Sequence[Tensor],
    along: Sequence[Tensor] | None,
) -> list[Tensor]:
    """Return the gradient of sum(terms * factors), or its derivative along a direction."""
    is_twice = along is not None
    found = torch.autograd.grad(terms, parts, factors, allow_unused=True, create_graph=is_twice)
    gradients = _fill(parts, found)
    if along is None:
        return gradients
    slope = sum((g * own).sum() for g, own in zip(gradients, along, strict=True))
    if not slope.requires_grad:  # the gradient is constant
        return [torch.zeros_like(part) for part in parts]
    return _fill(parts, torch.autograd.grad(slope, parts, allow_unused=True))


def _fill(parts: Sequence[Tensor], gradients: Iterable[Tensor | None]) -> list[Tensor]:
    """Return gradients with zeros for parameters that the loss does not depend on."""
    return [
        torch.zeros_like(part) if own is None else own
        for part, own in zip(parts, gradients, strict=True)
    ]


def join_parts(parts: Iterable[Tensor]) -> Tensor:
    """Return vectors (n, d) whose parts are (n, *shape)."""
    return torch.cat([part.flatten(1) for part in parts], 1)


def padded_count(n: int) -> int:
    """Return n rounded up to three binary digits, so that few numbers serve all.

    >>> [padded_count(n) for n in (1, 7, 9, 17, 100)]
    [1, 7, 10, 20, 112]
    """
    unit = max(1, 2 ** (n.bit_length() - 3))
    return -(-n // unit) * unit


def _repeat_last(values: Tensor, extra: int) -> Tensor:
    """Return values (n, ...) with `extra` copies of the last row after them."""
    if not extra:
        return values
    return torch.cat([values, values[-1:].expand(extra, *values.shape[1:])])


def _pad_clients(v: Tensor, batches: ClientBatches, count: int) -> tuple[Tensor, ClientBatches]:
    """Repeat the last client with weight 0 until there are `count` clients."""
    extra = count - len(v)
    if not extra:
        return v, batches

    def pad(values: Tensor) -> Tensor:
        return _repeat_last(values, extra)

    inputs, targets, weights, sizes, keys = batches
    zeros = torch.zeros(extra, weights.shape[1], dtype=weights.dtype, device=weights.device)
    padded = map_tensors(pad, inputs), pad(targets), torch.cat([weights, zeros])
    return pad(v), ClientBatches(*padded, sizes, None if keys is None else pad(keys))


_numbers = itertools.count()


def _compile(function: _Function) -> _Function:
    # Inductor keeps what it compiled in this directory, for later processes too.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(platform_cache() / "torch"))

    def call(*arguments: object) -> Any:
        return function(*arguments)

    # torch compiles few shapes of one code object, so every function gets a code object.
    call.__code__ = call.__code__.replace(co_name=f"gradients_{next(_numbers)}")
    compiled: _Function = torch.compile(call, dynamic=False, fullgraph=True)
    lock = threading.Lock()

    def one_at_a_time(*arguments: object) -> Any:
        with lock:
            return compiled(*arguments)

    return one_at_a_time


def check_compiler() -> None:
    """Refuse to compile where there is no C++ compiler.

    Raises:
        InputError: There is none.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "cl"]
    if not any(map(shutil.which, names)):
        raise InputError(
            f"TorchProblem: compile=True needs a C++ compiler, and there is no {names[0]}; "
            "install one, or leave out compile"
        )


def count_saved_bytes(model: FlatModel, v: Tensor, inputs: Inputs, targets: Tensor) -> int:
    """Return the bytes that autograd keeps for the gradient of a batch of rows."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    point = v.detach().clone().requires_grad_(True)
    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        model.mean_loss(point, inputs, targets)
    return sum(saved.values())


def bytes_of_row(model: FlatModel, v: Tensor, inputs: Inputs, targets: Tensor) -> int:
    """Return about how many bytes a row more takes in a gradient.

    Args:
        model: The model and its loss.
        v: (d,) parameters.
        inputs: Inputs of some rows.
        targets: Their targets.
    """
    own = sum(x[0].numel() * x.element_size() for x in (*list_tensors(inputs), targets))
    count = len(targets)
    if count == 1:
        return own + count_saved_bytes(model, v, inputs, targets)
    one = count_saved_bytes(model, v, map_tensors(lambda x: x[:1], inputs), targets[:1])
    more = (count_saved_bytes(model, v, inputs, targets) - one) / (count - 1)
    return own + max(0, int(np.ceil(more)))
