"""Time the Hessian of one client beside the product of libraries: `python benchmarks/hessian.py`.

Both sides run in turns on one thread; every number is the smallest of nine repetitions.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

import fedpage as fp
from fedpage.core.random import RoundDraws

REPETITIONS = 9


def shortest(tasks: dict[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(REPETITIONS):
        for name, task in tasks.items():
            began = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def main() -> None:
    rng = np.random.default_rng(0)
    print(
        f"{'rows':>8} {'d':>5} {'density':>8} {'ours':>10} {'X.T @ diag(w) @ X':>20} {'ratio':>6}"
    )
    for rows, d, density in ((100_000, 15, 1.0), (100_000, 100, 1.0), (20_000, 300, 1.0),
                             (100_000, 100, 0.1)):  # fmt: skip
        X: Any = rng.normal(size=(rows, d))
        if density < 1.0:
            X = scipy.sparse.random_array((rows, d), density=density, format="csr", rng=rng)
        y, w = np.sign(rng.normal(size=rows)), scipy.sparse.diags_array(rng.random(rows))
        problem = fp.LogisticRegression(fp.Dataset.from_arrays(X, y), 1, reg="none")
        oracle = problem.oracle(np.array([0]), RoundDraws(0, 0))
        x, batch = np.zeros(problem.d), oracle.batch(None)
        oracle.hessian(x, batch)  # compiles
        found = shortest({
            "ours": lambda: oracle.hessian(x, batch),  # noqa: B023
            "theirs": lambda: X.T @ (w @ X),  # noqa: B023
        })  # fmt: skip
        ours, theirs = found["ours"], found["theirs"]
        print(f"{rows:>8,} {d:>5} {density:>8} {1e3 * ours:>7.1f} ms {1e3 * theirs:>17.1f} ms "
              f"{ours / theirs:>5.2f}x")  # fmt: skip


if __name__ == "__main__":
    main()
