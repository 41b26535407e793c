"""Run and store the trials of a tuning: runs that end at a target, a cap or a deadline."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from fedpage.core.capabilities import HasCode, is_convex
from fedpage.core.columns import Cost, Stretch, Target
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import AnyMethod, Problem, Vector
from fedpage.core.validate import as_number, check_whole
from fedpage.engine.devices import Devices, check_time
from fedpage.engine.simulate import execute
from fedpage.engine.stopping import check_target
from fedpage.methods.registry import describe_method
from fedpage.methods.schedules import effective_step
from fedpage.runs.fingerprint import describe_start, fingerprint, method_digest, result_key
from fedpage.runs.history import History
from fedpage.runs.spec import RunOptions, RunSpec, start_of
from fedpage.runs.store import parse_interval
from fedpage.runs.toml import digest
from fedpage.studies.run_archive import run_tasks
from fedpage.theory.constants import reference
from fedpage.theory.planner import TimeModel

HELD_OUT_SEED = 10_000
"""The first held-out seed, on which winners are evaluated. Searches use 0, 1, ..."""

_CAPPED, _LATE = "capped", "out of time"
"""The stop details of a run that ended at its cap, or at a deadline. The latter is not a trial."""

Progress: TypeAlias = Callable[[int, int | None, str], None]
"""Called with the progress so far, the total if it is known, and a note."""

Task: TypeAlias = tuple[AnyMethod, int, float]
"""A method, a seed, and the most that the run may cost."""


class SearchEnded(Exception):
    """The runs or the time of a search are used up."""


# --- the question ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What is asked of every run.

    Attributes:
        target: The target to reach and hold. The column "gap" is the loss above its minimum.
        cost: The cost to minimise.
        record_every: Rounds between records.
        rounds: The most rounds of a run, however little they cost.
        gradients: The most row gradients of a run, so that none computes for hours.
        link: Latency, bandwidth and speed, for estimated seconds.
        devices: The clients' devices, for simulated seconds and deadlines, or None.
    """

    target: Target
    cost: Cost
    record_every: int = 10
    rounds: int = 20_000
    gradients: float = math.inf
    link: TimeModel = field(default_factory=TimeModel)
    devices: Devices | None = None

    def checked(self, problem: Problem) -> Question:
        """Check the question before any run, and return it with a recorded column as its target.

        Raises:
            InputError: If a number or the cost cannot be used, the target's column is not recorded,
                its value is reached at the start, or the minimum of the loss is not known.
        """
        check_whole("rounds", self.rounds, 1)
        check_whole("record_every", self.record_every, 1)
        check_link(self.cost, self.link, self.devices)
        goal = self.target
        if goal.column == "gap":
            if goal.value <= 0:
                raise InputError(f"a gap must be above 0, not {goal.value:g}")
            if not is_convex(problem):
                raise InputError(
                    "a gap needs the minimum of the loss, which is known for convex objectives "
                    "only; choose a gradient norm, or loss:VALUE"
                )
            loss = float(f"{reference(problem).loss + goal.value:.12g}")
            goal = replace(goal, column="loss", value=loss)
        value = check_target(problem, goal)[goal.column]
        if goal.is_met(value, find_direction(problem, goal.column)):
            raise InputError(
                f"{goal.title} is reached before the first round, where it is {value:.4g}; "
                "choose a harder target"
            )
        return replace(self, target=goal)

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
        called, rounds = np.maximum(history["clients"], 1.0), history["round"]
        down, up = history["bytes_down"] / called, history["bytes_up"] / called
        gradients = history["gradients_per_client"] / np.maximum(rounds, 1.0)
        return np.asarray(self.link.seconds(rounds, down, up, gradients))  # type: ignore[arg-type]

    def cost_of(self, history: History) -> float:
        """Return the cost of a run to the target, as `History.cost_to` interpolates it."""
        return history.interpolate_cost(self.target, self.costs(history))

    def key(self, problem: Problem) -> str:
        """Return a digest that tells the runs of this question from others."""
        about = {
            **vars(self),
            "target": asdict(self.target),
            "cost": self.cost.name,
            "link": asdict(self.link),
            "devices": None if self.devices is None else self.devices.describe(),
            "problem": problem.describe(),
            "start": describe_start(start_of(problem)),
        }
        code = problem.code if isinstance(problem, HasCode) else {}
        return result_key(fingerprint(about, {"problem": type(problem), **code}))


def check_link(cost: Cost, link: TimeModel, devices: Devices | None = None) -> None:
    """Refuse seconds as a cost if nothing says what takes time.

    Raises:
        InputError: If the cost counts seconds and all of `link` is at its defaults, or it counts
            simulated seconds and there are no devices.
    """
    check_time(cost, devices)
    if cost.counts("seconds") and not link.given:
        raise InputError(
            "cost 'seconds' needs at least one of latency, uplink, downlink or seconds per gradient"
        )


def parse_budget(budget: str | float) -> float:
    """Return the seconds of a time such as "60s", "5m" or "1h", or of a number of seconds.

    Raises:
        InputError: If it is not a time above 0.

    >>> parse_budget("5m"), parse_budget(20)
    (300.0, 20.0)
    """
    seconds: float | None = None
    with contextlib.suppress(InputError):
        seconds = parse_interval(budget)[1] if isinstance(budget, str) else as_number(budget)
    if seconds is None or not 0 < seconds < math.inf:
        raise InputError(
            f"the budget must be a time such as 60s, 5m or 1h, not {short_repr(budget)}"
        )
    return seconds


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
        spent: The cost of the whole run.
        rounds: Its rounds.
        capped: Whether it ended at its cap before it reached the target.
        value: The value of the column at the end.
        at_end: Whether the run ends at the target.
    """

    cost: float
    best: float
    spent: float
    rounds: int
    capped: bool
    value: float = 0.0
    at_end: bool = False


def run_trial(
    spec: RunSpec, question: Question, cap: float, deadline: float = math.inf
) -> tuple[Trial, History | None] | None:
    """Run a method until it holds the target or has cost the cap.

    At its cap the run goes on while its newest records are at the target, so that a
    stretch that began before runs to its end.

    Args:
        spec: The run, as `Question.make_spec` returns it.
        question: What is asked.
        cap: The most that the run may cost.
        deadline: When to end in any case, as `time.monotonic` counts.

    Returns:
        The trial, and its run if the seed is held out, or None if the deadline ended it.
    """
    if time.monotonic() > deadline:
        return None
    target, higher = question.target, find_direction(spec.problem, question.target.column)
    stretch, losses = Stretch(target.hold), list[float]()

    def watch(record: Mapping[str, float]) -> str | None:
        losses.append(record["loss"])
        is_met = target.is_met(record[target.column], higher) and losses[-1] <= losses[0]
        if stretch.add(record["round"], is_met):
            return "reached"
        if time.monotonic() > deadline:
            return _LATE
        if stretch.round is not None:
            return None
        so_far = History()
        so_far.append(record)
        if float(question.costs(so_far)[0]) > cap:
            return _CAPPED
        return "too long" if record["gradients"] >= question.gradients else None

    history = execute(replace(spec, stop=watch))
    if history.stop_detail == _LATE:
        return None
    trial = Trial(
        cost=question.cost_of(history),
        best=history.best(target.column),
        spent=float(question.costs(history)[-1]),
        rounds=int(history.last("round")),
        capped=history.stop_detail == _CAPPED,
        value=history.last(target.column),
        at_end=history.ends_at(target),
    )
    return trial, history if spec.seed >= HELD_OUT_SEED else None


# --- many trials ----------------------------------------------------------------------------------


def read_trials(path: Path) -> dict[str, Trial]:
    """Return the trials of a file by key. A line whose digest differs is ignored."""
    found: dict[str, Trial] = {}
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.split("\n"):
        try:
            entry = json.loads(line)
            if entry.pop("digest") == digest(entry):
                found[entry["key"]] = msgspec.convert(entry["trial"], Trial)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # an incomplete line, or not a trial: the run is repeated
    return found


def append_trial(path: Path, entry: dict[str, object]) -> None:
    """Add a line with a digest to a file. It is on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = json.loads(json.dumps(entry))
    line = json.dumps({**entry, "digest": digest(entry)})
    with open(path, "a+b") as stream:
        stream.seek(max(0, stream.tell() - 1))
        is_incomplete = stream.read() not in (b"", b"\n")  # its last writer was killed
        stream.write(("\n" * is_incomplete + line + "\n").encode())
        stream.flush()
        os.fsync(stream.fileno())


@dataclass(eq=False)
class Trials:
    """Run the trials that are not in the store, and count them.

    A stored trial is used for the same question, hyper-parameters, code, versions and seed.

    Attributes:
        problem: The problem.
        question: What is asked. Use `ask` to ask another question.
        limit: The most that a run may cost, equal for all methods.
        store: A file of JSON lines with the finished trials, from which an interrupted search
            continues. If None, they are kept in memory.
        jobs: Processes. If None, joblib's current backend decides.
        progress: Called after each run.
        max_runs: The most new runs, or None for any number.
        deadline: When to end, as `time.monotonic` counts.
        done: The number of new runs.
        reused: The number of runs that were taken from the store.
        higher: Whether higher values of the target's column are better.
    """

    problem: Problem
    question: Question
    limit: float = math.inf
    store: str | os.PathLike[str] | None = None
    jobs: int | None = 1
    progress: Progress | None = None
    max_runs: int | None = None
    deadline: float = math.inf
    done: int = field(default=0, init=False)
    reused: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.ask(self.question)
        self.higher = find_direction(self.problem, self.question.target.column)
        self._trials = {} if self.store is None else read_trials(Path(self.store))
        self._seen: set[tuple[AnyMethod, int]] = set()
        self._keys: dict[AnyMethod, str] = {}
        self._held_out: dict[tuple[AnyMethod, int], History] = {}

    def ask(self, question: Question) -> None:
        """Ask another question from now on. Trials of other questions do not answer it."""
        self.question, self._asked = question, question.key(self.problem)[:16]

    def run(self, tasks: Sequence[Task]) -> list[Trial]:
        """Run (method, seed, cap), all of them, and return their trials as these caps show them.

        Raises:
            SearchEnded: If the runs or the time are used up.
        """
        todo = list(dict.fromkeys(task for task in tasks if self.known(*task) is None))
        asked, new = {task[:2] for task in tasks}, {task[:2] for task in todo}
        self.reused += len(asked - new - self._seen)
        self._seen |= asked
        is_too_many = self.max_runs is not None and self.done + len(todo) > self.max_runs
        if todo and (is_too_many or self._is_late()):
            raise SearchEnded
        # Runs end at the deadline by themselves, because joblib would stop its processes.
        question, make_spec = self.question, self.question.make_spec
        arguments = [
            (make_spec(self.problem, method, seed), question, min(cap, self.limit), self.deadline)
            for method, seed, cap in todo
        ]
        found = run_tasks(run_trial, arguments, self.jobs)
        for (method, seed, _), result in zip(todo, found, strict=True):
            if result is not None:
                self._add(method, seed, *result)
        if todo and self._is_late():
            raise SearchEnded
        return [trial for task in tasks if (trial := self.known(*task)) is not None]

    def _is_late(self) -> bool:
        return time.monotonic() > self.deadline

    def _add(self, method: AnyMethod, seed: int, trial: Trial, history: History | None) -> None:
        key = self._key(method, seed)
        self._trials[key] = trial
        if self.store is not None:
            about = {"method": describe_method(method), "seed": seed}
            append_trial(Path(self.store), {"key": key, "trial": asdict(trial), **about})
        if history is not None:
            self._held_out[method, seed] = history
        self.done += 1
        if self.progress:
            cost = f"{trial.cost:.4g}" if math.isfinite(trial.cost) else "not reached"
            note = f"{method.name} step {effective_step(method):.3g}: {cost}"
            self.progress(self.done + self.reused, self.max_runs, note)

    def _key(self, method: AnyMethod, seed: int) -> str:
        if method not in self._keys:
            about = {"method": describe_method(method), "code": method_digest(method)}
            self._keys[method] = digest(about)[:16]
        return f"{self._asked}/{self._keys[method]}/{seed}"

    def known(self, method: AnyMethod, seed: int, cap: float = math.inf) -> Trial | None:
        """Return the stored trial as it would have ended at this cap, or None if there is none."""
        trial = self._trials.get(self._key(method, seed))
        cap = min(cap, self.limit)
        if trial is None or (trial.capped and trial.spent <= cap):
            return None
        if trial.spent > cap and not trial.cost <= cap:
            return replace(trial, cost=math.inf, capped=True)
        return trial

    def find(self, method: AnyMethod, seeds: int) -> list[Trial]:
        """Return the trials on the first seeds as the present limit shows them.

        Trials that ended at a lower cap are among them, and those that have not run are left out.
        """
        stored = (
            self.known(method, seed) or self._trials.get(self._key(method, seed))
            for seed in range(seeds)
        )
        return [trial for trial in stored if trial is not None]

    def history(self, method: AnyMethod, seed: int) -> History:
        """Return the run of a trial on a held-out seed. If it was stored, run it again."""
        if (method, seed) not in self._held_out:
            spec = self.question.make_spec(self.problem, method, seed)
            found = run_trial(spec, self.question, self.limit)
            assert found is not None
            assert found[1] is not None
            self._held_out[method, seed] = found[1]
        return self._held_out[method, seed]
