"""FedDyn: local steps on objectives that are corrected towards a common optimum.

Acar et al., "Federated Learning Based on Dynamic Regularization" (2021).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple, Self

from fedpage.codecs import IDENTITY, Codec
from fedpage.core import validate
from fedpage.core.local_steps import local_sgd
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.base import BaseMethod
from fedpage.methods.messages import Model, Move
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """The model, a = mean of all a_i, and the number of clients."""

    x: Vector
    a: Vector
    """The paper's -h/alpha, with alpha = mu."""
    N: int


class ClientState(NamedTuple):
    """a_i, the sum of the client's moves: -1/mu times the paper's gradient."""

    a: Vector


@register("feddyn", group="local", assumes="clients that keep a state")
@dataclass(frozen=True)
class FedDyn(BaseMethod):
    """FedDyn: S clients minimise f_i(y) + mu <a_i, y> + (mu/2)|y - x|^2.

    Each takes K steps y -= eta_l (grad_I(y) + mu (a_i + y - x)) and then adds its
    move to a_i, so that -mu a_i approaches its gradient at the optimum. The
    effective step is 1/mu. With K = 1 it is not gradient descent.

    Args:
        S: Sampled clients.
        K: Local steps.
        mu: The weight of the regulariser, the paper's alpha (which names a problem's
            regulariser here); about the smoothness L of the clients.
        eta_l: The local step size. If None, use 1/(2 mu), which is 1/(L + mu) where
            mu = L. Local steps are stable below 2/(L + mu).
        b: Rows in a minibatch. If None, use all rows.
        up: The codec of replies, a cast.
        down: The codec of messages, a cast.
    """

    name = "FedDyn"
    paper = "Acar et al. 2021"
    messages = {Model: Move}
    client_state = ClientState
    checks = {"mu": validate.positive}
    codec_hint = "use SCALLION, which compresses changes"
    changes = {Model: {"dy": None}}

    S: int = 20
    K: int = 10
    mu: float = 10.0
    eta_l: StepSize | None = None
    b: int | None = 4
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    @property
    def effective_step(self) -> float:
        """The effective step, 1/mu."""
        return 1.0 / self.mu

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step.

        A local step that was given keeps its ratio to 1/mu.
        """
        eta_l = None if self.eta_l is None else self.eta_l * (step * self.mu)
        return replace(self, mu=1.0 / step, eta_l=eta_l)

    def init(self, x0: Vector, N: int) -> State:
        """Start with a = 0, as all a_i."""
        self.check_sample(N)
        return State(x=x0, a=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Model]:
        """Send the model to S clients."""
        return Call(draws.clients(state.N, self.S), Model(state.x))

    def client(
        self, message: Model, oracle: Oracle, client_state: ClientState
    ) -> tuple[Move, ClientState]:
        """Take K steps y -= eta_l (grad_I(y) + mu (a_i + y - x))."""
        eta = 0.5 / self.mu if self.eta_l is None else self.eta_l
        shift = self.mu * client_state.a
        direction = local_sgd(
            oracle, message.x, K=self.K, eta=eta, b=self.b, shift=shift, mu=self.mu
        )
        return Move(-(self.K * eta) * direction), client_state

    def update_client_state(
        self, message: Model, sent: Move, client_state: ClientState
    ) -> ClientState:
        """Add the move that was sent to a_i, so that a is the mean of all a_i."""
        return ClientState(client_state.a + sent.dy)

    def server(self, state: State, replies: Replies[Move]) -> State:
        """Set a += (S/N) mean(dy) and x += mean(dy) + a."""
        dy = replies.mean.dy
        a = state.a + (replies.count / state.N) * dy
        return State(x=state.x + dy + a, a=a, N=state.N)
