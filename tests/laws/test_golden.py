"""Replay runs of an independent implementation, with given coins, clients and minibatches."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from support import Unfused

import fedpage as fp
from fedpage.testing import ScriptedDraws, replay

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
