"""Run every command of docs/deploy.md: a server and two sites as processes on this machine."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fast_flower import wait_until, write_programs

import fedpage as fp
from fedpage.flower.deploy.local_federation import find_free_ports
from fedpage.flower.deploy.processes import find_descendants
from fedpage.report.watch import FollowedRun

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
MACHINES = {
    "on any machine": ["any"],
    "on all three machines": ["server", "site0", "site1"],
    "on the server": ["server"],
    "at each site, here site 0": ["site0", "site1"],
    "on the server, after the SuperLink is started again": ["server"],
}
"""The first comment of each block of commands, and the machines that it is run on."""
SERVICES = ("flower-superlink", "flower-supernode")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def commands(block):
    """Split a block into commands, which may go on over several lines."""
    found, current = [], ""
    for line in block.splitlines():
        current = f"{current}\n{line}" if current else line
        if not current.rstrip().endswith("\\") and current.count("'") % 2 == 0:
            found.append(current)
            current = ""
    assert not current, current
    return [each for each in found if each.strip() and not each.startswith("#")]


def test_every_block_says_where_it_is_run():
    for block in blocks("sh"):
        assert block.splitlines()[0].removeprefix("# ") in MACHINES, block


class Machines:
    """Directories and environments of the machines; services run until the end."""

    def __init__(self, folder):
        self.folder = folder
        self.port, *node_ports = find_free_ports(3)
        self.ports = dict(zip(("site0", "site1"), node_ports, strict=True))
        self.services, self.environments = {}, {}
        for name in ("any", "server", "site0", "site1"):
            home = folder / name
            (home / "data").mkdir(parents=True)
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            self.environments[name] = {
                **os.environ,
                "HOME": str(home),
                "PATH": path,
                "COLUMNS": "100",
            }
        # One site's tasks are forked from a process that has imported Flower and fedpage.
        write_programs(folder / "programs")
        self.environments["site1"]["PATH"] = f"{folder / 'programs'}{os.pathsep}{path}"

    def adapt(self, text, machine):
        """Replace names of the page by those of this test."""
        home, address = self.folder / machine, f"127.0.0.1:{self.port}"
        for old, new in {
            "fl.example.org:8000": address,
            "--host fl.example.org": "--host 127.0.0.1",
            "--host 0.0.0.0 --port 8000": f"--host 127.0.0.1 --port {self.port}",
            "/var/lib/fedpage": str(home / "lib"),
            "/etc/fedpage": str(home),
            "/data/": f"{home / 'data'}/",
            "--set rounds=20": "--set rounds=1",
            "--rounds 5": "--rounds 2",
        }.items():
            text = text.replace(old, new)
        if machine == "site1":
            text = text.replace("node0", "node1").replace("partition-id=0", "partition-id=1")
        if text.startswith("flower-supernode"):  # two on one machine need two ports
            text += f" --port {self.ports[machine]}"
        return text

    def run(self, command, machine):
        """Run a command; a service stays running."""
        environment = self.environments[machine]
        command = self.adapt(command, machine)
        exported = re.match(r"export (\w+)=(\S+)", command)
        if exported:
            environment[exported[1]] = exported[2]
            return ""
        options = {
            "cwd": self.folder / machine, "env": environment, "stdin": subprocess.DEVNULL,
            "stderr": subprocess.STDOUT,
        }  # fmt: skip
        if command.startswith(SERVICES):
            with open(self.folder / f"{machine}.log", "ab") as log:
                self.services[machine] = subprocess.Popen(
                    ["bash", "-c", f"exec {command}"], stdout=log, start_new_session=True, **options
                )
            self.wait_for_service(machine)
            return ""
        done = subprocess.run(
            ["bash", "-c", command], stdout=subprocess.PIPE, text=True, timeout=900, **options
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}"
        return done.stdout

    def wait_for_service(self, machine):
        log, end = self.folder / f"{machine}.log", time.monotonic() + 300
        words = "SuperNode ID" if machine != "server" else "uvicorn"
        start = log.stat().st_size if machine == "server" and self.restarted else 0
        while words not in log.read_text(errors="replace")[start:]:
            assert self.services[machine].poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.2)
        time.sleep(3)

    restarted = False

    def hand_out_keys(self):
        """Give each machine the files of the page's table."""
        rows = re.findall(r"^\| (the server|site \d) \| (.*) \|$", PAGE, flags=re.MULTILINE)
        assert len(rows) == 3
        for machine, names in rows:
            target = self.folder / machine.removeprefix("the ").replace(" ", "")
            for name in re.findall(r"`(.*?)`", names):
                shutil.copy2(self.folder / "any" / "keys" / name, target / name)

    def hand_out_app(self):
        """Give each site a copy of the server's app."""
        for site in ("site0", "site1"):
            shutil.copytree(self.folder / "server" / "app", self.folder / site / "app")

    def stop(self, name):
        process = self.services.pop(name)
        for pid in find_descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)


@pytest.fixture
def machines(tmp_path):
    found = Machines(tmp_path)
    rng = np.random.default_rng(0)
    for site in ("site0", "site1"):
        X = rng.normal(size=(40, 3)).round(3)
        sick = (X @ [1.0, -2.0, 0.5] > 0).astype(int)
        rows = [",".join(map(str, [*row, label])) for row, label in zip(X, sick, strict=True)]
        text = "age,dose,weight,sick\n" + "\n".join(rows) + "\n"
        (tmp_path / site / "data" / "patients.csv").write_text(text)
    yield found
    for name in list(found.services):
        found.stop(name)


@pytest.mark.slow
def test_every_command_of_the_page(machines):
    """From nothing to a finished run, and once more after the SuperLink was killed."""
    out = machines.folder / "server" / "lib" / "first"
    (table,) = blocks("toml")
    *first, after_death = blocks("sh")
    superlink = next(c for block in first for c in commands(block) if "flower-superlink" in c)
    for block in first:
        for machine in MACHINES[block.splitlines()[0].removeprefix("# ")]:
            for command in commands(block):
                if "supernode register" in command:
                    config = machines.folder / "server" / ".flwr" / "config.toml"
                    config.parent.mkdir(exist_ok=True)
                    config.write_text(machines.adapt(table, "server"))
                output = machines.run(command, machine)
                if command.startswith("fedpage deploy keys"):
                    machines.hand_out_keys()
                if command.startswith("fedpage deploy init"):
                    machines.hand_out_app()
                if command.startswith("fedpage deploy status"):
                    assert "finished" in output
    history = fp.History.load(out)
    assert history.stop_reason is fp.StopReason.FINISHED
    assert history.last("round") == 1

    run_again = next(c for c in commands(first[-1]) if c.startswith("flwr run"))
    shutil.rmtree(out)
    machines.run(run_again.replace("seed=1", "seed=2 rounds=3"), "server")
    wait_until(lambda: rounds_done(out) >= 1)
    machines.stop("server")
    assert rounds_done(out) < 3
    machines.restarted = True
    machines.run(superlink, "server")
    listed = machines.run("flwr list fl --format json", "server")
    run_id = re.search(r'"run-id": "?(\d+)', listed)[1]
    for command in commands(after_death):
        command = command.replace("RUN", run_id).replace("seed=1", "seed=2 rounds=3")
        output = machines.run(command, "server")
    assert "finished" in output
    history = fp.History.load(out)
    assert (history.stop_reason, history.last("round")) == (fp.StopReason.FINISHED, 3)


def rounds_done(out):
    run = FollowedRun(out)
    run.poll()
    return run.round
