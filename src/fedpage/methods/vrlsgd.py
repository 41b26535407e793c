"""VRL-SGD: local SGD with corrections that sum to zero.

Liang et al., "Variance Reduced Local SGD with Lower Communication Complexity" (2019).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.local_steps import local_sgd
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.base import BaseMethod, constant
from fedpage.methods.messages import Model, ModelState, Move
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class Continue(NamedTuple):
    """To all clients: x is the mean of the last models; correct by it, then K steps."""

    x: Vector


class ClientState(NamedTuple):
    """Delta_i, the correction of the last steps, and y_K, where they ended."""

    delta: Vector
    y: Vector


@register("vrl-sgd", group="local", assumes="all clients in every round")
@dataclass(frozen=True)
class VRLSGD(BaseMethod):
    """VRL-SGD: every client takes K steps y -= eta_l (grad_I(y) - Delta_i).

    x is the mean of the y_K. Delta_i += (x - y_K)/(K eta_l) when the client receives x,
    at its next call; the Delta_i sum to zero. Every client takes part in every round.
    The effective step is K eta_l.

    Args:
        K: Local steps.
        eta_l: The local step size.
        b: Rows in a minibatch. If None, use all rows.
        up: The codec of replies, a cast.
        down: The codec of messages, a cast. The Delta_i then sum to zero up to the last
            rounding of x, divided by K eta_l.
    """

    name = "VRL-SGD"
    paper = "Liang et al. 2019"
    messages = {Model: Move, Continue: Move}
    client_state = ClientState
    checks = {"eta_l": constant("corrections are divided by the last round's step")}
    step_sizes, step_factors = ("eta_l",), ("K",)
    codec_hint = "use SCALLION, which compresses changes"
    changes = {Model: {"dy": None}, Continue: {"dy": None}}

    K: int = 10
    eta_l: StepSize = 0.01
    b: int | None = 4
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def init(self, x0: Vector, N: int) -> ModelState:
        """Return the start; all Delta_i are 0."""
        return ModelState(x=x0, N=N)

    def call(self, state: ModelState, draws: Draws) -> Call[Model | Continue]:
        """Call all clients: over some clients the Delta_i would not sum to zero."""
        message = Model(state.x) if draws.round == 0 else Continue(state.x)
        return Call(draws.clients(state.N, state.N), message, require_all=True)

    def client(
        self, message: Model | Continue, oracle: Oracle, client_state: ClientState
    ) -> tuple[Move, ClientState]:
        """Correct Delta_i by x, then take K corrected steps."""
        x, delta = message.x, client_state.delta
        if isinstance(message, Continue):  # x is the mean of the last round's y_K
            delta = delta + (x - client_state.y) / (self.K * self.eta_l)
        direction = local_sgd(
            oracle, x, K=self.K, eta=self.eta_l, b=self.b, shift=-delta
        )
        dy = -(self.K * self.eta_l) * direction
        return Move(dy), ClientState(delta, client_state.y)

    def update_client_state(
        self, message: Model | Continue, sent: Move, client_state: ClientState
    ) -> ClientState:
        """Keep y_K as it was sent, so that the Delta_i sum to zero after any cast."""
        return ClientState(client_state.delta, message.x + sent.dy)

    def server(self, state: ModelState, replies: Replies[Move]) -> ModelState:
        """Set x to the mean of the y_K."""
        return ModelState(x=state.x + replies.mean.dy, N=state.N)
