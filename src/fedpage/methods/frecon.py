"""FRECON: compressed differences and a compressed table, never a full round.

Zhao, Burlachenko, Li, Richtárik, "Faster Rates for Compressed Federated Learning with
Client-Variance Reduction" (2021).
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
    """x^r, x^{r-1}, the estimator g, h = mean h_i, and the number of clients."""

    x: Vector
    x_prev: Vector
    g: Vector
    h: Vector
    N: int


class First(NamedTuple):
    """To S clients, in round 0: send your gradient at x."""

    x: Vector


class FirstReply(NamedTuple):
    """grad_I(x) - h_i, where h_i = 0; the server receives it compressed."""

    drift: Vector


class TwoPoints(NamedTuple):
    """To S clients: compare your gradients at x and x_prev, and the latter with h_i."""

    x: Vector
    x_prev: Vector


class Reply(NamedTuple):
    """p - q and q - h_i, where p and q are the gradients at x and x_prev.

    The server receives both compressed, with independent draws.
    """

    change: Vector
    drift: Vector


class ClientState(NamedTuple):
    """h_i, the client's estimate of its gradient."""

    h: Vector


@register("frecon", group="compressed", assumes="clients that keep a state")
@dataclass(frozen=True)
class FRECON:
    """FRECON: compressed differences, pulled towards COFIG's estimate of the gradient.

    The effective step is eta. No round calls all clients, not even the first.

    Args:
        S: Sampled clients.
        eta: The step size.
        lam: The weight of COFIG's estimate; None: S/(2 (1 + omega) N).
        a: How far h_i moves towards the gradient; None: 1/(1 + omega) of `up`.
        b: Rows in a minibatch, the same at both points; None: all rows.
        up: The codec of both parts of a reply, an unbiased one or a cast.
        down: The codec of the models, a cast.
    """

    name: ClassVar[str] = "FRECON"
    paper: ClassVar[str] = "Zhao, Burlachenko, Li, Richtárik 2021"
    messages: ClassVar[MessageTypes] = {First: FirstReply, TwoPoints: Reply}
    client_state: ClassVar[type[ClientState]] = ClientState
    compressible: ClassVar[Compressible] = {
        First: {"drift": None},
        TwoPoints: {"change": None, "drift": None},
    }

    S: int = 20
    eta: StepSize = 0.1
    lam: float | None = None
    a: float | None = None
    b: int | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.name, "S", self.S)
        schedules.check_step(self.name, "eta", self.eta)
        for name in ("lam", "a"):
            if getattr(self, name) is not None:
                validate.probability(self.name, name, getattr(self, name))
        validate.batch(self.name, "b", self.b)
        codecs.check(self, "unbiased")

    @property
    def effective_step(self) -> float:
        """The effective step, eta."""
        return self.eta

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step."""
        return replace(self, eta=step)

    @classmethod
    def from_theory(
        cls, problem: Problem, *, S: int, up: Codec | str = IDENTITY
    ) -> Self:
        """Return the method with the step size of its nonconvex theorem.

        L is the clients' average smoothness. `table_steps.frecon_nonconvex` has the
        formula and the bound.

        Args:
            problem: The problem.
            S: Sampled clients.
            up: The codec of the replies.

        Raises:
            InputError: The values are impossible.
        """
        method = cls(S=S, up=codecs.as_codec(up))
        validate.check_sample(cls.name, S, problem.N)
        L = problem.smoothness().average
        validate.positive(cls.name, "the problem's smoothness", L)
        omega = method.omega(problem.d)
        return method.with_step(table_steps.frecon_nonconvex(L, problem.N, S, omega))

    def omega(self, d: int) -> float:
        """Return the variance of the codec for d parameters."""
        return self.up.omega(d) or 0.0  # 0 for casts

    def rate(self, d: int) -> float:
        """Return a, given or by default 1/(1 + omega), for d parameters."""
        return 1 / (1 + self.omega(d)) if self.a is None else self.a

    def weight(self, d: int, N: int) -> float:
        """Return lam, given or by default S/(2 (1 + omega) N), for d parameters."""
        return self.S / (2 * (1 + self.omega(d)) * N) if self.lam is None else self.lam

    def init(self, x0: Vector, N: int) -> State:
        """Start with h = 0, as all h_i; g is set in round 0."""
        validate.check_sample(self.name, self.S, N)
        return State(x=x0, x_prev=x0, g=0.0 * x0, h=0.0 * x0, N=N)

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
            return FirstReply(p - client_state.h), client_state
        q = oracle.grad(message.x_prev, batch)
        return Reply(p - q, q - client_state.h), client_state

    def keep(
        self,
        message: First | TwoPoints,
        sent: FirstReply | Reply,
        client_state: ClientState,
    ) -> ClientState:
        """Set h_i += a U_i, where U_i is the compressed drift."""
        return ClientState(client_state.h + self.rate(len(message.x)) * sent.drift)

    def server(self, state: State, replies: Replies[FirstReply | Reply]) -> State:
        """Set g, move along it, and keep h = mean h_i."""
        x, _, g, h, N = state
        mean, part = replies.mean, replies.count / N
        U = mean.drift
        if isinstance(mean, FirstReply):
            g = U + h  # lam_0 = 1
        else:
            lam = self.weight(len(x), N)
            g = mean.change + (1 - lam) * g + lam * (U + h)
        h = h + self.rate(len(x)) * part * U
        return State(x=x - self.eta * g, x_prev=x, g=g, h=h, N=N)
