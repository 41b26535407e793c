"""Laws of momentum and adaptive servers, FedExP, and the Mime family, with replays of each."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from plain import X0, D, M, N, add, chance, grad, mean, some_rows
from support import quadratic, uneven

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.engine.simulate import Simulation
from fedpage.testing import ScriptedDraws

ALL_ROWS = list(range(M))
ADAPTIVE = ("FedAdagrad", "FedAdam", "FedYogi")


def plain_moves(objective, x, clients, batches, eta):
    """Return y_K - x of each client, after steps of SGD."""
    moves = []
    for i in clients:
        y = x
        for rows in batches[i]:
            y = add((1, y), (-eta, grad(objective, i, rows, y)))
        moves.append(add((1, y), (-1, x)))
    return moves


def sample(S, K, b):
    """Return S clients, and K minibatches for each."""
    clients = sorted(chance.sample(range(N), S))
    return clients, {i: [some_rows(b) for _ in range(K)] for i in clients}


def sign(t):
    return (t > 0) - (t < 0)


# Replays against plain Python


@pytest.mark.parametrize("name", ["FedAvgM", "FedNesterov"])
def test_replay_of_momentum(objective, check, name):
    S, K, b, eta_l, eta_g, beta = 2, 3, 2, 0.1, 1.2, 0.7
    x, m, script, expected = X0, [0.0] * D, [], []
    for r in range(8):
        clients, batches = sample(S, K, b)
        move = mean(plain_moves(objective, x, clients, batches, eta_l))
        m = add((beta, m), (1, move))
        if name == "FedAvgM":
            x = add((1, x), (eta_g, m))
        else:
            x = add((1, x), (eta_g, move), (eta_g * beta, m))
        script.append(ScriptedDraws(r, False, clients, batches))
        expected.append(x)
    method = getattr(fp, name)(S=S, K=K, b=b, eta_l=eta_l, eta_g=eta_g, beta=beta)
    run = check(method, script, expected)
    np.testing.assert_allclose(run.state.m, m, rtol=0, atol=1e-10)


@pytest.mark.parametrize("beta1", [0.0, 0.8])
@pytest.mark.parametrize("name", ADAPTIVE)
def test_replay_of_adaptive_servers(objective, check, name, beta1):
    S, K, b, eta_l, eta_g, beta2, tau = 2, 3, 2, 0.15, 0.1, 0.7, 0.02
    x, m, v, script, expected = X0, [0.0] * D, [tau * tau] * D, [], []
    for r in range(8):
        clients, batches = sample(S, K, b)
        move = mean(plain_moves(objective, x, clients, batches, eta_l))
        m = add((beta1, m), (1 - beta1, move))
        for k, t in enumerate(move):
            if name == "FedAdagrad":
                v[k] += t * t
            elif name == "FedYogi":
                v[k] -= (1 - beta2) * t * t * sign(v[k] - t * t)
            else:
                v[k] = beta2 * v[k] + (1 - beta2) * t * t
        x = [x[k] + eta_g * m[k] / (math.sqrt(v[k]) + tau) for k in range(D)]
        script.append(ScriptedDraws(r, False, clients, batches))
        expected.append(x)
    more = {} if name == "FedAdagrad" else {"beta2": beta2}
    method = getattr(fp, name)(
        S=S, K=K, b=b, eta_l=eta_l, eta_g=eta_g, beta1=beta1, tau=tau, **more
    )
    run = check(method, script, expected)
    np.testing.assert_allclose(run.state.v, v, rtol=0, atol=1e-10)


@pytest.mark.parametrize("averaged", [False, True])
def test_replay_of_fedexp(objective, check, averaged):
    S, K, b, eta_l, eps = 3, 3, 2, 0.3, 0.01
    x, script, expected, factors = X0, [], [], []
    for r in range(10):
        clients, batches = sample(S, K, b)
        moves = plain_moves(objective, x, clients, batches, eta_l)
        move = mean(moves)
        spread = sum(t * t for own in moves for t in own) / S
        factors.append(max(1.0, spread / (2 * (sum(t * t for t in move) + eps))))
        x, before = add((1, x), (factors[-1], move)), x
        script.append(ScriptedDraws(r, False, clients, batches))
        expected.append(mean([x, before]) if averaged else x)
    run = check(fp.FedExP(S=S, K=K, b=b, eta_l=eta_l, eps=eps, averaged=averaged), script, expected)
    assert run.state.eta_g == pytest.approx(factors[-1], abs=1e-10)
    assert max(factors) > 1.0


def test_replay_of_mimelite(objective, check):
    S, K, b, eta_l, eta_g, beta = 2, 3, 2, 0.15, 1.2, 0.6
    x, m, script, expected = X0, [0.0] * D, [], []
    for r in range(8):
        clients, batches = sample(S, K, b)
        moves = []
        for i in clients:
            y = x
            for rows in batches[i]:
                g = grad(objective, i, rows, y)
                y = add((1, y), (-eta_l * (1 - beta), g), (-eta_l * beta, m))
            moves.append(add((1, y), (-1, x)))
        c = mean([grad(objective, i, ALL_ROWS, x) for i in clients])
        x, m = add((1, x), (eta_g, mean(moves))), add((1 - beta, c), (beta, m))
        script.append(ScriptedDraws(r, False, clients, batches))
        expected.append(x)
    run = check(fp.MimeLite(S=S, K=K, b=b, eta_l=eta_l, eta_g=eta_g, beta=beta), script, expected)
    np.testing.assert_allclose(run.state.m, m, rtol=0, atol=1e-10)


class TwoExchanges(ScriptedDraws):
    """Draws of a second exchange: `ago` gives the clients of the first, else others."""

    def __init__(self, round, clients, batches):
        super().__init__(round, False, sorted(set(range(N)) - set(clients))[: len(clients)], {})
        self._same, self._batches = clients, batches

    def clients(self, N, S, ago=0):
        return np.array(self._same, dtype=np.int64) if ago == 1 else super().clients(N, S)


def test_replay_of_mime(objective, check):
    S, K, b, eta_l, eta_g, beta = 2, 3, 2, 0.15, 1.2, 0.6
    x, m, script, expected = X0, [0.0] * D, [], []
    for r in range(0, 12, 2):
        clients, batches = sample(S, K, b)
        c = mean([grad(objective, i, ALL_ROWS, x) for i in clients])
        moves = []
        for i in clients:
            y = x
            for rows in batches[i]:
                change = add((1, grad(objective, i, rows, y)), (-1, grad(objective, i, rows, x)))
                # the paper's step, with the momentum of the last iteration
                step = add((1 - beta, add((1, change), (1, c))), (beta, m))
                y = add((1, y), (-eta_l, step))
            moves.append(add((1, y), (-1, x)))
        m = add((1 - beta, c), (beta, m))
        expected.append(x)
        x = add((1, x), (eta_g, mean(moves)))
        expected.append(x)
        script += [ScriptedDraws(r, False, clients, {}), TwoExchanges(r + 1, clients, batches)]
    method = fp.Mime(S=S, K=K, b=b, eta_l=eta_l, eta_g=eta_g, beta=beta)
    run = check(method, script, expected)
    np.testing.assert_allclose(run.state.m, m, rtol=0, atol=1e-10)


# FedOpt


@pytest.mark.parametrize("name", ["FedAvgM", "FedNesterov"])
def test_without_momentum_the_bits_are_fedavgs(name):
    for problem in (uneven("robust"), quadratic(noise=1.0)):
        options = {"S": 4, "K": 5, "eta_l": 0.05, "eta_g": 1.3, "b": 2}
        plain = fp.simulate(problem, fp.FedAvg(**options), rounds=30, seed=2)
        same = fp.simulate(problem, getattr(fp, name)(**options, beta=0.0), rounds=30, seed=2)
        other = fp.simulate(problem, getattr(fp, name)(**options, beta=0.1), rounds=30, seed=2)
        assert same.same(plain)
        assert not other.same(plain)


def iterates(problem, method, rounds):
    run = Simulation(problem, method, seed=0, options=fp.RunOptions(x0=np.ones(problem.d)))
    xs = []
    for _ in range(rounds):
        run.step()
        xs.append(run.x)
    return xs


def test_fedavgm_with_one_full_step_is_the_heavy_ball():
    """Compare with x <- x - s grad f(x) + beta (x - x_before)."""
    problem, s, beta = quadratic(noise=1.0), 0.05, 0.7
    method = fp.FedAvgM(S=8, K=1, b=None, eta_l=s / 2, eta_g=2.0, beta=beta)
    before = x = np.ones(4)
    for found in iterates(problem, method, 20):
        before, x = x, x - s * problem.grad(x) + beta * (x - before)
        np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)


def test_fednesterov_with_one_full_step_is_nesterovs_sequence():
    """Compare with x <- y - s grad f(y), y <- x + beta (x - x_before)."""
    problem, s, beta = quadratic(noise=1.0), 0.05, 0.7
    method = fp.FedNesterov(S=8, K=1, b=None, eta_l=s / 2, eta_g=2.0, beta=beta)
    y = x = np.ones(4)
    for found in iterates(problem, method, 20):
        before, x = x, y - s * problem.grad(y)
        y = x + beta * (x - before)
        np.testing.assert_allclose(found, y, rtol=0, atol=1e-12)


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


def fedavgs_limit(problem, K, eta):
    """Return where FedAvg with all clients and all rows ends: mean(y_K - x) = 0."""
    one = np.eye(problem.d)
    P = np.array([one - np.linalg.matrix_power(one - eta * a, K) for a in problem.A])
    own = np.linalg.solve(problem.A, problem.b.mean(axis=1)[:, :, None])[:, :, 0]
    return np.linalg.solve(P.mean(axis=0), np.einsum("nij,nj->i", P, own) / problem.N)


SERVERS = {
    "FedAvgM": {"beta": 0.5},
    "FedNesterov": {"beta": 0.5},
    "FedAdagrad": {"eta_g": 1.0, "tau": 0.5},
    "FedAdam": {"eta_g": 0.5, "tau": 0.5, "beta1": 0.5},
    "FedYogi": {"eta_g": 0.5, "tau": 0.5, "beta1": 0.5},
}


@pytest.mark.parametrize("K", [1, 6])
@pytest.mark.parametrize("name", SERVERS)
def test_no_server_changes_where_fedavg_ends(name, K):
    problem, eta = quadratic(), 0.05
    method = getattr(fp, name)(S=8, K=K, b=None, eta_l=eta, **SERVERS[name])
    limit = fedavgs_limit(problem, K, eta)
    history = fp.simulate(problem, method, rounds=1500, seed=0, record_every=0)
    np.testing.assert_allclose(history.x, limit, rtol=0, atol=1e-10)
    assert (np.linalg.norm(limit - problem.x_star) < 1e-12) == (K == 1)


def test_yogis_second_moment_falls_slower_than_adams():
    adam, yogi = fp.FedAdam(beta2=0.9), fp.FedYogi(beta2=0.9)
    v, move = np.array([4.0, 1e-4, 1.0]), np.array([0.1, 0.1, 1.0])
    np.testing.assert_allclose(adam.second_moment(v, move), 0.9 * v + 0.1 * move**2)
    np.testing.assert_allclose(yogi.second_moment(v, move), [3.999, 1e-4 + 1e-3, 1.0])
    single = yogi.second_moment(v.astype(np.float32), move.astype(np.float32))
    assert single.dtype == np.float32


def test_effective_steps():
    assert fp.FedAvgM(K=4, eta_l=0.1, eta_g=2.0, beta=0.75).effective_step == pytest.approx(3.2)
    method = fp.FedNesterov(K=4, eta_g=2.0, beta=0.75).with_step(0.32)
    assert method.eta_l == pytest.approx(0.01)
    adam = fp.FedAdam(eta_l=0.3, eta_g=0.2)
    assert adam.effective_step == 0.2
    assert adam.with_step(0.7) == fp.FedAdam(eta_l=0.3, eta_g=0.7)
    assert fp.FedExP(K=5, eta_l=0.1).effective_step == pytest.approx(0.5)
    assert fp.Mime(K=5, eta_l=0.1, eta_g=3.0).effective_step == pytest.approx(1.5)


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


def test_fedexp_extrapolates_where_clients_disagree_and_never_shortens():
    problem = quadratic()
    run = Simulation(problem, fp.FedExP(S=8, K=5, eta_l=0.05, b=None), seed=0)
    factors = []
    for _ in range(60):
        run.step()
        factors.append(run.state.eta_g)
    assert min(factors) == 1.0
    assert max(factors) > 2.0


def test_fedexps_average_is_the_mean_of_the_last_two_iterates():
    problem = uneven("robust")
    plain, averaged = (
        Simulation(problem, fp.FedExP(S=4, K=5, eta_l=0.1, b=2, averaged=flag), seed=0)
        for flag in (False, True)
    )
    xs = [plain.x]
    for _ in range(20):
        plain.step()
        averaged.step()
        xs.append(plain.x)
        np.testing.assert_array_equal(averaged.x, (xs[-1] + xs[-2]) / 2)
        np.testing.assert_array_equal(averaged.state.iterate, plain.x)


# The Mime family


def test_mimelite_without_momentum_has_fedavgs_iterates():
    for problem in (uneven("robust"), uneven("logistic-l2"), quadratic(noise=1.0)):
        options = {"S": 4, "K": 5, "eta_l": 0.05, "eta_g": 1.3, "b": 2}
        plain = fp.simulate(problem, fp.FedAvg(**options), rounds=20, seed=2)
        lite = fp.simulate(problem, fp.MimeLite(**options, beta=0.0), rounds=20, seed=2)
        assert lite.x.tobytes() == plain.x.tobytes()


def test_mime_and_mimelite_with_one_step_of_all_clients_are_momentum_descent():
    """Compare with m <- (1 - beta) grad f(x) + beta m, x <- x - s m."""
    problem, s, beta = quadratic(noise=1.0), 0.1, 0.6
    options = {"S": 8, "K": 1, "b": None, "eta_l": s / 2, "eta_g": 2.0, "beta": beta}
    x, m, expected = np.ones(4), np.zeros(4), []
    for _ in range(10):
        m = (1 - beta) * problem.grad(x) + beta * m
        x = x - s * m
        expected.append(x)
    lite = iterates(problem, fp.MimeLite(**options), 10)
    np.testing.assert_allclose(lite, expected, rtol=0, atol=1e-12)
    mime = iterates(problem, fp.Mime(**options), 20)
    np.testing.assert_allclose(mime[1::2], expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(mime[2::2], mime[1:-1:2])  # gradients alone do not move x


def test_mime_with_all_clients_reaches_the_optimum_for_any_K():
    problem = quadratic()
    method = fp.Mime(S=8, K=6, eta_l=0.03, b=None)
    history = fp.simulate(problem, method, rounds=1600, seed=0, record_every=0)
    np.testing.assert_allclose(history.x, problem.x_star, rtol=0, atol=1e-9)
    resting = fp.simulate(
        problem, method, rounds=40, seed=0, options=fp.RunOptions(x0=problem.x_star)
    )
    np.testing.assert_allclose(resting.x, problem.x_star, rtol=0, atol=1e-11)


def test_both_exchanges_call_the_same_clients_and_count_as_rounds():
    problem = uneven("robust")
    method = fp.Mime(S=4, K=3, eta_l=0.05, b=2)
    run = Simulation(problem, method, seed=5)
    called = []
    for _ in range(12):
        call = method.call(run.state, run.draws())
        called.append(tuple(call.clients.tolist()))
        assert ("m" in call.message._fields) == (len(called) % 2 == 0)
        run.step()
    assert called[0::2] == called[1::2]
    assert len(set(called)) == 6
    assert run.costs.round == 12
    assert run.costs.floats_down == 4 * problem.d * (6 + 6 * 2)
    assert run.costs.floats_up == 4 * problem.d * 12


@pytest.mark.parametrize("name", [*SERVERS, "FedExP", "Mime", "MimeLite"])
def test_replies_pass_through_unbiased_codecs_only(name):
    problem = uneven("robust")
    plain, coded = (
        fp.simulate(problem, getattr(fp, name)(S=4, K=2, eta_l=0.05, b=2, up=up), rounds=6, seed=1)
        for up in ("none", "natural")
    )
    vectors, numbers = (2 if name == "MimeLite" else 1), (1 if name == "FedExP" else 0)
    replies = 6 * 4
    assert plain.last("bits_up") == replies * (vectors * problem.d + numbers) * 64
    assert coded.last("bits_up") == replies * (vectors * problem.d * 12 + numbers * 64)
    assert 0 < np.linalg.norm(coded.x - plain.x) < np.linalg.norm(plain.x)
    cast = getattr(fp, name)(S=4, K=2, eta_l=0.05, b=2, down="float32")
    short = fp.simulate(problem, cast, rounds=6, seed=1)
    assert 2 * short.last("bits_down") == plain.last("bits_down")
    np.testing.assert_allclose(short.x, plain.x, rtol=0, atol=1e-6)
    with pytest.raises(fp.InputError, match=f"{name}: up=topk:2 is biased"):
        getattr(fp, name)(up="topk:2")


def test_clients_of_an_earlier_round_are_those_that_it_drew():
    for ago, S in itertools.product((1, 3), (5, 40)):
        now, then = RoundDraws(7, 9), RoundDraws(7, 9 - ago)
        assert now.clients(40, S, ago=ago).tolist() == then.clients(40, S).tolist()
    assert (RoundDraws(7, 9).clients(40, 5, ago=1) != RoundDraws(7, 9).clients(40, 5)).any()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("FedAvgM", {"beta": 1.0}, "FedAvgM: beta must be in [0, 1), not 1.0"),
        ("FedNesterov", {"beta": -0.1}, "FedNesterov: beta must be in [0, 1), not -0.1"),
        ("FedAdam", {"beta1": 1.0}, "FedAdam: beta1 must be in [0, 1), not 1.0"),
        ("FedYogi", {"beta2": True}, "FedYogi: beta2 must be in [0, 1), not True"),
        ("FedAdagrad", {"tau": 0.0}, "FedAdagrad: tau must be a finite number above 0, not 0.0"),
        ("FedExP", {"eps": 0.0}, "FedExP: eps must be a finite number above 0, not 0.0"),
        ("FedExP", {"averaged": 1}, "FedExP: averaged must be True or False, not 1"),
        ("FedExP", {"K": 0}, "FedExP: K must be a whole number"),
        ("MimeLite", {"beta": 1.0}, "MimeLite: beta must be in [0, 1), not 1.0"),
        ("Mime", {"beta": float("nan")}, "Mime: beta must be in [0, 1), not nan"),
    ],
)
def test_nonsense_is_refused_in_one_line(name, options, words):
    with pytest.raises(fp.InputError) as caught:
        getattr(fp, name)(**options)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*SERVERS, "FedExP", "Mime", "MimeLite"])
def test_more_clients_than_there_are_cannot_be_sampled(name):
    with pytest.raises(fp.InputError, match="cannot sample S=9 of N=8 clients"):
        fp.simulate(quadratic(), getattr(fp, name)(S=9), rounds=1, seed=0)
