"""Real processes, on loopback only: a deployment with TLS and keys, and Flower's own simulation. The same bits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedpage as fp
from fedpage.flower import keys
from fedpage.flower.loopback import Loopback, _descendants, _free_ports, _listens

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


def until(condition, seconds=150.0):
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
        name: federation.spawn(name, federation.node_words(0, port=next(ports), **case)) for name, case in cases.items()
    }


@pytest.fixture
def census(config):
    """What is run in both tests, and what the simulator makes of it."""
    small = {
        "method": "scaffold", "hyper": "S=2 K=3 eta_l=0.1", "clients": 2, "rounds": 4, "record": 4, "seed": 7,
        "objective": "logistic-l2", "alpha": 0.01, "data": "census:rows=200", "partition": "by-label",
    }  # fmt: skip
    problem = fp.LogisticRegression(
        fp.load("census", rows=200), fp.by_label(fp.load("census", rows=200).y, 2), reg="l2", alpha=0.01
    )
    method = fp.SCAFFOLD(S=2, K=3, eta_l=0.1)
    return small, fp.simulate(problem, method, rounds=4, seed=7, record=4, measured="clients")


def test_a_deployment_that_dies_and_goes_on(tmp_path, census):
    """Keys and TLS, strangers turned away; SuperLink and ServerApp killed in mid-run, started again: the same bits."""
    config, whole = census
    out = tmp_path / "run"
    nodes = [{"partition-id": i, "memory": str(tmp_path / "memory")} for i in range(2)]
    with Quick(tmp_path / "home", nodes, database=tmp_path / "superlink.db") as federation:
        run = federation.submit(APP, out=str(out), poll=0.05, **config)
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
        again = federation.submit(APP, out=str(out), poll=0.05, **config)
        assert again != run
        until(lambda: ended(out))
        assert fp.History.load(out / "history.jsonl").same(whole)
        until(lambda: federation.status(again)[0].startswith("finished"), 30)
        assert federation.status(again)[0] == "finished:completed"
        started = {pid for one in federation.processes.values() for pid in _descendants(one.pid)}
    time.sleep(0.2)
    assert [pid for pid in started if Path(f"/proc/{pid}").exists() and _alive(pid)] == []


def _alive(pid):
    """Not a process that has ended and only waits to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_flowers_own_simulation(tmp_path, census):
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'fedpage[flower-simulation]'")
    config, whole = census
    out, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()
    federation = Loopback(home, [])
    federation.environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")  # where clients remember, if nobody says where
    (port,) = _free_ports(1)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    words = [str(federation.bin / "flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port",
             str(port), "--disable-runtime-dependency-installation"]  # fmt: skip
    try:
        federation.spawn("superlink", words)
        until(lambda: _listens(f"127.0.0.1:{port}"), 60)
        given = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in config.items())
        done = subprocess.run(
            [str(federation.bin / "flwr"), "run", str(APP), "here", "--run-config", f'{given} out="{out}" poll=0.05',
             "--federation-config", "num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=2"],
            env=federation.environment, cwd=home, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        until(lambda: ended(out))
    finally:
        federation.stop()
    assert fp.History.load(out / "history.jsonl").same(whole)


def test_no_program_no_federation(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(fp.InputError, match=r"flower-superlink is missing; install 'fedpage\[flower\]'"):
        Loopback(tmp_path / "home", [{}])
    assert shutil.which("flower-superlink", path=str(tmp_path)) is None
