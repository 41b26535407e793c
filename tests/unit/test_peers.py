"""Check `make bench-peers`: its references, fedpage's own script, the tables, failures."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "peers"
MODULES = ("common", "plain", "tables", "run", "ours", "numpy_loop")


@pytest.fixture(scope="module")
def peers():
    """Import the scripts of benchmarks/peers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        # run.py may set it; the patch restores it
        patch.setenv("FEDPAGE_DATA", os.environ.get("FEDPAGE_DATA", ""))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture
def run_job(peers, tmp_path, monkeypatch, capsys):
    """Return a function that runs a job by a peer's script in this process."""

    def call(peer, problem, **job):
        problem.save(tmp_path / "data.npz")
        job = {
            "check": 1,
            "seed": 0,
            "b": None,
            "report_clients": True,
            "data": str(tmp_path / "data.npz"),
            **job,
        }
        job["schedule"] = peers.run.schedule(problem.N, job["S"], job["rounds"], 0)
        (tmp_path / "job.json").write_text(json.dumps({**job, "spawned": time.time()}))
        monkeypatch.setattr(sys, "argv", [peer, str(tmp_path / "job.json")])
        peers.common.main(getattr(peers, peer).run)
        return job, json.loads(capsys.readouterr().out.splitlines()[-1])

    return call


def mean_gradient(peers, problem, x):
    return np.mean([peers.plain.gradient(problem, i, x) for i in range(problem.N)], axis=0)


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
def test_the_gradient_is_zero_at_the_optimum(peers, kind):
    problem = getattr(peers.plain, kind)()
    star = peers.plain.optimum(problem)
    np.testing.assert_allclose(mean_gradient(peers, problem, star), 0.0, atol=1e-14)
    gradients = [peers.plain.gradient(problem, i, star) for i in range(problem.N)]
    assert np.abs(gradients).max() > 0.1  # the clients' optima differ


def test_slopes_agree_with_finite_differences(peers):
    rng = np.random.default_rng(0)
    X, y, A, x, h = (
        rng.normal(size=(5, 4)),
        np.array([1.0, -1, 1, 1, -1]),
        np.diag([1.0, 2, 3, 4]),
        rng.normal(size=4),
        1e-6,
    )
    rows = {"X": X, "y": y, "A": A, "b": y[:4]}
    losses = {
        "robust": lambda v: np.log1p(0.5 * (X @ v - y) ** 2).mean(),
        "logistic": lambda v: np.log1p(np.exp(-y * (X @ v))).mean() + 0.15 * v @ v,
        "quadratic": lambda v: 0.5 * (v - y[:4]) @ A @ (v - y[:4]),
    }
    for kind, f in losses.items():
        wanted = [(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(4)]
        np.testing.assert_allclose(peers.common.slope(kind, 0.3, rows, x), wanted, atol=1e-8)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("S", [10, 5])
def test_the_reference_of_scaffold_reaches_the_optimum(peers, S, option):
    problem = peers.plain.quadratic()
    x = peers.plain.scaffold(problem, peers.run.schedule(10, S, 150, 0), 5, 0.1, option)
    np.testing.assert_allclose(x, peers.plain.optimum(problem), atol=1e-10)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_the_reference_of_fedprox_ends_at_the_closed_form(peers, mu):
    problem, K, eta = peers.plain.quadratic(), 5, 0.1
    A, b, one = problem.arrays["A"], problem.arrays["b"], np.eye(problem.d)
    B = A + mu * one
    pull = [
        (one - np.linalg.matrix_power(one - eta * B[i], K)) @ np.linalg.solve(B[i], A[i])
        for i in range(10)
    ]
    rest = np.linalg.solve(
        np.mean(pull, axis=0), np.mean([p @ c for p, c in zip(pull, b, strict=True)], axis=0)
    )
    x = peers.plain.fedprox(problem, peers.run.schedule(10, 10, 150, 0), K, eta, mu)
    np.testing.assert_allclose(x, rest, atol=1e-12)
    assert np.abs(x - peers.plain.optimum(problem)).max() > 1e-2


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@pytest.mark.parametrize("S", [10, 5])
@pytest.mark.parametrize(
    "method", [{"method": "scaffold", "mu": 0.5}, {"method": "fedprox", "mu": 0.5}]
)
def test_fedpage_and_the_numpy_loop_agree_with_the_reference(peers, run_job, kind, S, method):
    problem = getattr(peers.plain, kind)()
    variants: list[tuple[str, dict[str, str]]]
    variants = [("ours", {}), ("numpy_loop", {})] + [("ours", {"option": "I"})] * (
        method["method"] == "scaffold"
    )
    for peer, more in variants:
        job, answer = run_job(peer, problem, **method, **more, S=S, K=5, eta=0.1, rounds=40)
        distances = peers.run.measure_distances(problem, job, answer, peers.plain.optimum(problem))
        assert distances["to_reference"] < 1e-10, (peer, more)
        assert answer["first"] > 0
        assert answer["timed"] == 39


SERVER_METHODS = (
    "fedavgm", "fednesterov", "fedadagrad", "fedadam", "fedyogi", "mimelite", "mime",
)  # fmt: skip


@pytest.mark.parametrize("S", [10, 5])
@pytest.mark.parametrize("method", SERVER_METHODS)
def test_fedpages_servers_agree_with_the_reference(peers, run_job, method, S):
    problem = peers.plain.quadratic()
    settings = peers.run.SERVER | {"eta_g": 0.2, "rounds": 20}
    job, answer = run_job("ours", problem, method=method, S=S, **settings)
    found = peers.run.measure_reading(problem, job, answer, "ours")
    assert found["first"] < 1e-14
    assert found["to_reference"] < 1e-13
    assert found["to_reading"] is None
    assert found["reading"] == ""


def test_the_references_of_servers_reduce_to_fedavg(peers):
    problem, called = peers.plain.quadratic(), peers.run.schedule(10, 5, 20, 0)
    job = peers.run.SERVER | {"eta_g": 1.0, "beta": 0.0}
    wanted = peers.plain.fedprox(problem, called, job["K"], job["eta"], 0.0)
    for method in ("fedavgm", "fednesterov", "mimelite"):
        x = peers.plain.reference(problem, job | {"method": method}, called)
        np.testing.assert_allclose(x, wanted, atol=1e-14)


def test_readings_differ_from_the_papers_and_a_shorter_step_makes_up_for_summed_momentum(peers):
    problem, called = peers.plain.quadratic(), peers.run.schedule(10, 5, 20, 0)
    for (_, method), (_, reading) in peers.run.READINGS.items():
        job = peers.run.SERVER | {"method": method}
        paper = peers.plain.reference(problem, job, called)
        other = peers.plain.reference(problem, job, called, **reading)
        assert np.abs(paper - other).max() > 1e-6
    for method in ("mime", "mimelite"):
        job = peers.run.SERVER | {"method": method, "eta_g": 1.0}
        shorter = job | {"eta": job["eta"] * (1 - job["beta"])}
        paper = peers.plain.reference(problem, job, called)
        summed = peers.plain.reference(problem, shorter, called, summed=True)
        np.testing.assert_allclose(summed, paper, atol=1e-14)


def test_jobs_of_a_batch_share_a_process(peers, tmp_path, monkeypatch, capsys):
    problem = peers.plain.quadratic()
    problem.save(tmp_path / "data.npz")
    one = peers.run.SERVER | {
        "method": "fedavgm", "S": 10, "b": None, "seed": 0, "check": 1, "rounds": 3,
        "data": str(tmp_path / "data.npz"),
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps({"batch": [one, one], "spawned": time.time()}))
    monkeypatch.setattr(sys, "argv", ["ours", str(tmp_path / "job.json")])
    peers.common.main(peers.ours.run)
    first, second = json.loads(capsys.readouterr().out)["batch"]
    assert first["x"] == second["x"]


def server_rows():
    close = {"label": "1", "first": 0.0, "to_reading": None, "reading": ""}
    far = close | {"reading": "v starts at 0", "to_reading": 1e-16, "to_reference": 0.02}
    rows = []
    for S in (10, 5):
        for peer, more in (
            ("ours", close | {"to_reference": 1e-16}),
            ("fedjax_peer", {"none": "has none"}),
            ("pfl_peer", {"failed": "could not be installed: x"}),
            ("flower_sim", far),
        ):
            rows.append({"peer": peer, "method": "fedadam", "S": S, "N": 10, **more})
    return rows


def test_the_table_of_servers_shows_what_is_unlike_the_paper(peers):
    lines = peers.tables.server_page({"servers": server_rows()}).splitlines()
    assert "| FedAdam | fedpage | nothing | 1.0e-16 | 1.0e-16 |  |  |" in lines
    assert (
        "| FedAdam | Flower | v starts at 0 | **2.0e-02** | **2.0e-02** | 1.0e-16 | 1.0e-16 |"
        in lines
    )
    assert "| FedAdam | FedJAX | has none |  |  |  |  |" in lines
    assert "| FedAdam | pfl | failed: could not be installed: x |  |  |  |  |" in lines
    assert peers.tables.server_page({}) == ""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    only = peers.tables.insert_all(text, {"servers": server_rows()})
    assert "could not be installed: x" in only.split(peers.tables.END)[1]
    assert only.split(peers.tables.END)[0] == text.split(peers.tables.END)[0]


def test_sparse_and_dense_rows_agree(peers, run_job, tmp_path):
    rng = np.random.default_rng(0)
    indices = np.concatenate([np.sort(rng.choice(9, 3, replace=False)) for _ in range(40)]).astype(
        np.int32
    )
    arrays = {
        "indptr": 3 * np.arange(41),
        "indices": indices,
        "y": np.where(rng.random(40) < 0.5, 1.0, -1.0),
    }
    problem = peers.common.Clients("robust", 8, 9, 0.0, arrays)
    for method in ("fedavg", "scaffold"):
        answers = [
            run_job(peer, problem, method=method, S=8, K=3, eta=0.1, rounds=6)[1]
            for peer in ("ours", "numpy_loop")
        ]
        np.testing.assert_allclose(answers[0]["x"], answers[1]["x"], atol=1e-12)
    dense, x = problem.dense(np.float64), np.array(answers[0]["x"])
    t = dense["X"] @ x - dense["y"]
    value, norm = peers.run.loss(tmp_path / "data.npz", x.tolist())
    assert value == pytest.approx(np.log1p(0.5 * t * t).mean())
    assert norm == pytest.approx(
        np.linalg.norm(
            peers.common.slope("robust", 0.0, {"X": dense["X"].reshape(40, 9), "y": arrays["y"]}, x)
        )
    )


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(),
    reason="child processes are found in /proc, which is missing",
)
def test_cpu_time_includes_child_processes(peers):
    before = peers.common.cpu_seconds()
    burn = (
        "import time, sys\nwhile time.process_time() < 0.3: pass\n"
        "print(); sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdin=-1, stdout=-1) as child:
        child.stdout.readline()
        running = peers.common.cpu_seconds()
        child.stdin.close()
    assert running - before > 0.25
    assert peers.common.cpu_seconds() - before > 0.25


def example_results(peers):
    row = {
        "wall": 2e-3, "cpu": 1e-3, "first": 1.5, "peak": 5e8, "beyond": 1e8,
        "versions": {"numpy": "2"}, "label": "7",
        "start_loss": 0.4, "check_loss": 0.3, "loss": 0.2, "grad_norm": 0.1, "timed": 10,
    }  # fmt: skip
    speed = []
    for case, grown in (("small", 1), ("few", 1), ("large", 3)):
        for method in ("fedavg", "scaffold"):
            about = {"method": method, "case": case}
            speed.append({"peer": "ours", **about, **row, "cpu": grown * 1e-4})
            speed.append({"peer": "numpy_loop", **about, **row, "cpu": grown * 2e-3})
            speed.append({"peer": "torch_loop", **about, **row, "check_loss": 0.9})
            speed.append({"peer": "fedjax_peer", **about, "none": "has none"})
            speed.append(
                {"peer": "pfl_peer", **about, "failed": "could not be installed: no such version"}
            )
    peers.run.compare({(row["peer"], row["method"], row["case"]): row for row in speed})
    exact = [
        {"peer": peer, "method": method, "variant": "", "problem": problem, "S": S, "N": 10,
         "label": "7", "to_reference": far, "to_star": 0.02, "reference_to_star": 0.02}
        for peer, far in (("ours", 1e-16), ("pfl_peer", 0.5), ("torch_loop", float("nan")))
        for method in ("scaffold", "fedprox")
        for problem in ("quadratic", "logistic")
        for S in (10, 5)
    ]  # fmt: skip
    return peers.run.replace_non_finite(
        {"machine": "a CPU, 2 cores", "cases": peers.run.CASES, "speed": speed, "exact": exact}
    )


def test_tables_show_the_results(peers):
    page = peers.tables.page(json.loads(json.dumps(example_results(peers), allow_nan=False)))
    lines = page.splitlines()
    assert "| FedAvg | fedpage | 100 us | 1.0x | 2 ms | 1.5 s | 500 MB | 100 MB | 0.3000 |" in lines
    assert (
        "| SCAFFOLD | numpy loop | 2 ms | 20x | 2 ms | 1.5 s | 500 MB | 100 MB | 0.3000 |" in lines
    )
    assert (
        "| FedAvg | PyTorch loop | 1 ms | 10x | 2 ms | 1.5 s | 500 MB | 100 MB | 0.9000 (differs) |"
        in lines
    )
    assert (
        "| FedAvg | pfl | failed: could not be installed: no such version |  |  |  |  |  |  |"
        in lines
    )
    assert "| SCAFFOLD | FedJAX | has none |  |  |  |  |  |  |" in lines
    assert "| FedAvg | numpy loop | 6 ms | 3.0x | 1.5 s | 1.0x | 500 MB | 1.0x |" in lines
    assert "| SCAFFOLD | fedpage | 1.0e-16 | 2.0e-02 | 1.0e-16 | 2.0e-02 |" in lines
    assert "| SCAFFOLD | pfl | **5.0e-01** | 2.0e-02 | **5.0e-01** | 2.0e-02 |" in lines
    assert "| FedProx | PyTorch loop | **diverges** | 2.0e-02 | **diverges** | 2.0e-02 |" in lines
    widths = [line.count("|") for line in lines if line.startswith("|")]
    assert set(widths) == {10, 9, 7}


def test_tables_replace_the_text_between_the_markers(peers):
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    once = peers.tables.insert(text, "new\n")
    assert (
        once.count("new")
        == text.split(peers.tables.BEGIN)[0].count("new")
        + text.split(peers.tables.END)[1].count("new")
        + 1
    )
    assert peers.tables.insert(once, "new\n") == once
    with pytest.raises(ValueError, match="peers: begin"):
        peers.tables.insert("nothing", "new")


def test_a_peer_that_fails_gets_a_row_with_the_reason(peers, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("print('{}')\nraise ValueError('wrong value')\n")
    (tmp_path / "requirements-none.txt").write_text("numpy\n")
    monkeypatch.setattr(peers.run, "HERE", tmp_path)
    with pytest.raises(peers.run.PeerFailed, match=r"^ValueError: wrong value$"):
        peers.run.run_job(sys.executable, "broken", {}, tmp_path)
    with pytest.raises(peers.run.PeerFailed, match=r"could not be installed: .*no-such-python"):
        peers.run.interpreter(tmp_path, "none", "no-such-python")
    monkeypatch.setattr(
        peers.run, "PEERS", {"ours": (None, "float64", 1), "broken": ("none", "float64", 1)}
    )
    monkeypatch.setattr(peers.run, "VARIANTS", [])
    rows = peers.run.exact(
        {"ours": peers.run.PeerFailed("could not be installed: x"), "broken": sys.executable},
        tmp_path,
    )
    assert {(row["peer"], row["failed"]) for row in rows} == {
        ("ours", "could not be installed: x"), ("broken", "ValueError: wrong value"),
    }  # fmt: skip
