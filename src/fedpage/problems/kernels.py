"""Compile the loops over rows: losses, minibatch gradients, local steps, the objective.

Every kernel works on one client after the other and never mixes them, so a client's row of the
result does not depend on which other clients were called. Index and pointer arrays are unsigned:
the sparse loops are then 2.5 times faster. The loop over a row's entries (two sums side by side, so
that additions need not wait for each other) is repeated in each kernel, because numba counts
references to arrays that are passed to a helper, which takes as long as the row itself (measured
for a full gradient: 1,030 against 680 microseconds). All kernels and losses are in this file,
because numba's disk cache does not notice when a function in another file changes.

To add a loss, declare it below with `@declare_loss`. `LinearModel`, the table of objectives and the
command line read the declaration.

Data layout of all kernels:
    ptr (rows+1,) idx (nnz,) val (nnz,)     CSR, rows grouped by client; val None: every entry is 1
                                            (a third less time on one-hot data)
    target (rows,)                          labels b
    start (N+1,)                            client i holds rows start[i]..start[i+1]-1
    scale (N,)                              N w_i, the client's weight against the uniform 1/N
    loss, reg, alpha                        codes of the loss and the regulariser, and its weight
Minibatches: rows (n, count, w) holds local row numbers. Of client i's, the first min(b, M_i) count.
w = 0 stands for every row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedpage.core.registry import Registry

F = NDArray[np.float64]
U = NDArray[np.uint32]
I = NDArray[np.int64]
Floats = NDArray[np.float32] | NDArray[np.float64]
RowFunction = Callable[[float, float], float]
ChosenFunction = Callable[[int, float, float], float]
# error_model="numpy": no kernel checks its divisors, because none of them can be 0
_fast: Any = njit(cache=True, nogil=True, error_model="numpy")
_inline = njit(nogil=True, error_model="numpy", inline="always")
_1, _2 = np.uint64(1), np.uint64(2)  # a signed or 32-bit sum of indices would halve the speed

Reg = Literal["none", "l2", "nonconvex"]


class Regulariser(NamedTuple):
    """Describe a regulariser: its code in the kernels, and what theory needs of it."""

    code: int
    curvature: float
    """Bound of the second derivative by a coordinate, at alpha = 1."""
    convex: bool


NO_REG, L2, NONCONVEX = 0, 1, 2
REGULARISERS: dict[Reg, Regulariser] = {
    "none": Regulariser(NO_REG, 0.0, True),
    "l2": Regulariser(L2, 1.0, True),
    "nonconvex": Regulariser(NONCONVEX, 2.0, False),
}


class Loss(NamedTuple):
    """Describe a row's loss as a function of its margin t = a.x and its target b."""

    name: str
    title: str
    """The objective's name in records and messages."""
    code: int
    """Its number in the kernels."""
    value: RowFunction
    slope: RowFunction
    """Derivative of the value by t."""
    curvature: float
    """Bound of the second derivative by t."""
    convex: bool
    needs_labels: bool
    """Whether targets must be -1/+1."""
    regularisers: tuple[Reg, ...]
    """The regularisers that the command line offers with this loss, beside "none"."""


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
    regularisers: tuple[Reg, ...] = (),
) -> Callable[[type[RowLoss]], type[RowLoss]]:
    """Register a class with functions `value(t, b)` and `slope(t, b)` as a loss; see `Loss`."""

    def decorate(cls: type[RowLoss]) -> type[RowLoss]:
        value, slope = _inline(cls.value), _inline(cls.slope)
        numbers = (curvature, convex, needs_labels, regularisers)
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


@declare_loss(
    "logistic",
    "logistic regression",
    curvature=0.25,
    convex=True,
    needs_labels=True,
    regularisers=("l2", "nonconvex"),
)
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


@declare_loss("squares", "least squares", curvature=1.0, convex=True, regularisers=("l2",))
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


def _choose(functions: list[RowFunction]) -> Callable[[int, float, float], float]:
    """Compile (code, t, b) -> functions[code](t, b), which numba inlines as a chain of ifs."""
    *others, function = functions

    def last(code: int, t: float, b: float) -> float:
        return function(t, b)

    chosen: ChosenFunction = _inline(last)
    for number in reversed(range(len(others))):
        chosen = _link(number, others[number], chosen)
    return chosen


def _link(number: int, function: RowFunction, otherwise: ChosenFunction) -> ChosenFunction:
    def link(code: int, t: float, b: float) -> float:
        if code == number:
            return function(t, b)
        return otherwise(code, t, b)

    chosen: ChosenFunction = _inline(link)
    return chosen


_value = _choose([loss.value for loss in LOSSES.values()])
_slope = _choose([loss.slope for loss in LOSSES.values()])


@_inline
def _reg_slope(reg: int, alpha: float, x: float) -> float:
    """Compute the derivative of the regulariser by one coordinate."""
    if reg == NO_REG:
        return 0.0
    if reg == L2:
        return alpha * x  # of alpha x^2/2
    q = 1.0 + x * x
    return 2.0 * alpha * x / (q * q)  # of alpha x^2/(1+x^2)


@_fast
def batch_grad(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int, reg: int, alpha: float,
    p: int, clients: I, rows: U, b: int, Y: F, out: F,
) -> None:  # fmt: skip
    """Compute out[i] = mean gradient over client i's batch at Y[i]; Y (n, d), or (1, d) for all."""
    d, every = Y.shape[1], rows.shape[1] == 0
    for i in range(len(clients)):
        c = clients[i]
        own = i if len(Y) > 1 else 0
        first, count = start[c], min(b, start[c + 1] - start[c])
        weight = scale[c] / count
        for l in range(d):
            out[i, l] = 0.0
        for j in range(count):
            row = np.uint64(first + j) if every else np.uint64(first) + np.uint64(rows[i, j])
            t, u = 0.0, 0.0
            e, end = np.uint64(ptr[row]), np.uint64(ptr[row + _1])
            while e + _1 < end:
                t += (1.0 if val is None else val[e]) * Y[own, idx[e]]
                u += (1.0 if val is None else val[e + _1]) * Y[own, idx[e + _1]]
                e += _2
            if e < end:
                t += (1.0 if val is None else val[e]) * Y[own, idx[e]]
            v = weight * _slope(loss, t + u, target[row])
            for m in range(np.uint64(ptr[row]), end):
                out[i, idx[m]] += v * (1.0 if val is None else val[m])
        if reg != NO_REG:
            for l in range(d):
                out[i, l] += scale[c] * _reg_slope(reg, alpha, Y[own, l])


@_fast
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
    dense = reg != NO_REG or mu != 0.0
    y, g, slopes = np.empty(d), np.empty(d), np.empty(b)
    for i in range(len(clients)):
        c = clients[i]
        first, count = start[c], min(b, start[c + 1] - start[c])
        weight = scale[c] / count
        own_w, own_shift = (i if len(W) > 1 else 0), (i if len(shift) > 1 else 0)
        for l in range(d):
            y[l] = x[l]
            out[i, l] = 0.0
        for k in range(K):
            for j in range(count):
                row = np.uint64(first + j) if every else np.uint64(first) + np.uint64(rows[i, k, j])
                t, u = 0.0, 0.0
                e, end = np.uint64(ptr[row]), np.uint64(ptr[row + _1])
                while e + _1 < end:
                    t += (1.0 if val is None else val[e]) * y[idx[e]]
                    u += (1.0 if val is None else val[e + _1]) * y[idx[e + _1]]
                    e += _2
                if e < end:
                    t += (1.0 if val is None else val[e]) * y[idx[e]]
                v = _slope(loss, t + u, target[row])
                if has_reference:
                    then = 0.0
                    for m in range(np.uint64(ptr[row]), end):
                        then += (1.0 if val is None else val[m]) * W[own_w, idx[m]]
                    v -= _slope(loss, then, target[row])
                slopes[j] = weight * v
            if dense:
                for l in range(d):
                    g[l] = scale[c] * _reg_slope(reg, alpha, y[l]) + mu * (y[l] - x[l])
                if has_reference:
                    for l in range(d):
                        g[l] -= scale[c] * _reg_slope(reg, alpha, W[own_w, l])
            for j in range(count):
                row = np.uint64(first + j) if every else np.uint64(first) + np.uint64(rows[i, k, j])
                v = slopes[j]
                if dense:
                    for m in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
                        g[idx[m]] += v * (1.0 if val is None else val[m])
                else:
                    for m in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
                        move = v * (1.0 if val is None else val[m])
                        out[i, idx[m]] += move
                        y[idx[m]] -= eta * move
            if dense:
                for l in range(d):
                    out[i, l] += g[l]
                    y[l] -= eta * g[l]
            if has_shift:
                for l in range(d):
                    y[l] -= eta * shift[own_shift, l]
        for l in range(d):
            out[i, l] = out[i, l] / K + (shift[own_shift, l] if has_shift else 0.0)


@_fast
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
    y, before, g = np.empty(d), np.empty(d), np.empty(d)
    for i in range(len(clients)):
        c = clients[i]
        start_row, size = start[c], start[c + 1] - start[c]
        own_x, own_prev, own_g = (
            (i if len(X) > 1 else 0),
            (i if len(X_prev) > 1 else 0),
            (i if len(G) > 1 else 0),
        )
        for l in range(d):
            y[l] = X[own_x, l]
            before[l] = X_prev[own_prev, l]
            g[l] = G[own_g, l]
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
                now, then = 0.0, 0.0
                for e in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
                    now += (1.0 if val is None else val[e]) * y[idx[e]]
                    then += (1.0 if val is None else val[e]) * before[idx[e]]
                v = weight * (_slope(loss, now, target[row]) - _slope(loss, then, target[row]))
                for m in range(np.uint64(ptr[row]), np.uint64(ptr[row + _1])):
                    g[idx[m]] += v * (1.0 if val is None else val[m])
            if reg != NO_REG:
                for l in range(d):
                    g[l] += scale[c] * (
                        _reg_slope(reg, alpha, y[l]) - _reg_slope(reg, alpha, before[l])
                    )
            for l in range(d):
                out[i, l] += g[l]
                before[l] = y[l]
                y[l] -= eta * g[l]
        for l in range(d):
            out[i, l] /= K


@_fast
def objective(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int, p: int,
    lo: int, hi: int, x: F, want_loss: bool, out: F,
) -> float:  # fmt: skip
    """Add the gradients scale_i grad f_i(x) of clients lo..hi-1 to out, without the regulariser.

    Returns the sum of their losses, or 0 if it is not wanted.
    """
    total = 0.0
    for c in range(lo, hi):
        weight = scale[c] / (start[c + 1] - start[c])
        for r in range(start[c], start[c + 1]):
            row = np.uint64(r)
            t, u = 0.0, 0.0
            e, end = np.uint64(ptr[row]), np.uint64(ptr[row + _1])
            while e + _1 < end:
                t += (1.0 if val is None else val[e]) * x[idx[e]]
                u += (1.0 if val is None else val[e + _1]) * x[idx[e + _1]]
                e += _2
            if e < end:
                t += (1.0 if val is None else val[e]) * x[idx[e]]
            if want_loss:
                total += weight * _value(loss, t + u, target[row])
            v = weight * _slope(loss, t + u, target[row])
            for m in range(np.uint64(ptr[row]), end):
                out[idx[m]] += v * (1.0 if val is None else val[m])
    return total


@_fast
def margins(ptr: U, idx: U, val: F | None, p: int, first: int, x: F, out: F) -> None:
    """Compute out[j] = a_j . x for every row."""
    for r in range(len(out)):
        row = np.uint64(first + r)
        t, u = 0.0, 0.0
        e, end = np.uint64(ptr[row]), np.uint64(ptr[row + _1])
        while e + _1 < end:
            t += (1.0 if val is None else val[e]) * x[idx[e]]
            u += (1.0 if val is None else val[e + _1]) * x[idx[e + _1]]
            e += _2
        if e < end:
            t += (1.0 if val is None else val[e]) * x[idx[e]]
        out[r] = t + u


@_fast
def mean_loss(loss: int, t: F, target: F) -> float:
    """Compute the mean loss of rows with margins t, divided row by row so that no sum overflows."""
    total = 0.0
    for r in range(len(t)):
        total += _value(loss, t[r], target[r]) / len(t)
    return total


@_fast
def total(v: F) -> float:
    """Add up v (d,) in order."""
    s = 0.0
    for l in range(len(v)):
        s += v[l]
    return s


@_fast
def quadratic_grad(A: F, linear: F, scale: F, clients: I, rows: U, counts: I, Y: F, out: F) -> None:
    """Compute out[i] = A_i y_i - batch mean of linear[i]; A (N, d, d), linear (N, M, d)."""
    d = Y.shape[1]
    every = rows.shape[1] == 0
    for i in range(len(clients)):
        c = clients[i]
        y = Y[i if len(Y) > 1 else 0]
        for l in range(d):
            s = 0.0
            for m in range(d):
                s += A[c, l, m] * y[m]
            mean = 0.0
            for j in range(counts[i]):
                mean += linear[c, j if every else rows[i, j], l]
            out[i, l] = scale[c] * (s - mean / counts[i])


@_fast
def products(a: Floats, b: Floats, out: Floats) -> None:
    """Compute out[s] = a[s] b[s]; a (n, m, k), b (n, k, p) with contiguous rows, out (n, m, p).

    Every entry is added up over k in order, so its bits depend on its row and column alone. Four
    rows of a are done at a time, because a row of b is then read once for them.
    """
    n, m, k = a.shape
    p = b.shape[2]
    for s in range(n):
        i = 0
        while i + 4 <= m:
            for j in range(p):
                out[s, i, j] = 0.0
                out[s, i + 1, j] = 0.0
                out[s, i + 2, j] = 0.0
                out[s, i + 3, j] = 0.0
            for l in range(k):
                a0, a1, a2, a3 = a[s, i, l], a[s, i + 1, l], a[s, i + 2, l], a[s, i + 3, l]
                for j in range(p):
                    value = b[s, l, j]
                    out[s, i, j] += a0 * value
                    out[s, i + 1, j] += a1 * value
                    out[s, i + 2, j] += a2 * value
                    out[s, i + 3, j] += a3 * value
            i += 4
        while i < m:
            for j in range(p):
                out[s, i, j] = 0.0
            for l in range(k):
                a0 = a[s, i, l]
                for j in range(p):
                    out[s, i, j] += a0 * b[s, l, j]
            i += 1
