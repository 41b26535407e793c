"""SecantPAGE: PAGE with passes over the clients and a metric from its own differences.

A method of this library. The mean difference of gradients y that PAGE sends and the
last step s are a stochastic secant pair: curvature that has been sent anyway.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self, get_args

from fedpage.codecs import IDENTITY, Codec
from fedpage.codecs.message_codec import as_received
from fedpage.core import validate
from fedpage.core.random import no_clients
from fedpage.core.secant import SecantMetric, dot, new_metric, norm
from fedpage.core.types import Call, Draws, Fields, Flags, Oracle, Replies, Vector
from fedpage.methods import passes
from fedpage.methods.base import BaseMethod, one_of
from fedpage.methods.messages import TwoPoints
from fedpage.methods.passes import Difference, PassReply
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize

MetricName = Literal["auto", "full", "window", "none"]
_LEAST = 1e-3
"""The least cosine of s and y in the weight of a pair."""
_PAUSE = 1e-4
"""x pauses for the rest of a pass once q is below this fraction of its first value.

What is left of g is then noise.
"""


class Curvature(NamedTuple):
    """Measurements of the secant pairs (s, y) so far."""

    pairs: int = 0
    mean: float = 0.0
    """The running mean of |s.y|/|s|^2."""
    squared: float = 0.0
    """The running mean of y.(K/n)^-1 y/|s|^2, a squared curvature in the metric."""


class State(NamedTuple):
    """The model, the one before it, two estimators, and what has been measured."""

    x: Vector
    x_prev: Vector
    g: Vector
    """The estimator to move along: that of the last pass, carried along to x."""
    fresh: Vector
    """The mean gradient of this pass's clients so far, carried along to x."""
    seen: Flags
    """Whether this pass has had each client, (N,)."""
    passes: int
    """Complete passes."""
    metric: SecantMetric
    curvature: Curvature
    damping: float
    """c, the factor of the Barzilai-Borwein step."""
    q_start: float
    """g.(K/n)^-1 g at the start of the pass; 0 in the first."""

    def norm2(self, v: Vector) -> float:
        """Return the squared length of a gradient in the metric, v.(K/n)^-1 v.

        It is at least 0, also where rounding has left K^-1 indefinite.
        """
        return max(0.0, dot(v, self.metric.solve(v)))


@register("secantpage", group="variance-reduced", assumes="all clients reachable")
@dataclass(frozen=True)
class SecantPAGE(BaseMethod):
    """SecantPAGE: PAGE whose differences also give a metric and the step size.

    Passes over the clients without replacement refresh the estimator g, so that no
    round calls all clients. No step size has to be chosen.

    Args:
        S: Sampled clients.
        damping: The factor of the Barzilai-Borwein step at first. From the second pass
            on each pass adapts it.
        metric: "full": a d x d matrix; "window": the last pairs only; "none": the
            identity, so that only the step is measured. "auto" is "full" up to 1,000
            parameters, "window" up to a million and "none" above.
        window: Pairs in a window.
        beta: The weight of the past in the running means of the step size.
        ridge: The initial metric, in units of the first pair's |z|^2.
        first_step: The step size before the first pair; that step is at most as long.
        b: Rows in the minibatches of differences. If None, use all rows. Gradients are
            over all rows.
        eta: A fixed step size. If None, the step size is measured.
        up: The codec of replies, unbiased. Differences are compressed; gradients are
            not, except by a cast.
        down: The codec of messages, a cast.
    """

    name = "SecantPAGE"
    paper = "this library"
    messages = passes.MESSAGES
    fallback_messages = (TwoPoints,)
    checks = {
        **dict.fromkeys(("damping", "ridge", "first_step"), validate.positive),
        "window": validate.whole,
        "metric": one_of(get_args(MetricName)),
    }
    up_codecs = "unbiased"
    changes = passes.CHANGES
    gradients = passes.GRADIENTS
    full_rounds = True  # a pass sends two vectors up
    needs_numpy = True  # the metric has compiled kernels

    S: int = 10
    _: KW_ONLY
    damping: float = 0.25
    metric: MetricName = "auto"
    window: int = 30
    beta: float = 0.95
    ridge: float = 1.0
    first_step: float = 0.01
    b: int | None = None
    eta: StepSize | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The hyper-parameters that change nothing with these settings."""
        return () if self.metric in ("auto", "window") else ("window",)

    @property
    def measures_step(self) -> bool:
        """Whether the step size is measured in the run."""
        return self.eta is None

    @property
    def effective_step(self) -> float:
        """The fixed step, or the damping of a measured one."""
        return self.damping if self.eta is None else self.eta

    def with_step(self, step: float) -> Self:
        """Return the same method with another fixed step, or with another damping."""
        if self.eta is None:
            return replace(self, damping=step)
        return replace(self, eta=step)

    def init(self, x0: Vector, N: int) -> State:
        """Return the start, at which no client has been seen."""
        self.check_sample(N)
        metric, zero = new_metric(self.metric, self.window, x0), 0.0 * x0
        return State(
            x=x0, x_prev=x0, g=zero, fresh=zero, seen=no_clients(N), passes=0,
            metric=metric, curvature=Curvature(), damping=self.damping, q_start=0.0,
        )  # fmt: skip

    def call(self, state: State, draws: Draws) -> Call[passes.Message]:
        """Call the next S clients of the pass."""
        x, x_prev, seen, number = state.x, state.x_prev, state.seen, state.passes
        # differences, where no client of the pass answers
        sampled = partial(self.call_some, len(seen), draws, TwoPoints(x, x_prev))
        return passes.call_next(x, x_prev, seen, number, draws, self.S, sampled)

    def client(
        self, message: passes.Message, oracle: Oracle, client_state: None
    ) -> tuple[Fields, None]:
        """Compute the gradient at x, its change from x_prev to x, or both."""
        return passes.reply(oracle, message, None, self.b), None

    def server(self, state: State, replies: Replies[Any]) -> State:
        """Update the estimators, learn from the pair (s, y), and move."""
        mean, seen, g = replies.mean, passes.next_seen(state.seen, replies), state.g
        if isinstance(mean, Difference):
            fresh = state.fresh + mean.y
        else:
            fresh = passes.join(state.fresh, replies, seen)
        if isinstance(mean, Difference | PassReply):
            state, g = self._learn(state, mean.y), g + mean.y
        if state.passes == 0 and isinstance(mean, passes.InPass):
            g = fresh
        state = state._replace(g=g, fresh=fresh, seen=seen)
        return self._move(self._end_pass(state) if seen.all() else state)

    def _learn(self, state: State, y: Vector) -> State:
        """Measure the curvature by the pair (s, y), and add the pair to K."""
        s = state.x - state.x_prev
        s2, y2, sy = dot(s, s), dot(y, y), abs(dot(s, y))
        if s2 == 0 or y2 == 0:
            return state
        z = y / max(sy, _LEAST * s2**0.5 * y2**0.5) ** 0.5
        metric, (pairs, curvature, squared) = state.metric, state.curvature
        if pairs == 0:
            metric = metric.begin(self.ridge * dot(z, z))  # K = ridge |z|^2 I
        w = dot(y, metric.solve(y))
        if not w > 0:  # too small for a number, or the run has diverged
            return state
        beta = self.beta
        measured = Curvature(
            pairs=pairs + 1,
            mean=beta * curvature + (1 - beta) * sy / s2,
            squared=beta * squared + (1 - beta) * w / s2,
        )
        return state._replace(metric=metric.add(z), curvature=measured)  # K + z z^T

    def _end_pass(self, state: State) -> State:
        """Begin a new pass with a new g, and adapt the damping to the old one's error.

        The old g is what is left to do, and its difference to the new one is noise.
        """
        damping, g = state.damping, state.g
        if state.passes > 0 and self.eta is None:
            left, noise = state.norm2(g), state.norm2(state.fresh - g)
            ratio = left / noise if noise > 0 else 16.0
            damping = min(1.0, damping * min(2.0, max(0.25, ratio**0.25)))
        return state._replace(
            g=state.fresh,
            fresh=0.0 * g,
            seen=no_clients(len(state.seen)),
            passes=state.passes + 1,
            damping=damping,
            q_start=state.norm2(state.fresh),
        )

    def _move(self, state: State) -> State:
        """Move along (K/n)^-1 g by the damped Barzilai-Borwein step.

        x pauses until the end of a pass where g has become 100 times shorter in it.
        """
        p, curvature = state.metric.solve(state.g), state.curvature
        if dot(state.g, p) < _PAUSE * state.q_start:
            return state._replace(x_prev=state.x)
        if self.eta is not None:
            step = self.eta
        elif curvature.pairs == 0:
            step = self.first_step / max(1.0, norm(p))
        else:
            step = state.damping * (curvature.mean / curvature.squared)
        x = as_received(self.down, state.x - step * p)  # so that s is the clients'
        return state._replace(x=x, x_prev=state.x)
