"""SVRP: stochastic proximal point steps with the variance reduction of SVRG.

Khaled, Jin, "Faster Federated Optimization under Second-order Similarity" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.local import ProximalSteps
from fedpage.methods.messages import FullGradient, Gradient, Move
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model, the reference point w, h = grad f(w), and the number of clients."""

    x: Vector
    w: Vector
    h: Vector
    N: int
    stepped: bool
    """The last round had local steps, after which w may change."""


class ProximalPoint(NamedTuple):
    """To S clients: K steps from x, corrected by h and your gradient at w."""

    x: Vector
    w: Vector
    h: Vector


_Message = FullGradient | ProximalPoint


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

    name = "SVRP"
    paper = "Khaled, Jin 2023"
    messages = {FullGradient: Gradient, ProximalPoint: Move}
    changes = {FullGradient: {"g": None}, ProximalPoint: {"dy": None}}

    def init(self, x0: Vector, N: int) -> State:
        """Return the start; round 0 is a refresh at w = x0."""
        self.check_sample(N)
        return State(x=x0, w=x0, h=0.0 * x0, N=N, stepped=False)

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Refresh where w has just become x; otherwise take proximal steps."""
        p = self.full_probability(state.N)
        message = ProximalPoint(state.x, state.w, state.h)
        steps = partial(self.call_some, state.N, draws, message)
        if draws.round != 0 and not (state.stepped and draws.coin(p)):
            return steps()
        return self.call_all(state.N, draws, FullGradient(state.x), steps)

    def client(
        self, message: _Message, oracle: Oracle, client_state: None
    ) -> tuple[Gradient | Move, None]:
        """Compute the gradient at w, or a proximal step with shift h - grad f_i(w)."""
        if isinstance(message, FullGradient):
            return Gradient(oracle.grad(message.x, oracle.batch(None))), None
        x, w, h = message
        shift = h - oracle.grad(w, oracle.batch(None))
        return Move(self.solve(oracle, x, shift)), None

    def server(self, state: State, replies: Replies[Gradient | Move]) -> State:
        """Set x to the mean of the y_K, or w = x and h to the mean gradient there."""
        mean = replies.mean
        if isinstance(mean, Gradient):
            return state._replace(w=state.x, h=mean.g, stepped=False)
        return state._replace(x=state.x + mean.dy, stepped=True)
