"""What a metric is: a named function with a direction, and the registry of metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpage.core.columns import COLUMNS
from fedpage.core.errors import InputError, short_repr
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
        maximum: the highest value that it can have.
        minimum: the lowest value that it can have.
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
            raise self.explain(error, where) from error

    def explain(self, error: Exception, where: str) -> InputError:
        """Return the error to raise where the metric cannot be computed."""
        why = " ".join(str(error).split())[:160] or type(error).__name__
        return InputError(f"metric {self.name!r} cannot be computed on {where}: {why}")


def _of_no_rows(outputs: Array, targets: Array) -> float:
    raise NotImplementedError("it is no function of outputs and targets")


@dataclass(frozen=True, repr=False)
class ClientLoss(Metric):
    """The objective f_i of a client, of which `loss_worst` is a quantile."""

    on_rows: ClassVar[bool] = False


LOSS = ClientLoss("loss", _of_no_rows, higher_is_better=False)


@dataclass(frozen=True, repr=False)
class ClientQuantile(Metric):
    """The worst value or a percentile over the clients of another metric, such as accuracy_worst.

    Attributes:
        base: the metric that each client has a value of.
        percent: the percentile, 1 to 99; None: the worst client's value.
    """

    base: Metric = LOSS
    percent: int | None = None

    on_rows: ClassVar[bool] = False

    def reduce(self, values: Vector) -> float:
        """Compute the quantile of clients' values (n,); those that are not defined do not count.

        Percentiles are interpolated between two clients. NaN where no client has a value.

        >>> ClientQuantile("loss_p50", LOSS.function, False, percent=50).reduce(
        ...     np.array([1.0, 4.0, 2.0, math.nan])
        ... )
        2.0
        """
        ordered = np.sort(values[~np.isnan(values)])
        if not len(ordered):
            return math.nan
        if self.percent is None:
            return float(ordered[0] if self.higher_is_better else ordered[-1])
        whole, rest = divmod(self.percent * (len(ordered) - 1), 100)
        low = float(ordered[whole])
        high = float(ordered[whole + 1]) if rest else low
        return low if low == high else low + rest / 100 * (high - low)


@dataclass(frozen=True, repr=False)
class ReferenceMetric(Metric):
    """A comparison of a model with the reference solution of its problem, such as f_minus_fstar.

    `function` maps (loss, x, the reference's loss, the reference's x) to a number.
    """

    on_rows: ClassVar[bool] = False


METRICS: Registry[Metric] = Registry("metric")


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
        name: the column that it is recorded as.
        higher_is_better: whether a higher value is better.
        needs_labels: whether the targets must be classes.
        maximum: the highest value that it can have; a target above it is refused.
        minimum: the lowest value that it can have. A federation rejects what a client reports
            outside this range.

    Returns:
        A decorator that leaves the function as it is.

    Raises:
        InputError: the name is taken or cannot name a column.

    >>> @metric("largest_error", higher_is_better=False)
    ... def largest_error(outputs, targets):
    ...     return abs(outputs - targets).max()
    >>> METRICS["largest_error"]
    Metric(largest_error, lower is better)
    >>> METRICS.remove("largest_error")
    """

    def decorate(function: M) -> M:
        check_name(name, "metric")
        METRICS.add(name, Metric(name, function, higher_is_better, needs_labels, maximum, minimum))
        return function

    return decorate


def check_name(name: object, owner: str) -> None:
    """Refuse a name that is not a word, or that a history uses for another column."""
    taken = name in COLUMNS
    word = isinstance(name, str) and name.isidentifier() and not name.startswith(PREFIXES)
    if taken or not word:
        raise InputError(
            f"{owner}: a metric cannot be called {short_repr(name)}; "
            "use a word that no other column has"
        )
