"""Compile a user's own loss, a class with `value(t, b)`, `slope(t, b)` and `curvature`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba import njit, types
from numba.core.errors import NumbaError

from fedpage.core.errors import InputError, short_repr
from fedpage.problems.kernels import CompiledLoss, Loss

_MARGINS = (-2.37, -0.83, 0.19, 0.61, 1.73, 3.11)
_LABELS = (-1.0, 1.0)
_TARGETS = (0.0, 0.7, 2.3)
"""Where a loss is checked. They are unlikely to be the kinks of a piecewise one."""


def compile_loss(cls: Any) -> Loss:
    """Check a user's class and compile its functions for the kernels.

    The kernels that numba compiles for it are cached on disk under a digest of the functions and of
    the constants that they use, so that another process finds them and a change is noticed.

    Args:
        cls: a class with the functions `value(t, b)` and `slope(t, b)` of a margin and a target,
            and the bound `curvature` of the second derivative by t. It may have `convex` (default
            False), `needs_labels` (False), `needs_counts` (False) and `title` (the class's name).

    Returns:
        The loss.

    Raises:
        InputError: something is missing, numba cannot compile it, or the numbers are wrong.
    """
    if not isinstance(cls, type):
        raise InputError(
            f"loss: expected the name of a loss or a class, not {short_repr(cls)}; "
            "give the class itself, without parentheses"
        )
    where = f"loss {cls.__name__}"
    functions = {name: _find_function(where, cls, name) for name in ("value", "slope")}
    curvature = getattr(cls, "curvature", None)
    if isinstance(curvature, bool) or not isinstance(curvature, (int, float)) or not curvature > 0:
        raise InputError(
            f"{where}: curvature must be a positive number, the bound of the second derivative of "
            f"value by t (math.inf where there is none), not {short_repr(curvature)}"
        )
    flags = {}
    for name in ("convex", "needs_labels", "needs_counts"):
        flags[name] = getattr(cls, name, False)
        if not isinstance(flags[name], bool):
            raise InputError(f"{where}: {name} must be True or False")
    digest = _digest(where, *functions.values())
    name = f"{cls.__name__} {digest}"
    code = CompiledLoss.known.get(name) or CompiledLoss(
        name, *(_compile(where, name, part, function) for part, function in functions.items())
    )
    title = str(getattr(cls, "title", cls.__name__))
    loss = Loss(
        cls.__name__, title, code, code.value, code.slope, float(curvature), **flags, digest=digest
    )
    _check_numbers(where, loss)
    return loss


def _find_function(where: str, cls: type, name: str) -> FunctionType:
    function = getattr(cls, name, None)
    if isinstance(function, FunctionType) and function.__code__.co_argcount == 2:
        return function
    found = "" if function is None else ", not another signature"
    raise InputError(f"{where}: it needs a static function {name}(t, b){found}")


def _compile(where: str, name: str, part: str, function: FunctionType) -> Any:
    copy = FunctionType(
        function.__code__, function.__globals__, part, function.__defaults__, function.__closure__
    )
    # numba imports this module when it loads kernels from its cache, and the user's file may not
    # be importable by its name; the name tells apart losses of the same class name
    copy.__module__, copy.__qualname__ = __name__, f"{name}.{part}"
    compiled = njit(nogil=True, error_model="numpy")(copy)
    try:
        compiled.compile((types.float64, types.float64))
    except (NumbaError, TypeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if not line.startswith("Failed in")), "")
        raise InputError(f"{where}: numba cannot compile {part}(t, b): {reason}") from None
    result = compiled.nopython_signatures[0].return_type
    if not isinstance(result, (types.Float, types.Integer)):
        raise InputError(f"{where}: {part}(t, b) must return a real number, not {result}")
    return compiled


def _check_numbers(where: str, loss: Loss) -> None:
    """Compare slope with differences of value, and curvature and convex with those of slope."""
    is_compared = False
    for b in _LABELS if loss.needs_labels else _TARGETS:
        for t in _MARGINS:
            h = 1e-5 * max(1.0, abs(t))
            low, high = loss.value(t - h, b), loss.value(t + h, b)
            slope, found = loss.slope(t, b), (high - low) / (2 * h)
            if not (math.isfinite(found) and math.isfinite(slope)):
                continue
            is_compared = True
            noise = 1e-9 * (abs(low) + abs(high)) / h
            if abs(slope - found) > 1e-4 * (abs(slope) + abs(found)) + 1e-6 + noise:
                raise InputError(
                    f"{where}: slope must be the derivative of value by t; at t={t:g}, b={b:g} "
                    f"slope is {slope:.6g} and differences of value give {found:.6g}"
                )
            bend = (loss.slope(t + h, b) - loss.slope(t - h, b)) / (2 * h)
            if abs(bend) > 1.001 * loss.curvature + 1e-4:
                raise InputError(
                    f"{where}: curvature = {loss.curvature:g} is not a bound of the second "
                    f"derivative by t, which is {bend:.4g} at t={t:g}, b={b:g}"
                )
            if loss.convex and bend < -1e-4:
                raise InputError(
                    f"{where}: convex = True, but the second derivative by t is {bend:.4g} at "
                    f"t={t:g}, b={b:g}"
                )
    if not is_compared:
        raise InputError(
            f"{where}: value or slope is not finite at every t from {min(_MARGINS)} to "
            f"{max(_MARGINS)} that was tried; correct them"
        )


# --- identity -------------------------------------------------------------------------------------


def _digest(where: str, *functions: FunctionType) -> str:
    """Compute the SHA-256 of functions: their code, and the constants and functions they use.

    The code is what Python runs, so the digest cannot belong to a file that was edited since.
    """
    state = hashlib.sha256()
    for function in functions:
        for part in _parts_of_function(where, function, {function.__code__}):
            state.update(part.encode() + b"\0")
    return state.hexdigest()


def _parts_of_function(where: str, function: FunctionType, seen: set[CodeType]) -> Iterator[str]:
    code = function.__code__
    yield from _parts_of_code(code)
    for value in (*(function.__defaults__ or ()), *(c.cell_contents for c in _cells(function))):
        yield from _parts_of_value(where, "an argument", value, code, seen)
    for name in code.co_names:
        if name in function.__globals__:
            yield name
            yield from _parts_of_value(where, name, function.__globals__[name], code, seen)


def _cells(function: FunctionType) -> tuple[Any, ...]:
    return function.__closure__ or ()


def _parts_of_code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts_of_code(constant)
        else:
            is_set = isinstance(constant, frozenset)
            yield repr(sorted(map(repr, constant))) if is_set else repr(constant)


def _parts_of_value(
    where: str, name: str, value: Any, code: CodeType, seen: set[CodeType]
) -> Iterator[str]:
    """Write what identifies a value that a function with this code uses."""
    value = getattr(value, "py_func", value)  # of a function that numba compiles
    if isinstance(value, FunctionType):
        if value.__code__ not in seen:
            seen.add(value.__code__)
            yield from _parts_of_function(where, value, seen)
    elif isinstance(value, ModuleType):
        yield value.__name__
        for attribute in code.co_names:  # such as math.exp, or a number of a module
            if hasattr(value, attribute):
                part = getattr(value, attribute)
                yield from _parts_of_value(where, f"{name}.{attribute}", part, code, seen)
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts_of_value(where, name, item, code, seen)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, (BuiltinFunctionType, np.ufunc, type)):
        yield f"{getattr(value, '__module__', '')}.{value.__name__}"
    elif value is None or isinstance(value, (bool, int, float, complex, str, np.generic)):
        yield repr(value)
    else:
        raise InputError(
            f"{where}: it uses {name}, a {type(value).__name__}; numbers, tuples and arrays of "
            "numbers, and functions can be compiled"
        )
