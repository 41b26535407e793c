"""SecantPAGE: PAGE with passes over the clients and a metric from its own differences.

A method of this library. The mean difference of gradients y that PAGE sends and the
last step s are a stochastic secant pair: curvature that has been sent anyway.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self, get_args

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.codecs.message_codec import as_received
from fedpage.core import schedules, validate
from fedpage.core.schedules import StepSize
from fedpage.core.secant import Metric, dot, new_metric, norm
from fedpage.core.types import (
    Call,
    Draws,
    Flags,
    MessageTypes,
    Oracle,
    Replies,
    Vector,
)
from fedpage.methods import passes
from fedpage.methods.fedpage import FullGradient
from fedpage.methods.passes import (
    Difference,
    Differences,
    PassAtRest,
    PassGradients,
    PassReply,
    RestReply,
)
from fedpage.methods.registry import register

MetricName = Literal["auto", "full", "window", "none"]
_LEAST = 1e-3
"""The least cosine of s and y in the weight of a pair."""
_REST = 1e-4
"""The share of a pass's first q below which x rests: what is left of g is noise."""


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
    """Complete passes; with renew="full" there is one."""
    metric: Metric
    pairs: int
    """Secant pairs so far."""
    curvature: float
    """The running mean of |s.y|/|s|^2."""
    squared: float
    """The running mean of y.(K/n)^-1 y/|s|^2, a squared curvature in the metric."""
    damping: float
    """c, the factor of the Barzilai-Borwein step."""
    variance: float
    """V, an estimate of the variance of g in the metric."""
    q: float
    """g.(K/n)^-1 g, the squared length of g in the metric."""
    q_start: float
    """q at the start of the pass; 0 in the first."""
    t: int
    """Sampled rounds since the last full one."""

    def norm2(self, v: Vector) -> float:
        """Return the squared length of a gradient in the metric, v.(K/n)^-1 v.

        It is at least 0, also where rounding has left K^-1 indefinite.
        """
        return max(0.0, dot(v, self.metric.solve(v)))


class Gradient(NamedTuple):
    """The client's gradient at x."""

    g: Vector


_Message = PassAtRest | PassGradients | Differences | FullGradient
_Reply = RestReply | PassReply | Difference | Gradient


@register("secantpage", group="variance-reduced", assumes="all clients reachable")
@dataclass(frozen=True)
class SecantPAGE:
    """SecantPAGE: PAGE whose differences also give a metric and the step size.

    Passes over the clients without replacement refresh the estimator g, so that no
    round calls all clients. No step size has to be chosen.

    Args:
        S: Sampled clients.
        renew: What renews g: "pass": pass after pass. "full": after the first pass
            full rounds, and between them sampled rounds as PAGE has them.
        damping: The factor of the Barzilai-Borwein step at first. From the second pass
            on each pass adapts it.
        metric: "full": a d x d matrix; "window": the last pairs only; "none": the
            identity, so that only the step is measured. "auto" is "full" up to 1,000
            parameters, "window" up to a million and "none" above.
        window: Pairs in a window.
        beta: The weight of the past in the running means of the step size.
        ridge: The initial metric, in units of the first pair's |z|^2.
        first_step: The step size before the first pair; that step is at most as long.
        b: Rows in the minibatches of differences; None: all rows. Gradients are over
            all rows.
        eta: A fixed step size instead of a measured one; None: measured.
        tau: With renew="full" a full round comes after T = tau N/S sampled rounds.
        theta: With renew="full" it comes after T/4 rounds if V > theta q; None: never.
        up: The codec of replies, unbiased. Differences are compressed; gradients are
            not, except by a cast.
        down: The codec of messages, a cast.
    """

    name: ClassVar[str] = "SecantPAGE"
    paper: ClassVar[str] = "this library"
    messages: ClassVar[MessageTypes] = {
        PassAtRest: RestReply,
        PassGradients: PassReply,
        Differences: Difference,
        FullGradient: Gradient,
    }
    client_state: ClassVar[None] = None
    needs_numpy: ClassVar[bool] = True
    """The metric has compiled kernels."""

    S: int = 10
    _: KW_ONLY
    renew: Literal["pass", "full"] = "pass"
    damping: float = 0.25
    metric: MetricName = "auto"
    window: int = 30
    beta: float = 0.95
    ridge: float = 1.0
    first_step: float = 0.01
    b: int | None = None
    eta: StepSize | None = None
    tau: float = 0.5
    theta: float | None = 4.0
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.name, "S", self.S)
        validate.whole(self.name, "window", self.window)
        for name in ("damping", "ridge", "first_step", "tau"):
            validate.positive(self.name, name, getattr(self, name))
        if self.eta is not None:
            schedules.check_step(self.name, "eta", self.eta)
        if self.theta is not None:
            validate.positive(self.name, "theta", self.theta)
        validate.decay(self.name, "beta", self.beta)
        validate.batch(self.name, "b", self.b)
        validate.choice(self.name, "metric", self.metric, get_args(MetricName))
        validate.choice(self.name, "renew", self.renew, ("pass", "full"))
        codecs.check(self, "unbiased")

    @property
    def compressible(self) -> Compressible:
        """What passes through `up`: differences, and with a cast also gradients."""
        if self.up.is_cast:
            return {
                PassAtRest: {"g": None},
                PassGradients: {"g": None, "y": None},
                Differences: {"y": None},
                FullGradient: {"g": None},
            }
        return {PassGradients: {"y": None}, Differences: {"y": None}}

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The hyper-parameters that change nothing with these settings."""
        trigger = () if self.renew == "full" else ("tau", "theta")
        return trigger if self.metric in ("auto", "window") else (*trigger, "window")

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
        validate.check_sample(self.name, self.S, N)
        metric, zero = new_metric(self.metric, self.window, x0), 0.0 * x0
        return State(
            x=x0, x_prev=x0, g=zero, fresh=zero, seen=passes.nobody(N), passes=0,
            metric=metric, pairs=0, curvature=0.0, squared=0.0, damping=self.damping,
            variance=0.0, q=0.0, q_start=0.0, t=0,
        )  # fmt: skip

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Call the next S clients of the pass, or S random clients, or all."""
        sampled = partial(self._call_sampled, state, draws)
        if self.renew == "pass" or state.passes == 0:
            x, x_prev, seen, number = state.x, state.x_prev, state.seen, state.passes
            return passes.call_next(x, x_prev, seen, number, draws, self.S, sampled)
        if not self._is_full_due(state):
            return sampled()
        clients = draws.clients(len(state.seen), len(state.seen))
        message = FullGradient(state.x)
        return Call(clients, message, require_all=True, fallback=sampled)

    def _is_full_due(self, state: State) -> bool:
        """Return whether g is old, or its variance is large against its length."""
        T = self.tau * len(state.seen) / self.S
        if state.t >= T or self.theta is None:
            return state.t >= T
        return state.t >= T / 4 and state.variance > self.theta * state.q

    def _call_sampled(self, state: State, draws: Draws) -> Call[_Message]:
        """Call S clients for differences; also where nobody of a pass answers."""
        clients = draws.clients(len(state.seen), self.S)
        return Call(clients, Differences(state.x, state.x_prev))

    def client(
        self, message: _Message, oracle: Oracle, client_state: None
    ) -> tuple[_Reply, None]:
        """Compute the gradient at x, its change from x_prev to x, or both."""
        if isinstance(message, FullGradient):
            return Gradient(oracle.grad(message.x, oracle.batch(None))), None
        if isinstance(message, Differences):
            return Difference(passes.difference(oracle, *message, self.b)), None
        return passes.reply_in_pass(oracle, message, None, self.b), None

    def server(self, state: State, replies: Replies[_Reply]) -> State:
        """Update the estimators, learn from the pair (s, y), and move."""
        mean, seen = replies.mean, passes.next_seen(state.seen, replies)
        if isinstance(mean, Gradient):
            return self._move(state._replace(g=mean.g, t=0, variance=0.0))
        if isinstance(mean, Difference):
            state = self._learn(state, mean.y, 0.0)
            g, fresh = state.g + mean.y, state.fresh + mean.y
            return self._move(state._replace(g=g, fresh=fresh, t=state.t + 1))
        share, g = passes.share(replies, seen), state.g
        fresh = passes.join(state.fresh, mean, share)
        if isinstance(mean, PassReply):
            state, g = self._learn(state, mean.y, share), g + mean.y
        g = fresh if state.passes == 0 else g
        state = state._replace(g=g, fresh=fresh, seen=seen)
        return self._move(self._end_pass(state) if passes.is_complete(seen) else state)

    def _learn(self, state: State, y: Vector, share: float) -> State:
        """Measure curvature and variance by the pair (s, y), and add it to K."""
        s = state.x - state.x_prev
        s2, y2, sy = dot(s, s), dot(y, y), abs(dot(s, y))
        if s2 == 0 or y2 == 0:
            return state
        z = y / max(sy, _LEAST * s2**0.5 * y2**0.5) ** 0.5
        metric = state.metric
        if state.pairs == 0:
            metric = metric.begin(self.ridge * dot(z, z))  # K = ridge |z|^2 I
        w = dot(y, metric.solve(y))
        if not w > 0:  # too small for a number, or the run has diverged
            return state
        beta = self.beta
        return state._replace(
            metric=metric.add(z),  # K + z z^T
            pairs=state.pairs + 1,
            curvature=beta * state.curvature + (1 - beta) * sy / s2,
            squared=beta * state.squared + (1 - beta) * w / s2,
            variance=(1 - share) ** 2 * (state.variance + w),
        )

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
            seen=passes.nobody(len(state.seen)),
            passes=state.passes + 1,
            damping=damping,
            q_start=state.norm2(state.fresh),
        )

    def _move(self, state: State) -> State:
        """Move along (K/n)^-1 g by the damped Barzilai-Borwein step.

        x rests until the end of a pass where g has become 100 times shorter in it.
        """
        p = state.metric.solve(state.g)
        q = dot(state.g, p)
        if self.renew == "pass" and q < _REST * state.q_start:
            return state._replace(x_prev=state.x, q=q)
        if self.eta is not None:
            step = self.eta
        elif state.pairs == 0:
            step = self.first_step / max(1.0, norm(p))
        else:
            step = state.damping * (state.curvature / state.squared)
        x = as_received(self.down, state.x - step * p)  # so that s is the clients'
        return state._replace(x=x, x_prev=state.x, q=q)
