"""Step sizes that reach a target at the least cost, found by runs: `fedpage tune`.

Successive halving over seeds: every candidate runs on a few seeds, the better part goes on to more. The winner is then
judged on seeds that chose nothing, and that number is the one to report.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fedpage._version import __version__
from fedpage.core.errors import InputError
from fedpage.core.types import AnyMethod, Problem, dtype_of
from fedpage.core.validate import check_whole
from fedpage.engine.simulate import simulate
from fedpage.engine.stopping import Stop
from fedpage.runs.history import History
from fedpage.runs.provenance import describe_method
from fedpage.theory.planner import Costs

COSTS = ("rounds", "clients", "bytes", "bytes_up", "bytes_down", "gradients", "seconds")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run: what it cost to reach the target (inf: not reached), and the best gradient norm on the way."""

    cost: float
    best: float
    diverged: bool


@dataclasses.dataclass(frozen=True)
class Score:
    """A candidate over its seeds: median cost, median best gradient norm; less is better, in that order."""

    cost: float
    best: float
    seeds: int

    @property
    def rank(self) -> tuple[float, float]:
        """What candidates are sorted by."""
        return self.cost, self.best


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What a search found."""

    method: Any
    """The winner."""
    cost: str
    target: float
    judged: tuple[float, float, float]
    """Lower quartile, median, upper quartile of the winner's cost on fresh seeds: the number to report."""
    fresh: int
    scores: list[tuple[Any, Score]]
    """Every candidate with its score at the level where it left the search, best first."""
    runs: int
    """Runs done by this search."""
    kept: int
    """Runs taken over from an earlier one."""


def candidates(method: Any, grid: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Every combination of the grid's values put into the method. `rho` stands for K eta_l/eta_g (FedPAGE).

    Combinations that the method refuses are left out; if none is left, the refusal is raised.
    """
    names = {field.name for field in dataclasses.fields(method)}
    unknown = [name for name in grid if name not in names | {"rho", "step"}]
    if unknown:
        raise InputError(
            f"{method.name} has no hyper-parameter {unknown[0]!r} to search; it has {', '.join(names)}"
        )
    if any(len(values) == 0 for values in grid.values()):
        raise InputError("every searched hyper-parameter needs at least one value")
    made: list[Any] = []
    refusal: InputError | None = None
    for combination in itertools.product(*grid.values()):
        values = dict(zip(grid, combination, strict=True))
        rho, step = values.pop("rho", None), values.pop("step", None)
        try:
            candidate = dataclasses.replace(method, **values)
            if step is not None:
                candidate = candidate.with_step(step)
            if rho is not None:
                candidate = dataclasses.replace(
                    candidate, eta_l=rho * candidate.eta_g / candidate.K
                )
        except InputError as error:
            refusal = error
            continue
        if candidate not in made:
            made.append(candidate)
    if not made and refusal is not None:
        raise refusal
    return made


def default_grid(method: Any, problem: Problem) -> dict[str, list[float]]:
    """Effective steps from 1/(16 L) to 4/L, half an octave apart, L that of f; for FedPAGE also rho = 0.01, 0.1, 1."""
    L = problem.smoothness().whole
    if not (math.isfinite(L) and L > 0):
        raise InputError(
            "the problem's smoothness is not a finite number above 0; give the steps to search"
        )
    steps = [_round_off(2.0 ** (k / 2) / L) for k in range(-8, 5)]
    grid: dict[str, list[float]] = {"step": steps}
    if hasattr(method, "local_step") and method.K > 1:
        grid["rho"] = [0.01, 0.1, 1.0]
    elif {"eta_g", "eta_l"} <= {field.name for field in dataclasses.fields(method)}:
        grid["eta_g"] = [0.5, 1.0, 2.0]
    return grid


def _round_off(value: float) -> float:
    """Two significant digits: a step that a person can type."""
    return float(f"{value:.2g}")


def cost_of(history: History, target: float, cost: str, costs: Costs) -> float:
    """What a run paid until its gradient norm was at most the target, while f(x) <= f(x0); inf if it never was."""
    if cost != "seconds":
        return history.cost_to("grad_norm", target, "round" if cost == "rounds" else cost)
    rounds = history.cost_to("grad_norm", target, "round")
    if not math.isfinite(rounds):
        return math.inf
    at = int(np.flatnonzero(history["round"] == rounds)[0])
    called = max(float(history["clients"][at]), 1.0)
    down, up = history["bytes_down"][at] / called, history["bytes_up"][at] / called
    work = history["gradients_per_client"][at] / max(rounds, 1.0)
    return costs.seconds(rounds, float(down), float(up), float(work))


def _trial(
    problem: Problem,
    method: AnyMethod,
    seed: int,
    target: float,
    rounds: int,
    record_every: int,
    cost: str,
    costs: Costs,
) -> Trial:
    history = simulate(
        problem,
        method,
        rounds=rounds,
        seed=seed,
        record_every=record_every,
        stop=Stop(grad_norm=target),
    )
    return Trial(cost_of(history, target, cost, costs), history.best("grad_norm"), history.diverged)


class Store:
    """Finished trials in a file of JSON lines, so that a search that was interrupted goes on where it ended."""

    def __init__(self, path: str | os.PathLike[str] | None, question: Mapping[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self._key = hashlib.sha256(
            json.dumps(question, sort_keys=True, default=str).encode()
        ).hexdigest()[:16]
        self._known: dict[str, Trial] = {}
        self._torn = False
        """The file's last line was cut off when its writer was killed."""
        if self._path is not None and self._path.exists():
            text = self._path.read_text(encoding="utf-8", errors="replace")
            self._torn = text != "" and not text.endswith("\n")
            for line in text.split("\n"):
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            if entry["search"] != self._key:
                return
            method, seed, diverged = entry["method"], entry["seed"], entry["diverged"]
            cost, best = (float(+entry[name]) for name in ("cost", "best"))
            if (
                type(method) is dict
                and type(seed) is int
                and type(diverged) is bool
                and cost >= 0
                and best >= 0
            ):
                self._known[self._name(method, seed)] = Trial(cost, best, diverged)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass  # a torn last line, or no trial: that run is done again

    def _name(self, method: Any, seed: int) -> str:
        about = method if isinstance(method, dict) else describe_method(method)
        return f"{json.dumps(about, sort_keys=True)} {seed}"

    def get(self, method: Any, seed: int) -> Trial | None:
        """The trial, if it was done before."""
        return self._known.get(self._name(method, seed))

    def put(self, method: Any, seed: int, trial: Trial) -> None:
        """Keep a trial; its line is on disk when this returns."""
        self._known[self._name(method, seed)] = trial
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {
            "search": self._key,
            "method": describe_method(method),
            "seed": seed,
            **dataclasses.asdict(trial),
        }
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(("\n" if self._torn else "") + json.dumps(entry) + "\n")
            self._torn = False
            stream.flush()
            os.fsync(stream.fileno())


def tune(
    problem: Problem,
    method: Any,
    *,
    target: float,
    cost: str = "rounds",
    grid: Mapping[str, Sequence[Any]] | None = None,
    rounds: int = 2000,
    record_every: int = 10,
    seeds: int = 8,
    fresh: int = 5,
    jobs: int | None = 1,
    costs: Costs | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Tuning:
    """Search hyper-parameters of a method for the least cost to reach a gradient norm of `target`.

    cost: "rounds", "clients" (contacts), "bytes", "bytes_up", "bytes_down", "gradients" or "seconds" (estimated, with
    `costs`). grid: values by hyper-parameter; also "step" (effective) and "rho" = K eta_l/eta_g; None: steps round 1/L.
    Level by level the better third of the candidates goes on to three times as many seeds, up to `seeds`. The winner
    is judged on `fresh` seeds that had no part in choosing. Runs go through joblib; with `store`, finished ones are
    kept and never run twice. Ends above f(x0), and records above it, count as not reached.
    """
    costs = costs or Costs()
    counts = {"rounds": rounds, "record_every": record_every, "seeds": seeds, "fresh": fresh}
    alive = checked(problem, method, target, cost, costs, grid, counts)
    question = {
        "problem": problem.describe(), "target": target, "cost": cost, "rounds": rounds, "record_every": record_every,
        "costs": dataclasses.asdict(costs), "version": __version__,
    }  # fmt: skip
    memory = Store(store, question)
    bench = _Bench(problem, memory, (target, rounds, record_every, cost, costs), jobs, progress)
    levels = _levels(len(alive), seeds)
    bench.expect(sum(count * (upto - before) for count, before, upto in levels) + fresh)
    scores: dict[Any, Score] = {}
    for count, before, upto in levels:
        alive = alive[:count]
        bench.run([(candidate, seed) for candidate in alive for seed in range(before, upto)])
        scores |= {candidate: bench.score(candidate, range(upto)) for candidate in alive}
        alive.sort(key=lambda candidate: scores[candidate].rank)
    winner = alive[0]
    ranking = sorted(scores.items(), key=lambda pair: (-pair[1].seeds, pair[1].rank))
    new_seeds = [10_000 + i for i in range(fresh)]
    bench.run([(winner, seed) for seed in new_seeds])
    paid = [bench.trial(winner, seed).cost for seed in new_seeds]
    quartiles = np.quantile(paid, (0.25, 0.5, 0.75), method="nearest")
    judged = (float(quartiles[0]), float(quartiles[1]), float(quartiles[2]))
    return Tuning(winner, cost, target, judged, fresh, ranking, bench.done, bench.kept)


def checked(
    problem: Problem, method: Any, target: float, cost: str, costs: Costs, grid: Mapping[str, Sequence[Any]] | None,
    counts: Mapping[str, int],
) -> list[Any]:  # fmt: skip
    """The candidates of a search, after refusing what cannot be asked."""
    if cost not in COSTS:
        near = get_close_matches(cost, COSTS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"cost must be one of {', '.join(COSTS)}, not {cost!r}{hint}")
    if not (math.isfinite(target) and target > 0):
        raise InputError(f"target must be a finite number above 0, not {target!r}")
    if cost == "seconds" and not costs.given:
        raise InputError(
            "cost 'seconds' needs at least one of latency, uplink, downlink or seconds per gradient"
        )
    for name, value in counts.items():
        check_whole(name, value, 1)
    made = candidates(method, default_grid(method, problem) if grid is None else grid)
    for candidate in made:
        candidate.init(np.zeros(problem.d, dtype_of(problem)), problem.N)
    return made


def _levels(count: int, seeds: int) -> list[tuple[int, int, int]]:
    """(candidates, seeds before, seeds after) of each level: a third of the candidates, three times the seeds."""
    levels, have, upto = [], 0, 1 if count > 3 else seeds
    while True:
        levels.append((count, have, upto))
        if upto >= seeds:
            return levels
        count, have, upto = max(min(3, count), math.ceil(count / 3)), upto, min(seeds, 3 * upto)


class _Bench:
    """Runs trials that are not known yet, and counts."""

    def __init__(
        self, problem: Problem, store: Store, rest: tuple[Any, ...], jobs: int | None, progress: Any
    ) -> None:
        self._problem, self._store, self._rest, self._jobs, self._progress = (
            problem,
            store,
            rest,
            jobs,
            progress,
        )
        self.done = self.kept = self._seen = self._expected = 0

    def expect(self, runs: int) -> None:
        self._expected = runs

    def run(self, tasks: Iterable[tuple[Any, int]]) -> None:
        from joblib import Parallel, delayed

        wanted = list(tasks)
        todo = [task for task in wanted if self._store.get(*task) is None]
        self.kept += len(wanted) - len(todo)
        self._seen += len(wanted) - len(todo)
        self._tell("")
        if self._jobs == 1:
            found: Any = (_trial(self._problem, m, s, *self._rest) for m, s in todo)
        else:
            work = (delayed(_trial)(self._problem, m, s, *self._rest) for m, s in todo)
            found = (
                Parallel()(work)
                if self._jobs is None
                else Parallel(n_jobs=max(1, min(self._jobs, len(todo))), return_as="generator")(
                    work
                )
            )
        for (candidate, seed), trial in zip(todo, found, strict=True):
            self._store.put(candidate, seed, trial)
            self.done += 1
            self._seen += 1
            self._tell(f"{candidate.name} step {candidate.effective_step:.3g}: {trial.cost:.4g}")

    def _tell(self, note: str) -> None:
        if self._progress:
            self._progress(self._seen, self._expected, note)

    def trial(self, candidate: Any, seed: int) -> Trial:
        trial = self._store.get(candidate, seed)
        assert trial is not None
        return trial

    def score(self, candidate: Any, seeds: Iterable[int]) -> Score:
        trials = [self.trial(candidate, seed) for seed in seeds]
        costs, bests = [t.cost for t in trials], [t.best for t in trials]
        return Score(
            float(np.quantile(costs, 0.5, method="higher")),
            float(np.quantile(bests, 0.5, method="higher")),
            len(trials),
        )
