"""The compiled loops: losses of one row, gradients of minibatches, whole local walks, and the full objective.

Every kernel works on one client after the other and never mixes them, so a client's row of the result does not depend
on who else was called. Index and pointer arrays are unsigned: that makes the sparse loops 2.5 times faster. The loop
over a row's entries (two sums side by side, so that additions need not wait for each other) stands in each kernel
again on purpose: handing arrays to a helper makes numba count references, which costs as much as the row itself
(measured: 1,030 against 680 microseconds for a full gradient). All kernels stand in this one file, because numba's
disk cache does not notice when a function in another file changes.

Data layout, shared by all kernels (a NamedTuple would be unpacked field by field at each call just the same):
    ptr (rows+1,) idx (nnz,) val (nnz,)     CSR, rows grouped by client; val None: every entry is 1, and numba
                                            compiles a kernel that never asks (a third less time on one-hot data)
    target (rows,)                          labels b
    start (N+1,)                            client i holds rows start[i]..start[i+1]-1
    scale (N,)                              N w_i, the client's weight against the uniform 1/N
    loss, reg, alpha                        which f_ij, below
Minibatches: rows (n, count, w) local row numbers, of which client i's first min(b, M_i) count; w = 0: every row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

ROBUST, LOGISTIC, SQUARES = 0, 1, 2
NO_REG, L2, NONCONVEX = 0, 1, 2

F = NDArray[np.float64]
U = NDArray[np.uint32]
I = NDArray[np.int64]
_fast: Any = njit(
    cache=True, nogil=True, error_model="numpy"
)  # no check of divisors: none can be 0 here
_1, _2 = (
    np.uint64(1),
    np.uint64(2),
)  # unsigned all the way: a signed or 32-bit sum would halve the speed
_inline: Any = njit(cache=True, nogil=True, error_model="numpy", inline="always")


@_inline
def _slope(loss: int, t: float, b: float) -> float:
    """Derivative of a row's loss by its margin t = a.x."""
    if loss == ROBUST:
        r = t - b
        return r / (1.0 + 0.5 * r * r)  # of log(1 + r^2/2)
    if loss == LOGISTIC:
        return -b / (
            1.0 + math.exp(b * t)
        )  # of log(1 + exp(-b t)); exp may be inf, the quotient is then 0
    return t - b  # of (t - b)^2/2


@_inline
def _value(loss: int, t: float, b: float) -> float:
    """A row's loss at the margin t = a.x."""
    if loss == ROBUST:
        r = t - b
        if abs(r) > 1e150:  # r^2 would overflow, perhaps r has; the loss is at most 1,420
            return 2.0 * math.log(abs(0.5 * t - 0.5 * b)) + math.log(2.0)
        return math.log1p(0.5 * r * r)
    if loss == LOGISTIC:
        z = b * t
        if z > 0.0:
            return math.log1p(math.exp(-z))
        return math.log1p(math.exp(z)) - z
    return 0.5 * (t - b) * (t - b)


@_inline
def _bend(reg: int, alpha: float, x: float) -> float:
    """Derivative of the regulariser by one coordinate."""
    if reg == NO_REG:
        return 0.0
    if reg == L2:
        return alpha * x  # of alpha x^2/2
    q = 1.0 + x * x
    return 2.0 * alpha * x / (q * q)  # of alpha x^2/(1+x^2)


@_fast
def batch_grad(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int, reg: int, alpha: float,
    clients: I, rows: U, b: int, Y: F, out: F,
) -> None:  # fmt: skip
    """out[i] = mean gradient over client i's batch rows[i] at Y[i] (n, d), or at Y[0] for all if Y is (1, d)."""
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
                out[i, l] += scale[c] * _bend(reg, alpha, Y[own, l])


@_fast
def local_sgd(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int, reg: int, alpha: float,
    clients: I, rows: U, b: int, x: F, W: F, shift: F, K: int, eta: float, mu: float, out: F,
) -> None:  # fmt: skip
    """K steps y -= eta (grad(y) - grad(w) + shift + mu (y - x)) at each client; out[i] = mean direction.

    rows (n, K, w), of batches of at most b rows. W, the reference points: (n, d), (1, d) for all, or (0, d) for none;
    shift likewise. Without regulariser and proximal term a step touches the batch's own features only (and the
    shift's).
    """
    d, every, shifted, anchored = len(x), rows.shape[2] == 0, len(shift) > 0, len(W) > 0
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
                if anchored:
                    then = 0.0
                    for m in range(np.uint64(ptr[row]), end):
                        then += (1.0 if val is None else val[m]) * W[own_w, idx[m]]
                    v -= _slope(loss, then, target[row])
                slopes[j] = weight * v
            if dense:
                for l in range(d):
                    g[l] = scale[c] * _bend(reg, alpha, y[l]) + mu * (y[l] - x[l])
                if anchored:
                    for l in range(d):
                        g[l] -= scale[c] * _bend(reg, alpha, W[own_w, l])
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
            if shifted:
                for l in range(d):
                    y[l] -= eta * shift[own_shift, l]
        for l in range(d):
            out[i, l] = out[i, l] / K + (shift[own_shift, l] if shifted else 0.0)


@_fast
def local_page(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int, reg: int, alpha: float,
    clients: I, first: U, b_first: int, rest: U, b_rest: int,
    X: F, X_prev: F, G: F, K: int, eta: float, out: F,
) -> None:  # fmt: skip
    """K steps of the PAGE recursion at each client (Alg. 1, lines 13-21); out[i] = mean of g_0..g_{K-1}.

    first (n, 1, w), rest (n, K-1, w): the batches of step 0 and of the steps after it, of at most b_first, b_rest
    rows. X, X_prev, G: (n, d), or (1, d) for all.
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
                    g[l] += scale[c] * (_bend(reg, alpha, y[l]) - _bend(reg, alpha, before[l]))
            for l in range(d):
                out[i, l] += g[l]
                before[l] = y[l]
                y[l] -= eta * g[l]
        for l in range(d):
            out[i, l] /= K


@_fast
def objective(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F, loss: int,
    lo: int, hi: int, x: F, want_loss: bool, out: F,
) -> float:  # fmt: skip
    """out += sum over clients lo..hi-1 of scale_i grad f_i(x), without regulariser; returns the sum of their losses."""
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
def total(v: F) -> float:
    """The sum of v (d,), one after the other."""
    s = 0.0
    for l in range(len(v)):
        s += v[l]
    return s


@_fast
def quadratic_grad(A: F, linear: F, scale: F, clients: I, rows: U, counts: I, Y: F, out: F) -> None:
    """out[i] = A_i y_i - mean over the batch of linear[i, j]; A (N, d, d), linear (N, M, d), rows (n, w)."""
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
def products(a: Any, b: Any, out: Any) -> None:
    """out[s] = a[s] b[s] for s = 0..n-1; a (n, m, k), b (n, k, p) with contiguous rows, out (n, m, p).

    Every number is added up over k in order, wherever it stands, so its bits depend on its row and column alone. Four
    rows of a at a time, because a row of b is then read once for them.
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
