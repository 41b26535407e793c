"""FedExP: FedAvg whose server extrapolates by as much as the clients disagree.

Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation"
(2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedpage.codecs import IDENTITY, Codec
from fedpage.core import validate
from fedpage.core.local_steps import local_sgd
from fedpage.core.types import Call, Draws, Oracle, Replies, Scalar, Vector
from fedpage.methods.base import BaseMethod
from fedpage.methods.messages import Model
from fedpage.methods.registry import register
from fedpage.methods.schedules import StepSize


class State(NamedTuple):
    """The model that is evaluated, the last iterate, the last eta_g, and N."""

    x: Vector
    """The last iterate, or the mean of the last two."""
    iterate: Vector
    """Where the clients start."""
    eta_g: float
    N: int


class Reply(NamedTuple):
    """dy = y_K - x and its squared norm."""

    dy: Vector
    norm2: Scalar


@register("fedexp", group="adaptive", assumes="similar clients; biased otherwise")
@dataclass(frozen=True)
class FedExP(BaseMethod):
    """FedExP: FedAvg with eta_g = max(1, mean |dy|^2 / (2 (|mean dy|^2 + eps))).

    A client sends one number more than with FedAvg. Where all dy are equal, it is
    FedAvg. The effective step is K eta_l, that of FedAvg with eta_g = 1.

    Args:
        S: Sampled clients.
        K: Local steps.
        eta_l: The local step size.
        b: Rows in a minibatch. If None, use all rows.
        eps: A small number that bounds eta_g where the mean of the moves vanishes.
        averaged: Whether the model that is evaluated is the mean of the last two
            iterates, as in the paper's figures. The iterates do not change.
        up: The codec of dy, which must be unbiased. |dy|^2 is measured before it, so
            that its noise makes eta_g smaller on average.
        down: The codec of messages, a cast.
    """

    name = "FedExP"
    paper = "Jhunjhunwala et al. 2023"
    messages = {Model: Reply}
    checks = {"eps": validate.positive, "averaged": validate.flag}
    step_sizes, step_factors = ("eta_l",), ("K",)
    up_codecs = "unbiased"
    needs_numpy = True  # norms are sums of numpy in float64
    changes = {Model: {"dy": None}}

    S: int = 20
    K: int = 10
    eta_l: StepSize = 0.01
    b: int | None = 4
    eps: float = 1e-3
    averaged: bool = False
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def init(self, x0: Vector, N: int) -> State:
        """Return the start."""
        self.check_sample(N)
        return State(x=x0, iterate=x0, eta_g=1.0, N=N)

    def call(self, state: State, draws: Draws) -> Call[Model]:
        """Send the last iterate to S clients."""
        return Call(draws.clients(state.N, self.S), Model(state.iterate))

    def client(
        self, message: Model, oracle: Oracle, client_state: None
    ) -> tuple[Reply, None]:
        """Take K local steps as FedAvg does, and measure how far they went."""
        direction = local_sgd(oracle, message.x, K=self.K, eta=self.eta_l, b=self.b)
        dy = -(self.K * self.eta_l) * direction
        norm2 = (dy * dy).sum(axis=1, keepdims=True, dtype="float64")
        return Reply(dy, norm2), None

    def server(self, state: State, replies: Replies[Reply]) -> State:
        """Set iterate += eta_g mean(dy), with eta_g from the squared norms."""
        D, mean_norm2 = replies.mean.dy, float(replies.mean.norm2[0])
        norm2 = float((D * D).sum(dtype="float64"))
        eta_g = max(1.0, mean_norm2 / (2 * (norm2 + self.eps)))
        iterate = state.iterate + eta_g * D
        x = (iterate + state.iterate) / 2 if self.averaged else iterate
        return State(x=x, iterate=iterate, eta_g=eta_g, N=state.N)
