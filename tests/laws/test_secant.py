"""SecantPAGE and the averaging start.

The replays are plain Python: lists, loops, Gaussian elimination and the formulas of the method's
page. What its metric and its variance estimate is checked by enumeration over all sampled clients.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from plain import X0, D, M, N, add, chance, grad, mean, some_rows
from support import ScriptedDraws, compress, quadratic, uneven

import fedpage as fp
from fedpage.codecs import as_codec
from fedpage.core import secant
from fedpage.core.random import RoundDraws
from fedpage.core.types import Replies
from fedpage.engine.simulation import Simulation
from fedpage.methods.first_pass import Difference
from fedpage.methods.secantpage import State

ALL_ROWS = list(range(M))
ORDER = [3, 0, 4, 1, 2]
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


class Plain:
    """SecantPAGE in plain Python, on one objective."""

    def __init__(self, objective: str, method: fp.SecantPAGE) -> None:
        self.objective, self.method, self.codec = objective, method, as_codec(method.up)
        self.x, self.x_prev, self.g = X0, X0, [0.0] * D
        self.zs: list[list[float]] = []
        self.delta = self.num = self.den = self.V = self.q = 0.0
        self.B = self.t = 0
        self.reasons: list[str] = []
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

    def round(self, r: int) -> ScriptedDraws:
        m = self.method
        T, y, share = m.tau * N / m.S, None, 0.0
        sampled = sorted(self.chance.sample(range(N), m.S))
        rows = [[ALL_ROWS if m.b is None else some_rows(m.b) for _ in range(2)] for _ in range(N)]
        if self.B < N:
            block = ORDER[self.B : self.B + m.S]
            self.B += len(block)
            share = len(block) / self.B
            a = mean([grad(self.objective, i, ALL_ROWS, self.x) for i in sorted(block)])
            if r == 0:
                self.g = a
            else:
                y = mean([self.difference(i, rows[i][1], r, 1) for i in sorted(block)])
                self.g = add((1 - share, self.g), (1 - share, y), (share, a))
            self.reasons.append("pass")
        elif self.t >= T or (m.theta and self.t >= T / 4 and m.theta * self.q < self.V):
            self.reasons.append("old" if self.t >= T else "variance")
            self.g = mean([grad(self.objective, i, ALL_ROWS, self.x) for i in range(N)])
            self.t, self.V = 0, 0.0
        else:
            y = mean([self.difference(i, rows[i][0], r, 0) for i in sampled])
            self.g, self.t = add((1, self.g), (1, y)), self.t + 1
            self.reasons.append("sampled")
        if y is not None:
            s = add((1, self.x), (-1, self.x_prev))
            sy, s2 = abs(inner(s, y)), inner(s, s)
            least = 1e-3 * math.sqrt(s2 * inner(y, y))
            z = [value / math.sqrt(max(sy, least)) for value in y]
            if not self.zs:
                self.delta = m.ridge * inner(z, z)
            w = inner(y, self.solve(y))
            self.num = m.beta * self.num + (1 - m.beta) * sy / s2
            self.den = m.beta * self.den + (1 - m.beta) * w / s2
            self.V = (1 - share) ** 2 * (self.V + w)
            self.zs.append(z)
        p = self.solve(self.g)
        self.q = inner(self.g, p)
        if m.eta is not None:
            step = m.eta
        elif not self.zs:
            step = m.first_step / max(1.0, math.sqrt(inner(p, p)))
        else:
            step = m.damping * self.num / self.den
        self.x, self.x_prev = add((1, self.x), (-step, p)), self.x
        return ScriptedDraws(r, False, sampled, dict(enumerate(rows)), order=ORDER)


CASES: dict[str, dict[str, Any]] = {
    "full": {"metric": "full", "ridge": 2.0},
    "few rows": {"metric": "full", "b": 2},
    "window": {"metric": "window", "window": 2, "ridge": 0.5},
    "none": {"metric": "none", "beta": 0.6, "damping": 0.4},
    "natural": {"metric": "full", "up": "natural", "b": 3},
    "no trigger": {"metric": "full", "theta": None},
    "fixed": {"metric": "window", "window": 3, "eta": 0.1},
    "long first step": {"metric": "full", "first_step": 5.0},
}


@pytest.mark.parametrize("case", CASES)
def test_secantpage_in_plain_python(objective, check, case):
    method = fp.SecantPAGE(S=2, **{"tau": 1.6, "theta": 0.7} | CASES[case])
    plain, script, expected, states = Plain(objective, method), [], [], []
    for r in range(24):
        script.append(plain.round(r))
        expected.append(plain.x)
        states.append((plain.t, plain.V, plain.q, plain.num, plain.den))
    run = check(method, script, expected)
    found = run.state
    np.testing.assert_allclose(found.g, plain.g, rtol=0, atol=1e-10)
    assert found.t == plain.t
    assert found.pairs == len(plain.zs)
    measured = (found.variance, found.q, found.curvature, found.squared)
    np.testing.assert_allclose(measured, states[-1][1:], rtol=1e-7)
    assert plain.reasons[:3] == ["pass"] * 3
    assert {"sampled"} < set(plain.reasons[3:])


def test_the_replays_see_both_reasons_of_a_full_round():
    reasons = []
    for case in ("full", "no trigger"):
        method = fp.SecantPAGE(S=2, **{"tau": 1.6, "theta": 0.7} | CASES[case])
        plain = Plain("robust", method)
        for r in range(40):
            plain.round(r)
        reasons.append(set(plain.reasons))
    assert reasons == [{"pass", "sampled", "old", "variance"}, {"pass", "sampled", "old"}]


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
            block = sorted(ORDER[seen : seen + S])
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
        script.append(ScriptedDraws(r, r in (0, 1, 6), clients, batches, order=ORDER))
        expected.append(x)
    method = fp.FedPAGE(
        S=S, K=K, b1=b1, b2=b2, b3=b3, eta_g=eta_g, eta_l=eta_l, p=0.2, leak_free=leak_free,
        start="average",
    )  # fmt: skip
    run = check(method, script, expected)
    np.testing.assert_allclose(run.state.g, g, rtol=0, atol=1e-10)


# 2. Reductions


@pytest.mark.parametrize("up", ["none", "natural", "float32"])
@pytest.mark.parametrize("b", [None, 2])
@pytest.mark.parametrize("kind", ["quadratic", "robust"])
def test_without_metric_and_with_a_fixed_step_it_is_page_with_an_averaging_start(kind, b, up):
    """The pass has N/S rounds; then full rounds follow T sampled ones, as PAGE's of period T+1."""
    problem, S, T = (quadratic(noise=1.0), 2, 2) if kind == "quadratic" else (uneven(), 4, 1)
    assert (problem.N // S) % (T + 1) == 1
    same: dict[str, Any] = {"S": S, "up": up, "down": "float32"}
    ours = fp.SecantPAGE(**same, metric="none", eta=0.05, theta=None, tau=T * S / problem.N, b=b)
    page = fp.PAGE(**same, eta_g=0.05, p=1 / (T + 1), periodic=True, start="average", b2=b)
    histories = [
        fp.simulate(problem, method, rounds=40, seed=2, record_every=1) for method in (ours, page)
    ]
    assert histories[0].same(histories[1])
    assert histories[0].last("full_rounds") > 5


def test_all_clients_in_the_first_round_are_a_full_round():
    problem = uneven("logistic-nonconvex")
    options: dict[str, Any] = {"S": problem.N, "K": 3, "p": 0.3, "eta_g": 0.1}
    full, average = (
        fp.simulate(problem, fp.FedPAGE(**options, start=start), rounds=20, seed=1)
        for start in ("full", "average")
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


def the_pass(problem: Any, method: Any, seed: int = 1, **options: Any) -> Simulation:
    """Run until the pass has had every client."""
    run = Simulation(problem, method, seed=seed, **options)
    while not run.state.seen.all():
        run.step()
    return run


AVERAGING = {
    "SecantPAGE": fp.SecantPAGE(S=3, eta=STILL),
    "FedPAGE": fp.FedPAGE(S=3, K=4, eta_g=STILL, start="average"),
    "PAGE": fp.PAGE(S=3, eta_g=STILL, start="average"),
}


@pytest.mark.parametrize("name", AVERAGING)
def test_after_a_pass_without_movement_g_is_the_full_gradient(name):
    for problem in (quadratic(noise=1.0), uneven("robust")):
        run = the_pass(problem, AVERAGING[name])
        np.testing.assert_allclose(run.state.g, problem.grad(run.x), rtol=0, atol=1e-14)
        assert run.costs.clients == problem.N
        assert run.costs.round == -(-problem.N // 3)


@pytest.mark.parametrize("name", AVERAGING)
def test_missing_clients_are_asked_again_and_counted_once(name):
    faults, policy = fp.Faults(dropout=0.4, nan=0.1), fp.Policy(retries=0)
    problem = uneven("robust")
    for seed in range(5):
        run = the_pass(problem, AVERAGING[name], seed, faults=faults, policy=policy)
        assert run.costs.missing > 0
        np.testing.assert_allclose(run.state.g, problem.grad(run.x), rtol=0, atol=1e-14)


def test_g_follows_the_point_in_the_pass():
    """Where all clients have the same Hessian, g is the gradient at x, however far x moves."""
    A = quadratic().A[:1].repeat(8, axis=0)
    problem = fp.Quadratic(A, quadratic(noise=1.0).b)
    for method in (
        fp.SecantPAGE(S=3),
        fp.FedPAGE(S=3, K=4, eta_g=0.1, start="average"),
        fp.PAGE(S=3, eta_g=0.1, start="average"),
    ):
        run = the_pass(problem, method)
        np.testing.assert_allclose(run.state.g, problem.grad(run.state.x_prev), atol=1e-12)
        assert np.linalg.norm(run.x) > 0.1


def test_the_pass_follows_a_random_order_of_the_seed():
    problem, method = quadratic(), fp.SecantPAGE(S=3)
    firsts = set()
    for seed in range(6):
        run = Simulation(problem, method, seed=seed)
        order, asked = RoundDraws(seed, 0).order(problem.N).tolist(), []
        for r in range(3):
            clients = method.call(run.state, run.draws()).clients.tolist()
            assert clients == sorted(order[3 * r : 3 * r + 3])
            asked += clients
            run.step()
        assert sorted(asked) == list(range(problem.N))
        firsts.add(tuple(order))
    assert len(firsts) == 6


def test_each_client_is_equally_often_first():
    counts = np.zeros(5)
    for seed in range(2000):
        counts[RoundDraws(seed, 3).order(5)[0]] += 1
    assert np.abs(counts - 400).max() < 4 * math.sqrt(2000 * 0.2 * 0.8)


@pytest.mark.parametrize("method", [fp.SecantPAGE(S=3), fp.PAGE(S=3, start="average")])
def test_a_client_that_never_answers_keeps_the_pass_open(method):
    """Sampled rounds replace the calls of it alone, and no full round is tried without it."""
    problem = quadratic()
    run = Simulation(
        problem, method, seed=1, faults=fp.Faults(gone=(5,)), policy=fp.Policy(patience=1)
    )
    for _ in range(30):
        run.step()
    assert np.flatnonzero(~run.state.seen).tolist() == [5]
    assert run.costs.full_rounds == 0
    assert run.costs.fallbacks > 20
    assert np.isfinite(run.x).all()


def test_a_full_round_without_a_client_is_replaced_and_does_not_count_as_one():
    problem = quadratic()
    faults = fp.Faults(gone=(5,), gone_from=4)
    run = Simulation(problem, fp.SecantPAGE(S=2), seed=1, faults=faults)
    for _ in range(30):
        run.step()
    assert run.state.seen.all()
    assert run.costs.full_rounds == 0
    assert run.costs.fallbacks > 10
    assert run.state.t == 26


# 4. What the metric and the variance estimate: the mean over all sampled clients


SAMPLED = 2


def different() -> fp.Quadratic:
    """Make 8 clients of 4 dimensions whose Hessians have rank 2 and differ much."""
    rows = np.random.default_rng(1).normal(size=(8, 2, 4))
    return fp.Quadratic(rows.transpose(0, 2, 1) @ rows, np.zeros((8, 1, 4)))


def replies_of(problem: Any, s: np.ndarray, chosen: tuple[int, ...]) -> Replies[Difference]:
    y = (problem.A[list(chosen)] @ s).mean(axis=0)
    return Replies(Difference(y), np.array(chosen))


def every_state(problem: Any, state: State, s: np.ndarray) -> list[State]:
    """Return the states after a sampled round with each subset of the clients."""
    method = fp.SecantPAGE(S=SAMPLED, beta=0.0)
    subsets = itertools.combinations(range(problem.N), SAMPLED)
    return [method.server(state, replies_of(problem, s, chosen)) for chosen in subsets]


def state_with_metric(problem: Any, s: np.ndarray, ridge: float = 1.0) -> State:
    """Return a state after the pass whose last move was s and whose metric has nine pairs."""
    rng = np.random.default_rng(7)
    method = fp.SecantPAGE(S=SAMPLED)
    metric = secant.new_metric("full", 1, s).begin(ridge)
    for step in rng.normal(size=(9, problem.d)):
        y = problem.A.mean(axis=0) @ step
        metric = metric.add(y / math.sqrt(step @ y))
    state = method.init(np.linspace(-1, 1, problem.d), problem.N)
    return state._replace(
        x_prev=state.x - s, g=np.linspace(2, 0, problem.d), metric=metric, pairs=9,
        seen=np.ones(problem.N, dtype=bool),
    )  # fmt: skip


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
        total += added * after.curvature * (s @ s)  # = y y', because beta = 0
        assert after.metric.n == 10
    Hs, covariance = second_moment(problem, s)
    expected = np.outer(Hs, Hs) + covariance
    np.testing.assert_allclose(total / len(states), expected, rtol=0, atol=1e-9)
    assert np.linalg.matrix_rank(covariance) == 4
    assert np.linalg.norm(covariance) > 0.05 * np.linalg.norm(expected)


def test_the_variance_grows_by_that_of_g_and_the_squared_curvature():
    """E[y'(K/n)^-1 y] = |Hs|^2 + E|y - Hs|^2, both in the metric: never below the variance."""
    problem, s = different(), np.array([0.3, -0.1, 0.2, 0.4])
    state = state_with_metric(problem, s)._replace(variance=0.7)
    states = every_state(problem, state, s)
    inverse = 9 * state.metric.P
    Hs, covariance = second_moment(problem, s)
    grown = np.mean([after.variance for after in states]) - 0.7
    assert grown == pytest.approx(Hs @ inverse @ Hs + np.trace(inverse @ covariance), rel=1e-9)
    errors = [after.g - (state.g + Hs) for after in states]
    of_g = np.mean([error @ inverse @ error for error in errors])
    assert of_g == pytest.approx(np.trace(inverse @ covariance), rel=1e-9)
    assert 0.1 * grown < of_g < grown


def test_the_metric_of_exact_pairs_is_below_the_hessian():
    """For each s z z' = H s s'H/(s.Hs) <= H, and so is their mean: p is never too short."""
    H = quadratic().A.mean(axis=0)
    metric, n, delta = secant.new_metric("full", 1, np.zeros(4)).begin(1e-3), 60, 1e-3
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
        metric = secant.new_metric("full", 1, np.zeros(4)).begin(rng.uniform(0.1, 3))
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


def test_without_metric_exact_steps_along_an_axis_descend():
    """One parameter, all clients: the loss falls in every round, and by 1 - damping to x*."""
    problem = fp.Quadratic(np.array([[[2.0]], [[6.0]]]), np.array([[[1.0]], [[-5.0]]]))
    run = Simulation(problem, fp.SecantPAGE(S=2, metric="none", damping=0.5), seed=0)
    gaps = []
    for _ in range(8):
        run.step()
        gaps.append(float(np.abs(run.x - problem.x_star)[0]))
    np.testing.assert_allclose(gaps[2:], [gap / 2 for gap in gaps[1:-1]], rtol=1e-9)


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
    assert two.q == pytest.approx(one.q, rel=1e-6)
    assert np.abs(one.x - state.x).max() > 0.05


# 6. Linear algebra


@pytest.mark.parametrize("d", [1, 2, 3, 7, 30])
def test_metrics_solve_their_own_equations(d):
    rng = np.random.default_rng(d)
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
    metric = fp.SecantPAGE(metric="window", window=7, S=1).init(np.zeros(3, np.float32), 4).metric
    assert metric.Z.shape == (7, 3)
    assert metric.Z.dtype == np.float32
    assert metric.solve(np.ones(3, np.float32)).dtype == np.float32


@pytest.mark.parametrize("metric", ["full", "window", "none"])
def test_it_obeys_the_laws_of_any_method(metric):
    assert fp.check_method(fp.SecantPAGE(S=3, metric=metric, window=3)).passed


# 7. What is sent


def test_what_is_sent():
    problem = uneven("robust")
    d, n, S = problem.d, problem.N, 4
    for up, gradient, change in (
        ("none", 64, 64),
        ("natural", 64, 12),
        ("float32", 32, 32),
    ):
        method = fp.SecantPAGE(S=S, up=up, tau=2 / 3, theta=None)  # a pass of 3, T = 2
        history = fp.simulate(problem, method, rounds=9, seed=1, record_every=1)
        sampled = S * change * d
        both = S * (gradient + change) * d
        full = n * gradient * d
        bits = [S * gradient * d, both, both, sampled, sampled, full, sampled, sampled, full]
        assert np.diff(history["bits_up"]).tolist() == bits
        vectors = [S, 2 * S, 2 * S, 2 * S, 2 * S, n, 2 * S, 2 * S, n]
        assert (np.diff(history["floats_down"]) / d).tolist() == vectors


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
        (lambda: fp.SecantPAGE(tau=-1.0), "SecantPAGE: tau must be"),
        (lambda: fp.SecantPAGE(theta=0.0), "SecantPAGE: theta must be"),
        (lambda: fp.SecantPAGE(beta=1.0), "SecantPAGE: beta must be in"),
        (lambda: fp.SecantPAGE(ridge=0.0), "SecantPAGE: ridge must be"),
        (lambda: fp.SecantPAGE(first_step=0.0), "SecantPAGE: first_step must be"),
        (lambda: fp.SecantPAGE(eta=0.0), "SecantPAGE: eta must be"),
        (lambda: fp.SecantPAGE(b=0), "SecantPAGE: b must be"),
        (lambda: fp.SecantPAGE(up="topk:2"), "SecantPAGE: up=topk:2 is biased"),
        (lambda: fp.SecantPAGE(down="natural"), "SecantPAGE: down=natural is no cast"),
        (lambda: fp.SecantPAGE(S=99).init(np.zeros(4), 8), "SecantPAGE: cannot sample S=99"),
        (lambda: fp.FedPAGE(start="half"), "FedPAGE: start must be full or average, not 'half'"),
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
    assert build_fair_method("secantpage:tau=1", **terms) == fp.SecantPAGE(S=5, tau=1.0)
    fixed = build_fair_method("secantpage:eta=0.3", **terms)
    assert fixed == fp.SecantPAGE(S=5, eta=0.3)
