"""Batch normalisation among clients: where its means and variances come from, and where they go.

A gradient over a batch normalises by the statistics of this batch. For evaluations there are two
ways. "aggregated": means and variances are coordinates of the vector x, so that methods average
them as they average parameters. The derivative with respect to a statistic s is s - (statistic of
the batch), that of half the squared distance, so a local step of size eta is torch's running
average with momentum eta. "silobn": a client's rows are normalised by the statistics of these rows,
which never leave it (Andreux et al. 2020).
"""

from __future__ import annotations

import copy
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpage.core.errors import InputError, short_repr
from fedpage.problems.torch.inputs import Inputs, call_with
from fedpage.problems.torch.norms import BATCH_NORMS

BatchNormOption: TypeAlias = Literal["aggregated", "silobn"] | None
"""Where statistics for evaluations come from; None: batch normalisation is refused."""

_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_STATISTICS = ("running_mean", "running_var")
_KEY = "key"


class ClientBatchNorm(nn.Module):
    """Normalise by the statistics of a batch, or by given ones.

    It stands in for a layer of torch, and has its scale and shift. Without running statistics it
    normalises every batch by its own. With them it does so where it has a key, which gradients
    give; without a key, in evaluations, it normalises by the running statistics.

    Args:
        layer: The layer of torch.
        name: Its name in the model, for error messages.
        mean: (C,) running mean, or None.
        variance: (C,) running variance, or None.
    """

    def __init__(
        self, layer: nn.Module, name: str, mean: Tensor | None, variance: Tensor | None
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.layer_name = (
            layer.weight,
            layer.bias,
            layer.eps,
            name,
        )
        # Parameters of the copy that computes, because functions of x set its parameters by name.
        self.running_mean = None if mean is None else nn.Parameter(mean.clone())
        self.running_var = None if variance is None else nn.Parameter(variance.clone())
        self.register_buffer(_KEY, None, persistent=False)
        self.distances: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (w, C, ...), and note how far the running statistics are from its own."""
        if x.dtype == torch.bfloat16:  # under autocast: statistics of float32, as torch keeps them
            return self.forward(x.float()).to(x.dtype)
        if self.running_mean is None or self.running_var is None:
            _check_batch(x, self.layer_name)
            return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)
        mean, variance = self.running_mean.detach(), self.running_var.detach()
        if self.key is None:
            variance = positive(variance)
            return F.batch_norm(x, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        _check_batch(x, self.layer_name)
        mean, variance = mean.clone(), variance.clone()
        # With momentum 1, torch overwrites both by the statistics of the batch.
        y = F.batch_norm(x, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
        self.distances.append(
            ((self.running_mean - mean) ** 2).sum() + ((self.running_var - variance) ** 2).sum()
        )
        return y


def positive(variance: Tensor) -> Tensor:
    """Return variances above 0: a step of a method may leave a negative one."""
    return variance.clamp(min=torch.finfo(variance.dtype).tiny)


def _check_batch(x: Tensor, name: str) -> None:
    if x.numel() // x.shape[1] < 2:
        raise InputError(
            f"TorchProblem: {name} needs a batch of 2 rows or more; use b >= 2, for the last "
            "minibatch of an epoch too, and clients of 2 rows, or fp.to_group_norm(model)"
        )


def check_option(option: object) -> BatchNormOption:
    """Return the option, or refuse what is none.

    Raises:
        InputError: It is not one of the words.
    """
    if option is None or option == "aggregated" or option == "silobn":
        return option
    raise InputError(
        f"TorchProblem: batch_norm must be 'aggregated' or 'silobn', not {short_repr(option)}"
    )


def is_active(layer: nn.Module) -> bool:
    """Return whether a layer of torch normalises by the statistics of a batch."""
    return isinstance(layer, BATCH_NORMS) and (layer.training or layer.running_mean is None)


def active_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a module that normalise by the statistics of a batch, by name."""
    return {name: layer for name, layer in module.named_modules() if is_active(layer)}


def check_layer(layer: nn.Module, where: str, option: BatchNormOption) -> None:
    """Refuse a layer that normalises by the statistics of a batch, unless the option allows it.

    Raises:
        InputError: It does not.
    """
    if not is_active(layer):
        return
    if option is None:
        raise InputError(
            f"TorchProblem: {where} mixes the rows of a batch; use fp.to_group_norm(model), "
            ".eval() for a trained layer, batch_norm='aggregated' or batch_norm='silobn'"
        )
    if type(layer) not in _LAYERS:
        raise InputError(
            f"TorchProblem: {where} is not nn.BatchNorm1d, 2d or 3d, whose statistics are known "
            "here; use one of them, or convert it by fp.to_group_norm(model)"
        )
    if option == "aggregated" and layer.running_mean is None:
        raise InputError(
            f"TorchProblem: {where} keeps no statistics that could be aggregated; give it "
            "track_running_stats=True, or use batch_norm='silobn'"
        )


def use_client_norms(
    module: nn.Module, option: BatchNormOption, is_frozen: bool = False
) -> tuple[nn.Module, list[str], list[str]]:
    """Replace the active batch normalisation of a module, in place, by that of clients.

    Args:
        module: The module.
        option: Where the statistics come from.
        is_frozen: Whether the layers always normalise by the module's own running statistics.

    Returns:
        The module, the names of statistics that are coordinates of x, and the names of the buffers
        that take a key where a gradient is computed.
    """
    layers = active_layers(module)
    twins: dict[nn.Module, nn.Module] = {}
    for name, layer in layers.items():
        where = f"{name or 'the model'} ({type(layer).__name__})"
        statistics = None, None
        if option == "aggregated" or is_frozen:
            statistics = layer.running_mean, layer.running_var
        if is_frozen and layer.running_mean is None:
            like = next(p for p in module.parameters() if p.is_floating_point())
            statistics = like.new_zeros(layer.num_features), like.new_ones(layer.num_features)
        twins[layer] = ClientBatchNorm(layer, where, *statistics)
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if layer in twins and name:
            parent, _, child = name.rpartition(".")
            setattr(module.get_submodule(parent), child, twins[layer])
    module = twins.get(module, module)
    if option != "aggregated":
        return module, [], []
    names = [_join(name, statistic) for name in layers for statistic in _STATISTICS]
    return module, names, [_join(name, _KEY) for name in layers]


def _join(name: str, leaf: str) -> str:
    return f"{name}.{leaf}" if name else leaf


def forget_distances(module: nn.Module) -> None:
    """Forget what the layers of a module have noted."""
    for layer in module.modules():
        if isinstance(layer, ClientBatchNorm):
            layer.distances.clear()


def take_penalty(module: nn.Module) -> Tensor:
    """Return half the sum of the squared distances that the layers of a module have noted."""
    noted = [
        distance
        for layer in module.modules()
        if isinstance(layer, ClientBatchNorm)
        for distance in layer.distances
    ]
    forget_distances(module)
    if not noted:  # no layer was called
        return next(module.parameters()).new_zeros(())
    return 0.5 * torch.stack(noted).sum()


def rows_statistics(module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """Return the running statistics that a module would have of some rows, by name.

    Args:
        module: The module; it is not changed.
        inputs: The inputs of all rows.
    """
    twin = copy.deepcopy(module)
    layers = active_layers(twin)
    twin.eval()
    for layer in layers.values():
        layer.train()
        layer.momentum = 1.0
    with torch.no_grad():
        call_with(twin, inputs)
    return {
        _join(name, statistic): getattr(layer, statistic)
        for name, layer in layers.items()
        for statistic in _STATISTICS
        if layer.running_mean is not None
    }
