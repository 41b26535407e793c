"""FedPAGE: Zhao, Li, Richtárik, "FedPAGE: A Fast Local Stochastic Gradient Method ..." (2021), Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from fedpage.methods import checks
from fedpage.methods.walks import recurse
from fedpage.types import Call, Draws, Oracle, Replies, Vector


class State(NamedTuple):
    """x^r, x^{r-1}, g^{r-1} and the number of clients."""

    x: Vector
    x_prev: Vector
    g: Vector
    N: int


class Refresh(NamedTuple):
    """To everyone: your gradient at x (lines 3-9)."""

    x: Vector


class Walk(NamedTuple):
    """To S clients: K PAGE steps from x = x_prev - eta_g g (lines 11-22).

    The paper sends x too; two of the three determine the third, so a third of the downlink is saved.
    """

    x_prev: Vector
    g: Vector


class Reply(NamedTuple):
    """The client's gradient, or the mean of its K estimators: (x - y_K)/(K eta_l)."""

    g: Vector


@dataclass(frozen=True)
class FedPAGE:
    """FedPAGE (Algorithm 1). With probability p everyone sends a gradient; otherwise S clients walk K steps.

    S: sampled clients. K: local steps. eta_g: the server's step, which is the effective one. eta_l: the local step;
    None means eta_g/(100 K), at which local steps do not damp g (docs/methods.md says when to raise it).
    p: probability of a full round; None means S/N. b1, b2, b3: minibatches of full rounds, of a walk's first step
    and of its other steps; None means all rows.
    """

    title: ClassVar[str] = "FedPAGE"
    paper: ClassVar[str] = "Zhao, Li, Richtárik 2021"
    memory: ClassVar[None] = None

    S: int = 10
    K: int = 10
    eta_g: float = 0.1
    eta_l: float | None = None
    p: float | None = None
    b1: int | None = None
    b2: int | None = None
    b3: int | None = 1

    def __post_init__(self) -> None:
        checks.whole(self.title, "S", self.S)
        checks.whole(self.title, "K", self.K)
        checks.positive(self.title, "eta_g", self.eta_g)
        if self.eta_l is not None:
            checks.positive(self.title, "eta_l", self.eta_l)
        if self.p is not None:
            checks.probability(self.title, "p", self.p)
        for name in ("b1", "b2", "b3"):
            checks.batch(self.title, name, getattr(self, name))

    @property
    def step(self) -> float:
        """The effective step, eta_g."""
        return self.eta_g

    def with_step(self, step: float) -> FedPAGE:
        """The same method at another effective step; a local step that was given keeps its ratio to eta_g."""
        eta_l = None if self.eta_l is None else self.eta_l * (step / self.eta_g)
        return replace(self, eta_g=step, eta_l=eta_l)

    @property
    def local_step(self) -> float:
        """eta_l, given or by default eta_g/(100 K)."""
        return self.eta_g / (100 * self.K) if self.eta_l is None else self.eta_l

    def init(self, x0: Vector, N: int) -> State:
        """x^0; x^{-1} and g^{-1} are never used, because round 0 is full."""
        checks.sampled(self.title, self.S, N)
        return State(x=x0, x_prev=x0, g=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call:
        """Lines 2-4 and 10-11."""
        p = self.S / state.N if self.p is None else self.p
        if draws.coin(1.0 if draws.round == 0 else p):  # line 2, p_0 = 1
            return Call(draws.clients(state.N, state.N), Refresh(state.x))  # line 4
        return Call(draws.clients(state.N, self.S), Walk(state.x_prev, state.g))  # line 11

    def client(self, message: Refresh | Walk, oracle: Oracle, memory: None) -> tuple[Reply, None]:
        """Lines 5-8, or 12-23."""
        if isinstance(message, Refresh):
            return Reply(oracle.grad(message.x, oracle.batch(self.b1))), memory  # lines 6-7
        x_prev, g = message
        x = x_prev - self.eta_g * g  # line 26 of the round before, as the server computed it
        g = recurse(oracle, x, x_prev, g, K=self.K, eta=self.local_step, first=self.b2, rest=self.b3)
        return Reply(g), memory  # line 22, divided by K eta_l

    def server(self, state: State, replies: Replies) -> State:
        """Lines 9, 24 and 26."""
        g = replies.mean.g  # lines 9, 24
        return State(x=state.x - self.eta_g * g, x_prev=state.x, g=g, N=state.N)  # line 26
