"""Dropout whose masks are functions of a key, so that runs repeat.

A key is a function of (seed, round, client, minibatch). Each layer makes its mask of its key and of
the places of the elements, with integer arithmetic only. So a mask has the same bits on any device,
alone or under `vmap`, and a row's mask does not depend on the rows after it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpage.core.errors import InputError

_ELEMENTS = (nn.Dropout,)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_UNSUPPORTED = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_SCALE = 2**53
_KEY = "dropout_key"
# SplitMix64's constants (Steele, Lea, Flood 2014) as signed numbers, which torch multiplies modulo
# 2^64; shifts of negative numbers keep the sign, which a mask removes.
_GOLDEN, _MIX1, _MIX2 = (
    c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & (2 ** (64 - bits) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _MIX1
    z = (z ^ _shift(z, 27)) * _MIX2
    return z ^ _shift(z, 31)


def draw_mask(key: Tensor, shape: torch.Size, p: float) -> Tensor:
    """Return whether each element is kept, with probability 1 - p.

    Args:
        key: An integer, ().
        shape: The shape of the mask.
        p: The probability that an element is dropped.

    >>> mask = draw_mask(torch.tensor(7), torch.Size([1000, 10]), 0.25)
    >>> float(mask.double().mean())
    0.7465
    """
    places = torch.arange(1, math.prod(shape) + 1, device=key.device).reshape(shape)
    uniform = _shift(_mix(_mix(key) + places * _GOLDEN), 11)
    return uniform >= int(p * _SCALE)


class KeyedDropout(nn.Module):
    """Drop elements, or whole channels, by a key; without a key nothing is dropped.

    Args:
        p: The probability that an element is dropped.
        has_channels: Whether channels, the second dimension, are dropped as a whole.
    """

    def __init__(self, p: float, has_channels: bool) -> None:
        super().__init__()
        self.p, self.has_channels, self.calls = p, has_channels, 0
        self.register_buffer(_KEY, None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the mask of the key to x (w, ...)."""
        key: Tensor | None = self.dropout_key
        if key is None or self.p == 0:
            return x
        if self.p == 1:
            return x * 0
        self.calls += 1  # a layer that is called again in the same pass draws another mask
        ones = [1] * (x.ndim - 2)
        shape = torch.Size([*x.shape[:2], *ones]) if self.has_channels else x.shape
        mask = draw_mask(key + self.calls, shape, self.p)
        return x * (mask.to(x.dtype) / (1 - self.p))


class KeyedAttention(nn.MultiheadAttention):
    """Multi-head attention whose weights are dropped by a key; without a key none are."""

    keyed: KeyedDropout

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as `nn.MultiheadAttention` does, and return its outputs and weights."""
        if self.keyed.dropout_key is None:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        parts = zip(
            (query, key, value),
            self.in_proj_weight.chunk(3),
            (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3),
            strict=True,
        )
        q, k, v = (
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x, weight, bias in parts
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)  # (w, heads, L, L)
        for mask in (_expand(attn_mask, self.num_heads), _pad(key_padding_mask)):
            if mask is not None:
                hidden = mask if mask.dtype == torch.bool else None
                scores = scores + mask if hidden is None else scores.masked_fill(hidden, -math.inf)
        weights = self.keyed(scores.softmax(-1))
        outputs = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        if not self.batch_first:
            outputs = outputs.transpose(0, 1)
        if not need_weights:
            return outputs, None
        return outputs, weights.mean(1) if average_attn_weights else weights


def _expand(mask: Tensor | None, heads: int) -> Tensor | None:
    """Return a mask (L, L) or (w heads, L, L) so that it fits scores (w, heads, L, L)."""
    if mask is None or mask.ndim == 2:
        return mask
    return mask.unflatten(0, (-1, heads))


def _pad(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, None, None, :]


def use_keys(module: nn.Module) -> list[str]:
    """Replace the dropout of a module's layers by dropout with keys.

    Returns:
        The names of the buffers that take a key, one of each layer.

    Raises:
        InputError: A layer's random numbers cannot be replaced.
    """
    for name, layer in list(module.named_modules()):
        where = f"{name or 'the model'} ({type(layer).__name__})"
        if isinstance(layer, _UNSUPPORTED) and layer.training and layer.p > 0:
            raise InputError(
                f"TorchProblem: {where} draws random numbers that do not depend on the run's seed; "
                "use nn.Dropout, or call .eval() on it"
            )
        if isinstance(layer, nn.RNNBase) and layer.training and layer.dropout > 0:
            raise InputError(
                f"TorchProblem: {where} draws random numbers that do not depend on the run's seed; "
                "set dropout=0, and put nn.Dropout between layers of one level each"
            )
        if isinstance(layer, nn.MultiheadAttention) and layer.training and layer.dropout > 0:
            _use_keyed_attention(layer, where)
        for key, child in list(layer.named_children()):
            if isinstance(child, (*_ELEMENTS, *_CHANNELS)) and child.training and child.p > 0:
                setattr(layer, key, KeyedDropout(child.p, isinstance(child, _CHANNELS)))
    keyed = {n: m for n, m in module.named_modules() if isinstance(m, KeyedDropout)}
    if keyed:
        module.register_forward_pre_hook(_count_anew)
        module.register_forward_hook(_count_anew)
    return [f"{name}.{_KEY}" for name in keyed]


def _count_anew(module: nn.Module, *_: object) -> None:
    for layer in module.modules():
        if isinstance(layer, KeyedDropout):
            layer.calls = 0


def _use_keyed_attention(layer: nn.MultiheadAttention, where: str) -> None:
    plain = layer.in_proj_weight is not None and layer.bias_k is None and not layer.add_zero_attn
    if type(layer) is not nn.MultiheadAttention or not plain:
        raise InputError(
            f"TorchProblem: {where} drops attention weights in a form that is not known here; "
            "set its dropout to 0, or leave out kdim, vdim, add_bias_kv and add_zero_attn"
        )
    keyed = KeyedDropout(layer.dropout, has_channels=False)
    layer.__class__ = KeyedAttention
    layer.dropout = 0.0
    layer.keyed = keyed


def layer_keys(key: Tensor, count: int) -> list[Tensor]:
    """Return a key for each of `count` layers."""
    start = _mix(key)
    return [_mix(start + place) for place in range(count)]
