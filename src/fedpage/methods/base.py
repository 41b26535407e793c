"""The base class of methods: checks of hyper-parameters, effective step, and codecs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from fedpage import codecs
from fedpage.codecs import IDENTITY, Codec, Compressible
from fedpage.codecs.message_codec import Kind
from fedpage.core import validate
from fedpage.core.errors import InputError
from fedpage.core.types import Call, Draws, Fields, MessageTypes, Problem
from fedpage.core.validate import Checks, FieldCheck
from fedpage.methods import schedules

Theorem = Callable[..., Any]
F = TypeVar("F", bound=Theorem)

THEOREMS: dict[type, Theorem] = {}
"""For each class the function that makes the method with its theorem's step sizes."""


def constant(why: str) -> FieldCheck:
    """Return the check of a step size that cannot be a schedule, for a reason."""

    def check(method: str, name: str, value: object) -> None:
        if isinstance(value, schedules.Schedule):
            raise InputError(f"{method}: {name} cannot be a schedule: {why}")
        validate.positive(method, name, value)

    return check


def geometric(method: str, name: str, value: float) -> None:
    """Check the p of a geometric number of local steps, which is in [1e-6, 1]."""
    validate.probability(method, name, value)
    if value < 1e-6:  # a round may have 37/p steps
        raise InputError(f"{method}: {name} must be at least 1e-6, not {value}")


def geometric_steps(method: str, p: float, K: float) -> int:
    """Return the steps that a message asks for: at most 1 + 37/p for 53 random bits."""
    if not 1.0 <= K <= 1.0 + 37.0 / p or int(K) != K:
        raise InputError(
            f"{method}: a message asks for {K:g} local steps, which p={p} never gives"
        )
    return int(K)


def one_of(words: Sequence[str]) -> FieldCheck:
    """Return the check of a word that must be one of several."""
    return partial(validate.choice, words=words)


@dataclass(frozen=True)
class BaseMethod:
    """Everything that methods share; a subclass adds the algorithm."""

    name: ClassVar[str] = "method"
    """The name as papers print it."""
    paper: ClassVar[str] = ""
    """Authors and year."""
    messages: ClassVar[MessageTypes] = {}
    """Every message type with the type of the reply to it."""
    fallback_messages: ClassVar[tuple[type, ...]] = ()
    """Those that are sent only where called clients fail to answer."""
    client_state: ClassVar[type[Any] | None] = None
    """The NamedTuple of vectors that each client keeps, zero at first, or None."""
    needs_numpy: ClassVar[bool] = False
    """Whether its vectors must be numpy arrays, also on an accelerator."""

    checks: ClassVar[Checks] = {
        **dict.fromkeys(("S", "K", "b", "b0", "b1", "b2", "b3"), validate.whole),
        **dict.fromkeys(("eta", "eta_g", "eta_l"), schedules.check_step),
        **dict.fromkeys(("p", "q", "a", "m"), validate.probability),
        **dict.fromkeys(("beta", "beta1", "beta2"), validate.decay),
    }
    """The check of each hyper-parameter by its name; those of a subclass are added."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters that must keep their defaults, or it is another method."""
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Labels that replace the name of an instance with these hyper-parameters."""
    step_sizes: ClassVar[tuple[str, ...]] = ("eta",)
    """`with_step` sets the first; the others, if given, keep their ratio to it."""
    step_factors: ClassVar[tuple[str, ...]] = ()
    """The effective step is the product of these attributes and the first step size."""
    heavy_ball: ClassVar[bool] = False
    """Whether the server has momentum: it divides the effective step by 1 - beta."""

    up_codecs: ClassVar[Kind] = "cast"
    """Which codecs `up` may be."""
    down_codecs: ClassVar[Kind] = "cast"
    codec_hint: ClassVar[str] = ""
    """What to use in place of another codec, as the end of an error message."""
    changes: ClassVar[Compressible] = {}
    """Reply fields that pass through `up`."""
    gradients: ClassVar[Compressible] = {}
    """Reply fields that pass through `up` if it is a cast."""

    takes_any_mean: ClassVar[bool] = False
    """Whether a trimmed, clipped or noisy mean of the replies may replace the mean."""
    full_rounds: ClassVar[bool] = False
    """Whether some rounds call more than S clients: on equal terms S is then halved."""
    gradients_per_row: ClassVar[int] = 1
    """Gradients of a row of a minibatch in a local step."""
    is_geometric: ClassVar[bool] = False
    """Whether there are 1/p local steps on average, and no K."""
    reduces_row_noise: ClassVar[bool] = False
    """Whether the noise of minibatches vanishes at the optimum."""

    def __init_subclass__(cls) -> None:
        """Add the checks of all base classes."""
        tables = [vars(base).get("checks", {}) for base in reversed(cls.__mro__)]
        cls.checks = {name: check for table in tables for name, check in table.items()}

    def __post_init__(self) -> None:
        validate.check_fields(self, self.name, self.checks)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in self.fixed and value != field.default:
                raise InputError(
                    f"{self.name}: {field.name} must be {field.default}, not {value}; "
                    f"otherwise use {type(self).__mro__[1].name}"  # type: ignore[attr-defined]
                )
        kinds: dict[str, Kind] = {"up": self.up_codecs, "down": self.down_codecs}
        codecs.check(self, **kinds, hint=self.codec_hint)
        for label, preset in vars(type(self)).get("presets", {}).items():
            if all(getattr(self, name) == value for name, value in preset.items()):
                object.__setattr__(self, "name", label)

    @property
    def compressible(self) -> Compressible:
        """The reply fields of each message type that pass through `up`."""
        codec: Codec = getattr(self, "up", IDENTITY)
        tables = (self.changes, self.gradients if codec.is_cast else {})
        messages = {message for table in tables for message in table}
        return {
            message: {**tables[0].get(message, {}), **tables[1].get(message, {})}
            for message in messages
        }

    @property
    def step_factor(self) -> float:
        """The product of the step factors."""
        factors: list[float] = [getattr(self, name) for name in self.step_factors]
        return math.prod(factors)

    @property
    def effective_step(self) -> float:
        """How far the server moves along a unit of gradient in a round."""
        step: float = getattr(self, self.step_sizes[0])
        return self.step_factor * step / self._damping

    @property
    def _damping(self) -> float:
        """The divisor of the effective step, 1 - beta with momentum."""
        beta: float = getattr(self, "beta", 0.0) if self.heavy_ball else 0.0
        return 1 - beta

    def with_step(self, step: float) -> Self:
        """Return the same method with another effective step.

        Args:
            step: The effective step.
        """
        first, *others = self.step_sizes
        factor = step / self.effective_step
        given = {name: getattr(self, name) for name in others}
        scaled = {n: eta * factor for n, eta in given.items() if eta is not None}
        scaled[first] = step * self._damping / self.step_factor
        return replace(self, **scaled)

    @classmethod
    def from_theory(cls, problem: Problem, **settings: Any) -> Self:
        """Return the method with the step sizes of its theorem.

        Args:
            problem: The problem, whose N and smoothness constants the steps depend on.
            settings: Hyper-parameters and constants of the theorem. The function of
                the method in `fedpage.methods.from_theory` lists them.

        Raises:
            InputError: There is no such theorem, or a setting is impossible.
        """
        theorem = find_theorem(cls)
        if theorem is None:
            raise InputError(f"{cls.name}: no theorem gives its step sizes; tune them")
        made: Self = theorem(problem, **settings)
        return made

    def omega(self, d: int) -> float:
        """Return the variance of `up` for d parameters, 0 for casts."""
        codec: Codec = getattr(self, "up", IDENTITY)
        return codec.omega(d) or 0.0

    def rate(self, d: int) -> float:
        """Return a, given or by default 1/(1 + omega), for d parameters."""
        a: float | None = getattr(self, "a", None)
        return 1 / (1 + self.omega(d)) if a is None else a

    def participants(self, N: int) -> int:
        """Return how many of N clients a round calls: S, or all if S is None."""
        S: int | None = getattr(self, "S", None)
        return N if S is None else S

    def check_sample(self, N: int) -> None:
        """Check that there are at least S of N clients."""
        validate.check_sample(self.name, self.participants(N), N)

    def call_some(self, N: int, draws: Draws, message: Fields) -> Call[Any]:
        """Call the round's S clients, or all if S is None."""
        return Call(draws.clients(N, self.participants(N)), message)

    def call_all(
        self, N: int, draws: Draws, message: Fields, fallback: Callable[[], Call[Any]]
    ) -> Call[Any]:
        """Call all clients; if a reply is missing, use the fallback.

        Round 0 has no fallback, because nothing is known without its replies.
        """
        other = fallback if draws.round > 0 else None
        return Call(draws.clients(N, N), message, require_all=True, fallback=other)


def theorem(*classes: type[BaseMethod]) -> Callable[[F], F]:
    """Register the function that makes methods of some classes from their theorem."""

    def decorate(make: F) -> F:
        THEOREMS.update(dict.fromkeys(classes, make))
        return make

    return decorate


def find_theorem(cls: type) -> Theorem | None:
    """Return the function that makes a method from its theorem, or None.

    Args:
        cls: The class of the method. If it is not a `BaseMethod`, it may have a class
            method `from_theory`.
    """
    for base in cls.__mro__:
        if base in THEOREMS:
            return partial(THEOREMS[base], cls)
        if base is not BaseMethod and "from_theory" in vars(base):
            own: Theorem = cls.from_theory  # type: ignore[attr-defined]
            return own
    return None
