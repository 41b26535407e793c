"""Which method needs the fewest rounds and bytes, before anything is run: `fedpage plan`.

Every row says what its number is: a *bound* that a proof guarantees with explicit constants, or the *order* of an
analysis, which holds up to constants; wall-clock is an *estimate* from the user's own costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedpage.core.errors import InputError
from fedpage.methods import fedavg, fedpage, scaffold, slocalsvrg, vrlsgd
from fedpage.theory import TABLE, Entry, Setting, Tuned
from fedpage.theory.steps import convex_fedpage, convex_page, nonconvex_fedpage, nonconvex_page

BOUND, ORDER, NONE = "bound", "order", "no result"
"""A guarantee with explicit constants; a complexity up to constants; a dash in the paper's tables."""


@dataclass(frozen=True)
class Costs:
    """The user's costs. latency: seconds a round; uplink, downlink: a client's bytes a second; gradient: seconds."""

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
        """Whether there is anything to estimate a time from."""
        return (
            self.latency > 0
            or self.gradient > 0
            or math.isfinite(self.uplink)
            or math.isfinite(self.downlink)
        )

    def seconds(self, rounds: float, down: float, up: float, gradients: float) -> float:
        """Wall-clock of `rounds` rounds in which a called client moves `down`, `up` bytes and computes `gradients`."""
        return rounds * (
            self.latency + down / self.downlink + up / self.uplink + gradients * self.gradient
        )


@dataclass(frozen=True)
class Round:
    """What an average round of a method costs: clients called, vectors per called client, gradients of single rows."""

    clients: float
    down: float
    up: float
    gradients: float


@dataclass(frozen=True)
class Row:
    """A method's line in the plan."""

    method: str
    source: str
    assumption: str
    kind: str
    rounds: float | None = None
    clients: float | None = None
    bytes_up: float | None = None
    bytes_down: float | None = None
    gradients_per_client: float | None = None
    seconds: float | None = None
    steps: dict[str, Any] = field(default_factory=dict)


def _vectors(*kinds: type[Any]) -> tuple[int, ...]:
    """Vectors in each message or reply, from its type."""
    return tuple(len(kind._fields) for kind in kinds)


def _fedpage_round(s: Setting, K: int) -> Round:
    """With probability p = S/N everyone refreshes, otherwise S clients walk."""
    p = s.S / s.N
    full_down, walk_down, up = _vectors(fedpage.FullGradient, fedpage.LocalSteps, fedpage.Reply)
    clients = p * s.N + (1 - p) * s.S
    down = (p * s.N * full_down + (1 - p) * s.S * walk_down) / clients
    work = p * s.M + (1 - p) * (2 * s.M + 2 * (K - 1))
    return Round(clients, down, up, work)


def _svrg_round(s: Setting) -> Round:
    """A refresh, a walk that teaches h, and 1/q - 1 walks more, with q = min(1, K/M)."""
    walks = 1 / min(1.0, s.K / s.M)
    refresh, learn, walk, up = _vectors(
        slocalsvrg.Refresh, slocalsvrg.StepsWithGradient, slocalsvrg.Steps, slocalsvrg.Move
    )
    down = (refresh + learn + (walks - 1) * walk) / (1 + walks)
    return Round(s.N, down, up, (s.M + walks * 2 * s.K) / (1 + walks))


def _local_round(
    message: type[Any], reply: type[Any], everyone: bool
) -> Callable[[Setting], Round]:
    down, up = _vectors(message, reply)
    return lambda s: Round(s.N if everyone else s.S, down, up, s.K)


_ROUNDS: dict[str, Callable[[Setting], Round]] = {
    "FedProx": _local_round(fedavg.Model, fedavg.Reply, True),
    "VRL-SGD": _local_round(vrlsgd.Continue, vrlsgd.Reply, True),
    "SCAFFOLD": _local_round(scaffold.Controlled, scaffold.Reply, False),
    "S-Local-SVRG": _svrg_round,
    "FedPAGE": lambda s: _fedpage_round(s, s.K),
}


def _round(entry: Entry, setting: Setting) -> Round:
    if entry.method == "FedAvg":
        return _local_round(fedavg.Model, fedavg.Reply, entry.everyone)(setting)
    return _ROUNDS[entry.method](setting)


def plan(
    setting: Setting,
    *,
    d: int,
    convex: bool,
    costs: Costs | None = None,
    average_L: float | None = None,
) -> list[Row]:
    """A row per method and analysis: guaranteed rounds and their cost to epsilon.

    setting: N, S, K, M, epsilon and the constants; L is that of the rows (Assumption 1), average_L that of the clients'
    average (Assumption 2, for PAGE). d: parameters. FedPAGE and PAGE get bounds; the others' analyses give orders.
    """
    costs = costs or Costs()
    if isinstance(d, bool) or d < 1:
        raise InputError(f"d must be a whole number of at least 1, not {d!r}")
    rows = [_bound(setting, d, convex, costs, K, average_L) for K in dict.fromkeys((setting.K, 1))]
    for entry in TABLE:
        if entry.source == "minibatches, as printed":
            continue  # the planner counts with b2 as the theorem gives it
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
        rows.append(_row(entry.method, entry.source, entry.assumption, ORDER, rounds, _round(entry, setting), d, costs,
                         gradients=work_of(setting)))  # fmt: skip
    return rows


def _bound(s: Setting, d: int, convex: bool, costs: Costs, K: int, average_L: float | None) -> Row:
    """FedPAGE with K local steps, or PAGE (K = 1), by its theorem."""
    L = s.L if K > 1 or average_L is None else average_L
    common: dict[str, Any] = {"L": L, "N": s.N, "S": s.S, "epsilon": s.epsilon}
    tuned: Tuned
    if K == 1:
        tuned = convex_page(**common, R2=s.R2) if convex else nonconvex_page(**common, D0=s.D0)
    elif convex:
        tuned = convex_fedpage(**common, K=K, R2=s.R2)
    else:
        tuned = nonconvex_fedpage(**common, K=K, D0=s.D0)
    method = tuned.method
    steps = {"eta_g": method.eta_g} | ({"eta_l": method.eta_l} if K > 1 else {})
    each = _fedpage_round(s, K)
    assumption = "average smooth" if K == 1 else "smooth"
    source = f"{tuned.theorem}, all rows"
    rounds = max(1.0, math.ceil(tuned.rounds))
    return _row(method.name, source, assumption, BOUND, rounds, each, d, costs, steps=steps,
                gradients=rounds * each.clients * each.gradients / s.N)  # fmt: skip


def _row(
    method: str, source: str, assumption: str, kind: str, rounds: float, each: Round, d: int, costs: Costs, *,
    gradients: float, steps: dict[str, Any] | None = None,
) -> Row:  # fmt: skip
    vector = 8.0 * d
    return Row(
        method=method,
        source=source,
        assumption=assumption,
        kind=kind,
        rounds=rounds,
        clients=rounds * each.clients,
        bytes_up=rounds * each.clients * each.up * vector,
        bytes_down=rounds * each.clients * each.down * vector,
        gradients_per_client=gradients,
        seconds=costs.seconds(rounds, each.down * vector, each.up * vector, each.gradients)
        if costs.given
        else None,
        steps=steps or {},
    )
