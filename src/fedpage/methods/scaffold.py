"""SCAFFOLD: local SGD corrected by control variates.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

from fedpage.core import validate
from fedpage.core.errors import InputError
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
    """The model, the server's control variate c, and the number of clients.

    c is the mean of all c_i.
    """

    x: Vector
    c: Vector
    N: int


class Controlled(NamedTuple):
    """To S clients: K corrected steps from x."""

    x: Vector
    c: Vector


class Reply(NamedTuple):
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

    The effective step is K eta_g eta_l. `SCAFFOLD.full` takes all rows in every step.

    Args:
        option: "II": c_i+ = c_i - c + (x - y_K)/(K eta_l). "I": c_i+ is the client's
            gradient at x over b0 rows.
        b0: Rows for option "I"; None: all rows.
    """

    name: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al. 2020"
    messages: ClassVar[MessageTypes] = {Controlled: Reply}
    client_state: ClassVar[type[ClientState]] = ClientState

    option: Literal["I", "II"] = "II"
    b0: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.batch(self.name, "b0", self.b0)
        if self.option not in ("I", "II"):
            raise InputError(
                f"SCAFFOLD: option must be 'I' or 'II', not {self.option!r}"
            )
        if type(self) is SCAFFOLD and self.b is None and self.b0 is None:
            object.__setattr__(self, "name", "SCAFFOLD-Full")

    @classmethod
    def full(cls, **hyper_parameters: HyperParameter) -> Self:
        """Return SCAFFOLD-Full of the paper's appendix: gradients use all rows."""
        return cls(b=None, b0=None, **hyper_parameters)

    def init(self, x0: Vector, N: int) -> State:
        """Start with c = 0, as all c_i."""
        validate.check_sample(self.name, self.S, N)
        return State(x=x0, c=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Controlled]:
        """Send the model and c to S clients."""
        return Call(draws.clients(state.N, self.S), Controlled(state.x, state.c))

    def client(
        self, message: Controlled, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Take K steps y -= eta_l (grad_I(y) - c_i + c), then renew c_i."""
        x, c = message
        shift = c - client_state.c
        direction = local_sgd(
            oracle, x, K=self.K, eta=self.eta_l, b=self.b, shift=shift
        )
        if self.option == "II":
            # c_i - c + (x - y_K)/(K eta_l): the fraction is the mean direction
            c_new = direction - shift
        else:
            c_new = oracle.grad(x, oracle.batch(self.b0))
        reply = Reply(-(self.K * self.eta_l) * direction, c_new - client_state.c)
        return reply, ClientState(c_new)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set x += eta_g mean(dy) and c += (S/N) mean(dc)."""
        return State(
            x=state.x + self.eta_g * replies.mean.dy,
            c=state.c + (replies.count / state.N) * replies.mean.dc,
            N=state.N,
        )
