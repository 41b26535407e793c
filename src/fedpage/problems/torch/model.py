"""View a torch module as a function of one parameter vector."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedpage.core.errors import InputError
from fedpage.problems.torch.dropout import layer_keys, use_keys

Inputs: TypeAlias = tuple[Tensor, ...] | dict[str, Tensor]
"""What a module is called with: positional arguments, or keyword arguments by name."""
Outputs = Any
"""What a module returns: a tensor, or a tuple, list or dict of tensors with a row per example."""
Loss = Callable[[Outputs, Tensor], Tensor]
"""loss_fn(outputs, targets): the mean loss over the rows of a batch."""

LOSSES = nn.CrossEntropyLoss.__module__
"""The module of torch's losses."""


class OwnedCopy:
    """A copy of a module that one thread uses at a time.

    Args:
        module: The copy.
        names: The names of its trainable parameters.
        key_names: The names of the buffers that take the keys of dropout.
    """

    def __init__(self, module: nn.Module, names: list[str], key_names: list[str]) -> None:
        self.module = module
        own = dict(module.named_parameters())
        self.parameters = [own[name] for name in names]
        self._keyed = [module.get_submodule(name.rpartition(".")[0]) for name in key_names]

    def __call__(self, inputs: Inputs) -> Outputs:
        """Call the copy on positional or keyword arguments."""
        return self.module(**inputs) if isinstance(inputs, dict) else self.module(*inputs)

    def set_keys(self, keys: Sequence[Tensor | None]) -> None:
        """Give each layer with dropout its key; None: nothing is dropped."""
        for layer, key in zip(self._keyed, keys, strict=True):
            layer.dropout_key = key


class _Linear(nn.Linear):
    """A linear layer whose product and sum are two operations.

    `vmap` divides the fused one into four, with products by one.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x A^T + b."""
        return x @ self.weight.mT + self.bias


class FlatModel:
    """Evaluate a module and its loss at a vector (d,) of all trainable parameters.

    Buffers and parameters that need no gradient are constants. `functional_call` changes the module
    while it runs, so every thread calls a copy of its own.
    """

    def __init__(self, module: nn.Module, loss_fn: Loss) -> None:
        self.module, self.loss_fn = module, loss_fn
        self.working = copy.deepcopy(module)
        self.key_names = use_keys(self.working)
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trainable]
        self.shapes = [p.shape for _, p in trainable]
        self.counts = [p.numel() for _, p in trainable]
        self.d = sum(self.counts)
        self._idle_copies: list[OwnedCopy] = []
        self._is_shared = True
        self._unreduced = unreduced(loss_fn)

    def for_compiler(self) -> FlatModel:
        """Return a model that always calls one copy of the module, for one thread at a time."""
        twin = FlatModel(self.module, self.loss_fn)
        twin._is_shared = False
        return twin

    def for_vmap(self) -> FlatModel:
        """Return a model whose linear layers are fast under `vmap`."""
        twin = FlatModel(self.module, self.loss_fn)
        for layer in twin.working.modules():
            if type(layer) is nn.Linear and layer.bias is not None:
                layer.__class__ = _Linear
        return twin

    def vector(self, module: nn.Module) -> Tensor:
        """Return the trainable parameters (d,) of a module of this architecture.

        Raises:
            InputError: A parameter is missing or has another shape.
        """
        own = dict(module.named_parameters())
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in own or own[name].shape != shape:
                raise InputError(
                    f"TorchProblem: {type(module).__name__} has no {name} of shape {tuple(shape)}"
                )
        return torch.cat([own[name].detach().reshape(-1) for name in self.names])

    def split(self, v: Tensor) -> list[Tensor]:
        """Return views of v (..., d) as the trainable parameters, each (..., *shape)."""
        parts = zip(v.split(self.counts, -1), self.shapes, strict=True)
        return [part.view(*v.shape[:-1], *shape) for part, shape in parts]

    def outputs(self, v: Tensor, inputs: Inputs, key: Tensor | None = None) -> Outputs:
        """Call the module on inputs (w, ...) with parameters v (d,).

        Args:
            v: The parameters.
            inputs: The inputs of w rows.
            key: An integer that the masks of dropout depend on; None: nothing is dropped.
        """
        return self.call(self.split(v), inputs, key)

    def call(self, parts: list[Tensor], inputs: Inputs, key: Tensor | None = None) -> Outputs:
        """Call the module on inputs (w, ...) with a tensor for each parameter."""
        parameters = dict(zip(self.names, parts, strict=True))
        if key is not None and self.key_names:
            keys = layer_keys(key, len(self.key_names))
            parameters |= dict(zip(self.key_names, keys, strict=True))
        if not self._is_shared:
            return call_module(self.working, parameters, inputs)
        own = self._take_copy()
        try:
            return call_module(own.module, parameters, inputs)
        finally:
            self._idle_copies.append(own)

    @contextmanager
    def set_parameters(self, v: Tensor, key: Tensor | None = None) -> Iterator[OwnedCopy]:
        """Lend a copy of the module whose parameters are views of v (d,).

        It is faster than `functional_call`, which replaces and restores all parameters by name.

        Args:
            v: The parameters.
            key: An integer that the masks of dropout depend on; None: nothing is dropped.
        """
        own = self._take_copy()
        try:
            for parameter, part in zip(own.parameters, self.split(v), strict=True):
                parameter.data = part
            if key is not None:
                own.set_keys(layer_keys(key, len(self.key_names)))
            yield own
        finally:
            if key is not None:
                own.set_keys([None] * len(self.key_names))
            self._idle_copies.append(own)

    def _take_copy(self) -> OwnedCopy:
        try:
            return self._idle_copies.pop()
        except IndexError:
            return OwnedCopy(copy.deepcopy(self.working), self.names, self.key_names)

    def row_losses(self, outputs: Outputs, targets: Tensor) -> Tensor:
        """Return the loss (w,) of each row, f_ij."""
        if self._unreduced is not None:
            losses = self._unreduced(outputs, targets)
            return losses if losses.ndim == 1 else losses.flatten(1).mean(1)

        def row_loss(output: Outputs, target: Tensor) -> Tensor:
            batch = map_tensors(lambda part: part[None], output)
            return self.loss_fn(batch, target[None]).reshape(())

        return vmap(row_loss)(outputs, targets)

    def mean_loss(self, v: Tensor, inputs: Inputs, targets: Tensor) -> Tensor:
        """Return the mean loss over all rows, as loss_fn itself computes it."""
        return self.loss_fn(self.outputs(v, inputs), targets).reshape(())

    def to_module(self, v: Tensor) -> nn.Module:
        """Return a copy of the module with parameters v (d,)."""
        module = copy.deepcopy(self.module)
        own = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in zip(self.names, self.split(v), strict=True):
                own[name].copy_(value)
        return module

    def buffers_after_call(self) -> dict[str, Tensor]:
        """Return the buffers of the copy that was called last."""
        return dict(self._idle_copies[-1].module.named_buffers())

    def discard_copies(self) -> None:
        """Forget the copies; the next call copies the module as it is then."""
        self._idle_copies.clear()

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_idle_copies": []}


def call_module(module: nn.Module, parameters: dict[str, Tensor], inputs: Inputs) -> Outputs:
    """Call a module with parameters by name, on positional or keyword arguments."""
    if isinstance(inputs, dict):
        return functional_call(module, parameters, (), inputs)
    return functional_call(module, parameters, inputs)


def list_tensors(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of inputs, those of a dict in its order."""
    return tuple(inputs.values()) if isinstance(inputs, dict) else inputs


def unreduced(loss_fn: Loss) -> Loss | None:
    """Return the form of one of torch's losses that gives a number for each row, or None.

    It computes all rows in one call, which is faster than `vmap` over rows.

    >>> unreduced(nn.CrossEntropyLoss()), unreduced(lambda outputs, targets: outputs.mean())
    (CrossEntropyLoss(), None)
    """
    if getattr(loss_fn, "reduction", None) == "mean" and type(loss_fn).__module__ == LOSSES:
        twin = copy.copy(loss_fn)
        twin.reduction = "none"  # type: ignore[attr-defined]
        return twin
    is_function = getattr(loss_fn, "__module__", None) == "torch.nn.functional"
    if is_function and "reduction" in inspect.signature(loss_fn).parameters:
        return functools.partial(loss_fn, reduction="none")  # type: ignore[call-arg]
    return None


def map_tensors(function: Callable[..., Tensor], *outputs: Outputs) -> Outputs:
    """Apply a function to the corresponding tensors of outputs of one structure.

    >>> map_tensors(len, {"a": torch.zeros(3), "b": (torch.zeros(2), None)})
    {'a': 3, 'b': (2, None)}
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return function(*outputs)
    if isinstance(first, Mapping):
        entries = {key: map_tensors(function, *(o[key] for o in outputs)) for key in first}
        return type(first)(**entries)
    if isinstance(first, (tuple, list)):
        parts = [map_tensors(function, *entry) for entry in zip(*outputs, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first


def join_outputs(blocks: list[Outputs]) -> Outputs:
    """Concatenate the outputs of consecutive blocks of rows, without their graphs."""
    return map_tensors(lambda *parts: torch.cat([part.detach() for part in parts]), *blocks)
