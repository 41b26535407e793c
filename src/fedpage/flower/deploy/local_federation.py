"""A whole federation on this machine: a SuperLink and SuperNodes with TLS and registered keys, on loopback only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fedpage.core.errors import InputError
from fedpage.flower.deploy import keys

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip
"""Flower's environment for offline use without telemetry, and one thread for each of many processes."""


class Loopback:
    """Start, use and stop a federation; a context that leaves no process behind.

    home: a directory for keys, logs and Flower's own files. nodes: each node's own configuration (--node-config).
    database: a file in which the SuperLink keeps its runs and registered keys.
    """

    run_words: tuple[str, ...] = ()
    """What else `flwr run` is told."""

    def __init__(
        self, home: Path, nodes: Sequence[Mapping[str, Any]], *, database: Path | None = None
    ) -> None:
        self.home, self.nodes, self.database = home.resolve(), list(nodes), database
        self.bin = Path(sys.executable).parent
        for program in ("flower-superlink", "flower-supernode", "flwr"):
            if not (self.bin / program).exists():
                raise InputError(
                    f"{self.bin / program} is missing; install 'fedpage[flower]' into this environment"
                )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.tls = self.home / "keys"
        port, *self.ports = _free_ports(1 + len(self.nodes))
        self.address = f"127.0.0.1:{port}"
        path = f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}"  # Flower starts its own programs by name
        self.environment = {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(self.home)}

    def __enter__(self) -> Self:
        try:
            keys.make(self.tls, hosts=("localhost", "127.0.0.1"), nodes=len(self.nodes), days=2)
            (self.home / "config.toml").write_text(
                f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n'
                f'root-certificates = "{self.tls / "ca.pem"}"\n',
                encoding="utf-8",
            )
            self.start_superlink()
            for number in range(len(self.nodes)):
                self.register(self.tls / f"node{number}.pub")
            for number in range(len(self.nodes)):
                self.start_node(number)
            for number in range(len(self.nodes)):
                self.wait_for(f"node{number}", "SuperNode ID")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """The server, with TLS and authentication of nodes."""
        words = [
            str(self.bin / "flower-superlink"), "--host", "127.0.0.1", "--port", self.address.rpartition(":")[2],
            "--ssl-ca-certfile", str(self.tls / "ca.pem"), "--ssl-certfile", str(self.tls / "server.pem"),
            "--ssl-keyfile", str(self.tls / "server.key"), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        self.spawn(
            "superlink", words + (["--database", str(self.database)] if self.database else [])
        )
        self.wait_until(lambda: _listens(self.address), "superlink", 60)

    def node_words(
        self,
        number: int,
        *,
        key: Path | None,
        ca: Path | None,
        port: int | None = None,
        extra: Sequence[str] = (),
    ) -> list[str]:
        """The command line of a SuperNode; ca None: without TLS."""
        config = " ".join(
            f"{name}={json.dumps(value)}" for name, value in self.nodes[number].items()
        )
        words = [
            "--superlink",
            self.address,
            "--port",
            str(port or self.ports[number]),
            "--node-config",
            config,
        ]
        words += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
        words += ["--auth-supernode-private-key", str(key)] if key is not None else []
        return [*self.supernode(), *words, *extra]

    def supernode(self) -> list[str]:
        """How a SuperNode is started."""
        return [str(self.bin / "flower-supernode")]

    def start_node(self, number: int, name: str = "") -> None:
        """A SuperNode with its own key."""
        words = self.node_words(number, key=self.tls / f"node{number}", ca=self.tls / "ca.pem")
        self.spawn(name or f"node{number}", words)

    def spawn(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process of its own session whose output goes to a log."""
        with open(self.home / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                list(words), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.home,
                env=self.environment, start_new_session=True,
            )  # fmt: skip
        return self.processes[name]

    def log(self, name: str) -> str:
        """What a process has said, without colours."""
        path = self.home / f"{name}.log"
        return (
            re.sub(r"\x1b\[[0-9;]*m", "", path.read_text(errors="replace")) if path.exists() else ""
        )

    def wait_for(self, name: str, text: str, seconds: float = 60.0) -> None:
        """Until a process has said something."""
        self.wait_until(lambda: text in self.log(name), name, seconds)

    def wait_until(self, condition: Callable[[], bool], name: str, seconds: float) -> None:
        """Until something is so, while a process lives."""
        end = time.monotonic() + seconds
        while not condition():
            gone = self.processes[name].poll() is not None
            if gone or time.monotonic() > end:
                why = "ended" if gone else f"did not get ready in {seconds:g} s"
                tail = " | ".join(self.log(name).strip().splitlines()[-3:])
                raise InputError(
                    f"{name} {why}; its log {self.home / (name + '.log')} ends with: {tail}"
                )
            time.sleep(0.05)

    def flwr(self, *words: str, seconds: float = 120.0) -> dict[str, Any]:
        """What `flwr ... --format json` answers; an InputError where it says that it failed."""
        done = subprocess.run(
            [str(self.bin / "flwr"), *words, "--format", "json"], capture_output=True, text=True, cwd=self.home,
            env=self.environment, timeout=seconds, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found = re.search(r"\{.*\}", done.stdout, flags=re.DOTALL)
        answer: dict[str, Any] = json.loads(found.group()) if found else {}
        if done.returncode or not answer.get("success"):  # its exit code alone says little
            said = " ".join((done.stdout + done.stderr).split())[-300:]
            raise InputError(f"flwr {words[0]} failed: {said}")
        return answer

    def register(self, public: Path) -> None:
        """Let a node's key in."""
        self.flwr("supernode", "register", str(public), "here")

    def submit(self, app: Path, **config: Any) -> str:
        """Start a run of an app with some of its configuration changed; its number."""
        words = " ".join(
            f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in config.items()
        )
        return str(
            self.flwr("run", str(app.resolve()), "here", "--run-config", words, *self.run_words)[
                "run-id"
            ]
        )

    def status(self, run: str) -> tuple[str, str]:
        """A run's status, and details if there are any."""
        about = self.flwr("list", "here", "--run-id", run)["runs"][0]
        return str(about["status"]), str(about.get("status-details", ""))

    def stop(self) -> None:
        """End every process that was started, and what those have started."""
        family = {
            pid
            for one in self.processes.values()
            if one.poll() is None
            for pid in _descendants(one.pid)
        }
        for one in self.processes.values():
            if one.poll() is None:
                one.terminate()
        end = time.monotonic() + 8.0
        while time.monotonic() < end and any(one.poll() is None for one in self.processes.values()):
            time.sleep(0.05)
        time.sleep(0.3)
        for pid in family:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for one in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(5)


class Simulated(Loopback):
    """Flower's own simulation: its engine in one process, the nodes in workers of ray's. Without keys, on loopback."""

    def __init__(self, home: Path, nodes: int) -> None:
        super().__init__(home, [])
        home.mkdir(parents=True, exist_ok=True)
        self.environment["XDG_CACHE_HOME"] = str(
            home / "cache"
        )  # where clients remember, if nobody says where
        workers = max(1, min(nodes, os.cpu_count() or 1))
        federation = (
            f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={workers}"
        )
        self.run_words = ("--federation-config", federation)

    def __enter__(self) -> Self:
        (port,) = _free_ports(1)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        try:
            self.spawn("superlink", [
                str(self.bin / "flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port",
                str(port), "--disable-runtime-dependency-installation",
            ])  # fmt: skip
            self.wait_until(lambda: _listens(f"127.0.0.1:{port}"), "superlink", 60.0)
        except BaseException:
            self.stop()
            raise
        return self


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.3).close()
    except OSError:
        return False
    return True


def _descendants(pid: int) -> list[int]:
    """A process and all that it has started, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        left += children.get(one, [])
    return found
