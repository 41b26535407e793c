"""FedPAGE, Algorithm 1 of the paper.

Zhao, Li, Richtárik, "FedPAGE: A Fast Local Stochastic Gradient Method for
Communication-Efficient Federated Learning" (2021). Variants: `fedpage_variants.py`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import NamedTuple

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.local_steps import local_page
from fedpage.core.types import Call, Draws, Fields, Oracle, Replies, Vector
from fedpage.methods.base import BaseMethod, constant
from fedpage.methods.messages import FullGradient, Gradient
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """x^r, x^{r-1}, g^{r-1} and the number of clients."""

    x: Vector
    x_prev: Vector
    g: Vector
    N: int


class LocalSteps(NamedTuple):
    """To S clients: K PAGE steps from x = x_prev - eta_g g, which is not sent."""

    x_prev: Vector
    g: Vector


@register(
    "fedpage",
    presets={"fedpage-full": ("FedPAGE-Full", dict.fromkeys(("b1", "b2", "b3")))},
    group="variance-reduced",
    assumes="all clients reachable now and then",
)
@dataclass(frozen=True)
class FedPAGE(BaseMethod):
    """FedPAGE: full gradients with probability p, else K local steps at S clients.

    With K = 1 it is PAGE, and with an unbiased codec PP-MARINA. If b1, b2 and b3 are
    None it is FedPAGE-Full of the paper's appendix.

    Args:
        S: Sampled clients.
        K: Local steps.
        eta_g: The server's step size, which is the effective step.
        eta_l: The local step size. If None, use eta_g/(100 K).
        p: Probability of a full round. If None, use S/N.
        b1: Rows in a full round's minibatch. If None, use all rows.
        b2: Rows in the first local step's minibatch. If None, use all rows.
        b3: Rows in the other local steps' minibatches. If None, use all rows.
        up: The codec of replies, unbiased. Full rounds are compressed only by casts.
        down: The codec of messages, a cast.
    """

    name = "FedPAGE"
    paper = "Zhao, Li, Richtárik 2021"
    messages = {FullGradient: Gradient, LocalSteps: Gradient}
    checks = {"eta_g": constant("clients compute x from the last step")}
    step_sizes = ("eta_g", "eta_l")
    up_codecs = "unbiased"
    changes = {LocalSteps: {"g": "g"}}
    gradients = {FullGradient: {"g": None}}
    full_rounds = True

    S: int = 10
    K: int = 10
    eta_g: StepSize = 0.1
    eta_l: StepSize | None = None
    p: float | None = None
    b1: int | None = None
    b2: int | None = None
    b3: int | None = 1
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    @property
    def local_step(self) -> float:
        """The local step size eta_l, given or by default eta_g/(100 K)."""
        return self.eta_g / (100 * self.K) if self.eta_l is None else self.eta_l

    def init(self, x0: Vector, N: int) -> State:
        """Return x^0; x^{-1} and g^{-1} are never used, because round 0 is full."""
        self.check_sample(N)
        return State(x=x0, x_prev=x0, g=0.0 * x0, N=N)

    def is_full(self, state: State, draws: Draws) -> bool:
        """Toss the coin of line 2, with p_0 = 1."""
        p = self.S / state.N if self.p is None else self.p
        return draws.coin(1.0 if draws.round == 0 else p)

    def call(self, state: State, draws: Draws) -> Call[Fields]:
        """Call all clients for gradients (lines 3-4), or S clients for local steps."""
        sampled = partial(self.call_sampled, state, draws)
        if self.is_full(state, draws):
            return self.call_all(state.N, draws, FullGradient(state.x), sampled)
        return sampled()

    def call_sampled(self, state: State, draws: Draws) -> Call[Fields]:
        """Call S clients for local steps (line 11); also where a full round fails."""
        return Call(draws.clients(state.N, self.S), LocalSteps(state.x_prev, state.g))

    def client(
        self, message: Fields, oracle: Oracle, client_state: None
    ) -> tuple[Gradient, None]:
        """Compute the gradient (lines 5-8), or take local steps (lines 12-23)."""
        if isinstance(message, FullGradient):
            g = oracle.grad(message.x, oracle.batch(self.b1))  # lines 6-7
            return Gradient(g), None
        x_prev, g = message
        x = x_prev - self.eta_g * g  # line 26 of the last round, as the server did
        g = local_page(
            oracle, x, x_prev, g,
            K=self.K, eta=self.local_step, first=self.b2, rest=self.b3,
        )  # fmt: skip
        return Gradient(g), None  # line 22, divided by K eta_l

    def server(self, state: State, replies: Replies[Gradient]) -> State:
        """Set g to the mean reply (lines 9 and 24), and move along it (line 26)."""
        g = replies.mean.g
        return state._replace(x=state.x - self.eta_g * g, x_prev=state.x, g=g)
