"""Planning from Python and from the command line, and bad input of `plan` and `--steps`."""

from __future__ import annotations

import json
import math

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.theory import Setting, nonconvex_fedpage, nonconvex_page
from fedpage.theory import planner as planning
from fedpage.theory.tables import RIVALS

SETTING = Setting(
    N=1000, S=10, K=10, M=20, epsilon=0.1, sigma=1.0, G=1.0, B=1.0, L=2.0, D0=3.0, R2=4.0
)


def test_a_plan_has_every_method_and_the_source_of_its_numbers():
    rows = planning.plan(SETTING, d=100, convex=False, average_L=1.5)
    assert [r.method for r in rows[:2]] == ["FedPAGE", "PAGE"]
    assert [r.kind for r in rows[:2]] == ["bound", "bound"]
    rivals = {entry.method for entry in RIVALS if entry.nonconvex and not entry.nonconvex_needs}
    assert {r.method for r in rows} - rivals == {
        "FedPAGE", "PAGE", "gradient descent", "FedAvg", "FedProx", "VRL-SGD", "S-Local-SVRG",
        "SCAFFOLD",
    }  # fmt: skip
    assert rivals <= {r.method for r in rows}
    bound = nonconvex_fedpage(L=2.0, N=1000, S=10, K=10, D0=3.0, epsilon=0.1)
    assert rows[0].rounds == math.ceil(bound.rounds)
    assert rows[0].steps == {"eta_g": bound.method.eta_g, "eta_l": bound.method.eta_l}
    assert rows[1].rounds == math.ceil(
        nonconvex_page(L=1.5, N=1000, S=10, D0=3.0, epsilon=0.1).rounds
    )
    dashes = {r.method for r in rows if r.kind == "no result"}
    assert dashes == {"FedProx", "S-Local-SVRG"}
    convex = planning.plan(SETTING, d=100, convex=True)
    assert {r.method for r in convex if r.kind == "no result"} == {"FedAvg", "VRL-SGD"}


def test_a_plans_bytes_are_those_of_real_runs():
    """Clients and bytes per round of the plan against what the engine counts, for every method."""
    problem = fp.RobustRegression(fp.load("census", rows=2000), clients=100)
    setting = Setting(N=100, S=5, K=4, M=20, epsilon=0.1)
    rows = planning.plan(setting, d=123, convex=False) + planning.plan(setting, d=123, convex=True)
    planned = {r.method: r for r in rows if r.rounds is not None and r.source != "Yu et al. 2019"}
    methods = {
        "FedPAGE": fp.FedPAGE(S=5, K=4),
        "PAGE": fp.PAGE(S=5),
        "FedAvg": fp.FedAvg(S=5, K=4, b=1),
        "FedProx": fp.FedProx(S=100, K=4, b=1),
        "VRL-SGD": fp.VRLSGD(K=4, b=1),
        "SCAFFOLD": fp.SCAFFOLD(S=5, K=4, b=1),
        "S-Local-SVRG": fp.SLocalSVRG(K=4, b=1, eta_l=0.001),
    }
    for name, method in methods.items():
        rounds = 1500
        history = fp.simulate(problem, method, rounds=rounds, seed=3, record_every=0)
        row = planned[name]
        for column in ("clients", "bytes_up", "bytes_down"):
            counted, expected = history.last(column) / rounds, getattr(row, column) / row.rounds
            assert counted == pytest.approx(expected, rel=0.12), (name, column)


def test_wall_clock_is_linear_in_the_users_costs():
    costs = planning.TimeModel(latency=2.0, uplink=100.0, downlink=400.0, gradient=0.5)
    assert costs.seconds(10, down=800.0, up=300.0, gradients=4) == 10 * (2 + 2 + 3 + 2)
    assert not planning.TimeModel().given
    rows = planning.plan(SETTING, d=100, convex=False, costs=planning.TimeModel(latency=1.0))
    assert rows[0].seconds == rows[0].rounds
    for bad in ({"latency": -1}, {"uplink": 0.0}, {"downlink": math.nan}, {"gradient": math.inf}):
        with pytest.raises(InputError):
            planning.TimeModel(**bad)


def test_plan_on_the_command_line(run):
    words: tuple[str, ...] = ("plan", "--clients", "1000", "--S", "10", "--rows", "20")
    code, out, _ = run(*words, "--target", "0.1", "--latency", "1")
    assert code == 0
    for word in ("bound", "order", "SCAFFOLD", "Theorem 2", "estimated", "assumed"):
        assert word in out
    words = ("plan", "--data", "census:rows=1000", "--clients", "50", "--S", "5", "--json")
    found = json.loads(run(*words, "--target", "0.1")[1])
    assert found["origin"]["L"] == "computed"
    assert found["origin"]["sigma"] == "estimated"
    assert found["setting"]["M"] == 20
    problem = fp.RobustRegression(fp.load("census", rows=1000), clients=50)
    assert found["setting"]["L"] == problem.smoothness().row
    assert found["methods"][0]["kind"] == "bound"
    more = ("--target", "gap:0.1", "--objective", "logistic", "--L", "7")
    found = json.loads(run(*words, *more)[1])
    assert found["setting"]["convex"] is True
    assert (found["setting"]["L"], found["origin"]["L"]) == (7.0, "given")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("plan", "--target", "0"), "above 0"),
        (("plan", "--target", "nan"), "finite"),
        (("plan", "--target", "0.1", "--S", "5000"), "S must be"),
        (("plan", "--target", "0.1", "--L", "inf"), "L must be"),
        (("plan", "--target", "0.1", "--rows", "0"), "'--rows'"),
        (("plan", "--target", "0.1", "--parameters", "0"), "'--parameters'"),
        (("plan", "--target", "0.1", "--latency", "-1"), "latency must be"),
        (("plan", "--target", "0.1", "--data", "a9b"), "did you mean 'a9a'"),
        (("plan",), "Missing option '--target'"),
        (("plan", "--target", "gap:nan", "--convex"), "finite"),
        (("plan", "--target", "accuracy:0.9"), "theorems are about"),
        (("plan", "--target", "gap:0.1"), "a convex objective only"),
        (("plan", "--target", "0.1", "--cost", "seconds"), "needs at least one of latency"),
        (("plan", "--target", "0.1", "--data", "census:rows=40", "--rows", "3"), "without --data"),
        (("plan", "--target", "0.1", "--up", "foo"), "unknown codec 'foo'"),
        (("plan", "--target", "0.1", "--up", "bernoulli:0.1"), "has the same size"),
        (("plan", "--target", "0.1", "--up", "randk:200"), "cannot keep 200 of 100"),
        (("plan", "--target", "0.1", "--cost", "floats_up"), "a plan has no floats_up"),
        (("plan", "--target", "0.1", "--cost", "up+dwn"), "did you mean 'down'?"),
        (("plan", "--target", "0.1", "--mu", "2"), "mu must be at most L=1"),
        (("run", "fedpage", "--steps", "magic"), "--steps must be"),
        (("run", "fedpage", "--steps", "theory", "--eta-g", "0.1"), "chooses eta_g; leave it out"),
        (("run", "vrl-sgd", "--steps", "theory"), "step sizes for VRL-SGD; give eta_l, or"),
        (("run", "fedadam", "--steps", "theory"), "no theorem gives step sizes for FedAdam"),
        (("run", "fedavgm", "--steps", "theory"), "no theorem gives step sizes for FedAvgM"),
        (("run", "svrp", "--steps", "theory"), "SVRP needs mu; choose --objective logistic-l2"),
        (
            ("run", "svrp", "--objective", "squares-l2", "--gamma", "0.5", "--steps", "theory"),
            "chooses gamma",
        ),
    ],
)
def test_bad_input_is_one_line(refused, words, what):
    refused(words, what)


SMALL = ("--data", "census:rows=500", "--clients", "50")


@pytest.mark.parametrize("method", ["fedpage", "page", "fedpage-full", "scaffold", "fedavg"])
def test_steps_by_theory_on_the_command_line(run, tmp_path, method):
    code, out, _ = run(
        "run", method, *SMALL, "--rounds", "30", "--S", "5", "--steps", "theory", "--out", "t"
    )
    assert code == 0, out
    history = fp.History.load(tmp_path / "t" / "history.jsonl")
    assert "Steps from theory: " in out
    problem = fp.RobustRegression(fp.load("census", rows=500), clients=50)
    about = history.meta["method"]
    if "page" in method:
        kind = fp.PAGE if method == "page" else fp.FedPAGE
        tuned = kind.from_theory(problem, S=5, K=about["K"])
        assert (about["eta_g"], about["eta_l"], about["p"]) == (tuned.eta_g, tuned.eta_l, tuned.p)
    assert about["effective_step"] < 0.1
    assert history.last("loss") < history["loss"][0]
