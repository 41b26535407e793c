"""Evaluate a linear model: losses, gradients and metrics, over all rows or each client's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.metrics import Metric, evaluate_metrics, row_metrics
from fedpage.core.threads import map_threads
from fedpage.core.types import ClientEvaluations, Ints, Vector
from fedpage.data.dataset import Dataset
from fedpage.problems import kernels
from fedpage.problems.base import norm
from fedpage.problems.client_scores import ClientScoring
from fedpage.problems.kernels import CompiledLoss, Loss
from fedpage.problems.labels import Classes

if TYPE_CHECKING:
    from fedpage.data.partition import Partition


class Evaluation(ClientScoring):
    """Evaluate f, its gradient and metrics at a point; `LinearModel` adds the rows."""

    name: str
    data: Dataset
    partition: Partition
    alpha: float
    held_out: Dataset | None
    metrics: dict[str, Metric]
    intercept: bool
    """Whether the model has an intercept for each output."""
    classes: Classes | None
    """The labels of a classification, in the order of the targets; None for a regression."""
    _kernels: ClassVar[ModuleType] = kernels
    _loss: Loss
    _scale: Vector
    _reg_code: int
    _rows_and_targets: tuple[Any, ...]
    _held_out_rows: tuple[Any, ...]
    """The held-out rows and their targets, as the kernels take them."""

    @property
    def N(self) -> int:
        """The number of clients."""
        return self.partition.N

    @property
    def d(self) -> int:
        """The number of parameters: for each output the features, and 1 for the intercept."""
        return (self.data.features + self.intercept) * self.outputs

    @property
    def penalised(self) -> int:
        """The number of leading parameters that are regularised: all but the intercepts."""
        return self.data.features * self.outputs

    @property
    def outputs(self) -> int:
        """The margins of a row: the number of classes for a softmax, else 1."""
        return 1

    @property
    def _loss_code(self) -> int | CompiledLoss:
        """What the kernels take for the loss."""
        return self._loss.code

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
        of_rows = row_metrics(self.metrics)
        values = {name: np.empty(len(clients)) for name in of_rows}
        start, target = self._rows_and_targets[4], self._rows_and_targets[3]
        scale = self._scale[clients]
        with np.errstate(over="ignore", invalid="ignore"):
            penalty, slope = self._penalty(x)
            for row, client in enumerate(clients.tolist()):
                args = (client, client + 1, x, True, gradients[row], self._scale)
                losses[row] = self._objective(*args)
                if of_rows:
                    first, end = int(start[client]), int(start[client + 1])
                    outputs = self._predictions(self._margins(x, first, end))
                    where = f"client {client}"
                    each = evaluate_metrics(of_rows, outputs, target[first:end], where)
                    for name, value in each.items():
                        values[name][row] = value
            losses, gradients = losses + scale * penalty, gradients + scale[:, None] * slope
        return ClientEvaluations(losses, gradients, values)

    def loss(self, x: Vector) -> float:
        """Compute f(x) = (1/N) sum_i N w_i (1/M_i) sum_j f_ij(x) at x (d,)."""
        return self._evaluate(self._point(x), True, 1)[0]

    def grad(self, x: Vector, threads: int = 1) -> Vector:
        """Compute the gradient (d,) of f at x (d,)."""
        return self._evaluate(self._point(x), False, threads)[1]

    def evaluate(self, x: Vector, threads: int = 1) -> Mapping[str, float]:
        """Evaluate what a history records at x (d,). Any number of threads gives the same bits.

        Returns:
            "loss" f(x), "grad_norm" |grad f(x)|, each metric over all clients' rows, quantiles
            over the clients, comparisons with the reference solution, and the held-out columns.
        """
        x = self._point(x)
        target = self._rows_and_targets[3]
        margins = self._empty_margins(len(target)) if self.metrics else None
        loss, grad = self._evaluate(x, True, threads, margins)
        row = {"loss": loss, "grad_norm": norm(grad)}
        if margins is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                outputs = self._predictions(margins)
                row |= evaluate_metrics(self.metrics, outputs, target, "the clients' rows")
                row |= self._client_columns(x, margins)
            row |= self.compare_with_reference(x, loss)
        return row | self.evaluate_held_out(x)

    def evaluate_held_out(self, x: Vector) -> dict[str, float]:
        """Evaluate held_out_loss and the metrics on the held-out rows; {} without such rows."""
        if self.held_out is None:
            return {}
        *rows, target = self._held_out_rows
        margins = self._empty_margins(len(target))
        with np.errstate(over="ignore", invalid="ignore"):
            self._kernels.margins(*rows, self.data.features, 0, self._point(x), margins)
            row = {"loss": float(self._kernels.mean_loss(self._loss_code, margins, target))}
            outputs = self._predictions(margins)
            row |= evaluate_metrics(self.metrics, outputs, target, "held_out")
            row |= self._held_out_client_columns(margins, target)
        return {f"held_out_{name}": value for name, value in row.items()}

    def _predictions(self, margins: Vector) -> Vector:
        """Return what metrics compare with the targets: the margins, of a Poisson model the means.

        These are the numbers that `predict` returns for a regression.
        """
        return np.asarray(np.exp(margins)) if self._loss.name == "poisson" else margins

    def _held_out_client_columns(self, margins: Vector, target: Vector) -> dict[str, float]:
        """Compute quantiles over the clients whose rows are held out; {} where there are none."""
        raise NotImplementedError

    def _margins(self, x: Vector, first: int, end: int) -> Vector:
        """Compute the margins of rows first..end-1, which are in client order."""
        out = self._empty_margins(end - first)
        self._kernels.margins(*self._rows_and_targets[:3], self.data.features, first, x, out)
        return out

    def _empty_margins(self, rows: int) -> Vector:
        return np.empty(rows if self.outputs == 1 else (rows, self.outputs))

    def _objective(
        self,
        lo: int,
        hi: int,
        x: Vector,
        want_loss: bool,
        out: Vector,
        scale: Vector,
        margins: Vector | None = None,
    ) -> float:
        """Add the gradients of clients lo..hi-1 to out (d,), and return the sum of their losses.

        margins, of as many rows as the data, takes the margins of theirs.
        """
        rows, loss = self._rows_and_targets[:-1], self._loss_code
        kept = self._empty_margins(0) if margins is None else margins
        args = (lo, hi, x, want_loss, out, kept)
        return float(self._kernels.objective(*rows, scale, loss, self.data.features, *args))

    def _point(self, x: Vector) -> Vector:
        try:
            x = np.ascontiguousarray(x, dtype=np.float64)
        except (TypeError, ValueError, AttributeError):
            raise InputError(
                f"{self.name}: x must be a model of {self.d} numbers, such as history.x, "
                f"not {short_repr(x)}"
            ) from None
        if x.shape != (self.d,):
            raise InputError(f"{self.name}: x must have shape ({self.d},), not {x.shape}")
        return x

    def _evaluate(
        self, x: Vector, want_loss: bool, threads: int, margins: Vector | None = None
    ) -> tuple[float, Vector]:
        """Compute f, if wanted, its gradient, and the margins of all rows, if given."""
        with np.errstate(over="ignore", invalid="ignore"):  # far away both may be infinite
            loss, grad = self._sums(x, want_loss, threads, self._scale, margins)
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
        """Compute the regulariser at x, and its gradient (d,), which is 0 for the intercepts."""
        if self._reg_code == kernels.NO_REG:
            return 0.0, np.zeros(self.d)
        slope = np.zeros(self.d)
        penalty, slope[: self.penalised] = self._regulariser(x[: self.penalised])
        return penalty, slope

    def _regulariser(self, x: Vector) -> tuple[float, Vector]:
        """Compute the regulariser at the penalised coordinates x, and its gradient."""
        if self._reg_code == kernels.L2:
            square = 0.5 * self.alpha * float(kernels.total(x * x))
            if not math.isfinite(square):  # alpha x^2 may be finite where x^2 is not
                root = math.sqrt(0.5 * self.alpha) * x
                square = float(kernels.total(root * root))
            return square, self.alpha * x
        if self._reg_code == kernels.SMOOTHED_L1:
            root = np.hypot(x, kernels.DELTA)
            return self.alpha * float(kernels.total(root - kernels.DELTA)), self.alpha * x / root
        x = np.clip(x, -1e77, 1e77)  # both are at their limits there, and q^2 would overflow
        q = 1.0 + x * x
        return self.alpha * float(kernels.total(x * x / q)), 2.0 * self.alpha * x / (q * q)

    def _sums(
        self,
        x: Vector,
        want_loss: bool,
        threads: int,
        scale: Vector,
        margins: Vector | None = None,
    ) -> tuple[float, Vector]:
        """Add up blocks of clients in order; their number depends on the data alone.

        A block's losses are a task of their own, for which only its margins are needed. So two
        threads have six tasks in place of three on data with three blocks.
        """
        _, idx, val = self._rows_and_targets[:3]
        entries = val.size if idx is None else len(idx)
        count = max(1, min(self.N, 32, entries >> 17))
        edges = [self.N * i // count for i in range(count + 1)]
        sums = np.zeros((count, self.d))
        target, start = self._rows_and_targets[3:5]
        fused = want_loss and self._loss.fused
        apart = want_loss and not fused
        if apart and margins is None:
            margins = self._empty_margins(len(target))

        def block(i: int) -> float:
            return self._objective(edges[i], edges[i + 1], x, fused, sums[i], scale, margins)

        def losses(i: int) -> float:
            args = (self._loss_code, edges[i], edges[i + 1], margins)
            return float(self._kernels.losses(target, start, scale, *args))

        parts = map_threads(block, count, threads, losses if apart else None)
        loss, grad = 0.0, np.zeros(self.d)
        for part, total in zip(parts, sums, strict=True):
            loss += part
            grad += total
        return loss, grad
