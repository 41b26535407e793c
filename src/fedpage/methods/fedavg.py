"""FedAvg, or local SGD with two step sizes: McMahan et al. (2017), as Karimireddy et al. (2020) write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedpage.core import validate
from fedpage.core.local_steps import local_sgd
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.local import LocalSGD


class State(NamedTuple):
    """The model and the number of clients."""

    x: Vector
    N: int


class Model(NamedTuple):
    """To S clients: K SGD steps from x."""

    x: Vector


class Reply(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


@dataclass(frozen=True)
class FedAvg(LocalSGD):
    """FedAvg: S clients take K SGD steps y -= eta_l grad_I(y), |I| = b; the server adds eta_g times their mean move.

    The effective step is K eta_g eta_l. b = None means all rows.
    """

    name: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al. 2017"
    client_state: ClassVar[None] = None

    def init(self, x0: Vector, N: int) -> State:
        """The start."""
        validate.sampled(self.name, self.S, N)
        return State(x=x0, N=N)

    def call(self, state: State, draws: Draws) -> Call:
        """S clients get the model."""
        return Call(draws.clients(state.N, self.S), Model(state.x))

    def client(self, message: Model, oracle: Oracle, client_state: None) -> tuple[Reply, None]:
        """K local steps; the reply y_K - x is -K eta_l times the mean direction."""
        direction = local_sgd(oracle, message.x, K=self.K, eta=self.eta_l, b=self.b)
        return Reply(-(self.K * self.eta_l) * direction), client_state

    def server(self, state: State, replies: Replies) -> State:
        """x += eta_g mean(dy)."""
        return State(x=state.x + self.eta_g * replies.mean.dy, N=state.N)
