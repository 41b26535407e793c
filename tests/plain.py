"""A small problem and vectors in plain Python, for replays that use nothing of fedpage."""

from __future__ import annotations

import math
import random

import numpy as np

import fedpage as fp

N, M, D, ALPHA = 5, 4, 3, 0.1
chance = random.Random(20210810)
A = [[[round(chance.uniform(-1.5, 1.5), 2) for _ in range(D)] for _ in range(M)] for _ in range(N)]
B = [[chance.choice([-1.0, 1.0]) for _ in range(M)] for _ in range(N)]
B[0][:2] = [-1.0, 1.0]
X0 = [0.3, -0.2, 0.5]


def grad(objective: str, i: int, rows: list[int], x: list[float]) -> list[float]:
    """Return the mean gradient over rows of client i at x, as a list."""
    out = [0.0] * D
    for j in rows:
        t = sum(a * v for a, v in zip(A[i][j], x, strict=True))
        if objective == "robust":
            r = t - B[i][j]
            slope, bend = r / (1 + r * r / 2), [0.0] * D
        else:
            slope = -B[i][j] / (1 + math.exp(B[i][j] * t))
            bend = [2 * ALPHA * v / (1 + v * v) ** 2 for v in x]
        out = [o + (slope * a + c) / len(rows) for o, a, c in zip(out, A[i][j], bend, strict=True)]
    return out


def add(*terms: tuple[float, list[float]]) -> list[float]:
    """Return the sum of factor * vector."""
    return [sum(f * v[k] for f, v in terms) for k in range(D)]


def mean(vectors: list[list[float]]) -> list[float]:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def some_rows(b: int) -> list[int]:
    return sorted(chance.sample(range(M), b))


def problem_of(objective: str) -> fp.LogisticRegression | fp.RobustRegression:
    data = fp.Dataset.from_arrays(np.array(A).reshape(N * M, D), np.array(B).ravel())
    if objective == "robust":
        return fp.RobustRegression(data, clients=N)
    return fp.LogisticRegression(data, clients=N, reg="nonconvex", alpha=ALPHA)
