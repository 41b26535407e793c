"""Schedules: step sizes that are functions of the round, given in place of a number.

A schedule is a frozen value such as `Cosine(0.1, rounds=200)`. Before each round the engine
replaces the schedules of a method by their numbers (`fedpage.core.scheduled.at_round`), so that
methods compute with numbers only. The value of a round depends on nothing but the round's number:
a resumed run, and every node of a federation, has the same steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, TypeVar

from fedpage.core import validate
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.function_digest import function_digest
from fedpage.core.import_file import import_object
from fedpage.core.registry import Registry

if TYPE_CHECKING:
    # For a type checker a schedule is a float, because it may be given wherever a step size is
    # expected, and methods never see one.
    Base: TypeAlias = float
else:
    Base = object

S = TypeVar("S", bound="type[Schedule]")


class Schedule(Base):
    """A step size for each round; the base class of all schedules.

    Your own is a frozen dataclass with a method `at(round)`. Its fields are the numbers that follow
    its name in text. `peak` and `scaled` may be overridden.
    """

    label: ClassVar[str] = ""
    """Its name in text."""

    def at(self, round: int) -> float:
        """Return the step size of a round, counted from 0: a finite number above 0."""
        raise NotImplementedError

    @property
    def peak(self) -> float:
        """The largest value, or that of round 0 where the largest is not known."""
        return self.at(0)

    def scaled(self, factor: float) -> Schedule:
        """Return this schedule with all values multiplied by a factor."""
        return Scaled(factor, self)

    @classmethod
    def from_text(cls, text: str) -> Schedule:
        """Return the schedule of a text: its name and numbers, with colons between them.

        Args:
            text: "cosine:0.1:200:0.001", "step:0.1:50:0.5", "warmup:10:cosine:0.1:200",
                "constant:0.1", or a function of the round or a schedule in a file, "file.py@name",
                with a factor or its numbers after a colon.

        Returns:
            The schedule; `Schedule.from_text(str(schedule)) == schedule`.

        Raises:
            InputError: There is no such schedule, or a number is missing or impossible.

        >>> Schedule.from_text("cosine:0.1:200")
        Cosine(value=0.1, rounds=200, final=0.001)
        >>> str(Schedule.from_text("warmup:10:0.1"))
        'warmup:10:0.1'
        """
        return _parse(text)

    def __str__(self) -> str:
        values = [getattr(self, entry.name) for entry in fields(self)]  # type: ignore[arg-type]
        return ":".join([self.label, *map(str, values)])

    def _refuse_arithmetic(self, *_: object) -> NoReturn:
        raise InputError(
            f"{self} has no single value; use fp.core.scheduled.at_round(method, round), or "
            "effective_step(method) beside it for the largest one"
        )

    if not TYPE_CHECKING:
        __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __float__ = _refuse_arithmetic


SCHEDULES: Registry[type[Schedule]] = Registry("schedule")
"""Every schedule by its name in text."""
StepSize: TypeAlias = float | Schedule
"""The type of a step size: a number, or a schedule."""


def register_schedule(name: str) -> Callable[[S], S]:
    """Register the decorated schedule under a name."""

    def decorate(cls: S) -> S:
        cls.label = name
        SCHEDULES.add(name, cls)
        return cls

    return decorate


@register_schedule("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The same step in every round.

    Args:
        value: The step size.
    """

    value: float

    def __post_init__(self) -> None:
        _check_positive(self, "value")

    def at(self, round: int) -> float:
        """Return the value."""
        return self.value

    def scaled(self, factor: float) -> Constant:
        """Multiply the value by a factor."""
        return Constant(self.value * factor)


@register_schedule("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """A step that falls along half a cosine (Loshchilov and Hutter 2017, without restarts).

    It is final + (value - final)(1 + cos(pi round/rounds))/2, and `final` from round `rounds` on.

    Args:
        value: The step of round 0.
        rounds: The round that first has the step `final`.
        final: The last step; None: value/100.

    >>> [round(Cosine(0.1, rounds=4, final=0.02).at(t), 3) for t in range(6)]
    [0.1, 0.088, 0.06, 0.032, 0.02, 0.02]
    """

    value: float
    rounds: int
    final: float | None = None

    def __post_init__(self) -> None:
        _check_positive(self, "value")
        _check_whole(self, "rounds")
        if self.final is None:
            object.__setattr__(self, "final", self.value / 100)
        _check_positive(self, "final")

    def at(self, round: int) -> float:
        """Return the step of a round."""
        last = float(self.final or 0.0)
        if round >= self.rounds:
            return last
        return last + (self.value - last) * (1 + math.cos(math.pi * round / self.rounds)) / 2

    @property
    def peak(self) -> float:
        """The larger of the first and the last step."""
        return max(self.value, self.at(self.rounds))

    def scaled(self, factor: float) -> Cosine:
        """Multiply the first and the last step by a factor."""
        return Cosine(self.value * factor, self.rounds, self.at(self.rounds) * factor)


@register_schedule("step")
@dataclass(frozen=True)
class Step(Schedule):
    """A step that is multiplied by a factor every so many rounds.

    Args:
        value: The step of round 0.
        every: The number of rounds with the same step.
        factor: What the step is then multiplied by, in (0, 1].

    >>> [Step(0.8, every=2, factor=0.5).at(t) for t in range(5)]
    [0.8, 0.8, 0.4, 0.4, 0.2]
    """

    value: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_positive(self, "value")
        _check_whole(self, "every")
        validate.probability(f"schedule {self.label}", "factor", self.factor)

    def at(self, round: int) -> float:
        """Return the step of a round."""
        return self.value * self.factor ** (round // self.every)

    def scaled(self, factor: float) -> Step:
        """Multiply the first step by a factor."""
        return Step(self.value * factor, self.every, self.factor)


@register_schedule("warmup")
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

    rounds: int
    then: StepSize

    def __post_init__(self) -> None:
        _check_whole(self, "rounds")
        if not isinstance(self.then, Schedule):
            _check_positive(self, "then")

    def at(self, round: int) -> float:
        """Return the step of a round."""
        if round < self.rounds:
            return value_at(self.then, 0) * (round + 1) / self.rounds
        return value_at(self.then, round - self.rounds)

    @property
    def peak(self) -> float:
        """The largest step of the schedule after the warm-up."""
        return peak_of(self.then)

    def scaled(self, factor: float) -> Warmup:
        """Multiply the schedule after the warm-up by a factor."""
        return Warmup(self.rounds, scale(self.then, factor))


@register_schedule("scaled")
@dataclass(frozen=True)
class Scaled(Schedule):
    """Another schedule times a factor.

    Args:
        factor: The factor.
        of: The schedule.
    """

    factor: float
    of: Schedule

    def __post_init__(self) -> None:
        _check_positive(self, "factor")
        if not isinstance(self.of, Schedule):
            raise InputError(f"schedule scaled: of must be a schedule, not {short_repr(self.of)}")

    def at(self, round: int) -> float:
        """Return the factor times the other schedule's step."""
        return self.factor * self.of.at(round)

    @property
    def peak(self) -> float:
        """The factor times the other schedule's largest step."""
        return self.factor * self.of.peak

    def scaled(self, factor: float) -> Scaled:
        """Multiply the factor."""
        return Scaled(self.factor * factor, self.of)


@dataclass(frozen=True)
class OfFunction(Schedule):
    """A step that a function of the round returns.

    Two are equal if the code of their functions is.

    Args:
        function: Returns the step of a round, counted from 0. It must return the same number for
            the same round, or a resumed run would not continue the first one.
        source: Where it comes from, as text: "file.py@name".
    """

    function: Callable[[int], float] = field(compare=False)
    source: str = ""
    digest: str = field(init=False, repr=False)
    """The digest of the function's code."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError(
                f"schedule: must be a function of the round, not {short_repr(self.function)}"
            )
        object.__setattr__(self, "digest", function_digest(self.function))

    def at(self, round: int) -> float:
        """Call the function.

        Raises:
            InputError: It fails, or does not return a number.
        """
        try:
            value = self.function(round)
        except Exception as error:
            raise InputError(
                f"schedule {self}: fails in round {round} ({type(error).__name__}: {error})"
            ) from None
        return validate.as_number(value)

    def __str__(self) -> str:
        return self.source or getattr(self.function, "__qualname__", repr(self.function))


def value_at(step: StepSize, round: int) -> float:
    """Return the number of a round of a schedule, or the number itself."""
    return step.at(round) if isinstance(step, Schedule) else step


def peak_of(step: StepSize) -> float:
    """Return the largest value of a schedule, or the number itself."""
    return step.peak if isinstance(step, Schedule) else step


def scale(step: StepSize, factor: float) -> StepSize:
    """Return a schedule or a number times a factor."""
    return step.scaled(factor) if isinstance(step, Schedule) else step * factor


# --- from text ------------------------------------------------------------------------------------


def _check_positive(schedule: Any, name: str) -> None:
    validate.plain(schedule)
    validate.positive(f"schedule {schedule.label}", name, getattr(schedule, name))


def _check_whole(schedule: Any, name: str) -> None:
    validate.whole(f"schedule {schedule.label}", name, getattr(schedule, name))


def _parse(text: str) -> Schedule:
    """Parse "name:number:...", "warmup:number:schedule" or "file.py@name:number:..."."""
    name, _, rest = text.strip().partition(":")
    path, at, name_in_file = text.partition("@")
    if name in ("warmup", "scaled"):
        first, _, then = rest.partition(":")
        of = _parse(then) if _as_number(then) is None else _as_number(then)
        return _build(SCHEDULES[name], text, [first, of])
    if at:
        name_in_file, _, rest = name_in_file.partition(":")
        return _import(Path(path), name_in_file, rest.split(":") if rest else [], text)
    if name not in SCHEDULES:
        hint = did_you_mean(name, SCHEDULES) if re.match("[a-z]", name) else ""
        raise InputError(
            "must be a finite number or a schedule such as cosine:0.1:200, not "
            f"{short_repr(text)}{';' if hint else ''}{hint}"
        )
    return _build(SCHEDULES[name], text, rest.split(":") if rest else [])


def _import(path: Path, name: str, words: list[str], text: str) -> Schedule:
    """Return the schedule of a function or of a class in a file."""
    found: Any = import_object(path, name, "schedule")
    if isinstance(found, type) and issubclass(found, Schedule):
        found.label = f"{path}@{name}"
        return _build(found, text, words)
    if found is None or isinstance(found, type) or not callable(found):
        raise InputError(f"{path}: has no function of the round and no Schedule {name!r}")
    schedule = OfFunction(found, f"{path}@{name}")
    return _build(Scaled, text, [*words, schedule]) if words else schedule


def _build(cls: Any, text: str, words: list[Any]) -> Schedule:
    """Build a schedule from the numbers that follow its name."""
    names = [entry.name for entry in fields(cls) if entry.init]
    values = [_as_number(word) if isinstance(word, str) else word for word in words]
    if None in values or len(values) > len(names):
        form = ":".join([cls.label, *(name.upper() for name in names)])
        raise InputError(f"schedule {short_repr(text)}: write {form}")
    try:
        return cls(*values)  # type: ignore[no-any-return]
    except TypeError:  # too few numbers
        form = ":".join([cls.label, *(name.upper() for name in names)])
        raise InputError(f"schedule {short_repr(text)}: write {form}") from None


def _as_number(text: str) -> float | None:
    """Parse a whole number or a decimal one; None if it is neither."""
    try:
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else float(text)
    except ValueError:
        return None
