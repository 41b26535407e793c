"""MARINA, PP-MARINA and VR-MARINA: PAGE over clients with compressed differences.

Gorbunov, Burlachenko, Li, Richtárik, "MARINA: Faster Non-Convex Distributed Learning
with Compression" (2021).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import NamedTuple

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.local_steps import local_page
from fedpage.core.types import Call, Draws, DType, Oracle, Replies, Vector
from fedpage.methods.base import BaseMethod, constant
from fedpage.methods.fedpage import State
from fedpage.methods.messages import FullGradient, Gradient
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


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
class PPMARINA(BaseMethod):
    """PP-MARINA: full gradients with probability p, else S compressed differences.

    It is FedPAGE with K = 1 and a codec, and PAGE without a codec. The effective step
    is eta_g, which the paper calls gamma.

    Args:
        S: Sampled clients. If None, call all clients, as MARINA does.
        eta_g: The step size.
        p: Probability of a full round. If None, use S/N times the share of a vector's
            bits that `up` sends, so that full and sampled rounds send equally much.
            Where the downlink counts, S/N is often better (the method's page).
        b: Rows in the minibatch of a difference. If None, use all rows.
        up: The codec of differences, unbiased. Full rounds are not compressed, except
            by a cast.
        down: The codec of messages, a cast.
    """

    name = "PP-MARINA"
    paper = "Gorbunov, Burlachenko, Li, Richtárik 2021"
    messages = {FullGradient: Gradient, Difference: Gradient}
    checks = {"eta_g": constant("clients compute x from the last round's step")}
    step_sizes = ("eta_g",)
    up_codecs = "unbiased"
    changes = {Difference: {"g": "g"}}
    gradients = {FullGradient: {"g": None}}
    full_rounds = True

    S: int | None = 10
    eta_g: StepSize = 0.1
    p: float | None = None
    b: int | None = None
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def init(self, x0: Vector, N: int) -> State:
        """Return x^0; x^{-1} and g^{-1} are never used, because round 0 is full."""
        self.check_sample(N)
        return State(x=x0, x_prev=x0, g=0.0 * x0, N=N)

    def call(self, state: State, draws: Draws) -> Call[_Message]:
        """Choose a full round or one of differences, by a coin that all clients see."""
        N, p, x = state.N, self.p, state.x
        if p is None:
            p = full_probability(self.participants(N), N, self.up, len(x), x.dtype)
        message = Difference(state.x_prev, state.g)
        differences = partial(self.call_some, N, draws, message)
        if draws.coin(1.0 if draws.round == 0 else p):
            return self.call_all(N, draws, FullGradient(x), differences)
        return differences()

    def client(
        self, message: _Message, oracle: Oracle, client_state: None
    ) -> tuple[Gradient, None]:
        """Compute the gradient, or g + grad_I(x) - grad_I(x_prev) with the same I."""
        if isinstance(message, FullGradient):
            return Gradient(oracle.grad(message.x, oracle.batch(None))), None
        x_prev, g = message
        x = x_prev - self.eta_g * g  # as the server did
        # one step of PAGE's recursion; eta and rest concern later steps
        g = local_page(
            oracle, x, x_prev, g, K=1, eta=self.eta_g, first=self.b, rest=None
        )
        return Gradient(g), None

    def server(self, state: State, replies: Replies[Gradient]) -> State:
        """Set g to the gradient, or to g + mean C(differences), and move along it."""
        g = replies.mean.g
        return State(x=state.x - self.eta_g * g, x_prev=state.x, g=g, N=state.N)


@register("marina", assumes="all clients in every round")
@dataclass(frozen=True)
class MARINA(PPMARINA):
    """MARINA: PP-MARINA with all clients in every round, and all rows."""

    name = "MARINA"
    fixed = ("S", "b")

    S: int | None = None


@register("vr-marina", assumes="all clients in every round", page="marina")
@dataclass(frozen=True)
class VRMARINA(PPMARINA):
    """VR-MARINA: MARINA whose differences use minibatches of b rows."""

    name = "VR-MARINA"
    fixed = ("S",)

    S: int | None = None
    b: int | None = 1
