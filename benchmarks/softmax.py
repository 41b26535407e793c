"""Compare Softmax of ten classes on digits with logistic regression and with numpy.

    python benchmarks/softmax.py

Times are of the processor, per gradient of a row and coordinate of the model: Softmax has ten times
the coordinates of logistic regression (even and odd digits). Each is the smallest of several
repetitions, and both sides of a ratio are measured in turns. The target is a ratio of at most 2.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import time
from collections.abc import Callable

import numpy as np

import fedpage as fp
from fedpage.core.local_steps import local_page, local_sgd
from fedpage.core.random import RoundDraws
from fedpage.core.types import Ints, Vector

CLIENTS = 30
Work = Callable[[], object]


def smallest(tasks: dict[str, Work], repetitions: int) -> dict[str, float]:
    """Return the smallest processor time of each task; tasks take turns."""
    best = dict.fromkeys(tasks, float("inf"))
    for work in tasks.values():
        work()
    for _ in range(repetitions):
        for name, work in tasks.items():
            began = time.thread_time()
            work()
            best[name] = min(best[name], time.thread_time() - began)
    return best


def cases(problem: fp.LinearModel) -> dict[str, tuple[Work, int]]:
    """Return what is timed: a function, and how many gradients of rows it computes."""
    everyone: Ints = np.arange(problem.N)
    x = np.random.default_rng(0).normal(size=problem.d) / 4
    g = problem.grad(x)

    def count(work: Callable[[fp.Oracle], object]) -> tuple[Work, int]:
        oracle = problem.oracle(everyone, RoundDraws(0, 0))
        work(oracle)
        return (lambda: work(problem.oracle(everyone, RoundDraws(0, 0)))), oracle.gradients

    return {
        "the objective and its gradient": (lambda: problem.evaluate(x), problem.data.rows),
        "clients' gradients, all rows": count(lambda o: o.grad(x, o.batch(None))),
        "clients' gradients, b = 16": count(lambda o: o.grad(x, o.batch(16))),
        "local_sgd, K = 10, b = 4": count(lambda o: local_sgd(o, x, K=10, eta=0.01, b=4)),
        "local_page, K = 10, b = 4": count(
            lambda o: local_page(o, x, x, g, K=10, eta=0.01, first=4, rest=4)
        ),
    }


def gradient_by_blas(A: Vector, labels: Ints, W: Vector) -> Vector:
    """Compute the mean gradient (p, C) of softmax regression at W (p, C) with matrix products."""
    T = A @ W
    T -= T.max(axis=1, keepdims=True)
    np.exp(T, out=T)
    T /= T.sum(axis=1, keepdims=True)
    T[np.arange(len(labels)), labels] -= 1.0
    return np.asarray(A.T @ T / len(labels))


def compare(repetitions: int) -> dict[str, float]:
    """Print a line for each case, and return the ratios."""
    two, ten = fp.load("digits"), fp.load("digits", classes=10)
    dense = fp.Dataset.from_arrays(ten.to_dense(), ten.y)
    pairs = {
        "sparse": (fp.LogisticRegression(two, CLIENTS), fp.Softmax(ten, CLIENTS)),
        "dense": (
            fp.LogisticRegression(fp.Dataset.from_arrays(two.to_dense(), two.y), CLIENTS),
            fp.Softmax(dense, CLIENTS),
        ),
        "sparse, l2": (
            fp.LogisticRegression(two, CLIENTS, reg="l2", alpha=0.01),
            fp.Softmax(ten, CLIENTS, reg="l2", alpha=0.01),
        ),
    }
    print(f"{'picoseconds per gradient and coordinate':44s} {'logistic':>9s} {'softmax':>9s} ratio")
    ratios: dict[str, float] = {}
    for layout, (logistic, softmax) in pairs.items():
        both = {"logistic": cases(logistic), "softmax": cases(softmax)}
        for case in both["logistic"]:
            work = {name: table[case] for name, table in both.items()}
            found = smallest({name: task for name, (task, _) in work.items()}, repetitions)
            coordinates = {"logistic": logistic.d, "softmax": softmax.d}
            each = {name: 1e12 * found[name] / (work[name][1] * coordinates[name]) for name in work}
            ratios[f"{layout}: {case}"] = each["softmax"] / each["logistic"]
            label = f"{layout}: {case}"
            print(
                f"{label:44s} {each['logistic']:9.0f} {each['softmax']:9.0f} {ratios[label]:5.2f}",
                flush=True,
            )
    A, labels = ten.to_dense(), ten.y.astype(np.int64)
    x = np.random.default_rng(0).normal(size=64 * 10) / 4
    tasks: dict[str, Work] = {"numpy": lambda: gradient_by_blas(A, labels, x.reshape(64, 10))}
    for layout, data in (("sparse", ten), ("dense", dense)):
        problem = fp.Softmax(data, 1)
        assert np.allclose(problem.grad(x), gradient_by_blas(A, labels, x.reshape(64, 10)).ravel())
        tasks[layout] = lambda problem=problem: problem.grad(x)  # type: ignore[misc]
    found = smallest(tasks, repetitions)
    for layout in ("sparse", "dense"):
        ratios[f"numpy: {layout}"] = found[layout] / found["numpy"]
        print(
            f"full gradient, {layout}: {1e6 * found[layout]:.0f} us, numpy with BLAS "
            f"{1e6 * found['numpy']:.0f} us, ratio {ratios[f'numpy: {layout}']:.2f}"
        )
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=60)
    compare(parser.parse_args().repetitions)
