"""The columns of a fitted model: reference levels dropped, numbers standardised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.types import Ints, Vector
from fedpage.data.dataset import Dataset, Sparse
from fedpage.data.encoding import CategoryColumn

INTERCEPT = "Intercept"


@dataclass(frozen=True)
class Design:
    """The columns of a model's parameters.

    Attributes:
        names: The name of each column, such as "age" or "smoker=yes".
        features: The features of the data that they are, (p,).
        factors: The columns' numbers of each categorical column with more than two levels.
        mean: What is subtracted from each column, (p,).
        scale: What it is divided by, (p,).
        intercept: Whether an intercept follows the columns.
        references: The levels that others are compared with, such as "smoker=no".
    """

    names: tuple[str, ...]
    features: Ints
    factors: Mapping[str, tuple[int, ...]]
    mean: Vector
    scale: Vector
    intercept: bool
    references: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters; the intercept is the last."""
        return (*self.names, *((INTERCEPT,) if self.intercept else ()))

    def back(self) -> Vector:
        """Return the matrix (d, d) that takes parameters of standardised columns to plain ones."""
        T = np.diag(1.0 / self.scale)
        if not self.intercept:
            return T
        p = len(self.names)
        whole = np.eye(p + 1)
        whole[:p, :p] = T
        whole[p, :p] = -self.mean / self.scale
        return whole

    def columns(self, matrix: Sparse | Vector) -> Vector:
        """Return the standardised columns of a data set's rows, (n, p)."""
        rows = matrix if isinstance(matrix, np.ndarray) else matrix.to_scipy()
        chosen = rows[:, self.features]
        dense = chosen if isinstance(chosen, np.ndarray) else chosen.toarray()
        return np.ascontiguousarray((dense - self.mean) / self.scale)


def make_design(data: Dataset, reference: Mapping[str, str], intercept: bool) -> Design:
    """Choose the columns of a data set: all features but one level of each categorical column.

    Args:
        data: The data set.
        reference: The level of a categorical column that the others are compared with. If it is
            not given, use the first.
        intercept: Whether there is an intercept.

    Raises:
        InputError: If a reference is no level of a categorical column.
    """
    names = data.columns or tuple(f"x{number}" for number in range(data.features))
    encoded = data.encoding.columns if data.encoding else ()
    categories = {c.name: c for c in encoded if isinstance(c, CategoryColumn)}
    for name, level in reference.items():
        if name not in categories:
            hint = did_you_mean(name, categories) or f" they are {', '.join(categories) or 'none'}"
            raise InputError(f"reference: {short_repr(name)} is no categorical column;{hint}")
        if level not in categories[name].values:
            known = ", ".join(categories[name].values)
            raise InputError(
                f"reference: {short_repr(level)} is no level of {name!r}; its levels are {known}"
            )
    kept: list[int] = []
    factors: dict[str, tuple[int, ...]] = {}
    references: list[str] = []
    first = 0
    for column in encoded:
        count = len(column.features)
        chosen = range(first, first + count)
        if isinstance(column, CategoryColumn):
            level = reference.get(column.name, column.values[0])
            dropped = first + column.values.index(level)
            own = [feature for feature in chosen if feature != dropped]
            if len(own) > 1:
                factors[column.name] = tuple(range(len(kept), len(kept) + len(own)))
            kept += own
            references.append(f"{column.name}={level}")
        else:
            kept += chosen
        first += count
    features = np.array(kept if encoded else range(data.features), dtype=np.int64)
    chosen_names = tuple(names[feature] for feature in features)
    zero, one = np.zeros(len(features)), np.ones(len(features))
    return Design(chosen_names, features, factors, zero, one, intercept, tuple(references))


def standardise(design: Design, sums: Vector, squares: Vector, rows: int) -> Design:
    """Return the design with the mean and the standard deviation of each column.

    Args:
        design: The design.
        sums: The sum of each column over the rows of all sites, (p,).
        squares: The sum of its squares, (p,).
        rows: The number of rows.

    Raises:
        InputError: If a column is constant.
    """
    mean = sums / rows
    variance = squares / rows - mean**2
    is_constant = variance <= 1e-14 * (squares / rows)
    if is_constant.any():
        names = ", ".join(np.array(design.names)[is_constant])
        raise InputError(f"the same value in all rows of {names}; leave the column out (drop=)")
    return replace(design, mean=mean, scale=np.sqrt(variance))


def column_sums(matrix: Any, design: Design) -> tuple[Vector, Vector]:
    """Return the sum and the sum of squares of each column of a site's rows, (p,) each."""
    chosen = matrix[:, design.features]
    squares = chosen.multiply(chosen) if hasattr(chosen, "multiply") else chosen * chosen
    return np.asarray(chosen.sum(axis=0)).ravel(), np.asarray(squares.sum(axis=0)).ravel()
