"""Store the finished trials of a search for hyper-parameters."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fedpage.runs.provenance import describe_method

Candidate: TypeAlias = Any
"""A method with hyper-parameters: a frozen dataclass."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        cost: What it cost to reach the target; inf if it was not reached.
        best: The best value of the target's column.
        diverged: Whether the run diverged.
    """

    cost: float
    best: float
    diverged: bool


class TrialStore:
    """Finished trials in a file of JSON lines, from which an interrupted search continues.

    Args:
        path: The file; None keeps the trials in memory only.
        search: Plain values that identify the search; the file may hold trials of others.
    """

    def __init__(self, path: str | os.PathLike[str] | None, search: Mapping[str, object]) -> None:
        self._path = None if path is None else Path(path)
        text = json.dumps(search, sort_keys=True, default=str)
        self._key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._trials: dict[str, Trial] = {}
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
            if entry["search"] != self._key:
                return
            method, seed, diverged = entry["method"], entry["seed"], entry["diverged"]
            cost, best = (float(+entry[name]) for name in ("cost", "best"))
            is_trial = type(method) is dict and type(seed) is int and type(diverged) is bool
            if is_trial and cost >= 0 and not math.isnan(best):
                self._trials[self._name(method, seed)] = Trial(cost, best, diverged)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass  # an incomplete line, or not a trial: the run is repeated

    def _name(self, method: Candidate, seed: int) -> str:
        about = method if isinstance(method, dict) else describe_method(method)
        return f"{json.dumps(about, sort_keys=True)} {seed}"

    def get(self, method: Candidate, seed: int) -> Trial | None:
        """Return the trial, or None if it has not been run."""
        return self._trials.get(self._name(method, seed))

    def put(self, method: Candidate, seed: int, trial: Trial) -> None:
        """Add a trial; its line is on disk when this returns."""
        self._trials[self._name(method, seed)] = trial
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"search": self._key, "method": describe_method(method), "seed": seed}
        entry |= dataclasses.asdict(trial)
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(("\n" if self._is_incomplete else "") + json.dumps(entry) + "\n")
            self._is_incomplete = False
            stream.flush()
            os.fsync(stream.fileno())
