"""SCAFFOLD: local SGD corrected by control variates.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(2020).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import Compressible
from fedpage.core import validate
from fedpage.core.local_steps import local_sgd
from fedpage.core.types import (
    Call,
    Draws,
    HyperParameter,
    MessageTypes,
    Oracle,
    Replies,
    Vector,
)
from fedpage.methods.local import LocalSGD
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model, the server's control variate c, its momentum, the number of clients.

    c is the mean of all c_i.
    """

    x: Vector
    c: Vector
    m: Vector
    """The server's last move, which is carried on by beta."""
    N: int


class Controlled(NamedTuple):
    """To S clients, option II: K corrected steps from x."""

    x: Vector
    c: Vector


class Reply(NamedTuple):
    """v = (x - y_K)/(K eta_l) - c, which is also c_i+ - c_i."""

    v: Vector


class ControlledI(NamedTuple):
    """To S clients, option I: K corrected steps from x; c_i+ is a gradient at x."""

    x: Vector
    c: Vector


class ReplyI(NamedTuple):
    """dy = y_K - x and dc = c_i+ - c_i."""

    dy: Vector
    dc: Vector


class ClientState(NamedTuple):
    """c_i, the client's control variate."""

    c: Vector


@register(
    "scaffold",
    presets={"scaffold-full": ("SCAFFOLD-Full", {"b": None, "b0": None})},
    group="local",
    assumes="clients that keep a state",
)
@dataclass(frozen=True)
class SCAFFOLD(LocalSGD):
    """SCAFFOLD: FedAvg whose local steps are corrected by c - c_i.

    The effective step is K eta_g eta_l/(1 - beta). `SCAFFOLD.full` takes all rows in
    every step. Option II sends one vector up: the server knows c, so that
    v = c_i+ - c_i gives it the client's move as well.

    Args:
        option: "II": c_i+ = c_i - c + (x - y_K)/(K eta_l). "I": c_i+ is the client's
            gradient at x over b0 rows; clients then send two vectors.
        b0: Rows for option "I"; None: all rows.
        beta: The server's momentum (heavy ball), not part of the paper; 0: none.
        up: The codec of replies, a cast; SCALLION compresses more.
        down: The codec of messages, a cast.
    """

    name: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al. 2020"
    messages: ClassVar[MessageTypes] = {Controlled: Reply, ControlledI: ReplyI}
    client_state: ClassVar[type[ClientState]] = ClientState
    compressible: ClassVar[Compressible] = {
        Controlled: {"v": None},
        ControlledI: {"dy": None, "dc": None},
    }

    option: Literal["I", "II"] = "II"
    b0: int | None = None
    beta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.batch(self.name, "b0", self.b0)
        validate.choice(self.name, "option", self.option, ("I", "II"))
        validate.decay(self.name, "beta", self.beta)
        codecs.check(self, "cast", hint="use SCALLION, which compresses changes")
        if type(self) is SCAFFOLD and self.b is None and self.b0 is None:
            object.__setattr__(self, "name", "SCAFFOLD-Full")

    @classmethod
    def full(cls, **hyper_parameters: HyperParameter) -> Self:
        """Return SCAFFOLD-Full of the paper's appendix: gradients use all rows."""
        return cls(b=None, b0=None, **hyper_parameters)

    @property
    def effective_step(self) -> float:
        """The effective step, K eta_g eta_l/(1 - beta)."""
        return self.K * self.eta_g * self.eta_l / (1.0 - self.beta)

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step, by changing eta_l."""
        return replace(self, eta_l=step * (1.0 - self.beta) / (self.K * self.eta_g))

    def init(self, x0: Vector, N: int) -> State:
        """Start with c = 0, as all c_i."""
        validate.check_sample(self.name, self.S, N)
        return State(x=x0, c=0.0 * x0, m=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Controlled | ControlledI]:
        """Send the model and c to S clients."""
        message = Controlled if self.option == "II" else ControlledI
        return Call(draws.clients(state.N, self.S), message(state.x, state.c))

    def client(
        self,
        message: Controlled | ControlledI,
        oracle: Oracle,
        client_state: ClientState,
    ) -> tuple[Reply | ReplyI, ClientState]:
        """Take K steps y -= eta_l (grad_I(y) - c_i + c); send the change of c_i."""
        x, c = message
        direction = local_sgd(
            oracle, x, K=self.K, eta=self.eta_l, b=self.b, shift=c - client_state.c
        )
        if isinstance(message, Controlled):
            # c_i - c + (x - y_K)/(K eta_l): the fraction is the mean direction
            return Reply(direction - c), client_state
        c_new = oracle.grad(x, oracle.batch(self.b0))
        dy = -(self.K * self.eta_l) * direction
        return ReplyI(dy, c_new - client_state.c), client_state

    def keep(
        self,
        message: Controlled | ControlledI,
        sent: Reply | ReplyI,
        client_state: ClientState,
    ) -> ClientState:
        """Renew c_i by the change that was sent, so that c is the mean of all c_i."""
        change = sent.v if isinstance(sent, Reply) else sent.dc
        return ClientState(client_state.c + change)

    def server(self, state: State, replies: Replies[Reply | ReplyI]) -> State:
        """Set x += eta_g mean(y_K - x) and c += (S/N) mean(c_i+ - c_i)."""
        mean = replies.mean
        if isinstance(mean, ReplyI):
            return self._move(state, mean.dy, mean.dc, replies.count)
        dy = -(self.K * self.eta_l) * (mean.v + state.c)  # the mean of y_K - x
        return self._move(state, dy, mean.v, replies.count)

    def _move(self, state: State, dy: Vector, dc: Vector, count: int) -> State:
        """Move x by eta_g dy and the momentum, and c by the share of those called."""
        m = self.beta * state.m + self.eta_g * dy
        c = state.c + (count / state.N) * dc
        return State(x=state.x + m, c=c, m=m, N=state.N)
