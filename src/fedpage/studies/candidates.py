"""The methods of a tuning: which take part, and what is found for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fedpage.core.capabilities import is_convex
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import AnyMethod, Problem
from fedpage.engine.devices import Devices
from fedpage.engine.simulate import simulate
from fedpage.methods import METHODS, MethodEntry
from fedpage.methods.fair import default_method
from fedpage.report.diagrams import format_setting
from fedpage.runs import build
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions
from fedpage.studies.search import Score, Search
from fedpage.studies.space import Tunable, with_codecs
from fedpage.studies.statistics import CostSample


@dataclass(frozen=True)
class Candidate:
    """A method of a tuning, with the settings that were found and their held-out costs.

    Attributes:
        name: Its name on the command line.
        entry: Its entry of the registry.
        method: The settings that its search starts from, and later the best ones.
        given: The hyper-parameters that the user gave, which keep their values.
        demands: What a deployment must know: client states, assumptions that do not hold here.
        probe: A run of one round with the first settings.
        searched: The hyper-parameters that were searched, "step" and "rho" among them.
        scores: The settings that were tried with their scores, the best first.
        is_local_optimum: Whether no neighbour on any axis is better.
        edges: The axes on which the best is at an end of a grid that the user fixed.
        note: The reason why better settings may exist, or "".
        eliminated: The reason why it was eliminated before the evaluation, or "".
        times: Its cost over the best one's when it was eliminated, inf if it had not reached the
            target.
        sample: The costs on the held-out seeds, or None if it did not run on them.
        at_end: How many of the held-out runs end at the target.
        value: The median value of the target's column at the end of these runs.
        rounds: The most rounds of these runs.
        is_tied: Whether the held-out seeds do not tell it apart from the first.
        p_value: The adjusted p-value of that comparison.
    """

    name: str
    entry: MethodEntry
    method: Tunable
    given: tuple[str, ...] = ()
    demands: tuple[str, ...] = ()
    probe: History = field(default_factory=History, compare=False, repr=False)
    searched: tuple[str, ...] = ()
    scores: tuple[tuple[AnyMethod, Score], ...] = ()
    is_local_optimum: bool = False
    edges: tuple[str, ...] = ()
    note: str = ""
    eliminated: str = ""
    times: float = 1.0
    sample: CostSample | None = None
    at_end: int = 0
    value: float = math.nan
    rounds: int = 0
    is_tied: bool = True
    p_value: float = 1.0

    def with_search(self, search: Search, **more: Any) -> Candidate:
        """Return the candidate with the best settings and the scores of a search."""
        return replace(
            self, method=search.best, searched=tuple(search.axes), scores=tuple(search.scores()),
            is_local_optimum=search.is_local_optimum and not search.edges(), edges=search.edges(),
            **more,
        )  # fmt: skip

    @property
    def label(self) -> str:
        """The name as papers print it."""
        return self.entry.label

    @property
    def is_stateless(self) -> bool:
        """Whether clients keep nothing between rounds."""
        return self.entry.cls.client_state is None

    @property
    def has_codecs(self) -> bool:
        """Whether the method compresses its replies and its messages if it is asked to."""
        return {"up", "down"} <= set(self.entry.hyper_parameters)

    @property
    def hyper(self) -> str:
        """Its hyper-parameters with all digits, as `hyper` of a Flower app takes them."""
        return " ".join(f"{name}={text}" for name, text in build.hyper_words(self.method).items())

    @property
    def changes(self) -> dict[str, str]:
        """Its hyper-parameters that are not defaults, in short words."""
        given = ((each, getattr(self.method, each.name)) for each in fields(self.method))
        return {f.name: format_setting(f.name, value) for f, value in given if value != f.default}

    @property
    def settings(self) -> str:
        """Its hyper-parameters that are not defaults, in one line."""
        return " ".join(f"{name}={text}" for name, text in self.changes.items()) or "defaults"

    @property
    def is_reached(self) -> bool:
        """Whether the target was reached on at least half of the held-out seeds."""
        return self.sample is not None and math.isfinite(self.sample.median)

    def describe(self, unit: str) -> str:
        """Return the cost on the held-out seeds in one line."""
        return "not evaluated" if self.sample is None else self.sample.text(unit)


def list_candidates(
    problem: Problem,
    *,
    methods: Sequence[str | AnyMethod] | None = None,
    stateless: bool = False,
    codecs: bool = False,
    devices: Devices | None = None,
) -> tuple[list[Candidate], dict[str, str]]:
    """List the methods that run on a problem.

    Variants such as "fedavg-full" are left out, because the search includes what they fix.

    Args:
        problem: The problem.
        methods: Names of methods, or methods to start from. If None, all registered ones.
        stateless: Whether to leave out methods whose clients keep a state.
        codecs: Whether methods start with codecs if they take them.
        devices: The clients' devices.

    Returns:
        The candidates, and the reason for each method that is left out, by its name.

    Raises:
        InputError: If a name is unknown, or no method is left.
    """
    candidates: list[Candidate] = []
    left_out: dict[str, str] = {}
    for name, entry, method in _find_methods(methods):
        try:
            if stateless and entry.cls.client_state is not None:
                raise InputError("its clients keep a state")
            if method is None:
                method = default_method(entry, {}, problem)
                method = with_codecs(method) if codecs else method
            options = RunOptions(devices=devices)
            probe = simulate(problem, method, rounds=1, seed=0, record_every=0, options=options)
        except InputError as error:
            left_out[name] = str(error)
            continue
        demands = _demands(entry, problem)
        candidates.append(Candidate(name, entry, method, demands=demands, probe=probe))
    if not candidates:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise InputError(f"no method can run on this problem: {reasons}")
    return candidates, left_out


def _find_methods(
    methods: Sequence[str | AnyMethod] | None,
) -> list[tuple[str, MethodEntry, AnyMethod | None]]:
    """Look up the methods. The last item is the method if it was given with its settings."""
    if methods is None:
        return [(name, entry, None) for name, entry in METHODS.items() if not entry.variant_of]
    if isinstance(methods, str) or not isinstance(methods, Sequence):
        raise InputError(f"methods must be a list of methods, not {short_repr(methods)}")
    found: dict[str, tuple[str, MethodEntry, AnyMethod | None]] = {}
    for method in methods:
        if isinstance(method, str):
            name, entry, given = method.strip(), build.find_method(method.strip()), None
        elif hasattr(type(method), "effective_step"):
            (name, entry), given = find_entry(method), method
        else:
            raise InputError(f"{short_repr(method)} is neither a method nor the name of one")
        if name in found:
            raise InputError(f"method {name!r} is named twice; name it once")
        found[name] = (name, entry, given)
    return list(found.values())


def find_entry(method: AnyMethod) -> tuple[str, MethodEntry]:
    """Return the name and the entry of a method's class, which may not be registered."""
    cls = type(method)
    known = (n for n, entry in METHODS.items() if entry.cls is cls and not entry.preset)
    name = next(known, str(method.name))
    return name, METHODS.get(name) or MethodEntry(cls, cls.name)


def _demands(entry: MethodEntry, problem: Problem) -> tuple[str, ...]:
    found = []
    if entry.cls.client_state is not None:
        found.append("clients keep a state")
    if "every round" in entry.assumes:
        found.append("all clients in every round")
    if "convex" in entry.assumes and not is_convex(problem):
        needs = "strong convexity" if "strongly convex" in entry.assumes else "convexity"
        found.append(f"heuristic here, because it assumes {needs}")
    return tuple(found)
