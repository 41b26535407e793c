"""Compare the rounds and costs of methods to reach epsilon by their theory: `fedpage plan`.

Every row says how its number is to be read: a *bound* that a proof guarantees with explicit
constants, or the *order* of an analysis, which holds up to constants. Seconds are an *estimate*
from the speeds that the user gives. Where several theorems apply to a method, the one that needs
the fewest rounds is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from fedpage.codecs import IDENTITY, Codec
from fedpage.core.columns import Cost, read_column
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Smoothness
from fedpage.methods import steps as step_sizes
from fedpage.theory.steps import (
    Tuned,
    convex_fedpage,
    convex_page,
    nonconvex_fedpage,
    nonconvex_page,
    strongly_convex_fedpage,
    strongly_convex_page,
)
from fedpage.theory.tables import (
    PRINTED,
    RIVALS,
    STRONGLY_CONVEX,
    TABLE,
    Entry,
    RoundCosts,
    Setting,
    check_number,
    fedpage_costs,
)

Measure: TypeAlias = Literal["grad_norm", "gap"]
"""The measure that epsilon bounds: |grad f(x)|, or f(x) - f*."""

DESCENT = "gradient descent"
"""The label of gradient descent, which the library has as PAGE with S = N and p = 1."""


@dataclass(frozen=True)
class TimeModel:
    """Latency and speeds, from which a time is estimated.

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
            check_number(name, getattr(self, name), positive=False, bounded=False)
        for name in ("uplink", "downlink"):
            if not getattr(self, name) > 0:
                value = short_repr(getattr(self, name))
                raise InputError(f"{name} must be above 0 bytes a second, not {value}")

    @property
    def given(self) -> bool:
        """Whether any value differs from its default, so that a time can be estimated."""
        return self != TimeModel()

    def seconds(self, rounds: float, down: float, up: float, gradients: float) -> float:
        """Estimate the seconds of a run.

        Args:
            rounds: Rounds of the run.
            down: Bytes that a called client receives in a round.
            up: Bytes that it sends.
            gradients: Row gradients that it computes.
        """
        return rounds * (
            self.latency + down / self.downlink + up / self.uplink + gradients * self.gradient
        )


@dataclass(frozen=True)
class Row:
    """A method's line in the plan. Numbers are totals until epsilon, None without a result.

    Attributes:
        method: The method's name.
        source: The theorem or the paper of the analysis.
        assumption: The assumptions of the analysis.
        kind: "bound" (explicit constants), "order" (up to constants) or "no result".
        rounds: Rounds.
        clients: Clients called.
        bytes_up: Bytes to the server.
        bytes_down: Bytes to the clients.
        bits_up: Bits to the server, before vectors are padded to whole bytes.
        bits_down: Bits to the clients.
        gradients_per_client: Row gradients per client.
        seconds: Estimated time, if a `TimeModel` is given.
        steps: Step sizes that the theorem gives.
        converted: Whether the theorem is about the other measure of accuracy, and its epsilon was
            chosen so that it implies the requested one.
    """

    method: str
    source: str
    assumption: str
    kind: Literal["bound", "order", "no result"]
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
        """Return a cost until epsilon, such as "bits" or "up+0.1*down", or None without a result.

        Raises:
            InputError: The plan does not know this cost.
        """
        known = {**asdict(self), "round": self.rounds}
        cost = Cost.parse(cost)
        unknown = [name for name, _ in cost.terms if name not in {*known, "bytes", "bits"}]
        if unknown:
            raise InputError(
                f"a plan has no {unknown[0]}; it has rounds, clients, bytes, bits and seconds"
            )
        if self.rounds is None or ("seconds" in str(cost) and self.seconds is None):
            return None
        return cost.evaluate(lambda name: read_column(known, name))


_Theorem: TypeAlias = Callable[..., Tuned]


def _fewest_rounds(rows: list[Row]) -> Row:
    return min(rows, key=lambda row: row.rounds or math.inf)


@dataclass(frozen=True)
class Planner:
    """Compute each method's rounds to epsilon and their cost, by every known analysis.

    Attributes:
        setting: N, S, K, M, the accuracy epsilon, and the constants; L is the rows' (Assumption 1).
        measure: The measure that epsilon bounds, "grad_norm" or, for a convex f, "gap".
        d: Parameters.
        convex: Whether f is convex.
        L: The average smoothness of the clients (Assumption 2), for PAGE and MARINA, and the
            smoothness of f, for gradient descent and for conversions.
        costs: Latency and speeds, from which a time is estimated.
        codec: The codec of replies, for the methods whose analysis covers one. It decides the
            setting's omega and alpha; the other methods send uncompressed vectors.

    Raises:
        InputError: A gap is asked of an f that is not convex, or the codec's size varies.
    """

    setting: Setting
    measure: Measure
    d: int
    convex: bool
    L: Smoothness
    costs: TimeModel = field(default_factory=TimeModel)
    codec: Codec = IDENTITY

    def __post_init__(self) -> None:
        if self.measure == "gap" and not self.convex:
            raise InputError(
                "a gap f - f* can be planned for a convex objective only; choose one, or ask for a "
                "gradient norm"
            )
        if not self.codec.has_fixed_size:
            raise InputError(
                "a plan needs a codec of which every vector has the same size, not "
                f"{self.codec}; use randk, topk, natural, dither or a cast"
            )

    def rows(self) -> list[Row]:
        """Return a row for each method and analysis.

        They are bounds for FedPAGE, PAGE, gradient descent, MARINA and S-DANE, and orders for the
        others. Analyses that need a constant which the setting does not have are left out.
        """
        rows = [self.bound_page(K) for K in dict.fromkeys((self.setting.K, 1))]
        rows += [self.bound_descent(), *self.bound_marina(), *self.bound_similarity()]
        entries = (self.evaluate(entry) for entry in (*TABLE, *STRONGLY_CONVEX, *RIVALS))
        return rows + [row for row in entries if row is not None]

    def settings(self) -> Iterator[tuple[Measure, Setting, bool]]:
        """Yield the measures of theorems, with an epsilon that implies the requested one.

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
                yield "gap", replace(s, epsilon=epsilon**2 / (2 * self.L.whole)), True
            return
        yield "gap", s, False
        if s.mu is not None:
            yield "grad_norm", replace(s, epsilon=math.sqrt(2 * s.mu * epsilon)), True

    def _find(self, measure: Measure) -> tuple[Setting, bool] | None:
        """Return the setting for theorems about a measure, and whether it was converted."""
        return next(((s, changed) for each, s, changed in self.settings() if each == measure), None)

    def bound_page(self, K: int) -> Row:
        """Compute the row of FedPAGE with K local steps, or of PAGE if K = 1."""
        rows = []
        for tuned, converted in self._page_theorems(K):
            method = tuned.method
            steps = {"eta_g": method.eta_g}
            if K > 1 and method.eta_l is not None:
                steps["eta_l"] = method.eta_l
            needs = "average smooth" if K == 1 else "smooth"
            needs += ", mu" * ("strongly" in tuned.theorem)
            label = (str(method.name), f"{tuned.theorem}, all rows", needs)
            each = fedpage_costs(self.setting, K)
            rounds = math.ceil(tuned.rounds)
            rows.append(self._row(label, "bound", rounds, each, steps=steps, converted=converted))
        return _fewest_rounds(rows)

    def _page_theorems(self, K: int) -> Iterator[tuple[Tuned, bool]]:
        nonconvex: _Theorem = nonconvex_page if K == 1 else nonconvex_fedpage
        convex: _Theorem = convex_page if K == 1 else convex_fedpage
        strongly_convex: _Theorem = strongly_convex_page if K == 1 else strongly_convex_fedpage
        for measure, s, converted in self.settings():
            common: dict[str, Any] = {"N": s.N, "S": s.S, "epsilon": s.epsilon}
            common |= {"L": self.L.average} if K == 1 else {"L": s.L, "K": K}
            if measure == "grad_norm":
                yield nonconvex(**common, D0=s.D0), converted
                continue
            yield convex(**common, R2=s.R2), converted
            if s.mu is not None:
                yield strongly_convex(**common, mu=s.mu, D0=s.D0), converted

    def bound_descent(self) -> Row:
        """Compute the row of gradient descent with the step 1/L, all clients in every round."""
        L, rows = self.L.whole, []
        for measure, s, converted in self.settings():
            needs, rounds = "f smooth", 2 * L * s.D0 / s.epsilon**2
            if measure == "gap":
                needs, rounds = "f smooth, convex", L * s.R2 / (2 * s.epsilon)
                if s.mu is not None and s.mu < L:
                    linear = math.log(max(1.0, s.D0 / s.epsilon)) / -math.log1p(-s.mu / L)
                    if linear < rounds:
                        needs, rounds = "f smooth, mu", linear
            label = (DESCENT, "step 1/L, all rows", needs)
            each = RoundCosts(s.N, 1, 1, s.M)
            steps = {"eta_g": 1 / L}
            rounds = math.ceil(rounds)
            rows.append(self._row(label, "bound", rounds, each, steps=steps, converted=converted))
        return _fewest_rounds(rows)

    def bound_marina(self) -> list[Row]:
        """Compute MARINA's and PP-MARINA's rows, if a codec compresses differences."""
        omega, found = self._codec_constant("unbiased"), self._find("grad_norm")
        if found is None or omega is None or self.codec == IDENTITY:
            return []  # without a codec they are gradient descent and PAGE
        s, converted = found
        L = self.L.average
        constants = Smoothness(row=s.L, client=L, average=L, whole=L)
        share = self.codec.bits(self.d, np.dtype(np.float64)) / (64 * self.d)
        rows = []
        for method, theorem, S in (("PP-MARINA", "4.1", s.S), ("MARINA", "2.1", s.N)):
            p = min(1.0, S / s.N * share)
            eta = step_sizes.marina(constants, s.N, S, p, omega)
            clients = p * s.N + (1 - p) * S
            full, sampled = p * s.N / clients, (1 - p) * S / clients
            work = full * s.M + sampled * 2 * s.M
            each = RoundCosts(clients, full + 2 * sampled, full, work, coded=sampled)
            needs = "average smooth, unbiased C" + ", S = N" * (method == "MARINA")
            label = (method, f"Theorem {theorem}, all rows", needs)
            rounds = math.ceil(2 * s.D0 / (eta * s.epsilon**2))
            steps = {"eta_g": eta}
            rows.append(
                self._row(
                    label, "bound", rounds, each, self.codec, steps=steps, converted=converted
                )
            )
        return rows[:1] if s.S == s.N else rows

    def bound_similarity(self) -> list[Row]:
        """Compute the rows of S-DANE and its acceleration, whose steps take two rounds."""
        found = self._find("gap")
        if found is None or not self.setting.delta:
            return []
        s, converted = found
        lam, eta_l, K = step_sizes.s_dane(s.L, self.setting.delta)
        pairs = {
            "S-DANE": lam * s.R2 / (2 * s.epsilon),
            "Acc-S-DANE": math.sqrt(2 * lam * s.R2 / s.epsilon),
        }
        # The two rounds send the centre, then it and the mean gradient; they return a gradient,
        # then a solution and its gradient.
        each = RoundCosts(s.N, (1 + 2) / 2, (1 + 2) / 2, (K + 3) * s.M / 2)
        sizes = {"lam": lam, "eta_l": eta_l, "K": float(K)}
        rows = []
        for method, steps in pairs.items():
            label = (method, "Jiang et al. 2024, all rows", "f_i convex, delta, S = N")
            rounds = 2.0 * math.ceil(steps)
            rows.append(self._row(label, "bound", rounds, each, steps=sizes, converted=converted))
        return rows

    def evaluate(self, entry: Entry) -> Row | None:
        """Compute the row of a table's entry, or return None if it is left out."""
        if entry.source == PRINTED:
            return None  # the row "from b2" uses b2 as the theorem gives it
        if "minibatches" in entry.source and self.setting.sigma == 0:
            return None
        if entry.method == "S-Local-SVRG" and self.setting.K > self.setting.M:
            return Row(entry.method, entry.source, entry.assumption + " (here K > M)", "no result")
        constant = self._codec_constant(entry.codec) if entry.codec else 0.0
        if constant is None:
            return None
        rows = []
        for measure, s, converted in self.settings():
            case = "convex" if measure == "gap" else "nonconvex"
            rounds_of, work_of = getattr(entry, case), getattr(entry, f"{case}_gradients")
            needs = getattr(entry, f"{case}_needs")
            if rounds_of is None or any(getattr(s, name) is None for name in needs):
                continue
            if entry.codec:
                is_unbiased = entry.codec == "unbiased"
                s = replace(s, omega=constant) if is_unbiased else replace(s, alpha=constant)
            source = entry.source + ", unverified" * (case in entry.unverified)
            label = (entry.method, source, ", ".join((entry.assumption, *needs)))
            codec = self.codec if entry.codec else IDENTITY
            work = None if work_of is None else work_of(s)
            rows.append(
                self._row(
                    label, "order", rounds_of(s), entry.costs(s), codec,
                    gradients=work, converted=converted,
                )
            )  # fmt: skip
        if not rows and entry in TABLE:
            return Row(entry.method, entry.source, entry.assumption, "no result")
        return _fewest_rounds(rows) if rows else None

    def _codec_constant(self, kind: str) -> float | None:
        """Return omega or alpha of the codec, or None if it has no such constant.

        An unbiased codec is contractive if it is scaled by 1/(1 + omega).
        """
        omega = 0.0 if self.codec.is_cast else self.codec.omega(self.d)
        if kind == "unbiased":
            return omega
        return self.codec.alpha(self.d) if omega is None else 1 / (1 + omega)

    def _row(
        self,
        label: tuple[str, str, str],
        kind: Literal["bound", "order"],
        rounds: float,
        each: RoundCosts,
        codec: Codec = IDENTITY,
        *,
        gradients: float | None = None,
        **fields: Any,
    ) -> Row:
        """Multiply an average round's costs by the rounds, which are at least 1."""
        rounds = max(1.0, rounds)
        vector, coded = 64 * self.d, codec.bits(self.d, np.dtype(np.float64))
        calls = rounds * each.clients
        down, up = each.down * vector / 8, each.up * vector / 8 + each.coded * -(-coded // 8)
        if gradients is None:
            gradients = calls * each.gradients / self.setting.N
        seconds = None
        if self.costs.given:
            seconds = self.costs.seconds(rounds, down, up, each.gradients)
        return Row(
            *label,
            kind,
            rounds=rounds,
            clients=calls,
            bytes_up=calls * up,
            bytes_down=calls * down,
            bits_up=calls * (each.up * vector + each.coded * coded),
            bits_down=calls * each.down * vector,
            gradients_per_client=gradients,
            seconds=seconds,
            **fields,
        )
