"""Objectives of a linear model: f_ij(x) = loss(a_ij . x, b_ij) + regulariser(x)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.local_steps import FusedOracle
from fedpage.core.types import Batch, Draws, Ints, Rows, Smoothness, Vector
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, blocks
from fedpage.problems import kernels
from fedpage.problems.base import (
    RowOracle,
    as_rows,
    client_scale,
    equal_size,
    no_rows,
    norm,
    power_of_two,
    root_mean_square,
    weights_described,
)

_REGS = {"none": kernels.NO_REG, "l2": kernels.L2, "nonconvex": kernels.NONCONVEX}


class LinearModel:
    """A loss of a linear model over a partitioned data set. Use one of its subclasses.

    data: the rows. clients: a number (equal consecutive blocks, the remainder dropped) or a Partition.
    weights: "uniform" (the paper's f = mean over clients), "size", or N positive numbers; weights scale a client's
    whole objective by N w_i, so every method stays as it is.
    """

    name: ClassVar[str]
    _loss: ClassVar[int]
    _curvature: ClassVar[float]
    """Bound of the loss's second derivative by the margin."""
    convex: bool

    def __init__(
        self,
        data: Dataset,
        clients: int | Partition,
        *,
        weights: Any = "uniform",
        reg: str = "none",
        alpha: float = 0.0,
    ) -> None:
        if not isinstance(data, Dataset):
            raise InputError(
                f"{self.name}: data must be a fedpage Dataset, not {type(data).__name__}; see fp.load"
            )
        if reg not in _REGS:
            raise InputError(
                f"{self.name}: the regulariser must be one of {', '.join(_REGS)}, not {reg!r}"
            )
        if not (isinstance(alpha, (int, float)) and math.isfinite(alpha) and alpha >= 0):
            raise InputError(f"{self.name}: alpha must be 0 or more and finite, not {alpha!r}")
        self.data = data
        self.partition = clients if isinstance(clients, Partition) else blocks(data.rows, clients)
        self.reg, self.alpha = reg, float(alpha)
        self.weights = weights if isinstance(weights, str) else "given"
        self._sizes = self.partition.sizes
        self._scale = client_scale(weights, self._sizes)
        self._store()
        self.convex = self._loss != kernels.ROBUST and reg != "nonconvex"

    def _store(self) -> None:
        """Copy the rows in client order, with unsigned indices."""
        order, data = self.partition.order, self.data
        if len(order) and (int(order.min()) < 0 or int(order.max()) >= data.rows):
            raise InputError(
                f"{self.name}: the partition names rows that {data.name!r} does not have"
            )
        lengths = np.diff(data.indptr)[order]
        ptr = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(lengths, out=ptr[1:])
        if ptr[-1] >= 2**32 or len(order) >= 2**32:
            raise InputError(
                f"{self.name}: more than 4,294,967,295 nonzeros or rows; divide the data set"
            )
        if bool((order == np.arange(len(order))).all()):
            idx, val = data.indices[: ptr[-1]], data.values[: ptr[-1]]
        else:
            where = np.repeat(data.indptr[:-1][order] - ptr[:-1], lengths) + np.arange(ptr[-1])
            idx, val = data.indices[where], data.values[where]
        code = _REGS[self.reg] if self.alpha > 0 else kernels.NO_REG
        self._rows_and_targets = (
            ptr.astype(np.uint32),
            np.ascontiguousarray(idx, dtype=np.int32).view(np.uint32),
            None if bool((val == 1.0).all()) else np.ascontiguousarray(val),
            data.y[order],
            self.partition.ptr,
            self._scale,
        )
        self._codes = (self._loss, code, self.alpha)
        self._kernel_data = (*self._rows_and_targets, *self._codes)
        self._equal = equal_size(self._sizes)

    @property
    def N(self) -> int:
        """Clients."""
        return self.partition.N

    @property
    def d(self) -> int:
        """Parameters: the data set's features."""
        return self.data.features

    @property
    def sizes(self) -> Ints:
        """(N,) rows M_i at each client."""
        return self._sizes

    def evaluate_clients(self, clients: Ints, x: Vector) -> tuple[Vector, Vector]:
        """(n,) and (n, d): each client's own N w_i f_i(x) and its gradient, regulariser included."""
        x = self._point(x)
        losses, gradients = np.empty(len(clients)), np.zeros((len(clients), self.d))
        scale = self._scale[clients]
        with np.errstate(over="ignore", invalid="ignore"):
            penalty, slope = self._penalty(x)
            for row, client in enumerate(clients.tolist()):
                args = (self._loss, client, client + 1, x, True, gradients[row])
                losses[row] = kernels.objective(*self._rows_and_targets, *args)
            return losses + scale * penalty, gradients + scale[:, None] * slope

    def scaled(self, factor: float) -> Self:
        """The same problem with every client's objective times a factor: N w_i, on a node that has client i alone."""
        twin = copy(self)
        twin._scale = self._scale * factor
        twin.weights = "given"
        twin._store()
        return twin

    def mean_labels(self) -> Vector:
        """(N,) the mean label of each client's rows."""
        y = self.data.y[self.partition.order]
        return np.asarray(np.add.reduceat(y, self.partition.ptr[:-1]) / self._sizes)

    def oracle(self, clients: Ints, draws: Draws) -> LinearOracle:
        """What the called clients may ask of their rows in this round."""
        return LinearOracle(self, clients, draws)

    def loss(self, x: Vector) -> float:
        """f(x) = (1/N) sum_i N w_i (1/M_i) sum_j f_ij(x)."""
        return self._evaluate(self._point(x), True, 1)[0]

    def grad(self, x: Vector, threads: int = 1) -> Vector:
        """(d,): the gradient of f at x (d,)."""
        return self._evaluate(self._point(x), False, threads)[1]

    def evaluate(self, x: Vector, threads: int = 1) -> Mapping[str, float]:
        """{"loss": f(x), "grad_norm": |grad f(x)|}; the same bits for any number of threads."""
        loss, grad = self._evaluate(self._point(x), True, threads)
        return {"loss": loss, "grad_norm": norm(grad)}

    def _point(self, x: Vector) -> Vector:
        x = np.ascontiguousarray(x, dtype=np.float64)
        if x.shape != (self.d,):
            raise InputError(f"{self.name}: x must have shape ({self.d},), not {x.shape}")
        return x

    def _evaluate(self, x: Vector, want_loss: bool, threads: int) -> tuple[float, Vector]:
        """f and its gradient."""
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # an infinity is the answer, not an accident
            loss, grad = self._sums(x, want_loss, threads, self._scale)
            loss /= self.N
            grad /= self.N
            if not (
                math.isfinite(loss) and np.isfinite(grad).all()
            ):  # the sum may overflow where the mean does not
                loss, grad = self._sums(x, want_loss, threads, self._scale / self.N)
            if self._codes[1] != kernels.NO_REG:
                penalty, slope = self._penalty(x)
                loss += penalty
                grad += slope
        return loss, grad

    def _penalty(self, x: Vector) -> tuple[float, Vector]:
        """The regulariser at x, and its gradient (d,)."""
        if self._codes[1] == kernels.L2:
            square = 0.5 * self.alpha * float(kernels.total(x * x))
            root = math.sqrt(0.5 * self.alpha) * x
            return square if math.isfinite(square) else float(
                kernels.total(root * root)
            ), self.alpha * x
        if self._codes[1] == kernels.NONCONVEX:
            x = np.clip(
                x, -1e77, 1e77
            )  # beyond it both are at their limits, and q^2 would overflow
            q = 1.0 + x * x
            return self.alpha * float(kernels.total(x * x / q)), 2.0 * self.alpha * x / (q * q)
        return 0.0, np.zeros(self.d)

    def _sums(
        self, x: Vector, want_loss: bool, threads: int, scale: Vector
    ) -> tuple[float, Vector]:
        """Sums over a number of blocks of clients that depends on the data alone, added in their order."""
        nonzeros = len(self._rows_and_targets[1])
        count = max(1, min(self.N, 32, nonzeros >> 17))
        edges = [self.N * i // count for i in range(count + 1)]
        sums = np.zeros((count, self.d))

        def block(i: int) -> float:
            args = (self._loss, edges[i], edges[i + 1], x, want_loss, sums[i])
            return float(kernels.objective(*self._rows_and_targets[:-1], scale, *args))

        if threads > 1 and count > 1:
            with ThreadPoolExecutor(min(threads, count)) as pool:
                parts = list(pool.map(block, range(count)))
        else:
            parts = [block(i) for i in range(count)]
        loss, grad = 0.0, np.zeros(self.d)
        for part, total in zip(parts, sums, strict=True):
            loss += part
            grad += total
        return loss, grad

    def smoothness(self) -> Smoothness:
        """L of the rows (|a|^2 times the loss's curvature), of the clients, on average, and of f.

        Clients' and f's constants are curvature * largest eigenvalue of the (weighted) second moment of the rows, plus
        the regulariser's own constant (alpha for l2, 2 alpha for nonconvex).
        """
        return _smoothness(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.data.name!r}, {self.partition.name}, d={self.d})"

    def describe(self) -> dict[str, Any]:
        """Objective, data and partition, with digests."""
        about: dict[str, Any] = {
            "objective": self.name,
            "data": self.data.name,
            "data_digest": self.data.digest,
        }
        if self.data.note:
            about["data_note"] = self.data.note
        about |= {
            "N": self.N,
            "d": self.d,
            "rows": int(self._sizes.sum()),
            "partition": self.partition.name,
        }
        about["partition_digest"] = self.partition.digest
        if self.reg != "none":
            about |= {"regulariser": self.reg, "alpha": self.alpha}
        return about | weights_described(self.weights, self._scale)


class LinearOracle(RowOracle, FusedOracle):
    """The called clients' rows of a linear model, with compiled walks."""

    def __init__(self, problem: LinearModel, clients: Ints, draws: Draws) -> None:
        super().__init__(clients, problem._sizes[clients], draws, problem._equal)
        self._data = (*problem._kernel_data, clients)
        self._shape = (len(clients), problem.d)

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """(n, d): mean gradient over each client's batch at y (n, d), or at one y (d,)."""
        rows = no_rows(len(self.clients), 1)[:, 0] if batch.rows is None else batch.rows
        b = self._largest if batch.rows is None else batch.rows.shape[1]
        self._count(b)
        out = np.empty(self._shape)
        kernels.batch_grad(*self._data, rows, b, self._points(y), out)
        return out

    def _points(self, y: Vector) -> Vector:
        """(n, d) or (1, d); a kernel believes what it is given."""
        rows = as_rows(y)
        if rows.shape[1] != self._shape[1] or rows.shape[0] not in (1, self._shape[0]):
            raise ValueError(
                f"points of shape {y.shape} for {self._shape[0]} clients and {self._shape[1]} parameters"
            )
        return rows

    def local_sgd(
        self,
        x: Vector,
        *,
        K: int,
        eta: float,
        b: int | None,
        shift: Vector | None = None,
        mu: float = 0.0,
    ) -> Vector:
        """The walk of the same name, fused."""
        none = np.empty((0, self._shape[1]))
        return self._local_sgd(x, none, none if shift is None else as_rows(shift), K, eta, b, mu)

    def local_svrg(
        self, x: Vector, w: Vector, h: Vector, *, K: int, eta: float, b: int | None
    ) -> Vector:
        """The walk of the same name, fused."""
        self._count(self._size(b), K)  # the gradients at w; those at y are counted with the descent
        return self._local_sgd(x, as_rows(w), as_rows(h), K, eta, b, 0.0)

    def _local_sgd(
        self, x: Vector, w: Vector, shift: Vector, K: int, eta: float, b: int | None, mu: float
    ) -> Vector:
        rows, size = self._kernel_batches(b, K)
        self._count(size, K)
        out = np.empty(self._shape)
        kernels.local_sgd(*self._data, rows, size, x, w, shift, K, float(eta), float(mu), out)
        return out

    def local_page(
        self,
        x: Vector,
        x_prev: Vector,
        g: Vector,
        *,
        K: int,
        eta: float,
        first: int | None,
        rest: int | None,
    ) -> Vector:
        """The walk of the same name, fused."""
        rows, size = self._kernel_batches(first, 1)
        self._count(size, 2)
        more, more_size = (
            self._kernel_batches(rest, K - 1) if K > 1 else (no_rows(len(self.clients), 0), 1)
        )
        self._count(more_size, 2 * (K - 1))
        out = np.empty(self._shape)
        kernels.local_page(
            *self._data,
            rows,
            size,
            more,
            more_size,
            as_rows(x),
            as_rows(x_prev),
            as_rows(g),
            K,
            float(eta),
            out,
        )
        return out

    def _kernel_batches(self, size: int | None, count: int) -> tuple[Rows, int]:
        rows, largest = self._batches(size, count)
        return (no_rows(len(self.clients), count) if rows is None else rows), largest


class RobustRegression(LinearModel):
    """f_ij(x) = log(1 + (a.x - b)^2/2): nonconvex, outliers lose their pull. L_ij = |a|^2."""

    name = "robust regression"
    _loss = kernels.ROBUST
    _curvature = 1.0

    def __init__(
        self, data: Dataset, clients: int | Partition, *, weights: Any = "uniform"
    ) -> None:
        super().__init__(data, clients, weights=weights)


class LogisticRegression(LinearModel):
    """f_ij(x) = log(1 + exp(-b a.x)) + regulariser; labels -1/+1. L_ij = |a|^2/4 plus the regulariser's constant.

    reg: "none"; "l2", alpha |x|^2/2; "nonconvex", alpha sum_l x_l^2/(1+x_l^2), the paper's, with alpha = 0.1.
    """

    name = "logistic regression"
    _loss = kernels.LOGISTIC
    _curvature = 0.25

    def __init__(
        self,
        data: Dataset,
        clients: int | Partition,
        *,
        reg: str = "none",
        alpha: float = 0.1,
        weights: Any = "uniform",
    ) -> None:
        super().__init__(
            data, clients, weights=weights, reg=reg, alpha=alpha if reg != "none" else 0.0
        )
        if not data.binary:
            same = (
                f"; they are all {data.y[0]:g}, which tells no class"
                if (data.y == data.y[0]).all()
                else ""
            )
            raise InputError(
                f"logistic regression: the labels of {data.name!r} must be -1/1, 0/1 or 1/2{same}"
            )


class LeastSquares(LinearModel):
    """f_ij(x) = (a.x - b)^2/2, with an optional l2 regulariser. L_ij = |a|^2 + alpha."""

    name = "least squares"
    _loss = kernels.SQUARES
    _curvature = 1.0

    def __init__(
        self,
        data: Dataset,
        clients: int | Partition,
        *,
        alpha: float = 0.0,
        weights: Any = "uniform",
    ) -> None:
        super().__init__(data, clients, weights=weights, reg="l2" if alpha else "none", alpha=alpha)


def _smoothness(problem: LinearModel) -> Smoothness:
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import LinearOperator, eigsh

    ptr, idx, val, _, start, scale = problem._rows_and_targets
    unit = 1.0 if val is None else power_of_two(val)
    entries = np.ones(len(idx)) if val is None else val / unit
    A = csr_array(
        (entries, idx.astype(np.int64), ptr.astype(np.int64)), shape=(len(ptr) - 1, problem.d)
    )
    curvature, bend = (
        problem._curvature,
        {"none": 0.0, "l2": 1.0, "nonconvex": 2.0}[problem.reg] * problem.alpha,
    )
    squares = np.asarray(A.multiply(A).sum(axis=1)).ravel()
    sizes = problem.sizes

    def top(block: Any) -> float:
        """Largest eigenvalue of block' block."""
        if block.nnz == 0:
            return 0.0
        if min(block.shape) <= 400:
            gram = (
                block @ block.T if block.shape[0] <= block.shape[1] else block.T @ block
            ).toarray()
            return float(max(np.linalg.eigvalsh(gram)[-1], 0.0))
        d = block.shape[1]
        gram = LinearOperator((d, d), matvec=lambda v: block.T @ (block @ v), dtype=np.float64)
        return float(
            eigsh(gram, k=1, which="LA", return_eigenvectors=False, v0=np.ones(d), tol=1e-10)[0]
        )

    each = np.array([top(A[start[i] : start[i + 1]]) for i in range(problem.N)])
    weighted = diags_array(np.sqrt(np.repeat(scale / sizes, sizes) / problem.N)) @ A
    with np.errstate(over="ignore"):  # where the constant is beyond float64, it is infinite
        row = float((np.repeat(scale, sizes) * (curvature * squares * unit * unit + bend)).max())
        clients = scale * (curvature * each / sizes * unit * unit + bend)
    whole = curvature * top(weighted) * unit * unit + bend
    return Smoothness(row, float(clients.max()), root_mean_square(clients), whole)
