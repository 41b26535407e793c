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

FieldCheck: TypeAlias = Callable[[str, str, Any], None]
"""Raise an InputError if a value is wrong, given the method's name, the field and the value."""
Checks: TypeAlias = Mapping[str, FieldCheck]
"""The check of each field that has one."""

_LARGEST = 2**31 - 1


def plain(method: DataclassInstance) -> None:
    """Convert numpy numbers in a frozen dataclass to Python numbers, which can be saved."""
    for field in fields(method):
        value = getattr(method, field.name)
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            object.__setattr__(method, field.name, value.item())


def check_fields(value: DataclassInstance, label: str, checks: Checks) -> None:
    """Apply `plain` to a frozen dataclass, then the checks of its fields.

    None is allowed where the annotation of a field has None.

    Args:
        value: The dataclass.
        label: Its name in error messages.
        checks: A function of this module for each field that is to be checked.
    """
    plain(value)
    for field in fields(value):
        own = getattr(value, field.name)
        is_optional = own is None and "None" in str(field.type)
        if field.name in checks and not is_optional:
            checks[field.name](label, field.name, own)


def _require(is_right: bool, method: str, name: str, rule: str, value: object) -> None:
    if not is_right:
        raise InputError(f"{method}: {name} must be {rule}, not {short_repr(value)}")


def whole(method: str, name: str, value: object, least: int = 1) -> None:
    """Check a whole number of at least `least`."""
    is_right = isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST
    _require(is_right, method, name, f"a whole number from {least} to {_LARGEST:,}", value)


def _number(rule: str, is_right: Callable[[float], bool]) -> FieldCheck:
    """Return the check of a number that keeps a rule; NaN and infinity are refused by all."""

    def check(method: str, name: str, value: object) -> None:
        number = as_number(value)
        _require(math.isfinite(number) and is_right(number), method, name, rule, value)

    return check


positive = _number("a finite number above 0", lambda v: v > 0)
at_least_zero = _number("a finite number of at least 0", lambda v: v >= 0)
finite = _number("a finite number", lambda v: True)
probability = _number("in (0, 1]", lambda v: 0 < v <= 1)
decay = _number("in [0, 1)", lambda v: 0 <= v < 1)
"""The weight of the past in a running mean."""


def within(method: str, name: str, value: object, low: float, high: float) -> None:
    """Check a number from low to high, both included."""
    rule = f"a number from {low:g} to {high:g}"
    _require(low <= as_number(value) <= high, method, name, rule, value)


def flag(method: str, name: str, value: object) -> None:
    """Check a boolean."""
    _require(isinstance(value, bool), method, name, "True or False", value)


def choice(method: str, name: str, value: object, words: Sequence[str]) -> None:
    """Check a word that must be one of several."""
    _require(is_word(value, words), method, name, f"one of {', '.join(words)}", value)


def check_sample(method: str, S: int, N: int) -> None:
    """Check that S clients can be sampled from N."""
    if S > N:
        raise InputError(f"{method}: cannot sample S={S} of N={N} clients; choose S of at most {N}")


def as_number(value: object) -> float:
    """Convert to float; return NaN if `value` is not a real number or overflows."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def is_finite(values: NDArray[Any]) -> bool:
    """Return whether every number is finite; a dot product decides unless it overflows."""
    flat = values.reshape(-1)
    with np.errstate(over="ignore"):
        square = flat.dot(flat)
    return math.isfinite(square) or bool(np.isfinite(values).all())


def is_word(value: object, words: Container[str]) -> bool:
    """Return whether a value is one of several words. Arrays and lists are not."""
    return isinstance(value, str) and value in words


def as_array(name: str, value: object, dtype: type[np.float64 | np.int64]) -> NDArray[Any]:
    """Return numbers as a contiguous array; raise an InputError if they are not numbers."""
    try:
        with np.errstate(invalid="raise"):  # NaN cannot become a whole number
            return np.ascontiguousarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError, FloatingPointError):
        raise InputError(f"{name} must be an array of numbers, not {short_repr(value)}") from None


def check_whole(name: str, value: object, least: int, most: int = 2**62) -> None:
    """Check an argument that is a whole number, Python's or numpy's, of at least `least`."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:  # type: ignore[operator]
        raise InputError(
            f"{name} must be a whole number of at least {least}, not {short_repr(value)}"
        )
