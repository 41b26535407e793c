"""What a torch model and its loss are known by: digests that differ where a run would."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from types import CodeType
from typing import Any

import numpy as np
from torch import Tensor, nn


def module_digest(module: nn.Module, trained: Iterable[str]) -> str:
    """Of a module's architecture, its plain attributes, and every number that is not trained."""
    digest, free = hashlib.sha256(), set(trained)
    for name, part in module.named_modules():
        digest.update(
            f"{name} {type(part).__module__}.{type(part).__qualname__} {part.extra_repr()} ".encode()
        )
        for key in sorted(vars(part)):
            if not key.startswith("_"):
                digest.update(f"{key}={_told(vars(part)[key], 0)} ".encode())
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        if name not in free:
            digest.update(_bytes(value))
    return digest.hexdigest()


def function_digest(function: Any) -> str:
    """Of a function's code and of what it has been given: closures, defaults, the arguments of a partial, a module."""
    return hashlib.sha256(_told(function, 0).encode()).hexdigest()


def _told(value: Any, depth: int) -> str:
    """A value in words that do not depend on where it is in memory."""
    if depth > 6:
        return "..."
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(_bytes(value)).hexdigest()}"
    if isinstance(value, nn.Module):
        return f"{type(value).__qualname__} {module_digest(value, ())}"
    if isinstance(value, partial):
        return f"partial {_told([value.func, value.args, value.keywords], depth + 1)}"
    if isinstance(value, Mapping):
        return (
            "{"
            + " ".join(
                f"{key!r}: {_told(value[key], depth + 1)}" for key in sorted(value, key=repr)
            )
            + "}"
        )
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [_told(one, depth + 1) for one in value]
        return f"{type(value).__name__} {sorted(parts) if isinstance(value, (set, frozenset)) else parts}"
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        given = [cells, value.__defaults__, value.__kwdefaults__]
        return f"function {value.__qualname__} {_code(code)} {_told(given, depth + 1)}"
    return (
        f"{type(value).__module__}.{type(value).__qualname__} {getattr(value, '__qualname__', '')}"
    )


def _code(code: CodeType) -> str:
    inner = [_code(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return hashlib.sha256(
        code.co_code + repr((code.co_names, code.co_varnames, inner)).encode()
    ).hexdigest()


def _bytes(value: Any) -> bytes:
    plain = (
        value.detach().cpu().contiguous().numpy()
        if isinstance(value, Tensor)
        else np.ascontiguousarray(value)
    )
    return bytes(plain.tobytes())
