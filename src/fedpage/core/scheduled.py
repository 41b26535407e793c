"""Methods whose step sizes are schedules: their numbers in a round, and their effective step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from fedpage.core import validate
from fedpage.core.errors import InputError
from fedpage.core.schedules import Schedule
from fedpage.core.types import AnyMethod

M = TypeVar("M", bound=AnyMethod)


def schedules_of(method: object) -> dict[str, Schedule]:
    """Return the schedules among the hyper-parameters of a method, by name."""
    return {name: value for name, value in vars(method).items() if isinstance(value, Schedule)}


def at_round(method: M, round: int) -> M:
    """Return a method with the numbers of a round in place of its schedules.

    Args:
        method: The method.
        round: The round's number, counted from 0.

    Returns:
        The method itself if it has no schedules.

    Raises:
        InputError: A schedule gives a number that the method refuses.
    """
    found = schedules_of(method)
    if not found:
        return method
    numbers: dict[str, Any] = {name: schedule.at(round) for name, schedule in found.items()}
    try:
        return replace(method, **numbers)
    except InputError as error:
        raise InputError(f"round {round}: {error} (see its schedule)") from None


def at_peak(method: M) -> M:
    """Return a method with the largest values of its schedules in their place."""
    found: dict[str, Any] = {name: each.peak for name, each in schedules_of(method).items()}
    return replace(method, **found) if found else method


def effective_step(method: AnyMethod) -> float:
    """Return a method's effective step, with schedules at their largest values."""
    return float(at_peak(method).effective_step)


def with_step(method: M, step: float) -> M:
    """Return a method with another effective step.

    Args:
        method: The method.
        step: The effective step; where there are schedules, that of their largest values.

    Returns:
        The method, whose schedules keep their form and are scaled.
    """
    peak = at_peak(method)
    moved: M = peak.with_step(step)
    found: dict[str, Any] = {
        name: each.scaled(getattr(moved, name) / getattr(peak, name))
        for name, each in schedules_of(method).items()
    }
    return replace(moved, **found) if found else moved


def check(method: str, name: str, value: object) -> None:
    """Check a step size: a schedule, or a finite number above 0.

    Args:
        method: The method's name.
        name: The hyper-parameter.
        value: Its value.
    """
    if not isinstance(value, Schedule):
        validate.positive(method, name, value)


def check_constant(method: str, name: str, value: object, why: str) -> None:
    """Check a step size that has to be the same in all rounds: a finite number above 0.

    Args:
        method: The method's name.
        name: The hyper-parameter.
        value: Its value.
        why: What would go wrong with a schedule, in a few words.
    """
    if isinstance(value, Schedule):
        raise InputError(f"{method}: {name} cannot be a schedule: {why}")
    validate.positive(method, name, value)
