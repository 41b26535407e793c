"""The runs of communication.py: what each cost at every target, kept in a file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fedpage as fp
from fedpage.core.columns import read_column
from fedpage.core.errors import InputError
from fedpage.runs.fingerprint import code_digest
from fedpage.runs.spec import RunSpec

COSTS = ("round", "clients", "bytes_up", "bytes")


@dataclass(frozen=True)
class Rung:
    """A target, and what a run may cost until it is reached."""

    target: float
    limit: float


class Ladder:
    """End a run at its last target, or when the next target has cost more than its limit.

    Args:
        column: The column of the targets; smaller is better.
        rungs: The targets, from the easiest to the hardest.
        cost: What the limits count.
    """

    def __init__(self, column: str, rungs: Sequence[Rung], cost: str) -> None:
        self.column, self.rungs, self.cost = column, tuple(rungs), cost
        self._next, self._first_loss = 0, math.inf

    def __call__(self, row: Mapping[str, float]) -> str | None:
        """Return why the run ends at this record, or None."""
        if row["round"] == 0:
            self._next, self._first_loss = 0, row["loss"]
        while row["loss"] <= self._first_loss and row[self.column] <= self.rungs[self._next].target:
            self._next += 1
            if self._next == len(self.rungs):
                return "reached the last target"
        spent = read_column(row, self.cost) >= self.rungs[self._next].limit
        return "reached its limit" if spent else None

    def describe(self) -> list[object]:
        """Return plain values that tell this ladder from others."""
        return [self.column, self.cost, [(rung.target, rung.limit) for rung in self.rungs]]


class Runs:
    """Simulate runs that the file does not hold yet.

    Args:
        path: A file of JSON lines, to which finished runs are appended.
        problem: The problem of all runs.
    """

    def __init__(self, path: Path, problem: Any) -> None:
        problem.smoothness = cache(problem.smoothness)  # every search asks for it
        self.problem, self.new = problem, 0
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._known = {entry["key"]: entry for entry in read_lines(path)}

    @property
    def unit(self) -> float:
        """The unit of steps: 1/L, or 1 where L is not known."""
        try:
            return 1 / float(self.problem.smoothness().whole)
        except InputError:
            return 1.0

    def measure(self, method: Any, seed: int, ladder: Ladder, between: int) -> dict[str, Any]:
        """Return what a run cost at each target, and its best value.

        Args:
            method: The method.
            seed: The seed.
            ladder: The targets and limits.
            between: Contacts between two records, on average.

        Returns:
            "costs": for each target a table of `COSTS`, inf where it was not reached; "best": the
            best value of the column; and what the whole run cost.
        """
        called = getattr(method, "S", None) or self.problem.N
        options: dict[str, Any] = {
            "rounds": 1_000_000,
            "seed": seed,
            "record_every": max(1, round(between / called)),
            "stop": ladder,
        }
        # The ladder's own description takes its place: its state changes from run to run.
        run = RunSpec(self.problem, method, **{**options, "stop": None}).describe()
        about = [run, ladder.describe(), code_digest(type(method))]
        key = hashlib.sha256(json.dumps(about, default=str).encode()).hexdigest()[:20]
        if key not in self._known:
            history = fp.simulate(self.problem, method, **options)
            costs = {
                f"{rung.target:g}": costs_to(history, ladder.column, rung.target)
                for rung in ladder.rungs
            }
            entry = {"key": key, "costs": costs, "best": history.best(ladder.column)}
            entry |= {name: history.last(name) for name in COSTS}
            append_line(self._path, entry)
            self._known[key], self.new = entry, self.new + 1
        return self._known[key]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a file of JSON lines; a line that was not finished is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [entry for entry in found if isinstance(entry, dict) and "key" in entry]


def append_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Append an entry to a file of JSON lines; it is on disk when this returns."""
    with open(path, "a+b") as stream:
        stream.seek(0, os.SEEK_END)
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")  # after a line that was not finished
        stream.write(json.dumps(entry).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def costs_to(history: fp.History, column: str, target: float) -> dict[str, float]:
    """Return what a run had cost when it reached a target; inf where it did not.

    A cost between two records is interpolated in the logarithm of the column, unless they are of
    neighbouring rounds.
    """
    values = history[column]
    hits = np.flatnonzero((values <= target) & history.progress())
    if not len(hits):
        return dict.fromkeys(COSTS, math.inf)
    at = int(hits[0])
    share = 1.0
    rounds = history["round"]
    if at and values[at - 1] > target > values[at] > 0 and rounds[at] > rounds[at - 1] + 1:
        share = math.log(values[at - 1] / target) / math.log(values[at - 1] / values[at])
    found = {}
    for name in COSTS:
        paid = history[name]
        found[name] = float(paid[at] - (1 - share) * (paid[at] - paid[max(0, at - 1)]))
    return found
