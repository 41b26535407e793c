"""S-Local-SVRG: Gorbunov, Hanzely, Richtárik, "Local SGD: Unified Theory and New Efficient Methods" (2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

from fedpage.core import validate
from fedpage.core.local_steps import local_svrg
from fedpage.core.types import Call, Draws, Oracle, Replies, Vector


class State(NamedTuple):
    """The model, h = grad f(w) at the reference point w, rows per client, and what has happened since w changed."""

    x: Vector
    h: Vector
    rows: float
    N: int
    walked: bool
    """The last round was one of local steps, after which w may change."""
    told: bool
    """Everyone has learned h."""


class Refresh(NamedTuple):
    """To everyone: remember x as the reference point w, and send your gradient there. It counts as a round."""

    x: Vector


class Learn(NamedTuple):
    """K steps from x; remember h, the full gradient at w."""

    x: Vector
    h: Vector


class Walk(NamedTuple):
    """K steps from x, with the h you know."""

    x: Vector


class Gradient(NamedTuple):
    """The client's gradient at w, and its number of rows."""

    h: Vector
    rows: Vector


class Move(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


class ClientState(NamedTuple):
    """The reference point w and the full gradient h there."""

    w: Vector
    h: Vector


@dataclass(frozen=True)
class SLocalSVRG:
    """S-Local-SVRG: K steps y -= eta_l (grad_I(y) - grad_I(w) + h); x is the mean of the y_K.

    After such a round w = x with probability q (None: min(1, K/M), M the clients' mean number of rows), and the next
    round is a refresh: everyone sends the gradient at the new w. As published everyone takes part (S = None); S < N is
    an extension, in which S clients walk and everyone still refreshes. The effective step is K eta_l.
    """

    name: ClassVar[str] = "S-Local-SVRG"
    paper: ClassVar[str] = "Gorbunov et al. 2020"
    client_state: ClassVar[type[ClientState]] = ClientState

    S: int | None = None
    K: int = 10
    eta_l: float = 0.01
    b: int | None = 1
    q: float | None = None

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.batch(self.name, "S", self.S)
        validate.whole(self.name, "K", self.K)
        validate.positive(self.name, "eta_l", self.eta_l)
        validate.batch(self.name, "b", self.b)
        if self.q is not None:
            validate.probability(self.name, "q", self.q)

    @property
    def effective_step(self) -> float:
        """The effective step, K eta_l."""
        return self.K * self.eta_l

    def with_step(self, step: float) -> SLocalSVRG:
        """The same method at another effective step."""
        return replace(self, eta_l=step / self.K)

    def init(self, x0: Vector, N: int) -> State:
        """Round 0 is a refresh at w = x0."""
        if self.S is not None:
            validate.sampled(self.name, self.S, N)
        return State(x=x0, h=0.0 * x0, rows=1.0, N=N, walked=False, told=False)

    def call(self, state: State, draws: Draws) -> Call:
        """A refresh where w has just become x, local steps otherwise."""
        q = min(1.0, self.K / state.rows) if self.q is None else self.q
        if draws.round != 0 and not (state.walked and draws.coin(q)):
            return self._walks(state, draws)
        fallback = (
            None if draws.round == 0 else partial(self._walks, state, draws)
        )  # w and h stay what they were
        return Call(
            draws.clients(state.N, state.N), Refresh(state.x), require_all=True, fallback=fallback
        )

    def _walks(self, state: State, draws: Draws) -> Call:
        """Local steps, with h where a called client may not know it."""
        S = state.N if self.S is None else self.S
        return Call(
            draws.clients(state.N, S), Walk(state.x) if state.told else Learn(state.x, state.h)
        )

    def client(
        self, message: Refresh | Learn | Walk, oracle: Oracle, client_state: ClientState
    ) -> tuple[Gradient | Move, ClientState]:
        """The gradient at w, or K SVRG steps round w."""
        x = message.x
        if isinstance(message, Refresh):
            everything = oracle.batch(None)
            h = oracle.grad(x, everything)
            return Gradient(h, everything.sizes[:, None] + 0.0 * h[:, :1]), ClientState(
                0.0 * h + x, client_state.h
            )
        h = 0.0 * client_state.h + message.h if isinstance(message, Learn) else client_state.h
        direction = local_svrg(oracle, x, client_state.w, h, K=self.K, eta=self.eta_l, b=self.b)
        return Move(-(self.K * self.eta_l) * direction), ClientState(client_state.w, h)

    def server(self, state: State, replies: Replies) -> State:
        """x+ = mean of the y_K, or h = mean of the gradients at w."""
        if isinstance(replies.mean, Gradient):
            rows = float(replies.mean.rows[0])
            return State(
                x=state.x, h=replies.mean.h, rows=rows, N=state.N, walked=False, told=False
            )
        told = state.told or replies.count == state.N
        return State(
            x=state.x + replies.mean.dy,
            h=state.h,
            rows=state.rows,
            N=state.N,
            walked=True,
            told=told,
        )
