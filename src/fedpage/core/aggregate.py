"""The one order in which clients' replies are added.

A running sum, one client after the other in client order: no chunking, thread count or engine can change a bit of it.
numpy's own sum may add in pairs, and does so for (n, 1) arrays; a loop over rows in Python would cost as much as the
clients' work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_fast: Any = njit(cache=True, nogil=True, error_model="numpy")
_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))


@_fast
def _add_rows(total: NDArray[np.float64], rows: NDArray[np.float64]) -> None:
    for i in range(rows.shape[0]):
        for l in range(rows.shape[1]):
            total[l] += rows[i, l]


@_fast
def _mean_rows(rows: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    for l in range(rows.shape[1]):
        out[l] = 0.0
    for i in range(rows.shape[0]):
        for l in range(rows.shape[1]):
            out[l] += rows[i, l]
    for l in range(rows.shape[1]):
        out[l] /= rows.shape[0]


def mean_rows(rows: Any) -> Any:
    """(d,): the mean of rows (n, d), bit for bit `add_rows(None, rows)` divided by n, in one call.

    >>> mean_rows(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [2.0, 3.0]
    """
    if type(rows) is np.ndarray and rows.dtype in _FLOATS and rows.flags.c_contiguous:
        out = np.empty(rows.shape[1], rows.dtype)
        _mean_rows(rows, out)
        return out
    return add_rows(None, rows) / len(rows)


def add_rows(total: Any, rows: Any) -> Any:
    """(d,): total plus each row of rows (n, d), one after the other; total None is zero. `total` may be reused.

    >>> add_rows(None, np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [4.0, 6.0]
    """
    if type(rows) is np.ndarray and rows.dtype in _FLOATS:
        if total is None:
            total = np.zeros(rows.shape[1], rows.dtype)
        _add_rows(total, rows if rows.flags.c_contiguous else np.ascontiguousarray(rows))
        return total
    if total is None:
        total = 0 * rows[0]
        total[:] = 0  # also where the first row is not finite, or -0.0
    for row in rows:  # tensors of another library
        total = total + row
    return total
