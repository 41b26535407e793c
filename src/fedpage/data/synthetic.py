"""`census`: generated one-hot data of a9a's shape, so that everything can be tried without a download.

It is synthetic. Fields, values per field and the share of positives are those of the UCI census data behind a9a; the
rows are drawn from a planted model, and no number of it describes any person.
"""

from __future__ import annotations

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.random import uniforms
from fedpage.core.types import Vector
from fedpage.data.dataset import Dataset

FIELDS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
"""Values of each categorical field; together 123 features."""
_SCALES = (10, 100, 3250)
"""Rows in a row that share a tilt, so that clients of any size differ from each other."""
_POSITIVE = 0.24


def _normals(seed: int, *words: int, size: int) -> Vector:
    """(size,) standard normal numbers by the Box-Muller transform."""
    u, v = uniforms(seed, *words, 1, size=size), uniforms(seed, *words, 2, size=size)
    return np.sqrt(-2.0 * np.log1p(-u)) * np.cos(2.0 * np.pi * v)


def census(rows: int = 32_561, skew: float = 0.3, noise: float = 1.0, seed: int = 0) -> Dataset:
    """A generated data set of `rows` x 123 with 14 ones a row and labels -1/+1, about a quarter positive.

    skew: how much clients differ (0: rows are exchangeable; 1: strongly). Neighbouring rows share a tilt of the
    category frequencies and of the label, at scales of 10, 100 and 3250 rows, so that consecutive blocks of any size
    are unlike each other. noise: temperature of the labels (0: the planted linear model decides).

    >>> data = census(rows=50)
    >>> data.X.shape, data.nonzeros
    ((50, 123), 700)
    """
    if not 2 <= rows <= 20_000_000 or not 0.0 <= skew <= 10.0 or not 0.0 <= noise <= 100.0:
        raise InputError(
            f"census: rows={rows} must be from 2 to 20,000,000, skew={skew} in 0..10 and noise={noise} in 0..100"
        )
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
    return Dataset(
        name="census",
        indptr=np.arange(rows + 1, dtype=np.int64) * len(FIELDS),
        indices=columns.ravel(),
        values=np.ones(rows * len(FIELDS)),
        y=np.where(latent >= cut, 1.0, -1.0),
        features=sum(FIELDS),
        note=f"synthetic (rows={rows}, skew={skew:g}, noise={noise:g}, seed={seed})",
    )
