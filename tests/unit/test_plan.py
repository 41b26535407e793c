"""Plans: rates of the tables, bounds, conversions, costs of rounds, and `fedpage plan`."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from support import analyses

import fedpage as fp
from fedpage import theory
from fedpage.codecs import as_codec
from fedpage.core.errors import InputError
from fedpage.theory import planner
from fedpage.theory.tables import RIVALS, TABLE, Entry, Setting

BASE = Setting(N=64, S=8, K=4, M=27, epsilon=1e-3, L=5.0, D0=0.7, R2=0.3, mu=0.2, delta=0.4)
KINDS = ("convex", "nonconvex")


def planned(up="none", *, convex=False, measure=None, **changes) -> dict[str, planner.Row]:
    """Return the row with the fewest rounds of each method; one analysis is about G > 0."""
    setting, asked = dataclasses.replace(BASE, **changes), {"measure": measure} if measure else {}
    rows = analyses(
        setting, d=100, convex=convex, codec=as_codec(up), L=(setting.L, 4.0, 3.0, 2.0), **asked
    )
    known = [r for r in rows if r.rounds is not None and r.source != "Yu et al. 2019"]
    return {row.method: row for row in sorted(known, key=lambda row: -row.rounds)}


def rate(entry: Entry, kind: str, **changes) -> float:
    return getattr(entry, kind)(dataclasses.replace(BASE, **changes))


# --- the rates of the tables ----------------------------------------------------------------------


def pairs(entries):
    return [
        pytest.param(entry, kind, id=f"{entry.method}-{kind}-{number}")
        for number, entry in enumerate(entries)
        for kind in KINDS
        if getattr(entry, kind) is not None
    ]


@pytest.mark.parametrize(("entry", "kind"), pairs(RIVALS))
def test_with_all_clients_and_no_codec_a_rate_is_gradient_descents(entry, kind):
    """Up to a factor of 4; proximal methods where their subproblem is a gradient step."""
    changes: dict[str, Any] = {"S": 64, "mu": None, "delta": None}
    needs = getattr(entry, f"{kind}_needs")
    if "mu" in needs:
        changes["mu"] = 5.0 if entry.method == "Scaffnew" else BASE.mu  # else it is faster
    if "delta" in needs:
        changes["delta"] = BASE.L
    if entry.method == "SVRP":
        changes["delta"] = math.sqrt(BASE.L * changes["mu"])  # gamma = 1/(2L)
    if entry.method == "SABER":
        changes |= {"N": 1, "S": 1}
    s = dataclasses.replace(BASE, **changes)
    descent = s.L * s.R2 / s.epsilon if kind == "convex" else s.L * s.D0 / s.epsilon**2
    if "mu" in needs:
        descent = s.L / s.mu * math.log(max(math.e, s.D0 / s.epsilon))
    assert descent / 1.01 <= rate(entry, kind, **changes) <= 4 * descent


@pytest.mark.parametrize(("entry", "kind"), pairs((*TABLE, *RIVALS)))
def test_units_do_not_matter(entry, kind):
    f, x = 100.0, 1000.0  # f -> 100 f, x -> 1000 x: gradients times f/x, L times f/x^2
    s = dataclasses.replace(BASE, sigma=2.0, G=3.0, B=1.5)
    powers = {"L": f / x**2, "D0": f, "R2": x**2, "mu": f / x**2, "delta": f / x**2}
    powers |= {"sigma": f / x, "G": f / x, "epsilon": f if kind == "convex" else f / x}
    other = dataclasses.replace(s, **{n: getattr(s, n) * power for n, power in powers.items()})
    for formula in (getattr(entry, kind), getattr(entry, f"{kind}_gradients")):
        if formula is not None:
            assert formula(other) == pytest.approx(formula(s), rel=1e-9)


def test_some_rates_by_hand():
    s = Setting(N=64, S=8, K=1, M=1, epsilon=0.5, omega=3.0, alpha=0.25, mu=0.04, delta=0.2)
    convex = {
        "SAGA": (1 + 9 / 8) / 0.5,
        "COFIG": (1 + 4 * 9 / 8) / 0.5,
        "DIANA": 4 + 25 * (1 + 3 / 64),
        "EF21": 4 * 26,
        "Scaffnew": 5,
        "SVRP": (1 + 1 / 8) * (8 + 25),
        "SABER": (1 + 1 / 64) * (8 * 5 + 64),
    }
    nonconvex = {
        "SAGA": 4 * (1 + (8 + 16) / 8),
        "ZeroSARAH": 4 * 2,
        "COFIG": 4 * (1 + (8 * 8 + 4 * 16) / 8),
        "DIANA": 4 * 4 * math.sqrt(1 + 3 / 64),
        "FRECON": 4 * 5,
        "DASHA-PP": 4 * (1 + math.sqrt(64 * (21 + 56 / 63)) / 8),
        "EF21": 16,
        "EF21-PP": 4 * 8 * 4,
        "SABER": 0.2 * 8 * 4 * (1 + 1 / 64),
    }
    rivals = {entry.method: entry for entry in RIVALS}
    for kind, expected in zip(KINDS, (convex, nonconvex), strict=True):
        assert {n: getattr(rivals[n], kind)(s) for n in expected} == pytest.approx(expected)


# --- which analyses a plan has --------------------------------------------------------------------


def test_a_plan_has_every_method_and_the_steps_of_the_theorems():
    setting = Setting(
        N=1000, S=10, K=10, M=20, epsilon=0.1, sigma=1.0, G=1.0, B=1.0, L=2.0, D0=3.0, R2=4.0
    )
    link = planner.TimeModel(latency=1.0)
    rows = analyses(setting, L=(2.0, 2.0, 1.5, 1.5), costs=link)
    rivals = {entry.method for entry in RIVALS if entry.nonconvex and not entry.nonconvex_needs}
    table = {"FedPAGE", "PAGE", "gradient descent", "FedAvg", "FedProx", "VRL-SGD", "SCAFFOLD"}
    assert {row.method for row in rows} == rivals | table | {"S-Local-SVRG"}
    fedpage, page = rows[:2]
    common = {"N": 1000, "S": 10, "D0": 3.0, "epsilon": 0.1}
    bound = theory.nonconvex_fedpage(L=2.0, K=10, **common)
    assert (fedpage.kind, fedpage.rounds) == ("bound", math.ceil(bound.rounds))
    assert fedpage.steps == {"eta_g": bound.method.eta_g, "eta_l": bound.method.eta_l}
    assert page.rounds == math.ceil(theory.nonconvex_page(L=1.5, **common).rounds)
    assert page.seconds == page.rounds
    assert {r.method for r in rows if r.kind == "no result"} == {"FedProx", "S-Local-SVRG"}
    convex = analyses(setting, convex=True)
    assert {r.method for r in convex if r.kind == "no result"} == {"FedAvg", "VRL-SGD"}


def test_analyses_whose_constants_are_unknown_are_left_out():
    everything, no_mu = planned(convex=True), planned(convex=True, mu=None)
    assert {"SVRP", "Scaffnew", "DIANA"} <= everything.keys()
    assert not {"SVRP", "Scaffnew", "DIANA"} & no_mu.keys()
    assert {"S-DANE", "Acc-S-DANE"} <= no_mu.keys()
    assert not {"S-DANE", "SABER"} & planned(convex=True, delta=None).keys()
    assert "S-DANE" not in planned(convex=True, delta=0.0)
    assert "SABER" in planned()
    assert "SABER" not in planned(delta=None)
    assert "mu, delta" in everything["SVRP"].assumption
    assert planned()["COFIG"].source.endswith("unverified")
    assert not planned()["FRECON"].source.endswith("unverified")
    assert not everything["COFIG"].source.endswith("unverified")
    for bad in ({"mu": 6.0}, {"mu": 0.0}, {"delta": -1.0}, {"omega": -1.0}, {"alpha": 0.0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            dataclasses.replace(BASE, **bad)


# --- the two measures of accuracy -----------------------------------------------------------------


def test_a_theorem_about_the_other_measure_is_used_if_it_implies_the_accuracy():
    common = {"L": 3.0, "N": 64, "S": 8}
    asked = {"convex": True, "measure": "grad_norm", "mu": None}
    page = planned(**asked, R2=1e-4)["PAGE"]
    gap = theory.convex_page(**common, R2=1e-4, epsilon=BASE.epsilon**2 / (2 * 2.0))
    assert (page.rounds, page.converted) == (math.ceil(gap.rounds), True)
    assert page.source.startswith("Theorem 3")
    page = planned(**asked, R2=50.0)["PAGE"]  # here Theorem 1 needs fewer rounds
    own = theory.nonconvex_page(**common, D0=0.7, epsilon=BASE.epsilon)
    assert (page.rounds, page.converted) == (math.ceil(own.rounds), False)
    rows = planned(convex=True, measure="gap")
    implied = dataclasses.replace(BASE, epsilon=math.sqrt(2 * BASE.mu * BASE.epsilon))
    sarah = next(entry for entry in RIVALS if entry.method == "ZeroSARAH")
    assert rows["ZeroSARAH"].converted
    assert rows["ZeroSARAH"].rounds == pytest.approx(sarah.nonconvex(implied))
    flat = planned(convex=True, measure="gap", mu=None)
    assert "ZeroSARAH" not in flat  # without mu a small gradient implies no gap
    assert not any(row.converted for row in flat.values())


def test_a_gap_needs_a_convex_objective():
    assert not any(row.converted for row in planned().values())
    with pytest.raises(InputError, match="a convex objective only"):
        planned(measure="gap")


@pytest.mark.parametrize("method", ["PAGE", "FedPAGE", "gradient descent", "SCAFFOLD", "FedAvg"])
@pytest.mark.parametrize("measure", ["gap", "grad_norm"])
def test_with_mu_rounds_grow_with_the_logarithm(method, measure):
    asked = {"convex": True, "measure": measure, "mu": 0.01}
    few, many = (planned(**asked, epsilon=epsilon)[method].rounds for epsilon in (1e-4, 1e-8))
    assert 1.3 < many / few < 2.5
    assert planned(**asked | {"mu": None}, epsilon=1e-8)[method].rounds > 1000 * many


def test_the_strongly_convex_bound_is_the_theorems():
    rows = planned(convex=True, mu=0.01, R2=50.0)
    theorem = theory.strongly_convex_page(L=3.0, mu=0.01, N=64, S=8, D0=0.7, epsilon=1e-3)
    assert rows["PAGE"].rounds == math.ceil(theorem.rounds)
    assert rows["PAGE"].steps == {"eta_g": theorem.method.eta_g}
    assert rows["SCAFFOLD"].rounds == pytest.approx((500 + 8) * math.log(700))


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
    rows = analyses(setting, d=6, convex=True, measure=measure, L=(setting.L,) * 3 + (L,))
    (row,) = [row for row in rows if row.method == "gradient descent"]
    assert row.kind == "bound"
    method = fp.PAGE(S=4, p=1.0, eta_g=row.steps["eta_g"])
    history = fp.simulate(problem, method, rounds=int(row.rounds), seed=0, record_every=1)
    reached = history["grad_norm"] if measure == "grad_norm" else history["loss"] - f_star
    assert reached[-1] <= 1e-3
    needed = history["round"][np.argmax(reached <= 1e-3)]
    assert needed >= row.rounds / 50  # the bound is not far from what is needed


# --- costs ----------------------------------------------------------------------------------------


def test_a_codec_decides_constants_and_bits():
    plain, coded = planned(), planned("randk:0.1")
    assert "MARINA" not in plain  # it is gradient descent then
    for name in ("COFIG", "FRECON", "DASHA-PP", "EF21", "EF21-PP", "DIANA"):
        assert coded[name].rounds > plain[name].rounds
        per_round = [row.bits_up / row.rounds for row in (coded[name], plain[name])]
        assert per_round[0] == pytest.approx(per_round[1] / 10)
    for name in ("SAGA", "ZeroSARAH", "FedPAGE"):
        assert coded[name] == plain[name]
    row = coded["COFIG"]
    assert row.bits_up == row.rounds * 8 * 10 * 64
    assert row.bits_down == row.rounds * 8 * 100 * 64
    assert row.cost("bits") == row.bits_up + row.bits_down
    assert row.cost("up+0.1*down") == pytest.approx(row.bytes_up + 0.1 * row.bytes_down)
    assert row.cost("rounds") == row.rounds
    assert row.cost("seconds") is None
    marina, pp = coded["MARINA"], coded["PP-MARINA"]
    assert (marina.kind, pp.kind) == ("bound", "bound")
    p = 0.1
    assert marina.rounds == math.ceil(2 * 0.7 * 3 * (1 + math.sqrt(0.9 * 9 / (p * 64))) / 1e-6)
    assert pp.rounds > marina.rounds
    assert pp.bytes_up < marina.bytes_up


METHODS = {
    "FedPAGE": {"S": 5, "K": 2}, "PAGE": {"S": 5}, "FedAvg": {"S": 5, "K": 2, "b": 1},
    "FedProx": {"S": 20, "K": 2, "b": 1}, "VRL-SGD": {"K": 2, "b": 1},
    "SCAFFOLD": {"S": 5, "K": 2, "b": 1}, "S-Local-SVRG": {"K": 2, "b": 1},
    "SAGA": {"S": 5}, "ZeroSARAH": {"S": 5}, "COFIG": {"S": 5}, "DIANA": {}, "FRECON": {"S": 5},
    "DASHA-PP": {"S": 5}, "EF21": {}, "EF21-PP": {"S": 5}, "MARINA": {}, "PP-MARINA": {"S": 5},
    "SVRP": {"S": 5, "K": 2}, "SABER": {"S": 1, "K": 2}, "S-DANE": {"K": 2},
    "Acc-S-DANE": {"K": 2}, "Scaffnew": {},
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_plans_rounds_are_those_of_real_runs(name):
    """Clients, bits and bytes of an average round against what the engine counts."""
    (entry,) = [e for e in fp.METHODS.values() if e.label == name and not e.preset]
    coded = {rival.method for rival in RIVALS if rival.codec} | {"MARINA", "PP-MARINA"}
    codec = {"up": "natural"} if name in coded else {}
    method = entry(**METHODS[name], **codec).with_step(1e-3)
    problem = fp.Quadratic.random(20, 3, 40, seed=1)
    setting = Setting(N=20, S=5, K=2, M=3, epsilon=0.1, mu=0.01, delta=0.1)
    row = next(
        row
        for convex in (False, True)
        for row in analyses(setting, d=problem.d, convex=convex, codec=as_codec("natural"))
        if row.method == name and row.rounds is not None and row.source != "Yu et al. 2019"
    )
    history = fp.simulate(problem, method, rounds=1500, seed=3, record_every=0)
    for column in ("clients", "bits_up", "bits_down", "bytes_up", "bytes_down"):
        counted = history.last(column) / 1500
        assert counted == pytest.approx(getattr(row, column) / row.rounds, rel=0.06), column


def test_seconds_are_linear_in_the_users_speeds():
    link = planner.TimeModel(latency=2.0, uplink=100.0, downlink=400.0, gradient=0.5)
    assert link.seconds(10, down=800.0, up=300.0, gradients=4) == 10 * (2 + 2 + 3 + 2)
    assert not planner.TimeModel().given
    for bad in ({"latency": -1}, {"uplink": 0.0}, {"downlink": math.nan}, {"gradient": math.inf}):
        with pytest.raises(InputError):
            planner.TimeModel(**bad)


# --- plans of problems, and the command -----------------------------------------------------------

DATA = ("plan", "--data", "census:rows=400", "--clients", "40", "--S", "4", "--K", "2")


def test_a_plan_from_assumed_constants():
    problem = fp.LogisticRegression(fp.load("census", rows=400), 40, reg="l2")
    measured = fp.plan(problem, target="gap:0.01", S=4)
    assumed = fp.plan(theory.estimate(problem), target=fp.Target("gap", 0.01), S=4)
    assert assumed.analyses == measured.analyses
    assert set(assumed.origin.values()) == {"assumed"}
    assert (measured.origin["L"], measured.origin["sigma"]) == ("computed", "estimated")
    assert problem.smoothness().row == measured.setting.L


@pytest.mark.parametrize("cost", ["bytes", "rounds", "clients", "gradients_per_client"])
def test_analyses_are_sorted_by_kind_and_cost(run, cost):
    found = json.loads(run(*DATA, "--target", "0.05", "--cost", cost, "--json")[1])
    rows = [planner.Row(**row) for row in found["methods"]]
    kinds = ("bound", "order", "no result")
    keys = [(kinds.index(row.kind), row.cost(cost) or math.inf) for row in rows]
    assert keys == sorted(keys)
    assert (found["setting"]["N"], found["setting"]["M"]) == (40, 10)


# --- steps by theory on the command line ----------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((name, {"S": 5}) for name in ("fedpage", "page", "fedpage-full", "scaffold", "fedavg")),
        ("pp-marina", {"S": 4, "up": "natural"}),
        ("marina", {"up": "natural"}),
        ("vr-marina", {"b": 2, "up": "natural"}),
    ],
)
def test_steps_by_theory(run, tmp_path, method, options):
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    data = ("--data", "census:rows=500", "--clients", "50", "--rounds", "30", "--out", "t")
    code, out, _ = run("run", method, *data, *words, "--steps", "theory")
    assert code == 0, out
    assert "Steps from theory: " in out
    history = fp.History.load(tmp_path / "t" / "history.jsonl")
    about = history.meta["method"]
    if method not in ("scaffold", "fedavg"):
        problem = fp.RobustRegression(fp.load("census", rows=500), clients=50)
        kind: Any = fp.METHODS[method].cls
        tuned = kind.from_theory(problem, **options, **{"K": about["K"]} if "K" in about else {})
        assert (about["eta_g"], about["p"]) == (tuned.eta_g, tuned.p)
    assert about["effective_step"] < 0.5
    assert history.last("loss") < history["loss"][0]
