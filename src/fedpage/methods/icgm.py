"""I-CGM-RG-SAGA: one delegate solves; sampled clients keep the gradient's estimate.

Jiang, Rodomanov, Stich, "Non-Convex Federated Optimization under Cost-Aware Client
Selection" (2025).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.errors import InputError
from fedpage.core.local_steps import local_sgd
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
from fedpage.methods import steps
from fedpage.methods.registry import register


class State(NamedTuple):
    """x^{t+1}, x^t, the estimator g of grad f, h = mean b_i, and the clients."""

    x: Vector
    x_prev: Vector
    g: Vector
    h: Vector
    N: int
    moved: bool
    """g is that of x_prev: sampled clients update it next."""


class Start(NamedTuple):
    """To all clients, in round 0: keep your gradient at x, and send it."""

    x: Vector


class Solve(NamedTuple):
    """To the delegate: K steps from x, corrected by g."""

    x: Vector
    g: Vector
    K: Scalar


class TwoPoints(NamedTuple):
    """To S clients: compare your gradients at x and x_prev, and the latter with b_i."""

    x: Vector
    x_prev: Vector


class Gradient(NamedTuple):
    """The client's gradient at the start."""

    g: Vector


class Move(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


class Update(NamedTuple):
    """grad f_i(x) - grad f_i(x_prev), and grad f_i(x_prev) - b_i."""

    change: Vector
    drift: Vector


class ClientState(NamedTuple):
    """b_i, the client's gradient at the x_prev of its last call."""

    b: Vector


_Message = Start | Solve | TwoPoints
_Reply = Gradient | Move | Update


@register(
    "i-cgm-rg-saga",
    group="second-order",
    assumes="similar clients that keep a state; a delegate; all of them once",
)
@dataclass(frozen=True)
class ICGM:
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
        beta: The weight of SAGA's estimate; None: S/N, as in the paper's experiments.
        delegate: The number of the client that solves. If it does not answer, S sampled
            clients solve, and their solutions are averaged.
        up: The codec of the replies, a cast: differences do not vanish at the optimum.
    """

    name: ClassVar[str] = "I-CGM-RG-SAGA"
    paper: ClassVar[str] = "Jiang, Rodomanov, Stich 2025"
    messages: ClassVar[MessageTypes] = {
        Start: Gradient,
        Solve: Move,
        TwoPoints: Update,
    }
    client_state: ClassVar[type[ClientState]] = ClientState
    compressible: ClassVar[Compressible] = {
        Start: {"g": None},
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

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.name, "S", self.S)
        validate.positive(self.name, "lam", self.lam)
        schedules.check_step(self.name, "eta_l", self.eta_l)
        validate.geometric(self.name, self.p)
        if self.beta is not None:
            validate.probability(self.name, "beta", self.beta)
        validate.whole(self.name, "delegate", self.delegate, 0)
        codecs.check(self, "cast")

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

    @classmethod
    def from_theory(
        cls,
        problem: Problem,
        *,
        S: int,
        delta: float | None = None,
        delta1: float | None = None,
    ) -> Self:
        """Return the method with lam, beta and p of Theorem 6.1, for any smooth f.

        The theorem then has E|grad f(x)|^2 <= epsilon^2 at a random step after
        256 (delta1 + 38 sqrt(N/S) delta_S) (f(x0) - f*)/epsilon^2 steps of two rounds,
        delta_S = delta sqrt((N-S)/((N-1) S)). Its algorithm has a second full round in
        step 1, which is left out here. The constants were read in the paper; its proof
        was not checked.

        Args:
            problem: The problem.
            S: Sampled clients.
            delta: Dissimilarity, `theory.dissimilarity`; None: the average smoothness,
                which is never below it.
            delta1: Dissimilarity of the delegate, a bound of |H_0 - H|; None: the sum
                of both norms' bounds.

        Raises:
            InputError: A value is impossible.
        """
        cls(S=S)  # refuses an impossible S
        validate.check_sample(cls.name, S, problem.N)
        L = problem.smoothness()
        delta = L.average if delta is None else delta
        delta1 = L.client + L.whole if delta1 is None else delta1
        validate.at_least_zero(cls.name, "delta", delta)
        validate.positive(cls.name, "delta1", delta1)
        lam, beta, p = steps.icgm(L.client, delta, delta1, problem.N, S)
        return cls(S=S, lam=lam, eta_l=1 / L.client, p=p, beta=beta)

    def init(self, x0: Vector, N: int) -> State:
        """Return the start; round 0 sets g and h."""
        validate.check_sample(self.name, self.S, N)
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
            return Call(everyone, Start(state.x), require_all=True)
        if state.moved:
            message = TwoPoints(state.x, state.x_prev)
            return Call(draws.clients(state.N, self.S), message)
        solve = Solve(state.x, state.g, as_scalar(draws.geometric(self.p)))
        others = partial(self._call_others, state, draws, solve)
        clients = everyone[self.delegate : self.delegate + 1]
        return Call(clients, solve, require_all=True, fallback=others)

    def _call_others(self, state: State, draws: Draws, solve: Solve) -> Call[_Message]:
        """Call S clients in place of the delegate; x is the mean of their solutions."""
        return Call(draws.clients(state.N, self.S), solve)

    def client(
        self, message: _Message, oracle: Oracle, client_state: ClientState
    ) -> tuple[_Reply, ClientState]:
        """Compute gradients at one or two points, or take the delegate's steps."""
        rows = oracle.batch(None)
        g = oracle.grad(message.x, rows)
        if isinstance(message, Start):
            return Gradient(g), client_state
        if isinstance(message, TwoPoints):
            g_prev = oracle.grad(message.x_prev, rows)
            return Update(g - g_prev, g_prev - client_state.b), client_state
        K = validate.geometric_steps(self.name, self.p, message.K[0])
        direction = local_sgd(
            oracle, message.x, K=K, eta=self.gradient_step, b=None,
            shift=message.g - g, mu=self.lam,
        )  # fmt: skip
        return Move(-(K * self.gradient_step) * direction), client_state  # eq. (8)

    def keep(
        self, message: _Message, sent: _Reply, client_state: ClientState
    ) -> ClientState:
        """Set b_i to the gradient that was sent, as the server knows it."""
        if isinstance(sent, Gradient):
            return ClientState(sent.g)
        if isinstance(sent, Update):
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
