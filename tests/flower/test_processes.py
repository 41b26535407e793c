"""A deployment with real processes, TLS and keys: equal bits.

All processes listen on 127.0.0.1 only. examples/digits_on_flower.py, which tests/unit/test_docs.py
runs, compares Flower's simulation with ours.
"""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import fast_flower
import numpy as np
import pytest
from fast_flower import wait_until, write_programs
from sklearn.datasets import load_breast_cancer

import fedpage as fp
from fedpage.flower.deploy.keys import create_keys
from fedpage.flower.deploy.local_federation import (
    LocalFederation,
    find_free_ports,
)
from fedpage.flower.deploy.processes import find_descendants

FORK = multiprocessing.get_context("fork")
APP = Path(__file__).resolve().parents[2] / "examples" / "flower"


class FastFederation(LocalFederation):
    """A federation whose nodes poll often, and whose apps start without importing anew."""

    def __init__(self, home, nodes):
        super().__init__(home, nodes)
        programs = self.home / "programs"
        write_programs(programs)
        self.environment["PATH"] = f"{programs}{os.pathsep}{self.environment['PATH']}"

    def supernode_program(self):
        return [sys.executable, fast_flower.__file__, "flower-supernode"]

    def call_flwr(self, arguments, seconds=120.0):
        """Call the command in a fork of this process, which imports it once."""
        with warnings.catch_warnings(action="ignore"):
            from flwr.cli.app import app
        output = self.home / "flwr.out"

        def call():
            warnings.simplefilter("ignore")
            os.environ.update(self.environment)
            os.chdir(self.home)
            with open(output, "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            sys.argv = ["flwr", *arguments]
            app()

        process = FORK.Process(target=call)
        process.start()
        process.join(seconds)
        return subprocess.CompletedProcess(arguments, process.exitcode, output.read_text(), "")


def ended(out):
    path = out / "history.jsonl"
    return path.exists() and b'"end"' in path.read_bytes()


REFUSALS = {
    "unregistered": "[code: 2004]",
    "no-key": "[code: 2001]",
    "wrong-ca": "CERTIFICATE_VERIFY_FAILED",
    "plaintext": "Exit Code: 305",
}


def start_unauthorised_nodes(federation):
    """Start nodes that the SuperLink must refuse."""
    other = federation.home / "other"
    create_keys(other, hosts=["localhost", "127.0.0.1"], nodes=1, days=1)
    own_key, ca, once = federation.tls / "node0", federation.tls / "ca.pem", ["--max-retries", "1"]
    ports = iter(find_free_ports(len(REFUSALS)))
    cases = {
        "unregistered": {"key": other / "node0", "ca": ca},
        "no-key": {"key": None, "ca": ca},
        "wrong-ca": {"key": own_key, "ca": other / "ca.pem", "extra": once},
        "plaintext": {"key": None, "ca": None, "extra": once},
    }
    return {
        name: federation.spawn(name, federation.node_command(0, port=next(ports), **case))
        for name, case in cases.items()
    }


METHODS = {
    "scaffold": (fp.SCAFFOLD(S=2, K=3, eta_l=0.1), "S=2 K=3 eta_l=0.1", 2),
    "fedpage": (fp.FedPAGE(S=1, K=3, eta_g=0.5, p=0.1), "S=1 K=3 eta_g=0.5 p=0.1", 2),
}
SECURE = {"method": "scaffold", "hyper": "S=3 K=3 eta_l=0.1", "rounds": 1, "evaluation": "values"}
SMALL = {
    "clients": 3, "record-every": 0, "seed": 7, "objective": "logistic-l2", "alpha": 0.01,
    "data": "census:rows=200", "partition": "label-shards", "poll": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def simulated_runs():
    """Run the same methods in the simulator."""
    data = fp.load("census", rows=200)
    problem = fp.LogisticRegression(data, fp.label_shards(data.y, 3), reg="l2", alpha=0.01)

    def run(method, rounds, **options):
        made = fp.RunOptions(evaluate="per_client", **options)
        return fp.simulate(problem, method, rounds=rounds, seed=7, record_every=0, options=made)

    mean = fp.FixedPointMean(bound=100.0)
    secure = run(fp.SCAFFOLD(S=3, K=3, eta_l=0.1), SECURE["rounds"], aggregation=mean)
    return {
        "secure": secure,
        **{name: run(method, rounds) for name, (method, _, rounds) in METHODS.items()},
    }


def settings(name, folder):
    _, hyper, rounds = METHODS[name]
    return {**SMALL, "method": name, "hyper": hyper, "rounds": rounds, "out": str(folder / name)}


@pytest.mark.slow
def test_a_deployment_has_equal_bits_and_refuses_unauthorised_nodes(tmp_path, simulated_runs):
    """Flower answers every message in a new process, so that nodes keep nothing in memory.

    test_deploy_page.py kills a SuperLink with its ServerApp, and the run resumes.
    """
    nodes = [{"partition-id": i, "client-state-dir": str(tmp_path / f"state{i}")} for i in range(3)]
    with FastFederation(tmp_path / "home", nodes) as federation:
        refused = start_unauthorised_nodes(federation)
        runs = {name: federation.submit(APP, **settings(name, tmp_path)) for name in METHODS}
        secure = {**SMALL, **SECURE, "aggregation": "secure:bound=100"}
        federation.submit(APP, **secure, out=str(tmp_path / "secure"))
        for name, text in REFUSALS.items():
            assert refused[name].wait(60) == 1
            assert text in federation.log(name), federation.log(name)[-600:]
            assert "SuperNode ID" not in federation.log(name)
        for name in METHODS:
            wait_until(lambda name=name: ended(tmp_path / name))
            history = fp.History.load(tmp_path / name / "history.jsonl")
            assert history.same(simulated_runs[name])
        wait_until(lambda: federation.status(runs["scaffold"])[0] == "finished:completed", 30)
        wait_until(lambda: ended(tmp_path / "secure"))
        history, expected = fp.History.load(tmp_path / "secure"), simulated_runs["secure"]
        assert history.x.tobytes() == expected.x.tobytes()
        assert history["loss"].tobytes() == expected["loss"].tobytes()
        assert history.last("missing") == 0
        started = {
            pid for one in federation.processes.values() for pid in find_descendants(one.pid)
        }
    wait_until(lambda: not any(map(_alive, started)), 30)


@pytest.mark.slow
def test_a_fit_on_processes_equals_the_pooled_file(tmp_path):
    """The sites have tables of their own; one fit is in clear, one by secure aggregation."""
    sm = pytest.importorskip("statsmodels.api", reason="statsmodels is not installed")
    X, y = load_breast_cancer(return_X_y=True)
    grade = np.where(X[:, 9] < 0.058, "a", np.where(X[:, 9] < 0.065, "b", "c"))
    sites = np.split(np.arange(len(y)), [205, 388])
    nodes = []
    for site, rows in enumerate(sites):
        path = tmp_path / f"site{site}.csv"
        lines = [f"{X[i, 1]},{X[i, 8]},{grade[i]},{y[i]}" for i in rows]
        path.write_text("\n".join(["texture,symmetry,grade,benign", *lines]) + "\n")
        own = {"partition-id": site, "data": str(path), "share-statistics": True}
        own |= {"most-exchanges": 20}  # of both fits
        nodes.append(own | {"client-state-dir": str(tmp_path / f"state{site}")})
    fit = {
        "family": "logistic", "label": "benign", "classes": "0,1", "categories": "grade",
        "data": "", "clients": 3, "rounds": 30, "poll": 0.2,
    }  # fmt: skip
    secure = {"aggregation": "secure:bound=100", "standardise": True}
    with FastFederation(tmp_path / "home", nodes) as federation:
        for name, more in (("clear", {}), ("secure", secure)):
            federation.submit(APP, **fit, **more, out=str(tmp_path / name))
            wait_until(lambda name=name: (tmp_path / name / "model.json").exists(), 200)
    levels = [(grade == level).astype(float) for level in ("b", "c")]
    design = np.column_stack([X[:, [1, 8]], *levels, np.ones(len(y))])
    expected = sm.GLM(y, design, family=sm.families.Binomial()).fit(tol=1e-14, maxiter=200)
    for name in ("clear", "secure"):
        table = json.loads((tmp_path / name / "fit.json").read_text())
        rows = table["coefficients"]
        np.testing.assert_allclose([row["coef"] for row in rows], expected.params, rtol=1e-6)
        np.testing.assert_allclose([row["std err"] for row in rows], expected.bse, rtol=1e-6)
        assert table["log-likelihood"] == pytest.approx(expected.llf, rel=1e-9)


def _alive(pid):
    """Return whether a process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_missing_flower_program_is_reported(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(
        fp.InputError, match=r"flower-superlink is missing; install 'fedpage\[flower\]' there"
    ):
        LocalFederation(tmp_path / "home", [{}])
    assert shutil.which("flower-superlink", path=str(tmp_path)) is None
