"""SCAFFOLD (option II): local SGD corrected by control variates.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(2020). Option I and momentum: `scaffold_variants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from fedpage.core.local_steps import local_sgd
from fedpage.core.types import Call, Draws, Fields, Oracle, Replies, Vector
from fedpage.methods.local import LocalSGD
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model, the server's control variate c = mean c_i, the number of clients."""

    x: Vector
    c: Vector
    N: int


class Controlled(NamedTuple):
    """To S clients: K corrected steps from x."""

    x: Vector
    c: Vector


class Reply(NamedTuple):
    """v = (x - y_K)/(K eta_l) - c, which is also c_i+ - c_i."""

    v: Vector


class ClientState(NamedTuple):
    """c_i, the client's control variate."""

    c: Vector


@register(
    "scaffold",
    presets={"scaffold-full": ("SCAFFOLD-Full", {"b": None})},
    group="local",
    assumes="clients that keep a state",
)
@dataclass(frozen=True)
class SCAFFOLD(LocalSGD):
    """SCAFFOLD: FedAvg whose local steps are corrected by c - c_i.

    c_i+ = c_i - c + (x - y_K)/(K eta_l), option II. One vector is sent up: the server
    knows c, so v = c_i+ - c_i gives it the client's move as well. The effective step is
    K eta_g eta_l. If b is None it is SCAFFOLD-Full of the FedPAGE paper's appendix.
    Codecs are casts; SCALLION compresses more.
    """

    name = "SCAFFOLD"
    paper = "Karimireddy et al. 2020"
    messages = {Controlled: Reply}
    client_state = ClientState
    codec_hint = "use SCALLION, which compresses changes"
    changes = {Controlled: {"v": None}}

    def init(self, x0: Vector, N: int) -> State:
        """Start with c = 0, as all c_i."""
        self.check_sample(N)
        return State(x=x0, c=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Controlled]:
        """Send the model and c to S clients."""
        return Call(draws.clients(state.N, self.S), Controlled(state.x, state.c))

    def client(
        self, message: Controlled, oracle: Oracle, client_state: ClientState
    ) -> tuple[Fields, ClientState]:
        """Take K corrected steps, and send the change of c_i."""
        direction = self.direction(message, oracle, client_state)
        return Reply(direction - message.c), client_state

    def direction(
        self, message: Controlled, oracle: Oracle, client_state: ClientState
    ) -> Vector:
        """Return (x - y_K)/(K eta_l) of K steps y -= eta_l (grad_I(y) - c_i + c)."""
        x, c = message
        return local_sgd(
            oracle, x, K=self.K, eta=self.eta_l, b=self.b, shift=c - client_state.c
        )

    def update_client_state(
        self, message: Controlled, sent: Any, client_state: ClientState
    ) -> ClientState:
        """Add the change that was sent to c_i, so that c is the mean of all c_i."""
        return ClientState(client_state.c + sent.v)

    def server(self, state: State, replies: Replies[Any]) -> State:
        """Set x += eta_g mean(y_K - x) and c += (S/N) mean(c_i+ - c_i)."""
        v = replies.mean.v
        dy = -(self.K * self.eta_l) * (v + state.c)  # the mean of y_K - x
        return self.move(state, dy, v, replies.count / state.N)

    def move(self, state: State, dy: Vector, dc: Vector, part: float) -> State:
        """Set x += eta_g dy and c += part dc, where part of the clients was called."""
        x, c = state.x + self.eta_g * dy, state.c + part * dc
        return state._replace(x=x, c=c)
