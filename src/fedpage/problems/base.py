"""What every problem over rows shares: minibatches, counting, client weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import Batch, Draws, Ints, Rows, Smoothness, Vector
from fedpage.problems import kernels


class RowOracle:
    """Minibatches of the called clients' rows, and the count of what was computed. Subclasses add `grad`."""

    def __init__(self, clients: Ints, sizes: Ints, draws: Draws, equal: int | None) -> None:
        self.clients = clients
        self.sizes = sizes
        """(n,) rows M_i of the called clients; `equal` is M where all clients have the same."""
        self.gradients = 0
        self.evaluations = 0
        self._draws = draws
        self._drawn = 0
        self._equal = equal
        self._largest = int(sizes.max()) if equal is None else equal

    def batch(self, size: int | None) -> Batch:
        """A fresh minibatch at each client; its number within the round makes it fresh, not a generator's state."""
        rows, b = self._batches(size, 1)
        if rows is None:
            return Batch(None, self.sizes, size)
        return Batch(rows[:, 0], np.minimum(self.sizes, b), size)

    def _batches(self, size: int | None, count: int) -> tuple[Rows | None, int]:
        """The next `count` minibatches: (n, count, w) row numbers, or None for every row; and their largest size."""
        first, self._drawn = self._drawn, self._drawn + count
        if self._size(size) == self._largest:
            return None, self._largest
        assert size is not None
        return self._draws.rows(self.clients, self.sizes, size, first, count), size

    def _size(self, size: int | None) -> int:
        """The largest batch that a request for `size` rows gives."""
        return self._largest if size is None or size >= self._largest else size

    def _count(self, b: int, times: int = 1) -> None:
        """Note that every called client computed `times` gradients over batches of min(b, M_i) rows."""
        n = len(self.clients)
        rows = (
            n * min(b, self._equal)
            if self._equal is not None
            else int(np.minimum(self.sizes, b).sum())
        )
        self.gradients += times * rows
        self.evaluations += times * n


def equal_size(sizes: Ints) -> int | None:
    """M, if every client has M rows."""
    return int(sizes[0]) if int(sizes.min()) == int(sizes.max()) else None


def as_rows(y: Vector) -> Vector:
    """(1, d) of a shared point (d,), or (n, d) as it is; contiguous."""
    rows = y if y.ndim == 2 else y[None, :]
    return rows if rows.flags.c_contiguous else np.ascontiguousarray(rows)


def no_rows(n: int, count: int) -> Rows:
    """(n, count, 0): how a kernel is told to take every row."""
    return np.empty((n, count, 0), dtype=np.uint32)


def norm(v: Vector) -> float:
    """|v|, added up in one order; numpy's own would use as many threads as there are for a long v.

    >>> norm(np.array([3e300, -4e300])), norm(np.array([3e-200, 4e-200]))
    (5e+300, 5e-200)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(kernels.total(v * v))
    if 1e-280 < square < math.inf:
        return math.sqrt(square)
    top = float(np.abs(v).max(initial=0.0))  # squares overflow or underflow where |v| does not
    if top == 0.0 or not math.isfinite(top):
        return top
    unit = v / top
    return top * math.sqrt(kernels.total(unit * unit))


def root_mean_square(v: Vector) -> float:
    """sqrt(mean of v^2)."""
    with np.errstate(over="ignore"):
        square = float(np.mean(v**2))
    return math.sqrt(square) if 1e-280 < square < math.inf else norm(v) / math.sqrt(len(v))


def power_of_two(values: Vector) -> float:
    """A unit in which squares of the values neither overflow nor vanish; 1 unless they are beyond 1e-70..1e70.

    >>> power_of_two(np.array([0.5, -3.0])), power_of_two(np.array([2.0**700]))
    (1.0, 5.260135901548374e+210)
    """
    top = float(np.abs(values).max(initial=0.0))
    if top == 0.0 or 1e-70 <= top <= 1e70:
        return 1.0
    return math.ldexp(1.0, math.frexp(top)[1] - 1)


def weights_described(weights: str, scale: Vector) -> dict[str, Any]:
    """What provenance says of the clients' weights: nothing where they are the paper's."""
    if weights == "uniform":
        return {}
    digest = hashlib.sha256(scale.tobytes()).hexdigest()
    return {"weights": weights if weights == "size" else f"given, sha256:{digest}"}


def client_scale(weights: Any, sizes: Ints) -> Vector:
    """(N,) the factors N w_i by which each client's objective is scaled; 1 for the paper's uniform mean.

    weights: "uniform", "size" (w_i proportional to M_i), or any N positive numbers, which are normalised.
    """
    N = len(sizes)
    if isinstance(weights, str):
        if weights == "uniform":
            return np.ones(N)
        if weights != "size":
            raise InputError(
                f"weights must be 'uniform', 'size' or {N} positive numbers, not {weights!r}"
            )
        weights = sizes
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (N,) or not np.isfinite(w).all() or (w <= 0).any():
        raise InputError(f"weights must be 'uniform', 'size' or {N} positive numbers")
    w = w / power_of_two(w)
    return np.asarray(N * w / w.sum(), dtype=np.float64)


class RowProblem:
    """A problem of your own: give `client_loss` and `client_grad`, and every method and engine takes it.

    sizes (N,): rows M_i of each client. d: parameters. Clients are visited one after the other in Python, which is
    right for trying an objective out; a linear model's loss belongs into `kernels.py` for speed.
    """

    name = "own problem"

    def __init__(self, sizes: Any, d: int, *, weights: Any = "uniform") -> None:
        self._sizes = np.asarray(sizes, dtype=np.int64)
        if self._sizes.ndim != 1 or len(self._sizes) == 0 or int(self._sizes.min()) < 1:
            raise InputError(f"{self.name}: sizes must be the rows of each client, at least 1 each")
        self._d = int(d)
        if self._d < 1:
            raise InputError(f"{self.name}: d must be a whole number of at least 1, not {d!r}")
        self.weights = weights if isinstance(weights, str) else "given"
        self._scale = client_scale(weights, self._sizes)
        self._equal = equal_size(self._sizes)

    def client_loss(self, client: int, x: Vector) -> float:
        """f_i(x): the mean of the client's rows at x (d,)."""
        raise NotImplementedError(f"{type(self).__name__}.client_loss")

    def client_grad(self, client: int, rows: Rows | None, x: Vector) -> Vector:
        """(d,): the mean gradient over the client's rows numbered `rows` (None: all) at x (d,)."""
        raise NotImplementedError(f"{type(self).__name__}.client_grad")

    def smoothness(self) -> Smoothness:
        """Override it where theory's step sizes are wanted."""
        raise InputError(f"{self.name}: its smoothness is not known; override smoothness()")

    @property
    def N(self) -> int:
        """Clients."""
        return len(self._sizes)

    @property
    def d(self) -> int:
        """Parameters."""
        return self._d

    @property
    def sizes(self) -> Ints:
        """(N,) rows of each client."""
        return self._sizes

    def oracle(self, clients: Ints, draws: Draws) -> LoopOracle:
        """What the called clients may ask of their rows in this round."""
        return LoopOracle(self, clients, draws)

    def loss(self, x: Vector) -> float:
        """f(x) = (1/N) sum_i N w_i f_i(x)."""
        return float(sum(s * self.client_loss(i, x) for i, s in enumerate(self._scale)) / self.N)

    def grad(self, x: Vector) -> Vector:
        """(d,): the gradient of f."""
        total = np.zeros(self._d)
        for i, s in enumerate(self._scale):
            total += s * self.client_grad(i, None, x)
        return total / self.N

    def evaluate(self, x: Vector, threads: int = 1) -> Mapping[str, float]:
        """{"loss", "grad_norm"} at x."""
        return {"loss": self.loss(x), "grad_norm": norm(self.grad(x))}

    def describe(self) -> dict[str, Any]:
        """Name and shape."""
        about = {"objective": self.name, "N": self.N, "d": self._d, "rows": int(self._sizes.sum())}
        return about | weights_described(self.weights, self._scale)


class LoopOracle(RowOracle):
    """The called clients' rows of a RowProblem, one client after the other."""

    def __init__(self, problem: RowProblem, clients: Ints, draws: Draws) -> None:
        super().__init__(clients, problem._sizes[clients], draws, problem._equal)
        self._problem = problem

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """(n, d): each client's mean gradient over its batch."""
        self._count(self._largest if batch.rows is None else batch.rows.shape[1])
        out = np.empty((len(self.clients), self._problem.d))
        for i, client in enumerate(self.clients.tolist()):
            rows = None if batch.rows is None else batch.rows[i, : batch.sizes[i]]
            point = y[i] if y.ndim == 2 else y
            out[i] = self._problem._scale[client] * self._problem.client_grad(client, rows, point)
        return out
