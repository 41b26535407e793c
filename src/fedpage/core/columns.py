"""Describe the columns of a history, costs and targets in them, and which rounds are recorded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.spec import number, split_sum

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Number = TypeVar("Number", float, "NDArray[np.float64]")
Terms: TypeAlias = tuple[tuple[str, float], ...]
"""Columns and their weights."""


@dataclass(frozen=True)
class Column:
    """The description of one recorded column.

    Attributes:
        label: Words for axes and table headings.
        unit: "B" for bytes, "bit", "s" for seconds, "" for a count or a pure number.
        is_cost: Whether the column is a cumulative cost, and therefore a possible horizontal axis.
    """

    label: str
    unit: str = ""
    is_cost: bool = False


SIMULATED = "seconds_simulated"
"""The column of the time that rounds would take on devices, recorded where a run has devices."""

MEASURED = "measured_clients"
"""The column of the number of clients whose values a record holds, where it is not all of them."""

EPSILON = "epsilon"
"""The column of the privacy budget that a run has spent, where it is differentially private."""

COLUMNS: dict[str, Column] = {
    "round": Column("communication rounds", is_cost=True),
    "clients": Column("clients called", is_cost=True),
    "bytes": Column("total bytes, up and down", "B", is_cost=True),
    "bytes_up": Column("bytes up", "B", is_cost=True),
    "bytes_down": Column("bytes down", "B", is_cost=True),
    "bits": Column("total bits, up and down", "bit", is_cost=True),
    "bits_up": Column("bits up", "bit", is_cost=True),
    "bits_down": Column("bits down", "bit", is_cost=True),
    "gradients": Column("row gradients, all clients", is_cost=True),
    "gradients_per_client": Column("row gradients per called client", is_cost=True),
    "seconds": Column("seconds in rounds", "s", is_cost=True),
    SIMULATED: Column("simulated seconds", "s", is_cost=True),
    "floats_up": Column("floats up", is_cost=True),
    "floats_down": Column("floats down", is_cost=True),
    "evaluations": Column("gradient evaluations", is_cost=True),
    "full_rounds": Column("full rounds", is_cost=True),
    "missing": Column("missing replies", is_cost=True),
    "rejected": Column("rejected replies", is_cost=True),
    "fallbacks": Column("full rounds replaced by sampled rounds", is_cost=True),
    "loss": Column("loss"),
    "grad_norm": Column("gradient norm"),
    MEASURED: Column("clients that evaluated the model"),
}
"""Every built-in column by name. Costs are cumulative.

"bytes" and "bits" are sums of up and down. Bits are exact; bytes count each message as it is sent,
filled up to whole bytes. "gradients" counts gradients of single rows (f_ij) over all clients.
"gradients_per_client" sums, over rounds, the mean number of gradients of a called client. "missing"
counts requests without a valid reply in time, "rejected" replies that failed validation, and
"fallbacks" full rounds that were replaced by sampled ones. "seconds" is the time that the rounds
took here, "seconds_simulated" the time that they would take on `Devices`.
"""

DERIVED: dict[str, Terms] = {
    "bytes": (("bytes_up", 1.0), ("bytes_down", 1.0)),
    "bits": (("bits_up", 1.0), ("bits_down", 1.0)),
    "bits_up": (("bytes_up", 8.0),),
    "bits_down": (("bytes_down", 8.0),),
}
"""The terms of a column that may not be recorded. Older runs recorded no bits; each of
their messages was a whole number of bytes."""

AXES = (
    "round", "clients", "bytes", "bytes_up", "bytes_down", "bits", "bits_up", "bits_down",
    "gradients", "gradients_per_client",
)  # fmt: skip
"""The costs that reports offer as horizontal axis of any runs, in menu order."""

ALIASES = {"rounds": "round", "contacts": "clients", "up": "bytes_up", "down": "bytes_down"}
"""Short names of columns in a cost."""


def list_axes(recorded: Iterable[Collection[str]]) -> tuple[str, ...]:
    """Return the costs that a report of runs with these columns offers as axis, in menu order.

    A cost is left out where a run has recorded neither it nor the columns it is computed from.
    """
    axes: tuple[str, ...] = (*AXES, SIMULATED)
    for columns in recorded:
        row = dict.fromkeys(columns, 0.0)
        axes = tuple(name for name in axes if not math.isnan(read_column(row, name)))
    return axes


def read_column(row: Mapping[str, float], name: str) -> float:
    """Return the value of a column in a record, computed from other columns where it must be.

    It is NaN if the record has neither the column nor its terms.

    >>> read_column({"bytes_up": 10, "bytes_down": 20}, "bits")
    240.0
    """
    if name in row or name not in DERIVED:
        return row.get(name, math.nan)
    return sum(weight * read_column(row, part) for part, weight in DERIVED[name])


@dataclass(frozen=True)
class Cost:
    """A cost to compare runs by: a column, or a sum of columns with weights.

    Attributes:
        name: The cost in one line, such as "bytes_up+0.1*bytes_down".
        terms: Its columns, with a weight above 0 for each.

    >>> Cost.parse("up + 0.1*down")
    Cost(name='bytes_up+0.1*bytes_down', terms=(('bytes_up', 1.0), ('bytes_down', 0.1)))
    >>> Cost.parse("up+0.1*down").evaluate({"bytes_up": 5.0, "bytes_down": 100.0}.__getitem__)
    15.0
    """

    name: str
    terms: Terms

    @classmethod
    def parse(cls, text: str | Cost) -> Cost:
        """Read a cost: a column, or terms such as 0.1*bytes_down with "+" between them.

        Args:
            text: The cost. "up" and "down" are short for bytes_up and bytes_down.

        Raises:
            InputError: A term is not a cost, or a weight is not a finite number above 0.
        """
        if isinstance(text, Cost):
            return text
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"a cost must be text such as 'up+0.1*down', not {short_repr(text)}")
        weights: dict[str, float] = {}
        for term in split_sum(text):
            column, weight = _parse_term(term, text)
            weights[column] = weights.get(column, 0.0) + weight
        parts = (c if w == 1 else f"{w:.12g}*{c}" for c, w in weights.items())
        return cls("+".join(parts), tuple(weights.items()))

    from_text = parse

    @property
    def column(self) -> Column:
        """The label and the unit, for axes and headings."""
        if len(self.terms) == 1 and self.terms[0][1] == 1:
            return COLUMNS[self.terms[0][0]]
        columns = [(COLUMNS[name], weight) for name, weight in self.terms]
        parts = (c.label if w == 1 else f"{w:g} {c.label}" for c, w in columns)
        units = {column.unit for column, _ in columns}
        return Column(" + ".join(parts), units.pop() if len(units) == 1 else "", is_cost=True)

    @property
    def short_name(self) -> str:
        """The sum with "up" for "bytes_up" and "down" for "bytes_down", for narrow tables."""
        if len(self.terms) == 1:
            return self.column.label
        return self.name.replace("bytes_up", "up").replace("bytes_down", "down")

    def counts(self, column: str) -> bool:
        """Return True if a column is among its terms."""
        return column in dict(self.terms)

    def evaluate(self, read: Callable[[str], Number]) -> Number:
        """Add up the terms, where `read` returns a column's value, or all of its values."""
        (first, weight), *rest = self.terms
        total = weight * read(first)
        for name, weight in rest:
            total = total + weight * read(name)
        return total

    def __str__(self) -> str:
        return self.name


def _parse_term(term: str, text: str) -> tuple[str, float]:
    """Read a column, or a number times a column."""
    factor, times, name = (part.strip() for part in term.rpartition("*"))
    weight = number(factor) if times else 1.0
    if weight is None or not 0 < weight < math.inf:
        raise InputError(
            f"cost {short_repr(text)}: a weight must be a finite number above 0, as in 0.1*down, "
            f"not {short_repr(factor)}"
        )
    column = ALIASES.get(name, name)
    costs = [known for known in COLUMNS if COLUMNS[known].is_cost]
    if column in costs:
        return column, float(weight)
    known = ", ".join((*AXES, "seconds", SIMULATED))
    hint = did_you_mean(name, [*costs, *ALIASES])
    hint = hint or f" costs are {known}, and sums such as up+0.1*down"
    where = "" if name == text.strip() else f" in {short_repr(text)}"
    raise InputError(f"{short_repr(name)}{where} is not a cost;{hint}")


def describe_column(name: str) -> Column:
    """Return the description of a column or a cost; a metric's label is its name in words.

    Args:
        name: A built-in column, the name of a recorded metric, or a sum of costs.

    Returns:
        The entry of `COLUMNS`, or a new one for a metric or a sum.

    >>> describe_column("bytes_up").label, describe_column("held_out_accuracy").label
    ('bytes up', 'held-out accuracy')
    >>> describe_column("f_minus_fstar").label, describe_column("accuracy_worst").label
    ('f - f*', 'accuracy (worst client)')
    >>> describe_column("up+0.1*down").label
    'bytes up + 0.1 bytes down'
    """
    if "+" in name or "*" in name or name in ALIASES:
        return Cost.parse(name).column
    words = name.replace("f_minus_fstar", "f - f*").replace("to_optimum", "to the optimum")
    words = re.sub(r"_worst$", " (worst client)", words.replace("held_out_", "held-out "))
    words = re.sub(r"_(p[1-9][0-9]?)$", r" (\1 of clients)", words).replace("_", " ")
    return COLUMNS.get(name, Column(words))


def explain_epsilon(record: Mapping[str, float]) -> str:
    """Return a sentence about a record's epsilon if it protects little, or else "".

    >>> explain_epsilon({"epsilon": 32.3})
    'an epsilon above 10 is a weak guarantee; raise noise, or run fewer rounds'
    """
    if record.get(EPSILON, 0.0) <= 10.0:
        return ""
    return "an epsilon above 10 is a weak guarantee; raise noise, or run fewer rounds"


# --- which rounds are recorded --------------------------------------------------------------------

RecordEvery: TypeAlias = Literal["log"] | int
"""Rounds between two records, 0 for the end only, or "log" for ever longer distances."""

_FIRST_DIGITS = frozenset((10, 12, 14, 17, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90))
"""The first two digits of the rounds that "log" records, each 11 to 25 % above the last."""


def check_record_every(value: object) -> RecordEvery:
    """Return "log" or a whole number of at least 0; raise an InputError for any other value."""
    if isinstance(value, str) and value == "log":
        return "log"
    if isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) <= 2**62:
        return int(value)
    raise InputError(
        f"record_every must be 'log' or a whole number of at least 0, not {short_repr(value)}"
    )


def is_recorded(done: int, every: RecordEvery) -> bool:
    """Return whether the model after `done` rounds is recorded; the last one always is besides.

    "log" records every round up to 10, then 14 rounds for each factor of 10: 12, 14, 17, 20, ...

    >>> [done for done in range(1, 201) if is_recorded(done, "log")][9:]
    [10, 12, 14, 17, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100, 120, 140, 170, 200]
    """
    if every == "log":
        while done >= 100 and done % 10 == 0:
            done //= 10
        return done <= 10 or done in _FIRST_DIGITS
    return every > 0 and done % every == 0


# --- targets --------------------------------------------------------------------------------------
# A single record at a target is often luck: the next records are above it again. So a target counts
# as reached only where a stretch of records has held it: the first record at the target, and every
# record after it until the number of rounds has grown by the share `hold`, and at least five more
# records were made. The cost of reaching it is the cost at the beginning of that stretch.

_TEXT = re.compile(r"\s*(?:(\S+)\s*:)?\s*([^\s:,]+)\s*(?:,\s*hold\s*=(.+))?")
MORE_RECORDS = 5
"""The fewest records after the first one of a stretch that has held."""


def _number(value: object) -> float:
    """Return a number as a float, and NaN for anything else. The command line has no numpy here."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Target:
    """A recorded column and the value that it has to reach and to hold.

    Args:
        column: Any recorded column, such as "grad_norm", "loss" or "held_out_accuracy".
        value: The value to reach: at least this if higher is better, else at most.
        hold: The share by which the number of rounds must grow while the target holds. If 0, the
            first record at the target counts.

    Raises:
        InputError: If a number cannot be used.

    >>> Target("accuracy", 0.9), str(Target.parse("accuracy:0.9,hold=0"))
    (Target(column='accuracy', value=0.9), 'accuracy:0.9,hold=0')
    """

    column: str = "grad_norm"
    value: float = 1e-2
    hold: float = 0.25

    __repr__ = repr_settings

    def __post_init__(self) -> None:
        value, hold = _number(self.value), _number(self.hold)
        if not isinstance(self.column, str) or not self.column:
            raise InputError(f"a target's column must be a name, not {short_repr(self.column)}")
        if not math.isfinite(value):
            raise InputError(f"a target must be a finite number, not {short_repr(self.value)}")
        if self.column == "grad_norm" and not value > 0:
            raise InputError(f"a gradient norm must be above 0, not {value:g}")
        if not 0 <= hold < math.inf:
            raise InputError(f"a target's hold must be at least 0, not {short_repr(self.hold)}")
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "hold", hold)

    @classmethod
    def parse(cls, given: TargetLike) -> Target:
        """Return the target that is given as a Target, as a text or as a gradient norm.

        Args:
            given: A Target, "accuracy:0.9", "accuracy:0.9,hold=0", or a gradient norm such as 0.01.

        Raises:
            InputError: If it is not a target.
        """
        if isinstance(given, Target):
            return given
        if not isinstance(given, str):
            if math.isnan(_number(given)):
                raise InputError(
                    "a target must be a number, a text such as accuracy:0.9 or a Target, "
                    f"not {short_repr(given)}"
                )
            return cls(value=given)
        found = _TEXT.fullmatch(given)
        try:
            column, number, hold = found.groups() if found else ("", "", "")
            value, share = float(number), cls.hold if hold is None else float(hold)
        except ValueError:
            raise InputError(
                "expected a number or column:number, such as 0.01, accuracy:0.9 or "
                f"accuracy:0.9,hold=0, not {short_repr(given)}"
            ) from None
        return cls(column or "grad_norm", value, share)

    from_text = parse

    def __str__(self) -> str:
        number = f"{self.value:g}" if float(f"{self.value:g}") == self.value else str(self.value)
        text = number if self.column == "grad_norm" else f"{self.column}:{number}"
        return text if self.hold == Target.hold else f"{text},hold={self.hold:g}"

    @property
    def title(self) -> str:
        """The target in words, such as "gradient norm 0.01"."""
        return f"{describe_column(self.column).label} {self.value:g}"

    def is_met(self, value: float, higher_is_better: bool) -> bool:
        """Return True if a value of the column is at the target or better."""
        return value >= self.value if higher_is_better else value <= self.value


TargetLike: TypeAlias = Target | str | float
"""A target as users give it: a Target, "accuracy:0.9", or a number, which is a gradient norm."""


class Stretch:
    """Follow a run's records at a target, one after the other, until the target has held.

    Attributes:
        hold: The share by which the number of rounds must grow.
        round: The round of the stretch's first record, or None if the newest record is not at the
            target.
        records: The records after the first one.

    >>> stretch = Stretch(0.25)
    >>> [stretch.add(done, done != 20) for done in range(10, 90, 10)]
    [False, False, False, False, False, False, False, True]
    >>> stretch.round
    30
    """

    def __init__(self, hold: float, round: float | None = None, records: int = 0) -> None:
        self.hold, self.round, self.records = hold, round, records

    def add(self, done: float, is_met: bool) -> bool:
        """Add the record after `done` rounds, and return True once the stretch has held."""
        if not is_met:
            self.round = None
            return False
        if self.round is None:
            self.round, self.records = done, 0
        else:
            self.records += 1
        return not self.hold or (self.records >= MORE_RECORDS and done >= self.needed_round)

    @property
    def needed_round(self) -> float:
        """The first round at which an open stretch can have held."""
        assert self.round is not None
        return (1 + self.hold) * self.round
