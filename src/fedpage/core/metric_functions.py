"""The metrics of the library, as functions of outputs and targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpage.core.metric import (
    METRICS,
    Array,
    DeviceArray,
    Metric,
    MetricFunction,
    ReferenceMetric,
    metric,
)
from fedpage.core.types import Ints, Vector

ReferenceFunction: TypeAlias = Callable[[float, Vector, float, Vector], float]
"""(loss, x, loss of the reference solution, its x) -> float."""


def _array(values: Array) -> NDArray[np.generic]:
    if isinstance(values, DeviceArray):
        return values.detach().cpu().numpy()
    return np.asarray(values)


def _predictions(outputs: Array, targets: Array) -> tuple[Vector, Vector]:
    """Return outputs (rows,) and targets (rows,) as float64."""
    values = np.asarray(_array(outputs), dtype=np.float64)
    wanted = np.asarray(_array(targets), dtype=np.float64).reshape(-1)
    if values.size != wanted.size:
        raise ValueError(f"outputs of shape {values.shape} for {wanted.size} targets")
    return values.reshape(-1), wanted


def _classes(outputs: Array, targets: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the predicted and the true class (rows,): of the largest output, or of the sign."""
    values = _array(outputs)
    if values.ndim > 1 and values.shape[1] > 1:
        return values.argmax(1), np.asarray(_array(targets), dtype=np.int64).reshape(-1)
    margins, labels = _predictions(outputs, targets)
    return (margins > 0).astype(np.int64), (labels > 0).astype(np.int64)


def _correct(outputs: Array, targets: Array) -> NDArray[np.bool_]:
    predicted, true = _classes(outputs, targets)
    return np.asarray(predicted == true)


@metric("accuracy", higher_is_better=True, needs_labels=True, maximum=1.0, minimum=0.0)
def accuracy(outputs: Array, targets: Array) -> float:
    """Compute the share of rows whose class is predicted.

    Args:
        outputs: margins (rows,), whose sign is the class, or scores (rows, classes).
        targets: labels 0/1 or -1/1, or class numbers (rows,).

    >>> accuracy([[0.1, 0.9], [0.8, 0.2]], [1, 1]), accuracy([0.3, -2.0], [1, -1])
    (0.5, 1.0)
    """
    return float(np.mean(_correct(outputs, targets)))


@metric("f1", higher_is_better=True, needs_labels=True, maximum=1.0, minimum=0.0)
def f1(outputs: Array, targets: Array) -> float:
    """Compute the F1 score of the positive class, or with several classes the mean over classes.

    >>> round(f1([1.0, 1.0, -1.0], [1, -1, 1]), 3)
    0.5
    """
    predicted, true = _classes(outputs, targets)
    values = _array(outputs)
    several = values.ndim > 1 and values.shape[1] > 1
    classes = np.union1d(predicted, true).tolist() if several else [1]
    scores = []
    for label in classes:
        hits = float(np.sum((predicted == label) & (true == label)))
        marked = float(np.sum(predicted == label) + np.sum(true == label))
        scores.append(2.0 * hits / marked if marked else 0.0)
    return float(np.mean(scores))


@metric("auc", higher_is_better=True, needs_labels=True, maximum=1.0, minimum=0.0)
def auc(outputs: Array, targets: Array) -> float:
    """Compute the area under the ROC curve; NaN if all rows are of one class.

    Args:
        outputs: margins (rows,), or scores (rows, classes). With several classes it is the mean
            over the classes that occur of the AUC of each against the rest (one-vs-rest, macro).
        targets: labels 0/1 or -1/1, or class numbers (rows,).

    >>> auc([0.1, 0.4, 0.35, 0.8], [-1, -1, 1, 1])
    0.75
    """
    values = _array(outputs)
    if values.ndim < 2 or values.shape[1] == 1:
        return _binary_auc(*_predictions(outputs, targets))
    true = np.asarray(_array(targets), dtype=np.int64).reshape(-1)
    present = np.unique(true)
    if len(present) < 2:
        return math.nan
    scores = np.asarray(values, dtype=np.float64)
    return float(np.mean([_binary_auc(scores[:, c], (true == c) * 1.0) for c in present]))


def _binary_auc(margins: Vector, labels: Vector) -> float:
    if np.isnan(margins).any():
        return math.nan
    _, inverse, counts = np.unique(margins, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - 0.5 * (counts - 1))[inverse]  # equal margins share a mean rank
    positive = labels > 0
    ones = int(positive.sum())
    zeros = len(labels) - ones
    if not ones or not zeros:
        return math.nan
    return float((ranks[positive].sum() - 0.5 * ones * (ones + 1)) / (ones * zeros))


@metric("log_loss", higher_is_better=False, needs_labels=True, minimum=0.0)
def log_loss(outputs: Array, targets: Array) -> float:
    """Compute the mean negative log-likelihood of margins (rows,) or logits (rows, classes).

    >>> round(log_loss([0.0, 0.0], [-1, 1]), 4)
    0.6931
    """
    return float(np.mean(_log_losses(outputs, targets)))


def _log_losses(outputs: Array, targets: Array) -> Vector:
    values = np.asarray(_array(outputs), dtype=np.float64)
    if values.ndim > 1 and values.shape[1] > 1:
        true = np.asarray(_array(targets), dtype=np.int64).reshape(-1)
        top = values.max(1, keepdims=True)
        total = np.log(np.exp(values - top).sum(1)) + top[:, 0]
        return np.asarray(total - values[np.arange(len(true)), true])
    margins, labels = _predictions(outputs, targets)
    return np.asarray(np.logaddexp(0.0, np.where(labels > 0, -margins, margins)))


@metric("mse", higher_is_better=False, minimum=0.0)
def mse(outputs: Array, targets: Array) -> float:
    """Compute the mean squared error.

    >>> mse([1.0, 3.0], [1.0, 1.0])
    2.0
    """
    return float(np.mean(_squares(outputs, targets)))


def _squares(outputs: Array, targets: Array) -> Vector:
    predicted, true = _predictions(outputs, targets)
    return np.asarray((predicted - true) ** 2)


@metric("rmse", higher_is_better=False, minimum=0.0)
def rmse(outputs: Array, targets: Array) -> float:
    """Compute the root of the mean squared error."""
    return math.sqrt(mse(outputs, targets))


@metric("mae", higher_is_better=False, minimum=0.0)
def mae(outputs: Array, targets: Array) -> float:
    """Compute the mean absolute error.

    >>> mae([1.0, 3.0], [1.0, 1.0])
    1.0
    """
    return float(np.mean(_absolutes(outputs, targets)))


def _absolutes(outputs: Array, targets: Array) -> Vector:
    predicted, true = _predictions(outputs, targets)
    return np.asarray(np.abs(predicted - true))


@metric("r2", higher_is_better=True, maximum=1.0)
def r2(outputs: Array, targets: Array) -> float:
    """Compute the share of the targets' variance that is explained; NaN for constant targets.

    >>> r2([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), r2([2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
    (1.0, 0.0)
    """
    predicted, true = _predictions(outputs, targets)
    spread = float(np.sum((true - true.mean()) ** 2))
    return 1.0 - float(np.sum((predicted - true) ** 2)) / spread if spread else math.nan


# Comparisons with the reference solution of the problem

ROUNDING = 1e-12
"""A loss that is below f* by at most this share of f* counts as f*."""


def _register_reference(name: str) -> Callable[[ReferenceFunction], ReferenceFunction]:
    def decorate(function: ReferenceFunction) -> ReferenceFunction:
        METRICS.add(name, ReferenceMetric(name, function, higher_is_better=False))
        return function

    return decorate


@_register_reference("f_minus_fstar")
def f_minus_fstar(loss: float, x: Vector, best_loss: float, best_x: Vector) -> float:
    """Compute f(x) - f*, where f* is the loss of the reference solution.

    A negative difference within rounding is 0. A loss that is clearly below f*, which a problem
    that is not convex may reach, gives a negative number.

    >>> f_minus_fstar(1.0 - 1e-15, np.zeros(1), 1.0, np.zeros(1))
    0.0
    """
    gap = loss - best_loss
    return 0.0 if -ROUNDING * abs(best_loss) <= gap < 0.0 else gap


@_register_reference("distance_to_optimum")
def distance_to_optimum(loss: float, x: Vector, best_loss: float, best_x: Vector) -> float:
    """Compute |x - x*|, the distance to the reference solution."""
    return math.dist(x.tolist(), best_x.tolist())  # its sum has one order, for any d


# Metrics of many groups of rows at once

_MEANS: dict[MetricFunction, Callable[[Array, Array], NDArray[np.generic]]] = {
    accuracy: _correct, log_loss: _log_losses, mse: _squares, rmse: _squares, mae: _absolutes,
}  # fmt: skip
"""Metrics that are means over the rows, or roots of such, with the function of each row."""


def evaluate_groups(
    entry: Metric, outputs: Array, targets: Array, starts: Ints, where: str = "a client's rows"
) -> Vector:
    """Compute a metric of each group of consecutive rows, such as those of a client.

    Args:
        entry: the metric.
        outputs: (rows,) or (rows, classes).
        targets: (rows,).
        starts: (n+1,) where groups begin, and the number of rows; no group is empty.
        where: what the groups are, for the error message.

    Returns:
        (n,) values, NaN where the metric is not defined.

    >>> evaluate_groups(METRICS["mse"], [1.0, 3.0, 2.0], [1.0, 1.0, 2.0], np.array([0, 2, 3]))
    array([2., 0.])
    """
    of_rows = _MEANS.get(entry.function)
    if of_rows is None:
        values, wanted = _array(outputs), _array(targets)
        groups = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        return np.array([entry(values[a:b], wanted[a:b], where) for a, b in groups])
    try:
        scores = np.asarray(of_rows(outputs, targets), dtype=np.float64)
    except Exception as error:
        raise entry.explain(error, where) from error
    means = np.add.reduceat(scores, starts[:-1]) / np.diff(starts)
    return np.asarray(np.sqrt(means) if entry.function is rmse else means)
