"""Run and store the trials of a tuning: runs that end at a target, a cap or a deadline."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from fedpage.core.capabilities import HasCode, is_convex
from fedpage.core.columns import Cost
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.metrics import METRICS
from fedpage.core.target import Stretch, Target, TargetLike
from fedpage.core.types import AnyMethod, Problem, StopReason, Vector
from fedpage.core.validate import as_number
from fedpage.engine.devices import Devices, check_time
from fedpage.engine.simulate import execute
from fedpage.methods.registry import describe_method
from fedpage.methods.schedules import effective_step
from fedpage.runs.fingerprint import (
    Code,
    code_digest,
    describe_start,
    digest,
    method_code,
    method_digest,
    result_key,
)
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions, RunSpec, start_of
from fedpage.runs.store import parse_interval
from fedpage.studies.parallel import run_tasks
from fedpage.theory.constants import reference
from fedpage.theory.planner import TimeModel

HELD_OUT_SEED = 10_000
"""The first held-out seed, on which winners are evaluated. Searches use 0, 1, ..."""

_LATE = "out of time"
"""The stop detail of a run that ended at a deadline. It is not a trial."""

Progress: TypeAlias = Callable[[int, int | None, str], None]
"""Called with the progress so far, the total if it is known, and a note."""

Task: TypeAlias = tuple[AnyMethod, int, float]
"""A method, a seed, and the most that the run may cost."""


class SearchEnded(Exception):
    """The runs or the time of a search are used up."""


@dataclass(frozen=True)
class Question:
    """What is asked of every run.

    Attributes:
        target: The target to reach and hold.
        cost: The cost to minimise.
        limit: The most that a run may cost, equal for all methods.
        record_every: Rounds between records.
        rounds: The most rounds of a run, however little they cost.
        gradients: The most row gradients of a run, so that none computes for hours.
        link: Latency, bandwidth and speed, for estimated seconds.
        devices: The clients' devices, for simulated seconds and deadlines, or None.
    """

    target: Target
    cost: Cost
    limit: float = math.inf
    record_every: int = 10
    rounds: int = 20_000
    gradients: float = math.inf
    link: TimeModel = field(default_factory=TimeModel)
    devices: Devices | None = None

    def make_spec(self, problem: Problem, method: AnyMethod, seed: int) -> RunSpec:
        """Return the run of a method that answers the question."""
        options = RunOptions(devices=self.devices)
        return RunSpec(problem, method, self.rounds, seed, self.record_every, options=options)

    def costs(self, history: History) -> Vector:
        """Return the cost up to each record, (records,). Seconds are estimated."""
        return self.cost.evaluate(
            lambda name: self._seconds(history) if name == "seconds" else history[name]
        )

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
        """Return the cost of a run to the target, as `History.cost_to` interpolates it."""
        return history.interpolate_cost(self.target, self.costs(history))

    def describe(self, problem: Problem) -> dict[str, object]:
        """Return plain values that tell the runs of this question from others."""
        timed = {} if self.devices is None else {"devices": self.devices.describe()}
        return {
            **describe_problem(problem),
            "target": asdict(self.target),
            "cost": self.cost.name,
            "record_every": self.record_every,
            "rounds": self.rounds,
            "gradients": self.gradients,
            "link": asdict(self.link),
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
        InputError: If it is not a time above 0.

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
    """Refuse seconds as a cost if nothing says what takes time.

    Raises:
        InputError: If the cost counts seconds and all of `link` is at its defaults, or it counts
            simulated seconds and there are no devices.
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
        target: The target to reach. The column "gap" is the loss above its minimum.

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
        if not is_convex(problem):
            raise InputError(
                "a gap needs the minimum of the loss, which is known for convex objectives only; "
                "choose a gradient norm, or loss:VALUE"
            )
        loss = float(f"{reference(problem).loss + target.value:.12g}")
        target = replace(target, column="loss", value=loss)
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


# --- one trial ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        cost: The cost to the target, or inf if it was not reached.
        best: The best value of the target's column.
        diverged: Whether the run diverged.
        spent: The cost of the whole run.
        rounds: Its rounds.
        capped: Whether it ended at its cap before it reached the target.
        value: The value of the column at the end.
        at_end: Whether the run ends at the target.
    """

    cost: float
    best: float
    diverged: bool
    spent: float
    rounds: int
    capped: bool
    value: float = 0.0
    at_end: bool = False


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
) -> tuple[Trial, History | None] | None:
    """Run a method until it holds the target or has cost the cap.

    Args:
        spec: The run, as `Question.make_spec` returns it.
        question: What is asked.
        cap: The most that the run may cost; at most `question.limit`.
        deadline: When to end in any case, as `time.monotonic` counts. If None, never.

    Returns:
        The trial, and its run if the seed is held out, or None if the deadline ended it.
    """
    target = question.target
    higher = find_direction(spec.problem, target.column)
    watch = _Watch(question, higher, min(cap, question.limit), deadline)
    history = execute(replace(spec, stop=watch))
    if history.stop_detail == _LATE:
        return None
    trial = Trial(
        cost=question.cost_of(history),
        best=history.best(target.column),
        value=history.last(target.column),
        at_end=history.ends_at(target),
        diverged=history.diverged,
        spent=float(question.costs(history)[-1]),
        rounds=int(history.last("round")),
        capped=history.stop_reason is StopReason.CALLBACK and history.stop_detail == "capped",
    )
    return trial, history if spec.seed >= HELD_OUT_SEED else None


# --- many trials ----------------------------------------------------------------------------------


class TrialStore:
    """Finished trials in a file of JSON lines, from which an interrupted search continues.

    A trial is found again by the question, the method with all its hyper-parameters, the code of
    the method and of its codecs, the versions, and the seed. A line whose digest differs is
    ignored, and its run is repeated.

    Args:
        path: The file. If None, the trials are kept in memory only.
        question: Plain values that identify the question, the problem, its data and its code. The
            file may hold trials of others.
    """

    def __init__(self, path: str | os.PathLike[str] | None, question: Mapping[str, object]) -> None:
        self._path = None if path is None else Path(path)
        self._key = result_key(question)[:16]
        self._trials: dict[tuple[str, int], Trial] = {}
        self._keys: dict[AnyMethod, str] = {}
        self._codes: dict[tuple[Code, ...], str] = {}
        self._is_incomplete = False
        """Whether the last line of the file is incomplete, because its writer was killed."""
        if self._path is not None and self._path.exists():
            text = self._path.read_text(encoding="utf-8", errors="replace")
            self._is_incomplete = text != "" and not text.endswith("\n")
            for line in text.split("\n"):
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            if entry["question"] != self._key or entry.pop("digest") != digest(entry):
                return  # of another question, or changed since it was written
            key, seed = msgspec.convert((entry["key"], entry["seed"]), tuple[str, int])
            values = {each.name: entry[each.name] for each in fields(Trial)}
            trial = msgspec.convert(values, Trial)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return  # an incomplete line, or not a trial: the run is repeated
        if trial.cost >= 0 and trial.spent >= 0 and not math.isnan(trial.best):
            self._trials[key, seed] = trial

    def _key_of(self, method: AnyMethod) -> str:
        """Return a digest of the method, its hyper-parameters and its code."""
        if method not in self._keys:
            classes = tuple(method_code(method).values())
            if classes not in self._codes:
                self._codes[classes] = method_digest(method)
            about = json.dumps([describe_method(method), self._codes[classes]], sort_keys=True)
            self._keys[method] = hashlib.sha256(about.encode()).hexdigest()[:16]
        return self._keys[method]

    def of(self, question: Mapping[str, object]) -> TrialStore:
        """Return the trials of another question, in the same file."""
        return TrialStore(self._path, question)

    def get(self, method: AnyMethod, seed: int) -> Trial | None:
        """Return the trial, or None if it has not been run."""
        return self._trials.get((self._key_of(method), seed))

    def put(self, method: AnyMethod, seed: int, trial: Trial) -> None:
        """Add a trial. Its line is on disk when this returns."""
        key = self._key_of(method)
        self._trials[key, seed] = trial
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"question": self._key, "key": key, "seed": seed, **asdict(trial)}
        entry["method"] = describe_method(method)
        entry["digest"] = digest(json.loads(json.dumps(entry)))
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(("\n" if self._is_incomplete else "") + json.dumps(entry) + "\n")
            self._is_incomplete = False
            stream.flush()
            os.fsync(stream.fileno())


class Trials:
    """Run the trials that are not in the store, and count them.

    Args:
        problem: The problem.
        question: What is asked.
        store: The file of finished trials. If None, they are kept in memory.
        jobs: Processes. If None, joblib's current backend decides.
        progress: Called after each run.
        max_runs: The most new runs, or None for any number.
        deadline: When to end, as `time.monotonic` counts, or None for never.
    """

    def __init__(
        self,
        problem: Problem,
        question: Question,
        *,
        store: str | os.PathLike[str] | None = None,
        jobs: int | None = 1,
        progress: Progress | None = None,
        max_runs: int | None = None,
        deadline: float | None = None,
    ) -> None:
        self.problem, self.question = problem, question
        self.higher = find_direction(problem, question.target.column)
        self._store = TrialStore(store, question.describe(problem))
        self.jobs, self.progress = jobs, progress
        self.max_runs, self.deadline = max_runs, deadline
        self.done = self.reused = 0
        self._seen: set[tuple[AnyMethod, int]] = set()
        self._held_out: dict[tuple[AnyMethod, int], History] = {}

    def run(self, tasks: Sequence[Task]) -> list[Trial]:
        """Run (method, seed, cap), all of them, and return their trials as these caps show them.

        Raises:
            SearchEnded: If the runs or the time are used up.
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
            results = run_tasks(run_trial, arguments, self.jobs)
            for (method, seed, _), found in zip(batch, results, strict=True):
                if found is None:
                    continue
                trial, history = found
                self._store.put(method, seed, trial)
                if history is not None:
                    self._held_out[method, seed] = history
                self.done += 1
                if self.progress:
                    self.progress(self.done + self.reused, self.max_runs, _note(method, trial))
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise SearchEnded
        found_trials = [self.known(*task) for task in tasks]
        return [trial for trial in found_trials if trial is not None]

    def ask(self, question: Question) -> None:
        """Ask another question from now on. Trials of other questions do not answer it."""
        self.question = question
        self._store = self._store.of(question.describe(self.problem))

    def stored(self, method: AnyMethod, seed: int) -> Trial:
        """Return a trial that has been run."""
        trial = self._store.get(method, seed)
        assert trial is not None
        return trial

    def find(self, method: AnyMethod, seed: int) -> Trial | None:
        """Return a trial as the present limit shows it, also one that ended at a lower cap."""
        return self.known(method, seed, math.inf) or self._store.get(method, seed)

    def history(self, method: AnyMethod, seed: int) -> History:
        """Return the run of a trial on a held-out seed. If it was stored, run it again."""
        if (method, seed) not in self._held_out:
            spec = self.question.make_spec(self.problem, method, seed)
            found = run_trial(spec, self.question, math.inf)
            assert found is not None
            assert found[1] is not None
            self._held_out[method, seed] = found[1]
        return self._held_out[method, seed]

    def _is_over(self, count: int) -> bool:
        late = self.deadline is not None and time.monotonic() > self.deadline
        return late or (self.max_runs is not None and self.done + count > self.max_runs)

    def known(self, method: AnyMethod, seed: int, cap: float) -> Trial | None:
        """Return the stored trial as it would have ended at this cap, or None if there is none."""
        trial = self._store.get(method, seed)
        cap = min(cap, self.question.limit)
        if trial is None or (trial.capped and trial.spent <= cap):
            return None
        if trial.spent > cap and not trial.cost <= cap:
            return replace(trial, cost=math.inf, capped=True)
        return trial


def _note(method: AnyMethod, trial: Trial) -> str:
    cost = f"{trial.cost:.4g}" if math.isfinite(trial.cost) else "not reached"
    return f"{method.name} step {effective_step(method):.3g}: {cost}"
