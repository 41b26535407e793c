"""Compute metrics client by client: a table of one metric, and quantiles over the clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np

from fedpage.core.capabilities import ClientEvaluations
from fedpage.core.display import format_number, html_description, html_table
from fedpage.core.errors import InputError
from fedpage.core.metrics import (
    LOSS,
    Metric,
    MetricFunction,
    ReferenceMetric,
    client_quantiles,
    quantile_bases,
    resolve_metrics,
)
from fedpage.core.types import Ints, Problem, Vector

if TYPE_CHECKING:
    from fedpage.problems.reference import Reference

ClientId: TypeAlias = str | int
_MOST_LINES = 20
"""The most clients that a representation lists."""


class ClientScores(dict[ClientId, float]):
    """The values of a metric by client: a dict from ids, or numbers, to values.

    A value is NaN where the metric is not defined on a client's rows.

    Args:
        metric: The metric.
        ids: The clients.
        values: The metric of each client, (n,).
        sizes: The number of rows that each value was computed from, (n,).

    >>> from fedpage.core.metrics import METRICS
    >>> scores = ClientScores(METRICS["accuracy"], ["Bern", "Rome"], np.array([0.5, 0.75]), [8, 4])
    >>> scores["Rome"], scores.rows["Rome"], scores.worst
    (0.75, 4, 'Bern')
    >>> scores
    ClientScores(accuracy of 2 clients, worst 0.5 at 'Bern', median 0.625)
    >>> print(scores)
    client  accuracy  rows
    Bern         0.5     8
    Rome        0.75     4
    """

    def __init__(
        self, metric: Metric, ids: Sequence[ClientId], values: Vector, sizes: Ints | Sequence[int]
    ) -> None:
        super().__init__(zip(ids, np.asarray(values, dtype=np.float64).tolist(), strict=True))
        self.metric = metric.name
        """The metric's name."""
        self.higher_is_better = metric.higher_is_better
        """The metric's direction, or None if it is unknown."""
        self.rows: dict[ClientId, int] = dict(zip(ids, map(int, sizes), strict=True))
        """The number of rows that each client's value was computed from."""

    @property
    def worst(self) -> ClientId:
        """The client with the worst value.

        Raises:
            InputError: If the metric has no direction, or no client has a value.
        """
        known = {client: value for client, value in self.items() if not math.isnan(value)}
        if self.higher_is_better is None or not known:
            raise InputError(
                f"there is no worst client by {self.metric!r}: "
                + ("no client has a value" if not known else "whether higher is better is unknown")
            )
        choose = min if self.higher_is_better else max
        return choose(known, key=known.__getitem__)

    def _table(self) -> tuple[list[tuple[str, str, str]], str]:
        """Return the first lines of the table, and a text about the others."""
        lines = [
            (str(client), "undefined" if math.isnan(value) else format_number(value), f"{rows:,}")
            for (client, value), rows in zip(self.items(), self.rows.values(), strict=True)
        ]
        rest = len(lines) - _MOST_LINES
        return lines[:_MOST_LINES], f"... and {rest:,} more clients" if rest > 0 else ""

    def __repr__(self) -> str:
        known = [value for value in self.values() if not math.isnan(value)]
        words = [f"{self.metric} of {len(self):,} client{'s' * (len(self) != 1)}"]
        if known and self.higher_is_better is not None:
            words.append(f"worst {format_number(self[self.worst])} at {self.worst!r}")
        if known:
            words.append(f"median {format_number(float(np.median(known)))}")
        return f"ClientScores({', '.join(words)})"

    def __str__(self) -> str:
        from tabulate import tabulate

        lines, rest = self._table()
        text = tabulate(
            lines, ("client", self.metric, "rows"), "plain",
            colalign=("left", "right", "right"), disable_numparse=True,
        )  # fmt: skip
        return f"{text}\n{rest}" if rest else text

    def _repr_html_(self) -> str:
        lines, rest = self._table()
        return html_table(f"{self.metric} by client", ("client", self.metric, "rows"), lines, rest)


class ClientTable(NamedTuple):
    """Values of several metrics by client."""

    ids: Sequence[ClientId]
    sizes: Ints
    values: Mapping[str, Vector]


class ClientScoring:
    """The base of all problems: clients, metrics client by client, and a representation."""

    weights: str
    metrics: dict[str, Metric]
    _sizes: Ints
    _scale: Vector

    @property
    def N(self) -> int:
        """The number of clients."""
        return len(self._sizes)

    @property
    def d(self) -> int:
        """The number of parameters."""
        raise NotImplementedError

    @property
    def sizes(self) -> Ints:
        """(N,) rows M_i of each client."""
        return self._sizes

    @property
    def client_factors(self) -> Vector:
        """(N,) the factors N w_i by which the clients' objectives are multiplied."""
        return self._scale

    def __repr__(self) -> str:
        return self._repr()

    def _repr(self, about: Sequence[str] = (), partition: str = "") -> str:
        """Write the problem in one line, with some words about it and about the partition."""
        rows = int(self.sizes.sum())
        words = [word for word in about if word]
        words.append(f"{self.N:,} client{'s' * (self.N != 1)}")
        words[-1] += f" ({partition})" if partition else ""
        words += [f"d={self.d:,}", f"{rows:,} row{'s' * (rows != 1)}"]
        words += [f"weights {self.weights}"] if self.weights != "uniform" else []
        return f"{type(self).__name__}({', '.join(words)})"

    _repr_html_ = html_description

    def _client_table(
        self, x: Vector, bases: Mapping[str, Metric], outputs: Vector | None = None
    ) -> ClientTable:
        """Compute metrics, and f_i for `LOSS`, on each client's own rows.

        outputs: The outputs of all rows, if the caller has computed them.
        """
        raise NotImplementedError

    def client_scores(
        self, x: Vector, *, metric: str | Metric | MetricFunction = "loss"
    ) -> ClientScores:
        """Compute a metric on each client's own rows.

        Args:
            x: The parameters (d,), such as `history.x`.
            metric: A metric's name or function; "loss" is the client's objective f_i.

        Returns:
            The value of each client, by its number.

        Raises:
            InputError: If the metric is unknown, or not computed from rows.
        """
        base = self._find_metric(metric)
        table = self._client_table(x, {base.name: base})
        return ClientScores(base, table.ids, table.values[base.name], table.sizes)

    def _find_metric(self, metric: str | Metric | MetricFunction) -> Metric:
        """Return a metric of rows, or `LOSS`."""
        if isinstance(metric, str) and metric == "loss":
            return LOSS
        own = self.metrics.get(metric) if isinstance(metric, str) else None
        found = own or next(reversed(resolve_metrics([metric], "client_scores").values()))
        if not found.on_rows:
            raise InputError(f"client_scores: {found.name!r} is not computed from a client's rows")
        return found

    def _client_columns(self, x: Vector, outputs: Vector | None = None) -> dict[str, float]:
        """Compute the quantiles over the clients that are among the metrics, if any."""
        bases = quantile_bases(self.metrics)
        if not bases:
            return {}
        return client_quantiles(self.metrics, self._client_table(x, bases, outputs).values)

    def combine_clients(self, parts: Sequence[ClientEvaluations]) -> dict[str, float]:
        """Compute the quantiles over the clients from evaluations of all clients, in order."""
        bases = quantile_bases(self.metrics)
        values = {
            name: np.concatenate([part.metrics[name] for part in parts])
            for name, base in bases.items()
            if base is not LOSS
        }
        if "loss" in bases:
            values["loss"] = np.concatenate([part.losses for part in parts]) / self.client_factors
        return client_quantiles(self.metrics, values)

    def compare_with_reference(self, x: Vector, loss: float) -> dict[str, float]:
        """Compute the metrics, if any, that compare x (d,) with the reference solution."""
        asked = {n: m for n, m in self.metrics.items() if isinstance(m, ReferenceMetric)}
        if not asked:
            return {}
        best = self._find_reference()
        return {name: entry.function(loss, x, best.loss, best.x) for name, entry in asked.items()}

    def describe_reference(self) -> dict[str, object]:
        """Describe the reference solution as "reference" if a metric uses it."""
        if not any(isinstance(entry, ReferenceMetric) for entry in self.metrics.values()):
            return {}
        best = self._find_reference()
        about = {"f_star": best.loss, "grad_norm": best.grad_norm, "minimiser": best.is_minimiser}
        return {"reference": about}

    def _find_reference(self) -> Reference:
        from fedpage.problems.reference import reference_solution  # it imports scipy

        return reference_solution(cast("Problem", self))
