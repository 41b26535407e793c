"""Targets of runs: a recorded column, the value to reach, and how long it must hold.

A single record at a target is often luck: the next records are above it again. So a target counts
as reached only where a stretch of records has held it: the first record at the target, and every
record after it until the number of rounds has grown by the share `hold`, and at least five more
records were made. The cost of reaching it is the cost at the beginning of that stretch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from numbers import Real
from typing import TypeAlias

from fedpage.core.columns import describe_column
from fedpage.core.errors import InputError, short_repr

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

    def __repr__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = [f"{key}={value!r}" for key, value in given.items() if value != vars(Target)[key]]
        return f"Target({', '.join(changed)})"

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
