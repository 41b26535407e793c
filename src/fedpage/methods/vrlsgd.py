"""VRL-SGD: Liang et al., "Variance Reduced Local SGD with Lower Communication Complexity" (2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from fedpage.methods import checks
from fedpage.methods.walks import descend
from fedpage.types import Call, Draws, Oracle, Replies, Vector


class State(NamedTuple):
    """The model and the number of clients."""

    x: Vector
    N: int


class Begin(NamedTuple):
    """To everyone, in round 0: K steps from x, without correction."""

    x: Vector


class Continue(NamedTuple):
    """To everyone: x is the mean of your last models; correct yourself by it, then K steps from x."""

    x: Vector


class Reply(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


class Memory(NamedTuple):
    """Delta_i, the correction of its last steps, and y_K, where they ended."""

    delta: Vector
    y: Vector


@dataclass(frozen=True)
class VRLSGD:
    """VRL-SGD: every client takes K steps y -= eta_l (grad_I(y) - Delta_i); x is the mean of the y_K.

    Delta_i += (x - y_K)/(K eta_l) once the client learns x, at its next call; the Delta_i sum to zero. Everyone takes
    part in every round. The effective step is K eta_l.
    """

    title: ClassVar[str] = "VRL-SGD"
    paper: ClassVar[str] = "Liang et al. 2019"
    memory: ClassVar[type[Memory]] = Memory

    K: int = 10
    eta_l: float = 0.01
    b: int | None = 4

    def __post_init__(self) -> None:
        checks.plain(self)
        checks.whole(self.title, "K", self.K)
        checks.positive(self.title, "eta_l", self.eta_l)
        checks.batch(self.title, "b", self.b)

    @property
    def step(self) -> float:
        """The effective step, K eta_l."""
        return self.K * self.eta_l

    def with_step(self, step: float) -> VRLSGD:
        """The same method at another effective step."""
        return replace(self, eta_l=step / self.K)

    def init(self, x0: Vector, N: int) -> State:
        """The start; all Delta_i are 0."""
        return State(x=x0, N=N)

    def call(self, state: State, draws: Draws) -> Call:
        """Everyone, none missing: over a part of the clients the Delta_i would no longer sum to zero."""
        message = Begin(state.x) if draws.round == 0 else Continue(state.x)
        return Call(draws.clients(state.N, state.N), message, complete=True)

    def client(self, message: Begin | Continue, oracle: Oracle, memory: Memory) -> tuple[Reply, Memory]:
        """The correction that x makes possible, then K corrected steps."""
        x, delta = message.x, memory.delta
        if isinstance(message, Continue):
            delta = delta + (x - memory.y) / (self.K * self.eta_l)  # of the round before
        direction = descend(oracle, x, K=self.K, eta=self.eta_l, b=self.b, shift=-delta)
        dy = -(self.K * self.eta_l) * direction
        return Reply(dy), Memory(delta, x + dy)

    def server(self, state: State, replies: Replies) -> State:
        """x+ = mean of the y_K."""
        return State(x=state.x + replies.mean.dy, N=state.N)
