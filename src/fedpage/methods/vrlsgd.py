"""VRL-SGD: local SGD with corrections that sum to zero.

Liang et al., "Variance Reduced Local SGD with Lower Communication Complexity" (2019).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.local_steps import local_sgd
from fedpage.core.schedules import StepSize
from fedpage.core.types import Call, Draws, MessageTypes, Oracle, Replies, Vector
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model and the number of clients."""

    x: Vector
    N: int


class Begin(NamedTuple):
    """To all clients, in round 0: K steps from x, without correction."""

    x: Vector


class Continue(NamedTuple):
    """To all clients: x is the mean of the last models; correct by it, then K steps."""

    x: Vector


class Reply(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


class ClientState(NamedTuple):
    """Delta_i, the correction of the last steps, and y_K, where they ended."""

    delta: Vector
    y: Vector


@register("vrl-sgd", group="local", assumes="all clients in every round")
@dataclass(frozen=True)
class VRLSGD:
    """VRL-SGD: every client takes K steps y -= eta_l (grad_I(y) - Delta_i).

    x is the mean of the y_K. Delta_i += (x - y_K)/(K eta_l) when the client receives x,
    at its next call; the Delta_i sum to zero. Every client takes part in every round.
    The effective step is K eta_l.

    Args:
        K: Local steps.
        eta_l: The local step size.
        b: Rows in a minibatch; None: all rows.
        up: The codec of replies, a cast.
        down: The codec of messages, a cast. The Delta_i then sum to zero up to the last
            rounding of x, divided by K eta_l.
    """

    name: ClassVar[str] = "VRL-SGD"
    paper: ClassVar[str] = "Liang et al. 2019"
    messages: ClassVar[MessageTypes] = {Begin: Reply, Continue: Reply}
    client_state: ClassVar[type[ClientState]] = ClientState
    compressible: ClassVar[Compressible] = {
        Begin: {"dy": None},
        Continue: {"dy": None},
    }

    K: int = 10
    eta_l: StepSize = 0.01
    b: int | None = 4
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.name, "K", self.K)
        why = "corrections are divided by the last round's step"
        schedules.check_constant(self.name, "eta_l", self.eta_l, why)
        validate.batch(self.name, "b", self.b)
        codecs.check(self, "cast", hint="use SCALLION, which compresses changes")

    @property
    def effective_step(self) -> float:
        """The effective step, K eta_l."""
        return self.K * self.eta_l

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step."""
        return replace(self, eta_l=step / self.K)

    def init(self, x0: Vector, N: int) -> State:
        """Return the start; all Delta_i are 0."""
        return State(x=x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Begin | Continue]:
        """Call all clients: over some clients the Delta_i would not sum to zero."""
        message = Begin(state.x) if draws.round == 0 else Continue(state.x)
        return Call(draws.clients(state.N, state.N), message, require_all=True)

    def client(
        self, message: Begin | Continue, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Correct Delta_i by x, then take K corrected steps."""
        x, delta = message.x, client_state.delta
        if isinstance(message, Continue):  # x is the mean of the last round's y_K
            delta = delta + (x - client_state.y) / (self.K * self.eta_l)
        direction = local_sgd(
            oracle, x, K=self.K, eta=self.eta_l, b=self.b, shift=-delta
        )
        dy = -(self.K * self.eta_l) * direction
        return Reply(dy), ClientState(delta, client_state.y)

    def keep(
        self, message: Begin | Continue, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Keep y_K as it was sent, so that the Delta_i sum to zero after any cast."""
        return ClientState(client_state.delta, message.x + sent.dy)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set x to the mean of the y_K."""
        return State(x=state.x + replies.mean.dy, N=state.N)
