"""S-Local-SVRG: Gorbunov, Hanzely, Richtárik, "Local SGD: Unified Theory and New Efficient Methods" (2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

from fedpage.methods import checks
from fedpage.methods.walks import anchor
from fedpage.types import Call, Draws, Oracle, Replies, Vector


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


class Memory(NamedTuple):
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

    title: ClassVar[str] = "S-Local-SVRG"
    paper: ClassVar[str] = "Gorbunov et al. 2020"
    memory: ClassVar[type[Memory]] = Memory

    S: int | None = None
    K: int = 10
    eta_l: float = 0.01
    b: int | None = 1
    q: float | None = None

    def __post_init__(self) -> None:
        checks.plain(self)
        checks.batch(self.title, "S", self.S)
        checks.whole(self.title, "K", self.K)
        checks.positive(self.title, "eta_l", self.eta_l)
        checks.batch(self.title, "b", self.b)
        if self.q is not None:
            checks.probability(self.title, "q", self.q)

    @property
    def step(self) -> float:
        """The effective step, K eta_l."""
        return self.K * self.eta_l

    def with_step(self, step: float) -> SLocalSVRG:
        """The same method at another effective step."""
        return replace(self, eta_l=step / self.K)

    def init(self, x0: Vector, N: int) -> State:
        """Round 0 is a refresh at w = x0."""
        if self.S is not None:
            checks.sampled(self.title, self.S, N)
        return State(x=x0, h=0.0 * x0, rows=1.0, N=N, walked=False, told=False)

    def call(self, state: State, draws: Draws) -> Call:
        """A refresh where w has just become x, local steps otherwise."""
        q = min(1.0, self.K / state.rows) if self.q is None else self.q
        if draws.round != 0 and not (state.walked and draws.coin(q)):
            return self._walks(state, draws)
        instead = None if draws.round == 0 else partial(self._walks, state, draws)  # w and h stay what they were
        return Call(draws.clients(state.N, state.N), Refresh(state.x), complete=True, instead=instead)

    def _walks(self, state: State, draws: Draws) -> Call:
        """Local steps, with h where a called client may not know it."""
        S = state.N if self.S is None else self.S
        return Call(draws.clients(state.N, S), Walk(state.x) if state.told else Learn(state.x, state.h))

    def client(self, message: Refresh | Learn | Walk, oracle: Oracle, memory: Memory) -> tuple[Gradient | Move, Memory]:
        """The gradient at w, or K SVRG steps round w."""
        x = message.x
        if isinstance(message, Refresh):
            everything = oracle.batch(None)
            h = oracle.grad(x, everything)
            return Gradient(h, everything.sizes[:, None] + 0.0 * h[:, :1]), Memory(0.0 * h + x, memory.h)
        h = 0.0 * memory.h + message.h if isinstance(message, Learn) else memory.h
        direction = anchor(oracle, x, memory.w, h, K=self.K, eta=self.eta_l, b=self.b)
        return Move(-(self.K * self.eta_l) * direction), Memory(memory.w, h)

    def server(self, state: State, replies: Replies) -> State:
        """x+ = mean of the y_K, or h = mean of the gradients at w."""
        if isinstance(replies.mean, Gradient):
            rows = float(replies.mean.rows[0])
            return State(x=state.x, h=replies.mean.h, rows=rows, N=state.N, walked=False, told=False)
        told = state.told or replies.count == state.N
        return State(x=state.x + replies.mean.dy, h=state.h, rows=state.rows, N=state.N, walked=True, told=told)
