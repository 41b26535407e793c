"""Compute the gradients of a torch model for many clients at once, by `torch.func.vmap`.

- `vmap` interprets its transformations at every call. Traced once into plain operations
  (`make_fx`), the same gradient has the same bits and takes a fifth of the time. A trace costs what
  some fifty traced calls save, so a shape is traced after it has been requested often.
- A large model gains nothing from batching and loses the cache, so clients are computed in groups
  whose parameters fit the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, fx
from torch.func import grad_and_value, vmap

from fedpage.problems.torch.deterministic import deterministic_kernels, replace_kernels
from fedpage.problems.torch.model import FlatModel

GradientFunction: TypeAlias = Callable[
    [Tensor, tuple[Tensor, ...], Tensor, Tensor], tuple[Tensor, Tensor]
]
"""Gradients (n, d) and losses (n,) of sum_j weights_ij f_ij at each client's own row of v (n, d).

Arguments: v, inputs (n, w, ...), targets (n, w, ...), weights (n, w)."""

_CALLS_BEFORE_TRACE = 40
_MAX_TRACES = 64
_GROUP_BYTES = 1 << 20
"""Bytes of parameters that the clients of a group may have together."""


class BatchedGradients:
    """Compute clients together by `vmap`, or one per call where `sequential`."""

    def __init__(self, model: FlatModel, deterministic: bool, sequential: bool = False) -> None:
        self._untraced: GradientFunction = vmap(grad_and_value(model.weighted_loss))
        self._deterministic = deterministic
        self._group_size = 1 if sequential else max(1, _GROUP_BYTES // (4 * max(model.d, 1)))
        self._calls: dict[tuple[int, ...], int] = {}
        self._traces: dict[tuple[int, ...], GradientFunction] = {}
        self._tracing = threading.Lock()

    def __call__(
        self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return gradients (n, d) and losses (n,); see `GradientFunction`."""
        n, size = len(v), self._group_size
        if n <= size:
            return self._compute_group(v, inputs, targets, weights)
        parts = []
        for i in range(0, n, size):
            group = slice(i, i + size)
            # Copies, because a product's bits may depend on where its operands lie in memory.
            own_inputs = tuple(x[group].clone() for x in inputs)
            own = v[group].clone(), own_inputs, targets[group].clone(), weights[group].clone()
            parts.append(self._compute_group(*own))
        return torch.cat([g for g, _ in parts]), torch.cat([loss for _, loss in parts])

    def _compute_group(
        self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        function = self._find_trace(v, inputs, targets, weights)
        if function is self._untraced:
            with deterministic_kernels(self._deterministic):
                return function(v, inputs, targets, weights)
        with torch.no_grad():
            return function(v, inputs, targets, weights)

    def _find_trace(
        self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor
    ) -> GradientFunction:
        """Return the trace for these shapes, or the untraced function where there is none yet."""
        shape = tuple(weights.shape)
        traced = self._traces.get(shape)
        if traced is not None:
            return traced
        calls = self._calls[shape] = self._calls.get(shape, 0) + 1
        if calls <= _CALLS_BEFORE_TRACE or len(self._traces) >= _MAX_TRACES:
            return self._untraced
        if not self._tracing.acquire(blocking=False):
            return self._untraced
        try:
            example = v, inputs, targets, weights
            self._traces[shape] = trace(self._untraced, example, self._deterministic)
        finally:
            self._tracing.release()
        return self._traces[shape]


class AutogradGradients:
    """Compute one client after the other by autograd, for modules that `vmap` cannot transform."""

    def __init__(self, model: FlatModel, deterministic: bool) -> None:
        self._model, self._deterministic = model, deterministic

    def __call__(
        self, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return gradients (n, d) and losses (n,); a client's nonzero weights must be equal."""
        gradients, losses = torch.empty_like(v), torch.empty(len(v), dtype=v.dtype, device=v.device)
        for i in range(len(v)):
            used = int((weights[i] != 0).sum())
            point = v[i].detach().clone().requires_grad_(True)
            with torch.enable_grad(), deterministic_kernels(self._deterministic):
                # Copies, because a product's bits may depend on where its operands lie in memory.
                own_inputs = tuple(x[i, :used].clone() for x in inputs)
                loss = self._model.mean_loss(point, own_inputs, targets[i, :used].clone())
                loss = loss * (used * weights[i, 0])
                (gradients[i],) = torch.autograd.grad(loss, point)
            losses[i] = loss.detach()
        return gradients, losses


def trace(
    function: GradientFunction,
    example: tuple[Tensor, tuple[Tensor, ...], Tensor, Tensor],
    deterministic: bool,
) -> GradientFunction:
    """Trace a function into plain operations for arguments of the example's shapes.

    Returns:
        The traced function, with the same bits, and with the kernels of `deterministic_kernels`
        where `deterministic`; the function itself where it cannot be traced.
    """
    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        # make_fx inspects a signature, which the wrappers of vmap hide.
        graph = make_fx(lambda v, inputs, targets, weights: function(v, inputs, targets, weights))(
            *example
        )
        _remove_identities(graph)
        if deterministic:
            replace_kernels(graph)
        graph.recompile()
    except Exception:  # make_fx is not a stable interface, and a trace only saves time
        return function
    return graph


def _remove_identities(module: fx.GraphModule) -> None:
    """Remove operations that return their argument unchanged."""
    aten = torch.ops.aten
    views = (aten.expand.default, aten.view.default, aten._unsafe_view.default)
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        identity = node.target is aten.mul.Scalar and node.args[1] == 1
        if node.target in views:
            before, after = node.args[0].meta.get("val"), node.meta.get("val")
            identity = before is not None and after is not None and before.shape == after.shape
        if identity:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
