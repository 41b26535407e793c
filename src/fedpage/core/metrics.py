"""Metrics: what problems record beside the loss, each with a direction.

A metric is registered where it is defined (see `fedpage.core.metric_functions`):

    @metric("accuracy", higher_is_better=True)
    def accuracy(outputs, targets): ...

Every problem takes `metrics=` and records each metric as a column of the history: over the clients'
rows under its own name, over held-out rows as `held_out_NAME`. `NAME_worst` and `NAME_p10` are its
worst value and a percentile over the clients, and `f_minus_fstar` and `distance_to_optimum` compare
a model with the reference solution. Whatever looks for a best value or a target (`History.best`,
`History.cost_to`, `Stop`, tuning, plots) asks `higher_is_better(column)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.metric import (
    COST_COLUMNS,
    EVALUATED,
    LOSS,
    METRICS,
    PREFIXES,
    Array,
    ClientQuantile,
    DeviceArray,
    Metric,
    MetricFunction,
    ReferenceMetric,
    check_name,
    metric,
)
from fedpage.core.metric_functions import (
    accuracy,
    auc,
    distance_to_optimum,
    evaluate_groups,
    f1,
    f_minus_fstar,
    log_loss,
    mae,
    mse,
    r2,
    rmse,
)
from fedpage.core.types import Vector

__all__ = [
    "COST_COLUMNS",
    "EVALUATED",
    "LOSS",
    "METRICS",
    "PREFIXES",
    "Array",
    "ClientQuantile",
    "DeviceArray",
    "Metric",
    "MetricFunction",
    "MetricsOption",
    "ReferenceMetric",
    "accuracy",
    "auc",
    "check_name",
    "client_quantiles",
    "describe_metrics",
    "distance_to_optimum",
    "evaluate_groups",
    "evaluate_metrics",
    "f1",
    "f_minus_fstar",
    "find_quantile",
    "higher_is_better",
    "log_loss",
    "mae",
    "mean_metrics",
    "metric",
    "mse",
    "quantile_bases",
    "r2",
    "resolve_metrics",
    "rmse",
    "row_metrics",
]

MetricsOption: TypeAlias = (
    str | Sequence[str | Metric | MetricFunction] | Mapping[str, str | Metric | MetricFunction]
)
"""What `metrics=` takes: names of registered metrics, functions, or a table name -> function."""
_QUANTILE = re.compile(r"(\w+?)_(?:worst|p([1-9][0-9]?))")


def resolve_metrics(metrics: MetricsOption, owner: str) -> dict[str, Metric]:
    """Look up what a user gave as `metrics=`.

    `NAME_worst` and `NAME_p1` to `NAME_p99`, where NAME is "loss" or one of the metrics, are the
    worst value and a percentile over the clients; NAME itself is then recorded, too.

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
    >>> list(resolve_metrics(["accuracy_worst", "accuracy_p10", "loss_p90"], "mine"))
    ['accuracy', 'accuracy_worst', 'accuracy_p10', 'loss_p90']
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
    entries = list(given)
    own = [_resolve(name, entry, owner) for name, entry in entries if not isinstance(entry, str)]
    known = {**METRICS, **{entry.name: entry for entry in own}}
    found: dict[str, Metric] = {}
    for name, entry in entries:
        resolved = _resolve(name, entry, owner, known)
        check_name(resolved.name, owner)
        if isinstance(resolved, ClientQuantile) and resolved.base is not LOSS:
            found.setdefault(resolved.base.name, resolved.base)
        found[resolved.name] = resolved
    return found


def _resolve(
    name: str | None, entry: object, owner: str, known: Mapping[str, Metric] = METRICS
) -> Metric:
    if isinstance(entry, str):
        found = known.get(entry) or find_quantile(entry, known, owner)
        if found is None:
            over_clients = (f"{name}_worst" for name, each in METRICS.items() if each.on_rows)
            hint = did_you_mean(entry, [*METRICS, *over_clients])
            raise InputError(
                f"{owner}: unknown metric {short_repr(entry)}:{hint} known are {', '.join(METRICS)}"
                "; NAME_worst and NAME_p10 are its worst value and a percentile over the clients"
            )
        entry = found
    if callable(entry) and not isinstance(entry, Metric):
        same = [registered for registered in METRICS.values() if registered.function is entry]
        own_name = name or str(getattr(entry, "__name__", type(entry).__name__))
        entry = same[0] if same else Metric(own_name, entry)
    if not isinstance(entry, Metric):
        raise InputError(
            f"{owner}: metric {short_repr(name or entry)} must be a name or a function of outputs "
            "and targets"
        )
    return entry if name is None or name == entry.name else replace(entry, name=name)


def find_quantile(name: str, known: Mapping[str, Metric], owner: str) -> ClientQuantile | None:
    """Return the quantile over clients that a name such as accuracy_p10 means.

    Args:
        name: the name.
        known: the metrics whose quantiles may be meant.
        owner: who asks, for the error message.

    Returns:
        The quantile; None if the name means none.

    Raises:
        InputError: it is the worst value of a metric whose direction is unknown.
    """
    match = _QUANTILE.fullmatch(name)
    base = {**known, "loss": LOSS}.get(match[1]) if match else None
    if match is None or base is None or not (base.on_rows or base is LOSS):
        return None
    if match[2] is None and base.higher_is_better is None:
        raise InputError(
            f"{owner}: which client is the worst is not known for {name!r}; declare the direction "
            f'with @fp.metric("{base.name}", higher_is_better=...)'
        )
    percent = None if match[2] is None else int(match[2])
    options = (base.function, base.higher_is_better, base.needs_labels)
    return ClientQuantile(name, *options, base=base, percent=percent)


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
    match = _QUANTILE.fullmatch(name)
    if found is None and match is not None:
        return higher_is_better(match[1], directions)
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
    """Compute every metric of rows on outputs and targets."""
    return {
        name: entry(outputs, targets, where) for name, entry in metrics.items() if entry.on_rows
    }


def row_metrics(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Select the metrics that are computed from the outputs and targets of rows."""
    return {name: entry for name, entry in metrics.items() if entry.on_rows}


def quantile_bases(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics, and `LOSS`, of which quantiles over the clients are among `metrics`."""
    quantiles = [entry for entry in metrics.values() if isinstance(entry, ClientQuantile)]
    return {entry.base.name: entry.base for entry in quantiles}


def client_quantiles(
    metrics: Mapping[str, Metric], values: Mapping[str, Vector]
) -> dict[str, float]:
    """Compute the quantiles over the clients that are among the metrics.

    Args:
        metrics: the metrics of a problem.
        values: for each of `quantile_bases(metrics)` the values (n,) of the clients.

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
    """Average each client's metrics over the clients, with the clients' weights.

    A client does not count where a metric is not defined (NaN, such as the AUC of one class). The
    sum is exact, so that chunks and their order change no bit.

    Args:
        chunks: tables of (n,) values, of some clients each.
        factors: the factors N w_i of all these clients, in their order; None: equal weights.

    Returns:
        The mean of each metric; NaN where no client has a value.

    >>> mean_metrics([{"auc": np.array([0.5, math.nan])}, {"auc": np.array([1.0])}])
    {'auc': 0.75}
    >>> mean_metrics([{"auc": np.array([0.5, 1.0])}], np.array([1.5, 0.5]))
    {'auc': 0.625}
    """
    values: dict[str, list[float]] = {}
    for chunk in chunks:
        for name, column in chunk.items():
            values.setdefault(name, []).extend(np.asarray(column, dtype=np.float64).tolist())
    return {name: _mean(column, factors) for name, column in values.items()}


def _mean(column: Sequence[float], factors: Vector | None) -> float:
    weights = [1.0] * len(column) if factors is None else factors.tolist()
    known = [(v, w) for v, w in zip(column, weights, strict=True) if not math.isnan(v)]
    if not known:
        return math.nan
    products = [v * w for v, w in known]
    total = math.fsum(w for _, w in known)
    try:
        return math.fsum(products) / total
    except (OverflowError, ValueError):  # beyond float64, or infinities of both signs
        return float(np.sum(products) / total)
