"""The policy for clients that do not answer or send invalid replies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fedpage.core import validate
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError


@dataclass(frozen=True)
class Policy:
    """Set retries, fallbacks and validation; the default is the recommended policy.

    Replies that are late, not finite, or not of the declared shape and type are rejected. Missing
    clients are asked again `retries` times, in a full round `full_retries` times, because one
    missing client makes a full gradient unusable. If clients of a full round are still
    missing, the method's sampled round replaces it, so that no gradient is ever the mean over some
    of the clients. Where a method has no such round (FedPAGE's first, all of VRL-SGD's) or no
    client has answered, the clients are asked again `patience` times; then the round fails. Means
    are over the clients that answered. A client's state changes only if its reply counted. A client
    that was missing in `lost_after` of its rounds in a row is lost: an event says so once, and no
    full round is tried while a client is lost.

    In a federation, a reply or an evaluation is also rejected if its norm is more than
    `outlier_factor` times the median norm of the clients (see `fedpage.engine.outliers`).

    Args:
        retries: Further attempts to reach missing clients in a sampled round.
        full_retries: Further attempts in a full round.
        patience: Further attempts where no client, or not every required client, answers.
        lost_after: Rounds missed in a row after which a client counts as lost.
        validate: False adds all replies that arrive, including late ones of earlier rounds.
        fall_back: False lets a full round take the mean over the clients that answered.
        commit: When a client's new state is stored: if its reply "counted", or "always".
        outlier_factor: How many times the median norm a reply may have; 0 allows any norm.
    """

    retries: int = 2
    full_retries: int = 6
    patience: int = 10
    lost_after: int = 3
    validate: bool = True
    fall_back: bool = True
    commit: Literal["counted", "always"] = "counted"
    outlier_factor: float = 1000.0

    __repr__ = repr_settings

    def __post_init__(self) -> None:
        for name in ("retries", "full_retries", "patience", "lost_after"):
            least = 0 if name.endswith("retries") else 1
            validate.whole("policy", name, getattr(self, name), least)
        validate.flag("policy", "validate", self.validate)
        validate.flag("policy", "fall_back", self.fall_back)
        validate.choice("policy", "commit", self.commit, ("counted", "always"))
        validate.within("policy", "outlier_factor", self.outlier_factor, 0.0, 1e300)
        if 0.0 < self.outlier_factor < 1.0:
            raise InputError("policy: outlier_factor must be at least 1, or 0 for no check")

    @property
    def fallback_attempt(self) -> int:
        """The number of the first attempt of a fallback, beyond those of the full round."""
        return 2 * (1 + self.full_retries) + self.patience

    def describe(self) -> dict[str, object]:
        """Return all settings as plain values, or nothing for the default policy."""
        return {} if self == Policy() else vars(self).copy()

    @classmethod
    def naive(cls) -> Policy:
        """Return a policy without retries, validation or fallback, for comparison."""
        return cls(retries=0, full_retries=0, validate=False, fall_back=False, commit="always")


class ClientHealth:
    """Count the rounds in a row that each client has missed. Lost clients missed too many."""

    def __init__(self, lost_after: int) -> None:
        self.lost_after = lost_after
        self.misses: dict[int, int] = {}
        """Rounds missed in a row, by client; clients that answered last time are left out."""

    @property
    def lost(self) -> list[int]:
        """Clients that are lost, ascending."""
        return sorted(c for c, misses in self.misses.items() if misses >= self.lost_after)

    def update(self, present: Iterable[int], absent: Iterable[int]) -> tuple[list[int], list[int]]:
        """Count misses after a round, and return who is back and who is lost from now on."""
        back = [c for c in sorted(present) if self.misses.pop(c, 0) >= self.lost_after]
        lost = []
        for client in sorted(absent):
            self.misses[client] = self.misses.get(client, 0) + 1
            if self.misses[client] == self.lost_after:
                lost.append(client)
        return back, lost
