"""Scaffnew: local gradient steps of a random number, corrected by control variates.

Mishchenko, Malinovsky, Stich, Richtárik, "ProxSkip: Yes! Local Gradient Steps Provably
Lead to Communication Acceleration! Finally!" (2022), Algorithm 2.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple, Self

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.local_steps import local_sgd
from fedpage.core.messages import as_scalar
from fedpage.core.types import Call, Draws, Oracle, Replies, Scalar, Vector
from fedpage.methods.base import BaseMethod, constant, geometric, geometric_steps
from fedpage.methods.messages import ModelState, Move
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class Begin(NamedTuple):
    """To all clients, in round 0: K steps from x, without correction."""

    x: Vector
    K: Scalar


class Continue(NamedTuple):
    """To all clients: x is the mean of the last models; correct by it, then K steps."""

    x: Vector
    K: Scalar


class ClientState(NamedTuple):
    """h_i, the control variate of the last steps, and y_K, where they ended."""

    h: Vector
    y: Vector


@register(
    "scaffnew", group="local", assumes="strongly convex; all clients in every round"
)
@dataclass(frozen=True)
class Scaffnew(BaseMethod):
    """Scaffnew: all clients take K steps y -= eta (grad_I(y) - h_i), K ~ Geometric(p).

    This is Algorithm 2, where a coin of probability p after each local step decides
    whether clients communicate; the server draws the number of steps up to that, and
    sends it. x is the mean of the y_K. h_i += (p/eta)(x - y_K) when the client receives
    x, at its next call; the h_i sum to zero. The effective step is eta/p, the mean
    number of steps times eta.

    Args:
        p: Probability of communication after a local step; 1/p steps on average.
        eta: The step size.
        b: Rows in a minibatch. If None, use all rows, as in the paper.
        up: The codec of replies, a cast.
        down: The codec of messages, a cast. The h_i then sum to zero up to the last
            rounding of x, times p/eta.
    """

    name = "Scaffnew"
    paper = "Mishchenko et al. 2022"
    messages = {Begin: Move, Continue: Move}
    client_state = ClientState
    checks = {
        "p": geometric,
        "eta": constant("corrections are divided by the last round's step"),
    }
    codec_hint = "use SCALLION, which compresses changes"
    is_geometric = True
    changes = {Begin: {"dy": None}, Continue: {"dy": None}}

    p: float = 0.1
    eta: StepSize = 0.01
    b: int | None = None
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    @property
    def effective_step(self) -> float:
        """The effective step, eta/p."""
        return self.eta / self.p

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step, by changing eta."""
        return replace(self, eta=step * self.p)

    def init(self, x0: Vector, N: int) -> ModelState:
        """Return the start; all h_i are 0."""
        return ModelState(x=x0, N=N)

    def call(self, state: ModelState, draws: Draws) -> Call[Begin | Continue]:
        """Call all clients: over some clients the h_i would not sum to zero."""
        message = Begin if draws.round == 0 else Continue
        K = as_scalar(draws.geometric(self.p))
        clients = draws.clients(state.N, state.N)
        return Call(clients, message(state.x, K), require_all=True)

    def client(
        self, message: Begin | Continue, oracle: Oracle, client_state: ClientState
    ) -> tuple[Move, ClientState]:
        """Correct h_i by x, then take K corrected steps."""
        x, h = message.x, client_state.h
        K = geometric_steps(self.name, self.p, message.K[0])
        if isinstance(message, Continue):  # line 11; x is the mean of the last y_K
            h = h + (x - client_state.y) / (self.eta / self.p)
        direction = local_sgd(oracle, x, K=K, eta=self.eta, b=self.b, shift=-h)
        return Move(-(K * self.eta) * direction), ClientState(h, client_state.y)

    def update_client_state(
        self, message: Begin | Continue, sent: Move, client_state: ClientState
    ) -> ClientState:
        """Keep y_K as it was sent, so that the h_i sum to zero after any cast."""
        return ClientState(client_state.h, message.x + sent.dy)

    def server(self, state: ModelState, replies: Replies[Move]) -> ModelState:
        """Set x to the mean of the y_K (line 9)."""
        return ModelState(x=state.x + replies.mean.dy, N=state.N)
