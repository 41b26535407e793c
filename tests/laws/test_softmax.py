"""Check softmax regression against the formula in numpy: losses, gradients and local steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import Unfused, softmax

import fedpage as fp
from fedpage.core.local_steps import local_page, local_sgd, local_svrg
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch
from fedpage.problems import kernels

KINDS = ["softmax", "softmax-l2", "softmax-nonconvex"]


def formula(problem, rows, x):
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
    each = [formula(problem, problem.partition.rows(i), x) for i in range(problem.N)]
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
    np.testing.assert_allclose(found[0], formula(problem, rows, Y[0])[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_local_steps_are_the_plain_ones(kind, size):
    problem = softmax(kind)
    clients = np.array([0, 3, problem.N - 1])
    x, before, w = (point(problem, seed) for seed in (1, 2, 3))
    rng = np.random.default_rng(4)
    g, shift = rng.normal(size=problem.d), rng.normal(size=(3, problem.d))
    steps: list[Any] = [
        (local_sgd, (x,), {"K": 5, "eta": 0.1, "b": size}),
        (local_sgd, (x,), {"K": 5, "eta": 0.1, "b": size, "shift": shift}),
        (local_sgd, (x,), {"K": 5, "eta": 0.1, "b": size, "shift": shift, "mu": 0.7}),
        (local_svrg, (x, w, g), {"K": 5, "eta": 0.1, "b": size}),
        (local_svrg, (x, np.stack([w, x, g]), shift), {"K": 5, "eta": 0.1, "b": size}),
        (local_page, (x, before, g), {"K": 5, "eta": 0.1, "first": 2, "rest": size}),
        (local_page, (x, before, g), {"K": 1, "eta": 0.1, "first": size, "rest": 1}),
    ]
    for function, points, options in steps:
        oracles = [p.oracle(clients, RoundDraws(0, 1)) for p in (problem, Unfused(problem))]
        fused, plain = (function(oracle, *points, **options) for oracle in oracles)
        np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-12)
        assert len({(oracle.gradients, oracle.evaluations) for oracle in oracles}) == 1


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
