"""Compute the gradients of a torch model for many clients: in one call, or one at a time."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vmap

from fedpage.core.errors import InputError
from fedpage.data.registry import platform_cache
from fedpage.problems.torch.model import FlatModel, map_tensors


class ClientBatches(NamedTuple):
    """Minibatches of n clients, padded to one width w with rows of weight 0."""

    inputs: tuple[Tensor, ...]
    """Each (n, w, ...)."""
    targets: Tensor
    """(n, w, ...)."""
    weights: Tensor
    """(n, w), the weight of each row in its client's loss: equal, or 0 for padding at the end."""
    keys: Tensor | None = None
    """(n,) integers that the clients' masks of dropout depend on; None: an evaluation."""


GradientFunction: TypeAlias = Callable[[Tensor, ClientBatches], tuple[Tensor, Tensor]]
"""Gradients (n, d) and losses (n,) of sum_j weights_ij f_ij at each client's own row of v."""

_Function: TypeAlias = Callable[..., tuple[Tensor, Tensor]]


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
        self._model, self._is_compiled = model, is_compiled
        if is_compiled:
            self._model = model.for_compiler()
            self._compiled = _compile(grad(self._weighted_losses, has_aux=True))

    def __call__(self, v: Tensor, batches: ClientBatches) -> tuple[Tensor, Tensor]:
        """Return gradients (n, d) and losses (n,)."""
        n = len(v)
        if self._is_compiled:
            v, batches = _pad_clients(v, batches, padded_count(n))
            gradients, losses = self._compiled(v, *batches)
            return gradients[:n], losses[:n]
        point = v.detach().requires_grad_(True)
        with torch.enable_grad():
            total, losses = self._weighted_losses(point, *batches)
            (gradients,) = torch.autograd.grad(total, point)
        return gradients, losses.detach()

    def _weighted_losses(
        self,
        v: Tensor,
        inputs: tuple[Tensor, ...],
        targets: Tensor,
        weights: Tensor,
        keys: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of the clients' weighted losses, and these losses (n,)."""
        penalties = None
        if keys is not None and self._model.statistics:
            outputs, penalties = vmap(self._model.penalised_outputs)(v, inputs, keys)
        else:
            own = (v, inputs) if keys is None else (v, inputs, keys)
            outputs = vmap(self._model.outputs)(*own)
        rows = map_tensors(lambda part: part.flatten(0, 1), outputs)
        each = self._model.row_losses(rows, targets.flatten(0, 1)).reshape(weights.shape)
        losses = (each * weights).sum(1)
        if penalties is None:
            return losses.sum(), losses
        return losses.sum() + (penalties * weights.sum(1)).sum(), losses


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
            self._compiled = _compile(grad_and_value(self._scaled_loss))

    def __call__(self, v: Tensor, batches: ClientBatches) -> tuple[Tensor, Tensor]:
        """Return gradients (n, d) and losses (n,)."""
        each = [self._client(v, batches, i) for i in range(len(v))]
        if len(each) == 1:
            return each[0][0][None], each[0][1][None]
        return torch.stack([gradient for gradient, _ in each]), torch.stack(
            [loss for _, loss in each]
        )

    def _client(self, v: Tensor, batches: ClientBatches, i: int) -> tuple[Tensor, Tensor]:
        """Return the gradient (d,) and the loss of client i.

        Its parameters are a copy, because the last bits of a product may depend on where in memory
        its operands lie.
        """
        weights = batches.weights[i]
        used = int((weights != 0).sum())
        inputs = tuple(x[i, :used].clone() for x in batches.inputs)
        targets, factor = batches.targets[i, :used].clone(), used * weights[0]
        point = v[i].detach().clone() if len(v) > 1 else v[0].detach()
        key = None if batches.keys is None else batches.keys[i]
        if self._is_compiled:
            return self._compiled(point, inputs, targets, factor, key)
        parts = {
            name: part.requires_grad_(True) for name, part in self._model.parameters(point).items()
        }
        with torch.enable_grad():
            outputs, penalty = self._model.call(parts, inputs, key)
            loss = self._model.loss_fn(outputs, targets).reshape(()) * factor
            total = loss if penalty is None else loss + penalty * factor
            gradients = torch.autograd.grad(total, list(parts.values()), allow_unused=True)
        flat = [
            (torch.zeros_like(part) if own is None else own).reshape(-1)
            for part, own in zip(parts.values(), gradients, strict=True)
        ]
        return torch.cat(flat), loss.detach()

    def _scaled_loss(
        self,
        v: Tensor,
        inputs: tuple[Tensor, ...],
        targets: Tensor,
        factor: Tensor,
        key: Tensor | None,
    ) -> Tensor:
        """Return the mean loss over all rows times a factor."""
        outputs = self._model.outputs(v, inputs, key)
        return self._model.loss_fn(outputs, targets).reshape(()) * factor


def padded_count(n: int) -> int:
    """Return n rounded up to three binary digits, so that few numbers serve all.

    >>> [padded_count(n) for n in (1, 7, 9, 17, 100)]
    [1, 7, 10, 20, 112]
    """
    unit = max(1, 2 ** (n.bit_length() - 3))
    return -(-n // unit) * unit


def _pad_clients(v: Tensor, batches: ClientBatches, count: int) -> tuple[Tensor, ClientBatches]:
    """Repeat the last client with weight 0 until there are `count` clients."""
    extra = count - len(v)
    if not extra:
        return v, batches

    def pad(values: Tensor) -> Tensor:
        return torch.cat([values, values[-1:].expand(extra, *values.shape[1:])])

    inputs, targets, weights, keys = batches
    zeros = torch.zeros(extra, weights.shape[1], dtype=weights.dtype, device=weights.device)
    padded = tuple(map(pad, inputs)), pad(targets), torch.cat([weights, zeros])
    return pad(v), ClientBatches(*padded, None if keys is None else pad(keys))


_numbers = itertools.count()


def _compile(function: _Function) -> _Function:
    # Inductor keeps what it compiled in this directory, for later processes too.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(platform_cache() / "torch"))

    def call(*arguments: object) -> tuple[Tensor, Tensor]:
        return function(*arguments)

    # torch compiles few shapes of one code object, so every function gets a code object.
    call.__code__ = call.__code__.replace(co_name=f"gradients_{next(_numbers)}")
    compiled: _Function = torch.compile(call, dynamic=False, fullgraph=True)
    lock = threading.Lock()

    def one_at_a_time(*arguments: object) -> tuple[Tensor, Tensor]:
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


def count_saved_bytes(
    model: FlatModel, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor
) -> int:
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


def bytes_of_row(model: FlatModel, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor) -> int:
    """Return about how many bytes a row more takes in a gradient.

    Args:
        model: The model and its loss.
        v: (d,) parameters.
        inputs: Inputs of some rows.
        targets: Their targets.
    """
    own = sum(x[0].numel() * x.element_size() for x in (*inputs, targets))
    count = len(targets)
    if count == 1:
        return own + count_saved_bytes(model, v, inputs, targets)
    one = count_saved_bytes(model, v, tuple(x[:1] for x in inputs), targets[:1])
    more = (count_saved_bytes(model, v, inputs, targets) - one) / (count - 1)
    return own + max(0, int(np.ceil(more)))
