"""Types that all packages share: vectors, calls, replies, protocols of problems and methods.

A round of any method is

    call     which clients, and which message to send them      Method.call
    client   what a called client computes from its own rows    Method.client
    mean     of the replies, in client order                    the engine
    server   the next state                                     Method.server

A method runs unchanged in the simulator, on a Flower node, or in a test with scripted draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field
from enum import StrEnum
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]
"""(d,) is one model or gradient; (n, d) holds a row for each called client.

A problem whose `dtype` is float32 makes all of them float32.
"""

Scalar: TypeAlias = Annotated[Vector, 1]
"""A field that holds one number, always float64, instead of d numbers.

It is (1,) in a message and (n, 1) in a reply.
"""


def triangle_size(d: int) -> int:
    """Return the number of entries of a symmetric d x d matrix that determine it."""
    return d * (d + 1) // 2


Triangle: TypeAlias = Annotated[Vector, triangle_size]
"""A field that holds the upper triangle of a symmetric d x d matrix, row after row.

It is (d(d+1)/2,) in a message and (n, d(d+1)/2) in a reply.
"""

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = NDArray[np.uint32]
Keys64: TypeAlias = NDArray[np.uint64]
"""Keys of streams of random numbers."""

DType: TypeAlias = np.dtype[np.floating[Any]]
AnyArray: TypeAlias = NDArray[Any]
"""An array of numbers of any type."""

Fields: TypeAlias = tuple[Vector, ...]
"""A NamedTuple of vectors: a message, a reply, or what a client keeps."""
MessageTypes: TypeAlias = dict[type, type]
"""Each message type of a method, with the type of the reply to it."""
HyperParameter: TypeAlias = Any
"""A number, word or None; the method's `__post_init__` checks it."""


class StopReason(StrEnum):
    """How a run ended; `History.stop_detail` says more in a sentence."""

    FINISHED = "finished"
    """All rounds were run."""
    TARGET = "target reached"
    BUDGET = "budget spent"
    NO_PROGRESS = "no more progress"
    """A column has not improved for as many records as `Stop.patience` says."""
    CALLBACK = "stopped by a function or callback"
    DIVERGED = "diverged"
    ROUND_FAILED = "round failed"
    """Too few clients answered for too long; the run can be resumed."""
    INTERRUPTED = "interrupted"
    """The process ended before the run did; the run can be resumed."""


class Batch(NamedTuple):
    """A minibatch at each of n called clients, in that client's own row numbers 0..M_i-1."""

    rows: Rows | None
    """(n, w), of which client i's first sizes[i] count; None means every row of every client."""
    sizes: Ints
    """(n,) rows in each client's batch; the gradient over a batch without rows is 0."""
    requested: int | None = None
    """The requested size, which a client with fewer rows cannot fill, or None for every row."""


StateT = TypeVar("StateT", bound="State")
MessageT = TypeVar("MessageT", bound=Fields)
ReplyT = TypeVar("ReplyT", bound=Fields)
ClientStateT = TypeVar("ClientStateT", bound="Fields | None")


class State(Protocol):
    """A server's state: a NamedTuple with at least the current model."""

    @property
    def x(self) -> Vector:
        """The current model, (d,)."""


class Call(NamedTuple, Generic[MessageT]):
    """The clients that the server calls in a round, and the message it sends to each of them."""

    clients: Ints
    """(n,) client numbers, ascending."""
    message: MessageT
    """A NamedTuple of (d,) vectors; its fields are what is sent and counted."""
    require_all: bool = False
    """Whether only the mean over all of these clients is usable, never that over some of them."""
    fallback: Callable[[], Call[MessageT]] | None = None
    """Makes the call to use if clients stay missing, with `require_all`, or if all of them do.

    If None, the engine keeps retrying.
    """
    cohort: Ints | None = None
    """All clients of the call, if `clients` are some of them that are asked again, or None."""


class Replies(NamedTuple, Generic[ReplyT]):
    """All that the server learns from a round."""

    mean: ReplyT
    """The mean reply over the clients that answered: each field (d,)."""
    clients: Ints
    """(n,) the clients that answered, ascending."""
    message: Fields = ()
    """The message that they answered, as `call` made it."""

    @property
    def count(self) -> int:  # type: ignore[override]  # a tuple's own `count` is never needed here
        """The number of clients that answered."""
        return len(self.clients)


class ClientDraws(Protocol):
    """The clients' random numbers of a round: pure functions of the run's seed and the round."""

    @property
    def round(self) -> int:
        """The round's number r, counted from 0."""

    def rows(self, clients: Ints, sizes: Ints, b: int, first: int, count: int) -> Rows:
        """Draw minibatches number first..first+count-1: (n, count, min(b, max M_i)) row numbers.

        A client with M_i <= b gets all its rows in order, without a draw.
        """

    def row_orders(self, clients: Ints, sizes: Ints, numbers: Ints) -> Rows:
        """Order the rows of each client for its pass of a number: (n, max M_i) row numbers.

        The first M_i count. `numbers` are (n,).
        """

    def client_keys(self, clients: Ints, field: int) -> Keys64:
        """Return a key for each client's own random numbers for a field of its reply, (n,)."""

    def shared_key(self, field: int) -> np.uint64:
        """Return a key that all clients of the round share, for a field of their replies."""


class Draws(ClientDraws, Protocol):
    """A round's random numbers for a method: those of its clients, and those of the server."""

    def coin(self, p: float) -> bool:
        """Return True with probability p; one underlying uniform serves every p."""

    def geometric(self, p: float) -> int:
        """Draw 1, 2, 3, ... with probabilities p, p (1-p), p (1-p)^2, ...; p = 1 gives 1."""

    def clients(self, N: int, S: int, ago: int = 0) -> Ints:
        """Sample S of N clients uniformly without replacement; ascending. S = N: all of them.

        With `ago` they are the sample of that many rounds before, for another exchange.
        """

    def weighted_clients(self, weights: Vector, S: int) -> Ints:
        """Sample S clients, client i with probability p_i = S w_i/sum(w), at most 1; ascending."""

    def independent_clients(self, p: Vector) -> Ints:
        """Sample each client i by itself with probability p_i, (N,); ascending, perhaps none."""

    def normal(self, d: int, number: int = 0) -> Vector:
        """Draw a standard normal vector (d,); other numbers give other vectors of the round."""

    def order(self, N: int, number: int = 0) -> Ints:
        """Return all N clients in the run's random order of this number, in any round."""


@runtime_checkable
class Oracle(Protocol):
    """The computations of called clients on their own rows, which it counts."""

    gradients: int
    """Gradients of single rows (the paper's f_ij) computed so far, over all called clients."""
    evaluations: int
    """Evaluations of a client's gradient at some point, over all called clients."""

    def batch(self, size: int | None) -> Batch:
        """Draw a fresh minibatch at each client, without replacement; None or >= M_i: every row."""

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """Return each client's mean gradient (n, d) over its batch, at its row of y or y (d,)."""


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
        """The number of clients."""

    @property
    def d(self) -> int:
        """The number of parameters."""

    @property
    def sizes(self) -> Ints:
        """Rows M_i of each client, (N,)."""

    def oracle(self, clients: Ints, draws: ClientDraws) -> Oracle:
        """Return what the called clients may compute from their rows in this round."""

    def loss(self, x: Vector) -> float:
        """Return f(x)."""

    def grad(self, x: Vector) -> Vector:
        """Return the gradient of f at x, (d,)."""

    def evaluate(self, x: Vector, threads: int = 1) -> Mapping[str, float]:
        """Return what a history records at x: at least "loss" and "grad_norm".

        The bits are the same for any number of threads.
        """

    def smoothness(self) -> Smoothness:
        """Return the problem's Lipschitz constants."""

    def describe(self) -> dict[str, object]:
        """Return plain values that identify the problem: objective, data, partition, digests."""


class Method(Protocol[StateT, MessageT, ReplyT, ClientStateT]):
    """A federated method: a frozen dataclass whose fields are the paper's hyper-parameters."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    name: ClassVar[str]
    """The method's name as papers print it."""
    paper: ClassVar[str]
    """Authors and year."""

    @property  # read only, so that ClassVar[None] and ClassVar[type[ClientState]] both conform
    def messages(self) -> Mapping[type, type]:
        """Every message type (a NamedTuple of vectors) with the type of the reply to it."""

    @property
    def client_state(self) -> type[Any] | None:
        """The NamedTuple of (d,) vectors that each client keeps, zero at first, or None."""

    @property
    def effective_step(self) -> float:
        """How far the server moves along a unit of gradient per round."""

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step."""

    def init(self, x0: Vector, N: int) -> StateT:
        """Return the server's state before round 0."""

    def call(self, state: StateT, draws: Draws) -> Call[MessageT]:
        """Choose the clients of this round and the message to them."""

    def client(
        self, message: MessageT, oracle: Oracle, client_state: ClientStateT
    ) -> tuple[ReplyT, ClientStateT]:
        """Compute the called clients' replies and their new client states, (n, d) each."""

    def server(self, state: StateT, replies: Replies[ReplyT]) -> StateT:
        """Return the next state."""


AnyMethod: TypeAlias = Method[Any, Any, Any, Any]
"""A method whose state, messages, replies and client states the caller does not look into."""
