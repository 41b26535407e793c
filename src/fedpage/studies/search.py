"""Search the hyper-parameters of one method on paired seeds.

The step size comes first: a grid of steps runs on one seed and grows while its best value is at an
end. A few random points around the best step follow. The better ones run on more seeds, and the
best of them is the first *incumbent*. The other axes are then searched one by one: the neighbours
of the incumbent on an axis run on its seeds, and the best of them becomes the incumbent if it is
better. They are 4 grid indices away at first, then 2, then 1. The search ends at a local optimum,
where no neighbour on any axis is better.

A run ends when it reaches the target, when it has cost twice as much as the incumbent's run with
the same seed, or at the limit that is the same for all. The order of the runs does not depend on
the number of processes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean, median

import numpy as np

from fedpage.core.capabilities import dtype_of
from fedpage.core.errors import InputError
from fedpage.studies.space import Axis, Point, Tunable, build_candidate
from fedpage.studies.trials import Trial, Trials

CAP = 2.0
"""A run ends when it has cost this many times what the incumbent's run with its seed cost."""
_CLIP = math.log(2 * CAP)
"""The most that a seed counts in a comparison, for instance if only one of two runs reached."""
MARGIN = 0.02
"""The least share of the cost by which a point must be better than the incumbent."""
_NO_EFFECT = 0.002
"""A point whose first run costs the same as the incumbent's, to this share, changes nothing."""
_LEVELS = ((1, 0.15), (3, 0.03))
"""Seeds of a level, and the mean of log ratios to the incumbent above which a point is dropped."""
_FEW = 3
"""Seeds of a comparison while the neighbours are more than one index away."""
_STRIDE = 4
"""Grid indices to the first neighbours, a factor of 16 on most axes."""
_RANDOM = 4
"""Random points for each axis."""


@dataclasses.dataclass(frozen=True)
class Score:
    """The results of a point on its seeds.

    Attributes:
        cost: The median cost.
        best: The median of the best value of the column.
        seeds: The number of seeds.
        ratio: The geometric mean of its costs over the incumbent's with the same seeds, or inf if
            a run did not reach the target or was ended because it had cost too much.
    """

    cost: float
    best: float
    seeds: int
    ratio: float


class Search:
    """A search over the axes of one method.

    Every function that runs trials raises `SearchEnded` when the runs or the time are used up.

    Args:
        trials: Runs and counts the trials. Several searches may share it.
        method: The method whose values the search starts from.
        axes: The space.
        seeds: The most seeds of a comparison.
        design: The points to run first. If None, steps a factor of 4 apart and random points.

    Attributes:
        incumbent: The best point so far, or None before `start`.
        is_local_optimum: Whether no neighbour of the incumbent is better.

    Raises:
        InputError: If the method refuses all values.
    """

    def __init__(
        self,
        trials: Trials,
        method: Tunable,
        axes: Mapping[str, Axis],
        *,
        seeds: int = 10,
        design: Sequence[Point] | None = None,
    ) -> None:
        self.trials, self.method, self.axes, self.seeds = trials, method, dict(axes), seeds
        self.incumbent: Point | None = None
        self.is_local_optimum = False
        self._names = list(axes)
        self._level, self._stride = min(_FEW, seeds), _STRIDE
        self._built: dict[Point, Tunable] = {}
        self._tried: dict[Point, int] = {}
        self._incumbents: set[Point] = set()
        self._is_given = design is not None
        steps = range(-2, 3) if "step" in axes else [0]
        start = tuple(axis.start for axis in axes.values())
        self.design = list(design or [self.shift(start, "step", 4 * k) for k in steps])
        if all(self.method_at(point) is None for point in self.design):
            raise self._refusal

    def shift(self, point: Point, name: str, by: int) -> Point:
        """Return the point `by` grid indices away on an axis, or at the end of the axis."""
        if name not in self.axes:
            return point
        number = self._names.index(name)
        return _replace(point, number, self.axes[name].move(point[number], by))

    def method_at(self, point: Point) -> Tunable:
        """Return the method at a point, or None if it refuses the values."""
        if point not in self._built:
            problem, pairs = self.trials.problem, zip(self.axes.values(), point, strict=True)
            values = {axis.name: axis.values[index] for axis, index in pairs}
            try:
                found = build_candidate(self.method, values)
                found.init(np.zeros(problem.d, dtype_of(problem)), problem.N)
            except InputError as error:
                found, self._refusal = None, error
            self._built[point] = found
        return self._built[point]

    @property
    def best(self) -> Tunable:
        """The incumbent's method. Before there is one, the best that has run, or the first."""
        return next((method for method, _ in self.scores()), self.method)

    def edges(self) -> tuple[str, ...]:
        """List the axes on which the incumbent is at an end that is not a natural bound."""
        pairs = zip(self.axes.values(), self.incumbent or (), strict=False)
        return tuple(axis.name for axis, index in pairs if index in axis.edges)

    def _run(
        self, points: Iterable[Point], seeds: int, caps: Sequence[float] = ()
    ) -> dict[Point, list[Trial]]:
        """Run points on the first seeds, each with its cap, and count the seeds of each."""
        chosen = {p: c for p in points if (c := self.method_at(p)) is not None}
        limits = [*caps, *[math.inf] * seeds][:seeds]
        tasks = [(c, seed, cap) for c in chosen.values() for seed, cap in enumerate(limits)]
        ran = self.trials.run(tasks)
        self._tried |= {point: max(self._tried.get(point, 0), seeds) for point in chosen}
        return {point: ran[i * seeds : (i + 1) * seeds] for i, point in enumerate(chosen)}

    def _set_incumbent(self, point: Point) -> None:
        """Make a point the incumbent and finish its runs without caps."""
        self._run([point], self._level)
        self._incumbents.add(point)
        self.incumbent = point

    def _compare(
        self, points: Iterable[Point], other: Point | None, seeds: int
    ) -> dict[Point, float]:
        """Run points, and return the means of log(cost/other's cost) over the first seeds."""
        assert other is not None
        others = self._run([other], seeds)[other]
        ran = self._run(points, seeds, [CAP * trial.cost for trial in others])
        return {point: fmean(map(self._log_ratio, own, others)) for point, own in ran.items()}

    def _log_ratio(self, trial: Trial, other: Trial) -> float:
        """Return log(cost/other cost); if neither reached the target, compare their distances."""
        a, b = trial.cost, other.cost
        if a == b == math.inf:
            a, b = (abs(t.best - self.trials.question.target.value) for t in (trial, other))
        if a == b:
            return 0.0
        with np.errstate(divide="ignore"):
            return float(np.clip(np.log(a) - np.log(b), -_CLIP, _CLIP))

    def start(self) -> None:
        """Run the first points; the grid of steps grows while its best value is at an end."""
        ran: dict[Point, list[Trial]] = {}
        more = self.design
        while more:
            ran |= self._run(more, 1)
            best = min(ran, key=lambda point: self.rank(point, ran[point][0]))
            more = self._beyond(best, ran)
        cap = CAP * ran[best][0].cost
        ran = self._run([*ran, *self._random_points(best)], 1, [cap])
        points = sorted(ran, key=lambda point: self.rank(point, ran[point][0]))
        reached = sum(math.isfinite(trial.cost) for (trial,) in ran.values())
        for seeds in sorted({min(2, self._level), self._level}):
            count = max(1, math.ceil(len(points) / 3))
            points = points[: min(count, reached or count)]
            ratios = self._compare(points, points[0], seeds)
            points.sort(key=ratios.__getitem__)
        self._set_incumbent(points[0])

    def _random_points(self, best: Point) -> list[Point]:
        """List a few random points around the best step, because another region may be better."""
        if self._is_given or len(self.axes) < 3:
            return []
        rng, found = np.random.default_rng(0), []
        for _ in range(_RANDOM * len(self.axes)):
            moves = rng.integers(-_STRIDE, _STRIDE + 1, len(best))
            rows = zip(self.axes.values(), best, moves, strict=True)
            found.append(tuple(axis.move(index, int(by)) for axis, index, by in rows))
        return [point for point in found if point not in self._tried]

    def rank(self, point: Point, trial: Trial) -> tuple[float, float, Point]:
        """Return the sort key of a point: its cost, or its best value if that is infinite.

        Of points that cost the same, the one nearest to the start of the search comes first. An
        accuracy may be reached in the first round by any step, however small.
        """
        if math.isfinite(trial.cost):
            pairs = zip(self.axes.values(), point, strict=True)
            return trial.cost, float(sum(abs(index - axis.start) for axis, index in pairs)), point
        return trial.cost, -trial.best if self.trials.higher else trial.best, point

    def _beyond(self, best: Point, ran: Collection[Point]) -> list[Point]:
        """Return the point with the next step beyond the best one, if it is at an end."""
        if "step" not in self.axes:
            return []
        number = self._names.index("step")
        indices = [p[number] for p in ran if _replace(p, number, best[number]) == best]
        if len(indices) < 2 or best[number] not in (min(indices), max(indices)):
            return []
        more = self.shift(best, "step", -4 if best[number] == min(indices) else 4)
        return [] if more in ran or self.method_at(more) is None else [more]

    def improve(self) -> bool:
        """Go over all axes once, and move along each while a neighbour is better.

        Returns:
            True if there is more to do, False at a local optimum.
        """
        if self.is_local_optimum:
            return False
        if self.incumbent is None:
            self.start()
        before = self.incumbent
        for number, axis in enumerate(self.axes.values()):
            while self._move(number, axis):
                pass
        if self.incumbent == before and self._stride > 1:
            self._stride //= 2
            if self._stride == 1:
                self._level = self.seeds
                self._rematch(self._incumbents)
        elif self.incumbent == before:
            self.is_local_optimum = True
        return not self.is_local_optimum

    def _move(self, number: int, axis: Axis) -> bool:
        """Move to the best neighbour on an axis if it is better than the incumbent."""
        assert self.incumbent is not None
        indices = axis.neighbours(self.incumbent[number], self._stride)
        near = [_replace(self.incumbent, number, index) for index in indices]
        alive = [point for point in near if point not in self._incumbents]
        levels = [level for level in _LEVELS if level[0] < self._level]
        for i, (seeds, most) in enumerate((*levels, (self._level, -MARGIN))):
            ratios = self._compare(alive, self.incumbent, seeds) if alive else {}
            if i == 0 and self._level > 1:
                ratios = {p: r for p, r in ratios.items() if abs(r) > _NO_EFFECT}
            alive = sorted((p for p, r in ratios.items() if r < most), key=ratios.__getitem__)
        if alive:
            self._set_incumbent(alive[0])
        return bool(alive)

    def run(self) -> None:
        """Search until the incumbent is a local optimum."""
        while self.improve():
            pass

    def use_seeds(self, seeds: int) -> None:
        """Compare on this many seeds from now on, also the earlier incumbents."""
        is_new, self.seeds = seeds != self.seeds, seeds
        self.is_local_optimum = self.is_local_optimum and not is_new
        self._level = seeds if self._stride == 1 else min(_FEW, seeds)
        if self.incumbent is None:
            self.start()
        else:
            self._rematch(self._incumbents if is_new else ())

    def _rematch(self, others: Collection[Point]) -> None:
        """Compare the incumbent with earlier ones on all seeds of a comparison."""
        assert self.incumbent is not None
        self._set_incumbent(self.incumbent)
        ratios = self._compare(sorted({*others, self.incumbent}), self.incumbent, self._level)
        self._set_incumbent(min(ratios, key=ratios.__getitem__))

    def scores(self) -> list[tuple[Tunable, Score]]:
        """Return every candidate with its score, the incumbent first, then by seeds and ratio.

        A search that was cut before it had an incumbent compares with the best candidate.
        """
        sign, first = -1.0 if self.trials.higher else 1.0, self.incumbent
        found = {p: self.trials.find(self.method_at(p), n) for p, n in self._tried.items()}
        ran = {point: trials for point, trials in found.items() if trials}
        if first not in ran:
            own = {p: _score(trials, trials) for p, trials in ran.items()}
            keys = {p: (-s.seeds, s.cost, sign * s.best) for p, s in own.items()}
            first = min(keys, key=keys.__getitem__, default=())
        scores = {p: _score(trials, ran[first]) for p, trials in ran.items()}

        def order(point: Point) -> tuple[float, ...]:
            score = scores[point]
            rest = (-score.seeds, score.ratio, score.cost, sign * score.best)
            return (point != first, *rest)

        return [(self.method_at(point), scores[point]) for point in sorted(scores, key=order)]


def _replace(point: Point, number: int, index: int) -> Point:
    return (*point[:number], index, *point[number + 1 :])


def _score(trials: Sequence[Trial], others: Sequence[Trial]) -> Score:
    costs = [trial.cost for trial in trials]
    pairs = [(a, b.cost) for a, b in zip(costs, others, strict=False) if math.isfinite(b.cost)]
    ratio = math.inf
    if pairs and all(math.isfinite(a) for a, _ in pairs):
        ratio = math.exp(fmean(math.log(a / b) if a > 0 and b > 0 else 0.0 for a, b in pairs))
    cost = float(np.quantile(costs, 0.5, method="higher"))
    return Score(cost, median(trial.best for trial in trials), len(trials), ratio)
