"""Real processes, on loopback only: a deployment with TLS and keys, and Flower's own simulation. The same bits."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

import fedpage as fp
from fedpage.flower.deploy import keys
from fedpage.flower.deploy.local_federation import Loopback, Simulated, _descendants, _free_ports

pytestmark = pytest.mark.slow  # starts real federations
APP = Path(__file__).resolve().parents[2] / "examples" / "flower"
QUICK = """
import sys, time
sleep = time.sleep
time.sleep = lambda seconds: sleep(0.05 if seconds in (3, 0.5) else seconds)  # a node's polls, and nothing else
sys.argv[0] = "flower-supernode"
from flwr.supernode.cli import flower_supernode
flower_supernode()
"""


class Quick(Loopback):
    """A federation whose nodes look for work more often than every three seconds."""

    def supernode(self):
        return [sys.executable, "-c", QUICK]


def until(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def rounds_done(out):
    return max([0, *(int(path.name[:9]) for path in (out / "checkpoints").glob("[0-9]*.npz"))])


def ended(out):
    path = out / "history.jsonl"
    return path.exists() and b'"end"' in path.read_bytes()


REFUSED = {
    "unregistered": "[code: 2004]",
    "no-key": "[code: 2001]",
    "wrong-ca": "CERTIFICATE_VERIFY_FAILED",
    "plaintext": "Exit Code: 305",
    "plaintext-with-a-key": "Exit Code: 303",
}


def strangers(federation):
    """Nodes that must not get in, all at once."""
    other = federation.home / "other"
    keys.make(other, hosts=["localhost", "127.0.0.1"], nodes=1, days=1)
    mine, ca, once = federation.tls / "node0", federation.tls / "ca.pem", ["--max-retries", "1"]
    ports = iter(_free_ports(len(REFUSED)))
    cases = {
        "unregistered": {"key": other / "node0", "ca": ca},
        "no-key": {"key": None, "ca": ca},
        "wrong-ca": {"key": mine, "ca": other / "ca.pem", "extra": once},
        "plaintext": {"key": None, "ca": None, "extra": once},
        "plaintext-with-a-key": {"key": mine, "ca": None, "extra": once},
    }
    return {
        name: federation.spawn(name, federation.node_words(0, port=next(ports), **case))
        for name, case in cases.items()
    }


METHODS = {
    "scaffold": (fp.SCAFFOLD(S=2, K=3, eta_l=0.1), "S=2 K=3 eta_l=0.1", 4),
    "fedpage": (fp.FedPAGE(S=1, K=3, eta_g=0.5, p=0.1), "S=1 K=3 eta_g=0.5 p=0.1", 2),
    "fedavg": (fp.FedAvg(S=1, K=3, eta_l=0.1), "S=1 K=3 eta_l=0.1", 2),
}
SMALL = {
    "clients": 2, "record-every": 0, "seed": 7, "objective": "logistic-l2", "alpha": 0.01, "data": "census:rows=200",
    "partition": "label-shards", "poll": 0.05,
}  # fmt: skip


@pytest.fixture(scope="module")
def simulated_runs():
    """What the simulator makes of the three runs."""
    data = fp.load("census", rows=200)
    problem = fp.LogisticRegression(data, fp.label_shards(data.y, 2), reg="l2", alpha=0.01)
    return {
        name: fp.simulate(
            problem,
            method,
            rounds=rounds,
            seed=7,
            record_every=0,
            options=fp.RunOptions(evaluate="per_client"),
        )
        for name, (method, _, rounds) in METHODS.items()
    }


def settings(name, folder):
    _, hyper, rounds = METHODS[name]
    return {**SMALL, "method": name, "hyper": hyper, "rounds": rounds, "out": str(folder / name)}


def test_a_deployment_that_dies_and_goes_on(tmp_path, simulated_runs):
    """Keys and TLS, strangers turned away; SuperLink and ServerApp killed in mid-run, started again: the same bits."""
    out = tmp_path / "scaffold"
    nodes = [{"partition-id": i, "memory": str(tmp_path / "memory")} for i in range(2)]
    with Quick(tmp_path / "home", nodes, database=tmp_path / "superlink.db") as federation:
        run = federation.submit(APP, **settings("scaffold", tmp_path))
        refused = strangers(federation)
        until(lambda: rounds_done(out) >= 1)
        family = _descendants(federation.processes["superlink"].pid)
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        federation.processes["superlink"].wait()
        assert not ended(out)
        for name, text in REFUSED.items():
            assert refused[name].wait(60) == 1
            assert text in federation.log(name), federation.log(name)[-600:]
            assert "SuperNode ID" not in federation.log(name)
        federation.start_superlink()
        federation.flwr("stop", run, "here")  # else nodes keep waiting for it for a minute
        runs = {name: federation.submit(APP, **settings(name, tmp_path)) for name in METHODS}
        assert runs["scaffold"] != run
        for name, whole in simulated_runs.items():
            until(lambda name=name: ended(tmp_path / name))
            assert fp.History.load(tmp_path / name / "history.jsonl").same(whole)
        until(lambda: federation.status(runs["scaffold"])[0].startswith("finished"), 30)
        assert federation.status(runs["scaffold"])[0] == "finished:completed"
        started = {pid for one in federation.processes.values() for pid in _descendants(one.pid)}
    time.sleep(0.2)
    assert [pid for pid in started if Path(f"/proc/{pid}").exists() and _alive(pid)] == []


def _alive(pid):
    """Not a process that has ended and only waits to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_flowers_own_simulation(tmp_path, simulated_runs):
    pytest.importorskip(
        "ray", reason="Flower's simulation needs ray: pip install 'fedpage[flower-simulation]'"
    )
    with Simulated(tmp_path / "home", 2) as federation:
        for name in METHODS:
            federation.submit(APP, **settings(name, tmp_path))
        for name in METHODS:
            until(lambda name=name: ended(tmp_path / name))
    for name, whole in simulated_runs.items():
        assert fp.History.load(tmp_path / name / "history.jsonl").same(whole)


def test_no_program_no_federation(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(
        fp.InputError, match=r"flower-superlink is missing; install 'fedpage\[flower\]'"
    ):
        Loopback(tmp_path / "home", [{}])
    assert shutil.which("flower-superlink", path=str(tmp_path)) is None
