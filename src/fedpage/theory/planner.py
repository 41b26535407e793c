"""Compare what methods need to reach epsilon by their theory, before a run: `fedpage plan`.

Every row says what its number is: a *bound* that a proof guarantees with explicit constants, or the
*order* of an analysis, which holds up to constants. Seconds are an *estimate* from the costs that
the user gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from fedpage.codecs import IDENTITY, Codec, as_codec
from fedpage.core.columns import Cost, read_column
from fedpage.core.errors import InputError
from fedpage.core.types import Smoothness
from fedpage.methods import fedavg, fedpage, scaffold, sdane, slocalsvrg, vrlsgd
from fedpage.methods import steps as step_sizes
from fedpage.theory.steps import convex_fedpage, convex_page, nonconvex_fedpage, nonconvex_page
from fedpage.theory.tables import RIVALS, TABLE, Entry, Setting

Kind: TypeAlias = Literal["bound", "order", "no result"]
"""Kinds of rows: explicit constants, a complexity up to constants, a dash in the paper."""
BOUND: Kind = "bound"
ORDER: Kind = "order"
NONE: Kind = "no result"


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
                raise InputError(f"{name} must be a finite number of at least 0, not {value!r}")
        for name in ("uplink", "downlink"):
            value = getattr(self, name)
            if math.isnan(value) or value <= 0:
                raise InputError(f"{name} must be above 0 bytes a second, not {value!r}")

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
class Round:
    """The costs of an average round of a method.

    Attributes:
        clients: Clients called.
        down: Vectors that a called client receives.
        up: Vectors that it sends as they are.
        gradients: Row gradients that it computes.
        coded: Vectors that it sends through the codec.
    """

    clients: float
    down: float
    up: float
    gradients: float
    coded: float = 0.0


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


def _count_vectors(*types: type[NamedTuple]) -> tuple[int, ...]:
    """Count the vectors in messages or replies of these types."""
    return tuple(len(each._fields) for each in types)


def _fedpage_round(s: Setting, K: int) -> Round:
    """Average over full rounds (probability p = S/N) and rounds of local steps at S clients."""
    p = s.S / s.N
    full_down, local_down, up = _count_vectors(
        fedpage.FullGradient, fedpage.LocalSteps, fedpage.Reply
    )
    clients = p * s.N + (1 - p) * s.S
    down = (p * s.N * full_down + (1 - p) * s.S * local_down) / clients
    work = p * s.M + (1 - p) * (2 * s.M + 2 * (K - 1))
    return Round(clients, down, up, work)


def _svrg_round(s: Setting) -> Round:
    """Average over a full gradient and 1/q rounds of local steps, q = min(1, K/M)."""
    local_rounds = 1 / min(1.0, s.K / s.M)
    full, first, later, up = _count_vectors(
        slocalsvrg.Refresh, slocalsvrg.StepsWithGradient, slocalsvrg.Steps, slocalsvrg.Move
    )
    down = (full + first + (local_rounds - 1) * later) / (1 + local_rounds)
    return Round(s.N, down, up, (s.M + local_rounds * 2 * s.K) / (1 + local_rounds))


def _local_round(
    message: type[NamedTuple], reply: type[NamedTuple], all_clients: bool
) -> Callable[[Setting], Round]:
    down, up = _count_vectors(message, reply)
    return lambda s: Round(s.N if all_clients else s.S, down, up, s.K)


_ROUNDS: dict[str, Callable[[Setting], Round]] = {
    "FedProx": _local_round(fedavg.Model, fedavg.Reply, True),
    "VRL-SGD": _local_round(vrlsgd.Continue, vrlsgd.Reply, True),
    "SCAFFOLD": _local_round(scaffold.Controlled, scaffold.Reply, False),
    "S-Local-SVRG": _svrg_round,
    "FedPAGE": lambda s: _fedpage_round(s, s.K),
}


def _difference_round(s: Setting, p: float, everyone: bool) -> Round:
    """Average over MARINA's full rounds and its rounds of compressed differences."""
    S = s.N if everyone else s.S
    clients = p * s.N + (1 - p) * S
    full, sampled = p * s.N / clients, (1 - p) * S / clients
    work = full * s.M + sampled * 2 * s.M
    return Round(clients, full + 2 * sampled, full, work, coded=sampled)


def _proximal_round(s: Setting, S: int, down: float, up: float, again: float = 0.0) -> Round:
    """Average over proximal steps at S clients and, with probability S/N, a full gradient before.

    Args:
        s: The setting.
        S: Clients that take proximal steps.
        down: Vectors to each of them.
        up: Vectors from each of them.
        again: Vectors that a message right after a full gradient does not need.
    """
    p = S / s.N
    calls = S + p * s.N
    vectors_down = S * (down - p * again) + p * s.N
    work = S * (s.K + 1) * s.M + p * s.N * s.M
    return Round(calls / (1 + p), vectors_down / calls, (S * up + p * s.N) / calls, work / calls)


def _svrp_round(s: Setting) -> Round:
    return _proximal_round(s, s.S, down=3, up=1)


def _saber_round(s: Setting) -> Round:
    return _proximal_round(s, 1, down=3, up=2 - 1 / s.N, again=1)


def _scaffnew_round(s: Setting) -> Round:
    """Take sqrt(L/mu) local steps on average, each with all rows."""
    local = math.sqrt(s.L / s.mu) if s.mu is not None else 1.0
    return Round(s.N, 1, 1, local * s.M)


_RIVAL_ROUNDS: dict[str, Callable[[Setting], Round]] = {
    "SAGA": lambda s: Round(s.S, 1, 1, s.M),
    "ZeroSARAH": lambda s: Round(s.S, 2, 2, 2 * s.M),
    "COFIG": lambda s: Round(s.S, 1, 0, s.M, coded=1),
    "DIANA": lambda s: Round(s.N, 1, 0, s.M, coded=1),
    "FRECON": lambda s: Round(s.S, 2, 0, 2 * s.M, coded=2),
    "DASHA-PP": lambda s: Round(s.S, 2, 0, 2 * s.M, coded=1),
    "EF21": lambda s: Round(s.N, 1, 0, s.M, coded=1),
    "EF21-PP": lambda s: Round(s.S, 1, 0, s.M, coded=1),
    "Scaffnew": _scaffnew_round,
    "SVRP": _svrp_round,
    "SABER": _saber_round,
}
"""An average round of the methods of `RIVALS`; their first rounds, which differ, are left out."""


def _round(entry: Entry, setting: Setting) -> Round:
    if entry.method in _RIVAL_ROUNDS:
        return _RIVAL_ROUNDS[entry.method](setting)
    if entry.method == "FedAvg":
        return _local_round(fedavg.Model, fedavg.Reply, entry.all_clients)(setting)
    return _ROUNDS[entry.method](setting)


def plan(
    setting: Setting,
    *,
    d: int,
    convex: bool,
    costs: Costs | None = None,
    average_L: float | None = None,
    up: Codec | str = IDENTITY,
) -> list[Row]:
    """Compute each method's rounds to epsilon and their cost, by every known analysis.

    Args:
        setting: N, S, K, M, epsilon and the constants; L is that of the rows (Assumption 1).
        d: Parameters.
        convex: Whether f is convex.
        costs: What the time depends on; None estimates no time.
        average_L: The average smoothness of the clients (Assumption 2), for PAGE and MARINA.
        up: The codec of replies, for the methods whose analysis allows for it. It decides the
            setting's omega and alpha; the other methods send whole vectors.

    Returns:
        A row for each method and analysis: bounds for FedPAGE, PAGE, MARINA and S-DANE, orders for
        the others. Analyses that need a constant which the setting does not have are left out.

    Raises:
        InputError: A number is out of range, or the codec's size varies.
    """
    costs = costs or Costs()
    if isinstance(d, bool) or d < 1:
        raise InputError(f"d must be a whole number of at least 1, not {d!r}")
    codec = as_codec(up)
    if not codec.has_fixed_size:
        raise InputError(
            f"a plan needs a codec of which every vector has the same size, not {codec}; "
            "use randk, topk, natural, dither or a cast"
        )
    rows = [_bound(setting, d, convex, costs, K, average_L) for K in dict.fromkeys((setting.K, 1))]
    rows += _plan_marina(setting, d, convex, costs, average_L, codec)
    if convex and setting.delta:
        rows += _similarity_bounds(setting, setting.delta, d, costs)
    for entry in TABLE:
        if entry.source == "minibatches, as printed":
            continue  # the row "from b2" uses b2 as the theorem gives it
        rounds_of = entry.convex if convex else entry.nonconvex
        work_of = entry.convex_gradients if convex else entry.nonconvex_gradients
        if rounds_of is None or work_of is None:
            rows.append(Row(entry.method, entry.source, entry.assumption, NONE))
            continue
        if "minibatches" in entry.source and setting.sigma == 0:
            continue
        if entry.method == "S-Local-SVRG" and setting.K > setting.M:
            rows.append(Row(entry.method, entry.source, entry.assumption + " (here K > M)", NONE))
            continue
        rounds = max(1.0, rounds_of(setting))
        label = (entry.method, entry.source, entry.assumption, ORDER)
        each = _round(entry, setting)
        rows.append(_row(label, rounds, each, d, costs, gradients=work_of(setting)))
    return rows + _plan_rivals(setting, d, convex, costs, codec)


def _plan_rivals(s: Setting, d: int, convex: bool, costs: Costs, codec: Codec) -> list[Row]:
    """Compute the rows of the methods that the paper's tables do not have."""
    rows = []
    for entry in RIVALS:
        rounds_of = entry.convex if convex else entry.nonconvex
        needs = entry.convex_needs if convex else entry.nonconvex_needs
        if rounds_of is None or any(getattr(s, name) is None for name in needs):
            continue
        setting, used = s, codec if entry.codec else IDENTITY
        if entry.codec:
            constant = _codec_constant(entry.codec, codec, d)
            if constant is None:
                continue
            is_unbiased = entry.codec == "unbiased"
            setting = replace(s, omega=constant) if is_unbiased else replace(s, alpha=constant)
        doubt = ("convex" if convex else "nonconvex") in entry.unverified
        source = entry.source + ", unverified" * doubt
        rounds, each = max(1.0, rounds_of(setting)), _round(entry, setting)
        label = (entry.method, source, ", ".join((entry.assumption, *needs)), ORDER)
        work = rounds * each.clients * each.gradients / s.N
        rows.append(_row(label, rounds, each, d, costs, gradients=work, codec=used))
    return rows


def _codec_constant(kind: str, codec: Codec, d: int) -> float | None:
    """Return omega or alpha of a codec for d parameters; None where it has none.

    An unbiased codec is contractive if it is scaled by 1/(1 + omega).
    """
    omega = 0.0 if codec.is_cast else codec.omega(d)
    if kind == "unbiased":
        return omega
    return codec.alpha(d) if omega is None else 1 / (1 + omega)


def _plan_marina(
    s: Setting, d: int, convex: bool, costs: Costs, average_L: float | None, codec: Codec
) -> list[Row]:
    """Compute MARINA's rows, and PP-MARINA's, where there is a codec to compress differences."""
    omega = _codec_constant("unbiased", codec, d)
    if convex or omega is None or codec == IDENTITY:
        return []  # without a codec they are gradient descent and PAGE
    L = s.L if average_L is None else average_L
    share = codec.bits(d, np.dtype(np.float64)) / (64 * d)
    rows = []
    for method, theorem, S in (("PP-MARINA", "4.1", s.S), ("MARINA", "2.1", s.N)):
        p = min(1.0, S / s.N * share)
        constants = Smoothness(row=s.L, client=L, average=L, whole=L)
        eta = step_sizes.marina(constants, s.N, S, p, omega)
        rounds = max(1.0, math.ceil(2 * s.D0 / (eta * s.epsilon**2)))
        each = _difference_round(s, p, everyone=S == s.N)
        needs = "average smooth, unbiased C" + ", S = N" * (method == "MARINA")
        label = (method, f"Theorem {theorem}, all rows", needs, BOUND)
        work = rounds * each.clients * each.gradients / s.N
        row = _row(label, rounds, each, d, costs, gradients=work, codec=codec, steps={"eta_g": eta})
        rows.append(row)
    return rows[:1] if s.S == s.N else rows


def _bound(s: Setting, d: int, convex: bool, costs: Costs, K: int, average_L: float | None) -> Row:
    """Compute the row of FedPAGE with K local steps, or of PAGE (K = 1), by its theorem."""
    L = s.L if K > 1 or average_L is None else average_L
    if K == 1:
        tuned = (
            convex_page(L=L, N=s.N, S=s.S, R2=s.R2, epsilon=s.epsilon)
            if convex
            else nonconvex_page(L=L, N=s.N, S=s.S, D0=s.D0, epsilon=s.epsilon)
        )
    elif convex:
        tuned = convex_fedpage(L=L, N=s.N, S=s.S, K=K, R2=s.R2, epsilon=s.epsilon)
    else:
        tuned = nonconvex_fedpage(L=L, N=s.N, S=s.S, K=K, D0=s.D0, epsilon=s.epsilon)
    method = tuned.method
    steps = {"eta_g": method.eta_g}
    if K > 1 and method.eta_l is not None:
        steps["eta_l"] = method.eta_l
    each = _fedpage_round(s, K)
    assumption = "average smooth" if K == 1 else "smooth"
    label = (str(method.name), f"{tuned.theorem}, all rows", assumption, BOUND)
    rounds = max(1.0, math.ceil(tuned.rounds))
    gradients = rounds * each.clients * each.gradients / s.N
    return _row(label, rounds, each, d, costs, gradients=gradients, steps=steps)


def _similarity_bounds(s: Setting, delta: float, d: int, costs: Costs) -> list[Row]:
    """Compute the rows of S-DANE and its acceleration, whose steps take two rounds."""
    lam, eta_l, K = step_sizes.s_dane(s.L, delta)
    pairs = {
        "S-DANE": lam * s.R2 / (2 * s.epsilon),
        "Acc-S-DANE": math.sqrt(2 * lam * s.R2 / s.epsilon),
    }
    down = sum(_count_vectors(sdane.Centre, sdane.Subproblem)) / 2
    up = sum(_count_vectors(sdane.Gradient, sdane.Solution)) / 2
    each = Round(s.N, down, up, (K + 3) * s.M / 2)
    rows = []
    for method, steps in pairs.items():
        label = (method, "Jiang et al. 2024, all rows", "f_i convex, delta, S = N", BOUND)
        rounds = 2.0 * max(1, math.ceil(steps))
        sizes = {"lam": lam, "eta_l": eta_l, "K": float(K)}
        gradients = rounds * each.gradients
        rows.append(_row(label, rounds, each, d, costs, gradients=gradients, steps=sizes))
    return rows


def _row(
    label: tuple[str, str, str, Kind],
    rounds: float,
    each: Round,
    d: int,
    costs: Costs,
    *,
    gradients: float,
    codec: Codec = IDENTITY,
    steps: dict[str, float] | None = None,
) -> Row:
    """Multiply an average round's costs by the rounds; label is the row's first four fields."""
    vector, coded = 64 * d, codec.bits(d, np.dtype(np.float64))
    calls = rounds * each.clients
    down, up = each.down * vector / 8, each.up * vector / 8 + each.coded * -(-coded // 8)
    seconds = costs.seconds(rounds, down, up, each.gradients) if costs.given else None
    return Row(
        *label,
        rounds=rounds,
        clients=calls,
        bytes_up=calls * up,
        bytes_down=calls * down,
        bits_up=calls * (each.up * vector + each.coded * coded),
        bits_down=calls * each.down * vector,
        gradients_per_client=gradients,
        seconds=seconds,
        steps=steps or {},
    )
