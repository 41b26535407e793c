"""EF21 and its variants: error feedback for biased codecs; and SAG over clients.

Richtárik, Sokolov, Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and
Practically Faster Error Feedback" (2021).
Fatkhullin, Sokolov, Gorbunov, Li, Richtárik, "EF21 with Bells & Whistles: Practical
Algorithmic Extensions of Modern Error Feedback" (2021): Alg. 4 (PP), 5 (BC), 6 (HB).
Fatkhullin, Tyurin, Richtárik, "Momentum Provably Improves Error Feedback!" (2023).
Le Roux, Schmidt, Bach, "A Stochastic Gradient Method with an Exponential Convergence
Rate for Finite Training Sets" (2012): SAG.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedpage.codecs import IDENTITY, Codec, as_codec
from fedpage.codecs.message_codec import Kind, as_received
from fedpage.core.errors import InputError
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.base import BaseMethod, constant
from fedpage.methods.messages import Model
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """The model, the mean g of all g_i, the heavy ball's v, the number of clients."""

    x: Vector
    g: Vector
    v: Vector
    N: int


class Reply(NamedTuple):
    """c_i, the change of g_i."""

    c: Vector


class ClientState(NamedTuple):
    """g_i, which follows the client's gradient."""

    g: Vector


class MomentumClientState(NamedTuple):
    """g_i, and v_i, the mean of past gradients that g_i follows."""

    g: Vector
    v: Vector


@register(
    "ef21", group="compressed", assumes="all clients in every round, each with a state"
)
@dataclass(frozen=True)
class EF21(BaseMethod):
    """EF21: each client sends the compressed change of its gradient estimate g_i.

    All clients take part in every round. The effective step is eta/(1 - beta).

    Args:
        eta: The step size.
        beta: Weight of the server's heavy ball (EF21-HB).
        b: Rows in a minibatch. If None, use all rows, as published. Fewer rows leave a
            large error, which EF21-SGDM does not have.
        up: The codec of c_i: contractive ones, such as topk:0.1 or scaled(randk:0.1).
        down: The codec of x: casts, such as float32. EF21-BC compresses more.
    """

    name = "EF21"
    paper = "Richtárik, Sokolov, Fatkhullin 2021"
    messages = {Model: Reply}
    client_state: ClassVar[type] = ClientState
    heavy_ball = True
    up_codecs: ClassVar[Kind] = "contractive"
    changes = {Model: {"c": None}}

    eta: StepSize = 0.1
    beta: float = 0.0
    b: int | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def init(self, x0: Vector, N: int) -> State:
        """Start with g = 0, as all g_i."""
        self.check_sample(N)
        return State(x=x0, g=0.0 * x0, v=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Model]:
        """Send the model."""
        clients = draws.clients(state.N, self.participants(state.N))
        return Call(clients, Model(state.x))

    def client(
        self, message: Model, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Reply grad f_i(x) - g_i, which passes through C: c_i of Alg. 1."""
        gradient = oracle.grad(message.x, oracle.batch(self.b))
        return Reply(gradient - client_state.g), client_state

    def update_client_state(
        self, message: Model, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Set g_i += c_i (eq. 7)."""
        return ClientState(client_state.g + sent.c)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set g += (S/N) mean c_i (eq. 7), v = beta v + g (Alg. 6), x -= eta v."""
        g = state.g + (replies.count / state.N) * replies.mean.c
        v = self.beta * state.v + g
        return State(x=state.x - self.eta * v, g=g, v=v, N=state.N)


@register("ef21-pp", assumes="clients that keep a state", page="ef21")
@dataclass(frozen=True)
class EF21PP(EF21):
    """EF21-PP: EF21 with S sampled clients; the others' c_i is 0.

    Args:
        S: Sampled clients.
    """

    name = "EF21-PP"
    paper = "Fatkhullin et al. 2021"

    S: int = 20


@register("sag", group="variance-reduced", page="ef21")
@dataclass(frozen=True)
class SAG(EF21PP):
    """SAG over clients: EF21-PP without compression, so g_i is the last gradient sent.

    Args:
        up: The codec of c_i, a cast. With another one it is EF21-PP.
    """

    name = "SAG"
    paper = "Le Roux, Schmidt, Bach 2012"
    up_codecs = "cast"
    codec_hint = "with another codec use EF21-PP (ef21-pp)"


@register("ef21-sgdm", page="ef21")
@dataclass(frozen=True)
class EF21SGDM(EF21):
    """EF21-SGDM: EF21 that follows v_i, the client's momentum, instead of a gradient.

    Momentum averages the noise of minibatches before it is compressed.

    Args:
        b: Rows in a minibatch. If None, use all rows.
        m: Weight of a new gradient in v_i, the paper's eta. With 1 it is EF21.
    """

    name = "EF21-SGDM"
    paper = "Fatkhullin, Tyurin, Richtárik 2023"
    client_state = MomentumClientState

    b: int | None = 4
    m: float = 0.1

    def client(  # type: ignore[override]  # its clients keep v_i too
        self, message: Model, oracle: Oracle, client_state: MomentumClientState
    ) -> tuple[Reply, MomentumClientState]:
        """Set v_i = (1-m) v_i + m grad_I f_i(x); reply v_i - g_i, through C."""
        gradient = oracle.grad(message.x, oracle.batch(self.b))
        v = (1 - self.m) * client_state.v + self.m * gradient
        return Reply(v - client_state.g), MomentumClientState(client_state.g, v)

    def update_client_state(  # type: ignore[override]
        self, message: Model, sent: Reply, client_state: MomentumClientState
    ) -> MomentumClientState:
        """Set g_i += c_i."""
        return MomentumClientState(client_state.g + sent.c, client_state.v)


class BothWaysState(NamedTuple):
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


class BothWaysClientState(NamedTuple):
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
    client_state = BothWaysClientState
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

    def init(self, x0: Vector, N: int) -> BothWaysState:
        """Start with g = w = 0."""
        return BothWaysState(x=x0, g=0.0 * x0, w=0.0 * x0, b=0.0 * x0, N=N)

    def call(self, state: BothWaysState, draws: Draws) -> Call[Model | Change]:
        """Send the change of w to all clients; in round 0 the start."""
        message = Model(state.x) if draws.round == 0 else Change(state.b)
        return Call(draws.clients(state.N, state.N), message, require_all=True)

    def client(
        self, message: Model | Change, oracle: Oracle, client_state: BothWaysClientState
    ) -> tuple[Reply, BothWaysClientState]:
        """Move x as the server did, and reply grad f_i(x) - g_i, through C."""
        g, x, w = client_state
        if isinstance(message, Model):
            x = 0.0 * x + message.x
        else:
            w = w + message.b  # Alg. 5: g^{t+1} = g^t + b^{t+1}
            x = x - self.eta * w  # x^{t+1} = x^t - eta g^t
        gradient = oracle.grad(x, oracle.batch(self.b))
        return Reply(gradient - g), BothWaysClientState(g, x, w)

    def update_client_state(
        self, message: Model | Change, sent: Reply, client_state: BothWaysClientState
    ) -> BothWaysClientState:
        """Set g_i += c_i."""
        return client_state._replace(g=client_state.g + sent.c)

    def server(self, state: BothWaysState, replies: Replies[Reply]) -> BothWaysState:
        """Set g += mean c_i, w += C(g - w) and x -= eta w."""
        g = state.g + (replies.count / state.N) * replies.mean.c
        b = g - state.w
        w = state.w + as_received(self.down, b)  # as clients will
        return BothWaysState(x=state.x - self.eta * w, g=g, w=w, b=b, N=state.N)
