"""Check docs/theory.md's section on the averaging start by enumerating all orders of the clients.

The estimator is the code's own, `passes.join`. What docs/theory.md derives of the metric is algebra
that no code depends on.
"""

from itertools import pairwise, permutations

import numpy as np
import pytest

from fedpage.core.types import Replies
from fedpage.methods import passes

START = np.array([1.0, -0.5])


def gradients(N: int, seed: int, *, curved: bool):
    """Return the clients' gradients (N, 2) as a function of x (2,), and their matrices."""
    rng = np.random.default_rng(seed)
    rows, b = rng.normal(size=(N, 2, 2)), rng.normal(size=(N, 2))
    A = np.einsum("nri,nrj->nij", rows, rows)
    weight = rng.normal(size=(N, 2)) if curved else 0.0
    return (lambda x: A @ x + b + weight * np.tanh(x)), A


def spread(values: np.ndarray) -> np.ndarray:
    """Return the covariance (2, 2) of the rows of values (N, 2), with weight 1/N."""
    centred = values - values.mean(axis=0)
    return centred.T @ centred / len(values)


def sampling(N: int, S: int) -> float:
    """Return the variance of a mean of S of N numbers, without replacement, of variance 1."""
    return (N - S) / ((N - 1) * S)


def first_pass(grads, blocks, path) -> list[dict]:
    """Run the first pass over blocks of clients; path(k, x, g) is the point of round k."""
    g, seen, rounds = np.zeros(2), np.zeros(sum(map(len, blocks)), bool), []
    x_prev = x = START
    for k, block in enumerate(blocks):
        x_prev, x = x, path(k, x, g)
        if k == 0:
            x_prev = x
        differences, before = grads(x) - grads(x_prev), seen.copy()
        seen[block] = True
        y = differences[block].mean(axis=0)
        reply = passes.PassReply(grads(x)[block].mean(axis=0), y)
        g = passes.join(g, Replies(reply, np.array(block)), seen)
        y_seen = differences[before].mean(axis=0) if k else 0.0
        rounds.append(
            {
                "seen": int(seen.sum()), "size": len(block), "e": g - grads(x).mean(axis=0),
                "s": x - x_prev, "spread": np.trace(spread(differences)), "lag": y - y_seen,
            }
        )  # fmt: skip
    return rounds


def all_passes(N: int, S: int):
    """Yield the blocks of every order of the clients."""
    for order in permutations(range(N)):
        yield [list(order[i : i + S]) for i in range(0, N, S)]


def descent(eta: float):
    return lambda k, x, g: x - eta * g if k else START


@pytest.mark.parametrize(("N", "S"), [(5, 2), (4, 1), (4, 3)])
def test_the_error_after_the_pass(N, S):
    """The error g - grad f(x) is sum_k B_{k-1}/N (y_k - its like over the clients seen before)."""
    grads, _ = gradients(N, 8, curved=True)
    for blocks in all_passes(N, S):
        rounds = first_pass(grads, blocks, descent(0.1))
        predicted = sum(a["seen"] / N * b["lag"] for a, b in pairwise(rounds))
        np.testing.assert_allclose(rounds[-1]["e"], predicted, atol=1e-12)
        still = first_pass(grads, blocks, lambda k, x, g: START)
        np.testing.assert_allclose(still[-1]["e"], 0, atol=1e-12)


@pytest.mark.parametrize(("N", "S"), [(6, 2), (5, 2), (4, 1)])
def test_mean_and_variance_on_a_fixed_path(N, S):
    """On a path that does not depend on the order, g is unbiased, and its variance is exact."""
    grads, _ = gradients(N, 9, curved=True)
    points = np.random.default_rng(9).normal(size=(-(-N // S), 2))
    runs = [first_pass(grads, blocks, lambda k, x, g: points[k]) for blocks in all_passes(N, S)]
    for k in range(len(points)):
        errors, rounds = np.array([run[k]["e"] for run in runs]), runs[0][: k + 1]
        np.testing.assert_allclose(errors.mean(axis=0), 0, atol=1e-12)
        seen = rounds[k]["seen"]
        expected = sampling(N, seen) * np.trace(spread(grads(points[k])))
        for before, each in pairwise(rounds):
            weight = before["seen"] * each["seen"] / (seen**2 * each["size"])
            expected += N / (N - 1) * weight * each["spread"]
        assert (errors**2).sum(axis=1).mean() == pytest.approx(expected, rel=1e-10)


def test_g_is_biased_where_x_follows_g():
    """Two blocks of a quadratic: the bias is eta/2 N/(N-S) Cov(A_B, grad f_B), not zero."""
    N, S, eta = 6, 3, 0.1
    grads, A = gradients(N, 10, curved=False)
    errors = [first_pass(grads, blocks, descent(eta))[-1]["e"] for blocks in all_passes(N, S)]
    slopes = grads(START)
    covariance = np.einsum("nij,nj->i", A - A.mean(axis=0), slopes - slopes.mean(axis=0)) / N
    bias = eta / 2 * N / (N - S) * sampling(N, S) * covariance
    np.testing.assert_allclose(np.mean(errors, axis=0), bias, atol=1e-12)
    assert np.linalg.norm(bias) > 0.01
