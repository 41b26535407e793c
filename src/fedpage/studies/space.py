"""Decide which hyper-parameters of a method are searched, and on which values.

The rules go by the names and the types of the fields. A user's method whose fields have the usual
names is searched like those of the library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedpage.codecs import IDENTITY, Codec, as_codec
from fedpage.codecs.compose import Chain, Scaled
from fedpage.core.capabilities import dtype_of
from fedpage.core.columns import SIMULATED, Cost
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.types import HyperParameter, Problem
from fedpage.methods.schedules import Schedule, effective_step, with_step

Tunable: TypeAlias = Any
"""A method with hyper-parameters: a frozen dataclass."""
Values: TypeAlias = Mapping[str, Sequence[HyperParameter]]
"""Values to search by hyper-parameter; also "step" (effective) and "rho" = K eta_l/eta_g."""
Point: TypeAlias = tuple[int, ...]
"""A grid index on each axis."""

STEP_RATIO = math.sqrt(2.0)
"""The ratio of neighbouring effective steps."""
_FURTHEST = 60
"""The most values that an axis grows by on a side."""
_LEAST, _MOST, _MOST_WHOLE = 1e-300, 1e300, 2**31 - 1
"""The bounds of numbers that have no natural ones, and the largest whole number of a method."""
_ROWS = ("b", "b0", "b1", "b2", "b3")
_SHARES = ("p", "q", "a", "m")
_MOMENTA = ("beta", "beta1", "beta2")
_SIZES = ("eta", "eta_g", "eta_l", "gamma", "lam", "mu")
"""Fields that may be step sizes: `with_step` changes some of them."""
_NOT_SEARCHED = ("delegate",)
"""Numbers that name something and have no order."""
CODECS = {
    "up": ("none", "float16", "float32", "natural", "randk:0.1", "topk:0.1"),
    "down": ("none", "float16", "float32"),
}
"""Codecs to search. Each method takes some of them."""
FIRST_CODECS = {"up": ("natural", "topk:0.1", "float32"), "down": ("float32",)}
"""A search of codecs starts from the first of these that a method takes."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """The values of a hyper-parameter that a search can reach.

    Attributes:
        name: The hyper-parameter, "step" or "rho".
        values: The values. None stands for the default rule, or for all rows or clients.
        start: The grid index of the value that the search starts from.
        is_ordered: Whether neighbours in the list are alike. Otherwise every other value is a
            neighbour.
        edges: The grid indices at which the list ends without a natural bound.
    """

    name: str
    values: tuple[HyperParameter, ...]
    start: int = 0
    is_ordered: bool = True
    edges: tuple[int, ...] = ()

    def move(self, index: int, by: int) -> int:
        """Return the grid index that is `by` further, or the end of the axis."""
        return min(len(self.values) - 1, max(0, index + by))

    def neighbours(self, index: int, stride: int = 1) -> list[int]:
        """List the indices a stride away, or all others if the values have no order."""
        if not self.is_ordered:
            return [other for other in range(len(self.values)) if other != index]
        return sorted({self.move(index, -stride), self.move(index, stride)} - {index})


def _round_off(value: float) -> float:
    """Round to four significant digits, which a person can still type."""
    return float(f"{value:.4g}")


def _grow(number: float, factor: float, bound: float, whole: bool) -> list[float]:
    """List what follows a number above 0 if it grows or shrinks by a factor, up to a bound."""
    exact, found = float(number), [number]
    while len(found) <= _FURTHEST and exact != bound and number > 0:
        exact = min(bound, exact * factor) if factor > 1 else max(bound, exact * factor)
        rounded = round(exact) if whole else _round_off(exact)
        if rounded == found[-1]:
            break
        found.append(rounded)
    return found[1:]


def _axis(
    name: str,
    numbers: Sequence[float],
    values: Sequence[HyperParameter] | None = None,
    start: int = 0,
    *,
    factors: Sequence[float] = (2.0,),
    low: float = _LEAST,
    high: float = _MOST,
    whole: bool = False,
    is_all: bool = False,
) -> Axis:
    """Return the axis of numbers in order, which continue by factors from `low` to `high`.

    The values, if they are given, take the numbers' places. With `is_all`, None stands for the
    largest number.
    """
    below = _grow(numbers[0], 1 / factors[0], low, whole)
    above: list[HyperParameter] = [*_grow(numbers[-1], factors[-1], high, whole)]
    if is_all and above:
        above[-1] = None
    every = (*reversed(below), *(values or numbers), *above)
    ends = ((below, 0), (above, len(every) - 1))
    edges = tuple(index for grown, index in ends if len(grown) == _FURTHEST)
    return Axis(name, every, len(below) + start, edges=edges)


def search_space(
    method: Tunable, problem: Problem, *, fixed: Collection[str] = (), codecs: bool = False
) -> dict[str, Axis]:
    """List the hyper-parameters of a method that are worth a search, with their values.

    - The effective step has values around 1/L, a factor sqrt(2) apart, or around the method's
      own step if L is not known. If `fixed` contains a step size that `with_step` would change,
      the other step sizes are searched separately.
    - FedPAGE's local step is searched as rho = K eta_l/eta_g.
    - S goes from 1 to N, minibatches from 1 to all rows, K from 1 on, probabilities and weights up
      to 1, momenta from 0 to 1; all of them by factors of two from the method's own values.
    - Hyper-parameters that a method's property `without_effect` names are not searched.

    Args:
        method: The method, whose values the search starts from.
        problem: The problem.
        fixed: Hyper-parameters that keep their values.
        codecs: Whether to search the codecs of replies and messages, "up" and "down", too.

    Returns:
        The axes by name. "step" and "rho" stand for the hyper-parameters that they set.
    """
    scaled = _scaled_by_step(method)
    axes: dict[str, Axis] = {}
    done = {*fixed, *getattr(method, "without_effect", ()), *(scaled if "step" in fixed else ())}
    if scaled and not scaled & done:
        unit = unit_step(method, problem)
        axes["step"] = _axis("step", [unit], [_round_off(unit)], factors=[STEP_RATIO])
        # One of the sizes that with_step changes follows from the others and the step.
        done.add(sorted(scaled)[-1])
        has_schedule = isinstance(getattr(method, "eta_l", None), Schedule)
        if is_fedpage(method) and not has_schedule and not {"rho", "eta_l"} & done:
            own = method.K * method.local_step / method.eta_g
            value = None if method.eta_l is None else _round_off(own)
            axes["rho"] = _axis("rho", [own], [value], factors=[math.sqrt(10.0)])
            done |= {"eta_g", "eta_l"}
    for name in (field.name for field in dataclasses.fields(method) if field.name not in done):
        axis = _field_axis(method, problem, name)
        near = [axis.values[index] for index in axis.neighbours(axis.start)] if axis else []
        if axis and any(_takes(method, name, value, problem) for value in near):
            axes[name] = axis  # K of PAGE takes no other value
    if "K" not in axes and getattr(method, "K", 2) == 1:
        axes.pop("rho", None)
    for name, texts in CODECS.items() if codecs else ():
        if hasattr(method, name) and name not in fixed:
            own = [getattr(method, name), *map(as_codec, texts)]
            taken = [c for c in dict.fromkeys(own) if _takes(method, name, c, problem)]
            axes |= {name: Axis(name, tuple(taken), is_ordered=False)} if len(taken) > 1 else {}
    return axes


def counts_bytes(cost: Cost) -> bool:
    """Return True if a cost counts bytes, bits or their time, so that codecs can lower it."""
    return cost.counts(SIMULATED) or any(
        name.startswith(("bytes", "bits")) for name, _ in cost.terms
    )


def with_codecs(method: Tunable, fixed: Collection[str] = ()) -> Tunable:
    """Return a method with the codecs that a search of codecs starts from.

    Args:
        method: The method.
        fixed: Hyper-parameters that keep their values.
    """
    for name, texts in FIRST_CODECS.items():
        for text in texts if hasattr(method, name) and name not in fixed else ():
            with contextlib.suppress(InputError):
                method = dataclasses.replace(method, **{name: text})
                break
    return method


def is_fedpage(method: Tunable) -> bool:
    """Return True if a method has FedPAGE's step sizes: the effective one, and a local one."""
    return {"local_step", "eta_g", "eta_l", "K"} <= set(dir(method))


def _scaled_by_step(method: Tunable) -> set[str]:
    """Return the step sizes that another effective step changes."""
    try:
        other = with_step(method, 2 * effective_step(method))
    except InputError:
        return set()
    names = (field.name for field in dataclasses.fields(method))
    return {name for name in names if getattr(other, name) != getattr(method, name)}


def unit_step(method: Tunable, problem: Problem) -> float:
    """Return 1/L, or the method's effective step if L is not a finite number above 0.

    A method that measures its step in the run, which `with_step` scales, keeps its own too.
    """
    if not _scaled_by_step(method) & {*_SIZES}:
        return effective_step(method)
    try:
        L = problem.smoothness().whole
    except InputError:  # a network's
        L = math.nan
    return 1 / L if math.isfinite(L) and L > 0 else effective_step(method)


def _field_axis(method: Tunable, problem: Problem, name: str) -> Axis | None:
    """Return the values of a field, or None if it is not searched."""
    value = getattr(method, name)
    if name in _NOT_SEARCHED or isinstance(value, (bool, str, Codec)):
        return None
    if name == "S" or name in _ROWS:
        most = problem.N if name == "S" else int(np.max(problem.sizes))
        own = most if value is None else min(most, value)
        is_all = name != "S"
        return _axis(name, [own], [value], low=1, high=most, whole=True, is_all=is_all)
    if isinstance(value, int):
        return _axis(name, [value], low=1, high=_MOST_WHOLE, whole=True) if value else None
    if value is None or name in _SHARES:
        own = _default_number(method, problem, name) if value is None else value
        high = _MOST if name == "eta_l" else 1.0
        return None if own is None else _axis(name, [own], [value], high=high)
    if not isinstance(value, float):
        return None
    if name in _MOMENTA and 0 <= value < 1:
        unit = 1 - value if value > 0 else 1.0  # distances to 1 differ by factors of two
        distances = [unit * 2.0**k for k in range(-8, 9) if 1e-3 <= unit * 2.0**k < 1]
        values = sorted({0.0, value} | {_round_off(1 - distance) for distance in distances})
        return Axis(name, tuple(values), values.index(value))
    if value > 0:
        return _axis(name, [value], factors=[2.0 if name in _SIZES else 4.0])
    if name == "mu":
        return _axis(name, [0.0, _round_off(1e-3 / unit_step(method, problem))], factors=[4.0])
    return None


def _default_number(method: Tunable, problem: Problem, name: str) -> float | None:
    """Return about the number that a method uses for a hyper-parameter that is None."""
    if name == "eta_l":
        return float(getattr(method, "local_step", effective_step(method) / 2))
    S = getattr(method, "S", None) or problem.N
    omega = getattr(method, "up", IDENTITY).omega(problem.d)
    rows = max(1.0, float(np.mean(problem.sizes)))
    shares = {
        "p": S / problem.N,
        "beta": S / problem.N,
        "lam": S / (2 * problem.N),
        "q": (getattr(method, "K", 1) or 1) / rows,
        "a": 1 / (1 + (omega or 0.0)),
    }
    return min(1.0, shares[name]) if name in shares else None


def codec_axis(method: Tunable, problem: Problem, name: str = "up") -> Axis:
    """Return the strengths of a method's own codec in order, those that the method takes."""
    own = getattr(method, name)
    found = [c for c in _strengths(own, problem.d) if _takes(method, name, c, problem)] or [own]
    return Axis(name, tuple(found), found.index(own) if own in found else 0)


def _strengths(codec: Codec, d: int) -> list[Codec]:
    """Return a codec with other parameters, from few numbers sent to many."""
    if isinstance(codec, Scaled):
        return [Scaled(inner) for inner in _strengths(codec.codec, d)]
    if isinstance(codec, Chain):
        return [Chain(first, codec.second) for first in _strengths(codec.sparsifier, d)]  # type: ignore[arg-type]
    number = [field.name for field in dataclasses.fields(codec)]
    own = getattr(codec, number[0]) if len(number) == 1 else None
    if isinstance(own, float):
        shares = sorted(_round_off(own * 2.0**k) for k in range(-12, 8))
        values: list[float] = [own if s == _round_off(own) else s for s in shares if 1 / d <= s < 1]
    elif isinstance(own, int):
        most = d if number[0] == "k" else 1 << 15
        values = sorted({min(most, max(1, round(own * 2.0**k))) for k in range(-16, 17)})
    else:
        return [codec]
    return [dataclasses.replace(codec, **{number[0]: value}) for value in values]


def _takes(method: Tunable, name: str, value: HyperParameter, problem: Problem) -> bool:
    """Return True if a method accepts a value of a hyper-parameter on a problem."""
    try:
        changed = dataclasses.replace(method, **{name: value})
        changed.init(np.zeros(problem.d, dtype_of(problem)), problem.N)
    except InputError:
        return False
    return True


def given_axes(
    method: Tunable, problem: Problem, search: Values, *, is_fixed: bool = False
) -> tuple[dict[str, Axis], list[Point] | None]:
    """Return the axes of values that the user gave, and all combinations of these values.

    Args:
        method: The method.
        problem: The problem.
        search: Values by name. An empty list stands for the values of `search_space`.
        is_fixed: Whether the lists are complete. Otherwise numbers continue in both directions.

    Returns:
        The axes by name, and the points to run first, or None if all lists are empty.

    Raises:
        InputError: If a hyper-parameter is unknown.
    """
    names = {field.name for field in dataclasses.fields(method)}
    axes = {}
    usual = search_space(method, problem)
    for name, values in search.items():
        if name not in names | {"rho", "step"}:
            raise InputError(
                f"{method.name} has no hyper-parameter {name!r} to search;"
                f"{did_you_mean(name, [*names, 'rho', 'step'])} it has {', '.join(sorted(names))}"
            )
        if name == "rho" and not is_fedpage(method):
            raise InputError(f"rho is FedPAGE's; {method.name} has eta_g and eta_l")
        if len(values):
            axes[name] = _given_axis(name, list(dict.fromkeys(values)), is_fixed)
        elif name in CODECS:
            axes[name] = codec_axis(method, problem, name)
        elif name in usual:
            axes[name] = usual[name]
        else:
            raise InputError(f"give the values of {name} to search, as in {name}=value,value")
    indices = [
        [i for i, value in enumerate(axis.values) if value in search[name]] or [axis.start]
        for name, axis in axes.items()
    ]
    return axes, list(itertools.product(*indices)) if any(map(len, search.values())) else None


def _given_axis(name: str, values: list[HyperParameter], is_fixed: bool) -> Axis:
    """Return the axis of a list of values. Numbers above 0 continue in both directions."""
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    numbers.sort()
    ordered = [*numbers, *([None] if None in values else [])]
    if len(ordered) < len(values):
        return Axis(name, tuple(values), is_ordered=False)
    start = len(ordered) // 2
    if is_fixed or not numbers:
        edges = (0, len(ordered) - 1) if len(ordered) > 1 else ()
        return Axis(name, tuple(ordered), start, edges=edges)
    whole = all(isinstance(v, int) for v in numbers)
    is_share = name in (*_SHARES, *_MOMENTA) and 0 < numbers[0] <= numbers[-1] <= 1
    most = 1.0 if is_share else _MOST_WHOLE if whole else _MOST
    return _axis(
        name, numbers, ordered, start, whole=whole,
        factors=[b / a for a, b in itertools.pairwise(numbers) if a > 0] or [2.0],
        low=1 if whole else _LEAST,
        high=numbers[-1] if None in values else most,
    )  # fmt: skip


def build_candidate(method: Tunable, values: Mapping[str, HyperParameter]) -> Tunable:
    """Put searched values into a method.

    Args:
        method: The method whose other hyper-parameters stay.
        values: Values by field. "step" sets the effective step after them, "rho" FedPAGE's eta_l.

    Raises:
        InputError: If the method refuses them.
    """
    fields = {name: value for name, value in values.items() if name not in ("step", "rho")}
    candidate = dataclasses.replace(method, **fields)
    if "step" in values:
        moved = with_step(candidate, values["step"])
        changed = {
            field.name: float(f"{value:.6g}")  # so that a command line has all of it
            for field in dataclasses.fields(moved)
            if isinstance(value := getattr(moved, field.name), float)
            and value != getattr(candidate, field.name)
        }
        candidate = dataclasses.replace(moved, **changed)
    if values.get("rho") is not None:
        eta_l = values["rho"] * candidate.eta_g / candidate.K
        candidate = dataclasses.replace(candidate, eta_l=float(f"{eta_l:.6g}"))
    return candidate
