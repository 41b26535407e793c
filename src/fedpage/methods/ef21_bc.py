"""EF21-BC: EF21 with compressed messages in both directions.

Fatkhullin, Sokolov, Gorbunov, Li, Richtárik, "EF21 with Bells & Whistles: Practical
Algorithmic Extensions of Modern Error Feedback" (2021): Alg. 5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.codecs.message_codec import as_received
from fedpage.core import schedules, validate
from fedpage.core.errors import InputError
from fedpage.core.schedules import StepSize
from fedpage.core.types import (
    Call,
    Draws,
    MessageTypes,
    Oracle,
    Problem,
    Replies,
    Vector,
)
from fedpage.methods import table_steps
from fedpage.methods.ef21 import contraction
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model, the mean g of all g_i, what clients know of it, the next message."""

    x: Vector
    g: Vector
    w: Vector
    """The server's own EF21 estimate of g, which all clients have after `b`."""
    b: Vector
    """g - w of before: what the next message sends, through the codec `down`."""
    N: int


class Begin(NamedTuple):
    """To all clients, in round 0, as it is: the start."""

    x: Vector


class Change(NamedTuple):
    """To all clients: the change of w."""

    b: Vector


class Reply(NamedTuple):
    """c_i, the change of g_i."""

    c: Vector


class ClientState(NamedTuple):
    """g_i, which follows the client's gradient; the model and w, as the server's."""

    g: Vector
    x: Vector
    w: Vector


@register(
    "ef21-bc",
    group="compressed",
    assumes="all clients in every round, each with a state",
    page="ef21",
)
@dataclass(frozen=True)
class EF21BC:
    """EF21-BC: EF21 whose server sends the compressed change of its estimate too.

    Clients keep the model and move it themselves. So every client must receive every
    message. The effective step is eta.

    Args:
        eta: The step size.
        b: Rows in a minibatch; None: all rows, as published.
        up: The codec of c_i, a contractive one such as topk:0.1.
        down: The codec of the server's change, a contractive one without randomness.
    """

    name: ClassVar[str] = "EF21-BC"
    paper: ClassVar[str] = "Fatkhullin et al. 2021"
    needs_numpy: ClassVar[bool] = True
    """The server compresses the model, by a codec of numpy's arrays."""
    messages: ClassVar[MessageTypes] = {Begin: Reply, Change: Reply}
    client_state: ClassVar[type[ClientState]] = ClientState
    compressible: ClassVar[Compressible] = {Begin: {"c": None}, Change: {"c": None}}
    exact_messages: ClassVar[tuple[type, ...]] = (Begin,)

    eta: StepSize = 0.1
    b: int | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        why = "clients move x by the last round's step"
        schedules.check_constant(self.name, "eta", self.eta, why)
        validate.batch(self.name, "b", self.b)
        if codecs.as_codec(self.down).is_random:
            raise InputError(
                f"EF21-BC: down={self.down} is random; use topk:0.1, sign or a "
                "cast such as float32"
            )
        codecs.check(self, "contractive", down="contractive")

    @property
    def effective_step(self) -> float:
        """The effective step, eta."""
        return self.eta

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step."""
        return replace(self, eta=step)

    def init(self, x0: Vector, N: int) -> State:
        """Start with g = w = 0."""
        return State(x=x0, g=0.0 * x0, w=0.0 * x0, b=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Begin | Change]:
        """Send the change of w to all clients; in round 0 the start."""
        message = Begin(state.x) if draws.round == 0 else Change(state.b)
        return Call(draws.clients(state.N, state.N), message, require_all=True)

    def client(
        self, message: Begin | Change, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Move x as the server did, and reply grad f_i(x) - g_i, through C."""
        g, x, w = client_state
        if isinstance(message, Begin):
            x = 0.0 * x + message.x
        else:
            w = w + message.b  # Alg. 5: g^{t+1} = g^t + b^{t+1}
            x = x - self.eta * w  # x^{t+1} = x^t - eta g^t
        gradient = oracle.grad(x, oracle.batch(self.b))
        return Reply(gradient - g), ClientState(g, x, w)

    def keep(
        self, message: Begin | Change, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Set g_i += c_i."""
        return client_state._replace(g=client_state.g + sent.c)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set g += mean c_i, w += C(g - w) and x -= eta w."""
        g = state.g + (replies.count / state.N) * replies.mean.c
        b = g - state.w
        w = state.w + as_received(self.down, b)  # as clients will
        return State(x=state.x - self.eta * w, g=g, w=w, b=b, N=state.N)

    @classmethod
    def from_theory(
        cls,
        problem: Problem,
        *,
        up: Codec | str = IDENTITY,
        down: Codec | str = IDENTITY,
    ) -> Self:
        """Return the method with a step size for a nonconvex f.

        `table_steps.ef21_bc_nonconvex` has the formula.

        Args:
            problem: The problem, whose L and average L_i the step depends on.
            up: The codec of replies.
            down: The codec of messages.
        """
        method = cls(up=codecs.as_codec(up), down=codecs.as_codec(down))
        L = problem.smoothness()
        alpha_up = contraction(cls.name, method.up, problem.d)
        alpha_down = contraction(cls.name, method.down, problem.d)
        validate.positive(cls.name, "the problem's smoothness", L.whole)
        return replace(
            method,
            eta=table_steps.ef21_bc_nonconvex(L.whole, L.average, alpha_up, alpha_down),
        )
