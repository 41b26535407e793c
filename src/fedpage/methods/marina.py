"""MARINA, PP-MARINA and VR-MARINA: PAGE over clients with compressed differences.

Gorbunov, Burlachenko, Li, Richtárik, "MARINA: Faster Non-Convex Distributed Learning
with Compression" (2021).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Chain, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.capabilities import dtype_of
from fedpage.core.errors import InputError
from fedpage.core.local_steps import local_page
from fedpage.core.schedules import StepSize
from fedpage.core.types import Call, Draws, DType, MessageTypes, Oracle, Problem, Replies, Vector
from fedpage.methods import steps
from fedpage.methods.fedpage import FullGradient, Reply
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model, the one before it, the estimator g and the number of clients."""

    x: Vector
    x_prev: Vector
    g: Vector
    N: int


class Difference(NamedTuple):
    """To S clients: g plus the change of your gradient from x_prev to x_prev - eta g.

    The paper's clients keep x_prev. Sampled clients may not have it, so it is sent.
    """

    x_prev: Vector
    g: Vector


_Message = FullGradient | Difference


def full_probability(S: int, N: int, up: Codec, d: int, dtype: DType) -> float:
    """Return the p at which full and sampled rounds send equally many bits up.

    It is S/N, times the share of a vector's bits that the codec sends. For RandK this
    is S/(N (1 + omega)). A cast leaves it at S/N, because it shortens full rounds too.
    """
    share, omega = 1.0, up.omega(d)
    if up.needs_ranks:  # each called client sends a block of its own
        share = 1 / S
    elif not up.has_fixed_size and omega is not None:
        share = 1 / (1 + omega)
    elif not up.is_cast:
        share = min(1.0, up.bits(d, dtype) / IDENTITY.bits(d, dtype))
    return S / N * share


@register(
    "pp-marina",
    group="compressed",
    assumes="all clients reachable now and then",
    page="marina",
)
@dataclass(frozen=True)
class PPMARINA:
    """PP-MARINA: full gradients with probability p, else S compressed differences.

    It is FedPAGE with K = 1 and a codec, and PAGE without a codec. The effective step
    is eta_g, which the paper calls gamma.

    Args:
        S: Sampled clients; None: all clients, as in MARINA.
        eta_g: The step size.
        p: Probability of a full round; None: S/N, times the share of a vector's bits
            that `up` sends, so that full and sampled rounds send equally much. Where
            the downlink counts, S/N is often better (the method's page).
        b: Rows in the minibatch of a difference; None: all rows.
        up: The codec of differences, unbiased. Full rounds are not compressed, except
            by a cast.
        down: The codec of messages, a cast.
    """

    name: ClassVar[str] = "PP-MARINA"
    paper: ClassVar[str] = "Gorbunov, Burlachenko, Li, Richtárik 2021"
    messages: ClassVar[MessageTypes] = {FullGradient: Reply, Difference: Reply}
    client_state: ClassVar[None] = None

    S: int | None = 10
    eta_g: StepSize = 0.1
    p: float | None = None
    b: int | None = None
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.batch(self.name, "S", self.S)
        why = "clients compute x from the last round's step"
        schedules.check_constant(self.name, "eta_g", self.eta_g, why)
        if self.p is not None:
            validate.probability(self.name, "p", self.p)
        validate.batch(self.name, "b", self.b)
        codecs.check(self, "unbiased")

    @property
    def compressible(self) -> Compressible:
        """What passes through `up`: differences, and with a cast full gradients."""
        changes: Compressible = {Difference: {"g": "g"}}
        return {**changes, FullGradient: {"g": None}} if self.up.is_cast else changes

    @property
    def effective_step(self) -> float:
        """The effective step, eta_g."""
        return self.eta_g

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step."""
        return replace(self, eta_g=step)

    @classmethod
    def from_theory(
        cls,
        problem: Problem,
        *,
        S: int | None = None,
        b: int | None = None,
        up: Codec | str = IDENTITY,
        p: float | None = None,
        variant: str = "refined",
    ) -> Self:
        """Return the method with the step size of its theorem.

        `steps.marina` has the formulas.

        Args:
            problem: The problem.
            S: Sampled clients; None: all clients.
            b: Rows in the minibatch of a difference; None: all rows.
            up: The codec of differences.
            p: Probability of a full round; None: the method's default.
            variant: "refined", or "printed" as in the paper.

        Raises:
            InputError: The values are impossible.
        """
        method = cls(S=S, b=b, p=p, up=codecs.as_codec(up))
        N, S = problem.N, problem.N if S is None else S
        validate.check_sample(cls.name, S, N)
        L, up = problem.smoothness(), method.up
        validate.positive(cls.name, "the problem's smoothness", L.average)
        if p is None:
            p = full_probability(S, N, up, problem.d, dtype_of(problem))
        omega = up.omega(problem.d) or 0.0  # a cast counts as exact
        if up.needs_ranks:  # PermK, whose own variance `joint` stands for
            omega = (
                (up.second.omega(problem.d) or 0.0) if isinstance(up, Chain) else 0.0
            )
        eta_g = steps.marina(L, N, S, p, omega, b, variant, joint=up.needs_ranks)
        return replace(method, eta_g=eta_g, p=p)

    def init(self, x0: Vector, N: int) -> State:
        """Return x^0; x^{-1} and g^{-1} are never used, because round 0 is full."""
        if self.S is not None:
            validate.check_sample(self.name, self.S, N)
        return State(x=x0, x_prev=x0, g=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Choose a full round or one of differences, by a coin that all clients see."""
        S = state.N if self.S is None else self.S
        p, x = self.p, state.x
        if p is None:
            p = full_probability(S, state.N, self.up, len(x), x.dtype)
        differences = partial(self._call_differences, state, draws, S)
        if not draws.coin(1.0 if draws.round == 0 else p):
            return differences()
        fallback = None if draws.round == 0 else differences  # the first g needs all
        clients = draws.clients(state.N, state.N)
        message = FullGradient(state.x)
        return Call(clients, message, require_all=True, fallback=fallback)

    def _call_differences(self, state: State, draws: Draws, S: int) -> Call[_Message]:
        """Call S clients for differences; also the fallback of a full round."""
        return Call(draws.clients(state.N, S), Difference(state.x_prev, state.g))

    def client(
        self, message: _Message, oracle: Oracle, client_state: None
    ) -> tuple[Reply, None]:
        """Compute the gradient, or g + grad_I(x) - grad_I(x_prev) with the same I."""
        if isinstance(message, FullGradient):
            return Reply(oracle.grad(message.x, oracle.batch(None))), None
        x_prev, g = message
        x = x_prev - self.eta_g * g  # as the server did
        # one step of PAGE's recursion; eta and rest concern later steps
        g = local_page(
            oracle, x, x_prev, g, K=1, eta=self.eta_g, first=self.b, rest=None
        )
        return Reply(g), None

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set g to the gradient, or to g + mean C(differences), and move along it."""
        g = replies.mean.g
        return State(x=state.x - self.eta_g * g, x_prev=state.x, g=g, N=state.N)


@register(
    "marina", group="compressed", assumes="all clients in every round", page="marina"
)
@dataclass(frozen=True)
class MARINA(PPMARINA):
    """MARINA: PP-MARINA with all clients in every round, and all rows."""

    name: ClassVar[str] = "MARINA"

    S: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.S is not None:
            raise InputError(
                "MARINA: calls all clients; with S sampled clients it is PP-MARINA"
            )
        if self.b is not None:
            raise InputError("MARINA: uses all rows; with minibatches it is VR-MARINA")


@register(
    "vr-marina", group="compressed", assumes="all clients in every round", page="marina"
)
@dataclass(frozen=True)
class VRMARINA(PPMARINA):
    """VR-MARINA: MARINA whose differences use minibatches of b rows."""

    name: ClassVar[str] = "VR-MARINA"

    S: int | None = None
    b: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.S is not None:
            raise InputError(
                "VR-MARINA: calls all clients; with S sampled clients it is PP-MARINA"
            )
