"""PAGE, and variants of FedPAGE that are not in the paper.

They combine: `class Both(LeakFreeFedPAGE, PassStartFedPAGE)` needs only the `messages`,
`changes` and `gradients` of both.
Li, Bao, Zhang, Richtárik, "PAGE: A Simple and Optimal Probabilistic Gradient Estimator
for Nonconvex Optimization" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fedpage.core.local_steps import local_page
from fedpage.core.random import no_clients
from fedpage.core.types import Call, Draws, Fields, Flags, Oracle, Replies, Vector
from fedpage.methods import passes, schedules
from fedpage.methods.fedpage import FedPAGE, State
from fedpage.methods.messages import FullGradient, Gradient, TwoPoints
from fedpage.methods.passes import Difference
from fedpage.methods.registry import register


@register("page")
@dataclass(frozen=True)
class PAGE(FedPAGE):
    """PAGE: FedPAGE with K = 1, where eta_l and b3 have no influence."""

    name = "PAGE"
    paper = "Li, Bao, Zhang, Richtárik 2021"
    fixed = ("K",)

    K: int = 1


@register("fedpage-periodic", variant_of="fedpage")
@dataclass(frozen=True)
class PeriodicFedPAGE(FedPAGE):
    """FedPAGE with a full round every round(1/p) rounds instead of by a coin.

    The cost is the same, and no seed has to wait long for a full round.
    """

    name = "FedPAGE-periodic"

    def is_full(self, state: State, draws: Draws) -> bool:
        """Return whether the round's number is a multiple of round(1/p)."""
        p = self.S / state.N if self.p is None else self.p
        return draws.round % max(1, round(1 / p)) == 0


class LeakFreeSteps(NamedTuple):
    """To S clients: K PAGE steps from x, which is not x_prev - eta_g g here."""

    x: Vector
    x_prev: Vector
    g: Vector


class LeakFreeReply(NamedTuple):
    """The mean of the K estimators, to move along, and g_{i,0}, to carry forward."""

    move: Vector
    g: Vector


@register("fedpage-leak-free", variant_of="fedpage")
@dataclass(frozen=True)
class LeakFreeFedPAGE(FedPAGE):
    """FedPAGE that carries PAGE's estimator forward, which local steps do not damp.

    Clients also send g_{i,0}. The server moves along the mean of the local steps, and
    the mean of the g_{i,0} becomes g. One vector more is sent up and down. eta_g
    may be a schedule, because clients receive x.
    """

    name = "FedPAGE-leak-free"
    messages = {FullGradient: Gradient, LeakFreeSteps: LeakFreeReply}
    checks = {"eta_g": schedules.check_step}
    changes = {LeakFreeSteps: {"move": "g", "g": "g"}}

    def call_sampled(self, state: State, draws: Draws) -> Call[Fields]:
        """Send x too."""
        clients = draws.clients(state.N, self.S)
        return Call(clients, LeakFreeSteps(state.x, state.x_prev, state.g))

    def client(
        self, message: Fields, oracle: Oracle, client_state: None
    ) -> tuple[Any, None]:
        """Take lines 13-21 in two pieces, because g_{i,0} is sent by itself."""
        if not isinstance(message, LeakFreeSteps):
            return super().client(message, oracle, client_state)
        x, x_prev, g = message
        eta, K, b2, b3 = self.local_step, self.K, self.b2, self.b3
        g0 = local_page(oracle, x, x_prev, g, K=1, eta=eta, first=b2, rest=None)
        if K == 1:
            return LeakFreeReply(g0, g0), None
        x1 = x - eta * g0  # line 16
        later = local_page(oracle, x1, x, g0, K=K - 1, eta=eta, first=b3, rest=b3)
        return LeakFreeReply((g0 + (K - 1) * later) / K, g0), None

    def server(self, state: State, replies: Replies[Any]) -> State:
        """Move along `move`, and carry g forward."""
        mean = replies.mean
        if not isinstance(mean, LeakFreeReply):
            return super().server(state, replies)
        x = state.x - self.eta_g * mean.move
        return state._replace(x=x, x_prev=state.x, g=mean.g)


class PassState(NamedTuple):
    """The state of FedPAGE, and which clients the first pass has had."""

    x: Vector
    x_prev: Vector
    g: Vector
    seen: Flags
    """(N,)"""

    @property
    def N(self) -> int:
        """The number of clients."""
        return len(self.seen)


@register("fedpage-pass-start", variant_of="fedpage")
@dataclass(frozen=True)
class PassStartFedPAGE(FedPAGE):
    """FedPAGE that begins with a pass over the clients in place of a full round.

    Each of the first N/S rounds calls the next S clients of a random order, and the
    model moves all the while. With K = 1 it is PAGE with such a start.
    """

    name = "FedPAGE-pass-start"
    messages = {**FedPAGE.messages, **passes.MESSAGES}
    fallback_messages = (TwoPoints,)
    changes = {**FedPAGE.changes, **passes.CHANGES}
    gradients = {**FedPAGE.gradients, **passes.GRADIENTS}

    def init(self, x0: Vector, N: int) -> PassState:  # type: ignore[override]
        """Return the start, at which no client has been seen."""
        return PassState(*super().init(x0, N)[:3], no_clients(N))

    def call(  # type: ignore[override]
        self, state: PassState, draws: Draws
    ) -> Call[Fields]:
        """Call the next S clients of the pass; after it, call as FedPAGE does."""
        x, x_prev, _, seen = state
        if seen.all():
            return super().call(state, draws)  # type: ignore[arg-type]
        sampled = partial(self.call_sampled, state, draws)  # type: ignore[arg-type]
        return passes.call_next(x, x_prev, seen, 0, draws, self.S, sampled)

    def call_sampled(self, state: State, draws: Draws) -> Call[Fields]:
        """Call S clients for local steps; with K = 1 for differences alone."""
        if self.K > 1:
            return super().call_sampled(state, draws)
        return Call(draws.clients(state.N, self.S), TwoPoints(state.x, state.x_prev))

    def client(
        self, message: Fields, oracle: Oracle, client_state: None
    ) -> tuple[Any, None]:
        """Answer in the pass, or as FedPAGE does."""
        if isinstance(message, passes.Message):
            return passes.reply(oracle, message, self.b1, self.b2), None
        return super().client(message, oracle, client_state)

    def server(  # type: ignore[override]
        self, state: PassState, replies: Replies[Any]
    ) -> PassState:
        """Join the gradients of a pass, or set g as FedPAGE does; move along g."""
        mean, seen = replies.mean, passes.next_seen(state.seen, replies)
        if isinstance(mean, passes.InPass):
            g = passes.join(state.g, replies, seen)
        else:
            g = state.g + mean.y if isinstance(mean, Difference) else mean.g
        return PassState(state.x - self.eta_g * g, state.x, g, seen)
