"""Compile the loops over rows: losses, minibatch gradients, local steps, the objective.

Every kernel works on one client after the other and never mixes them, so a client's row of the
result does not depend on which other clients were called. Index and pointer arrays are unsigned:
the sparse loops are then 2.5 times faster. All kernels and losses are in this file, because numba's
disk cache does not notice when a function in another file changes.

To add a loss to the library, declare it below with `@declare_loss`. `LinearModel`, the table of
objectives and the command line read the declaration. A user's own loss (`problems/own_loss.py`)
takes the place of the code of a built-in loss; its functions are then compiled into the kernels.

Data layout of all kernels:
    ptr (rows+1,) idx (nnz,) val (nnz,)     CSR, rows grouped by client; val None: every entry is 1
                                            (a third less time on one-hot data)
    None, None, val (rows, p)               dense rows, grouped by client
    target (rows,)                          labels b
    start (N+1,)                            client i holds rows start[i]..start[i+1]-1
    scale (N,)                              N w_i, the client's weight against the uniform 1/N
    loss, reg, alpha                        codes of the loss and the regulariser, and its weight
    p                                       the number of features, which alone are regularised; a
                                            point has p coordinates, or p + 1 with an intercept
Minibatches: rows (n, count, w) holds local row numbers. Of client i's, the first min(b, M_i) count.
w = 0 stands for every row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import (
    NativeValue,
    intrinsic,
    models,
    overload,
    register_model,
    unbox,
)
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from fedpage.core.jit import compile_kernel
from fedpage.core.registry import Registry

F = NDArray[np.float64]
U = NDArray[np.uint32]
I = NDArray[np.int64]
Floats = NDArray[np.float32] | NDArray[np.float64]
RowFunction = Callable[[float, float], float]
ChosenFunction = Callable[[int, float, float], float]
# error_model="numpy": no kernel checks its divisors, because none of them can be 0
_inline = njit(nogil=True, error_model="numpy", inline="always")
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "forceinline": True}
_1, _2 = np.uint64(1), np.uint64(2)  # a signed or 32-bit sum of indices would halve the speed

Reg = Literal["none", "l2", "nonconvex", "smoothed-l1"]


class Regulariser(NamedTuple):
    """Describe a regulariser: its code in the kernels, and what theory needs of it."""

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


class LossType(types.Opaque):
    """Make a user's loss a type of numba's, for which kernels are compiled and cached on disk.

    The name is all that it is: it contains a digest of the source, so that a process which has
    never seen the loss can read the cache, and a changed loss is compiled again.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name)


class CompiledLoss:
    """A user's loss in place of a code: kernels are compiled for its type, and read nothing.

    Args:
        name: the loss's name and digest.
        value: its compiled function (t, b) -> loss.
        slope: its compiled function (t, b) -> derivative by t.
    """

    known: ClassVar[dict[str, CompiledLoss]] = {}

    def __init__(self, name: str, value: RowFunction, slope: RowFunction) -> None:
        self.name, self.value, self.slope = name, value, slope
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
    code: int | CompiledLoss
    """What kernels take for it: a number for a built-in loss."""
    value: RowFunction
    slope: RowFunction
    """Derivative of the value by t."""
    curvature: float
    """Bound of the second derivative by t; infinite where there is none."""
    convex: bool
    needs_labels: bool = False
    """Whether targets must be -1/+1."""
    needs_counts: bool = False
    """Whether targets must be at least 0."""
    fused: bool = False
    """Whether losses are added up in the loop of the gradient, as those without exp and log are.

    Calls of exp and log would slow that loop down, so other losses have a loop of their own.
    """
    digest: str = ""
    """The digest of a user's own loss."""


LOSSES: Registry[Loss] = Registry("loss")


class RowLoss(Protocol):
    """A loss as its two functions of the margin t and the target b."""

    @staticmethod
    def value(t: float, b: float) -> float:
        """Compute the loss."""
        ...

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        ...


def declare_loss(
    name: str,
    title: str,
    *,
    curvature: float,
    convex: bool,
    needs_labels: bool = False,
    needs_counts: bool = False,
    fused: bool = False,
) -> Callable[[type[RowLoss]], type[RowLoss]]:
    """Register a class with functions `value(t, b)` and `slope(t, b)` as a loss; see `Loss`."""

    def decorate(cls: type[RowLoss]) -> type[RowLoss]:
        value, slope = _inline(cls.value), _inline(cls.slope)
        numbers = (curvature, convex, needs_labels, needs_counts, fused)
        LOSSES.add(name, Loss(name, title, len(LOSSES), value, slope, *numbers))
        return cls

    return decorate


@declare_loss("robust", "robust regression", curvature=1.0, convex=False)
class Robust:
    """log(1 + r^2/2) of the residual r = t - b."""

    @staticmethod
    def value(t: float, b: float) -> float:
        """Compute the loss, which is at most 1,420 even where r^2 or r overflows."""
        r = t - b
        if abs(r) > 1e150:
            return 2.0 * math.log(abs(0.5 * t - 0.5 * b)) + math.log(2.0)
        return math.log1p(0.5 * r * r)

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        r = t - b
        return r / (1.0 + 0.5 * r * r)


@declare_loss("logistic", "logistic regression", curvature=0.25, convex=True, needs_labels=True)
class Logistic:
    """log(1 + exp(-b t)) for labels b = -1 or +1."""

    @staticmethod
    def value(t: float, b: float) -> float:
        """Compute the loss without overflow."""
        z = b * t
        if z > 0.0:
            return math.log1p(math.exp(-z))
        return math.log1p(math.exp(z)) - z

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t. exp may be infinite; the quotient is then 0."""
        return -b / (1.0 + math.exp(b * t))


@declare_loss("squares", "least squares", curvature=1.0, convex=True, fused=True)
class Squares:
    """(t - b)^2/2."""

    @staticmethod
    def value(t: float, b: float) -> float:
        """Compute the loss."""
        return 0.5 * (t - b) * (t - b)

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        return t - b


@declare_loss(
    "squared-hinge", "squared hinge", curvature=2.0, convex=True, needs_labels=True, fused=True
)
class SquaredHinge:
    """max(0, 1 - b t)^2 for labels b = -1 or +1."""

    @staticmethod
    def value(t: float, b: float) -> float:
        """Compute the loss."""
        gap = max(0.0, 1.0 - b * t)
        return gap * gap

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        return -2.0 * b * max(0.0, 1.0 - b * t)


@declare_loss("huber", "Huber regression", curvature=1.0, convex=True, fused=True)
class Huber:
    """r^2/2 of the residual r = t - b up to |r| = 1, and |r| - 1/2 beyond."""

    @staticmethod
    def value(t: float, b: float) -> float:
        """Compute the loss."""
        r = abs(t - b)
        if r > 1.0:
            return r - 0.5
        return 0.5 * r * r

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        return min(1.0, max(-1.0, t - b))


@declare_loss("poisson", "Poisson regression", curvature=math.inf, convex=True, needs_counts=True)
class Poisson:
    """exp(t) - b t for counts b, without the constant log(b!)."""

    @staticmethod
    def value(t: float, b: float) -> float:
        """Compute the loss."""
        return math.exp(t) - b * t

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        return math.exp(t) - b


def _choose(functions: list[RowFunction]) -> ChosenFunction:
    """Compile (code, t, b) -> functions[code](t, b) as a tree of ifs."""

    def tree(first: int, end: int) -> ChosenFunction:
        if end - first == 1:
            return _leaf(functions[first])
        middle = (first + end) // 2
        return _branch(middle, tree(first, middle), tree(middle, end))

    return tree(0, len(functions))


def _leaf(function: RowFunction) -> ChosenFunction:
    chosen: ChosenFunction = _inline(lambda code, t, b: function(t, b))
    return chosen


def _branch(middle: int, below: ChosenFunction, above: ChosenFunction) -> ChosenFunction:
    def branch(code: int, t: float, b: float) -> float:
        if code < middle:
            return below(code, t, b)
        return above(code, t, b)

    chosen: ChosenFunction = _inline(branch)
    return chosen


def _by_type(choose: Callable[..., Any], **options: Any) -> Any:
    """Return a function that kernels compile as the one chosen by the types of its arguments."""

    def function(*arguments: Any) -> Any:
        raise NotImplementedError("only kernels can call it")

    overload(function, strict=False, jit_options=_OPTIONS | options)(choose)
    return function


def _by_loss(part: Literal["value", "slope"]) -> Any:
    """Return (loss, t, b) -> value or slope, of a built-in loss's code or of a user's loss."""
    built_in = _choose([getattr(loss, part) for loss in LOSSES.values()])

    def choose(loss: Any, t: Any, b: Any) -> Any:
        if not isinstance(loss, LossType):
            return lambda loss, t, b: built_in(loss, t, b)
        own = getattr(CompiledLoss.known[loss.name], part)
        return lambda loss, t, b: own(t, b)

    return _by_type(choose)


_value, _slope = _by_loss("value"), _by_loss("slope")


@_inline
def _reg_slope(reg: int, alpha: float, x: float) -> float:
    """Compute the derivative of the regulariser by one coordinate."""
    if reg == NO_REG:
        return 0.0
    if reg == L2:
        return alpha * x  # of alpha x^2/2
    if reg == SMOOTHED_L1:
        return alpha * x / math.sqrt(x * x + DELTA * DELTA)  # of alpha (sqrt(x^2+delta^2) - delta)
    q = 1.0 + x * x
    return 2.0 * alpha * x / (q * q)  # of alpha x^2/(1+x^2)


# --- a row ----------------------------------------------------------------------------------------

_LANES = 8
"""A dense product has this many sums side by side on every processor, so its bits are the same."""


def _dense_product(context: Any, val: Any, row: Any, Y: Any, i: Any) -> Any:
    """Compute val[row] . Y[i] over val's columns, in vectors, which numba itself does not form."""

    def generate(target: Any, build: Any, signature: Any, values: Any) -> Any:
        number, size = ir.IntType(64), ir.IntType(64)(_LANES)
        vector = ir.VectorType(ir.DoubleType(), _LANES)

        def start(array: int, at: int) -> tuple[Any, Any]:
            """Return the address of a row, and the length of rows."""
            proxy = make_array(signature.args[array])(target, build, values[array])
            length = cgutils.unpack_tuple(build, proxy.shape, 2)[1]
            return build.gep(proxy.data, [build.mul(values[at], length)]), length

        (a, n), (y, _) = start(0, 1), start(2, 3)
        blocks = build.udiv(n, size)
        lanes = cgutils.alloca_once_value(build, ir.Constant(vector, None))
        with cgutils.for_range(build, blocks) as loop:
            first = build.mul(loop.index, size)
            pair = [build.bitcast(build.gep(v, [first]), vector.as_pointer()) for v in (a, y)]
            products = build.fmul(*(build.load(v, align=8) for v in pair))
            build.store(build.fadd(build.load(lanes), products), lanes)
        vectors = build.load(lanes)
        sums = [build.extract_element(vectors, ir.IntType(32)(lane)) for lane in range(_LANES)]
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [build.fadd(*both) for both in zip(sums[:half], sums[half:], strict=True)]
        total = cgutils.alloca_once_value(build, sums[0])
        rest = cgutils.for_range_slice(build, build.mul(blocks, size), n, number(1))
        with rest as (l, _):
            product = build.fmul(*(build.load(build.gep(v, [l])) for v in (a, y)))
            build.store(build.fadd(build.load(total), product), total)
        return build.load(total)

    return types.float64(val, row, Y, i), generate


dense_product: Any = intrinsic(_dense_product)


def _margin_sparse(ptr: U, idx: U, val: F | None, row: Any, p: int, Y: F, i: int) -> float:
    t, u = 0.0, 0.0
    e, end = np.uint64(ptr[row]), np.uint64(ptr[row + _1])
    while e + _1 < end:
        t += (1.0 if val is None else val[e]) * Y[i, idx[e]]
        u += (1.0 if val is None else val[e + _1]) * Y[i, idx[e + _1]]
        e += _2
    if e < end:
        t += (1.0 if val is None else val[e]) * Y[i, idx[e]]
    return t + u + Y[i, p] if p < Y.shape[1] else t + u


def _margins_sparse(
    ptr: U, idx: U, val: F | None, row: Any, p: int, Y: F, i: int, Z: F, k: int
) -> tuple[float, float]:
    t, u = 0.0, 0.0
    for e in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
        t += (1.0 if val is None else val[e]) * Y[i, idx[e]]
        u += (1.0 if val is None else val[e]) * Z[k, idx[e]]
    return (t + Y[i, p], u + Z[k, p]) if p < Y.shape[1] else (t, u)


def _margin_dense(ptr: None, idx: None, val: F, row: Any, p: int, Y: F, i: int) -> float:
    t: float = dense_product(val, row, Y, i)
    if p < Y.shape[1]:
        t += Y[i, p]
    return t


def _margins_dense(
    ptr: None, idx: None, val: F, row: Any, p: int, Y: F, i: int, Z: F, k: int
) -> tuple[float, float]:
    t, u = dense_product(val, row, Y, i), dense_product(val, row, Z, k)
    return (t + Y[i, p], u + Z[k, p]) if p < Y.shape[1] else (t, u)


def _add_sparse(ptr: U, idx: U, val: F | None, row: Any, p: int, v: float, out: F, i: int) -> None:
    for e in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
        out[i, idx[e]] += v * (1.0 if val is None else val[e])
    if p < out.shape[1]:
        out[i, p] += v


def _add_dense(ptr: None, idx: None, val: F, row: Any, p: int, v: float, out: F, i: int) -> None:
    for l in range(val.shape[1]):
        out[i, l] += v * val[row, l]
    if p < out.shape[1]:
        out[i, p] += v


def _step_sparse(
    ptr: U, idx: U, val: F | None, row: Any, p: int, v: float, out: F, i: int, eta: float, y: F
) -> None:
    for e in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
        move = v * (1.0 if val is None else val[e])
        out[i, idx[e]] += move
        y[0, idx[e]] -= eta * move
    if p < out.shape[1]:
        out[i, p] += v
        y[0, p] -= eta * v


def _step_dense(
    ptr: None, idx: None, val: F, row: Any, p: int, v: float, out: F, i: int, eta: float, y: F
) -> None:
    for l in range(val.shape[1]):
        move = v * val[row, l]
        out[i, l] += move
        y[0, l] -= eta * move
    if p < out.shape[1]:
        out[i, p] += v
        y[0, p] -= eta * v


def _by_storage(sparse: Any, dense: Any) -> Any:
    """Return a function that kernels compile as one of the two; `idx` is the second argument.

    It does not count references to its arrays, which would take as long as the row itself
    (measured for a full gradient: 1,030 against 680 microseconds).
    """
    return _by_type(
        lambda *args: dense if isinstance(args[1], types.NoneType) else sparse, _nrt=False
    )


# (ptr, idx, val, row, p, Y, i) -> a . Y[i], plus the intercept Y[i, p] where Y has a column p. The
# sparse sum is two sums side by side, so that additions need not wait for each other.
_margin = _by_storage(_margin_sparse, _margin_dense)
# (ptr, idx, val, row, p, Y, i, Z, k) -> a . Y[i] and a . Z[k]
_margins = _by_storage(_margins_sparse, _margins_dense)
# (ptr, idx, val, row, p, v, out, i): out[i] += v a
_add = _by_storage(_add_sparse, _add_dense)
# (ptr, idx, val, row, p, v, out, i, eta, y): out[i] += v a and y[0] -= eta v a
_add_and_step = _by_storage(_step_sparse, _step_dense)


# --- kernels --------------------------------------------------------------------------------------


@compile_kernel
def batch_grad(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int, reg: int, alpha: float,
    p: int, clients: I, rows: U, counts: I, Y: F, out: F,
) -> None:  # fmt: skip
    """Compute out[i] = mean gradient over client i's batch at Y[i]; Y (n, d), or (1, d) for all.

    counts (n,) are the rows of the batches; the gradient over none is 0.
    """
    d, every = Y.shape[1], rows.shape[1] == 0
    for i in range(len(clients)):
        c = clients[i]
        own = i if len(Y) > 1 else 0
        first, count = start[c], counts[i]
        for l in range(d):
            out[i, l] = 0.0
        if count == 0:
            continue
        weight = scale[c] / count
        for j in range(count):
            row = np.uint64(first + j) if every else np.uint64(first) + np.uint64(rows[i, j])
            t = _margin(ptr, idx, val, row, p, Y, own)
            _add(ptr, idx, val, row, p, weight * _slope(loss, t, target[row]), out, i)
        if reg != NO_REG:
            for l in range(p):
                out[i, l] += scale[c] * _reg_slope(reg, alpha, Y[own, l])


@compile_kernel
def local_sgd(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int, reg: int, alpha: float,
    p: int, clients: I, rows: U, b: int, x: F, W: F, shift: F, K: int, eta: float, mu: float,
    out: F,
) -> None:  # fmt: skip
    """Run K steps y -= eta (grad(y) - grad(w) + shift + mu (y - x)); out[i] = mean direction.

    rows (n, K, w) are batches of at most b rows. The reference points W are (n, d), (1, d) for all,
    or (0, d) for none; shift likewise. Without regulariser and proximal term a step changes only
    the features of the batch (and of the shift).
    """
    d, every, has_shift, has_reference = len(x), rows.shape[2] == 0, len(shift) > 0, len(W) > 0
    every_feature = reg != NO_REG or mu != 0.0
    y, g, slopes = np.empty((1, d)), np.empty((1, d)), np.empty(b)
    for i in range(len(clients)):
        c = clients[i]
        first, count = start[c], min(b, start[c + 1] - start[c])
        weight = scale[c] / count
        own_w, own_shift = (i if len(W) > 1 else 0), (i if len(shift) > 1 else 0)
        for l in range(d):
            y[0, l] = x[l]
            out[i, l] = 0.0
        for k in range(K):
            for j in range(count):
                row = np.uint64(first + j) if every else np.uint64(first) + np.uint64(rows[i, k, j])
                v = _slope(loss, _margin(ptr, idx, val, row, p, y, 0), target[row])
                if has_reference:
                    then, _ = _margins(ptr, idx, val, row, p, W, own_w, W, own_w)
                    v -= _slope(loss, then, target[row])
                slopes[j] = weight * v
            if every_feature:
                for l in range(p):
                    g[0, l] = scale[c] * _reg_slope(reg, alpha, y[0, l]) + mu * (y[0, l] - x[l])
                for l in range(p, d):
                    g[0, l] = mu * (y[0, l] - x[l])
                if has_reference:
                    for l in range(p):
                        g[0, l] -= scale[c] * _reg_slope(reg, alpha, W[own_w, l])
            for j in range(count):
                row = np.uint64(first + j) if every else np.uint64(first) + np.uint64(rows[i, k, j])
                if every_feature:
                    _add(ptr, idx, val, row, p, slopes[j], g, 0)
                else:
                    _add_and_step(ptr, idx, val, row, p, slopes[j], out, i, eta, y)
            if every_feature:
                for l in range(d):
                    out[i, l] += g[0, l]
                    y[0, l] -= eta * g[0, l]
            if has_shift:
                for l in range(d):
                    y[0, l] -= eta * shift[own_shift, l]
        for l in range(d):
            out[i, l] = out[i, l] / K + (shift[own_shift, l] if has_shift else 0.0)


@compile_kernel
def local_page(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int, reg: int, alpha: float,
    p: int, clients: I, first: U, b_first: int, rest: U, b_rest: int,
    X: F, X_prev: F, G: F, K: int, eta: float, out: F,
) -> None:  # fmt: skip
    """Run K steps of the PAGE recursion (Alg. 1, lines 13-21); out[i] = mean of g_0..g_{K-1}.

    first (n, 1, w) and rest (n, K-1, w) are the batches of step 0 and of the steps after it, of at
    most b_first and b_rest rows. X, X_prev, G: (n, d), or (1, d) for all.
    """
    d = X.shape[1]
    y, before, g = np.empty((1, d)), np.empty((1, d)), np.empty((1, d))
    for i in range(len(clients)):
        c = clients[i]
        start_row, size = start[c], start[c + 1] - start[c]
        own_x, own_prev, own_g = (
            (i if len(X) > 1 else 0),
            (i if len(X_prev) > 1 else 0),
            (i if len(G) > 1 else 0),
        )
        for l in range(d):
            y[0, l] = X[own_x, l]
            before[0, l] = X_prev[own_prev, l]
            g[0, l] = G[own_g, l]
            out[i, l] = 0.0
        for k in range(K):
            count = min(b_first if k == 0 else b_rest, size)
            weight = scale[c] / count
            for j in range(count):
                if k == 0:
                    local = np.uint64(j) if first.shape[2] == 0 else np.uint64(first[i, 0, j])
                else:
                    local = np.uint64(j) if rest.shape[2] == 0 else np.uint64(rest[i, k - 1, j])
                row = np.uint64(start_row) + local
                now, then = _margins(ptr, idx, val, row, p, y, 0, before, 0)
                v = weight * (_slope(loss, now, target[row]) - _slope(loss, then, target[row]))
                _add(ptr, idx, val, row, p, v, g, 0)
            if reg != NO_REG:
                for l in range(p):
                    g[0, l] += scale[c] * (
                        _reg_slope(reg, alpha, y[0, l]) - _reg_slope(reg, alpha, before[0, l])
                    )
            for l in range(d):
                out[i, l] += g[0, l]
                before[0, l] = y[0, l]
                y[0, l] -= eta * g[0, l]
        for l in range(d):
            out[i, l] /= K


@compile_kernel
def objective(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int, p: int,
    lo: int, hi: int, x: F, want_loss: bool, out: F, kept: F,
) -> float:  # fmt: skip
    """Add the gradients scale_i grad f_i(x) of clients lo..hi-1 to out, without the regulariser.

    kept (rows,) takes the margins of their rows, unless it is (0,). Returns the sum of their
    losses, or 0 if it is not wanted.
    """
    X, sums, total = x.reshape(1, -1), out.reshape(1, -1), 0.0
    for c in range(lo, hi):
        weight = scale[c] / (start[c + 1] - start[c])
        for r in range(start[c], start[c + 1]):
            row = np.uint64(r)
            margin = _margin(ptr, idx, val, row, p, X, 0)
            if len(kept) > 0:
                kept[row] = margin
            if want_loss:
                total += weight * _value(loss, margin, target[row])
            _add(ptr, idx, val, row, p, weight * _slope(loss, margin, target[row]), sums, 0)
    return total


@compile_kernel
def losses(target: F, start: I, scale: F, loss: int, lo: int, hi: int, t: F) -> float:
    """Add up the losses of clients lo..hi-1 in the order of `objective`; t (rows,) are margins."""
    total = 0.0
    for c in range(lo, hi):
        weight = scale[c] / (start[c + 1] - start[c])
        for r in range(start[c], start[c + 1]):
            row = np.uint64(r)
            total += weight * _value(loss, t[row], target[row])
    return total


@compile_kernel
def margins(ptr: U, idx: U, val: F | None, p: int, first: int, x: F, out: F) -> None:
    """Compute out[j] = a . x (plus the intercept) for the rows from `first` on."""
    X = x.reshape(1, -1)
    for r in range(len(out)):
        out[r] = _margin(ptr, idx, val, np.uint64(first + r), p, X, 0)


@compile_kernel
def mean_loss(loss: int, t: F, target: F) -> float:
    """Compute the mean loss of rows with margins t, divided row by row so that no sum overflows."""
    total = 0.0
    for r in range(len(t)):
        total += _value(loss, t[r], target[r]) / len(t)
    return total


@compile_kernel
def total(v: F) -> float:
    """Add up v (d,) in order."""
    s = 0.0
    for l in range(len(v)):
        s += v[l]
    return s


@compile_kernel
def quadratic_grad(A: F, linear: F, scale: F, clients: I, rows: U, counts: I, Y: F, out: F) -> None:
    """Compute out[i] = A_i y_i - batch mean of linear[i]; A (N, d, d), linear (N, M, d)."""
    d = Y.shape[1]
    every = rows.shape[1] == 0
    for i in range(len(clients)):
        c = clients[i]
        y = Y[i if len(Y) > 1 else 0]
        if counts[i] == 0:
            out[i] = 0.0
            continue
        for l in range(d):
            s = 0.0
            for m in range(d):
                s += A[c, l, m] * y[m]
            mean = 0.0
            for j in range(counts[i]):
                mean += linear[c, j if every else rows[i, j], l]
            out[i, l] = scale[c] * (s - mean / counts[i])
