"""Steps from a symmetric matrix that is given by its triangle, for Newton's method.

Every sum has one fixed order, as in `fedpage.core.secant`, so the bits are the same on any machine
and number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from fedpage.core.jit import compile_kernel
from fedpage.core.secant import _dot
from fedpage.core.types import Vector, triangle_size

FLOOR = 1e-8
"""Eigenvalues below this fraction of the largest are replaced by it, in units of the diagonal."""
_EQUILIBRATIONS = 8
_SWEEPS = 30
_PRECISION = 1e-15


def zero_triangle(x: Vector) -> Vector:
    """Return the triangle of a matrix of zeros for a model x (d,)."""
    return np.zeros(triangle_size(len(x)))


@compile_kernel
def unpack(triangle: Vector) -> Vector:
    """Return the symmetric matrix (d, d) of a triangle (d(d+1)/2,).

    >>> unpack(np.array([1.0, 2.0, 3.0])).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    d = round((math.sqrt(8 * len(triangle) + 1) - 1) / 2)
    out = np.empty((d, d))
    place = 0
    for i in range(d):
        for m in range(i, d):
            out[i, m] = out[m, i] = triangle[place]
            place += 1
    return out


@compile_kernel
def _units(H: Vector) -> Vector:
    """Return s > 0 for which no row of s H s has an entry above 1, and most have one near 1.

    If H is positive definite, they are diag(H)^-1/2. A row of zeros has the unit 0.
    """
    d = len(H)
    s = np.ones(d)
    for i in range(d):
        if H[i, i] != 0.0:
            s[i] = 1.0 / math.sqrt(abs(H[i, i]))
    for _ in range(_EQUILIBRATIONS):
        largest = np.zeros(d)
        for i in range(d):
            for m in range(d):
                largest[i] = max(largest[i], abs(s[i] * H[i, m] * s[m]))
        for i in range(d):
            s[i] = s[i] / math.sqrt(largest[i]) if largest[i] > 0.0 else 0.0
    return s


@compile_kernel
def _inverse_factor(A: Vector) -> Vector:
    """Return the inverse of A's Cholesky factor, or no rows if A is not positive definite."""
    d = len(A)
    L, inverse = np.zeros((d, d)), np.zeros((d, d))
    for i in range(d):
        for j in range(i):
            L[i, j] = (A[i, j] - _dot(L[i, :j], L[j, :j])) / L[j, j]
        square = A[i, i] - _dot(L[i, :i], L[i, :i])
        if not square > 0.0:
            return np.zeros((0, d))
        L[i, i] = math.sqrt(square)
        for k in range(i):  # row i of the inverse, by the rows above
            weight = L[i, k] / L[i, i]
            for j in range(k + 1):
                inverse[i, j] -= weight * inverse[k, j]
        inverse[i, i] = 1.0 / L[i, i]
    return inverse


@compile_kernel
def _orthogonal_rows(A: Vector) -> tuple[Vector, Vector]:
    """Return B = V' A with orthogonal rows, and V', by Jacobi's rotations of rows of A.

    The lengths of B's rows are the absolute eigenvalues of a symmetric A, and |A| is
    V diag(lengths) V'.
    """
    d = len(A)
    B, V = A.copy(), np.eye(d)
    least = 0.0
    for i in range(d):
        least = max(least, _dot(B[i], B[i]))
    least *= _PRECISION * _PRECISION
    for _ in range(_SWEEPS):
        is_done = True
        for i in range(d):
            for m in range(i + 1, d):
                a, b, c = _dot(B[i], B[i]), _dot(B[m], B[m]), _dot(B[i], B[m])
                if c * c <= _PRECISION * _PRECISION * a * b or a <= least or b <= least:
                    continue
                is_done = False
                zeta = (b - a) / (2.0 * c)
                t = 1.0 / (abs(zeta) + math.sqrt(1.0 + zeta * zeta))
                t = -t if zeta < 0.0 else t
                cos = 1.0 / math.sqrt(1.0 + t * t)
                sin = cos * t
                for M in (B, V):
                    for k in range(d):
                        p, q = M[i, k], M[m, k]
                        M[i, k], M[m, k] = cos * p - sin * q, sin * p + cos * q
        if is_done:
            break
    return B, V


@compile_kernel
def newton_step(triangle: Vector, g: Vector) -> Vector:
    """Return |H|^-1 g for a symmetric H, which may be indefinite or singular.

    |H| has the absolute values of H's eigenvalues in units s in which H has about a unit diagonal,
    and at least `FLOOR` times the largest of them. So g . step > 0 for every g but 0, and the step
    does not depend on the units of the coordinates.

    Args:
        triangle: The upper triangle of H, (d(d+1)/2,).
        g: A gradient, (d,).

    >>> newton_step(np.array([2.0, 0.0, -4.0]), np.array([2.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    d, H = len(g), unpack(triangle)
    s = _units(H)
    A, r, out = np.empty((d, d)), np.empty(d), np.zeros(d)
    for i in range(d):
        r[i] = s[i] * g[i]
        for m in range(d):
            A[i, m] = s[i] * H[i, m] * s[m]
        if s[i] == 0.0:
            A[i, i] = 1.0
    inverse = _inverse_factor(A)
    trace = 0.0  # of A^-1, which is at least 1/the least eigenvalue
    for i in range(len(inverse)):
        trace += _dot(inverse[i], inverse[i])
    if len(inverse) > 0 and trace * FLOOR * d < 1.0:  # no eigenvalue is at the floor
        for i in range(d):
            weight = _dot(inverse[i], r)
            for m in range(i + 1):
                out[m] += weight * inverse[i, m]
    else:
        B, V = _orthogonal_rows(A)
        lengths = np.empty(d)
        for i in range(d):
            lengths[i] = math.sqrt(_dot(B[i], B[i]))
        least = FLOOR * lengths.max()
        for i in range(d):
            weight = _dot(V[i], r) / max(lengths[i], least)
            for m in range(d):
                out[m] += weight * V[i, m]
    for i in range(d):
        out[i] *= s[i]
    return out


def minimise_cubic(t: float, f0: float, slope0: float, f1: float, slope1: float) -> float:
    """Return where the cubic with these values and slopes at 0 and t is least; 0 if nowhere.

    >>> minimise_cubic(2.0, 0.0, -2.0, 0.0, 2.0)
    1.0
    """
    a = slope0 + slope1 - 3.0 * (f1 - f0) / t
    square = a * a - slope0 * slope1
    if not 0.0 <= square < math.inf:
        return 0.0
    root = math.sqrt(square)
    below = slope1 - slope0 + 2.0 * root
    return t - t * (slope1 + root - a) / below if below > 0.0 else 0.0
