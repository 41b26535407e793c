"""DASHA and DASHA-PP: compressed gradient differences, never an uncompressed vector.

Tyurin, Richtárik, "DASHA: Distributed Nonconvex Optimization with Communication
Compression and Optimal Oracle Complexity" (2023).
Tyurin, Richtárik, "A Computation and Communication Efficient Method for Distributed
Nonconvex Problems in the Partial Participation Setting" (2023): DASHA-PP, Alg. 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.messages import as_scalar
from fedpage.core.types import Call, Draws, Oracle, Replies, Scalar, Vector
from fedpage.methods.base import BaseMethod
from fedpage.methods.fedpage import State
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


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
    "dasha", group="compressed", assumes="all clients in every round, each with a state"
)
@dataclass(frozen=True)
class DASHA(BaseMethod):
    """DASHA: each client sends the compressed change of its gradient, corrected.

    All clients take part in every round, with all their rows. The effective step is
    eta.

    Args:
        eta: The step size.
        up: The codec of m_i: unbiased ones, such as randk:0.1 or natural.
        down: The codec of x and x_prev: casts, such as float32.
    """

    name = "DASHA"
    paper = "Tyurin, Richtárik 2023"
    messages = {Difference: Reply}
    client_state = ClientState
    up_codecs = "unbiased"
    changes = {Difference: {"m": None}}

    eta: StepSize = 0.1
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def init(self, x0: Vector, N: int) -> State:
        """Start with g = 0, as all g_i and h_i."""
        self.check_sample(N)
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
        q, omega = float(message.q[0]), self.omega(len(message.x))
        a, b = q / (2 * omega + 1), q / (2 - q)
        everything = oracle.batch(None)
        gradient_prev = oracle.grad(message.x_prev, everything)
        k = oracle.grad(message.x, everything) - gradient_prev - b * (h - gradient_prev)
        return Reply(k / q - (a / q) * (g - h)), ClientState(h + k / q, g)

    def update_client_state(
        self, message: Difference, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Set g_i += m_i, as the server will."""
        return ClientState(client_state.h, client_state.g + sent.m)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set g += (S/N) mean m_i and x -= eta g."""
        g = state.g + (replies.count / state.N) * replies.mean.m
        return State(x=state.x - self.eta * g, x_prev=state.x, g=g, N=state.N)


@register("dasha-pp", assumes="clients that keep a state", page="dasha")
@dataclass(frozen=True)
class DASHAPP(DASHA):
    """DASHA-PP: DASHA with S sampled clients.

    Args:
        S: Sampled clients.
    """

    name = "DASHA-PP"

    S: int = 20
