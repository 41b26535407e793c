"""Check the tuner on problems with known optima, and compare it with Optuna at equal runs.

    python benchmarks/tuner.py known      # a minute
    python benchmarks/tuner.py compare    # half an hour; needs optuna, and mushrooms and a9a

`known` plants optima: the best step of gradient descent in closed form, steps a hundred times
beyond the first design on both sides, and values of S, K and p that only a search on these axes
finds. `compare` gives random search and Optuna's TPE the same space, the same caps, the same seeds
and at least as many runs as the tuner took, and evaluates all winners on the same held-out seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

import fedpage as fp
from fedpage.core.columns import Cost
from fedpage.core.types import Smoothness
from fedpage.methods.fair import default_method
from fedpage.runs import build
from fedpage.runs.config import ProblemConfig
from fedpage.studies.search import CAP, Search
from fedpage.studies.space import Axis, search_space
from fedpage.studies.statistics import CostSample
from fedpage.studies.trials import HELD_OUT_SEED, Question, Trials
from fedpage.studies.tuning import limit_runs, tune
from fedpage.studies.tuning_result import Tuning, coordinate

SEEDS = 10
"""Seeds of a comparison in the search, as in `tune`."""

# --- known optima ---------------------------------------------------------------------------------


def quadratic(clients: int = 16, d: int = 10, ratio: float = 20.0, wrong: float = 1.0) -> Any:
    """Return equal clients with eigenvalues from 1 to `ratio`.

    Args:
        clients: The number of clients.
        d: The dimension.
        ratio: The condition number.
        wrong: A factor by which `smoothness` is wrong, which plants the best step elsewhere.
    """
    A = np.diag(np.geomspace(1.0, ratio, d))
    b = np.ones((clients, 2, d))

    class Mistaken(fp.Quadratic):
        def smoothness(self) -> Smoothness:
            return Smoothness(*(wrong * L for L in super().smoothness()))

    return Mistaken(np.stack([A] * clients), b)


@dataclass(frozen=True)
class Planted(fp.FedAvg):
    """Gradient descent that is fastest at planted values of S, K and p, by its own rule."""

    name: ClassVar[str] = "Planted"
    p: float = 0.5
    best: ClassVar[dict[str, float]] = {"S": 4, "K": 80, "p": 1 / 64}

    @property
    def effective_step(self) -> float:
        return self.eta_l

    def with_step(self, step: float) -> Self:
        return dataclasses.replace(self, eta_l=step)

    def client(self, message: Any, oracle: Any, client_state: None) -> Any:
        away = sum(math.log2(getattr(self, name) / value) ** 2 for name, value in self.best.items())
        once = dataclasses.replace(self, K=1)
        reply, kept = fp.FedAvg.client(once, message, oracle, client_state)
        slow = np.geomspace(math.exp(-0.05 * away), 1.0, reply.dy.shape[-1])
        return type(reply)(reply.dy * slow), kept  # no step makes up for it


@dataclass(frozen=True)
class Known:
    """A search with a known answer, and the ratio to it that counts as found."""

    name: str
    problem: Any
    method: Any
    answer: Mapping[str, float]
    options: Mapping[str, Any]
    within: float = math.sqrt(2.0) * 1.001


def known_cases() -> list[Known]:
    """List the planted optima."""
    ratio = 20.0
    best = 2 / (1 + ratio)  # 2/(L + mu)
    descent = fp.FedAvg(S=16, K=1, eta_g=1.0, b=None)
    steps = {"target": 1e-6, "fixed": ["S", "K", "b", "eta_g"], "record_every": 1}
    five = dataclasses.replace(descent, K=5)
    planted = Planted(S=16, K=10, b=None)
    rules = {"target": 1e-6, "fixed": ["b", "eta_g"], "rounds": 4000}
    return [
        Known("gradient descent: 2/(L+mu)", quadratic(), descent, {"step": best}, steps),
        Known("5 local steps, equal clients", quadratic(), five, {"step": 5 * best}, steps),
        Known("SCAFFOLD, 5 local steps", quadratic(), fp.SCAFFOLD(S=16, K=5, eta_g=1.0, b=None),
              {"step": 5 * best}, steps | {"fixed": ["S", "K", "b", "eta_g"]}),
        Known("step 100 times above", quadratic(wrong=100), descent, {"step": best}, steps),
        Known("step 100 times below", quadratic(wrong=0.01), descent, {"step": best}, steps),
        Known("given grid, 100 times below the best", quadratic(), descent, {"step": best},
              {"target": 1e-6, "search": {"step": [2e-4, 4e-4, 8e-4]}, "record_every": 1}, 2.001),
        Known("given grid, 100 times above the best", quadratic(), descent, {"step": best},
              {"target": 1e-6, "search": {"step": [3.0, 6.0, 12.0]}, "record_every": 1}, 2.001),
        Known("planted S = 4, K = 80, p = 1/64", quadratic(), planted, Planted.best, rules, 2.001),
    ]  # fmt: skip


def is_found(case: Known, found: Tuning) -> bool:
    """Return True if a search found the answer within an index on each axis."""
    values = {name: float(coordinate(found.method, name)) for name in case.answer}
    near = (abs(math.log(values[name] / value)) for name, value in case.answer.items())
    return found.first.is_local_optimum and all(ratio <= math.log(case.within) for ratio in near)


def check_known() -> bool:
    """Print what the tuner finds for each planted optimum; return whether it finds them all."""
    ok = True
    print("| planted | answer | found | runs | found it |\n|---|---|---|---:|---|")
    for case in known_cases():
        found = tune(case.problem, case.method, seeds=3, held_out_seeds=3, **case.options)
        good = is_found(case, found)
        ok &= good
        answer = ", ".join(f"{name} {value:.3g}" for name, value in case.answer.items())
        values = ", ".join(f"{n} {float(coordinate(found.method, n)):.3g}" for n in case.answer)
        print(f"| {case.name} | {answer} | {values} | {found.runs} | {'yes' if good else 'no'} |")
    return ok


# --- proposals at equal numbers of runs -----------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """A search that several ways of proposing candidates compete in."""

    name: str
    problem: Callable[[], Any]
    method: str
    target: float
    cost: str = "bytes"


def mushrooms() -> Any:
    config = ProblemConfig(
        "mushrooms", clients=100, objective="logistic-l2", partition="dirichlet:0.3"
    )
    return build.build_problem(config)


def a9a() -> Any:
    data = fp.load("a9a")
    small = data[:4000]
    return fp.RobustRegression(small, clients=200)


def noisy_quadratic() -> Any:
    rng = np.random.default_rng(0)
    A = np.stack([np.diag(rng.uniform(0.2, 5.0, 20)) for _ in range(50)])
    return fp.Quadratic(A, rng.normal(size=(50, 20, 20)))


CONTESTS = [
    *(Contest(f"mushrooms, {m}", mushrooms, m, 5e-3) for m in ("fedpage", "scaffold")),
    *(Contest(f"a9a, {m}", a9a, m, 0.02) for m in ("fedpage", "scaffold")),
    Contest("quadratic, fedpage", noisy_quadratic, "fedpage", 1e-3),
]


class Box:
    """Propose points of a space whose open axes are cut six factors of two from their start."""

    def __init__(self, search: Search, axes: Mapping[str, Axis]) -> None:
        self.search, self.axes = search, axes
        self.ranges = {name: self._range(axis) for name, axis in axes.items()}

    @staticmethod
    def _range(axis: Axis) -> tuple[int, int]:
        indices = 12 if axis.name == "step" else 6
        if not axis.is_ordered:
            return 0, len(axis.values) - 1
        return axis.move(axis.start, -indices), axis.move(axis.start, indices)

    def score(self, point: tuple[int, ...], best: list[float], trials: Trials) -> float:
        """Return the mean log of the cost over the best's; stop early where it is worse."""
        candidate = self.search.method_at(point)
        if candidate is None:
            return 5.0
        ratios: list[float] = []
        for seed in range(SEEDS):
            cap = CAP * best[seed]
            (trial,) = trials.run([(candidate, seed, cap)])
            if not math.isfinite(trial.cost):
                near = abs(math.log(max(trial.best, 1e-300) / trials.question.target.value))
                ratios.append(math.log(2 * CAP) + min(3.0, 0.1 * near))
            elif math.isfinite(best[seed]):
                ratios.append(math.log(trial.cost / best[seed]))
            else:
                ratios.append(-math.log(2 * CAP))
            mean = float(np.mean(ratios))
            if (seed == 0 and mean > 0.15) or (seed == 2 and mean > 0.03):
                return mean
        return mean


def propose(
    kind: str,
    trials: Trials,
    method: Any,
    axes: Mapping[str, Axis],
    runs: int,
    seed: int,
) -> tuple[Any, int]:
    """Search by random or by Optuna's proposals until they have taken at least `runs` runs."""
    box = Box(Search(trials, method, axes), axes)
    rng = np.random.default_rng(seed)
    study: Any = None
    if kind == "optuna":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=20)
        study = optuna.create_study(sampler=sampler)
        study.enqueue_trial({name: axis.start for name, axis in axes.items()})
    costs, incumbent = [math.inf] * SEEDS, None
    level = 0.0  # log of the incumbent's cost over the first incumbent's
    while trials.done < runs:
        if study is not None:
            asked = study.ask()
            point = tuple(asked.suggest_int(name, *box.ranges[name]) for name in axes)
        else:
            point = tuple(int(rng.integers(a, b + 1)) for a, b in box.ranges.values())
        ratio = box.score(point, costs, trials)
        if study is not None:
            study.tell(asked, ratio + level)
        if ratio < 0 and point != incumbent:
            incumbent = point
            candidate = box.search.method_at(point)
            done = trials.run([(candidate, s, math.inf) for s in range(SEEDS)])
            level += ratio if any(map(math.isfinite, costs)) else 0.0
            costs = [trial.cost for trial in done]
    return box.search.method_at(incumbent), trials.done


def compare(repeats: int, only: str) -> None:
    """Print the cost of the winners of each search on held-out seeds."""
    print("| search | dimensions | way | runs | held-out seeds: median [interval] | seconds |")
    print("|---|---:|---|---:|---|---:|")
    for contest in CONTESTS:
        if only not in contest.name:
            continue
        problem = contest.problem()
        entry = build.find_method(contest.method)
        if isinstance(problem, fp.Quadratic):
            method = entry(S=10).with_step(1 / problem.smoothness().whole)
        else:
            method = default_method(entry, {}, problem)
        axes = search_space(method, problem)
        options: dict[str, Any] = {"target": contest.target, "cost": contest.cost, "rounds": 500}
        asked = Question(fp.Target.parse(contest.target), Cost.parse(contest.cost), rounds=500)
        question, limit = limit_runs(asked.checked(problem), problem, method)
        began = time.perf_counter()
        found = tune(problem, method, fixed=(), codecs=False, held_out_seeds=20, **options)
        line(contest, axes, "one axis at a time", found.runs - 20, found.first.sample, began)
        for kind in ("random", "optuna"):
            for seed in range(repeats):
                began = time.perf_counter()
                trials = Trials(problem, question, limit)
                winner, runs = propose(kind, trials, method, axes, found.runs - 20, seed)
                sample = None
                if winner is not None:
                    final = Trials(problem, question, limit).run(
                        [(winner, HELD_OUT_SEED + s, math.inf) for s in range(20)]
                    )
                    sample = CostSample(tuple(trial.cost for trial in final))
                line(contest, axes, f"{kind} {seed}", runs, sample, began)


def line(
    contest: Contest,
    axes: Mapping[str, Axis],
    way: str,
    runs: int,
    sample: CostSample | None,
    began: float,
) -> None:
    text = "nothing" if sample is None else sample.text("B")
    spent = time.perf_counter() - began
    print(f"| {contest.name} | {len(axes)} | {way} | {runs} | {text} | {spent:.0f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("known", "compare"))
    parser.add_argument("--repeats", type=int, default=3, help="seeds of random and of Optuna")
    parser.add_argument("--only", default="", help="a part of the names of contests")
    given = parser.parse_args()
    if given.part == "compare":
        compare(given.repeats, given.only)
        return 0
    return 0 if check_known() else 1


if __name__ == "__main__":
    sys.exit(main())
