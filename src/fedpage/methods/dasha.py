"""DASHA and DASHA-PP: compressed gradient differences, never an uncompressed vector.

Tyurin, Richtárik, "DASHA: Distributed Nonconvex Optimization with Communication
Compression and Optimal Oracle Complexity" (2023).
Tyurin, Richtárik, "A Computation and Communication Efficient Method for Distributed
Nonconvex Problems in the Partial Participation Setting" (2023): DASHA-PP, Alg. 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.messages import as_scalar
from fedpage.core.schedules import StepSize
from fedpage.core.types import (
    Call,
    Draws,
    MessageTypes,
    Oracle,
    Problem,
    Replies,
    Scalar,
    Vector,
)
from fedpage.methods import table_steps
from fedpage.methods.registry import register


class State(NamedTuple):
    """x, the model before it, the mean g of all g_i, and the number of clients."""

    x: Vector
    x_prev: Vector
    g: Vector
    N: int


class Difference(NamedTuple):
    """To called clients: x, x_prev, and q = S/N, which clients cannot know."""

    x: Vector
    x_prev: Vector
    q: Scalar


class Reply(NamedTuple):
    """m_i, the change of g_i."""

    m: Vector


class ClientState(NamedTuple):
    """h_i, which follows the client's gradient, and g_i, which follows h_i."""

    h: Vector
    g: Vector


@register(
    "dasha",
    group="compressed",
    assumes="all clients in every round, each with a state",
    page="dasha",
)
@dataclass(frozen=True)
class DASHA:
    """DASHA: each client sends the compressed change of its gradient, corrected.

    All clients take part in every round, with all their rows. The effective step is
    eta.

    Args:
        eta: The step size.
        up: The codec of m_i: unbiased ones, such as randk:0.1 or natural.
        down: The codec of x and x_prev: casts, such as float32.
    """

    name: ClassVar[str] = "DASHA"
    paper: ClassVar[str] = "Tyurin, Richtárik 2023"
    messages: ClassVar[MessageTypes] = {Difference: Reply}
    client_state: ClassVar[type[ClientState]] = ClientState
    compressible: ClassVar[Compressible] = {Difference: {"m": None}}

    eta: StepSize = 0.1
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        schedules.check_step(self.name, "eta", self.eta)
        codecs.check(self, "unbiased")

    @property
    def effective_step(self) -> float:
        """The effective step, eta."""
        return self.eta

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step."""
        return replace(self, eta=step)

    def participants(self, N: int) -> int:
        """Return the number of clients that are called in a round."""
        return N

    def init(self, x0: Vector, N: int) -> State:
        """Start with g = 0, as all g_i and h_i."""
        validate.check_sample(self.name, self.participants(N), N)
        return State(x=x0, x_prev=x0, g=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Difference]:
        """Send the last two models."""
        S, N = self.participants(state.N), state.N
        q = as_scalar(S / N)
        return Call(draws.clients(N, S), Difference(state.x, state.x_prev, q))

    def client(
        self, message: Difference, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Move h_i towards grad f_i(x), and reply by how much g_i should move."""
        h, g = client_state
        q, omega = float(message.q[0]), self.up.omega(len(message.x)) or 0.0
        a, b = q / (2 * omega + 1), q / (2 - q)
        everything = oracle.batch(None)
        gradient_prev = oracle.grad(message.x_prev, everything)
        k = oracle.grad(message.x, everything) - gradient_prev - b * (h - gradient_prev)
        return Reply(k / q - (a / q) * (g - h)), ClientState(h + k / q, g)

    def keep(
        self, message: Difference, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Set g_i += m_i, as the server will."""
        return ClientState(client_state.h, client_state.g + sent.m)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set g += (S/N) mean m_i and x -= eta g."""
        g = state.g + (replies.count / state.N) * replies.mean.m
        return State(x=state.x - self.eta * g, x_prev=state.x, g=g, N=state.N)

    @classmethod
    def from_theory(cls, problem: Problem, *, up: Codec | str = IDENTITY) -> Self:
        """Return the method with the step size of DASHA's theorem, for a nonconvex f.

        Args:
            problem: The problem, whose L and average L_i the step depends on.
            up: The codec.
        """
        method = cls(up=codecs.as_codec(up))
        return replace(method, eta=_step(problem, method.up, problem.N))


@register(
    "dasha-pp", group="compressed", assumes="clients that keep a state", page="dasha"
)
@dataclass(frozen=True)
class DASHAPP(DASHA):
    """DASHA-PP: DASHA with S sampled clients.

    Args:
        eta: The step size.
        up: The codec of m_i, an unbiased one.
        down: The codec of x and x_prev, a cast.
        S: Sampled clients.
    """

    name: ClassVar[str] = "DASHA-PP"

    S: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.whole(self.name, "S", self.S)

    def participants(self, N: int) -> int:
        """Return S."""
        return self.S

    @classmethod
    def from_theory(
        cls, problem: Problem, *, S: int = 20, up: Codec | str = IDENTITY
    ) -> Self:
        """Return the method with the step size of DASHA-PP's theorem, nonconvex f.

        Args:
            problem: The problem, whose L and average L_i the step depends on.
            S: Sampled clients.
            up: The codec.
        """
        method = cls(S=S, up=codecs.as_codec(up))
        validate.check_sample(cls.name, S, problem.N)
        return replace(method, eta=_step(problem, method.up, S))


def _step(problem: Problem, up: Codec, S: int) -> float:
    """Return the theorem's step where S clients take part."""
    L = problem.smoothness()
    validate.positive("DASHA", "the problem's smoothness", L.whole)
    return table_steps.dasha_nonconvex(
        L.whole, L.average, problem.N, S, up.omega(problem.d) or 0.0
    )
