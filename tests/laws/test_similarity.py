"""Laws of SVRP, SABER, DANE and S-DANE: replays in plain Python, reductions, and their theorems."""

import math
from itertools import count
from typing import Any

import numpy as np
import pytest
from plain import X0, N, Plain, mean
from support import quadratic, uneven

import fedpage as fp
from fedpage.core.types import AnyMethod, Vector
from fedpage.engine.simulate import Simulation
from fedpage.methods.icgm import ICGM
from fedpage.methods.saber import SABER
from fedpage.methods.sdane import DANE, SDANE, AccSDANE
from fedpage.methods.svrp import SVRP

DANES = [DANE, SDANE, AccSDANE]


# 1. Replays


def proximal_steps(plain: Plain, i, x, shift, m):
    """Take K steps y -= eta (grad(y) + shift + (y - x)/gamma)."""
    y, weight = x, 0.0 if m.gamma is None else m.eta_l / m.gamma
    for _ in range(m.K):
        step = plain.grad(i, y, plain.batch(i, m.b)) + shift
        y = y - m.eta_l * step - weight * (y - x)
    return y


def svrp(plain: Plain, m):
    x, stepped = X0, False
    for r in count():
        coin, clients = plain.coin(r in (3, 6, 8)), plain.clients(m.S)
        if r == 0 or (stepped and coin):
            w, h, stepped = x, plain.full(x), False
        else:
            ends = []
            for i in clients:
                shift = h - plain.grad(i, w, plain.batch(i))
                ends.append(proximal_steps(plain, i, x, shift, m))
            x, stepped = mean(ends), True
        yield x, {"w": w, "h": h}, {}


def saber(plain: Plain, m):
    x, x_prev, fresh = X0, X0, False
    for r in count():
        coin, clients = plain.coin(r in (4, 7)), plain.clients(m.S)
        if r == 0 or (not fresh and coin):
            v, fresh = plain.full(x), True
        else:
            ends, estimators = [], []
            for i in clients:
                g = plain.grad(i, x, plain.batch(i))
                estimators.append(v if fresh else v + g - plain.grad(i, x_prev))
                ends.append(proximal_steps(plain, i, x, estimators[-1] - g, m))
            x, x_prev, v, fresh = mean(ends), x, mean(estimators), False
        yield x, {"v": v}, {}


def dane(plain: Plain, m):
    """Take the local step of the authors' repository, and the paper's A and B."""
    x, v, A, B, mu, lam = X0, X0, 0.0, 1.0, getattr(m, "mu", 0.0), m.lam
    while True:
        t, z = B / lam, v
        if isinstance(m, AccSDANE):
            t = B / (2 * lam) + math.sqrt(B**2 / (4 * lam**2) + A * B / lam)
            z = (A * x + t * v) / (A + t)
        at_z = {i: plain.grad(i, z) for i in plain.clients(m.S)}
        G0 = mean(at_z.values())
        yield x, {}, {}
        ends = []
        for i in plain.same_clients():
            y = z
            plain.batch(i)  # all rows, at z
            for _ in range(m.K):
                g = plain.grad(i, y, plain.batch(i, m.b)) - at_z[i] + G0
                y = (y / m.eta_l - g + lam * z) / (1 / m.eta_l + lam)
            ends.append(y)
        x = mean(ends)
        G = mean(plain.grad(i, y) for i, y in zip(plain.called, ends, strict=True))
        v = (mu * t * x + B * v - t * G) / (mu * t + B) if isinstance(m, SDANE) else x
        if isinstance(m, AccSDANE):
            A, B = A + t, B + mu * t
            yield x, {"v": v, "A": A / B}, {}
        else:
            yield x, {"v": v}, {}


def i_cgm(plain: Plain, m):
    """Take the local step of equation (8), with L_1 = 1/eta_l."""
    L1, x = 1 / m.eta_l, X0
    b = [plain.grad(i, x) for i in range(N)]
    g, beta = mean(b), m.S / N if m.beta is None else m.beta
    for r in count():
        clients, K = plain.clients(m.S), plain.steps()
        if r % 2 == 1:
            at_x = plain.grad(m.delegate, x)
            x_prev, y = x, x
            for _ in range(K):
                step = g - at_x + plain.grad(m.delegate, y)
                y = (L1 * y + m.lam * x - step) / (m.lam + L1)
            x = y
        elif r > 0:
            old, h = mean(b[i] for i in clients), mean(b)
            for i in clients:
                b[i] = plain.grad(i, x_prev)
            saga = mean(b[i] for i in clients) - old + h
            change = mean(plain.grad(i, x) - b[i] for i in clients)
            g = change + (1 - beta) * g + beta * saga
        yield x, {"g": g} if r else {}, {"b": b}


STEPS: dict[str, Any] = {"S": 2, "K": 3, "b": 2, "eta_l": 0.15, "p": 0.3}
CGM: dict[str, Any] = {"S": 2, "lam": 1.5, "eta_l": 0.25, "p": 0.5, "delegate": 3}
REPLAYS: dict[str, Any] = {
    "SVRP": (svrp, SVRP(gamma=0.4, **STEPS)),
    "SVRP no prox": (svrp, SVRP(gamma=None, **STEPS)),
    "SABER": (saber, SABER(gamma=0.4, **STEPS)),
    "I-CGM": (i_cgm, ICGM(**CGM)),
    "I-CGM beta": (i_cgm, ICGM(beta=0.3, **CGM)),
}
for cls, mu in ((DANE, {}), (SDANE, {"mu": 0.2}), (AccSDANE, {"mu": 0.2})):
    for S in (None, 2):
        method = cls(S=S, K=3, b=2, eta_l=0.3, lam=1.5, **mu)
        REPLAYS[f"{method.name} {S}"] = (dane, method)


@pytest.mark.parametrize("name", REPLAYS)
def test_replay(check, name):
    algorithm, method = REPLAYS[name]
    check(method, algorithm, rounds=10)


# 2. Reductions


def equal_clients() -> fp.Quadratic:
    """Make 6 clients that are all alike."""
    one = fp.Quadratic.random(1, 1, 4, seed=2)
    return fp.Quadratic(np.repeat(one.A, 6, axis=0), np.repeat(one.b, 6, axis=0))


@pytest.mark.parametrize("cls", [SVRP, SABER, *DANES])
def test_exact_solutions_of_equal_clients_are_proximal_point_steps(cls):
    problem, gamma = equal_clients(), 0.8
    if issubclass(cls, DANE):
        method = cls(K=200, lam=1 / gamma, eta_l=0.5, S=3)
    else:
        method = cls(K=200, gamma=gamma, eta_l=0.3, S=3, p=1e-9)
    run = Simulation(problem, method, seed=0, options=fp.RunOptions(x0=np.ones(4)))
    x: Vector = np.ones(4)
    A, b = problem._whole
    for r in range(8):
        run.step()
        # two rounds of DANE make a step; SVRP and SABER begin with a full gradient
        if (r % 2 == 1) if issubclass(cls, DANE) else r > 0:
            x = np.asarray(np.linalg.solve(np.eye(4) + gamma * A, x + gamma * b), np.float64)
            if cls is AccSDANE:  # it extrapolates after its first step
                np.testing.assert_allclose(run.x, x, rtol=0, atol=1e-10)
                break
        np.testing.assert_allclose(run.x, x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("K", [1, 7])
def test_the_effective_step_is_the_move_along_a_constant_gradient(K):
    b = np.repeat(np.array([[[1.0, -2.0, 0.5]]]), 4, axis=0)
    problem = fp.Quadratic(np.zeros((4, 3, 3)), b)
    methods: list[AnyMethod] = [
        SVRP(S=2, K=K, gamma=0.3, eta_l=0.1),
        SVRP(S=2, K=K, gamma=None, eta_l=0.1),
        SABER(S=2, K=K, gamma=0.1, eta_l=0.1),
        DANE(K=K, lam=3.0, eta_l=0.1),
    ]
    for method in methods:
        run = Simulation(problem, method, seed=0)
        run.step()
        run.step()
        np.testing.assert_allclose(run.x, method.effective_step * b[0, 0], rtol=1e-12)
        other = method.with_step(3 * method.effective_step)
        assert other.effective_step == pytest.approx(3 * method.effective_step, rel=1e-12)
    cgm = ICGM(S=4, lam=3.0, eta_l=0.1, p=0.25)  # on average over the number of steps
    r = 1 - cgm.gradient_step * cgm.lam
    moves = [0.25 * 0.75 ** (k - 1) * (1 - r**k) / cgm.lam for k in range(1, 400)]
    assert cgm.effective_step == pytest.approx(math.fsum(moves), rel=1e-12)
    for cls in (SDANE, AccSDANE):  # v moves by 1/lam
        run = Simulation(problem, cls(K=K, lam=3.0, eta_l=0.1), seed=0)
        run.step()
        run.step()
        np.testing.assert_allclose(run.state.v, b[0, 0] / 3.0, rtol=1e-12)


# 3. Invariants


def test_svrps_h_is_the_gradient_at_w_and_full_gradients_come_with_probability_p():
    problem = uneven("robust")
    run = Simulation(problem, SVRP(S=3, K=2, gamma=0.2, eta_l=0.05, p=0.25), seed=4)
    refreshed = 0
    for _ in range(400):
        before = run.costs.full_rounds
        run.step()
        refreshed += run.costs.full_rounds - before
        if run.costs.round < 60:
            np.testing.assert_allclose(run.state.h, problem.grad(run.state.w), rtol=0, atol=1e-13)
    assert refreshed / 400 == pytest.approx(0.2, abs=0.05)  # a cycle: a refresh, 1/p rounds


def test_other_clients_replace_a_lost_delegate():
    problem = quadratic()
    method = ICGM(S=3, lam=4.0, eta_l=0.4, p=0.3, delegate=6)
    faults = fp.Faults(gone=(6,), gone_from=1)
    run = Simulation(problem, method, seed=1, options=fp.RunOptions(faults=faults))
    for _ in range(30):
        run.step()
    assert run.costs.fallbacks == 15
    assert problem.loss(run.x) < problem.loss(np.zeros(4))


def test_accelerated_s_dane_never_overflows():
    problem = quadratic()
    method = AccSDANE(K=3, lam=1.0, eta_l=0.4, mu=0.4)
    history = fp.simulate(problem, method, rounds=3000, seed=0, record_every=0)
    np.testing.assert_allclose(history.x, problem.x_star, rtol=0, atol=1e-10)


def test_a_failed_refresh_keeps_the_reference_point():
    """A client leaves: rounds of local steps replace refreshes, and h stays grad f(w)."""
    problem = quadratic()
    methods: list[AnyMethod] = [SVRP(S=3, K=2, p=0.5), SABER(S=3, K=2, p=0.5)]
    for method in methods:
        faults = fp.Faults(gone=(6,), gone_from=1)
        run = Simulation(problem, method, seed=1, options=fp.RunOptions(faults=faults))
        for _ in range(20):
            run.step()
        assert run.costs.fallbacks > 3
        assert run.costs.full_rounds == 1
        if isinstance(method, SVRP):
            np.testing.assert_allclose(run.state.h, problem.grad(run.state.w), atol=1e-13)
            assert not run.state.w.any()
        assert problem.loss(run.x) < problem.loss(np.zeros(4))


# 4. Theorems


def curved(spread: float) -> tuple[fp.Quadratic, float, float]:
    """Make a quadratic whose clients' Hessians differ by `spread`; return it, delta and mu."""
    rng = np.random.default_rng(7)
    base = np.diag([0.5, 1.0, 3.0, 8.0])
    E = rng.normal(size=(10, 4, 4))
    E = (E + E.transpose(0, 2, 1)) / 2
    E -= E.mean(axis=0)
    E *= spread / np.linalg.norm(E, ord=2, axis=(1, 2)).max()
    A = base + E
    deviations = A - A.mean(axis=0)
    squares = np.einsum("nij,njk->ik", deviations, deviations) / 10
    delta = math.sqrt(np.linalg.eigvalsh(squares)[-1])
    mu = float(np.linalg.eigvalsh(A)[:, 0].min())
    return fp.Quadratic(A, rng.normal(size=(10, 1, 4))), delta, mu


def test_svrp_from_theory_reaches_the_optimum_in_few_rounds_where_clients_are_similar():
    problem, delta, mu = curved(0.05)
    method = SVRP.from_theory(problem, mu=mu, delta=delta, S=2)
    history = fp.simulate(problem, method, rounds=120, seed=0, record_every=0)
    np.testing.assert_allclose(history.x, problem.x_star, rtol=0, atol=1e-6)
    assert SVRP.from_theory(equal_clients(), mu=0.5, delta=0.0).gamma is None
    alone = SVRP.from_theory(problem, mu=mu, delta=delta)
    assert alone.gamma == pytest.approx(mu / (2 * delta**2))
    assert alone.p == 0.1
    assert SDANE.from_theory(problem, mu=mu, delta=delta).lam == 2 * delta
    careful = SVRP.from_theory(problem, mu=mu)
    assert careful.gamma == pytest.approx(mu / (2 * problem.smoothness().average ** 2))


@pytest.mark.parametrize("strongly", [False, True])
def test_accelerated_s_dane_stays_below_its_bound(strongly):
    problem, delta, mu = curved(0.45)
    method = AccSDANE.from_theory(problem, mu=mu if strongly else 0.0, delta=delta)
    run = Simulation(problem, method, seed=0, options=fp.RunOptions(x0=np.ones(4)))
    best, R2 = problem.loss(problem.x_star), ((np.ones(4) - problem.x_star) ** 2).sum()
    for R in range(1, 16):
        run.step()
        run.step()
        A = R**2 / (4 * method.lam)
        if strongly:
            A = max(A, (1 + math.sqrt(mu / method.lam) / 2) ** (2 * R - 2) / method.lam)
        gap = problem.loss(run.x) - best
        assert gap <= R2 / (2 * A) + 1e-14
    assert gap > 0 or strongly


def test_i_cgm_has_the_steps_of_its_theorem_and_stays_below_its_bound():
    problem, delta, _ = curved(0.45)
    delta1 = np.linalg.norm(problem.A[0] - problem.A.mean(axis=0), ord=2)
    S, L1 = 2, problem.smoothness().client
    delta_S = delta * math.sqrt(8 / (9 * 2))
    method = ICGM.from_theory(problem, S=S, delta=delta, delta1=delta1)
    lam = 3 * delta1 + 113 * math.sqrt(5) * delta_S
    assert method.lam == pytest.approx(lam)
    assert method.beta == pytest.approx(1 / (112 * 5))
    assert method.p == pytest.approx((lam - delta1) / (8 * (L1 + lam)))
    gap = problem.loss(np.zeros(4)) - problem.loss(problem.x_star)
    for T in (10, 60):
        history = fp.simulate(problem, method, rounds=2 * T, seed=0, record_every=1)
        mean_square = (history["grad_norm"][2::2] ** 2).mean()
        assert mean_square <= 256 * (delta1 + 38 * math.sqrt(5) * delta_S) * gap / T
