"""FedPAGE, Algorithm 1 of the paper.

Zhao, Li, Richtárik, "FedPAGE: A Fast Local Stochastic Gradient Method for
Communication-Efficient Federated Learning" (2021).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.errors import InputError
from fedpage.core.local_steps import local_page
from fedpage.core.schedules import StepSize
from fedpage.core.types import (
    Call,
    Draws,
    Flags,
    HyperParameter,
    MessageTypes,
    Oracle,
    Problem,
    Replies,
    Vector,
)
from fedpage.methods import passes, steps
from fedpage.methods.passes import (
    Difference,
    Differences,
    PassAtRest,
    PassGradients,
    PassReply,
    RestReply,
)
from fedpage.methods.registry import register


class State(NamedTuple):
    """x^r, x^{r-1}, g^{r-1} and which clients the averaging start has had."""

    x: Vector
    x_prev: Vector
    g: Vector
    seen: Flags
    """(N,) flags; all are set where the start is a full round."""

    @property
    def N(self) -> int:
        """The number of clients."""
        return len(self.seen)


class FullGradient(NamedTuple):
    """To all clients: send your gradient at x (lines 3-9)."""

    x: Vector


class LocalSteps(NamedTuple):
    """To S clients: K PAGE steps from x = x_prev - eta_g g (lines 11-22).

    The paper sends x too. Two of the three determine the third, so a third of the
    downlink is saved.
    """

    x_prev: Vector
    g: Vector


class LeakFreeSteps(NamedTuple):
    """The leak-free variant's message: x is not x_prev - eta_g g, so all are sent."""

    x: Vector
    x_prev: Vector
    g: Vector


class LeakFreeReply(NamedTuple):
    """The mean of the K estimators, to move along, and g_{i,0}, to carry forward."""

    move: Vector
    g: Vector


class Reply(NamedTuple):
    """The client's gradient, or the mean of its K estimators, (x - y_K)/(K eta_l)."""

    g: Vector


_Message = (
    FullGradient | LocalSteps | LeakFreeSteps | PassAtRest | PassGradients | Differences
)
_Reply = Reply | LeakFreeReply | RestReply | PassReply | Difference
_FULL: dict[str, None] = {"b1": None, "b2": None, "b3": None}


@register(
    "fedpage",
    presets={"fedpage-full": ("FedPAGE-Full", _FULL)},
    group="variance-reduced",
    assumes="all clients reachable now and then",
)
@dataclass(frozen=True)
class FedPAGE:
    """FedPAGE: full gradients with probability p, else K local steps at S clients.

    `FedPAGE.full` uses all rows in every step. `periodic`, `leak_free`, `start` and
    codecs are not part of the paper. With K = 1 and an unbiased codec it is PP-MARINA.

    Args:
        S: Sampled clients.
        K: Local steps.
        eta_g: The server's step size, which is the effective step.
        eta_l: The local step size; None: eta_g/(100 K), at which local steps do not
            damp g (the method's page says when to raise it).
        p: Probability of a full round; None: S/N.
        b1: Rows in a full round's minibatch; None: all rows.
        b2: Rows in the minibatch of the first local step; None: all rows.
        b3: Rows in the minibatches of the other local steps; None: all rows.
        periodic: Full rounds come every round(1/p) rounds instead of by a coin, at the
            same cost, so that no seed is without a full round for long.
        leak_free: Clients also send g_{i,0}. The server moves along the mean of the
            local steps but carries the mean of the g_{i,0}, PAGE's estimator, forward
            as g, so that local steps do not damp it. One vector more up and down.
        start: "full": round 0 calls all clients. "average": the first N/S rounds pass
            over the clients without replacement, S in each, and move all the while.
        up: The codec of replies, unbiased. Local steps send what g changes by. Full
            rounds are not compressed, except by a cast.
        down: The codec of messages, a cast.
    """

    name: ClassVar[str] = "FedPAGE"
    paper: ClassVar[str] = "Zhao, Li, Richtárik 2021"
    messages: ClassVar[MessageTypes] = {
        FullGradient: Reply,
        LocalSteps: Reply,
        LeakFreeSteps: LeakFreeReply,
        PassAtRest: RestReply,
        PassGradients: PassReply,
        Differences: Difference,
    }
    client_state: ClassVar[None] = None

    S: int = 10
    K: int = 10
    eta_g: StepSize = 0.1
    eta_l: StepSize | None = None
    p: float | None = None
    b1: int | None = None
    b2: int | None = None
    b3: int | None = 1
    periodic: bool = False
    leak_free: bool = False
    _: KW_ONLY
    start: Literal["full", "average"] = "full"
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.name, "S", self.S)
        validate.whole(self.name, "K", self.K)
        if self.leak_free is True:  # clients receive x
            schedules.check_step(self.name, "eta_g", self.eta_g)
        else:
            why = "clients compute x from the last step, unless leak_free=True"
            schedules.check_constant(self.name, "eta_g", self.eta_g, why)
        if self.eta_l is not None:
            schedules.check_step(self.name, "eta_l", self.eta_l)
        if self.p is not None:
            validate.probability(self.name, "p", self.p)
        for name in ("b1", "b2", "b3"):
            validate.batch(self.name, name, getattr(self, name))
        for name in ("periodic", "leak_free"):
            validate.flag(self.name, name, getattr(self, name))
        validate.choice(self.name, "start", self.start, ("full", "average"))
        codecs.check(self, "unbiased")
        if type(self) is FedPAGE and self.b1 is self.b2 is self.b3 is None:
            object.__setattr__(self, "name", "FedPAGE-Full")

    @classmethod
    def full(cls, **hyper_parameters: HyperParameter) -> Self:
        """Return FedPAGE-Full of the paper's appendix: b1 = b2 = b3 = M."""
        return cls(b1=None, b2=None, b3=None, **hyper_parameters)

    @property
    def compressible(self) -> Compressible:
        """What passes through `up`: changes of g, and with a cast full gradients."""
        changes: Compressible = {
            LocalSteps: {"g": "g"},
            LeakFreeSteps: {"move": "g", "g": "g"},
            PassGradients: {"y": None},
            Differences: {"y": None},
        }
        if not self.up.is_cast:
            return changes
        gradients: Compressible = {
            FullGradient: {"g": None},
            PassAtRest: {"g": None},
            PassGradients: {"g": None, "y": None},
        }
        return {**changes, **gradients}

    @property
    def effective_step(self) -> float:
        """The effective step, eta_g."""
        return self.eta_g

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step.

        A local step that was given keeps its ratio to eta_g.
        """
        eta_l = None if self.eta_l is None else self.eta_l * (step / self.eta_g)
        return replace(self, eta_g=step, eta_l=eta_l)

    @classmethod
    def from_theory(
        cls,
        problem: Problem,
        *,
        S: int,
        K: int = 10,
        epsilon: float | None = None,
        sigma2: float | None = None,
        variant: str = "corrected",
    ) -> Self:
        """Return the method with the step sizes of the nonconvex theorems and p = S/N.

        Theorem 2 is used, or Theorem 1 where K = 1. L is that of the rows (Theorem 2)
        or the clients' average (Theorem 1), from `problem.smoothness()`.

        Args:
            problem: The problem.
            S: Sampled clients.
            K: Local steps.
            epsilon: The target gradient norm, for b1 and b2.
            sigma2: The variance of rows at a client, for b1 and b2; None: all rows.
            variant: "corrected", or "printed": the paper's steps, which its proofs do
                not cover, and which can diverge at K = 1 (docs/theory.md).

        Raises:
            InputError: The values are impossible or do not determine the minibatches.
        """
        cls(S=S, K=K)  # refuses impossible values
        validate.check_sample(cls.name, S, problem.N)
        if epsilon is not None:
            validate.positive(cls.name, "epsilon", epsilon)
        L, p = problem.smoothness(), S / problem.N
        needed = L.average if K == 1 else L.row
        validate.positive(cls.name, "the problem's smoothness", needed)
        b1: int | None = None
        b2: int | None = None
        if sigma2 is not None:
            validate.at_least_zero(cls.name, "sigma2", sigma2)
            if epsilon is None:
                raise InputError(
                    f"{cls.name}: sigma2 without epsilon does not determine the "
                    "minibatches; give both"
                )
            b1, b2 = steps.nonconvex_batches(sigma2, epsilon, S, p)
        if K == 1:
            eta_g = steps.page_nonconvex(L.average, problem.N, S, p, variant)
            return cls(S=S, K=1, eta_g=eta_g, p=p, b1=b1, b2=b2)
        eta_g, eta_l = steps.fedpage_nonconvex(L.row, problem.N, S, K, p, variant)
        return cls(S=S, K=K, eta_g=eta_g, eta_l=eta_l, p=p, b1=b1, b2=b2)

    @property
    def local_step(self) -> float:
        """The local step size eta_l, given or by default eta_g/(100 K)."""
        return self.eta_g / (100 * self.K) if self.eta_l is None else self.eta_l

    def init(self, x0: Vector, N: int) -> State:
        """Return x^0; x^{-1} and g^{-1} are never used: round 0 asks for gradients."""
        validate.check_sample(self.name, self.S, N)
        seen = passes.nobody(N) if self.start == "average" else passes.everybody(N)
        return State(x=x0, x_prev=x0, g=0.0 * x0, seen=seen)

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Choose a full or a sampled round (lines 2-4 and 10-11)."""
        if not passes.is_complete(state.seen):
            x, x_prev, _, seen = state
            sampled = partial(self._call_sampled, state, draws)
            return passes.call_next(x, x_prev, seen, 0, draws, self.S, sampled)
        p = self.S / state.N if self.p is None else self.p
        if self.periodic:
            full = draws.round % max(1, round(1 / p)) == 0
        else:
            full = draws.coin(1.0 if draws.round == 0 else p)  # line 2, p_0 = 1
        if not full:
            return self._call_sampled(state, draws)
        fallback = None  # the first g needs all clients
        if draws.round != 0:
            fallback = partial(self._call_sampled, state, draws)
        clients = draws.clients(state.N, state.N)  # line 4
        message = FullGradient(state.x)
        return Call(clients, message, require_all=True, fallback=fallback)

    def _call_sampled(self, state: State, draws: Draws) -> Call[_Message]:
        """Call S clients for local steps; also the fallback of a full round."""
        clients = draws.clients(state.N, self.S)  # line 11
        if self.leak_free:
            return Call(clients, LeakFreeSteps(state.x, state.x_prev, state.g))
        if self.K == 1 and self.start == "average":
            return Call(clients, Differences(state.x, state.x_prev))
        return Call(clients, LocalSteps(state.x_prev, state.g))

    def client(
        self, message: _Message, oracle: Oracle, client_state: None
    ) -> tuple[_Reply, None]:
        """Compute the gradient (lines 5-8), or take local steps (lines 12-23)."""
        if isinstance(message, FullGradient):
            return Reply(
                oracle.grad(message.x, oracle.batch(self.b1))
            ), None  # lines 6-7
        if isinstance(message, LeakFreeSteps):
            return self._leak_free_steps(message, oracle), None
        if isinstance(message, PassAtRest | PassGradients):
            return passes.reply_in_pass(oracle, message, self.b1, self.b2), None
        if isinstance(message, Differences):
            return Difference(passes.difference(oracle, *message, self.b2)), None
        x_prev, g = message
        x = x_prev - self.eta_g * g  # line 26 of the last round, as the server did
        g = local_page(
            oracle, x, x_prev, g,
            K=self.K, eta=self.local_step, first=self.b2, rest=self.b3,
        )  # fmt: skip
        return Reply(g), None  # line 22, divided by K eta_l

    def _leak_free_steps(self, message: LeakFreeSteps, oracle: Oracle) -> LeakFreeReply:
        """Take lines 13-21 in two pieces, because g_{i,0} is sent by itself."""
        x, x_prev, g = message
        eta, K, b2, b3 = self.local_step, self.K, self.b2, self.b3
        g0 = local_page(
            oracle, x, x_prev, g, K=1, eta=eta, first=b2, rest=None
        )  # line 15
        if K == 1:
            return LeakFreeReply(g0, g0)
        x1 = x - eta * g0  # line 16
        later = local_page(oracle, x1, x, g0, K=K - 1, eta=eta, first=b3, rest=b3)
        return LeakFreeReply((g0 + (K - 1) * later) / K, g0)

    def server(self, state: State, replies: Replies[_Reply]) -> State:
        """Set g and move along it (lines 9, 24 and 26)."""
        mean, seen = replies.mean, passes.next_seen(state.seen, replies)
        if isinstance(mean, RestReply | PassReply):
            g = passes.join(state.g, mean, passes.share(replies, seen))
        elif isinstance(mean, Difference):
            g = state.g + mean.y
        else:
            g = mean.g  # lines 9, 24
        move = mean.move if isinstance(mean, LeakFreeReply) else g
        x = state.x - self.eta_g * move  # line 26
        return State(x=x, x_prev=state.x, g=g, seen=seen)
