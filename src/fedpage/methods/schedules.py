"""Schedules: step sizes that are functions of the round, given in place of a number.

A schedule is a frozen value such as `Cosine(0.1, rounds=200)`. Before each round the
engine replaces the schedules of a method by their numbers (`at_round`), so that methods
compute with numbers only. A value depends on the round's number alone, so a resumed run
and every node of a federation have the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, TypeVar

from fedpage.core import validate
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.files import import_object
from fedpage.core.function_digest import function_digest
from fedpage.core.spec import Registry, Spec, number, parse
from fedpage.core.types import AnyMethod
from fedpage.core.validate import Checks, positive, probability, whole

if TYPE_CHECKING:
    # For a type checker a schedule is a float, because it may be given wherever a step
    # size is expected, and methods never see one.
    Base: TypeAlias = float
else:
    Base = object

M = TypeVar("M", bound=AnyMethod)


class Schedule(Base):
    """A step size for each round; the base class of all schedules.

    Your own is a frozen dataclass with a method `at(round)`. Its fields are the numbers
    that follow its name in text. `peak` and `scaled` may be overridden.
    """

    label: ClassVar[str] = ""
    """Its name in text."""
    checks: ClassVar[Checks] = {}
    """The check of each field."""
    scales: ClassVar[tuple[str, ...]] = ()
    """The fields to multiply in order to multiply all values."""

    def __post_init__(self) -> None:
        validate.check_fields(self, f"schedule {self.label}", self.checks)  # type: ignore[arg-type]

    def at(self, round: int) -> float:
        """Return the step size of a round, counted from 0: a finite number above 0."""
        raise NotImplementedError

    @property
    def peak(self) -> float:
        """The largest value, or the value of round 0 if the largest is not known."""
        return self.at(0)

    def scaled(self, factor: float) -> Schedule:
        """Return this schedule with all values multiplied by a factor."""
        if not self.scales:
            return ScaledSchedule(factor, self)
        own = ((name, getattr(self, name)) for name in self.scales)
        values = {
            name: step.scaled(factor) if isinstance(step, Schedule) else step * factor
            for name, step in own
        }
        return replace(self, **values)  # type: ignore[type-var]

    @classmethod
    def from_text(cls, text: str) -> Schedule:
        """Return the schedule of a text: its name and numbers, with colons between.

        Args:
            text: "cosine:0.1:200:0.001", "step:0.1:50:0.5", "warmup:10:cosine:0.1:200",
                "constant:0.1", or a function of the round or a schedule in a file,
                "file.py@name", with a factor or its numbers after a colon.

        Returns:
            The schedule; `Schedule.from_text(str(schedule)) == schedule`.

        Raises:
            InputError: The schedule is unknown, or a number is missing or impossible.

        >>> Schedule.from_text("cosine:0.1:200")
        Cosine(value=0.1, rounds=200, final=0.001)
        >>> str(Schedule.from_text("warmup:10:0.1"))
        'warmup:10:0.1'
        """
        spec = parse(text)
        if "@" in spec.name:
            return _import(spec)
        found = SCHEDULES.get(spec.name)
        if found is None:
            hint = did_you_mean(spec.name, SCHEDULES)
            raise InputError(
                "must be a finite number or a schedule such as cosine:0.1:200, not "
                f"{short_repr(text)}{';' if hint else ''}{hint}"
            )
        if found not in (Warmup, ScaledSchedule):
            return spec.build(found, "schedule")
        inner = ":".join(spec.values[1:])
        value = number(inner)
        of: Any = Schedule.from_text(inner) if value is None else value
        first = Spec(text, spec.name, spec.values[:1])
        return first.build(found, "schedule", **{fields(found)[1].name: of})

    def __str__(self) -> str:
        values = [getattr(self, entry.name) for entry in fields(self)]  # type: ignore[arg-type]
        return ":".join([self.label, *map(str, values)])

    def _refuse_arithmetic(self, *_: object) -> NoReturn:
        raise InputError(
            f"{self} has no single value; use fp.schedules.at_round(method, round), or "
            "fp.schedules.effective_step(method) for the largest one"
        )

    if not TYPE_CHECKING:
        __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __float__ = _refuse_arithmetic


SCHEDULES: Registry[type[Schedule]] = Registry("schedule")
"""Every schedule by its name in text."""
StepSize: TypeAlias = float | Schedule
"""The type of a step size: a number, or a schedule."""


def check_step(method: str, name: str, value: object) -> None:
    """Check a step size: a schedule, or a finite number above 0."""
    if not isinstance(value, Schedule):
        positive(method, name, value)


def _import(spec: Spec) -> Schedule:
    """Return the schedule of a function or of a class in a file."""
    file, _, name = spec.name.partition("@")
    found: Any = import_object(Path(file), name, "schedule")
    if isinstance(found, type) and issubclass(found, Schedule):
        found.label = spec.name
        return spec.build(found, "schedule")
    if isinstance(found, type) or not callable(found):
        raise InputError(f"{file}: {name!r} is not a Schedule or function of the round")
    schedule = OfFunction(found, spec.name)
    if not spec.values:
        return schedule
    return spec.build(ScaledSchedule, "schedule", of=schedule)


@SCHEDULES.register("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The same step in every round.

    Args:
        value: The step size.
    """

    checks = {"value": positive}
    scales = ("value",)

    value: float

    def at(self, round: int) -> float:
        """Return the value."""
        return self.value


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """A step that falls along half a cosine (Loshchilov and Hutter 2017).

    It is final + (value - final)(1 + cos(pi round/rounds))/2, and `final` from round
    `rounds` on. There are no restarts.

    Args:
        value: The step of round 0.
        rounds: The round that first has the step `final`.
        final: The last step. If None, use value/100.

    >>> [round(Cosine(0.1, rounds=4, final=0.02).at(t), 3) for t in range(6)]
    [0.1, 0.088, 0.06, 0.032, 0.02, 0.02]
    """

    checks = {"value": positive, "rounds": whole, "final": positive}
    scales = ("value", "final")

    value: float
    rounds: int
    final: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.final is None:
            object.__setattr__(self, "final", self.value / 100)

    def at(self, round: int) -> float:
        """Return the step of a round."""
        last = float(self.final or 0.0)
        if round >= self.rounds:
            return last
        part = (1 + math.cos(math.pi * round / self.rounds)) / 2
        return last + (self.value - last) * part

    @property
    def peak(self) -> float:
        """The larger of the first and the last step."""
        return max(self.value, self.at(self.rounds))


@SCHEDULES.register("step")
@dataclass(frozen=True)
class Step(Schedule):
    """A step that is multiplied by a factor every so many rounds.

    Args:
        value: The step of round 0.
        every: The number of rounds with the same step.
        factor: The ratio of a step to the one before, in (0, 1].

    >>> [Step(0.8, every=2, factor=0.5).at(t) for t in range(5)]
    [0.8, 0.8, 0.4, 0.4, 0.2]
    """

    checks = {"value": positive, "every": whole, "factor": probability}
    scales = ("value",)

    value: float
    every: int
    factor: float = 0.1

    def at(self, round: int) -> float:
        """Return the step of a round."""
        return self.value * self.factor ** (round // self.every)


@SCHEDULES.register("warmup")
@dataclass(frozen=True)
class Warmup(Schedule):
    """A step that grows linearly at first, and then follows another schedule.

    It is (round + 1)/rounds of the first step of `then` in the first rounds.

    Args:
        rounds: The number of rounds in which the step grows.
        then: The schedule that begins after them, or a number.

    >>> [Warmup(4, then=0.8).at(t) for t in range(6)]
    [0.2, 0.4, 0.6000000000000001, 0.8, 0.8, 0.8]
    """

    checks = {"rounds": whole, "then": check_step}
    scales = ("then",)

    rounds: int
    then: StepSize

    def at(self, round: int) -> float:
        """Return the step of a round."""
        then = as_schedule(self.then)
        if round < self.rounds:
            return then.at(0) * (round + 1) / self.rounds
        return then.at(round - self.rounds)

    @property
    def peak(self) -> float:
        """The largest step of the schedule after the warm-up."""
        return as_schedule(self.then).peak


@SCHEDULES.register("scaled")
@dataclass(frozen=True)
class ScaledSchedule(Schedule):
    """Another schedule times a factor.

    Args:
        factor: The factor.
        of: The schedule, or a number.
    """

    checks = {"factor": positive, "of": check_step}
    scales = ("factor",)

    factor: float
    of: StepSize

    def at(self, round: int) -> float:
        """Return the factor times the other schedule's step."""
        return self.factor * as_schedule(self.of).at(round)

    @property
    def peak(self) -> float:
        """The factor times the other schedule's largest step."""
        return self.factor * as_schedule(self.of).peak


@dataclass(frozen=True)
class OfFunction(Schedule):
    """A step that a function of the round returns.

    Two are equal if their functions have the same code.

    Args:
        function: Returns the step of a round, counted from 0. It must return the same
            number for the same round, or a resumed run would not continue the first.
        source: The function's file and name as text, "file.py@name".
    """

    function: Callable[[int], float] = field(compare=False)
    source: str = ""
    digest: str = field(init=False, repr=False)
    """The digest of the function's code."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            what = short_repr(self.function)
            raise InputError(f"schedule: must be a function of the round, not {what}")
        object.__setattr__(self, "digest", function_digest(self.function))

    def at(self, round: int) -> float:
        """Call the function; raise an InputError if it fails."""
        try:
            value = self.function(round)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise InputError(
                f"schedule {self}: fails in round {round} ({what})"
            ) from None
        return validate.as_number(value)

    def __str__(self) -> str:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return self.source or name


def as_schedule(step: StepSize) -> Schedule:
    """Return a schedule, or for a number the constant schedule."""
    return step if isinstance(step, Schedule) else Constant(step)


# --- methods with schedules -----------------------------------------------------------


def schedules_of(method: object) -> dict[str, Schedule]:
    """Return the schedules among the hyper-parameters of a method, by name."""
    values = vars(method).items()
    return {name: value for name, value in values if isinstance(value, Schedule)}


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
    numbers: dict[str, Any] = {name: each.at(round) for name, each in found.items()}
    try:
        return replace(method, **numbers)
    except InputError as error:
        raise InputError(f"round {round}: {error} (see its schedule)") from None


def at_peak(method: M) -> M:
    """Return a method with the largest values of its schedules in their place."""
    found: dict[str, Any] = {
        name: each.peak for name, each in schedules_of(method).items()
    }
    return replace(method, **found) if found else method


def effective_step(method: AnyMethod) -> float:
    """Return a method's effective step, with schedules at their largest values."""
    return float(at_peak(method).effective_step)


def with_step(method: M, step: float) -> M:
    """Return a method with another effective step.

    Args:
        method: The method.
        step: The effective step, reached at the largest values of its schedules.

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
