"""Count what an average round of each method sends and computes.

Counts come from the types of messages and replies, so that a plan's bytes are those of real runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fedpage.methods import fedavg, fedpage, scaffold, slocalsvrg, vrlsgd
from fedpage.theory.tables import Entry, Setting


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


def count_vectors(*types: type[NamedTuple]) -> tuple[int, ...]:
    """Count the vectors in messages or replies of these types."""
    return tuple(len(each._fields) for each in types)


def fedpage_round(s: Setting, K: int) -> Round:
    """Average over full rounds (probability p = S/N) and rounds of local steps at S clients."""
    p = s.S / s.N
    full_down, local_down, up = count_vectors(
        fedpage.FullGradient, fedpage.LocalSteps, fedpage.Reply
    )
    clients = p * s.N + (1 - p) * s.S
    down = (p * s.N * full_down + (1 - p) * s.S * local_down) / clients
    work = p * s.M + (1 - p) * (2 * s.M + 2 * (K - 1))
    return Round(clients, down, up, work)


def _svrg_round(s: Setting) -> Round:
    """Average over a full gradient and 1/q rounds of local steps, q = min(1, K/M)."""
    local_rounds = 1 / min(1.0, s.K / s.M)
    full, first, later, up = count_vectors(
        slocalsvrg.Refresh, slocalsvrg.StepsWithGradient, slocalsvrg.Steps, slocalsvrg.Move
    )
    down = (full + first + (local_rounds - 1) * later) / (1 + local_rounds)
    return Round(s.N, down, up, (s.M + local_rounds * 2 * s.K) / (1 + local_rounds))


def _local_round(
    message: type[NamedTuple], reply: type[NamedTuple], all_clients: bool
) -> Callable[[Setting], Round]:
    down, up = count_vectors(message, reply)
    return lambda s: Round(s.N if all_clients else s.S, down, up, s.K)


_ROUNDS: dict[str, Callable[[Setting], Round]] = {
    "FedProx": _local_round(fedavg.Model, fedavg.Reply, True),
    "VRL-SGD": _local_round(vrlsgd.Continue, vrlsgd.Reply, True),
    "SCAFFOLD": _local_round(scaffold.Controlled, scaffold.Reply, False),
    "S-Local-SVRG": _svrg_round,
    "FedPAGE": lambda s: fedpage_round(s, s.K),
}


def difference_round(s: Setting, p: float, everyone: bool) -> Round:
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


def average_round(entry: Entry, setting: Setting) -> Round:
    """Return an average round of the method of a table's entry."""
    if entry.method in _RIVAL_ROUNDS:
        return _RIVAL_ROUNDS[entry.method](setting)
    if entry.method == "FedAvg":
        return _local_round(fedavg.Model, fedavg.Reply, entry.all_clients)(setting)
    return _ROUNDS[entry.method](setting)
