"""The reference solution of a problem: a minimiser to about machine precision, kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpage._version import __version__
from fedpage.core.capabilities import is_convex
from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.core.types import Problem, Vector
from fedpage.data import registry
from fedpage.problems.base import norm
from fedpage.problems.quadratic import Quadratic

_CONVERGED = 1e-9
"""A gradient norm below this share of that at zero is zero but for rounding and conditioning."""
_FIRST_ITERATIONS = 1000
"""Iterations of L-BFGS before Newton's method takes over."""
_NEWTON_STEPS = 20
_DENSE = 1000
"""The largest d for which all second derivatives are computed."""
_LEAST_CURVATURE = 1e-12
"""Smaller eigenvalues, as shares of the largest one, are errors of differences."""
_FORMAT = 2


class Reference(NamedTuple):
    """A solution by L-BFGS: a minimiser (to about 1e-9) of a convex f, else a stationary point."""

    x: Vector
    """(d,) the solution."""
    loss: float
    """f there."""
    grad_norm: float
    """|grad f| there."""
    is_minimiser: bool = False
    """Whether f is convex and its gradient there is zero but for rounding."""


def reference(problem: Problem, x0: Vector | None = None, *, iterations: int = 5000) -> Reference:
    """Minimise f with scipy's L-BFGS-B.

    Args:
        problem: The problem.
        x0: (d,) the start; zero by default.
        iterations: The most iterations.

    Returns:
        The solution.
    """
    from scipy.optimize import minimize

    start = np.zeros(problem.d) if x0 is None else np.asarray(x0, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        found = minimize(
            problem.loss,
            start,
            jac=problem.grad,
            method="L-BFGS-B",
            options={
                "maxiter": iterations,
                "maxfun": 2 * iterations,
                "ftol": 1e-16,
                "gtol": 1e-10,
                "maxcor": 30,
            },
        )
        x, loss = np.asarray(found.x, dtype=np.float64), float(found.fun)
        if not math.isfinite(loss):  # the line search overflowed
            x, loss = start, problem.loss(start)
        return Reference(x, loss, float(np.linalg.norm(problem.grad(x))))


def reference_solution(problem: Problem) -> Reference:
    """Find the point and the value that f_minus_fstar and distance_to_optimum compare with.

    A quadratic has a closed form. Other problems are minimised from zero by L-BFGS, and convex ones
    then by Newton's method, until rounding hides any progress. For a problem that is not convex the
    result is the stationary point that L-BFGS finds, so a method may well end below it. If there
    are several minimisers, it is one of them.

    It is computed once per problem. That of a linear model is also kept in the user's cache
    directory, under a digest of the objective, the data and the partition.

    Args:
        problem: The problem.

    Returns:
        The solution, its loss, its gradient norm, and whether it is a minimiser.

    Raises:
        InputError: The problem is a network, or a quadratic without a minimiser.

    >>> import fedpage as fp
    >>> best = reference_solution(fp.Quadratic.random(3, 2, 4))
    >>> best.is_minimiser, best.grad_norm < 1e-14
    (True, True)
    """
    known = getattr(problem, "_reference", None)
    if isinstance(known, Reference):
        return known
    convex = is_convex(problem)
    if hasattr(problem, "x0") and not convex:
        raise InputError(
            f"reference_solution: {problem!r} has a start of its own, as networks have, and no "
            "solution that does not depend on it; compare losses instead"
        )
    found = _solve_quadratic(problem) if isinstance(problem, Quadratic) else _read(problem, convex)
    if found is None:
        found = _solve(problem, convex)
        _write(problem, found)
    with contextlib.suppress(AttributeError):  # of a problem with slots, which is solved again
        problem._reference = found  # type: ignore[attr-defined]
    return found


def _solve_quadratic(problem: Quadratic) -> Reference:
    if float(np.linalg.eigvalsh(problem.mean_curvature)[0]) <= 0.0:
        raise InputError(
            "reference_solution: the mean of the quadratic's A_i is not positive definite, so "
            "there is no single minimiser"
        )
    return _evaluate(problem, problem.x_star, True)


def _evaluate(problem: Problem, x: Vector, convex: bool) -> Reference:
    """Evaluate a solution at x."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = norm(problem.grad(x))
        scale = norm(problem.grad(np.zeros(problem.d))) or 1.0
        return Reference(x, problem.loss(x), size, convex and size <= _CONVERGED * scale)


def _solve(problem: Problem, convex: bool) -> Reference:
    if not convex:
        return _evaluate(problem, reference(problem).x, False)
    x = reference(problem, iterations=_FIRST_ITERATIONS).x
    with np.errstate(all="ignore"):
        found = _evaluate(problem, _newton(problem, x), True)
        if not found.is_minimiser:  # it was too far away for Newton's method
            found = _evaluate(problem, _newton(problem, reference(problem, found.x).x), True)
    return found


def _newton(problem: Problem, x: Vector) -> Vector:
    """Improve a minimiser by Newton steps while the gradient becomes smaller."""
    gradient = problem.grad(x)
    size = norm(gradient)
    for _ in range(_NEWTON_STEPS):
        choose_step = _dense_step if problem.d <= _DENSE else _cg_step
        candidate = x + choose_step(_Hessian(problem, x), gradient)
        new_gradient = problem.grad(candidate)
        new_size = norm(new_gradient)
        if not new_size < size:
            break
        has_stalled = new_size > 0.9 * size
        x, gradient, size = candidate, new_gradient, new_size
        if has_stalled or size == 0.0:
            break
    return x


class _Hessian:
    """The second derivative of f at x, times vectors, by central differences of gradients."""

    def __init__(self, problem: Problem, x: Vector) -> None:
        self.problem, self.x = problem, x
        self.step = float(np.finfo(np.float64).eps) ** (1 / 3) * (1.0 + norm(x))

    def __call__(self, v: Vector) -> Vector:
        size = norm(v)
        if size == 0.0:
            return np.zeros(self.problem.d)
        e = (self.step / size) * v
        difference = self.problem.grad(self.x + e) - self.problem.grad(self.x - e)
        return np.asarray(difference * (size / (2 * self.step)))


def _dense_step(hessian: _Hessian, gradient: Vector) -> Vector:
    """Solve H p = -gradient, where the eigenvalues of H are at least as large as their errors."""
    H = np.array([hessian(e) for e in np.eye(len(gradient))])
    if not np.isfinite(H).all():
        return np.zeros_like(gradient)
    values, vectors = np.linalg.eigh(0.5 * (H + H.T))
    values = np.maximum(values, _LEAST_CURVATURE * values[-1])
    return np.asarray(-vectors @ ((vectors.T @ gradient) / values))


def _cg_step(hessian: _Hessian, gradient: Vector) -> Vector:
    """Solve H p = -gradient by conjugate gradients."""
    from scipy.sparse.linalg import LinearOperator, cg

    d = len(gradient)
    operator = LinearOperator((d, d), matvec=hessian, dtype=np.float64)
    step, _ = cg(operator, -gradient, rtol=1e-6, maxiter=500)
    return np.asarray(step, dtype=np.float64)


def _file(problem: Problem) -> Path | None:
    """Return where the solution is kept; None for a problem without a digest of its data."""
    about = problem.describe()
    if "data_digest" not in about or "partition_digest" not in about:
        return None
    apart = ("data", "data_note", "partition", "metrics", "held_out")
    key = {name: value for name, value in about.items() if name not in apart}
    text = json.dumps([_FORMAT, __version__, key], sort_keys=True, default=str)
    name = hashlib.sha256(text.encode()).hexdigest()
    return registry.derived_dir("reference") / f"{name}.npy"


def _read(problem: Problem, convex: bool) -> Reference | None:
    """Read a kept solution; None unless it is intact and as good as it was."""
    with contextlib.suppress(Exception):  # a damaged file only means solving again
        path = _file(problem)
        if path is None:
            return None
        table = np.load(path, allow_pickle=False)
        x, size = np.array(table[:-1]), float(table[-1])
        if x.shape != (problem.d,) or x.dtype != np.float64:
            return None
        found = _evaluate(problem, x, convex)
        # a damaged file, other code or another processor gives another norm
        return found if found.grad_norm == size else None
    return None


def _write(problem: Problem, found: Reference) -> None:
    with contextlib.suppress(Exception):  # a home that cannot be written only costs time
        path = _file(problem)
        if path is None:
            return
        buffer = io.BytesIO()
        np.save(buffer, np.append(found.x, found.grad_norm))
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, buffer.getvalue())
