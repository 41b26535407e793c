"""Linear models, f_ij(x) = loss(a_ij . x, b_ij) + regulariser(x), over partitioned data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedpage.core.capabilities import ClientEvaluations
from fedpage.core.errors import InputError, short_repr
from fedpage.core.jit import map_threads
from fedpage.core.metrics import (
    LOSS,
    Metric,
    MetricFunction,
    MetricsOption,
    client_quantiles,
    describe_metrics,
    evaluate_groups,
    evaluate_metrics,
    metrics_digest,
    quantile_bases,
    resolve_metrics,
    row_metrics,
)
from fedpage.core.types import ClientDraws, Ints, Smoothness, Vector
from fedpage.core.validate import as_array, is_word
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, blocks, by_id
from fedpage.problems import kernels
from fedpage.problems.base import (
    Description,
    Weights,
    client_scale,
    describe_weights,
    equal_size,
    norm,
)
from fedpage.problems.losses import (
    DELTA,
    L2,
    LOSSES,
    NO_REG,
    REGULARISERS,
    SMOOTHED_L1,
    SOFTMAX,
    Loss,
    Reg,
    choose_regulariser,
    find_loss,
)
from fedpage.problems.oracle import LinearOracle
from fedpage.problems.predict import (
    Classes,
    check_encoding,
    class_numbers,
    encode_labels,
    features,
    kernel_rows,
)
from fedpage.problems.scores import ClientId, ClientScores, ClientScoring, ClientTable
from fedpage.problems.smoothness import smoothness


class LinearModel(ClientScoring):
    """A loss of a linear model over a partitioned data set.

    Subclasses such as `LogisticRegression` fix the loss. `LinearModel(data, clients, loss=...)`
    takes any loss of the library by its name, and a loss of your own as a class.

    Args:
        data: The rows. Dense rows are computed with as dense rows, sparse ones as sparse rows.
        clients: A number of clients (equal consecutive blocks, the remainder dropped), or a
            Partition. If None, there is a client for each id of `data.clients`.
        loss: The name of a loss, or a class with `value(t, b)`, `slope(t, b)` and `curvature` (see
            docs/add-objective.md). Subclasses know theirs.
        reg: "none", "l2" (alpha |x|^2/2), "nonconvex" (alpha sum_l x_l^2/(1+x_l^2), the paper's) or
            "smoothed-l1" (alpha sum_l sqrt(x_l^2+delta^2)-delta with delta = 0.01).
        alpha: The regulariser's weight, 0.1 by default. Without reg it is the weight of "l2".
        intercept: Whether the model has an intercept, which is its last parameter and is not
            regularised. By default only tables (CSV files, data frames) have one.
        weights: "uniform" (the paper's f = mean over clients), "size", or N positive numbers. They
            scale a client's objective by N w_i, so that methods need no change.
        metrics: Metrics to record of the margins a.x (for a Poisson model, of the means exp(a.x))
            and the labels: names such as "accuracy", "auc", "accuracy_worst" and "f_minus_fstar",
            or functions (outputs, targets) -> float; see docs/metrics.md.
        held_out: Rows that no client has. `held_out_loss`, their mean loss without the regulariser,
            and `held_out_METRIC` are recorded.

    Raises:
        InputError: If an argument cannot be used.
    """

    loss_name: ClassVar[str] = ""
    alpha: float
    intercept: bool
    """Whether the model has an intercept for each output."""
    classes: Classes | None
    """The labels of a classification, in the order of the targets; None for a regression."""

    def __init__(
        self,
        data: Dataset,
        clients: int | Partition | None = None,
        *,
        loss: str | type | None = None,
        reg: Reg | None = None,
        alpha: float | None = None,
        intercept: bool | None = None,
        weights: Weights = "uniform",
        metrics: MetricsOption = (),
        held_out: Dataset | None = None,
    ) -> None:
        if loss is not None and self.loss_name and not is_word(loss, (self.loss_name,)):
            raise InputError(
                f"{type(self).__name__} has the loss {self.loss_name!r}; leave loss out"
            )
        if not (loss or self.loss_name):
            raise InputError(
                f"{type(self).__name__}: give loss=, one of {', '.join(LOSSES)} or your own class"
            )
        self._loss: Loss = find_loss(loss or self.loss_name)
        self.name = self._loss.title
        _check_data(self.name, "data", data)
        self.reg, self.alpha = choose_regulariser(self._loss, reg, alpha)
        self.data = data
        if not isinstance(intercept, (bool, np.bool_, type(None))):
            raise InputError(
                f"{self.name}: intercept must be True or False, not {short_repr(intercept)}"
            )
        self.intercept = data.encoding is not None if intercept is None else bool(intercept)
        self.partition = _choose_partition(self.name, data, clients)
        self.weights = weights if isinstance(weights, str) else "given"
        self._sizes = self.partition.sizes
        self._scale = client_scale(weights, self._sizes)
        target, self.classes = encode_labels(self.name, self._loss, data)
        self._store(target)
        self.convex = self._loss.convex and REGULARISERS[self.reg].convex
        self.metrics = resolve_metrics(metrics, self.name)
        self._constants: Smoothness | None = None
        self._reference: object = None
        self.held_out = held_out
        self._held_out_groups: Partition | None = None
        """The held-out rows by client, found when they are first needed."""
        for metric in self.metrics.values():
            self._check_labels(metric, data)
        if held_out is not None:
            self._store_held_out(held_out)

    def _store(self, target: Vector) -> None:
        """Store the rows in client order as kernels take them, and their targets (n,)."""
        order, data = self.partition.order, self.data
        if len(order) and (int(order.min()) < 0 or int(order.max()) >= data.rows):
            raise InputError(
                f"{self.name}: the partition names rows that {data.name!r} does not have"
            )
        if (not data.is_dense and data.nonzeros >= 2**32) or len(order) >= 2**32:
            raise InputError(
                f"{self.name}: more than 4,294,967,295 nonzeros or rows; divide the data set"
            )
        self._rows_and_targets: tuple[Any, ...] = (
            *kernel_rows(data.matrix, order), target[order], self.partition.ptr, self._scale,
        )  # fmt: skip
        self._set_codes()

    def _set_codes(self) -> None:
        self._loss_code = self._loss.code or (self.outputs,)
        self._reg_code = REGULARISERS[self.reg].code if self.alpha > 0 else NO_REG
        codes = (self._loss_code, self._reg_code, self.alpha, self.data.features)
        self._kernel_data = (*self._rows_and_targets, *codes)
        self._equal = equal_size(self._sizes)

    def _store_held_out(self, held_out: Dataset) -> None:
        """Store held-out rows as kernels take them, and their targets."""
        _check_data(self.name, "held_out", held_out)
        check_encoding(self.name, self.data, held_out)
        if held_out.features > self.data.features:
            raise InputError(
                f"{self.name}: held_out has {held_out.features} features, "
                f"the clients' rows have {self.data.features}"
            )
        target, _ = encode_labels(self.name, self._loss, held_out, self.classes)
        self._held_out_rows = (*kernel_rows(held_out.matrix), target)
        for metric in self.metrics.values():
            self._check_labels(metric, held_out)

    def _check_labels(self, metric: Metric, data: Dataset) -> None:
        """Refuse a metric of classes for other labels."""
        if metric.needs_labels and self.classes is None and not data.binary:
            raise InputError(
                f"{self.name}: metric {metric.name!r} needs labels -1/1, 0/1 or 1/2, "
                f"which {data.name!r} does not have; for numbers use rmse, mae or r2"
            )

    # --- the problem ------------------------------------------------------------------------------

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
        """The number of margins of a row: the number of classes for a softmax, else 1."""
        return len(self.classes) if self._loss is SOFTMAX and self.classes is not None else 1

    @property
    def is_strongly_convex(self) -> bool:
        """Whether every parameter of a convex loss has an l2 regulariser; an intercept has none."""
        return self.convex and self.reg == "l2" and self.alpha > 0 and not self.intercept

    def rescale(self, factor: float) -> Self:
        """Multiply every client's objective by a factor.

        A Flower node that has client i alone uses it, with the factor N w_i.
        """
        twin = copy(self)
        twin._scale, twin._constants, twin._reference = self._scale * factor, None, None
        twin.weights = "given"
        twin._rows_and_targets = (*self._rows_and_targets[:-1], twin._scale)
        twin._set_codes()
        return twin

    def mean_labels(self) -> Vector:
        """(N,) the mean label of each client's rows."""
        target = self._rows_and_targets[3]
        return np.asarray(np.add.reduceat(target, self.partition.ptr[:-1]) / self._sizes)

    def oracle(self, clients: Ints, draws: ClientDraws) -> LinearOracle:
        """Return the oracle of the called clients (n,) in this round."""
        return LinearOracle(self, clients, draws)

    def smoothness(self) -> Smoothness:
        """Compute Lipschitz constants of the gradients.

        A row's is |a|^2 times the loss's curvature. A client's and f's are the curvature times the
        largest eigenvalue of the (weighted) second moment of the rows, to which an intercept adds a
        feature 1. The regulariser adds its curvature: alpha for l2, 2 alpha for nonconvex and
        100 alpha for smoothed-l1. They are computed once.

        Raises:
            InputError: If the loss has no bounded curvature.
        """
        if self._constants is None:
            self._constants = smoothness(self)
        return self._constants

    def __repr__(self) -> str:
        loss = "" if self.loss_name else self.name
        reg = "" if self.reg == "none" else f"{self.reg} alpha={self.alpha:g}"
        kind, _, arguments = self.partition.name.partition("(")
        words = arguments.removesuffix(")").split(", ")
        partition = ", ".join([kind, *(word for word in words if word not in ("", str(self.N)))])
        about = [self.data.name, loss, reg, "intercept" if self.intercept else ""]
        return self._repr(about, partition)

    def describe(self) -> Description:
        """Describe the problem: objective, data and partition, with digests."""
        about: Description = {
            "objective": self.name,
            "data": self.data.name,
            "data_digest": self.data.digest,
            "data_note": self.data.note or None,
            "N": self.N,
            "d": self.d,
            "rows": int(self._sizes.sum()),
            "partition": self.partition.name,
            "partition_digest": self.partition.digest,
            "loss_digest": self._loss.digest or None,
            "intercept": self.intercept or None,
            "regulariser": None if self.reg == "none" else self.reg,
            "alpha": None if self.reg == "none" else self.alpha,
            "metrics": describe_metrics(self.metrics) or None,
            "metrics_digest": metrics_digest(self.metrics),
            "held_out": None if self.held_out is None else self.held_out.digest,
        }
        known = {name: value for name, value in about.items() if value is not None}
        return known | describe_weights(self.weights, self._scale)

    # --- evaluation -------------------------------------------------------------------------------

    def loss(self, x: Vector) -> float:
        """Compute f(x) = (1/N) sum_i N w_i (1/M_i) sum_j f_ij(x) at x (d,)."""
        return self._evaluate(self._point(x), True, 1)[0]

    def grad(self, x: Vector, threads: int = 1) -> Vector:
        """Compute the gradient (d,) of f at x (d,)."""
        return self._evaluate(self._point(x), False, threads)[1]

    def evaluate(self, x: Vector, threads: int = 1) -> Mapping[str, float]:
        """Evaluate the columns of a record at x (d,). The number of threads changes no bit.

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
        """Evaluate held_out_loss and the metrics on the held-out rows, if there are any."""
        if self.held_out is None:
            return {}
        *rows, target = self._held_out_rows
        margins = self._empty_margins(len(target))
        x, code = self._point(x), self._loss_code
        with np.errstate(over="ignore", invalid="ignore"):
            kernels.margins(code, *rows, self.data.features, 0, x, margins)
            row = {"loss": float(kernels.mean_loss(code, margins, target))}
            outputs = self._predictions(margins)
            row |= evaluate_metrics(self.metrics, outputs, target, "held_out")
            row |= self._held_out_client_columns(margins, target)
        return {f"held_out_{name}": value for name, value in row.items()}

    def evaluate_clients(self, clients: Ints, x: Vector) -> ClientEvaluations:
        """Evaluate x on each client's own rows.

        Args:
            clients: Client numbers (n,).
            x: The model (d,).

        Returns:
            Losses (n,) N w_i f_i(x) and gradients (n, d), regulariser included, and the metrics.
        """
        x, scale = self._point(x), self._scale[clients]
        of_rows = row_metrics(self.metrics)
        values = {name: np.empty(len(clients)) for name in of_rows}
        start, target = self._rows_and_targets[4], self._rows_and_targets[3]
        with np.errstate(over="ignore", invalid="ignore"):
            none = self._empty_margins(0)
            losses, gradients = self._objective(clients, clients + 1, x, True, self._scale, none)
            penalty, slope = self._penalty(x)
            losses, gradients = losses + scale * penalty, gradients + scale[:, None] * slope
            for row, client in enumerate(clients.tolist() if of_rows else ()):
                first, end = int(start[client]), int(start[client + 1])
                outputs = self._predictions(self._margins(x, first, end))
                each = evaluate_metrics(of_rows, outputs, target[first:end], f"client {client}")
                for name, value in each.items():
                    values[name][row] = value
        return ClientEvaluations(losses, gradients, values)

    def _predictions(self, margins: Vector) -> Vector:
        """Return the outputs that metrics compare with the targets: margins, or Poisson means."""
        return np.asarray(np.exp(margins)) if self._loss.name == "poisson" else margins

    def _margins(self, x: Vector, first: int, end: int) -> Vector:
        """Compute the margins of rows first..end-1, which are in client order."""
        out = self._empty_margins(end - first)
        rows = self._rows_and_targets[:3]
        kernels.margins(self._loss_code, *rows, self.data.features, first, x, out)
        return out

    def _empty_margins(self, rows: int) -> Vector:
        return np.empty(rows if self._loss is not SOFTMAX else (rows, self.outputs))

    def _point(self, x: Vector) -> Vector:
        x = as_array(f"{self.name}: x (such as history.x)", x, np.float64)
        if x.shape != (self.d,):
            raise InputError(f"{self.name}: x must have shape ({self.d},), not {x.shape}")
        return x

    def _evaluate(
        self, x: Vector, want_loss: bool, threads: int, margins: Vector | None = None
    ) -> tuple[float, Vector]:
        """Compute f, if wanted, its gradient, and the margins of all rows, if given.

        Blocks of clients are added up in order. Their number depends on the data alone.
        """
        _, idx, val = self._rows_and_targets[:3]
        count = max(1, min(self.N, 32, (val.size if idx is None else len(idx)) >> 17))
        edges = self.N * np.arange(count + 1) // count
        kept = self._empty_margins(0) if margins is None else margins
        with np.errstate(over="ignore", invalid="ignore"):  # far away both may be infinite
            loss, grad = self._sum_blocks(edges, x, want_loss, threads, self._scale, kept)
            loss /= self.N
            grad /= self.N
            finite = math.isfinite(grad.dot(grad)) or np.isfinite(grad).all()
            if not (math.isfinite(loss) and finite):  # the mean may be finite if the sum is not
                scale = self._scale / self.N
                loss, grad = self._sum_blocks(edges, x, want_loss, threads, scale, kept)
            if self._reg_code != NO_REG:
                penalty, slope = self._penalty(x)
                loss += penalty
                grad += slope
        return loss, grad

    def _sum_blocks(
        self, edges: Ints, x: Vector, want_loss: bool, threads: int, scale: Vector, margins: Vector
    ) -> tuple[float, Vector]:
        parts = [(edges[:-1], edges[1:])]
        if threads > 1:
            parts = [(edges[i : i + 1], edges[i + 1 : i + 2]) for i in range(len(edges) - 1)]
        found = map_threads(
            lambda i: self._objective(*parts[i], x, want_loss, scale, margins), len(parts), threads
        )
        loss, grad = 0.0, np.zeros(self.d)
        for losses, sums in found:
            for k, value in enumerate(losses.tolist()):
                loss += value
                grad += sums[k]
        return loss, grad

    def _objective(
        self, lo: Ints, hi: Ints, x: Vector, want_loss: bool, scale: Vector, margins: Vector
    ) -> tuple[Vector, Vector]:
        """Compute the sums of losses (n,) and of gradients (n, d) of n blocks of clients.

        Args:
            lo: The first client of each block, (n,).
            hi: The end of each block, (n,).
            x: The point (d,).
            want_loss: Whether losses are computed.
            scale: The factors of the clients' objectives, (N,).
            margins: Output array for all rows, of which those of the clients are filled, or empty.
        """
        losses, sums = np.empty(len(lo)), np.empty((len(lo), self.d))
        data = (*self._rows_and_targets[:-1], scale, self._loss_code, self.data.features)
        kernels.objective(*data, lo, hi, x, want_loss, sums, losses, margins)
        return losses, sums

    def _penalty(self, x: Vector) -> tuple[float, Vector]:
        """Compute the regulariser at x, and its gradient (d,), which is 0 for the intercepts."""
        slope = np.zeros(self.d)
        if self._reg_code == NO_REG:
            return 0.0, slope
        alpha, x = self.alpha, x[: self.penalised]
        if self._reg_code == L2:
            penalty = 0.5 * alpha * float(kernels.total(x * x))
            if not math.isfinite(penalty):  # alpha x^2 may be finite where x^2 is not
                root = math.sqrt(0.5 * alpha) * x
                penalty = float(kernels.total(root * root))
            slope[: self.penalised] = alpha * x
        elif self._reg_code == SMOOTHED_L1:
            root = np.hypot(x, DELTA)
            penalty = alpha * float(kernels.total(root - DELTA))
            slope[: self.penalised] = alpha * x / root
        else:
            x = np.clip(x, -1e77, 1e77)  # both are at their limits there, and q^2 would overflow
            q = 1.0 + x * x
            penalty = alpha * float(kernels.total(x * x / q))
            slope[: self.penalised] = 2.0 * alpha * x / (q * q)
        return penalty, slope

    # --- prediction -------------------------------------------------------------------------------

    def coefficients(self, x: Vector) -> tuple[Vector, Vector]:
        """Divide parameters into coefficients and intercepts.

        Args:
            x: The parameters (d,), such as `history.x`.

        Returns:
            Coefficients (C, p) and intercepts (C,), which are zero for a model without them. C is
            the number of classes for a softmax, and else 1.
        """
        table = self._point(x).reshape(-1, self.outputs).T
        if not self.intercept:
            return table, np.zeros(self.outputs)
        return table[:, :-1], table[:, -1]

    def margins(self, x: Vector, X: Any) -> Vector:
        """Compute the linear model's outputs a.x + intercept for new rows.

        Args:
            x: The parameters (d,), such as `history.x`.
            X: n rows: an array or sparse matrix (n, p), a `Dataset`, or a table of the columns that
                the training data was made from, which are encoded in the same way.

        Returns:
            Margins (n,), or (n, C) for a softmax.

        Raises:
            InputError: If the rows do not have the features of the training data.
        """
        coefficients, intercepts = self.coefficients(x)
        rows = features(self.name, self.data, X)
        outputs = np.asarray(rows @ coefficients.T) + intercepts
        return outputs if self.outputs > 1 else outputs[:, 0]

    def predict(self, x: Vector, X: Any) -> NDArray[Any]:
        """Predict new rows.

        Args:
            x: The parameters (d,), such as `history.x`.
            X: n rows, as for `margins`.

        Returns:
            Labels (n,) as they were given in the training data, or numbers for a regression.
        """
        margins = self.margins(x, X)
        if self.classes is None:
            return self._predictions(margins)
        return np.asarray(np.asarray(self.classes)[self._choose_classes(margins)])

    def predict_proba(self, x: Vector, X: Any) -> Vector:
        """Compute the probability of each class.

        Args:
            x: The parameters (d,), such as `history.x`.
            X: n rows, as for `margins`.

        Returns:
            Probabilities (n, C), in the order of `classes`.

        Raises:
            InputError: If the model has no probabilities.
        """
        if self._loss.name not in ("logistic", "softmax"):
            raise InputError(
                f"{self.name} has no probabilities; use logistic or softmax, or `margins`"
            )
        from scipy.special import expit, softmax

        margins = self.margins(x, X)
        if self.outputs > 1:
            return np.asarray(softmax(margins, axis=1))
        return np.column_stack([expit(-margins), expit(margins)])

    def score(self, x: Vector, data: Dataset) -> float:
        """Score the predictions: the accuracy for classes, R^2 for a regression.

        Args:
            x: The parameters (d,), such as `history.x`.
            data: Rows with labels or targets, such as those of `Dataset.split`.

        Returns:
            The share of correct labels, or 1 - (sum of squared residuals)/(that of the mean).

        Raises:
            InputError: If data is not a Dataset, or has other features or unknown labels.
        """
        if not isinstance(data, Dataset):
            raise InputError(
                f"{self.name}: score needs a Dataset with labels, not {type(data).__name__}; "
                "see fp.Dataset.from_arrays"
            )
        if self.classes is None:
            residuals = data.y - self.predict(x, data)
            spread = float(((data.y - data.y.mean()) ** 2).sum())
            error = float((residuals**2).sum())
            return 1.0 - error / spread if spread > 0 else float(error == 0.0)
        chosen = self._choose_classes(self.margins(x, data))
        return float((chosen == class_numbers(self.name, data, self.classes)[0]).mean())

    def _choose_classes(self, margins: Vector) -> Ints:
        """Return the number of the most likely class of each row."""
        return margins.argmax(axis=1) if self.outputs > 1 else (margins > 0).astype(np.int64)

    # --- scores of clients ------------------------------------------------------------------------

    def client_scores(
        self,
        x: Vector,
        data: Dataset | None = None,
        *,
        metric: str | Metric | MetricFunction | None = None,
    ) -> ClientScores:
        """Compute a metric on the rows of each client, such as the test accuracy per hospital.

        Args:
            x: The parameters (d,), such as `history.x`.
            data: Rows with client ids, such as the test set of `Dataset.split`. If None, use the
                rows that the clients train on.
            metric: A metric's name or function; by default "accuracy" for classes, "rmse" for a
                regression. "loss" is the mean loss, with the regulariser for training rows.

        Returns:
            The value of each client by its id, or by its number if clients have no ids.

        Raises:
            InputError: If data has no client ids, other features or unknown labels, or the metric
                cannot be computed.
        """
        default = "rmse" if self.classes is None else "accuracy"
        metric = default if metric is None else metric
        if data is None:
            return super().client_scores(x, metric=metric)
        base = self._find_metric(metric)
        if not isinstance(data, Dataset) or data.clients is None:
            raise InputError(
                f"{self.name}: client_scores needs a Dataset that says whose row each is; load it "
                "with client=COLUMN, or give Dataset.from_arrays(..., clients=ids)"
            )
        self._check_labels(base, data)
        groups = by_id(data.clients)
        target, _ = encode_labels(self.name, self._loss, data, self.classes)
        with np.errstate(over="ignore", invalid="ignore"):
            margins = self.margins(x, data)[groups.order]
            target = target[groups.order]
            values = self._group_values({base.name: base}, margins, target, groups.ptr)
        return ClientScores(base, groups.ids or (), values[base.name], groups.sizes)

    def _client_table(
        self, x: Vector, bases: Mapping[str, Metric], outputs: Vector | None = None
    ) -> ClientTable:
        x = self._point(x)
        _, _, _, target, starts, _ = self._rows_and_targets
        with np.errstate(over="ignore", invalid="ignore"):
            margins = self._margins(x, 0, len(target)) if outputs is None else outputs
            values = self._group_values(bases, margins, target, starts)
            if "loss" in values:
                values["loss"] += self._penalty(x)[0]
        ids: Sequence[ClientId] = self.partition.ids or range(self.partition.N)
        return ClientTable(ids, self.partition.sizes, values)

    def _held_out_client_columns(self, margins: Vector, target: Vector) -> dict[str, float]:
        """Compute the quantiles over the clients whose ids the held-out rows have, if they do.

        If some of these ids are in the partition, only those count. After a split by clients none
        is, and all ids count.
        """
        bases = quantile_bases(self.metrics)
        if not bases or self.held_out is None or self.held_out.clients is None:
            return {}
        groups = self._held_out_groups = self._held_out_groups or by_id(self.held_out.clients)
        values = self._group_values(bases, margins[groups.order], target[groups.order], groups.ptr)
        known = np.isin(np.asarray(groups.ids), np.asarray(self.partition.ids or ()))
        if known.any():
            values = {name: column[known] for name, column in values.items()}
        return client_quantiles(self.metrics, values)

    def _group_values(
        self, bases: Mapping[str, Metric], margins: Vector, target: Vector, starts: Ints
    ) -> dict[str, Vector]:
        """Compute metrics, and mean losses without the regulariser, of groups of rows."""
        values = {}
        for name, base in bases.items():
            if base is LOSS:
                mean, code = kernels.mean_loss, self._loss_code
                groups = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
                values[name] = np.array([mean(code, margins[a:b], target[a:b]) for a, b in groups])
            else:
                values[name] = evaluate_groups(base, self._predictions(margins), target, starts)
        return values


def _choose_partition(owner: str, data: Dataset, clients: int | Partition | None) -> Partition:
    if isinstance(clients, Partition):
        return clients
    if isinstance(clients, (Sequence, np.ndarray)) and not isinstance(clients, str):
        raise InputError(
            f"{owner}: clients must be a number or a Partition; if these are the rows' ids, give "
            "fp.by_id(ids)"
        )
    if clients is not None:
        return blocks(data.rows, clients)
    if data.clients is None:
        raise InputError(
            f"{owner}: {data.name!r} does not say whose row each is; give a number of clients or a "
            "partition, or load the data with client=COLUMN"
        )
    return by_id(data.clients)


def _check_data(owner: str, what: str, data: object) -> None:
    if not isinstance(data, Dataset):
        raise InputError(
            f"{owner}: {what} must be a fedpage Dataset, not {type(data).__name__}; see fp.load"
        )
