"""Flower's programs without their waits and with their imports done once, for tests.

`python fast_flower.py PROGRAM ARGUMENTS` is a SuperNode that looks for messages every 0.25 seconds
instead of every three, or a SuperExec that forks a new process for each task from one that has
imported Flower and fedpage. Each task still has a process of its own, which starts without any
state of an app. The server and a site of test_deploy_page.py run Flower's programs as they are.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

TASKS = {
    "flwr-clientapp": ("flwr.supernode.cli", "flwr_clientapp"),
    "flwr-serverapp": ("flwr.superlink.cli", "flwr_serverapp"),
}
"""Module and function of the programs that a SuperExec starts."""
IMPORTED = ("fedpage.flower.client_app", "fedpage.flower.server_app", "fedpage.methods")


def wait_until(condition, seconds: float = 400.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def write_programs(folder: Path) -> None:
    """Write a `flower-superexec` that runs this file, for a directory of the path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "flower-superexec"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} flower-superexec "$@"\n')
    program.chmod(0o755)


def run_supernode() -> None:
    """Run `flower-supernode` with short waits."""
    from flwr.supernode.cli import flower_supernode

    sleep = time.sleep
    time.sleep = lambda seconds: sleep(0.25 if seconds in (3, 0.5) else seconds)
    flower_supernode()


def run_superexec() -> None:
    """Run `flower-superexec`, whose tasks are forked from a process that runs nothing else."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    programs = {
        name: getattr(importlib.import_module(module), function)
        for name, (module, function) in TASKS.items()
    }
    for module in IMPORTED:
        importlib.import_module(module)
    _load_kernels()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        _fork_tasks(reader, programs)
    os.close(reader)

    class Launch:
        """Stand for `subprocess` in the executor."""

        DEVNULL = -3

        @staticmethod
        def Popen(command, **options):
            os.write(writer, (json.dumps([command, bool(options)]) + "\n").encode())

    subprocess_executor.subprocess = Launch
    flower_superexec()


def _load_kernels() -> None:
    """Compute with the objective of the tests, so that no task needs to load compiled code."""
    import fedpage as fp

    data = fp.load("census", rows=60)
    problem = fp.LogisticRegression(data, fp.label_shards(data.y, 3), reg="l2", alpha=0.01)
    options = fp.RunOptions(evaluate="per_client")
    for method in (fp.SCAFFOLD(S=2, K=3), fp.FedPAGE(S=2, K=3)):
        fp.simulate(problem, method, rounds=2, seed=0, options=options)


def _fork_tasks(reader: int, programs) -> None:
    """Fork a process for each command that is read; end with the process that writes them."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets tasks that ended
    with open(reader) as lines:
        for line in lines:
            command, quiet = json.loads(line)
            if os.fork():
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if quiet:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
            sys.argv = command
            with contextlib.suppress(SystemExit):
                programs[os.path.basename(command[0])]()
            sys.stdout.flush()
            os._exit(0)
    os._exit(0)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    {"flower-supernode": run_supernode, "flower-superexec": run_superexec}[sys.argv[0]]()
