"""SVRP: stochastic proximal point steps with the variance reduction of SVRG.

Khaled, Jin, "Faster Federated Optimization under Second-order Similarity" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Self

from fedpage.codecs import Compressible
from fedpage.core import validate
from fedpage.core.types import (
    Call,
    Draws,
    MessageTypes,
    Oracle,
    Problem,
    Replies,
    Vector,
)
from fedpage.methods import steps
from fedpage.methods.prox import ProximalSteps
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model, the reference point w, h = grad f(w), and the number of clients."""

    x: Vector
    w: Vector
    h: Vector
    N: int
    stepped: bool
    """The last round had local steps, after which w may change."""


class Refresh(NamedTuple):
    """To all clients: send your gradient at x, the new reference point."""

    x: Vector


class ProximalPoint(NamedTuple):
    """To S clients: K steps from x, corrected by h and your gradient at w."""

    x: Vector
    w: Vector
    h: Vector


class Gradient(NamedTuple):
    """The client's gradient at the new reference point."""

    h: Vector


class Move(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


@register(
    "svrp",
    group="second-order",
    assumes="strongly convex; similar clients; all reachable now and then",
)
@dataclass(frozen=True)
class SVRP(ProximalSteps):
    """SVRP: S clients take a proximal step on f_i, corrected at a reference point w.

    The subproblem is f_i(y) + (h - grad f_i(w)).y + |y - x|^2/(2 gamma), h = grad f(w).
    After such a round w = x with probability p, and the next round is a refresh: all
    clients send the gradient at the new w. Rounds depend on the clients' second-order
    dissimilarity delta, not on L.
    """

    name: ClassVar[str] = "SVRP"
    paper: ClassVar[str] = "Khaled, Jin 2023"
    messages: ClassVar[MessageTypes] = {Refresh: Gradient, ProximalPoint: Move}
    client_state: ClassVar[None] = None
    compressible: ClassVar[Compressible] = {
        Refresh: {"h": None},
        ProximalPoint: {"dy": None},
    }

    @classmethod
    def from_theory(
        cls, problem: Problem, *, mu: float, S: int = 1, delta: float | None = None
    ) -> Self:
        """Return SVRP with gamma = mu/(2 delta^2), p = S/N, and enough local steps.

        Proved for clients that are all mu-strongly convex: a round of proximal steps
        contracts E(|x - x*|^2 + (s/p) |w - x*|^2) by 1 - min(s/2, 0.49 p), where
        s = gamma mu/(1 + gamma mu). Hence of the order of (N/S + delta^2/mu^2)
        log(1/epsilon) rounds. The method's page has the proof, which allows for any S
        and for the error of the K local steps.

        Args:
            problem: The problem.
            mu: Strong convexity of every f_i, such as the weight of an l2 regulariser.
            S: Sampled clients.
            delta: Dissimilarity, `theory.dissimilarity`; None: the average smoothness,
                which is never below it.

        Raises:
            InputError: A value is impossible.
        """
        cls(S=S)  # refuses an impossible S
        validate.check_sample(cls.name, S, problem.N)
        validate.positive(cls.name, "mu", mu)
        L = problem.smoothness()
        delta = L.average if delta is None else delta
        validate.at_least_zero(cls.name, "delta", delta)
        gamma, eta_l, K = steps.svrp(L.client, mu, delta)
        return cls(S=S, K=K, gamma=gamma, eta_l=eta_l, p=S / problem.N)

    def init(self, x0: Vector, N: int) -> State:
        """Return the start; round 0 is a refresh at w = x0."""
        validate.check_sample(self.name, self.S, N)
        return State(x=x0, w=x0, h=0.0 * x0, N=N, stepped=False)

    def call(self, state: State, draws: Draws) -> Call[Refresh | ProximalPoint]:
        """Refresh where w has just become x; otherwise take proximal steps."""
        p = self.full_probability(state.N)
        if draws.round != 0 and not (state.stepped and draws.coin(p)):
            return self._call_steps(state, draws)
        clients = draws.clients(state.N, state.N)
        fallback = None
        if draws.round != 0:  # w and h do not change
            fallback = partial(self._call_steps, state, draws)
        return Call(clients, Refresh(state.x), require_all=True, fallback=fallback)

    def _call_steps(self, state: State, draws: Draws) -> Call[Refresh | ProximalPoint]:
        """Call S clients for proximal steps; also the fallback of a refresh."""
        message = ProximalPoint(state.x, state.w, state.h)
        return Call(draws.clients(state.N, self.S), message)

    def client(
        self, message: Refresh | ProximalPoint, oracle: Oracle, client_state: None
    ) -> tuple[Gradient | Move, None]:
        """Compute the gradient at w, or a proximal step with shift h - grad f_i(w)."""
        if isinstance(message, Refresh):
            return Gradient(oracle.grad(message.x, oracle.batch(None))), None
        x, w, h = message
        shift = h - oracle.grad(w, oracle.batch(None))
        return Move(self.solve(oracle, x, shift)), None

    def server(self, state: State, replies: Replies[Gradient | Move]) -> State:
        """Set x to the mean of the y_K, or w = x and h to the mean gradient there."""
        mean = replies.mean
        if isinstance(mean, Gradient):
            return state._replace(w=state.x, h=mean.h, stepped=False)
        return state._replace(x=state.x + mean.dy, stepped=True)
