"""The base of problems over rows: minibatches, counting, client weights, metrics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpage.core.capabilities import ClientEvaluations
from fedpage.core.errors import InputError, short_repr
from fedpage.core.metrics import (
    Metric,
    MetricsOption,
    client_quantiles,
    describe_metrics,
    evaluate_metrics,
    quantile_bases,
    resolve_metrics,
    row_metrics,
)
from fedpage.core.types import Batch, ClientDraws, Ints, Rows, Smoothness, Vector
from fedpage.core.validate import as_array
from fedpage.problems import kernels
from fedpage.problems.oracle import RowOracle
from fedpage.problems.scores import ClientScoring, ClientTable

Weights: TypeAlias = Literal["uniform", "size"] | Sequence[float] | NDArray[np.generic]
"""The clients' weights w_i: equal, proportional to M_i, or N positive numbers."""
Description: TypeAlias = dict[str, object]
"""Plain values that say which problem this is."""


def equal_size(sizes: Ints) -> int | None:
    """Return M if every client has M rows."""
    return int(sizes[0]) if int(sizes.min()) == int(sizes.max()) else None


def norm(v: Vector) -> float:
    """Compute |v| in a fixed order. numpy's norm uses threads for a long v, and other sums.

    >>> norm(np.array([3e300, -4e300])), norm(np.array([3e-200, 4e-200]))
    (5e+300, 5e-200)
    """
    square = float(kernels.square(v))
    if 1e-280 < square < math.inf:
        return math.sqrt(square)
    top = float(np.abs(v).max(initial=0.0))  # squares may overflow or vanish
    if top == 0.0 or not math.isfinite(top):
        return top
    unit = v / top
    return top * math.sqrt(kernels.square(unit))


def root_mean_square(v: Vector) -> float:
    """Compute sqrt(mean of v^2)."""
    with np.errstate(over="ignore"):
        square = float(np.mean(v**2))
    return math.sqrt(square) if 1e-280 < square < math.inf else norm(v) / math.sqrt(len(v))


def power_of_two(values: Vector) -> float:
    """Choose a unit in which squares of the values neither overflow nor vanish; mostly 1.

    >>> power_of_two(np.array([0.5, -3.0])), power_of_two(np.array([2.0**700]))
    (1.0, 5.260135901548374e+210)
    """
    top = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    if top == 0.0 or 1e-70 <= top <= 1e70:
        return 1.0
    return math.ldexp(1.0, math.frexp(top)[1] - 1)


def describe_weights(weights: str, scale: Vector) -> Description:
    """Describe the clients' weights; {} for the paper's uniform ones."""
    if weights == "uniform":
        return {}
    digest = hashlib.sha256(scale.tobytes()).hexdigest()
    return {"weights": weights if weights == "size" else f"given, sha256:{digest}"}


def client_scale(weights: Weights | str, sizes: Ints) -> Vector:
    """Compute the factors N w_i (N,) by which each client's objective is scaled.

    Args:
        weights: "uniform", "size" (w_i proportional to M_i), or N positive numbers, which are
            normalised.
        sizes: (N,) rows M_i of each client.

    Raises:
        InputError: the weights are something else.
    """
    N, name = len(sizes), weights if isinstance(weights, str) else ""
    if name == "uniform":
        return np.ones(N)
    given = {"": weights, "size": sizes}.get(name, ())
    w = as_array("weights", given, np.float64)
    if w.shape != (N,) or not np.isfinite(w).all() or (w <= 0).any():
        raise InputError(
            f"weights must be 'uniform', 'size' or {N} positive numbers, not {short_repr(weights)}"
        )
    w = w / power_of_two(w)
    return np.asarray(N * w / w.sum(), dtype=np.float64)


class RowProblem(ClientScoring):
    """A problem of the user's own: `client_loss` and `client_grad` are all that it needs.

    Every method and engine takes it. Clients are visited one after the other in Python, which suits
    trying an objective out. The loss of a linear model is better declared in `kernels.py`.

    Args:
        sizes: (N,) rows M_i of each client.
        d: the number of parameters.
        weights: the clients' weights; see `client_scale`.
        metrics: what to record of `client_predictions`, which then has to be overridden: names or
            functions (outputs, targets) -> float.
        held_out: a problem of the same kind over rows that no client has. `held_out_loss` and
            `held_out_METRIC` are recorded.

    Raises:
        InputError: something given cannot be used.
    """

    name = "own problem"

    def __init__(
        self,
        sizes: ArrayLike,
        d: int,
        *,
        weights: Weights = "uniform",
        metrics: MetricsOption = (),
        held_out: RowProblem | None = None,
    ) -> None:
        self._sizes = np.asarray(sizes, dtype=np.int64)
        if self._sizes.ndim != 1 or len(self._sizes) == 0 or int(self._sizes.min()) < 1:
            raise InputError(f"{self.name}: sizes must be the rows of each client, at least 1 each")
        self._d = int(d)
        if self._d < 1:
            raise InputError(
                f"{self.name}: d must be a whole number of at least 1, not {short_repr(d)}"
            )
        self.weights = weights if isinstance(weights, str) else "given"
        self._scale = client_scale(weights, self._sizes)
        self._equal = equal_size(self._sizes)
        self.metrics: dict[str, Metric] = resolve_metrics(metrics, self.name)
        if held_out is not None and (not isinstance(held_out, RowProblem) or held_out.d != d):
            raise InputError(
                f"{self.name}: held_out must be a RowProblem with {d} parameters over the held-out "
                f"rows, not {short_repr(held_out)}"
            )
        self.held_out = held_out
        for problem in (self, *([] if held_out is None else [held_out])):
            lacking = type(problem).client_predictions is RowProblem.client_predictions
            if row_metrics(self.metrics) and lacking:
                raise InputError(
                    f"{problem.name}: metrics need {type(problem).__name__}.client_predictions, "
                    "which returns a client's outputs and targets"
                )

    def client_loss(self, client: int, x: Vector) -> float:
        """Compute f_i(x), the mean over the client's rows at x (d,)."""
        raise NotImplementedError(f"{type(self).__name__}.client_loss")

    def client_grad(self, client: int, rows: Rows | None, x: Vector) -> Vector:
        """Compute the mean gradient (d,) over the client's rows numbered `rows` (None: all)."""
        raise NotImplementedError(f"{type(self).__name__}.client_grad")

    def client_hessian(self, client: int, x: Vector) -> Vector:
        """Compute the Hessian (d, d) of f_i. Override it to use `Newton`."""
        raise InputError(f"{self.name}: it has no Hessian; override client_hessian")

    def client_predictions(self, client: int, x: Vector) -> tuple[Vector, Vector]:
        """Return outputs (M_i,) or (M_i, classes) and targets (M_i,) of a client, for metrics."""
        raise NotImplementedError(f"{type(self).__name__}.client_predictions")

    def smoothness(self) -> Smoothness:
        """Return Lipschitz constants of the gradients. Override it to use theory's step sizes."""
        raise InputError(f"{self.name}: its smoothness is not known; override smoothness()")

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self._d

    def oracle(self, clients: Ints, draws: ClientDraws) -> LoopOracle:
        """Return the oracle of the called clients (n,) in this round."""
        return LoopOracle(self, clients, draws)

    def loss(self, x: Vector) -> float:
        """Compute f(x) = (1/N) sum_i N w_i f_i(x)."""
        return float(sum(s * self.client_loss(i, x) for i, s in enumerate(self._scale)) / self.N)

    def grad(self, x: Vector) -> Vector:
        """Compute the gradient (d,) of f."""
        total = np.zeros(self._d)
        for i, s in enumerate(self._scale):
            total += s * self.client_grad(i, None, x)
        return total / self.N

    def evaluate(self, x: Vector, threads: int = 1) -> Mapping[str, float]:
        """Evaluate "loss", "grad_norm", the metrics over all rows, and the held-out columns."""
        row = {"loss": self.loss(x), "grad_norm": norm(self.grad(x))}
        row |= self._pooled_metrics(self.metrics, x) | self._client_columns(x)
        row |= self.compare_with_reference(x, row["loss"])
        return row | self.evaluate_held_out(x)

    def evaluate_held_out(self, x: Vector) -> dict[str, float]:
        """Evaluate held_out_loss and the metrics on the held-out rows; {} without such rows."""
        if self.held_out is None:
            return {}
        row = {"loss": self.held_out.loss(x), **self.held_out._pooled_metrics(self.metrics, x)}
        bases = quantile_bases(self.metrics)
        if bases:
            table = self.held_out._client_table(x, bases)
            row |= client_quantiles(self.metrics, table.values)
        return {f"held_out_{name}": value for name, value in row.items()}

    def evaluate_clients(self, clients: Ints, x: Vector) -> ClientEvaluations:
        """Evaluate losses (n,), gradients (n, d) and metrics (n,) on each client's own rows."""
        numbers, scale = clients.tolist(), self._scale[clients]
        losses = np.array([self.client_loss(client, x) for client in numbers], dtype=np.float64)
        gradients = np.array([self.client_grad(client, None, x) for client in numbers])
        metrics = self._client_metrics(numbers, x, row_metrics(self.metrics))
        return ClientEvaluations(scale * losses, scale[:, None] * gradients, metrics)

    def _client_metrics(
        self, clients: Sequence[int], x: Vector, metrics: Mapping[str, Metric]
    ) -> dict[str, Vector]:
        each = [
            evaluate_metrics(metrics, *self.client_predictions(client, x), f"client {client}")
            for client in clients
            if metrics
        ]
        return {name: np.array([row[name] for row in each]) for name in metrics}

    def _client_table(
        self, x: Vector, bases: Mapping[str, Metric], outputs: Vector | None = None
    ) -> ClientTable:
        values = self._client_metrics(range(self.N), x, row_metrics(bases))
        if "loss" in bases:
            values["loss"] = np.array([self.client_loss(i, x) for i in range(self.N)])
        return ClientTable(range(self.N), self._sizes, values)

    def _pooled_metrics(self, metrics: Mapping[str, Metric], x: Vector) -> dict[str, float]:
        if not row_metrics(metrics):
            return {}
        each = [self.client_predictions(client, x) for client in range(self.N)]
        outputs = np.concatenate([outputs for outputs, _ in each])
        targets = np.concatenate([targets for _, targets in each])
        return evaluate_metrics(metrics, outputs, targets, f"the rows of {self.name}")

    def describe(self) -> Description:
        """Describe the problem: its name and shape."""
        about: Description = {
            "objective": self.name, "N": self.N, "d": self._d, "rows": int(self._sizes.sum()),
        }  # fmt: skip
        if self.metrics:
            about["metrics"] = describe_metrics(self.metrics)
        if self.held_out is not None:
            about["held_out"] = self.held_out.describe()
        return about | describe_weights(self.weights, self._scale)


class LoopOracle(RowOracle):
    """Answer the called clients of a RowProblem, one client after the other."""

    def __init__(self, problem: RowProblem, clients: Ints, draws: ClientDraws) -> None:
        super().__init__(clients, problem._sizes[clients], draws, problem._equal)
        self._problem = problem

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """Compute each client's mean gradient (n, d) over its batch."""
        self._count_batch(batch)
        out = np.zeros((len(self.clients), self._problem.d))
        for i, client in enumerate(self.clients.tolist()):
            if batch.rows is not None and batch.sizes[i] == 0:
                continue
            rows = None if batch.rows is None else batch.rows[i, : batch.sizes[i]]
            point = y[i] if y.ndim == 2 else y
            out[i] = self._problem._scale[client] * self._problem.client_grad(client, rows, point)
        return out

    def loss(self, y: Vector, batch: Batch) -> Vector:
        """Compute each client's f_i (n, 1), over all of its rows."""
        self._require_every_row("loss", batch)
        self._count_batch(batch)
        each = [self._problem.client_loss(client, point) for client, point in self._points(y)]
        return (self._scale * each)[:, None]

    def hessian(self, y: Vector, batch: Batch) -> Vector:
        """Compute the triangle of each client's Hessian (n, d(d+1)/2), over all of its rows."""
        self._require_every_row("hessian", batch)
        self._count_batch(batch, self._problem.d)
        upper = np.triu_indices(self._problem.d)
        each = [self._problem.client_hessian(i, point)[upper] for i, point in self._points(y)]
        return self._scale[:, None] * np.array(each)

    @property
    def _scale(self) -> Vector:
        """(n,) N w_i of the called clients."""
        return self._problem._scale[self.clients]

    def _points(self, y: Vector) -> Iterator[tuple[int, Vector]]:
        """Iterate over the called clients and their points."""
        points = y if y.ndim == 2 else [y] * len(self.clients)
        return zip(self.clients.tolist(), points, strict=True)

    def _require_every_row(self, what: str, batch: Batch) -> None:
        if batch.rows is not None:
            raise InputError(f"{self._problem.name}: {what} is over all rows; draw batch(None)")
