"""Plans of the methods that the paper's tables do not have: rates, needs, bits."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

import fedpage as fp
from fedpage.codecs import as_codec
from fedpage.core.errors import InputError
from fedpage.theory import planner as planning
from fedpage.theory.tables import RIVALS, Entry, Setting

BASE = Setting(N=64, S=8, K=4, M=27, epsilon=1e-3, L=5.0, D0=0.7, R2=0.3, mu=0.2, delta=0.4)
RATES = [
    pytest.param(entry, kind, id=f"{entry.method}-{kind}")
    for entry in RIVALS
    for kind in ("convex", "nonconvex")
    if getattr(entry, kind) is not None
]


def rate(entry: Entry, kind: str, **changes) -> float:
    return getattr(entry, kind)(dataclasses.replace(BASE, **changes))


@pytest.mark.parametrize(("entry", "kind"), RATES)
def test_rates_are_positive_and_grow_as_they_should(entry, kind):
    rounds = [rate(entry, kind, epsilon=10.0**-k) for k in range(1, 7)]
    assert min(rounds) > 0
    assert rounds == sorted(rounds)
    assert rounds[0] < rounds[-1]
    sampled = [rate(entry, kind, S=S) for S in (1, 8, 64)]
    assert sampled == sorted(sampled, reverse=True)
    assert [rate(entry, kind, N=N) for N in (8, 64, 512)] == sorted(
        rate(entry, kind, N=N) for N in (8, 64, 512)
    )
    name, values = ("omega", (0, 1, 9)) if entry.codec != "contractive" else ("alpha", (1, 0.1))
    coded = [rate(entry, kind, **{name: value}) for value in values]
    assert coded == sorted(coded)
    assert (coded[0] < coded[-1]) == (entry.codec != "")


@pytest.mark.parametrize(("entry", "kind"), RATES)
def test_with_all_clients_and_no_codec_a_rate_is_gradient_descents(entry, kind):
    """Up to a factor of 4; proximal methods where their subproblem is a gradient step."""
    changes = {"S": 64, "omega": 0.0, "alpha": 1.0, "mu": None, "delta": None}
    needs = entry.convex_needs if kind == "convex" else entry.nonconvex_needs
    linear = "mu" in needs
    if linear:
        changes["mu"] = 5.0 if entry.method == "Scaffnew" else BASE.mu  # else it is faster
    if "delta" in needs:
        changes["delta"] = BASE.L
    if entry.method == "SVRP":
        changes["delta"] = math.sqrt(BASE.L * changes["mu"])  # gamma = 1/(2L)
    if entry.method == "SABER":
        changes |= {"N": 1, "S": 1}
    s = dataclasses.replace(BASE, **changes)
    descent = s.L * s.R2 / s.epsilon if kind == "convex" else s.L * s.D0 / s.epsilon**2
    if linear:
        descent = s.L / s.mu * math.log(max(math.e, s.D0 / s.epsilon))
    assert descent / 1.01 <= rate(entry, kind, **changes) <= 4 * descent


@pytest.mark.parametrize(("entry", "kind"), RATES)
def test_units_do_not_matter(entry, kind):
    f, x = 100.0, 1000.0  # f -> 100 f, x -> 1000 x: gradients times f/x, L times f/x^2
    scale = f if kind == "convex" else f / x
    s = BASE
    other = dataclasses.replace(
        s, epsilon=s.epsilon * scale, L=s.L * f / x**2, D0=s.D0 * f, R2=s.R2 * x**2,
        mu=s.mu * f / x**2, delta=s.delta * f / x**2,
    )  # fmt: skip
    formula = getattr(entry, kind)
    assert formula(other) == pytest.approx(formula(s), rel=1e-9)


def test_some_rates_by_hand():
    rounds = {e.method: e for e in RIVALS}
    s = Setting(N=64, S=8, K=1, M=1, epsilon=0.5, omega=3.0, alpha=0.25, mu=0.04, delta=0.2)
    log = 1.0  # of max(e, 1/0.5)
    expected = {
        "SAGA": (1 + 9 / 8) / 0.5,
        "COFIG": (1 + 4 * 9 / 8) / 0.5,
        "DIANA": (4 + 25 * (1 + 3 / 64)) * log,
        "EF21": 4 * 26 * log,
        "Scaffnew": 5 * log,
        "SVRP": (1 + 1 / 8) * (8 + 25) * log,
        "SABER": (1 + 1 / 64) * (8 * 5 + 64) * log,
    }
    for name, value in expected.items():
        assert rounds[name].convex(s) == pytest.approx(value), name
    expected = {
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
    for name, value in expected.items():
        assert rounds[name].nonconvex(s) == pytest.approx(value), name


def planned(up="none", *, convex=False, **changes) -> dict[str, planning.Row]:
    rows = planning.plan(dataclasses.replace(BASE, **changes), d=100, convex=convex, up=up)
    return {row.method: row for row in rows if row.kind != "no result"}


def test_analyses_whose_constants_are_unknown_are_left_out():
    assert {"SVRP", "Scaffnew", "DIANA"} <= set(planned(convex=True))
    assert not {"SVRP", "Scaffnew", "DIANA"} & set(planned(convex=True, mu=None))
    assert {"S-DANE", "Acc-S-DANE"} <= set(planned(convex=True, mu=None))
    assert not {"S-DANE", "SABER"} & set(planned(convex=True, delta=None))
    assert "S-DANE" not in planned(convex=True, delta=0.0)
    assert "SABER" in planned()
    assert "SABER" not in planned(delta=None)
    assert "mu, delta" in planned(convex=True)["SVRP"].assumption
    assert "mu" not in planned(mu=None)["DIANA"].assumption
    for bad in ({"mu": 6.0}, {"mu": 0.0}, {"delta": -1.0}, {"omega": -1.0}, {"alpha": 0.0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            dataclasses.replace(BASE, **bad)


def test_unverified_analyses_say_so():
    sources = {row.method: row.source for row in planned().values()}
    assert sources["COFIG"].endswith("unverified")
    assert not sources["FRECON"].endswith("unverified")
    assert not planned(convex=True)["COFIG"].source.endswith("unverified")


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
    with pytest.raises(InputError, match="a plan has no floats_up"):
        row.cost("floats_up")
    marina, pp = coded["MARINA"], coded["PP-MARINA"]
    assert (marina.kind, pp.kind) == ("bound", "bound")
    p = 0.1
    assert marina.rounds == math.ceil(2 * 0.7 * 5 * (1 + math.sqrt(0.9 * 9 / (p * 64))) / 1e-6)
    assert pp.rounds > marina.rounds
    assert pp.bytes_up < marina.bytes_up


METHODS = {
    "SAGA": {"S": 5}, "ZeroSARAH": {"S": 5}, "COFIG": {"S": 5}, "DIANA": {}, "FRECON": {"S": 5},
    "DASHA-PP": {"S": 5}, "EF21": {}, "EF21-PP": {"S": 5}, "MARINA": {}, "PP-MARINA": {"S": 5},
    "SVRP": {"S": 5, "K": 2}, "SABER": {"S": 1, "K": 2}, "S-DANE": {"K": 2},
    "Acc-S-DANE": {"K": 2}, "Scaffnew": {},
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_plans_rounds_are_those_of_real_runs(name):
    """Clients, bits and bytes of an average round against what the engine counts."""
    (entry,) = [entry for entry in fp.METHODS.values() if entry.label == name] or [None]
    if entry is None:
        pytest.skip(f"{name} is not in the library")
    coded = {rival.method for rival in RIVALS if rival.codec} | {"MARINA", "PP-MARINA"}
    codec = {"up": "natural"} if name in coded else {}
    method = entry(**METHODS[name], **codec).with_step(1e-3)
    problem = fp.Quadratic.random(20, 3, 40, seed=1)
    setting = Setting(N=20, S=5, K=2, M=3, epsilon=0.1, mu=0.01, delta=0.1)
    rows = [
        row
        for convex in (False, True)
        for row in planning.plan(setting, d=problem.d, convex=convex, up="natural")
        if row.method == name
    ]
    rounds = 3000
    history = fp.simulate(problem, method, rounds=rounds, seed=3, record_every=0)
    for column in ("clients", "bits_up", "bits_down", "bytes_up", "bytes_down"):
        counted = history.last(column) / rounds
        assert counted == pytest.approx(getattr(rows[0], column) / rows[0].rounds, rel=0.06), column


def test_the_command_line_has_codecs_costs_and_constants(run):
    words = ("plan", "--target", "0.01", "--up", "natural", "--cost", "bits_up", "--delta", "0.1")
    code, out, _ = run(*words)
    assert code == 0
    assert "replies through natural where proved" in out
    assert "delta=0.1 (given)" in out
    assert "Gbit" in out
    assert "SABER" in out
    code, out, _ = run(*words, "--json")
    found = json.loads(out)
    assert found["setting"]["up"] == "natural"
    rows = {row["method"]: row for row in found["methods"]}
    bits = as_codec("natural").bits(100, "float64")
    assert rows["COFIG"]["bits_up"] == pytest.approx(rows["COFIG"]["clients"] * bits)
