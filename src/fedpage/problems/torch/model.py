"""View a torch module as a function of one parameter vector."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from fedpage.core.errors import InputError
from fedpage.problems.torch.deterministic import ConvolutionsAsProducts

Outputs = Any
"""What a module returns: a tensor, or a tuple, list or dict of tensors with a row per example."""
Loss = Callable[[Outputs, Tensor], Tensor]
"""loss_fn(outputs, targets): the mean loss over the rows of a batch."""


class FlatModel:
    """Evaluate a module and its loss at a vector (d,) of all trainable parameters.

    Buffers and parameters that need no gradient are constants. `functional_call` changes the module
    while it runs, so every thread calls a copy of its own.
    """

    def __init__(self, module: nn.Module, loss_fn: Loss) -> None:
        self.module, self.loss_fn = module, loss_fn
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trainable]
        self.shapes = [p.shape for _, p in trainable]
        self.counts = [p.numel() for _, p in trainable]
        self.d = sum(self.counts)
        self._idle_copies: list[nn.Module] = []

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

    def parameters(self, v: Tensor) -> dict[str, Tensor]:
        """Split a vector (d,) into parameters by name."""
        parts = zip(self.names, v.split(self.counts), self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}

    def outputs(self, v: Tensor, inputs: tuple[Tensor, ...]) -> Outputs:
        """Call the module on inputs (w, ...) with parameters v (d,)."""
        try:
            module = self._idle_copies.pop()
        except IndexError:
            module = copy.deepcopy(self.module)
        try:
            with ConvolutionsAsProducts():
                return functional_call(module, self.parameters(v), inputs)
        finally:
            self._idle_copies.append(module)

    def row_losses(self, outputs: Outputs, targets: Tensor) -> Tensor:
        """Return the loss (w,) of each row, f_ij."""

        def row_loss(output: Outputs, target: Tensor) -> Tensor:
            batch = tree_map(lambda part: part[None], output)
            return self.loss_fn(batch, target[None]).reshape(())

        return vmap(row_loss)(outputs, targets)

    def weighted_loss(
        self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor
    ) -> Tensor:
        """Return sum_j weights_j f_ij(v)."""
        return (self.row_losses(self.outputs(v, inputs), targets) * weights).sum()

    def mean_loss(self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """Return the mean loss over all rows, as loss_fn itself computes it."""
        return self.loss_fn(self.outputs(v, inputs), targets).reshape(())

    def to_module(self, v: Tensor) -> nn.Module:
        """Return a copy of the module with parameters v (d,)."""
        module = copy.deepcopy(self.module)
        own = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.parameters(v).items():
                own[name].copy_(value)
        return module

    def buffers_after_call(self) -> dict[str, Tensor]:
        """Return the buffers of the copy that was called last."""
        return dict(self._idle_copies[-1].named_buffers())

    def discard_copies(self) -> None:
        """Forget the copies; the next call copies the module as it is then."""
        self._idle_copies.clear()

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_idle_copies": []}


def join_outputs(blocks: list[Outputs]) -> Outputs:
    """Concatenate the outputs of consecutive blocks of rows, without their graphs."""
    first, *others = blocks
    return tree_map(lambda *parts: torch.cat([part.detach() for part in parts]), first, *others)
