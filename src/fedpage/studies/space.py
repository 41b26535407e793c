"""Decide which hyper-parameters of a method are searched, and on which values.

The rules go by the names and the types of the fields. A user's method whose fields have the usual
names is searched like those of the library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedpage.codecs import IDENTITY, Codec, as_codec
from fedpage.codecs.compose import Chain, Scaled
from fedpage.core.capabilities import dtype_of
from fedpage.core.columns import Cost
from fedpage.core.errors import InputError
from fedpage.core.types import HyperParameter, Problem
from fedpage.methods.schedules import Schedule, effective_step, with_step

Tunable: TypeAlias = Any
"""A method with hyper-parameters: a frozen dataclass."""
Values: TypeAlias = Mapping[str, "Axis | Sequence[HyperParameter]"]
"""Values to search by hyper-parameter; also "step" (effective) and "rho" = K eta_l/eta_g."""

Point: TypeAlias = tuple[int, ...]
"""A grid index on each axis."""

STEP_RATIO = math.sqrt(2.0)
"""The ratio of neighbouring effective steps."""
_FURTHEST = 60
"""The most values that an axis may grow by on a side."""
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
    """Values of a hyper-parameter in order, and how they continue.

    Attributes:
        name: The hyper-parameter, "step" or "rho".
        values: The known values. None stands for the default rule, or for all rows or clients.
        start: The grid index of the value that the search starts from.
        below: The ratio above 1 by which values continue below the first. If None, they end there,
            at a natural bound.
        above: The same above the last.
        least: The smallest number that growing may reach.
        most: The largest.
        whole: Whether values are whole numbers.
        ordered: Whether neighbours in the list are alike. Otherwise every other value is a
            neighbour, and there is no edge.
        fixed: Whether the user ended the list, where there is no natural bound.
    """

    name: str
    values: tuple[HyperParameter, ...]
    start: int = 0
    below: float | None = None
    above: float | None = None
    least: float = 0.0
    most: float = math.inf
    whole: bool = False
    ordered: bool = True
    fixed: bool = False

    @functools.cached_property
    def first(self) -> int:
        """The index of the smallest value that can be reached, 0 or less."""
        return 0 if self.below is None else self._grow(0, -1)

    @functools.cached_property
    def last(self) -> int:
        """The index of the largest value that can be reached."""
        end = len(self.values) - 1
        return end if self.above is None else self._grow(end, 1)

    def _grow(self, index: int, direction: int) -> int:
        for _ in range(_FURTHEST):
            value = self.at(index)
            is_inside = value > self.least if direction < 0 else value < self.most
            if not is_inside or self.at(index + direction) == value:
                break
            index += direction
        return index

    def at(self, index: int) -> HyperParameter:
        """Return the value at a grid index. Indices outside of the list continue it."""
        end = len(self.values) - 1
        if 0 <= index <= end:
            return self.values[index]
        if index < 0:
            number = float(self.values[0]) / (self.below or 1.0) ** -index
        else:
            number = float(self.values[end]) * (self.above or 1.0) ** (index - end)
        number = min(self.most, max(self.least, number))
        return round(number) if self.whole else _round_off(number)

    def neighbours(self, index: int, stride: int = 1) -> list[int]:
        """List the indices a stride away, or all others if the values have no order."""
        if not self.ordered:
            return [other for other in range(len(self.values)) if other != index]
        near = {max(self.first, index - stride), min(self.last, index + stride)}
        return sorted(near - {index})

    def is_at_edge(self, index: int) -> bool:
        """Return True at an end that is not a natural bound.

        It is an end of a list that the user fixed, or the end of the longest growth.
        """
        grown = len(self.values) - 1 + _FURTHEST
        if (self.below and index <= -_FURTHEST) or (self.above and index >= grown):
            return True
        ends = (0, len(self.values) - 1)
        numeric = all(isinstance(v, (int, float)) or v is None for v in self.values)
        return self.fixed and self.ordered and numeric and len(self.values) > 1 and index in ends


def _round_off(value: float) -> float:
    """Round to four significant digits, which a person can still type."""
    return float(f"{value:.4g}")


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
    names = {field.name for field in dataclasses.fields(method)}
    scaled = _scaled_by_step(method)
    axes: dict[str, Axis] = {}
    done = set(fixed) | (scaled if "step" in fixed else set())
    done |= set(getattr(method, "without_effect", ()))
    if scaled and not scaled & done:
        axes["step"] = _step_axis(method, problem)
        # One of the sizes that with_step changes follows from the others and the step.
        done |= {sorted(scaled)[-1]}
        has_schedule = isinstance(getattr(method, "eta_l", None), Schedule)
        if is_fedpage(method) and not has_schedule and not {"rho", "eta_l"} & done:
            axes["rho"] = _rho_axis(method)
            done |= {"eta_g", "eta_l"}
    for field in dataclasses.fields(method):
        if field.name in done:
            continue
        axis = _field_axis(method, problem, field.name)
        if axis is not None and _is_accepted(method, axis, problem):
            axes[field.name] = axis
    if "K" not in axes and getattr(method, "K", 2) == 1:
        axes.pop("rho", None)
    for name, texts in CODECS.items() if codecs else ():
        if name in names and name not in fixed:
            own = [getattr(method, name), *map(as_codec, texts)]
            taken = [c for c in dict.fromkeys(own) if _takes(method, name, c, problem)]
            axes |= {name: Axis(name, tuple(taken), ordered=False)} if len(taken) > 1 else {}
    return axes


def counts_bytes(cost: Cost) -> bool:
    """Return True if a cost counts bytes, bits or their time, so that codecs can lower it."""
    return cost.is_simulated_time or any(
        name.startswith(("bytes", "bits")) for name, _ in cost.terms
    )


def with_codecs(method: Tunable, fixed: Collection[str] = ()) -> Tunable:
    """Return a method with the codecs that a search of codecs starts from.

    Args:
        method: The method.
        fixed: Hyper-parameters that keep their values.
    """
    for name, texts in FIRST_CODECS.items():
        if not hasattr(method, name) or name in fixed:
            continue
        for text in texts:
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


def _step_axis(method: Tunable, problem: Problem) -> Axis:
    unit = unit_step(method, problem)
    values = tuple(_round_off(unit * STEP_RATIO**k) for k in range(-8, 9))
    return Axis("step", values, len(values) // 2, STEP_RATIO, STEP_RATIO, least=1e-300, most=1e300)


def _rho_axis(method: Tunable) -> Axis:
    """Return half decades of K eta_l/eta_g around the method's own."""
    own = method.K * method.local_step / method.eta_g
    root = math.sqrt(10.0)
    values: list[HyperParameter] = [_round_off(own * root**k) for k in range(-1, 5)]
    values[1] = None if method.eta_l is None else values[1]
    return Axis("rho", tuple(values), 1, root, root, least=1e-300, most=1e300)


def _field_axis(method: Tunable, problem: Problem, name: str) -> Axis | None:
    """Return the values of a field, or None if it is not searched."""
    value = getattr(method, name)
    if name in _NOT_SEARCHED or isinstance(value, (bool, str, Codec)):
        return None
    if name == "S":
        own = problem.N if value is None else value
        return _ladder(name, own, value, 1, problem.N, whole=True)
    if name in _ROWS:
        rows = int(np.max(problem.sizes))
        own = min(rows, rows if value is None else value)
        return _ladder(name, own, value, 1, rows, whole=True, top=None)
    if isinstance(value, int):
        return Axis(name, (value,), 0, 2.0, 2.0, least=1, whole=True) if value >= 1 else None
    if value is None and name == "eta_l":
        own = float(getattr(method, "local_step", effective_step(method) / 2))
        values = (_round_off(own / 2), None, _round_off(own * 2))
        return Axis(name, values, 1, 2.0, 2.0, least=1e-300, most=1e300)
    if value is None or name in _SHARES:
        own = _default_share(method, problem, name) if value is None else value
        return None if own is None else _ladder(name, own, value, own / 64, 1.0, grows=True)
    if not isinstance(value, float):
        return None
    if name in _MOMENTA and 0 <= value < 1:
        return _momentum_axis(name, value)
    if value > 0:
        ratio = 2.0 if name in _SIZES else 4.0
        return Axis(name, (value,), 0, ratio, ratio, least=1e-300, most=1e300)
    if name == "mu":
        unit = 1e-3 / unit_step(method, problem)
        return Axis(name, (0.0, _round_off(unit)), 0, None, 4.0, most=1e300)
    return None


def _default_share(method: Tunable, problem: Problem, name: str) -> float | None:
    """Return about the value that a method uses for a share that is None."""
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


def _ladder(
    name: str,
    own: float,
    value: HyperParameter,
    low: float,
    high: float,
    *,
    whole: bool = False,
    top: HyperParameter = (),
    grows: bool = False,
) -> Axis:
    """List factors of two around a number, with the bounds at the ends.

    Args:
        name: The field.
        own: The number for the method's own value.
        value: The method's own value, which may be None.
        low: The smallest number of the list.
        high: The largest, a natural bound.
        whole: Whether the values are whole numbers.
        top: None if None stands for the largest.
        grows: Whether the values continue below `low`.
    """
    below = int(math.log2(own / low) + 1e-9) + 1
    above = int(math.log2(high / own) + 1e-9) + 1
    numbers: set[float] = {own * 2.0**k for k in range(-below, above + 1)}
    numbers = {min(high, max(low, number)) for number in numbers} | {high}
    if whole:
        numbers = {round(number) for number in numbers}
    ordered: list[HyperParameter] = [n if whole else _round_off(n) for n in sorted(numbers)]
    if top is None:
        ordered[-1] = None
    if value is None or value in ordered:
        start = (
            ordered.index(value)
            if value in ordered
            else min(range(len(ordered)), key=lambda i: abs(math.log(ordered[i] / own)))
        )
    else:
        start = min(
            range(len(ordered)),
            key=lambda i: math.inf if ordered[i] is None else abs(ordered[i] - value),
        )
        if own == high and top is None:
            start = len(ordered) - 1  # at least all rows
    ordered[start] = value
    return Axis(
        name, tuple(ordered), start, 2.0 if grows else None, None, least=1e-300, whole=whole
    )


def _momentum_axis(name: str, value: float) -> Axis:
    """Return momenta whose distances to 1 differ by factors of two, and 0."""
    unit = 1 - value if value > 0 else 1.0
    distances = {unit * 2.0**k for k in range(-8, 9) if 1e-3 <= unit * 2.0**k < 1}
    values = sorted({0.0, value} | {_round_off(1 - distance) for distance in distances})
    return Axis(name, tuple(values), values.index(value))


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
    if len(number) != 1:
        return [codec]
    own = getattr(codec, number[0])
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


def _is_accepted(method: Tunable, axis: Axis, problem: Problem) -> bool:
    """Return True if the method accepts a neighbour of its value; K of PAGE has none."""
    near = axis.neighbours(axis.start)
    return any(_takes(method, axis.name, axis.at(index), problem) for index in near)


def given_axes(
    method: Tunable, problem: Problem, search: Values, *, fixed: bool = False
) -> dict[str, Axis]:
    """Return the axes of values that the user gave.

    Args:
        method: The method.
        problem: The problem.
        search: Values by name, or an Axis. An empty list stands for the values of `search_space`.
        fixed: Whether the lists are complete. Otherwise numbers continue in both directions.

    Raises:
        InputError: If a hyper-parameter is unknown.
    """
    names = {field.name for field in dataclasses.fields(method)}
    axes = {}
    usual = search_space(method, problem)
    for name, values in search.items():
        if name not in names | {"rho", "step"}:
            raise InputError(
                f"{method.name} has no hyper-parameter {name!r} to search; "
                f"it has {', '.join(sorted(names))}"
            )
        if name == "rho" and not is_fedpage(method):
            raise InputError(f"rho is FedPAGE's; {method.name} has eta_g and eta_l")
        if isinstance(values, Axis):
            axes[name] = values
        elif len(values):
            axes[name] = _given_axis(name, list(values), fixed)
        elif name in CODECS:
            axes[name] = codec_axis(method, problem, name)
        elif name in usual:
            axes[name] = usual[name]
        else:
            raise InputError(f"give the values of {name} to search, as in {name}=value,value")
    return axes


def _given_axis(name: str, values: list[HyperParameter], fixed: bool) -> Axis:
    """Return the axis of a list of values. Numbers above 0 continue in both directions."""
    values = list(dict.fromkeys(values))
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) + (None in values) < len(values):
        return Axis(name, tuple(values), ordered=False, fixed=True)
    numbers.sort()
    ordered = (*numbers, *([None] if None in values else []))
    whole = all(isinstance(v, int) for v in numbers)
    if fixed or not numbers:
        return Axis(name, ordered, len(ordered) // 2, fixed=True)
    below = above = 2.0
    if len(numbers) > 1 and numbers[0] > 0:
        below, above = numbers[1] / numbers[0], numbers[-1] / numbers[-2]
    positive = numbers[0] > 0
    below_one = all(0 < v <= 1 for v in numbers) and name in (*_SHARES, *_MOMENTA)
    return Axis(
        name,
        ordered,
        len(ordered) // 2,
        below if positive else None,
        None if None in values or not numbers[-1] > 0 else above,
        least=1 if whole else 1e-300,
        most=1.0 if below_one else math.inf if whole else 1e300,
        whole=whole,
    )


def all_points(axes: Mapping[str, Axis], listed: Collection[str] | None = None) -> list[Point]:
    """Return every combination of grid indices.

    Args:
        axes: The axes.
        listed: The axes whose known values are combined, while the others stay at their start. If
            None, all axes.
    """
    indices = [
        range(len(axis.values)) if listed is None or name in listed else [axis.start]
        for name, axis in axes.items()
    ]
    return list(itertools.product(*indices))


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
