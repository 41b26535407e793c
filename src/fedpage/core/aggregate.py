"""Add up clients' replies in one fixed order.

The sum adds one client after the other in client order, so it has the same bits for any chunks,
threads and engine. numpy's own sum may add in pairs, and does so for (n, 1) arrays; a
Python loop over rows would take as long as the clients' work.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpage.core.jit import compile_kernel
from fedpage.core.types import Vector


@compile_kernel
def _add_rows(total: NDArray[np.float64], rows: NDArray[np.float64]) -> None:
    for i in range(rows.shape[0]):
        for l in range(rows.shape[1]):
            total[l] += rows[i, l]


@compile_kernel
def _mean_rows(rows: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    out[:] = 0.0
    _add_rows(out, rows)
    for l in range(rows.shape[1]):
        out[l] /= rows.shape[0]


def mean_rows(rows: Vector) -> Vector:
    """Return the mean of rows (n, d): bit for bit `add_rows(None, rows)` divided by n.

    >>> mean_rows(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [2.0, 3.0]
    """
    if not isinstance(rows, np.ndarray):
        return add_rows(None, rows) / len(rows)  # on a device
    out = np.empty(rows.shape[1], rows.dtype)
    _mean_rows(np.ascontiguousarray(rows), out)
    return out


def add_rows(total: Vector | None, rows: Vector) -> Vector:
    """Add each row of rows (n, d) to total (d,), one after the other.

    Args:
        total: The sum so far, which may be changed in place; None is zero.
        rows: The rows to add, (n, d).

    >>> add_rows(None, np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [4.0, 6.0]
    """
    if not isinstance(rows, np.ndarray):  # on a device, which adds whole rows
        for row in rows:
            total = row if total is None else total + row
        return total
    if total is None:
        total = np.zeros(rows.shape[1], rows.dtype)
    _add_rows(total, np.ascontiguousarray(rows))
    return total
