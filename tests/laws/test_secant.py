"""SecantPAGE and the averaging start.

The replays are plain Python and the formulas of the method's page.
"""

import math
from itertools import count
from typing import Any

import numpy as np
import pytest
from plain import X0, ZERO, D, N, Plain, fedpage_round, mean
from rows import LeakFreePassStart
from support import quadratic, uneven

import fedpage as fp
from fedpage.core import secant
from fedpage.core.random import RoundDraws
from fedpage.engine.simulate import Simulation
from fedpage.methods import secantpage as secantpage_module
from fedpage.methods.fedpage_variants import PassStartFedPAGE

ORDERS = [[3, 0, 4, 1, 2], [1, 2, 0, 3, 4], [4, 0, 1, 3, 2], [2, 3, 1, 4, 0]] * 3
STILL = 1e-300
"""A step size at which x does not move."""


# 1. Replays


class Log:
    """A replay's dampings, and the number of rounds in which x rested."""

    def __init__(self) -> None:
        self.dampings: list[float] = []
        self.rests = 0


def secantpage(plain: Plain, m, rest=1e-4, log: Log | None = None):
    """Make passes of three rounds, the last of which calls one client only."""
    log = log or Log()
    x, x_prev, g, G = X0, X0, ZERO, ZERO
    zs: list[Any] = []
    num = den = q_start = delta = 0.0
    B = k = first = 0
    c = m.damping

    def solve(v):
        """Return max(n, 1) K^-1 v."""
        if m.metric == "none" or not delta:
            return v
        kept = np.array(zs[-m.window :] if m.metric == "window" else zs)
        return max(len(kept), 1) * np.linalg.solve(kept.T @ kept + delta * np.eye(D), v)

    for r in count():
        plain.clients(m.S)  # of a sampled round in place of one whose clients fail
        order = ORDERS[k][first % N :] + ORDERS[k][: first % N]
        block = sorted(order[B : B + m.S])
        B += len(block)
        share = len(block) / B
        a = mean(plain.grad(i, x, plain.batch(i)) for i in block)
        if (x == x_prev).all():
            G = (1 - share) * G + share * a
            g = g if k else G
        else:
            differences = []
            for i in block:
                rows = plain.batch(i, m.b)
                change = plain.grad(i, x, rows) - plain.grad(i, x_prev, rows)
                differences.append(plain.compress(i, change, m.up, 1))
            y, s = mean(differences), x - x_prev
            sy, s2 = abs(s @ y), s @ s
            z = y / math.sqrt(max(sy, 1e-3 * math.sqrt(s2 * (y @ y))))
            delta = delta if zs else m.ridge * (z @ z)
            num = m.beta * num + (1 - m.beta) * sy / s2
            den = m.beta * den + (1 - m.beta) * (y @ solve(y)) / s2
            zs.append(z)
            G = (1 - share) * (G + y) + share * a
            g = g + y if k else G
        if B == N:
            if k and m.eta is None:
                left, wrong = (math.sqrt(v @ solve(v)) for v in (g, G - g))
                c = min(1.0, c * min(2.0, max(0.25, math.sqrt(left / wrong))))
            log.dampings.append(c)
            g, G = G, ZERO
            q_start = g @ solve(g)
            k, B, first = k + 1, 0, (r + 1) * m.S
        p = solve(g)
        if g @ p < rest * q_start:
            step, log.rests = 0.0, log.rests + 1
        elif m.eta is not None:
            step = m.eta
        else:
            first_step = m.first_step / max(1.0, math.sqrt(p @ p))
            step = c * num / den if zs else first_step
        x, x_prev = x - step * p, x
        yield x, {"g": g, "passes": k, "damping": c}, {}


CASES: dict[str, dict[str, Any]] = {
    "full": {"metric": "full", "ridge": 2.0},
    "few rows": {"metric": "full", "b": 2},
    "window": {"metric": "window", "window": 2, "ridge": 0.5},
    "none": {"metric": "none", "beta": 0.6, "damping": 0.4},
    "natural": {"metric": "full", "up": "natural", "b": 3},
    "fixed": {"metric": "window", "window": 3, "eta": 0.1},
    "long first step": {"metric": "full", "first_step": 20.0},
}


@pytest.mark.parametrize("case", CASES)
def test_secantpage_in_plain_python(check, case):
    check(fp.SecantPAGE(S=2, **CASES[case]), secantpage, 30, ORDERS)


@pytest.mark.parametrize("metric", ["full", "none"])
def test_x_rests_in_a_pass_where_g_has_become_short(check, monkeypatch, metric):
    """Replay with a larger threshold, because these passes have three rounds only."""
    monkeypatch.setattr(secantpage_module, "_PAUSE", 0.6)
    log, xs = Log(), [X0, X0]

    def resting(plain, m):
        for x, *rest in secantpage(plain, m, 0.6, log):
            xs.append(x)
            yield x, *rest

    run = check(fp.SecantPAGE(S=2, metric=metric), resting, 24, ORDERS)
    assert 2 < log.rests < 20
    vectors = [1 if (xs[r] == xs[r + 1]).all() else 2 for r in range(24)]
    called = [1 if r % 3 == 2 else 2 for r in range(24)]
    assert run.costs.floats_down == D * np.dot(vectors, called)


def fedpage_with_a_pass(plain: Plain, m):
    """Average over a pass; a coin is not tossed before it ends."""
    x = x_prev = g = X0
    seen = 0
    for r in count():
        coin = plain.coin(r in (0, 1, 6))
        if seen < N:
            plain.clients(m.S)
            block = sorted(ORDERS[0][seen : seen + m.S])
            seen += len(block)
            share = len(block) / seen
            a = mean(plain.grad(i, x, plain.batch(i, m.b1)) for i in block)
            rows = {i: plain.batch(i, m.b2) for i in block}
            y = mean(plain.grad(i, x, rows[i]) - plain.grad(i, x_prev, rows[i]) for i in block)
            move = g = a if r == 0 else (1 - share) * (g + y) + share * a
        elif coin:
            move = g = mean(plain.grad(i, x, plain.batch(i, m.b1)) for i in range(N))
        else:
            move, g = fedpage_round(plain, m, x, x_prev, g)
        x, x_prev = x - m.eta_g * move, x
        yield x, {"g": g}, {}


@pytest.mark.parametrize("kind", [PassStartFedPAGE, LeakFreePassStart])
@pytest.mark.parametrize("K", [1, 3])
def test_fedpage_with_an_averaging_start(check, K, kind):
    method = kind(S=2, K=K, b1=3, b2=2, b3=1, eta_g=0.3, eta_l=0.2, p=0.2)
    check(method, fedpage_with_a_pass, 9, ORDERS)


# 2. Reductions


@pytest.mark.parametrize("up", ["none", "natural", "float32"])
@pytest.mark.parametrize("b", [None, 2])
@pytest.mark.parametrize("kind", ["quadratic", "robust"])
def test_without_metric_and_with_a_fixed_step_its_first_pass_is_that_of_page(kind, b, up):
    problem, S = (quadratic(noise=1.0), 2) if kind == "quadratic" else (uneven(), 4)
    page = PassStartFedPAGE(S=S, K=1, up=up, eta_g=0.05, b2=b)
    ours = fp.SecantPAGE(S=S, up=up, metric="none", eta=0.05, b=b)
    one, two = (
        fp.simulate(problem, method, rounds=problem.N // S, seed=2, record_every=1)
        for method in (ours, page)
    )
    assert one.same(two)


# 3. The first pass


def equal_hessians() -> fp.Quadratic:
    return fp.Quadratic(quadratic().A[:1].repeat(8, axis=0), quadratic(noise=1.0).b)


def the_pass(problem: Any, method: Any, seed: int = 1, number: int = 1, **options: Any) -> Any:
    """Run until a pass has had every client: the first, or that of a number."""
    run = Simulation(problem, method, seed=seed, options=fp.RunOptions(**options))
    while not run.state.seen.all() and getattr(run.state, "passes", 0) < number:
        run.step()
    return run


AVERAGING = {
    "SecantPAGE": fp.SecantPAGE(S=3, eta=STILL),
    "FedPAGE": PassStartFedPAGE(S=3, K=4, eta_g=STILL),
    "PAGE": PassStartFedPAGE(S=3, K=1, eta_g=STILL),
}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("name", AVERAGING)
def test_missing_clients_are_asked_again_and_counted_once(name, number):
    faults, policy = fp.Faults(dropout=0.4, nan=0.1), fp.Policy(retries=0)
    problem = uneven("robust")
    for seed in range(5):
        method = AVERAGING[name]
        run = the_pass(problem, method, seed, number, faults=faults, policy=policy)
        assert run.costs.missing > 0
        np.testing.assert_allclose(run.state.g, problem.grad(run.x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0, 1e3])
def test_the_damping_balances_what_is_left_and_noise(scale):
    """A pass multiplies it by the root of |g|/|new g - g|, from 1/4 to 2."""
    method = fp.SecantPAGE(S=2, metric="none")
    g, noise = np.array([0.3, -0.2, 0.1, 0.4]), scale * np.array([0.1, 0.3, -0.2, 0.2])
    state = method.init(np.zeros(4), 8)._replace(damping=0.2, passes=1, g=g, fresh=g + noise)
    after = method._end_pass(state)
    r = math.sqrt(np.linalg.norm(g) / np.linalg.norm(noise))
    assert after.damping == pytest.approx(0.2 * min(2, max(0.25, r)), rel=1e-12)
    assert not after.fresh.any()


@pytest.mark.parametrize("metric", ["full", "window"])
def test_a_ridge_below_the_rounding_error_ends_no_run_with_an_exception(metric):
    """K^-1 is then indefinite, and g.(K/n)^-1 g below 0 has no real root."""
    problem = fp.LogisticRegression(fp.load("census", rows=100), clients=10, reg="l2")
    method = fp.SecantPAGE(S=5, metric=metric, ridge=1e-20)
    history = fp.simulate(problem, method, rounds=100, seed=0, record_every=50)
    assert history.last("round") == 100 or history.diverged


def test_passes_follow_random_orders_of_the_seed():
    problem, method = quadratic(), fp.SecantPAGE(S=4)
    orders = set()
    for seed in range(6):
        run = Simulation(problem, method, seed=seed)
        for number in range(3):
            order = RoundDraws(seed, 0).order(problem.N, number).tolist()
            for r in range(2):
                clients = method.call(run.state, run.draws()).clients.tolist()
                assert clients == sorted(order[4 * r : 4 * r + 4])
                run.step()
            assert sorted(order) == list(range(problem.N))
            orders.add(tuple(order))
    assert len(orders) == 18


def test_only_the_first_clients_have_no_fallback():
    """Without their gradients there is no g; later a sampled round carries it along."""
    method = fp.SecantPAGE(S=3)
    state = method.init(np.zeros(4), 8)
    assert method.call(state, RoundDraws(0, 0)).fallback is None
    for later in ({"passes": 1}, {"seen": np.arange(8) < 3}):
        assert method.call(state._replace(**later), RoundDraws(0, 1)).fallback is not None


@pytest.mark.parametrize("method", [fp.SecantPAGE(S=3), PassStartFedPAGE(S=3, K=1)])
def test_a_client_that_never_answers_keeps_the_pass_open(method):
    """Sampled rounds replace the calls of it alone, and no full round is tried without it."""
    problem = quadratic()
    run = Simulation(
        problem,
        method,
        seed=1,
        options=fp.RunOptions(faults=fp.Faults(gone=(5,)), policy=fp.Policy(patience=1)),
    )
    for _ in range(30):
        run.step()
    assert np.flatnonzero(~run.state.seen).tolist() == [5]
    assert run.costs.full_rounds == 0
    assert run.costs.fallbacks > 20
    assert np.isfinite(run.x).all()


def test_a_lost_client_does_not_keep_others_of_its_block_out():
    order = RoundDraws(1, 0).order(8).tolist()
    lost = order[5]  # in the second block of four
    faults = fp.Faults(gone=(lost,))
    run = Simulation(quadratic(), fp.SecantPAGE(S=4), seed=1, options=fp.RunOptions(faults=faults))
    run.step()
    run.health.misses[lost] = 3
    run.step()
    assert np.flatnonzero(~run.state.seen).tolist() == [lost]
    assert run.costs.fallbacks == 0


def test_sampled_rounds_carry_both_estimators_along():
    """Equal Hessians: where a client is gone in the second pass, g stays the gradient at x."""
    problem = equal_hessians()
    faults = fp.Faults(gone=(5,), gone_from=4)
    run = Simulation(problem, fp.SecantPAGE(S=2), seed=1, options=fp.RunOptions(faults=faults))
    for _ in range(12):
        run.step()
    others = [i for i in range(8) if i != 5]
    assert run.state.passes == 1
    assert run.state.seen.tolist() == [i != 5 for i in range(8)]
    at, x = run.state.x_prev, run.x
    np.testing.assert_allclose(run.state.g, problem.grad(at), rtol=0, atol=1e-12)
    b = problem.b.mean(axis=1)[others].mean(axis=0)
    np.testing.assert_allclose(run.state.fresh, problem.A[0] @ at - b, rtol=0, atol=1e-12)
    assert np.abs(x - at).max() > 0
    assert run.costs.fallbacks > 2


# 4. Invariance


@pytest.mark.parametrize("metric", ["full", "window", "none"])
def test_other_units_and_rotations_of_the_features_change_no_step(metric):
    """f(A x) gives A^-1 x where A is 4 times a rotation; the first step's length is a unit, too."""
    problem = quadratic(noise=1.0)
    A = 4.0 * np.linalg.qr(np.random.default_rng(2).normal(size=(4, 4)))[0]
    other = fp.Quadratic(A.T @ problem.A @ A, problem.b @ A)
    options: dict[str, Any] = {"S": 3, "metric": metric, "window": 4}
    one = fp.simulate(problem, fp.SecantPAGE(**options), rounds=40, seed=1).x
    two = fp.simulate(other, fp.SecantPAGE(**options, first_step=0.01 / 4), rounds=40, seed=1).x
    np.testing.assert_allclose(one, A @ two, rtol=0, atol=1e-9)


# 5. Linear algebra


@pytest.mark.parametrize("d", [1, 2, 3, 7, 30])
def test_metrics_solve_their_own_equations(d):
    rng = np.random.default_rng(d)
    full: Any
    full, window = (
        secant.new_metric(name, 5, np.zeros(d)).begin(0.7) for name in ("full", "window")
    )
    zs = rng.normal(size=(12, d))
    v = rng.normal(size=d)
    for n, z in enumerate(zs, start=1):
        full, window = full.add(z), window.add(z)
        last = zs[max(0, n - 5) : n]
        for metric, kept in ((full, zs[:n]), (window, last)):
            K = 0.7 * np.eye(d) + kept.T @ kept
            np.testing.assert_allclose(K @ metric.solve(v), len(kept) * v, rtol=0, atol=1e-8)
    assert secant.dot(v, zs[0]) == pytest.approx(float(v @ zs[0]), rel=1e-12, abs=1e-12)
    assert np.array_equal(full.P, full.P.T)


def test_auto_chooses_by_the_number_of_parameters():
    kinds = [type(secant.new_metric("auto", 2, np.zeros(d))) for d in (1000, 1001, 1_000_001)]
    assert kinds == [secant.FullMetric, secant.WindowMetric, secant.NoMetric]
    method = fp.SecantPAGE(metric="window", window=7, S=1)
    metric: Any = method.init(np.zeros(3, np.float32), 4).metric
    assert metric.Z.shape == (7, 3)
    assert metric.Z.dtype == np.float32
    assert metric.solve(np.ones(3, np.float32)).dtype == np.float32


# 6. What is sent


def test_a_cast_of_messages_rounds_the_model_itself():
    """So s is the clients' own, and g is the gradient at the model, to any accuracy."""
    problem = equal_hessians()
    run = Simulation(problem, fp.SecantPAGE(S=3, down="float32"), seed=1)
    for _ in range(20):
        run.step()
        assert np.array_equal(run.x, run.x.astype(np.float32))
    np.testing.assert_allclose(run.state.g, problem.grad(run.state.x_prev), rtol=0, atol=1e-12)


# 7. Comparisons


def test_a_comparison_at_equal_steps_leaves_a_measured_step_alone():
    from fedpage.runs.build import build_fair_method

    terms: dict[str, Any] = {"N": 40, "M": 10, "S": 5, "K": 10, "step": 0.1}
    assert build_fair_method("secantpage", **terms) == fp.SecantPAGE(S=5)
    assert build_fair_method("secantpage:beta=0.9", **terms) == fp.SecantPAGE(S=5, beta=0.9)
    fixed = build_fair_method("secantpage:eta=0.3", **terms)
    assert fixed == fp.SecantPAGE(S=5, eta=0.3)
    assert fp.SecantPAGE().with_step(0.1) == fp.SecantPAGE(damping=0.1)
    assert fp.SecantPAGE(eta=0.3).with_step(0.1) == fp.SecantPAGE(eta=0.1)
