"""Laws of momentum and adaptive servers, FedExP, and the Mime family, with replays of each."""

import itertools
from typing import Any

import numpy as np
import pytest
from plain import X0, ZERO, Plain, mean
from support import quadratic

import fedpage as fp
from fedpage.core.random import RoundDraws

ADAPTIVE = ("FedAdagrad", "FedAdam", "FedYogi")


def local_sgd(plain: Plain, i, x, m):
    """Return y_K - x after steps of SGD of a client."""
    y = x
    for _ in range(m.K):
        y = y - m.eta_l * plain.grad(i, y, plain.batch(i, m.b))
    return y - x


# Replays against plain Python


def momentum(plain: Plain, m):
    x, v = X0, ZERO
    while True:
        move = mean(local_sgd(plain, i, x, m) for i in plain.clients(m.S))
        v = m.beta * v + move
        x = x + m.eta_g * (move + m.beta * v if isinstance(m, fp.FedNesterov) else v)
        yield x, {"m": v}, {}


def adaptive(plain: Plain, m):
    x, first, v = X0, ZERO, ZERO + m.tau**2
    while True:
        move = mean(local_sgd(plain, i, x, m) for i in plain.clients(m.S))
        first = m.beta1 * first + (1 - m.beta1) * move
        if isinstance(m, fp.FedAdagrad):
            v = v + move**2
        elif isinstance(m, fp.FedYogi):
            v = v - (1 - m.beta2) * move**2 * np.sign(v - move**2)
        else:
            v = m.beta2 * v + (1 - m.beta2) * move**2
        x = x + m.eta_g * first / (np.sqrt(v) + m.tau)
        yield x, {"m": first, "v": v}, {}


def fedexp(plain: Plain, m):
    x = X0
    while True:
        moves = [local_sgd(plain, i, x, m) for i in plain.clients(m.S)]
        move, spread = mean(moves), mean(own @ own for own in moves)
        factor = max(1.0, spread / (2 * (move @ move + m.eps)))
        x, before = x + factor * move, x
        yield mean([x, before]) if m.averaged else x, {"eta_g": factor}, {}


def mimelite(plain: Plain, m):
    x, v = X0, ZERO
    while True:
        moves = []
        for i in plain.clients(m.S):
            y = x
            for _ in range(m.K):
                g = plain.grad(i, y, plain.batch(i, m.b))
                y = y - m.eta_l * ((1 - m.beta) * g + m.beta * v)
            moves.append(y - x)
        c = mean(plain.grad(i, x) for i in plain.called)
        x, v = x + m.eta_g * mean(moves), (1 - m.beta) * c + m.beta * v
        yield x, {"m": v}, {}


def mime(plain: Plain, m):
    x, v = X0, ZERO
    while True:
        c = mean(plain.grad(i, x) for i in plain.clients(m.S))
        yield x, {}, {}
        moves = []
        for i in plain.same_clients():
            y = x
            for _ in range(m.K):
                rows = plain.batch(i, m.b)
                g = plain.grad(i, y, rows) - plain.grad(i, x, rows) + c
                # the paper's step, with the momentum of the last iteration
                y = y - m.eta_l * ((1 - m.beta) * g + m.beta * v)
            moves.append(y - x)
        x, v = x + m.eta_g * mean(moves), (1 - m.beta) * c + m.beta * v
        yield x, {"m": v}, {}


LOCAL: dict[str, Any] = {"S": 2, "K": 3, "b": 2, "eta_l": 0.15}
MIME: dict[str, Any] = {**LOCAL, "eta_g": 1.2, "beta": 0.6}
SERVER: dict[str, Any] = {**LOCAL, "eta_g": 0.1, "tau": 0.02}
REPLAYS: dict[str, Any] = {
    "FedAvgM": (momentum, fp.FedAvgM(**MIME)),
    "FedNesterov": (momentum, fp.FedNesterov(**MIME)),
    "MimeLite": (mimelite, fp.MimeLite(**MIME)),
    "Mime": (mime, fp.Mime(**MIME)),
}
for beta1 in (0.0, 0.8):
    REPLAYS |= {
        f"FedAdagrad {beta1}": (adaptive, fp.FedAdagrad(beta1=beta1, **SERVER)),
        f"FedAdam {beta1}": (adaptive, fp.FedAdam(beta1=beta1, beta2=0.7, **SERVER)),
        f"FedYogi {beta1}": (adaptive, fp.FedYogi(beta1=beta1, beta2=0.7, **SERVER)),
    }
for averaged in (False, True):
    exp = fp.FedExP(S=3, K=3, b=2, eta_l=0.3, eps=0.01, averaged=averaged)
    REPLAYS[f"FedExP {averaged}"] = (fedexp, exp)


@pytest.mark.parametrize("name", REPLAYS)
def test_replay(check, name):
    algorithm, method = REPLAYS[name]
    check(method, algorithm, rounds=10)


# FedOpt


@pytest.mark.parametrize("factor", [1e-3, 50.0])
@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_servers_do_not_depend_on_the_scale_of_f(name, factor):
    problem = quadratic(noise=1.0)
    scaled = fp.Quadratic(factor * problem.A, factor * problem.b)
    method = getattr(fp, name)(S=3, K=1, b=2, eta_l=0.02, eta_g=0.05, tau=1e-100)
    one = fp.simulate(problem, method, rounds=30, seed=0)
    two = fp.simulate(scaled, method, rounds=30, seed=0)
    np.testing.assert_allclose(one.x, two.x, rtol=0, atol=1e-9)
    assert np.linalg.norm(one.x) > 0.1


SERVERS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx": {"mu": 0.7},
    "FedAvgM": {"beta": 0.5},
    "FedNesterov": {"beta": 0.5},
    "FedAdagrad": {"eta_g": 1.0, "tau": 0.5},
    "FedAdam": {"eta_g": 0.5, "tau": 0.5, "beta1": 0.5},
    "FedYogi": {"eta_g": 0.5, "tau": 0.5, "beta1": 0.5},
}


@pytest.mark.parametrize("K", [1, 6])
@pytest.mark.parametrize("name", SERVERS)
def test_no_server_changes_where_fedavg_ends(name, K):
    """At the point (mean P_i)^-1 mean P_i c_i, where c_i is client i's minimiser.

    P_i = (I - (I - eta (A_i + mu))^K) (A_i + mu)^-1 A_i, and mu = 0 but for FedProx.
    """
    problem, eta, mu, one = quadratic(), 0.05, SERVERS[name].get("mu", 0.0), np.eye(4)
    method = getattr(fp, name)(S=8, K=K, b=None, eta_l=eta, **SERVERS[name])
    B = problem.A + mu * one
    powers = np.array([np.linalg.matrix_power(one - eta * b, K) for b in B])
    P = (one - powers) @ np.linalg.solve(B, problem.A)
    own = np.linalg.solve(problem.A, problem.b.mean(axis=1)[:, :, None])
    limit = np.linalg.solve(P.mean(axis=0), (P @ own).mean(axis=0))[:, 0]
    history = fp.simulate(problem, method, rounds=1500, seed=0, record_every=0)
    np.testing.assert_allclose(history.x, limit, rtol=0, atol=1e-10)
    assert (np.linalg.norm(limit - problem.x_star) < 1e-12) == (K == 1)


# FedExP


def test_fedexp_with_equal_clients_or_one_client_has_fedavgs_iterates():
    one = quadratic()
    same = fp.Quadratic(np.repeat(one.A[:1], 8, axis=0), np.repeat(one.b[:1], 8, axis=0))
    for problem, S in ((same, 5), (one, 1)):
        options = {"S": S, "K": 5, "eta_l": 0.05, "b": None}
        exp = fp.simulate(problem, fp.FedExP(**options), rounds=30, seed=0)
        plain = fp.simulate(problem, fp.FedAvg(**options, eta_g=1.0), rounds=30, seed=0)
        assert exp.x.tobytes() == plain.x.tobytes()
        assert exp.last("floats_up") == plain.last("floats_up") * (problem.d + 1) // problem.d


# The Mime family


def test_mime_with_all_clients_reaches_the_optimum_for_any_K():
    problem = quadratic()
    method = fp.Mime(S=8, K=6, eta_l=0.03, b=None)
    history = fp.simulate(problem, method, rounds=1600, seed=0, record_every=0)
    np.testing.assert_allclose(history.x, problem.x_star, rtol=0, atol=1e-9)
    resting = fp.simulate(
        problem, method, rounds=40, seed=0, options=fp.RunOptions(x0=problem.x_star)
    )
    np.testing.assert_allclose(resting.x, problem.x_star, rtol=0, atol=1e-11)


def test_clients_of_an_earlier_round_are_those_that_it_drew():
    for ago, S in itertools.product((1, 3), (5, 40)):
        now, then = RoundDraws(7, 9), RoundDraws(7, 9 - ago)
        assert now.clients(40, S, ago=ago).tolist() == then.clients(40, S).tolist()
    assert (RoundDraws(7, 9).clients(40, 5, ago=1) != RoundDraws(7, 9).clients(40, 5)).any()
