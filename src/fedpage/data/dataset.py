"""Data sets: sparse rows, labels, a name and a digest of the content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpage.core.errors import InputError
from fedpage.core.types import Vector


@dataclass(frozen=True, eq=False)
class Dataset:
    """Hold n rows of d features and n labels, as the arrays of a CSR matrix.

    Attributes:
        name: the name in records and reports.
        indptr: (n+1,) where each row begins in `indices` and `values`.
        indices: (nnz,) columns, from 0 to d-1.
        values: (nnz,) entries.
        y: (n,) labels -1/+1, or targets of a regression.
        features: the number of features, d.
        note: what a reader of results must know, such as that the data is synthetic.

    Raises:
        InputError: the arrays do not fit together, or hold a NaN or an infinity.
    """

    name: str
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: Vector
    y: Vector
    features: int
    note: str = ""

    def __post_init__(self) -> None:
        if self.rows == 0:
            raise InputError(f"data set {self.name!r} has no rows")
        if self.features < 1:
            raise InputError(
                f"data set {self.name!r} must have at least one feature, not {self.features}"
            )
        if len(self.indptr) != self.rows + 1 or len(self.indices) != len(self.values):
            raise InputError(
                f"data set {self.name!r}: the lengths of rows, indices and values do not agree"
            )
        if (
            self.indptr[0] != 0
            or self.indptr[-1] != len(self.indices)
            or bool((np.diff(self.indptr) < 0).any())
        ):
            raise InputError(
                f"data set {self.name!r}: indptr must rise from 0 to the number of entries"
            )
        if (
            len(self.indices)
            and not 0 <= int(self.indices.min()) <= int(self.indices.max()) < self.features
        ):
            raise InputError(f"data set {self.name!r}: an index is outside 0..{self.features - 1}")
        if not (np.isfinite(self.values).all() and np.isfinite(self.y).all()):
            raise InputError(f"data set {self.name!r}: it contains a NaN or an infinity")

    @classmethod
    def from_arrays(cls, X: Any, y: ArrayLike, name: str = "mine", note: str = "") -> Dataset:
        """Make a data set from arrays.

        Args:
            X: (n, d) features, a dense array or a scipy.sparse matrix.
            y: (n,) labels or targets. Labels 0/1, 1/2 or -1/1 are classes and become -1/+1; other
                values are kept, as targets of a regression.
            name: the name in records and reports.
            note: what a reader of results must know.

        Raises:
            InputError: X or y has a wrong shape, or values that are not finite real numbers.

        >>> Dataset.from_arrays([[1.0, 0.0], [0.0, 2.0]], [0, 1]).y.tolist()
        [-1.0, 1.0]
        """
        from scipy.sparse import csr_array, issparse

        try:
            dense = X if issparse(X) else np.asarray(X)
            labels = np.asarray(y)
            if "c" in (np.dtype(dense.dtype).kind, labels.dtype.kind):
                raise ValueError("complex numbers")
            matrix = csr_array(dense.astype(np.float64))
            labels = labels.astype(np.float64).ravel()
        except (TypeError, ValueError) as error:
            raise InputError(
                f"data set {name!r}: X must be a matrix and y a vector of real numbers ({error})"
            ) from None
        if matrix.ndim != 2 or matrix.shape[1] == 0:
            raise InputError(
                f"data set {name!r}: X must be a matrix with at least one column, "
                f"not of shape {matrix.shape}"
            )
        matrix.sum_duplicates()
        matrix.sort_indices()
        if matrix.shape[0] != len(labels):
            raise InputError(
                f"data set {name!r}: X has {matrix.shape[0]} rows but y has {len(labels)} labels"
            )
        if not (np.isfinite(matrix.data).all() and np.isfinite(labels).all()):
            raise InputError(f"data set {name!r}: X and y must be finite, without NaN or infinity")
        return cls(
            name=name,
            indptr=matrix.indptr.astype(np.int64),
            indices=matrix.indices.astype(np.int32),
            values=matrix.data.astype(np.float64),
            y=to_signs(labels),
            features=int(matrix.shape[1]),
            note=note,
        )

    @property
    def rows(self) -> int:
        """The number of rows, n."""
        return len(self.y)

    @property
    def nonzeros(self) -> int:
        """The number of stored entries of X."""
        return len(self.values)

    @property
    def binary(self) -> bool:
        """Whether the labels are -1/+1."""
        return bool(np.all(np.abs(self.y) == 1.0))

    @cached_property
    def X(self) -> Any:
        """The features (n, d) as a scipy.sparse CSR array that shares this data set's memory."""
        from scipy.sparse import csr_array

        return csr_array((self.values, self.indices, self.indptr), shape=(self.rows, self.features))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content: shape, labels, indices and values."""
        return content_digest(self.features, self.y, self.indptr, self.indices, self.values)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {self.rows:,} x {self.features:,}, {self.nonzeros:,} nonzeros)"
        )


def content_digest(
    features: int,
    y: Vector,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    values: Vector,
) -> str:
    """Compute the SHA-256 of a data set in a canonical little-endian form."""
    state = hashlib.sha256(f"fedpage-data-1 {len(y)} {features} {len(values)}".encode())
    for array, kind in ((y, "<f8"), (indptr, "<i8"), (indices, "<i4"), (values, "<f8")):
        state.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    return state.hexdigest()


def to_signs(y: Vector) -> Vector:
    """Map labels (n,) 0/1, 1/2 or -1/1 to -1/+1, the larger to +1, and return others as floats.

    >>> to_signs(np.array([1.0, 2.0, 1.0])).tolist(), to_signs(np.array([0.0, 10.0])).tolist()
    ([-1.0, 1.0, -1.0], [0.0, 10.0])
    """
    found = np.unique(y).tolist()
    if found in ([0.0, 1.0], [1.0, 2.0], [-1.0, 1.0]):
        return np.where(y == found[1], 1.0, -1.0)
    return y.astype(np.float64)
