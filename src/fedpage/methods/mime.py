"""Mime and MimeLite: momentum that is fixed during local steps.

Karimireddy et al., "Breaking the Centralized Barrier for Cross-Device Federated
Learning" (2021), with momentum SGD as the base method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedpage.core.local_steps import local_sgd, local_svrg
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.local import LocalSGD
from fedpage.methods.messages import (
    FullGradient,
    Gradient,
    MomentumState,
    Move,
    MoveAndGradient,
)
from fedpage.methods.registry import register

_ASSUMES = "many clients a round; biased otherwise"


class State(NamedTuple):
    """The model, the momentum m, the number of clients, and the phase."""

    x: Vector
    m: Vector
    N: int
    m_ready: bool
    """m is that of x; the next exchange takes local steps at the same clients."""


class Steps(NamedTuple):
    """To S clients: K steps from x, with the momentum m."""

    x: Vector
    m: Vector


@register("mimelite", group="adaptive", assumes=_ASSUMES, page="mime")
@dataclass(frozen=True)
class MimeLite(LocalSGD):
    """MimeLite: FedAvg whose local steps all move along the server's momentum.

    A local step is y -= eta_l ((1 - beta) grad_I(y) + beta m); m is a running mean of
    gradients at x and does not change during local steps. With beta = 0 it is FedAvg.
    The effective step is K eta_g eta_l.

    Args:
        beta: The momentum, in [0, 1).
    """

    name = "MimeLite"
    paper = "Karimireddy et al. 2021"
    messages = {Steps: MoveAndGradient}
    up_codecs = "unbiased"
    changes = {Steps: {"dy": None, "g": None}}

    beta: float = 0.9

    def init(self, x0: Vector, N: int) -> MomentumState:
        """Start with m = 0."""
        self.check_sample(N)
        return MomentumState(x=x0, m=0.0 * x0, N=N)

    def call(self, state: MomentumState, draws: Draws) -> Call[Steps]:
        """Send the model and m to S clients."""
        return Call(draws.clients(state.N, self.S), Steps(state.x, state.m))

    def client(
        self, message: Steps, oracle: Oracle, client_state: None
    ) -> tuple[MoveAndGradient, None]:
        """Take K steps y -= eta_l ((1 - beta) grad_I(y) + beta m)."""
        x, m = message
        part = 1 - self.beta  # a step is eta_l part (grad_I(y) + beta m/part)
        direction = local_sgd(
            oracle, x,
            K=self.K, eta=self.eta_l * part, b=self.b, shift=(self.beta / part) * m,
        )  # fmt: skip
        g = oracle.grad(x, oracle.batch(None))
        return MoveAndGradient(-(self.K * self.eta_l * part) * direction, g), None

    def server(
        self, state: MomentumState, replies: Replies[MoveAndGradient]
    ) -> MomentumState:
        """Set x += eta_g mean(dy) and m = (1 - beta) mean(g) + beta m."""
        dy, g = replies.mean
        m = (1 - self.beta) * g + self.beta * state.m
        return MomentumState(x=state.x + self.eta_g * dy, m=m, N=state.N)


@register("mime", group="adaptive", assumes=_ASSUMES)
@dataclass(frozen=True)
class Mime(LocalSGD):
    """Mime: MimeLite whose local gradients are corrected to the mean of S clients.

    An iteration is two exchanges with the same S clients, which count as two rounds:
    they send c_i = grad f_i(x), then take steps with grad_I(y) - grad_I(x) + c in place
    of grad_I(y). The effective step is K eta_g eta_l for an iteration.

    Args:
        beta: The momentum, in [0, 1).
    """

    name = "Mime"
    paper = "Karimireddy et al. 2021"
    messages = {FullGradient: Gradient, Steps: Move}
    up_codecs = "unbiased"
    changes = {FullGradient: {"g": None}, Steps: {"dy": None}}

    beta: float = 0.9

    def init(self, x0: Vector, N: int) -> State:
        """Start with m = 0; the first exchange asks for gradients."""
        self.check_sample(N)
        return State(x=x0, m=0.0 * x0, N=N, m_ready=False)

    def call(self, state: State, draws: Draws) -> Call[FullGradient | Steps]:
        """Ask S clients for gradients; in the next round, the same for local steps."""
        if not state.m_ready:
            return Call(draws.clients(state.N, self.S), FullGradient(state.x))
        clients = draws.clients(state.N, self.S, ago=1)
        return Call(clients, Steps(state.x, state.m))

    def client(
        self, message: FullGradient | Steps, oracle: Oracle, client_state: None
    ) -> tuple[Gradient | Move, None]:
        """Compute the gradient at x, or take K corrected steps."""
        if isinstance(message, FullGradient):
            return Gradient(oracle.grad(message.x, oracle.batch(None))), None
        x, m = message
        # (1 - beta) c + beta m of the paper's step is the new m, so a step is
        # y -= eta_l ((1 - beta) (grad_I(y) - grad_I(x)) + m)
        part = 1 - self.beta
        direction = local_svrg(
            oracle, x, x, m / part, K=self.K, eta=self.eta_l * part, b=self.b
        )
        return Move(-(self.K * self.eta_l * part) * direction), None

    def server(self, state: State, replies: Replies[Gradient | Move]) -> State:
        """Set m = (1 - beta) c + beta m, or x += eta_g mean(dy)."""
        mean = replies.mean
        if isinstance(mean, Gradient):
            m = (1 - self.beta) * mean.g + self.beta * state.m
            return state._replace(m=m, m_ready=True)
        return state._replace(x=state.x + self.eta_g * mean.dy, m_ready=False)
