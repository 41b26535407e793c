"""Race methods to a target.

The race has four rounds. In the *screen* every method runs with a few steps on one seed, with a cap
on the cost that grows until some method reaches the target. The better methods go on to three
rounds of search, with fewer methods and more seeds in each. A run ends when it has cost three times
what the best method needs. The settings of the finalists are searched until worse neighbours
enclose them, and the finalists are judged on fresh seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedpage.codecs import as_codec
from fedpage.core.errors import InputError
from fedpage.runs import build
from fedpage.studies.choice import Eliminated, Finalist
from fedpage.studies.entrants import Entrant
from fedpage.studies.question import FRESH_SEED, Question, SearchEnded, Trials
from fedpage.studies.search import Search
from fedpage.studies.space import Axis, Candidate, Point, search_space
from fedpage.studies.statistics import CostSample, ranking
from fedpage.studies.trials import Trial

LIMIT = 3.0
"""A run ends when it has cost this many times what the best method needs."""
OVERSHOOT = 2.0
"""How many times the limit a run may cost at its last record, for its best value to count."""
JUDGED_LIMIT = 10.0
"""The same for runs on fresh seeds."""
FIRST_ROUNDS = 30
"""Rounds of the method with the cheapest rounds that the first cap of the screen pays for."""
RECORDS = 10
"""The least number of records until the best method reaches the target, if rounds allow it."""
DEFAULTS = 0.1
"""The least share of the cost that tuning must save, or a method keeps its defaults."""
LEAST_FRESH = 6
"""Fresh seeds that are judged whatever time is left.

With fewer seeds an interval has less than 95 %, and five finalists could never be told apart.
"""
_LONG_RUN = 0.2
"""The mean seconds of a run from which several processes pay."""
_GROWTH = 4.0
"""The ratio of neighbouring caps of the screen."""
_COARSE = 4
"""Places on the axis of the step between the runs of the screen: a factor of 4."""
_UP = ("none", "float16", "float32", "natural", "randk:0.1", "topk:0.1")
_DOWN = ("none", "float16", "float32")
"""Codecs to search; each method takes some of them."""
_CAST = as_codec("float16")

Notify = Callable[[int, int, str], None]
"""Called with the seconds that have passed, those of the budget, and a note."""


@dataclass(frozen=True)
class Stage:
    """A round of the race after the screen.

    Attributes:
        name: Its name.
        methods: The most methods that enter it.
        seeds: The most seeds of its comparisons; None: all.
        moves: How often each method looks for better neighbours; None: until there are none.
        until: The share of the time budget at which it must end.
    """

    name: str
    methods: int
    seeds: int | None
    moves: int | None
    until: float


REACHED_UNTIL = 0.8
"""The share of the time budget at which some method must have reached the target."""
SCREEN_UNTIL = 0.3
"""The share of the time budget at which the screen must end."""
DEFAULTS_UNTIL = 0.9
"""The share at which the comparison of the finalists with their defaults must end."""
STAGES = (
    Stage("first round", 12, 2, 1, 0.5),
    Stage("second round", 6, 3, 2, 0.65),
    Stage("final", 4, None, None, 0.85),
)
"""The rounds of the race after the screen."""


class Racer:
    """An entrant with its search.

    Attributes:
        entrant: The method.
        search: Its search.
        screened: The settings of the screen, and how they ran on the first seed.
        cost: The median cost of its best settings in the last comparison.
        best: The median of their best values of the target's column.
    """

    def __init__(self, trials: Trials, entrant: Entrant, codecs: bool) -> None:
        axes = search_space(entrant.method, trials.problem)
        axes |= _codec_axes(entrant) if codecs else {}
        start = tuple(axis.start for axis in axes.values())
        self.batches = [[start]]
        if "step" in axes:
            number = list(axes).index("step")
            near = (start[number] - _COARSE, start[number] + _COARSE)
            self.batches.append([(*start[:number], at, *start[number + 1 :]) for at in near])
        if "up" in axes and _CAST in axes["up"].values:  # it may round what `up` leaves as it is
            number, at = list(axes).index("up"), axes["up"].values.index(_CAST)
            other = (*start[:number], at, *start[number + 1 :])
            self.batches[-1] += [other] if other != start else []
        design = [point for batch in self.batches for point in batch]
        self.entrant = entrant
        self.search = Search(trials, entrant.method, axes, seeds=1, design=design)
        self.screened: dict[Point, Trial] = {}
        self.cost, self.best = math.inf, -math.inf if trials.higher else math.inf

    @property
    def method(self) -> Candidate:
        """Its best settings so far."""
        if self.search.leader is not None:
            return self.search.best
        return self.search.candidate(self._first()) if self.screened else self.entrant.method

    def _first(self) -> Point:
        """Return the best settings of the screen."""
        return min(self.screened, key=lambda point: self.search.rank(point, self.screened[point]))

    def next_step(self) -> Point | None:
        """Return the settings with a step beyond the best of the screen, if it is at an end."""
        return self.search.beyond(self._first(), list(self.screened)) if self.screened else None

    def prefer_defaults(self) -> None:
        """Return to the defaults of the method, codecs aside, unless tuning saves enough."""
        start = self.batches[0][0]
        own = self.search.candidate(start)
        if own is None or self.search.leader in (None, start):
            return
        if build.hyper_words(own).keys() <= {"up", "down"}:
            self.search.prefer(start, DEFAULTS)

    def measure(self) -> None:
        """Compute the medians of the best settings over the seeds that they have run on."""
        every = (
            self.search.trials.known(self.method, s, math.inf) for s in range(self.search.seeds)
        )
        trials = [trial for trial in every if trial is not None]
        if not trials and self.screened:  # with a lower cap than the present one
            trials = [self.screened[self._first()]]
        if trials:
            self.cost = float(np.quantile([t.cost for t in trials], 0.5, method="higher"))
            self.best = float(np.median([self._best(trial) for trial in trials]))

    def _best(self, trial: Trial) -> float:
        """Return the best value of a run; the worst possible if it cost much more than it may.

        Methods with expensive rounds are at their first record by then.
        """
        trials = self.search.trials
        if trial.spent <= OVERSHOOT * trials.question.limit:
            return trial.best
        return -math.inf if trials.higher else math.inf


def _codec_axes(entrant: Entrant) -> dict[str, Axis]:
    """Return the codecs that a method takes, beside those it starts from."""
    found = {}
    for name, texts in (("up", _UP), ("down", _DOWN)):
        if name not in entrant.entry.hyper_parameters:
            continue
        values = [getattr(entrant.method, name)]
        for text in texts:
            codec = as_codec(text)
            try:
                replace(entrant.method, **{name: codec})
            except InputError:
                continue
            values += [codec] if codec not in values else []
        if len(values) > 1:
            found[name] = Axis(name, tuple(values), ordered=False)
    return found


class Race:
    """A race.

    Args:
        trials: Runs and counts the trials; in one process at first.
        entrants: The methods.
        seeds: Seeds of the final.
        codecs: Whether compression is searched.
        end: When the race must end, as `time.monotonic` counts.
        progress: Called after each run.

    Attributes:
        eliminated: The methods that have left, the last ones first.
        fresh: The fresh seeds on which the finalists were judged.
    """

    def __init__(
        self,
        trials: Trials,
        entrants: Sequence[Entrant],
        seeds: int,
        codecs: bool,
        end: float,
        progress: Notify | None,
    ) -> None:
        self._trials, self._seeds, self._progress = trials, seeds, progress
        self._begin, self._end = time.monotonic(), end
        self._jobs, trials.jobs = trials.jobs, 1
        self._racers = [Racer(trials, entrant, codecs) for entrant in entrants]
        self._cut: list[str] = []
        self.eliminated: list[Eliminated] = []
        self.fresh: list[int] = []

    @property
    def cut(self) -> str:
        """What the time budget cut, in a sentence, or ""."""
        if not self._cut:
            return ""
        words = " and ".join(", ".join(self._cut).rsplit(", ", 1))
        return f"The time budget cut {words}; more time may change the result."

    # --- the rounds -------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the rounds of the race.

        Raises:
            InputError: No method reached the target.
        """
        try:
            self._screen()
        except SearchEnded:
            self._cut.append("the screen")
            if (every := self._record_every()) < self.question.record_every:
                self._trials.ask(replace(self.question, record_every=every))
            self._set_limit(LIMIT * min((t.cost for t in self._screened()), default=math.inf))
        self._sort()
        self._check_reached()
        self._drop_equal()
        before = "screen"
        for stage in STAGES:
            self._drop_last(stage.methods, before)
            self._begin_round(stage.name, stage.until)
            try:
                self._search(stage)
            except SearchEnded:
                self._cut.append(f"the {stage.name}")
            self._sort()
            before = stage.name
        self._begin_round("final", DEFAULTS_UNTIL)
        try:
            for racer in self._racers:
                racer.prefer_defaults()
        except SearchEnded:
            pass
        self._sort()

    @property
    def question(self) -> Question:
        """What was asked, with the limit of the runs on fresh seeds."""
        return self._trials.question

    def _begin_round(self, name: str, share: float) -> None:
        """Set the deadline of a round, and name it in the progress."""
        total = self._end - self._begin
        self._trials.deadline = self._begin + share * total
        if self._progress is None:
            return
        notify = self._progress

        def tell(done: int, expected: int | None, note: str) -> None:
            passed = min(total, time.monotonic() - self._begin)
            notify(int(passed), int(total), f"{name}: {note}")

        self._trials.progress = tell

    def _screen(self) -> None:
        """Run every method with a few steps on one seed, until some method reaches the target."""
        self._begin_round("screen", REACHED_UNTIL)
        cap = LIMIT * self._find_least()
        self._begin_round("screen", SCREEN_UNTIL)
        self._set_limit(cap)
        for batch in range(2):  # so that a cut leaves every method with equally many steps
            self._try_batch(batch, cap)
        while more := [(r, point) for r in self._racers if (point := r.next_step()) is not None]:
            self._try(more, cap)

    def _find_least(self) -> float:
        """Raise the cap until some method reaches the target, and return the least cost.

        Methods that reach it after few records run again with more records.
        """
        question = self._trials.question
        cap = FIRST_ROUNDS * min(racer.entrant.round_cost(question) for racer in self._racers)
        while True:
            began, done = time.monotonic(), self._trials.done
            self._try_batch(0, cap)
            if not math.isfinite(min(trial.cost for trial in self._screened())):
                self._try_batch(1, cap)
            self._choose_jobs(time.monotonic() - began, self._trials.done - done)
            ran = self._screened()
            first = min(ran, key=lambda trial: (trial.cost, trial.rounds))
            if not math.isfinite(first.cost) and any(trial.capped for trial in ran):
                cap *= _GROWTH
                continue
            if (every := self._record_every()) >= self._trials.question.record_every:
                return first.cost
            self._trials.ask(replace(question, record_every=every))
            for racer in self._racers:
                racer.screened.clear()

    def _record_every(self) -> int:
        """Return how often to record, so that the first to reach the target has enough records."""
        reached = [trial for trial in self._screened() if math.isfinite(trial.cost)]
        first = min(reached, key=lambda trial: (trial.cost, trial.rounds), default=None)
        every = self._trials.question.record_every
        return every if first is None else min(every, max(1, first.rounds // RECORDS))

    def _screened(self) -> list[Trial]:
        return [trial for racer in self._racers for trial in racer.screened.values()]

    def _try_batch(self, batch: int, cap: float) -> None:
        self._try([(r, point) for r in self._racers for point in _batch(r, batch)], cap)

    def _choose_jobs(self, seconds: float, runs: int) -> None:
        """Use all processes from now on where runs are long; starting them takes seconds."""
        if seconds >= _LONG_RUN * runs:
            self._trials.jobs = self._jobs

    def _try(self, tasks: Sequence[tuple[Racer, Point]], cap: float) -> None:
        """Run settings on the first seed, and note how they ran, also where the time ends."""
        built = [(r, point, method) for r, point in tasks if (method := r.search.candidate(point))]
        try:
            self._trials.run([(method, 0, cap) for _, _, method in built])
        finally:
            for racer, point, method in built:
                trial = self._trials.known(method, 0, cap)
                if trial is not None:
                    racer.screened[point] = trial

    def _search(self, stage: Stage) -> None:
        """Search the settings of every method that is left, one move of each after the other."""
        seeds = min(self._seeds, stage.seeds or self._seeds)
        self._use_seeds(seeds)
        searches = [r.search for r in self._racers if stage.moves or math.isfinite(r.cost)]
        moves = 0
        while (stage.moves is None or moves < stage.moves) and searches:
            searches = [search for search in searches if search.improve()]
            moves += 1

    def _use_seeds(self, seeds: int) -> None:
        """Run every method's best settings on more seeds, with a limit that the best reaches."""
        while True:
            for racer in self._racers:
                racer.search.use_seeds(seeds)
                racer.measure()
            least = min(racer.cost for racer in self._racers)
            if math.isfinite(least):
                self._set_limit(LIMIT * least)
                return
            if not math.isfinite(self._trials.question.limit):
                return
            self._set_limit(_GROWTH * self._trials.question.limit)

    def _set_limit(self, limit: float) -> None:
        self._trials.question = replace(self._trials.question, limit=limit)

    # --- who is left ------------------------------------------------------------------------------

    def _sort(self) -> None:
        for racer in self._racers:
            racer.measure()
        sign = -1.0 if self._trials.higher else 1.0
        self._racers.sort(key=lambda r: (r.cost, sign * r.best))

    def _check_reached(self) -> None:
        """Refuse to go on if no method has reached the target."""
        first, question = self._racers[0], self._trials.question
        if math.isfinite(first.cost):
            return
        more = "allow more time with --budget" if self._cut else "allow more rounds"
        if not math.isfinite(first.best):
            raise InputError(f"no run came near {question.target.title} in the time; {more}")
        raise InputError(
            f"no method reached {question.target.title}; the best was {first.best:.4g}, by "
            f"{first.entrant.label}; {more}, or choose an easier target"
        )

    def _drop_equal(self) -> None:
        """Let methods leave that ran the same runs as another: they are the same method here."""
        seen: dict[tuple[tuple[float, float, int], ...], Racer] = {}
        for racer in sorted(self._racers, key=lambda r: -len(r.search.axes)):
            ran = sorted((t.spent, t.best, t.rounds) for t in racer.screened.values())
            other = seen.setdefault(tuple(ran), racer)
            if other is not racer and len(ran) > 1:
                self._eliminate(racer, f"the same as {other.entrant.label} here")

    def _drop_last(self, methods: int, before: str) -> None:
        """Let the last methods leave, so that this many are left.

        The best method without client states stays, for those who cannot have them.
        """
        stateless = [racer for racer in self._racers if racer.entrant.is_stateless]
        for racer in self._racers[: methods - 1 : -1]:
            if racer in stateless[:1]:
                continue
            if not racer.screened:
                reason = "the time budget ended before they ran"
            elif math.isfinite(racer.cost):
                reason = f"left after the {before}"
            else:
                reason = f"not reached within {LIMIT:g} times the cost of the first"
            self._eliminate(racer, reason)

    def _eliminate(self, racer: Racer, reason: str) -> None:
        times = racer.cost / self._racers[0].cost
        self._racers.remove(racer)
        self.eliminated.insert(0, Eliminated(racer.entrant, reason, times, racer.best))

    # --- the judgement ----------------------------------------------------------------------------

    def judge(self, fresh: int) -> list[Finalist]:
        """Run the finalists on fresh seeds and rank them.

        Args:
            fresh: The number of seeds; the time budget may end them earlier.
        """
        self._begin_round("judgement", 1.0)
        deadline = self._trials.deadline
        self._set_limit(JUDGED_LIMIT * self._racers[0].cost)
        judged: dict[str, list[Trial]] = {racer.entrant.name: [] for racer in self._racers}
        for seed in range(FRESH_SEED, FRESH_SEED + fresh):
            self._trials.deadline = deadline if len(self.fresh) >= LEAST_FRESH else None
            try:
                found = self._trials.run([(r.method, seed, math.inf) for r in self._racers])
            except SearchEnded:
                self._cut.append(f"the judgement to {len(self.fresh)} fresh seeds")
                break
            self.fresh.append(seed)
            for racer, trial in zip(self._racers, found, strict=True):
                judged[racer.entrant.name].append(trial)
        racers = {racer.entrant.name: racer for racer in self._racers}
        costs = {name: tuple(trial.cost for trial in found) for name, found in judged.items()}
        places = ranking({name: CostSample(paid) for name, paid in costs.items()})
        return [
            Finalist(
                racers[place.name].entrant, racers[place.name].method, place.sample,
                place.is_tied, place.p_value, max(t.rounds for t in judged[place.name]),
                self._note(racers[place.name]),
            )
            for place in places
        ]  # fmt: skip

    def _note(self, racer: Racer) -> str:
        """Say what limits a finalist's settings."""
        if racer.search.is_enclosed:
            return ""
        if math.isfinite(racer.cost):
            return "its settings may be improved: the search was cut"
        return f"its settings were not searched to the end, being {LIMIT:g} times behind"


def _batch(racer: Racer, batch: int) -> list[Point]:
    return racer.batches[batch] if batch < len(racer.batches) else []
