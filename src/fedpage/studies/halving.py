"""Compare methods by successive halving on paired seeds.

Every method first runs with a few steps on one seed, with a cap on the cost that grows until some
method reaches the target (the *screening*). The better methods go on to three stages of search,
with fewer methods and more seeds in each. A run ends when it has cost three times as much as the
best method needs. The methods of the last stage are searched to a local optimum.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median, median_high
from typing import Any, NamedTuple

from fedpage.codecs import as_codec
from fedpage.core.errors import InputError
from fedpage.runs import build
from fedpage.studies.candidates import Candidate
from fedpage.studies.search import Search
from fedpage.studies.space import Axis, Point, search_space
from fedpage.studies.trials import SearchEnded, Trial, Trials

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


class _Stage(NamedTuple):
    """A stage of the search."""

    name: str
    methods: int  # the most that enter it
    seeds: int | None  # the most of its comparisons; None: all
    sweeps: int | None  # how often a search goes over all axes; None: until nothing is better
    until: float  # the share of the time budget at which it must end


_REACHED_UNTIL, _DEFAULTS_UNTIL = 0.8, 0.9
"""The shares of the time budget at which some method must have reached the target, and the
comparison of the last methods with their defaults must end."""
_SCREENING = _Stage("screening", 0, 1, 0, 0.3)
_STAGES = (
    _Stage("first stage", 12, 2, 1, 0.5),
    _Stage("second stage", 6, 3, 2, 0.65),
    _Stage("last stage", FINAL, None, None, 0.85),
)


class Contender(Search):
    """A candidate with its search, which begins with the points of the screening.

    Attributes:
        candidate: The method.
        screening: The settings that run on the first seed at first.
        cost: The median cost of its best settings in the last comparison.
        value: The median of their best values of the target's column.
    """

    def __init__(self, trials: Trials, candidate: Candidate, codecs: bool) -> None:
        axes = search_space(candidate.method, trials.problem, codecs=codecs)
        design = _first_design(axes)
        super().__init__(trials, candidate.method, axes, seeds=1, design=design)
        self._tried = {p: 1 for p in self.design if self.method_at(p) is not None}
        self.screening = [self.method_at(point) for point in self._tried]
        self.candidate = candidate
        self._worst = -math.inf if trials.higher else math.inf
        self.cost, self.value = math.inf, self._worst

    def screened(self) -> list[Trial]:
        """Return the trials of the screening."""
        return [trial for m in self.screening for trial in self.trials.find(m, 1)]

    def prefer_defaults(self) -> None:
        """Return to the method's defaults, codecs aside, unless tuning saves enough."""
        start = self.design[0]
        own = self.method_at(start)
        if own is None or self.incumbent in (None, start):
            return
        if build.hyper_words(own).keys() <= {"up", "down"}:
            (ratio,) = self._compare([start], self.incumbent, self._level).values()
            if ratio < -math.log(1 - DEFAULTS):
                self._set_incumbent(start)

    def measure(self) -> None:
        """Compute the medians of the best settings over the seeds that they have run on.

        A run that cost more than it may has no best value: its first record may be far beyond.
        """
        trials = self.trials.find(self.best, self.seeds)
        if trials:
            most = _OVERSHOOT * self.trials.limit
            self.cost = median_high([t.cost for t in trials])
            self.value = median(t.best if t.spent <= most else self._worst for t in trials)

    def result(self, **more: Any) -> Candidate:
        """Return the candidate with the settings that were found."""
        behind = f"searched in part, being {LIMIT:g} times behind"
        note = "search cut" if math.isfinite(self.cost) else behind
        return self.candidate.with_search(self, note="" if self.is_local_optimum else note, **more)


def _first_design(axes: Mapping[str, Axis]) -> list[Point]:
    """Return the start, steps a factor of 4 away, and a cast if codecs are searched."""
    start = {name: axis.start for name, axis in axes.items()}
    points = [start]
    if "step" in axes:
        points += [start | {"step": start["step"] + by} for by in (-4, 4)]
    cast = as_codec("float16")
    if "up" in axes and cast in axes["up"].values:  # it may round what `up` leaves unchanged
        points.append(start | {"up": axes["up"].values.index(cast)})
    return list(dict.fromkeys(tuple(point.values()) for point in points))


class Halving:
    """Reduce the candidates to the best few, and search their settings.

    Args:
        trials: Runs and counts the trials; in one process at first. Its progress is called with
            the seconds that have passed, those of the budget, and a note.
        candidates: The methods.
        seeds: Seeds of the last stage.
        codecs: Whether codecs are searched.
        end: When the evaluation must end, as `time.monotonic` counts.

    Attributes:
        contenders: The methods that are left, the best first.
        eliminated: The others, the last ones first.
        cut: The stages that the time budget cut.
    """

    def __init__(
        self, trials: Trials, candidates: Sequence[Candidate], seeds: int, codecs: bool, end: float
    ) -> None:
        self._trials, self._seeds = trials, seeds
        self._began = time.monotonic()
        self._budget = end - self._began
        self._jobs, trials.jobs = trials.jobs, 1
        self._progress, trials.progress = trials.progress, self._report
        self.contenders = [Contender(trials, candidate, codecs) for candidate in candidates]
        self.eliminated: list[Candidate] = []
        self.cut: list[str] = []

    def run(self) -> None:
        """Run the stages.

        Raises:
            InputError: If no method reached the target.
        """
        self._run(_SCREENING)
        self._check_reached()
        self._eliminate_equal()
        for before, stage in itertools.pairwise((_SCREENING, *_STAGES)):
            self._eliminate_last(stage.methods, before.name)
            self._run(stage)
        self.begin("last stage", _DEFAULTS_UNTIL)
        with contextlib.suppress(SearchEnded):
            for contender in self.contenders:
                contender.prefer_defaults()
        self._sort()

    def _run(self, stage: _Stage) -> None:
        """Search the settings of every method that is left, one sweep of each after the other."""
        try:
            if stage is _SCREENING:
                self._screen()
            self.begin(stage.name, stage.until)
            self._use_seeds(min(self._seeds, stage.seeds or self._seeds))
            left = [c for c in self.contenders if stage.sweeps is not None or math.isfinite(c.cost)]
            sweeps = 0
            while left and sweeps != stage.sweeps:
                left = [each for each in left if each.improve()]
                sweeps += 1
        except SearchEnded:
            self.cut.append(f"the {stage.name}")
        self._sort()

    def begin(self, stage: str, until: float) -> None:
        """Begin a stage, which must end when this share of the time budget has passed."""
        self._stage = stage
        self._trials.deadline = self._began + until * self._budget

    def _report(self, done: int, expected: int | None, note: str) -> None:
        """Report the time in place of the number of runs."""
        if self._progress is not None:
            passed = min(self._budget, time.monotonic() - self._began)
            self._progress(int(passed), int(self._budget), f"{self._stage}: {note}")

    def _screen(self) -> None:
        """Run every method with a few steps on one seed, under a limit that grows.

        It grows until some method reaches the target. If that takes few records, the methods run
        again with more records.
        """
        trials = self._trials
        probes = (each.candidate.probe for each in self.contenders)
        trials.limit = _FIRST_ROUNDS * min(float(trials.question.costs(run)[-1]) for run in probes)
        self.begin(_SCREENING.name, _REACHED_UNTIL)
        try:
            while True:
                self._try(slice(1))
                if not self._reached():
                    self._try(slice(None))
                if not self._reached() and any(trial.capped for trial in self._screened()):
                    trials.limit *= _GROWTH
                elif not self._record_more_often():
                    break
        finally:
            trials.limit = LIMIT * min((t.cost for t in self._screened()), default=math.inf)
        self.begin(_SCREENING.name, _SCREENING.until)
        self._try(slice(None))

    def _record_more_often(self) -> bool:
        """Record more often if the first to reach the target has few records."""
        question = self._trials.question
        first = min(self._reached(), key=lambda trial: (trial.cost, trial.rounds), default=None)
        every = question.record_every if first is None else max(1, first.rounds // _RECORDS)
        is_more = every < question.record_every
        if is_more:
            self._trials.ask(replace(question, record_every=every))
        return is_more

    def _screened(self) -> list[Trial]:
        return [trial for each in self.contenders for trial in each.screened()]

    def _reached(self) -> list[Trial]:
        return [trial for trial in self._screened() if math.isfinite(trial.cost)]

    def _try(self, part: slice) -> None:
        """Run a part of every method's settings of the screening on the first seed."""
        trials, began, done = self._trials, time.monotonic(), self._trials.done
        methods = [method for each in self.contenders for method in each.screening[part]]
        try:
            trials.run([(method, 0, math.inf) for method in methods])
        finally:
            if time.monotonic() - began >= _LONG_RUN * max(1, trials.done - done):
                trials.jobs = self._jobs  # starting processes takes seconds

    def _use_seeds(self, seeds: int) -> None:
        """Run every method's best settings on more seeds, with a limit that the best reaches."""
        while True:
            for contender in self.contenders:
                contender.use_seeds(seeds)
                contender.measure()
            least, limit = min(c.cost for c in self.contenders), self._trials.limit
            self._trials.limit = min(LIMIT * least, _GROWTH * limit)
            if math.isfinite(least) or math.isinf(limit):
                return

    def _sort(self) -> None:
        for contender in self.contenders:
            contender.measure()
        sign = -1.0 if self._trials.higher else 1.0
        self.contenders.sort(key=lambda each: (each.cost, sign * each.value))

    def _check_reached(self) -> None:
        """Refuse to go on if no method has reached the target."""
        first, question = self.contenders[0], self._trials.question
        if math.isfinite(first.cost):
            return
        more = "allow more time with --budget" if self.cut else "allow more rounds"
        name, value = first.candidate.label, first.value
        best = f"; the best was {value:.4g}, by {name}" if math.isfinite(value) else ""
        title = question.target.title
        raise InputError(f"no method reached {title}{best}; {more}, or choose an easier target")

    def _eliminate_equal(self) -> None:
        """Eliminate methods that ran the same runs as another: they are the same method here."""
        seen: dict[tuple[tuple[float, float, int], ...], Contender] = {}
        for contender in sorted(self.contenders, key=lambda each: -len(each.axes)):
            ran = sorted((t.spent, t.best, t.rounds) for t in contender.screened())
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
        self.eliminated.insert(0, contender.result(eliminated=reason, times=times))
