"""What all sites of a run agree on before round 0: columns, features and statistics.

The server builds the agreement from the run's configuration and the nodes' descriptions, writes it
to the run's directory, and sends it with every request. So a node needs no memory of it: it may
restart, and Flower may start a new process for every message.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedpage.core.types import Vector
from fedpage.flower.messages import ProtocolError

MAX_COLUMNS = 100_000
"""The most columns that a site may describe."""
MAX_NAME = 200
"""The longest name of a column that travels, in characters."""
_MAX_TEXT = 1 << 24


@dataclass(frozen=True)
class Agreement:
    """What all sites agree on.

    Attributes:
        columns: the feature columns, in the order of the model; () for files without names, for
            data sets that every node has, and for objectives of the app.
        features: the number of features of a row; 0 for objectives of the app.
        d: the number of parameters.
        means: what is subtracted from each column, 0 for categories; () without standardisation.
        scales: what each column is divided by, 1 for categories; () without standardisation.
        levels: the categories of columns for which the run config has none.
        constants: for a fit of counts b, the sums of log b! and b log b over all rows.
    """

    columns: tuple[str, ...] = ()
    features: int = 0
    d: int = 0
    means: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    levels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    constants: tuple[float, ...] = ()

    def to_text(self) -> str:
        """Return the agreement as JSON, from which `from_text` makes an equal one."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Agreement:
        """Read what `to_text` wrote, without trusting it.

        Raises:
            ProtocolError: It is not an agreement.
        """
        return _parse(text)

    @property
    def digest(self) -> str:
        """SHA-256 of the agreement."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()


@lru_cache(maxsize=16)
def _parse(text: str) -> Agreement:
    if len(text) > _MAX_TEXT:
        raise ProtocolError("the agreement is too long")
    try:
        table = json.loads(text)
        columns = read_names(json.dumps(table["columns"]))
        features, d = table["features"], table["d"]
        means, scales, constants = (
            tuple(map(float, table[key])) for key in ("means", "scales", "constants")
        )
        levels = tuple((str(name), read_names(json.dumps(own))) for name, own in table["levels"])
        if any(type(size) is not int or not 0 <= size < 2**31 for size in (features, d)):
            raise ValueError
        if len(means) != len(scales) or len(means) not in (0, len(columns)):
            raise ValueError
        is_finite = all(map(math.isfinite, means + constants))
        if not is_finite or not all(0.0 < scale < math.inf for scale in scales):
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError, ProtocolError):
        raise ProtocolError("it is not an agreement about columns") from None
    return Agreement(columns, features, d, means, scales, levels, constants)


def write_names(names: Sequence[str]) -> str:
    """Return names of columns as the text that a header carries; "" for none."""
    return json.dumps(list(names), separators=(",", ":")) if names else ""


def read_names(text: str) -> tuple[str, ...]:
    """Read names of columns that a node or a server sent.

    Raises:
        ProtocolError: They are not distinct names of a bounded number and length.
    """
    if not text:
        return ()
    if len(text) > _MAX_TEXT:
        raise ProtocolError("its list of columns is too long")
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("its list of columns cannot be read") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ProtocolError("its list of columns is not a list of names")
    if len(names) > MAX_COLUMNS or any(len(name) > MAX_NAME for name in names):
        raise ProtocolError(
            f"it has more than {MAX_COLUMNS:,} columns, or a name with more than {MAX_NAME} letters"
        )
    if len(set(names)) != len(names):
        raise ProtocolError("its list of columns has a name twice")
    return tuple(names)


class Statistics(NamedTuple):
    """Arrays of the reply to a `STATISTICS` message: of each column of numbers, at one site."""

    means: Vector
    """(k,) the means; k is 0 if the run does not standardise."""
    squares: Vector
    """(k,) the sums of squared differences from the mean."""


def compute_statistics(X: Vector) -> Statistics:
    """Compute the mean and the sum of squared differences of each column, in exact sums.

    Args:
        X: (n, k) numbers.

    Returns:
        The statistics. A constant column has exactly its value as mean, and squares 0.
    """
    means, squares = np.empty(X.shape[1]), np.zeros(X.shape[1])
    for place in range(X.shape[1]):
        column = X[:, place]
        first = float(column[0])
        if bool((column == first).all()):
            means[place] = first
            continue
        means[place] = mean = _sum(column.tolist()) / len(column)
        with np.errstate(over="ignore"):
            squares[place] = _sum(((column - mean) ** 2).tolist())
    return Statistics(means, squares)


def _sum(values: Sequence[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def combine_statistics(rows: Sequence[int], parts: Sequence[Statistics]) -> Statistics:
    """Combine the statistics of sites, one after the other, as Chan, Golub and LeVeque do.

    Args:
        rows: the number of rows of each site.
        parts: their statistics, in the order of the clients.

    Returns:
        The statistics of all rows.
    """
    count, means, squares = rows[0], parts[0].means.copy(), parts[0].squares.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for more, part in zip(rows[1:], parts[1:], strict=True):
            total = count + more
            delta = part.means - means
            means = means + delta * (more / total)
            squares = squares + part.squares + delta * delta * (count * (more / total))
            count = total
    return Statistics(means, squares)


def compute_scales(rows: int, squares: Vector) -> Vector:
    """Return the standard deviations (k,) of all rows; 1 for a constant column.

    Args:
        rows: the number of all rows.
        squares: (k,) the sums of squared differences from the means.
    """
    scales = np.sqrt(squares / rows)
    return np.where(scales > 0.0, scales, 1.0)
