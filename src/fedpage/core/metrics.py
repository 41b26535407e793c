"""Metrics: named functions of a model's outputs and targets, each with a direction.

A metric is registered where it is defined:

    @metric("accuracy", higher_is_better=True)
    def accuracy(outputs, targets): ...

Every problem takes `metrics=` and records each metric as a column of the history: over the clients'
rows under its own name, over held-out rows as `held_out_NAME`. Whatever looks for a best value or a
target (`History.best`, `History.cost_to`, `Stop`, tuning, plots) asks `higher_is_better(column)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpage.core.columns import COLUMNS
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.registry import Registry
from fedpage.core.types import Vector

EVALUATED = ("loss", "grad_norm")
"""Columns that every problem evaluates. Lower is better."""
COST_COLUMNS = tuple(name for name, column in COLUMNS.items() if column.is_cost)
"""Columns that count what a run has cost; "bytes" is bytes_up + bytes_down. Lower is better."""
PREFIXES = ("held_out_clients_", "held_out_", "test_")
"""A column with such a prefix has the direction of the column without it."""


@runtime_checkable
class DeviceArray(Protocol):
    """An array that may be on a device, such as a torch tensor."""

    def detach(self) -> DeviceArray:
        """Return the array without its gradient."""
        ...

    def cpu(self) -> DeviceArray:
        """Return the array in the host's memory."""
        ...

    def numpy(self) -> NDArray[np.generic]:
        """Return the array as numpy's."""
        ...


Array: TypeAlias = ArrayLike | DeviceArray
MetricFunction: TypeAlias = Callable[..., float]
"""(outputs, targets) -> float. A problem's own array type is passed: numpy's, or torch tensors."""
M = TypeVar("M", bound=MetricFunction)


@dataclass(frozen=True)
class Metric:
    """A named function of outputs and targets.

    Attributes:
        name: the column it is recorded as.
        function: maps outputs (rows,) or (rows, classes) and targets (rows,) to a number.
        higher_is_better: its direction. None: unknown, so it can be recorded but not compared.
        needs_labels: whether the targets must be classes.
    """

    name: str
    function: MetricFunction
    higher_is_better: bool | None = None
    needs_labels: bool = False

    def __repr__(self) -> str:
        words = {True: "higher is better", False: "lower is better", None: "no direction"}
        return f"Metric({self.name}, {words[self.higher_is_better]})"

    def __call__(self, outputs: Array, targets: Array, where: str = "the rows") -> float:
        """Compute the metric.

        Args:
            outputs: margins or predictions (rows,), or a score for each class (rows, classes).
            targets: (rows,) labels or values.
            where: which rows these are, for the error message.

        Raises:
            InputError: the function failed, or did not return a number.
        """
        try:
            return float(self.function(outputs, targets))
        except Exception as error:  # the function may be a user's
            why = " ".join(str(error).split())[:160] or type(error).__name__
            text = f"metric {self.name!r} cannot be computed on {where}: {why}"
            raise InputError(text) from error


MetricsOption: TypeAlias = (
    str | Sequence[str | Metric | MetricFunction] | Mapping[str, str | Metric | MetricFunction]
)
"""What `metrics=` takes: names of registered metrics, functions, or a table name -> function."""

METRICS: Registry[Metric] = Registry("metric")


def metric(
    name: str, *, higher_is_better: bool, needs_labels: bool = False
) -> Callable[[M], M]:  # fmt: skip
    """Register a function of outputs and targets as a metric.

    Args:
        name: the column that it is recorded as.
        higher_is_better: whether a higher value is better.
        needs_labels: whether the targets must be classes.

    Returns:
        A decorator that leaves the function as it is.

    Raises:
        InputError: the name is taken or cannot name a column.

    >>> @metric("largest_error", higher_is_better=False)
    ... def largest_error(outputs, targets):
    ...     return abs(outputs - targets).max()
    >>> higher_is_better("held_out_largest_error")
    False
    >>> METRICS.remove("largest_error")
    """

    def decorate(function: M) -> M:
        _check_name(name, "metric")
        METRICS.add(name, Metric(name, function, higher_is_better, needs_labels))
        return function

    return decorate


def resolve_metrics(metrics: MetricsOption, owner: str) -> dict[str, Metric]:
    """Look up what a user gave as `metrics=`.

    Args:
        metrics: names of registered metrics, functions (named after themselves), `Metric`s, or a
            table of name -> function or Metric.
        owner: who asks, for the error message.

    Returns:
        The metrics by column name, in the order given.

    Raises:
        InputError: a name is unknown or taken, or an entry is not a function.

    >>> list(resolve_metrics(["accuracy", "auc"], "logistic regression"))
    ['accuracy', 'auc']
    """
    given: Iterable[tuple[str | None, object]]
    if isinstance(metrics, Mapping):
        given = metrics.items()
    elif isinstance(metrics, (str, Metric)) or callable(metrics):
        given = [(None, metrics)]
    elif isinstance(metrics, Iterable):
        given = [(None, entry) for entry in metrics]
    else:
        raise InputError(
            f"{owner}: metrics must be names, functions or a table of functions, "
            f"not {short_repr(metrics)}"
        )
    found: dict[str, Metric] = {}
    for name, entry in given:
        resolved = _resolve(name, entry, owner)
        _check_name(resolved.name, owner)
        found[resolved.name] = resolved
    return found


def _resolve(name: str | None, entry: object, owner: str) -> Metric:
    if isinstance(entry, str):
        if entry not in METRICS:
            hint = did_you_mean(entry, METRICS)
            known = ", ".join(METRICS)
            raise InputError(
                f"{owner}: unknown metric {short_repr(entry)}:{hint} known are {known}, "
                "or give a function of outputs and targets"
            )
        entry = METRICS[entry]
    if callable(entry) and not isinstance(entry, Metric):
        same = [known for known in METRICS.values() if known.function is entry]
        own_name = name or str(getattr(entry, "__name__", type(entry).__name__))
        entry = same[0] if same else Metric(own_name, entry)
    if not isinstance(entry, Metric):
        raise InputError(
            f"{owner}: metric {short_repr(name or entry)} must be a name or a function of outputs "
            "and targets"
        )
    if name is None or name == entry.name:
        return entry
    return Metric(name, entry.function, entry.higher_is_better, entry.needs_labels)


def _check_name(name: object, owner: str) -> None:
    """Refuse a name that is not a word, or that a history uses for another column."""
    taken = name in (*EVALUATED, *COST_COLUMNS)
    word = isinstance(name, str) and name.isidentifier() and not name.startswith(PREFIXES)
    if taken or not word:
        raise InputError(
            f"{owner}: a metric cannot be called {short_repr(name)}; "
            "use a word that no other column has"
        )


def higher_is_better(column: str, directions: Mapping[str, bool | None] | None = None) -> bool:
    """Say whether a higher value of a history's column is better.

    Args:
        column: a column's name, such as "loss" or "held_out_accuracy".
        directions: directions of metrics that are not registered; see `describe_metrics`.

    Raises:
        InputError: the direction of the column is not known.

    >>> higher_is_better("grad_norm"), higher_is_better("test_accuracy")
    (False, True)
    """
    prefix = next((prefix for prefix in PREFIXES if column.startswith(prefix)), "")
    name = column.removeprefix(prefix)
    found = (directions or {}).get(name)
    if found is None and name in METRICS:
        found = METRICS[name].higher_is_better
    if found is None and name in (*EVALUATED, *COST_COLUMNS):
        found = False
    if found is None:
        hint = did_you_mean(name, (*EVALUATED, *COST_COLUMNS, *METRICS))
        raise InputError(
            f"column {column!r}: whether higher is better is not known;{hint} "
            f'declare it with @fp.metric("{name}", higher_is_better=...)'
        )
    return found


def describe_metrics(metrics: Mapping[str, Metric]) -> dict[str, bool | None]:
    """List the metrics with their directions, for `Problem.describe()["metrics"]`."""
    return {name: entry.higher_is_better for name, entry in metrics.items()}


def evaluate_metrics(
    metrics: Mapping[str, Metric], outputs: Array, targets: Array, where: str = "the rows"
) -> dict[str, float]:
    """Compute every metric on outputs and targets."""
    return {name: entry(outputs, targets, where) for name, entry in metrics.items()}


def mean_metrics(chunks: Iterable[Mapping[str, Vector]]) -> dict[str, float]:
    """Average each client's metrics over the clients.

    A client does not count where a metric is not defined (NaN, such as the AUC of one class). The
    sum is exact, so that chunks and their order change no bit.

    Args:
        chunks: tables of (n,) values, of some clients each.

    Returns:
        The mean of each metric; NaN where no client has a value.

    >>> mean_metrics([{"auc": np.array([0.5, math.nan])}, {"auc": np.array([1.0])}])
    {'auc': 0.75}
    """
    values: dict[str, list[float]] = {}
    for chunk in chunks:
        for name, column in chunk.items():
            values.setdefault(name, []).extend(np.asarray(column, dtype=np.float64).tolist())
    return {
        name: _mean([v for v in column if not math.isnan(v)]) for name, column in values.items()
    }


def _mean(values: Sequence[float]) -> float:
    if not values:
        return math.nan
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):  # beyond float64, or infinities of both signs
        return float(np.mean(values))


# The metrics


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


@metric("accuracy", higher_is_better=True, needs_labels=True)
def accuracy(outputs: Array, targets: Array) -> float:
    """Compute the share of rows whose class is predicted.

    Args:
        outputs: margins (rows,), whose sign is the class, or scores (rows, classes).
        targets: labels 0/1 or -1/1, or class numbers (rows,).

    >>> accuracy([[0.1, 0.9], [0.8, 0.2]], [1, 1]), accuracy([0.3, -2.0], [1, -1])
    (0.5, 1.0)
    """
    predicted, true = _classes(outputs, targets)
    return float(np.mean(predicted == true))


@metric("f1", higher_is_better=True, needs_labels=True)
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


@metric("auc", higher_is_better=True, needs_labels=True)
def auc(outputs: Array, targets: Array) -> float:
    """Compute the area under the ROC curve of margins (rows,); NaN if all rows are of one class.

    >>> auc([0.1, 0.4, 0.35, 0.8], [-1, -1, 1, 1])
    0.75
    """
    margins, labels = _predictions(outputs, targets)
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


@metric("log_loss", higher_is_better=False, needs_labels=True)
def log_loss(outputs: Array, targets: Array) -> float:
    """Compute the mean negative log-likelihood of margins (rows,) or logits (rows, classes).

    >>> round(log_loss([0.0, 0.0], [-1, 1]), 4)
    0.6931
    """
    values = np.asarray(_array(outputs), dtype=np.float64)
    if values.ndim > 1 and values.shape[1] > 1:
        true = np.asarray(_array(targets), dtype=np.int64).reshape(-1)
        top = values.max(1, keepdims=True)
        total = np.log(np.exp(values - top).sum(1)) + top[:, 0]
        return float(np.mean(total - values[np.arange(len(true)), true]))
    margins, labels = _predictions(outputs, targets)
    return float(np.mean(np.logaddexp(0.0, np.where(labels > 0, -margins, margins))))


@metric("mse", higher_is_better=False)
def mse(outputs: Array, targets: Array) -> float:
    """Compute the mean squared error.

    >>> mse([1.0, 3.0], [1.0, 1.0])
    2.0
    """
    predicted, true = _predictions(outputs, targets)
    return float(np.mean((predicted - true) ** 2))


@metric("rmse", higher_is_better=False)
def rmse(outputs: Array, targets: Array) -> float:
    """Compute the root of the mean squared error."""
    return math.sqrt(mse(outputs, targets))


@metric("mae", higher_is_better=False)
def mae(outputs: Array, targets: Array) -> float:
    """Compute the mean absolute error.

    >>> mae([1.0, 3.0], [1.0, 1.0])
    1.0
    """
    predicted, true = _predictions(outputs, targets)
    return float(np.mean(np.abs(predicted - true)))


@metric("r2", higher_is_better=True)
def r2(outputs: Array, targets: Array) -> float:
    """Compute the share of the targets' variance that is explained; NaN for constant targets.

    >>> r2([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), r2([2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
    (1.0, 0.0)
    """
    predicted, true = _predictions(outputs, targets)
    spread = float(np.sum((true - true.mean()) ** 2))
    return 1.0 - float(np.sum((predicted - true) ** 2)) / spread if spread else math.nan
