"""Scaffnew: local gradient steps of a random number, corrected by control variates.

Mishchenko, Malinovsky, Stich, Richtárik, "ProxSkip: Yes! Local Gradient Steps Provably
Lead to Communication Acceleration! Finally!" (2022), Algorithm 2.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.errors import InputError, short_repr
from fedpage.core.local_steps import local_sgd
from fedpage.core.messages import as_scalar
from fedpage.core.schedules import StepSize
from fedpage.core.types import (
    Call,
    Draws,
    MessageTypes,
    Oracle,
    Problem,
    Replies,
    Scalar,
    Vector,
)
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model and the number of clients."""

    x: Vector
    N: int


class Begin(NamedTuple):
    """To all clients, in round 0: K steps from x, without correction."""

    x: Vector
    K: Scalar


class Continue(NamedTuple):
    """To all clients: x is the mean of the last models; correct by it, then K steps."""

    x: Vector
    K: Scalar


class Reply(NamedTuple):
    """dy = y_K - x."""

    dy: Vector


class ClientState(NamedTuple):
    """h_i, the control variate of the last steps, and y_K, where they ended."""

    h: Vector
    y: Vector


@register(
    "scaffnew", group="local", assumes="strongly convex; all clients in every round"
)
@dataclass(frozen=True)
class Scaffnew:
    """Scaffnew: all clients take K steps y -= eta (grad_I(y) - h_i), K ~ Geometric(p).

    This is Algorithm 2, where a coin of probability p after each local step decides
    whether clients communicate; the server draws the number of steps up to that, and
    sends it. x is the mean of the y_K. h_i += (p/eta)(x - y_K) when the client receives
    x, at its next call; the h_i sum to zero. The effective step is eta/p, the mean
    number of steps times eta.

    Args:
        p: Probability of communication after a local step; 1/p steps on average.
        eta: The step size.
        b: Rows in a minibatch; None: all rows, as in the paper.
        up: The codec of replies, a cast.
        down: The codec of messages, a cast. The h_i then sum to zero up to the last
            rounding of x, times p/eta.
    """

    name: ClassVar[str] = "Scaffnew"
    paper: ClassVar[str] = "Mishchenko et al. 2022"
    messages: ClassVar[MessageTypes] = {Begin: Reply, Continue: Reply}
    client_state: ClassVar[type[ClientState]] = ClientState
    compressible: ClassVar[Compressible] = {
        Begin: {"dy": None},
        Continue: {"dy": None},
    }

    p: float = 0.1
    eta: StepSize = 0.01
    b: int | None = None
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.geometric(self.name, self.p)
        why = "corrections are divided by the last round's step"
        schedules.check_constant(self.name, "eta", self.eta, why)
        validate.batch(self.name, "b", self.b)
        codecs.check(self, "cast", hint="use SCALLION, which compresses changes")

    @property
    def effective_step(self) -> float:
        """The effective step, eta/p."""
        return self.eta / self.p

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step, by changing eta."""
        return replace(self, eta=step * self.p)

    @classmethod
    def from_theory(cls, problem: Problem, *, mu: float) -> Self:
        """Return the method with eta = 1/L and p = sqrt(mu/L), L = max L_i.

        Then every local step multiplies E|y - x*|^2 + (eta/p)^2 |h - h*|^2 by at most
        1 - min(eta mu, p^2) = 1 - mu/L (Theorem 3.6), and sqrt(L/mu) log(1/eps) rounds
        suffice.

        Args:
            problem: The problem.
            mu: The strong convexity of every client's objective.

        Raises:
            InputError: mu is not between 0 and L.
        """
        L = problem.smoothness().client
        validate.positive(cls.name, "mu", mu)
        if not mu <= L:
            raise InputError(
                f"{cls.name}: mu must be at most L = {L:.4g}, not {short_repr(mu)}"
            )
        return cls(p=(mu / L) ** 0.5, eta=1.0 / L)

    def init(self, x0: Vector, N: int) -> State:
        """Return the start; all h_i are 0."""
        return State(x=x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Begin | Continue]:
        """Call all clients: over some clients the h_i would not sum to zero."""
        message = Begin if draws.round == 0 else Continue
        K = as_scalar(draws.geometric(self.p))
        clients = draws.clients(state.N, state.N)
        return Call(clients, message(state.x, K), require_all=True)

    def client(
        self, message: Begin | Continue, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Correct h_i by x, then take K corrected steps."""
        x, h = message.x, client_state.h
        K = validate.geometric_steps(self.name, self.p, message.K[0])
        if isinstance(message, Continue):  # line 11; x is the mean of the last y_K
            h = h + (x - client_state.y) / (self.eta / self.p)
        direction = local_sgd(oracle, x, K=K, eta=self.eta, b=self.b, shift=-h)
        return Reply(-(K * self.eta) * direction), ClientState(h, client_state.y)

    def keep(
        self, message: Begin | Continue, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Keep y_K as it was sent, so that the h_i sum to zero after any cast."""
        return ClientState(client_state.h, message.x + sent.dy)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set x to the mean of the y_K (line 9)."""
        return State(x=state.x + replies.mean.dy, N=state.N)
