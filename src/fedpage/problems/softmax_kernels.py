"""Compile the loops over rows of softmax regression.

The kernels have the names, arguments and data layout of those in `kernels.py`, so that a linear
model can use either file. The differences:
    C (in place of loss)    the number of classes
    target (rows,)          class numbers 0..C-1
    a point x               has p*C coordinates, or (p + 1)*C with intercepts. The weight of feature
                            l for class c is at l*C + c, so that the innermost loops run over
                            adjacent numbers, and the intercept of class c is at p*C + c.
    margins                 (rows, C)

The regularisers' derivative is repeated from `kernels.py`, because numba's disk cache does not
notice when a function in another file changes. A test compares the two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from fedpage.core.jit import compile_kernel
from fedpage.problems.kernels import DELTA, L2, NO_REG, SMOOTHED_L1, F, I, U

_helper: Any = njit(nogil=True, error_model="numpy")
_1, _2 = np.uint64(1), np.uint64(2)


@_helper
def _reg_slope(reg: int, alpha: float, x: float) -> float:
    """Compute the derivative of the regulariser by one coordinate."""
    if reg == L2:
        return alpha * x
    if reg == SMOOTHED_L1:
        return alpha * x / math.sqrt(x * x + DELTA * DELTA)
    q = 1.0 + x * x
    return 2.0 * alpha * x / (q * q)


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


@_helper
def _row_margins(ptr: U, idx: U, val: F | None, row: int, classes: int, p: int, x: F, t: F) -> None:
    """Compute t[c] = a.x_c, plus the intercept if x has one; two entries of the row at a time."""
    C, intercepts = np.uint64(classes), np.uint64(classes * p)
    for c in range(C):
        t[c] = x[intercepts + c] if len(x) > intercepts else 0.0
    e, end = _bounds(ptr, val, row)
    while e + _1 < end:
        one, two = _entry(val, row, e), _entry(val, row, e + _1)
        i, j = _feature(idx, e) * C, _feature(idx, e + _1) * C
        for c in range(C):
            t[c] += one * x[i + c] + two * x[j + c]
        e += _2
    if e < end:
        one, i = _entry(val, row, e), _feature(idx, e) * C
        for c in range(C):
            t[c] += one * x[i + c]


@_helper
def _add_row(ptr: U, idx: U, val: F | None, row: int, classes: int, p: int, v: F, g: F) -> None:
    """Add a row's gradient to g (d,), given its derivatives v (C,) by the margins."""
    C, intercepts = np.uint64(classes), np.uint64(classes * p)
    first, end = _bounds(ptr, val, row)
    for e in range(first, end):
        one, i = _entry(val, row, e), _feature(idx, e) * C
        for c in range(C):
            g[i + c] += one * v[c]
    if len(g) > intercepts:
        for c in range(C):
            g[intercepts + c] += v[c]


@_helper
def _slopes(t: F, b: int, weight: float) -> tuple[float, float]:
    """Replace margins t (C,) by weight times the loss's derivatives, without overflow.

    With the largest margin t_k and rest = sum of exp(t_c - t_k) over the others, the loss is
    log(1 + rest) + (t_k - t_b). The derivatives are probabilities, less 1 for class b. That of a
    class b that is nearly certain is computed as minus the others', which does not cancel.

    Returns:
        rest and t_k - t_b.
    """
    k = 0
    for c in range(1, len(t)):
        if t[c] > t[k]:
            k = c
    top, gap, rest = t[k], t[k] - t[b], 0.0
    for c in range(len(t)):
        if c != k:
            t[c] = math.exp(t[c] - top)
            rest += t[c]
    unit = weight / (1.0 + rest)
    t[k] = 1.0
    for c in range(len(t)):
        t[c] *= unit
    t[b] = -rest * unit if b == k else t[b] - weight
    return rest, gap


@compile_kernel
def batch_grad(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F,
    C: int, reg: int, alpha: float, p: int, clients: I, rows: U, counts: I, Y: F, out: F,
) -> None:  # fmt: skip
    """Compute out[i] = mean gradient over client i's batch at Y[i]; Y (n, d), or (1, d) for all.

    counts (n,) are the rows of the batches; the gradient over none is 0.
    """
    d, every = Y.shape[1], rows.shape[1] == 0
    v = np.empty(C)
    for i in range(len(clients)):
        c = clients[i]
        y = Y[i if len(Y) > 1 else 0]
        first, count = start[c], counts[i]
        for l in range(d):
            out[i, l] = 0.0
        if count == 0:
            continue
        for j in range(count):
            row = np.uint64(first) + np.uint64(j if every else rows[i, j])
            _row_margins(ptr, idx, val, row, C, p, y, v)
            _slopes(v, np.int64(target[row]), scale[c] / count)
            _add_row(ptr, idx, val, row, C, p, v, out[i])
        if reg != NO_REG:
            for l in range(p * C):
                out[i, l] += scale[c] * _reg_slope(reg, alpha, y[l])


@compile_kernel
def local_sgd(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F,
    C: int, reg: int, alpha: float, p: int, clients: I,
    rows: U, b: int, x: F, W: F, shift: F, K: int, eta: float, mu: float, out: F,
) -> None:  # fmt: skip
    """Run K steps y -= eta (grad(y) - grad(w) + shift + mu (y - x)); out[i] = mean direction.

    rows (n, K, w) are batches of at most b rows. The reference points W are (n, d), (1, d) for all,
    or (0, d) for none; shift likewise. On sparse rows without regulariser and proximal term a step
    changes only the features of the batch (and of the shift).
    """
    d, every, has_shift, has_reference = len(x), rows.shape[2] == 0, len(shift) > 0, len(W) > 0
    dense = idx is None or reg != NO_REG or mu != 0.0
    y, g, then, slopes = np.empty(d), np.empty(d), np.empty(C), np.empty((b, C))
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
                row = np.uint64(first) + np.uint64(j if every else rows[i, k, j])
                label, v = np.int64(target[row]), slopes[j]
                _row_margins(ptr, idx, val, row, C, p, y, v)
                _slopes(v, label, weight)
                if has_reference:
                    _row_margins(ptr, idx, val, row, C, p, W[own_w], then)
                    _slopes(then, label, weight)
                    for m in range(C):
                        v[m] -= then[m]
            if dense:
                for l in range(d):
                    g[l] = mu * (y[l] - x[l])
                if reg != NO_REG:
                    for l in range(p * C):
                        g[l] += scale[c] * _reg_slope(reg, alpha, y[l])
                    if has_reference:
                        for l in range(p * C):
                            g[l] -= scale[c] * _reg_slope(reg, alpha, W[own_w, l])
            for j in range(count):
                row = np.uint64(first) + np.uint64(j if every else rows[i, k, j])
                v = slopes[j]
                if dense:
                    _add_row(ptr, idx, val, row, C, p, v, g)
                else:
                    _add_row(ptr, idx, val, row, C, p, v, out[i])
                    for m in range(C):
                        v[m] *= -eta
                    _add_row(ptr, idx, val, row, C, p, v, y)
            if dense:
                for l in range(d):
                    out[i, l] += g[l]
                    y[l] -= eta * g[l]
            if has_shift:
                for l in range(d):
                    y[l] -= eta * shift[own_shift, l]
        for l in range(d):
            out[i, l] = out[i, l] / K + (shift[own_shift, l] if has_shift else 0.0)


@compile_kernel
def local_page(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F,
    C: int, reg: int, alpha: float, p: int, clients: I,
    first: U, b_first: int, rest: U, b_rest: int,
    X: F, X_prev: F, G: F, K: int, eta: float, out: F,
) -> None:  # fmt: skip
    """Run K steps of the PAGE recursion (Alg. 1, lines 13-21); out[i] = mean of g_0..g_{K-1}.

    first (n, 1, w) and rest (n, K-1, w) are the batches of step 0 and of the steps after it, of at
    most b_first and b_rest rows. X, X_prev, G: (n, d), or (1, d) for all.
    """
    d = X.shape[1]
    y, before, g = np.empty(d), np.empty(d), np.empty(d)
    now, then = np.empty(C), np.empty(C)
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
                    local = np.uint64(j if first.shape[2] == 0 else first[i, 0, j])
                else:
                    local = np.uint64(j if rest.shape[2] == 0 else rest[i, k - 1, j])
                row = np.uint64(start_row) + local
                label = np.int64(target[row])
                _row_margins(ptr, idx, val, row, C, p, y, now)
                _slopes(now, label, weight)
                _row_margins(ptr, idx, val, row, C, p, before, then)
                _slopes(then, label, weight)
                for m in range(C):
                    now[m] -= then[m]
                _add_row(ptr, idx, val, row, C, p, now, g)
            if reg != NO_REG:
                for l in range(p * C):
                    g[l] += scale[c] * (
                        _reg_slope(reg, alpha, y[l]) - _reg_slope(reg, alpha, before[l])
                    )
            for l in range(d):
                out[i, l] += g[l]
                before[l] = y[l]
                y[l] -= eta * g[l]
        for l in range(d):
            out[i, l] /= K


@compile_kernel
def objective(
    ptr: U, idx: U, val: F | None, target: F, start: I, scale: F,
    C: int, p: int, lo: int, hi: int, x: F, want_loss: bool, out: F, kept: F,
) -> float:  # fmt: skip
    """Add the gradients scale_i grad f_i(x) of clients lo..hi-1 to out, without the regulariser.

    kept (rows, C) takes the margins of their rows, unless it is (0, C). Returns the sum of their
    losses, or 0 if it is not wanted.
    """
    total, v = 0.0, np.empty(C)
    for c in range(lo, hi):
        weight = scale[c] / (start[c + 1] - start[c])
        for r in range(start[c], start[c + 1]):
            row = np.uint64(r)
            _row_margins(ptr, idx, val, row, C, p, x, v)
            if len(kept) > 0:
                kept[row] = v
            rest, gap = _slopes(v, np.int64(target[row]), weight)
            if want_loss:
                total += weight * (math.log1p(rest) + gap)
            _add_row(ptr, idx, val, row, C, p, v, out)
    return total


@compile_kernel
def margins(ptr: U, idx: U, val: F | None, p: int, first: int, x: F, out: F) -> None:
    """Compute out[j] = the margins (C,) of the rows from `first` on."""
    for r in range(len(out)):
        _row_margins(ptr, idx, val, np.uint64(first + r), out.shape[1], p, x, out[r])


@compile_kernel
def mean_loss(C: int, t: F, target: F) -> float:
    """Compute the mean loss of rows with margins t (rows, C), divided row by row."""
    total, v = 0.0, np.empty(C)
    for r in range(len(t)):
        for c in range(C):
            v[c] = t[r, c]
        rest, gap = _slopes(v, np.int64(target[r]), 1.0)
        total += (math.log1p(rest) + gap) / len(t)
    return total
