"""S-Local-SVRG: local SVRG steps with a shared reference point.

Gorbunov, Hanzely, Richtárik, "Local SGD: Unified Theory and New Efficient Methods"
(2020).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.local_steps import local_svrg
from fedpage.core.schedules import StepSize
from fedpage.core.types import (
    Call,
    Draws,
    MessageTypes,
    Oracle,
    Replies,
    Scalar,
    Vector,
)
from fedpage.methods.registry import register


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


class Refresh(NamedTuple):
    """To all clients: keep x as the reference point w, and send your gradient there."""

    x: Vector


class StepsWithGradient(NamedTuple):
    """K steps from x; keep h, the full gradient at w."""

    x: Vector
    h: Vector


class Steps(NamedTuple):
    """K steps from x, with the h that the client has."""

    x: Vector


class Gradient(NamedTuple):
    """The client's gradient at w, and its number of rows."""

    h: Vector
    rows: Scalar


class Move(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


class ClientState(NamedTuple):
    """The reference point w and the full gradient h there."""

    w: Vector
    h: Vector


@register("s-local-svrg", group="local", assumes="all clients reachable now and then")
@dataclass(frozen=True)
class SLocalSVRG:
    """S-Local-SVRG: K steps y -= eta_l (grad_I(y) - grad_I(w) + h); x is the mean y_K.

    After such a round w = x with probability q, and the next round is a refresh, which
    counts as a round: all clients send the gradient at the new w. As published all
    clients take part. With S < N, an extension, S clients take steps and all clients
    refresh. The effective step is K eta_l.

    Args:
        S: Sampled clients; None: all clients, as published.
        K: Local steps.
        eta_l: The local step size.
        b: Rows in a minibatch; None: all rows.
        q: Probability of a new reference point; None: min(1, K/M) with M the clients'
            mean number of rows.
        up: The codec of replies, a cast: gradients at w are not changes.
        down: The codec of messages, a cast. w is then the rounded x, at all clients.
    """

    name: ClassVar[str] = "S-Local-SVRG"
    paper: ClassVar[str] = "Gorbunov et al. 2020"
    messages: ClassVar[MessageTypes] = {
        Refresh: Gradient,
        StepsWithGradient: Move,
        Steps: Move,
    }
    client_state: ClassVar[type[ClientState]] = ClientState
    needs_numpy: ClassVar[bool] = True
    """The coins of clients are an array of numpy."""
    compressible: ClassVar[Compressible] = {
        Refresh: {"h": None},
        StepsWithGradient: {"dy": None},
        Steps: {"dy": None},
    }

    S: int | None = None
    K: int = 10
    eta_l: StepSize = 0.01
    b: int | None = 1
    q: float | None = None
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.batch(self.name, "S", self.S)
        validate.whole(self.name, "K", self.K)
        schedules.check_step(self.name, "eta_l", self.eta_l)
        validate.batch(self.name, "b", self.b)
        if self.q is not None:
            validate.probability(self.name, "q", self.q)
        codecs.check(self, "cast", hint="use VR-MARINA, which compresses changes")

    @property
    def effective_step(self) -> float:
        """The effective step, K eta_l."""
        return self.K * self.eta_l

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step."""
        return replace(self, eta_l=step / self.K)

    def init(self, x0: Vector, N: int) -> State:
        """Return the start; round 0 is a refresh at w = x0."""
        if self.S is not None:
            validate.check_sample(self.name, self.S, N)
        return State(x=x0, h=0.0 * x0, rows=1.0, N=N, stepped=False, h_sent=False)

    def call(
        self, state: State, draws: Draws
    ) -> Call[Refresh | StepsWithGradient | Steps]:
        """Refresh where w has just become x; otherwise take local steps."""
        q = min(1.0, self.K / state.rows) if self.q is None else self.q
        if draws.round != 0 and not (state.stepped and draws.coin(q)):
            return self._call_steps(state, draws)
        clients = draws.clients(state.N, state.N)
        fallback = None
        if draws.round != 0:  # w and h do not change
            fallback = partial(self._call_steps, state, draws)
        return Call(clients, Refresh(state.x), require_all=True, fallback=fallback)

    def _call_steps(
        self, state: State, draws: Draws
    ) -> Call[Refresh | StepsWithGradient | Steps]:
        """Call for local steps, with h where a called client may not have it."""
        S = state.N if self.S is None else self.S
        message = (
            Steps(state.x) if state.h_sent else StepsWithGradient(state.x, state.h)
        )
        return Call(draws.clients(state.N, S), message)

    def client(
        self,
        message: Refresh | StepsWithGradient | Steps,
        oracle: Oracle,
        client_state: ClientState,
    ) -> tuple[Gradient | Move, ClientState]:
        """Compute the gradient at w, or take K SVRG steps around w."""
        x = message.x
        if isinstance(message, Refresh):
            all_rows = oracle.batch(None)
            h = oracle.grad(x, all_rows)
            rows = all_rows.sizes[:, None] + 0.0 * h[:, :1]
            return Gradient(h, rows), ClientState(0.0 * h + x, client_state.h)
        h = client_state.h
        if isinstance(message, StepsWithGradient):
            h = 0.0 * client_state.h + message.h
        direction = local_svrg(
            oracle, x, client_state.w, h, K=self.K, eta=self.eta_l, b=self.b
        )
        dy = -(self.K * self.eta_l) * direction
        return Move(dy), ClientState(client_state.w, h)

    def server(self, state: State, replies: Replies[Gradient | Move]) -> State:
        """Set x to the mean of the y_K, or h to the mean of the gradients at w."""
        mean = replies.mean
        if isinstance(mean, Gradient):
            rows = float(mean.rows[0])
            return state._replace(h=mean.h, rows=rows, stepped=False, h_sent=False)
        h_sent = state.h_sent or replies.count == state.N
        return state._replace(x=state.x + mean.dy, stepped=True, h_sent=h_sent)
