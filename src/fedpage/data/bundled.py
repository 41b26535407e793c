"""Small real data sets that come with scikit-learn and need no download."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.data.dataset import Dataset
from fedpage.data.registry import register_embedded


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
        parity = np.asarray(y) % 2
        return Dataset.from_arrays(pixels, parity, name="digits", note="even/odd, divided by 16")
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
