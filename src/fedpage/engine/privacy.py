"""Differential privacy of clients: clipped replies, noise on their mean, and what it costs.

The aggregation is the Gaussian mechanism of McMahan et al., "Learning Differentially Private
Recurrent Language Models" (2018). The accountant is that of the package dp-accounting.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpage.core import validate
from fedpage.core.columns import EPSILON
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.core.types import AnyMethod, Ints, Vector
from fedpage.engine.aggregation import Accumulator, Aggregation, ClippedSum
from fedpage.runs.checkpoint import Snapshot

_KEY_BYTES = 32


@dataclass(frozen=True)
class PrivateMean(Aggregation):
    """The mean of clipped replies with Gaussian noise, which hides any one client.

    Each reply is scaled down to a norm of at most `clip`. The mean of n replies gets normal noise
    of standard deviation noise clip/n in each coordinate. Every record has the column `epsilon`:
    all models so far together are (epsilon, delta)-differentially private with respect to all the
    rows of one client. The observer may know who answered in which round, and so n: the mean with
    noise is then the sum with noise, divided by a known number.

    With cohort="public" the accountant adds up the rounds of the client whose replies were used
    most often; a neighbouring federation has zeros as one client's replies. With cohort="secret" it
    also counts that an observer does not know the cohort (sampling without replacement); a
    neighbouring federation has other rows at one client. This holds only if the run's seed is kept
    from the observer. A round in which a called client is missing counts as one whose cohort is
    known, because who is missing may depend on the cohort.

    Args:
        clip: The largest norm of a reply.
        noise: The noise multiplier.
        delta: The probability delta, which must be below 1/N and should be far below.
        cohort: Whether the accountant treats the cohort as "public" or "secret".

    Raises:
        InputError: A value is out of range.
    """

    name: ClassVar[str] = "private"
    is_private: ClassVar[bool] = True
    compares_replies: ClassVar[bool] = False
    """The accountant assumes that no reply decides whether another one counts."""
    clip: float
    noise: float
    delta: float = 1e-5
    cohort: Literal["public", "secret"] = "public"
    __repr__ = repr_settings

    def __post_init__(self) -> None:
        label = "aggregation private"
        validate.positive(label, "clip", self.clip)
        validate.positive(label, "noise", self.noise)
        validate.probability(label, "delta", self.delta)
        validate.choice(label, "cohort", self.cohort, ("public", "secret"))

    def check(self, method: AnyMethod, N: int) -> None:
        """Raise an InputError if the method, delta or the installation does not allow privacy."""
        super().check(method, N)
        if self.delta * N >= 1.0:
            raise InputError(
                f"aggregation private: delta must be below 1/N = {1 / N:.3g} for {N} clients, not "
                f"{self.delta:g}"
            )
        _import_accountant()

    def begin(self, round: int, key: bytes, N: int) -> Accumulator:
        """Return a running sum of clipped replies that gets noise at the end."""
        return _NoisySum(self, key, round)

    def make_ledger(self, method: AnyMethod, N: int) -> PrivacyLedger:
        """Return the account of a run's privacy budget."""
        return PrivacyLedger(self, N, int(getattr(method, "S", N)))


class PrivacyLedger:
    """Count the rounds of N clients, S sampled in each, and compute the privacy budget spent."""

    def __init__(self, settings: PrivateMean, N: int, S: int) -> None:
        self._settings, self._N, self._S = settings, N, S
        self._journal: ReleaseJournal | None = None
        self._sampled = self._known = 0
        self._times = np.zeros(N, dtype=np.int64)

    def keep(self, journal: ReleaseJournal) -> None:
        """Count the releases of a journal, from now on also after a resume.

        A federation repeats the last rounds after a resume. If others answer then, another mean of
        the same round is released. The journal holds both, unlike a snapshot.
        """
        self._journal = journal
        self._count_again()

    def _count_again(self) -> None:
        """Count all releases of the journal."""
        assert self._journal is not None
        self._sampled = self._known = 0
        self._times[:] = 0
        for release in self._journal.releases:
            self._count(np.array(release.clients, dtype=np.int64), release.called)

    def add(self, round: int, mean: Sequence[Vector], clients: Ints, called: int) -> None:
        """Count a mean with its noise before it is used, over some of the called clients."""
        if self._journal is not None:
            digest = hashlib.sha256(b"".join(part.tobytes() for part in mean)).hexdigest()
            if not self._journal.add(Release(round, digest, tuple(clients.tolist()), called)):
                return  # the same mean once more says nothing new
        self._count(clients, called)

    def _count(self, clients: Ints, called: int) -> None:
        self._sampled += len(clients) == called
        self._known += len(clients) != called
        self._times[clients] += 1

    def measure(self) -> dict[str, float]:
        """Return the column `epsilon`."""
        rounds = self._sampled, self._known
        if self._settings.cohort == "public":
            rounds = 0, int(self._times.max())
        return {EPSILON: _epsilon(self._settings, self._N, self._S, *rounds)}

    def snapshot(self) -> Snapshot:
        """Return the counts, for a checkpoint."""
        return {"sampled": self._sampled, "known": self._known, "times": self._times.copy()}

    def restore(self, tree: Snapshot) -> None:
        """Return to a snapshot, or to the releases of the journal, which may be more."""
        self._sampled, self._known = int(tree["sampled"]), int(tree["known"])
        self._times[:] = tree["times"]
        if self._journal is not None:
            self._count_again()


class _NoisySum(ClippedSum):
    """The running sum of clipped replies, with noise added to their mean."""

    def __init__(self, settings: PrivateMean, key: bytes, round: int) -> None:
        super().__init__(float(settings.clip))
        self._settings, self._key, self._round = settings, key, round

    def finish(self, count: int) -> list[Vector]:
        """Return the mean with noise of standard deviation noise clip/count.

        The noise is a function of the key and of everything that is released with it. A round that
        is repeated after a resume gets the same noise if the mean is the same, and independent
        noise if it is not: the difference of two means with the same noise would reveal replies.
        """
        means = super().finish(count)
        settings = self._settings
        stream = hashlib.blake2b(key=self._key, digest_size=32)
        stream.update(f"{settings.text} {self._round} {count} ".encode())
        for mean in means:
            stream.update(mean.tobytes())
        noise = draw_normals(stream.digest(), sum(len(mean) for mean in means))
        noise *= settings.noise * settings.clip / count
        parts = np.split(noise, np.cumsum([len(mean) for mean in means])[:-1])
        return [mean + part.astype(mean.dtype) for mean, part in zip(means, parts, strict=True)]


def draw_normals(key: bytes, size: int) -> NDArray[np.float64]:
    """Draw standard normal numbers from a cryptographic stream, by Box and Muller, (size,).

    Without the secret key nobody can compute them, unlike the run's other random numbers, which
    follow from the seed.
    """
    pairs = (size + 1) // 2
    stream = hashlib.shake_256(b"fedpage noise" + key)
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
        install = "install it with pip install 'fedpage[privacy]'"
        raise InputError(f"aggregation: private needs an accountant; {install}") from None
    return dp_accounting


@lru_cache(maxsize=4096)
def _epsilon(settings: PrivateMean, N: int, S: int, sampled: int, known: int) -> float:
    """Return the epsilon after `sampled` rounds with a secret cohort and `known` others."""
    if not sampled + known:
        return 0.0
    dp = _import_accountant()
    accountant, event = dp.rdp.RdpAccountant(), dp.GaussianDpEvent(settings.noise)
    if settings.cohort == "secret":
        accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
        # Another reply in place of one moves the sum by up to 2 clip, twice what zeros would.
        event = dp.GaussianDpEvent(settings.noise / 2)
    if known:
        accountant.compose(event, known)
    if sampled:
        whole = event if S >= N else dp.SampledWithoutReplacementDpEvent(N, S, event)
        accountant.compose(whole, sampled)
    return float(accountant.get_epsilon(settings.delta))


class Release(NamedTuple):
    """A mean that left the aggregation."""

    round: int
    digest: str
    """SHA-256 of the mean with its noise."""
    clients: tuple[int, ...]
    """The clients whose replies were averaged."""
    called: int
    """How many clients were called."""


class ReleaseJournal:
    """A file of releases, to which each is added before the mean is used.

    A checkpoint comes after the round, so a server that is killed in between repeats a round whose
    mean clients have seen. The journal still has the first one.

    Args:
        path: The file; it is created if there is none, and only its owner can read it.
        N: The number of clients.

    Raises:
        InputError: The file cannot be read or is not a journal of this federation.
    """

    def __init__(self, path: Path, N: int) -> None:
        self._path = path
        self.releases: list[Release] = []
        """All releases, oldest first."""
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # what follows was not written completely, nor used
        try:
            for line in whole.splitlines():
                round, digest, clients, called = json.loads(line)
                if not all(0 <= client < N for client in clients):
                    raise ValueError
                self.releases.append(Release(round, digest, tuple(clients), called))
        except (ValueError, TypeError):
            raise InputError(
                f"{path}: damaged, so the privacy budget is not known; begin a new run"
            ) from None
        self._known = {(release.round, release.digest) for release in self.releases}
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.ftruncate(self._descriptor, len(whole))

    def add(self, release: Release) -> bool:
        """Write a release to the disk; return False if it is there already."""
        if (release.round, release.digest) in self._known:
            return False
        os.write(self._descriptor, json.dumps(release).encode() + b"\n")
        os.fsync(self._descriptor)
        self.releases.append(release)
        self._known.add((release.round, release.digest))
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_noise_key(path: Path) -> bytes:
    """Return the 32 bytes in a file that only its owner can read, or draw new ones.

    Raises:
        InputError: The file does not hold a key.
    """
    if not path.exists():
        put(path, os.urandom(_KEY_BYTES), private=True)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise InputError(f"{path}: not the key of a private mean; begin a new run")
    return key
