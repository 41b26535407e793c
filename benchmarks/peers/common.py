"""What every peer shares: a job is a JSON file, its data an .npz, its answer one line of JSON on stdout.

    python numpy_loop.py JOB.json

A peer is a function run(job, clients, clock). It calls clock.loaded() when libraries and data are there, and
clock.tick(x) after every round, x being a function that returns the model. It needs numpy and the library that it
drives, nothing else of this project's (ours.py excepted).
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


class HasNone(Exception):
    """The library does not have this method; the message says what it has instead."""


@dataclass
class Clients:
    """The clients' rows. kind: "robust" (CSR of ones, and y), "logistic" (X, y) or "quadratic" (A, b)."""

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
        """By name, arrays whose first axis is the client, the second (but for a quadratic) its rows."""
        if self.kind != "robust":
            return {name: array.astype(dtype) for name, array in self.arrays.items()}
        indptr, indices, y = (self.arrays[name] for name in ("indptr", "indices", "y"))
        X = np.zeros((len(y), self.d), dtype=dtype)
        X[np.repeat(np.arange(len(y)), np.diff(indptr)), indices] = 1.0
        return {"X": X.reshape(self.N, -1, self.d), "y": y.astype(dtype).reshape(self.N, -1)}


def slope(kind: str, alpha: float, rows: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The mean gradient at x over one client's rows: of log(1 + t^2/2), t = a.x - y; of log(1 + exp(-y a.x)) +
    alpha |x|^2/2; or of (x-b)'A(x-b)/2.
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
    """Times a job's rounds: the first one, from the start of the process; and those after round `check`."""

    check: int
    rounds: int
    spawned: float
    told: dict[str, Any] = field(default_factory=dict)
    round: int = 0

    def loaded(self) -> None:
        self.told["loaded"] = memory()

    def tick(self, x: Callable[[], np.ndarray]) -> None:
        self.round += 1
        if self.round == 1:
            self.told["first"] = time.time() - self.spawned
        if self.round == self.check:
            self.told["x_check"] = x().tolist()
            self._cpu, self._wall = cpu_seconds(), time.perf_counter()
        elif self.round == self.rounds:
            wall, cpu, timed = (
                time.perf_counter() - self._wall,
                cpu_seconds() - self._cpu,
                self.rounds - self.check,
            )
            self.told |= {
                "wall": wall / timed,
                "cpu": cpu / timed,
                "timed": timed,
                "peak": memory(peak=True),
            }
            self.told["x"] = x().tolist()


def family() -> list[int]:
    """This process and all below it, from /proc; alone where there is none."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has just ended
    found, me = [os.getpid()], os.getpid()
    for pid in parents:
        above = pid
        while above in parents and above != me:
            above = parents[above]
        if above == me and pid != me:
            found.append(pid)
    return found


def cpu_seconds() -> float:
    """CPU time of this process, of the processes below it, and of those that they have waited for."""
    total, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for pid in family():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        total += (waited if pid == os.getpid() else own + waited) / tick
    return total


def memory(*, peak: bool = False) -> int:
    """Bytes resident, now or at most, summed over this process and those below it; shared pages count in each."""
    total = 0
    for pid in family():
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


def main(run: Callable[[dict[str, Any], Clients, Clock], dict[str, Any]]) -> None:
    """Do the job of argv[1] and print what came of it. run returns versions, and what else it wants to say."""
    job = json.loads(Path(sys.argv[1]).read_text())
    clock = Clock(job["check"], job["rounds"], job["spawned"])
    try:
        said = run(job, Clients.load(job["data"]), clock)
    except HasNone as none:
        print(json.dumps({"none": str(none)}), flush=True)
        return
    print(json.dumps({**said, **clock.told}), flush=True)
