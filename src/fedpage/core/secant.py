"""Metrics from secant pairs: K = delta I + the sum of z z^T over pairs, and solves with K/n.

Every sum has one fixed order, which no library of linear algebra promises; so the bits are the
same on any machine and number of threads. Loops run along rows, so that compilers vectorise them
without changing that order.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np

from fedpage.core.jit import compile_kernel
from fedpage.core.types import Vector

FULL_UP_TO = 1_000
"""Parameters up to which "auto" is the full metric: P takes 8 MB and a round some milliseconds."""
WINDOW_UP_TO = 1_000_000
"""Parameters up to which "auto" is a window: 30 pairs take 240 MB."""


@compile_kernel
def _dot(a: Vector, b: Vector) -> float:
    """Add products in four lanes, in a fixed order."""
    n = len(a)
    whole = n - n % 4
    lane0 = lane1 = lane2 = lane3 = 0.0
    for j in range(0, whole, 4):
        lane0 += np.float64(a[j]) * np.float64(b[j])
        lane1 += np.float64(a[j + 1]) * np.float64(b[j + 1])
        lane2 += np.float64(a[j + 2]) * np.float64(b[j + 2])
        lane3 += np.float64(a[j + 3]) * np.float64(b[j + 3])
    total = (lane0 + lane1) + (lane2 + lane3)
    for j in range(whole, n):
        total += np.float64(a[j]) * np.float64(b[j])
    return total


@compile_kernel
def _multiply(P: Vector, v: Vector, factor: float) -> Vector:
    """Return factor P v for a symmetric P, adding rows of P one after the other."""
    out = np.zeros(len(v))
    for i in range(len(v)):
        weight = factor * v[i]
        for j in range(len(v)):
            out[j] += weight * P[i, j]
    return out


@compile_kernel
def _sherman_morrison(P: Vector, z: Vector) -> Vector:
    """Return (P^-1 + z z^T)^-1 for a symmetric P."""
    u = _multiply(P, z, 1.0)
    factor = 1.0 / (1.0 + _dot(z, u))
    out = np.empty_like(P)
    for i in range(len(z)):
        for j in range(len(z)):
            out[i, j] = P[i, j] - factor * (u[i] * u[j])
    return out


@compile_kernel
def _cholesky_solve(A: Vector, r: Vector) -> Vector:
    """Solve A u = r for a positive definite A, which is overwritten by its factor."""
    n = len(r)
    u = r.copy()
    for i in range(n):
        for j in range(i):
            A[i, j] = (A[i, j] - _dot(A[i, :j], A[j, :j])) / A[j, j]
        A[i, i] = math.sqrt(A[i, i] - _dot(A[i, :i], A[i, :i]))
        u[i] = (u[i] - _dot(A[i, :i], u[:i])) / A[i, i]
    for i in range(n - 1, -1, -1):
        u[i] /= A[i, i]
        for j in range(i):
            u[j] -= A[i, j] * u[i]
    return u


@compile_kernel
def _woodbury(Z: Vector, G: Vector, delta: float, v: Vector, factor: float) -> Vector:
    """Return factor (delta I + Z^T Z)^-1 v, where G = Z Z^T."""
    k = len(Z)
    A = G[:k, :k].copy()
    r = np.empty(k)
    for i in range(k):
        A[i, i] += delta
        r[i] = _dot(Z[i], v)
    u = _cholesky_solve(A, r)
    out = np.empty(len(v))
    for j in range(len(v)):
        out[j] = v[j]
    for i in range(k):
        for j in range(len(v)):
            out[j] -= u[i] * Z[i, j]
    for j in range(len(v)):
        out[j] *= factor / delta
    return out


def dot(a: Vector, b: Vector) -> float:
    """Return a.b in float64, added in a fixed order.

    >>> dot(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    11.0
    """
    if not isinstance(a, np.ndarray):  # a device adds in another order
        return float((a.double() * b.double()).sum())
    return _dot(a, b)


def norm(a: Vector) -> float:
    """Return |a|."""
    return math.sqrt(_dot(a, a))


class NoMetric(NamedTuple):
    """K/n = I."""

    def begin(self, delta: float) -> NoMetric:
        """Return the metric: it has no ridge."""
        return self

    def add(self, z: Vector) -> NoMetric:
        """Return the metric: it does not learn."""
        return self

    def solve(self, v: Vector) -> Vector:
        """Return v."""
        return v


class FullMetric(NamedTuple):
    """K by its inverse."""

    P: Vector
    """K^-1, (d, d) float64."""
    n: int
    """Pairs in K."""

    def begin(self, delta: float) -> FullMetric:
        """Return the metric K = delta I without pairs."""
        return FullMetric(np.eye(len(self.P)) / delta, 0)

    def add(self, z: Vector) -> FullMetric:
        """Return the metric of K + z z^T, in O(d^2)."""
        return FullMetric(_sherman_morrison(self.P, z.astype(np.float64)), self.n + 1)

    def solve(self, v: Vector) -> Vector:
        """Return (K/n)^-1 v."""
        return _multiply(self.P, v, float(max(self.n, 1))).astype(v.dtype)


class WindowMetric(NamedTuple):
    """K = delta I + the sum of z z^T over the last m pairs, by Woodbury's identity."""

    Z: Vector
    """The last pairs' z, a row each, (m, d); pair i is in row i mod m."""
    G: Vector
    """Z Z^T, (m, m) float64."""
    delta: float
    n: int
    """Pairs seen."""

    def begin(self, delta: float) -> WindowMetric:
        """Return the metric K = delta I without pairs."""
        return WindowMetric(0.0 * self.Z, 0.0 * self.G, delta, 0)

    def add(self, z: Vector) -> WindowMetric:
        """Return the metric with z, which replaces the oldest pair of a full window."""
        Z, G, row = self.Z.copy(), self.G.copy(), self.n % len(self.Z)
        Z[row] = z
        for i in range(len(Z)):
            G[row, i] = G[i, row] = _dot(Z[i], z)
        return WindowMetric(Z, G, self.delta, self.n + 1)

    def solve(self, v: Vector) -> Vector:
        """Return (K/k)^-1 v in O(k d), where k is the number of pairs in the window."""
        k = min(self.n, len(self.Z))
        found = _woodbury(self.Z[:k], self.G, self.delta, v, float(max(k, 1)))
        return found.astype(v.dtype)


SecantMetric: TypeAlias = NoMetric | FullMetric | WindowMetric
"""A metric from secant pairs. Before the first pair K = I."""


def new_metric(name: str, window: int, x0: Vector) -> SecantMetric:
    """Return a metric without pairs.

    Args:
        name: "full", "window", "none", or "auto", which chooses by the number of parameters.
        window: The number of pairs in a window, m.
        x0: A model, (d,).
    """
    d = len(x0)
    if name == "auto":
        name = "full" if d <= FULL_UP_TO else "window" if d <= WINDOW_UP_TO else "none"
    if name == "full":
        return FullMetric(np.eye(d), 0)
    if name == "window":
        return WindowMetric(np.zeros((window, d), x0.dtype), np.zeros((window, window)), 1.0, 0)
    return NoMetric()
