"""Search the hyper-parameters of one method on paired seeds.

The step size comes first: a grid of steps runs on one seed and grows while its best value is at an
end. A few random points around the best step follow. The better ones run on more seeds, and the
best of them is the first *incumbent*. The other axes are then searched one by one: the neighbours
of the incumbent on an axis run on its seeds, and the best of them becomes the incumbent if it is
better. They are 4 grid indices away at first, then 2, then 1, and a grid continues beyond its ends.
The search ends at a local optimum, where no neighbour on any axis is better.

A run ends when it reaches the target, when it has cost twice as much as the incumbent's run with
the same seed, or at the limit that is the same for all. The order of the runs does not depend on
the number of processes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

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
        self.trials, self.method, self.axes = trials, method, dict(axes)
        self.seeds = seeds
        self._level = min(_FEW, seeds)
        self._stride = _STRIDE
        self._list = list(self.axes.values())
        self._built: dict[Point, Tunable] = {}
        self._tried: dict[Point, int] = {}
        self._incumbents: set[Point] = set()
        self.incumbent: Point | None = None
        self.is_local_optimum = False
        start = tuple(axis.start for axis in self._list)
        steps = range(-2, 3) if "step" in self.axes else [0]
        self._is_given = design is not None
        self._design = list(design or [self._shift(start, "step", 4 * k) for k in steps])
        if not any(self.candidate(point) is not None for point in self._design):
            self._build(self._design[0])  # raises the refusal

    # --- points -----------------------------------------------------------------------------------

    def _shift(self, point: Point, name: str, by: int) -> Point:
        """Return the point `by` grid indices away on an axis, or at the end of the axis."""
        if name not in self.axes:
            return point
        number = list(self.axes).index(name)
        axis = self._list[number]
        return _replace(point, number, min(axis.last, max(axis.first, point[number] + by)))

    def candidate(self, point: Point) -> Tunable:
        """Return the method at a point, or None if it refuses the values."""
        if point not in self._built:
            try:
                self._built[point] = self._build(point)
            except InputError:
                self._built[point] = None
        return self._built[point]

    def _build(self, point: Point) -> Tunable:
        problem, pairs = self.trials.problem, zip(self._list, point, strict=True)
        found = build_candidate(self.method, {axis.name: axis.at(index) for axis, index in pairs})
        found.init(np.zeros(problem.d, dtype_of(problem)), problem.N)
        return found

    @property
    def has_run(self) -> bool:
        """Whether any candidate has been run."""
        return bool(self._tried)

    @property
    def best(self) -> Tunable:
        """The incumbent's method. Before there is one, the best candidate on its seeds."""
        return self.scores()[0][0] if self.incumbent is None else self.candidate(self.incumbent)

    def edges(self) -> tuple[str, ...]:
        """List the axes on which the incumbent is at an end that is not a natural bound."""
        pairs = zip(self._list, self.incumbent or (), strict=False)
        return tuple(axis.name for axis, index in pairs if axis.is_at_edge(index))

    # --- runs and comparisons ---------------------------------------------------------------------

    def _run(self, points: Iterable[Point], seeds: int, caps: Sequence[float] = ()) -> None:
        """Run points on the first seeds, and count the seeds of each."""
        chosen = [(p, c) for p in points if (c := self.candidate(p)) is not None]
        limits = [*caps, *[math.inf] * seeds]
        self.trials.run([(c, s, limits[s]) for _, c in chosen for s in range(seeds)])
        for point, _ in chosen:
            self._tried[point] = max(self._tried.get(point, 0), seeds)

    def _trial(self, point: Point, seed: int, cap: float = math.inf) -> Trial:
        return self.trials.run([(self.candidate(point), seed, cap)])[0]

    def _trials_of(self, point: Point | None, seeds: int) -> list[Trial]:
        assert point is not None
        return [self._trial(point, seed) for seed in range(seeds)]

    def _set_incumbent(self, point: Point) -> None:
        """Make a point the incumbent and finish its runs without caps."""
        self._run([point], self._level)
        self._incumbents.add(point)
        self.incumbent = point

    def _compare(
        self, points: Iterable[Point], other: Point | None, seeds: int
    ) -> dict[Point, float]:
        """Run points, and return the means of log(cost/other's cost) over the first seeds."""
        others = self._trials_of(other, seeds)
        caps = [CAP * trial.cost for trial in others]
        points = [point for point in points if self.candidate(point) is not None]
        self._run(points, seeds, caps)
        return {
            point: float(
                np.mean(
                    [
                        self._log_ratio(self._trial(point, s, caps[s]), others[s])
                        for s in range(seeds)
                    ]
                )
            )
            for point in points
        }

    def _log_ratio(self, trial: Trial, other: Trial) -> float:
        """Return log(cost/other cost); if neither reached the target, compare their distances."""
        a, b = trial.cost, other.cost
        if not (math.isfinite(a) or math.isfinite(b)):
            a, b = (abs(t.best - self.trials.question.target.value) for t in (trial, other))
        if a == b:
            return 0.0
        if not math.isfinite(a) or b == 0:
            return _CLIP
        if not math.isfinite(b) or a == 0:
            return -_CLIP
        return min(_CLIP, max(-_CLIP, math.log(a / b)))

    # --- the first incumbent ----------------------------------------------------------------------

    def start(self) -> None:
        """Run the first points; the grid of steps grows while its best value is at an end.

        Raises:
            SearchEnded: If the runs or the time are used up.
        """
        points = [point for point in self._design if self.candidate(point) is not None]
        self._run(points, 1)
        while True:
            points.sort(key=lambda point: self.rank(point, self._trial(point, 0)))
            more = self._beyond(points[0], points)
            if more is None:
                break
            self._run([more], 1)
            points.append(more)
        cap = CAP * self._trial(points[0], 0).cost
        points += self._random_points(points[0], cap)
        points.sort(key=lambda point: self.rank(point, self._trial(point, 0, cap)))
        reached = sum(math.isfinite(self._trial(point, 0, cap).cost) for point in points)
        for seeds in sorted({min(2, self._level), self._level}):
            count = max(1, math.ceil(len(points) / 3))
            points = points[: min(count, reached or count)]
            ratios = self._compare(points, points[0], seeds)
            points.sort(key=ratios.__getitem__)
        self._set_incumbent(points[0])

    def _random_points(self, best: Point, cap: float) -> list[Point]:
        """Run a few random points around the best step, because another region may be better."""
        if self._is_given or len(self._list) < 3:
            return []
        rng = np.random.default_rng(0)
        found: dict[Point, None] = {}
        for _ in range(_RANDOM * len(self._list)):
            point = best
            for name, by in zip(
                self.axes, rng.integers(-_STRIDE, _STRIDE + 1, len(best)), strict=True
            ):
                point = self._shift(point, name, int(by))
            if point not in self._tried and self.candidate(point) is not None:
                found[point] = None
        self._run(found, 1, [cap])
        return list(found)

    def rank(self, point: Point, trial: Trial) -> tuple[float, float, Point]:
        """Return the sort key of a point: its cost, or its best value if that is infinite.

        Of points that cost the same, the one nearest to the start of the search comes first. An
        accuracy may be reached in the first round by any step, however small.
        """
        if math.isfinite(trial.cost):
            pairs = zip(self._list, point, strict=True)
            return trial.cost, float(sum(abs(index - axis.start) for axis, index in pairs)), point
        return trial.cost, -trial.best if self.trials.higher else trial.best, point

    def _beyond(self, best: Point, points: Sequence[Point]) -> Point | None:
        """Return the point with the next step beyond the best one, if it is at an end."""
        if "step" not in self.axes:
            return None
        number = list(self.axes).index("step")
        indices = [p[number] for p in points if _replace(p, number, best[number]) == best]
        if len(indices) < 2 or best[number] not in (min(indices), max(indices)):
            return None
        more = self._shift(best, "step", -4 if best[number] == min(indices) else 4)
        return None if more in points or self.candidate(more) is None else more

    # --- one axis after the other -----------------------------------------------------------------

    def improve(self) -> bool:
        """Go over all axes once, and move along each while a neighbour is better.

        Returns:
            True if there is more to do, False at a local optimum.

        Raises:
            SearchEnded: If the runs or the time are used up.
        """
        if self.is_local_optimum:
            return False
        assert self.incumbent is not None
        before = self.incumbent
        for number, axis in enumerate(self._list):
            while self._move(
                _replace(self.incumbent, number, index)
                for index in axis.neighbours(self.incumbent[number], self._stride)
            ):
                pass
        if self.incumbent != before:
            return True
        if self._stride > 1:
            self._stride //= 2
            if self._stride == 1:
                self._level = self.seeds
                self._rematch()
            return True
        self.is_local_optimum = True
        return False

    def _move(self, near: Iterable[Point]) -> bool:
        """Move to the best of some points if it is better than the incumbent."""
        alive = [point for point in near if point not in self._incumbents]
        levels = [level for level in _LEVELS if level[0] < self._level]
        for number, (seeds, most) in enumerate((*levels, (self._level, -MARGIN))):
            ratios = self._compare(alive, self.incumbent, seeds) if alive else {}
            if number == 0 and self._level > 1:
                ratios = {p: r for p, r in ratios.items() if abs(r) > _NO_EFFECT}
            alive = sorted((p for p, r in ratios.items() if r < most), key=ratios.__getitem__)
        if alive:
            self._set_incumbent(alive[0])
        return bool(alive)

    def run(self) -> None:
        """Search until the incumbent is a local optimum.

        Raises:
            SearchEnded: If the runs or the time are used up.
        """
        if self.incumbent is None:
            self.start()
        while self.improve():
            pass

    def use_seeds(self, seeds: int) -> None:
        """Compare on this many seeds from now on, also the earlier incumbents.

        Raises:
            SearchEnded: If the runs or the time are used up.
        """
        is_new = seeds != self.seeds
        self.is_local_optimum = self.is_local_optimum and not is_new
        self.seeds, self._level = seeds, seeds if self._stride == 1 else min(_FEW, seeds)
        if self.incumbent is None:
            self.start()
        elif is_new:
            self._rematch()
        else:
            self._set_incumbent(self.incumbent)

    def _rematch(self) -> None:
        """Compare the incumbent with the earlier ones on all seeds of a comparison."""
        assert self.incumbent is not None
        self._set_incumbent(self.incumbent)
        ratios = self._compare(sorted(self._incumbents), self.incumbent, self._level)
        self._set_incumbent(min(ratios, key=ratios.__getitem__))

    def prefer(self, point: Point, gain: float) -> None:
        """Return to a point unless the incumbent costs less by at least this share.

        Raises:
            SearchEnded: If the runs or the time are used up.
        """
        (ratio,) = self._compare([point], self.incumbent, self._level).values()
        if ratio < -math.log(1 - gain):
            self._set_incumbent(point)

    def scores(self) -> list[tuple[Tunable, Score]]:
        """Return every candidate with its score, the incumbent first, then by seeds and ratio."""
        run = {
            point: [self.trials.stored(self.candidate(point), seed) for seed in range(seeds)]
            for point, seeds in self._tried.items()
        }
        sign = -1.0 if self.trials.higher else 1.0
        first = run.get(self.incumbent) if self.incumbent is not None else None
        found = [(point, _score(trials, first or trials)) for point, trials in run.items()]
        found.sort(
            key=lambda e: (
                e[0] != self.incumbent,
                -e[1].seeds,
                e[1].ratio,
                e[1].cost,
                sign * e[1].best,
            )
        )
        return [(self.candidate(point), score) for point, score in found]


def _replace(point: Point, number: int, index: int) -> Point:
    return (*point[:number], index, *point[number + 1 :])


def _score(trials: Sequence[Trial], others: Sequence[Trial]) -> Score:
    costs = [trial.cost for trial in trials]
    pairs = [(a, b.cost) for a, b in zip(costs, others, strict=False) if math.isfinite(b.cost)]
    ratio = math.inf
    if pairs and all(math.isfinite(a) for a, _ in pairs):
        logs = [math.log(a / b) if a > 0 and b > 0 else 0.0 for a, b in pairs]
        ratio = math.exp(math.fsum(logs) / len(logs))
    best = float(np.median([trial.best for trial in trials]))
    return Score(float(np.quantile(costs, 0.5, method="higher")), best, len(trials), ratio)
