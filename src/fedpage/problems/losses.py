"""Losses of a margin and a target, regularisers, and the compilation of a user's own loss.

To add a loss to the library, declare it below with `@declare_loss`. `LinearModel`, the table of
objectives and the command line read the declaration. A user's own loss is a class of the same form,
which `compile_loss` checks and compiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar, Literal, NamedTuple

from numba import njit, types
from numba.core.errors import NumbaError
from numba.extending import NativeValue, models, register_model, unbox

from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.function_digest import function_digest
from fedpage.core.spec import Registry
from fedpage.core.validate import as_number, is_word

RowFunction = Callable[[float, float], float]
RowTerms = Callable[[float, float], tuple[float, float]]
# error_model="numpy": no kernel checks its divisors, because none of them can be 0
_inline: Any = njit(nogil=True, error_model="numpy", inline="always")

Reg = Literal["none", "l2", "nonconvex", "smoothed-l1"]


class Regulariser(NamedTuple):
    """Describe a regulariser: its code in the kernels, and its constants for theory."""

    code: int
    curvature: float
    """Bound of the second derivative by a coordinate, at alpha = 1."""
    convex: bool


NO_REG, L2, NONCONVEX, SMOOTHED_L1 = 0, 1, 2, 3
DELTA = 0.01
"""The smoothed l1 regulariser differs from |x| by at most this, and is quadratic near 0 within."""
REGULARISERS: dict[Reg, Regulariser] = {
    "none": Regulariser(NO_REG, 0.0, True),
    "l2": Regulariser(L2, 1.0, True),
    "nonconvex": Regulariser(NONCONVEX, 2.0, False),
    "smoothed-l1": Regulariser(SMOOTHED_L1, 1.0 / DELTA, True),
}
_ALPHA = 0.1
"""The weight of a regulariser where none is given: the paper's."""


class LossType(types.Opaque):
    """Type of a loss in numba, for which kernels are compiled and cached on disk.

    The name identifies it. A user's loss has a digest of its functions in the name, so that a
    process which has never seen the loss can read the cache, and a changed loss is compiled again.
    """


class CompiledLoss:
    """A loss as kernels take it. They are compiled for its type and read no data of it.

    Args:
        name: The loss's name, and the digest of a user's loss.
        slope: Its compiled function (t, b) -> derivative by t.
        bend: Its compiled function (t, b) -> second derivative by t.
        terms: Its compiled function (t, b) -> (u, s) with the loss u + log(1 + s). The rows of a
            client then share a logarithm.
    """

    known: ClassVar[dict[str, CompiledLoss]] = {}

    def __init__(self, name: str, slope: RowFunction, bend: RowFunction, terms: RowTerms) -> None:
        self.name, self.slope, self.bend, self.terms = name, slope, bend, terms
        self._numba_type_ = LossType(name)  # numba reads this attribute
        self.known[name] = self


register_model(LossType)(models.OpaqueModel)


@unbox(LossType)
def _unbox_loss(kind: Any, value: Any, c: Any) -> Any:
    return NativeValue(c.context.get_dummy_value())


class Loss(NamedTuple):
    """Describe a row's loss as a function of its margin t = a.x and its target b."""

    name: str
    title: str
    """The objective's name in records and messages."""
    code: CompiledLoss | None
    """The loss for kernels; None for the softmax, which they take as (C,)."""
    curvature: float
    """Bound of the second derivative by t; infinite where there is none."""
    convex: bool
    needs_labels: bool = False
    """Whether targets must be -1/+1."""
    needs_counts: bool = False
    """Whether targets must be at least 0."""
    digest: str = ""
    """The digest of a user's own loss."""


LOSSES: Registry[Loss] = Registry("loss")


def declare_loss(
    name: str, title: str, *, curvature: float, convex: bool, **flags: Any
) -> Callable[[Any], Any]:
    """Register a class with functions `terms`, `slope` and `bend` of (t, b) as a loss.

    See `CompiledLoss` for the functions and `Loss` for the arguments.
    """

    def decorate(cls: Any) -> Any:
        code = CompiledLoss(name, *map(_inline, (cls.slope, cls.bend, cls.terms)))
        LOSSES.add(name, Loss(name, title, code, curvature, convex, **flags))
        return cls

    return decorate


@declare_loss("robust", "robust regression", curvature=1.0, convex=False)
class RobustLoss:
    """log(1 + r^2/2) of the residual r = t - b."""

    @staticmethod
    def terms(t: float, b: float) -> tuple[float, float]:
        """Compute the loss, which is at most 1,420 even where r^2 or r overflows."""
        r = t - b
        if abs(r) > 1e150:
            return 2.0 * math.log(abs(0.5 * t - 0.5 * b)) + math.log(2.0), 0.0
        return 0.0, 0.5 * r * r

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        r = t - b
        return r / (1.0 + 0.5 * r * r)

    @staticmethod
    def bend(t: float, b: float) -> float:
        """Compute its second derivative by t, without overflow."""
        q = 1.0 + 0.5 * (t - b) * (t - b)
        return (2.0 / q - 1.0) / q


@declare_loss("logistic", "logistic regression", curvature=0.25, convex=True, needs_labels=True)
class LogisticLoss:
    """log(1 + exp(-b t)) for labels b = -1 or +1."""

    @staticmethod
    def terms(t: float, b: float) -> tuple[float, float]:
        """Compute the loss without overflow, by the exponential that its slope has, too."""
        z = b * t
        if z > 0.0:
            return 0.0, 1.0 / math.exp(z)
        return -z, math.exp(z)

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t. exp may be infinite; the quotient is then 0."""
        return -b / (1.0 + math.exp(b * t))

    @staticmethod
    def bend(t: float, b: float) -> float:
        """Compute its second derivative by t, without overflow."""
        e = math.exp(-abs(t))
        return e / ((1.0 + e) * (1.0 + e))


@declare_loss("squares", "least squares", curvature=1.0, convex=True)
class SquaredLoss:
    """(t - b)^2/2."""

    @staticmethod
    def terms(t: float, b: float) -> tuple[float, float]:
        """Compute the loss."""
        return 0.5 * (t - b) * (t - b), 0.0

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        return t - b

    @staticmethod
    def bend(t: float, b: float) -> float:
        """Compute its second derivative by t."""
        return 1.0


@declare_loss("squared-hinge", "squared hinge", curvature=2.0, convex=True, needs_labels=True)
class SquaredHingeLoss:
    """max(0, 1 - b t)^2 for labels b = -1 or +1."""

    @staticmethod
    def terms(t: float, b: float) -> tuple[float, float]:
        """Compute the loss."""
        gap = max(0.0, 1.0 - b * t)
        return gap * gap, 0.0

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        return -2.0 * b * max(0.0, 1.0 - b * t)

    @staticmethod
    def bend(t: float, b: float) -> float:
        """Compute its second derivative by t."""
        return 2.0 if b * t < 1.0 else 0.0


@declare_loss("huber", "Huber regression", curvature=1.0, convex=True)
class HuberLoss:
    """r^2/2 of the residual r = t - b up to |r| = 1, and |r| - 1/2 beyond."""

    @staticmethod
    def terms(t: float, b: float) -> tuple[float, float]:
        """Compute the loss."""
        r = abs(t - b)
        if r > 1.0:
            return r - 0.5, 0.0
        return 0.5 * r * r, 0.0

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        return min(1.0, max(-1.0, t - b))

    @staticmethod
    def bend(t: float, b: float) -> float:
        """Compute its second derivative by t."""
        return 1.0 if abs(t - b) <= 1.0 else 0.0


@declare_loss("poisson", "Poisson regression", curvature=math.inf, convex=True, needs_counts=True)
class PoissonLoss:
    """exp(t) - b t for counts b, without the constant log(b!)."""

    @staticmethod
    def terms(t: float, b: float) -> tuple[float, float]:
        """Compute the loss."""
        return math.exp(t) - b * t, 0.0

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        return math.exp(t) - b

    @staticmethod
    def bend(t: float, b: float) -> float:
        """Compute its second derivative by t."""
        return math.exp(t)


SOFTMAX = Loss("softmax", "softmax regression", None, 0.5, convex=True, needs_labels=True)
"""The softmax of C margins, which kernels know as (C,).

Its Hessian by the margins, diag(q) - q q' for probabilities q, is at most 1/2.
"""


def find_loss(loss: str | type) -> Loss:
    """Return the loss of a name, or compile a user's class.

    Raises:
        InputError: If the name is unknown or the class cannot be used.
    """
    if not isinstance(loss, str):
        return compile_loss(loss)
    return SOFTMAX if loss == SOFTMAX.name else LOSSES[loss]


def choose_regulariser(loss: Loss, reg: Reg | None, alpha: float | None) -> tuple[Reg, float]:
    """Check a regulariser and its weight, and choose those that are not given.

    Args:
        loss: The loss, for messages.
        reg: The regulariser's name, or None.
        alpha: Its weight, or None.

    Returns:
        The name and the weight. Without reg, alpha is the weight of "l2".

    Raises:
        InputError: If the regulariser is unknown, the weight is not a number of at least 0, or a
            weight is given with reg="none".
    """
    if reg is not None and not is_word(reg, REGULARISERS):
        hint = did_you_mean(reg, REGULARISERS)
        known = ", ".join(REGULARISERS)
        raise InputError(
            f"{loss.title}: the regulariser must be one of {known}, not {short_repr(reg)}"
            f"{';' if hint else ''}{hint}"
        )
    if alpha is not None and not 0 <= as_number(alpha) < math.inf:
        raise InputError(
            f"{loss.title}: alpha must be a finite number of at least 0, not {short_repr(alpha)}"
        )
    if reg not in (None, "none"):
        return reg, _ALPHA if alpha is None else float(alpha)
    if not alpha:
        return "none", 0.0
    if reg is None:
        return "l2", float(alpha)
    raise InputError(
        f"{loss.title}: alpha={alpha:g} is the weight of a regulariser, but reg='none'; "
        "choose reg='l2' or leave alpha out"
    )


# --- a user's own loss ----------------------------------------------------------------------------

_MARGINS = (-2.37, -0.83, 0.19, 0.61, 1.73, 3.11)
_LABELS = (-1.0, 1.0)
_TARGETS = (0.0, 0.7, 2.3)
"""Where a loss is checked. They are unlikely to be the kinks of a piecewise one."""


def compile_loss(cls: Any) -> Loss:
    """Check a user's class and compile its functions for the kernels.

    The kernels that numba compiles for it are cached on disk under a digest of the functions and of
    the constants that they use, so that another process finds them and a change is noticed.

    Args:
        cls: A class with the functions `value(t, b)` and `slope(t, b)` of a margin and a target,
            and the bound `curvature` of the second derivative by t. It may have that derivative,
            `bend(t, b)` (by default differences of slope), `convex` (default False),
            `needs_labels` (False), `needs_counts` (False) and `title` (the class's name).

    Returns:
        The loss.

    Raises:
        InputError: If something is missing, numba cannot compile it, or the numbers are wrong.
    """
    if not isinstance(cls, type):
        raise InputError(
            f"loss: expected the name of a loss or a class, not {short_repr(cls)}; "
            "give the class itself, without parentheses"
        )
    where = f"loss {cls.__name__}"
    names = ("value", "slope", *(("bend",) if hasattr(cls, "bend") else ()))
    functions = {name: _find_function(where, cls, name) for name in names}
    curvature = getattr(cls, "curvature", None)
    if isinstance(curvature, bool) or not isinstance(curvature, (int, float)) or not curvature > 0:
        raise InputError(
            f"{where}: curvature must be a positive number, the bound of the second derivative of "
            f"value by t (math.inf where there is none), not {short_repr(curvature)}"
        )
    flags = {name: getattr(cls, name, False) for name in ("convex", "needs_labels", "needs_counts")}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{where}: {name} must be True or False")
    digest = function_digest(*functions.values())
    name = f"{cls.__name__} {digest}"
    value, slope, *bends = (_compile(where, name, *part) for part in functions.items())
    bend = bends[0] if bends else _inline(lambda t, b: _difference(slope, t, b))
    _check_numbers(where, value, slope, bend, float(curvature), **flags)
    code = CompiledLoss.known.get(name) or CompiledLoss(
        name, slope, bend, _inline(lambda t, b: (value(t, b), 0.0))
    )
    title = str(getattr(cls, "title", cls.__name__))
    return Loss(cls.__name__, title, code, float(curvature), **flags, digest=digest)


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
    # be importable by its name; the name distinguishes losses of the same class name
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


@_inline
def _difference(slope: RowFunction, t: float, b: float) -> float:
    """Compute the second derivative by t from two slopes; about 10 digits are right."""
    h = 1e-5 * max(1.0, abs(t))
    return (slope(t + h, b) - slope(t - h, b)) / (2.0 * h)


def _check_numbers(
    where: str, value: RowFunction, slope_of: RowFunction, bend_of: RowFunction,
    curvature: float, convex: bool, needs_labels: bool, needs_counts: bool,
) -> None:  # fmt: skip
    """Compare slope with differences of value; bend, curvature and convex with those of slope."""
    is_compared = False
    for b in _LABELS if needs_labels else _TARGETS:
        for t in _MARGINS:
            h = 1e-5 * max(1.0, abs(t))
            low, high = value(t - h, b), value(t + h, b)
            slope, found = slope_of(t, b), (high - low) / (2 * h)
            if not (math.isfinite(found) and math.isfinite(slope)):
                continue
            is_compared = True
            noise = 1e-9 * (abs(low) + abs(high)) / h
            if abs(slope - found) > 1e-4 * (abs(slope) + abs(found)) + 1e-6 + noise:
                raise InputError(
                    f"{where}: slope must be the derivative of value by t; at t={t:g}, b={b:g} "
                    f"slope is {slope:.6g} and differences of value give {found:.6g}"
                )
            bend = (slope_of(t + h, b) - slope_of(t - h, b)) / (2 * h)
            given = bend_of(t, b)
            if not abs(given - bend) <= 1e-4 * (abs(given) + abs(bend)) + 1e-6:
                raise InputError(
                    f"{where}: bend must be the second derivative of value by t; at t={t:g}, "
                    f"b={b:g} bend is {given:.6g} and differences of slope give {bend:.6g}"
                )
            if abs(bend) > 1.001 * curvature + 1e-4:
                raise InputError(
                    f"{where}: curvature = {curvature:g} is not a bound of the second "
                    f"derivative by t, which is {bend:.4g} at t={t:g}, b={b:g}"
                )
            if convex and bend < -1e-4:
                raise InputError(
                    f"{where}: convex = True, but the second derivative by t is {bend:.4g} at "
                    f"t={t:g}, b={b:g}"
                )
    if not is_compared:
        raise InputError(
            f"{where}: value or slope is not finite at every t from {min(_MARGINS)} to "
            f"{max(_MARGINS)} that was tried; correct them"
        )
