"""Replay the paper's methods against plain Python, and against an independent implementation."""

import json
import os
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from plain import X0, ZERO, N, Plain, fedpage_round, mean
from support import Unfused

import fedpage as fp
from fedpage.testing import ScriptedDraws, replay


def fedprox(plain: Plain, m):
    x = X0
    while True:
        moves = []
        for i in plain.clients(m.S):
            y = x
            for _ in range(m.K):
                y = y - m.eta_l * (plain.grad(i, y, plain.batch(i, m.b)) + m.mu * (y - x))
            moves.append(plain.compress(i, y - x, m.up))
        x = x + m.eta_g * mean(moves)
        yield x, {}, {}


def vrl_sgd(plain: Plain, m):
    x, delta = X0, [ZERO] * N
    while True:
        ends = []
        for i in range(N):
            y = x
            for _ in range(m.K):
                y = y - m.eta_l * (plain.grad(i, y, plain.batch(i, m.b)) - delta[i])
            ends.append(y)
        x, used = mean(ends), delta
        delta = [used[i] + (x - ends[i]) / (m.K * m.eta_l) for i in range(N)]
        assert abs(mean(delta)).max() < 1e-10
        yield x, {}, {"delta": used}  # clients learn the mean in the next round


def s_local_svrg(plain: Plain, m):
    x, stepped = X0, False
    for r in count():
        coin = plain.coin(r in (3, 7, 9))
        clients = plain.clients(m.S)
        if r == 0 or (stepped and coin):
            w, h, stepped = x, plain.full(x), False
        else:
            ends = []
            for i in clients:
                y = x
                for _ in range(m.K):
                    rows = plain.batch(i, m.b)
                    y = y - m.eta_l * (plain.grad(i, y, rows) - plain.grad(i, w, rows) + h)
                ends.append(y)
            x, stepped = mean(ends), True
        yield x, {"h": h}, {"w": [w] * N}


def fedpage(plain: Plain, m):
    x = x_prev = g = X0
    for r in count():
        if plain.coin(r in (0, 4)):
            move = g = plain.full(x)
        else:
            move, g = fedpage_round(plain, m, x, x_prev, g)
        x, x_prev = x - m.eta_g * move, x
        yield x, {"g": g}, {}


LOCAL = {"S": 2, "K": 3, "b": 2, "eta_l": 0.15}
PAGE = {"S": 2, "K": 4, "b2": 3, "b3": 1, "eta_g": 0.3, "eta_l": 0.15, "p": 0.2}
REPLAYS = {
    "FedProx": (fedprox, fp.FedProx(**LOCAL, eta_g=1.2, mu=0.6)),
    "FedProx natural": (fedprox, fp.FedProx(**LOCAL, eta_g=1.2, mu=0.6, up="natural")),
    "FedProx randk": (fedprox, fp.FedProx(**LOCAL, eta_g=1.2, mu=0.6, up="randk:1")),
    "VRL-SGD": (vrl_sgd, fp.VRLSGD(K=3, b=2, eta_l=0.15)),
    "S-Local-SVRG": (s_local_svrg, fp.SLocalSVRG(K=3, b=2, eta_l=0.15, q=0.3)),
    "S-Local-SVRG sampled": (s_local_svrg, fp.SLocalSVRG(**LOCAL, q=0.3)),
    "FedPAGE": (fedpage, fp.FedPAGE(**PAGE)),
    "FedPAGE randk": (fedpage, fp.FedPAGE(**PAGE, up="randk:2")),
    "FedPAGE leak-free": (fedpage, fp.LeakFreeFedPAGE(**PAGE)),
    "FedPAGE leak-free randk": (fedpage, fp.LeakFreeFedPAGE(**PAGE, up="randk:2")),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_replay(check, name):
    algorithm, method = REPLAYS[name]
    check(method, algorithm, rounds=10)


# Runs of an independent implementation


PATH = Path(
    os.environ.get(
        "FEDPAGE_GOLDEN", Path(__file__).resolve().parents[3] / "shared" / "golden" / "golden.json"
    )
)
GOLDEN = json.loads(PATH.read_text()) if PATH.is_file() else {"cases": []}
CASES = {case["name"]: case for case in GOLDEN["cases"]}


def problem_of(case):
    data = fp.Dataset.from_arrays(np.array(GOLDEN["A"]), np.array(GOLDEN["b"]), name="golden")
    if case["objective"] == "rlr":
        return fp.RobustRegression(data, clients=GOLDEN["N"])
    return fp.LogisticRegression(data, clients=GOLDEN["N"], reg="nonconvex", alpha=GOLDEN["alpha"])


def method_of(case):
    kind = {"fedpage": fp.FedPAGE, "scaffold": fp.SCAFFOLD, "fedavg": fp.FedAvg}[case["algorithm"]]
    return kind(**case["params"])


def script_of(case):
    script = []
    for r, entry in enumerate(case["rounds"]):
        if entry.get("q") == 1:
            clients, batches = [], {i: [rows] for i, rows in enumerate(entry["I1"])}
        else:
            clients = [client["id"] for client in entry["clients"]]
            batches = {
                client["id"]: [client["I2"], *client["I3"]] if "I2" in client else client["I"]
                for client in entry["clients"]
            }
        script.append(ScriptedDraws(r, entry.get("q") == 1, clients, batches))
    return script


def test_the_golden_file_has_all_cases():
    if not CASES:
        pytest.skip(f"no golden file at {PATH}; set FEDPAGE_GOLDEN")
    assert GOLDEN["schema"] == "golden-v1"
    assert len(CASES) == 16
    assert {case["algorithm"] for case in CASES.values()} == {"fedpage", "scaffold", "fedavg"}


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "steps"])
@pytest.mark.parametrize("name", CASES)
def test_golden(name, fused):
    case, tolerance = CASES[name], GOLDEN["tolerance"]
    problem = problem_of(case)
    case_problem = problem if fused else Unfused(problem)
    run = replay(case_problem, method_of(case), script_of(case), x0=GOLDEN["x0"])

    def close(ours, theirs):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)

    for r in range(len(case["rounds"]) + 1):
        close(run.x, case["x"][r])
        measured = problem.evaluate(run.x)
        close(measured["grad_norm"], case["grad_norm"][r])
        close(measured["loss"], case["f"][r])
        if "c" in case:
            close(run.state.c, case["c"][r])
        if r < len(case["rounds"]):
            run.step()
            if "g" in case:
                close(run.state.g, case["g"][r])
    if "c_i_final" in case:
        close(run.client_states.get_all().c, case["c_i_final"])
