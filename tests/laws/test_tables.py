"""Laws of methods whose clients keep a table of gradients: COFIG, SAGA, DIANA, ZeroSARAH, FRECON.

The replays are plain Python and the formulas of the papers.
"""

import itertools
from itertools import count
from typing import Any

import numpy as np
import pytest
from plain import X0, ZERO, D, N, Plain, mean
from support import all_gradients, quadratic, uneven

import fedpage as fp
from fedpage.engine.simulate import Simulation
from fedpage.methods import steps
from fedpage.methods.frecon import FRECON
from fedpage.methods.zerosarah import ZeroSARAH
from fedpage.testing import ScriptedDraws, replay

# Replays

OMEGA = {"none": 0.0, "natural": 1 / 8, "randk:1": D - 1.0}


def cofig(plain: Plain, m):
    a = 1 / (1 + OMEGA[str(m.up)]) if m.a is None else m.a
    x, h = X0, [ZERO] * N
    while True:
        old, sent = mean(h), []
        for i in plain.clients(m.S):
            u = plain.compress(i, plain.grad(i, x, plain.batch(i, m.b)) - h[i], m.up)
            h[i] = h[i] + a * u
            sent.append(u)
        x = x - m.eta * (old + mean(sent))
        yield x, {"h": mean(h)}, {"h": h}


def saga(plain: Plain, m):
    """SAGA as its paper writes it, with a table of gradients instead of changes."""
    x, table = X0, [ZERO] * N
    while True:
        clients = plain.clients(m.S)
        new = {i: plain.grad(i, x, plain.batch(i, m.b)) for i in clients}
        x = x - m.eta * (mean(new.values()) - mean(table[i] for i in clients) + mean(table))
        table = [new.get(i, table[i]) for i in range(N)]
        yield x, {}, {"h": table}


def zerosarah_and_frecon(plain: Plain, m):
    """FRECON keeps what it was sent of q, the gradient at x_prev; ZeroSARAH keeps p."""
    omega, is_frecon = OMEGA[str(m.up)], isinstance(m, FRECON)
    lam = m.S / (2 * (1 + omega) * N) if m.lam is None else m.lam
    x, x_prev, v, y = X0, X0, ZERO, [ZERO] * N
    for r in count():
        old, changes, drifts = mean(y), [], []
        for i in plain.clients(m.S):
            rows = plain.batch(i, m.b)
            p, q = plain.grad(i, x, rows), plain.grad(i, x_prev, rows)
            changes.append(plain.compress(i, p - q, m.up, 0))
            # the first reply has no change, so that the drift is its field 0
            drifts.append(plain.compress(i, q - y[i], m.up, int(r > 0)))
            rate = 1 / (1 + omega) if is_frecon and m.a is None else getattr(m, "a", None)
            y[i] = y[i] + rate * drifts[-1] if is_frecon else p
        part = 1.0 if r == 0 else lam
        v = mean(changes) + (1 - part) * v + part * (mean(drifts) + old)
        x, x_prev = x - m.eta * v, x
        yield x, {"h": mean(y)}, {"y": y}


SOME: dict[str, Any] = {"S": 2, "b": 3, "eta": 0.2}
REPLAYS: dict[str, Any] = {
    **{f"COFIG {up}": (cofig, fp.COFIG(**SOME, up=up)) for up in OMEGA},
    **{f"DIANA {up}": (cofig, fp.DIANA(b=3, eta=0.2, up=up)) for up in OMEGA},
    **{f"FRECON {up}": (zerosarah_and_frecon, fp.FRECON(S=2, b=3, eta=0.1, up=up)) for up in OMEGA},
    "COFIG a": (cofig, fp.COFIG(**SOME, a=0.4, up="natural")),
    "SAGA": (saga, fp.SAGA(**SOME)),
    "ZeroSARAH": (zerosarah_and_frecon, fp.ZeroSARAH(**SOME)),
    "ZeroSARAH lam": (zerosarah_and_frecon, fp.ZeroSARAH(**SOME, lam=0.7)),
    "FRECON lam a": (zerosarah_and_frecon, fp.FRECON(**SOME, lam=0.7, a=0.4, up="natural")),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_replay(check, name):
    algorithm, method = REPLAYS[name]
    check(method, algorithm)


# Invariants


@pytest.mark.parametrize("lam", [0.3, 0.8])
@pytest.mark.parametrize("kind", [ZeroSARAH, FRECON])
def test_the_bias_contracts_by_exactly_one_minus_lam(kind, lam):
    """E[v^r] - grad f(x^r) = (1 - lam)(v^{r-1} - grad f(x^{r-1})), over all pairs of clients."""
    problem, method = quadratic(), kind(S=2, lam=lam)
    rng = np.random.default_rng(0)
    (x, x_prev, v), table = rng.normal(size=(3, problem.d)), rng.normal(size=(8, problem.d))

    def next_v(clients: tuple[int, ...]) -> np.ndarray:
        run = replay(problem, method, [None, ScriptedDraws(1, False, list(clients), {})])
        run.state = run.method.init(x, problem.N)._replace(x_prev=x_prev, h=table.mean(axis=0))
        run.state = run.state._replace(**{run.state._fields[2]: v})  # v or g
        run.client_states.put(np.arange(8), method.client_state(table))
        run.costs.round = 1
        run.step()
        return run.state[2]

    pairs = itertools.combinations(range(8), 2)
    left = np.mean([next_v(pair) for pair in pairs], axis=0) - problem.grad(x)
    np.testing.assert_allclose(left, (1 - lam) * (v - problem.grad(x_prev)), rtol=0, atol=1e-12)


# Step sizes

STEPS = {
    "COFIG": lambda L, N, S, omega: steps.cofig_nonconvex(L, N, S, omega),
    "COFIG convex": lambda L, N, S, omega: steps.cofig_convex(L, N, S, omega),
    "DIANA": lambda L, N, S, omega: steps.diana_nonconvex(L, N, omega),
    "DIANA mu": lambda L, N, S, omega: steps.diana_strongly_convex(
        L, L / 10, N, omega, 1 / (1 + omega)
    ),
    "ZeroSARAH": lambda L, N, S, omega: steps.zerosarah_nonconvex(L, N, S),
    "FRECON": lambda L, N, S, omega: steps.frecon_nonconvex(L, N, S, omega),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_have_a_unit_and_an_order(name):
    """A step is a length over a gradient, 1/L; more variance never allows a longer step."""
    step = STEPS[name]
    for n, S, omega in itertools.product((4, 100, 3250), (1, 4), (0.0, 0.125, 60.0)):
        assert step(6.0, n, S, omega) == pytest.approx(step(2.0, n, S, omega) / 3, rel=1e-12)
        assert step(2.0, n, S, omega + 1) <= step(2.0, n, S, omega)
        assert step(2.0, n, S + 1, omega) >= step(2.0, n, S, omega)
        assert step(2.0, n, S, omega) <= 1.0
    for n in (1, 10, 3250):  # gradient descent: at least 1/(20 L)
        assert 1 / 20 <= step(1.0, n, n, 0.0) <= 2.0


def test_the_formulas_of_the_theorems():
    """Compare with numbers that were worked out by hand; 1 + omega = 4, N = 64."""
    assert steps.cofig_nonconvex(2.0, 64, 4, 3.0) == pytest.approx(4 / (10 * 8 * 8))
    assert steps.cofig_nonconvex(2.0, 64, 4, 0.0) == pytest.approx(4 / (10 * 16))
    assert steps.cofig_nonconvex(2.0, 64, 64, 0.0) == 1 / 4
    assert steps.cofig_convex(2.0, 64, 4, 3.0) == pytest.approx(1 / 20)
    assert steps.cofig_convex(2.0, 64, 1, 3.0) == pytest.approx(1 / 68)
    assert steps.cofig_convex(2.0, 2**14, 4, 3.0) == pytest.approx(1 / 256)
    assert steps.diana_nonconvex(2.0, 1, 3.0) == pytest.approx(1 / 200)
    assert steps.diana_strongly_convex(3.0, 1.0, 6, 3.0, 0.25) == pytest.approx(1 / 8)
    assert steps.diana_strongly_convex(3.0, 0.1, 6, 3.0, 0.25) == pytest.approx(2 / 12.4)
    assert steps.zerosarah_nonconvex(2.0, 32, 4) == pytest.approx(1 / 10)
    assert steps.zerosarah_nonconvex(2.0, 8, 8, 1.0) == pytest.approx(1 / (2 * (1 + 1.25**0.5)))
    assert steps.frecon_nonconvex(2.0, 10, 4, 3.0) == pytest.approx(1 / 22)


def test_methods_from_theory():
    problem = uneven("robust")
    N, (_, Lmax, Lbar, _) = problem.N, problem.smoothness()
    assert Lmax > 1.1 * Lbar
    omega = problem.d / 3 - 1
    assert fp.COFIG.from_theory(problem, S=4, up="randk:3") == fp.COFIG(
        S=4, eta=steps.cofig_nonconvex(Lmax, N, 4, omega), up="randk:3"
    )
    assert fp.SAGA.from_theory(problem, S=4, convex=True) == fp.SAGA(
        S=4, eta=steps.cofig_convex(Lmax, N, 4)
    )
    assert fp.DIANA.from_theory(problem, up="randk:3") == fp.DIANA(
        eta=steps.diana_nonconvex(Lmax, N, omega), up="randk:3"
    )
    for mu in (0.1, 5.0):  # the step is limited by L, or by a/mu
        step = steps.diana_strongly_convex(Lmax, mu, N, omega, 1 / (1 + omega))
        assert fp.DIANA.from_theory(problem, up="randk:3", mu=mu).eta == step
    assert step == pytest.approx(0.1 / (1 + omega))
    assert fp.ZeroSARAH.from_theory(problem, S=4, lam=0.5) == fp.ZeroSARAH(
        S=4, eta=steps.zerosarah_nonconvex(Lbar, N, 4, 0.5), lam=0.5
    )
    assert fp.FRECON.from_theory(problem, S=4, up="randk:3") == fp.FRECON(
        S=4, eta=steps.frecon_nonconvex(Lbar, N, 4, omega), up="randk:3"
    )


ROUNDS, SEEDS = 120, 6


def square(v: np.ndarray) -> float:
    """Return the mean over rows of the squared norm."""
    return float((v**2).sum(axis=-1).mean())


def observe(problem: fp.Quadratic, method: Any, see: Any) -> np.ndarray:
    """Return the mean over seeds of see(run) before every round."""
    seen: list[list[Any]] = []
    for seed in range(SEEDS):
        run = Simulation(problem, method, seed=seed)
        seen.append([])
        for _ in range(ROUNDS):
            seen[-1].append(see(run))
            run.step()
    return np.mean(seen, axis=0)


def gap(problem: fp.Quadratic) -> float:
    return problem.loss(np.zeros(problem.d)) - problem.loss(problem.x_star)


@pytest.mark.parametrize(
    ("kind", "up"), [(ZeroSARAH, "none"), (FRECON, "none"), (FRECON, "randk:1")]
)
def test_the_bound_of_differences_with_a_table(kind, up):
    """2 (f(x0) - f* + error of v + error of the table)/(eta R) bounds the mean of |grad f|^2."""
    problem, S = quadratic(), 2
    if kind is ZeroSARAH:
        method, W = fp.ZeroSARAH.from_theory(problem, S=S), 1.0
    else:
        method = fp.FRECON.from_theory(problem, S=S, up=up)
        W = 1 + method.omega(problem.d)
    x0, N = np.zeros(problem.d), problem.N
    lam = S / (2 * W * N)

    def see(run: Simulation) -> tuple[float, float, float]:
        (table,) = run.client_states.get_all()
        errors = run.state[2] - problem.grad(x0), table - all_gradients(problem, x0)
        return square(problem.grad(run.x)), square(errors[0]), square(errors[1])

    seen = observe(problem, method, see)
    E, Y = seen[1, 1:]  # after round 0
    weight = 2 * lam * N / S**2 if kind is ZeroSARAH else W / S
    start = method.eta * (E / (2 * lam) + weight * Y)
    average = seen[:, 0].mean()
    assert average <= 2 * (gap(problem) + start) / (method.eta * ROUNDS)
    # the first errors are not negligible: without them this is no bound
    assert average > 2 * gap(problem) / (method.eta * ROUNDS)


@pytest.mark.parametrize("up", ["none", "randk:1"])
@pytest.mark.parametrize("S", [1, 3])
def test_the_bounds_of_cofig(S, up):
    """The nonconvex one is of |grad f|^2, the convex one of f - f*, both in the mean."""
    problem = quadratic()
    method = fp.COFIG.from_theory(problem, S=S, up=up)
    seen = observe(problem, method, lambda run: square(problem.grad(run.x)))
    assert seen.mean() <= 2 * gap(problem) / (method.eta * ROUNDS)
    method = fp.COFIG.from_theory(problem, S=S, up=up, convex=True)
    seen = observe(problem, method, lambda run: problem.loss(run.x))
    W, errors = 1 + method.omega(problem.d), all_gradients(problem, problem.x_star)
    table = 2 * problem.N * (W * method.eta / S) ** 2 * square(errors)
    bound = (square(problem.x_star) + table) / (method.eta * ROUNDS)
    assert seen.mean() - problem.loss(problem.x_star) <= bound


@pytest.mark.parametrize("up", ["natural", "randk:1"])
def test_the_contraction_of_diana(up):
    problem = quadratic()
    mu = float(np.linalg.eigvalsh(problem.A)[:, 0].min())
    method = fp.DIANA.from_theory(problem, up=up, mu=mu)
    omega, a = method.omega(problem.d), method.rate(problem.d)
    rest = all_gradients(problem, problem.x_star)

    def see(run: Simulation) -> float:
        error = square(run.client_states.get_all().h - rest)
        return square(run.x - problem.x_star) + 4 * omega / (a * problem.N) * method.eta**2 * error

    seen = observe(problem, method, see)[:40]
    assert (seen <= (1 - method.eta * mu) ** np.arange(40) * seen[0] * (1 + 1e-12)).all()
    nonconvex = fp.DIANA.from_theory(problem, up=up)
    squares = observe(problem, nonconvex, lambda run: square(problem.grad(run.x)))
    assert squares.mean() <= 2 * gap(problem) / (nonconvex.eta * ROUNDS)
