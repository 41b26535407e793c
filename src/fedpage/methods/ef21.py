"""EF21 and its variants: error feedback for biased codecs; and SAG over clients.

Richtárik, Sokolov, Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and
Practically Faster Error Feedback" (2021).
Fatkhullin, Sokolov, Gorbunov, Li, Richtárik, "EF21 with Bells & Whistles: Practical
Algorithmic Extensions of Modern Error Feedback" (2021): Alg. 4 (PP) and 6 (HB).
Fatkhullin, Tyurin, Richtárik, "Momentum Provably Improves Error Feedback!" (2023).
Le Roux, Schmidt, Bach, "A Stochastic Gradient Method with an Exponential Convergence
Rate for Finite Training Sets" (2012): SAG.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.core import schedules, validate
from fedpage.core.errors import InputError
from fedpage.core.schedules import StepSize
from fedpage.core.types import (
    Call,
    Draws,
    MessageTypes,
    Oracle,
    Problem,
    Replies,
    Vector,
)
from fedpage.methods import table_steps
from fedpage.methods.registry import register


class State(NamedTuple):
    """The model, the mean g of all g_i, the heavy ball's v, the number of clients."""

    x: Vector
    g: Vector
    v: Vector
    N: int


class Model(NamedTuple):
    """To called clients: send C(grad f_i(x) - g_i)."""

    x: Vector


class Reply(NamedTuple):
    """c_i, the change of g_i."""

    c: Vector


class ClientState(NamedTuple):
    """g_i, which follows the client's gradient."""

    g: Vector


class MomentumState(NamedTuple):
    """g_i, and v_i, the mean of past gradients that g_i follows."""

    g: Vector
    v: Vector


@register(
    "ef21",
    group="compressed",
    assumes="all clients in every round, each with a state",
    page="ef21",
)
@dataclass(frozen=True)
class EF21:
    """EF21: each client sends the compressed change of its gradient estimate g_i.

    All clients take part in every round. The effective step is eta/(1 - beta).

    Args:
        eta: The step size.
        beta: Weight of the server's heavy ball (EF21-HB); 0: none.
        b: Rows in a minibatch; None: all rows, as published. Fewer rows leave a large
            error; EF21-SGDM does not have it.
        up: The codec of c_i: contractive ones, such as topk:0.1 or scaled(randk:0.1).
        down: The codec of x: casts, such as float32. EF21-BC compresses more.
    """

    name: ClassVar[str] = "EF21"
    paper: ClassVar[str] = "Richtárik, Sokolov, Fatkhullin 2021"
    messages: ClassVar[MessageTypes] = {Model: Reply}
    client_state: ClassVar[type] = ClientState
    compressible: ClassVar[Compressible] = {Model: {"c": None}}

    eta: StepSize = 0.1
    beta: float = 0.0
    b: int | None = None
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        schedules.check_step(self.name, "eta", self.eta)
        validate.decay(self.name, "beta", self.beta)
        validate.batch(self.name, "b", self.b)
        codecs.check(self, "contractive")

    @property
    def effective_step(self) -> float:
        """The effective step, eta/(1 - beta)."""
        return self.eta / (1 - self.beta)

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step."""
        return replace(self, eta=step * (1 - self.beta))

    def participants(self, N: int) -> int:
        """Return the number of clients that are called in a round."""
        return N

    @classmethod
    def from_theory(cls, problem: Problem, *, up: Codec | str = IDENTITY) -> Self:
        """Return the method with the step size of Theorem 1, for a nonconvex f.

        Args:
            problem: The problem, whose L and average L_i the step depends on.
            up: The codec.
        """
        method = cls(up=codecs.as_codec(up))
        return replace(method, eta=method.theory_step(problem, 1.0))

    def theory_step(self, problem: Problem, share: float) -> float:
        """Return Theorem 1's step where a share of the clients takes part."""
        L = problem.smoothness()
        validate.positive(self.name, "the problem's smoothness", L.whole)
        alpha = contraction(self.name, self.up, problem.d)
        return table_steps.ef21_nonconvex(L.whole, L.average, share * alpha)

    def init(self, x0: Vector, N: int) -> State:
        """Start with g = 0, as all g_i."""
        validate.check_sample(self.name, self.participants(N), N)
        return State(x=x0, g=0.0 * x0, v=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Model]:
        """Send the model."""
        clients = draws.clients(state.N, self.participants(state.N))
        return Call(clients, Model(state.x))

    def client(
        self, message: Model, oracle: Oracle, client_state: ClientState
    ) -> tuple[Reply, ClientState]:
        """Reply grad f_i(x) - g_i, which passes through C: c_i of Alg. 1."""
        gradient = oracle.grad(message.x, oracle.batch(self.b))
        return Reply(gradient - client_state.g), client_state

    def keep(
        self, message: Model, sent: Reply, client_state: ClientState
    ) -> ClientState:
        """Set g_i += c_i (eq. 7)."""
        return ClientState(client_state.g + sent.c)

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set g += (S/N) mean c_i (eq. 7), v = beta v + g (Alg. 6), x -= eta v."""
        g = state.g + (replies.count / state.N) * replies.mean.c
        v = self.beta * state.v + g
        return State(x=state.x - self.eta * v, g=g, v=v, N=state.N)


@register(
    "ef21-pp", group="compressed", assumes="clients that keep a state", page="ef21"
)
@dataclass(frozen=True)
class EF21PP(EF21):
    """EF21-PP: EF21 with S sampled clients; the others' c_i is 0.

    Args:
        eta: The step size.
        beta: Weight of the server's heavy ball; 0: none.
        b: Rows in a minibatch; None: all rows, as published.
        up: The codec of c_i, a contractive one.
        down: The codec of x, a cast.
        S: Sampled clients.
    """

    name: ClassVar[str] = "EF21-PP"
    paper: ClassVar[str] = "Fatkhullin et al. 2021"

    S: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.whole(self.name, "S", self.S)

    def participants(self, N: int) -> int:
        """Return S."""
        return self.S

    @classmethod
    def from_theory(
        cls, problem: Problem, *, S: int = 20, up: Codec | str = IDENTITY
    ) -> Self:
        """Return the method with the step size of Theorem 7, for a nonconvex f.

        Its s and rho are the best ones, s = rho, at which the theorem is Theorem 1 with
        alpha S/N in the place of alpha.

        Args:
            problem: The problem, whose L and average L_i the step depends on.
            S: Sampled clients.
            up: The codec.
        """
        method = cls(S=S, up=codecs.as_codec(up))
        validate.check_sample(cls.name, S, problem.N)
        return replace(method, eta=method.theory_step(problem, S / problem.N))


@register(
    "sag", group="variance-reduced", assumes="clients that keep a state", page="ef21"
)
@dataclass(frozen=True)
class SAG(EF21PP):
    """SAG over clients: EF21-PP without compression, so g_i is the last gradient sent.

    Args:
        eta: The step size.
        beta: Weight of the server's heavy ball; 0: none.
        b: Rows in a minibatch; None: all rows, as published.
        up: No codec but casts such as float32; with another one it is EF21-PP.
        down: The codec of x, a cast.
        S: Sampled clients.
    """

    name: ClassVar[str] = "SAG"
    paper: ClassVar[str] = "Le Roux, Schmidt, Bach 2012"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.up.is_cast:
            raise InputError(
                f"SAG: up={self.up} makes it another method; use EF21-PP (ef21-pp)"
            )


@register(
    "ef21-sgdm",
    group="compressed",
    assumes="all clients in every round, each with a state",
    page="ef21",
)
@dataclass(frozen=True)
class EF21SGDM(EF21):
    """EF21-SGDM: EF21 that follows v_i, the client's momentum, instead of a gradient.

    Momentum averages the noise of minibatches before it is compressed.

    Args:
        eta: The step size.
        beta: Weight of the server's heavy ball; 0: none, as published.
        b: Rows in a minibatch; None: all rows.
        up: The codec of c_i, a contractive one.
        down: The codec of x, a cast.
        m: Weight of a new gradient in v_i, in (0, 1]; the paper's eta. 1: EF21.
    """

    name: ClassVar[str] = "EF21-SGDM"
    paper: ClassVar[str] = "Fatkhullin, Tyurin, Richtárik 2023"
    client_state: ClassVar[type] = MomentumState

    b: int | None = 4
    m: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.probability(self.name, "m", self.m)

    @classmethod
    def from_theory(
        cls, problem: Problem, *, up: Codec | str = IDENTITY, m: float = 0.1
    ) -> Self:
        """Return the method with eta = min(alpha/(20 L_average), m/(7 L)).

        The paper's m depends on the noise and on the number of rounds. The constants
        20 and 7 were derived again for this library (docs/methods/ef21.md).

        Args:
            problem: The problem, whose L and average L_i the step depends on.
            up: The codec.
            m: Weight of a new gradient in v_i.
        """
        method = cls(up=codecs.as_codec(up), m=m)
        L = problem.smoothness()
        validate.positive(cls.name, "the problem's smoothness", L.whole)
        alpha = contraction(cls.name, method.up, problem.d)
        return replace(method, eta=min(alpha / (20 * L.average), m / (7 * L.whole)))

    def client(  # type: ignore[override]  # its clients keep v_i too
        self, message: Model, oracle: Oracle, client_state: MomentumState
    ) -> tuple[Reply, MomentumState]:
        """Set v_i = (1-m) v_i + m grad_I f_i(x); reply v_i - g_i, through C."""
        gradient = oracle.grad(message.x, oracle.batch(self.b))
        v = (1 - self.m) * client_state.v + self.m * gradient
        return Reply(v - client_state.g), MomentumState(client_state.g, v)

    def keep(  # type: ignore[override]
        self, message: Model, sent: Reply, client_state: MomentumState
    ) -> MomentumState:
        """Set g_i += c_i."""
        return MomentumState(client_state.g + sent.c, client_state.v)


def contraction(name: str, codec: Codec, d: int) -> float:
    """Return the codec's contraction alpha for d parameters.

    Raises:
        InputError: It is not contractive for so few, such as randk:0.6 for two.
    """
    alpha = codec.alpha(d)
    if alpha is None:
        raise InputError(
            f"{name}: {codec} is not contractive for {d} parameters; "
            f"use scaled({codec})"
        )
    return alpha
