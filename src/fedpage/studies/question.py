"""Ask a question of runs: what they cost until they reach a target."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from fedpage.core.capabilities import HasCode, HasConvexity
from fedpage.core.columns import Cost
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.metrics import METRICS
from fedpage.core.target import Stretch, Target, TargetLike
from fedpage.core.types import Problem, StopReason, Vector
from fedpage.core.validate import as_number
from fedpage.engine.devices import Devices, check_time
from fedpage.engine.simulate import execute
from fedpage.methods.schedules import effective_step
from fedpage.runs.fingerprint import code_digest, describe_start
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions, RunSpec, start_of
from fedpage.runs.store import parse_interval
from fedpage.studies.parallel import run_tasks
from fedpage.studies.space import Candidate
from fedpage.studies.trials import Trial, TrialStore
from fedpage.theory.constants import reference
from fedpage.theory.planner import TimeModel

FRESH_SEED = 10_000
"""The first seed on which a winner is judged; searches use 0, 1, ..."""

_LATE = "out of time"
"""How a run ends at a deadline; it is not a trial."""

Progress: TypeAlias = Callable[[int, int | None, str], None]
"""Called with the runs done, the runs in all if they are known, and a note."""


class SearchEnded(Exception):
    """The runs or the time of a search are used up."""


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of every run.

    Attributes:
        target: What is to be reached and held.
        cost: What to minimise.
        limit: The most that a run may cost, equal for all methods.
        record_every: Rounds between records.
        rounds: The most rounds of a run, however little they cost.
        gradients: The most row gradients of a run, so that none computes for hours.
        link: What estimated seconds depend on.
        devices: The clients' devices, for simulated seconds and deadlines; None: none.
    """

    target: Target
    cost: Cost
    limit: float = math.inf
    record_every: int = 10
    rounds: int = 20_000
    gradients: float = math.inf
    link: TimeModel = dataclasses.field(default_factory=TimeModel)
    devices: Devices | None = None

    def make_spec(self, problem: Problem, method: Candidate, seed: int) -> RunSpec:
        """Return the run of a method that answers the question."""
        options = RunOptions(devices=self.devices)
        return RunSpec(problem, method, self.rounds, seed, self.record_every, options=options)

    def costs(self, history: History) -> Vector:
        """Return what each record had cost by then, (records,); seconds are estimated."""

        def read(name: str) -> Vector:
            return self._seconds(history) if name == "seconds" else history[name]

        return self.cost.evaluate(read)

    def _seconds(self, history: History) -> Vector:
        called = np.maximum(history["clients"], 1.0)
        rounds = history["round"]
        rows = zip(
            rounds,
            history["bytes_down"] / called,
            history["bytes_up"] / called,
            history["gradients_per_client"] / np.maximum(rounds, 1.0),
            strict=True,
        )
        return np.array([self.link.seconds(*map(float, row)) for row in rows])

    def cost_of(self, history: History) -> float:
        """Return what a run paid until it reached the target, interpolated between records."""
        return history.interpolate_cost(self.target, self.costs(history))

    def describe(self, problem: Problem) -> dict[str, object]:
        """Return plain values that tell the runs of this question from others."""
        timed = {} if self.devices is None else {"devices": self.devices.describe()}
        return {
            **describe_problem(problem),
            "target": dataclasses.asdict(self.target),
            "cost": self.cost.name,
            "record_every": self.record_every,
            "rounds": self.rounds,
            "gradients": self.gradients,
            "link": dataclasses.asdict(self.link),
            **timed,
        }


def describe_problem(problem: Problem) -> dict[str, object]:
    """Return plain values that tell a problem from others: its data, its start and its code."""
    classes = {"problem": type(problem)}
    classes |= problem.code if isinstance(problem, HasCode) else {}
    return {
        "problem": problem.describe(),
        "start": describe_start(start_of(problem)),
        "code": {role: code_digest(cls) for role, cls in classes.items()},
    }


def parse_budget(budget: str | float) -> float:
    """Return the seconds of a time such as "60s", "5m" or "1h", or of a number of seconds.

    Raises:
        InputError: It is not a time above 0.

    >>> parse_budget("5m"), parse_budget(20)
    (300.0, 20.0)
    """
    seconds: float | None = None
    if isinstance(budget, str):
        with contextlib.suppress(InputError):
            seconds = parse_interval(budget)[1]
    elif 0 < as_number(budget) < math.inf:
        seconds = float(budget)
    if seconds is None:
        raise InputError(
            f"the budget must be a time such as 60s, 5m or 1h, not {short_repr(budget)}"
        )
    return seconds


def check_link(cost: Cost, link: TimeModel, devices: Devices | None = None) -> None:
    """Refuse seconds as a cost where nothing tells what takes time.

    Raises:
        InputError: The cost counts seconds, and all of `link` is at its defaults, or simulated
            seconds, and there are no devices.
    """
    check_time(cost, devices)
    if cost.is_estimated and not link.given:
        raise InputError(
            "cost 'seconds' needs at least one of latency, uplink, downlink or seconds per gradient"
        )


def resolve_target(problem: Problem, target: TargetLike) -> Target:
    """Check a target, and turn a gap into a loss.

    Args:
        problem: The problem.
        target: What is to be reached. The column "gap" is the loss above its minimum.

    Returns:
        The target, of a recorded column.

    Raises:
        InputError: If the column is not recorded, its direction is not known, the value is reached
            at the start, or the minimum of the loss is not known.
    """
    target = Target.parse(target)
    if target.column == "gap":
        if target.value <= 0:
            raise InputError(f"a gap must be above 0, not {target.value:g}")
        if not (isinstance(problem, HasConvexity) and problem.convex):
            raise InputError(
                "a gap needs the minimum of the loss, which is known for convex objectives only; "
                "choose a gradient norm, or loss:VALUE"
            )
        loss = float(f"{reference(problem).loss + target.value:.12g}")
        target = dataclasses.replace(target, column="loss", value=loss)
    column, recorded = target.column, problem.evaluate(start_of(problem))
    if column not in recorded:
        raise InputError(
            f"column {column!r} is not recorded;{did_you_mean(column, [*recorded, *METRICS])} "
            f"the problem records {', '.join(recorded)}"
        )
    if target.is_met(recorded[column], find_direction(problem, column)):
        raise InputError(
            f"{target.title} is reached before the first round, where it is "
            f"{recorded[column]:.4g}; choose a harder target"
        )
    return target


def find_direction(problem: Problem, column: str) -> bool:
    """Return True if a higher value of a column that the problem records is better."""
    return History({"problem": problem.describe()}).higher_is_better(column)


class _Watch:
    """End a run once its target has held, or at a cap, a limit or a deadline.

    At a cap or a limit the run goes on while its newest records are at the target, so that a
    stretch that began before runs to its end.
    """

    def __init__(
        self, question: Question, higher: bool, cap: float, deadline: float | None
    ) -> None:
        self._question, self._higher, self._cap = question, higher, cap
        self._deadline = deadline
        self._first: float | None = None
        self._stretch = Stretch(question.target.hold)

    def __call__(self, record: Mapping[str, float]) -> str | None:
        question, loss = self._question, record["loss"]
        self._first = loss if self._first is None else self._first
        is_met = question.target.is_met(record[question.target.column], self._higher)
        if self._stretch.add(record["round"], is_met and loss <= self._first):
            return "reached"
        if self._deadline is not None and time.monotonic() > self._deadline:
            return _LATE
        if self._stretch.round is not None:
            return None
        history = History()
        history.append(record)
        if float(question.costs(history)[0]) > self._cap:
            return "capped"
        return "too long" if record["gradients"] >= question.gradients else None


def run_trial(
    spec: RunSpec, question: Question, cap: float, deadline: float | None = None
) -> Trial | None:
    """Run a method until it reaches the target or has cost the cap.

    Args:
        spec: The run, as `Question.make_spec` returns it.
        question: What is asked.
        cap: The most that the run may cost; at most `question.limit`.
        deadline: When to end in any case, as `time.monotonic` counts; None: never.

    Returns:
        What it cost, and how it ended; None if the deadline ended it.
    """
    higher = find_direction(spec.problem, question.target.column)
    watch = _Watch(question, higher, min(cap, question.limit), deadline)
    history = execute(dataclasses.replace(spec, stop=watch))
    if history.stop_detail == _LATE:
        return None
    capped = history.stop_reason is StopReason.CALLBACK and history.stop_detail == "capped"
    return Trial(
        cost=question.cost_of(history),
        best=history.best(question.target.column),
        diverged=history.diverged,
        spent=float(question.costs(history)[-1]),
        rounds=int(history.last("round")),
        capped=capped,
    )


class Trials:
    """Run trials that are not in the store, and count them.

    Args:
        problem: The problem.
        question: What is asked.
        store: The file of finished trials; None keeps them in memory.
        jobs: Processes.
        progress: Called after each run.
        max_runs: The most new runs; None: any number.
        deadline: When to end, as `time.monotonic` counts; None: never.
    """

    def __init__(
        self,
        problem: Problem,
        question: Question,
        *,
        store: TrialStore | None = None,
        jobs: int | None = 1,
        progress: Progress | None = None,
        max_runs: int | None = None,
        deadline: float | None = None,
    ) -> None:
        self.problem, self.question = problem, question
        self.higher = find_direction(problem, question.target.column)
        self._store = TrialStore(None, question.describe(problem)) if store is None else store
        self.jobs, self.progress = jobs, progress
        self.max_runs, self.deadline = max_runs, deadline
        self.done = self.reused = 0
        self._seen: set[tuple[Candidate, int]] = set()

    def run(self, tasks: Sequence[tuple[Candidate, int, float]]) -> list[Trial]:
        """Run (method, seed, cap), all of them, and return their trials as these caps show them.

        Raises:
            SearchEnded: The runs or the time are used up.
        """
        question = self.question
        todo = list(dict.fromkeys(task for task in tasks if self.known(*task) is None))
        for method, seed, _ in tasks:
            if (method, seed) not in self._seen and (method, seed) not in {t[:2] for t in todo}:
                self.reused += 1
            self._seen.add((method, seed))
        if todo and self._is_over(len(todo)):
            raise SearchEnded
        # Runs end at the deadline by themselves; joblib would stop its processes within a batch.
        size = 1 if self.jobs == 1 else 8 * self.jobs if self.jobs else max(1, len(todo))
        for batch in (todo[first : first + size] for first in range(0, len(todo), size)):
            arguments = [
                (question.make_spec(self.problem, method, seed), question, cap, self.deadline)
                for method, seed, cap in batch
            ]
            trials = run_tasks(run_trial, arguments, self.jobs)
            for (method, seed, _), trial in zip(batch, trials, strict=True):
                if trial is None:
                    continue
                self._store.put(method, seed, trial)
                self.done += 1
                if self.progress:
                    self.progress(self.done + self.reused, self.max_runs, _note(method, trial))
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise SearchEnded
        found = [self.known(*task) for task in tasks]
        return [trial for trial in found if trial is not None]

    def ask(self, question: Question) -> None:
        """Ask another question from now on; trials of other questions do not answer it."""
        self.question = question
        self._store = self._store.of(question.describe(self.problem))

    def stored(self, method: Candidate, seed: int) -> Trial:
        """Return a trial that has been run."""
        trial = self._store.get(method, seed)
        assert trial is not None
        return trial

    def _is_over(self, count: int) -> bool:
        late = self.deadline is not None and time.monotonic() > self.deadline
        return late or (self.max_runs is not None and self.done + count > self.max_runs)

    def known(self, method: Candidate, seed: int, cap: float) -> Trial | None:
        """Return the stored trial as it would have ended at this cap; None: it must be run."""
        trial = self._store.get(method, seed)
        cap = min(cap, self.question.limit)
        if trial is None or (trial.capped and trial.spent <= cap):
            return None
        if trial.spent > cap and not trial.cost <= cap:
            return dataclasses.replace(trial, cost=math.inf, capped=True)
        return trial


def _note(method: Candidate, trial: Trial) -> str:
    cost = f"{trial.cost:.4g}" if math.isfinite(trial.cost) else "not reached"
    return f"{method.name} step {effective_step(method):.3g}: {cost}"
