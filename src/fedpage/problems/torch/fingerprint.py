"""Compute digests of torch modules and functions that differ where the computation would."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType

import numpy as np
from torch import Tensor, nn

from fedpage.core.types import Ints
from fedpage.problems.torch.rows import Table

_MAX_DEPTH = 6


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
                digest.update(f"{key}={_render(vars(part)[key], 0)} ".encode())
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        if name not in ignored:
            digest.update(_bytes(value))
    return digest.hexdigest()


def table_digest(sizes: Ints, *tables: Table) -> str:
    """Digest rows, and the rows (N,) that each client has of them."""
    digest = hashlib.sha256(sizes.tobytes())
    for table in tables:
        for x in (*table.inputs, table.targets):
            digest.update(f"{x.dtype} {tuple(x.shape)} ".encode() + _bytes(x))
    return digest.hexdigest()


def function_digest(function: Callable[..., object]) -> str:
    """Digest a function's code, closure, defaults, partial arguments, or module."""
    return hashlib.sha256(_render(function, 0).encode()).hexdigest()


def _render(value: object, depth: int) -> str:
    """Render a value as text that does not depend on its address in memory."""
    if depth > _MAX_DEPTH:
        return "..."
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(_bytes(value)).hexdigest()}"
    if isinstance(value, nn.Module):
        return f"{type(value).__qualname__} {module_digest(value, ())}"
    if isinstance(value, partial):
        return f"partial {_render([value.func, value.args, value.keywords], depth + 1)}"
    if isinstance(value, Mapping):
        keys = sorted(value, key=repr)
        items = (f"{key!r}: {_render(value[key], depth + 1)}" for key in keys)
        return "{" + " ".join(items) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [_render(part, depth + 1) for part in value]
        is_set = isinstance(value, (set, frozenset))
        return f"{type(value).__name__} {sorted(parts) if is_set else parts}"
    if isinstance(value, MethodType):
        value = value.__func__
    if isinstance(value, FunctionType):
        closure = [cell.cell_contents for cell in value.__closure__ or ()]
        given = [closure, value.__defaults__, value.__kwdefaults__]
        code = _code_digest(value.__code__)
        return f"function {value.__qualname__} {code} {_render(given, depth + 1)}"
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__} {getattr(value, '__qualname__', '')}"


def _code_digest(code: CodeType) -> str:
    constants = [
        _code_digest(constant) if isinstance(constant, CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    names = repr((code.co_names, code.co_varnames, constants))
    return hashlib.sha256(code.co_code + names.encode()).hexdigest()


def _bytes(value: Tensor | np.ndarray) -> bytes:
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous().numpy()
    return np.ascontiguousarray(value).tobytes()
