"""List the methods that can enter a race on a problem, each with the settings it starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedpage.core.capabilities import HasConvexity
from fedpage.core.columns import Cost
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import AnyMethod, Problem
from fedpage.engine.devices import Devices
from fedpage.engine.simulate import simulate
from fedpage.methods import METHODS, MethodEntry
from fedpage.methods.fair import default_method
from fedpage.runs import build
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions
from fedpage.studies.question import Question

UP = ("natural", "topk:0.1", "float32")
"""Codecs of replies that a race begins with: the first of these that a method takes."""
DOWN = ("float32",)
"""Codecs of messages that a race begins with."""


@dataclass(frozen=True)
class Entrant:
    """A method in a race.

    Attributes:
        name: Its name on the command line.
        entry: Its entry of the registry.
        method: The settings that its search starts from.
        notes: What a deployment must know: client states, assumptions that do not hold here.
        probe: A run of one round with these settings.
    """

    name: str
    entry: MethodEntry
    method: AnyMethod
    notes: tuple[str, ...]
    probe: History = field(compare=False, repr=False)

    def round_cost(self, question: Question) -> float:
        """Return what the first round costs."""
        return float(question.costs(self.probe)[-1])

    @property
    def label(self) -> str:
        """The name as papers print it."""
        return self.entry.label

    @property
    def is_stateless(self) -> bool:
        """Whether clients keep nothing between rounds."""
        return self.entry.cls.client_state is None


def list_entrants(
    problem: Problem,
    *,
    methods: Sequence[str | AnyMethod] | None = None,
    stateless: bool = False,
    codecs: bool = False,
    devices: Devices | None = None,
) -> tuple[list[Entrant], dict[str, str]]:
    """List the methods that run on a problem.

    Presets such as "fedavg-full" are left out, because the search includes what they fix.

    Args:
        problem: The problem.
        methods: Names of methods, or methods to start from; None: all registered ones.
        stateless: Whether to leave out methods whose clients keep a state.
        codecs: Whether methods begin with the codecs `UP` and `DOWN` where they take them.
        devices: The clients' devices.

    Returns:
        The entrants, and for each method that is left out the reason by its name.

    Raises:
        InputError: A name is unknown, or no method is left.
    """
    entrants: list[Entrant] = []
    left_out: dict[str, str] = {}
    options = RunOptions(devices=devices)
    for name, entry, method in _starts(problem, methods):
        if stateless and entry.cls.client_state is not None:
            left_out[name] = "its clients keep a state"
            continue
        try:
            start = method if method is not None else _start(entry, problem, codecs)
            probe = simulate(problem, start, rounds=1, seed=0, record_every=0, options=options)
        except InputError as error:
            left_out[name] = str(error)
            continue
        entrants.append(Entrant(name, entry, start, _notes(entry, problem), probe))
    if not entrants:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise InputError(f"no method can run on this problem: {reasons}")
    return entrants, left_out


def _starts(
    problem: Problem, methods: Sequence[str | AnyMethod] | None
) -> list[tuple[str, MethodEntry, AnyMethod | None]]:
    """Look up the methods; the last item is a method that was given as such."""
    if methods is None:
        return [(name, entry, None) for name, entry in METHODS.items() if not entry.variant_of]
    if isinstance(methods, str) or not isinstance(methods, Sequence):
        raise InputError(f"methods must be a list of methods, not {short_repr(methods)}")
    found: list[tuple[str, MethodEntry, AnyMethod | None]] = []
    for method in methods:
        if isinstance(method, str):
            found.append((method.strip(), build.find_method(method.strip()), None))
            continue
        cls: Any = type(method)
        if not hasattr(cls, "effective_step"):
            raise InputError(f"{short_repr(method)} is neither a method nor the name of one")
        name = next((n for n, e in METHODS.items() if e.cls is cls and not e.preset), method.name)
        found.append((name, METHODS.get(name) or MethodEntry(cls, cls.name), method))
    names = [name for name, _, _ in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"method {twice[0]!r} is named twice; name it once")
    return found


def _start(entry: MethodEntry, problem: Problem, codecs: bool) -> AnyMethod:
    """Return a method on the paper's equal terms, with codecs if they are wanted."""
    method = default_method(entry, {}, problem)
    if codecs:
        for name, choices in (("up", UP), ("down", DOWN)):
            method = _with_first(method, name, choices, entry)
    return method


def _with_first(
    method: AnyMethod, name: str, choices: Sequence[str], entry: MethodEntry
) -> AnyMethod:
    """Put the first codec that a method takes into a field, if it has the field."""
    if name not in entry.hyper_parameters:
        return method
    for choice in choices:
        try:
            return replace(method, **{name: choice})
        except InputError:
            continue
    return method


def _notes(entry: MethodEntry, problem: Problem) -> tuple[str, ...]:
    notes = []
    if entry.cls.client_state is not None:
        notes.append("clients keep a state")
    if "every round" in entry.assumes:
        notes.append("all clients in every round")
    convex = isinstance(problem, HasConvexity) and problem.convex
    needs = "strong convexity" if "strongly convex" in entry.assumes else "convexity"
    if "convex" in entry.assumes and not convex:
        notes.append(f"heuristic here, because it assumes {needs}")
    return tuple(notes)


def counts_bytes(cost: Cost) -> bool:
    """Say whether a cost counts bytes, bits or their time, so that codecs can lower it."""
    return cost.is_simulated_time or any(
        name.startswith(("bytes", "bits")) for name, _ in cost.terms
    )


def describe_settings(method: AnyMethod) -> str:
    """Write a method's hyper-parameters in short: those that are not defaults."""
    words: Mapping[str, str] = build.hyper_words(method)
    return " ".join(f"{name}={_short(text)}" for name, text in words.items()) or "defaults"


def _short(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text
