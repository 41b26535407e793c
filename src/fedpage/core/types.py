"""The words that every room shares: vectors, calls, batches, and what a problem, an oracle and a method must offer.

A round of any method is

    call    whom to ask, and with which message        Method.call
    client  what a called client does with its rows    Method.client
    mean    of the replies, in client order            the engine
    server  the next state                             Method.server

and nothing in a method depends on who runs it: the simulator, a Flower node, or a test with scripted coins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]
"""(d,) is one model or gradient; (n, d) one of them for each called client, a row each. A problem whose `dtype` is
float32 makes all of them float32."""

Ints: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.uint32]


def dtype_of(problem: Any) -> np.dtype[Any]:
    """The type of a problem's numbers: what it says in `dtype`, or float64."""
    return np.dtype(getattr(problem, "dtype", np.float64))


COSTS = (
    "round", "clients", "floats_down", "floats_up", "bytes_down", "bytes_up", "gradients", "gradients_per_client",
    "evaluations", "full_rounds", "missing", "rejected", "fallbacks",
)  # fmt: skip
"""Cumulative costs at each record. gradients counts single rows' gradients (f_ij) over all clients;
gradients_per_client adds up, over rounds, the mean work of a called client. missing, rejected and fallbacks say how
often a called client gave no sound reply in time, a reply did not count, and a full round became a sampled one."""


class StopReason(StrEnum):
    """How a run ended; `History.stop_detail` says more in a sentence."""

    FINISHED = "finished"
    """All rounds were run."""
    TARGET = "target reached"
    BUDGET = "budget spent"
    CALLBACK = "stopped by a function or callback"
    DIVERGED = "diverged"
    ROUND_FAILED = "round failed"
    """Too few clients answered for too long; the run can be resumed."""
    INTERRUPTED = "interrupted"
    """The process ended before the run did; the run can be resumed."""


class Batch(NamedTuple):
    """One minibatch at each of n called clients, in that client's own row numbers 0..M_i-1."""

    rows: Rows | None
    """(n, w), of which client i's first sizes[i] count; None means every row of every client."""
    sizes: Ints
    """(n,) rows in each client's batch."""
    asked: int | None = None
    """The size that was asked for, which a client with fewer rows falls short of; None: every row."""


class Call(NamedTuple):
    """Whom the server calls this round, and what it tells each of them."""

    clients: Ints
    """(n,) client numbers, ascending."""
    message: Any
    """A NamedTuple of (d,) vectors; its fields are what is counted and what is sent."""
    require_all: bool = False
    """Only the mean over all of these clients will do, never that over a part of them ..."""
    fallback: Callable[[], Call] | None = None
    """... and this makes the call to do where some of them stay silent. None: wait for them."""


class Replies(NamedTuple):
    """All that the server learns of a round."""

    mean: Any
    """The reply type of the method, each field the (d,) mean over the clients that answered."""
    count: int  # type: ignore[assignment]  # tuple has a method of this name that nobody calls here
    """How many clients answered."""


class Draws(Protocol):
    """A round's random numbers: pure functions of the run's seed, the round, and what is asked."""

    @property
    def round(self) -> int:
        """The round's number r, counted from 0."""
        ...

    def coin(self, p: float) -> bool:
        """True with probability p; the same underlying uniform for every p, so that methods can be paired."""
        ...

    def clients(self, N: int, S: int) -> Ints:
        """(S,) of the N clients, uniformly without replacement, ascending; S = N is everyone."""
        ...

    def rows(self, clients: Ints, sizes: Ints, b: int, first: int, count: int) -> Rows:
        """(n, count, min(b, max M_i)) row numbers of minibatches first..first+count-1 at each client.

        A client with M_i <= b gets all its rows in order, no draw.
        """
        ...


@runtime_checkable
class Oracle(Protocol):
    """All that called clients may ask of their own rows. It counts what it computes."""

    gradients: int
    """Gradients of single rows (the paper's f_ij) computed so far, over all called clients."""
    evaluations: int
    """Times a client evaluated its model's gradient at some point, over all called clients."""

    def batch(self, size: int | None) -> Batch:
        """A fresh minibatch at each client, uniformly without replacement; None or >= M_i: every row."""
        ...

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """(n, d): the mean gradient over each client's batch, at its own row of y (n, d), or at y (d,) for all."""
        ...


class Smoothness(NamedTuple):
    """Lipschitz constants of gradients, from the finest assumption to the coarsest."""

    row: float
    """max over rows of L_ij (Assumption 1 of the paper)."""
    client: float
    """max over clients of L_i."""
    average: float
    """sqrt(mean over clients of L_i^2), which bounds the average smoothness (Assumption 2)."""
    whole: float
    """L of f itself."""


class Problem(Protocol):
    """f(x) = mean over clients of f_i(x), f_i(x) = mean over client i's M_i rows of f_ij(x)."""

    @property
    def N(self) -> int:
        """Clients."""
        ...

    @property
    def d(self) -> int:
        """Parameters."""
        ...

    @property
    def sizes(self) -> Ints:
        """(N,) rows M_i at each client."""
        ...

    def oracle(self, clients: Ints, draws: Draws) -> Oracle:
        """What the called clients may ask of their rows in this round."""
        ...

    def loss(self, x: Vector) -> float:
        """f(x)."""
        ...

    def grad(self, x: Vector) -> Vector:
        """(d,): the gradient of f at x."""
        ...

    def evaluate(self, x: Vector, threads: int = 1) -> Mapping[str, float]:
        """What a history records at x: at least "loss" and "grad_norm". The same bits for any number of threads."""
        ...

    def smoothness(self) -> Smoothness:
        """The problem's own Lipschitz constants."""
        ...

    def describe(self) -> dict[str, Any]:
        """Plain values that say which problem this is: objective, data, partition, digests."""
        ...


class Method(Protocol):
    """A federated method: a frozen dataclass whose fields are the paper's hyper-parameters."""

    name: ClassVar[str]
    """Its name as papers print it."""
    paper: ClassVar[str]
    """Authors and year."""
    client_state: ClassVar[type[Any] | None]
    """The NamedTuple of (d,) vectors that each client keeps between rounds, all zero at first; None: nothing."""

    @property
    def effective_step(self) -> float:
        """The effective step: how far the server moves along a unit of gradient per round."""
        ...

    def with_step(self, step: float) -> Any:
        """The same method at another effective step."""
        ...

    def init(self, x0: Vector, N: int) -> Any:
        """The server's state before round 0; it has a field x, the current model."""
        ...

    def call(self, state: Any, draws: Draws) -> Call:
        """Whom to call this round, and with which message."""
        ...

    def client(self, message: Any, oracle: Oracle, client_state: Any) -> tuple[Any, Any]:
        """The called clients' work: their replies (a NamedTuple of (n, d)) and what they remember."""
        ...

    def server(self, state: Any, replies: Replies) -> Any:
        """The next state."""
        ...
