"""Choose which rounds of a run are recorded."""

from __future__ import annotations

from typing import Literal, TypeAlias

from fedpage.core.errors import InputError, short_repr

RecordEvery: TypeAlias = Literal["log"] | int
"""Rounds between two records, 0 for the end only, or "log" for ever longer distances."""

_FIRST_DIGITS = frozenset((10, 12, 14, 17, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90))
"""The first two digits of the rounds that "log" records, each 11 to 25 % above the last."""


def check_record_every(value: object) -> RecordEvery:
    """Return a schedule of records as plain values.

    Raises:
        InputError: It is neither "log" nor a whole number of at least 0.
    """
    if isinstance(value, str):
        if value != "log":
            raise InputError(
                "record_every must be 'log' or a whole number of at least 0, "
                f"not {short_repr(value)}"
            )
        return "log"
    from fedpage.core.validate import check_whole  # it imports numpy, which `--help` does without

    check_whole("record_every", value, 0)
    return int(value)  # type: ignore[call-overload, no-any-return]


def is_recorded(done: int, every: RecordEvery) -> bool:
    """Return whether the model after `done` rounds is recorded; the last one always is besides.

    Args:
        done: the number of rounds done.
        every: the schedule. "log" records every round up to 10, then 14 rounds for each factor of
            10: 12, 14, 17, 20, ..., 90, 100, 120, 140, ...

    >>> [done for done in range(1, 201) if is_recorded(done, "log")][9:]
    [10, 12, 14, 17, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100, 120, 140, 170, 200]
    """
    if every == "log":
        while done >= 100 and done % 10 == 0:
            done //= 10
        return done <= 10 or done in _FIRST_DIGITS
    return every > 0 and done % every == 0
