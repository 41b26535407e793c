"""Data sets that need no file: small ones of scikit-learn, and the synthetic `census`.

`census` has the shape of a9a. Its fields, values per field and share of positive labels are those
of the UCI census data behind a9a. The rows are drawn from a planted model and describe no person.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import uniforms
from fedpage.core.types import Vector
from fedpage.core.validate import check_whole, within
from fedpage.data.dataset import Dataset, Sparse
from fedpage.data.registry import register_embedded

FIELDS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
"""The number of values of each categorical field; together 123 features."""
_SCALES = (10, 100, 3250)
"""Lengths of the blocks of rows that share a tilt, so that clients of any size differ."""
_POSITIVE = 0.24


@register_embedded("breast_cancer", rows=569, features=30, note="real, from scikit-learn")
def breast_cancer() -> Dataset:
    """Return 569 x 30 standardised features; +1 is benign. Wolberg, Street, Mangasarian (1995)."""
    from scipy.sparse import csr_array
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return Dataset.from_arrays(csr_array(X), y, name="breast_cancer", note="standardised")


@register_embedded("digits", rows=1_797, features=64, note="real, from scikit-learn")
def digits(classes: int = 2) -> Dataset:
    """Return 1,797 x 64 grey values from 0 to 1. Alpaydin, Kaynak (1998).

    Args:
        classes: 2 for even (-1) and odd (+1) digits, 10 for the digits themselves.

    Raises:
        InputError: classes is another number.
    """
    if classes not in (2, 10):
        raise InputError(
            f"data set 'digits': classes must be 2 (even and odd) or 10, not {short_repr(classes)}"
        )
    from scipy.sparse import csr_array
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    pixels = csr_array(X / 16.0)
    if classes == 2:
        return Dataset.from_arrays(pixels, y % 2, name="digits", note="even/odd, divided by 16")
    data = Dataset.from_arrays(pixels, y, name="digits", note="divided by 16")
    return replace(data, classes=tuple(range(10)))


@register_embedded("iris", rows=150, features=4, note="real, 3 classes, from scikit-learn")
def iris() -> Dataset:
    """Return 150 x 4 standardised lengths and widths of three species. Fisher (1936)."""
    from sklearn.datasets import load_iris

    return _standardised("iris", load_iris())


@register_embedded("wine", rows=178, features=13, note="real, 3 classes, from scikit-learn")
def wine() -> Dataset:
    """Return 178 x 13 standardised measurements of three cultivars. Aeberhard, Forina (1992)."""
    from sklearn.datasets import load_wine

    return _standardised("wine", load_wine())


def _standardised(name: str, bunch: Any) -> Dataset:
    """Return the rows of a scikit-learn data set, dense, with names for classes and columns."""
    X = (bunch.data - bunch.data.mean(axis=0)) / bunch.data.std(axis=0)
    labels = np.asarray(bunch.target_names)[bunch.target]
    data = Dataset.from_arrays(X, labels, name=name, note="standardised")
    return replace(data, columns=tuple(bunch.feature_names))


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
    check_whole("census: rows", rows, 2, 20_000_000)
    within("census", "skew", skew, 0, 10)
    within("census", "noise", noise, 0, 100)
    regions = -(-rows // _SCALES[0])
    score = np.zeros(rows)
    columns = np.empty((rows, len(FIELDS)), dtype=np.int32)
    region_of_row = np.arange(rows) // _SCALES[0]
    first = 0
    for field, values in enumerate(FIELDS):
        base = -1.1 * np.log(np.arange(1, values + 1))
        logits = np.tile(base, (regions, 1))
        for scale in _SCALES:
            groups = -(-rows // scale)
            tilt = _normals(seed, 10, field, scale, size=groups * values).reshape(groups, values)
            logits += skew * tilt[np.arange(regions) * _SCALES[0] // scale]
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
    positive = max(1, round(_POSITIVE * rows))
    cut = np.partition(latent, -positive)[-positive]
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


def _normals(seed: int, *words: int, size: int) -> Vector:
    """Draw (size,) standard normal numbers by the Box-Muller transform."""
    u, v = uniforms(seed, *words, 1, size=size), uniforms(seed, *words, 2, size=size)
    return np.sqrt(-2.0 * np.log1p(-u)) * np.cos(2.0 * np.pi * v)
