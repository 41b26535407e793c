"""SABER: proximal steps with the recursive gradient estimator of PAGE.

Mishchenko, Li, Fan, Venieris, "Federated Learning under Second-Order Data
Heterogeneity" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from fedpage.core.types import Call, Draws, Oracle, Replies, Vector
from fedpage.methods.local import ProximalSteps
from fedpage.methods.messages import FullGradient, Gradient, Move, MoveAndGradient
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model, the one before it, the estimator v of grad f, and the clients."""

    x: Vector
    x_prev: Vector
    v: Vector
    N: int
    fresh: bool
    """v is grad f(x): the last round was a full one."""


class FreshSteps(NamedTuple):
    """To S clients: K steps from x, where v = grad f(x)."""

    x: Vector
    v: Vector


class RecursiveSteps(NamedTuple):
    """To S clients: update the estimator v from x_prev to x, then K steps from x."""

    x: Vector
    x_prev: Vector
    v: Vector


_Message = FullGradient | FreshSteps | RecursiveSteps
_Reply = Gradient | Move | MoveAndGradient


@register(
    "saber", group="second-order", assumes="similar clients; all reachable now and then"
)
@dataclass(frozen=True)
class SABER(ProximalSteps):
    """SABER: PAGE's estimator v of grad f, and a proximal step on f_i instead of -v.

    The subproblem is f_i(y) + (v_i - grad f_i(x)).y + |y - x|^2/(2 gamma). With
    probability p a full round sets v = grad f(x) first; otherwise
    v_i = v + grad f_i(x) - grad f_i(x_prev). Its analysis has exact solutions and
    S = 1: of the order of delta sqrt(N)/epsilon^2 rounds, without L. It gives no step
    size that could be checked here, so there is no `from_theory`.
    """

    name = "SABER"
    paper = "Mishchenko, Li, Fan, Venieris 2023"
    messages = {
        FullGradient: Gradient,
        FreshSteps: Move,
        RecursiveSteps: MoveAndGradient,
    }
    changes = {
        FullGradient: {"g": None},
        FreshSteps: {"dy": None},
        RecursiveSteps: {"dy": None, "g": "v"},
    }

    def init(self, x0: Vector, N: int) -> State:
        """Return the start; x_prev and v are never used, because round 0 is full."""
        self.check_sample(N)
        return State(x=x0, x_prev=x0, v=0.0 * x0, N=N, fresh=False)

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Call for steps after a full round, otherwise toss the coin for a full one."""
        if state.fresh:
            return self.call_some(state.N, draws, FreshSteps(state.x, state.v))
        p = self.full_probability(state.N)
        message = RecursiveSteps(state.x, state.x_prev, state.v)
        recursive = partial(self.call_some, state.N, draws, message)
        if draws.round != 0 and not draws.coin(p):
            return recursive()
        return self.call_all(state.N, draws, FullGradient(state.x), recursive)

    def client(
        self, message: _Message, oracle: Oracle, client_state: None
    ) -> tuple[_Reply, None]:
        """Compute the gradient, or v_i and a proximal step along it."""
        all_rows = oracle.batch(None)
        g = oracle.grad(message.x, all_rows)
        if isinstance(message, FullGradient):
            return Gradient(g), None
        if isinstance(message, FreshSteps):
            return Move(self.solve(oracle, message.x, message.v - g)), None
        v = message.v + g - oracle.grad(message.x_prev, all_rows)
        dy = self.solve(oracle, message.x, v - g)
        return MoveAndGradient(dy, v), None

    def server(self, state: State, replies: Replies[_Reply]) -> State:
        """Set x to the mean of the y_K, and v to that of the gradients or the v_i."""
        mean = replies.mean
        if isinstance(mean, Gradient):
            return state._replace(v=mean.g, fresh=True)
        v = mean.g if isinstance(mean, MoveAndGradient) else state.v
        x = state.x + mean.dy
        return State(x=x, x_prev=state.x, v=v, N=state.N, fresh=False)
