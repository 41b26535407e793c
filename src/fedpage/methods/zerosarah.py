"""ZeroSARAH over clients: differences and a table, never a full round.

Li, Hanzely, Richtárik, "ZeroSARAH: Efficient Nonconvex Finite-Sum Optimization with
Zero Full Gradient Computation" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedpage.codecs import IDENTITY, Codec
from fedpage.core import validate
from fedpage.core.types import Call, Draws, Fields, Oracle, Replies, Vector
from fedpage.methods.base import BaseMethod
from fedpage.methods.messages import ChangeAndDrift, FullGradient, Gradient, TwoPoints
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """x^r, x^{r-1}, the estimator v, h = mean y_i, and the number of clients."""

    x: Vector
    x_prev: Vector
    v: Vector
    h: Vector
    N: int


class ClientState(NamedTuple):
    """y_i, the client's last gradient."""

    y: Vector


_Message = FullGradient | TwoPoints
_Reply = Gradient | ChangeAndDrift


@register("zerosarah", group="variance-reduced", assumes="clients that keep a state")
@dataclass(frozen=True)
class ZeroSARAH(BaseMethod):
    """ZeroSARAH: SARAH's differences, pulled towards SAGA's estimate of the gradient.

    The effective step is eta. No round calls all clients, not even the first.

    Args:
        S: Sampled clients.
        eta: The step size.
        lam: The weight of SAGA's estimate. If None, use S/(2N). With 1 it is SAGA.
        b: Rows in a minibatch, the same at both points. If None, use all rows.
        up: The codec of the replies, a cast; FRECON takes other codecs.
        down: The codec of the models, a cast.
    """

    name = "ZeroSARAH"
    paper = "Li, Hanzely, Richtárik 2021"
    messages = {FullGradient: Gradient, TwoPoints: ChangeAndDrift}
    client_state = ClientState
    checks = {"lam": validate.probability}
    codec_hint = "use a cast such as float32, or FRECON"
    changes = {FullGradient: {"g": None}, TwoPoints: {"change": None, "drift": None}}

    S: int = 20
    eta: StepSize = 0.1
    lam: float | None = None
    b: int | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def init(self, x0: Vector, N: int) -> State:
        """Start with h = 0, as all y_i; v is set in round 0."""
        self.check_sample(N)
        return State(x=x0, x_prev=x0, v=0.0 * x0, h=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Send x and x_prev to S clients; in round 0 there is no x_prev."""
        clients = draws.clients(state.N, self.S)
        if draws.round == 0:
            return Call(clients, FullGradient(state.x))
        return Call(clients, TwoPoints(state.x, state.x_prev))

    def client(
        self, message: _Message, oracle: Oracle, client_state: ClientState
    ) -> tuple[_Reply, ClientState]:
        """Compute p = grad_I(x) and q = grad_I(x_prev), the same I."""
        batch = oracle.batch(self.b)
        p = oracle.grad(message.x, batch)
        if isinstance(message, FullGradient):
            return Gradient(p), client_state
        q = oracle.grad(message.x_prev, batch)
        return ChangeAndDrift(p - q, q - client_state.y), client_state

    def update_client_state(
        self, message: Fields, sent: _Reply, client_state: ClientState
    ) -> ClientState:
        """Set y_i to p, or to what the server takes for p where a cast rounds."""
        if isinstance(sent, Gradient):
            return ClientState(sent.g)
        return ClientState(client_state.y + (sent.change + sent.drift))

    def server(self, state: State, replies: Replies[_Reply]) -> State:
        """Set v, move along it, and keep h = mean y_i."""
        x, _, v, h, N = state
        mean, part = replies.mean, replies.count / N
        if isinstance(mean, Gradient):
            v, h = mean.g, part * mean.g  # lam_0 = 1 and all y_i = 0
        else:
            A, E = mean
            lam = self.S / (2 * N) if self.lam is None else self.lam
            v = A + (1 - lam) * v + lam * (E + h)
            h = h + part * (A + E)
        return State(x=x - self.eta * v, x_prev=x, v=v, h=h, N=N)
