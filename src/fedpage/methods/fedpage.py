"""FedPAGE: Zhao, Li, Richtárik, "FedPAGE: A Fast Local Stochastic Gradient Method ..." (2021), Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, Self

from fedpage.core import validate
from fedpage.core.errors import InputError
from fedpage.core.local_steps import local_page
from fedpage.core.types import Call, Draws, Oracle, Problem, Replies, Vector
from fedpage.methods import steps


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


class FreeWalk(NamedTuple):
    """The leak-free variant's walk: x is no longer x_prev - eta_g g, so all three are sent."""

    x: Vector
    x_prev: Vector
    g: Vector


class FreeReply(NamedTuple):
    """The leak-free variant's reply: the mean of the K estimators, to move along, and g_{i,0}, to carry on."""

    move: Vector
    g: Vector


class Reply(NamedTuple):
    """The client's gradient, or the mean of its K estimators: (x - y_K)/(K eta_l)."""

    g: Vector


@dataclass(frozen=True)
class FedPAGE:
    """FedPAGE (Algorithm 1). With probability p everyone sends a gradient; otherwise S clients walk K steps.

    S: sampled clients. K: local steps. eta_g: the server's step, which is the effective one. eta_l: the local step;
    None means eta_g/(100 K), at which local steps do not damp g (docs/methods/fedpage.md says when to raise it).
    p: probability of a full round; None means S/N. b1, b2, b3: minibatches of full rounds, of a walk's first step
    and of its other steps; None means all rows.

    Two options beyond the paper. periodic: full rounds come every round(1/p) rounds instead of by a coin; the same
    cost, and no seed without a full round for long. leak_free: clients also send g_{i,0}; the server moves along the
    mean of the walks but carries the mean of the g_{i,0}, which is PAGE's estimator, forward as g, so that local steps
    do not damp it. One vector more up, and one more down.
    """

    name: ClassVar[str] = "FedPAGE"
    paper: ClassVar[str] = "Zhao, Li, Richtárik 2021"
    client_state: ClassVar[None] = None

    S: int = 10
    K: int = 10
    eta_g: float = 0.1
    eta_l: float | None = None
    p: float | None = None
    b1: int | None = None
    b2: int | None = None
    b3: int | None = 1
    periodic: bool = False
    leak_free: bool = False

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.name, "S", self.S)
        validate.whole(self.name, "K", self.K)
        validate.positive(self.name, "eta_g", self.eta_g)
        if self.eta_l is not None:
            validate.positive(self.name, "eta_l", self.eta_l)
        if self.p is not None:
            validate.probability(self.name, "p", self.p)
        for name in ("b1", "b2", "b3"):
            validate.batch(self.name, name, getattr(self, name))
        for name in ("periodic", "leak_free"):
            validate.flag(self.name, name, getattr(self, name))

    @property
    def effective_step(self) -> float:
        """The effective step, eta_g."""
        return self.eta_g

    def with_step(self, step: float) -> Self:
        """The same method at another effective step; a local step that was given keeps its ratio to eta_g."""
        eta_l = None if self.eta_l is None else self.eta_l * (step / self.eta_g)
        return replace(self, eta_g=step, eta_l=eta_l)

    @classmethod
    def from_theory(
        cls, problem: Problem, *, S: int, K: int = 10, epsilon: float | None = None, sigma2: float | None = None,
        variant: str = "corrected",
    ) -> Self:  # fmt: skip
        """The method with the nonconvex theorems' steps: Theorem 2, or Theorem 1 where K = 1; p = S/N.

        L is that of the rows (Theorem 2) or the clients' average (Theorem 1), from `problem.smoothness()`. With sigma2,
        the variance of rows at a client, and epsilon, b1 and b2 are those of Theorem 2; without, all rows.
        variant: "corrected", or "printed" as in the paper (docs/theory.md says why they differ).
        """
        cls(S=S, K=K)  # refuses what cannot be
        validate.sampled(cls.name, S, problem.N)
        if epsilon is not None:
            validate.positive(cls.name, "epsilon", epsilon)
        L, p = problem.smoothness(), S / problem.N
        validate.positive(cls.name, "the problem's smoothness", L.average if K == 1 else L.row)
        b1: int | None = None
        b2: int | None = None
        if sigma2 is not None:
            validate.at_least_zero(cls.name, "sigma2", sigma2)
            if epsilon is None:
                raise InputError(
                    f"{cls.name}: sigma2 without epsilon does not determine the minibatches; give both"
                )
            b1, b2 = steps.nonconvex_batches(sigma2, epsilon, S, p)
        if K == 1:
            eta_g = steps.page_nonconvex(L.average, problem.N, S, p, variant)
            return cls(S=S, K=1, eta_g=eta_g, p=p, b1=b1, b2=b2)
        eta_g, eta_l = steps.fedpage_nonconvex(L.row, problem.N, S, K, p, variant)
        return cls(S=S, K=K, eta_g=eta_g, eta_l=eta_l, p=p, b1=b1, b2=b2)

    @property
    def local_step(self) -> float:
        """eta_l, given or by default eta_g/(100 K)."""
        return self.eta_g / (100 * self.K) if self.eta_l is None else self.eta_l

    def init(self, x0: Vector, N: int) -> State:
        """x^0; x^{-1} and g^{-1} are never used, because round 0 is full."""
        validate.sampled(self.name, self.S, N)
        return State(x=x0, x_prev=x0, g=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call:
        """Lines 2-4 and 10-11."""
        p = self.S / state.N if self.p is None else self.p
        if self.periodic:
            full = draws.round % max(1, round(1 / p)) == 0
        else:
            full = draws.coin(1.0 if draws.round == 0 else p)  # line 2, p_0 = 1
        if not full:
            return self._sampled(state, draws)
        fallback = (
            None if draws.round == 0 else partial(self._sampled, state, draws)
        )  # the first g waits for everyone
        return Call(
            draws.clients(state.N, state.N), Refresh(state.x), require_all=True, fallback=fallback
        )  # line 4

    def _sampled(self, state: State, draws: Draws) -> Call:
        """Lines 10-11: S clients walk. It also stands in for a full round in which someone stays silent."""
        clients = draws.clients(state.N, self.S)  # line 11
        if self.leak_free:
            return Call(clients, FreeWalk(state.x, state.x_prev, state.g))
        return Call(clients, Walk(state.x_prev, state.g))

    def client(
        self, message: Refresh | Walk | FreeWalk, oracle: Oracle, client_state: None
    ) -> tuple[Reply | FreeReply, None]:
        """Lines 5-8, or 12-23."""
        if isinstance(message, Refresh):
            return Reply(oracle.grad(message.x, oracle.batch(self.b1))), client_state  # lines 6-7
        if isinstance(message, FreeWalk):
            return self._free_walk(message, oracle), client_state
        x_prev, g = message
        x = x_prev - self.eta_g * g  # line 26 of the round before, as the server computed it
        g = local_page(
            oracle, x, x_prev, g, K=self.K, eta=self.local_step, first=self.b2, rest=self.b3
        )
        return Reply(g), client_state  # line 22, divided by K eta_l

    def _free_walk(self, message: FreeWalk, oracle: Oracle) -> FreeReply:
        """Lines 13-21 in two pieces, because g_{i,0} is wanted by itself."""
        x, x_prev, g = message
        eta, K = self.local_step, self.K
        g0 = local_page(oracle, x, x_prev, g, K=1, eta=eta, first=self.b2, rest=None)  # line 15
        if K == 1:
            return FreeReply(g0, g0)
        later = local_page(
            oracle, x - eta * g0, x, g0, K=K - 1, eta=eta, first=self.b3, rest=self.b3
        )
        return FreeReply((g0 + (K - 1) * later) / K, g0)

    def server(self, state: State, replies: Replies) -> State:
        """Lines 9, 24 and 26."""
        g = replies.mean.g  # lines 9, 24
        move = replies.mean.move if isinstance(replies.mean, FreeReply) else g
        return State(x=state.x - self.eta_g * move, x_prev=state.x, g=g, N=state.N)  # line 26
