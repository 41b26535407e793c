"""Plans to a gradient norm or to a gap: conversions, strong convexity, the command."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

import fedpage as fp
from fedpage import theory
from fedpage.core.errors import InputError
from fedpage.theory import Setting, convex_page, nonconvex_page, strongly_convex_page
from fedpage.theory import planner as planning
from fedpage.theory.tables import RIVALS

BASE = Setting(
    N=100, S=10, K=5, M=20, epsilon=1e-3, sigma=0.5, G=0.5, L=4.0, D0=0.7, R2=50.0, delta=0.4
)


def planned(**changes) -> dict[str, planning.Row]:
    """Return the row with the fewest rounds of each method, but for an analysis with G > 0."""
    options = {name: changes.pop(name) for name in ("measure", "whole_L") if name in changes}
    setting = dataclasses.replace(BASE, **changes)
    best: dict[str, planning.Row] = {}
    for row in planning.plan(setting, d=10, convex=True, average_L=3.0, **options):
        if row.source == "Yu et al. 2019" or row.rounds is None:
            continue
        if row.rounds < getattr(best.get(row.method), "rounds", 1e99):
            best[row.method] = row
    return best


# --- conversions ----------------------------------------------------------------------------------


def test_the_inequalities_of_the_conversions_hold():
    problem = fp.Quadratic.random(5, 2, 4, seed=3)
    mu, L = theory.strong_convexity(problem), problem.smoothness().whole
    f_star = problem.loss(problem.x_star)
    for seed in range(20):
        x = problem.x_star + np.random.default_rng(seed).standard_normal(4)
        norm, gap = np.linalg.norm(problem.grad(x)), problem.loss(x) - f_star
        assert norm**2 <= 2 * L * gap * (1 + 1e-9)
        assert gap <= norm**2 / (2 * mu) * (1 + 1e-9)


def test_a_theorem_about_the_gap_is_used_for_a_gradient_norm():
    page = planned(measure="grad_norm", whole_L=2.0, R2=0.01)["PAGE"]
    common = {"L": 3.0, "N": 100, "S": 10}
    converted = convex_page(**common, R2=0.01, epsilon=BASE.epsilon**2 / (2 * 2.0))
    assert (page.rounds, page.converted) == (math.ceil(converted.rounds), True)
    assert page.source.startswith("Theorem 3")
    page = planned(measure="grad_norm", whole_L=2.0)["PAGE"]  # here Theorem 1 needs fewer rounds
    own = nonconvex_page(**common, D0=0.7, epsilon=BASE.epsilon)
    assert (page.rounds, page.converted) == (math.ceil(own.rounds), False)


def test_a_theorem_about_the_gradient_norm_is_used_for_a_gap():
    mu = 0.1
    sarah = next(entry for entry in RIVALS if entry.method == "ZeroSARAH")
    row = planned(measure="gap", mu=mu)["ZeroSARAH"]
    implied = dataclasses.replace(BASE, epsilon=math.sqrt(2 * mu * BASE.epsilon))
    assert row.converted
    assert row.rounds == pytest.approx(sarah.nonconvex(implied))
    assert "ZeroSARAH" not in planned(measure="gap")  # without mu there is no conversion
    assert not planned(measure="grad_norm")["ZeroSARAH"].converted
    assert not any(row.converted for row in planned(measure="gap").values())


def test_a_gap_needs_a_convex_objective():
    with pytest.raises(InputError, match="a convex objective only"):
        planning.plan(BASE, d=10, convex=False, measure="gap")


def test_nothing_is_converted_for_a_nonconvex_objective():
    rows = planning.plan(BASE, d=10, convex=False)
    assert rows == planning.plan(BASE, d=10, convex=False, measure="grad_norm")
    assert not any(row.converted for row in rows)
    default = planning.plan(BASE, d=10, convex=True)
    assert default == planning.plan(BASE, d=10, convex=True, measure="gap")


# --- strong convexity -----------------------------------------------------------------------------


def test_strong_convexity_is_that_of_the_l2_regulariser():
    data = fp.load("census", rows=100)
    l2 = {"reg": "l2", "alpha": 0.03}
    assert theory.strong_convexity(fp.LogisticRegression(data, 10, **l2)) == 0.03
    weights = np.arange(1.0, 11.0)
    weighted = fp.LogisticRegression(data, 10, **l2, weights=weights)
    assert theory.strong_convexity(weighted) == pytest.approx(0.03 * 10 / 55)
    assert theory.strong_convexity(fp.LogisticRegression(data, 10)) == 0
    assert theory.strong_convexity(fp.RobustRegression(data, 10)) == 0
    planted = fp.Quadratic(np.diag([0.5, 2.0])[None] * np.ones((3, 1, 1)), np.ones((3, 1, 2)))
    assert theory.strong_convexity(planted) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "method", ["PAGE", "FedPAGE", "gradient descent", "SCAFFOLD", "FedAvg", "Scaffnew"]
)
@pytest.mark.parametrize("measure", ["gap", "grad_norm"])
def test_with_mu_rounds_grow_with_the_logarithm(method, measure):
    rounds = [
        planned(measure=measure, mu=0.01, sigma=0.0, G=0.0, epsilon=epsilon)[method].rounds
        for epsilon in (1e-4, 1e-8)
    ]
    assert 1.3 < rounds[1] / rounds[0] < 2.2
    if method != "Scaffnew":
        without = planned(measure=measure, sigma=0.0, G=0.0, epsilon=1e-8)[method].rounds
        assert without > 1000 * rounds[1]


def test_the_strongly_convex_bound_is_the_theorems():
    row = planned(measure="gap", mu=0.01)["PAGE"]
    theorem = strongly_convex_page(L=3.0, mu=0.01, N=100, S=10, D0=0.7, epsilon=BASE.epsilon)
    assert row.rounds == math.ceil(theorem.rounds)
    assert row.steps == {"eta_g": theorem.method.eta_g}
    assert row.kind == "bound"
    # 1/mu log(D0/epsilon) for L = mu, N/S log(D0/epsilon) for L >> mu and few clients
    scaffold = planned(measure="gap", mu=0.01, sigma=0.0)["SCAFFOLD"]
    assert scaffold.rounds == pytest.approx((400 + 10) * math.log(700))


@pytest.mark.parametrize("measure", ["gap", "grad_norm"])
@pytest.mark.parametrize("least", [0.002, 0.02, 0.5])
def test_gradient_descent_keeps_its_bound(measure, least):
    curvatures = np.geomspace(least, 1.0, 6)
    slopes = np.random.default_rng(0).standard_normal((4, 1, 6)) * curvatures
    problem = fp.Quadratic(np.tile(np.diag(curvatures), (4, 1, 1)), slopes)
    L, f_star = problem.smoothness().whole, problem.loss(problem.x_star)
    setting = Setting(
        N=4, S=2, K=1, M=1, epsilon=1e-3, L=problem.smoothness().row, mu=least,
        D0=problem.loss(np.zeros(6)) - f_star, R2=float((problem.x_star**2).sum()),
    )  # fmt: skip
    rows = planning.plan(setting, d=6, convex=True, measure=measure, whole_L=L)
    (row,) = [row for row in rows if row.method == "gradient descent"]
    assert row.kind == "bound"
    method = fp.PAGE(S=4, p=1.0, eta_g=row.steps["eta_g"])
    history = fp.simulate(problem, method, rounds=int(row.rounds), seed=0, record_every=1)
    reached = history["grad_norm"] if measure == "grad_norm" else history["loss"] - f_star
    assert reached[-1] <= 1e-3
    needed = history["round"][np.argmax(reached <= 1e-3)]
    assert needed >= row.rounds / 50  # the bound is not far from what is needed
    assert history.last("clients") == row.clients
    assert history.last("bytes_up") == row.bytes_up


# --- the command ----------------------------------------------------------------------------------

SMALL = (
    "plan", "--data", "census:rows=400", "--clients", "40", "--S", "4", "--K", "2",
)  # fmt: skip


@pytest.mark.parametrize("width", [80, 140])
def test_a_plan_on_data_has_a_line_for_each_analysis(run, monkeypatch, width):
    from rich.console import Console

    from fedpage.cli import output

    monkeypatch.setattr(output, "console", lambda: Console(width=width))
    words = ("--objective", "logistic-l2", "--target", "0.05", "--latency", "1")
    code, out, _ = run(*SMALL, *words)
    assert code == 0
    table = [line for line in out.splitlines() if line[:1] in "┏┃┡│└"]
    assert len({len(line) for line in table}) == 1
    assert len(table[0]) <= width
    lines = {line.split("│")[1].strip(): line for line in table if line[0] == "│"}
    assert {"PAGE", "FedPAGE", "SAGA", "SCAFFOLD", "gradient descent"} <= set(lines)
    assert "gradient norm <= 0.05" in out
    assert "mu=0.1 (computed)" in out
    assert "*: a theorem about the gap" in out
    assert "Step sizes of FedPAGE: eta_g = " in out
    if width == 140:
        assert "strongly convex PAGE, all rows*" in lines["PAGE"]
    else:
        assert "In a wider terminal or with --json:" in out


def test_analyses_are_sorted_by_kind_and_cost(run):
    for cost in ("bytes", "rounds", "clients", "gradients_per_client"):
        found = json.loads(run(*SMALL, "--target", "0.05", "--cost", cost, "--json")[1])
        rows = [planning.Row(**row) for row in found["methods"]]
        kinds = ("bound", "order", "no result")
        keys = [(kinds.index(row.kind), row.cost(cost) or math.inf) for row in rows]
        assert keys == sorted(keys)


def test_a_plan_from_assumed_constants():
    problem = fp.LogisticRegression(fp.load("census", rows=400), 40, reg="l2")
    measured = fp.plan(problem, target="gap:0.01", S=4)
    assumed = fp.plan(theory.estimate(problem), target=fp.Target("gap", 0.01), S=4)
    assert assumed.analyses == measured.analyses
    assert set(assumed.origin.values()) == {"assumed"}
    assert set(measured.origin.values()) == {"computed", "estimated"}
