"""Degenerate data and margins at the ends of float64, against 60-digit or exact arithmetic."""

import itertools
import json
import math
import re
import shutil
import subprocess
from decimal import Decimal, localcontext
from importlib.resources import files

import numpy as np
import pytest
from support import OwnSquares, analyses, methods

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.core.random import RoundDraws
from fedpage.core.types import StopReason
from fedpage.problems.base import norm
from fedpage.report import page, plots
from fedpage.studies.space import search_space
from fedpage.theory import Setting, estimate, local_smoothness, reference, variance

LARGEST = Decimal(float(np.finfo(np.float64).max))
SIZES = (1e-300, 1e-8, 36.0, 709.0, 745.0, 1e4, 1e154, 1.3e154, 1.8e154, 1e300)
MARGINS = [0.0, *SIZES, *(-m for m in SIZES)]
ALPHA = 0.1


def log1p_exp(z: Decimal) -> Decimal:
    """Return log(1 + exp(z))."""
    if z > 0:
        return z + log1p_exp(-z)
    if z < -(10**4):
        return Decimal(0)
    e = z.exp()
    return e - e * e / 2 if z < -100 else (1 + e).ln()


def sigmoid(z: Decimal) -> Decimal:
    """Return 1/(1 + exp(-z))."""
    if z < 0:
        return Decimal(0) if z < -(10**4) else z.exp() / (1 + z.exp())
    return 1 - sigmoid(-z) if z > 0 else Decimal("0.5")


def row(kind: str, t: Decimal, b: Decimal) -> tuple[Decimal, Decimal]:
    """Return a row's loss and its derivative by the margin t."""
    if kind == "robust":
        u = (t - b) ** 2 / 2
        return (u - u * u / 2 if u < Decimal("1e-30") else (1 + u).ln()), (t - b) / (1 + u)
    if kind.startswith("logistic"):
        return log1p_exp(-b * t), -b * sigmoid(-b * t)
    return (t - b) ** 2 / 2, t - b


def regulariser(kind: str, x: Decimal) -> tuple[Decimal, Decimal]:
    """Return the regulariser of one coordinate, and its derivative."""
    alpha = Decimal(ALPHA)
    if kind.endswith("l2"):
        return alpha * x * x / 2, alpha * x
    if kind.endswith("nonconvex"):
        return alpha * x * x / (1 + x * x), 2 * alpha * x / (1 + x * x) ** 2
    return Decimal(0), Decimal(0)


def truth(kind: str, problem, x) -> tuple[Decimal, list[Decimal], Decimal]:
    """Return f(x), its gradient and the gradient's largest sum of |terms|, with 60 digits."""
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 60, 10**6, -(10**6)
        data, N = problem.data, problem.N
        A, at = data.to_dense(), [Decimal(float(v)) for v in x]
        loss, grad, size = Decimal(0), [Decimal(0)] * problem.d, [Decimal(0)] * problem.d
        for i in range(N):
            rows = problem.partition.rows(i)
            for j in rows:
                a = [Decimal(float(v)) for v in A[j]]
                value, slope = row(
                    kind, sum(p * q for p, q in zip(a, at, strict=True)), Decimal(float(data.y[j]))
                )
                loss += value / len(rows) / N
                for coordinate, v in enumerate(a):
                    grad[coordinate] += slope * v / len(rows) / N
                    size[coordinate] += abs(slope * v) / len(rows) / N
        terms = [regulariser(kind, v) for v in at]
        loss += sum(r[0] for r in terms)
        grad = [g + r[1] for g, r in zip(grad, terms, strict=True)]
        return loss, grad, max(s + abs(r[1]) for s, r in zip(size, terms, strict=True))


def close(got: float, true: Decimal, size: Decimal | None = None, tiny: str = "1e-307") -> bool:
    """Return whether `got` equals `true` up to 1e-13, or is infinite where float64 overflows."""
    if abs(true) > LARGEST:
        return got == math.copysign(math.inf, true)
    if not math.isfinite(got):
        return False
    return abs(Decimal(float(got)) - true) <= Decimal("1e-13") * (
        abs(true) if size is None else size
    ) + Decimal(tiny)


def linear(kind: str, data, clients):
    """Return the linear model of that name."""
    if kind == "robust":
        return fp.RobustRegression(data, clients)
    if kind.startswith("squares"):
        return fp.LeastSquares(data, clients, alpha=ALPHA if kind.endswith("l2") else 0.0)
    return fp.LogisticRegression(data, clients, reg=kind.partition("-")[2] or "none")


LINEAR = ["robust", "logistic", "logistic-l2", "logistic-nonconvex", "squares", "squares-l2"]


def as_quadratic(data, clients: int):
    """Return least squares, up to a constant, as a Quadratic."""
    A = data.to_dense()[: data.rows // clients * clients].reshape(clients, -1, data.features)
    y = data.y[: data.rows // clients * clients].reshape(clients, -1)
    return fp.Quadratic(np.einsum("nmi,nmj->nij", A, A) / A.shape[1], A * y[:, :, None])


def problem_of(kind: str, data, clients: int):
    if kind == "own":
        return OwnSquares(data.to_dense(), data.y, clients)
    return as_quadratic(data, clients) if kind == "quadratic" else linear(kind, data, clients)


KINDS = [*LINEAR, "quadratic", "own"]
SIGNS = [1, -1, -1, 1, 1, -1]
SOME = [[1, 0, 2], [0, -1, 0], [3, 0, 0], [0, 2, -1], [1, 1, 0], [0, 0, 1]]
CASES = {
    "empty rows": ([[0, 0, 0], [0, -1, 0], [0, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1]], SIGNS, 2),
    "duplicate rows": ([[1, 0, 2]] * 3 + [[0, -1, 0]] * 3, SIGNS, 3),
    "a feature that is always 0": (np.array(SOME) * [1, 0, 1], SIGNS, 2),
    "one-row clients": (SOME, SIGNS, 6),
    "N=1": (SOME, SIGNS, 1),
    "a single row": (SOME[:1], SIGNS[:1], 1),
    "d=1": (np.array(SOME)[:, :1], SIGNS, 3),
    "constant labels": (SOME, [1] * 6, 2),
    "all-zero data": (np.zeros((6, 2)), SIGNS, 2),
}


def case(name: str):
    """Return the data and the number of clients of a case."""
    X, y, clients = CASES[name]
    return fp.Dataset.from_arrays(np.array(X, dtype=float), y, name=name), clients


# Margins


@pytest.mark.parametrize("value", ["in the data", "in the model"])
@pytest.mark.parametrize("kind", LINEAR)
def test_losses_and_gradients_at_every_margin(kind, value):
    """Naive log(1 + exp(-m)) and m * m overflow at these margins, or lose digits."""
    for margin, target in itertools.product(MARGINS, (1.0, -1.0, 0.0)):
        if target == 0.0 and kind.startswith("logistic"):
            continue
        at, x = (margin, np.ones(1)) if value == "in the data" else (1.0, np.array([margin]))
        problem = linear(kind, fp.Dataset.from_arrays([[at]], [target]), 1)
        loss, (grad,), _ = truth(kind, problem, x)
        where = (margin, target)
        measured = problem.evaluate(x)
        assert close(problem.loss(x), loss), where
        assert measured["loss"] == problem.loss(x), where
        if kind == "robust" and abs(margin) >= 1e154:  # r/(1 + r^2/2) < 2e-154 rounds to 0
            tiny = f"{2e-154 * max(abs(at), 1.0)!r}"
        elif kind == "logistic-nonconvex":
            tiny = f"{1e-230 + 1e-307 * max(abs(at), 1.0)!r}"
        else:
            tiny = f"{1e-307 * max(abs(at), 1.0)!r}"
        oracle = problem.oracle(np.array([0]), RoundDraws(0, 0))
        for got in (
            problem.grad(x)[0],
            oracle.grad(x, oracle.batch(None))[0, 0],
            oracle.local_sgd(x, K=1, eta=1e-3, b=None)[0, 0],
        ):
            assert close(got, grad, tiny=tiny), where
        assert close(measured["grad_norm"], abs(grad), tiny=tiny), where


def test_a_residual_beyond_float64_has_a_finite_robust_loss():
    problem = fp.RobustRegression(fp.Dataset.from_arrays([[1.0]], [-1.7e308]), 1)
    loss, _, _ = truth("robust", problem, [1.7e308])
    assert close(problem.loss(np.array([1.7e308])), loss)


def test_a_quadratic_whose_two_terms_overflow_is_infinite():
    problem = fp.Quadratic(np.full((1, 1, 1), 2.0), np.full((1, 1, 1), 1e10))
    assert problem.loss(np.array([1e300])) == math.inf


def test_a_mean_is_finite_where_its_sum_overflows():
    data = fp.Dataset.from_arrays([[1.0], [1.0], [1.0]], [0.5, -0.5, 2.0])
    for clients in (1, 3):
        problem = fp.LeastSquares(data, clients)
        loss, _, _ = truth("squares", problem, [1.5e154])
        assert close(problem.loss(np.array([1.5e154])), loss)
        steep = fp.LeastSquares(fp.Dataset.from_arrays([[1e154]] * 3, [0.5, -0.5, 2.0]), clients)
        _, (grad,), _ = truth("squares", steep, [1e154])
        assert close(steep.grad(np.array([1e154]))[0], grad)
    small = fp.LogisticRegression(fp.Dataset.from_arrays([[0.0]], [1.0]), 1, reg="l2", alpha=1e-300)
    assert small.loss(np.array([1e160])) == pytest.approx(math.log(2) + 0.5e20, rel=1e-15)


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e-155, 1.0, 1e155, 1e300])
def test_norms(size):
    v = size * np.array([3.0, 0.0, -4.0])
    assert norm(v) == pytest.approx(5 * size, rel=1e-14 if size > 1e-307 else 1e-3, abs=0)
    assert math.isnan(norm(np.array([1.0, math.nan])))
    assert norm(np.array([-math.inf, 1.0])) == math.inf
    assert norm(np.zeros(3)) == 0.0


def test_weights_at_the_ends_of_float64():
    data = fp.Dataset.from_arrays(np.eye(2), [1, -1])
    for unit in (1e-320, 1e-300, 5e307):
        heavy = fp.LeastSquares(data, 2, weights=np.array([1.0, 3.0]) * unit)
        assert heavy.loss(np.array([1.0, 1.0])) == pytest.approx(1.5, rel=1e-3)


# Degenerate data


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", LINEAR)
def test_degenerate_data_against_the_reference(kind, name):
    """The margins are exact, so only losses and their sums can have errors."""
    data, clients = case(name)
    problem = linear(kind, data, clients)
    for scale in (0.0, 1.0, -1e4, 2.0**-30):
        x = scale * np.array([1.0, -0.5, 2.0])[: problem.d]
        loss, grad, size = truth(kind, problem, x)
        assert close(problem.loss(x), loss)
        assert all(close(got, true, size) for got, true in zip(problem.grad(x), grad, strict=True))
        everyone = problem.oracle(np.arange(problem.N), RoundDraws(0, 0))
        each = everyone.grad(x, everyone.batch(None))
        assert all(
            close(got, true, size) for got, true in zip(each.mean(axis=0), grad, strict=True)
        )


# round 0 is full, round 1 is sampled
SEED = next(seed for seed in range(100) if not RoundDraws(seed, 1).coin(0.3))


@pytest.mark.parametrize("name", CASES)
def test_every_method_finishes(name):
    """Each method meets every case and every kind, with S=1 and K=1, and with S=N and K=3."""
    data, clients = case(name)
    problems = {kind: problem_of(kind, data, clients) for kind in KINDS}
    first = list(CASES).index(name)
    for is_sampled in (True, False):
        chosen = methods(1 if is_sampled else clients, 1 if is_sampled else 3, 0.01)
        for number, (label, method) in enumerate(chosen.items(), first):
            kind = KINDS[number % len(KINDS)]
            run = fp.simulate(problems[kind], method, rounds=2, seed=SEED)
            where = (label, kind, is_sampled, run.stop_text)
            assert run.stop_reason is StopReason.FINISHED, where
            assert run.x is not None, where
            assert np.isfinite(run.x).all(), where
            assert np.isfinite([*run["loss"], *run["grad_norm"]]).all(), where
            if name == "all-zero data" and "l2" not in kind and "nonconvex" not in kind:
                assert (run.x == 0).all(), where
                assert (run["grad_norm"] == 0).all(), where


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_constants_of_degenerate_data(kind, name, monkeypatch):
    monkeypatch.setattr(
        "fedpage.theory.constants.reference", lambda p, x: reference(p, x, iterations=30)
    )
    data, clients = case(name)
    problem = problem_of(kind, data, clients)
    L = problem.smoothness()
    assert all(math.isfinite(v) and v >= 0 for v in L)
    assert L.row * (1 + 1e-12) >= L.client >= L.average * (1 - 1e-12) >= L.whole * (1 - 1e-9)
    c = estimate(problem)
    assert np.isfinite([c.sigma2, c.G, c.B, c.D0, c.R2]).all()
    assert local_smoothness(problem, np.zeros(problem.d)) <= L.whole * (1 + 1e-3)
    if max(problem.sizes) == 1 or name == "all-zero data":
        assert (variance(problem, np.ones(problem.d)) == 0).all()
    if name == "all-zero data":
        curvature = {"l2": ALPHA, "nonconvex": 2 * ALPHA}.get(kind.partition("-")[2], 0.0)
        assert tuple(L) == pytest.approx((curvature,) * 4, rel=1e-15)
        assert (c.sigma2, c.G, c.B, c.D0, c.R2) == (0.0, 0.0, 1.0, 0.0, 0.0)
    method = fp.FedAvg(S=1, K=1)
    if L.whole == 0:
        for ask in (
            lambda: fp.FedPAGE.from_theory(problem, S=1, K=2),
            lambda: fp.PAGE.from_theory(problem, S=1, K=1),
        ):
            with pytest.raises(InputError, match="smoothness"):
                ask()
    else:
        for K in (1, 2):
            assert 0 < fp.FedPAGE.from_theory(problem, S=problem.N, K=K).eta_g < math.inf
    steps = search_space(method, problem)["step"]  # without L: around the method's own step
    assert all(0 < step < math.inf for step in steps.values)
    assert steps.start > 5
    assert len(steps.values) > steps.start + 5


@pytest.mark.parametrize("size", [1e-100, 1e-80, 1e80, 1e100])
def test_smoothness_of_tiny_and_huge_features(size):
    """Squares of the features overflow or underflow; the smoothness does not."""
    data, clients = case("one-row clients")
    scaled = fp.Dataset.from_arrays(size * data.to_dense(), data.y)
    for kind in ("robust", "logistic", "squares", "quadratic"):
        plain, other = (
            problem_of(kind, data, clients).smoothness(),
            problem_of(kind, scaled, clients).smoothness(),
        )
        assert other == pytest.approx(tuple(v * size * size for v in plain), rel=1e-13, abs=0)


def test_smoothness_beyond_float64_is_infinite_and_refused():
    data = fp.Dataset.from_arrays(np.array(SOME) * 1e200, SIGNS)
    for kind in ("robust", "logistic", "squares"):
        problem = linear(kind, data, 3)
        assert problem.smoothness() == (math.inf,) * 4
        assert local_smoothness(problem, np.zeros(3)) in (0.0, math.inf)
        assert math.isfinite(reference(problem, iterations=5).loss)
        for ask in (
            lambda p=problem: estimate(p),
            lambda p=problem: fp.FedPAGE.from_theory(p, S=1, K=2),
        ):
            with pytest.raises(InputError, match="smoothness"):
                ask()


# Theory and plans


def test_plans_are_finite_at_the_ends_of_the_range():
    ends = (1e-30, 1e30)
    for L, far, epsilon, other, convex in itertools.product(
        ends, ends, ends, (0.0, 1e30), (True, False)
    ):
        far_off = {"L": L, "D0": far, "R2": far, "sigma": other, "G": other, "B": max(other, 1.0)}
        setting = Setting(N=10, S=2, K=3, M=5, epsilon=epsilon, **far_off)
        lines = analyses(setting, convex=convex)
        assert all(line.rounds is None or 1 <= line.rounds < math.inf for line in lines)


# Exact zeros in histories, plots, reports and searches


def zero_runs(seeds: int = 2):
    """Run least squares on zero features and labels: loss and gradient are exactly 0."""
    data = fp.Dataset.from_arrays(np.zeros((6, 2)), np.zeros(6))
    return fp.sweep(
        fp.LeastSquares(data, 3),
        [fp.FedAvg(S=1), fp.FedPAGE(S=1)],
        rounds=4,
        seeds=seeds,
        record_every=1,
    )


def falling_run():
    """Run gradient descent on x^2/2 - x with step 1: the gradient is 0 from round 1 on."""
    problem = fp.Quadratic(np.ones((1, 1, 1)), np.ones((1, 1, 1)))
    return fp.simulate(problem, fp.PAGE(S=1, eta_g=1.0, p=1.0), rounds=4, seed=0, record_every=1)


def test_histories_of_exact_zeros():
    for run in zero_runs():
        assert run.stop_reason is StopReason.FINISHED
        assert run.last("loss") == run.last("grad_norm") == 0.0
        assert run.best("loss") == run.best("grad_norm") == 0.0
        assert run.cost_to("loss:0,hold=0", "round") == run.cost_to("1e-300,hold=0") == 0.0
        assert run.cost_to("loss:-1e-300,hold=0") == math.inf
    run = falling_run()
    assert run["grad_norm"].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert (run.best("grad_norm"), run.best("loss")) == (0.0, -0.5)
    assert run.cost_to("1e-300,hold=0", "round") == 1.0


def test_plots_of_exact_zeros(tmp_path):
    """All zeros get a linear axis; a fall to 0 keeps the log axis, with 0 in its label."""
    runs = zero_runs()
    for x, y in itertools.product(("round", "bytes"), ("grad_norm", "loss")):
        assert plots.curves(runs, x=x, y=y).get_yscale() == "linear"
    fall = falling_run()
    ax = plots.curves([fall])
    assert ax.get_yscale() == "log"
    assert "0" in ax.get_ylabel()
    assert ax.get_ylim()[0] > 0
    assert plots.curves([fall], y="loss").get_yscale() == "linear"
    assert "0" not in plots.curves([fall], y="loss").get_ylabel()
    plots.plot([*runs, fall], tmp_path / "pair.png", x=("round", "bytes"), dpi=30)
    assert (tmp_path / "pair.png").stat().st_size > 0


# The command line


@pytest.mark.skipif(
    shutil.which("node") is None, reason="node, which runs the page's script, is not installed"
)
def test_the_pages_axis_at_exact_zeros(tmp_path):
    """An exact 0 is drawn at the lower edge of a log axis; all zeros get a linear axis."""
    seen = {}
    for name, runs in (("zero", zero_runs()), ("fall", [falling_run()])):
        text = page.write_runs(runs, tmp_path / f"{name}.html", title=name, target=1e-2).read_text()
        data = re.search(r'id="data">(.*?)</script>', text, re.S).group(1)
        script = files("fedpage.report").joinpath("chart.js").read_text(encoding="utf-8") + (
            '\nconst choice = {x: "round", y: "grad_norm", xlog: false, ylog: null};'
            f"const view = layout({data}.figures[0].panels[0], {{...choice, hidden: new Set()}});"
            "console.log(JSON.stringify([view.log, view.zeros, view.bottom, view.top, "
            "view.curves[0].points.map(p => [p.middle, view.place(p.middle)])]));"
        )
        out = subprocess.run(
            ["node", "-e", script], capture_output=True, text=True, check=True
        ).stdout
        seen[name] = json.loads(out)
    log, zeros, bottom, top, points = seen["zero"]
    assert (log, zeros) == (False, False)
    assert bottom < 0 < top
    assert {tuple(point) for point in points} == {(0, 0)}
    log, zeros, bottom, top, points = seen["fall"]
    assert (log, zeros, bottom) == (True, True, 0.5)
    assert points == [[1, 1], [0, 0.5], [0, 0.5], [0, 0.5], [0, 0.5]]
