"""Laws of SCAFFOLD's wire form and momentum, of FedDyn and of Scaffnew.

The replays are plain Python and the formulas of the papers.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
from plain import X0, ZERO, N, Plain, mean
from support import all_gradients, quadratic

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.engine.simulate import Simulation
from fedpage.methods.scaffold_variants import ScaffoldMomentum, ScaffoldOptionI

# SCAFFOLD


@dataclasses.dataclass(frozen=True)
class MomentumOptionI(ScaffoldMomentum, ScaffoldOptionI):
    """Both variants at once."""


def scaffold(plain: Plain, m):
    x, c, own, move = X0, ZERO, [ZERO] * N, ZERO
    while True:
        moves, changes = [], []
        for i in plain.clients(m.S):
            y = x
            for _ in range(m.K):
                y = y - m.eta_l * (plain.grad(i, y, plain.batch(i, m.b)) - own[i] + c)
            if isinstance(m, ScaffoldOptionI):
                new = plain.grad(i, x, plain.batch(i, m.b0))
            else:
                new = own[i] - c + (x - y) / (m.K * m.eta_l)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        move = getattr(m, "beta", 0.0) * move + m.eta_g * mean(moves)
        x, c = x + move, c + m.S / N * mean(changes)
        yield x, {"c": c}, {"c": own}


def feddyn(plain: Plain, m):
    x, a, own = X0, ZERO, [ZERO] * N
    while True:
        moves = []
        for i in plain.clients(m.S):
            y = x
            for _ in range(m.K):
                g = plain.grad(i, y, plain.batch(i, m.b))
                y = y - m.eta_l * (g + m.mu * (y - x + own[i]))
            moves.append(y - x)
            own[i] = own[i] + y - x
        a = a + m.S / N * mean(moves)
        x = x + mean(moves) + a
        yield x, {"a": a}, {"a": own}


def scaffnew(plain: Plain, m):
    x, h = X0, [ZERO] * N
    while True:
        ends, K = [], plain.steps()
        for i in range(N):
            y = x
            for _ in range(K):
                y = y - m.eta * (plain.grad(i, y, plain.batch(i, m.b)) - h[i])
            ends.append(y)
        x, used = mean(ends), h
        h = [used[i] + m.p / m.eta * (x - ends[i]) for i in range(N)]
        yield x, {}, {"h": used}  # clients learn the mean in the next round


LOCAL: dict[str, Any] = {"S": 2, "K": 3, "b": 2, "eta_l": 0.15}
REPLAYS: dict[str, Any] = {
    "option I": (scaffold, ScaffoldOptionI(b0=3, eta_g=1.2, **LOCAL)),
    "option II": (scaffold, fp.SCAFFOLD(eta_g=1.2, **LOCAL)),
    "option I, momentum": (scaffold, MomentumOptionI(b0=3, eta_g=1.2, beta=0.6, **LOCAL)),
    "option II, momentum": (scaffold, ScaffoldMomentum(eta_g=1.2, beta=0.6, **LOCAL)),
    "FedDyn": (feddyn, fp.FedDyn(mu=1.7, **LOCAL)),
    "Scaffnew": (scaffnew, fp.Scaffnew(p=0.3, eta=0.15, b=2)),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_replay(check, name):
    algorithm, method = REPLAYS[name]
    run = check(method, algorithm, rounds=8)
    rows = {"option I": 8 * 2 * (3 * 2 + 3), "option II": 8 * 2 * 3 * 2}
    assert run.costs.gradients == rows.get(name, run.costs.gradients)


# FedDyn


def test_feddyns_a_is_a_gradient_where_clients_solve_their_problems():
    """With exact local solutions y_i, -mu a_i is client i's gradient at y_i."""
    problem, mu, S = quadratic(), 3.0, 3
    run = Simulation(problem, fp.FedDyn(S=S, K=400, b=None, mu=mu), seed=1)
    for r in range(4):
        x, before = run.x, run.client_states.get_all().a.copy()
        clients = RoundDraws(1, r).clients(problem.N, S)
        run.step()
        after = run.client_states.get_all().a
        ends = x + after - before
        for i in clients:
            gradient = all_gradients(problem, ends[i])[i]
            np.testing.assert_allclose(-mu * after[i], gradient, rtol=0, atol=1e-9)


def test_feddyns_default_local_step_is_half_of_one_over_mu():
    problem = quadratic()
    default, given = (
        fp.simulate(problem, fp.FedDyn(S=3, K=4, mu=4.0, eta_l=eta_l), rounds=5, seed=0)
        for eta_l in (None, 0.125)
    )
    assert default.x.tobytes() == given.x.tobytes()
    tuned = fp.FedDyn.from_theory(problem, S=2, K=5)
    L = problem.smoothness().client
    assert (tuned.mu, tuned.eta_l) == (L, 1 / (2 * L))


# Scaffnew


def test_scaffnew_takes_one_over_p_steps_on_average_and_counts_the_number_it_sends():
    problem, p, rounds = quadratic(), 0.2, 2000
    run = Simulation(problem, fp.Scaffnew(p=p, eta=0.01), seed=0)
    for _ in range(rounds):
        run.step()
    steps = run.costs.evaluations / (problem.N * rounds)
    assert steps == pytest.approx(1 / p, rel=0.07)  # three standard deviations
    assert run.costs.floats_down == rounds * problem.N * (problem.d + 1)
    assert run.costs.bytes_down == rounds * problem.N * 8 * (problem.d + 1)
    assert run.costs.bytes_up == rounds * problem.N * 8 * problem.d


def test_the_steps_of_scaffnew():
    problem = quadratic()
    values = np.linalg.eigvalsh(problem.A)
    method = fp.Scaffnew.from_theory(problem, mu=values.min())
    assert method.eta == pytest.approx(1 / values.max())
    assert method.p == pytest.approx(np.sqrt(values.min() / values.max()))
