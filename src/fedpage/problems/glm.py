"""Linear models, f_ij(x) = loss(a_ij . x, b_ij) + regulariser(x), and named objectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.metrics import (
    MetricsOption,
    describe_metrics,
    evaluate_metrics,
    resolve_metrics,
)
from fedpage.core.registry import Registry
from fedpage.core.types import ClientEvaluations, Draws, Ints, Smoothness, Vector
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, blocks
from fedpage.problems import kernels
from fedpage.problems.base import (
    Description,
    Weights,
    client_scale,
    describe_weights,
    equal_size,
    norm,
    power_of_two,
    root_mean_square,
)
from fedpage.problems.kernels import LOSSES, REGULARISERS, Loss, Reg
from fedpage.problems.linear_oracle import LinearOracle

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_ALPHA = 0.1
"""The weight of a regulariser where none is given: the paper's."""


class LinearModel:
    """A loss of a linear model over a partitioned data set.

    Subclasses such as `LogisticRegression` fix the loss. `LinearModel(data, clients, loss=...)`
    takes any loss that `problems/kernels.py` declares.

    Args:
        data: the rows.
        clients: a number of clients (equal consecutive blocks, the remainder dropped), or a
            Partition.
        loss: the name of a loss; a subclass has its own.
        reg: "none", "l2" (alpha |x|^2/2) or "nonconvex" (alpha sum_l x_l^2/(1+x_l^2), the paper's).
        alpha: the regulariser's weight, 0.1 by default.
        weights: "uniform" (the paper's f = mean over clients), "size", or N positive numbers. They
            scale a client's whole objective by N w_i, so that every method stays as it is.
        metrics: what to record of the margins a.x and the labels: names such as "accuracy" and
            "auc", or functions (outputs, targets) -> float.
        held_out: rows that no client has. `held_out_loss`, their mean loss without the regulariser,
            and `held_out_METRIC` are recorded.

    Raises:
        InputError: something given cannot be used.
    """

    loss_name: ClassVar[str] = ""

    def __init__(
        self,
        data: Dataset,
        clients: int | Partition,
        *,
        loss: str | None = None,
        reg: Reg | None = None,
        alpha: float | None = None,
        weights: Weights = "uniform",
        metrics: MetricsOption = (),
        held_out: Dataset | None = None,
    ) -> None:
        if loss is not None and self.loss_name not in ("", loss):
            raise InputError(
                f"{type(self).__name__} has the loss {self.loss_name!r}; leave loss out"
            )
        self._loss: Loss = LOSSES[loss or self.loss_name]
        self.name = self._loss.title
        _check_data(self.name, "data", data)
        self.reg, self.alpha = choose_regulariser(self._loss, reg, alpha)
        self.data = data
        self.partition = clients if isinstance(clients, Partition) else blocks(data.rows, clients)
        self.weights = weights if isinstance(weights, str) else "given"
        self._sizes = self.partition.sizes
        self._scale = client_scale(weights, self._sizes)
        self._store()
        _check_labels(self._loss, data)
        self.convex = self._loss.convex and REGULARISERS[self.reg].convex
        self.metrics = resolve_metrics(metrics, self.name)
        self._constants: Smoothness | None = None
        self.held_out = held_out
        self._check_evaluation()

    def _check_evaluation(self) -> None:
        """Refuse held-out rows of another shape, and metrics that the labels do not suit."""
        if self.held_out is not None:
            _check_data(self.name, "held_out", self.held_out)
            if self.held_out.features > self.d:
                raise InputError(
                    f"{self.name}: held_out has {self.held_out.features} features, "
                    f"the clients' rows have {self.d}"
                )
            _check_labels(self._loss, self.held_out)
        for data in (self.data, *([] if self.held_out is None else [self.held_out])):
            for metric in self.metrics.values():
                if metric.needs_labels and not data.binary:
                    raise InputError(
                        f"{self.name}: metric {metric.name!r} needs labels -1/1, 0/1 or 1/2, "
                        f"which {data.name!r} does not have"
                    )

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
        self._rows_and_targets = (
            *_kernel_rows(ptr, idx, val),
            data.y[order],
            self.partition.ptr,
            self._scale,
        )
        self._reg_code = REGULARISERS[self.reg].code if self.alpha > 0 else kernels.NO_REG
        self._kernel_data = (*self._rows_and_targets, self._loss.code, self._reg_code, self.alpha)
        self._equal = equal_size(self._sizes)

    @property
    def N(self) -> int:
        """The number of clients."""
        return self.partition.N

    @property
    def d(self) -> int:
        """The number of parameters: the data set's features."""
        return self.data.features

    @property
    def sizes(self) -> Ints:
        """(N,) rows M_i of each client."""
        return self._sizes

    def evaluate_clients(self, clients: Ints, x: Vector) -> ClientEvaluations:
        """Evaluate x on each client's own rows.

        Args:
            clients: (n,) client numbers.
            x: (d,) the model.

        Returns:
            Losses (n,) N w_i f_i(x) and gradients (n, d), regulariser included, and the metrics.
        """
        x = self._point(x)
        losses, gradients = np.empty(len(clients)), np.zeros((len(clients), self.d))
        values = {name: np.empty(len(clients)) for name in self.metrics}
        start, target = self._rows_and_targets[4], self._rows_and_targets[3]
        scale = self._scale[clients]
        with np.errstate(over="ignore", invalid="ignore"):
            penalty, slope = self._penalty(x)
            for row, client in enumerate(clients.tolist()):
                args = (self._loss.code, client, client + 1, x, True, gradients[row])
                losses[row] = kernels.objective(*self._rows_and_targets, *args)
                if self.metrics:
                    first, end = int(start[client]), int(start[client + 1])
                    outputs, where = self._margins(x, first, end), f"client {client}"
                    each = evaluate_metrics(self.metrics, outputs, target[first:end], where)
                    for name, value in each.items():
                        values[name][row] = value
            losses, gradients = losses + scale * penalty, gradients + scale[:, None] * slope
        return ClientEvaluations(losses, gradients, values)

    def rescale(self, factor: float) -> Self:
        """Multiply every client's objective by a factor.

        A Flower node that has client i alone uses it, with the factor N w_i.
        """
        twin = copy(self)
        twin._scale, twin._constants = self._scale * factor, None
        twin.weights = "given"
        twin._store()
        return twin

    def mean_labels(self) -> Vector:
        """(N,) the mean label of each client's rows."""
        y = self.data.y[self.partition.order]
        return np.asarray(np.add.reduceat(y, self.partition.ptr[:-1]) / self._sizes)

    def oracle(self, clients: Ints, draws: Draws) -> LinearOracle:
        """Return the oracle of the called clients (n,) in this round."""
        return LinearOracle(self, clients, draws)

    def loss(self, x: Vector) -> float:
        """Compute f(x) = (1/N) sum_i N w_i (1/M_i) sum_j f_ij(x) at x (d,)."""
        return self._evaluate(self._point(x), True, 1)[0]

    def grad(self, x: Vector, threads: int = 1) -> Vector:
        """Compute the gradient (d,) of f at x (d,)."""
        return self._evaluate(self._point(x), False, threads)[1]

    def evaluate(self, x: Vector, threads: int = 1) -> Mapping[str, float]:
        """Evaluate what a history records at x (d,). Any number of threads gives the same bits.

        Returns:
            "loss" f(x), "grad_norm" |grad f(x)|, each metric over all clients' rows, and the
            held-out columns.
        """
        x = self._point(x)
        loss, grad = self._evaluate(x, True, threads)
        row = {"loss": loss, "grad_norm": norm(grad)}
        if self.metrics:
            with np.errstate(over="ignore", invalid="ignore"):
                target = self._rows_and_targets[3]
                margins = self._margins(x, 0, len(target))
                row |= evaluate_metrics(self.metrics, margins, target, "the clients' rows")
        return row | self.evaluate_held_out(x)

    def evaluate_held_out(self, x: Vector) -> dict[str, float]:
        """Evaluate held_out_loss and the metrics on the held-out rows; {} without such rows."""
        if self.held_out is None:
            return {}
        data, x = self.held_out, self._point(x)
        margins = np.empty(data.rows)
        with np.errstate(over="ignore", invalid="ignore"):
            kernels.margins(*_kernel_rows(data.indptr, data.indices, data.values), x, margins)
            row = {"loss": float(kernels.mean_loss(self._loss.code, margins, data.y))}
            row |= evaluate_metrics(self.metrics, margins, data.y, "held_out")
        return {f"held_out_{name}": value for name, value in row.items()}

    def _margins(self, x: Vector, first: int, end: int) -> Vector:
        """Compute a.x of rows first..end-1, which are in client order."""
        ptr, idx, val = self._rows_and_targets[:3]
        out = np.empty(end - first)
        kernels.margins(ptr[first : end + 1], idx, val, x, out)
        return out

    def _point(self, x: Vector) -> Vector:
        x = np.ascontiguousarray(x, dtype=np.float64)
        if x.shape != (self.d,):
            raise InputError(f"{self.name}: x must have shape ({self.d},), not {x.shape}")
        return x

    def _evaluate(self, x: Vector, want_loss: bool, threads: int) -> tuple[float, Vector]:
        """Compute f, if wanted, and its gradient."""
        with np.errstate(over="ignore", invalid="ignore"):  # far away both may be infinite
            loss, grad = self._sums(x, want_loss, threads, self._scale)
            loss /= self.N
            grad /= self.N
            if not (math.isfinite(loss) and np.isfinite(grad).all()):
                # the sum may overflow where the mean does not
                loss, grad = self._sums(x, want_loss, threads, self._scale / self.N)
            if self._reg_code != kernels.NO_REG:
                penalty, slope = self._penalty(x)
                loss += penalty
                grad += slope
        return loss, grad

    def _penalty(self, x: Vector) -> tuple[float, Vector]:
        """Compute the regulariser at x, and its gradient (d,)."""
        if self._reg_code == kernels.L2:
            square = 0.5 * self.alpha * float(kernels.total(x * x))
            if not math.isfinite(square):  # alpha x^2 may be finite where x^2 is not
                root = math.sqrt(0.5 * self.alpha) * x
                square = float(kernels.total(root * root))
            return square, self.alpha * x
        if self._reg_code == kernels.NONCONVEX:
            x = np.clip(x, -1e77, 1e77)  # both are at their limits there, and q^2 would overflow
            q = 1.0 + x * x
            return self.alpha * float(kernels.total(x * x / q)), 2.0 * self.alpha * x / (q * q)
        return 0.0, np.zeros(self.d)

    def _sums(
        self, x: Vector, want_loss: bool, threads: int, scale: Vector
    ) -> tuple[float, Vector]:
        """Add up blocks of clients in order; their number depends on the data alone."""
        nonzeros = len(self._rows_and_targets[1])
        count = max(1, min(self.N, 32, nonzeros >> 17))
        edges = [self.N * i // count for i in range(count + 1)]
        sums = np.zeros((count, self.d))

        def block(i: int) -> float:
            args = (self._loss.code, edges[i], edges[i + 1], x, want_loss, sums[i])
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
        """Compute Lipschitz constants of the gradients.

        A row's is |a|^2 times the loss's curvature. A client's and f's are the curvature times the
        largest eigenvalue of the (weighted) second moment of the rows. The regulariser adds alpha
        for l2 and 2 alpha for nonconvex. They are computed once.
        """
        if self._constants is None:
            self._constants = _smoothness(self)
        return self._constants

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.data.name!r}, {self.partition.name}, d={self.d})"

    def describe(self) -> Description:
        """Describe the problem: objective, data and partition, with digests."""
        about: Description = {
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
            "partition_digest": self.partition.digest,
        }
        if self.reg != "none":
            about |= {"regulariser": self.reg, "alpha": self.alpha}
        if self.metrics:
            about["metrics"] = describe_metrics(self.metrics)
        if self.held_out is not None:
            about["held_out"] = self.held_out.digest
        return about | describe_weights(self.weights, self._scale)


@dataclass(frozen=True)
class Objective:
    """A loss with a regulariser, under the name that the command line and study files use."""

    name: str
    loss: str
    reg: Reg
    model: type[LinearModel]

    def problem(
        self,
        data: Dataset,
        clients: int | Partition,
        *,
        alpha: float | None = None,
        weights: Weights = "uniform",
        metrics: MetricsOption = (),
        held_out: Dataset | None = None,
    ) -> LinearModel:
        """Make the problem of this objective over partitioned data; see `LinearModel`.

        Raises:
            InputError: alpha is given, but the objective has no regulariser.
        """
        if alpha is not None and self.reg == "none":
            raise InputError(f"alpha {alpha:g}: objective {self.name!r} has no regulariser")
        return self.model(
            data, clients, loss=self.loss, reg=self.reg, alpha=alpha, weights=weights,
            metrics=metrics, held_out=held_out,
        )  # fmt: skip


OBJECTIVES: Registry[Objective] = Registry("objective")
L = TypeVar("L", bound=type[LinearModel])


def _register(loss: str) -> Callable[[L], L]:
    """Register a class as the model of a loss: an objective for each regulariser the loss takes."""

    def decorate(model: L) -> L:
        for reg in ("none", *LOSSES[loss].regularisers):
            name = loss if reg == "none" else f"{loss}-{reg}"
            OBJECTIVES.add(name, Objective(name, loss, reg, model))
        return model

    return decorate


@_register("robust")
class RobustRegression(LinearModel):
    """f_ij(x) = log(1 + (a.x - b)^2/2), nonconvex and robust to outliers. L_ij = |a|^2.

    It takes the arguments of `LinearModel` but for loss.
    """

    loss_name = "robust"


@_register("logistic")
class LogisticRegression(LinearModel):
    """f_ij(x) = log(1 + exp(-b a.x)) + regulariser, for labels b = -1 or +1.

    L_ij = |a|^2/4 plus the regulariser's constant. It takes the arguments of `LinearModel` but for
    loss.
    """

    loss_name = "logistic"


@_register("squares")
class LeastSquares(LinearModel):
    """f_ij(x) = (a.x - b)^2/2, with an l2 regulariser if alpha is given. L_ij = |a|^2 + alpha.

    It takes the arguments of `LinearModel` but for loss.
    """

    loss_name = "squares"


for _loss in LOSSES:  # a loss that has no class of its own
    if _loss not in OBJECTIVES:
        _register(_loss)(LinearModel)


def choose_regulariser(loss: Loss, reg: Reg | None, alpha: float | None) -> tuple[Reg, float]:
    """Check a regulariser and its weight, and choose those that are not given.

    Args:
        loss: the loss, which says which regularisers it takes.
        reg: the regulariser's name, or None.
        alpha: its weight, or None.

    Returns:
        The name and the weight. Without reg, alpha weighs the only regulariser that the loss takes.

    Raises:
        InputError: the regulariser is unknown, the weight is not a number of at least 0, or a
            weight is given without a regulariser.
    """
    if reg is not None and reg not in REGULARISERS:
        hint = did_you_mean(reg, REGULARISERS) if isinstance(reg, str) else ""
        known = ", ".join(REGULARISERS)
        raise InputError(
            f"{loss.title}: the regulariser must be one of {known}, not {short_repr(reg)}{hint}"
        )
    number = isinstance(alpha, (int, float)) and math.isfinite(alpha) and alpha >= 0
    if alpha is not None and not number:
        raise InputError(
            f"{loss.title}: alpha must be a finite number of at least 0, not {short_repr(alpha)}"
        )
    if reg not in (None, "none"):
        return reg, _ALPHA if alpha is None else float(alpha)
    if not alpha:
        return "none", 0.0
    if reg is None and len(loss.regularisers) == 1:
        return loss.regularisers[0], float(alpha)
    choices = " or ".join(f"reg='{name}'" for name in loss.regularisers)
    advice = f"choose {choices}" if choices else "choose reg='l2' or leave alpha out"
    raise InputError(
        f"{loss.title}: alpha={alpha:g} weighs a regulariser, but there is none; {advice}"
    )


def _check_data(owner: str, what: str, data: object) -> None:
    if not isinstance(data, Dataset):
        raise InputError(
            f"{owner}: {what} must be a fedpage Dataset, not {type(data).__name__}; see fp.load"
        )


def _check_labels(loss: Loss, data: Dataset) -> None:
    if loss.needs_labels and not data.binary:
        constant = bool((data.y == data.y[0]).all())
        found = f"; they are all {data.y[0]:g}, which is a single class" if constant else ""
        raise InputError(
            f"{loss.title}: the labels of {data.name!r} must be -1/1, 0/1 or 1/2{found}"
        )


def _kernel_rows(
    ptr: Ints, idx: NDArray[np.int32], val: Vector
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], Vector | None]:
    """Return CSR arrays as the kernels take them; no values where all are 1."""
    return (
        ptr.astype(np.uint32),
        np.ascontiguousarray(idx, dtype=np.int32).view(np.uint32),
        None if bool((val == 1.0).all()) else np.ascontiguousarray(val),
    )


def _smoothness(problem: LinearModel) -> Smoothness:
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import LinearOperator, eigsh

    ptr, idx, val, _, start, scale = problem._rows_and_targets
    unit = 1.0 if val is None else power_of_two(val)
    entries = np.ones(len(idx)) if val is None else val / unit
    A = csr_array(
        (entries, idx.astype(np.int64), ptr.astype(np.int64)), shape=(len(ptr) - 1, problem.d)
    )
    curvature = problem._loss.curvature
    reg_curvature = REGULARISERS[problem.reg].curvature * problem.alpha
    squares = np.asarray(A.multiply(A).sum(axis=1)).ravel()
    sizes = problem.sizes

    def largest_eigenvalue(block: csr_array) -> float:
        """Compute the largest eigenvalue of block' block."""
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

    each = np.array([largest_eigenvalue(A[start[i] : start[i + 1]]) for i in range(problem.N)])
    weighted = diags_array(np.sqrt(np.repeat(scale / sizes, sizes) / problem.N)) @ A
    with np.errstate(over="ignore"):  # a constant beyond float64 is infinite
        row = float(
            (np.repeat(scale, sizes) * (curvature * squares * unit * unit + reg_curvature)).max()
        )
        clients = scale * (curvature * each / sizes * unit * unit + reg_curvature)
    whole = curvature * largest_eigenvalue(weighted) * unit * unit + reg_curvature
    return Smoothness(row, float(clients.max()), root_mean_square(clients), whole)
