"""I-CGM-RG-SAGA: one delegate solves; sampled clients keep the gradient's estimate.

Jiang, Rodomanov, Stich, "Non-Convex Federated Optimization under Cost-Aware Client
Selection" (2025).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

from fedpage.codecs import IDENTITY, Codec
from fedpage.core import validate
from fedpage.core.errors import InputError
from fedpage.core.local_steps import local_sgd
from fedpage.core.messages import as_scalar
from fedpage.core.types import Call, Draws, Oracle, Replies, Scalar, Vector
from fedpage.methods.base import BaseMethod, geometric, geometric_steps
from fedpage.methods.messages import (
    ChangeAndDrift,
    FullGradient,
    Gradient,
    Move,
    TwoPoints,
)
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """x^{t+1}, x^t, the estimator g of grad f, h = mean b_i, and the clients."""

    x: Vector
    x_prev: Vector
    g: Vector
    h: Vector
    N: int
    moved: bool
    """g is that of x_prev: sampled clients update it next."""


class Solve(NamedTuple):
    """To the delegate: K steps from x, corrected by g."""

    x: Vector
    g: Vector
    K: Scalar


class ClientState(NamedTuple):
    """b_i, the client's gradient at the x_prev of its last call."""

    b: Vector


_Message = FullGradient | Solve | TwoPoints
_Reply = Gradient | Move | ChangeAndDrift


@register(
    "i-cgm-rg-saga",
    group="second-order",
    assumes="similar clients that keep a state; a delegate; all of them once",
)
@dataclass(frozen=True)
class ICGM(BaseMethod):
    """I-CGM-RG-SAGA: the delegate minimises f_0, corrected by an estimator of grad f.

    Two rounds make a step. The delegate minimises f_0(y) + (g - grad f_0(x)).y
    + lam |y - x|^2/2 by K steps, K ~ Geometric(p), of step size eta_l/(1 + eta_l lam).
    Then S clients update g by differences (as SARAH), pulled towards SAGA's estimate.
    Only round 0 calls all clients; the paper does so once more, in its step 1. The
    effective step is 1/(lam + p/eta_l), the mean move along a constant unit gradient.

    Args:
        S: Sampled clients.
        lam: The weight of the proximal term.
        eta_l: The local step size, 1/L of the delegate.
        p: 1/p local steps on average.
        beta: The weight of SAGA's estimate. If None, use S/N, as the paper's runs do.
        delegate: The number of the client that solves. If it does not answer, S sampled
            clients solve, and their solutions are averaged.
        up: The codec of the replies, a cast: differences do not vanish at the optimum.
    """

    name = "I-CGM-RG-SAGA"
    paper = "Jiang, Rodomanov, Stich 2025"
    messages = {FullGradient: Gradient, Solve: Move, TwoPoints: ChangeAndDrift}
    client_state = ClientState
    checks = {
        "lam": validate.positive,
        "p": geometric,
        "beta": validate.probability,
        "delegate": partial(validate.whole, least=0),
    }
    changes = {
        FullGradient: {"g": None},
        Solve: {"dy": None},
        TwoPoints: {"change": None, "drift": None},
    }

    S: int = 10
    lam: float = 10.0
    eta_l: StepSize = 0.1
    p: float = 0.1
    beta: float | None = None
    delegate: int = 0
    up: Codec = IDENTITY

    @property
    def gradient_step(self) -> float:
        """The local step as one of gradient descent, eta_l/(1 + eta_l lam)."""
        return self.eta_l / (1 + self.eta_l * self.lam)

    @property
    def effective_step(self) -> float:
        """The effective step, 1/(lam + p/eta_l)."""
        return 1 / (self.lam + self.p / self.eta_l)

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step; eta_l lam is kept."""
        factor = step / self.effective_step
        return replace(self, lam=self.lam / factor, eta_l=self.eta_l * factor)

    def init(self, x0: Vector, N: int) -> State:
        """Return the start; round 0 sets g and h."""
        self.check_sample(N)
        if self.delegate >= N:
            raise InputError(
                f"{self.name}: delegate {self.delegate} is not one of the clients "
                f"0 to {N - 1}"
            )
        return State(x0, x0, g=0.0 * x0, h=0.0 * x0, N=N, moved=False)

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Call all clients at the start, then the delegate and S clients in turn."""
        everyone = draws.clients(state.N, state.N)
        if draws.round == 0:
            return Call(everyone, FullGradient(state.x), require_all=True)
        if state.moved:
            return self.call_some(state.N, draws, TwoPoints(state.x, state.x_prev))
        solve = Solve(state.x, state.g, as_scalar(draws.geometric(self.p)))
        others = partial(self.call_some, state.N, draws, solve)  # x is then their mean
        clients = everyone[self.delegate : self.delegate + 1]
        return Call(clients, solve, require_all=True, fallback=others)

    def client(
        self, message: _Message, oracle: Oracle, client_state: ClientState
    ) -> tuple[_Reply, ClientState]:
        """Compute gradients at one or two points, or take the delegate's steps."""
        rows = oracle.batch(None)
        g = oracle.grad(message.x, rows)
        if isinstance(message, FullGradient):
            return Gradient(g), client_state
        if isinstance(message, TwoPoints):
            g_prev = oracle.grad(message.x_prev, rows)
            return ChangeAndDrift(g - g_prev, g_prev - client_state.b), client_state
        K = geometric_steps(self.name, self.p, message.K[0])
        direction = local_sgd(
            oracle, message.x, K=K, eta=self.gradient_step, b=None,
            shift=message.g - g, mu=self.lam,
        )  # fmt: skip
        return Move(-(K * self.gradient_step) * direction), client_state  # eq. (8)

    def update_client_state(
        self, message: _Message, sent: _Reply, client_state: ClientState
    ) -> ClientState:
        """Set b_i to the gradient that was sent, as the server knows it."""
        if isinstance(sent, Gradient):
            return ClientState(sent.g)
        if isinstance(sent, ChangeAndDrift):
            return ClientState(client_state.b + sent.drift)
        return client_state

    def server(self, state: State, replies: Replies[_Reply]) -> State:
        """Set x to the delegate's solution, or update g (RG) and h = mean b_i."""
        mean = replies.mean
        if isinstance(mean, Gradient):
            return state._replace(g=mean.g, h=mean.g)
        if isinstance(mean, Move):
            return state._replace(x=state.x + mean.dy, x_prev=state.x, moved=True)
        beta = self.S / state.N if self.beta is None else self.beta
        saga = mean.drift + state.h  # G_t
        g = mean.change + (1 - beta) * state.g + beta * saga
        h = state.h + (replies.count / state.N) * mean.drift
        return state._replace(g=g, h=h, moved=False)
