"""Newton's method: its replay, its linear algebra, and the oracles' losses and Hessians."""

from itertools import product

import numpy as np
import pytest
from plain import ALPHA, X0, A, B, N, Plain, check_replay, mean, problem_of
from scipy.sparse import csr_array
from support import quadratic, refusal, uneven

import fedpage as fp
from fedpage.core.hessian import FLOOR, minimise_cubic, newton_step, unpack
from fedpage.core.random import RoundDraws
from fedpage.core.types import Replies
from fedpage.engine.simulate import Simulation
from fedpage.methods.newton import Derivatives, Newton

# 1. The replay


def loss(plain: Plain, i, x):
    t = A[i] @ x
    if plain.objective == "robust":
        return np.log(1 + (t - B[i]) ** 2 / 2).mean()
    return np.log1p(np.exp(-B[i] * t)).mean() + ALPHA * (x * x / (1 + x * x)).sum()


def hessian(plain: Plain, i, x):
    t, b = A[i] @ x, B[i]
    if plain.objective == "robust":
        r = t - b
        return (A[i].T * ((1 - r * r / 2) / (1 + r * r / 2) ** 2)) @ A[i] / len(b)
    q = 1 / (1 + np.exp(-t))
    bend = 2 * ALPHA * (1 - 3 * x * x) / (1 + x * x) ** 3
    return (A[i].T * (q * (1 - q))) @ A[i] / len(b) + np.diag(bend)


def absolute_step(H, g):
    s = 1 / np.sqrt(np.abs(np.diag(H)))
    for _ in range(8):
        s = s / np.sqrt(np.abs(s[:, None] * H * s).max(axis=1))
    w, V = np.linalg.eigh(s[:, None] * H * s)
    return s * (V @ ((V.T @ (s * g)) / np.maximum(np.abs(w), 1e-8 * np.abs(w).max())))


shortened: list[float] = []


def newton(plain: Plain, m):
    x, t, f_base, base, g_base, step = X0, 0.0, 0.0, None, X0, X0
    while True:
        f, g = float(mean(loss(plain, i, x) for i in range(N))), plain.full(x)
        if base is not None and f > f_base - 1e-4 * t * (g_base @ step) + 1e-13 * (1 + f):
            s0, s1 = -g_base @ step, -g @ step
            a = s0 + s1 - 3 * (f - f_base) / t
            root = np.sqrt(a * a - s0 * s1)
            least = t - t * (s1 + root - a) / (s1 - s0 + 2 * root)
            t = np.clip(least, t / 10, t / 2)
            shortened.append(t)
        else:
            last, is_first = g_base @ step, base is None
            base, f_base, g_base, t = x, f, g, m.damping
            step = absolute_step(mean(hessian(plain, i, x) for i in range(N)), g)
            if not is_first and g @ step > last:
                t *= np.sqrt(last / (g @ step))
        x = base - t * step
        yield x, {"base": base, "g": g_base}, {}


@pytest.mark.parametrize("objective", ["robust", "logistic"])
@pytest.mark.parametrize("damping", [1.0, 4.0])
def test_newton_is_its_algorithm(objective, damping):
    shortened.clear()
    check_replay(objective, True, Newton(damping=damping), newton, rounds=7)
    assert shortened, "no step was too long"


# 2. What it reaches


def test_a_quadratic_takes_one_exchange():
    problem = quadratic(noise=1.0)
    run = Simulation(problem, Newton(), seed=0)
    run.step()
    np.testing.assert_allclose(run.x, problem.x_star, rtol=1e-12)


@pytest.mark.parametrize("up", ["float32", "bfloat16"])
def test_casts_reach_the_optimum_and_halve_the_bytes(up):
    problem = problem_of("logistic")
    run, plain = (Simulation(problem, Newton(up=u), seed=0) for u in (up, "none"))
    for _ in range(30):
        run.step()
        plain.step()
    assert np.linalg.norm(problem.grad(run.x)) < (1e-6 if up == "float32" else 1e-2)
    assert run.costs.bytes_up < 0.6 * plain.costs.bytes_up


def test_the_units_of_columns_do_not_matter():
    """Columns in other units give the same predictions after every exchange."""
    units = np.array([1e-3, 1.0, 1e4])
    data, other = (fp.Dataset.from_arrays(A.reshape(-1, 3) * u, B.ravel()) for u in (1.0, units))
    runs = [Simulation(fp.RobustRegression(d, clients=N), Newton(), seed=0) for d in (data, other)]
    for _ in range(6):
        for run in runs:
            run.step()
        np.testing.assert_allclose(runs[1].x * units, runs[0].x, rtol=1e-8)


def test_a_missing_client_is_asked_again_at_the_same_point():
    """No mean over other clients is ever taken at the same x."""
    problem, faults = problem_of("robust"), fp.Faults(dropout=0.3)
    options = fp.RunOptions(faults=faults, policy=fp.Policy(retries=30))
    run, plain = (
        Simulation(problem, Newton(), seed=0, options=options),
        Simulation(problem, Newton(), seed=0),
    )
    for _ in range(6):
        run.step()
        plain.step()
        np.testing.assert_array_equal(run.x, plain.x)
    assert run.costs.missing > 0
    gone, policy = fp.Faults(gone=(2,), gone_from=1), fp.Policy(patience=1)
    history = fp.simulate(
        problem, Newton(), rounds=3, seed=0, options=fp.RunOptions(faults=gone, policy=policy)
    )
    assert history.stop_detail == "round 1 failed: no valid reply from client 2"


@pytest.mark.parametrize(("f", "slope", "fraction"), [(0.0, 10.0, 0.5), (1e3, 1e3, 0.1)])
def test_a_shortened_step_is_at_most_half_and_at_least_a_tenth(f, slope, fraction):
    """The cubic is least at 0.65 of the first step, and much below a tenth of the second."""
    one = np.ones(1)
    state = Newton().init(0.0 * one, 2)._replace(base=0.0 * one, g=one, step=one, t=1.0)
    replies = Replies(Derivatives(f * one, -slope * one, one), np.arange(2))
    assert Newton().server(state, replies).t == fraction


def test_a_step_is_at_first_no_longer_than_the_last_one():
    """The lengths in |H|, the roots of g.step, are 1 and then 4."""
    one, method = np.ones(1), Newton(damping=2.0)
    state = method.init(0.0 * one, 2)._replace(f=10.0, g=one, step=one, t=1.0)
    longer = method.server(state, Replies(Derivatives(0.0 * one, 4.0 * one, one), np.arange(2)))
    assert longer.t == 2.0 / 4.0
    assert longer.x == longer.base - 2.0
    same = method.server(state, Replies(Derivatives(0.0 * one, one, one), np.arange(2)))
    assert same.t == 2.0


def test_problems_without_hessians_are_refused():
    class Own(fp.RowProblem):
        def client_loss(self, client, x):
            return float(x @ x)

        def client_grad(self, client, rows, x):
            return 2 * x

    text = refusal(fp.simulate, Own([3, 3], 2), Newton(), rounds=1, seed=0)
    assert "client_hessian" in text
    problem = problem_of("robust")
    oracle = type("Plain", (), {"batch": None, "grad": None, "gradients": 0, "evaluations": 0})()
    problem.oracle = lambda *_: oracle
    assert "SecantPAGE" in refusal(fp.simulate, problem, Newton(), rounds=1, seed=0)
    assert "too many" in refusal(Newton().init, np.zeros(6000), 3)


@pytest.mark.slow
@pytest.mark.parametrize("reg", ["none", "nonconvex"])
@pytest.mark.parametrize("name", ["a9a", "mushrooms", "w8a"])
def test_ten_sites_need_few_contacts(real, name, reg):
    """At most 50 contacts to a gradient norm of 1e-4, and 60 on mushrooms' logistic regression."""
    model = fp.RobustRegression if reg == "none" else fp.LogisticRegression
    problem = model(real(name), clients=10, reg=reg, alpha=None if reg == "none" else 0.1)
    run = fp.simulate(problem, Newton(), rounds=7, seed=0, record_every=1)
    most = 60 if (name, reg) == ("mushrooms", "nonconvex") else 50
    assert run.cost_to("1e-4,hold=0", "clients") <= most


# 3. Linear algebra


@pytest.mark.parametrize("kind", ["definite", "indefinite", "singular", "zero column"])
@pytest.mark.parametrize("d", [1, 2, 7, 30])
def test_steps_are_those_of_absolute_eigenvalues(kind, d):
    rng = np.random.default_rng(d)
    w = rng.uniform(0.1, 1.0, d)
    w[: d // 2] *= {"indefinite": -1.0, "singular": 0.0}.get(kind, 1.0)
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    units = 10.0 ** rng.integers(-2, 3, d)
    H = (Q * w) @ Q.T * units[:, None] * units
    g = rng.normal(size=d)
    if kind == "zero column" and d > 1:
        H[0], H[:, 0], g[0] = 0.0, 0.0, 1.0
        assert newton_step(H[np.triu_indices(d)], g)[0] == 0.0
        H, g = H[1:, 1:], g[1:]
    step = newton_step(H[np.triu_indices(len(g))], g)
    np.testing.assert_allclose(step, absolute_step(H, g), rtol=1e-6)
    assert g @ step > 0


def test_eigenvalues_below_the_floor_are_replaced_where_the_hessian_is_definite():
    g = np.array([1.0, -1.0])  # the eigenvector of 1e-10
    step = newton_step(np.array([1.0, 1.0 - 1e-10, 1.0]), g)
    np.testing.assert_allclose(step, g / (2.0 * FLOOR), rtol=1e-6)


def test_a_cubic_is_minimised():
    for a, b, c, t in product([0.3, -0.1], [1.0, 0.6], [-1.0, -0.2], [0.5, 2.0]):
        values = [a * u**3 + b * u**2 + c * u for u in (0.0, t)]
        slopes = [3 * a * u**2 + 2 * b * u + c for u in (0.0, t)]
        roots = [u for u in np.roots([3 * a, 2 * b, c]) if np.isreal(u) and 6 * a * u + 2 * b > 0]
        least = minimise_cubic(t, values[0], slopes[0], values[1], slopes[1])
        assert least == pytest.approx(float(np.real(roots[0])))
    assert minimise_cubic(1.0, 0.0, -1.0, float("inf"), 1.0) == 0.0


# 4. Oracles: losses, Hessians and products


LAYOUTS = {
    "robust": (1, 0.5), "softmax": (1, 0.5), "huber": (0.5,), "squares": (1,), "logistic": (0.5,),
    "squared-hinge": (1,), "poisson": (0.5,),
}  # fmt: skip
"""Losses, and the shares of entries that are not 0; kernels of losses and layouts are separate."""


def linear_model(loss, density):
    rng = np.random.default_rng(3)
    y = rng.normal(size=60)
    labels = {"poisson": rng.integers(0, 4, 60), "softmax": rng.integers(0, 3, 60)}
    labels |= dict.fromkeys(("logistic", "squared-hinge"), np.sign(y))
    X = rng.normal(size=(60, 5)) * (rng.random((60, 5)) < density)
    data = fp.Dataset.from_arrays(csr_array(X) if density < 1 else X, labels.get(loss, y))
    reg = {"robust": "nonconvex", "huber": "smoothed-l1", "squares": "none"}.get(loss, "l2")
    options = {"weights": "size", "intercept": density == 1, "reg": reg}
    alpha = None if reg == "none" else 0.2
    return fp.LinearModel(
        data, fp.power_law(60, 7, exponent=1.2), loss=loss, alpha=alpha, **options
    )


@pytest.mark.parametrize(
    ("loss", "density"),
    [("quadratic", 1), *((loss, share) for loss, shares in LAYOUTS.items() for share in shares)],
)
def test_oracles_agree_with_differences_of_gradients(loss, density):
    """For all rows and for minibatches, each client at its point."""
    problem = quadratic(noise=1.0) if loss == "quadratic" else linear_model(loss, density)
    rng = np.random.default_rng(4)
    clients = np.array([0, 2, 5])
    y, v = 0.3 * rng.normal(size=(3, problem.d)), rng.normal(size=(3, problem.d))
    h = 1e-6
    for size in (None, 3):
        oracle = problem.oracle(clients, RoundDraws(1, 2))
        batch = oracle.batch(size)
        H = [unpack(row) for row in oracle.hessian(y, batch)]
        products, losses = oracle.hvp(y, v, batch), oracle.loss(y, batch)
        slope = [oracle.grad(y + sign * h * v, batch) for sign in (1, -1)]
        value = [oracle.loss(y + sign * h * v, batch) for sign in (1, -1)]
        np.testing.assert_allclose(products, (slope[0] - slope[1]) / (2 * h), atol=2e-7)
        np.testing.assert_allclose(products, np.einsum("nij,nj->ni", H, v), rtol=1e-9, atol=1e-12)
        along = ((value[0] - value[1]) / (2 * h))[:, 0]
        np.testing.assert_allclose(
            along, (oracle.grad(y, batch) * v).sum(axis=1), rtol=1e-6, atol=1e-7
        )
        assert losses.shape == (3, 1)


def test_losses_of_all_clients_are_the_objective():
    for problem in (uneven("robust"), uneven("logistic-l2", weights="size"), quadratic(1.0)):
        oracle = problem.oracle(np.arange(problem.N), RoundDraws(0, 0))
        x = np.full(problem.d, 0.1)
        assert oracle.loss(x, oracle.batch(None)).mean() == pytest.approx(problem.loss(x))


def test_one_client_alone_has_the_bits_of_its_row():
    problem, x = uneven("logistic-l2"), np.full(123, 0.05)
    clients = np.array([1, 4, 9])

    def compute(chosen):
        oracle = problem.oracle(chosen, RoundDraws(0, 3))
        batch = oracle.batch(2)
        return oracle.loss(x, batch), oracle.hessian(x, batch), oracle.hvp(x, 2 * x, batch)

    together = compute(clients)
    for i, client in enumerate(clients):
        for whole, alone in zip(together, compute(np.array([client])), strict=True):
            assert whole[i].tobytes() == alone[0].tobytes()


def test_costs_are_counted():
    problem = quadratic()
    oracle = problem.oracle(np.array([0, 3]), RoundDraws(0, 0))
    x, batch = np.ones(4), oracle.batch(None)
    for compute, gradients in (
        (oracle.loss, 10), (oracle.hessian, 40), (lambda *a: oracle.hvp(x, *a), 10),
    ):  # fmt: skip
        before = oracle.gradients
        compute(x, batch)
        assert oracle.gradients - before == gradients
    run = Simulation(problem, Newton(), seed=0)
    run.step()
    assert run.costs.floats_up == 8 * (1 + 4 + 10)
    assert run.costs.gradients == 8 * 5 * (1 + 1 + 4)


class OwnLoss:
    """Squares, with the wrong second derivative on demand."""

    curvature, convex = 1.0, True

    @staticmethod
    def value(t, b):
        return 0.5 * (t - b) ** 2

    @staticmethod
    def slope(t, b):
        return t - b


class WrongBend(OwnLoss):
    @staticmethod
    def bend(t, b):
        return 2.0


def test_an_own_loss_needs_no_second_derivative_but_a_wrong_one_is_refused():
    data = fp.Dataset.from_arrays(A.reshape(-1, 3), B.ravel())
    own, known = (
        Simulation(fp.LinearModel(data, N, loss=loss), Newton(), seed=0)
        for loss in (OwnLoss, "squares")
    )
    own.step()
    known.step()
    np.testing.assert_allclose(own.x, known.x, rtol=1e-8)
    assert "bend" in refusal(fp.LinearModel, data, N, loss=WrongBend)
