"""Check every loss with every regulariser against formulas in numpy and optima of scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from support import Unfused

import fedpage as fp
from fedpage.core.local_steps import local_page, local_sgd, local_svrg
from fedpage.core.random import RoundDraws

n, p, ALPHA = 60, 4, 0.05
rng = np.random.default_rng(7)
A = rng.normal(size=(n, p)) * (rng.random(size=(n, p)) < 0.7) + 0.2
LEVEL = A @ [1.0, -0.5, 0.3, 0.0] + 0.7 + 0.5 * rng.normal(size=n)

LOSSES = {
    "logistic": lambda t, b: (np.logaddexp(0, -b * t), -b / (1 + np.exp(b * t))),
    "squared-hinge": lambda t, b: (
        np.maximum(0, 1 - b * t) ** 2,
        -2 * b * np.maximum(0, 1 - b * t),
    ),
    "squares": lambda t, b: ((t - b) ** 2 / 2, t - b),
    "huber": lambda t, b: (
        np.where(abs(t - b) <= 1, (t - b) ** 2 / 2, abs(t - b) - 0.5),
        np.clip(t - b, -1, 1),
    ),
    "robust": lambda t, b: (np.log1p((t - b) ** 2 / 2), (t - b) / (1 + (t - b) ** 2 / 2)),
    "poisson": lambda t, b: (np.exp(t) - b * t, np.exp(t) - b),
}
REGULARISERS = {
    "none": lambda w: (0.0, 0 * w),
    "l2": lambda w: (w @ w / 2, w),
    "nonconvex": lambda w: ((w**2 / (1 + w**2)).sum(), 2 * w / (1 + w**2) ** 2),
    "smoothed-l1": lambda w: (
        (np.sqrt(w**2 + 1e-4) - 0.01).sum(),
        w / np.sqrt(w**2 + 1e-4),
    ),
}
every = pytest.mark.parametrize(
    ("loss", "reg"), [(loss, reg) for loss in LOSSES for reg in REGULARISERS]
)


def targets(loss):
    """Return labels as a user has them, and the numbers of the formula."""
    if loss in ("logistic", "squared-hinge"):
        return np.where(LEVEL > 0.5, "yes", "no"), np.where(LEVEL > 0.5, 1.0, -1.0)
    if loss == "poisson":
        counts = np.floor(np.exp(LEVEL).clip(0, 9))
        return counts, counts
    return LEVEL, LEVEL


def make(loss, reg, *, sparse=False, intercept=True, **options):
    data = fp.Dataset.from_arrays(csr_array(A) if sparse else A, targets(loss)[0])
    alpha = None if reg == "none" else ALPHA
    return fp.LinearModel(
        data, 6, loss=loss, reg=reg, alpha=alpha, intercept=intercept, **options
    )  # fmt: skip


def formula(loss, reg, intercept=True):
    """Return the function x -> (f, gradient); an intercept is the last coordinate."""
    b = targets(loss)[1]

    def f(x):
        value, slope = LOSSES[loss](A @ x[:p] + (x[p] if intercept else 0.0), b)
        penalty, bend = REGULARISERS[reg](x[:p])
        gradient = A.T @ slope / n + ALPHA * bend
        if intercept:
            gradient = np.append(gradient, slope.mean())
        return value.mean() + ALPHA * penalty, gradient

    return f


@every
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_loss_and_gradient_follow_the_formula(loss, reg, sparse, intercept):
    problem = make(loss, reg, sparse=sparse, intercept=intercept)
    f = formula(loss, reg, intercept)
    for x in np.random.default_rng(1).normal(size=(3, problem.d)):
        value, gradient = f(x)
        assert problem.loss(x) == pytest.approx(value, rel=1e-13)
        np.testing.assert_allclose(problem.grad(x), gradient, rtol=0, atol=1e-13)


@every
def test_fused_local_steps_are_the_plain_ones(loss, reg):
    for sparse in (True, False):
        problem = make(loss, reg, sparse=sparse)
        clients = np.array([0, 2, 5])
        x, before, g = 0.3 * np.random.default_rng(2).normal(size=(3, problem.d))
        shift = 0.1 * np.random.default_rng(3).normal(size=(3, problem.d))
        steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
            (local_sgd, (x,), {"K": 4, "eta": 0.05, "b": 3, "shift": shift, "mu": 0.7}),
            (local_svrg, (x, before, g), {"K": 4, "eta": 0.05, "b": 3}),
            (local_page, (x, before, g), {"K": 4, "eta": 0.05, "first": None, "rest": 3}),
        ]
        for function, points, options in steps:
            oracles = [q.oracle(clients, RoundDraws(0, 1)) for q in (problem, Unfused(problem))]
            fused, plain = (function(oracle, *points, **options) for oracle in oracles)
            np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-12)


@every
def test_the_optimum_is_that_of_scipy(loss, reg):
    """SecantPAGE and FedPAGE find the point that scipy finds, to 1e-8, intercept included."""
    f = formula(loss, reg)
    found = minimize(f, np.zeros(p + 1), jac=True, method="BFGS", options={"gtol": 1e-11})
    for _ in range(20):  # Newton steps by differences: BFGS ends at the rounding of f
        hessian = np.array([(f(found.x + h)[1] - f(found.x - h)[1]) / 2e-6
                            for h in 1e-6 * np.eye(p + 1)])  # fmt: skip
        found.x = found.x - np.linalg.solve(hessian, f(found.x)[1])
    assert np.linalg.norm(f(found.x)[1]) < 1e-13
    problem = make(loss, reg)
    stop = fp.Stop("1e-11,hold=0")
    history = fp.simulate(
        problem, fp.SecantPAGE(S=6), rounds=2000, record_every=10, seed=0, stop=stop
    )
    np.testing.assert_allclose(history.x, found.x, rtol=0, atol=1e-8)
    if loss != "poisson" and reg == "l2":  # theory has a step for it
        method = fp.FedPAGE(S=6, K=1, p=1.0).with_step(0.9 / problem.smoothness().whole)
        history = fp.simulate(
            problem, method, rounds=5000, record_every=50, seed=0, stop=stop
        )  # fmt: skip
        np.testing.assert_allclose(history.x, found.x, rtol=0, atol=1e-8)


def test_the_intercept_is_not_regularised():
    """With a large weight the coefficients vanish, and the intercept is the mean of the targets."""
    data = fp.Dataset.from_arrays(A, LEVEL)
    problem = fp.LeastSquares(data, 6, alpha=1e6, intercept=True)
    coefficients, intercepts = problem.coefficients(np.append(np.zeros(p), LEVEL.mean()))
    assert intercepts.tolist() == [LEVEL.mean()]
    assert np.linalg.norm(coefficients) == 0.0
    assert problem.grad(np.append(np.zeros(p), LEVEL.mean()))[-1] == pytest.approx(0.0, abs=1e-15)
    zero, high = (problem.loss(np.append(np.zeros(p), b)) for b in (0.0, 100.0))
    expected = ((100.0 - LEVEL) ** 2 - LEVEL**2).mean() / 2
    assert high - zero == pytest.approx(expected)


@every
def test_smoothness_bounds_the_gradient(loss, reg):
    if loss == "poisson":
        with pytest.raises(fp.InputError, match="its gradient has no Lipschitz constant"):
            make(loss, reg).smoothness()
        return
    sparse, dense = (make(loss, reg, sparse=sparse) for sparse in (True, False))
    for one, other in zip(sparse.smoothness(), dense.smoothness(), strict=True):
        assert one == pytest.approx(other, rel=1e-9)
    L = dense.smoothness()
    assert L.row >= L.client >= L.average >= L.whole * (1 - 1e-9) > 0
    for a, b in np.random.default_rng(5).normal(size=(20, 2, dense.d)):
        for end in (b, a + 1e-3 * b):
            gap = np.linalg.norm(a - end) * (1 + 1e-6)
            assert np.linalg.norm(dense.grad(a) - dense.grad(end)) <= L.whole * gap


@pytest.mark.parametrize("loss", LOSSES)
def test_threads_and_chunks_do_not_change_the_bits(loss):
    problem = make(loss, "smoothed-l1", weights="size")
    x = np.linspace(-1, 1, problem.d)
    assert problem.grad(x, threads=3).tobytes() == problem.grad(x).tobytes()
    method = fp.SCAFFOLD(S=3, K=3, eta_l=0.02)
    settings = [fp.RunOptions(), fp.RunOptions(threads=2, chunk=1)]
    runs = [
        fp.simulate(problem, method, rounds=12, seed=1, options=options) for options in settings
    ]
    assert runs[0].x.tobytes() == runs[1].x.tobytes()
