"""Compare methods by successive halving on paired seeds.

Every method first runs with a few steps on one seed, with a cap on the cost that grows until some
method reaches the target (the *screening*). The better methods go on to three stages of search,
with fewer methods and more seeds in each. A run ends when it has cost three times as much as the
best method needs. The methods of the last stage are searched to a local optimum.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpage.codecs import as_codec
from fedpage.core.capabilities import is_convex
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import AnyMethod, Problem
from fedpage.engine.devices import Devices
from fedpage.engine.simulate import simulate
from fedpage.methods import METHODS, MethodEntry
from fedpage.methods.fair import default_method
from fedpage.runs import build
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions
from fedpage.studies.search import Search
from fedpage.studies.space import Axis, Point, Tunable, search_space, with_codecs
from fedpage.studies.trials import Progress, SearchEnded, Trial, Trials

LIMIT = 3.0
"""A run ends when it has cost this many times what the best method needs."""
_OVERSHOOT = 2.0
"""How many times the limit a run may cost at its last record, for its best value to count."""
_FIRST_ROUNDS = 30
"""Rounds of the method with the cheapest rounds that the first cap of the screening pays for."""
_GROWTH = 4.0
"""The ratio of successive caps of the screening."""
_RECORDS = 10
"""The least number of records until the best method reaches the target, if rounds allow it."""
_LONG_RUN = 0.2
"""The mean seconds of a run from which several processes pay."""
DEFAULTS = 0.1
"""The least share of the cost that tuning must save, or a method keeps its defaults."""
FINAL = 4
"""The most methods of the last stage, beside the best one without client states."""


@dataclass(frozen=True)
class Candidate:
    """A method of a tuning.

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
    notes: tuple[str, ...] = ()
    probe: History = field(default_factory=History, compare=False, repr=False)

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
        if stateless and entry.cls.client_state is not None:
            left_out[name] = "its clients keep a state"
            continue
        try:
            if method is None:
                method = default_method(entry, {}, problem)
                method = with_codecs(method) if codecs else method
            options = RunOptions(devices=devices)
            probe = simulate(problem, method, rounds=1, seed=0, record_every=0, options=options)
        except InputError as error:
            left_out[name] = str(error)
            continue
        candidates.append(Candidate(name, entry, method, _notes(entry, problem), probe))
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
    found: list[tuple[str, MethodEntry, AnyMethod | None]] = []
    for method in methods:
        if isinstance(method, str):
            found.append((method.strip(), build.find_method(method.strip()), None))
        elif hasattr(type(method), "effective_step"):
            found.append((*find_entry(method), method))
        else:
            raise InputError(f"{short_repr(method)} is neither a method nor the name of one")
    names = [name for name, _, _ in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"method {twice[0]!r} is named twice; name it once")
    return found


def find_entry(method: AnyMethod) -> tuple[str, MethodEntry]:
    """Return the name and the entry of a method's class, which may not be registered."""
    cls = type(method)
    known = (n for n, entry in METHODS.items() if entry.cls is cls and not entry.preset)
    name = next(known, str(method.name))
    return name, METHODS.get(name) or MethodEntry(cls, cls.name)


def _notes(entry: MethodEntry, problem: Problem) -> tuple[str, ...]:
    notes = []
    if entry.cls.client_state is not None:
        notes.append("clients keep a state")
    if "every round" in entry.assumes:
        notes.append("all clients in every round")
    convex = is_convex(problem)
    needs = "strong convexity" if "strongly convex" in entry.assumes else "convexity"
    if "convex" in entry.assumes and not convex:
        notes.append(f"heuristic here, because it assumes {needs}")
    return tuple(notes)


# --- the stages -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Eliminated:
    """A method that was eliminated before the last stage.

    Attributes:
        candidate: The method.
        reason: Why it was eliminated.
        times: Its cost over the best one's at that time, or inf if it had not reached the target.
        best: The best value of the target's column.
    """

    candidate: Candidate
    reason: str
    times: float
    best: float


@dataclass(frozen=True)
class _Stage:
    """A stage after the screening.

    Attributes:
        name: Its name.
        methods: The most methods that enter it.
        seeds: The most seeds of its comparisons, or None for all.
        sweeps: How often each search goes over all axes, or None until there is nothing better.
        until: The share of the time budget at which it must end.
    """

    name: str
    methods: int
    seeds: int | None
    sweeps: int | None
    until: float


_REACHED_UNTIL, _SCREENED_UNTIL, _DEFAULTS_UNTIL = 0.8, 0.3, 0.9
"""The shares of the time budget at which some method must have reached the target, the screening
must end, and the comparison of the last methods with their defaults must end."""
_STAGES = (
    _Stage("first stage", 12, 2, 1, 0.5),
    _Stage("second stage", 6, 3, 2, 0.65),
    _Stage("last stage", FINAL, None, None, 0.85),
)


class Contender:
    """A candidate with its search.

    Attributes:
        candidate: The method.
        search: Its search.
        cost: The median cost of its best settings in the last comparison.
        best: The median of their best values of the target's column.
    """

    def __init__(self, trials: Trials, candidate: Candidate, codecs: bool) -> None:
        axes = search_space(candidate.method, trials.problem, codecs=codecs)
        self.candidate = candidate
        self.design = _first_design(axes)
        self.search = Search(trials, candidate.method, axes, seeds=1, design=self.design)
        self._trials = trials
        self.cost, self.best = math.inf, -math.inf if trials.higher else math.inf

    def screened(self) -> dict[Point, Trial]:
        """Return the settings of the screening that have run on the first seed."""
        found = {p: self._known(self.search.candidate(p), 0) for p in self.design}
        return {point: trial for point, trial in found.items() if trial is not None}

    def _known(self, method: AnyMethod | None, seed: int) -> Trial | None:
        return None if method is None else self._trials.find(method, seed)

    @property
    def method(self) -> Tunable:
        """Its best settings so far."""
        if self.search.incumbent is not None:
            return self.search.best
        screened = self.screened()
        best = min(screened, key=lambda p: self.search.rank(p, screened[p]), default=None)
        return self.candidate.method if best is None else self.search.candidate(best)

    def prefer_defaults(self) -> None:
        """Return to the method's defaults, codecs aside, unless tuning saves enough."""
        start = self.design[0]
        own = self.search.candidate(start)
        if own is None or self.search.incumbent in (None, start):
            return
        if build.hyper_words(own).keys() <= {"up", "down"}:
            self.search.prefer(start, DEFAULTS)

    def measure(self) -> None:
        """Compute the medians of the best settings over the seeds that they have run on."""
        found = [self._known(self.method, seed) for seed in range(self.search.seeds)]
        trials = [trial for trial in found if trial is not None]
        if trials:
            self.cost = float(np.quantile([t.cost for t in trials], 0.5, method="higher"))
            self.best = float(np.median([self._best(trial) for trial in trials]))

    def _best(self, trial: Trial) -> float:
        """Return the best value of a run, or the worst possible if it cost more than it may.

        The first record of a method with expensive rounds may be there.
        """
        if trial.spent <= _OVERSHOOT * self._trials.question.limit:
            return trial.best
        return -math.inf if self._trials.higher else math.inf

    @property
    def note(self) -> str:
        """The reason why better settings may exist, or ""."""
        if self.search.is_local_optimum:
            return ""
        if math.isfinite(self.cost):
            return "its settings may be improved: the search was cut"
        return f"its settings were searched in part, being {LIMIT:g} times behind"


def _first_design(axes: Mapping[str, Axis]) -> list[Point]:
    """Return the start, steps a factor of 4 away, and a cast if codecs are searched."""
    start = tuple(axis.start for axis in axes.values())
    moves: list[tuple[str, int]] = []
    if "step" in axes:
        moves += [("step", axes["step"].start - 4), ("step", axes["step"].start + 4)]
    cast = as_codec("float16")
    if "up" in axes and cast in axes["up"].values:  # it may round what `up` leaves unchanged
        moves += [("up", axes["up"].values.index(cast))]
    names = list(axes)
    found = [start]
    for name, index in moves:
        number = names.index(name)
        found.append((*start[:number], index, *start[number + 1 :]))
    return list(dict.fromkeys(found))


class Halving:
    """Reduce the candidates to the best few, and search their settings.

    Args:
        trials: Runs and counts the trials; in one process at first.
        candidates: The methods.
        seeds: Seeds of the last stage.
        codecs: Whether codecs are searched.
        end: When the evaluation must end, as `time.monotonic` counts.
        progress: Called with the seconds that have passed, those of the budget, and a note.

    Attributes:
        contenders: The methods that are left, the best first.
        eliminated: The others, the last ones first.
        cut: The stages that the time budget cut.
    """

    def __init__(
        self,
        trials: Trials,
        candidates: Sequence[Candidate],
        seeds: int,
        codecs: bool,
        end: float,
        progress: Progress | None,
    ) -> None:
        self._trials, self._seeds, self._progress = trials, seeds, progress
        self._begin, self._end = time.monotonic(), end
        self._jobs, trials.jobs = trials.jobs, 1
        self.contenders = [Contender(trials, candidate, codecs) for candidate in candidates]
        self.eliminated: list[Eliminated] = []
        self.cut: list[str] = []

    def run(self) -> None:
        """Run the stages.

        Raises:
            InputError: If no method reached the target.
        """
        self._stage("screening", self._screen)
        self._check_reached()
        self._eliminate_equal()
        before = "screening"
        for stage in _STAGES:
            self._eliminate_last(stage.methods, before)
            self.set_deadline(stage.name, stage.until)
            self._stage(stage.name, lambda stage=stage: self._search(stage))  # type: ignore[misc]
            before = stage.name
        self.set_deadline("last stage", _DEFAULTS_UNTIL)
        with contextlib.suppress(SearchEnded):
            for contender in self.contenders:
                contender.prefer_defaults()
        self._sort()

    def _stage(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except SearchEnded:
            self.cut.append(f"the {name}")
        self._sort()

    def set_deadline(self, name: str, share: float) -> None:
        """Set the deadline of a stage, and name it in the progress."""
        total = self._end - self._begin
        self._trials.deadline = self._begin + share * total
        if self._progress is not None:
            notify = self._progress

            def report(done: int, expected: int | None, note: str) -> None:
                passed = min(total, time.monotonic() - self._begin)
                notify(int(passed), int(total), f"{name}: {note}")

            self._trials.progress = report

    def set_limit(self, limit: float) -> None:
        """Set the most that a run may cost from now on."""
        self._trials.question = replace(self._trials.question, limit=limit)

    def _screen(self) -> None:
        """Run every method with a few steps on one seed, until some method reaches the target."""
        self.set_deadline("screening", _REACHED_UNTIL)
        try:
            least = self._find_least()
        except SearchEnded:
            self._record_more_often()
            least = min((trial.cost for trial in self._screened()), default=math.inf)
            self.set_limit(LIMIT * least)
            raise
        self.set_deadline("screening", _SCREENED_UNTIL)
        self.set_limit(LIMIT * least)
        self._try(slice(None))
        for contender in self.contenders:
            contender.search.start()

    def _find_least(self) -> float:
        """Raise the limit until some method reaches the target, and return the least cost.

        If it is reached after few records, the methods run again with more records.
        """
        question = self._trials.question
        probes = (each.candidate.probe for each in self.contenders)
        self.set_limit(_FIRST_ROUNDS * min(float(question.costs(run)[-1]) for run in probes))
        while True:
            began, done = time.monotonic(), self._trials.done
            self._try(slice(1))
            if not any(math.isfinite(trial.cost) for trial in self._screened()):
                self._try(slice(None))
            if time.monotonic() - began >= _LONG_RUN * (self._trials.done - done):
                self._trials.jobs = self._jobs  # starting processes takes seconds
            ran = self._screened()
            least = min(trial.cost for trial in ran)
            if not math.isfinite(least) and any(trial.capped for trial in ran):
                self.set_limit(_GROWTH * self._trials.question.limit)
            elif not self._record_more_often():
                return least

    def _record_more_often(self) -> bool:
        """Record more often if the first to reach the target has few records."""
        question = self._trials.question
        reached = [trial for trial in self._screened() if math.isfinite(trial.cost)]
        first = min(reached, key=lambda trial: (trial.cost, trial.rounds), default=None)
        every = question.record_every if first is None else max(1, first.rounds // _RECORDS)
        is_more = every < question.record_every
        if is_more:
            self._trials.ask(replace(question, record_every=every))
        return is_more

    def _screened(self) -> list[Trial]:
        return [trial for each in self.contenders for trial in each.screened().values()]

    def _try(self, part: slice) -> None:
        """Run a part of every method's first design on the first seed."""
        methods = [each.search.candidate(p) for each in self.contenders for p in each.design[part]]
        self._trials.run([(method, 0, math.inf) for method in methods if method is not None])

    def _search(self, stage: _Stage) -> None:
        """Search the settings of every method that is left, one sweep of each after the other."""
        self._use_seeds(min(self._seeds, stage.seeds or self._seeds))
        searches = [c.search for c in self.contenders if stage.sweeps or math.isfinite(c.cost)]
        sweeps = 0
        while (stage.sweeps is None or sweeps < stage.sweeps) and searches:
            searches = [search for search in searches if search.improve()]
            sweeps += 1

    def _use_seeds(self, seeds: int) -> None:
        """Run every method's best settings on more seeds, with a limit that the best reaches."""
        while True:
            for contender in self.contenders:
                contender.search.use_seeds(seeds)
                contender.measure()
            least = min(contender.cost for contender in self.contenders)
            if math.isfinite(least):
                self.set_limit(LIMIT * least)
                return
            if not math.isfinite(self._trials.question.limit):
                return
            self.set_limit(_GROWTH * self._trials.question.limit)

    def _sort(self) -> None:
        for contender in self.contenders:
            contender.measure()
        sign = -1.0 if self._trials.higher else 1.0
        self.contenders.sort(key=lambda each: (each.cost, sign * each.best))

    def _check_reached(self) -> None:
        """Refuse to go on if no method has reached the target."""
        first, question = self.contenders[0], self._trials.question
        if math.isfinite(first.cost):
            return
        more = "allow more time with --budget" if self.cut else "allow more rounds"
        if not math.isfinite(first.best):
            raise InputError(f"no run came near {question.target.title} in the time; {more}")
        raise InputError(
            f"no method reached {question.target.title}; the best was {first.best:.4g}, by "
            f"{first.candidate.label}; {more}, or choose an easier target"
        )

    def _eliminate_equal(self) -> None:
        """Eliminate methods that ran the same runs as another: they are the same method here."""
        seen: dict[tuple[tuple[float, float, int], ...], Contender] = {}
        for contender in sorted(self.contenders, key=lambda each: -len(each.search.axes)):
            ran = sorted((t.spent, t.best, t.rounds) for t in contender.screened().values())
            other = seen.setdefault(tuple(ran), contender)
            if other is not contender and len(ran) > 1:
                self._eliminate(contender, f"the same as {other.candidate.label} here")

    def _eliminate_last(self, methods: int, before: str) -> None:
        """Eliminate the last methods, so that this many are left.

        The best method without client states stays, for users who cannot keep them.
        """
        stateless = [each for each in self.contenders if each.candidate.is_stateless]
        for contender in self.contenders[: methods - 1 : -1]:
            if contender in stateless[:1]:
                continue
            if not contender.screened():
                reason = "the time budget ended before they ran"
            elif math.isfinite(contender.cost):
                reason = f"eliminated after the {before}"
            else:
                reason = f"not reached within {LIMIT:g} times the least cost"
            self._eliminate(contender, reason)

    def _eliminate(self, contender: Contender, reason: str) -> None:
        times = contender.cost / self.contenders[0].cost
        self.contenders.remove(contender)
        one = Eliminated(contender.candidate, reason, times, contender.best)
        self.eliminated.insert(0, one)
