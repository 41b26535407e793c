"""DANE, S-DANE and accelerated S-DANE: corrected proximal steps at all clients at once.

Shamir, Srebro, Zhang, "Communication Efficient Distributed Optimization using an
Approximate Newton-type Method" (2014). Jiang, Rodomanov, Stich, "Stabilized
Proximal-Point Methods for Federated Optimization" (2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.capabilities import HasConvexity
from fedpage.core.errors import InputError
from fedpage.core.local_steps import local_sgd
from fedpage.core.schedules import StepSize
from fedpage.core.types import Call, Draws, MessageTypes, Oracle, Problem, Replies, Vector
from fedpage.methods import steps
from fedpage.methods.registry import register


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


class Gradient(NamedTuple):
    """The client's gradient at z."""

    g: Vector


class Move(NamedTuple):
    """dy = y_K - z."""

    dy: Vector


class Solution(NamedTuple):
    """dy = y_K - z, and the client's gradient at y_K."""

    dy: Vector
    g: Vector


_Message = Centre | Subproblem
_Reply = Gradient | Move | Solution


@register(
    "dane",
    group="second-order",
    assumes="convex; similar clients; all of them in every round",
    page="s-dane",
)
@dataclass(frozen=True)
class DANE:
    """DANE: x is the mean of the minimisers of corrected, regularised f_i.

    Two rounds make a step. First the clients send grad f_i(z) at z = x, whose mean is
    G. Then the same clients minimise f_i(y) + (G - grad f_i(z)).y + lam |y - z|^2/2 by
    K steps y = (y/eta_l - grad f_i(y) + grad f_i(z) - G + lam z)/(1/eta_l + lam). The
    effective step is what these steps move along a constant unit gradient.

    Args:
        S: Sampled clients, an extension; None: all clients, as published.
        K: Local steps.
        lam: The weight of the proximal term (Shamir et al. call it mu); of the order of
            the dissimilarity delta.
        eta_l: The local step size; 1/L is a safe choice.
        b: Rows in the minibatches of local steps; None: all rows.
        up: The codec of the replies, a cast: gradients do not vanish at the optimum.
    """

    name: ClassVar[str] = "DANE"
    paper: ClassVar[str] = "Shamir, Srebro, Zhang 2014"
    messages: ClassVar[MessageTypes] = {Centre: Gradient, Subproblem: Move}
    client_state: ClassVar[None] = None
    compressible: ClassVar[Compressible] = {
        Centre: {"g": None},
        Subproblem: {"dy": None},
    }

    S: int | None = None
    K: int = 10
    lam: float = 10.0
    eta_l: StepSize = 0.01
    b: int | None = None
    up: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.batch(self.name, "S", self.S)
        validate.whole(self.name, "K", self.K)
        validate.positive(self.name, "lam", self.lam)
        schedules.check_step(self.name, "eta_l", self.eta_l)
        validate.batch(self.name, "b", self.b)
        codecs.check(self, "cast")

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
        if self.S is not None:
            validate.check_sample(self.name, self.S, N)
        return State(x=x0, v=x0, G=0.0 * x0, A=0.0, N=N, solving=False)

    def centre(self, state: State) -> Vector:
        """Return z, the start of the local steps and centre of the proximal term."""
        return state.v

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Ask for gradients at z; in the next round call the same clients for steps."""
        z, S = self.centre(state), state.N if self.S is None else self.S
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


@register(
    "s-dane",
    group="second-order",
    assumes="convex; similar clients",
    page="s-dane",
)
@dataclass(frozen=True)
class SDANE(DANE):
    """S-DANE: DANE whose prox-centre v moves along the gradients at the y_K.

    x is the mean of the y_K and G their mean gradient, each client's at its own y_K;
    v = argmin G.y + mu |y - x|^2/2 + lam |y - v|^2/2. Local steps need less accuracy
    than DANE's. With S < N it has a noise floor. The effective step is 1/lam.

    Args:
        mu: Strong convexity of the f_i; 0: convex.
    """

    name: ClassVar[str] = "S-DANE"
    paper: ClassVar[str] = "Jiang, Rodomanov, Stich 2024"
    messages: ClassVar[MessageTypes] = {Centre: Gradient, Subproblem: Solution}
    compressible: ClassVar[Compressible] = {
        Centre: {"g": None},
        Subproblem: {"dy": None, "g": None},
    }

    mu: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least_zero(self.name, "mu", self.mu)

    @classmethod
    def from_theory(
        cls, problem: Problem, *, mu: float = 0.0, delta: float | None = None
    ) -> Self:
        """Return the method for all clients with lam = 2 delta and enough local steps.

        Proved for mu-strongly convex f_i (mu = 0: convex): two rounds of S-DANE
        contract |v - x*|^2 by 1/(1 + mu/lam), and after R such pairs the accelerated
        method has f(x) - f* <= |x0 - x*|^2/(2 A_R), where A_R >= R^2/(4 lam) and
        A_R >= (1 + sqrt(mu/lam)/2)^(2R - 2)/lam. K is such that the gradient of every
        subproblem at y_K is at most lam |y_K - z|/2, the paper's criterion; the proof
        on the method's page then needs lam >= 4 delta/3.

        Args:
            problem: The problem.
            mu: Strong convexity of every f_i, such as the weight of an l2 regulariser.
            delta: Dissimilarity, `theory.dissimilarity`; None: the average smoothness,
                which is never below it.

        Raises:
            InputError: A value is impossible, or the problem is not convex.
        """
        validate.at_least_zero(cls.name, "mu", mu)
        if isinstance(problem, HasConvexity) and not problem.convex:
            raise InputError(
                f"{cls.name}: its theorem needs a convex objective; give lam"
            )
        L = problem.smoothness()
        delta = L.average if delta is None else delta
        validate.positive(cls.name, "delta", delta)
        lam, eta_l, K = steps.s_dane(L.client, delta, mu)
        return cls(K=K, lam=lam, eta_l=eta_l, mu=mu)

    @property
    def effective_step(self) -> float:
        """The effective step, 1/lam."""
        return 1 / self.lam

    def weight(self, state: State) -> float:
        """Return t, the weight of a step of v; 1/lam without acceleration."""
        return 1 / self.lam

    def reply(self, z: Vector, dy: Vector, oracle: Oracle) -> tuple[_Reply, None]:
        """Return the move and the gradient at y_K."""
        return Solution(dy, oracle.grad(z + dy, oracle.batch(None))), None

    def server(self, state: State, replies: Replies[_Reply]) -> State:
        """Set G, or x and then v = (mu t x + v - t G)/(mu t + 1)."""
        mean = replies.mean
        if not isinstance(mean, Solution):
            return super().server(state, replies)
        t, mu = self.weight(state), self.mu
        x = self.centre(state) + mean.dy
        v = (mu * t * x + state.v - t * mean.g) / (mu * t + 1)
        A = (state.A + t) / (mu * t + 1)
        return state._replace(x=x, v=v, A=A, solving=False)


@register(
    "acc-s-dane",
    group="second-order",
    assumes="convex; similar clients",
    page="s-dane",
)
@dataclass(frozen=True)
class AccSDANE(SDANE):
    """Accelerated S-DANE: the steps start between x and v, and t grows.

    t solves lam t^2 = A + t and z = (A x + t v)/(A + t). The paper's A, t and B are
    divided by B here: with mu > 0 its A and B would overflow.
    """

    name: ClassVar[str] = "Acc-S-DANE"

    def weight(self, state: State) -> float:
        """Return t = 1/(2 lam) + sqrt(1/(4 lam^2) + A/lam)."""
        half = 0.5 / self.lam
        return half + math.sqrt(half * half + state.A / self.lam)

    def centre(self, state: State) -> Vector:
        """Return z = (A x + t v)/(A + t)."""
        t = self.weight(state)
        return (state.A * state.x + t * state.v) / (state.A + t)
