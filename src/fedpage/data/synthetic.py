"""`census`: synthetic one-hot data of a9a's shape, for trying everything without a download.

Fields, values per field and the share of positive labels are those of the UCI census data behind
a9a. The rows are drawn from a planted model and describe no person.
"""

from __future__ import annotations

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import uniforms
from fedpage.core.types import Vector
from fedpage.core.validate import as_number, check_whole
from fedpage.data.dataset import Dataset, Sparse
from fedpage.data.registry import register_embedded

FIELDS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
"""The number of values of each categorical field; together 123 features."""
_SCALES = (10, 100, 3250)
"""Lengths of the blocks of rows that share a tilt, so that clients of any size differ."""
_POSITIVE = 0.24


def _normals(seed: int, *words: int, size: int) -> Vector:
    """Draw (size,) standard normal numbers by the Box-Muller transform."""
    u, v = uniforms(seed, *words, 1, size=size), uniforms(seed, *words, 2, size=size)
    return np.sqrt(-2.0 * np.log1p(-u)) * np.cos(2.0 * np.pi * v)


@register_embedded("census", rows=32_561, features=123, note="synthetic")
def census(rows: int = 32_561, skew: float = 0.3, noise: float = 1.0, seed: int = 0) -> Dataset:
    """Generate `rows` x 123 features, 14 ones a row, and labels -1/+1, a quarter of them positive.

    Neighbouring rows share a tilt of the category frequencies and of the label, at scales of 10,
    100 and 3250 rows, so that consecutive blocks of any size differ from each other.

    Args:
        rows: the number of rows.
        skew: how much clients differ, from 0 (rows are exchangeable) to 1 (strongly) and above.
        noise: noise of the labels; at 0 the planted linear model decides.
        seed: of all random numbers.

    Raises:
        InputError: a number is out of range.

    >>> data = census(rows=50)
    >>> data.X.shape, data.nonzeros
    ((50, 123), 700)
    """
    for name, value, low, high in (
        ("rows", rows, 2, 20_000_000),
        ("skew", skew, 0, 10),
        ("noise", noise, 0, 100),
    ):
        if not low <= as_number(value) <= high:
            raise InputError(
                f"census: {name} must be from {low} to {high:,}, not {short_repr(value)}"
            )
    check_whole("census: rows", rows, 2)
    smallest = _SCALES[0]
    regions = -(-rows // smallest)
    score = np.zeros(rows)
    columns = np.empty((rows, len(FIELDS)), dtype=np.int32)
    region_of_row = np.arange(rows) // smallest
    first = 0
    for field, values in enumerate(FIELDS):
        base = -1.1 * np.log(np.arange(1, values + 1))
        logits = np.tile(base, (regions, 1))
        for scale in _SCALES:
            groups = -(-rows // scale)
            tilt = _normals(seed, 10, field, scale, size=groups * values).reshape(groups, values)
            logits += skew * tilt[np.arange(regions) * smallest // scale]
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        cdf = np.cumsum(weights, axis=1)
        u = uniforms(seed, 11, field, size=rows) * cdf[region_of_row, -1]
        value = (u[:, None] >= cdf[region_of_row]).sum(axis=1).clip(max=values - 1)
        planted = _normals(seed, 12, field, size=values)
        score += planted[value]
        columns[:, field] = first + value
        first += values
    for scale in _SCALES:
        score += skew * _normals(seed, 13, scale, size=-(-rows // scale))[np.arange(rows) // scale]
    u = uniforms(seed, 14, size=rows)
    logistic = np.log(np.maximum(u, 1e-300)) - np.log1p(-u)
    latent = score + noise * logistic
    cut = np.partition(latent, -max(1, round(_POSITIVE * rows)))[-max(1, round(_POSITIVE * rows))]
    matrix = Sparse(
        np.arange(rows + 1, dtype=np.int64) * len(FIELDS),
        columns.ravel(),
        np.ones(rows * len(FIELDS)),
        sum(FIELDS),
    )
    return Dataset(
        "census",
        matrix,
        y=np.where(latent >= cut, 1.0, -1.0),
        classes=(-1, 1),
        note=f"synthetic (rows={rows}, skew={skew:g}, noise={noise:g}, seed={seed})",
    )
