"""Simulate clients that fail: who fails, when and how is a function of the seed."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpage.core import validate
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import check_seed, normal_per_client, uniform_per_client
from fedpage.core.types import Ints, Problem, ReplyT, Vector
from fedpage.core.validate import is_word
from fedpage.engine.policy import Policy
from fedpage.runs import toml
from fedpage.runs.config import structure

_DROP, _LOSE, _KIND, _SPEED, _NOISE = 1, 2, 3, 4, 5
"""Purposes of the draws, so that changing one rate changes no other fault."""
_HUGE = 1e9
"""The numbers of a reply that is wrong and finite."""


@dataclass(frozen=True)
class Faults:
    """How clients fail.

    Each rate is the probability of a fault per call of a client; a retry draws again. A reply takes
    exp(spread z_i + noise z) times the typical time, where z_i (one per client) and z (one per
    call) are standard normal.

    Args:
        dropout: Probability that a client does not start to work.
        tied: By default all clients have the same dropout. With "labels" or "size" it rises
            linearly with a client's rank, from 0 to twice the given value, and is largest for the
            largest mean label, or for the fewest rows.
        lost: Probability that a reply is lost.
        nan: Probability that a reply contains a NaN.
        infinite: Probability that a reply contains an infinity.
        shape: Probability that a reply has only its first number.
        late: Probability that a reply arrives in the next round.
        huge: Probability that every number of a reply is 1e9.
        spread: Standard deviation of the logarithm of a client's typical time.
        noise: Standard deviation of the logarithm of a call's time.
        deadline: A reply that takes more typical times than this arrives in the next round.
        gone: Clients that do not answer from round `gone_from` on.
        gone_from: The first round without them.
        seed: The seed of the faults; by default the run's seed.

    Raises:
        InputError: A value is out of range.
    """

    dropout: float = 0.0
    tied: str = ""
    lost: float = 0.0
    nan: float = 0.0
    infinite: float = 0.0
    shape: float = 0.0
    late: float = 0.0
    huge: float = 0.0
    spread: float = 0.0
    noise: float = 0.0
    deadline: float | None = None
    gone: tuple[int, ...] = ()
    gone_from: int = 0
    seed: int | None = None

    __repr__ = repr_settings

    def __post_init__(self) -> None:
        for name in ("dropout", "lost", "nan", "infinite", "shape", "late", "huge"):
            validate.within("faults", name, getattr(self, name), 0.0, 1.0)
        if self.nan + self.infinite + self.shape + self.late + self.huge > 1.0:
            raise InputError(
                "faults: nan, infinite, shape, late and huge together must not exceed 1"
            )
        validate.within("faults", "spread", self.spread, 0.0, 100.0)
        validate.within("faults", "noise", self.noise, 0.0, 100.0)
        if self.deadline is not None:
            validate.within("faults", "deadline", self.deadline, 1e-9, 1e9)
        if not is_word(self.tied, ("", "labels", "size")):
            raise InputError(
                f"faults: tied must be 'labels' or 'size', not {short_repr(self.tied)}"
            )
        if self.tied and self.dropout > 0.5:
            raise InputError(
                "faults: a tied dropout must be at most 0.5, because it rises to twice that, "
                f"not {self.dropout:g}"
            )
        if not isinstance(self.gone, Iterable):
            raise InputError(f"faults: gone must be clients, not {short_repr(self.gone)}")
        object.__setattr__(self, "gone", tuple(self.gone))
        for client in self.gone:
            validate.whole("faults", "a client that is gone", client, 0)
        validate.whole("faults", "gone_from", self.gone_from, 0)
        if self.seed is not None:
            check_seed(self.seed)

    def describe(self) -> dict[str, object]:
        """Return the settings that are not at their defaults, as plain values."""
        about = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                about[field.name] = list(value) if isinstance(value, tuple) else value
        return about


@dataclass(frozen=True)
class _FaultsFile:
    """The tables of a faults file."""

    faults: Faults = dataclasses.field(default_factory=Faults)
    policy: Policy = dataclasses.field(default_factory=Policy)


def read(path: str | os.PathLike[str]) -> tuple[Faults, Policy]:
    """Read faults and policy from a TOML file with the tables [faults] and [policy], both optional.

    Raises:
        InputError: the file cannot be read, or a key or value is wrong.
    """
    return parse(toml.read(path), os.fspath(path))


def parse(table: Mapping[str, object], source: str) -> tuple[Faults, Policy]:
    """Build faults and policy from the table of a faults file, which errors call `source`."""
    file = structure(_FaultsFile, table, source)
    return file.faults, file.policy


FINE, LOST, NOT_A_NUMBER, INFINITE, WRONG_SHAPE, LATE, HUGE = range(7)
"""Outcomes of a reply."""


class FaultSampler:
    """Draw the faults of one run on one problem."""

    def __init__(self, faults: Faults, problem: Problem, seed: int) -> None:
        self.faults = faults
        self.seed = seed if faults.seed is None else faults.seed
        N = problem.N
        beyond = [client for client in faults.gone if client >= N]
        if beyond:
            raise InputError(
                f"faults: gone names client {short_repr(beyond[0])}, but clients are 0..{N - 1}"
            )
        uniform = np.full(N, float(faults.dropout))
        self._rates = _rates_by_rank(faults, problem) if faults.tied else uniform
        self._gone = np.zeros(N, dtype=bool)
        self._gone[list(faults.gone)] = True
        self._speed = np.zeros(N)
        if faults.spread:
            clients = np.arange(N, dtype=np.int64)
            self._speed = faults.spread * normal_per_client(self.seed, _SPEED, clients=clients)
        self._edges = np.cumsum(
            [faults.nan, faults.infinite, faults.shape, faults.late, faults.huge]
        )

    def sample_working(self, clients: Ints, round: int, attempt: int) -> NDArray[np.bool_] | None:
        """Return which of the called clients start working, (n,); None if all of them do."""
        gone = bool(self.faults.gone) and round >= self.faults.gone_from
        if not self.faults.dropout and not gone:
            return None
        drop = uniform_per_client(self.seed, _DROP, round, attempt, clients=clients)
        out = drop < self._rates[clients]
        if gone:
            out |= self._gone[clients]
        return ~out if out.any() else None

    def sample_outcomes(self, clients: Ints, round: int, attempt: int) -> NDArray[np.int8]:
        """Return what becomes of each reply, (n,) of FINE, LOST, ..."""
        faults = self.faults
        outcomes = np.zeros(len(clients), dtype=np.int8)
        if self._edges[-1] > 0.0:
            u = uniform_per_client(self.seed, _KIND, round, attempt, clients=clients)
            codes = np.array([NOT_A_NUMBER, INFINITE, WRONG_SHAPE, LATE, HUGE, FINE], dtype=np.int8)
            outcomes = codes[np.searchsorted(self._edges, u, side="right")]
        if faults.deadline is not None:
            noise: Vector | float = 0.0
            if faults.noise:
                noise = normal_per_client(self.seed, _NOISE, round, attempt, clients=clients)
            late = self._speed[clients] + faults.noise * noise > math.log(faults.deadline)
            outcomes[late] = LATE
        if faults.lost:
            lose = uniform_per_client(self.seed, _LOSE, round, attempt, clients=clients)
            outcomes[lose < faults.lost] = LOST
        return outcomes


def _rates_by_rank(faults: Faults, problem: Problem) -> Vector:
    """Return dropout rates (N,) that rise evenly with the rank of a property of clients' data."""
    if faults.tied == "size":
        order = np.asarray(-problem.sizes, dtype=np.float64)
    elif hasattr(problem, "mean_labels"):
        order = problem.mean_labels()
    else:
        raise InputError(
            f"faults: tied to labels, but {type(problem).__name__} has none; tie them to 'size'"
        )
    rates = np.empty(problem.N)
    rates[np.argsort(order, kind="stable")] = np.linspace(0.0, 2.0 * faults.dropout, problem.N)
    return rates


def corrupt(reply: ReplyT, outcome: int) -> ReplyT:
    """Return a client's reply, a NamedTuple of (d,) arrays, as it arrives."""
    if outcome not in (NOT_A_NUMBER, INFINITE, WRONG_SHAPE, HUGE):
        return reply
    if outcome == HUGE:
        return type(reply)(*(np.full_like(part, _HUGE) for part in reply))
    if outcome == WRONG_SHAPE:
        return type(reply)(*(part[:1] for part in reply))
    first, *others = (part.copy() for part in reply)
    first[len(first) // 2] = math.nan if outcome == NOT_A_NUMBER else math.inf
    return type(reply)(first, *others)
