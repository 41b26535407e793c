"""MARINA's family, FedPAGE with codecs, and local methods whose replies are cast.

The replays are plain Python and the formulas of the paper.
"""

import itertools
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest
from plain import X0, Plain, mean
from support import quadratic, uneven

import fedpage as fp
from fedpage.codecs import Codec, Keys
from fedpage.engine.simulate import Simulation
from fedpage.methods import steps
from fedpage.testing import ScriptedDraws, replay


def descend(problem: Any, step: float, rounds: int) -> np.ndarray:
    x = np.zeros(problem.d)
    for _ in range(rounds):
        x = x - step * problem.grad(x)
    return x


# 1. Replays


def marina(plain: Plain, m):
    """Algorithm 4 of the paper."""
    x = x_prev = g = X0
    for r in count():
        if plain.coin(r in (0, 5, 6)):
            g = plain.full(x)
        else:
            differences = []
            for i in plain.clients(m.S):
                rows = plain.batch(i, m.b if hasattr(m, "b") else m.b2)
                change = plain.grad(i, x, rows) - plain.grad(i, x_prev, rows)
                differences.append(plain.compress(i, change, m.up))
            g = g + mean(differences)
        x, x_prev = x - m.eta_g * g, x
        yield x, {"g": g}, {}


@pytest.mark.parametrize("up", ["natural", "randk:1", "randk:2", "none"])
@pytest.mark.parametrize("kind", ["PP-MARINA", "FedPAGE", "PAGE", "VR-MARINA"])
def test_replay(check, kind, up):
    options: dict[str, Any] = {"p": 0.3, "eta_g": 0.3, "up": up}
    method = {
        "PP-MARINA": fp.PPMARINA(S=2, b=2, **options),
        "FedPAGE": fp.FedPAGE(S=2, K=1, b2=2, **options),
        "PAGE": fp.PAGE(S=2, b2=2, **options),
        "VR-MARINA": fp.VRMARINA(b=2, **options),
    }[kind]
    check(method, marina, rounds=12)


# 2. Reductions


@pytest.mark.parametrize("cls", [fp.FedPAGE, fp.PAGE, fp.PPMARINA, fp.MARINA, fp.VRMARINA])
@pytest.mark.parametrize("up", ["natural", "randk:0.3"])
def test_only_full_rounds_are_gradient_descent_for_any_codec(cls, up):
    sampled = {} if cls in (fp.MARINA, fp.VRMARINA) else {"S": 3}
    method = cls(p=1.0, eta_g=0.05, up=up, **sampled)
    for problem in (quadratic(noise=1.0), uneven("logistic-nonconvex")):
        history = fp.simulate(problem, method, rounds=15, seed=1)
        np.testing.assert_allclose(history.x, descend(problem, 0.05, 15), rtol=0, atol=1e-12)


def equal_clients(d: int) -> fp.Quadratic:
    """Return a problem whose clients all have the same function."""
    one = fp.Quadratic.random(1, 3, d, seed=5, noise=1.0)
    return fp.Quadratic(np.repeat(one.A, 4, axis=0), np.repeat(one.b, 4, axis=0))


@pytest.mark.parametrize("d", [4, 7])
def test_blocks_of_equal_clients_are_gradient_descent(d):
    problem = equal_clients(d)
    for method in (
        fp.MARINA(p=0.2, eta_g=0.05, up="permk"),
        fp.FedPAGE(S=4, K=1, p=0.2, eta_g=0.05, up="permk"),
        fp.FedPAGE(S=3, K=1, p=0.2, eta_g=0.05, up="permk"),
    ):
        history = fp.simulate(problem, method, rounds=30, seed=1)
        np.testing.assert_allclose(history.x, descend(problem, 0.05, 30), rtol=0, atol=1e-11)
    noisy = fp.simulate(problem, fp.MARINA(p=0.2, eta_g=0.05, up="randk:1"), rounds=30, seed=1)
    assert np.linalg.norm(noisy.x - descend(problem, 0.05, 30)) > 1e-3


# 3. Expectation and variance, over all coins, subsets and masks


@dataclass(frozen=True)
class Mask(Codec):
    """RandK(1) whose masks are given: client number i of the called keeps coordinate masks[i]."""

    masks: tuple[int, ...] = ()

    def omega(self, d: int) -> float:
        return d - 1.0

    def bits(self, d: int, dtype: Any) -> int:
        return 64

    def apply(self, v: np.ndarray, keys: Keys) -> np.ndarray:
        kept = np.zeros_like(v)
        rows = np.arange(len(v))
        kept[rows, list(self.masks)] = v.shape[1] * v[rows, list(self.masks)]
        return kept


DIM, SAMPLED = 4, 2


def every_mask_and_subset(problem: Any) -> list[tuple[Mask, list[int]]]:
    masks = itertools.product(range(DIM), repeat=SAMPLED)
    subsets = list(itertools.combinations(range(problem.N), SAMPLED))
    return [(Mask(mask), list(chosen)) for mask in masks for chosen in subsets]


@pytest.fixture(scope="module")
def small() -> fp.Quadratic:
    return fp.Quadratic.random(4, 3, DIM, seed=3, spread=3.0)


def next_state(problem: Any, method: Any, coin: bool, clients: list[int], start: Any) -> Any:
    run = replay(problem, method, [None, ScriptedDraws(1, coin, clients, {})])
    run.state = run.state._replace(**start)
    run.costs.round = 1
    run.step()
    return run.state


ESTIMATORS = {
    "PP-MARINA": lambda up: fp.PPMARINA(S=SAMPLED, eta_g=0.1, p=0.3, up=up),
    "PAGE": lambda up: fp.PAGE(S=SAMPLED, eta_g=0.1, p=0.3, up=up),
    "leak-free": lambda up: fp.LeakFreeFedPAGE(
        S=SAMPLED, K=3, eta_g=0.1, eta_l=0.1, p=0.3, b3=None, up=up
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_bias_contracts_by_exactly_one_minus_p(name, small):
    """E[g] - grad f(x) = (1-p) (g_prev - grad f(x_prev)), whatever an unbiased codec does."""
    p, make = 0.3, ESTIMATORS[name]
    x_prev, g = np.linspace(-1, 1, DIM), np.linspace(2, 0, DIM)
    x = x_prev - 0.1 * g
    start = {"x": x, "x_prev": x_prev, "g": g}
    cases = every_mask_and_subset(small)
    sampled = [next_state(small, make(mask), False, chosen, start).g for mask, chosen in cases]
    full = next_state(small, make(cases[0][0]), True, [], start).g
    left = p * full + (1 - p) * np.mean(sampled, axis=0) - small.grad(x)
    np.testing.assert_allclose(left, (1 - p) * (g - small.grad(x_prev)), rtol=0, atol=1e-12)
    assert np.std(sampled, axis=0).min() > 0.01


# 4. Theorems


def test_the_steps_of_the_theorems():
    L = fp.Smoothness(row=5.0, client=3.0, average=2.0, whole=1.5)
    p, omega = 0.1, 4.0
    printed = steps.marina(L, 50, 50, p, omega, variant="printed")  # Theorem 2.1
    assert printed == pytest.approx(1 / (2.0 * (1 + np.sqrt(0.9 * 4 / (0.1 * 50)))))
    printed = steps.marina(L, 50, 10, p, omega, variant="printed")  # Theorem 4.1
    assert printed == pytest.approx(1 / (2.0 * (1 + np.sqrt(0.9 * 5 / (0.1 * 10)))))
    row = 4 * 4.0 + 5 * 25.0 / 3
    for variant in ("printed", "refined"):  # Theorem 3.1
        found = steps.marina(L, 50, 50, p, omega, 3, variant)
        assert found == pytest.approx(1 / (1.5 + np.sqrt(0.9 / (0.1 * 50) * row)))
    refined = steps.marina(L, 50, 10, p, omega)
    assert refined == pytest.approx(1 / (1.5 + 2 * np.sqrt(0.9 * (4 + 40 / 49) / (0.1 * 10))))
    assert steps.marina(L, 50, 10, p, 0.0, variant="printed") == pytest.approx(
        steps.page_nonconvex(2.0, 50, 10, p)  # without a codec it is PAGE's corrected step
    )
    assert steps.marina(L, 1, 1, p, 0.0) == pytest.approx(1 / 1.5)
    for bad in ({"variant": "both"}, {"variant": "printed", "b": 2}):
        with pytest.raises(fp.InputError, match=r"variant must be|no theorem for minibatches"):
            steps.marina(L, 50, 10, p, omega, **bad)


CASES = {
    "MARINA": lambda q, up: fp.MARINA.from_theory(q, up=up),
    "PP-MARINA": lambda q, up: fp.PPMARINA.from_theory(q, S=2, up=up),
    "VR-MARINA": lambda q, up: fp.VRMARINA.from_theory(q, b=1, up=up),
}


@pytest.mark.parametrize("up", ["randk:1", "natural", "permk", "permk+natural"])
@pytest.mark.parametrize("name", CASES)
def test_runs_keep_the_bound_of_the_theorems(name, up):
    """The mean of |grad f(x)|^2 over T rounds is at most 2 (f(x0) - f*)/(eta T)."""
    problem = fp.Quadratic.random(4, 3, 6, seed=3, spread=3.0, noise=1.0)
    method = CASES[name](problem, up)
    T, seeds = 120, 5
    gap = problem.loss(np.zeros(problem.d)) - problem.loss(problem.x_star)
    found = []
    for seed in range(seeds):
        run = Simulation(problem, method, seed=seed)
        total = 0.0
        for _ in range(T):
            total += float((problem.grad(run.x) ** 2).sum())
            run.step()
        found.append(total / T)
    assert np.mean(found) <= 2 * gap / (method.effective_step * T)
    if up == "randk:1":
        b, S = (1 if name == "VR-MARINA" else None), (2 if name == "PP-MARINA" else 4)
        assert method.eta_g == steps.marina(problem.smoothness(), 4, S, method.p, 5.0, b)
    assert method.p == pytest.approx(default_p(name, up))


def default_p(name: str, up: str) -> float:
    S = 2 if name == "PP-MARINA" else 4
    share = {"randk:1": 1 / 6, "natural": 12 / 64, "permk": 1 / S, "permk+natural": 1 / S}
    return share[up] * S / 4


# 5. What is sent


@pytest.mark.parametrize("method", [fp.PPMARINA, fp.FedPAGE])
def test_full_rounds_are_uncompressed_except_by_a_cast(method):
    problem = uneven("robust")
    d, n = problem.d, problem.N
    for up, sampled, full in (
        ("none", 64 * d, 64 * d),
        ("natural", 12 * d, 64 * d),
        ("randk:5", 5 * 64, 64 * d),
        ("float32", 32 * d, 32 * d),
    ):
        history = fp.simulate(problem, method(S=3, p=0.4, up=up), rounds=12, seed=1, record_every=1)
        sent = np.diff(history["bits_up"])
        is_full = np.diff(history["full_rounds"]) > 0
        assert set(sent[is_full]) == {n * full}
        assert set(sent[~is_full]) == {3 * sampled}


def test_vrl_sgds_corrections_do_not_drift_after_rounded_messages():
    """With `down` they sum to N (rounded x - x)/(K eta_l), which does not grow with the rounds."""
    problem = uneven("logistic-nonconvex")
    method = fp.VRLSGD(K=4, eta_l=0.05, b=2, down="float32")
    run = Simulation(problem, method, seed=3)
    for r in range(60):
        x = run.x
        run.step()
        off = run.client_states.get_all().delta.sum(axis=0)
        if r > 0:
            rounded = x.astype(np.float32).astype(float) - x
            np.testing.assert_allclose(off, problem.N * rounded / 0.2, rtol=0, atol=1e-10)


def test_s_local_svrgs_clients_share_a_rounded_reference_point():
    problem = quadratic(noise=1.0)
    method = fp.SLocalSVRG(K=3, eta_l=0.05, b=2, q=0.4, up="float32", down="float32")
    run = Simulation(problem, method, seed=3)
    for _ in range(20):
        x = run.x
        run.step()
        w = run.client_states.get_all().w
        assert np.array_equal(w, w.astype(np.float32))
        if not run.state.stepped:  # the round was a refresh, at the rounded x
            assert np.array_equal(w, np.tile(x.astype(np.float32), (problem.N, 1)))
            replies = problem.A @ w[0] - problem.b.mean(axis=1)
            h = replies.astype(np.float32).astype(float).mean(axis=0)
            np.testing.assert_allclose(run.state.h, h, rtol=0, atol=1e-14)
