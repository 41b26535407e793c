"""Lipschitz constants of the gradients of a linear model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpage.core.types import Smoothness
from fedpage.problems.base import power_of_two, root_mean_square
from fedpage.problems.kernels import REGULARISERS

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fedpage.problems.linear_model import LinearModel


def smoothness(problem: LinearModel) -> Smoothness:
    """Compute the constants of a row, of the clients and of f; see `LinearModel.smoothness`."""
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import LinearOperator, eigsh

    ptr, idx, val, _, start, scale = problem._rows_and_targets
    unit = 1.0 if val is None else power_of_two(val)
    entries = np.ones(len(idx)) if val is None else val / unit
    A = csr_array(
        (entries, idx.astype(np.int64), ptr.astype(np.int64)),
        shape=(len(ptr) - 1, problem.data.features),
    )
    curvature = problem._loss.curvature
    reg_curvature = REGULARISERS[problem.reg].curvature * problem.alpha
    squares = np.asarray(A.multiply(A).sum(axis=1)).ravel()
    sizes = problem.sizes

    def largest_eigenvalue(block: csr_array) -> float:
        """Compute the largest eigenvalue of block' block."""
        if block.nnz == 0:
            return 0.0
        if min(block.shape) <= 400:
            gram = (
                block @ block.T if block.shape[0] <= block.shape[1] else block.T @ block
            ).toarray()
            return float(max(np.linalg.eigvalsh(gram)[-1], 0.0))
        d = block.shape[1]
        gram = LinearOperator((d, d), matvec=lambda v: block.T @ (block @ v), dtype=np.float64)
        return float(
            eigsh(gram, k=1, which="LA", return_eigenvectors=False, v0=np.ones(d), tol=1e-10)[0]
        )

    each = np.array([largest_eigenvalue(A[start[i] : start[i + 1]]) for i in range(problem.N)])
    weighted = diags_array(np.sqrt(np.repeat(scale / sizes, sizes) / problem.N)) @ A
    with np.errstate(over="ignore"):  # a constant beyond float64 is infinite
        row = float(
            (np.repeat(scale, sizes) * (curvature * squares * unit * unit + reg_curvature)).max()
        )
        clients = scale * (curvature * each / sizes * unit * unit + reg_curvature)
    whole = curvature * largest_eigenvalue(weighted) * unit * unit + reg_curvature
    return Smoothness(row, float(clients.max()), root_mean_square(clients), whole)
