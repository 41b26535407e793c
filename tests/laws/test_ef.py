"""Laws of EF21 and its variants, SAG, DASHA and SCALLION: replays, reductions, invariants, steps.

The replays are plain Python and the formulas of the papers.
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from plain import X0, ZERO, D, N, Plain, mean
from support import all_gradients, quadratic, uneven

import fedpage as fp
from fedpage.codecs import Identity, Keys
from fedpage.engine.simulate import Simulation
from fedpage.methods import steps
from fedpage.methods.dasha import DASHA, DASHAPP
from fedpage.methods.ef21 import EF21, EF21BC, EF21PP, EF21SGDM, SAG
from fedpage.methods.scallion import SCALLION


@dataclass(frozen=True)
class FirstTwice(Identity):
    """Send twice the even entries: a codec with omega = 1 that plain Python can follow."""

    is_cast: ClassVar[bool] = False

    def omega(self, d: int) -> float:
        return 1.0

    def transform(self, v: np.ndarray, keys: Keys, gain: float) -> np.ndarray:
        return v * np.where(np.arange(v.shape[1]) % 2 == 0, 2.0, 0.0)


# Replays


def ef21_pp(plain: Plain, m):
    x, v, g = X0, ZERO, [ZERO] * N
    while True:
        for i in plain.clients(getattr(m, "S", None)):
            change = plain.grad(i, x, plain.batch(i, m.b)) - g[i]
            g[i] = g[i] + plain.compress(i, change, m.up)
        v = m.beta * v + mean(g)
        x = x - m.eta * v
        yield x, {"g": mean(g)}, {"g": g}


def sag(plain: Plain, m):
    """Keep a table of the last gradients, and move along its mean."""
    x, g = X0, [ZERO] * N
    while True:
        for i in plain.clients(m.S):
            g[i] = plain.grad(i, x)
        x = x - m.eta * mean(g)
        yield x, {}, {"g": g}


def ef21_sgdm(plain: Plain, m):
    x, g, v = X0, [ZERO] * N, [ZERO] * N
    while True:
        for i in range(N):
            v[i] = (1 - m.m) * v[i] + m.m * plain.grad(i, x, plain.batch(i, m.b))
            g[i] = g[i] + plain.compress(i, v[i] - g[i], m.up)
        x = x - m.eta * mean(g)
        yield x, {}, {"g": g, "v": v}


def ef21_bc(plain: Plain, m):
    """Both ends keep an estimate of what they send; everyone moves x by the server's estimate."""
    x, w, g = X0, ZERO, [ZERO] * N
    while True:
        for i in range(N):
            g[i] = g[i] + plain.compress(i, plain.grad(i, x, plain.batch(i, m.b)) - g[i], m.up)
        w = w + plain.compress(0, mean(g) - w, m.down)
        before, x = x, x - m.eta * w
        yield x, {}, {"g": g, "x": [before] * N}


def dasha(plain: Plain, m):
    S = getattr(m, "S", N)
    omega, q = 1.0, S / N
    a, b = q / (2 * omega + 1), q / (2 - q)
    x, x_prev, h, g = X0, X0, [ZERO] * N, [ZERO] * N
    while True:
        for i in plain.clients(S):
            new, old = plain.grad(i, x), plain.grad(i, x_prev)
            k = new - old - b * (h[i] - old)
            sent = plain.compress(i, k / q - a / q * (g[i] - h[i]), m.up)
            h[i], g[i] = h[i] + k / q, g[i] + sent
        x, x_prev = x - m.eta * mean(g), x
        yield x, {}, {"h": h, "g": g}


def scallion(plain: Plain, m):
    scale = 0.5 if m.a is None else m.a  # 1/(1 + omega)
    x, c, own = X0, ZERO, [ZERO] * N
    while True:
        sent = []
        for i in plain.clients(m.S):
            y = x
            for _ in range(m.K):
                y = y - m.eta_l * (plain.grad(i, y, plain.batch(i, m.b)) - own[i] + c)
            direction = (x - y) / (m.K * m.eta_l)
            sent.append(plain.compress(i, scale * (direction - c), m.up))
            own[i] = own[i] + sent[-1]
        move = mean(sent) / (scale if m.unbiased else 1.0) + c
        x, c = x - m.eta_g * m.K * m.eta_l * move, mean(own)
        yield x, {"c": c}, {"c": own}


LOCAL: dict[str, Any] = {"S": 2, "K": 3, "b": 2, "eta_l": 0.1, "eta_g": 1.3, "up": FirstTwice()}
REPLAYS: dict[str, Any] = {
    "EF21": (ef21_pp, EF21(b=2, eta=0.3, beta=0.4, up="topk:1")),
    "EF21-PP": (ef21_pp, EF21PP(S=2, b=2, eta=0.3, up="topk:1")),
    "EF21-PP momentum": (ef21_pp, EF21PP(S=2, b=2, eta=0.3, beta=0.4, up="topk:1")),
    "SAG": (sag, SAG(S=2, eta=0.3)),
    "SAG as EF21-PP": (sag, EF21PP(S=2, eta=0.3)),
    "EF21-SGDM": (ef21_sgdm, EF21SGDM(b=2, eta=0.4, m=0.3, up="topk:1")),
    "EF21-BC": (ef21_bc, EF21BC(b=2, eta=0.3, up="topk:1", down="topk:2")),
    "DASHA": (dasha, DASHA(eta=0.1, up=FirstTwice())),
    "DASHA-PP": (dasha, DASHAPP(S=2, eta=0.1, up=FirstTwice())),
    "SCALLION": (scallion, SCALLION(**LOCAL)),
    "SCALLION a": (scallion, SCALLION(a=0.7, **LOCAL)),
    "SCALLION unbiased": (scallion, SCALLION(unbiased=True, **LOCAL)),
    "SCALLION unbiased a": (scallion, SCALLION(a=0.7, unbiased=True, **LOCAL)),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_replay(check, name):
    algorithm, method = REPLAYS[name]
    costs = check(method, algorithm).costs
    expected = {
        "EF21-PP": (9 * 2, 9 * 2 * (64 + 2), 9 * 2 * 64 * D),  # TopK's position is sent too
        # the start is sent as it is, then two numbers and their places
        "EF21-BC": (9 * N, 9 * N * 66, N * (64 * D + 8 * (2 * 64 + D))),
        "DASHA-PP": (9 * 2 * D, 9 * 2 * 64 * D, 9 * 2 * 64 * (2 * D + 1)),
    }.get(name)
    assert expected in (None, (costs.floats_up, costs.bits_up, costs.bits_down))


# Invariants


def test_clients_of_ef21_bc_have_the_servers_model_to_the_bit():
    problem = uneven("robust")
    x0 = np.linspace(-1, 1, problem.d)
    method = EF21BC(eta=0.1, up="topk:0.1", down="topk:0.2")
    policy = fp.Policy(retries=0, full_retries=99)
    run = Simulation(
        problem,
        method,
        seed=2,
        options=fp.RunOptions(x0=x0, faults=fp.Faults(dropout=0.2), policy=policy),
    )
    for _ in range(15):
        x = run.x
        run.step()
        assert all(own.tobytes() == x.tobytes() for own in run.client_states.get_all().x)


# Step sizes


def test_the_steps_of_ef21_by_hand():
    assert steps.ef21_nonconvex(L=2.0, L_average=3.0, alpha=1.0) == 0.5
    # alpha = 7/16: theta = 1/4, beta = 9/4, sqrt(beta/theta) = 3
    assert steps.ef21_nonconvex(L=1.0, L_average=2.0, alpha=7 / 16) == pytest.approx(
        1 / 7, rel=1e-14
    )
    problem = quadratic()
    L = problem.smoothness()
    topk = EF21.from_theory(problem, up="topk:1")  # alpha = 1/4
    wanted = 1 / (L.whole + L.average * math.sqrt(0.75) / (1 - math.sqrt(0.75)))
    assert topk.eta == pytest.approx(wanted, rel=1e-14)
    assert EF21.from_theory(problem).eta == pytest.approx(1 / L.whole, rel=1e-14)
    sgdm = EF21SGDM.from_theory(problem, up="topk:1", m=0.2)
    assert sgdm.eta == pytest.approx(0.25 / (20 * L.average), rel=1e-14)
    slow = EF21SGDM.from_theory(problem, m=0.05)
    assert slow.eta == pytest.approx(0.05 / (7 * L.whole), rel=1e-14)
    # u = 9 (alpha = 7/16), v = 1 (alpha = 3/4): 18 + 16 + 144 = 178
    by_hand = steps.ef21_bc_nonconvex(L=1.0, L_average=2.0, alpha_up=7 / 16, alpha_down=3 / 4)
    assert by_hand == pytest.approx(1 / (1 + 2 * math.sqrt(178)), rel=1e-14)
    both = EF21BC.from_theory(problem, up="topk:2", down="topk:3")
    wanted = steps.ef21_bc_nonconvex(L.whole, L.average, 2 / 4, 3 / 4)
    assert both.eta == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize(("S", "k"), [(1, 1), (2, 4), (4, 2), (8, 1)])
def test_the_step_of_ef21_pp_is_the_largest_of_theorem_7(S, k):
    problem = quadratic()
    L, q, alpha = problem.smoothness(), S / 8, k / 4
    s, rho = (np.geomspace(1e-4, 10, 400)[shape] for shape in np.ix_(range(400), range(400)))
    theta, beta = 1 - (1 + s) * (1 - alpha), (1 + 1 / s) * (1 - alpha)
    inner = theta * q - rho * (1 - q)
    with np.errstate(divide="ignore"):
        ratio = (beta * q + (1 + 1 / rho) * (1 - q)) / np.where(inner > 0, inner, 0.0)
    eta = 1 / (L.whole + L.average * math.sqrt(ratio.min()))
    method = EF21PP.from_theory(problem, S=S, up=f"topk:{k}")
    assert eta <= method.eta * (1 + 1e-12)
    assert eta == pytest.approx(method.eta, rel=1e-3)


def error_of_ef21(run: Simulation, gradients: np.ndarray, alpha: float) -> float:
    g = run.client_states.get_all().g
    return ((g - gradients) ** 2).sum(axis=1).mean() / (1 - math.sqrt(1 - alpha))


def error_of_sgdm(run: Simulation, gradients: np.ndarray, alpha: float) -> float:
    method: Any = run.method
    (g, v), m = run.client_states.get_all(), method.m
    found = 4 / alpha * ((g - v) ** 2).sum(axis=1).mean()
    found += 2 / m * ((v - gradients).mean(axis=0) ** 2).sum()
    return found + 16 * m / alpha**2 * ((v - gradients) ** 2).sum(axis=1).mean()


def error_of_bc(run: Simulation, gradients: np.ndarray, alpha: float) -> float:
    theta, down = 1 - math.sqrt(1 - alpha), 40 / len(run.x)
    theta_down = 1 - math.sqrt(1 - down)
    v = (1 - down) / theta_down**2
    G = ((run.client_states.get_all().g - gradients) ** 2).sum(axis=1).mean()
    return (2 + 16 * v) / theta * G + 2 / theta_down * ((run.state.w - run.state.g) ** 2).sum()


PROMISES: dict[str, Any] = {
    "EF21": (EF21, {}, error_of_ef21),
    "EF21-SGDM": (EF21SGDM, {"m": 0.3}, error_of_sgdm),
    "EF21-BC": (EF21BC, {"down": "topk:40"}, error_of_bc),
}


@pytest.mark.parametrize("name", PROMISES)
def test_steps_of_theory_keep_their_promise(name):
    """Where f(x) + eta/2 times a method's error falls by eta/2 |grad f(x)|^2 in every round."""
    kind, given, error = PROMISES[name]
    problem = uneven("logistic-nonconvex")
    method = replace(kind.from_theory(problem, up="topk:12", **given), b=None)
    run, previous = Simulation(problem, method, seed=0), math.inf
    for _ in range(40):
        x = run.x
        run.step()  # what clients keep now belongs to x
        left = error(run, all_gradients(problem, x), 12 / problem.d)
        now = problem.loss(x) + method.eta / 2 * left
        assert now <= previous + 1e-12
        previous = now - method.eta / 2 * float(problem.grad(x) @ problem.grad(x))


def test_the_steps_of_dasha_by_hand():
    # omega = 1, N = 12: 16 * 3/12 = 4
    assert steps.dasha_nonconvex(L=2.0, L_average=3.0, N=12, S=12, omega=1.0) == 1 / 8
    # S = 3, omega = 1/2: (48 + 16 * 9/11) * 16/12
    wanted = 1 / (1 + 2 * math.sqrt((48 + 144 / 11) * 16 / 12))
    assert steps.dasha_nonconvex(L=1.0, L_average=2.0, N=12, S=3, omega=0.5) == pytest.approx(
        wanted, rel=1e-14
    )
    problem = quadratic()
    L = problem.smoothness()
    assert DASHA.from_theory(problem).eta == pytest.approx(1 / L.whole, rel=1e-14)
    made = DASHAPP.from_theory(problem, S=2, up="randk:1")
    assert made.eta == steps.dasha_nonconvex(L.whole, L.average, 8, 2, 3.0)
    assert (made.S, str(made.up)) == (2, "randk:1")


@pytest.mark.parametrize("S", [1, 2, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_proof_of_dashas_step(S, k):
    """The expected potential of docs/methods/dasha.md falls, for random states, at this step.

    The expectation is exact: over all subsets of clients, and by the variance of RandK.
    """
    N, d, omega = 8, 4, 4 / k - 1
    rng = np.random.default_rng(10 * S + k)
    q, share = S / N, (N - S) / (N - 1)
    a, b = q / (2 * omega + 1), q / (2 - q)
    problem = quadratic()
    L = problem.smoothness()
    eta = steps.dasha_nonconvex(L.whole, L.average, N, S, omega)
    e, h_error, moved = (rng.normal(size=(N, d)) for _ in range(3))  # g-h, h-grad, change of grad
    kk = moved - b * h_error
    target = kk / q - (a / q) * e
    lost = omega * (target**2).sum(axis=1)  # E|C(target) - target|^2
    G = H = D_ = M_ = 0.0
    subsets = list(itertools.combinations(range(N), S))
    for chosen in subsets:
        z = np.isin(np.arange(N), chosen)[:, None]
        e_new = e + z * (target - kk / q)
        h_new = h_error + z * kk / q - moved
        noise = (z[:, 0] * lost).sum()
        G += ((e_new.mean(axis=0) ** 2).sum() + noise / N**2) / len(subsets)
        H += ((e_new**2).sum() + noise) / N**2 / len(subsets)
        D_ += (h_new.mean(axis=0) ** 2).sum() / len(subsets)
        M_ += (h_new**2).sum() / N**2 / len(subsets)

    def weigh(G: float, H: float, D_: float, M_: float) -> float:
        at_m = 4 * share / q + 16 * omega * b / (q * a)
        return 2 / a * G + 2 * (2 * omega + 1) / q * H + 2 / b * D_ + at_m * M_

    def squares(v: np.ndarray) -> tuple[float, float]:
        return float((v.mean(axis=0) ** 2).sum()), float((v**2).sum()) / N**2

    before, after = weigh(*squares(e), *squares(h_error)), weigh(G, H, D_, M_)
    error = float(((e + h_error).mean(axis=0) ** 2).sum())  # |g - grad f|^2
    # mean |moved|^2 <= L_average^2 |x' - x|^2, which the step must pay for
    paid = (1 / eta - L.whole) / eta / L.average**2 * float((moved**2).sum()) / N
    assert after + error <= before + paid
