"""ZeroSARAH over clients: differences and a table, never a full round.

Li, Hanzely, Richtárik, "ZeroSARAH: Efficient Nonconvex Finite-Sum Optimization with
Zero Full Gradient Computation" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.schedules import StepSize
from fedpage.core.types import (
    Call,
    Draws,
    MessageTypes,
    Oracle,
    Problem,
    Replies,
    Vector,
)
from fedpage.methods import table_steps
from fedpage.methods.registry import register


class State(NamedTuple):
    """x^r, x^{r-1}, the estimator v, h = mean y_i, and the number of clients."""

    x: Vector
    x_prev: Vector
    v: Vector
    h: Vector
    N: int


class First(NamedTuple):
    """To S clients, in round 0: send your gradient at x."""

    x: Vector


class FirstReply(NamedTuple):
    """The client's gradient at x."""

    p: Vector


class TwoPoints(NamedTuple):
    """To S clients: compare your gradients at x and x_prev, and the latter with y_i."""

    x: Vector
    x_prev: Vector


class Reply(NamedTuple):
    """p - q and q - y_i, where p and q are the gradients at x and x_prev."""

    change: Vector
    drift: Vector


class ClientState(NamedTuple):
    """y_i, the client's last gradient."""

    y: Vector


@register("zerosarah", group="variance-reduced", assumes="clients that keep a state")
@dataclass(frozen=True)
class ZeroSARAH:
    """ZeroSARAH: SARAH's differences, pulled towards SAGA's estimate of the gradient.

    The effective step is eta. No round calls all clients, not even the first.

    Args:
        S: Sampled clients.
        eta: The step size.
        lam: The weight of SAGA's estimate; None: S/(2N). With lam = 1 it is SAGA.
        b: Rows in a minibatch, the same at both points; None: all rows.
        up: The codec of the replies, a cast; FRECON takes other codecs.
        down: The codec of the models, a cast.
    """

    name: ClassVar[str] = "ZeroSARAH"
    paper: ClassVar[str] = "Li, Hanzely, Richtárik 2021"
    messages: ClassVar[MessageTypes] = {First: FirstReply, TwoPoints: Reply}
    client_state: ClassVar[type[ClientState]] = ClientState
    compressible: ClassVar[Compressible] = {
        First: {"p": None},
        TwoPoints: {"change": None, "drift": None},
    }

    S: int = 20
    eta: StepSize = 0.1
    lam: float | None = None
    b: int | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.name, "S", self.S)
        schedules.check_step(self.name, "eta", self.eta)
        if self.lam is not None:
            validate.probability(self.name, "lam", self.lam)
        validate.batch(self.name, "b", self.b)
        codecs.check(self, "cast", hint="use a cast such as float32, or FRECON")

    @property
    def effective_step(self) -> float:
        """The effective step, eta."""
        return self.eta

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step."""
        return replace(self, eta=step)

    @classmethod
    def from_theory(cls, problem: Problem, *, S: int, lam: float | None = None) -> Self:
        """Return the method with the step size of its nonconvex theorem.

        L is the clients' average smoothness. `table_steps.zerosarah_nonconvex` has the
        formula and the bound.

        Args:
            problem: The problem.
            S: Sampled clients.
            lam: The weight of SAGA's estimate; None: S/(2N).

        Raises:
            InputError: The values are impossible.
        """
        cls(S=S, lam=lam)  # refuses impossible values
        validate.check_sample(cls.name, S, problem.N)
        L = problem.smoothness().average
        validate.positive(cls.name, "the problem's smoothness", L)
        eta = table_steps.zerosarah_nonconvex(L, problem.N, S, lam)
        return cls(S=S, eta=eta, lam=lam)

    def init(self, x0: Vector, N: int) -> State:
        """Start with h = 0, as all y_i; v is set in round 0."""
        validate.check_sample(self.name, self.S, N)
        return State(x=x0, x_prev=x0, v=0.0 * x0, h=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[First | TwoPoints]:
        """Send x and x_prev to S clients; in round 0 there is no x_prev."""
        clients = draws.clients(state.N, self.S)
        if draws.round == 0:
            return Call(clients, First(state.x))
        return Call(clients, TwoPoints(state.x, state.x_prev))

    def client(
        self, message: First | TwoPoints, oracle: Oracle, client_state: ClientState
    ) -> tuple[FirstReply | Reply, ClientState]:
        """Compute p = grad_I(x) and q = grad_I(x_prev), the same I."""
        batch = oracle.batch(self.b)
        p = oracle.grad(message.x, batch)
        if isinstance(message, First):
            return FirstReply(p), client_state
        q = oracle.grad(message.x_prev, batch)
        return Reply(p - q, q - client_state.y), client_state

    def keep(
        self,
        message: First | TwoPoints,
        sent: FirstReply | Reply,
        client_state: ClientState,
    ) -> ClientState:
        """Set y_i to p, or to what the server takes for p where a cast rounds."""
        if isinstance(sent, FirstReply):
            return ClientState(sent.p)
        return ClientState(client_state.y + (sent.change + sent.drift))

    def server(self, state: State, replies: Replies[FirstReply | Reply]) -> State:
        """Set v, move along it, and keep h = mean y_i."""
        x, _, v, h, N = state
        mean, part = replies.mean, replies.count / N
        if isinstance(mean, FirstReply):
            v, h = mean.p, part * mean.p  # lam_0 = 1 and all y_i = 0
        else:
            A, E = mean
            lam = self.S / (2 * N) if self.lam is None else self.lam
            v = A + (1 - lam) * v + lam * (E + h)
            h = h + part * (A + E)
        return State(x=x - self.eta * v, x_prev=x, v=v, h=h, N=N)
