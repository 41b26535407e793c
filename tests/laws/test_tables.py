"""Laws of methods whose clients keep a table of gradients.

The replays use nothing of fedpage: only lists, loops and the formulas of the papers.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from plain import X0, D, M, N, add, chance, grad, mean, some_rows
from support import Replay, ScriptedDraws, quadratic, uneven

import fedpage as fp
from fedpage.engine.simulation import Simulation
from fedpage.methods import table_steps

# Replays


@pytest.mark.parametrize("lam", [None, 0.7])
def test_zerosarah(objective, check, lam):
    S, b, eta = 2, 3, 0.2
    weight = S / (2 * N) if lam is None else lam
    x, x_prev, v, h = X0, None, None, [0.0] * D
    y, script, expected = [[0.0] * D for _ in range(N)], [], []
    for r in range(9):
        clients = sorted(chance.sample(range(N), S))
        batches = {i: [some_rows(b)] for i in clients}
        changes, drifts = [], []
        for i in clients:
            p = grad(objective, i, batches[i][0], x)
            q = p if r == 0 else grad(objective, i, batches[i][0], x_prev)
            changes.append(add((1, p), (-1, q)))
            drifts.append(add((1, q), (-1, y[i])))
            y[i] = p
        if r == 0:
            v = mean(drifts)
        else:
            v = add((1, mean(changes)), (1 - weight, v), (weight, mean(drifts)), (weight, h))
        h = mean(y)
        x, x_prev = add((1, x), (-eta, v)), x
        script.append(ScriptedDraws(r, False, clients, batches))
        expected.append(x)
    run = check(fp.ZeroSARAH(S=S, eta=eta, lam=lam, b=b), script, expected)
    np.testing.assert_allclose(run.state.h, h, rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.client_states.get_all().y, y, rtol=0, atol=1e-10)


# Estimators


def test_zerosarahs_bias_contracts_by_exactly_one_minus_lam():
    """E[v^r] - grad f(x^r) = (1 - lam)(v^{r-1} - grad f(x^{r-1})), over all pairs of clients."""
    problem, lam = quadratic(), 0.3
    method = fp.ZeroSARAH(S=2, lam=lam)
    x, x_prev, v, y = _any_state(problem)

    def next_v(clients: tuple[int, ...]) -> np.ndarray:
        run = Replay(problem, method, script=[None, ScriptedDraws(1, False, list(clients), {})])
        run.state = run.state._replace(x=x, x_prev=x_prev, v=v, h=y.mean(axis=0))
        run.client_states.put(np.arange(problem.N), method.client_state(y))
        run.costs.round = 1
        run.step()
        return run.state.v

    pairs = itertools.combinations(range(problem.N), 2)
    left = np.mean([next_v(pair) for pair in pairs], axis=0) - problem.grad(x)
    np.testing.assert_allclose(left, (1 - lam) * (v - problem.grad(x_prev)), rtol=0, atol=1e-12)


def _any_state(problem):
    rng = np.random.default_rng(0)
    return *rng.normal(size=(3, problem.d)), rng.normal(size=(problem.N, problem.d))


# Step sizes


def gradients(problem, x) -> np.ndarray:
    """Return all clients' gradients at x, (N, d)."""
    return problem.evaluate_clients(np.arange(problem.N), x).gradients


def mean_square(vectors) -> float:
    return float((vectors**2).sum(axis=-1).mean())
