"""Check losses and regularisers against numpy's formulas, scipy's optima and plain local steps."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from support import Unfused, softmax

import fedpage as fp
from fedpage.core.local_steps import local_page, local_sgd, local_svrg
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch
from fedpage.problems import kernels

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
    "smoothed-l1": lambda w: ((np.sqrt(w**2 + 1e-4) - 0.01).sum(), w / np.sqrt(w**2 + 1e-4)),
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


# Softmax regression

KINDS = ["softmax", "softmax-l2", "softmax-nonconvex"]


def formula_of_classes(problem, rows, x):
    """Return the mean loss of some rows of the data at x, with the regulariser, and its gradient.

    The columns of a matrix W (p, C) are the classes' weights; x holds it row by row.
    """
    C, p = len(problem.classes), problem.data.features
    A, labels = problem.data.to_dense()[rows], problem.data.y[rows].astype(int)
    W = x[: p * C].reshape(p, C)
    T = A @ W
    largest = T.max(axis=1, keepdims=True)
    total = np.exp(T - largest).sum(axis=1, keepdims=True)
    Q = np.exp(T - largest) / total
    losses = np.log(total[:, 0]) + largest[:, 0] - T[np.arange(len(labels)), labels]
    slope, penalty = {
        "none": (0 * W, 0.0),
        "l2": (W, 0.5 * np.sum(W**2)),
        "nonconvex": (2 * W / (1 + W**2) ** 2, np.sum(W**2 / (1 + W**2))),
    }[problem.reg]
    V = (Q - np.eye(C)[labels]) / len(labels)
    gradient = A.T @ V + problem.alpha * slope
    return losses.mean() + problem.alpha * penalty, gradient.ravel()


def point(problem, seed: int = 0):
    return np.random.default_rng(seed).normal(size=problem.d) / 2


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_follow_the_formula(kind, weights):
    problem = softmax(kind, weights=weights)
    x = point(problem)
    each = [formula_of_classes(problem, problem.partition.rows(i), x) for i in range(problem.N)]
    w = problem.sizes if weights == "size" else np.ones(problem.N)
    w = problem.N * w / w.sum()
    losses = w * np.array([loss for loss, _ in each])
    gradients = w[:, None] * np.array([gradient for _, gradient in each])
    clients = np.arange(problem.N)
    oracle = problem.oracle(clients, RoundDraws(0, 0))
    found = problem.evaluate_clients(clients, x)
    np.testing.assert_allclose(oracle.grad(x, oracle.batch(None)), gradients, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.gradients, gradients, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-13)
    np.testing.assert_allclose(problem.grad(x), gradients.mean(axis=0), rtol=0, atol=1e-13)
    assert problem.loss(x) == pytest.approx(losses.mean(), rel=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_minibatch_gradients_are_those_of_their_rows(kind):
    problem = softmax(kind)
    client = int(np.argmax(problem.sizes))
    Y = np.stack([point(problem, 1)])
    oracle = problem.oracle(np.array([client]), RoundDraws(0, 0))
    chosen = np.array([[4, 0, 2]], dtype=np.uint32)
    found = oracle.grad(Y, Batch(chosen, np.array([3])))
    rows = problem.partition.rows(client)[chosen[0]]
    np.testing.assert_allclose(
        found[0], formula_of_classes(problem, rows, Y[0])[1], rtol=0, atol=1e-13
    )


def test_two_classes_are_logistic_regression():
    """At weights -x/2 and x/2 the softmax has the loss and slope of logistic regression at x."""
    data = fp.load("census", rows=100)
    pair, single = fp.Softmax(data, 5), fp.LogisticRegression(data, 5)
    x = np.linspace(-1, 1, single.d)
    both = np.stack([-0.5 * x, 0.5 * x], axis=1).ravel()
    assert pair.loss(both) == pytest.approx(single.loss(x), rel=1e-14)
    slopes = pair.grad(both).reshape(-1, 2)
    np.testing.assert_allclose(slopes[:, 1], single.grad(x), rtol=0, atol=1e-15)
    np.testing.assert_allclose(slopes[:, 0], -slopes[:, 1], rtol=0, atol=1e-15)


@pytest.mark.parametrize("shift", [0.0, 700.0, -700.0, 1e300])
def test_large_margins_neither_overflow_nor_cancel(shift):
    margins = np.array([[shift, shift - 40.0, shift - 50.0]])
    certain = kernels.mean_loss((3,), margins, np.zeros(1))
    wrong = kernels.mean_loss((3,), margins, np.full(1, 2.0))
    if abs(shift) < 1e300:
        assert certain == pytest.approx(np.exp(-40.0) + np.exp(-50.0), rel=1e-9)
        assert wrong == pytest.approx(50.0, rel=1e-13)
    assert np.isfinite([certain, wrong]).all()
    far = np.array([[0.0, 800.0, 100.0]])  # exp(800) overflows
    losses = [kernels.mean_loss((3,), far, np.full(1, b)) for b in (0.0, 1.0, 2.0)]
    assert losses == [800.0, np.exp(-700.0), 700.0]
    # the derivative of a class that is nearly certain is not 0
    data = fp.Dataset.from_arrays(np.ones((3, 1)), [0.0, 1.0, 2.0])
    problem = fp.Softmax(data, 3)
    oracle = problem.oracle(np.array([0]), RoundDraws(0, 0))
    slopes = oracle.grad(np.array([0.0, -40.0, -50.0]), oracle.batch(None))[0]
    assert slopes[0] == pytest.approx(-np.exp(-40.0) - np.exp(-50.0), rel=1e-13)
    assert slopes.sum() == pytest.approx(0.0, abs=1e-30)


def test_smoothness_bounds_the_hessian():
    """The bound holds at random points and is reached by two equally likely classes."""
    problem = softmax("softmax-l2")
    L = problem.smoothness()
    rng = np.random.default_rng(1)
    clients = np.arange(problem.N)
    for _ in range(20):
        a = rng.normal(size=problem.d)
        b = a + 1e-3 * rng.normal(size=problem.d)
        gap = np.linalg.norm(a - b) * (1 + 1e-6)
        assert np.linalg.norm(problem.grad(a) - problem.grad(b)) <= L.whole * gap
        ends = [problem.evaluate_clients(clients, point).gradients for point in (a, b)]
        assert np.linalg.norm(ends[0] - ends[1], axis=1).max() <= L.client * gap
    row = fp.Softmax(fp.Dataset.from_arrays([[3.0], [4.0]], [0, 1]), 1)
    step = 1e-6 * np.array([1.0, -1.0])
    curvature = np.linalg.norm(row.grad(step) - row.grad(-step)) / np.linalg.norm(2 * step)
    assert row.smoothness().whole == pytest.approx(curvature, rel=1e-6)
    assert row.smoothness().row == pytest.approx(8.0)


# Local steps

FUSED: dict[str, Any] = {
    **{f"{a} {b} {c}": functools.partial(make, a, b, sparse=c)
       for a, b, c in itertools.product(LOSSES, REGULARISERS, (True, False))},
    **{kind: functools.partial(softmax, kind) for kind in KINDS},
}  # fmt: skip


@pytest.mark.parametrize("kind", FUSED)
def test_fused_local_steps_are_the_plain_ones(kind):
    problem = FUSED[kind]()
    clients = np.array([0, 3, problem.N - 1])
    x, before, g = 0.3 * np.random.default_rng(2).normal(size=(3, problem.d))
    rng = np.random.default_rng(3)
    shift, points = 0.1 * rng.normal(size=(3, problem.d)), np.stack([before, x, g])
    for size in (None, 3):
        some = {"K": 5, "eta": 0.05, "b": size}
        steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
            (local_sgd, (x,), some),
            (local_sgd, (x,), {**some, "shift": shift, "mu": 0.7}),
            (local_svrg, (x, before, g), some),
            (local_svrg, (x, points, shift), some),
            (local_page, (x, before, g), {"K": 4, "eta": 0.05, "first": 2, "rest": size}),
            (local_page, (x, before, g), {"K": 1, "eta": 0.05, "first": size, "rest": 1}),
        ]
        for function, places, options in steps:
            oracles = [q.oracle(clients, RoundDraws(0, 1)) for q in (problem, Unfused(problem))]
            fused, plain = (function(oracle, *places, **options) for oracle in oracles)
            np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-12)
            assert len({(oracle.gradients, oracle.evaluations) for oracle in oracles}) == 1
