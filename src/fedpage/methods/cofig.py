"""COFIG, and its special cases SAGA over clients and DIANA.

Zhao, Burlachenko, Li, Richtárik, "Faster Rates for Compressed Federated Learning with
Client-Variance Reduction" (2021); Defazio, Bach, Lacoste-Julien, "SAGA: A Fast
Incremental Gradient Method with Support for Non-Strongly Convex Composite Objectives"
(2014); Mishchenko, Gorbunov, Takáč, Richtárik, "Distributed Learning with Compressed
Gradient Differences" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.errors import InputError
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
    """The model, h = mean h_i, and the number of clients."""

    x: Vector
    h: Vector
    N: int


class Model(NamedTuple):
    """To the called clients: send the change of your gradient at x from h_i."""

    x: Vector


class Reply(NamedTuple):
    """u = grad_I(x) - h_i; the server receives C(u)."""

    u: Vector


class ClientState(NamedTuple):
    """h_i, the client's estimate of its gradient."""

    h: Vector


@register(
    "cofig",
    group="compressed",
    assumes="clients that keep a state",
    page="cofig",
)
@dataclass(frozen=True)
class COFIG:
    """COFIG: S clients send what their gradients differ from a table, compressed.

    The effective step is eta. The paper draws a second set of clients for the update of
    the h_i; here it is the same set, as in the authors' code, at half the cost.

    Args:
        S: Sampled clients; None: all clients.
        eta: The step size.
        a: How far h_i moves towards the gradient; None: 1/(1 + omega) of `up`.
        b: Rows in a minibatch; None: all rows.
        up: The codec of the replies, an unbiased one or a cast.
        down: The codec of the model, a cast.
    """

    name: ClassVar[str] = "COFIG"
    paper: ClassVar[str] = "Zhao, Burlachenko, Li, Richtárik 2021"
    messages: ClassVar[MessageTypes] = {Model: Reply}
    client_state: ClassVar[type[ClientState]] = ClientState
    compressible: ClassVar[Compressible] = {Model: {"u": None}}

    S: int | None = 20
    eta: StepSize = 0.1
    a: float | None = None
    b: int | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        if self.S is not None:
            validate.whole(self.name, "S", self.S)
        schedules.check_step(self.name, "eta", self.eta)
        if self.a is not None:
            validate.probability(self.name, "a", self.a)
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
        cls,
        problem: Problem,
        *,
        S: int,
        up: Codec | str = IDENTITY,
        convex: bool = False,
    ) -> Self:
        """Return the method with the step size of its theorem.

        L is the largest of the clients'. `table_steps.cofig_nonconvex` and
        `cofig_convex` have the formulas, their bounds, and what is known of them.

        Args:
            problem: The problem.
            S: Sampled clients.
            up: The codec of the replies.
            convex: Whether all f_i are convex.

        Raises:
            InputError: The values are impossible.
        """
        method = cls(S=S, up=codecs.as_codec(up))
        validate.check_sample(cls.name, S, problem.N)
        L = problem.smoothness().client
        validate.positive(cls.name, "the problem's smoothness", L)
        step = table_steps.cofig_convex if convex else table_steps.cofig_nonconvex
        return method.with_step(step(L, problem.N, S, method.omega(problem.d)))

    def omega(self, d: int) -> float:
        """Return the variance of the codec for d parameters."""
        return self.up.omega(d) or 0.0  # 0 for casts

    def rate(self, d: int) -> float:
        """Return a, given or by default 1/(1 + omega), for d parameters."""
        return 1 / (1 + self.omega(d)) if self.a is None else self.a

    def init(self, x0: Vector, N: int) -> State:
        """Start with h = 0, as all h_i."""
        if self.S is not None:
            validate.check_sample(self.name, self.S, N)
        return State(x=x0, h=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Model]:
        """Send the model to S clients."""
        S = state.N if self.S is None else self.S
        return Call(draws.clients(state.N, S), Model(state.x))

    def client(
        self, message: Model, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Compute u = grad_I(x) - h_i."""
        p = oracle.grad(message.x, oracle.batch(self.b))
        return Reply(p - client_state.h), client_state

    def keep(
        self, message: Model, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Set h_i += a C(u), as the server does with the mean."""
        return ClientState(client_state.h + self.rate(len(message.x)) * sent.u)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set x -= eta (h + mean C(u)), then h += a (S/N) mean C(u)."""
        u = replies.mean.u
        x = state.x - self.eta * (state.h + u)
        part = replies.count / state.N
        return State(x=x, h=state.h + self.rate(len(u)) * part * u, N=state.N)


@register(
    "saga",
    group="variance-reduced",
    assumes="clients that keep a state",
    page="cofig",
)
@dataclass(frozen=True)
class SAGA(COFIG):
    """SAGA over clients: COFIG without a codec, so that h_i is the last gradient.

    Casts such as float32 are allowed, because they only round.
    """

    name: ClassVar[str] = "SAGA"
    paper: ClassVar[str] = "Defazio, Bach, Lacoste-Julien 2014"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.up.is_cast:
            raise InputError(
                "SAGA: its replies are only cast, to float32 for example; "
                f"with up={self.up} it is COFIG"
            )
        if self.a not in (None, 1):
            raise InputError(f"SAGA: a must be 1, not {self.a}; else it is COFIG")


@register(
    "diana",
    group="compressed",
    assumes="all clients in every round, each with a state",
    page="cofig",
)
@dataclass(frozen=True)
class DIANA(COFIG):
    """DIANA: COFIG with all clients in every round."""

    name: ClassVar[str] = "DIANA"
    paper: ClassVar[str] = "Mishchenko, Gorbunov, Takáč, Richtárik 2019"

    S: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.S is not None:
            raise InputError(
                f"DIANA: S must be None, all clients, not {self.S}; "
                "with sampled clients it is COFIG"
            )

    @classmethod
    def from_theory(  # type: ignore[override]  # S is N
        cls, problem: Problem, *, up: Codec | str = IDENTITY, mu: float | None = None
    ) -> Self:
        """Return the method with the step size of its theorem.

        L is the largest of the clients'. `table_steps.diana_nonconvex` and
        `diana_strongly_convex` have the formulas, their bounds, and what is known of
        them.

        Args:
            problem: The problem.
            up: The codec of the replies.
            mu: The strong convexity of all f_i; None: the nonconvex step.

        Raises:
            InputError: The values are impossible.
        """
        method = cls(up=codecs.as_codec(up))
        N, L, omega = problem.N, problem.smoothness().client, method.omega(problem.d)
        validate.positive(cls.name, "the problem's smoothness", L)
        if mu is None:
            return method.with_step(table_steps.diana_nonconvex(L, N, omega))
        validate.positive(cls.name, "mu", mu)
        a = method.rate(problem.d)
        step = table_steps.diana_strongly_convex(L, mu, N, omega, a)
        return method.with_step(step)
