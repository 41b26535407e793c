"""Run a job with a peer: read JSON and an .npz file, print one line of JSON with the results.

    python numpy_loop.py JOB.json

A peer is a function run(job, clients, clock). It calls clock.loaded() when libraries and data are
loaded, and clock.tick(x) after every round, where x is a function that returns the model. A peer
needs numpy and its own library. Only ours.py needs fedpage.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


class NotInLibrary(Exception):
    """The library does not have this method; the message says what it has instead."""


@dataclass
class Clients:
    """The clients' rows.

    Args:
        kind: "robust" (arrays: CSR of ones, and y), "logistic" (X, y) or "quadratic" (A, b).
    """

    kind: str
    N: int
    d: int
    alpha: float
    arrays: dict[str, np.ndarray]

    @classmethod
    def load(cls, path: str) -> Clients:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        kind, alpha = str(arrays.pop("kind")), float(arrays.pop("alpha", 0.0))
        return cls(kind, int(arrays.pop("N")), int(arrays.pop("d")), alpha, arrays)

    def save(self, path: Path) -> None:
        np.savez(path, kind=self.kind, N=self.N, d=self.d, alpha=self.alpha, **self.arrays)

    def dense(self, dtype: Any) -> dict[str, np.ndarray]:
        """Return dense arrays of shape (clients, rows, ...), or (clients, ...) for a quadratic."""
        if self.kind != "robust":
            return {name: array.astype(dtype) for name, array in self.arrays.items()}
        indptr, indices, y = (self.arrays[name] for name in ("indptr", "indices", "y"))
        X = np.zeros((len(y), self.d), dtype=dtype)
        X[np.repeat(np.arange(len(y)), np.diff(indptr)), indices] = 1.0
        return {"X": X.reshape(self.N, -1, self.d), "y": y.astype(dtype).reshape(self.N, -1)}


def slope(kind: str, alpha: float, rows: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return the mean gradient at x over one client's rows.

    The losses are log(1 + t^2/2) with t = a.x - y ("robust"), log(1 + exp(-y a.x)) + alpha |x|^2/2
    ("logistic"), and (x-b)'A(x-b)/2 ("quadratic").
    """
    if kind == "quadratic":
        return rows["A"] @ (x - rows["b"])
    X, y = rows["X"], rows["y"]
    if kind == "robust":
        t = X @ x - y
        return (t / (1.0 + 0.5 * t * t)) @ X / len(y)
    return (-y / (1.0 + np.exp(y * (X @ x)))) @ X / len(y) + alpha * x


@dataclass
class Clock:
    """Time the first round from the start of the process, and the rounds after round `check`."""

    check: int
    rounds: int
    spawned: float
    results: dict[str, Any] = field(default_factory=dict)
    round: int = 0

    def loaded(self) -> None:
        self.results["loaded"] = memory()

    def tick(self, x: Callable[[], np.ndarray]) -> None:
        self.round += 1
        if self.round == 1:
            self.results["first"] = time.time() - self.spawned
        if self.round == self.check:
            self.results["x_check"] = x().tolist()
            self._cpu, self._wall = cpu_seconds(), time.perf_counter()
        elif self.round == self.rounds:
            wall, cpu, timed = (
                time.perf_counter() - self._wall,
                cpu_seconds() - self._cpu,
                self.rounds - self.check,
            )
            self.results |= {
                "wall": wall / timed,
                "cpu": cpu / timed,
                "timed": timed,
                "peak": memory(peak=True),
            }
            self.results["x"] = x().tolist()


def process_tree() -> list[int]:
    """Return the ids of this process and its descendants, or of this process without /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the process has ended
    found, me = [os.getpid()], os.getpid()
    for pid in parents:
        above = pid
        while above in parents and above != me:
            above = parents[above]
        if above == me and pid != me:
            found.append(pid)
    return found


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants, ended ones included."""
    total, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for pid in process_tree():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        total += (waited if pid == os.getpid() else own + waited) / tick
    return total


def memory(*, peak: bool = False) -> int:
    """Return the resident bytes, or their peak, of this process and its descendants."""
    total = 0
    for pid in process_tree():
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        wanted = "VmHWM:" if peak else "VmRSS:"
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith(wanted))
    return total


def versions(*names: str) -> dict[str, str]:
    from importlib.metadata import version

    return {"python": sys.version.split()[0], **{name: version(name) for name in names}}


Run = Callable[[dict[str, Any], Clients, Clock], dict[str, Any]]


def main(run: Run) -> None:
    """Run the job in the file argv[1], or its `batch` of jobs, and print the results.

    Args:
        run: The peer, which returns versions and more.
    """
    job = json.loads(Path(sys.argv[1]).read_text())
    if "batch" in job:
        answers = [answer(run, {**one, "spawned": job["spawned"]}) for one in job["batch"]]
        print(json.dumps({"batch": answers}), flush=True)
    else:
        print(json.dumps(answer(run, job)), flush=True)


def answer(run: Run, job: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a job, or why the library cannot do it."""
    clock = Clock(job["check"], job["rounds"], job["spawned"])
    try:
        results = run(job, Clients.load(job["data"]), clock)
    except NotInLibrary as error:
        return {"none": str(error)}
    return {**results, **clock.results}
