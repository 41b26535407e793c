"""Time set-up, rounds and records with many clients, and measure memory.

    python benchmarks/scale.py                       # both cases: 4 GB of memory each
    python benchmarks/scale.py dense --clients 2000  # a case with fewer clients

Each case runs in a fresh process. It makes random data, then times what a user waits for: the data
set from arrays, the partition by client ids, the problem, the digests of a run's provenance, the
first round of each method, its later rounds, and a record by one and by two threads. Compilation
happens before, on a tiny problem of the same kind. Memory is the largest that the process had, less
what it had before the data was made, as a multiple of the data.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

import fedpage as fp

T = TypeVar("T")


class Case(NamedTuple):
    """The shape of random data; `nonzeros` of a row, or None for dense rows."""

    clients: int
    rows: int
    features: int
    nonzeros: int | None


CASES = {
    "dense": Case(clients=200_000, rows=20, features=100, nonzeros=None),
    "sparse": Case(clients=1_000_000, rows=5, features=1_000, nonzeros=10),
}
METHODS: dict[str, tuple[Callable[[], Any], int]] = {
    # label: the method, rounds to time
    "FedAvg": (lambda: fp.FedAvg(S=100, K=5, eta_l=0.01), 50),
    "FedPAGE": (lambda: fp.FedPAGE(S=100, K=5, eta_g=0.1), 50),
    "SecantPAGE": (lambda: fp.SecantPAGE(S=100), 50),
    "SCAFFOLD": (lambda: fp.SCAFFOLD(S=100, K=5, eta_l=0.01), 50),
}


def make_arrays(case: Case) -> tuple[dict[str, Any], int]:
    """Return random features X, labels y and client ids, and the bytes that they take."""
    rng = np.random.default_rng(0)
    n = case.clients * case.rows
    if case.nonzeros is None:
        X: Any = np.empty((n, case.features))
        for start in range(0, n, 100_000):  # in place
            rng.standard_normal(out=X[start : start + 100_000])
        size = X.nbytes
    else:
        from scipy.sparse import csr_array

        width = case.features // case.nonzeros  # one entry in each stretch of columns, ascending
        indices = rng.integers(0, width, (n, case.nonzeros), dtype=np.int32)
        indices += np.arange(case.nonzeros, dtype=np.int32) * np.int32(width)
        values = rng.standard_normal(n * case.nonzeros)
        indptr = np.arange(n + 1, dtype=np.int64) * case.nonzeros
        X = csr_array((values, indices.ravel(), indptr), shape=(n, case.features))
        size = values.nbytes + indices.nbytes + indptr.nbytes
    y = rng.integers(0, 2, n)
    ids = np.repeat(np.arange(case.clients), case.rows)
    return {"X": X, "y": y, "ids": ids}, size + y.nbytes + ids.nbytes


def make_data(arrays: dict[str, Any]) -> fp.Dataset:
    """Make a data set of the arrays."""
    return fp.Dataset.from_arrays(arrays["X"], arrays["y"], clients=arrays["ids"])


def measure(case: Case) -> dict[str, float]:
    """Return seconds by step, and memory as a multiple of the data."""
    seconds: dict[str, float] = {}

    def timed(what: str, call: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = call()
        seconds[what] = time.perf_counter() - began
        return result

    tiny = case._replace(clients=200)
    timed("compilation", lambda: run_methods(build(tiny), {}))
    before = memory()
    arrays, size = make_arrays(case)
    data = timed("data set", lambda: make_data(arrays))
    arrays.clear()  # the data set shares their memory where it can
    partition = timed("partition by id", lambda: fp.by_id(data.clients))
    problem = timed("problem", lambda: fp.LogisticRegression(data, partition, reg="l2", alpha=0.1))
    timed("digests", problem.describe)
    seconds["memory, set-up"] = (memory() - before) / size
    run_methods(problem, seconds)
    x = np.zeros(problem.d)
    problem.evaluate(x, 1)
    for threads in (1, 2):
        times = []
        for _ in range(3):
            began = time.perf_counter()
            problem.evaluate(x, threads)
            times.append(time.perf_counter() - began)
        seconds[f"record, {threads} thread{'s' * (threads > 1)}"] = min(times)
    seconds["memory"] = (memory() - before) / size
    seconds["data, GB"] = size / 1e9
    return seconds


def build(case: Case) -> fp.Problem:
    """Build a problem of this shape."""
    data = make_data(make_arrays(case)[0])
    return fp.LogisticRegression(data, fp.by_id(data.clients), reg="l2", alpha=0.1)


def run_methods(problem: fp.Problem, seconds: dict[str, float]) -> None:
    """Time the start, the first round and later rounds of each method."""
    for label, (make, rounds) in METHODS.items():
        began = time.perf_counter()
        run = fp.Simulation(problem, make(), seed=0)
        run.step()
        seconds[f"{label}, first round"] = time.perf_counter() - began
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            run.step()
            times.append(time.perf_counter() - began)
        seconds[f"{label}, round"] = float(np.median(times))


def memory() -> int:
    """Return the largest memory of this process so far, in bytes."""
    status = Path("/proc/self/status")  # getrusage includes what the parent had when it forked
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def show(name: str, case: Case, results: dict[str, float]) -> None:
    """Print a case as a Markdown table."""
    kind = "dense" if case.nonzeros is None else f"{case.nonzeros} nonzeros a row"
    print(
        f"\n{name}: {case.clients:,} clients x {case.rows} rows x {case.features:,} features, "
        f"{kind}, {results['data, GB']:.2f} GB\n\n| step | |\n|---|---|"
    )
    for what, value in results.items():
        if what.startswith("memory"):
            print(f"| {what} | {value:.2f} x data |")
        elif what != "data, GB":
            print(
                f"| {what} | {value:.3g} s |"
                if value >= 0.1
                else f"| {what} | {value * 1e3:.3g} ms |"
            )


def main() -> None:
    """Run the cases that are named, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; by default all")
    parser.add_argument("--clients", type=int, help="the number of clients")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.cases or CASES:
        if name not in CASES:
            parser.error(f"unknown case {name!r}; choose from {', '.join(CASES)}")
        case = CASES[name]._replace(clients=options.clients or CASES[name].clients)
        if options.worker:
            print(json.dumps(measure(case)))
            return
        command = [sys.executable, __file__, name, "--clients", str(case.clients), "--worker"]
        worker = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        show(name, case, json.loads(worker.stdout))


if __name__ == "__main__":
    main()
