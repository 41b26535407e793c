"""Measure dense arrays, CSV files and losses of users: seconds, memory and ratios.

    python benchmarks/data.py                    # all cases; 4 GB of memory and 1 GB of disk
    python benchmarks/data.py arrays csv --size 0.1

Cases: `loss` compares a user's own loss with the same built-in one, and starts two processes with
an empty cache to see what the second compiles; `dense` compares dense with sparse kernels on data
without zeros; `arrays` makes a data set and a problem of 0.8 GB of dense numbers; `csv` reads
1,000,000 rows of 50 numbers, of four decimals and of all digits, with fedpage and with pandas (the
least of three processes each). Imports are not part of the time.
Everything that is measured for memory runs in a process of its own. Memory is the largest that the
process had, less what it had before, as a multiple of the result (`csv`) or of the data (`arrays`).
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scale import memory
from scipy.sparse import csr_array
from softmax import cases, smallest

import fedpage as fp
from fedpage.problems import kernels

KERNELS = (
    kernels.batch_grad,
    kernels.local_sgd,
    kernels.local_page,
    kernels.objective,
)


class OwnLogistic:
    """The logistic loss, as a user writes it."""

    curvature, convex, needs_labels = 0.25, True, True

    @staticmethod
    def value(t: float, b: float) -> float:
        """Compute log(1 + exp(-b t))."""
        z = b * t
        if z > 0.0:
            return math.log1p(math.exp(-z))
        return math.log1p(math.exp(z)) - z

    @staticmethod
    def slope(t: float, b: float) -> float:
        """Compute its derivative by t."""
        return -b / (1.0 + math.exp(b * t))


def ratios(ours: Any, theirs: Any, repetitions: int) -> dict[str, float]:
    """Return the time of one problem as a multiple of another's, for each case of softmax.py."""
    pairs = {"ours": cases(ours), "theirs": cases(theirs)}
    found = {}
    for case in pairs["ours"]:
        both = smallest({name: table[case][0] for name, table in pairs.items()}, repetitions)
        found[case] = both["ours"] / both["theirs"]
    return found


def measure_loss(size: float) -> dict[str, float]:
    """Compare a user's loss with the built-in one, and count what two processes compile."""
    data = fp.load("census", rows=max(300, int(3250 * size)))
    own = fp.LinearModel(data, 30, loss=OwnLogistic)
    found = {
        f"{case}: own / built-in": ratio
        for case, ratio in ratios(own, fp.LogisticRegression(data, 30), 60).items()
    }
    with tempfile.TemporaryDirectory() as cache:
        for process in ("first", "second"):
            values = run_worker("own", size, NUMBA_CACHE_DIR=cache)
            found |= {f"{process} process, {what}": value for what, value in values.items()}
    return found


def measure_own(size: float) -> dict[str, float]:
    """Run a round and a record with a user's loss in this process, and count compilations."""
    data = fp.load("census", rows=300)
    began = time.perf_counter()
    problem = fp.LinearModel(data, 30, loss=OwnLogistic)
    for method in (fp.FedAvg(S=3), fp.FedPAGE(S=3)):
        fp.simulate(problem, method, rounds=2, seed=0)
    seconds = time.perf_counter() - began
    misses = sum(sum(kernel.stats.cache_misses.values()) for kernel in KERNELS)
    return {"seconds": seconds, "kernels compiled": misses}


def measure_dense(size: float) -> dict[str, float]:
    """Compare dense with sparse kernels on the same data without zeros."""
    found = {}
    for features in (10, 100, 1000):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((max(60, int(300_000 * size) // features), features))
        y = rng.integers(0, 2, len(X))
        dense = fp.LogisticRegression(fp.Dataset.from_arrays(X, y), 30)
        sparse = fp.LogisticRegression(fp.Dataset.from_arrays(csr_array(X), y), 30)
        for case, ratio in ratios(dense, sparse, 40).items():
            found[f"d = {features}, {case}: dense / sparse"] = ratio
    return found


def measure_arrays(size: float) -> dict[str, float]:
    """Make a data set and a problem of 0.8 GB of dense numbers."""
    rows = int(1_000_000 * size)
    fp.LogisticRegression(fp.Dataset.from_arrays(np.ones((20, 100)), np.arange(20) % 2), 10)
    rng = np.random.default_rng(0)
    X, y = np.empty((rows, 100)), rng.integers(0, 2, rows)
    for start in range(0, rows, 100_000):
        rng.standard_normal(out=X[start : start + 100_000])
    before, found = memory(), {"data, GB": X.nbytes / 1e9}
    began = time.perf_counter()
    data = fp.Dataset.from_arrays(X, y)
    found["from_arrays, seconds"] = time.perf_counter() - began
    found["from_arrays, memory / data"] = (memory() - before) / X.nbytes
    began = time.perf_counter()
    fp.LogisticRegression(data, 1000)
    found["LogisticRegression(data, 1000), seconds"] = time.perf_counter() - began
    found["both, memory / data"] = (memory() - before) / X.nbytes
    return found


def write_csv(path: Path, rows: int, decimals: int | None) -> None:
    """Write 50 columns of numbers, with all digits or rounded, and a label of two words."""
    import pyarrow
    import pyarrow.csv

    rng = np.random.default_rng(0)
    numbers = (rng.standard_normal(rows) for _ in range(50))
    table = {f"x{j}": x if decimals is None else x.round(decimals) for j, x in enumerate(numbers)}
    table["label"] = np.where(rng.random(rows) < 0.5, "no", "yes")
    pyarrow.csv.write_csv(pyarrow.table(table), str(path))


def measure_csv(size: float, processes: int = 3) -> dict[str, float]:
    """Read CSV files by each reader in turn, in processes of their own."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for digits, decimals in (("four decimals", 4), ("all digits", None)):
            path = Path(folder) / "rows.csv"
            write_csv(path, int(1_000_000 * size), decimals)
            found[f"{digits}: file, GB"] = path.stat().st_size / 1e9
            least: dict[str, dict[str, float]] = {"pandas": {}, "fedpage": {}}
            for _ in range(processes):
                for reader, values in least.items():
                    for what, value in run_worker(reader, size, BENCHMARK_CSV=str(path)).items():
                        values[what] = min(value, values.get(what, value))
            for reader, values in least.items():
                found |= {f"{digits}: {reader}, {what}": value for what, value in values.items()}
            for what in ("seconds", "processor's seconds"):
                ratio = least["fedpage"][what] / least["pandas"][what]
                found[f"{digits}: fedpage / pandas, {what}"] = ratio
    return found


def read_csv(reader: str) -> dict[str, float]:
    """Read the file in BENCHMARK_CSV by one reader."""
    path = os.environ["BENCHMARK_CSV"]
    if reader == "pandas":
        import pandas

        read: Callable[[], Any] = lambda: pandas.read_csv(path)  # noqa: E731
    else:
        import polars  # noqa: F401

        read = lambda: fp.load(path, label="label")  # noqa: E731
    before, began, worked = memory(), time.perf_counter(), time.process_time()
    result = read()
    rows = len(result) if reader == "pandas" else result.rows
    return {
        "seconds": time.perf_counter() - began,
        "processor's seconds": time.process_time() - worked,
        "memory / result": (memory() - before) / (8 * 51 * rows),
    }


CASES: dict[str, Callable[[float], dict[str, float]]] = {
    "loss": measure_loss,
    "dense": measure_dense,
    "arrays": measure_arrays,
    "csv": measure_csv,
}
WORKERS: dict[str, Callable[[float], dict[str, float]]] = {
    "own": measure_own,
    "pandas": lambda size: read_csv("pandas"),
    "fedpage": lambda size: read_csv("fedpage"),
}


def run_worker(name: str, size: float, **environment: str) -> dict[str, float]:
    """Measure a case in a fresh process."""
    command = [sys.executable, __file__, "--worker", name, "--size", str(size)]
    worker = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | environment
    )
    values: dict[str, float] = json.loads(worker.stdout)
    return values


def main() -> None:
    """Measure the cases that are named, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; by default all")
    parser.add_argument("--size", type=float, default=1.0, help="a fraction of the data")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps((CASES | WORKERS)[options.worker](options.size)))
        return
    for name in options.cases or CASES:
        if name not in CASES:
            parser.error(f"unknown case {name!r}; choose from {', '.join(CASES)}")
        print(f"\n| {name} | |\n|---|---:|")
        for what, value in run_worker(name, options.size).items():
            print(f"| {what} | {value:.3g} |", flush=True)


if __name__ == "__main__":
    main()
