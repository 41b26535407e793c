"""Reference of the correctness tables: problems with a known optimum, and the papers' methods.

Nothing here is random: gradients use all rows, and the clients of each round are given.
"""

from __future__ import annotations

import numpy as np
from common import Clients, slope


def quadratic(N: int = 10, d: int = 8, seed: int = 1) -> Clients:
    """Generate f_i(x) = (x-b_i)'A_i(x-b_i)/2 with spectra of A_i in [0.5, 2] and normal b_i."""
    rng = np.random.default_rng(seed)
    A = np.empty((N, d, d))
    for i in range(N):
        Q, _ = np.linalg.qr(rng.normal(size=(d, d)))
        A[i] = (Q * rng.uniform(0.5, 2.0, size=d)) @ Q.T
    return Clients(
        "quadratic",
        N,
        d,
        0.0,
        {"A": 0.5 * (A + A.transpose(0, 2, 1)), "b": rng.normal(size=(N, d))},
    )


def logistic(N: int = 10, M: int = 12, d: int = 6, alpha: float = 0.1, seed: int = 2) -> Clients:
    """Generate clients with shifted features and labels from a model of their own."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, M, d)) + rng.normal(size=(N, 1, d))
    truth = rng.normal(size=(N, d, 1))
    y = np.where((X @ truth)[..., 0] + 0.5 * rng.normal(size=(N, M)) > 0, 1.0, -1.0)
    y[:, 0], y[:, 1] = 1.0, -1.0  # every client has both classes
    return Clients("logistic", N, d, alpha, {"X": X, "y": y})


def gradient(problem: Clients, i: int, x: np.ndarray) -> np.ndarray:
    return slope(
        problem.kind, problem.alpha, {name: array[i] for name, array in problem.arrays.items()}, x
    )


def optimum(problem: Clients) -> np.ndarray:
    """Return the minimiser x* of the mean of the f_i, in closed form or by Newton's method."""
    if problem.kind == "quadratic":
        A, b = problem.arrays["A"], problem.arrays["b"]
        return np.linalg.solve(A.mean(axis=0), np.einsum("nij,nj->i", A, b) / problem.N)
    X, y = problem.arrays["X"].reshape(-1, problem.d), problem.arrays["y"].ravel()
    x = np.zeros(problem.d)
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-(X @ x)))
        H = (X.T * (p * (1 - p))) @ X / len(y) + problem.alpha * np.eye(problem.d)
        x = x - np.linalg.solve(H, slope("logistic", problem.alpha, {"X": X, "y": y}, x))
    return x


def fedprox(problem: Clients, called: list[list[int]], K: int, eta: float, mu: float) -> np.ndarray:
    """Run FedProx (Li et al. 2020) with K local steps y -= eta (f_i'(y) + mu (y - x))."""
    x = np.zeros(problem.d)
    for clients in called:
        moves = []
        for i in clients:
            y = x.copy()
            for _ in range(K):
                y = y - eta * (gradient(problem, i, y) + mu * (y - x))
            moves.append(y - x)
        x = x + np.mean(moves, axis=0)
    return x


def scaffold(
    problem: Clients, called: list[list[int]], K: int, eta: float, option: str = "II"
) -> np.ndarray:
    """Run Algorithm 1 of Karimireddy et al. 2020 with a global step of 1 from zero states."""
    x, c, own = np.zeros(problem.d), np.zeros(problem.d), np.zeros((problem.N, problem.d))
    for clients in called:
        dx, dc = np.zeros(problem.d), np.zeros(problem.d)
        for i in clients:
            y = x.copy()
            for _ in range(K):
                y = y - eta * (gradient(problem, i, y) - own[i] + c)
            new = gradient(problem, i, x) if option == "I" else own[i] - c + (x - y) / (K * eta)
            dx, dc, own[i] = dx + (y - x), dc + (new - own[i]), new
        x, c = x + dx / len(clients), c + dc / problem.N
    return x


def reference(problem: Clients, job: dict, called: list[list[int]]) -> np.ndarray:
    """Return the x that the job's method should compute."""
    if job["method"] == "scaffold":
        return scaffold(problem, called, job["K"], job["eta"], job.get("option", "II"))
    return fedprox(problem, called, job["K"], job["eta"], job.get("mu", 0.0))
