"""Checks of hyper-parameters that the methods share; each raises an InputError of one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Check: TypeAlias = Callable[[str, str, Any], None]
"""Raise an InputError if a value is wrong, given the method's name, the field and the value."""
Checks: TypeAlias = Mapping[str, Check]
"""The check of each field that has one."""

_LARGEST = 2**31 - 1


def plain(method: DataclassInstance) -> None:
    """Convert numpy numbers in a frozen dataclass to Python numbers, which can be saved."""
    for field in fields(method):
        value = getattr(method, field.name)
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            object.__setattr__(method, field.name, value.item())


def check_fields(value: DataclassInstance, label: str, checks: Checks) -> None:
    """Check the fields of a frozen dataclass, after `plain`.

    Args:
        value: The dataclass.
        label: Its name in error messages.
        checks: A function of this module for each field that is to be checked.
    """
    plain(value)
    for name, check in checks.items():
        check(label, name, getattr(value, name))


def whole(method: str, name: str, value: object, least: int = 1) -> None:
    """Check a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        raise InputError(
            f"{method}: {name} must be a whole number from {least} to {_LARGEST:,}, not "
            f"{short_repr(value)}"
        )


def batch(method: str, name: str, value: object) -> None:
    """Check a minibatch size: a whole number of at least 1, or None for all rows."""
    if value is not None:
        whole(method, name, value)


def positive(method: str, name: str, value: object) -> None:
    """Check a step size: a finite number above 0."""
    if not _number(value) or not float(value) > 0.0:  # type: ignore[arg-type]
        raise InputError(
            f"{method}: {name} must be a finite number above 0, not {short_repr(value)}"
        )


def at_least_zero(method: str, name: str, value: object) -> None:
    """Check a weight: a finite number of at least 0."""
    if not _number(value) or not float(value) >= 0.0:  # type: ignore[arg-type]
        raise InputError(
            f"{method}: {name} must be a finite number of at least 0, not {short_repr(value)}"
        )


def finite(method: str, name: str, value: object) -> None:
    """Check a finite number."""
    if not _number(value):
        raise InputError(f"{method}: {name} must be a finite number, not {short_repr(value)}")


def within(method: str, name: str, value: object, low: float, high: float) -> None:
    """Check a number from low to high, both included."""
    if not _number(value) or not low <= float(value) <= high:  # type: ignore[arg-type]
        raise InputError(
            f"{method}: {name} must be a number from {low:g} to {high:g}, not {short_repr(value)}"
        )


def flag(method: str, name: str, value: object) -> None:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise InputError(f"{method}: {name} must be True or False, not {short_repr(value)}")


def probability(method: str, name: str, value: object) -> None:
    """Check a number in (0, 1]."""
    if not _number(value) or not 0.0 < float(value) <= 1.0:  # type: ignore[arg-type]
        raise InputError(f"{method}: {name} must be in (0, 1], not {short_repr(value)}")


def geometric(method: str, p: float) -> None:
    """Check the parameter of a geometric number of local steps: in [1e-6, 1]."""
    probability(method, "p", p)
    if p < 1e-6:  # a round may have 37/p steps
        raise InputError(f"{method}: p must be at least 1e-6, not {short_repr(p)}")


def geometric_steps(method: str, p: float, K: float) -> int:
    """Return the steps that a message asks for: at most 1 + 37/p, since a draw has 53 bits."""
    if not 1.0 <= K <= 1.0 + 37.0 / p or int(K) != K:
        raise InputError(f"{method}: a message asks for {K:g} local steps, which p={p} never gives")
    return int(K)


def choice(method: str, name: str, value: object, words: Sequence[str]) -> None:
    """Check a word that must be one of several."""
    if not is_word(value, words):
        raise InputError(
            f"{method}: {name} must be one of {', '.join(words)}, not {short_repr(value)}"
        )


def decay(method: str, name: str, value: object) -> None:
    """Check the weight of the past in a running mean: a number in [0, 1)."""
    if not _number(value) or not 0.0 <= float(value) < 1.0:  # type: ignore[arg-type]
        raise InputError(f"{method}: {name} must be in [0, 1), not {short_repr(value)}")


def check_sample(method: str, S: int, N: int) -> None:
    """Check that S clients can be sampled from N."""
    if S > N:
        raise InputError(f"{method}: cannot sample S={S} of N={N} clients; choose S of at most {N}")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(as_number(value))


def as_number(value: object) -> float:
    """Return a real number as a float; NaN for what is none, and for one beyond all floats."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def is_word(value: object, words: Container[str]) -> bool:
    """Say whether a value is one of several words; arrays and lists are not."""
    return isinstance(value, str) and value in words


def as_array(name: str, value: object, dtype: type[np.float64 | np.int64]) -> NDArray[Any]:
    """Return numbers as a contiguous array.

    Raises:
        InputError: They are no array of numbers.
    """
    try:
        with np.errstate(invalid="raise"):  # NaN is no whole number
            return np.ascontiguousarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError, RecursionError, FloatingPointError):
        raise InputError(f"{name} must be an array of numbers, not {short_repr(value)}") from None


def check_whole(name: str, value: object, least: int, most: int = 2**62) -> None:
    """Refuse what is not a whole number of at least `least`.

    Raises:
        InputError: It is not.
    """
    whole_number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole_number or not least <= value <= most:  # type: ignore[operator]
        raise InputError(
            f"{name} must be a whole number of at least {least}, not {short_repr(value)}"
        )
