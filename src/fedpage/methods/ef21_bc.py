"""EF21-BC: EF21 with compressed messages in both directions.

Fatkhullin, Sokolov, Gorbunov, Li, Richtárik, "EF21 with Bells & Whistles: Practical
Algorithmic Extensions of Modern Error Feedback" (2021): Alg. 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedpage.codecs import IDENTITY, Codec, as_codec
from fedpage.codecs.message_codec import as_received
from fedpage.core.errors import InputError
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.base import BaseMethod, constant
from fedpage.methods.ef21 import Reply
from fedpage.methods.messages import Model
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """The model, the mean g of all g_i, what clients know of it, the next message."""

    x: Vector
    g: Vector
    w: Vector
    """The server's own EF21 estimate of g, which all clients have after `b`."""
    b: Vector
    """g - w of before: what the next message sends, through the codec `down`."""
    N: int


class Change(NamedTuple):
    """To all clients: the change of w."""

    b: Vector


class ClientState(NamedTuple):
    """g_i, which follows the client's gradient; the model and w, as the server's."""

    g: Vector
    x: Vector
    w: Vector


@register(
    "ef21-bc",
    group="compressed",
    assumes="all clients in every round, each with a state",
    page="ef21",
)
@dataclass(frozen=True)
class EF21BC(BaseMethod):
    """EF21-BC: EF21 whose server sends the compressed change of its estimate too.

    Clients keep the model and move it themselves. So every client must receive every
    message. The effective step is eta.

    Args:
        eta: The step size.
        b: Rows in a minibatch. If None, use all rows, as published.
        up: The codec of c_i, a contractive one such as topk:0.1.
        down: The codec of the server's change, a contractive one without randomness.
    """

    name = "EF21-BC"
    paper = "Fatkhullin et al. 2021"
    needs_numpy = True  # the server compresses the model
    messages = {Model: Reply, Change: Reply}
    client_state = ClientState
    checks = {"eta": constant("clients move x by the last round's step")}
    up_codecs = "contractive"
    down_codecs = "contractive"
    changes = {Model: {"c": None}, Change: {"c": None}}
    exact_messages = (Model,)

    eta: StepSize = 0.1
    b: int | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        if as_codec(self.down).is_random:
            raise InputError(
                f"EF21-BC: down={self.down} is random; use topk:0.1, sign or a "
                "cast such as float32"
            )
        super().__post_init__()

    def init(self, x0: Vector, N: int) -> State:
        """Start with g = w = 0."""
        return State(x=x0, g=0.0 * x0, w=0.0 * x0, b=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Model | Change]:
        """Send the change of w to all clients; in round 0 the start."""
        message = Model(state.x) if draws.round == 0 else Change(state.b)
        return Call(draws.clients(state.N, state.N), message, require_all=True)

    def client(
        self, message: Model | Change, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Move x as the server did, and reply grad f_i(x) - g_i, through C."""
        g, x, w = client_state
        if isinstance(message, Model):
            x = 0.0 * x + message.x
        else:
            w = w + message.b  # Alg. 5: g^{t+1} = g^t + b^{t+1}
            x = x - self.eta * w  # x^{t+1} = x^t - eta g^t
        gradient = oracle.grad(x, oracle.batch(self.b))
        return Reply(gradient - g), ClientState(g, x, w)

    def update_client_state(
        self, message: Model | Change, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Set g_i += c_i."""
        return client_state._replace(g=client_state.g + sent.c)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set g += mean c_i, w += C(g - w) and x -= eta w."""
        g = state.g + (replies.count / state.N) * replies.mean.c
        b = g - state.w
        w = state.w + as_received(self.down, b)  # as clients will
        return State(x=state.x - self.eta * w, g=g, w=w, b=b, N=state.N)
