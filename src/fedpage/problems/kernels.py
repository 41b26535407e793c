"""Compile the loops over rows: minibatch gradients, local steps, the objective.

Every kernel works on one client after the other and never mixes them, so a client's row of the
result does not depend on which other clients were called. Index and pointer arrays are unsigned:
the sparse loops are then 2.5 times faster. The loops are written once. The few functions of a row
that they call are chosen by the types of their arguments, when numba compiles a kernel: sparse or
dense rows, and the loss, which is a function of one margin or the softmax of C margins.

Data layout of all kernels:
    ptr (rows+1,) idx (nnz,) val (nnz,)     CSR, rows grouped by client; val None: every entry is 1
                                            (a third less time on one-hot data)
    None, None, val (rows, p)               dense rows, grouped by client
    target (rows,)                          labels b, or class numbers 0..C-1
    start (N+1,)                            client i holds rows start[i]..start[i+1]-1
    scale (N,)                              N w_i, the client's weight against the uniform 1/N
    loss                                    a CompiledLoss, or (C,) for the softmax of C classes
    reg, alpha                              the regulariser's code and its weight
    p                                       the number of features, which alone are regularised
A point has p*C coordinates, or (p + 1)*C with intercepts, where C = 1 but for the softmax. The
weight of feature l for class c is at l*C + c, so that the innermost loops run over adjacent
numbers, and the intercept of class c is at p*C + c.
Minibatches: rows (n, count, w) holds local row numbers. Of client i's, the first min(b, M_i) count.
w = 0 stands for every row.
Functions of a row take points and results as a matrix and the number of a row of it. They return a
margin t, and take v times its derivative, as a number. For a softmax this is the number of the row
of T (m, C) that holds the C margins, or the derivatives by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from fedpage.core.jit import compile_kernel
from fedpage.problems import losses as loss_file
from fedpage.problems.losses import DELTA, L2, NO_REG, SMOOTHED_L1, CompiledLoss

F = NDArray[np.float64]
U = NDArray[np.uint32]
I = NDArray[np.int64]
# error_model="numpy": no kernel checks its divisors, because none of them can be 0
_OPTIONS: Any = {"nogil": True, "error_model": "numpy"}
_inline: Any = njit(**_OPTIONS, inline="always")
_1, _2 = np.uint64(1), np.uint64(2)  # a signed or 32-bit sum of indices would halve the speed
_helper: Any = njit(**_OPTIONS)
_compile: Any = partial(compile_kernel, uses=(loss_file.__file__,))


def _by_type(choose: Callable[..., Any], classes: Any = None, **options: Any) -> Any:
    """Return a function that kernels compile as one of several, by the types of its arguments.

    Args:
        choose: Returns the function for the types of the arguments.
        classes: The function for a softmax, whose first argument is (C,). It is not inlined, which
            is 5 to 10 % faster on dense rows (benchmarks/softmax.py).
        options: Options of numba.
    """

    def function(*arguments: Any) -> Any:
        raise NotImplementedError("only kernels can call it")

    def register(is_for: Callable[..., bool], choose: Callable[..., Any], inline: bool) -> None:
        jit_options = _OPTIONS | options | {"forceinline": inline}
        make = overload(function, strict=False, jit_options=jit_options)
        make(lambda *args: choose(*args) if is_for(*args) else None)

    register(lambda loss, *args: not isinstance(loss, types.BaseTuple), choose, True)
    if classes is not None:
        register(lambda loss, *args: isinstance(loss, types.BaseTuple), lambda *_: classes, False)
    return function


def _by_loss(part: Literal["terms", "slope", "bend"]) -> Any:
    """Return (loss, t, b) -> a part of the loss, for which kernels are compiled."""

    def choose(loss: Any, t: Any, b: Any) -> Any:
        function = getattr(CompiledLoss.known[loss.name], part)
        return lambda loss, t, b: function(t, b)

    return _by_type(choose)


_margin_terms, _margin_slope = _by_loss("terms"), _by_loss("slope")
_margin_bend = _by_loss("bend")


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


def _margin_sparse(
    loss: Any, ptr: U, idx: U, val: F | None, row: Any, p: int, Y: F, i: int, T: F, j: int
) -> float:
    t, u = 0.0, 0.0
    e, end = np.uint64(ptr[row]), np.uint64(ptr[row + _1])
    while e + _1 < end:
        t += (1.0 if val is None else val[e]) * Y[i, idx[e]]
        u += (1.0 if val is None else val[e + _1]) * Y[i, idx[e + _1]]
        e += _2
    if e < end:
        t += (1.0 if val is None else val[e]) * Y[i, idx[e]]
    return t + u + Y[i, p] if p < Y.shape[1] else t + u


def _margin_dense(
    loss: Any, ptr: None, idx: None, val: F, row: Any, p: int, Y: F, i: int, T: F, j: int
) -> float:
    t: float = dense_product(val, row, Y, i)
    if p < Y.shape[1]:
        t += Y[i, p]
    return t


def _margin_classes(
    loss: Any, ptr: Any, idx: Any, val: Any, row: Any, p: int, Y: F, i: int, T: F, j: int
) -> int:
    C, intercepts, t, x = np.uint64(loss[0]), np.uint64(loss[0] * p), T[j], Y[i]
    for c in range(C):
        t[c] = x[intercepts + c] if len(x) > intercepts else 0.0
    e, end = _bounds(ptr, val, row)
    while e + _1 < end:
        one, two = _entry(val, row, e), _entry(val, row, e + _1)
        l, m = _feature(idx, e) * C, _feature(idx, e + _1) * C
        for c in range(C):
            t[c] += one * x[l + c] + two * x[m + c]
        e += _2
    if e < end:
        one, l = _entry(val, row, e), _feature(idx, e) * C
        for c in range(C):
            t[c] += one * x[l + c]
    return j


def _margins_sparse(
    loss: Any, ptr: U, idx: U, val: F | None, row: Any, p: int,
    Y: F, i: int, Z: F, k: int, T: F, j: int, m: int,
) -> tuple[float, float]:  # fmt: skip
    t, u = 0.0, 0.0
    for e in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
        t += (1.0 if val is None else val[e]) * Y[i, idx[e]]
        u += (1.0 if val is None else val[e]) * Z[k, idx[e]]
    return (t + Y[i, p], u + Z[k, p]) if p < Y.shape[1] else (t, u)


def _margins_apart(
    loss: Any, ptr: Any, idx: Any, val: Any, row: Any, p: int,
    Y: F, i: int, Z: F, k: int, T: F, j: int, m: int,
) -> tuple[Any, Any]:  # fmt: skip
    t = _margin(loss, ptr, idx, val, row, p, Y, i, T, j)
    return t, (t if m == j else _margin(loss, ptr, idx, val, row, p, Z, k, T, m))


def _add_sparse(
    loss: Any, ptr: U, idx: U, val: F | None, row: Any, p: int, v: float, T: F, out: F, i: int
) -> None:
    for e in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
        out[i, idx[e]] += v * (1.0 if val is None else val[e])
    if p < out.shape[1]:
        out[i, p] += v


def _add_dense(
    loss: Any, ptr: None, idx: None, val: F, row: Any, p: int, v: float, T: F, out: F, i: int
) -> None:
    for l in range(val.shape[1]):
        out[i, l] += v * val[row, l]
    if p < out.shape[1]:
        out[i, p] += v


def _add_classes(
    loss: Any, ptr: Any, idx: Any, val: Any, row: Any, p: int, v: Any, T: F, out: F, i: int
) -> None:
    C, intercepts, t, g = np.uint64(loss[0]), np.uint64(loss[0] * p), T[np.int64(v)], out[i]
    first, end = _bounds(ptr, val, row)
    for e in range(first, end):
        one, l = _entry(val, row, e), _feature(idx, e) * C
        for c in range(C):
            g[l + c] += one * t[c]
    if len(g) > intercepts:
        for c in range(C):
            g[intercepts + c] += t[c]


def _step_sparse(
    loss: Any, ptr: U, idx: U, val: F | None, row: Any, p: int,
    v: float, T: F, out: F, i: int, eta: float, y: F,
) -> None:  # fmt: skip
    for e in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
        move = v * (1.0 if val is None else val[e])
        out[i, idx[e]] += move
        y[0, idx[e]] -= eta * move
    if p < out.shape[1]:
        out[i, p] += v
        y[0, p] -= eta * v


def _step_dense(
    loss: Any, ptr: None, idx: None, val: F, row: Any, p: int,
    v: float, T: F, out: F, i: int, eta: float, y: F,
) -> None:  # fmt: skip
    for l in range(val.shape[1]):
        move = v * val[row, l]
        out[i, l] += move
        y[0, l] -= eta * move
    if p < out.shape[1]:
        out[i, p] += v
        y[0, p] -= eta * v


def _step_classes(
    loss: Any, ptr: Any, idx: Any, val: Any, row: Any, p: int,
    v: Any, T: F, out: F, i: int, eta: float, y: F,
) -> None:  # fmt: skip
    _add(loss, ptr, idx, val, row, p, v, T, out, i)
    for c in range(loss[0]):
        T[np.int64(v), c] *= -eta
    _add(loss, ptr, idx, val, row, p, v, T, y, 0)


@_helper
def _bounds(ptr: U | None, val: F | None, row: int) -> Any:
    """Return where the entries of a row begin and end; those of a dense row begin at 0."""
    if ptr is None:  # numba types this branch for sparse rows too, whose val has no shape[1]
        return np.uint64(0), np.uint64(0 if val is None else len(val.T))
    return np.uint64(ptr[row]), np.uint64(ptr[row + _1])


@_helper
def _entry(val: F | None, row: int, e: int) -> Any:
    """Return the value of entry e of a row."""
    if val is None:
        return 1.0
    return val[row, e] if val.ndim == 2 else val[e]


@_helper
def _feature(idx: U | None, e: int) -> Any:
    """Return the feature of entry e."""
    return e if idx is None else np.uint64(idx[e])


def _by_kind(sparse: Any, dense: Any, classes: Any) -> Any:
    """Return a function (loss, ptr, idx, ...) that kernels compile as one of the three.

    It does not count references to its arrays, which would take as long as the row itself
    (measured for a full gradient: 1,030 against 680 microseconds).
    """
    return _by_type(
        lambda *args: dense if isinstance(args[2], types.NoneType) else sparse, classes, _nrt=False
    )


# (loss, ptr, idx, val, row, p, Y, i, T, j) -> t = a . Y[i], plus the intercept where Y has one. A
# sparse sum is two sums side by side, so that additions need not wait for each other.
_margin = _by_kind(_margin_sparse, _margin_dense, _margin_classes)
# (..., Y, i, Z, k, T, j, m) -> a . Y[i] and a . Z[k]; m = j if the two points are the same
_margins = _by_kind(_margins_sparse, _margins_apart, _margins_apart)
# (..., v, T, out, i): out[i] += v a
_add = _by_kind(_add_sparse, _add_dense, _add_classes)
# (..., v, T, out, i, eta, y): out[i] += v a and y[0] -= eta v a
_add_and_step = _by_kind(_step_sparse, _step_dense, _step_classes)


# --- the loss of a row ----------------------------------------------------------------------------


def _by_outputs(one: Any, classes: Any) -> Any:
    """Return a function (loss, ...) that kernels compile for one margin or for C classes."""
    return _by_type(lambda *args: one, classes, _nrt=False)


@_helper
def _softmax(t: F, b: int, weight: float) -> tuple[float, float]:
    """Replace margins t (C,) by weight times the loss's derivatives, without overflow.

    With the largest margin t_k and rest = sum of exp(t_c - t_k) over the others, the loss is
    log(1 + rest) + (t_k - t_b). The derivatives are probabilities, less 1 for class b. That of a
    class b that is nearly certain is computed as minus the others', which does not cancel.

    Returns:
        rest and t_k - t_b.
    """
    k, C = 0, len(t)
    for c in range(1, C):
        if t[c] > t[k]:
            k = c
    top, gap, rest = t[k], t[k] - t[b], 0.0
    for c in range(C):
        if c != k:
            t[c] = math.exp(t[c] - top)
            rest += t[c]
    unit = weight / (1.0 + rest)
    t[k] = 1.0
    for c in range(C):
        t[c] *= unit
    t[b] = -rest * unit if b == k else t[b] - weight
    return rest, gap


def _slopes_of_one(
    loss: Any, t: float, T: F, b: float, weight: float, want_loss: bool
) -> tuple[float, float, float]:
    u, s = _margin_terms(loss, t, b) if want_loss else (0.0, 0.0)
    return u, s, weight * _margin_slope(loss, t, b)


def _slopes_of_classes(
    loss: Any, t: int, T: F, b: float, weight: float, want_loss: bool
) -> tuple[float, float, int]:
    rest, gap = _softmax(T[t], np.int64(b), weight)
    return gap, rest, t


def _change_of_one(loss: Any, t: float, u: float, T: F, b: float, weight: float) -> Any:
    return weight * (_margin_slope(loss, t, b) - _margin_slope(loss, u, b))


def _change_of_classes(loss: Any, t: int, u: int, T: F, b: float, weight: float) -> int:
    _softmax(T[t], np.int64(b), weight)
    _softmax(T[u], np.int64(b), weight)
    for c in range(loss[0]):
        T[t, c] -= T[u, c]
    return t


def _keep_one(loss: Any, t: float, T: F, kept: F, row: Any) -> None:
    kept[row] = t


def _keep_classes(loss: Any, t: int, T: F, kept: F, row: Any) -> None:
    for c in range(loss[0]):
        kept[row, c] = T[t, c]


def _value_of_one(loss: Any, kept: F, row: Any, T: F, b: float) -> Any:
    u, s = _margin_terms(loss, kept[row], b)
    return u + math.log1p(s)


def _value_of_classes(loss: Any, kept: F, row: Any, T: F, b: float) -> Any:
    for c in range(loss[0]):
        T[0, c] = kept[row, c]
    rest, gap = _softmax(T[0], np.int64(b), 1.0)
    return math.log1p(rest) + gap


# (loss) -> C
_outputs = _by_outputs(lambda loss: 1, lambda loss: loss[0])
# (loss, t, T, b, weight, want_loss) -> u and s, where the loss, if it is wanted, is u + log(1 + s),
# and v = weight * its derivative by t
_slopes = _by_outputs(_slopes_of_one, _slopes_of_classes)
# (loss, t, u, T, b, weight) -> v = weight * (the loss's derivative at t less that at u)
_change = _by_outputs(_change_of_one, _change_of_classes)
# (loss, t, T, kept, row): kept[row] = t
_keep = _by_outputs(_keep_one, _keep_classes)
# (loss, kept, row, T, b) -> the loss of the margin kept[row]
_value = _by_outputs(_value_of_one, _value_of_classes)


# --- kernels --------------------------------------------------------------------------------------


@_compile
def batch_grad(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: Any, reg: int, alpha: float,
    p: int, clients: I, rows: U, counts: I, Y: F, out: F,
) -> None:  # fmt: skip
    """Compute out[i] = mean gradient over client i's batch at Y[i]; Y (n, d), or (1, d) for all.

    counts (n,) are the rows of the batches; the gradient over none is 0.
    """
    d, C, every = Y.shape[1], _outputs(loss), rows.shape[1] == 0
    T = np.empty((1, C))
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
            t = _margin(loss, ptr, idx, val, row, p, Y, own, T, 0)
            _, _, v = _slopes(loss, t, T, target[row], weight, False)
            _add(loss, ptr, idx, val, row, p, v, T, out, i)
        if reg != NO_REG:
            for l in range(p * C):
                out[i, l] += scale[c] * _reg_slope(reg, alpha, Y[own, l])


@_compile
def local_sgd(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: Any, reg: int, alpha: float,
    p: int, clients: I, rows: U, b: int, x: F, W: F, shift: F, K: int, eta: float, mu: float,
    out: F,
) -> None:  # fmt: skip
    """Run K steps y -= eta (grad(y) - grad(w) + shift + mu (y - x)); out[i] = mean direction.

    rows (n, K, w) are batches of at most b rows. The reference points W are (n, d), (1, d) for all,
    or (0, d) for none; shift likewise. Without regulariser and proximal term a step changes only
    the features of the batch (and of the shift), but for a softmax of dense rows.
    """
    d, C, every = len(x), _outputs(loss), rows.shape[2] == 0
    has_shift, has_reference = len(shift) > 0, len(W) > 0
    every_feature = reg != NO_REG or mu != 0.0 or (idx is None and C > 1)
    y, g, slopes, T = np.empty((1, d)), np.empty((1, d)), np.empty(b), np.empty((b + 1, C))
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
                t = _margin(loss, ptr, idx, val, row, p, y, 0, T, j)
                if has_reference:
                    then, _ = _margins(loss, ptr, idx, val, row, p, W, own_w, W, own_w, T, b, b)
                    slopes[j] = _change(loss, t, then, T, target[row], weight)
                else:
                    _, _, slopes[j] = _slopes(loss, t, T, target[row], weight, False)
            if every_feature:
                for l in range(d):
                    g[0, l] = mu * (y[0, l] - x[l])
                if reg != NO_REG:
                    for l in range(p * C):
                        g[0, l] += scale[c] * _reg_slope(reg, alpha, y[0, l])
                    if has_reference:
                        for l in range(p * C):
                            g[0, l] -= scale[c] * _reg_slope(reg, alpha, W[own_w, l])
            for j in range(count):
                row = np.uint64(first + j) if every else np.uint64(first) + np.uint64(rows[i, k, j])
                if every_feature:
                    _add(loss, ptr, idx, val, row, p, slopes[j], T, g, 0)
                else:
                    _add_and_step(loss, ptr, idx, val, row, p, slopes[j], T, out, i, eta, y)
            if every_feature:
                for l in range(d):
                    out[i, l] += g[0, l]
                    y[0, l] -= eta * g[0, l]
            if has_shift:
                for l in range(d):
                    y[0, l] -= eta * shift[own_shift, l]
        for l in range(d):
            out[i, l] = out[i, l] / K + (shift[own_shift, l] if has_shift else 0.0)


@_compile
def local_page(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: Any, reg: int, alpha: float,
    p: int, clients: I, first: U, b_first: int, rest: U, b_rest: int,
    X: F, X_prev: F, G: F, K: int, eta: float, out: F,
) -> None:  # fmt: skip
    """Run K steps of the PAGE recursion (Alg. 1, lines 13-21); out[i] = mean of g_0..g_{K-1}.

    first (n, 1, w) and rest (n, K-1, w) are the batches of step 0 and of the steps after it, of at
    most b_first and b_rest rows. X, X_prev, G: (n, d), or (1, d) for all.
    """
    d, C = X.shape[1], _outputs(loss)
    y, before, g, T = np.empty((1, d)), np.empty((1, d)), np.empty((1, d)), np.empty((2, C))
    for i in range(len(clients)):
        c = clients[i]
        start_row, size = start[c], start[c + 1] - start[c]
        own_x, own_prev = (i if len(X) > 1 else 0), (i if len(X_prev) > 1 else 0)
        own_g = i if len(G) > 1 else 0
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
                now, then = _margins(loss, ptr, idx, val, row, p, y, 0, before, 0, T, 0, 1)
                v = _change(loss, now, then, T, target[row], weight)
                _add(loss, ptr, idx, val, row, p, v, T, g, 0)
            if reg != NO_REG:
                for l in range(p * C):
                    g[0, l] += scale[c] * (
                        _reg_slope(reg, alpha, y[0, l]) - _reg_slope(reg, alpha, before[0, l])
                    )
            for l in range(d):
                out[i, l] += g[0, l]
                before[0, l] = y[0, l]
                y[0, l] -= eta * g[0, l]
        for l in range(d):
            out[i, l] /= K


@_compile
def objective(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: Any, p: int,
    lo: I, hi: I, x: F, want_loss: bool, sums: F, losses: F, kept: F,
) -> None:  # fmt: skip
    """Add up losses and gradients of blocks of clients at x (d,), without the regulariser.

    For block k of clients lo[k]..hi[k]-1, sums[k] (d,) takes the sum of the gradients
    scale_i grad f_i(x), and losses[k] the sum of scale_i f_i(x), or 0 if it is not wanted. kept
    (rows,), or (rows, C) for a softmax, takes the margins of their rows, unless it is empty. The
    rows of a client share a logarithm: log(1+s) + log(1+z) = log(1 + (s + z + s z)).
    """
    X, T = x.reshape(1, -1), np.empty((1, _outputs(loss)))
    for k in range(len(lo)):
        sums[k] = 0.0
        total = 0.0
        for c in range(lo[k], hi[k]):
            weight, product = scale[c] / (start[c + 1] - start[c]), 0.0  # of all 1 + s, less 1
            for r in range(start[c], start[c + 1]):
                row = np.uint64(r)
                t = _margin(loss, ptr, idx, val, row, p, X, 0, T, 0)
                if len(kept) > 0:
                    _keep(loss, t, T, kept, row)
                u, s, v = _slopes(loss, t, T, target[row], weight, want_loss)
                if want_loss:
                    total += weight * u
                    if product > 1e8:  # the next factor is below 1e300
                        total += weight * math.log1p(product)
                        product = s
                    else:
                        product += s + product * s
                _add(loss, ptr, idx, val, row, p, v, T, sums, k)
            if want_loss:
                total += weight * math.log1p(product)
        losses[k] = total


@_compile
def margins(loss: Any, ptr: U, idx: U, val: F | None, p: int, first: int, x: F, out: F) -> None:
    """Compute out[j] = a . x (plus the intercept) for the rows from `first` on."""
    X, T = x.reshape(1, -1), np.empty((1, _outputs(loss)))
    for r in range(len(out)):
        t = _margin(loss, ptr, idx, val, np.uint64(first + r), p, X, 0, T, 0)
        _keep(loss, t, T, out, r)


@_compile
def mean_loss(loss: Any, t: F, target: F) -> float:
    """Compute the mean loss of rows with margins t, divided row by row so that no sum overflows."""
    T, total = np.empty((1, _outputs(loss))), 0.0
    for r in range(len(t)):
        total += _value(loss, t, r, T, target[r]) / len(t)
    return total


@_compile
def total(v: F) -> float:
    """Add up v (d,) in order."""
    s = 0.0
    for l in range(len(v)):
        s += v[l]
    return s


@_compile
def square(v: F) -> float:
    """Add up the squares of v (d,) in order."""
    s = 0.0
    for l in range(len(v)):
        s += v[l] * v[l]
    return s


@_compile
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
