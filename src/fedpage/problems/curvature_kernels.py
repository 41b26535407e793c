"""Compile losses, Hessians and Hessian-vector products of minibatches, for linear models.

The data layout and the functions of a row are those of `fedpage.problems.kernels`. A Hessian of a
client is added up in a matrix H (d, d), of which only the upper triangle is used, and is returned
row after row. The rows of a client are added in their order, eight at a time if they are dense.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numba import types

from fedpage.core.jit import compile_kernel
from fedpage.problems import kernels, losses
from fedpage.problems.kernels import (
    F,
    I,
    U,
    _add,
    _bounds,
    _by_outputs,
    _by_type,
    _entry,
    _feature,
    _helper,
    _inline,
    _margin,
    _margin_bend,
    _margins,
    _outputs,
    _slopes,
)
from fedpage.problems.losses import DELTA, L2, NO_REG, SMOOTHED_L1

_ROWS = 8
"""Dense rows that are added at once: H is then read and written an eighth as often.

With 100 features that takes 0.95 times the time of numpy's product, four rows 1.3 times
(benchmarks/hessian.py).
"""
_compile: Any = partial(compile_kernel, uses=(losses.__file__, kernels.__file__))


@_inline
def _reg_value(reg: int, alpha: float, x: float) -> float:
    """Compute the regulariser of one coordinate."""
    if reg == NO_REG:
        return 0.0
    if reg == L2:
        return 0.5 * alpha * x * x
    if reg == SMOOTHED_L1:
        return alpha * (math.sqrt(x * x + DELTA * DELTA) - DELTA)
    return alpha - alpha / (1.0 + x * x)


@_inline
def _reg_bend(reg: int, alpha: float, x: float) -> float:
    """Compute the second derivative of the regulariser by one coordinate."""
    if reg == NO_REG:
        return 0.0
    if reg == L2:
        return alpha
    if reg == SMOOTHED_L1:
        square = x * x + DELTA * DELTA
        return alpha * (DELTA / square) * (DELTA / math.sqrt(square))
    q = 1.0 / (1.0 + x * x)
    return 2.0 * alpha * q * q * (4.0 * q - 3.0)


@_helper
def _probabilities(t: F) -> None:
    """Replace margins (C,) by the probabilities of the classes, without overflow."""
    top, total = t[0], 0.0
    for c in range(1, len(t)):
        top = max(top, t[c])
    for c in range(len(t)):
        t[c] = math.exp(t[c] - top)
        total += t[c]
    for c in range(len(t)):
        t[c] /= total


def _bend_of_one(loss: Any, t: float, T: F, b: float) -> Any:
    return _margin_bend(loss, t, b)


def _bend_of_classes(loss: Any, t: int, T: F, b: float) -> float:
    _probabilities(T[t])
    return 1.0


def _product_of_one(loss: Any, t: float, u: float, T: F, b: float, weight: float) -> Any:
    return weight * _margin_bend(loss, t, b) * u


def _product_of_classes(loss: Any, t: int, u: int, T: F, b: float, weight: float) -> int:
    _probabilities(T[t])
    mean = 0.0
    for c in range(loss[0]):
        mean += T[t, c] * T[u, c]
    for c in range(loss[0]):
        T[t, c] *= weight * (T[u, c] - mean)
    return t


# (loss, t, T, b) -> the loss's second derivative at the margin t. For a softmax it is 1, and T[t]
# takes the probabilities q, which give the second derivatives diag(q) - q q'.
_bend = _by_outputs(_bend_of_one, _bend_of_classes)
# (loss, t, u, T, b, weight) -> v = weight * the loss's second derivative at t, times u
_product = _by_outputs(_product_of_one, _product_of_classes)


def _outer_dense(
    loss: Any, ptr: None, idx: None, val: F, rows: U, p: int, V: F, T: F, H: F
) -> None:
    a, b, c, d = val[rows[0]], val[rows[1]], val[rows[2]], val[rows[3]]
    e, f, g, h = val[rows[4]], val[rows[5]], val[rows[6]], val[rows[7]]
    intercept = p < len(H)
    for l in range(p):
        va, vb, vc, vd = V[0] * a[l], V[1] * b[l], V[2] * c[l], V[3] * d[l]
        ve, vf, vg, vh = V[4] * e[l], V[5] * f[l], V[6] * g[l], V[7] * h[l]
        into = H[l]
        for m in range(l, p):
            into[m] += ((va * a[m] + vb * b[m]) + (vc * c[m] + vd * d[m])) + (
                (ve * e[m] + vf * f[m]) + (vg * g[m] + vh * h[m])
            )
        if intercept:
            into[p] += ((va + vb) + (vc + vd)) + ((ve + vf) + (vg + vh))
    if intercept:
        H[p, p] += ((V[0] + V[1]) + (V[2] + V[3])) + ((V[4] + V[5]) + (V[6] + V[7]))


def _outer_sparse(
    loss: Any, ptr: U, idx: U, val: F | None, rows: U, p: int, V: F, T: F, H: F
) -> None:
    for k in range(_ROWS):
        v, row = V[k], rows[k]
        first, end = _bounds(ptr, val, row)
        for e in range(first, end):
            l, one = _feature(idx, e), v * _entry(val, row, e)
            for f in range(e, end):
                m = _feature(idx, f)
                H[min(l, m), max(l, m)] += one * _entry(val, row, f)
            if p < len(H):
                H[l, p] += one
        if p < len(H):
            H[p, p] += v


def _outer_classes(
    loss: Any, ptr: Any, idx: Any, val: Any, rows: U, p: int, V: F, T: F, H: F
) -> None:
    C = np.uint64(loss[0])
    last = np.uint64(1 if p * loss[0] < len(H) else 0)  # an intercept is a feature 1 after the last
    for k in range(_ROWS):
        if V[k] == 0.0:
            continue
        row, q = rows[k], T[k]
        first, end = _bounds(ptr, val, row)
        for e in range(first, end + last):
            l, one = (_feature(idx, e), _entry(val, row, e)) if e < end else (np.uint64(p), 1.0)
            for f in range(e, end + last):
                m, other = (
                    (_feature(idx, f), _entry(val, row, f)) if f < end else (np.uint64(p), 1.0)
                )
                weight = V[k] * one * other
                for c in range(C):
                    for o in range(C):
                        i, j = l * C + c, m * C + o
                        if l == m and o < c:
                            continue
                        bend = q[c] * ((1.0 if c == o else 0.0) - q[o])
                        H[min(i, j), max(i, j)] += weight * bend


# (loss, ptr, idx, val, rows, p, V, T, H): H += V[k] a a' for each of _ROWS rows; for a softmax the
# probabilities are in T[k]
_add_outer = _by_type(
    lambda *args: _outer_dense if isinstance(args[2], types.NoneType) else _outer_sparse,
    _outer_classes,
    _nrt=False,
)


@_compile
def batch_loss(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: Any, reg: int, alpha: float,
    p: int, clients: I, rows: U, counts: I, Y: F, out: F,
) -> None:  # fmt: skip
    """Compute out[i, 0] = mean loss over client i's batch at Y[i]; Y (n, d), or (1, d) for all."""
    every, T = rows.shape[1] == 0, np.empty((1, _outputs(loss)))
    for i in range(len(clients)):
        c, own, total = clients[i], i if len(Y) > 1 else 0, 0.0
        first, count = start[c], counts[i]
        out[i, 0] = 0.0
        if count == 0:
            continue
        for j in range(count):
            row = np.uint64(first + j) if every else np.uint64(first) + np.uint64(rows[i, j])
            t = _margin(loss, ptr, idx, val, row, p, Y, own, T, 0)
            u, s, _ = _slopes(loss, t, T, target[row], 1.0, True)
            total += (u + math.log1p(s)) / count
        for l in range(p * T.shape[1]):
            total += _reg_value(reg, alpha, Y[own, l])
        out[i, 0] = scale[c] * total


@_compile
def batch_hessian(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: Any, reg: int, alpha: float,
    p: int, clients: I, rows: U, counts: I, Y: F, out: F,
) -> None:  # fmt: skip
    """Compute out[i] = mean Hessian's triangle over client i's batch at Y[i]; Y as in batch_loss.

    counts (n,) are the rows of the batches; the Hessian over none is 0.
    """
    d, C, every = Y.shape[1], _outputs(loss), rows.shape[1] == 0
    H, T, V = np.empty((d, d)), np.empty((_ROWS, C)), np.empty(_ROWS)
    group = np.empty(_ROWS, np.uint64)
    for i in range(len(clients)):
        c, own = clients[i], i if len(Y) > 1 else 0
        first, count = start[c], counts[i]
        H[:] = 0.0
        for j in range(0, count, _ROWS):
            for k in range(_ROWS):
                number = min(j + k, count - 1)  # rows after the last have the weight 0
                row = np.uint64(first + number) if every else (
                    np.uint64(first) + np.uint64(rows[i, number])
                )  # fmt: skip
                t = _margin(loss, ptr, idx, val, row, p, Y, own, T, k)
                bend = _bend(loss, t, T, target[row])
                group[k], V[k] = row, scale[c] / count * bend if j + k < count else 0.0
            _add_outer(loss, ptr, idx, val, group, p, V, T, H)
        place = 0
        for l in range(d):
            if count > 0 and l < p * C:
                H[l, l] += scale[c] * _reg_bend(reg, alpha, Y[own, l])
            for m in range(l, d):
                out[i, place] = H[l, m]
                place += 1


@_compile
def batch_product(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: Any, reg: int, alpha: float,
    p: int, clients: I, rows: U, counts: I, Y: F, V: F, out: F,
) -> None:  # fmt: skip
    """Compute out[i] = mean Hessian over client i's batch at Y[i], times V[i]; V as Y."""
    d, C, every = Y.shape[1], _outputs(loss), rows.shape[1] == 0
    T = np.empty((2, C))
    for i in range(len(clients)):
        c, own, other = clients[i], i if len(Y) > 1 else 0, i if len(V) > 1 else 0
        first, count = start[c], counts[i]
        for l in range(d):
            out[i, l] = 0.0
        if count == 0:
            continue
        weight = scale[c] / count
        for j in range(count):
            row = np.uint64(first + j) if every else np.uint64(first) + np.uint64(rows[i, j])
            t, u = _margins(loss, ptr, idx, val, row, p, Y, own, V, other, T, 0, 1)
            v = _product(loss, t, u, T, target[row], weight)
            _add(loss, ptr, idx, val, row, p, v, T, out, i)
        for l in range(p * C):
            out[i, l] += scale[c] * _reg_bend(reg, alpha, Y[own, l]) * V[other, l]


@_compile
def quadratic_hessian(A: F, scale: F, clients: I, counts: I, out: F) -> None:
    """Compute out[i] = the triangle of scale_i A_i, or 0 for a batch without rows."""
    d = A.shape[1]
    for i in range(len(clients)):
        weight = scale[clients[i]] if counts[i] > 0 else 0.0
        place = 0
        for l in range(d):
            for m in range(l, d):
                out[i, place] = weight * A[clients[i], l, m]
                place += 1


@_compile
def quadratic_product(A: F, scale: F, clients: I, counts: I, V: F, out: F) -> None:
    """Compute out[i] = scale_i A_i V[i], or 0 for a batch without rows; V (n, d), or (1, d)."""
    for i in range(len(clients)):
        weight = scale[clients[i]] if counts[i] > 0 else 0.0
        v = V[i if len(V) > 1 else 0]
        for l in range(len(v)):
            total = 0.0
            for m in range(len(v)):
                total += A[clients[i], l, m] * v[m]
            out[i, l] = weight * total


@_compile
def row_products(a: F, b: F, out: F) -> None:
    """Compute out[i, 0] = a[i] . b[i] in order; b (n, d), or (1, d) for all."""
    for i in range(len(a)):
        other, total = b[i if len(b) > 1 else 0], 0.0
        for l in range(len(other)):
            total += a[i, l] * other[l]
        out[i, 0] = total
