"""View a torch module as a function of one parameter vector."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedpage.core.errors import InputError
from fedpage.problems.torch.batch_norm import (
    BatchNormOption,
    active_layers,
    forget_distances,
    positive,
    take_penalty,
    use_client_norms,
)
from fedpage.problems.torch.dropout import layer_keys, use_keys
from fedpage.problems.torch.inputs import Inputs, call_with

Outputs = Any
"""What a module returns: a tensor, or a tuple, list or dict of tensors with a row per example."""
Loss = Callable[[Outputs, Tensor], Tensor]
"""loss_fn(outputs, targets): the mean loss over the rows of a batch."""

LOSSES = nn.CrossEntropyLoss.__module__
"""The module of torch's losses."""


class ModuleCopy:
    """A copy of a module that one thread uses at a time.

    Args:
        module: The copy.
        names: The names of its trainable parameters.
        key_names: The names of the buffers that take the keys of dropout and batch norms.
    """

    def __init__(self, module: nn.Module, names: list[str], key_names: list[str]) -> None:
        self.module = module
        own = dict(module.named_parameters())
        self.parameters = [own[name] for name in names]
        places = [name.rpartition(".") for name in key_names]
        self._keyed = [(module.get_submodule(layer), leaf) for layer, _, leaf in places]

    def set_keys(self, keys: Sequence[Tensor | None]) -> None:
        """Give each layer that needs one its key; None: an evaluation."""
        for (layer, leaf), key in zip(self._keyed, keys, strict=True):
            setattr(layer, leaf, key)


class _Linear(nn.Linear):
    """A linear layer whose product and sum are two operations.

    `vmap` divides the fused one into four, with products by one.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x A^T + b."""
        return x @ self.weight.mT + self.bias


class FlatModel:
    """Evaluate a module and its loss at a vector (d,) of all trainable parameters.

    Buffers and parameters that need no gradient are constants, except the statistics of batch
    normalisation that are aggregated: they are the last coordinates of the vector.
    `functional_call` changes the module while it runs, so every thread calls a copy of its own.

    Args:
        module: The module.
        loss_fn: Its loss.
        batch_norm: Where the statistics of batch normalisation come from.
        is_frozen: Whether batch normalisation uses the module's own running statistics only.
        autocast: The type to which torch casts the products of the module; None: none.
    """

    def __init__(
        self,
        module: nn.Module,
        loss_fn: Loss,
        batch_norm: BatchNormOption = None,
        is_frozen: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.module, self.loss_fn, self.autocast = module, loss_fn, autocast
        self.batch_norm = batch_norm if active_layers(module) else None
        self._is_frozen = is_frozen
        working = copy.deepcopy(module)
        dropout_keys = use_keys(working)
        self.working, self.statistics, norm_keys = use_client_norms(working, batch_norm, is_frozen)
        self.has_dropout = bool(dropout_keys)
        self.key_names = dropout_keys + norm_keys
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        buffers = dict(module.named_buffers())
        parts = trainable + [(name, buffers[name]) for name in self.statistics]
        self.names = [name for name, _ in parts]
        self.shapes = [p.shape for _, p in parts]
        self.counts = [p.numel() for _, p in parts]
        self.d = sum(self.counts)
        self.trainable = sum(p.numel() for _, p in trainable)
        self._idle_copies: list[ModuleCopy] = []
        self._is_shared = True
        self._unreduced = unreduced(loss_fn)

    def for_compiler(self) -> FlatModel:
        """Return a model that always calls one copy of the module, for one thread at a time."""
        twin = self._twin()
        twin._is_shared = False
        return twin

    def for_vmap(self) -> FlatModel:
        """Return a model whose linear layers are fast under `vmap`."""
        twin = self._twin()
        for layer in twin.working.modules():
            if type(layer) is nn.Linear and layer.bias is not None:
                layer.__class__ = _Linear
        return twin

    def _twin(self) -> FlatModel:
        return FlatModel(self.module, self.loss_fn, self.batch_norm, self._is_frozen, self.autocast)

    def for_checks(self) -> FlatModel:
        """Return a model of full precision with the same parameters whose rows are independent."""
        is_siloed = self.batch_norm == "silobn"
        if not is_siloed and self.autocast is None:
            return self
        return FlatModel(self.module, self.loss_fn, self.batch_norm, is_frozen=is_siloed)

    def mixes_rows(self, is_training: bool) -> bool:
        """Return whether a row's output depends on the other rows of its batch."""
        return self.batch_norm == "silobn" or (is_training and bool(self.statistics))

    def vector(self, module: nn.Module) -> Tensor:
        """Return the vector (d,) of a module of this architecture.

        Raises:
            InputError: A parameter is missing or has another shape.
        """
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
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
            key: An integer that the masks of dropout depend on; None: an evaluation, in which
                nothing is dropped.
        """
        return self.call(self.split(v), inputs, key)[0]

    def call(
        self, parts: list[Tensor], inputs: Inputs, key: Tensor | None = None
    ) -> tuple[Outputs, Tensor | None]:
        """Call the module on inputs (w, ...) with a tensor for each parameter.

        Returns:
            The outputs, and with a key half the squared distance of aggregated statistics from
            those of the batch, which is no part of losses but of gradients; None without them.
        """
        parameters = dict(zip(self.names, parts, strict=True))
        if key is not None and self.key_names:
            keys = layer_keys(key, len(self.key_names))
            parameters |= dict(zip(self.key_names, keys, strict=True))
        if not self._is_shared:
            with self._precision():
                return self._widen(call_module(self.working, parameters, inputs)), None
        own = self._take_copy()
        try:
            return self._forward(own, key, lambda: call_module(own.module, parameters, inputs))
        finally:
            self._idle_copies.append(own)

    @contextmanager
    def set_parameters(self, v: Tensor) -> Iterator[ModuleCopy]:
        """Yield a copy of the module whose parameters are views of v (d,).

        It is faster than `functional_call`, which replaces and restores all parameters by name.
        """
        own = self._take_copy()
        try:
            for parameter, part in zip(own.parameters, self.split(v), strict=True):
                parameter.data = part
            yield own
        finally:
            self._idle_copies.append(own)

    def call_copy(
        self, own: ModuleCopy, inputs: Inputs, key: Tensor | None
    ) -> tuple[Outputs, Tensor | None]:
        """Return what `call` returns, of a copy that `set_parameters` yields."""
        if key is not None:
            own.set_keys(layer_keys(key, len(self.key_names)))
        try:
            return self._forward(own, key, lambda: call_with(own.module, inputs))
        finally:
            if key is not None:
                own.set_keys([None] * len(self.key_names))

    def _forward(
        self, own: ModuleCopy, key: Tensor | None, function: Callable[[], Outputs]
    ) -> tuple[Outputs, Tensor | None]:
        """Call a copy by a function, and return the outputs and the penalty of `call`."""
        has_penalty = key is not None and bool(self.statistics)
        if has_penalty:
            forget_distances(own.module)
        with self._precision():
            outputs = function()
        return self._widen(outputs), take_penalty(own.module) if has_penalty else None

    def _take_copy(self) -> ModuleCopy:
        try:
            return self._idle_copies.pop()
        except IndexError:
            return ModuleCopy(copy.deepcopy(self.working), self.names, self.key_names)

    def _precision(self) -> AbstractContextManager[object]:
        """Return the context in which torch casts the products of the module."""
        if self.autocast is None:
            return nullcontext()
        # Without a cache, because that of torch outlives the transformations of torch.func.
        device = next(self.working.parameters()).device.type
        return torch.autocast(device, self.autocast, cache_enabled=False)

    def _widen(self, outputs: Outputs) -> Outputs:
        """Return outputs in the precision of the parameters."""
        if self.autocast is None:
            return outputs
        return map_tensors(lambda x: x.float() if x.is_floating_point() else x, outputs)

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
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, value in zip(self.names, self.split(v), strict=True):
                is_variance = name in self.statistics and name.endswith("running_var")
                own[name].copy_(positive(value) if is_variance else value)
        return module

    def buffers_after_call(self) -> dict[str, Tensor]:
        """Return the buffers of the copy that was called last."""
        return dict(self._idle_copies[-1].module.named_buffers())

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_idle_copies": []}


def call_module(module: nn.Module, parameters: dict[str, Tensor], inputs: Inputs) -> Outputs:
    """Call a module with parameters by name, on positional or keyword arguments."""
    if isinstance(inputs, dict):
        return functional_call(module, parameters, (), inputs)
    return functional_call(module, parameters, inputs)


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
