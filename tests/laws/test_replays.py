"""Replay FedProx, VRL-SGD, S-Local-SVRG and leak-free FedPAGE against plain Python.

The references use nothing of fedpage: only lists, loops and the formulas of the papers, with given
clients, coins and minibatches.
"""

from __future__ import annotations

import numpy as np
import pytest
from plain import X0, D, M, N, add, chance, grad, mean, some_rows

import fedpage as fp
from fedpage.testing import ScriptedDraws


def test_fedprox(objective, check):
    S, K, b, eta_l, eta_g, mu = 2, 3, 2, 0.15, 1.2, 0.6
    x, script, expected = X0, [], []
    for r in range(8):
        clients = sorted(chance.sample(range(N), S))
        batches = {i: [some_rows(b) for _ in range(K)] for i in clients}
        moves = []
        for i in clients:
            y = x
            for rows in batches[i]:
                y = add(
                    (1, y), (-eta_l, grad(objective, i, rows, y)), (-eta_l * mu, y), (eta_l * mu, x)
                )
            moves.append(add((1, y), (-1, x)))
        x = add((1, x), (eta_g, mean(moves)))
        script.append(ScriptedDraws(r, False, clients, batches))
        expected.append(x)
    check(fp.FedProx(S=S, K=K, b=b, eta_l=eta_l, eta_g=eta_g, mu=mu), script, expected)


def test_vrl_sgd(objective, check):
    K, b, eta = 3, 2, 0.15
    x, delta, script, expected = X0, [[0.0] * D for _ in range(N)], [], []
    used = delta
    for r in range(8):
        batches = {i: [some_rows(b) for _ in range(K)] for i in range(N)}
        ends = []
        for i in range(N):
            y = x
            for rows in batches[i]:
                y = add((1, y), (-eta, grad(objective, i, rows, y)), (eta, delta[i]))
            ends.append(y)
        x = mean(ends)
        used, delta = (
            delta,
            [add((1, delta[i]), (1 / (K * eta), add((1, x), (-1, ends[i])))) for i in range(N)],
        )
        script.append(ScriptedDraws(r, False, [], batches))
        expected.append(x)
    run = check(fp.VRLSGD(K=K, b=b, eta_l=eta), script, expected)
    np.testing.assert_allclose(run.client_states.get_all().delta, used, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.sum(delta, axis=0), 0, atol=1e-10)


@pytest.mark.parametrize("S", [None, 2])
def test_s_local_svrg(objective, check, S):
    K, b, eta = 3, 2, 0.15
    coins = [
        None,
        None,
        False,
        True,
        None,
        False,
        False,
        True,
        None,
        True,
    ]  # None: no coin is tossed there
    every = list(range(M))
    x, w, h, script, expected = X0, None, None, [], []
    stepped = False
    for r, coin in enumerate(coins):
        clients = list(range(N)) if S is None else sorted(chance.sample(range(N), S))
        batches = {i: [some_rows(b) for _ in range(K)] for i in range(N)}
        if r == 0 or (stepped and coin):
            w, h, stepped = x, mean([grad(objective, i, every, x) for i in range(N)]), False
        else:
            ends = []
            for i in clients:
                y = x
                for rows in batches[i]:
                    step = add(
                        (1, grad(objective, i, rows, y)), (-1, grad(objective, i, rows, w)), (1, h)
                    )
                    y = add((1, y), (-eta, step))
                ends.append(y)
            x, stepped = mean(ends), True
        script.append(ScriptedDraws(r, bool(coin), clients, batches))
        expected.append(x)
    run = check(fp.SLocalSVRG(S=S, K=K, b=b, eta_l=eta, q=0.3), script, expected)
    np.testing.assert_allclose(run.state.h, h, rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.client_states.get_all().w, [w] * N, rtol=0, atol=1e-12)


def test_leak_free_fedpage(objective, check):
    S, K, b2, b3, eta_g, eta_l = 2, 4, 3, 1, 0.3, 0.15
    x, x_prev, g, script, expected = X0, None, None, [], []
    for r in range(9):
        coin = r in (0, 4)
        clients = sorted(chance.sample(range(N), S))
        batches = {i: [some_rows(b2)] + [some_rows(b3) for _ in range(K - 1)] for i in clients}
        if coin:
            g = mean([grad(objective, i, list(range(M)), x) for i in range(N)])
            move = g
        else:
            moves, firsts = [], []
            for i in clients:
                y, before, estimate, all_of_them = x, x_prev, g, []
                for rows in batches[i]:
                    change = add(
                        (1, grad(objective, i, rows, y)), (-1, grad(objective, i, rows, before))
                    )
                    estimate = add((1, estimate), (1, change))
                    all_of_them.append(estimate)
                    y, before = add((1, y), (-eta_l, estimate)), y
                moves.append(mean(all_of_them))
                firsts.append(all_of_them[0])
            move, g = mean(moves), mean(firsts)
        x, x_prev = add((1, x), (-eta_g, move)), x
        script.append(ScriptedDraws(r, coin, clients, batches))
        expected.append(x)
    run = check(
        fp.LeakFreeFedPAGE(S=S, K=K, b2=b2, b3=b3, eta_g=eta_g, eta_l=eta_l, p=0.2),
        script,
        expected,
    )
    np.testing.assert_allclose(run.state.g, g, rtol=0, atol=1e-10)
