"""Check objectives: weights, gradients, minibatches, constants and arguments."""

import numpy as np
import pytest
from support import quadratic, refusal, uneven

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch

REGRESSION = fp.Dataset.from_arrays(np.eye(3), [0.1, 0.2, 0.3])
ONE_CLASS = fp.Dataset.from_arrays(np.eye(3), [0, 0, 0])


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_clients_count_equally_or_by_their_rows(weights):
    """Formulas of each loss and regulariser are in tests/laws/test_linear_models.py."""
    problem = uneven("logistic-nonconvex", weights=weights)
    x = np.random.default_rng(0).normal(size=problem.d) / 3
    each = uneven("logistic-nonconvex").evaluate_clients(np.arange(problem.N), x)
    share = problem.sizes if weights == "size" else None
    measured = problem.evaluate(x)
    assert measured["loss"] == problem.loss(x)
    assert measured["loss"] == pytest.approx(np.average(each.losses, weights=share), rel=1e-12)
    gradient = np.average(each.gradients, axis=0, weights=share)
    np.testing.assert_allclose(problem.grad(x), gradient, rtol=0, atol=1e-13)
    assert measured["grad_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-12)


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
        (lambda d: fp.LogisticRegression(ONE_CLASS, clients=1), "a single class"),
        (lambda d: fp.Quadratic(np.zeros((2, 3, 3)), np.zeros((3, 1, 3))), "shape"),
        (lambda d: fp.Quadratic(np.ones((0, 1, 1)), np.ones((0, 1, 1))), "shape"),
        (lambda d: fp.Quadratic(np.full((1, 1, 1), np.nan), np.ones((1, 1, 1))), "finite"),
        (lambda d: fp.Quadratic.random(1, 1, 0), "at least 1 each"),
        (lambda d: fp.Quadratic(np.zeros((1, 1, 1)), np.ones((1, 1, 1))).x_star, "singular"),
        (lambda d: fp.RowProblem([1, 2], 0), "d must be"),
    ],
)
def test_arguments_that_cannot_be_used(make, word):
    assert word in refusal(make, fp.load("census", rows=100))
