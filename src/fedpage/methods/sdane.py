"""DANE, S-DANE and accelerated S-DANE: corrected proximal steps at all clients at once.

Shamir, Srebro, Zhang, "Communication Efficient Distributed Optimization using an
Approximate Newton-type Method" (2014). Jiang, Rodomanov, Stich, "Stabilized
Proximal-Point Methods for Federated Optimization" (2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from fedpage.codecs import IDENTITY, Codec
from fedpage.core import validate
from fedpage.core.local_steps import local_sgd
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.base import BaseMethod
from fedpage.methods.messages import Gradient, Move, MoveAndGradient
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """The model x, the prox-centre v, and the mean gradient G where steps start."""

    x: Vector
    v: Vector
    G: Vector
    A: float
    """The weight of x in acceleration: A/B of the paper, which cannot overflow."""
    N: int
    solving: bool
    """G is known; the same clients solve their subproblems next."""


class Centre(NamedTuple):
    """To S clients: send your gradient at z."""

    z: Vector


class Subproblem(NamedTuple):
    """To the same clients: K steps from z, corrected by their mean gradient G there."""

    z: Vector
    G: Vector


_Message = Centre | Subproblem
_Reply = Gradient | Move | MoveAndGradient


@register(
    "dane",
    group="second-order",
    assumes="convex; similar clients; all of them in every round",
    page="s-dane",
)
@dataclass(frozen=True)
class DANE(BaseMethod):
    """DANE: x is the mean of the minimisers of corrected, regularised f_i.

    Two rounds make a step. First the clients send grad f_i(z) at z = x, whose mean is
    G. Then the same clients minimise f_i(y) + (G - grad f_i(z)).y + lam |y - z|^2/2 by
    K steps y = (y/eta_l - grad f_i(y) + grad f_i(z) - G + lam z)/(1/eta_l + lam). The
    effective step is what these steps move along a constant unit gradient.

    Args:
        S: Sampled clients, an extension. If None, call all clients, as published.
        K: Local steps.
        lam: The weight of the proximal term (Shamir et al. call it mu); of the order of
            the dissimilarity delta.
        eta_l: The local step size; 1/L is a safe choice.
        b: Rows in the minibatches of local steps. If None, use all rows.
        up: The codec of the replies, a cast: gradients do not vanish at the optimum.
    """

    name = "DANE"
    paper = "Shamir, Srebro, Zhang 2014"
    messages = {Centre: Gradient, Subproblem: Move}
    checks = {"lam": validate.positive}
    changes = {Centre: {"g": None}, Subproblem: {"dy": None}}

    S: int | None = None
    K: int = 10
    lam: float = 10.0
    eta_l: StepSize = 0.01
    b: int | None = None
    up: Codec = IDENTITY

    @property
    def gradient_step(self) -> float:
        """The local step as one of gradient descent, eta_l/(1 + eta_l lam)."""
        return self.eta_l / (1 + self.eta_l * self.lam)

    @property
    def effective_step(self) -> float:
        """The effective step of K steps, which approaches 1/lam as K grows."""
        r = 1 - self.gradient_step * self.lam
        return self.gradient_step * math.fsum(r**k for k in range(self.K))

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step; eta_l lam is kept."""
        factor = step / self.effective_step
        return replace(self, lam=self.lam / factor, eta_l=self.eta_l * factor)

    def init(self, x0: Vector, N: int) -> State:
        """Return the start."""
        self.check_sample(N)
        return State(x=x0, v=x0, G=0.0 * x0, A=0.0, N=N, solving=False)

    def centre(self, state: State) -> Vector:
        """Return z, the start of the local steps and centre of the proximal term."""
        return state.v

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Ask for gradients at z; in the next round call the same clients for steps."""
        z, S = self.centre(state), self.participants(state.N)
        if not state.solving:
            return Call(draws.clients(state.N, S), Centre(z))
        return Call(draws.clients(state.N, S, ago=1), Subproblem(z, state.G))

    def client(
        self, message: _Message, oracle: Oracle, client_state: None
    ) -> tuple[_Reply, None]:
        """Compute the gradient at z, or take K steps on the subproblem."""
        g = oracle.grad(message.z, oracle.batch(None))
        if isinstance(message, Centre):
            return Gradient(g), None
        # K steps y -= eta (grad f_i(y) + G - grad f_i(z) + lam (y - z)) are those of
        # the docstring
        direction = local_sgd(
            oracle, message.z, K=self.K, eta=self.gradient_step, b=self.b,
            shift=message.G - g, mu=self.lam,
        )  # fmt: skip
        return self.reply(message.z, -(self.K * self.gradient_step) * direction, oracle)

    def reply(self, z: Vector, dy: Vector, oracle: Oracle) -> tuple[_Reply, None]:
        """Return the reply after the local steps."""
        return Move(dy), None

    def server(self, state: State, replies: Replies[_Reply]) -> State:
        """Set G to the mean gradient at z, or x to the mean of the y_K."""
        mean = replies.mean
        if isinstance(mean, Gradient):
            return state._replace(G=mean.g, solving=True)
        x = state.v + mean.dy
        return state._replace(x=x, v=x, solving=False)


@register("s-dane", assumes="convex; similar clients")
@dataclass(frozen=True)
class SDANE(DANE):
    """S-DANE: DANE whose prox-centre v moves along the gradients at the y_K.

    x is the mean of the y_K and G their mean gradient, each client's at its own y_K;
    v = argmin G.y + mu |y - x|^2/2 + lam |y - v|^2/2. Local steps need less accuracy
    than DANE's. With S < N it has a noise floor. The effective step is 1/lam.

    Args:
        mu: Strong convexity of the f_i; 0: convex.
    """

    name = "S-DANE"
    paper = "Jiang, Rodomanov, Stich 2024"
    messages = {Centre: Gradient, Subproblem: MoveAndGradient}
    checks = {"mu": validate.at_least_zero}
    changes = {Centre: {"g": None}, Subproblem: {"dy": None, "g": None}}

    mu: float = 0.0

    @property
    def effective_step(self) -> float:
        """The effective step, 1/lam."""
        return 1 / self.lam

    def weight(self, state: State) -> float:
        """Return t, the weight of a step of v; 1/lam without acceleration."""
        return 1 / self.lam

    def reply(self, z: Vector, dy: Vector, oracle: Oracle) -> tuple[_Reply, None]:
        """Return the move and the gradient at y_K."""
        return MoveAndGradient(dy, oracle.grad(z + dy, oracle.batch(None))), None

    def server(self, state: State, replies: Replies[_Reply]) -> State:
        """Set G, or x and then v = (mu t x + v - t G)/(mu t + 1)."""
        mean = replies.mean
        if not isinstance(mean, MoveAndGradient):
            return super().server(state, replies)
        t, mu = self.weight(state), self.mu
        x = self.centre(state) + mean.dy
        v = (mu * t * x + state.v - t * mean.g) / (mu * t + 1)
        A = (state.A + t) / (mu * t + 1)
        return state._replace(x=x, v=v, A=A, solving=False)


@register("acc-s-dane", page="s-dane")
@dataclass(frozen=True)
class AccSDANE(SDANE):
    """Accelerated S-DANE: the steps start between x and v, and t grows.

    t solves lam t^2 = A + t and z = (A x + t v)/(A + t). The paper's A, t and B are
    divided by B here: with mu > 0 its A and B would overflow.
    """

    name = "Acc-S-DANE"

    def weight(self, state: State) -> float:
        """Return t = 1/(2 lam) + sqrt(1/(4 lam^2) + A/lam)."""
        half = 0.5 / self.lam
        return half + math.sqrt(half * half + state.A / self.lam)

    def centre(self, state: State) -> Vector:
        """Return z = (A x + t v)/(A + t)."""
        t = self.weight(state)
        return (state.A * state.x + t * state.v) / (state.A + t)
