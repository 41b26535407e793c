"""Reference of the correctness tables: problems with a known optimum, and the papers' methods.

Nothing here is random: gradients use all rows, and the clients of each round are given.
"""

from __future__ import annotations

from typing import Any

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


def fedprox(
    problem: Clients,
    called: list[list[int]],
    K: int,
    eta: float,
    mu: float,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """Run FedProx (Li et al. 2020) with K local steps y -= eta (f_i'(y) + mu (y - x))."""
    x = np.zeros(problem.d) if start is None else start
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


def server_optimiser(
    problem: Clients, called: list[list[int]], job: dict[str, Any], **reading: Any
) -> np.ndarray:
    """Run FedAvg with momentum (Hsu et al. 2019) or an adaptive server (Reddi et al. 2021).

    Args:
        problem: The clients.
        called: The clients of each round.
        job: K, eta, and the server's eta_g, beta, beta1, beta2 and tau.
        reading: Deviations from the papers. `v0` is the start of v in place of tau^2, and `m0` that
            of m in place of 0. With `correction` "adam", m and v are divided by 1 - beta^t, where t
            is 1 in the first round; with "flower", the step is multiplied by
            sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)). With `inside` the divisor is sqrt(v + tau)
            in place of sqrt(v) + tau.
    """
    method, K, eta, eta_g, tau = (job[name] for name in ("method", "K", "eta", "eta_g", "tau"))
    beta1, beta2 = 0.0 if method == "fedadagrad" else job["beta1"], job["beta2"]
    x, correction = np.zeros(problem.d), reading.get("correction")
    m = np.full(problem.d, reading.get("m0", 0.0))
    v = np.full(problem.d, reading.get("v0", tau**2))
    for t, clients in enumerate(called, start=1):
        D = fedprox(problem, [clients], K, eta, 0.0, start=x) - x
        if method in ("fedavgm", "fednesterov"):
            m = job["beta"] * m + D
            x = x + eta_g * (D + job["beta"] * m if method == "fednesterov" else m)
            continue
        m, square = beta1 * m + (1 - beta1) * D, D**2
        if method == "fedadagrad":
            v = v + square
        elif method == "fedyogi":
            v = v - (1 - beta2) * square * np.sign(v - square)
        else:
            v = beta2 * v + (1 - beta2) * square
        factor, m_hat, v_hat = eta_g, m, v
        if correction == "adam":
            m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        elif correction == "flower":
            factor = eta_g * np.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
        root = np.sqrt(v_hat + tau) if reading.get("inside") else np.sqrt(v_hat) + tau
        x = x + factor * m_hat / root
    return x


def mime(
    problem: Clients, called: list[list[int]], job: dict[str, Any], **reading: Any
) -> np.ndarray:
    """Run Mime or MimeLite (Karimireddy et al. 2021) with momentum SGD.

    With `summed` in the reading, momentum is g + beta m in place of (1 - beta) g + beta m.
    """
    K, eta, beta = job["K"], job["eta"], job["beta"]
    new = 1.0 if reading.get("summed") else 1 - beta
    x, m = np.zeros(problem.d), np.zeros(problem.d)
    for clients in called:
        own = {i: gradient(problem, i, x) for i in clients}
        c, moves = np.mean(list(own.values()), axis=0), []
        for i in clients:
            y = x.copy()
            for _ in range(K):
                g = gradient(problem, i, y)
                if job["method"] == "mime":
                    g = g - own[i] + c
                y = y - eta * (new * g + beta * m)
            moves.append(y - x)
        x, m = x + job["eta_g"] * np.mean(moves, axis=0), new * c + beta * m
    return x


def reference(
    problem: Clients, job: dict[str, Any], called: list[list[int]], **reading: Any
) -> np.ndarray:
    """Return the x that the job's method should compute, perhaps with deviations from its paper."""
    if job["method"] in ("mime", "mimelite"):
        return mime(problem, called, job, **reading)
    if job["method"] not in ("scaffold", "fedprox", "fedavg"):
        return server_optimiser(problem, called, job, **reading)
    if job["method"] == "scaffold":
        return scaffold(problem, called, job["K"], job["eta"], job.get("option", "II"))
    return fedprox(problem, called, job["K"], job["eta"], job.get("mu", 0.0))
