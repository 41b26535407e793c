"""Check docs/theory.md's section on SecantPAGE by enumerating all samples of clients.

Everything is written out in numpy, without the method's code: what the metric estimates on a
quadratic, what y.Py estimates, the descent of a step in the metric, and the averaging start.
"""

from __future__ import annotations

from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest


def clients(N: int, d: int, seed: int, *, rank: int | None = None, shift: float = 0.0):
    """Return the clients' Hessians (N, d, d) and gradients at 0 (N, d)."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(N, d if rank is None else rank, d))
    A = np.einsum("nri,nrj->nij", rows, rows) - shift * np.eye(d)
    return A, rng.normal(size=(N, d))


def sampled_pairs(A: np.ndarray, S: int, s: np.ndarray) -> np.ndarray:
    """Return y (samples, d) for every sample of S clients."""
    return np.array([A[list(i)].mean(axis=0) @ s for i in combinations(range(len(A)), S)])


def spread(values: np.ndarray) -> np.ndarray:
    """Return the covariance (d, d) of the rows of values (N, d), with weight 1/N."""
    centred = values - values.mean(axis=0)
    return centred.T @ centred / len(values)


def sampling(N: int, S: int) -> float:
    """Return the variance of a mean of S of N numbers, without replacement, of variance 1."""
    return (N - S) / ((N - 1) * S)


# What the metric estimates


@pytest.mark.parametrize(("N", "S"), [(5, 1), (6, 2), (5, 4), (4, 4)])
def test_second_moment_of_a_pair(N, S):
    """E y y^T = H s s^T H + (N-S)/((N-1)S) C, for any Hessians."""
    A, _ = clients(N, 3, seed=1, shift=2.0)
    s, H = np.array([0.3, -1.0, 0.5]), A.mean(axis=0)
    y = sampled_pairs(A, S, s)
    expected = np.outer(H @ s, H @ s) + sampling(N, S) * spread(A @ s)
    np.testing.assert_allclose(np.einsum("ki,kj->ij", y, y) / len(y), expected, atol=1e-12)


@pytest.mark.parametrize(("N", "S", "rank"), [(5, 1, 2), (6, 2, 1), (6, 3, 3), (4, 4, 2)])
def test_the_metric_of_a_convex_quadratic(N, S, rank):
    """M = E y y^T/s.y satisfies M s = H s, and H s s^T H/s.Hs <= M <= H."""
    A, _ = clients(N, 4, seed=2, rank=rank)
    s, H = np.array([0.3, -1.0, 0.5, 0.2]), A.mean(axis=0)
    y = sampled_pairs(A, S, s)
    curvature = y @ s
    assert curvature.min() > 0
    M = np.einsum("ki,kj,k->ij", y, y, 1 / curvature) / len(y)
    secant = np.outer(H @ s, H @ s) / (s @ H @ s)
    u = y - np.outer(curvature, H @ s) / (s @ H @ s)
    noise = np.einsum("ki,kj,k->ij", u, u, 1 / curvature) / len(y)
    np.testing.assert_allclose(M @ s, H @ s, atol=1e-12)
    np.testing.assert_allclose(M, secant + noise, atol=1e-12)
    np.testing.assert_allclose(u @ s, 0, atol=1e-12)
    assert np.linalg.eigvalsh(M - secant).min() > -1e-12
    assert np.linalg.eigvalsh(H - M).min() > -1e-12
    if S < N:
        assert np.trace(noise) > 0.01 * np.trace(H)


def test_one_row_a_client_and_one_client_a_round_estimate_the_hessian_itself():
    """Where every A_i has rank one and S = 1, y y^T/s.y is A_i, so that M = H for any s."""
    A, _ = clients(7, 4, seed=3, rank=1)
    for s in np.eye(4) + 0.1:
        y = sampled_pairs(A, 1, s)
        M = np.einsum("ki,kj,k->ij", y, y, 1 / (y @ s)) / len(y)
        np.testing.assert_allclose(M, A.mean(axis=0), atol=1e-12)


def test_the_metric_where_clients_are_not_convex():
    """|s.y| overestimates the curvature along s, M s is not H s, and the guard bounds |z|^2."""
    A, _ = clients(6, 3, seed=4, shift=2.0)
    s, H = np.array([0.3, -1.0, 0.5]), A.mean(axis=0)
    y = sampled_pairs(A, 2, s)
    curvature = np.abs(y @ s)
    assert (y @ s).min() < 0 < s @ H @ s
    lengths = np.linalg.norm(y, axis=1) * np.linalg.norm(s)
    z = y / np.sqrt(np.maximum(curvature, 1e-3 * lengths))[:, None]
    M = z.T @ z / len(z)
    assert s @ H @ s * (1 + 1e-6) <= s @ M @ s <= curvature.mean() * (1 + 1e-12)
    assert np.linalg.norm(M @ s - H @ s) > 0.05 * np.linalg.norm(H @ s)
    largest = np.abs(np.linalg.eigvalsh(A)).max()
    assert ((z**2).sum(axis=1) <= 1000 * largest).all()


# What n y.Py estimates


def nonlinear(N: int, d: int, seed: int):
    """Return the clients' gradients as a function of x (d,), not of quadratics: (N, d)."""
    A, b = clients(N, d, seed)
    weight = np.random.default_rng(seed).normal(size=(N, d))
    return lambda x: A @ x + b + weight * np.tanh(x)


def test_y_in_the_metric_is_the_variance_of_g_and_the_change_of_the_gradient():
    """E V = E |g - grad f|_M^2 + E sum |grad f(x) - grad f(x')|_M^2, for a fixed metric M.

    Over all samples of three rounds after a full one; x depends on the samples.
    """
    N, S, d, rounds, eta = 4, 2, 3, 3, 0.1
    grads, M = nonlinear(N, d, seed=5), np.diag([1.0, 3.0, 0.2]) + 0.1
    samples = [list(i) for i in combinations(range(N), S)]
    error = total = change = conditional = 0.0
    sequences = list(product(samples, repeat=rounds))
    for sequence in sequences:
        x_prev = np.array([1.0, -0.5, 2.0])
        g = grads(x_prev).mean(axis=0)
        x = x_prev - eta * M @ g
        for sample in sequence:
            differences = grads(x) - grads(x_prev)
            y, mean = differences[sample].mean(axis=0), differences.mean(axis=0)
            total += y @ M @ y
            change += mean @ M @ mean
            conditional += sampling(N, S) * np.trace(M @ spread(differences))
            g = g + y
            x_prev, x = x, x - eta * M @ g
        e = g - grads(x_prev).mean(axis=0)
        error += e @ M @ e
    assert error == pytest.approx(conditional, rel=1e-12)
    assert total == pytest.approx(error + change, rel=1e-12)
    assert 0.1 * change < error < 10 * change


def test_noise_shortens_the_step_by_its_share():
    """In the metric 1/H, for rows of equal leverage, E y.My/E s.y = 1 + (d-1)(N-S)/((N-1)S)."""
    d, N = 3, 6
    rng = np.random.default_rng(6)
    root = rng.normal(size=(d, d))  # rows a_i = +- sqrt(d) root e_j: H = root root^T
    rows = np.concatenate([np.eye(d), -np.eye(d)]) * np.sqrt(d) @ root.T
    A = np.einsum("ni,nj->nij", rows, rows)
    H, s = A.mean(axis=0), rng.normal(size=d)
    np.testing.assert_allclose(np.einsum("ni,ij,nj->n", rows, np.linalg.inv(H), rows), d)
    for S in (1, 2, 4, 6):
        y = sampled_pairs(A, S, s)
        squares = np.einsum("ki,ij,kj->k", y, np.linalg.inv(H), y)
        ratio = squares.mean() / (y @ s).mean()
        assert ratio == pytest.approx(1 + (d - 1) * sampling(N, S), rel=1e-12)


def test_a_step_in_the_metric_descends_while_the_error_is_small():
    """f(x - eta M g) = f(x) - eta/2 (|grad f|_M^2 + |g|_M^2 - eta g.MHMg - |e|_M^2)."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        (H,), (b,) = clients(1, 4, seed=int(rng.integers(1 << 30)), shift=1.0)
        root = rng.normal(size=(4, 4))
        M = root @ root.T + 0.1 * np.eye(4)
        top = np.linalg.eigvals(M @ H).real.max()
        x, eta = rng.normal(size=4), rng.uniform(0.1, 1) / max(top, 0.1)
        grad = H @ x + b
        g = grad + rng.normal(size=4) * rng.uniform(0, 0.5)
        e, f = g - grad, lambda x, H=H, b=b: x @ H @ x / 2 + b @ x
        moved = f(x - eta * M @ g) - f(x)
        squares = grad @ M @ grad + g @ M @ g - eta * g @ M @ H @ M @ g - e @ M @ e
        assert moved == pytest.approx(-eta / 2 * squares, rel=1e-9, abs=1e-9)
        share = np.sqrt(e @ M @ e / (g @ M @ g))
        if share < 0.5:
            assert moved <= -eta / 2 * (2 - 2 * share - top * eta) * (g @ M @ g) + 1e-9


# The averaging start


def average_start(grads, blocks, path) -> list[dict]:
    """Run the first pass over blocks of clients; path(k, xs, gs) is the point of round k."""
    g, seen, rounds = np.zeros(2), 0, []
    xs: list[np.ndarray] = []
    gs: list[np.ndarray] = []
    for k, block in enumerate(blocks):
        xs.append(path(k, xs, gs))
        x, x_prev = xs[-1], xs[max(k - 1, 0)]
        seen += len(block)
        share = len(block) / seen
        a, b = grads(x)[block], grads(x_prev)[block]
        g = (1 - share) * (g + (a - b).mean(axis=0)) + share * a.mean(axis=0)
        gs.append(g)
        before = [i for earlier in blocks[:k] for i in earlier]
        differences = grads(x) - grads(x_prev)
        rounds.append(
            {
                "x": x, "g": g, "seen": seen, "size": len(block), "e": g - grads(x).mean(axis=0),
                "s": x - x_prev, "spread": np.trace(spread(differences)),
                "y": differences[block].mean(axis=0),
                "y_seen": differences[before].mean(axis=0) if before else 0.0,
            }
        )  # fmt: skip
    return rounds


def passes(N: int, S: int):
    """Yield the blocks of every order of the clients."""
    for order in permutations(range(N)):
        yield [list(order[i : i + S]) for i in range(0, N, S)]


def adaptive(start: np.ndarray, eta: float):
    return lambda k, xs, gs: start if k == 0 else xs[-1] - eta * gs[-1]


def fixed(points: np.ndarray):
    return lambda k, xs, gs: points[k]


START = np.array([1.0, -0.5])


@pytest.mark.parametrize(("N", "S"), [(6, 2), (5, 2), (4, 1), (4, 3)])
def test_the_error_after_the_pass(N, S):
    """The error g - grad f(x) is sum_k B_{k-1}/N (y_k - its like over the clients seen before)."""
    A, b = clients(N, 2, seed=8)

    def grads(x):
        return A @ x + b + np.tanh(x)

    deviations = np.abs(np.linalg.eigvalsh(A - A.mean(axis=0))).max()
    for blocks in passes(N, S):
        rounds = average_start(grads, blocks, adaptive(START, 0.1))
        predicted, bound = 0.0, 0.0
        for before, each in pairwise(rounds):
            predicted = predicted + before["seen"] / N * (each["y"] - each["y_seen"])
            bound += 2 * deviations * before["seen"] / N * np.linalg.norm(each["s"])
        error = rounds[-1]["e"]
        np.testing.assert_allclose(error, predicted, atol=1e-12)
        assert np.linalg.norm(error) <= bound
        still = average_start(grads, blocks, fixed([START] * len(blocks)))
        np.testing.assert_allclose(still[-1]["e"], 0, atol=1e-12)


@pytest.mark.parametrize(("N", "S"), [(6, 2), (5, 2), (4, 1)])
def test_mean_and_variance_on_a_fixed_path(N, S):
    """On a path that does not depend on the order, g is unbiased, and its variance is exact."""
    grads = nonlinear(N, 2, seed=9)
    points = np.random.default_rng(9).normal(size=(-(-N // S), 2))
    runs = [average_start(grads, blocks, fixed(points)) for blocks in passes(N, S)]
    for k in range(len(points)):
        errors = np.array([run[k]["e"] for run in runs])
        np.testing.assert_allclose(errors.mean(axis=0), 0, atol=1e-12)
        rounds = runs[0][: k + 1]
        seen = rounds[k]["seen"]
        expected = sampling(N, seen) * np.trace(spread(grads(points[k])))
        for before, each in pairwise(rounds):
            weight = before["seen"] * each["seen"] / (seen**2 * each["size"])
            expected += N / (N - 1) * weight * each["spread"]
        assert (errors**2).sum(axis=1).mean() == pytest.approx(expected, rel=1e-10)
    if N % S == 0:  # the same in terms of PAGE's variance after a full round
        m = N // S
        page = [sampling(N, S) * each["spread"] for each in runs[0]]
        weights = [(k + 1) * k / (m * (m - 1)) for k in range(m)]
        assert expected == pytest.approx(np.dot(weights, page), rel=1e-10)


def test_what_v_is_after_the_pass():
    """On a fixed path, E V = sum_k ((k-1)/m)^2 (|grad f(x) - grad f(x')|^2 + PAGE's variance)."""
    N, S, m = 6, 2, 3
    grads = nonlinear(N, 2, seed=11)
    points = np.random.default_rng(11).normal(size=(m, 2))
    totals = []
    for blocks in passes(N, S):
        V, rounds = 0.0, average_start(grads, blocks, fixed(points))
        for k, each in enumerate(rounds, start=1):
            V = (1 - 1 / k) ** 2 * (V + each["y"] @ each["y"])
        totals.append(V)
    expected = 0.0
    for k, each in enumerate(rounds, start=1):
        move = grads(points[k - 1]).mean(axis=0) - grads(points[max(k - 2, 0)]).mean(axis=0)
        expected += ((k - 1) / m) ** 2 * (move @ move + sampling(N, S) * each["spread"])
    assert np.mean(totals) == pytest.approx(expected, rel=1e-10)


def test_g_is_biased_where_x_follows_g():
    """Two blocks of a quadratic: the bias is eta/2 N/(N-S) Cov(A_B, grad f_B), not zero."""
    N, S, eta = 6, 3, 0.1
    A, b = clients(N, 2, seed=10)

    def grads(x):
        return A @ x + b

    errors = [
        average_start(grads, blocks, adaptive(START, eta))[-1]["e"] for blocks in passes(N, S)
    ]
    H, slopes = A.mean(axis=0), grads(START)
    covariance = np.einsum("nij,nj->i", A - H, slopes - slopes.mean(axis=0)) / N
    bias = eta / 2 * N / (N - S) * sampling(N, S) * covariance
    np.testing.assert_allclose(np.mean(errors, axis=0), bias, atol=1e-12)
    assert np.linalg.norm(bias) > 0.01
