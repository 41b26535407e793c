"""SecantPAGE: PAGE with an averaging start and a metric from its own differences.

A method of this library. In a sampled round of PAGE the mean difference of gradients y
and the last step s are a stochastic secant pair: curvature that has been sent anyway.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self, get_args

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import validate
from fedpage.core.errors import InputError
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
from fedpage.methods import first_pass
from fedpage.methods.fedpage import FullGradient
from fedpage.methods.first_pass import (
    Difference,
    Differences,
    PassGradients,
    PassReply,
)
from fedpage.methods.registry import register

MetricName = Literal["auto", "full", "window", "none"]
_LEAST = 1e-3
"""The least cosine of s and y in the weight of a pair."""


class State(NamedTuple):
    """The model, the one before it, the estimator g, and what has been measured."""

    x: Vector
    x_prev: Vector
    g: Vector
    seen: Flags
    """Whether the first pass has had each client, (N,)."""
    metric: Metric
    pairs: int
    """Secant pairs so far."""
    curvature: float
    """The running mean of |s.y|/|s|^2."""
    squared: float
    """The running mean of y.(K/n)^-1 y/|s|^2, a squared curvature in the metric."""
    variance: float
    """V, the estimated variance of g in the metric."""
    q: float
    """g.(K/n)^-1 g, the squared length of g in the metric."""
    t: int
    """Sampled rounds since the last full one."""


class Gradient(NamedTuple):
    """The client's gradient at x."""

    g: Vector


_Message = FullGradient | PassGradients | Differences
_Reply = Gradient | PassReply | Difference


@register(
    "secantpage",
    group="variance-reduced",
    assumes="all clients reachable now and then",
)
@dataclass(frozen=True)
class SecantPAGE:
    """SecantPAGE: PAGE whose differences also give a metric and the step size.

    It begins with a pass over the clients instead of a full round. Full rounds come
    when the variance that the differences show is large against g, and after T =
    tau N/S sampled rounds at the latest. No step size has to be chosen.

    Args:
        S: Sampled clients.
        damping: The factor of the Barzilai-Borwein step.
        metric: "full": a d x d matrix; "window": the last pairs only; "none": the
            identity, so that only the step is measured. "auto" is "full" up to 1,000
            parameters, "window" up to a million and "none" above.
        window: Pairs in a window.
        tau: Full rounds come after tau N/S sampled rounds at the latest.
        theta: A full round comes when V > theta q; None: only after tau N/S rounds.
        beta: The weight of the past in the running means of the step size.
        ridge: The initial metric, in units of the first pair's |z|^2.
        first_step: The step size before the first pair; that step is at most as long.
        b: Rows in the minibatches of differences; None: all rows. Gradients of the
            first pass and of full rounds are over all rows.
        eta: A fixed step size instead of a measured one; None: measured.
        up: The codec of replies, unbiased. Differences are compressed; gradients are
            not, except by a cast.
        down: The codec of messages, a cast.
    """

    name: ClassVar[str] = "SecantPAGE"
    paper: ClassVar[str] = "this library"
    messages: ClassVar[MessageTypes] = {
        FullGradient: Gradient,
        PassGradients: PassReply,
        Differences: Difference,
    }
    client_state: ClassVar[None] = None

    S: int = 10
    _: KW_ONLY
    damping: float = 0.25
    metric: MetricName = "auto"
    window: int = 30
    tau: float = 0.5
    theta: float | None = 4.0
    beta: float = 0.95
    ridge: float = 1.0
    first_step: float = 0.01
    b: int | None = None
    eta: float | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.name, "S", self.S)
        validate.whole(self.name, "window", self.window)
        for name in ("damping", "tau", "ridge", "first_step"):
            validate.positive(self.name, name, getattr(self, name))
        for name in ("theta", "eta"):
            if getattr(self, name) is not None:
                validate.positive(self.name, name, getattr(self, name))
        validate.decay(self.name, "beta", self.beta)
        validate.batch(self.name, "b", self.b)
        if self.metric not in get_args(MetricName):
            words = ", ".join(get_args(MetricName))
            raise InputError(
                f"{self.name}: metric must be one of {words}, not {self.metric!r}"
            )
        codecs.check(self, "unbiased")

    @property
    def compressible(self) -> Compressible:
        """What passes through `up`: differences, and with a cast also gradients."""
        if self.up.is_cast:
            return {
                FullGradient: {"g": None},
                PassGradients: {"g": None, "y": None},
                Differences: {"y": None},
            }
        return {PassGradients: {"y": None}, Differences: {"y": None}}

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
        metric = new_metric(self.metric, self.window, x0)
        seen = first_pass.start_pass("average", N)
        return State(x0, x0, 0.0 * x0, seen, metric, 0, 0.0, 0.0, 0.0, 0.0, 0)

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Call the next clients of the first pass, all clients, or S of them."""
        sampled = partial(self._call_sampled, state, draws)
        full = FullGradient(state.x)
        if not first_pass.is_complete(state.seen):
            rest = PassGradients(state.x, state.x_prev)
            return first_pass.call_next(
                state.seen, draws, self.S, (full, rest), sampled
            )
        N = len(state.seen)
        if self._is_full_due(state, self.tau * N / self.S):
            clients = draws.clients(N, N)
            return Call(clients, full, require_all=True, fallback=sampled)
        return sampled()

    def _is_full_due(self, state: State, T: float) -> bool:
        """Return whether g is old, or its variance is large against its length."""
        if state.t >= T or self.theta is None:
            return state.t >= T
        return state.t >= T / 4 and state.variance > self.theta * state.q

    def _call_sampled(self, state: State, draws: Draws) -> Call[_Message]:
        """Call S clients for differences; also the fallback of the other rounds."""
        clients = draws.clients(len(state.seen), self.S)
        return Call(clients, Differences(state.x, state.x_prev))

    def client(
        self, message: _Message, oracle: Oracle, client_state: None
    ) -> tuple[_Reply, None]:
        """Compute the gradient at x, its change from x_prev to x, or both."""
        if isinstance(message, FullGradient):
            return Gradient(oracle.grad(message.x, oracle.batch(None))), None
        if isinstance(message, PassGradients):
            return first_pass.reply_in_pass(oracle, message, None, self.b), None
        return Difference(first_pass.difference(oracle, message, self.b)), None

    def server(self, state: State, replies: Replies[_Reply]) -> State:
        """Update g, learn from the pair (s, y), and step along (K/n)^-1 g."""
        mean, seen = replies.mean, first_pass.next_seen(state.seen, replies)
        if isinstance(mean, Gradient):
            state = state._replace(g=mean.g, t=0, variance=0.0)
        elif isinstance(mean, PassReply):
            share = first_pass.share_of(replies, seen)
            g = first_pass.join(state.g, mean, share)
            state = self._learn(state, mean.y, share)._replace(g=g)
        else:
            g = state.g + mean.y
            state = self._learn(state, mean.y, 0.0)._replace(g=g, t=state.t + 1)
        return self._step(state._replace(seen=seen))

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

    def _step(self, state: State) -> State:
        """Move along p = (K/n)^-1 g by the damped Barzilai-Borwein step."""
        p = state.metric.solve(state.g)
        if self.eta is not None:
            step = self.eta
        elif state.pairs == 0:
            step = self.first_step / max(1.0, norm(p))
        else:
            step = self.damping * (state.curvature / state.squared)
        return state._replace(x=state.x - step * p, x_prev=state.x, q=dot(state.g, p))
