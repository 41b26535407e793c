"""Run a federation on this machine: a SuperLink and SuperNodes that listen on 127.0.0.1 only."""

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
from fedpage.flower.deploy.keys import create_keys
from fedpage.flower.deploy.processes import find_descendants

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment of Flower's processes: offline, no telemetry, one thread for each process."""


class LocalFederation:
    """A SuperLink and SuperNodes on this machine, with TLS and registered keys.

    It is a context manager: entering starts the processes, leaving ends all of them.

    Args:
        home: directory for keys, logs and Flower's own files.
        nodes: the configuration of each node (--node-config).

    Raises:
        InputError: a program of Flower is missing, or a process does not start.
    """

    run_options: tuple[str, ...] = ()
    """Further options of `flwr run`."""

    def __init__(self, home: Path, nodes: Sequence[Mapping[str, object]]) -> None:
        self.home, self.nodes = home.resolve(), list(nodes)
        self.bin = Path(sys.executable).parent
        for program in ("flower-superlink", "flower-supernode", "flwr"):
            if not (self.bin / program).exists():
                raise InputError(
                    f"{self.bin / program} is missing; install 'fedpage[flower]' there"
                )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.tls = self.home / "keys"
        port, *self.ports = find_free_ports(1 + len(self.nodes))
        self.address = f"127.0.0.1:{port}"
        # Flower starts its own programs by name, so they must be on the path.
        path = f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {**os.environ, **ENVIRONMENT, "PATH": path, "FLWR_HOME": str(self.home)}

    def __enter__(self) -> Self:
        try:
            create_keys(self.tls, hosts=("localhost", "127.0.0.1"), nodes=len(self.nodes), days=2)
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
        """Start the SuperLink with TLS and node authentication, and wait until it listens."""
        command = [
            str(self.bin / "flower-superlink"),
            "--host", "127.0.0.1",
            "--port", self.address.rpartition(":")[2],
            "--ssl-ca-certfile", str(self.tls / "ca.pem"),
            "--ssl-certfile", str(self.tls / "server.pem"),
            "--ssl-keyfile", str(self.tls / "server.key"),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        self.spawn("superlink", command)
        self.wait_until(lambda: _listens(self.address), "superlink", 60)

    def node_command(
        self,
        number: int,
        *,
        key: Path | None,
        ca: Path | None,
        port: int | None = None,
        extra: Sequence[str] = (),
    ) -> list[str]:
        """Return the command line of a SuperNode.

        Args:
            number: the node's number.
            key: its private key; None: no authentication.
            ca: certificate of the authority; None: no TLS.
            port: its port; None: the one reserved for this node.
            extra: further options.
        """
        config = " ".join(
            f"{name}={json.dumps(value)}" for name, value in self.nodes[number].items()
        )
        command = [
            *self.supernode_program(),
            "--superlink", self.address,
            "--port", str(port or self.ports[number]),
            "--node-config", config,
        ]  # fmt: skip
        command += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
        command += ["--auth-supernode-private-key", str(key)] if key is not None else []
        return [*command, *extra]

    def supernode_program(self) -> list[str]:
        """Return the program of a SuperNode and its first arguments; tests replace it."""
        return [str(self.bin / "flower-supernode")]

    def start_node(self, number: int, name: str = "") -> None:
        """Start a SuperNode with its own key."""
        command = self.node_command(number, key=self.tls / f"node{number}", ca=self.tls / "ca.pem")
        self.spawn(name or f"node{number}", command)

    def spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process in its own session; its output goes to `name`.log.

        Args:
            name: the process's name, a key of `processes`.
            command: program and arguments.

        Returns:
            The process.
        """
        find_descendants(os.getpid())  # where that fails, `stop` could not end what is started here
        with open(self.home / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env=self.environment,
                start_new_session=True,
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        """Return the output of a process, without colours."""
        path = self.home / f"{name}.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    def wait_for(self, name: str, text: str, seconds: float = 60.0) -> None:
        """Wait until a process has written a text to its log.

        Raises:
            InputError: the process ended, or the time is over.
        """
        self.wait_until(lambda: text in self.log(name), name, seconds)

    def wait_until(self, condition: Callable[[], bool], name: str, seconds: float) -> None:
        """Wait until a condition holds, as long as a process runs.

        Args:
            condition: returns whether to stop waiting.
            name: the process.
            seconds: the longest time to wait.

        Raises:
            InputError: the process ended, or the time is over.
        """
        end = time.monotonic() + seconds
        while not condition():
            ended = self.processes[name].poll() is not None
            if ended or time.monotonic() > end:
                why = "ended" if ended else f"was not ready after {seconds:g} s"
                tail = " | ".join(self.log(name).strip().splitlines()[-3:])
                raise InputError(f"{name} {why}; {self.home / (name + '.log')} ends with: {tail}")
            time.sleep(0.05)

    def flwr(self, *arguments: str, seconds: float = 120.0) -> dict[str, Any]:
        """Run `flwr` with `--format json` and return its answer.

        Args:
            arguments: the command and its arguments.
            seconds: the longest time to wait.

        Returns:
            The answer as a dictionary.

        Raises:
            InputError: the command failed.
        """
        done = self.call_flwr([*arguments, "--format", "json"], seconds)
        found = re.search(r"\{.*\}", done.stdout, flags=re.DOTALL)
        answer: dict[str, Any] = json.loads(found.group()) if found else {}
        if done.returncode or not answer.get("success"):  # flwr exits with 0 after some failures
            output = " ".join((done.stdout + done.stderr).split())[-300:]
            raise InputError(f"flwr {arguments[0]} failed: {output}")
        return answer

    def call_flwr(
        self, arguments: Sequence[str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `flwr` and return its exit code and output; tests replace it."""
        return subprocess.run(
            [str(self.bin / "flwr"), *arguments],
            capture_output=True,
            text=True,
            cwd=self.home,
            env=self.environment,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def register(self, public: Path) -> None:
        """Register a node's public key at the SuperLink."""
        self.flwr("supernode", "register", str(public), "here")

    def submit(self, app: Path, **config: object) -> str:
        """Start a run of an app.

        Args:
            app: the app's directory.
            config: overrides of its configuration; underscores in keys become dashes.

        Returns:
            The run's id.
        """
        overrides = " ".join(
            f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in config.items()
        )
        answer = self.flwr(
            "run", str(app.resolve()), "here", "--run-config", overrides, *self.run_options
        )
        return str(answer["run-id"])

    def status(self, run: str) -> tuple[str, str]:
        """Return a run's status and its details, which may be empty."""
        about = self.flwr("list", "here", "--run-id", run)["runs"][0]
        return str(about["status"]), str(about.get("status-details", ""))

    def stop(self) -> None:
        """End every process that was started, and all their descendants."""
        processes = self.processes.values()
        running = [process for process in processes if process.poll() is None]
        pids = {pid for process in running for pid in find_descendants(process.pid)}
        for process in running:
            process.terminate()
        end = time.monotonic() + 8.0
        while time.monotonic() < end and any(process.poll() is None for process in running):
            time.sleep(0.05)
        time.sleep(0.3)
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)


class SimulatedFederation(LocalFederation):
    """Flower's own simulation on this machine: the nodes are ray workers, without keys.

    Args:
        home: directory for logs and Flower's own files.
        nodes: number of nodes.
        allow: methods and objectives that runs may name beside those of fedpage.
    """

    def __init__(self, home: Path, nodes: int, allow: Sequence[str] = ()) -> None:
        super().__init__(home, [])
        home.mkdir(parents=True, exist_ok=True)
        # Simulated nodes have no node config: their client state goes to the user's state
        # directory, and the environment says what they allow.
        self.environment["XDG_STATE_HOME"] = str(home / "state")
        self.environment["FEDPAGE_ALLOW"] = ",".join(allow)
        workers = max(1, min(nodes, os.cpu_count() or 1))
        federation = (
            f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={workers}"
        )
        self.run_options = ("--federation-config", federation)

    def __enter__(self) -> Self:
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n'
            "insecure = true\n",
            encoding="utf-8",
        )
        command = [
            str(self.bin / "flower-superlink"),
            "--insecure",
            "--simulation",
            "--host", "127.0.0.1",
            "--port", self.address.rpartition(":")[2],
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        try:
            self.spawn("superlink", command)
            self.wait_until(lambda: _listens(self.address), "superlink", 60.0)
        except BaseException:
            self.stop()
            raise
        return self


def find_free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that no process listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.3).close()
    except OSError:
        return False
    return True
