"""Plain numpy loops of three methods, which benchmarks/speed.py compares fedpage with.

They use nothing of fedpage. Each client's rows are a view of one dense array, minibatches come from
numpy's generator, every gradient is two small dense products, and nothing is computed twice.
"""

from __future__ import annotations

import numpy as np


class Loop:
    """Robust linear regression over N equal clients, as dense arrays (N, M, d) and (N, M)."""

    def __init__(
        self, X: np.ndarray, y: np.ndarray, clients: int, seed: int = 0, *, shuffle: bool = False
    ) -> None:
        """With shuffle, draw by permutation(M)[:b], which is faster than choice."""
        self.shuffle = shuffle
        M = len(y) // clients
        self.A = np.ascontiguousarray(X[: M * clients].reshape(clients, M, -1))
        self.b = y[: M * clients].reshape(clients, M)
        self.N, self.M, self.d = self.A.shape
        self.rng = np.random.default_rng(seed)

    def grad(self, i: int, rows: np.ndarray | None, x: np.ndarray) -> np.ndarray:
        A, b = (self.A[i], self.b[i]) if rows is None else (self.A[i, rows], self.b[i, rows])
        t = A @ x - b
        return (t / (1.0 + 0.5 * t * t)) @ A / len(b)

    def rows(self, b: int) -> np.ndarray | None:
        if b >= self.M:
            return None
        if b == 1:
            return self.rng.integers(self.M, size=1)
        return (
            self.rng.permutation(self.M)[:b]
            if self.shuffle
            else self.rng.choice(self.M, b, replace=False)
        )

    def full_grad(self, x: np.ndarray) -> np.ndarray:
        A, b = self.A.reshape(-1, self.d), self.b.ravel()
        t = A @ x - b
        return (t / (1.0 + 0.5 * t * t)) @ A / len(b)


def fedpage(
    loop: Loop,
    rounds: int,
    S: int = 10,
    K: int = 10,
    eta_g: float = 0.1,
    b3: int = 1,
    p: float | None = None,
) -> np.ndarray:
    eta_l, p = eta_g / (100 * K), S / loop.N if p is None else p
    x = x_prev = np.zeros(loop.d)
    g = np.zeros(loop.d)
    for r in range(rounds):
        if r == 0 or loop.rng.random() < p:
            g = loop.full_grad(x)
        else:
            total = np.zeros(loop.d)
            for i in loop.rng.choice(loop.N, S, replace=False):
                y, y_prev, v = x, x_prev, g
                for k in range(K):
                    rows = None if k == 0 else loop.rows(b3)
                    v = v + loop.grad(i, rows, y) - loop.grad(i, rows, y_prev)
                    y, y_prev = y - eta_l * v, y
                total += x - y
            g = total / (K * eta_l * S)
        x, x_prev = x - eta_g * g, x
    return x


def fedavg(
    loop: Loop, rounds: int, S: int = 20, K: int = 10, eta_l: float = 0.01, b: int = 4
) -> np.ndarray:
    x = np.zeros(loop.d)
    for _ in range(rounds):
        total = np.zeros(loop.d)
        for i in loop.rng.choice(loop.N, S, replace=False):
            y = x.copy()
            for _k in range(K):
                y -= eta_l * loop.grad(i, loop.rows(b), y)
            total += y - x
        x = x + total / S
    return x


def scaffold(
    loop: Loop, rounds: int, S: int = 20, K: int = 10, eta_l: float = 0.01, b: int = 4
) -> np.ndarray:
    x, c, memory = np.zeros(loop.d), np.zeros(loop.d), np.zeros((loop.N, loop.d))
    for _ in range(rounds):
        dx, dc = np.zeros(loop.d), np.zeros(loop.d)
        for i in loop.rng.choice(loop.N, S, replace=False):
            y, shift = x.copy(), c - memory[i]
            for _k in range(K):
                y -= eta_l * (loop.grad(i, loop.rows(b), y) + shift)
            new = memory[i] - c + (x - y) / (K * eta_l)
            dx += y - x
            dc += new - memory[i]
            memory[i] = new
        x, c = x + dx / S, c + dc / loop.N
    return x
