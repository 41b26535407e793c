"""Heterogeneous quadratics, whose minimiser is known in closed form."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from fedpage.core.capabilities import ClientEvaluations
from fedpage.core.errors import InputError
from fedpage.core.messages import add_rows
from fedpage.core.metrics import (
    Metric,
    MetricsOption,
    describe_metrics,
    evaluate_metrics,
    resolve_metrics,
    row_metrics,
)
from fedpage.core.random import uniforms
from fedpage.core.secant import dot
from fedpage.core.types import Batch, ClientDraws, Ints, Smoothness, Vector, triangle_size
from fedpage.core.validate import as_array
from fedpage.problems import curvature_kernels, kernels
from fedpage.problems.base import (
    Description,
    Weights,
    client_scale,
    describe_weights,
    norm,
    power_of_two,
)
from fedpage.problems.oracle import RowOracle, as_rows, no_rows
from fedpage.problems.scores import ClientScoring, ClientTable


class Quadratic(ClientScoring):
    """f_ij(x) = x'A_i x/2 - b_ij . x, so f_i has curvature A_i and slope mean_j b_ij.

    The rows of a client differ in b only; clients differ in both. The minimiser is
    x* = (mean_i A_i)^-1 mean_i mean_j b_ij, weighted if weights are given.

    Args:
        A: Symmetric matrices, (N, d, d).
        b: Vectors of the rows, (N, M, d).
        weights: The clients' weights; see `client_scale`.
        metrics: Metrics of x (d,) against the minimiser x* (d,), such as "rmse", or "loss_worst",
            "f_minus_fstar" and "distance_to_optimum".
        held_out: Must be None, since a quadratic has no rows to hold out.

    Raises:
        InputError: If an argument cannot be used.
    """

    name = "quadratic"
    convex = True

    def __init__(
        self,
        A: Vector,
        b: Vector,
        *,
        weights: Weights = "uniform",
        metrics: MetricsOption = (),
        held_out: None = None,
    ) -> None:
        self.A = as_array("quadratic: A", A, np.float64)
        self.b = as_array("quadratic: b", b, np.float64)
        if self.b.ndim != 3 or 0 in self.b.shape:
            raise InputError(
                f"quadratic: b must have shape (N, M, d), at least 1 each, not {self.b.shape}"
            )
        N, M, d = self.b.shape
        if self.A.shape != (N, d, d):
            raise InputError(
                f"quadratic: b of shape {self.b.shape} needs A of shape {(N, d, d)}, "
                f"not {self.A.shape}"
            )
        if not (np.isfinite(self.A).all() and np.isfinite(self.b).all()):
            raise InputError(
                "quadratic: A and b must be finite; there is a NaN or an infinity in them"
            )
        if held_out is not None:
            raise InputError("quadratic: a quadratic has no rows to hold out; leave held_out out")
        self.weights = weights if isinstance(weights, str) else "given"
        self._sizes = np.full(N, M, dtype=np.int64)
        self._scale = client_scale(weights, self._sizes)
        self.metrics = resolve_metrics(metrics, self.name)
        for metric in self.metrics.values():
            if metric.needs_labels:
                raise InputError(
                    f"quadratic: metric {metric.name!r} needs labels, and a quadratic has none; "
                    "'distance_to_optimum' is that to the minimiser"
                )

    @classmethod
    def random(
        cls,
        clients: int,
        rows: int,
        d: int,
        *,
        seed: int = 0,
        curvature: tuple[float, float] = (0.5, 2.0),
        spread: float = 1.0,
        noise: float = 0.0,
    ) -> Quadratic:
        """Make random rotations of spectra within `curvature`.

        The minimisers of clients are about `spread` apart, those of a client's rows about `noise`.
        A seed gives the same bits on any machine.

        >>> Quadratic.random(3, 2, 4).x_star.shape
        (4,)
        """

        def normal(*words: int, size: int) -> Vector:
            # uniform with unit variance; the shape does not matter
            return float(12.0**0.5) * (uniforms(seed, 20, *words, size=size) - 0.5)

        A = np.empty((clients, d, d))
        for i in range(clients):
            lo, hi = curvature
            spectrum = lo + (hi - lo) * uniforms(seed, 21, i, size=d)
            A[i] = _rotate(np.diag(spectrum), normal(0, i, size=d * d).reshape(d, d))
        centres = spread * normal(1, size=clients * d).reshape(clients, d)
        wobble = normal(2, size=clients * rows * d).reshape(clients, rows, d)
        wobble -= wobble.mean(axis=1, keepdims=True)
        slopes = np.array([_product(A[i], centres[i]) for i in range(clients)])
        return cls(A, slopes[:, None, :] + noise * wobble)

    @property
    def d(self) -> int:
        """The number of parameters."""
        return int(self.A.shape[1])

    @cached_property
    def _whole(self) -> tuple[Vector, Vector]:
        w, flat = (self._scale / self.N)[:, None], self.A.reshape(self.N, -1)
        A = add_rows(None, w * flat).reshape(self.A.shape[1:])
        return A, add_rows(None, w * self.b.mean(axis=1))

    @property
    def mean_curvature(self) -> Vector:
        """(d, d) the weighted mean of the A_i, the second derivative of f."""
        return self._whole[0]

    @cached_property
    def x_star(self) -> Vector:
        """(d,) the minimiser."""
        A, b = self._whole
        try:
            return np.asarray(np.linalg.solve(A, b), dtype=np.float64)
        except np.linalg.LinAlgError:
            raise InputError(
                "quadratic: the mean of the A_i is singular, so there is no single minimiser"
            ) from None

    def oracle(self, clients: Ints, draws: ClientDraws) -> QuadraticOracle:
        """Return the oracle of the called clients (n,) in this round."""
        return QuadraticOracle(self, clients, draws)

    def loss(self, x: Vector) -> float:
        """Compute f(x)."""
        A, b = self._whole
        with np.errstate(over="ignore", invalid="ignore"):
            slope = _product(A, x)
            value = 0.5 * dot(x, slope) - dot(b, x)
            # where both terms overflow, their difference would be a NaN
            return value if math.isfinite(value) else dot(x, 0.5 * slope - b)

    def grad(self, x: Vector) -> Vector:
        """Compute the gradient (d,) of f at x (d,)."""
        A, b = self._whole
        with np.errstate(over="ignore", invalid="ignore"):
            return _product(A, x) - b

    def evaluate(self, x: Vector, threads: int = 1) -> Mapping[str, float]:
        """Evaluate "loss", "grad_norm" and the metrics at x (d,)."""
        row = {"loss": self.loss(x), "grad_norm": norm(self.grad(x))}
        if row_metrics(self.metrics):
            row |= evaluate_metrics(self.metrics, x, self.x_star)
        return row | self._client_columns(x) | self.compare_with_reference(x, row["loss"])

    def evaluate_clients(self, clients: Ints, x: Vector) -> ClientEvaluations:
        """Evaluate each client's N w_i f_i(x) (n,), its gradient (n, d), and the metrics."""
        A, b, scale = self.A[clients], self.b[clients].mean(axis=1), self._scale[clients]
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = _product(A.reshape(-1, self.d), x).reshape(-1, self.d)
            losses = 0.5 * _product(slopes, x) - _product(b, x)
            gradients = scale[:, None] * (slopes - b)
        metrics = self._client_metrics(len(clients), x, row_metrics(self.metrics))
        return ClientEvaluations(scale * losses, gradients, metrics)

    def _client_metrics(
        self, n: int, x: Vector, metrics: Mapping[str, Metric]
    ) -> dict[str, Vector]:
        values = evaluate_metrics(metrics, x, self.x_star) if metrics else {}
        return {name: np.full(n, value) for name, value in values.items()}

    def _client_table(
        self, x: Vector, bases: Mapping[str, Metric], outputs: Vector | None = None
    ) -> ClientTable:
        values = self._client_metrics(self.N, x, row_metrics(bases))
        if "loss" in bases:
            values["loss"] = self.evaluate_clients(np.arange(self.N), x).losses / self._scale
        return ClientTable(range(self.N), self._sizes, values)

    def smoothness(self) -> Smoothness:
        """Compute the largest eigenvalues; the average one is exact here: sqrt(|mean A_i^2|)."""
        unit = power_of_two(self.A)
        scaled = self._scale[:, None, None] * (self.A / unit)
        top = unit * float(np.linalg.eigvalsh(scaled)[:, -1].max())
        squares = np.einsum("nij,njk->ik", scaled, scaled) / self.N
        average = unit * float(np.sqrt(np.linalg.eigvalsh(squares)[-1].clip(min=0.0)))
        return Smoothness(
            top, top, average, unit * float(np.linalg.eigvalsh(self._whole[0] / unit)[-1])
        )

    def describe(self) -> Description:
        """Describe the problem: its shape, digest and weights."""
        digest = hashlib.sha256(self.A.tobytes() + self.b.tobytes()).hexdigest()
        about: Description = {
            "objective": self.name, "N": self.N, "d": self.d, "rows": int(self._sizes.sum()),
            "digest": digest,
        }  # fmt: skip
        if self.metrics:
            about["metrics"] = describe_metrics(self.metrics)
        return about | describe_weights(self.weights, self._scale)


def _product(A: Vector, v: Vector) -> Vector:
    """Return A v (n,) for A (n, d), added in order: numpy's products depend on the processor."""
    out = np.empty((len(A), 1))
    curvature_kernels.row_products(A, v[None, :], out)
    return out[:, 0]


def _rotate(A: Vector, vectors: Vector) -> Vector:
    """Return a symmetric A (d, d) after reflections I - 2 v v'/(v.v), one for each row v."""
    for v in vectors:
        square, w = dot(v, v), _product(A, v)
        w = (2.0 / square) * (w - (dot(v, w) / square) * v)
        outer = v[:, None] * w
        A = A - (outer + outer.T)
    return A


class QuadraticOracle(RowOracle):
    """Answer the called clients of a quadratic. It has no compiled local steps of its own."""

    def __init__(self, problem: Quadratic, clients: Ints, draws: ClientDraws) -> None:
        super().__init__(clients, problem._sizes[clients], draws, problem.b.shape[1])
        self._problem = problem

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """Compute A_i y_i minus the mean of the batch's b_ij, (n, d)."""
        n, p = len(self.clients), self._problem
        rows = no_rows(n, 1)[:, 0] if batch.rows is None else np.ascontiguousarray(batch.rows)
        self._count_batch(batch)
        out = np.empty((n, p.d))
        kernels.quadratic_grad(p.A, p.b, p._scale, self.clients, rows, batch.sizes, as_rows(y), out)
        return out

    def loss(self, y: Vector, batch: Batch) -> Vector:
        """Compute y . (gradient - A_i y/2), which is the mean loss (n, 1) over the batch."""
        out, half = np.empty((len(self.clients), 1)), 0.5 * self._product(y, batch)
        curvature_kernels.row_products(self.grad(y, batch) - half, as_rows(y), out)
        return out

    def hessian(self, y: Vector, batch: Batch) -> Vector:
        """Return the triangle of each A_i, (n, d(d+1)/2)."""
        p = self._problem
        self._count_batch(batch, p.d)
        out = np.empty((len(self.clients), triangle_size(p.d)))
        curvature_kernels.quadratic_hessian(p.A, p._scale, self.clients, batch.sizes, out)
        return out

    def hvp(self, y: Vector, v: Vector, batch: Batch) -> Vector:
        """Compute A_i v, (n, d)."""
        self._count_batch(batch)
        return self._product(v, batch)

    def _product(self, v: Vector, batch: Batch) -> Vector:
        p, out = self._problem, np.empty((len(self.clients), self._problem.d))
        kernel = curvature_kernels.quadratic_product
        kernel(p.A, p._scale, self.clients, batch.sizes, as_rows(v), out)
        return out
