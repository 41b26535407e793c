"""Cox's proportional hazards model, stratified by client."""

from __future__ import annotations

from copy import copy
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpage.core.errors import InputError
from fedpage.core.jit import compile_kernel
from fedpage.core.types import Rows, Vector
from fedpage.core.validate import as_array, choice
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, by_id
from fedpage.problems.base import Description, RowProblem

Ties = Literal["efron", "breslow"]


@compile_kernel
def _partial_likelihood(
    X: Vector, last: Any, died: Any, efron: bool, b: Vector, order: int, grad: Vector, H: Vector
) -> float:
    """Return minus the log partial likelihood of a stratum at b (d,), and add its derivatives.

    X (n, d) is centred and sorted by time, the latest first; last (n,) is the number of the last
    row with the same time. order is 0 for the value, 1 for grad (d,) too, 2 for H (d, d) too.
    """
    n, d = X.shape
    margin = np.empty(n)
    for r in range(n):
        margin[r] = 0.0
        for j in range(d):
            margin[r] += X[r, j] * b[j]
    top = margin.max()
    S0, S1, S2 = 0.0, np.zeros(d), np.zeros((d, d))
    D1, D2, mean = np.zeros(d), np.zeros((d, d)), np.zeros(d)
    value, first = 0.0, 0
    while first < n:
        end = last[first] + 1
        D0, deaths = 0.0, 0
        D1[:] = 0.0
        D2[:] = 0.0
        for r in range(first, end):
            weight = np.exp(margin[r] - top)
            S0 += weight
            if died[r]:
                deaths += 1
                D0 += weight
                value -= margin[r] - top
            for j in range(d if order > 0 else 0):
                S1[j] += weight * X[r, j]
                if died[r]:
                    D1[j] += weight * X[r, j]
                    grad[j] -= X[r, j]
                for m in range(j + 1 if order > 1 else 0):
                    S2[j, m] += weight * X[r, j] * X[r, m]
                    if died[r]:
                        D2[j, m] += weight * X[r, j] * X[r, m]
        for k in range(deaths):
            q = k / deaths if efron else 0.0
            below = S0 - q * D0
            value += np.log(below)
            for j in range(d if order > 0 else 0):
                mean[j] = (S1[j] - q * D1[j]) / below
                grad[j] += mean[j]
                for m in range(j + 1 if order > 1 else 0):
                    H[j, m] += (S2[j, m] - q * D2[j, m]) / below - mean[j] * mean[m]
        first = end
    for j in range(d):
        for m in range(j):
            H[m, j] = H[j, m]
    return value


class CoxModel(RowProblem):
    """Cox regression with a baseline hazard for each client: minus the log partial likelihood.

    f_i is minus the log partial likelihood of client i's rows, divided by their number M_i. With
    the weights "size" N f is then minus that of the stratified model, divided by the mean size.
    Minibatches have no partial likelihood, so methods must use all rows; `Newton` does.

    Args:
        data: The covariates, with the client ids; labels are ignored.
        time: The time of each row until its event or until it was censored, (n,), above 0.
        event: Whether each row ended with an event, (n,), booleans or 0 and 1.
        clients: A partition. If None, there is a client for each id of `data.clients`.
        ties: "efron" or "breslow".
        weights: The clients' weights; see `client_scale`.

    Raises:
        InputError: If an argument cannot be used.
    """

    name = "Cox regression"
    convex = True

    def __init__(
        self,
        data: Dataset,
        time: ArrayLike,
        event: ArrayLike,
        clients: Partition | None = None,
        *,
        ties: Ties = "efron",
        weights: Any = "size",
    ) -> None:
        choice(self.name, "ties", ties, ("efron", "breslow"))
        if clients is None and data.clients is None:
            raise InputError(
                f"{self.name}: {data.name!r} does not say whose row each is; load it with "
                "client=COLUMN, or give a partition"
            )
        self.partition = by_id(data.clients) if clients is None else clients
        self.data, self.ties = data, ties
        super().__init__(self.partition.sizes, data.features, weights=weights)
        times, events = _check_outcomes(self.name, data.rows, time, event)
        X = data.matrix if isinstance(data.matrix, np.ndarray) else data.matrix.to_scipy().toarray()
        self._events = events
        self.events = np.zeros(self.N, dtype=np.int64)
        """The events of each client, (N,)."""
        self._strata = []
        for client in range(self.N):
            rows = self.partition.order[self.partition.ptr[client] : self.partition.ptr[client + 1]]
            rows = rows[np.argsort(-times[rows], kind="stable")]
            sorted_times, died = times[rows], events[rows]
            last = np.searchsorted(-sorted_times, -sorted_times, side="right") - 1
            self.events[client] = died.sum()
            self._strata.append((np.ascontiguousarray(X[rows] - X[rows].mean(0)), last, died))

    def events_of(self, client: int) -> NDArray[np.bool_]:
        """Return which rows of a client ended with an event, (M_i,), in the order of the data."""
        return np.asarray(self._events[self.partition.rows(client)])

    def rescale(self, factor: float) -> Self:
        """Return the problem with every client's objective multiplied by a factor."""
        twin = copy(self)
        twin._scale = self._scale * factor
        return twin

    def _evaluate(self, client: int, x: Vector, order: int) -> tuple[float, Vector, Vector]:
        """Return the client's f_i, its gradient (d,) and its Hessian (d, d), up to an order."""
        X, last, died = self._strata[client]
        grad, H = np.zeros(self.d), np.zeros((self.d, self.d))
        x = np.ascontiguousarray(x, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            value = _partial_likelihood(X, last, died, self.ties == "efron", x, order, grad, H)
        M = len(X)
        return value / M, grad / M, H / M

    def client_loss(self, client: int, x: Vector) -> float:
        """Compute minus the log partial likelihood of a client, divided by its rows."""
        return self._evaluate(client, x, 0)[0]

    def client_grad(self, client: int, rows: Rows | None, x: Vector) -> Vector:
        """Compute the gradient (d,) of the client's loss, which needs all of its rows."""
        if rows is not None and len(rows) < self._sizes[client]:
            raise InputError(
                f"{self.name}: a partial likelihood needs all rows of a client; use Newton, or "
                "minibatches of all rows (b=None)"
            )
        return self._evaluate(client, x, 1)[1]

    def client_hessian(self, client: int, x: Vector) -> Vector:
        """Compute the Hessian (d, d) of the client's loss."""
        return self._evaluate(client, x, 2)[2]

    def describe(self) -> Description:
        """Describe the problem: data, partition and ties."""
        return super().describe() | {
            "data": self.data.name, "data_digest": self.data.digest,
            "partition": self.partition.name, "partition_digest": self.partition.digest,
            "ties": self.ties, "events": int(self.events.sum()),
        }  # fmt: skip


def _check_outcomes(owner: str, rows: int, time: ArrayLike, event: ArrayLike) -> Any:
    """Return times (n,) and events (n,) of a data set's rows."""
    times = as_array(f"{owner}: time", time, np.float64)
    events = as_array(f"{owner}: event", event, np.float64)
    if times.shape != (rows,) or events.shape != (rows,):
        raise InputError(
            f"{owner}: time and event must have a value for each of the {rows:,} rows, "
            f"not {times.shape} and {events.shape}"
        )
    if not (np.isfinite(times).all() and (times > 0).all()):
        row = int((~(np.isfinite(times) & (times > 0))).argmax())
        raise InputError(f"{owner}: time must be above 0; in row {row} it is {times[row]:g}")
    if not np.isin(events, (0.0, 1.0)).all():
        row = int((~np.isin(events, (0.0, 1.0))).argmax())
        raise InputError(f"{owner}: event must be 0 or 1; in row {row} it is {events[row]:g}")
    return times, events == 1.0
