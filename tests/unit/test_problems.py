"""Check objectives against formulas, finite differences and dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from support import quadratic, refusal, uneven

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch

REGRESSION = fp.Dataset.from_arrays(np.eye(3), [0.1, 0.2, 0.3])
KINDS = ["robust", "squares", "logistic", "logistic-l2", "logistic-nonconvex"]


def plain(problem, x, kind, scale):
    """Return f(x), computed client by client in numpy."""
    A, y, total = problem.data.to_dense(), problem.data.y, 0.0
    for i in range(problem.N):
        rows = problem.partition.rows(i)
        t = A[rows] @ x
        if kind == "robust":
            each = np.log(1 + (t - y[rows]) ** 2 / 2)
        elif kind == "squares":
            each = (t - y[rows]) ** 2 / 2 + 0.01 * x @ x / 2
        else:
            each = np.log(1 + np.exp(-y[rows] * t))
            each = each + {"logistic": 0, "logistic-l2": 0.05 * x @ x}.get(
                kind, 0.1 * np.sum(x**2 / (1 + x**2))
            )
        total += scale[i] * each.mean()
    return total / problem.N


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient(kind, weights):
    problem = uneven(kind, weights=weights)
    rng = np.random.default_rng(0)
    x = rng.normal(size=problem.d) / 3
    sizes = np.ones(problem.N) if weights == "uniform" else problem.sizes
    scale = problem.N * sizes / sizes.sum()
    assert problem.loss(x) == pytest.approx(plain(problem, x, kind, scale), rel=1e-12)
    for direction in rng.normal(size=(3, problem.d)):
        h = 1e-6
        slope = (problem.loss(x + h * direction) - problem.loss(x - h * direction)) / (2 * h)
        assert problem.grad(x) @ direction == pytest.approx(slope, rel=1e-6)
    measured = problem.evaluate(x)
    assert measured["loss"] == problem.loss(x)
    assert measured["grad_norm"] == pytest.approx(np.linalg.norm(problem.grad(x)), rel=1e-14)


@pytest.mark.parametrize("kind", ["quadratic", *KINDS])
def test_the_mean_of_the_clients_gradients_is_the_gradient(kind):
    problem = quadratic(noise=1.0) if kind == "quadratic" else uneven(kind, weights="size")
    x = np.linspace(-1, 1, problem.d)
    oracle = problem.oracle(np.arange(problem.N), RoundDraws(0, 0))
    each = oracle.grad(x, oracle.batch(None))
    np.testing.assert_allclose(each.mean(axis=0), problem.grad(x), rtol=0, atol=1e-13)
    shared = oracle.grad(np.tile(x, (problem.N, 1)), oracle.batch(10**9))
    assert (shared == each).all()
    assert oracle.gradients == 2 * problem.sizes.sum()
    assert oracle.evaluations == 2 * problem.N


@pytest.mark.parametrize("kind", ["quadratic", "robust", "logistic-nonconvex"])
def test_minibatches_are_unbiased(kind):
    """The mean over all single rows of a client is its full gradient."""
    problem = quadratic(noise=1.0) if kind == "quadratic" else uneven(kind)
    client = np.array([int(np.argmax(problem.sizes))])
    M = int(problem.sizes[client[0]])
    x = np.linspace(-1, 1, problem.d)
    oracle = problem.oracle(client, RoundDraws(0, 0))
    singles = [
        oracle.grad(x, Batch(np.array([[j]], dtype=np.uint32), np.array([1]))) for j in range(M)
    ]
    np.testing.assert_allclose(
        np.mean(singles, axis=0), oracle.grad(x, oracle.batch(None)), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("kind", ["robust", "softmax"])
def test_any_number_of_threads_gives_the_same_bits(kind):
    digits = fp.load("digits", classes=10)
    many = digits[np.tile(np.arange(digits.rows), 8)]
    problem: fp.LinearModel = fp.Softmax(many, 100, metrics="accuracy")
    if kind == "robust":
        problem = fp.RobustRegression(fp.load("census"), clients=3250)
    x = np.linspace(-1, 1, problem.d)
    one = problem.evaluate(x, threads=1)
    assert all(problem.evaluate(x, threads=n) == one for n in (2, 3, 8))
    assert problem.grad(x, threads=3).tobytes() == problem.grad(x).tobytes()


@pytest.mark.parametrize("margin", [1e4, -1e4])
def test_no_overflow_at_huge_margins(margin):
    data = fp.Dataset.from_arrays([[margin], [-margin]], [1, -1])
    for kind in (fp.LogisticRegression, fp.RobustRegression, fp.LeastSquares):
        measured = kind(data, clients=2).evaluate(np.ones(1))
        assert all(np.isfinite(v) for v in measured.values())
    logistic = fp.LogisticRegression(data, clients=2)
    assert logistic.loss(np.ones(1)) == pytest.approx(max(0.0, -margin), rel=1e-15, abs=1e-300)
    assert logistic.loss(np.full(1, 40.0 / abs(margin))) > 0  # 1 + exp(-40) would be 1


@pytest.mark.parametrize("kind", KINDS)
def test_smoothness_bounds_the_gradient_and_is_ordered(kind):
    problem = uneven(kind)
    L = problem.smoothness()
    assert L.row >= L.client >= L.average >= L.whole * (1 - 1e-9) > 0
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = rng.normal(size=(2, problem.d))
        change = np.linalg.norm(problem.grad(a) - problem.grad(b))
        assert change <= L.whole * np.linalg.norm(a - b) * (1 + 1e-9)


def test_smoothness_by_dense_algebra():
    problem = uneven("squares")
    A = problem.data.to_dense()
    blocks = [A[problem.partition.rows(i)] for i in range(problem.N)]
    each = [np.linalg.eigvalsh(B.T @ B / len(B))[-1] + 0.01 for B in blocks]
    hessian = np.mean([B.T @ B / len(B) for B in blocks], axis=0)
    L = problem.smoothness()
    assert L.row == pytest.approx(max((A**2).sum(axis=1)) + 0.01)
    assert L.client == pytest.approx(max(each))
    assert L.average == pytest.approx(np.sqrt(np.mean(np.square(each))))
    assert L.whole == pytest.approx(np.linalg.eigvalsh(hessian)[-1] + 0.01)
    logistic = uneven("logistic-nonconvex").smoothness()
    assert logistic.row == pytest.approx(max((A**2).sum(axis=1)) / 4 + 0.2)


def test_quadratic_knows_its_minimum_and_constants():
    problem = quadratic(noise=2.0)
    assert np.linalg.norm(problem.grad(problem.x_star)) < 1e-12
    L = problem.smoothness()
    hessian = problem.A.mean(axis=0)
    assert L.whole == pytest.approx(np.linalg.eigvalsh(hessian)[-1])
    assert L.whole <= L.average <= L.client <= 2.0
    weighted = fp.Quadratic(problem.A, problem.b, weights=np.arange(1, 9))
    assert np.linalg.norm(weighted.grad(weighted.x_star)) < 1e-12
    assert np.linalg.norm(weighted.x_star - problem.x_star) > 0.1


def test_rows_are_divided_as_the_partition_says():
    data = fp.load("census", rows=100)
    division = fp.iid(100, 4, seed=2)
    problem = fp.LeastSquares(data, division)
    A, y = data.to_dense(), data.y
    oracle = problem.oracle(np.array([2]), RoundDraws(0, 0))
    x = np.linspace(0, 1, problem.d)
    rows = division.rows(2)
    expected = A[rows].T @ (A[rows] @ x - y[rows]) / 25
    np.testing.assert_allclose(oracle.grad(x, oracle.batch(None))[0], expected, rtol=0, atol=1e-13)


def test_edges_empty_rows_single_rows_and_one_client():
    data = fp.Dataset.from_arrays([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], [1, -1, 1])
    for clients in (1, 3):
        problem = fp.LogisticRegression(data, clients=clients)
        history = fp.simulate(problem, fp.FedPAGE(S=1, K=3, eta_g=0.5), rounds=20, seed=0)
        assert history.last("loss") < history["loss"][0]
    nothing = fp.RobustRegression(
        fp.Dataset.from_arrays(np.zeros((4, 1)), [1, -1, 1, -1]), clients=2
    )
    assert nothing.evaluate(np.ones(1))["grad_norm"] == 0
    assert nothing.smoothness().row == 0


def test_digits_and_values_other_than_one():
    problem = fp.LogisticRegression(fp.load("digits"), clients=30, reg="l2", alpha=0.01)
    history = fp.simulate(problem, fp.FedPAGE(S=3, K=5, eta_g=0.3), rounds=400, seed=0)
    assert history.last("grad_norm") < 0.05 * history["grad_norm"][0]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda d: fp.RobustRegression(d, clients=0), "clients"),
        (lambda d: fp.RobustRegression(d, clients=101), "at most 100 clients"),
        (lambda d: fp.RobustRegression("a9a", clients=3), "fedpage Dataset"),
        (lambda d: fp.RobustRegression(d, clients=3, weights="rows"), "weights"),
        (lambda d: fp.RobustRegression(d, clients=3, weights=[1, 2, -1]), "weights"),
        (lambda d: fp.RobustRegression(d, fp.blocks(200, 3)), "does not have"),
        (lambda d: fp.LogisticRegression(REGRESSION, clients=1), "not classes"),
        (lambda d: fp.RobustRegression(d, clients=3).loss(np.zeros(5)), "must have shape"),
        (lambda d: fp.Quadratic(np.zeros((2, 3, 3)), np.zeros((3, 1, 3))), "shape"),
    ],
)
def test_arguments_that_cannot_be_used(make, word):
    assert word in refusal(make, fp.load("census", rows=100))
