"""Compile a user's own loss, a class with `value(t, b)`, `slope(t, b)` and `curvature`."""

from __future__ import annotations

import math
from types import FunctionType
from typing import Any

from numba import njit, types
from numba.core.errors import NumbaError

from fedpage.core.errors import InputError, short_repr
from fedpage.core.function_digest import function_digest
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
    digest = function_digest(*functions.values())
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
