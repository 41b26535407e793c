"""Give rows of features, dense or sparse, to the kernels."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpage.core.types import Ints, Vector
from fedpage.data.dataset import Sparse

Indices: TypeAlias = NDArray[np.uint32]
KernelRows: TypeAlias = tuple[Indices, Indices, Vector | None] | tuple[None, None, Vector]
"""(ptr, idx, val) as the kernels take them; see `kernels.py`."""


def kernel_rows(matrix: Sparse | Vector, order: Ints | None = None) -> KernelRows:
    """Return rows as the kernels take them, sharing the memory where the order is kept.

    Args:
        matrix: the features of n rows.
        order: the rows wanted, in their order; None: all.
    """
    count = _leading_rows(order)
    if not isinstance(matrix, Sparse):
        return None, None, (matrix[:count] if order is None or count is not None else matrix[order])
    indptr, indices, values, _ = matrix
    if order is not None and count is None:
        indptr, indices, values, _ = matrix.take(order)
    elif count is not None:
        end = int(indptr[count])
        indptr, indices, values = indptr[: count + 1], indices[:end], values[:end]
    return (
        indptr.astype(np.uint32),
        np.ascontiguousarray(indices, dtype=np.int32).view(np.uint32),
        None if bool((values == 1.0).all()) else np.ascontiguousarray(values),
    )


def _leading_rows(order: Ints | None) -> int | None:
    """Return n where the order is 0..n-1; None where it is another one."""
    if order is None or bool((order != np.arange(len(order))).any()):
        return None
    return len(order)
