"""How the server combines the replies of a round: their mean, or a robust or private one.

Every method is defined with the mean of the replies. The other aggregations protect the model from
clients that send wrong numbers (`TrimmedMean`, `ClippedMean`) or protect the clients
(`fedpage.engine.privacy.PrivateMean`). They are allowed for methods that say so with
`takes_any_mean`: those whose server needs an estimate of the mean change and nothing else. A method
with a recursion, such as FedPAGE's g or SCAFFOLD's c, assumes the mean itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpage.codecs.message_codec import MessageSize
from fedpage.core import validate
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.messages import Layout, add_rows, mean_rows
from fedpage.core.spec import parse
from fedpage.core.types import AnyMethod, Vector
from fedpage.runs.config import structure

if TYPE_CHECKING:
    from fedpage.engine.privacy import PrivacyLedger


class Accumulator(Protocol):
    """Collects the replies of one round."""

    def add(self, replies: Sequence[Vector]) -> None:
        """Add the replies of further clients, in client order: each field (n, d)."""
        ...

    def finish(self, count: int) -> list[Vector]:
        """Return the aggregate of all `count` replies: each field (d,)."""
        ...


class Aggregation(ABC):
    """A way to combine the replies of a round into one."""

    name: ClassVar[str]
    known: ClassVar[dict[str, type[Aggregation]]] = {}
    """Every aggregation by name."""
    needs_mean: ClassVar[bool] = True
    """Whether only methods that take any estimate of the mean may use it."""
    compares_replies: ClassVar[bool] = True
    """Whether the server may compare a client's reply with other replies and reject it."""
    is_private: ClassVar[bool] = False
    """Whether the aggregate must not reveal a client's reply."""

    def __init_subclass__(cls) -> None:
        Aggregation.known[cls.name] = cls

    @staticmethod
    def from_text(text: str) -> Aggregation:
        """Return the aggregation of a text, with settings after a colon.

        Raises:
            InputError: The name or a setting is unknown or out of range.

        >>> Aggregation.from_text("mean"), Aggregation.from_text("trimmed:share=0.2")
        (Mean(), TrimmedMean(share=0.2))
        """
        import fedpage.engine.fixed_point
        import fedpage.engine.privacy  # noqa: F401  # both register aggregations

        spec = parse(text)
        found = Aggregation.known.get(spec.name)
        if found is None:
            hint = did_you_mean(spec.name, Aggregation.known)
            known = ", ".join(Aggregation.known)
            raise InputError(
                f"aggregation: there is no {short_repr(spec.name)};{hint} known are {known}"
            )
        if spec.values:
            example = "expected name=value after the colon, such as trimmed:share=0.1"
            raise InputError(f"aggregation {short_repr(text)}: {example}")
        return structure(found, spec.settings, f"aggregation {found.name}", words=True)

    @property
    def text(self) -> str:
        """The text that `from_text` reads, such as "trimmed:share=0.2"."""
        settings = ",".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{self.name}:{settings}" if settings else self.name

    def combine(
        self, replies: Sequence[Vector], round: int, key: bytes, N: int
    ) -> Iterable[Vector]:
        """Return the aggregate, fields (d,), of a round's replies (n, d) that arrive at once.

        The key of the aggregation's random numbers is secret in a federation of N clients.
        """
        accumulator = self.begin(round, key, N)
        accumulator.add(replies)
        return accumulator.finish(len(replies[0]))

    @abstractmethod
    def begin(self, round: int, key: bytes, N: int) -> Accumulator:
        """Return an accumulator of the replies of a round; see `combine` for the arguments."""

    def check(self, method: AnyMethod, N: int) -> None:
        """Raise an InputError for a method of N clients for which the aggregate would be wrong."""
        if self.needs_mean and not getattr(method, "takes_any_mean", False):
            raise InputError(
                f"aggregation={self.name}: {method.name} needs the mean of the replies, because "
                "its later rounds build on it; use FedAvg, FedProx or FedAdam, or aggregation=mean"
            )

    def make_ledger(self, method: AnyMethod, N: int) -> PrivacyLedger | None:
        """Return the account of a run's privacy budget, if the aggregation is private."""
        return None

    def measure_reply(self, layout: Layout[Any]) -> MessageSize | None:
        """Return the size of a reply, if it is not sent as the method's codec encodes it."""
        return None

    def mean_values(
        self, losses: Vector, metrics: Mapping[str, Vector], factors: Vector | None, N: int
    ) -> dict[str, float]:
        """Return the means of losses (n,) and metrics that this aggregation computes itself.

        `factors` are the factors N w_i of these clients, (n,), or None if all are 1.
        """
        return {}

    def describe(self) -> dict[str, object]:
        """Return the settings as plain values."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Mean(Aggregation):
    """The mean of the replies, which every method is defined with."""

    name: ClassVar[str] = "mean"
    needs_mean: ClassVar[bool] = False
    __repr__ = repr_settings

    def begin(self, round: int, key: bytes, N: int) -> Accumulator:
        """Return a running sum."""
        return _Sum()

    def combine(
        self, replies: Sequence[Vector], round: int, key: bytes, N: int
    ) -> Iterable[Vector]:
        """Return the mean, with the bits of the running sum divided by n."""
        return map(mean_rows, replies)


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """The mean of each coordinate without its largest and its smallest values.

    Of n replies, the k = floor(share n) largest and the k smallest values of each coordinate are
    left out (Yin et al. 2018). As long as at most k clients send wrong numbers, each coordinate
    stays between the smallest and the largest honest value.

    Args:
        share: The share of clients left out on each side, in [0, 0.5).

    Raises:
        InputError: The share is out of range.
    """

    name: ClassVar[str] = "trimmed"
    share: float = 0.1
    __repr__ = repr_settings

    def __post_init__(self) -> None:
        validate.within("aggregation trimmed", "share", self.share, 0.0, 0.5)
        if self.share == 0.5:
            raise InputError("aggregation trimmed: share must be below 0.5, or nothing is left")

    def begin(self, round: int, key: bytes, N: int) -> Accumulator:
        """Return an accumulator that keeps all replies until the end of the round."""
        return _Trimmed(float(self.share))


@dataclass(frozen=True)
class ClippedMean(Aggregation):
    """The mean of replies that are scaled down to a norm of at most `bound`.

    A reply with |r| > bound counts as bound r/|r|, so that no client moves the mean of n replies by
    more than bound/n. Where no reply is longer, it is the mean, bit for bit.

    Args:
        bound: The largest norm of a reply.

    Raises:
        InputError: The bound is not a positive number.
    """

    name: ClassVar[str] = "clipped"
    bound: float
    __repr__ = repr_settings

    def __post_init__(self) -> None:
        validate.positive("aggregation clipped", "bound", self.bound)

    def begin(self, round: int, key: bytes, N: int) -> Accumulator:
        """Return a running sum of clipped replies."""
        return ClippedSum(float(self.bound))


class _Sum:
    """The running sum of replies, one client after the other."""

    def __init__(self) -> None:
        self._totals: Sequence[Vector | None] = ()

    def add(self, replies: Sequence[Vector]) -> None:
        totals = self._totals or [None] * len(replies)
        self._totals = [add_rows(t, rows) for t, rows in zip(totals, replies, strict=True)]

    def finish(self, count: int) -> list[Vector]:
        return [total / count for total in self._totals if total is not None]


class ClippedSum(_Sum):
    """The running sum of replies clipped to a norm over all their fields of at most `bound`."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self._bound = bound

    def add(self, replies: Sequence[Vector]) -> None:
        """Add clipped replies."""
        norms = norms_of(replies)
        if (norms > self._bound).any():
            # Rounding the products must not lead beyond the bound, which privacy relies on.
            shorter = self._bound * (1.0 - 4.0 * max(np.finfo(r.dtype).eps for r in replies))
            factors = np.where(norms > self._bound, shorter / np.maximum(norms, shorter), 1.0)
            replies = [rows * factors[:, None].astype(rows.dtype) for rows in replies]
        super().add(replies)


class _Trimmed:
    """All replies of a round, for a mean without the k extremes on each side of a coordinate.

    What is left is added in client order, so that the result has the bits of the mean of the other
    clients where the same clients are left out of every coordinate.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._parts: list[Sequence[Vector]] = []

    def add(self, replies: Sequence[Vector]) -> None:
        self._parts.append(replies)

    def finish(self, count: int) -> list[Vector]:
        k = math.floor(self._share * count)
        means = []
        for parts in zip(*self._parts, strict=True):
            rows = np.concatenate(parts)
            if k:
                order = np.argsort(rows, axis=0, kind="stable")
                for extreme in (order[:k], order[-k:]):
                    np.put_along_axis(rows, extreme, np.zeros((), rows.dtype), axis=0)
            total = add_rows(None, rows)
            means.append(np.asarray(total / (count - 2 * k), dtype=rows.dtype))
        return means


def norms_of(replies: Sequence[Vector]) -> NDArray[np.float64]:
    """Return the norm of each client's reply over all its fields, (n,).

    Numbers whose squares overflow or vanish are scaled first, so that every finite reply has a
    finite norm unless the norm itself is too large for a float.
    """
    wide = [np.asarray(rows, dtype=np.float64) for rows in replies]
    largest = np.max([np.abs(rows).max(axis=1, initial=0.0) for rows in wide], axis=0)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = [np.square(rows / scale[:, None]).sum(axis=1) for rows in wide]
        return np.asarray(scale * np.sqrt(np.sum(squares, axis=0)), dtype=np.float64)
