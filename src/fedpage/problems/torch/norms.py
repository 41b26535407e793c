"""Replace batch normalisation, which mixes the rows of a batch, by group normalisation."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from fedpage.core.errors import InputError, short_repr

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def to_group_norm(module: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of a module with group normalisation in place of batch normalisation.

    A group norm normalises each row by itself (Wu, He 2018), so a gradient is a mean over rows, and
    there are no running statistics. Scales and shifts are kept. A layer of C channels gets the
    greatest common divisor of C and `groups` as its number of groups.

    Args:
        module: Any module. It is not changed.
        groups: The number of groups.

    Returns:
        The copy.

    Raises:
        InputError: groups is not a positive whole number.

    >>> to_group_norm(nn.Sequential(nn.Conv2d(1, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
    16
    """
    if not isinstance(groups, int) or groups < 1:
        raise InputError(f"to_group_norm: groups must be at least 1, not {short_repr(groups)}")
    if isinstance(module, BATCH_NORMS):
        return _convert(module, groups)
    twin = copy.deepcopy(module)
    for layer in list(twin.modules()):
        for name, child in list(layer.named_children()):
            if isinstance(child, BATCH_NORMS):
                setattr(layer, name, _convert(child, groups))
    return twin


def _convert(layer: nn.Module, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    norm = nn.GroupNorm(math.gcd(groups, channels), channels, layer.eps, layer.affine)
    if layer.affine:
        with torch.no_grad():
            norm.weight.copy_(layer.weight)
            norm.bias.copy_(layer.bias)
        norm = norm.to(layer.weight.device, layer.weight.dtype)
    return norm.train(layer.training)
