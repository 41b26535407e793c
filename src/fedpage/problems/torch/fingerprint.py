"""Compute digests of torch modules and functions that differ where the computation would."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor, nn

from fedpage.core import function_digest as core
from fedpage.core.types import Ints
from fedpage.problems.torch.rows import AnyTable


def module_digest(module: nn.Module, trained: Iterable[str]) -> str:
    """Digest a module's architecture, its plain attributes and its constant values.

    Args:
        module: The module.
        trained: Names of the parameters whose values do not count.
    """
    digest, ignored = hashlib.sha256(), set(trained)
    for name, part in module.named_modules():
        kind = f"{type(part).__module__}.{type(part).__qualname__}"
        digest.update(f"{name} {kind} {part.extra_repr()} ".encode())
        for key in sorted(vars(part)):
            if not key.startswith("_"):
                digest.update(
                    f"{key}={core.function_digest(vars(part)[key], render=_render)} ".encode()
                )
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        if name not in ignored:
            digest.update(_bytes(value))
    return digest.hexdigest()


def table_digest(sizes: Ints, *tables: AnyTable) -> str:
    """Digest rows, and the rows (N,) that each client has of them."""
    digest = hashlib.sha256(sizes.tobytes())
    for table in tables:
        digest.update(f"{table.length} {' '.join(table.digests())} ".encode())
    return digest.hexdigest()


def function_digest(function: Callable[..., object]) -> str:
    """Digest a function's code and the values it uses, tensors and modules among them."""
    return core.function_digest(function, render=_render)


def _render(value: object) -> str | None:
    """Render a tensor or a module; return None for other values."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(_bytes(value)).hexdigest()}"
    if isinstance(value, nn.Module):
        return f"{type(value).__qualname__} {module_digest(value, ())}"
    return None


def _bytes(value: Tensor | np.ndarray) -> bytes:
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous().numpy()
    return np.ascontiguousarray(value).tobytes()
