"""The mean of replies as whole numbers, which secure aggregation can add up under masks.

Every number of a reply is multiplied by a power of two and rounded to a whole number of 64 bits.
Whole numbers are added exactly and in any order, so the mean has the same bits for any chunks,
threads and engine. A federation that adds up masked numbers modulo 2^64 gets the same sum as the
simulator, which adds up the numbers themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpage.codecs.base import IDENTITY
from fedpage.codecs.message_codec import MessageSize
from fedpage.core import validate
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError
from fedpage.core.messages import Layout
from fedpage.core.types import AnyMethod, DType, Vector
from fedpage.engine.aggregation import Accumulator, Aggregation
from fedpage.engine.transport import RoundFailed

Whole: TypeAlias = NDArray[np.int64]
"""Numbers in fixed point."""
_LIMIT = 1 << 63
_EXPONENTS = range(-900, 901)
"""Exponents of scales whose inverse is a normal number too."""
NUMBER_BYTES = 8
"""Bytes of a number in fixed point."""
RAISE_BOUND = "raise bound in aggregation = 'secure:bound=...'"
"""What to do about finite numbers beyond the bound."""


class BeyondBound(ValueError):
    """A number is not finite or beyond the bound. The text says which, in one line."""


@dataclass(frozen=True)
class FixedPointMean(Aggregation):
    """The mean of replies in fixed point, as secure aggregation computes it.

    A number v counts as rint(scale v)/scale, where scale is the largest power of two for which N
    numbers of the size `bound` add up to less than 2^63. The error of a number, and of the mean, is
    at most 1/(2 scale), which is about N bound 2^-63 or less. The mean is then rounded to the type
    of the model. Every method may use it.

    In the simulator this is arithmetic only. In a federation, clients also mask their numbers, and
    the server learns nothing but their sum (docs/secure-aggregation.md).

    Args:
        bound: The largest absolute value of any number of a reply. A reply beyond it is refused.
        least: The fewest clients whose replies may be added up.

    Raises:
        InputError: The bound is not a positive number, or `least` is below 2.
    """

    name: ClassVar[str] = "secure"
    needs_mean: ClassVar[bool] = False
    compares_replies: ClassVar[bool] = False  # in a federation the server sees their sum only
    bound: float
    least: int = 3
    __repr__ = repr_settings

    def __post_init__(self) -> None:
        validate.positive("aggregation secure", "bound", self.bound)
        validate.whole("aggregation secure", "least", self.least, 2)

    def begin(self, round: int, key: bytes, N: int) -> Accumulator:
        """Return a running sum of whole numbers."""
        return _WholeSum(self, round, N)

    def check(self, method: AnyMethod, N: int) -> None:
        """Raise an InputError for cohorts below `least`, codecs, and bounds without a scale."""
        super().check(method, N)
        S = int(getattr(method, "S", None) or N)
        if min(S, N) < self.least:
            raise InputError(
                f"aggregation=secure: {method.name} adds up {min(S, N)} replies in a round, but at "
                f"least {self.least} are required; raise S, or set least (2 or more)"
            )
        if getattr(method, "up", IDENTITY) != IDENTITY:
            raise InputError(
                f"aggregation=secure: replies in fixed point pass through no codec; use up=none "
                f"with {method.name}"
            )
        scale_exponent(self.bound, N)

    def mean_values(
        self, losses: Vector, metrics: Mapping[str, Vector], factors: Vector | None, N: int
    ) -> dict[str, float]:
        """Return the means as a federation adds them up, or raise RoundFailed."""
        weights = np.ones(len(losses)) if factors is None else factors
        table = np.empty((len(losses), len(metrics)))
        for place, column in enumerate(metrics.values()):
            table[:, place] = column
        exponent = scale_exponent(self.bound, N)
        try:
            rows = encode(stack_values(losses, table, weights), self.bound, exponent)
        except BeyondBound as error:
            raise RoundFailed(f"evaluation failed: {error}") from None
        means = decode(rows.sum(axis=0), len(losses), exponent, np.dtype(np.float64))
        return read_values(means, metrics)

    def measure_reply(self, layout: Layout[Any]) -> MessageSize:
        """Return the size of a reply as it is sent: 8 bytes for every number."""
        nbytes = NUMBER_BYTES * layout.floats
        return MessageSize(layout.floats, 8 * nbytes, nbytes)


def scale_exponent(bound: float, N: int) -> int:
    """Return the exponent of the largest scale 2^e for which N numbers up to `bound` add up.

    Raises:
        InputError: The bound is too large or too small.

    >>> scale_exponent(1.0, 1), scale_exponent(1000.0, 10)
    (62, 49)
    """
    exact = Fraction(bound)
    exponent = 64 - math.frexp(bound)[1]
    while N * round(exact * Fraction(2) ** exponent) >= _LIMIT:
        exponent -= 1
    if exponent not in _EXPONENTS:
        raise InputError(
            f"aggregation secure: bound must be between 1e-250 and 1e250, not {bound:g}"
        )
    return exponent


def encode(values: Vector, bound: float, exponent: int) -> Whole:
    """Return numbers in fixed point: whole multiples of 2^-exponent.

    Raises:
        BeyondBound: A number is not finite or beyond the bound.
    """
    wide = np.asarray(values, dtype=np.float64)
    if not (np.abs(wide) <= bound).all():
        largest = float(np.abs(wide).max())
        what, advice = f"as large as {largest:.3g}", RAISE_BOUND
        if not math.isfinite(largest):
            what = "not a number" if math.isnan(largest) else "not finite"
            advice = "lower the method's step sizes"
        raise BeyondBound(f"a number is {what}, beyond the bound {bound:g}; {advice}")
    return np.rint(np.ldexp(wide, exponent)).astype(np.int64)


def decode(total: Whole, count: int, exponent: int, dtype: DType) -> Vector:
    """Return the mean of `count` numbers in fixed point from their sum."""
    return np.ldexp(total.astype(np.float64) / count, -exponent).astype(dtype)


def stack_values(losses: Vector, metrics: Vector, factors: Vector) -> Vector:
    """Return the rows that clients add up when they evaluate a model, (n, 1 + 2 m).

    The losses (n,) include the clients' factors N w_i (n,). A metric (n, m) is NaN where it is
    undefined on a client's rows, so each is followed by the weight of the clients that define it.
    """
    is_defined = ~np.isnan(metrics)
    values = np.where(is_defined, metrics, 0.0) * factors[:, None]
    pairs = np.stack([values, is_defined * factors[:, None]], axis=2)
    return np.concatenate([losses[:, None], pairs.reshape(len(losses), -1)], axis=1)


def read_values(means: Vector, names: Iterable[str], share: float = 1.0) -> dict[str, float]:
    """Return the loss and metrics of the mean of rows of `stack_values`, (1 + 2 m,).

    `share` is the mean of the factors of the clients in it.
    """
    pairs = means[1:].reshape(-1, 2).tolist()
    values = {
        name: total / weight if weight > 0 else math.nan
        for name, (total, weight) in zip(names, pairs, strict=True)
    }
    return {"loss": float(means[0]) / share, **values}


class _WholeSum:
    """The sum of replies in fixed point."""

    def __init__(self, settings: FixedPointMean, round: int, N: int) -> None:
        self._settings, self._round = settings, round
        self._exponent = scale_exponent(settings.bound, N)
        self._totals: list[Whole] = []
        self._dtypes: list[DType] = []

    def add(self, replies: Sequence[Vector]) -> None:
        """Add replies, or raise RoundFailed if a number is beyond the bound."""
        try:
            rows = [encode(part, self._settings.bound, self._exponent) for part in replies]
        except BeyondBound as error:
            raise RoundFailed(f"round {self._round} failed: in a reply, {error}") from None
        sums = [part.sum(axis=0, dtype=np.int64) for part in rows]
        self._dtypes = [part.dtype for part in replies]
        totals = self._totals or [np.zeros_like(part) for part in sums]
        self._totals = [total + part for total, part in zip(totals, sums, strict=True)]

    def finish(self, count: int) -> list[Vector]:
        """Return the mean, or raise RoundFailed if too few clients answered."""
        if count < self._settings.least:
            raise RoundFailed(
                f"round {self._round} failed: {count} clients answered, but secure aggregation "
                f"adds up the replies of at least {self._settings.least}"
            )
        each = zip(self._totals, self._dtypes, strict=True)
        return [decode(total, count, self._exponent, dtype) for total, dtype in each]
