"""Metrics of a linear model client by client, from the margins of many rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.metrics import (
    LOSS,
    Metric,
    MetricFunction,
    client_quantiles,
    evaluate_groups,
    quantile_bases,
)
from fedpage.core.types import Ints, Vector
from fedpage.data.client_ids import by_id
from fedpage.data.dataset import Dataset
from fedpage.problems.client_scores import ClientId, ClientScores, ClientTable
from fedpage.problems.prediction import Prediction

if TYPE_CHECKING:
    from fedpage.data.partition import Partition
    from fedpage.problems.labels import Classes


class LinearScores(Prediction):
    """Score the clients of a linear model; `LinearModel` adds the rows and their labels."""

    _held_out_partition: Partition | None = None

    def _encode_labels(
        self, data: Dataset, classes: Classes | None
    ) -> tuple[Vector, Classes | None]:
        """Return the targets (n,) of a data set, and its classes or those given."""
        raise NotImplementedError

    @property
    def client_factors(self) -> Vector:
        """(N,) the factors N w_i by which the clients' objectives are multiplied."""
        return self._scale

    def client_scores(
        self,
        x: Vector,
        data: Dataset | None = None,
        *,
        metric: str | Metric | MetricFunction | None = None,
    ) -> ClientScores:
        """Compute a metric on the rows of each client, such as the test accuracy per hospital.

        Args:
            x: (d,) the parameters, such as `history.x`.
            data: rows with client ids, such as the test set of `Dataset.split`; None: the rows that
                the clients train on.
            metric: a metric's name or function; by default "accuracy" of classes, "rmse" of a
                regression. "loss" is the mean loss, of training rows with the regulariser.

        Returns:
            The value of each client by its id, or by its number where clients have no ids.

        Raises:
            InputError: data has no client ids, other features or unknown labels, or the metric
                cannot be computed.
        """
        default = "rmse" if self.classes is None else "accuracy"
        base = self._find_metric(default if metric is None else metric)
        bases = {base.name: base}
        if data is None:
            table = self._client_table(x, bases)
            return ClientScores(base, table.ids, table.values[base.name], table.sizes)
        if not isinstance(data, Dataset) or data.clients is None:
            raise InputError(
                f"{self.name}: client_scores needs a Dataset that says whose row each is; load it "
                "with client=COLUMN, or give Dataset.from_arrays(..., clients=ids)"
            )
        self._check_labels(base, data)
        groups = by_id(data.clients)
        target, _ = self._encode_labels(data, self.classes)
        with np.errstate(over="ignore", invalid="ignore"):
            margins = self.margins(x, data)[groups.order]
            values = self._group_values(bases, margins, target[groups.order], groups.ptr)
        return ClientScores(base, groups.ids or (), values[base.name], groups.sizes)

    def _check_labels(self, metric: Metric, data: Dataset) -> None:
        """Refuse a metric of classes where the labels are none."""
        if metric.needs_labels and self.classes is None and not data.binary:
            raise InputError(
                f"{self.name}: metric {metric.name!r} needs labels -1/1, 0/1 or 1/2, "
                f"which {data.name!r} does not have; for numbers use rmse, mae or r2"
            )

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

        Where none of these ids is one of the partition, which is so after a split by clients, all
        ids count; else those of the partition.
        """
        bases = quantile_bases(self.metrics)
        if not bases or self.held_out is None or self.held_out.clients is None:
            return {}
        groups = self._held_out_groups()
        values = self._group_values(bases, margins[groups.order], target[groups.order], groups.ptr)
        known = np.isin(np.asarray(groups.ids), np.asarray(self.partition.ids or ()))
        if known.any():
            values = {name: column[known] for name, column in values.items()}
        return client_quantiles(self.metrics, values)

    def _held_out_groups(self) -> Partition:
        """Group the held-out rows by client, once."""
        if self._held_out_partition is None and self.held_out is not None:
            self._held_out_partition = by_id(self.held_out.clients)
        assert self._held_out_partition is not None
        return self._held_out_partition

    def _group_values(
        self, bases: Mapping[str, Metric], margins: Vector, target: Vector, starts: Ints
    ) -> dict[str, Vector]:
        """Compute metrics, and mean losses without the regulariser, of groups of rows."""
        values = {}
        for name, base in bases.items():
            if base is LOSS:
                mean, code = self._kernels.mean_loss, self._loss_code
                groups = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
                values[name] = np.array([mean(code, margins[a:b], target[a:b]) for a, b in groups])
            else:
                values[name] = evaluate_groups(base, self._predictions(margins), target, starts)
        return values
