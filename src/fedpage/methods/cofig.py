"""COFIG, and its special cases SAGA over clients and DIANA.

Zhao, Burlachenko, Li, Richtárik, "Faster Rates for Compressed Federated Learning with
Client-Variance Reduction" (2021); Defazio, Bach, Lacoste-Julien, "SAGA: A Fast
Incremental Gradient Method with Support for Non-Strongly Convex Composite Objectives"
(2014); Mishchenko, Gorbunov, Takáč, Richtárik, "Distributed Learning with Compressed
Gradient Differences" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedpage.codecs import IDENTITY, Codec
from fedpage.codecs.message_codec import Kind
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.base import BaseMethod
from fedpage.methods.messages import Model
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """The model, h = mean h_i, and the number of clients."""

    x: Vector
    h: Vector
    N: int


class Reply(NamedTuple):
    """u = grad_I(x) - h_i; the server receives C(u)."""

    u: Vector


class ClientState(NamedTuple):
    """h_i, the client's estimate of its gradient."""

    h: Vector


@register("cofig", group="compressed", assumes="clients that keep a state")
@dataclass(frozen=True)
class COFIG(BaseMethod):
    """COFIG: S clients send what their gradients differ from a table, compressed.

    The effective step is eta. The paper draws a second set of clients for the update of
    the h_i; here it is the same set, as in the authors' code, at half the cost.

    Args:
        S: Sampled clients. If None, call all clients.
        eta: The step size.
        a: How far h_i moves towards the gradient. If None, use 1/(1 + omega) of `up`.
        b: Rows in a minibatch. If None, use all rows.
        up: The codec of the replies, an unbiased one or a cast.
        down: The codec of the model, a cast.
    """

    name = "COFIG"
    paper = "Zhao, Burlachenko, Li, Richtárik 2021"
    messages = {Model: Reply}
    client_state = ClientState
    up_codecs: ClassVar[Kind] = "unbiased"
    changes = {Model: {"u": None}}

    S: int | None = 20
    eta: StepSize = 0.1
    a: float | None = None
    b: int | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def init(self, x0: Vector, N: int) -> State:
        """Start with h = 0, as all h_i."""
        self.check_sample(N)
        return State(x=x0, h=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Model]:
        """Send the model to S clients."""
        S = self.participants(state.N)
        return Call(draws.clients(state.N, S), Model(state.x))

    def client(
        self, message: Model, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Compute u = grad_I(x) - h_i."""
        p = oracle.grad(message.x, oracle.batch(self.b))
        return Reply(p - client_state.h), client_state

    def update_client_state(
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


@register("saga", group="variance-reduced", page="cofig")
@dataclass(frozen=True)
class SAGA(COFIG):
    """SAGA over clients: COFIG without a codec, so that h_i is the last gradient.

    Casts such as float32 are allowed, because they only round.
    """

    name = "SAGA"
    paper = "Defazio, Bach, Lacoste-Julien 2014"
    fixed = ("a",)
    up_codecs = "cast"
    codec_hint = "with another codec use COFIG"


@register(
    "diana", assumes="all clients in every round, each with a state", page="cofig"
)
@dataclass(frozen=True)
class DIANA(COFIG):
    """DIANA: COFIG with all clients in every round."""

    name = "DIANA"
    paper = "Mishchenko, Gorbunov, Takáč, Richtárik 2019"
    fixed = ("S",)

    S: int | None = None
