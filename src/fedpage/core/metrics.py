"""Metrics: named functions with a direction that problems record beside the loss.

    @metric("accuracy", higher_is_better=True)
    def accuracy(outputs, targets): ...

Every problem takes `metrics=` and records each metric as a column of the history: over the clients'
rows under its own name, over held-out rows as `held_out_NAME`. `NAME_worst` and `NAME_p10` are its
worst value and a percentile over the clients, and `f_minus_fstar` and `distance_to_optimum` compare
a model with the reference solution. Whatever looks for a best value or a target (`History.best`,
`History.cost_to`, `Stop`, tuning, plots) asks `higher_is_better(column)`.

The functions agree with scikit-learn's to 1e-15. They are not called through it, because they run
at every record, and for every client: its checks of input make them 3 to 50 times slower.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpage.core.columns import COLUMNS
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.function_digest import function_digest
from fedpage.core.spec import Registry
from fedpage.core.types import Ints, Vector

EVALUATED = ("loss", "grad_norm")
"""Columns that every problem evaluates. Lower is better."""
PREFIXES = ("held_out_clients_", "held_out_", "test_")
"""A column with such a prefix has the direction of the column without it."""
_QUANTILE = re.compile(r"(\w+?)_(?:worst|p([1-9][0-9]?))")


Array: TypeAlias = Any
"""A numpy array, or something like one, or a torch tensor on any device."""
MetricFunction: TypeAlias = Callable[..., float]
"""(outputs, targets) -> float. A problem's own array type is passed: numpy's, or torch tensors."""
M = TypeVar("M", bound=MetricFunction)


@dataclass(frozen=True)
class Metric:
    """A named function of outputs and targets.

    Attributes:
        name: The column it is recorded as.
        function: Maps outputs (rows,) or (rows, classes) and targets (rows,) to a number.
        higher_is_better: Its direction. If None, it can be recorded but not compared.
        needs_labels: Whether the targets must be classes.
        maximum: The highest value that it can have.
        minimum: The lowest value that it can have.
    """

    name: str
    function: MetricFunction
    higher_is_better: bool | None = None
    needs_labels: bool = False
    maximum: float = math.inf
    minimum: float = -math.inf

    on_rows: ClassVar[bool] = True
    """Whether it is computed from the outputs and targets of rows, pooled or of a client."""

    def __repr__(self) -> str:
        direction = {True: "higher is better", False: "lower is better", None: "no direction"}
        return f"Metric({self.name}, {direction[self.higher_is_better]})"

    def __call__(self, outputs: Array, targets: Array, where: str = "the rows") -> float:
        """Compute the metric of outputs (rows,) or (rows, classes) and targets (rows,).

        Raises:
            InputError: The function failed on the rows `where`, or did not return a number.
        """
        try:
            return float(self.function(outputs, targets))
        except Exception as error:  # the function may be a user's
            raise self.explain(error, where) from error

    def explain(self, error: Exception, where: str) -> InputError:
        """Return the error to raise where the metric cannot be computed."""
        why = " ".join(str(error).split())[:160] or type(error).__name__
        return InputError(f"metric {self.name!r} cannot be computed on {where}: {why}")


@dataclass(frozen=True, repr=False)
class ReferenceMetric(Metric):
    """A comparison of a model with the reference solution of its problem, such as f_minus_fstar.

    `function` maps (loss, x, the reference's loss, the reference's x) to a number.
    """

    on_rows: ClassVar[bool] = False


LOSS = ReferenceMetric("loss", lambda loss, *_: loss, higher_is_better=False)
"""The objective f_i of a client, of which `loss_worst` is a quantile."""


@dataclass(frozen=True, repr=False)
class ClientQuantile(Metric):
    """The worst value or a percentile over the clients of another metric, such as accuracy_worst.

    Attributes:
        base: The metric that each client has a value of.
        percent: The percentile, 1 to 99. If None, it is the worst client's value.
    """

    base: Metric = LOSS
    percent: int | None = None

    on_rows: ClassVar[bool] = False

    def reduce(self, values: Vector) -> float:
        """Compute the quantile of the clients' values (n,) that are not NaN, or NaN of none.

        Percentiles are interpolated between two clients.
        """
        ordered = np.sort(values[~np.isnan(values)])
        if not len(ordered):
            return math.nan
        if self.percent is None:
            return float(ordered[0] if self.higher_is_better else ordered[-1])
        place, rest = divmod(self.percent * (len(ordered) - 1), 100)
        low = float(ordered[place])
        high = float(ordered[place + 1]) if rest else low
        return low if low == high else low + rest / 100 * (high - low)


METRICS: Registry[Metric] = Registry("metric")
"""Every metric by name."""
MetricsOption: TypeAlias = (
    str | Sequence[str | Metric | MetricFunction] | Mapping[str, str | Metric | MetricFunction]
)
"""The type of `metrics=`: names of registered metrics, functions, or a table name -> function."""


def metric(
    name: str,
    *,
    higher_is_better: bool,
    needs_labels: bool = False,
    maximum: float = math.inf,
    minimum: float = -math.inf,
) -> Callable[[M], M]:
    """Register a function of outputs and targets as a metric.

    Args:
        name: The column that it is recorded as.
        higher_is_better: Whether a higher value is better.
        needs_labels: Whether the targets must be classes.
        maximum: The highest value that it can have. A target above it is refused.
        minimum: The lowest value that it can have. A federation rejects a client's value outside
            this range.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        InputError: The name is taken or cannot name a column.

    >>> @metric("largest_error", higher_is_better=False)
    ... def largest_error(outputs, targets):
    ...     return abs(outputs - targets).max()
    >>> METRICS["largest_error"]
    Metric(largest_error, lower is better)
    >>> del METRICS["largest_error"]
    """

    def decorate(function: M) -> M:
        _check_name(name, "metric")
        METRICS.add(name, Metric(name, function, higher_is_better, needs_labels, maximum, minimum))
        return function

    return decorate


def resolve_metrics(metrics: MetricsOption, owner: str) -> dict[str, Metric]:
    """Look up the metrics that a user gave as `metrics=`, and name them by their columns.

    `NAME_worst` and `NAME_p1` to `NAME_p99`, where NAME is "loss" or one of the metrics, are the
    worst value and a percentile over the clients; NAME itself is then recorded, too.

    Args:
        metrics: Names of registered metrics, functions (named after themselves), `Metric`s, or a
            table of name -> function or Metric.
        owner: Who asks, for the error message.

    Raises:
        InputError: A name is unknown or taken, or an entry is not a function.

    >>> list(resolve_metrics(["accuracy_worst", "accuracy_p10", "loss_p90"], "mine"))
    ['accuracy', 'accuracy_worst', 'accuracy_p10', 'loss_p90']
    """
    is_list = isinstance(metrics, Iterable) and not isinstance(metrics, str)
    given = metrics if is_list else [metrics]
    entries: list[tuple[str | None, object]] = [(None, entry) for entry in given]
    if isinstance(metrics, Mapping):
        entries = list(metrics.items())
    own = [_resolve(name, entry, {}, owner) for name, entry in entries if callable(entry)]
    known = {**METRICS, **{entry.name: entry for entry in own}}
    found: dict[str, Metric] = {}
    for name, entry in entries:
        resolved = _resolve(name, entry, known, owner)
        _check_name(resolved.name, owner)
        if isinstance(resolved, ClientQuantile) and resolved.base is not LOSS:
            found.setdefault(resolved.base.name, resolved.base)
        found[resolved.name] = resolved
    return found


def _resolve(name: str | None, entry: object, known: Mapping[str, Metric], owner: str) -> Metric:
    if isinstance(entry, str):
        found = known.get(entry) or find_quantile(entry, known, owner)
        if found is None:
            hint = did_you_mean(
                entry, [*METRICS, *(f"{each}_worst" for each in row_metrics(METRICS))]
            )
            raise InputError(
                f"{owner}: unknown metric {short_repr(entry)}:{hint} known are {', '.join(METRICS)}"
                "; NAME_worst and NAME_p10 are its worst value and a percentile over the clients"
            )
    elif isinstance(entry, Metric):
        found = entry
    elif callable(entry):
        own_name = name or str(getattr(entry, "__name__", type(entry).__name__))
        same = (each for each in METRICS.values() if each.function is entry)
        found = next(same, Metric(own_name, entry))
    else:
        raise InputError(
            f"{owner}: metrics must be names, functions of outputs and targets, or a table of "
            f"them, not {short_repr(name or entry)}"
        )
    return found if name in (None, found.name) else replace(found, name=name)


def _check_name(name: object, owner: str) -> None:
    """Refuse a name that is not a word, or that a history uses for another column."""
    is_word = isinstance(name, str) and name.isidentifier() and not name.startswith(PREFIXES)
    if not is_word or name in COLUMNS:
        raise InputError(
            f"{owner}: a metric cannot be called {short_repr(name)}; "
            "use a word that no other column has"
        )


def find_quantile(name: str, known: Mapping[str, Metric], owner: str) -> ClientQuantile | None:
    """Return the quantile over clients that a name such as accuracy_p10 means, or None.

    Args:
        name: The name.
        known: The metrics whose quantiles may be meant.
        owner: Who asks, for the error message.

    Raises:
        InputError: It is the worst value of a metric whose direction is unknown.
    """
    match = _QUANTILE.fullmatch(name)
    base = {**known, "loss": LOSS}.get(match[1]) if match else None
    if not match or not base or not (base.on_rows or base is LOSS):
        return None
    if not match[2] and base.higher_is_better is None:
        raise InputError(
            f"{owner}: which client is the worst is not known for {name!r}; declare the direction "
            f'with @fp.metric("{base.name}", higher_is_better=...)'
        )
    options = (base.function, base.higher_is_better, base.needs_labels)
    return ClientQuantile(name, *options, base=base, percent=int(match[2]) if match[2] else None)


def higher_is_better(column: str, directions: Mapping[str, bool | None] | None = None) -> bool:
    """Return whether a higher value of a history's column is better.

    Args:
        column: A column's name, such as "loss" or "held_out_accuracy".
        directions: Directions of metrics that are not registered; see `describe_metrics`.

    Raises:
        InputError: The direction of the column is not known.

    >>> higher_is_better("grad_norm"), higher_is_better("test_accuracy")
    (False, True)
    """
    name = column.removeprefix(next(filter(column.startswith, PREFIXES), ""))
    lower = [*EVALUATED, *(key for key, entry in COLUMNS.items() if entry.is_cost)]
    known = dict.fromkeys(lower, False)
    for table in (describe_metrics(METRICS), directions or {}):
        known |= {key: higher for key, higher in table.items() if higher is not None}
    if name in known:
        return known[name]
    if match := _QUANTILE.fullmatch(name):
        return higher_is_better(match[1], directions)
    raise InputError(
        f"column {column!r}: whether higher is better is not known;{did_you_mean(name, known)} "
        f'declare it with @fp.metric("{name}", higher_is_better=...)'
    )


def metrics_digest(metrics: Mapping[str, Metric]) -> str | None:
    """Return the digest of the functions that are not part of fedpage, or None without any."""
    own = [entry.function for entry in row_metrics(metrics).values()]
    own = [f for f in own if not str(getattr(f, "__module__", "")).startswith("fedpage.")]
    return function_digest(*own) if own else None


def describe_metrics(metrics: Mapping[str, Metric]) -> dict[str, bool | None]:
    """List the metrics with their directions, for `Problem.describe()["metrics"]`."""
    return {name: entry.higher_is_better for name, entry in metrics.items()}


def row_metrics(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Select the metrics that are computed from the outputs and targets of rows."""
    return {name: entry for name, entry in metrics.items() if entry.on_rows}


def quantile_bases(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics, and `LOSS`, of which quantiles over the clients are among `metrics`."""
    quantiles = [entry for entry in metrics.values() if isinstance(entry, ClientQuantile)]
    return {entry.base.name: entry.base for entry in quantiles}


def evaluate_metrics(
    metrics: Mapping[str, Metric], outputs: Array, targets: Array, where: str = "the rows"
) -> dict[str, float]:
    """Compute every metric of rows on outputs and targets."""
    return {name: each(outputs, targets, where) for name, each in row_metrics(metrics).items()}


def client_quantiles(
    metrics: Mapping[str, Metric], values: Mapping[str, Vector]
) -> dict[str, float]:
    """Compute the quantiles among the metrics, of the values (n,) of `quantile_bases(metrics)`.

    >>> asked = resolve_metrics(["loss_worst", "loss_p50"], "mine")
    >>> client_quantiles(asked, {"loss": np.array([1.0, 4.0, 2.0])})
    {'loss_worst': 4.0, 'loss_p50': 2.0}
    """
    return {
        name: entry.reduce(values[entry.base.name])
        for name, entry in metrics.items()
        if isinstance(entry, ClientQuantile)
    }


def mean_metrics(
    chunks: Iterable[Mapping[str, Vector]], factors: Vector | None = None
) -> dict[str, float]:
    """Average each client's metrics over the clients that have a value, by the clients' weights.

    The sum is exact, so that chunks and their order change no bit. A mean of no values is NaN.

    Args:
        chunks: Tables of (n,) values, of some clients each. A value that is not defined is NaN.
        factors: The factors N w_i of all these clients, in their order. If None, weights are equal.

    >>> mean_metrics([{"auc": np.array([0.5, 1.0])}], np.array([1.5, 0.5]))
    {'auc': 0.625}
    """
    values: dict[str, list[float]] = {}
    for chunk in chunks:
        for name, column in chunk.items():
            values.setdefault(name, []).extend(np.asarray(column, dtype=np.float64).tolist())
    return {name: _mean(column, factors) for name, column in values.items()}


def _mean(column: list[float], factors: Vector | None) -> float:
    weights = [1.0] * len(column) if factors is None else factors.tolist()
    known = [(v, w) for v, w in zip(column, weights, strict=True) if not math.isnan(v)]
    products, total = [v * w for v, w in known], math.fsum(w for _, w in known)
    try:
        return math.fsum(products) / total if known else math.nan
    except (OverflowError, ValueError):  # beyond float64, or infinities of both signs
        return float(np.sum(products) / total)


def evaluate_groups(
    entry: Metric, outputs: Array, targets: Array, starts: Ints, where: str = "a client's rows"
) -> Vector:
    """Compute a metric of each group of consecutive rows, such as the rows of a client.

    Args:
        entry: The metric.
        outputs: (rows,) or (rows, classes).
        targets: (rows,).
        starts: (n+1,) where groups begin, and the number of rows. Every group has a row.
        where: The kind of groups, for error messages.

    Returns:
        (n,) values, NaN where the metric is not defined.

    >>> evaluate_groups(METRICS["mse"], [1.0, 3.0, 2.0], [1.0, 1.0, 2.0], np.array([0, 2, 3]))
    array([2., 0.])
    """
    of_rows = _ROWS.get(entry.function)
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


# --- the metrics ----------------------------------------------------------------------------------


def _array(values: Array) -> NDArray[np.generic]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _predictions(outputs: Array, targets: Array) -> tuple[Vector, Vector]:
    """Return outputs (rows,) and targets (rows,) as float64."""
    values, wanted = (np.asarray(_array(part), np.float64) for part in (outputs, targets))
    if values.size != wanted.size:
        raise ValueError(f"outputs of shape {values.shape} for {wanted.size} targets")
    return values.reshape(-1), wanted.reshape(-1)


def _class_scores(outputs: Array, targets: Array) -> tuple[NDArray[np.generic], Ints] | None:
    """Return scores (rows, classes) and true classes (rows,), or None if outputs are (rows,)."""
    values = _array(outputs)
    if values.ndim < 2 or values.shape[1] == 1:
        return None
    return values, np.asarray(_array(targets), dtype=np.int64).reshape(-1)


def _classes(outputs: Array, targets: Array) -> tuple[Ints, Ints, bool]:
    """Return the predicted and true class of each row, and whether there are several scores."""
    if several := _class_scores(outputs, targets):
        return several[0].argmax(1), several[1], True
    margins, labels = _predictions(outputs, targets)
    return (margins > 0).astype(np.int64), (labels > 0).astype(np.int64), False


RowFunction: TypeAlias = Callable[[Array, Array], NDArray[Any]]
_ROWS: dict[MetricFunction, RowFunction] = {}
"""The values (rows,) of each metric that is a mean over the rows, or the root of one."""


def _mean_of_rows(function: RowFunction) -> MetricFunction:
    """Make a metric of a function that returns a value for each row."""

    @wraps(function)
    def mean(outputs: Array, targets: Array) -> float:
        return float(np.mean(function(outputs, targets)))

    _ROWS[mean] = function
    return mean


@metric("accuracy", higher_is_better=True, needs_labels=True, maximum=1.0, minimum=0.0)
@_mean_of_rows
def accuracy(outputs: Array, targets: Array) -> NDArray[np.bool_]:
    """Compute the share of rows whose class is predicted, by the sign or the largest score.

    >>> accuracy([[0.1, 0.9], [0.8, 0.2]], [1, 1]), accuracy([0.3, -2.0], [1, -1])
    (0.5, 1.0)
    """
    predicted, true, _ = _classes(outputs, targets)
    return np.asarray(predicted == true)


@metric("f1", higher_is_better=True, needs_labels=True, maximum=1.0, minimum=0.0)
def f1(outputs: Array, targets: Array) -> float:
    """Compute the F1 score of the positive class, or with several classes the mean over classes.

    >>> round(f1([1.0, 1.0, -1.0], [1, -1, 1]), 3)
    0.5
    """
    predicted, true, several = _classes(outputs, targets)
    scores = []
    for label in np.union1d(predicted, true).tolist() if several else [1]:
        hits = float(np.sum((predicted == label) & (true == label)))
        marked = float(np.sum(predicted == label) + np.sum(true == label))
        scores.append(2.0 * hits / marked if marked else 0.0)
    return float(np.mean(scores))


@metric("auc", higher_is_better=True, needs_labels=True, maximum=1.0, minimum=0.0)
def auc(outputs: Array, targets: Array) -> float:
    """Compute the area under the ROC curve, NaN if all rows are of one class.

    With scores (rows, classes) it is the mean over the classes that occur of the area of each
    against the rest (one-vs-rest, macro).

    >>> auc([0.1, 0.4, 0.35, 0.8], [-1, -1, 1, 1])
    0.75
    """
    several = _class_scores(outputs, targets)
    if several is None:
        return _binary_auc(*_predictions(outputs, targets))
    scores, true = several[0].astype(np.float64), several[1]
    present = np.unique(true)
    if len(present) < 2:
        return math.nan
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
@_mean_of_rows
def log_loss(outputs: Array, targets: Array) -> Vector:
    """Compute the mean negative log-likelihood of margins (rows,) or logits (rows, classes).

    >>> round(log_loss([0.0, 0.0], [-1, 1]), 4)
    0.6931
    """
    if several := _class_scores(outputs, targets):
        values, true = several[0].astype(np.float64), several[1]
        top = values.max(1, keepdims=True)
        total = np.log(np.exp(values - top).sum(1)) + top[:, 0]
        return np.asarray(total - values[np.arange(len(true)), true])
    margins, labels = _predictions(outputs, targets)
    return np.asarray(np.logaddexp(0.0, np.where(labels > 0, -margins, margins)))


@metric("mse", higher_is_better=False, minimum=0.0)
@_mean_of_rows
def mse(outputs: Array, targets: Array) -> Vector:
    """Compute the mean squared error."""
    predicted, true = _predictions(outputs, targets)
    return np.asarray((predicted - true) ** 2)


@metric("rmse", higher_is_better=False, minimum=0.0)
def rmse(outputs: Array, targets: Array) -> float:
    """Compute the root of the mean squared error."""
    return math.sqrt(mse(outputs, targets))


_ROWS[rmse] = _ROWS[mse]


@metric("mae", higher_is_better=False, minimum=0.0)
@_mean_of_rows
def mae(outputs: Array, targets: Array) -> Vector:
    """Compute the mean absolute error."""
    predicted, true = _predictions(outputs, targets)
    return np.asarray(np.abs(predicted - true))


@metric("r2", higher_is_better=True, maximum=1.0)
def r2(outputs: Array, targets: Array) -> float:
    """Compute the share of the targets' variance that is explained, NaN for constant targets.

    >>> r2([2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
    0.0
    """
    predicted, true = _predictions(outputs, targets)
    spread = float(np.sum((true - true.mean()) ** 2))
    return 1.0 - float(np.sum((predicted - true) ** 2)) / spread if spread else math.nan


def f_minus_fstar(loss: float, x: Vector, best_loss: float, best_x: Vector) -> float:
    """Compute f(x) - f*, where f* is the loss of the reference solution.

    A negative difference within rounding (1e-12 of f*) is 0. A loss that is clearly below f*, which
    a problem that is not convex may reach, gives a negative number.
    """
    gap = loss - best_loss
    return 0.0 if -1e-12 * abs(best_loss) <= gap < 0.0 else gap


def distance_to_optimum(loss: float, x: Vector, best_loss: float, best_x: Vector) -> float:
    """Compute |x - x*|, the distance to the reference solution."""
    return math.dist(x.tolist(), best_x.tolist())  # its sum has one order, for any d


for _compare in (f_minus_fstar, distance_to_optimum):
    _name = _compare.__name__
    METRICS.add(_name, ReferenceMetric(_name, _compare, higher_is_better=False))
