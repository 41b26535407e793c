"""Laws of client optimisers: their formulas, step by step, and a client alone and among others."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from support import Unfused, quadratic, uneven

import fedpage as fp
from fedpage.core.optimizers import SGD, Adam, AdamW, Momentum, clip_rows, row_norms
from fedpage.core.random import RoundDraws
from fedpage.engine.simulate import Simulation
from fedpage.methods.messages import Model

OPTIMIZERS = [
    SGD(weight_decay=0.1), SGD(clip=0.05), Momentum(0.9), Momentum(0.8, nesterov=True),
    Momentum(0.5, weight_decay=0.2, clip=0.1), Adam(), Adam(0.5, 0.9, 1e-3, weight_decay=0.1),
    AdamW(weight_decay=0.1, clip=0.1),
]  # fmt: skip
METHODS = [
    "fedavg-training",
    "fedprox",
    "fedavgm",
    "fednesterov",
    "fedadagrad",
    "fedadam",
    "fedyogi",
]


def steps_of_one(optimizer, gradient, start, K, eta, mu=0.0):
    """Take the steps of one client with plain numbers, one coordinate after the other."""
    y, m, v = list(start), [0.0] * len(start), [0.0] * len(start)
    for k in range(1, K + 1):
        g = [float(each) for each in gradient(np.array(y))]
        g = [a + mu * (b - c) for a, b, c in zip(g, y, start, strict=True)]
        if optimizer.clip is not None:
            length = math.sqrt(math.fsum(each * each for each in g))
            factor = min(1.0, optimizer.clip / (length + 1e-6))
            g = [factor * each for each in g]
        w = optimizer.weight_decay
        if not isinstance(optimizer, AdamW):
            g, w = [a + w * b for a, b in zip(g, y, strict=True)], 0.0
        for j, each in enumerate(g):
            u = each
            if isinstance(optimizer, Momentum):
                m[j] = optimizer.beta * m[j] + each
                u = each + optimizer.beta * m[j] if optimizer.nesterov else m[j]
            if isinstance(optimizer, Adam):
                m[j] = optimizer.beta1 * m[j] + (1 - optimizer.beta1) * each
                v[j] = optimizer.beta2 * v[j] + (1 - optimizer.beta2) * each * each
                top = m[j] / (1 - optimizer.beta1**k)
                u = top / (math.sqrt(v[j] / (1 - optimizer.beta2**k)) + optimizer.eps)
            y[j] -= eta * (u + w * y[j])
    return np.array(y) - np.array(start)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_the_move_of_a_client_follows_the_formulas(optimizer, mu):
    problem, x = quadratic(), np.array([-1.0, 0.5, 1.0, 2.0])
    method = fp.FedProx(S=8, K=5, eta_l=0.03, b=None, mu=mu, client_optimizer=optimizer)
    oracle = problem.oracle(np.arange(8), RoundDraws(0, 0))
    reply, _ = method.client(Model(x), oracle, None)
    for i in range(8):
        A, b = problem.A[i], problem.b[i].mean(axis=0)
        wanted = steps_of_one(optimizer, lambda y, A=A, b=b: A @ y - b, x, 5, 0.03, mu)
        np.testing.assert_allclose(reply.dy[i], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("optimizer", [SGD(), Momentum(0.0), Momentum(0.0, nesterov=True)], ids=str)
def test_no_momentum_no_decay_no_clipping_is_plain_local_sgd(name, optimizer):
    problem = uneven("logistic-nonconvex")
    plain = fp.METHODS[name](S=5, K=4, eta_l=0.1)
    other = dataclasses.replace(plain, client_optimizer=optimizer)
    first, second = (fp.simulate(problem, method, rounds=8, seed=3) for method in (plain, other))
    np.testing.assert_allclose(second.x, first.x, rtol=0, atol=1e-12)
    assert first.last("gradients") == second.last("gradients")


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("kind", ["logistic", "quadratic", "unfused"])
def test_one_client_alone_equals_its_row(optimizer, kind):
    problem = quadratic(noise=1.0) if kind == "quadratic" else uneven("logistic")
    problem = Unfused(problem) if kind == "unfused" else problem
    method = fp.LocalTraining(S=5, K=4, eta_l=0.1, b=2, client_optimizer=optimizer)
    message = Model(np.linspace(-1, 1, problem.d))
    clients, draws = np.arange(problem.N), RoundDraws(4, 2)
    together, _ = method.client(message, problem.oracle(clients, draws), None)
    for i in range(problem.N):
        alone, _ = method.client(message, problem.oracle(np.array([i]), draws), None)
        assert alone.dy[0].tobytes() == together.dy[i].tobytes()


def test_moments_begin_at_zero_in_every_round():
    """The second round is a first one from another model."""
    problem = quadratic()
    method = fp.LocalTraining(S=8, K=3, eta_l=0.02, b=None, client_optimizer=Momentum(0.9))
    run = Simulation(problem, method, seed=0)
    run.step()
    again = Simulation(problem, method, seed=0, options=fp.RunOptions(x0=run.x))
    run.step()
    again.step()
    assert run.x.tobytes() == again.x.tobytes()


def test_norms_and_clipping():
    rng = np.random.default_rng(0)
    for d in (1, 2, 3, 7, 64, 1001):
        rows = rng.normal(size=(5, d))
        wanted = np.linalg.norm(rows, axis=1)[:, None]
        np.testing.assert_allclose(row_norms(rows), wanted, rtol=1e-14)
        assert row_norms(rows[2:3]).tobytes() == row_norms(rows)[2:3].tobytes()
    short = np.array([[0.3, 0.4]])
    assert clip_rows(short, 1.0).tobytes() == short.tobytes()
    long = clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    np.testing.assert_allclose(long, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)
