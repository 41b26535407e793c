"""Newton: exact steps from the mean Hessian of all clients, for few clients.

Wu, Jiang, Kim, Ohno-Machado, "Grid Binary LOgistic REgression (GLORE): building shared
models without sharing data" (2012), with damped steps and absolute eigenvalues.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from fedpage.codecs import IDENTITY, Codec
from fedpage.codecs.message_codec import as_received
from fedpage.core import validate
from fedpage.core.capabilities import HessianOracle
from fedpage.core.errors import InputError
from fedpage.core.hessian import minimise_cubic, newton_step, zero_triangle
from fedpage.core.secant import dot
from fedpage.core.types import Call, Draws, Oracle, Replies, Scalar, Triangle, Vector
from fedpage.methods.base import BaseMethod
from fedpage.methods.messages import Model
from fedpage.methods.registry import register

_MOST_PARAMETERS = 5_000
"""A Hessian of more parameters takes above 100 MB for each client."""
_DESCENT = 1e-4
"""The least decrease of f, as a fraction of t g.step."""
_ROUNDING = 1e-13
"""The relative increase of f that may be rounding; without it halvings need not end."""


class Derivatives(NamedTuple):
    """A client's loss, gradient and Hessian at x."""

    f: Scalar
    g: Vector
    H: Triangle


class State(NamedTuple):
    """The point to ask at, and the last point at which f was low enough."""

    x: Vector
    """The clients are asked at x = base - t step."""
    base: Vector
    f: float
    g: Vector
    H: Vector
    """f, its gradient, and its Hessian's triangle (d(d+1)/2,) at the base."""
    step: Vector
    """|H|^-1 g."""
    t: float
    """The fraction of the step; 0 before the first exchange."""
    N: int

    @property
    def decrement(self) -> float:
        """g.step, about twice the distance of f(base) to a minimum."""
        return dot(self.g, self.step)


@register(
    "newton", group="second-order", assumes="few clients, all of them in every round"
)
@dataclass(frozen=True)
class Newton(BaseMethod):
    """Newton's method: all clients send their loss, gradient and Hessian.

    x moves by |H|^-1 g, where |H| has the absolute eigenvalues of the mean Hessian in
    units in which it has a unit diagonal. If f is too high after a step, the step is
    shortened. A step is at first at most as long as the one before, as |H| measures
    it. Linear models and quadratics have Hessians, networks do not. A reply takes
    d(d+3)/2 numbers.

    A round is usable only if all clients answer: means over different clients at the
    same x would reveal the difference, one client's Hessian.

    Args:
        damping: The fraction of each step that is tried first.
        up: The codec of the replies, a cast.
        down: The codec of x, a cast.
    """

    name = "Newton"
    paper = "Wu et al. 2012"
    messages = {Model: Derivatives}
    checks = {"damping": validate.positive}
    gradients = {Model: {"g": None, "H": None}}
    needs_numpy = True

    damping: float = 1.0
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    @property
    def measures_step(self) -> bool:
        """Whether the step is found in the run: always."""
        return True

    @property
    def effective_step(self) -> float:
        """The damping."""
        return self.damping

    def with_step(self, step: float) -> Self:
        """Return the same method with another damping."""
        return replace(self, damping=step)

    def init(self, x0: Vector, N: int) -> State:
        """Return the start, at which nothing is known."""
        d = len(x0)
        if d > _MOST_PARAMETERS:
            raise InputError(
                f"Newton: {d:,} parameters are too many (at most "
                f"{_MOST_PARAMETERS:,}); use SecantPAGE"
            )
        zero, H = 0.0 * x0, zero_triangle(x0)
        return State(x=x0, base=x0, f=0.0, g=zero, H=H, step=zero, t=0.0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Model]:
        """Call all clients. No fallback: a mean over fewer clients would reveal one."""
        return Call(draws.clients(state.N, state.N), Model(state.x), require_all=True)

    def client(
        self, message: Model, oracle: Oracle, client_state: None
    ) -> tuple[Derivatives, None]:
        """Compute the loss, the gradient and the Hessian of all rows."""
        if not isinstance(oracle, HessianOracle):
            raise InputError(
                "Newton: this problem has no Hessians; Newton is for linear models and "
                "quadratics, and SecantPAGE for others"
            )
        rows = oracle.batch(None)
        f, g = oracle.loss(message.x, rows), oracle.grad(message.x, rows)
        return Derivatives(f, g, oracle.hessian(message.x, rows)), None

    def server(self, state: State, replies: Replies[Derivatives]) -> State:
        """Move on from x, or shorten the step if f is too high there."""
        f, g, H = float(replies.mean.f[0]), replies.mean.g, replies.mean.H
        t, slope = state.t, -state.decrement
        allowed = state.f + _DESCENT * t * slope + _ROUNDING * (1.0 + abs(state.f))
        if t > 0.0 and not f <= allowed:
            best = minimise_cubic(t, state.f, slope, f, -dot(g, state.step))
            return self._ask(state._replace(t=min(max(best, 0.1 * t), 0.5 * t)))
        step, base = newton_step(H, g), state.x
        new = State(base, base, f, g, H, step, self.damping, state.N)
        if t > 0.0 and new.decrement > state.decrement:  # f is flatter than it was
            t = self.damping * math.sqrt(state.decrement / new.decrement)
            new = new._replace(t=t)
        return self._ask(new)

    def _ask(self, state: State) -> State:
        """Ask at base - t step, as the clients will see it."""
        x = as_received(self.down, state.base - state.t * state.step)
        return state._replace(x=x)
