"""Gradients of a torch module for many clients at once: parameters as one vector, `torch.func.vmap` over clients.

- `vmap` interprets its transformations anew at each call. Traced once into plain operations (`make_fx`), the same
  gradient, with the same bits, takes a fifth of the time. A trace costs as much as some fifty calls gain, so
  a shape is traced when it has been asked for often enough.
- Large models gain nothing from being batched, and lose the cache; so clients are taken in pieces that fit it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_map

from fedpage.problems.torch.deterministic import Unfolded, own_products, with_own_products

_OFTEN = 40
"""Calls of one shape after which it is traced."""
_TRACES = 64
"""Shapes that are traced, at the most."""
_PIECE = 1 << 20
"""Bytes of parameters that a piece of clients may have."""


class FlatModel:
    """A module's trainable parameters as a vector (d,), and its loss as a function of that.

    Parameters that need no gradient and buffers are constants. loss_fn(outputs, targets) is a mean over rows. Calling
    a module with other parameters changes it for a moment, so copies are called, a thread at a time each.
    """

    def __init__(self, module: nn.Module, loss_fn: Callable[[Any, Tensor], Tensor]) -> None:
        self.module, self.loss_fn = module, loss_fn
        free = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in free]
        self.shapes = [p.shape for _, p in free]
        self.counts = [p.numel() for _, p in free]
        self.d = sum(self.counts)
        self.free: list[nn.Module] = []

    def vector(self, module: nn.Module) -> Tensor:
        """(d,) the trainable parameters of a module of this architecture, in the order of `names`."""
        own = dict(module.named_parameters())
        return torch.cat([own[name].detach().reshape(-1) for name in self.names])

    def parts(self, v: Tensor) -> dict[str, Tensor]:
        """A vector (d,) as parameters by name."""
        pieces = v.split(self.counts)
        return {
            n: part.view(shape)
            for n, part, shape in zip(self.names, pieces, self.shapes, strict=True)
        }

    def outputs(self, v: Tensor, inputs: tuple[Tensor, ...]) -> Any:
        """What the module makes of inputs (w, ...) with parameters v (d,)."""
        try:
            module = self.free.pop()
        except IndexError:
            module = copy.deepcopy(self.module)
        try:
            with Unfolded():
                return functional_call(module, self.parts(v), inputs)
        finally:
            self.free.append(module)

    def row_losses(self, outputs: Any, targets: Tensor) -> Tensor:
        """(w,) the loss of each row by itself, f_ij."""

        def one(output: Any, target: Tensor) -> Tensor:
            return self.loss_fn(tree_map(lambda part: part[None], output), target[None]).reshape(())

        each: Tensor = vmap(one)(outputs, targets)
        return each

    def weighted(
        self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor
    ) -> Tensor:
        """sum_j weights_j f_ij(v)."""
        return (self.row_losses(self.outputs(v, inputs), targets) * weights).sum()

    def mean(self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """The mean loss over all rows, as loss_fn itself takes it."""
        return self.loss_fn(self.outputs(v, inputs), targets).reshape(())


class BatchedGradients:
    """(gradients (n, d), losses (n,)) of sum_j w_ij f_ij at v (n, d) for n clients at once; alone: one at a time."""

    def __init__(self, model: FlatModel, own: bool, alone: bool = False) -> None:
        self._plain = vmap(grad_and_value(model.weighted))
        self._own = own
        self._limit = 1 if alone else max(1, _PIECE // (4 * max(model.d, 1)))
        self._asked: dict[tuple[Any, ...], int] = {}
        self._traced: dict[tuple[Any, ...], Any] = {}
        self._tracing = threading.Lock()

    def __call__(
        self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """v (n, d), inputs (n, w, ...), targets (n, w, ...), weights (n, w)."""
        n, most = len(v), self._limit
        if n <= most:
            return self._piece(v, inputs, targets, weights)
        done = []
        for i in range(0, n, most):
            some = slice(i, i + most)
            mine = tuple(
                x[some].clone() for x in inputs
            )  # where in memory rows lie may decide bits, too
            done.append(
                self._piece(v[some].clone(), mine, targets[some].clone(), weights[some].clone())
            )
        return torch.cat([g for g, _ in done]), torch.cat([loss for _, loss in done])

    def _piece(
        self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        shape = tuple(weights.shape)
        traced = self._traced.get(shape)
        if traced is None:
            times = self._asked[shape] = self._asked.get(shape, 0) + 1
            if (
                times <= _OFTEN
                or len(self._traced) >= _TRACES
                or not self._tracing.acquire(blocking=False)
            ):
                with own_products(self._own):
                    return self._plain(v, inputs, targets, weights)
            try:
                traced = self._traced[shape] = traced_function(
                    self._plain, (v, inputs, targets, weights), self._own
                )
            finally:
                self._tracing.release()
        if traced is self._plain:
            with own_products(self._own):
                return self._plain(v, inputs, targets, weights)
        with torch.no_grad():
            return traced(v, inputs, targets, weights)


class LoopGradients:
    """The same, one client after the other: for modules that `vmap` cannot take."""

    def __init__(self, model: FlatModel, own: bool) -> None:
        self._model, self._own = model, own

    def __call__(
        self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """v (n, d), inputs (n, w, ...), targets (n, w, ...), weights (n, w) that are zero or equal for each client."""
        gradients, losses = torch.empty_like(v), torch.empty(len(v), dtype=v.dtype, device=v.device)
        for i in range(len(v)):
            used = int((weights[i] != 0).sum())
            point = v[i].detach().clone().requires_grad_(True)
            with torch.enable_grad(), own_products(self._own):
                mine = tuple(
                    x[i, :used].clone() for x in inputs
                )  # where in memory rows lie decides bits, too
                loss = self._model.mean(point, mine, targets[i, :used].clone())
                loss = loss * (used * weights[i, 0])
                (gradients[i],) = torch.autograd.grad(loss, point)
            losses[i] = loss.detach()
        return gradients, losses


def traced_function(
    function: Callable[..., Any], example: tuple[Any, ...], own: bool
) -> Callable[..., Any]:
    """The function as plain operations for arguments of these shapes: same bits, none of vmap's interpretation.

    Where it cannot be traced it stays as it is. own: what `own_products` does to products is part of the trace.
    """
    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        # its signature is looked at: not that of a method within vmap's wrappers
        graph = make_fx(lambda v, inputs, targets, weights: function(v, inputs, targets, weights))(
            *example
        )
        _without_idle_steps(graph)
        if own:
            with_own_products(graph)
        graph.recompile()
    except Exception:  # tracing is no promised part of torch, and only saves time
        return function
    return graph


def _without_idle_steps(graph: Any) -> None:
    """Drop operations that leave their argument as it is."""
    aten = torch.ops.aten
    same_shape = (aten.expand.default, aten.view.default, aten._unsafe_view.default)
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        idle = node.target is aten.mul.Scalar and node.args[1] == 1
        if node.target in same_shape:
            before, after = node.args[0].meta.get("val"), node.meta.get("val")
            idle = before is not None and after is not None and before.shape == after.shape
        if idle:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
