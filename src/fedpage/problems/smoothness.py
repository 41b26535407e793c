"""Lipschitz constants of the gradients of a linear model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError
from fedpage.core.jit import compile_kernel
from fedpage.core.types import Ints, Smoothness, Vector
from fedpage.problems.base import power_of_two, root_mean_square
from fedpage.problems.kernels import dense_product
from fedpage.problems.losses import REGULARISERS

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fedpage.problems.linear import LinearModel

_LARGEST = 400
"""Eigenvalues of matrices up to this size are computed directly, of larger ones by Lanczos."""
_BLOCK = 1 << 22
"""Numbers in a block of rows or of matrices that are in memory at a time."""


def smoothness(problem: LinearModel) -> Smoothness:
    """Compute the constants of a row, of the clients and of f; see `LinearModel.smoothness`."""
    curvature = problem._loss.curvature
    if not math.isfinite(curvature):
        raise InputError(
            f"{problem.name}: its gradient has no Lipschitz constant, so theory has no step sizes "
            "for it; give step sizes, or search them with --search step=0.01,0.1 (tune)"
        )
    _, idx, _, _, start, scale = problem._rows_and_targets
    rows = _DenseRows(problem) if idx is None else _SparseRows(problem)
    reg_curvature = REGULARISERS[problem.reg].curvature * problem.alpha
    sizes, unit = problem.sizes, rows.unit
    each = _of_clients(rows, start, sizes)
    with np.errstate(over="ignore"):  # a constant beyond float64 is infinite
        squares = curvature * rows.squares() * unit * unit + reg_curvature
        row = float((np.repeat(scale, sizes) * squares).max())
        clients = scale * (curvature * each / sizes * unit * unit + reg_curvature)
    weights = np.sqrt(np.repeat(scale / sizes, sizes) / problem.N)
    whole = curvature * rows.largest_eigenvalue(weights) * unit * unit + reg_curvature
    return Smoothness(row, float(clients.max()), root_mean_square(clients), whole)


def _of_clients(rows: _SparseRows | _DenseRows, start: Ints, sizes: Ints) -> Vector:
    """Compute the largest eigenvalue of A_i' A_i of each client, many clients at a time."""
    each, width = np.empty(len(sizes)), rows.width
    sides = np.minimum(sizes, width)
    by_rows = sizes <= width
    for side in np.unique(sides).tolist():
        for of_rows in (True, False):
            group = np.flatnonzero((sides == side) & (by_rows == of_rows))
            if side > _LARGEST:
                for client in group.tolist():
                    part = slice(int(start[client]), int(start[client + 1]))
                    each[client] = rows.lanczos(part)
                continue
            most = max(1, _BLOCK // (side * side))
            for first in range(0, len(group), most):
                clients = group[first : first + most]
                grams = np.zeros((len(clients), side, side))
                rows.grams(start, clients, of_rows, grams)
                each[clients] = np.maximum(np.linalg.eigvalsh(grams)[:, -1], 0.0)
    return each


def _largest_by_lanczos(product: Callable[[Vector], Vector], size: int) -> float:
    """Compute the largest eigenvalue of a symmetric matrix from its products with vectors."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    gram = LinearOperator((size, size), matvec=product, dtype=np.float64)
    found = eigsh(gram, k=1, which="LA", return_eigenvectors=False, v0=np.ones(size), tol=1e-10)
    return float(found[0])


class _SparseRows:
    """The rows of a linear model as a CSR matrix A, divided by `unit`."""

    def __init__(self, problem: LinearModel) -> None:
        from scipy.sparse import csr_array, hstack

        ptr, idx, val = problem._rows_and_targets[:3]
        self.unit = 1.0 if val is None else power_of_two(val)
        entries = np.ones(len(idx)) if val is None else val / self.unit
        shape = (len(ptr) - 1, problem.data.features)
        self.A: csr_array = csr_array(
            (entries, idx.astype(np.int64), ptr.astype(np.int64)), shape=shape
        )
        if problem.intercept:
            ones = csr_array(np.full((shape[0], 1), 1.0 / self.unit))
            self.A = hstack([self.A, ones], format="csr")
        self.width = self.A.shape[1]

    def squares(self) -> Vector:
        """Compute |a|^2 of each row (n,)."""
        return np.asarray(self.A.multiply(self.A).sum(axis=1)).ravel()

    def grams(self, start: Ints, clients: Ints, of_rows: bool, out: Vector) -> None:
        """Add A_i A_i', of_rows, or A_i' A_i of clients to out (n, side, side)."""
        A = self.A
        kernel = _sparse_row_grams if of_rows else _sparse_column_grams
        kernel(A.indptr, A.indices, A.data, start, clients, out)

    def lanczos(self, part: slice) -> float:
        """Compute the largest eigenvalue of A'A of some rows."""
        return _lanczos_sparse(self.A[part])

    def largest_eigenvalue(self, weights: Vector) -> float:
        """Compute the largest eigenvalue of A' diag(weights^2) A."""
        from scipy.sparse import diags_array

        block = diags_array(weights) @ self.A
        if block.nnz == 0:
            return 0.0
        if min(block.shape) > _LARGEST:
            return _lanczos_sparse(block)
        gram = (block @ block.T if block.shape[0] <= block.shape[1] else block.T @ block).toarray()
        return float(max(np.linalg.eigvalsh(gram)[-1], 0.0))


def _lanczos_sparse(block: csr_array) -> float:
    if block.nnz == 0:
        return 0.0
    return _largest_by_lanczos(lambda v: block.T @ (block @ v), block.shape[1])


class _DenseRows:
    """The rows of a linear model as a dense matrix A, divided by `unit`."""

    def __init__(self, problem: LinearModel) -> None:
        val = problem._rows_and_targets[2]
        self.unit = power_of_two(val)
        self.A = val if self.unit == 1.0 else val / self.unit
        self.one = 1.0 / self.unit if problem.intercept else 0.0
        self.width = val.shape[1] + problem.intercept

    def squares(self) -> Vector:
        """Compute |a|^2 of each row (n,)."""
        return np.asarray(np.einsum("ij,ij->i", self.A, self.A)) + self.one * self.one

    def grams(self, start: Ints, clients: Ints, of_rows: bool, out: Vector) -> None:
        """Add A_i A_i', of_rows, or A_i' A_i of clients to out (n, side, side)."""
        kernel = _dense_row_grams if of_rows else _dense_column_grams
        kernel(self.A, self.one, start, clients, out)

    def lanczos(self, part: slice, weights: Vector | float = 1.0) -> float:
        """Compute the largest eigenvalue of A' diag(weights^2) A of some rows."""
        rows, p = self.A[part], self.A.shape[1]

        def product(v: Vector) -> Vector:
            margins = rows @ v[:p]
            if self.one:
                margins += self.one * v[p]
            margins *= weights * weights
            out = rows.T @ margins
            return np.append(out, self.one * margins.sum()) if self.one else out

        return _largest_by_lanczos(product, self.width)

    def largest_eigenvalue(self, weights: Vector) -> float:
        """Compute the largest eigenvalue of A' diag(weights^2) A."""
        n = len(self.A)
        if min(n, self.width) > _LARGEST:
            return self.lanczos(slice(None), weights)
        gram = np.zeros((self.width, self.width))
        for first in range(0, n, max(1, _BLOCK // self.width)):
            part = slice(first, first + max(1, _BLOCK // self.width))
            block = self.A[part] * weights[part, None]
            if self.one:
                block = np.column_stack([block, self.one * weights[part]])
            gram += block.T @ block
        return float(max(np.linalg.eigvalsh(gram)[-1], 0.0))


# --- kernels --------------------------------------------------------------------------------------
# They compute the lower triangles, which are all that eigvalsh reads.

I32 = NDArray[np.int32] | NDArray[np.int64]


@compile_kernel
def _sparse_row_grams(
    ptr: I32, idx: I32, val: Vector, start: Ints, clients: Ints, out: Vector
) -> None:
    for i in range(len(clients)):
        first = start[clients[i]]
        for r in range(out.shape[1]):
            for s in range(r + 1):
                e, f, total = ptr[first + r], ptr[first + s], 0.0
                while e < ptr[first + r + 1] and f < ptr[first + s + 1]:
                    if idx[e] == idx[f]:
                        total += val[e] * val[f]
                        e += 1
                        f += 1
                    elif idx[e] < idx[f]:
                        e += 1
                    else:
                        f += 1
                out[i, r, s] = total


@compile_kernel
def _sparse_column_grams(
    ptr: I32, idx: I32, val: Vector, start: Ints, clients: Ints, out: Vector
) -> None:
    for i in range(len(clients)):
        for r in range(start[clients[i]], start[clients[i] + 1]):
            for e in range(ptr[r], ptr[r + 1]):
                for f in range(ptr[r], e + 1):
                    out[i, idx[e], idx[f]] += val[e] * val[f]


@compile_kernel
def _dense_row_grams(A: Vector, one: float, start: Ints, clients: Ints, out: Vector) -> None:
    for i in range(len(clients)):
        first = start[clients[i]]
        for r in range(out.shape[1]):
            for s in range(r + 1):
                out[i, r, s] = dense_product(A, first + r, A, first + s) + one * one


@compile_kernel
def _dense_column_grams(A: Vector, one: float, start: Ints, clients: Ints, out: Vector) -> None:
    p = A.shape[1]
    for i in range(len(clients)):
        for r in range(start[clients[i]], start[clients[i] + 1]):
            for k in range(p):
                v = A[r, k]
                for m in range(k + 1):
                    out[i, k, m] += v * A[r, m]
            if one != 0.0:
                for m in range(p):
                    out[i, p, m] += one * A[r, m]
                out[i, p, p] += one * one
