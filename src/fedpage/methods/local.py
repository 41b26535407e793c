"""The base class of variants of local SGD: hyper-parameters and effective step."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

from fedpage.codecs import IDENTITY, Codec
from fedpage.core import schedules, validate
from fedpage.core.schedules import StepSize


@dataclass(frozen=True)
class LocalSGD:
    """Sample S clients that take K local steps each.

    Subclasses declare which fields are `compressible` and call `codecs.check`.

    Args:
        S: Sampled clients.
        K: Local steps.
        eta_l: The local step size.
        eta_g: The server's step size.
        b: Rows in a minibatch; None: all rows.
        up: The codec of replies.
        down: The codec of messages.
    """

    name: ClassVar[str] = "local SGD"

    S: int = 20
    K: int = 10
    eta_l: StepSize = 0.01
    eta_g: StepSize = 1.0
    b: int | None = 4
    _: KW_ONLY
    up: Codec = IDENTITY
    down: Codec = IDENTITY

    def __post_init__(self) -> None:
        validate.plain(self)
        validate.whole(self.name, "S", self.S)
        validate.whole(self.name, "K", self.steps)
        schedules.check_step(self.name, "eta_l", self.eta_l)
        schedules.check_step(self.name, "eta_g", self.eta_g)
        validate.batch(self.name, "b", self.b)

    @property
    def steps(self) -> int:
        """The number K of local steps."""
        return self.K

    @property
    def effective_step(self) -> float:
        """The effective step, K eta_g eta_l."""
        return self.steps * self.eta_g * self.eta_l

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step, by changing eta_l."""
        return replace(self, eta_l=step / (self.steps * self.eta_g))
