"""Small real data sets that come with scikit-learn and need no download."""

from __future__ import annotations

import numpy as np

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
def digits() -> Dataset:
    """Return 1,797 x 64 grey values from 0 to 1; +1 is an odd digit. Alpaydin, Kaynak (1998)."""
    from scipy.sparse import csr_array
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return Dataset.from_arrays(
        csr_array(X / 16.0), np.asarray(y) % 2, name="digits", note="even/odd, divided by 16"
    )
