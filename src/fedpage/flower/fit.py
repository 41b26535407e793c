"""A fit with standard errors over sites: when it ends, and what it writes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.core.types import Vector
from fedpage.data.encoding import CategoryColumn, NumberColumn
from fedpage.engine.round import AnyEngine
from fedpage.flower.agreement import Agreement
from fedpage.flower.config import AppConfig
from fedpage.flower.schema import Schema
from fedpage.inference.design import Design
from fedpage.inference.fitting import NewtonFit, no_maximum
from fedpage.inference.model import MODEL_FILE, FederatedModel
from fedpage.inference.result import Family, FitResult

_FIRST = "first.npz"
"""The file of the first exchange, which a run that is resumed needs for the null model."""


class SiteFit:
    """End a run of Newton at the maximum of the likelihood, and write its result.

    Args:
        engine: The engine of the run.
        config: The run's configuration.
        schema: The columns, with the agreed categories.
        agreement: What the sites agreed on.
        rows: The number of rows at all sites.
        out: The run's directory.
    """

    def __init__(
        self, engine: AnyEngine, config: AppConfig, schema: Schema, agreement: Agreement, rows: int,
        out: Path,
    ) -> None:  # fmt: skip
        self._config, self._out = config, out
        assert config.family
        family: Family = config.family
        design = make_site_design(schema, agreement, config.intercept)
        self._fit = NewtonFit(engine, family, design, rows, None)
        if agreement.constants:
            self._fit.constants = agreement.constants

    def __call__(self, row: Mapping[str, float]) -> str | None:
        """Return why the run ends after the newest exchange, or None if it goes on."""
        first, path = self._fit.first, self._out / _FIRST
        if first is None and self._fit.engine.costs.round > 1:  # the run was resumed
            with np.load(path, allow_pickle=False) as arrays:
                self._fit.first = float(arrays["f"]), arrays["g"], arrays["H"]
        is_done = self._fit.is_done()
        if first is None and self._fit.first is not None:
            f, g, H = self._fit.first
            buffer = io.BytesIO()
            np.savez(buffer, f=f, g=g, H=H)
            put(path, buffer.getvalue())
        return "the likelihood is at its maximum" if is_done else None

    def explain(self) -> None:
        """Raise an InputError that names the columns that probably keep the fit from its end."""
        self._fit.explain()

    def write(self, classes: tuple[Any, ...] | None) -> FitResult:
        """Write the table as text, Markdown, LaTeX, CSV and JSON, and return the result.

        Raises:
            InputError: If the likelihood is not at its maximum.
        """
        if not self._fit.is_done():
            self.explain()
            raise InputError(f"fit: {no_maximum(self._config.rounds)}")
        result = replace(self._fit.result(classes), label=self._config.label or None)
        for suffix in (".txt", ".md", ".tex", ".csv", ".json"):
            result.save(self._out / f"fit{suffix}", ratios=result.family != "gaussian")
        return result


def make_site_design(schema: Schema, agreement: Agreement, intercept: bool) -> Design:
    """Return the columns of a model over the sites' tables, as the sites encode them."""
    columns = schema.encode(agreement.columns, agreement)
    mean: list[float] = []
    scale: list[float] = []
    factors: dict[str, tuple[int, ...]] = {}
    for column in columns:
        place, count = len(mean), len(column.features)
        mean += [column.mean] if isinstance(column, NumberColumn) else [0.0] * count
        scale += [column.scale] if isinstance(column, NumberColumn) else [1.0] * count
        if count > 1:
            factors[column.name] = tuple(range(place, place + count))
    names = tuple(name for column in columns for name in column.features)
    references = tuple(
        f"{column.name}={column.reference}"
        for column in columns
        if isinstance(column, CategoryColumn) and column.reference is not None
    )
    return Design(
        names, np.arange(len(names)), factors, np.array(mean), np.array(scale), intercept,
        references,
    )  # fmt: skip


def save_model(
    out: Path, x: Vector, config: AppConfig, schema: Schema, agreement: Agreement,
    fit: FitResult | None,
) -> Path:  # fmt: skip
    """Write a linear model beside its run, with the encoding of its columns.

    Args:
        out: The run's directory.
        x: The parameters (d,) for the features as the sites encode them.
        config: The run's configuration.
        schema: The columns, with the agreed categories.
        agreement: What the sites agreed on.
        fit: The result of a fit, whose estimates are in the units of the tables.
    """
    columns = schema.encode(agreement.columns, agreement)
    if fit is not None:
        x = fit.params
        columns = tuple(
            c if isinstance(c, CategoryColumn) else replace(c, mean=0.0, scale=1.0) for c in columns
        )
    model = FederatedModel(
        config.objective, x, config.intercept, schema.labels, columns, agreement.features,
        schema.label, (schema.event,) if schema.event else (), config.family,
    )  # fmt: skip
    return model.save(out / MODEL_FILE)
