"""The constants of the theorems, from a problem: smoothness, variance, dissimilarity, distance to the optimum.

Only smoothness is a true bound. Variance and dissimilarity are suprema over all x, which nobody can compute; what is
given here is their value at stated points, and is called an estimate wherever it is shown.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import Batch, Ints, Problem, Smoothness, Vector


class Constants(NamedTuple):
    """What plans and theorems need of a problem, estimated at x0 and at the reference solution."""

    N: int
    M: float
    """Mean rows per client."""
    d: int
    L: Smoothness
    sigma2: float
    """Variance of rows' gradients within a client, the largest over clients and over the two points."""
    G: float
    B: float
    """(G, B)-bounded dissimilarity: mean_i |grad f_i|^2 <= G^2 + B^2 |grad f|^2 at the points."""
    D0: float
    """f(x0) - f*, f* by the reference solver."""
    R2: float
    """|x0 - x*|^2, x* by the reference solver."""
    convex: bool


class Reference(NamedTuple):
    """A minimiser found by L-BFGS: exact (to 1e-9 or so) on convex problems, a stationary point on others."""

    x: Vector
    loss: float
    grad_norm: float


def reference(problem: Problem, x0: Vector | None = None, *, iterations: int = 5000) -> Reference:
    """Minimise f with scipy's L-BFGS-B from x0 (zero by default)."""
    from scipy.optimize import minimize

    start = np.zeros(problem.d) if x0 is None else np.asarray(x0, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        found = minimize(
            problem.loss, start, jac=problem.grad, method="L-BFGS-B",
            options={"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 30},
        )  # fmt: skip
        x, loss = np.asarray(found.x, dtype=np.float64), float(found.fun)
        if not math.isfinite(loss):  # its line search left float64
            x, loss = start, problem.loss(start)
        return Reference(x, loss, float(np.linalg.norm(problem.grad(x))))


class _NoDraws:
    """Whoever names all rows needs no random numbers."""

    round = 0

    def coin(self, p: float) -> bool:
        raise AssertionError

    def clients(self, N: int, S: int) -> Ints:
        raise AssertionError

    def rows(self, clients: Ints, sizes: Ints, b: int, first: int, count: int) -> Any:
        raise AssertionError


def _client_gradients(problem: Problem, x: Vector, chunk: int = 1024) -> Any:
    """Yields (clients, their full gradients (n, d)) for all clients, some at a time."""
    for first in range(0, problem.N, chunk):
        clients = np.arange(first, min(first + chunk, problem.N), dtype=np.int64)
        oracle = problem.oracle(clients, _NoDraws())
        yield clients, oracle.grad(x, oracle.batch(None))


def variance(problem: Problem, x: Vector, *, most_rows: int = 200) -> Vector:
    """(N,): mean_j |grad f_ij(x) - grad f_i(x)|^2 of each client (Assumption 3 of the paper, at x).

    Clients with more than `most_rows` rows are judged by that many of theirs, evenly spaced.
    """
    out = np.empty(problem.N)
    for clients, full in _client_gradients(problem, x):
        sizes = problem.sizes[clients]
        used = np.minimum(sizes, most_rows)
        total = np.zeros(len(clients))
        oracle = problem.oracle(clients, _NoDraws())
        for j in range(int(used.max())):
            row = np.minimum(j * sizes // used, sizes - 1).astype(np.uint32)[:, None]
            each = oracle.grad(x, Batch(row, np.ones(len(clients), dtype=np.int64)))
            total += np.where(j < used, ((each - full) ** 2).sum(axis=1), 0.0)
        out[clients] = total / used
    return out


def heterogeneity(problem: Problem, points: list[Vector]) -> tuple[float, float]:
    """(G, B) with mean_i |grad f_i(x)|^2 <= G^2 + B^2 |grad f(x)|^2 at the given points; the first should be x*.

    G^2 is the mean square at the first point, where grad f is (almost) zero; B^2 >= 1 then covers the others.
    """
    seen = []
    for x in points:
        squares = sum(float((g**2).sum()) for _, g in _client_gradients(problem, x)) / problem.N
        seen.append((squares, float((problem.grad(x) ** 2).sum())))
    G2 = max(seen[0][0] - seen[0][1], 0.0)
    B2 = max([1.0, *((square - G2) / norm for square, norm in seen if norm > 1e-12)])
    return math.sqrt(G2), math.sqrt(B2)


def local_smoothness(
    problem: Problem, x: Vector, *, iterations: int = 100, tolerance: float = 1e-6
) -> float:
    """|Hessian of f at x|, by power iteration on differences of gradients: a lower bound of L for any problem.

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
    """All constants of a problem, with x0 (zero by default) and the reference solution as the points."""
    start = np.zeros(problem.d) if x0 is None else np.asarray(x0, dtype=np.float64)
    L = problem.smoothness()
    if not math.isfinite(L.row):
        raise InputError(
            "the problem's smoothness is not finite, so there is no theory of it; rescale the features"
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
        D0=max(problem.loss(start) - best.loss, 0.0),
        R2=float(((start - best.x) ** 2).sum()),
        convex=bool(getattr(problem, "convex", False)),
    )
