"""SecantPAGE and the averaging start.

The replays are plain Python: lists, loops, Gaussian elimination and the formulas of the method's
page. What its metric and its variance estimate is checked by enumeration over all sampled clients.
"""

from __future__ import annotations

import itertools
import math
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from plain import X0, D, M, N, add, chance, grad, mean, some_rows
from rows.secant import LeakFreePassStart
from support import compress, quadratic, uneven

import fedpage as fp
from fedpage.codecs import as_codec
from fedpage.core import secant
from fedpage.core.random import RoundDraws
from fedpage.core.types import Replies
from fedpage.engine.simulate import Simulation
from fedpage.methods import secantpage
from fedpage.methods.fedpage_variants import PassStartFedPAGE
from fedpage.methods.passes import Difference
from fedpage.methods.secantpage import Curvature, State
from fedpage.testing import ScriptedDraws

ALL_ROWS = list(range(M))
ORDERS = [[3, 0, 4, 1, 2], [1, 2, 0, 3, 4], [4, 0, 1, 3, 2], [2, 3, 1, 4, 0]] * 3
STILL = 1e-300
"""A step size at which x does not move."""


# 1. Replays


def inner(a: list[float], b: list[float]) -> float:
    return sum(v * w for v, w in zip(a, b, strict=True))


def solve(K: list[list[float]], v: list[float]) -> list[float]:
    """Return K^-1 v by Gaussian elimination."""
    rows = [[*row, value] for row, value in zip(K, v, strict=True)]
    for i in range(D):
        for j in range(D):
            if j != i:
                factor = rows[j][i] / rows[i][i]
                rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [rows[i][D] / rows[i][i] for i in range(D)]


def rotated(order: list[int], first: int) -> list[int]:
    """Return an order that begins at another place."""
    return [order[(first + place) % N] for place in range(N)]


class Plain:
    """SecantPAGE in plain Python, on one objective."""

    def __init__(self, objective: str, method: fp.SecantPAGE, rest: float = 1e-4) -> None:
        self.rest = rest
        self.objective, self.method, self.codec = objective, method, as_codec(method.up)
        self.x, self.x_prev, self.g, self.G = X0, X0, [0.0] * D, [0.0] * D
        self.zs: list[list[float]] = []
        self.delta = self.num = self.den = 0.0
        self.c, self.cs = method.damping, [method.damping]
        self.B = self.k = self.first = 0
        self.q_start = 0.0
        self.rests = 0
        self.chance = random.Random(5)

    def solve(self, v: list[float]) -> list[float]:
        """Return max(n, 1) K^-1 v."""
        if self.method.metric == "none" or not self.delta:
            return v
        zs = self.zs[-self.method.window :] if self.method.metric == "window" else self.zs
        K = [[sum(z[i] * z[j] for z in zs) for j in range(D)] for i in range(D)]
        for i in range(D):
            K[i][i] += self.delta
        return [max(len(zs), 1) * value for value in solve(K, v)]

    def difference(self, i: int, rows: list[int], r: int, field: int) -> list[float]:
        now, before = (grad(self.objective, i, rows, x) for x in (self.x, self.x_prev))
        return compress(self.codec, r, i, add((1, now), (-1, before)), field)

    def learn(self, y: list[float]) -> None:
        m, s = self.method, add((1, self.x), (-1, self.x_prev))
        sy, s2 = abs(inner(s, y)), inner(s, s)
        least = 1e-3 * math.sqrt(s2 * inner(y, y))
        z = [value / math.sqrt(max(sy, least)) for value in y]
        if not self.zs:
            self.delta = m.ridge * inner(z, z)
        self.num = m.beta * self.num + (1 - m.beta) * sy / s2
        w = inner(y, self.solve(y))
        self.den = m.beta * self.den + (1 - m.beta) * w / s2
        self.zs.append(z)

    def round(self, r: int) -> ScriptedDraws:
        m = self.method
        rows = [[ALL_ROWS if m.b is None else some_rows(m.b) for _ in range(2)] for _ in range(N)]
        sampled = sorted(self.chance.sample(range(N), m.S))
        self.in_pass(r, rows)
        p = self.solve(self.g)
        if inner(self.g, p) < self.rest * self.q_start:
            step, self.rests = 0.0, self.rests + 1
        elif m.eta is not None:
            step = m.eta
        elif not self.zs:
            step = m.first_step / max(1.0, math.sqrt(inner(p, p)))
        else:
            step = self.c * self.num / self.den
        self.x, self.x_prev = add((1, self.x), (-step, p)), self.x
        return ScriptedDraws(r, False, sampled, dict(enumerate(rows)), orders=ORDERS)

    def in_pass(self, r: int, rows: list[list[list[int]]]) -> None:
        S = self.method.S
        block = sorted(rotated(ORDERS[self.k], self.first)[self.B : self.B + S])
        self.B += len(block)
        share = len(block) / self.B
        a = mean([grad(self.objective, i, ALL_ROWS, self.x) for i in block])
        if self.x == self.x_prev:
            self.G = add((1 - share, self.G), (share, a))
            self.g = self.g if self.k else self.G
        else:
            y = mean([self.difference(i, rows[i][1], r, 1) for i in block])
            self.learn(y)
            self.G = add((1 - share, self.G), (1 - share, y), (share, a))
            self.g = add((1, self.g), (1, y)) if self.k else self.G
        if self.B == N:
            if self.k and self.method.eta is None:
                noise = add((1, self.G), (-1, self.g))
                left, wrong = (math.sqrt(inner(v, self.solve(v))) for v in (self.g, noise))
                self.c = min(1.0, self.c * min(2.0, max(0.25, math.sqrt(left / wrong))))
                self.cs.append(self.c)
            self.g, self.G = self.G, [0.0] * D
            self.q_start = inner(self.g, self.solve(self.g))
            self.k, self.B, self.first = self.k + 1, 0, (r + 1) * S


CASES: dict[str, dict[str, Any]] = {
    "full": {"metric": "full", "ridge": 2.0},
    "few rows": {"metric": "full", "b": 2},
    "window": {"metric": "window", "window": 2, "ridge": 0.5},
    "none": {"metric": "none", "beta": 0.6, "damping": 0.4},
    "natural": {"metric": "full", "up": "natural", "b": 3},
    "fixed": {"metric": "window", "window": 3, "eta": 0.1},
    "long first step": {"metric": "full", "first_step": 5.0},
}


@pytest.mark.parametrize("case", CASES)
def test_secantpage_in_plain_python(objective, check, case):
    """Replay passes of three rounds, the last of which calls one client only."""
    method = fp.SecantPAGE(S=2, **CASES[case])
    plain, script, expected = Plain(objective, method), [], []
    for r in range(18):
        script.append(plain.round(r))
        expected.append(plain.x)
    run = check(method, script, expected)
    found = run.state
    np.testing.assert_allclose(found.g, plain.g, rtol=0, atol=1e-10)
    assert found.passes == plain.k == 6
    assert found.curvature.pairs == len(plain.zs)
    measured = (found.damping, found.curvature.mean, found.curvature.squared)
    np.testing.assert_allclose(measured, (plain.c, plain.num, plain.den), rtol=1e-7)


@pytest.mark.parametrize("metric", ["full", "none"])
def test_x_rests_in_a_pass_where_g_has_become_short(objective, check, monkeypatch, metric):
    """Replay with a larger threshold, because these passes have three rounds only."""
    monkeypatch.setattr(secantpage, "_PAUSE", 0.6)
    method = fp.SecantPAGE(S=2, metric=metric)
    plain, script, expected = Plain(objective, method, rest=0.6), [], []
    for r in range(24):
        script.append(plain.round(r))
        expected.append(plain.x)
    run = check(method, script, expected)
    np.testing.assert_allclose(run.state.g, plain.g, rtol=0, atol=1e-10)
    assert 2 < plain.rests < 20
    points = [X0, X0, *expected]
    vectors = [1 if points[r] == points[r + 1] else 2 for r in range(24)]
    called = [1 if r % 3 == 2 else 2 for r in range(24)]
    assert run.costs.floats_down == D * inner(vectors, called)


def test_the_replays_see_the_damping_rise_and_fall():
    factors = []
    for case in ("full", "few rows", "long first step"):
        plain = Plain("robust", fp.SecantPAGE(S=2, **CASES[case]))
        for r in range(30):
            plain.round(r)
        factors += [new / old for old, new in pairwise(plain.cs)]
    assert min(factors) < 0.9
    assert max(factors) > 1.1


@pytest.mark.parametrize("leak_free", [False, True])
@pytest.mark.parametrize("K", [1, 3])
def test_fedpage_with_an_averaging_start(objective, check, K, leak_free):
    """Replay the pass, and then rounds of FedPAGE; a coin is not tossed before the pass ends."""
    S, b1, b2, b3, eta_g, eta_l = 2, 3, 2, 1, 0.3, 0.2
    x, x_prev, g, script, expected = X0, X0, X0, [], []
    seen = 0
    for r in range(9):
        clients = sorted(chance.sample(range(N), S))
        batches = {i: [some_rows(b2)] + [some_rows(b3) for _ in range(K - 1)] for i in range(N)}
        if seen < N:
            block = sorted(ORDERS[0][seen : seen + S])
            seen += len(block)
            share = len(block) / seen
            batches = {i: [some_rows(b1), some_rows(b2)] for i in range(N)}
            a = mean([grad(objective, i, batches[i][0], x) for i in block])
            both = [[grad(objective, i, batches[i][1], v) for i in block] for v in (x, x_prev)]
            y = add((1, mean(both[0])), (-1, mean(both[1])))
            g = a if r == 0 else add((1 - share, g), (1 - share, y), (share, a))
            move = g
        elif r == 6:
            batches = {i: [some_rows(b1)] for i in range(N)}
            move = g = mean([grad(objective, i, batches[i][0], x) for i in range(N)])
        else:
            moves, firsts = [], []
            for i in clients:
                y_now, before, estimate, estimates = x, x_prev, g, []
                for rows in batches[i]:
                    estimate = add(
                        (1, estimate),
                        (1, grad(objective, i, rows, y_now)),
                        (-1, grad(objective, i, rows, before)),
                    )
                    estimates.append(estimate)
                    y_now, before = add((1, y_now), (-eta_l, estimate)), y_now
                moves.append(mean(estimates))
                firsts.append(estimates[0])
            move = mean(moves)
            g = mean(firsts) if leak_free else move
        x, x_prev = add((1, x), (-eta_g, move)), x
        script.append(ScriptedDraws(r, r in (0, 1, 6), clients, batches, orders=ORDERS))
        expected.append(x)
    kind: Any = LeakFreePassStart if leak_free else PassStartFedPAGE
    method = kind(S=S, K=K, b1=b1, b2=b2, b3=b3, eta_g=eta_g, eta_l=eta_l, p=0.2)
    run = check(method, script, expected)
    np.testing.assert_allclose(run.state.g, g, rtol=0, atol=1e-10)


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


def test_with_all_clients_and_a_fixed_step_it_is_gradient_descent():
    problem = uneven("logistic-nonconvex")
    method = fp.SecantPAGE(S=problem.N, metric="none", eta=0.05)
    history = fp.simulate(problem, method, rounds=15, seed=1)
    x = np.zeros(problem.d)
    for _ in range(15):
        x = x - 0.05 * problem.grad(x)
    np.testing.assert_allclose(history.x, x, rtol=0, atol=1e-13)


def test_all_clients_in_the_first_round_are_a_full_round():
    problem = uneven("logistic-nonconvex")
    options: dict[str, Any] = {"S": problem.N, "K": 3, "p": 0.3, "eta_g": 0.1}
    full, average = (
        fp.simulate(problem, method(**options), rounds=20, seed=1)
        for method in (fp.FedPAGE, PassStartFedPAGE)
    )
    assert full.same(average)


def test_a_window_of_all_pairs_is_the_full_metric():
    problem = uneven("robust")
    full, window, short = (
        fp.simulate(problem, fp.SecantPAGE(S=4, metric=metric, window=m), rounds=50, seed=1).x
        for metric, m in (("full", 1), ("window", 50), ("window", 5))
    )
    np.testing.assert_allclose(window, full, rtol=0, atol=1e-10)
    assert np.abs(short - full).max() > 1e-4


# 3. The first pass


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


@pytest.mark.parametrize("name", AVERAGING)
def test_after_a_pass_without_movement_g_is_the_full_gradient(name):
    for problem in (quadratic(noise=1.0), uneven("robust")):
        run = the_pass(problem, AVERAGING[name])
        np.testing.assert_allclose(run.state.g, problem.grad(run.x), rtol=0, atol=1e-14)
        assert run.costs.clients == problem.N
        assert run.costs.round == -(-problem.N // 3)


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


@pytest.mark.parametrize("number", [1, 2, 4])
def test_g_follows_the_point_in_a_pass(number):
    """Where all clients have the same Hessian, g is the gradient at x, however far x moves."""
    A = quadratic().A[:1].repeat(8, axis=0)
    problem = fp.Quadratic(A, quadratic(noise=1.0).b)
    for method in (
        fp.SecantPAGE(S=3),
        PassStartFedPAGE(S=3, K=4, eta_g=0.1),
        PassStartFedPAGE(S=3, K=1, eta_g=0.1),
    ):
        run = the_pass(problem, method, number=number)
        np.testing.assert_allclose(run.state.g, problem.grad(run.state.x_prev), atol=1e-12)
        assert np.linalg.norm(run.x) > 0.1


def test_without_noise_the_damping_doubles_in_each_pass_up_to_one():
    """With equal Hessians the old g and the new one agree at the end of every pass."""
    A = quadratic().A[:1].repeat(8, axis=0)
    problem = fp.Quadratic(A, quadratic(noise=1.0).b)
    run = Simulation(problem, fp.SecantPAGE(S=4, damping=0.1), seed=1)
    found = []
    for _ in range(5):
        run.step()
        run.step()
        found.append(run.state.damping)
    assert found == [0.1, 0.2, 0.4, 0.8, 1.0]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0, 1e3])
def test_the_damping_balances_what_is_left_and_noise(scale):
    """A pass multiplies it by the root of |g|/|new g - g| in the metric, from 1/4 to 2."""
    problem = different()
    state = state_with_metric(problem, np.ones(4))._replace(damping=0.2, passes=1)
    method = fp.SecantPAGE(S=SAMPLED)
    g = np.array([0.3, -0.2, 0.1, 0.4])
    state = state._replace(g=g, fresh=g + scale * np.array([0.1, 0.3, -0.2, 0.2]))
    after = method._end_pass(state)
    inverse = 9 * state.metric.P
    noise = state.fresh - g
    r = math.sqrt((g @ inverse @ g) / (noise @ inverse @ noise))
    assert after.damping == pytest.approx(0.2 * min(2, max(0.25, math.sqrt(r))), rel=1e-12)
    assert np.array_equal(after.g, state.fresh)
    assert not after.fresh.any()
    assert not after.seen.any()
    assert after.passes == 2


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


def test_each_client_is_equally_often_first():
    counts = np.zeros(5)
    for seed in range(2000):
        counts[RoundDraws(seed, 3).order(5)[0]] += 1
    assert np.abs(counts - 400).max() < 4 * math.sqrt(2000 * 0.2 * 0.8)


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
    A = quadratic().A[:1].repeat(8, axis=0)
    problem = fp.Quadratic(A, quadratic(noise=1.0).b)
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
    np.testing.assert_allclose(run.state.fresh, A[0] @ at - b, rtol=0, atol=1e-12)
    assert np.abs(x - at).max() > 0
    assert run.costs.fallbacks > 2


def test_a_resting_x_moves_again_in_the_next_pass():
    """Rounds at rest send one vector down and up, others two."""
    A = quadratic().A[:1].repeat(60, axis=0)
    problem = fp.Quadratic(A, np.random.default_rng(0).normal(size=(60, 1, 4)))
    run = Simulation(problem, fp.SecantPAGE(S=1), seed=1)
    rested = set()
    for _ in range(200):
        before, x, number = run.costs.floats_up, run.x, run.state.passes
        was_moving = not np.array_equal(run.state.x, run.state.x_prev)
        run.step()
        assert run.costs.floats_up - before == problem.d * (2 if was_moving else 1)
        if np.array_equal(run.x, x):
            rested.add(number)
            assert run.state.norm2(run.state.g) < 1e-4 * run.state.q_start
        elif number in rested:
            assert run.state.passes == number + 1
    assert rested == {1, 2, 3}
    assert np.linalg.norm(problem.grad(run.x)) < 1e-4


# 4. What the metric and the variance estimate: the mean over all sampled clients


SAMPLED = 2


def different() -> fp.Quadratic:
    """Make 8 clients of 4 dimensions whose Hessians have rank 2 and differ much."""
    rows = np.random.default_rng(1).normal(size=(8, 2, 4))
    return fp.Quadratic(rows.transpose(0, 2, 1) @ rows, np.zeros((8, 1, 4)))


def replies_of(problem: Any, s: np.ndarray, chosen: tuple[int, ...]) -> Replies[Difference]:
    y = (problem.A[list(chosen)] @ s).mean(axis=0)
    return Replies(Difference(y), np.array(chosen))


def every_state(problem: Any, state: State, s: np.ndarray) -> list[Any]:
    """Return the states after a sampled round with each subset of the clients."""
    method = fp.SecantPAGE(S=SAMPLED, beta=0.0)
    subsets = itertools.combinations(range(problem.N), SAMPLED)
    return [method.server(state, replies_of(problem, s, chosen)) for chosen in subsets]


def state_with_metric(problem: Any, s: np.ndarray, ridge: float = 1.0) -> Any:
    """Return a state after the pass whose last move was s and whose metric has nine pairs."""
    rng = np.random.default_rng(7)
    method = fp.SecantPAGE(S=SAMPLED)
    metric = secant.new_metric("full", 1, s).begin(ridge)
    for step in rng.normal(size=(9, problem.d)):
        y = problem.A.mean(axis=0) @ step
        metric = metric.add(y / math.sqrt(step @ y))
    state = method.init(np.linspace(-1, 1, problem.d), problem.N)
    return state._replace(x_prev=state.x - s, metric=metric, curvature=Curvature(pairs=9), passes=1)


def second_moment(problem: Any, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return H s and the covariance of y = the mean of A_i s over S clients of N."""
    each = problem.A @ s
    Hs = each.mean(axis=0)
    spread = (each - Hs).T @ (each - Hs) / problem.N
    n, S = problem.N, SAMPLED
    return Hs, (n - S) / (S * (n - 1)) * spread


def test_a_pair_adds_the_curvature_along_s_and_the_noise_of_differences():
    """E[z z' |s.y|] = H s s'H + Cov(y), and Cov(y) is of all directions."""
    problem, s = different(), np.array([0.3, -0.1, 0.2, 0.4])
    state = state_with_metric(problem, s)
    K = np.linalg.inv(state.metric.P)
    total = np.zeros((4, 4))
    states = every_state(problem, state, s)
    for after in states:
        added = np.linalg.inv(after.metric.P) - K
        total += added * after.curvature.mean * (s @ s)  # = y y', because beta = 0
        assert after.metric.n == 10
    Hs, covariance = second_moment(problem, s)
    expected = np.outer(Hs, Hs) + covariance
    np.testing.assert_allclose(total / len(states), expected, rtol=0, atol=1e-9)
    assert np.linalg.matrix_rank(covariance) == 4
    assert np.linalg.norm(covariance) > 0.05 * np.linalg.norm(expected)


def test_the_squared_length_of_y_is_that_of_its_mean_and_its_variance():
    """E[y'(K/n)^-1 y] = |Hs|^2 + E|y - Hs|^2, both in the metric: noise shortens the step."""
    problem, s = different(), np.array([0.3, -0.1, 0.2, 0.4])
    state = state_with_metric(problem, s)
    states = every_state(problem, state, s)
    inverse = 9 * state.metric.P
    Hs, covariance = second_moment(problem, s)
    w = np.mean([after.curvature.squared for after in states]) * (s @ s)  # beta = 0
    noise = np.trace(inverse @ covariance)
    assert w == pytest.approx(Hs @ inverse @ Hs + noise, rel=1e-9)
    errors = [after.g - (state.g + Hs) for after in states]
    of_g = np.mean([error @ inverse @ error for error in errors])
    assert of_g == pytest.approx(noise, rel=1e-9)
    assert 0.1 * w < of_g < w


def test_the_metric_of_exact_pairs_is_below_the_hessian():
    """For each s z z' = H s s'H/(s.Hs) <= H, and so is their mean: p is never too short."""
    H = quadratic().A.mean(axis=0)
    n, delta = 60, 1e-3
    metric: Any = secant.new_metric("full", 1, np.zeros(4)).begin(delta)
    for s in np.random.default_rng(0).normal(size=(n, 4)):
        metric = metric.add(H @ s / math.sqrt(s @ H @ s))
    learned = (np.linalg.inv(metric.P) - delta * np.eye(4)) / n
    assert np.linalg.eigvalsh(H - learned).min() > -1e-9
    assert np.linalg.eigvalsh(learned).min() > 0.1 * np.linalg.eigvalsh(H).min()


def test_the_step_is_at_most_that_of_a_line_search_along_the_last_move():
    """s.y/(y.(K/n)^-1 y) <= s.(K/n) s/(s.y), in any metric, with equality where H = K/n.

    So a step along the last move's direction descends for any damping below 2.
    """
    H, rng = quadratic().A.mean(axis=0), np.random.default_rng(3)
    for _ in range(50):
        metric: Any = secant.new_metric("full", 1, np.zeros(4)).begin(rng.uniform(0.1, 3))
        for z in rng.normal(size=(5, 4)):
            metric = metric.add(z)
        s = rng.normal(size=4)
        y, M_s = H @ s, np.linalg.inv(5 * metric.P) @ s
        step = (s @ y) / (y @ metric.solve(y))
        assert step <= (1 + 1e-9) * (s @ M_s) / (s @ y)
        g = M_s * rng.uniform(-2, 2)  # so that p = (K/n)^-1 g is parallel to s
        p = metric.solve(g)
        for damping in (0.25, 1.0, 1.99):
            change = -damping * step * (g @ p) + (damping * step) ** 2 / 2 * (p @ H @ p)
            assert change < 0


def test_without_noise_one_parameter_is_solved_by_the_first_measured_step():
    problem = fp.Quadratic(np.array([[[2.0]], [[6.0]]]), np.array([[[1.0]], [[-5.0]]]))
    run = Simulation(problem, fp.SecantPAGE(S=2, metric="none", damping=1.0), seed=0)
    gaps = []
    for _ in range(2):
        run.step()
        gaps.append(float(np.abs(run.x - problem.x_star)[0]))
    assert gaps[0] > 0.4
    assert gaps[1] < 1e-12


# 5. Invariance


def rescaled(problem: fp.Quadratic, A: np.ndarray) -> fp.Quadratic:
    """Return f(A x)."""
    return fp.Quadratic(A.T @ problem.A @ A, problem.b @ A)


@pytest.mark.parametrize("metric", ["full", "window", "none"])
def test_other_units_of_all_features_change_no_step(metric):
    """f(a x) gives x/a, bit for bit for a power of two; the first step's length is a unit, too."""
    problem, a = quadratic(noise=1.0), 4.0
    options: dict[str, Any] = {"S": 3, "metric": metric, "window": 4}
    one = fp.simulate(problem, fp.SecantPAGE(**options), rounds=40, seed=1).x
    scaled = rescaled(problem, a * np.eye(4))
    two = fp.simulate(scaled, fp.SecantPAGE(**options, first_step=0.01 / a), rounds=40, seed=1).x
    assert np.array_equal(one, a * two)


@pytest.mark.parametrize("metric", ["full", "window", "none"])
def test_a_rotation_of_the_features_rotates_every_step(metric):
    problem = quadratic(noise=1.0)
    Q = np.linalg.qr(np.random.default_rng(2).normal(size=(4, 4)))[0]
    method = fp.SecantPAGE(S=3, metric=metric, window=4)
    one, two = (
        fp.simulate(case, method, rounds=40, seed=1).x for case in (problem, rescaled(problem, Q))
    )
    np.testing.assert_allclose(one, Q @ two, rtol=0, atol=1e-9)


def test_units_of_single_features_matter_only_by_the_ridge():
    """f(A x) with a diagonal A gives A^-1 times the step, as far as the ridge is small."""
    A = np.diag([0.1, 1.0, 3.0, 20.0])
    problem, s = quadratic(), np.array([0.3, -0.1, 0.2, 0.4])
    scaled, method = rescaled(problem, A), fp.SecantPAGE(S=SAMPLED, beta=0.0)
    state = state_with_metric(problem, s, ridge=1e-10)
    inverse = np.linalg.inv(A)
    there = state._replace(
        x=inverse @ state.x,
        x_prev=inverse @ state.x_prev,
        g=A @ state.g,
        metric=state.metric._replace(P=inverse @ state.metric.P @ inverse),
    )
    one = method.server(state, replies_of(problem, s, (1, 4)))
    two = method.server(there, replies_of(scaled, inverse @ s, (1, 4)))
    np.testing.assert_allclose(A @ two.x, one.x, rtol=0, atol=1e-7)
    assert np.abs(one.x - state.x).max() > 0.05


# 6. Linear algebra


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


@pytest.mark.parametrize("metric", ["full", "window", "none"])
def test_it_obeys_the_laws_of_any_method(metric):
    assert fp.check_method(fp.SecantPAGE(S=3, metric=metric, window=3)).passed


# 7. What is sent


def test_what_is_sent():
    problem = uneven("robust")
    d, S = problem.d, 4
    for up, gradient, change in (("none", 64, 64), ("natural", 64, 12), ("float32", 32, 32)):
        method = fp.SecantPAGE(S=S, up=up)
        history = fp.simulate(problem, method, rounds=7, seed=1, record_every=1)
        both = S * (gradient + change) * d
        assert np.diff(history["bits_up"]).tolist() == [S * gradient * d] + 6 * [both]
        assert (np.diff(history["floats_down"]) / d).tolist() == [S] + 6 * [2 * S]
        assert history.last("full_rounds") == 0


def test_a_cast_of_messages_rounds_the_model_itself():
    """So s is the clients' own, and g is the gradient at the model, to any accuracy."""
    A = quadratic().A[:1].repeat(8, axis=0)
    problem = fp.Quadratic(A, quadratic(noise=1.0).b)
    run = Simulation(problem, fp.SecantPAGE(S=3, down="float32"), seed=1)
    for _ in range(20):
        run.step()
        assert np.array_equal(run.x, run.x.astype(np.float32))
    np.testing.assert_allclose(run.state.g, problem.grad(run.state.x_prev), rtol=0, atol=1e-12)


def test_rounding_leaves_a_floor():
    problem = quadratic()
    floors = {}
    for codec in ("none", "float32", "bfloat16"):
        method = fp.SecantPAGE(S=3, up=codec, down=codec)
        history = fp.simulate(problem, method, rounds=800, seed=1, record_every=0)
        floors[codec] = np.linalg.norm(history.x - problem.x_star)
    assert floors["none"] < 1e-12
    assert 1e-10 < floors["float32"] < 1e-5
    assert 1e-6 < floors["bfloat16"] < 0.2


# 8. What is refused, and what comparisons leave alone


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: fp.SecantPAGE(metric="diagonal"), "SecantPAGE: metric must be one of auto, full"),
        (lambda: fp.SecantPAGE(window=0), "SecantPAGE: window must be a whole number from 1"),
        (lambda: fp.SecantPAGE(damping=0.0), "SecantPAGE: damping must be a finite number above 0"),
        (lambda: fp.SecantPAGE(beta=1.0), "SecantPAGE: beta must be in"),
        (lambda: fp.SecantPAGE(ridge=0.0), "SecantPAGE: ridge must be"),
        (lambda: fp.SecantPAGE(first_step=0.0), "SecantPAGE: first_step must be"),
        (lambda: fp.SecantPAGE(eta=0.0), "SecantPAGE: eta must be"),
        (lambda: fp.SecantPAGE(b=0), "SecantPAGE: b must be"),
        (lambda: fp.SecantPAGE(up="topk:2"), "SecantPAGE: up=topk:2 is biased"),
        (lambda: fp.SecantPAGE(down="natural"), "SecantPAGE: down=natural is not a cast"),
        (lambda: fp.SecantPAGE(S=99).init(np.zeros(4), 8), "SecantPAGE: cannot sample S=99"),
    ],
)
def test_nonsense_is_refused_in_a_line(make, says):
    with pytest.raises(fp.InputError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_comparison_at_equal_steps_leaves_a_measured_step_alone():
    from fedpage.runs.build import build_fair_method

    terms: dict[str, Any] = {"N": 40, "M": 10, "S": 5, "K": 10, "step": 0.1}
    assert build_fair_method("secantpage", **terms) == fp.SecantPAGE(S=5)
    assert build_fair_method("secantpage:beta=0.9", **terms) == fp.SecantPAGE(S=5, beta=0.9)
    fixed = build_fair_method("secantpage:eta=0.3", **terms)
    assert fixed == fp.SecantPAGE(S=5, eta=0.3)
    assert fp.SecantPAGE().with_step(0.1) == fp.SecantPAGE(damping=0.1)
    assert fp.SecantPAGE(eta=0.3).with_step(0.1) == fp.SecantPAGE(eta=0.1)
