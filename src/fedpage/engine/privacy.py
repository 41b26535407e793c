"""Differential privacy of clients: clipped replies, noise on their mean, and what it costs.

The aggregation is the Gaussian mechanism of McMahan et al., "Learning Differentially Private
Recurrent Language Models" (2018). The accountant is that of the package dp-accounting.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import AnyMethod, Ints, Vector
from fedpage.engine.aggregation import Accumulator, Aggregation, ClippedSum, check_number
from fedpage.runs.checkpoint import Snapshot

EPSILON = "epsilon"
"""The column of the privacy budget that a run has spent."""


@dataclass(frozen=True)
class PrivateMean(Aggregation):
    """The mean of clipped replies with Gaussian noise, which hides any one client.

    Each reply is scaled down to a norm of at most `clip`. The mean of n replies gets normal noise
    of standard deviation noise clip/n in each coordinate. Every record has the column `epsilon`:
    all models so far together are (epsilon, delta)-differentially private with respect to all the
    rows of one client.

    With cohort="public" the accountant assumes that everyone may know which clients were called,
    and adds up the rounds of the client that was called most often; a neighbouring federation has
    zeros as one client's replies. With cohort="secret" it also counts that an observer does not
    know the cohort (sampling without replacement); a neighbouring federation has other rows at one
    client. This holds only if the run's seed is kept from the observer.

    Args:
        clip: The largest norm of a reply.
        noise: The noise multiplier.
        delta: The probability delta; much less than 1/N.
        cohort: Whether the accountant treats the cohort as "public" or "secret".

    Raises:
        InputError: A value is out of range.
    """

    name: ClassVar[str] = "private"
    clip: float
    noise: float
    delta: float = 1e-5
    cohort: Literal["public", "secret"] = "public"
    __repr__ = repr_settings

    def __post_init__(self) -> None:
        check_number("private: clip", self.clip, above=0.0)
        check_number("private: noise", self.noise, above=0.0)
        check_number("private: delta", self.delta, above=0.0, below=1.0)
        if self.cohort not in ("public", "secret"):
            raise InputError(
                f"aggregation: private: cohort must be public or secret, not "
                f"{short_repr(self.cohort)}"
            )

    @property
    def compares_replies(self) -> bool:
        """False: the accountant assumes that no reply decides whether another's counts."""
        return False

    def check(self, method: AnyMethod, N: int) -> None:
        """Refuse a method whose recursion clipping or noise would break.

        Raises:
            InputError: The method is one of them, or the accountant is not installed.
        """
        super().check(method, N)
        _import_accountant()

    def begin(self, round: int, key: bytes, N: int) -> Accumulator:
        """Return a running sum of clipped replies that gets noise at the end."""
        return _NoisySum(float(self.clip), float(self.noise), key, round)

    def make_ledger(self, method: AnyMethod, N: int) -> PrivacyLedger:
        """Return the account of a run's privacy budget."""
        return PrivacyLedger(self, N, int(getattr(method, "S", N)))


class PrivacyLedger:
    """Count the rounds of each client, and compute the privacy budget that they have spent.

    Args:
        settings: The aggregation.
        N: The number of clients.
        S: The number of clients sampled in a round.
    """

    def __init__(self, settings: PrivateMean, N: int, S: int) -> None:
        self._settings, self._N, self._S = settings, N, S
        self._rounds = 0
        self._times = np.zeros(N, dtype=np.int64)

    def add(self, clients: Ints) -> None:
        """Count a round in which these clients' replies were averaged."""
        self._rounds += 1
        self._times[clients] += 1

    def measure(self) -> dict[str, float]:
        """Return the column `epsilon`."""
        settings = self._settings
        if settings.cohort == "secret":
            return {EPSILON: _epsilon_sampled(settings, self._N, self._S, self._rounds)}
        return {EPSILON: _epsilon_composed(settings, int(self._times.max()))}

    def snapshot(self) -> Snapshot:
        """Return the counts, for a checkpoint."""
        return {"rounds": self._rounds, "times": self._times.copy()}

    def restore(self, tree: Snapshot) -> None:
        """Return to a snapshot.

        Raises:
            KeyError, TypeError, ValueError: It is not one of this federation.
        """
        rounds, times = int(tree["rounds"]), tree["times"]
        if times.shape != self._times.shape or times.dtype != np.int64 or (times < 0).any():
            raise ValueError
        self._rounds, self._times = rounds, times.copy()


class _NoisySum(ClippedSum):
    """The running sum of clipped replies, with noise added to their mean."""

    def __init__(self, clip: float, noise: float, key: bytes, round: int) -> None:
        super().__init__(clip)
        self._deviation, self._key, self._round = noise * clip, key, round

    def finish(self, count: int) -> list[Vector]:
        """Return the mean with noise of standard deviation noise clip/count."""
        means = super().finish(count)
        noise = draw_normals(self._key, self._round, sum(len(mean) for mean in means))
        return _add_noise(means, noise * (self._deviation / count))


def _add_noise(means: Sequence[Vector], noise: NDArray[np.float64]) -> list[Vector]:
    parts, first = [], 0
    for mean in means:
        part = noise[first : first + len(mean)].astype(mean.dtype)
        parts.append(mean + part)
        first += len(mean)
    return parts


def draw_normals(key: bytes, round: int, size: int) -> NDArray[np.float64]:
    """Draw standard normal numbers from a cryptographic stream, by Box and Muller, (size,).

    Whoever does not know the key cannot compute them, unlike the run's other random numbers, which
    follow from the seed.

    Args:
        key: The secret key.
        round: The round's number.
        size: How many.
    """
    pairs = (size + 1) // 2
    stream = hashlib.shake_256(b"fedpage noise" + key + round.to_bytes(8, "little"))
    words = np.frombuffer(stream.digest(16 * pairs), dtype="<u8").reshape(2, pairs)
    uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log1p(-uniform[0]))
    angle = 2.0 * math.pi * uniform[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


def _import_accountant() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise InputError(
            "aggregation: private needs an accountant; install it with pip install "
            "'fedpage[privacy]'"
        ) from None
    return dp_accounting


@lru_cache(maxsize=4096)
def _epsilon_composed(settings: PrivateMean, times: int) -> float:
    """Return the epsilon of a client whose replies were used in so many rounds."""
    if not times:
        return 0.0
    dp = _import_accountant()
    accountant = dp.rdp.RdpAccountant()
    accountant.compose(dp.GaussianDpEvent(settings.noise), times)
    return float(accountant.get_epsilon(settings.delta))


@lru_cache(maxsize=4096)
def _epsilon_sampled(settings: PrivateMean, N: int, S: int, rounds: int) -> float:
    """Return the epsilon after so many rounds with S of N clients that nobody knows."""
    if not rounds:
        return 0.0
    dp = _import_accountant()
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    # Another reply in place of one moves the sum by up to 2 clip, twice what zeros would.
    event = dp.GaussianDpEvent(settings.noise / 2)
    if S < N:
        event = dp.SampledWithoutReplacementDpEvent(N, S, event)
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(settings.delta))
