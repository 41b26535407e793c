"""Measure what share of a run its evaluations take.

    python benchmarks/evaluation.py

Each run has 1,000 rounds of FedPAGE with 10 clients and 10 local steps on a9a (in FEDPAGE_DATA,
../shared/data or the cache), or on the embedded census data where a9a is missing. The share is the
time of all evaluations of a run over the time of that run. Of several runs the fastest counts, and
not the one with the smallest share, which would be a run whose rounds were disturbed. With one
thread the time is the processor's. With two it is the wall clock's, which means something on a
machine with two idle cores only. The target is a share below half at record_every=10.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
if "FEDPAGE_DATA" not in os.environ and SHARED.is_dir():
    os.environ["FEDPAGE_DATA"] = str(SHARED)

import fedpage as fp
from fedpage.core.types import Vector

METHOD = fp.FedPAGE(S=10, K=10)


class Share(NamedTuple):
    """What the evaluations of a run took."""

    share: float
    """Time of the evaluations over time of the run."""
    record: float
    """Seconds of an evaluation."""
    round: float
    """Seconds of a round."""


def measure(
    problem: fp.LinearModel, every: Literal["log"] | int, threads: int, rounds: int, runs: int
) -> Share:
    """Time the evaluations within runs, and return those of the fastest run."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: list[float] = []
    evaluate = problem.evaluate

    def timed(x: Vector, threads: int = 1) -> Mapping[str, float]:
        began = clock()
        record = evaluate(x, threads)
        times.append(clock() - began)
        return record

    problem.evaluate = timed  # type: ignore[method-assign]
    found = []
    options = fp.RunOptions(threads=threads)
    try:
        for _ in range(runs):
            times.clear()
            began = clock()
            fp.simulate(problem, METHOD, rounds=rounds, seed=0, record_every=every, options=options)
            total = clock() - began
            spent = sum(times)
            share = Share(spent / total, spent / len(times), (total - spent) / rounds)
            found.append((total, share))
    finally:
        del problem.evaluate
    return min(found)[1]


def compare(rounds: int, runs: int, data: fp.Dataset | None = None) -> dict[str, Share]:
    """Print a row for each objective, schedule and number of threads, and return the shares."""
    if data is None:
        try:
            data = fp.load("a9a")
        except fp.InputError:
            data = fp.load("census")
    clients = 3250 if data.name == "a9a" else data.rows // 10
    problems = {
        "robust": fp.RobustRegression(data, clients),
        "logistic-nonconvex": fp.LogisticRegression(data, clients, reg="nonconvex"),
    }
    print(f"{data.name}, {clients:,} clients, {METHOD!r}, {rounds:,} rounds\n")
    print("| objective | record_every | threads | a round | an evaluation | share of the run |")
    print("|---|---|---:|---:|---:|---:|")
    schedules: tuple[Literal["log"] | int, ...] = (10, "log")
    shares: dict[str, Share] = {}
    for name, problem in problems.items():
        measure(problem, 10, 2, 20, 1)  # compiles
        for every in schedules:
            for threads in (1, 2):
                found = measure(problem, every, threads, rounds, runs)
                shares[f"{name}, {every}, {threads}"] = found
                print(
                    f"| {name} | {every} | {threads} | {1e6 * found.round:.0f} us "
                    f"| {1e6 * found.record:.0f} us | {found.share:.0%} |",
                    flush=True,
                )
    return shares


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=7)
    given = parser.parse_args()
    compare(given.rounds, given.runs)
