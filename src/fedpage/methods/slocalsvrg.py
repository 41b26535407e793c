"""S-Local-SVRG: local SVRG steps with a shared reference point.

Gorbunov, Hanzely, Richtárik, "Local SGD: Unified Theory and New Efficient Methods"
(2020).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import NamedTuple

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.local_steps import local_svrg
from fedpage.core.types import Call, Draws, Fields, Oracle, Replies, Scalar, Vector
from fedpage.methods.base import BaseMethod
from fedpage.methods.messages import FullGradient, Model, Move
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """The model, h = grad f(w) at the reference point w, and what clients know."""

    x: Vector
    h: Vector
    rows: float
    """Mean number of rows per client."""
    N: int
    stepped: bool
    """The last round had local steps, after which w may change."""
    h_sent: bool
    """Everyone has received h."""


class StepsWithGradient(NamedTuple):
    """K steps from x; keep h, the full gradient at w."""

    x: Vector
    h: Vector


class GradientAndRows(NamedTuple):
    """The client's gradient at w, and its number of rows."""

    h: Vector
    rows: Scalar


class ClientState(NamedTuple):
    """The reference point w and the full gradient h there."""

    w: Vector
    h: Vector


_Message = FullGradient | StepsWithGradient | Model


@register("s-local-svrg", group="local", assumes="all clients reachable now and then")
@dataclass(frozen=True)
class SLocalSVRG(BaseMethod):
    """S-Local-SVRG: K steps y -= eta_l (grad_I(y) - grad_I(w) + h); x is the mean y_K.

    After such a round w = x with probability q, and the next round is a refresh, which
    counts as a round: all clients send the gradient at the new w. As published all
    clients take part. With S < N, an extension, S clients take steps and all clients
    refresh. The effective step is K eta_l.

    Args:
        S: Sampled clients. If None, call all clients, as published.
        K: Local steps.
        eta_l: The local step size.
        b: Rows in a minibatch. If None, use all rows.
        q: Probability of a new reference point. If None, use min(1, K/M) with M
            the clients' mean number of rows.
        up: The codec of replies, a cast: gradients at w are not changes.
        down: The codec of messages, a cast. w is then the rounded x, at all clients.
    """

    name = "S-Local-SVRG"
    paper = "Gorbunov et al. 2020"
    messages = {FullGradient: GradientAndRows, StepsWithGradient: Move, Model: Move}
    client_state = ClientState
    needs_numpy = True  # the numbers of rows are an array of numpy
    step_sizes, step_factors = ("eta_l",), ("K",)
    codec_hint = "use VR-MARINA, which compresses changes"
    gradients_per_row = 2
    reduces_row_noise = True
    changes = {
        FullGradient: {"h": None},
        StepsWithGradient: {"dy": None},
        Model: {"dy": None},
    }

    S: int | None = None
    K: int = 10
    eta_l: StepSize = 0.01
    b: int | None = 1
    q: float | None = None
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def init(self, x0: Vector, N: int) -> State:
        """Return the start; round 0 is a refresh at w = x0."""
        self.check_sample(N)
        return State(x=x0, h=0.0 * x0, rows=1.0, N=N, stepped=False, h_sent=False)

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Refresh where w has just become x; otherwise take local steps."""
        q = min(1.0, self.K / state.rows) if self.q is None else self.q
        message: Fields = Model(state.x)
        if not state.h_sent:  # a called client may not have h
            message = StepsWithGradient(state.x, state.h)
        steps = partial(self.call_some, state.N, draws, message)
        if draws.round != 0 and not (state.stepped and draws.coin(q)):
            return steps()
        return self.call_all(state.N, draws, FullGradient(state.x), steps)

    def client(
        self, message: _Message, oracle: Oracle, client_state: ClientState
    ) -> tuple[GradientAndRows | Move, ClientState]:
        """Compute the gradient at w, or take K SVRG steps around w."""
        x = message.x
        if isinstance(message, FullGradient):
            all_rows = oracle.batch(None)
            h = oracle.grad(x, all_rows)
            rows = all_rows.sizes[:, None] + 0.0 * h[:, :1]
            return GradientAndRows(h, rows), ClientState(0.0 * h + x, client_state.h)
        h = client_state.h
        if isinstance(message, StepsWithGradient):
            h = 0.0 * client_state.h + message.h
        direction = local_svrg(
            oracle, x, client_state.w, h, K=self.K, eta=self.eta_l, b=self.b
        )
        dy = -(self.K * self.eta_l) * direction
        return Move(dy), ClientState(client_state.w, h)

    def server(self, state: State, replies: Replies[GradientAndRows | Move]) -> State:
        """Set x to the mean of the y_K, or h to the mean of the gradients at w."""
        mean = replies.mean
        if isinstance(mean, GradientAndRows):
            rows = float(mean.rows[0])
            return state._replace(h=mean.h, rows=rows, stepped=False, h_sent=False)
        h_sent = state.h_sent or replies.count == state.N
        return state._replace(x=state.x + mean.dy, stepped=True, h_sent=h_sent)
