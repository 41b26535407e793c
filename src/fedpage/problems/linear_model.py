"""Linear models, f_ij(x) = loss(a_ij . x, b_ij) + regulariser(x), over partitioned data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import ClassVar, Self

import numpy as np

from fedpage.core.display import html_description
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.metrics import MetricsOption, describe_metrics, resolve_metrics
from fedpage.core.types import Draws, Ints, Smoothness, Vector
from fedpage.core.validate import as_number, is_word
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, blocks
from fedpage.problems import kernels
from fedpage.problems.base import (
    Description,
    Weights,
    client_scale,
    describe_weights,
    equal_size,
)
from fedpage.problems.kernels import LOSSES, REGULARISERS, Loss, Reg
from fedpage.problems.labels import Classes, counts, targets, two_classes
from fedpage.problems.linear_oracle import LinearOracle
from fedpage.problems.linear_scores import LinearScores
from fedpage.problems.own_loss import compile_loss
from fedpage.problems.prediction import check_encoding
from fedpage.problems.reprs import repr_linear
from fedpage.problems.smoothness import smoothness
from fedpage.problems.storage import kernel_rows

_ALPHA = 0.1
"""The weight of a regulariser where none is given: the paper's."""


class LinearModel(LinearScores):
    """A loss of a linear model over a partitioned data set.

    Subclasses such as `LogisticRegression` fix the loss. `LinearModel(data, clients, loss=...)`
    takes any loss of the library by its name, and a loss of your own as a class.

    Args:
        data: the rows. Dense rows are computed with as dense rows, sparse ones as sparse rows.
        clients: a number of clients (equal consecutive blocks, the remainder dropped), or a
            Partition; None: a client for each id of `data.clients`.
        loss: the name of a loss, or a class with `value(t, b)`, `slope(t, b)` and `curvature` (see
            docs/add-objective.md); a subclass has its own.
        reg: "none", "l2" (alpha |x|^2/2), "nonconvex" (alpha sum_l x_l^2/(1+x_l^2), the paper's) or
            "smoothed-l1" (alpha sum_l sqrt(x_l^2+delta^2)-delta with delta = 0.01).
        alpha: the regulariser's weight, 0.1 by default. Without reg it is the weight of "l2".
        intercept: whether the model has an intercept, which is its last parameter and is not
            regularised. By default tables (CSV files, data frames) have one, other data has none.
        weights: "uniform" (the paper's f = mean over clients), "size", or N positive numbers. They
            scale a client's whole objective by N w_i, so that every method stays as it is.
        metrics: what to record of the margins a.x (of a Poisson model, of the means exp(a.x)) and
            the labels: names such as "accuracy", "auc", "accuracy_worst" and "f_minus_fstar", or
            functions (outputs, targets) -> float; see docs/metrics.md.
        held_out: rows that no client has. `held_out_loss`, their mean loss without the regulariser,
            and `held_out_METRIC` are recorded.

    Raises:
        InputError: something given cannot be used.
    """

    loss_name: ClassVar[str] = ""

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
        self._loss: Loss = self._find_loss(loss or self.loss_name)
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
        target, self.classes = self._encode_labels(data, None)
        self._store(target)
        self.convex = self._loss.convex and REGULARISERS[self.reg].convex
        self.metrics = resolve_metrics(metrics, self.name)
        self._constants: Smoothness | None = None
        self._reference: object = None
        self.held_out = held_out
        self._check_evaluation()

    def _find_loss(self, loss: str | type) -> Loss:
        return LOSSES[loss] if isinstance(loss, str) else compile_loss(loss)

    def _encode_labels(
        self, data: Dataset, classes: Classes | None
    ) -> tuple[Vector, Classes | None]:
        """Return the targets (n,) of a data set, and its classes or those given."""
        if self._loss.needs_labels:
            return two_classes(self.name, data, classes)
        return (counts if self._loss.needs_counts else targets)(self.name, data), None

    def _check_evaluation(self) -> None:
        """Refuse held-out rows of another shape, and metrics that the labels do not suit."""
        if self.held_out is not None:
            _check_data(self.name, "held_out", self.held_out)
            check_encoding(self.name, self.data, self.held_out)
            if self.held_out.features > self.data.features:
                raise InputError(
                    f"{self.name}: held_out has {self.held_out.features} features, "
                    f"the clients' rows have {self.data.features}"
                )
            target, _ = self._encode_labels(self.held_out, self.classes)
            self._held_out_rows = (*kernel_rows(self.held_out.matrix), target)
        for data in (self.data, *([] if self.held_out is None else [self.held_out])):
            for metric in self.metrics.values():
                self._check_labels(metric, data)

    def _store(self, target: Vector) -> None:
        """Keep the rows in client order as kernels take them, and their targets (n,)."""
        order, data = self.partition.order, self.data
        if len(order) and (int(order.min()) < 0 or int(order.max()) >= data.rows):
            raise InputError(
                f"{self.name}: the partition names rows that {data.name!r} does not have"
            )
        if (not data.is_dense and data.nonzeros >= 2**32) or len(order) >= 2**32:
            raise InputError(
                f"{self.name}: more than 4,294,967,295 nonzeros or rows; divide the data set"
            )
        self._rows_and_targets = (
            *kernel_rows(data.matrix, order),
            target[order],
            self.partition.ptr,
            self._scale,
        )
        self._set_codes()

    def _set_codes(self) -> None:
        self._reg_code = REGULARISERS[self.reg].code if self.alpha > 0 else kernels.NO_REG
        codes = (self._loss_code, self._reg_code, self.alpha, self.data.features)
        self._kernel_data = (*self._rows_and_targets, *codes)
        self._equal = equal_size(self._sizes)

    @property
    def is_strongly_convex(self) -> bool:
        """Whether every parameter of a convex loss has an l2 regulariser; an intercept has none."""
        return self.convex and self.reg == "l2" and self.alpha > 0 and not self.intercept

    @property
    def sizes(self) -> Ints:
        """(N,) rows M_i of each client."""
        return self._sizes

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

    def oracle(self, clients: Ints, draws: Draws) -> LinearOracle:
        """Return the oracle of the called clients (n,) in this round."""
        return LinearOracle(self, clients, draws)

    def smoothness(self) -> Smoothness:
        """Compute Lipschitz constants of the gradients.

        A row's is |a|^2 times the loss's curvature. A client's and f's are the curvature times the
        largest eigenvalue of the (weighted) second moment of the rows, to which an intercept adds a
        feature 1. The regulariser adds its curvature: alpha for l2, 2 alpha for nonconvex and
        100 alpha for smoothed-l1. They are computed once.

        Raises:
            InputError: the loss has no bounded curvature.
        """
        if self._constants is None:
            self._constants = smoothness(self)
        return self._constants

    def __repr__(self) -> str:
        return repr_linear(self)

    _repr_html_ = html_description

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
        if self._loss.digest:
            about["loss_digest"] = self._loss.digest
        if self.intercept:
            about["intercept"] = True
        if self.reg != "none":
            about |= {"regulariser": self.reg, "alpha": self.alpha}
        if self.metrics:
            about["metrics"] = describe_metrics(self.metrics)
        if self.held_out is not None:
            about["held_out"] = self.held_out.digest
        return about | describe_weights(self.weights, self._scale)


def choose_regulariser(loss: Loss, reg: Reg | None, alpha: float | None) -> tuple[Reg, float]:
    """Check a regulariser and its weight, and choose those that are not given.

    Args:
        loss: the loss, for messages.
        reg: the regulariser's name, or None.
        alpha: its weight, or None.

    Returns:
        The name and the weight. Without reg, alpha is the weight of "l2".

    Raises:
        InputError: the regulariser is unknown, the weight is not a number of at least 0, or a
            weight is given with reg="none".
    """
    if reg is not None and not is_word(reg, REGULARISERS):
        hint = did_you_mean(reg, REGULARISERS)
        known = ", ".join(REGULARISERS)
        raise InputError(
            f"{loss.title}: the regulariser must be one of {known}, not {short_repr(reg)}"
            f"{';' if hint else ''}{hint}"
        )
    if alpha is not None and not 0 <= as_number(alpha) < math.inf:
        raise InputError(
            f"{loss.title}: alpha must be a finite number of at least 0, not {short_repr(alpha)}"
        )
    if reg not in (None, "none"):
        return reg, _ALPHA if alpha is None else float(alpha)
    if not alpha:
        return "none", 0.0
    if reg is None:
        return "l2", float(alpha)
    raise InputError(
        f"{loss.title}: alpha={alpha:g} is the weight of a regulariser, but reg='none'; "
        "choose reg='l2' or leave alpha out"
    )


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
    from fedpage.data.client_ids import by_id

    return by_id(data.clients)


def _check_data(owner: str, what: str, data: object) -> None:
    if not isinstance(data, Dataset):
        raise InputError(
            f"{owner}: {what} must be a fedpage Dataset, not {type(data).__name__}; see fp.load"
        )
