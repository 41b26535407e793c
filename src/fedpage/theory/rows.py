"""The rows of a plan, and the question that they answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.columns import Cost, read_column
from fedpage.core.errors import InputError, short_repr
from fedpage.theory.rounds import Round
from fedpage.theory.tables import Setting

Measure: TypeAlias = Literal["grad_norm", "gap"]
"""What epsilon is a bound of: |grad f(x)|, or f(x) - f*."""

Kind: TypeAlias = Literal["bound", "order", "no result"]
"""Kinds of rows: explicit constants, a complexity up to constants, no theorem that applies."""
BOUND: Kind = "bound"
ORDER: Kind = "order"
NONE: Kind = "no result"
DESCENT = "gradient descent"
"""The label of gradient descent, which the library has as PAGE with S = N and p = 1."""


@dataclass(frozen=True)
class Costs:
    """Costs in seconds, from which a time is estimated.

    Attributes:
        latency: Seconds that every round takes.
        uplink: A client's bytes per second to the server.
        downlink: A client's bytes per second from the server.
        gradient: Seconds for one row's gradient at a client.

    Raises:
        InputError: A number is out of range.
    """

    latency: float = 0.0
    uplink: float = math.inf
    downlink: float = math.inf
    gradient: float = 0.0

    def __post_init__(self) -> None:
        for name in ("latency", "gradient"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise InputError(
                    f"{name} must be a finite number of at least 0, not {short_repr(value)}"
                )
        for name in ("uplink", "downlink"):
            value = getattr(self, name)
            if math.isnan(value) or value <= 0:
                raise InputError(f"{name} must be above 0 bytes a second, not {short_repr(value)}")

    @property
    def given(self) -> bool:
        """Whether any cost differs from its default, so that a time can be estimated."""
        return (
            self.latency > 0
            or self.gradient > 0
            or math.isfinite(self.uplink)
            or math.isfinite(self.downlink)
        )

    def seconds(self, rounds: float, down: float, up: float, gradients: float) -> float:
        """Estimate the time of a run.

        Args:
            rounds: Rounds of the run.
            down: Bytes that a called client receives in a round.
            up: Bytes that it sends.
            gradients: Row gradients that it computes.

        Returns:
            Seconds.
        """
        return rounds * (
            self.latency + down / self.downlink + up / self.uplink + gradients * self.gradient
        )


@dataclass(frozen=True)
class Row:
    """A method's line in the plan; numbers are totals until epsilon, None without a result.

    Attributes:
        method: The method's name.
        source: The theorem or the paper of the analysis.
        assumption: What the analysis assumes.
        kind: "bound", "order" or "no result".
        rounds: Rounds.
        clients: Clients called.
        bytes_up: Bytes to the server.
        bytes_down: Bytes to the clients.
        bits_up: Bits to the server, before vectors are filled up to whole bytes.
        bits_down: Bits to the clients.
        gradients_per_client: Row gradients per client.
        seconds: Estimated time, where `Costs` are given.
        steps: Step sizes that the theorem gives.
        converted: Whether the theorem is about the other measure of accuracy, and its epsilon was
            chosen so that it implies the one that was asked for.
    """

    method: str
    source: str
    assumption: str
    kind: Kind
    rounds: float | None = None
    clients: float | None = None
    bytes_up: float | None = None
    bytes_down: float | None = None
    bits_up: float | None = None
    bits_down: float | None = None
    gradients_per_client: float | None = None
    seconds: float | None = None
    steps: dict[str, float] = field(default_factory=dict)
    converted: bool = False

    def cost(self, cost: str | Cost) -> float | None:
        """Return a cost until epsilon, such as "bits" or "up+0.1*down"; None without a result.

        Raises:
            InputError: The plan does not know this cost.
        """
        known = {**asdict(self), "round": self.rounds}
        cost = Cost.parse(cost)
        unknown = [
            name for name, _ in cost.terms if name not in known and name not in ("bytes", "bits")
        ]
        if unknown:
            raise InputError(
                f"a plan has no {unknown[0]}; it has rounds, clients, bytes, bits and seconds"
            )
        if self.rounds is None or ("seconds" in str(cost) and self.seconds is None):
            return None
        return cost.evaluate(lambda name: read_column(known, name))


@dataclass(frozen=True)
class Question:
    """What all rows of a plan have in common.

    Attributes:
        setting: The setting, with the epsilon that was asked for.
        measure: What this epsilon is a bound of.
        d: Parameters.
        convex: Whether f is convex.
        costs: What the time depends on.
        average_L: The average smoothness of the clients.
        whole_L: The smoothness of f.
        codec: The codec of replies.
    """

    setting: Setting
    measure: Measure
    d: int
    convex: bool
    costs: Costs
    average_L: float
    whole_L: float
    codec: Codec

    def settings(self) -> Iterator[tuple[Measure, Setting, bool]]:
        """Yield the measures of theorems, with an epsilon that implies the one that was asked for.

        A gap of epsilon^2/(2L) implies the gradient norm epsilon, since |grad f|^2 <= 2L (f - f*).
        A gradient norm of sqrt(2 mu epsilon) implies the gap epsilon where f is mu-strongly convex,
        since f - f* <= |grad f|^2/(2 mu). Both hold for means too, by Jensen's inequality.

        Yields:
            The measure, the setting, and whether its epsilon was converted.
        """
        s, epsilon = self.setting, self.setting.epsilon
        if self.measure == "grad_norm":
            yield "grad_norm", s, False
            if self.convex:
                yield "gap", replace(s, epsilon=epsilon**2 / (2 * self.whole_L)), True
            return
        yield "gap", s, False
        if s.mu is not None:
            yield "grad_norm", replace(s, epsilon=math.sqrt(2 * s.mu * epsilon)), True

    def get(self, measure: Measure) -> tuple[Setting, bool] | None:
        """Return the setting for theorems about a measure, and whether it was converted."""
        found = [(s, converted) for name, s, converted in self.settings() if name == measure]
        return found[0] if found else None


def codec_constant(kind: str, codec: Codec, d: int) -> float | None:
    """Return omega or alpha of a codec for d parameters; None where it has none.

    An unbiased codec is contractive if it is scaled by 1/(1 + omega).
    """
    omega = 0.0 if codec.is_cast else codec.omega(d)
    if kind == "unbiased":
        return omega
    return codec.alpha(d) if omega is None else 1 / (1 + omega)


def make_row(
    label: tuple[str, str, str, Kind],
    rounds: float,
    each: Round,
    q: Question,
    *,
    gradients: float | None = None,
    codec: Codec = IDENTITY,
    steps: dict[str, float] | None = None,
    converted: bool = False,
) -> Row:
    """Multiply an average round's costs by the rounds; label is the row's first four fields."""
    vector, coded = 64 * q.d, codec.bits(q.d, np.dtype(np.float64))
    calls = rounds * each.clients
    down, up = each.down * vector / 8, each.up * vector / 8 + each.coded * -(-coded // 8)
    work = calls * each.gradients / q.setting.N if gradients is None else gradients
    timed = q.costs.given
    return Row(
        *label,
        rounds=rounds,
        clients=calls,
        bytes_up=calls * up,
        bytes_down=calls * down,
        bits_up=calls * (each.up * vector + each.coded * coded),
        bits_down=calls * each.down * vector,
        gradients_per_client=work,
        seconds=q.costs.seconds(rounds, down, up, each.gradients) if timed else None,
        steps=steps or {},
        converted=converted,
    )
