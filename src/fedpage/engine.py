"""`simulate`: rounds of any method on any problem, in one process, and many runs through joblib."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np

from fedpage._version import __version__
from fedpage.draws import RoundDraws, check_seed
from fedpage.history import History
from fedpage.rounds import Memories, Tally, play
from fedpage.stopping import Stop, Watch
from fedpage.types import Draws, InputError, Ints, Method, Oracle, Problem, Vector

Progress = Callable[[int, int, Mapping[str, float]], None]
"""Called now and then with rounds done, rounds in all, and the newest record."""

_CHUNK = 512
"""Clients whose replies exist at the same time, at the most (and that many again for each thread) ..."""
_CHUNK_BYTES = 1 << 22
"""... and the most memory that a vector of each of them may take together. No chunk size can change a bit."""


class Simulation:
    """A run in progress: the server's state, the clients' memories and the tally, a round at a time.

    `simulate` is the loop round it; tests and other engines use it to look inside.
    """

    def __init__(
        self, problem: Problem, method: Method, *, seed: int, x0: Vector | None = None, threads: int = 1,
        chunk: int | None = None,
    ) -> None:  # fmt: skip
        for name in ("oracle", "measure", "describe"):
            if isinstance(problem, type) or not hasattr(problem, name):
                raise InputError(
                    f"problem must be a problem such as RobustRegression(data, clients=10), not {problem!r}"
                )
        for name in ("init", "call", "client", "server"):
            if isinstance(method, type) or not hasattr(method, name):
                raise InputError(f"method must be a method such as FedPAGE(S=10), not {method!r}")
        check_whole("threads", threads, 1)
        if chunk is None:
            chunk = max(1, min(_CHUNK, _CHUNK_BYTES // (8 * problem.d)))
        check_whole("chunk", chunk, 1)
        start = np.zeros(problem.d) if x0 is None else _start(x0, problem.d)
        self.problem, self.method, self.seed = problem, method, check_seed(seed)
        self.threads, self.chunk = int(threads), int(chunk)
        self.state = method.init(start, problem.N)
        self.memories = Memories(method.memory, problem.N, problem.d)
        self.tally = Tally()

    @property
    def x(self) -> Vector:
        """(d,) the current model."""
        x: Vector = self.state.x
        return x

    def draws(self) -> Draws:
        """The coming round's random numbers."""
        return RoundDraws(self.seed, self.tally.round)

    def step(self) -> None:
        """One round."""
        tally, draws = self.tally, self.draws()
        called, computed = tally.clients, tally.gradients

        def ask(clients: Ints, message: Any) -> Iterable[Any]:
            if len(clients) <= self.chunk:
                return (self._keep(clients, *self._client(clients, message, draws, self.memories.get(clients))),)
            return self._stream(clients, message, draws)

        self.state = play(self.method, self.state, draws, ask, tally, self.problem.N)
        tally.gradients_per_client += (tally.gradients - computed) / (tally.clients - called)

    def _stream(self, clients: Ints, message: Any, draws: Draws) -> Iterator[Any]:
        """Every called client's work, in chunks, on threads if asked; replies come in client order."""
        chunks = [clients[i : i + self.chunk] for i in range(0, len(clients), self.chunk)]
        if self.threads == 1:
            for chunk in chunks:
                yield self._keep(chunk, *self._client(chunk, message, draws, self.memories.get(chunk)))
            return
        waiting: deque[tuple[Ints, Future[Any]]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            for chunk in chunks:
                if len(waiting) > self.threads:
                    early, done = waiting.popleft()
                    yield self._keep(early, *done.result())
                job = pool.submit(self._client, chunk, message, draws, self.memories.get(chunk))
                waiting.append((chunk, job))
            for late, done in waiting:
                yield self._keep(late, *done.result())

    def _client(self, chunk: Ints, message: Any, draws: Draws, memory: Any) -> tuple[Any, Any, Oracle]:
        oracle = self.problem.oracle(chunk, draws)
        if self.threads > 1:
            with np.errstate(over="ignore", invalid="ignore"):  # the caller's setting does not reach threads
                return *self.method.client(message, oracle, memory), oracle
        return *self.method.client(message, oracle, memory), oracle

    def _keep(self, chunk: Ints, replies: Any, memory: Any, oracle: Oracle) -> Any:
        self.memories.put(chunk, memory)
        self.tally.gradients += oracle.gradients
        self.tally.evaluations += oracle.evaluations
        return replies


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _start(x0: Any, d: int) -> Vector:
    """(d,) a copy of the given start."""
    try:
        start = np.array(x0)
        if start.dtype.kind not in "fiu":
            raise ValueError
        start = start.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"x0 must be {d} finite numbers, not {type(x0).__name__}") from None
    if start.shape != (d,):
        raise InputError(f"x0 must be {d} finite numbers, not an array of shape {start.shape}")
    if not np.isfinite(start).all():
        raise InputError(f"x0 must be {d} finite numbers; there is a NaN or an infinity in it")
    return start


def simulate(
    problem: Problem,
    method: Method,
    *,
    rounds: int,
    seed: int,
    x0: Vector | None = None,
    record: int = 10,
    stop: Stop | Callable[[Mapping[str, float]], str | None] | None = None,
    progress: Progress | None = None,
    threads: int = 1,
    chunk: int | None = None,
) -> History:
    """Run `rounds` rounds of a method on a problem and return its history.

    The same seed gives the same history, bit for bit, for any `threads` and `chunk`. Loss and gradient norm are
    measured every `record` rounds, outside the clock (0: only at the end). x0 (d,) is zero by default. `stop` ends
    a run early: a Stop, or a function of the newest record that returns a reason or None. A run that diverges stops
    and says so in `history.stopped`. The model of the last round is `history.x`; the theorems bound the average
    over rounds, or a random one.

    >>> import fedpage as fp
    >>> problem = fp.RobustRegression(fp.load("census", rows=200), clients=20)
    >>> history = fp.simulate(problem, fp.FedPAGE(S=2, K=5, eta_g=0.1), rounds=50, seed=0)
    >>> bool(history.last("grad_norm") < history["grad_norm"][0])
    True
    """
    check_whole("rounds", rounds, 0)
    check_whole("record", record, 0)
    for name, value in (("stop", stop), ("progress", progress)):
        if value is not None and not callable(value) and not isinstance(value, Stop):
            raise InputError(f"{name} must be a function{' or a Stop' if name == 'stop' else ''}, not {value!r}")
    run = Simulation(problem, method, seed=seed, x0=x0, threads=threads, chunk=chunk)
    history = History(provenance(problem, method, seed=seed, rounds=rounds, record=record, x0=x0, stop=stop))
    limit = stop if isinstance(stop, Stop) else Stop()
    seconds = 0.0

    def measure() -> dict[str, float]:
        return {**vars(run.tally), "seconds": seconds, **problem.measure(run.x, threads)}

    def reason(row: Mapping[str, float], last: bool = False) -> str | None:
        """Why the run should end at this record, if it should."""
        gone = watch.verdict(row, last)
        if gone:
            history.diverged = True
            return gone
        if callable(stop):
            said = stop(row)
            return str(said) if said else None
        if row["loss"] <= watch.first:
            for name in ("grad_norm", "loss"):
                target = getattr(limit, name)
                if target is not None and row[name] <= target:
                    return f"reached {name} {target:g} at round {run.tally.round}"
        return None

    why: str | None = None
    with np.errstate(over="ignore", invalid="ignore"):  # what diverges is reported below, in words
        start = measure()
        watch = Watch(start["loss"])
        history.first_loss = start["loss"]
        if record:
            history.append(start)
            why = reason(start)
        tick = record or max(1, rounds // 100)
        while why is None and run.tally.round < rounds:
            began = time.perf_counter()
            run.step()
            seconds += time.perf_counter() - began
            done, x = run.tally.round, run.x
            if not math.isfinite(x.dot(x)):
                history.diverged = True
                why = f"diverged: |x|^2 is not finite after round {done}"
            elif limit.bytes is not None and run.tally.bytes_up + run.tally.bytes_down >= limit.bytes:
                why = f"spent {limit.bytes:g} bytes at round {done}"
            if done % tick == 0 and done < rounds and why is None:
                if record:
                    history.append(measure())
                    why = reason(history.rows[-1])
                if progress:
                    progress(done, rounds, history.rows[-1] if history.rows else vars(run.tally))
        if not history.rows or history.rows[-1]["round"] != run.tally.round:
            history.append(measure())
            if why is None:
                why = reason(history.rows[-1], last=True)
        if progress:
            progress(run.tally.round, rounds, history.rows[-1])
    history.stopped = why or "finished"
    history.x = np.array(run.x)
    return history


def provenance(
    problem: Problem, method: Method, *, seed: int, rounds: int, record: int, x0: Vector | None, stop: Any = None
) -> dict[str, Any]:
    """Plain values that say which run this is: method, problem with digests, seed, start, versions."""
    start = "zeros" if x0 is None else "sha256:" + hashlib.sha256(_start(x0, problem.d).tobytes()).hexdigest()
    named = stop is None or isinstance(stop, Stop)
    ending = {k: v for k, v in vars(stop).items() if v is not None} if isinstance(stop, Stop) else {}
    return {
        "method": describe(method),
        "problem": problem.describe(),
        "seed": int(seed),
        "rounds": int(rounds),
        "record": int(record),
        "x0": start,
        "stop": ending if named else "a function",
        "versions": {"fedpage": __version__, "python": platform.python_version(), **_versions()},
    }


@cache
def _versions() -> dict[str, str]:
    """Of the packages whose numbers a run depends on."""
    return {name: importlib.metadata.version(name) for name in ("numpy", "numba", "scipy")}


def describe(method: Method) -> dict[str, Any]:
    """A method's name, hyper-parameters and effective step, as plain values."""
    parameters = {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]
    return {"title": method.title, "class": type(method).__name__, **parameters, "effective_step": method.step}


def sweep(
    problem: Problem,
    methods: Sequence[Method],
    *,
    rounds: int,
    seeds: int | Iterable[int] = 5,
    jobs: int | None = 1,
    progress: Callable[[int, int, History], None] | None = None,
    **options: Any,
) -> list[History]:
    """Every method with every seed: independent runs through joblib, in the order methods x seeds.

    seeds: how many (0..seeds-1), or which. jobs: processes; None leaves it to `joblib.parallel_config`, so that a
    cluster's backend (Dask, Ray) can be plugged in. Same seed, same coins and clients for every method, so that
    comparisons are paired. progress: called with runs done, runs in all, and the run. Other options: `simulate`'s.
    """
    if isinstance(methods, (str, bytes)) or not isinstance(methods, Iterable):
        raise InputError(f"methods must be a list of methods, not {methods!r}")
    if isinstance(seeds, (bool, str)) or not isinstance(seeds, (int, np.integer, Iterable)):
        raise InputError(f"seeds must be a number of seeds or a list of them, not {seeds!r}")
    chosen = list(range(int(seeds))) if isinstance(seeds, (int, np.integer)) else list(seeds)
    if jobs is not None:
        check_whole("jobs", jobs, 1)
    tasks = [(method, seed) for method in methods for seed in chosen]
    if not tasks:
        raise InputError("nothing to run: give at least one method and one seed")
    for method, seed in tasks:  # nonsense is refused here, not in a worker
        Simulation(problem, method, seed=seed)
    done: list[History] = []
    for history in _runs(problem, tasks, rounds, jobs, options):
        done.append(history)
        if progress:
            progress(len(done), len(tasks), history)
    return done


def _runs(
    problem: Problem, tasks: list[tuple[Method, int]], rounds: int, jobs: int | None, options: dict[str, Any]
) -> Iterator[History]:
    if jobs == 1:
        for method, seed in tasks:
            yield simulate(problem, method, rounds=rounds, seed=seed, **options)
        return
    from joblib import Parallel, delayed

    work = (delayed(simulate)(problem, method, rounds=rounds, seed=seed, **options) for method, seed in tasks)
    if jobs is None:  # a backend of the user's, which may not be able to hand results over one by one
        yield from Parallel()(work)
    else:
        yield from Parallel(n_jobs=min(jobs, len(tasks)), return_as="generator")(work)
