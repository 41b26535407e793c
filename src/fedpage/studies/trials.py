"""Store the finished trials of a search for hyper-parameters."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from fedpage.methods.registry import describe_method
from fedpage.runs.fingerprint import (
    Code,
    digest,
    method_code,
    method_digest,
    result_key,
)
from fedpage.studies.space import Candidate


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        cost: What it cost to reach the target; inf if it was not reached.
        best: The best value of the target's column.
        diverged: Whether the run diverged.
        spent: What the whole run cost.
        rounds: Its rounds.
        capped: Whether it ended because it had cost enough, before it reached the target.
    """

    cost: float
    best: float
    diverged: bool
    spent: float
    rounds: int
    capped: bool


class TrialStore:
    """Finished trials in a file of JSON lines, from which an interrupted search continues.

    A trial is found again by the question, the method with all its hyper-parameters, the code of
    the method and of its codecs, the versions, and the seed. A line whose digest differs is
    ignored, and its run is repeated.

    Args:
        path: The file; None keeps the trials in memory only.
        question: Plain values that identify the question, the problem, its data and its code; the
            file may hold trials of others.
    """

    def __init__(self, path: str | os.PathLike[str] | None, question: Mapping[str, object]) -> None:
        self._path = None if path is None else Path(path)
        self._key = result_key(question)[:16]
        self._trials: dict[tuple[str, int], Trial] = {}
        self._keys: dict[Candidate, str] = {}
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
            key, seed, rounds = entry["key"], entry["seed"], entry["rounds"]
            diverged, capped = entry["diverged"], entry["capped"]
            cost, best, spent = (float(+entry[name]) for name in ("cost", "best", "spent"))
            is_trial = type(key) is str and type(seed) is int and type(rounds) is int
            is_trial = is_trial and type(diverged) is bool and type(capped) is bool
            if is_trial and cost >= 0 and spent >= 0 and not math.isnan(best):
                trial = Trial(cost, best, diverged, spent, rounds, capped)
                self._trials[key, seed] = trial
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass  # an incomplete line, or not a trial: the run is repeated

    def _key_of(self, method: Candidate) -> str:
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

    def get(self, method: Candidate, seed: int) -> Trial | None:
        """Return the trial, or None if it has not been run."""
        return self._trials.get((self._key_of(method), seed))

    def put(self, method: Candidate, seed: int, trial: Trial) -> None:
        """Add a trial; its line is on disk when this returns."""
        key = self._key_of(method)
        self._trials[key, seed] = trial
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"question": self._key, "key": key, "seed": seed, **dataclasses.asdict(trial)}
        entry["method"] = describe_method(method)
        entry["digest"] = digest(json.loads(json.dumps(entry)))
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(("\n" if self._is_incomplete else "") + json.dumps(entry) + "\n")
            self._is_incomplete = False
            stream.flush()
            os.fsync(stream.fileno())
