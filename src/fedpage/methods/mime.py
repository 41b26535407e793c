"""Mime, MimeLite and MimeMVR: momentum that is fixed during local steps.

Karimireddy et al., "Breaking the Centralized Barrier for Cross-Device Federated
Learning" (2021), with momentum SGD as the base method; MVR is the recursion of Cutkosky
and Orabona, "Momentum-Based Variance Reduction in Non-Convex SGD" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedpage import codecs
from fedpage.codecs import Compressible
from fedpage.core import validate
from fedpage.core.local_steps import local_sgd, local_svrg
from fedpage.core.types import Call, Draws, MessageTypes, Oracle, Replies, Vector
from fedpage.methods.local import LocalSGD
from fedpage.methods.registry import register

_ASSUMES = "many clients a round; biased otherwise"


class LiteState(NamedTuple):
    """The model, the momentum m, and the number of clients."""

    x: Vector
    m: Vector
    N: int


class State(NamedTuple):
    """The model, the momentum m, the number of clients, and the phase."""

    x: Vector
    m: Vector
    N: int
    m_ready: bool
    """m is that of x; the next exchange takes local steps at the same clients."""


class MVRState(NamedTuple):
    """The model, the one before it, the estimate m, N, and the phase."""

    x: Vector
    x_prev: Vector
    m: Vector
    N: int
    m_ready: bool
    """m is that of x; the next exchange takes local steps at the same clients."""


class AtModel(NamedTuple):
    """To S clients: send your gradient at x over all rows."""

    x: Vector


class AtBoth(NamedTuple):
    """To S clients: send your gradients at x and x_prev, all rows, as one vector."""

    x: Vector
    x_prev: Vector


class Steps(NamedTuple):
    """To S clients: K steps from x, with the momentum m."""

    x: Vector
    m: Vector


class Gradient(NamedTuple):
    """The client's gradient at x."""

    g: Vector


class Change(NamedTuple):
    """grad f_i(x) - (1 - a) grad f_i(x_prev)."""

    u: Vector


class Move(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


class LiteReply(NamedTuple):
    """dy = y_K - x, and the client's gradient at x."""

    dy: Vector
    g: Vector


@register("mimelite", group="adaptive", assumes=_ASSUMES, page="mime")
@dataclass(frozen=True)
class MimeLite(LocalSGD):
    """MimeLite: FedAvg whose local steps all move along the server's momentum.

    A local step is y -= eta_l ((1 - beta) grad_I(y) + beta m); m is a running mean of
    gradients at x and does not change during local steps. With beta = 0 it is FedAvg.
    The effective step is K eta_g eta_l.

    Args:
        beta: The momentum, in [0, 1).
    """

    name: ClassVar[str] = "MimeLite"
    paper: ClassVar[str] = "Karimireddy et al. 2021"
    messages: ClassVar[MessageTypes] = {Steps: LiteReply}
    client_state: ClassVar[None] = None
    compressible: ClassVar[Compressible] = {Steps: {"dy": None, "g": None}}

    beta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.decay(self.name, "beta", self.beta)
        codecs.check(self, "unbiased")

    def init(self, x0: Vector, N: int) -> LiteState:
        """Start with m = 0."""
        validate.check_sample(self.name, self.S, N)
        return LiteState(x=x0, m=0.0 * x0, N=N)

    def call(self, state: LiteState, draws: Draws) -> Call[Steps]:
        """Send the model and m to S clients."""
        return Call(draws.clients(state.N, self.S), Steps(state.x, state.m))

    def client(
        self, message: Steps, oracle: Oracle, client_state: None
    ) -> tuple[LiteReply, None]:
        """Take K steps y -= eta_l ((1 - beta) grad_I(y) + beta m)."""
        x, m = message
        part = 1 - self.beta  # a step is eta_l part (grad_I(y) + beta m/part)
        direction = local_sgd(
            oracle, x,
            K=self.K, eta=self.eta_l * part, b=self.b, shift=(self.beta / part) * m,
        )  # fmt: skip
        g = oracle.grad(x, oracle.batch(None))
        return LiteReply(-(self.K * self.eta_l * part) * direction, g), None

    def server(self, state: LiteState, replies: Replies[LiteReply]) -> LiteState:
        """Set x += eta_g mean(dy) and m = (1 - beta) mean(g) + beta m."""
        dy, g = replies.mean
        m = (1 - self.beta) * g + self.beta * state.m
        return LiteState(x=state.x + self.eta_g * dy, m=m, N=state.N)


@register("mime", group="adaptive", assumes=_ASSUMES)
@dataclass(frozen=True)
class Mime(LocalSGD):
    """Mime: MimeLite whose local gradients are corrected to the mean of S clients.

    An iteration is two exchanges with the same S clients, which count as two rounds:
    they send c_i = grad f_i(x), then take steps with grad_I(y) - grad_I(x) + c in place
    of grad_I(y). The effective step is K eta_g eta_l for an iteration.

    Args:
        beta: The momentum, in [0, 1).
    """

    name: ClassVar[str] = "Mime"
    paper: ClassVar[str] = "Karimireddy et al. 2021"
    messages: ClassVar[MessageTypes] = {AtModel: Gradient, Steps: Move}
    client_state: ClassVar[None] = None
    compressible: ClassVar[Compressible] = {
        AtModel: {"g": None},
        Steps: {"dy": None},
    }

    beta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.decay(self.name, "beta", self.beta)
        codecs.check(self, "unbiased")

    def init(self, x0: Vector, N: int) -> State:
        """Start with m = 0; the first exchange asks for gradients."""
        validate.check_sample(self.name, self.S, N)
        return State(x=x0, m=0.0 * x0, N=N, m_ready=False)

    def call(self, state: State, draws: Draws) -> Call[AtModel | Steps]:
        """Ask S clients for gradients; in the next round, the same for local steps."""
        if not state.m_ready:
            return Call(draws.clients(state.N, self.S), AtModel(state.x))
        clients = draws.clients(state.N, self.S, ago=1)
        return Call(clients, Steps(state.x, state.m))

    def client(
        self, message: AtModel | Steps, oracle: Oracle, client_state: None
    ) -> tuple[Gradient | Move, None]:
        """Compute the gradient at x, or take K corrected steps."""
        if isinstance(message, AtModel):
            return Gradient(oracle.grad(message.x, oracle.batch(None))), None
        x, m = message
        # (1 - beta) c + beta m of the paper's step is the new m, so a step is
        # y -= eta_l ((1 - beta) (grad_I(y) - grad_I(x)) + m)
        part = 1 - self.beta
        direction = local_svrg(
            oracle, x, x, m / part, K=self.K, eta=self.eta_l * part, b=self.b
        )
        return Move(-(self.K * self.eta_l * part) * direction), None

    def server(self, state: State, replies: Replies[Gradient | Move]) -> State:
        """Set m = (1 - beta) c + beta m, or x += eta_g mean(dy)."""
        mean = replies.mean
        if isinstance(mean, Gradient):
            m = (1 - self.beta) * mean.g + self.beta * state.m
            return state._replace(m=m, m_ready=True)
        return state._replace(x=state.x + self.eta_g * mean.dy, m_ready=False)


@register("mimemvr", group="adaptive", assumes=_ASSUMES, page="mime")
@dataclass(frozen=True)
class MimeMVR(LocalSGD):
    """MimeMVR: Mime with the recursion m = a c + (1 - a) (m + c - c_prev).

    c and c_prev are the mean gradients of the same S clients at x and at the model
    before it. A local step is y -= eta_l (grad_I(y) - grad_I(x) + m). With a = 1 it is
    Mime with beta = 0. The effective step is K eta_g eta_l for two exchanges.

    Args:
        a: The weight of the new gradients, in (0, 1].
    """

    name: ClassVar[str] = "MimeMVR"
    paper: ClassVar[str] = "Karimireddy et al. 2021"
    messages: ClassVar[MessageTypes] = {AtModel: Gradient, AtBoth: Change, Steps: Move}
    client_state: ClassVar[None] = None
    compressible: ClassVar[Compressible] = {
        AtModel: {"g": None},
        AtBoth: {"u": None},
        Steps: {"dy": None},
    }

    a: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.probability(self.name, "a", self.a)
        codecs.check(self, "unbiased")

    def init(self, x0: Vector, N: int) -> MVRState:
        """Return the start; the first m is the mean gradient of the first clients."""
        validate.check_sample(self.name, self.S, N)
        return MVRState(x=x0, x_prev=x0, m=0.0 * x0, N=N, m_ready=False)

    def call(self, state: MVRState, draws: Draws) -> Call[AtModel | AtBoth | Steps]:
        """Ask S clients for gradients; in the next round, the same for local steps."""
        if state.m_ready:
            clients = draws.clients(state.N, self.S, ago=1)
            return Call(clients, Steps(state.x, state.m))
        clients = draws.clients(state.N, self.S)
        if draws.round == 0:
            return Call(clients, AtModel(state.x))
        return Call(clients, AtBoth(state.x, state.x_prev))

    def client(
        self, message: AtModel | AtBoth | Steps, oracle: Oracle, client_state: None
    ) -> tuple[Gradient | Change | Move, None]:
        """Compute gradients, or take K steps y -= eta_l (grad_I(y) - grad_I(x) + m)."""
        x = message.x
        if isinstance(message, Steps):
            direction = local_svrg(
                oracle, x, x, message.m, K=self.K, eta=self.eta_l, b=self.b
            )
            return Move(-(self.K * self.eta_l) * direction), None
        batch = oracle.batch(None)
        g = oracle.grad(x, batch)
        if isinstance(message, AtModel):
            return Gradient(g), None
        return Change(g - (1 - self.a) * oracle.grad(message.x_prev, batch)), None

    def server(
        self, state: MVRState, replies: Replies[Gradient | Change | Move]
    ) -> MVRState:
        """Set m = mean(u) + (1 - a) m, or x += eta_g mean(dy)."""
        mean = replies.mean
        if isinstance(mean, Gradient):
            return state._replace(m=mean.g, m_ready=True)
        if isinstance(mean, Change):  # a c + (1 - a) (m + c - c_prev), regrouped
            return state._replace(m=mean.u + (1 - self.a) * state.m, m_ready=True)
        x = state.x + self.eta_g * mean.dy
        return state._replace(x=x, x_prev=state.x, m_ready=False)
