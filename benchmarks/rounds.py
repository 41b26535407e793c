"""Time rounds of all methods on census, for this tree and, in turns, for an older one.

    python benchmarks/rounds.py --before DIR      # DIR: a checkout whose src/ holds fedpage

Each tree is measured by a worker process of its own that imports fedpage from DIR/src. The workers
take turns, so that a busy machine hurts both alike. Times are of the processor, which leaves out
when other processes run; each number is the smallest of the repetitions.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fedpage as fp

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = 3250
WINDOWS = 5
"""Windows of a few milliseconds per repetition: other processes interrupt few of them."""
PAGE = {"S": 10, "eta_g": 0.1}
LOCAL = {"S": 20, "K": 10, "eta_l": 0.01}

CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    # label: the name in METHODS, its hyper-parameters, rounds to time at once
    "FedPAGE, sampled rounds only": ("fedpage", {**PAGE, "K": 10, "p": 1e-12}, 100),
    "FedPAGE": ("fedpage", {**PAGE, "K": 10}, 325),
    "PAGE": ("page", PAGE, 325),
    "FedAvg": ("fedavg", {**LOCAL, "b": 4}, 50),
    "FedProx": ("fedprox", {**LOCAL, "b": 4}, 50),
    "SCAFFOLD": ("scaffold", {**LOCAL, "b": 4}, 50),
    "VRL-SGD": ("vrl-sgd", {"K": 10}, 1),
    "S-Local-SVRG": ("s-local-svrg", {"K": 10}, 3),
    "FedDyn": ("feddyn", {"S": 20, "K": 10, "b": 4}, 50),
    "Scaffnew": ("scaffnew", {"p": 0.1, "b": 4}, 1),
    "FedPAGE-Full": ("fedpage-full", {"S": 10, "K": 10}, 325),
    "SCAFFOLD-Full": ("scaffold-full", {"S": 20, "K": 10}, 50),
    "FedAvg-Full": ("fedavg-full", {"S": 20, "K": 10}, 50),
}
_LISTED = {name for name, _, _ in CASES.values()}
for _name, _entry in fp.METHODS.items():
    if _name not in _LISTED:
        _defaults = _entry.hyper_parameters
        _options = {"S": 20} if _defaults.get("S") is not None else {}
        _options |= {"K": 10} if "K" in _defaults else {}
        CASES[_entry.label] = (_name, _options, 50 if _options.get("S") else 1)


class Worker:
    """A process that times cases with the fedpage of one tree."""

    def __init__(self, tree: Path) -> None:
        source = (tree / "src").resolve()
        if not (source / "fedpage").is_dir():
            raise SystemExit(f"{tree}: no src/fedpage there")
        variables = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
        )
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            env=os.environ | variables | {"PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        where = self._read()
        if not str(where).startswith(str(source)):
            raise SystemExit(f"{tree}: the worker imported {where}")

    def time(self, label: str) -> float | None:
        """Return seconds per round of a case; None if the tree has no such method."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(CASES[label]) + "\n")
        self._process.stdin.flush()
        seconds: float | None = self._read()
        return seconds

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended early; its error is above")
        return json.loads(line)


def work() -> None:
    """Answer cases on stdin with seconds per round; use only what old and new trees both have."""
    print(json.dumps(fp.__file__), flush=True)
    problem = fp.RobustRegression(fp.load("census"), clients=CLIENTS)
    for line in sys.stdin:
        name, options, rounds = json.loads(line)
        if name not in fp.METHODS:  # an older fedpage
            print("null", flush=True)
            continue
        run = fp.Simulation(problem, fp.METHODS[name](**options), seed=0)
        for _ in range(3):
            run.step()
        best = float("inf")
        for _ in range(WINDOWS):
            began = time.thread_time()
            for _ in range(rounds):
                run.step()
            best = min(best, (time.thread_time() - began) / rounds)
        print(json.dumps(best), flush=True)


def measure(before: Path | None, repetitions: int = 15) -> None:
    """Print a table: microseconds per round of each method, before and after, and their ratio."""
    trees = {"after": ROOT} if before is None else {"before": before, "after": ROOT}
    workers = {name: Worker(tree) for name, tree in trees.items()}
    head = "".join(f"{name:>14s}" for name in workers)
    print(f"a round on census, N = {CLIENTS:,}, one thread; smallest of {repetitions}")
    print(f"{'':32s}{head}{'ratio':>9s}" if before else f"{'':32s}{head}")
    for label in CASES:
        best = dict.fromkeys(workers, float("inf"))
        for _ in range(repetitions):
            for name, worker in workers.items():
                seconds = worker.time(label)
                best[name] = math.nan if seconds is None else min(best[name], seconds)
        cells = "".join(f"{seconds * 1e6:11.1f} us" for seconds in best.values())
        ratio = f"{best['before'] / best['after']:8.2f}x" if before else ""
        print(f"{label:32s}{cells}{ratio}", flush=True)
    for worker in workers.values():
        worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of an older fedpage")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
    else:
        measure(options.before, options.repetitions)


if __name__ == "__main__":
    main()
