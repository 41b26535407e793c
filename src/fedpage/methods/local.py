"""Base classes of methods with local steps: of local SGD, and of proximal steps."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.errors import InputError
from fedpage.core.local_steps import local_sgd
from fedpage.core.types import Oracle, Vector
from fedpage.methods import schedules
from fedpage.methods.base import BaseMethod
from fedpage.methods.schedules import StepSize, as_schedule


@dataclass(frozen=True)
class LocalSGD(BaseMethod):
    """Sample S clients that take K local steps each.

    Args:
        S: Sampled clients.
        K: Local steps.
        eta_l: The local step size.
        eta_g: The server's step size.
        b: Rows in a minibatch. If None, use all rows.
        up: The codec of replies.
        down: The codec of messages.
    """

    name = "local SGD"
    step_sizes = ("eta_l",)
    step_factors: ClassVar[tuple[str, ...]] = ("K", "eta_g")

    S: int = 20
    K: int = 10
    eta_l: StepSize = 0.01
    eta_g: StepSize = 1.0
    b: int | None = 4
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY


@dataclass(frozen=True)
class ProximalSteps(BaseMethod):
    """Sample S clients that minimise f_i(y) + shift.y + |y - x|^2/(2 gamma) by K steps.

    The effective step is the distance that these steps move along a constant unit
    gradient: eta_l (1 + r + ... + r^(K-1)) with r = 1 - eta_l/gamma. It is eta_l for
    K = 1, K eta_l without a proximal term, and approaches gamma as K grows.

    Args:
        S: Sampled clients.
        K: Local steps.
        gamma: The step of the proximal term. If None, there is no such term.
        eta_l: The local step size, at most gamma; 1/(L + 1/gamma) is a safe choice.
        p: Probability of a full gradient. If None, use S/N.
        b: Rows in the minibatches of local steps. If None, use all rows.
        up: The codec of the replies, a cast: gradients do not vanish at the optimum.
    """

    name = "proximal steps"
    checks = {"gamma": schedules.check_step}
    full_rounds = True

    S: int = 10
    K: int = 10
    gamma: StepSize | None = 0.1
    eta_l: StepSize = 0.01
    p: float | None = None
    b: int | None = None
    up: Codec = IDENTITY

    def __post_init__(self) -> None:
        super().__post_init__()
        peak = as_schedule(self.eta_l).peak
        if self.gamma is not None and peak > as_schedule(self.gamma).peak:
            raise InputError(
                f"{self.name}: eta_l {self.eta_l!r} must be at most gamma "
                f"{self.gamma!r}, or local steps overshoot"
            )

    @property
    def effective_step(self) -> float:
        """The effective step, eta_l (1 + r + ... + r^(K-1)), r = 1 - eta_l/gamma."""
        if self.gamma is None:
            return self.K * self.eta_l
        r = 1 - self.eta_l / self.gamma
        return self.eta_l * math.fsum(r**k for k in range(self.K))

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step; eta_l/gamma is kept."""
        factor = step / self.effective_step
        gamma = None if self.gamma is None else self.gamma * factor
        return replace(self, eta_l=self.eta_l * factor, gamma=gamma)

    def full_probability(self, N: int) -> float:
        """Return the probability of a full gradient, p or S/N."""
        return self.S / N if self.p is None else self.p

    def solve(self, oracle: Oracle, x: Vector, shift: Vector) -> Vector:
        """Return y_K - x of K steps y -= eta_l (grad_I(y) + shift + (y - x)/gamma)."""
        direction = local_sgd(
            oracle, x, K=self.K, eta=self.eta_l, b=self.b,
            shift=shift, mu=0.0 if self.gamma is None else 1 / self.gamma,
        )  # fmt: skip
        return -(self.K * self.eta_l) * direction
