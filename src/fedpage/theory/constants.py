"""Estimate the theorems' constants from a problem: smoothness, variance, dissimilarity, distance.

Only the smoothness and the strong convexity are true bounds. Variance and dissimilarity are
suprema over all x, which cannot be computed. The functions here return their values at given
points, which are shown as estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedpage.core.capabilities import dtype_of, is_convex
from fedpage.core.errors import InputError
from fedpage.core.random import RoundDraws, uniforms
from fedpage.core.types import Batch, Ints, Oracle, Problem, Smoothness, Vector
from fedpage.problems.base import power_of_two
from fedpage.problems.linear import LinearModel
from fedpage.problems.quadratic import Quadratic
from fedpage.problems.reference import reference as reference

_DENSE = 3e7
"""N d^3 up to which all second derivatives of all clients are computed: a tenth of a second."""


class Constants(NamedTuple):
    """The constants of a problem: estimated at x0 and at the reference solution, or assumed."""

    N: int
    """Clients."""
    M: float
    """Mean rows per client."""
    d: int
    """Parameters."""
    L: Smoothness = Smoothness(row=1.0, client=1.0, average=1.0, whole=1.0)
    """Lipschitz constants of the gradients."""
    sigma2: float = 1.0
    """Variance of the rows' gradients within a client: the largest over clients and both points."""
    G: float = 1.0
    """The constant part of the dissimilarity: mean_i |grad f_i|^2 <= G^2 + B^2 |grad f|^2."""
    B: float = 1.0
    """The relative part of the dissimilarity."""
    delta: float = math.inf
    """Second-order dissimilarity: mean_i |(H_i - H) u|^2 <= delta^2 |u|^2, H_i the Hessians."""
    D0: float = 1.0
    """f(x0) - f*, with f* from the reference solver."""
    R2: float = 1.0
    """|x0 - x*|^2, with x* from the reference solver."""
    convex: bool = False
    """Whether f is known to be convex."""
    mu: float = 0.0
    """Strong convexity of every f_i, and so of f, or 0 if it is not known."""


def _oracles(problem: Problem, most: int = 1024) -> Iterator[tuple[Ints, Oracle]]:
    """Yield client numbers (n,) and their oracle, for at most this many clients at a time."""
    for first in range(0, problem.N, most):
        clients = np.arange(first, min(first + most, problem.N), dtype=np.int64)
        yield clients, problem.oracle(clients, RoundDraws(0, 0))


def variance(problem: Problem, x: Vector, *, most_rows: int = 200) -> Vector:
    """Compute each client's variance of row gradients at x (Assumption 3 of the paper).

    Args:
        problem: The problem.
        x: (d,) the point.
        most_rows: The most rows of a client that are used, evenly spaced.

    Returns:
        (N,) mean_j |grad f_ij(x) - grad f_i(x)|^2.
    """
    out = np.empty(problem.N)
    for clients, oracle in _oracles(problem):
        full = oracle.grad(x, oracle.batch(None))
        sizes = problem.sizes[clients]
        used = np.minimum(sizes, most_rows)
        total = np.zeros(len(clients))
        for j in range(int(used.max())):
            row = np.minimum(j * sizes // used, sizes - 1).astype(np.uint32)[:, None]
            each = oracle.grad(x, Batch(row, np.ones(len(clients), dtype=np.int64)))
            total += np.where(j < used, ((each - full) ** 2).sum(axis=1), 0.0)
        out[clients] = total / used
    return out


def heterogeneity(problem: Problem, points: list[Vector]) -> tuple[float, float]:
    """Estimate (G, B) with mean_i |grad f_i(x)|^2 <= G^2 + B^2 |grad f(x)|^2 at given points.

    G^2 is the mean square at the first point, where grad f is almost zero. B^2 >= 1 then covers
    the other points.

    Args:
        problem: The problem.
        points: (d,) each; the first should be x*.

    Returns:
        G and B.
    """
    norms = []
    for x in points:
        gradients = (oracle.grad(x, oracle.batch(None)) for _, oracle in _oracles(problem))
        squares = sum(float((g**2).sum()) for g in gradients) / problem.N
        norms.append((squares, float((problem.grad(x) ** 2).sum())))
    G2 = max(norms[0][0] - norms[0][1], 0.0)
    B2 = max([1.0, *((square - G2) / norm for square, norm in norms if norm > 1e-12)])
    return math.sqrt(G2), math.sqrt(B2)


def dissimilarity(
    problem: Problem, points: list[Vector], *, iterations: int = 100, tolerance: float = 1e-4
) -> float:
    """Compute delta, the average second-order dissimilarity of the clients.

    It is the smallest delta with mean_i |grad h_i(x) - grad h_i(y)|^2 <= delta^2 |x - y|^2 for all
    x and y, where h_i = f_i - f (Khaled and Jin 2023, Assumption 1, which S-DANE uses too). With
    Hessians: delta^2 is the supremum over x of the largest eigenvalue of mean_i (H_i(x) - H(x))^2.

    The Hessians of a quadratic are constant, so its delta is exact. Otherwise the largest value at
    the given points is returned, an estimate that is never above delta but for rounding: from
    differences of gradients in all directions where N d^3 is small, else from power iterations.
    The average smoothness is an upper bound.

    Args:
        problem: The problem.
        points: (d,) each; x0 and x* are a good choice.
        iterations: The most power iterations at a point.
        tolerance: Stop them when the estimate changes by less than this factor.

    Returns:
        delta, or inf if the gradients overflow.

    >>> import fedpage as fp
    >>> A = np.array([[[1.0]], [[2.0]], [[6.0]]])  # deviations -2, -1 and 3
    >>> round(dissimilarity(fp.Quadratic(A, np.zeros((3, 1, 1))), []) ** 2, 9)
    4.666666667
    """
    if isinstance(problem, Quadratic):
        unit = power_of_two(problem.A)
        A = problem._scale[:, None, None] * (problem.A / unit)
        deviations = A - A.mean(axis=0)
        squares = np.einsum("nij,njk->ik", deviations, deviations) / problem.N
        return unit * math.sqrt(max(float(np.linalg.eigvalsh(squares)[-1]), 0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        if problem.N * problem.d**3 <= _DENSE:
            each = [_dense_dissimilarity(problem, x) for x in points]
        else:
            each = [_power_dissimilarity(problem, x, iterations, tolerance) for x in points]
    largest = max(each, default=0.0)
    return largest if all(map(math.isfinite, each)) else math.inf


def _difference(problem: Problem, x: Vector) -> float:
    """Choose the step of central differences of gradients."""
    root: float = float(np.finfo(dtype_of(problem)).eps) ** (1 / 3)
    return root * (1.0 + float(np.linalg.norm(x)))


def _dense_dissimilarity(problem: Problem, x: Vector) -> float:
    """Compute the root of the largest eigenvalue of mean_i (H_i - H)^2 at x."""
    d, h = problem.d, _difference(problem, x)
    directions = h * np.eye(d, dtype=x.dtype)
    H = np.array([problem.grad(x + e) - problem.grad(x - e) for e in directions])
    squares = np.zeros((d, d))
    for _, oracle in _oracles(problem, max(1, (1 << 22) // (d * d))):
        rows = oracle.batch(None)
        deviations = [oracle.grad(x + e, rows) - oracle.grad(x - e, rows) for e in directions]
        D = (np.stack(deviations, axis=1) - H) / (2 * h)  # (n, d, d): rows H_i e - H e
        flat = D.transpose(0, 2, 1).reshape(-1, d)
        squares += flat.T @ flat
    if not np.isfinite(squares).all():
        return math.inf
    return math.sqrt(max(float(np.linalg.eigvalsh(squares / problem.N)[-1]), 0.0))


def _power_dissimilarity(problem: Problem, x: Vector, iterations: int, tolerance: float) -> float:
    """Estimate it by power iterations: (H_i - H)^2 v and H_i (H_i - H) v have the same mean."""
    h = _difference(problem, x)
    v = uniforms(0, 30, size=problem.d).astype(x.dtype) - 0.5
    top = 0.0
    for _ in range(iterations):
        v = v / np.linalg.norm(v)
        e = h * v
        Hv = (problem.grad(x + e) - problem.grad(x - e)) / (2 * h)
        total, square = np.zeros(problem.d), 0.0
        for _, oracle in _oracles(problem):
            rows = oracle.batch(None)
            u = (oracle.grad(x + e, rows) - oracle.grad(x - e, rows)) / (2 * h) - Hv
            sizes = np.linalg.norm(u, axis=1, keepdims=True)
            square += float((sizes**2).sum())
            steps = h * u / np.where(sizes > 0, sizes, 1.0)
            change = oracle.grad(x + steps, rows) - oracle.grad(x - steps, rows)
            total += (sizes * change / (2 * h)).sum(axis=0)
        size = math.sqrt(square / problem.N) if math.isfinite(square) else math.inf
        if size == math.inf or not total.any():
            return size
        if abs(size - top) <= tolerance * size:
            return max(size, top)
        top, v = max(size, top), total
    return top


def strong_convexity(problem: Problem) -> float:
    """Compute a mu for which every f_i, and so f, is mu-strongly convex.

    A convex loss with an l2 regulariser of all parameters (no intercept) has its weight
    alpha; a quadratic has the smallest eigenvalue of the clients' matrices.

    Args:
        problem: The problem.

    Returns:
        mu, or 0 if it is not known.

    >>> import fedpage as fp
    >>> strong_convexity(fp.Quadratic(np.array([[[1.0]], [[2.0]]]), np.zeros((2, 1, 1))))
    1.0
    """
    if isinstance(problem, Quadratic):
        smallest = np.linalg.eigvalsh(problem.A)[:, 0] * problem._scale
        return max(float(smallest.min()), 0.0)
    if isinstance(problem, LinearModel) and problem.is_strongly_convex:
        return float(problem.alpha * problem._scale.min())
    return 0.0


def local_smoothness(
    problem: Problem, x: Vector, *, iterations: int = 100, tolerance: float = 1e-6
) -> float:
    """Estimate the norm of f's Hessian at x, which is a lower bound of L for any problem.

    Args:
        problem: The problem.
        x: (d,) the point.
        iterations: The most power iterations on differences of gradients.
        tolerance: Stop when the estimate changes by less than this factor.

    Returns:
        The norm, or inf if the gradients overflow.

    >>> import fedpage as fp
    >>> problem = fp.Quadratic.random(3, 2, 4)
    >>> abs(local_smoothness(problem, problem.x_star) / problem.smoothness().whole - 1) < 1e-3
    True
    """
    v = np.linspace(1.0, 2.0, problem.d)
    v /= np.linalg.norm(v)
    h = 1e-5 * (1.0 + float(np.linalg.norm(x)))
    top = 0.0
    for _ in range(iterations):
        with np.errstate(over="ignore", invalid="ignore"):
            product = (problem.grad(x + h * v) - problem.grad(x - h * v)) / (2 * h)
            size = float(np.linalg.norm(product))
        if size == 0.0 or not math.isfinite(size):
            return 0.0 if size == 0.0 else math.inf
        v = product / size
        if abs(size - top) <= tolerance * size:
            return size
        top = size
    return top


def estimate(problem: Problem, x0: Vector | None = None) -> Constants:
    """Estimate all constants of a problem at x0 and at the reference solution.

    Args:
        problem: The problem.
        x0: (d,) the start. If None, zero.

    Returns:
        The constants.

    Raises:
        InputError: The smoothness is not finite.
    """
    start = np.zeros(problem.d) if x0 is None else np.asarray(x0, dtype=np.float64)
    L = problem.smoothness()
    if not math.isfinite(L.row):
        raise InputError(
            "the problem's smoothness is not finite, so the theorems do not apply; "
            "rescale the features"
        )
    best = reference(problem, start)
    sigma2 = max(float(variance(problem, x).max()) for x in (start, best.x))
    G, B = heterogeneity(problem, [best.x, start])
    return Constants(
        N=problem.N,
        M=float(problem.sizes.mean()),
        d=problem.d,
        L=L,
        sigma2=sigma2,
        G=G,
        B=B,
        delta=dissimilarity(problem, [best.x, start]),
        D0=max(problem.loss(start) - best.loss, 0.0),
        R2=float(((start - best.x) ** 2).sum()),
        convex=is_convex(problem),
        mu=strong_convexity(problem),
    )
