"""Search hyper-parameters on paired seeds until the best are inside of what was tried.

A search runs in two parts. *Successive halving*: a first design of steps, and of random points
around the best of them, runs on one seed, the better third on two, and the better third of these on
three. *Moves*: the neighbours of the
leader on every axis of the space run on the same seeds, and the best of them becomes the leader,
until none is better. The leader is then *enclosed*: on each axis it has a worse neighbour on both
sides, or is at a natural bound.

A run ends when it reaches the target, when it has cost twice what the leader's run with that seed
cost, or at the limit that is the same for all. The order of runs does not depend on the number of
processes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedpage.core.capabilities import dtype_of
from fedpage.core.errors import InputError
from fedpage.studies.question import Trials
from fedpage.studies.space import Axis, Candidate, Point, build_candidate
from fedpage.studies.trials import Trial

CAP = 2.0
"""A run ends when it has cost this many times what the leader's run with its seed cost."""
_CLIP = math.log(2 * CAP)
"""What a seed counts at most in a comparison, such as one on which only one of two reached."""
MARGIN = 0.02
"""The least share of the cost by which a candidate must be better than the leader."""
_NO_EFFECT = 0.002
"""A candidate whose first run costs the same as the leader's, to this share, changes nothing."""
_LEVELS = ((1, 0.15), (3, 0.03))
"""Seeds of a level, and the mean of log ratios to the leader above which a neighbour is left."""
_FEW = 3
"""Seeds of a comparison while moves are long."""
_LONGEST = 4
"""Places of the longest moves, a factor of 16 on most axes; then 2, then 1."""
_SCATTERED = 6
"""Random points of the first design for each axis."""
_STEP_MOVE = 2
"""Places on the axis of the effective step by which it moves together with another one."""


@dataclasses.dataclass(frozen=True)
class Score:
    """How a candidate did on its seeds.

    Attributes:
        cost: The median cost.
        best: The median of the best value of the column.
        seeds: The number of seeds.
        ratio: The geometric mean of its costs over the winner's with the same seeds; inf where a
            run did not reach the target, or was ended because it had cost too much.
    """

    cost: float
    best: float
    seeds: int
    ratio: float


class Search:
    """A search over the axes of one method.

    Args:
        trials: Runs and counts the trials; several searches may share it.
        method: The method whose values the search starts from.
        axes: The space.
        seeds: The most seeds of a comparison.
        design: Places on the axes for the first design; None: steps a factor of 4 apart.

    Attributes:
        leader: The best point so far; None before `start`.
        is_enclosed: Whether no neighbour of the leader is better.

    Raises:
        InputError: The method refuses all values.
    """

    def __init__(
        self,
        trials: Trials,
        method: Candidate,
        axes: Mapping[str, Axis],
        *,
        seeds: int = 10,
        design: Sequence[Point] | None = None,
    ) -> None:
        self.trials, self.method, self.axes = trials, method, dict(axes)
        self.seeds = seeds
        self._level = min(_FEW, seeds)
        """Seeds of a comparison: few while moves are long."""
        self._list = list(self.axes.values())
        self._built: dict[Point, Candidate | None] = {}
        self._tried: dict[Point, int] = {}
        self._led: set[Point] = set()
        self._stride = _LONGEST
        self.leader: Point | None = None
        self.is_enclosed = False
        self._is_given = design is not None
        self._design = list(self._first_design() if design is None else design)
        if not any(self.candidate(point) is not None for point in self._design):
            self._build(self._design[0])  # raises the refusal

    # --- points -----------------------------------------------------------------------------------

    def _first_design(self) -> list[Point]:
        start = tuple(axis.start for axis in self._list)
        if "step" not in self.axes:
            return [start]
        return [self._moved(start, "step", 4 * k) for k in range(-2, 3)]

    def _moved(self, point: Point, name: str, by: int) -> Point:
        places = list(point)
        number = list(self.axes).index(name)
        axis = self._list[number]
        places[number] = min(axis.last, max(axis.first, places[number] + by))
        return tuple(places)

    def values(self, point: Point) -> dict[str, object]:
        """Return the values of a point by axis."""
        pairs = zip(self._list, point, strict=True)
        return {axis.name: axis.at(place) for axis, place in pairs}

    def candidate(self, point: Point) -> Candidate | None:
        """Return the method at a point; None if it refuses the values."""
        if point not in self._built:
            try:
                self._built[point] = self._build(point)
            except InputError:
                self._built[point] = None
        return self._built[point]

    def _build(self, point: Point) -> Candidate:
        problem = self.trials.problem
        found = build_candidate(self.method, self.values(point))
        found.init(np.zeros(problem.d, dtype_of(problem)), problem.N)
        return found

    @property
    def has_run(self) -> bool:
        """Whether any candidate has been run."""
        return bool(self._tried)

    @property
    def best(self) -> Candidate:
        """The method at the leader; before there is one, the best candidate on its seeds."""
        return self.scores()[0][0] if self.leader is None else self.candidate(self.leader)

    def edges(self) -> tuple[str, ...]:
        """List the axes at an end of which the leader is, where no natural bound is."""
        if self.leader is None:
            return ()
        pairs = zip(self._list, self.leader, strict=True)
        return tuple(axis.name for axis, place in pairs if axis.is_at_edge(place))

    # --- running ----------------------------------------------------------------------------------

    def _run(self, points: Iterable[Point], seeds: range, caps: Mapping[int, float]) -> None:
        """Run points on seeds; remember how many seeds each of them has."""
        chosen = [(p, c) for p in points if (c := self.candidate(p)) is not None]
        self.trials.run([(c, s, caps.get(s, math.inf)) for p, c in chosen for s in seeds])
        for point, _ in chosen:
            self._tried[point] = max(self._tried.get(point, 0), seeds.stop)

    def _trial(self, point: Point, seed: int, cap: float) -> Trial:
        return self.trials.run([(self.candidate(point), seed, cap)])[0]

    def _leader_trials(self) -> list[Trial]:
        assert self.leader is not None
        return [self._trial(self.leader, seed, math.inf) for seed in range(self._level)]

    def _caps(self) -> dict[int, float]:
        return {seed: CAP * trial.cost for seed, trial in enumerate(self._leader_trials())}

    def _lead(self, point: Point) -> None:
        """Make a point the leader; its runs go on to the equal limit."""
        self._run([point], range(self._level), {})
        self._led.add(point)
        self.leader = point

    def compare(self, point: Point, seeds: int) -> float:
        """Return the mean log of a point's cost over the leader's, over the first seeds."""
        return self._ratio(point, self._leader_trials()[:seeds])

    def _ratio(self, point: Point, others: Sequence[Trial]) -> float:
        """Return the mean log of a point's cost over that of other trials with the same seeds."""
        trials = [self._trial(point, seed, CAP * other.cost) for seed, other in enumerate(others)]
        return float(np.mean([self._log_ratio(*pair) for pair in zip(trials, others, strict=True)]))

    def _log_ratio(self, trial: Trial, other: Trial) -> float:
        """Return the log of one run's cost over another's; of the gaps where neither reached."""
        a, b = trial.cost, other.cost
        if not (math.isfinite(a) or math.isfinite(b)):
            a, b = (abs(t.best - self.trials.question.target.value) for t in (trial, other))
        if a == b:
            return 0.0
        if not math.isfinite(a) or b == 0:
            return _CLIP
        return (
            -_CLIP if not math.isfinite(b) or a == 0 else min(_CLIP, max(-_CLIP, math.log(a / b)))
        )

    # --- halving ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Run the first design by successive halving; the step grows until its best is inside.

        Raises:
            SearchEnded: The runs or the time are used up.
        """
        points = [point for point in self._design if self.candidate(point) is not None]
        self._run(points, range(1), {})
        while True:
            points.sort(key=self._rank_on_first)
            more = self.beyond(points[0], points)
            if more is None:
                break
            self._run([more], range(1), {})
            points.append(more)
        cap = CAP * self._trial(points[0], 0, math.inf).cost
        points += self._scatter(points[0], cap)
        points.sort(key=lambda point: self._rank_on_first(point, cap))
        count = max(1, math.ceil(len(points) / 3))
        reached = sum(math.isfinite(self._trial(point, 0, cap).cost) for point in points)
        alive = points[: min(count, reached or count)]
        for seeds in sorted({min(2, self._level), self._level}):
            self._run(alive[:1], range(seeds), {})
            first = [self._trial(alive[0], seed, math.inf) for seed in range(seeds)]
            self._run(alive[1:], range(seeds), {s: CAP * t.cost for s, t in enumerate(first)})
            ratios = {point: self._ratio(point, first) for point in alive[1:]} | {alive[0]: 0.0}
            alive = sorted(alive, key=ratios.__getitem__)[: max(1, math.ceil(len(alive) / 3))]
        self._lead(alive[0])

    def _scatter(self, best: Point, cap: float) -> list[Point]:
        """Run random points around the best of the usual design: another region may be better."""
        if self._is_given or len(self._list) < 3:
            return []
        rng = np.random.default_rng(0)
        found: dict[Point, None] = {}
        for _ in range(_SCATTERED * len(self._list)):
            away = rng.integers(-_LONGEST, _LONGEST + 1, len(best))
            places = (
                min(axis.last, max(axis.first, place + int(by)))
                for axis, place, by in zip(self._list, best, away, strict=True)
            )
            point = tuple(places)
            if point not in self._tried and self.candidate(point) is not None:
                found[point] = None
        self._run(found, range(1), {0: cap})
        return list(found)

    def _rank_on_first(self, point: Point, cap: float = math.inf) -> tuple[float, float, Point]:
        return *self.rank(point, self._trial(point, 0, cap)), point

    def rank(self, point: Point, trial: Trial) -> tuple[float, float]:
        """Return what to sort a point by: its cost, and the best value where it is infinite.

        Of points that cost the same, the first is the one nearest to the start of the search. An
        accuracy may be reached in the first round by any step, however small.
        """
        if math.isfinite(trial.cost):
            pairs = zip(self._list, point, strict=True)
            return trial.cost, float(sum(abs(place - axis.start) for axis, place in pairs))
        return trial.cost, -trial.best if self.trials.higher else trial.best

    def beyond(self, best: Point, points: list[Point]) -> Point | None:
        """Return the point beyond the best on the axis of the step, if it is at the edge."""
        if "step" not in self.axes:
            return None
        number = list(self.axes).index("step")
        line = [
            p for p in points if p[:number] + p[number + 1 :] == best[:number] + best[number + 1 :]
        ]
        places = [p[number] for p in line]
        if len(line) < 2 or best[number] not in (min(places), max(places)):
            return None
        more = self._moved(best, "step", -4 if best[number] == min(places) else 4)
        return None if more in points or self.candidate(more) is None else more

    # --- moves ------------------------------------------------------------------------------------

    def improve(self) -> bool:
        """Compare the neighbours of the leader with it, and move to the best of them.

        Returns:
            Whether there is more to do; False: the leader is enclosed.

        Raises:
            SearchEnded: The runs or the time are used up.
        """
        if self.is_enclosed:
            return False
        assert self.leader is not None
        if self._move(self._neighbours(self._stride), combine=True):
            return True
        if self._stride > 1:
            self._stride //= 2
            if self._stride == 1:
                self._level = self.seeds
                self._lead(self.leader)
                self._rematch()
            return True
        if self._move(self._diagonals(), combine=False):
            return True
        self.is_enclosed = True
        return False

    def run(self) -> None:
        """Search until the leader is enclosed.

        Raises:
            SearchEnded: The runs or the time are used up.
        """
        if self.leader is None:
            self.start()
        while self.improve():
            pass

    def use_seeds(self, seeds: int) -> None:
        """Compare on this many seeds from now on, and let the earlier leaders compete again.

        Raises:
            SearchEnded: The runs or the time are used up.
        """
        is_new = seeds != self.seeds
        self.is_enclosed = self.is_enclosed and not is_new
        self.seeds, self._level = seeds, seeds if self._stride == 1 else min(_FEW, seeds)
        if self.leader is None:
            self.start()
            return
        self._lead(self.leader)
        if is_new:
            self._rematch()

    def _rematch(self) -> None:
        """Compare the earlier leaders on all seeds of a comparison, and lead with the best."""
        self._run(sorted(self._led), range(self._level), self._caps())
        ratios = {point: self.compare(point, self._level) for point in sorted(self._led)}
        self._lead(min(ratios, key=ratios.__getitem__))

    def prefer(self, point: Point, gain: float) -> None:
        """Return to a point unless the leader costs less than it by at least this share.

        Raises:
            SearchEnded: The runs or the time are used up.
        """
        self._run([point], range(self._level), self._caps())
        if self.compare(point, self._level) < -math.log(1 - gain):
            self._lead(point)

    def _neighbours(self, stride: int) -> dict[Point, int]:
        """Return the leader's neighbours with the number of the axis on which each differs."""
        assert self.leader is not None
        found: dict[Point, int] = {}
        for number, axis in enumerate(self._list):
            for place in axis.neighbours(self.leader[number], stride):
                found[self._at(self.leader, number, place)] = number
        return found

    def _diagonals(self) -> dict[Point, int]:
        """Return the neighbours on other axes, with the step moved too: S and the step, ..."""
        if "step" not in self.axes:
            return {}
        step = list(self.axes).index("step")
        near = self._neighbours(1)
        moved = {
            self._moved(point, "step", by): number
            for point, number in near.items()
            for by in (-_STEP_MOVE, _STEP_MOVE)
            if number != step
        }
        return {point: number for point, number in moved.items() if point not in near}

    @staticmethod
    def _at(point: Point, number: int, place: int) -> Point:
        return (*point[:number], place, *point[number + 1 :])

    def _move(self, near: Mapping[Point, int], *, combine: bool) -> bool:
        """Race points against the leader; move to the best if it is better."""
        caps, last = self._caps(), self._level
        alive = [p for p in near if p not in self._led and self.candidate(p) is not None]
        # One seed, on which the leader may have been lucky, does not enclose it.
        least = _FEW if combine and self._stride == 1 else 1
        levels = [level for level in _LEVELS if least <= level[0] < last]
        for number, (seeds, most) in enumerate((*levels, (last, -MARGIN))):
            self._run(alive, range(seeds), caps)
            ratios = {point: self.compare(point, seeds) for point in alive}
            if number == 0 and last > 1:
                ratios = {p: r for p, r in ratios.items() if abs(r) > _NO_EFFECT}
            if number == 0 and combine:
                mixed = self._combined(ratios, near)
                self._run(mixed, range(seeds), caps)
                ratios |= {point: self.compare(point, seeds) for point in mixed}
            alive = sorted((p for p, r in ratios.items() if r < most), key=ratios.__getitem__)
        if alive:
            self._lead(alive[0])
        return bool(alive)

    def _combined(self, ratios: Mapping[Point, float], near: Mapping[Point, int]) -> list[Point]:
        """Combine the best moves on different axes: the first two, three, ..."""
        assert self.leader is not None
        best: dict[int, Point] = {}
        for point in sorted(ratios, key=ratios.__getitem__):
            if ratios[point] < -MARGIN:
                best.setdefault(near[point], point)
        mixed, found = self.leader, []
        for number, point in best.items():
            mixed = self._at(mixed, number, point[number])
            found.append(mixed)
        new = [p for p in found[1:] if p not in self._led and self.candidate(p) is not None]
        return list(dict.fromkeys(new))

    # --- results ----------------------------------------------------------------------------------

    def scores(self) -> list[tuple[Candidate, Score]]:
        """Return every candidate with its score, the leader first, then by seeds and ratio."""
        run = {
            point: [self.trials.stored(self.candidate(point), seed) for seed in range(seeds)]
            for point, seeds in self._tried.items()
        }
        sign = -1.0 if self.trials.higher else 1.0
        lead = run.get(self.leader) if self.leader is not None else None
        found = [(point, _score(trials, lead or trials)) for point, trials in run.items()]
        found.sort(
            key=lambda e: (
                e[0] != self.leader,
                -e[1].seeds,
                e[1].ratio,
                e[1].cost,
                sign * e[1].best,
            )
        )
        return [(self.candidate(point), score) for point, score in found]


def _score(trials: Sequence[Trial], others: Sequence[Trial]) -> Score:
    """Return the score of some trials, in relation to those of the winner."""
    costs = [trial.cost for trial in trials]
    pairs = [(a, b.cost) for a, b in zip(costs, others, strict=False) if math.isfinite(b.cost)]
    ratio = math.inf
    if pairs and all(math.isfinite(a) for a, _ in pairs):
        logs = [math.log(a / b) if a > 0 and b > 0 else 0.0 for a, b in pairs]
        ratio = math.exp(math.fsum(logs) / len(logs))
    best = float(np.median([trial.best for trial in trials]))
    return Score(float(np.quantile(costs, 0.5, method="higher")), best, len(trials), ratio)
