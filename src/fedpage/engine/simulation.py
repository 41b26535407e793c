"""`simulate`: rounds of any method on any problem, in one process, and many runs through joblib."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections import deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedpage._version import __version__
from fedpage.core.errors import InputError
from fedpage.core.types import Draws, Ints, Method, Problem, Vector, dtype_of
from fedpage.engine.base import Server, mean_evaluations
from fedpage.engine.faults import Faults, FaultSampler, corrupted
from fedpage.engine.loop import Progress, Run, Watcher, check_whole
from fedpage.engine.policy import Answer, Letter, Policy
from fedpage.engine.round import ClientStates, as_letters
from fedpage.engine.stopping import Stop
from fedpage.runs.history import History
from fedpage.runs.store import RunDirectory

_CHUNK = 512
"""Clients whose replies exist at the same time, at the most (and that many again for each thread) ..."""
_CHUNK_BYTES = 1 << 22
"""... and the most memory that a vector of each of them may take together. No chunk size can change a bit."""


class Simulation(Server):
    """A run's rounds in this process: the server's state, the clients' memories and the costs, a round at a time.

    `simulate` is the loop round it; tests use it to look inside. With `faults`, clients fail as those say, and what is
    done about it is `policy`'s.
    """

    def __init__(
        self, problem: Problem, method: Method, *, seed: int, x0: Vector | None = None, threads: int = 1,
        chunk: int | None = None, faults: Faults | None = None, policy: Policy | None = None,
        evaluate: str = "pooled",
    ) -> None:  # fmt: skip
        for name in ("oracle", "evaluate", "describe"):
            if isinstance(problem, type) or not hasattr(problem, name):
                raise InputError(
                    f"problem must be a problem such as RobustRegression(data, clients=10), not {problem!r}"
                )
        for name, value, kind in (("faults", faults, Faults), ("policy", policy, Policy)):
            if value is not None and not isinstance(value, kind):
                raise InputError(
                    f"{name} must be a {kind.__name__}, such as {kind.__name__}(), not {value!r}"
                )
        if evaluate not in ("pooled", "per_client"):
            raise InputError(f"evaluate must be 'pooled' or 'per_client', not {evaluate!r}")
        check_whole("threads", threads, 1)
        if chunk is None:
            chunk = max(1, min(_CHUNK, _CHUNK_BYTES // (8 * problem.d)))
        check_whole("chunk", chunk, 1)
        start = start_of(problem, x0)
        super().__init__(method, problem.N, start, seed=seed, policy=policy)
        self.problem, self.evaluation = problem, evaluate
        self.threads, self.chunk = int(threads), int(chunk)
        self.client_states = ClientStates(method.client_state, problem.N, problem.d, start.dtype)
        self._weather = None if faults is None else FaultSampler(faults, problem, self.seed)
        self._late: list[Letter] = []
        self._draws: Draws | None = None

    @property
    def code(self) -> dict[str, type[Any]]:
        """The classes whose code decides what a round computes."""
        return {**super().code, "problem": type(self.problem), **getattr(self.problem, "code", {})}

    def step(self) -> None:
        """One round."""
        self._draws = self.draws()
        self.state = self.rounds.play(self.state, self._draws)

    def evaluate(self) -> Mapping[str, float]:
        """What the problem says of x; or what its clients say of it, as in a federation."""
        if self.evaluation == "pooled":
            return self.problem.evaluate(self.x, self.threads)
        parts: Any = getattr(self.problem, "evaluate_clients", None)
        if parts is None:
            raise InputError(
                f"{type(self.problem).__name__} has no evaluate_clients; leave evaluate at 'pooled'"
            )
        each = [parts(chunk, self.x) for chunk in self._chunks(np.arange(self.N, dtype=np.int64))]
        return mean_evaluations(
            (losses for losses, _ in each), (gradients for _, gradients in each)
        )

    def ask(self, clients: Ints, message: Any, wave: int) -> Iterable[Answer]:
        """The called clients' work, in chunks; replies come in client order."""
        if self._weather is not None:
            return self._unreliable(clients, message, wave)
        if len(clients) <= self.chunk:
            return (self._client(clients, message, self.client_states.get(clients)),)
        return self._stream(clients, message)

    def accept(self, clients: Ints, client_state: Any) -> None:
        """Clients remember."""
        self.client_states.put(clients, client_state)

    def _chunks(self, clients: Ints) -> list[Ints]:
        return [clients[i : i + self.chunk] for i in range(0, len(clients), self.chunk)]

    def _stream(self, clients: Ints, message: Any) -> Iterator[Answer]:
        """Every called client's work, in chunks, on threads if asked."""
        if self.threads == 1:
            for chunk in self._chunks(clients):
                yield self._client(chunk, message, self.client_states.get(chunk))
            return
        waiting: deque[Future[Answer]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            for chunk in self._chunks(clients):
                if len(waiting) > self.threads:
                    yield waiting.popleft().result()
                waiting.append(
                    pool.submit(self._client, chunk, message, self.client_states.get(chunk))
                )
            for done in waiting:
                yield done.result()

    def _client(self, chunk: Ints, message: Any, client_state: Any) -> Answer:
        assert self._draws is not None
        oracle = self.problem.oracle(chunk, self._draws)
        if self.threads > 1:
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # the caller's setting does not reach threads
                replies, client_state = self.method.client(message, oracle, client_state)
        else:
            replies, client_state = self.method.client(message, oracle, client_state)
        return Answer(chunk, replies, client_state, None, oracle.gradients, oracle.evaluations)

    def _unreliable(self, clients: Ints, message: Any, wave: int) -> Iterator[Answer]:
        """The work of clients that fail: what arrives of it, and first of all what is late from the round before."""
        weather, now = self._weather, self.costs.round
        assert weather is not None
        ripe = sorted(
            (letter for letter in self._late if letter.round < now),
            key=lambda letter: letter.client,
        )
        if ripe:
            self._late = [letter for letter in self._late if letter.round >= now]
            yield Answer(clients[:0], letters=ripe)
        at_once = self.rounds.policy.remember == "at once"
        for chunk in self._chunks(clients):
            able = chunk[weather.working(chunk, now, wave)]
            if not len(able):
                yield Answer(chunk, letters=())
                continue
            done = self._client(able, message, self.client_states.get(able))
            if at_once and done.client_state is not None:
                self.client_states.put(able, done.client_state)
            letters = []
            for letter, fate in zip(
                as_letters(done, now), weather.outcomes(able, now, wave), strict=True
            ):
                if fate == "late":
                    self._late.append(letter._replace(client_state=None))
                elif fate != "lost":
                    letters.append(letter._replace(reply=corrupted(letter.reply, fate)))
            yield Answer(
                chunk, letters=letters, gradients=done.gradients, evaluations=done.evaluations
            )

    def snapshot(self) -> dict[str, Any]:
        """All that the coming rounds depend on."""
        clients = self.client_states.written()
        remembered = self.client_states.get(clients)
        late = [
            {
                "client": one.client,
                "round": one.round,
                "kind": type(one.reply).__name__,
                "parts": list(one.reply),
            }
            for one in self._late
        ]
        client_state = (
            None if remembered is None else {"clients": clients, "parts": list(remembered)}
        )
        return {**super().snapshot(), "client_state": client_state, "late": late}

    def restore(self, tree: Mapping[str, Any], source: str) -> None:
        """Go back to a snapshot of a run with the same method, problem, seed and faults."""
        try:
            client_state = tree["client_state"]
            late = [
                (int(one["client"]), int(one["round"]), str(one["kind"]), one["parts"])
                for one in tree["late"]
            ]
            flat = all(
                isinstance(part, np.ndarray) and part.ndim == 1 for one in late for part in one[3]
            )
            if not flat or (client_state is None) != (self.method.client_state is None):
                raise TypeError
            if client_state is not None:
                clients, parts = client_state["clients"], client_state["parts"]
                shape = (len(clients), self.problem.d)
                if clients.dtype != np.int64 or clients.ndim != 1:
                    raise TypeError
                if any(
                    part.shape != shape or part.dtype != dtype_of(self.problem) for part in parts
                ):
                    raise TypeError
                if len(clients) and not 0 <= int(clients.min()) <= int(clients.max()) < self.N:
                    raise TypeError
                kind: Any = self.method.client_state
                remembered = kind(*parts)
            replies = [
                Letter(client, of, _replied(kind_of, parts)) for client, of, kind_of, parts in late
            ]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{source}: not a checkpoint of this method on this problem") from None
        super().restore(tree, source)
        if client_state is not None:
            self.client_states.put(clients, remembered)
        self._late = replies


def _replied(kind: str, parts: Any) -> Any:
    """A late reply as it was: all that still counts of it is its name, its fields and that it is late."""
    return namedtuple(kind, [f"part{i}" for i in range(len(parts))])(*parts)


def start_of(problem: Problem, x0: Any = None) -> Vector:
    """(d,) a copy of the given start; else the problem's own, such as a network's first parameters; else zero."""
    d, dtype = problem.d, dtype_of(problem)
    if x0 is None:
        x0 = getattr(problem, "x0", None)
    if x0 is None:
        return np.zeros(d, dtype)
    try:
        start = np.array(x0)
        if start.dtype.kind not in "fiu":
            raise ValueError
        start = start.astype(dtype)
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
    record_every: int = 10,
    stop: Stop | Callable[[Mapping[str, float]], str | None] | None = None,
    progress: Progress | None = None,
    callbacks: Sequence[Watcher] = (),
    threads: int = 1,
    chunk: int | None = None,
    faults: Faults | None = None,
    policy: Policy | None = None,
    out: str | os.PathLike[str] | None = None,
    checkpoint_every: str | int = "10s",
    resume: bool = False,
    evaluate: str = "pooled",
) -> History:
    """Run `rounds` rounds of a method on a problem and return its history.

    The same seed gives the same history, bit for bit, for any `threads` and `chunk`. Loss and gradient norm are
    measured every `record` rounds, outside the clock (0: only at the end). x0 (d,) is the problem's own start if it has
    one (a network's), or else zero. `stop` ends a run early: a Stop, or a function of the newest record that returns a
    reason or None. A run that diverges stops and says so in `history.stopped`. The model of the last round is
    `history.x`; the theorems bound the average over rounds, or a random one.

    callbacks: who watches, such as fp.Track("tensorboard") or fp.Best(problem, "best.npz"); `fp.Callback` says how.

    faults: clients that fail, and policy: what is done about it (docs/faults.md).

    out: a directory that the run is written to while it goes on, with a checkpoint every so many rounds (100) or
    seconds ("10s"). If the process dies, the same call with resume=True goes on from the newest checkpoint, and ends
    with the same bits; it begins where there is none, and only reads the history of a run that is finished.

    measured: "clients" takes loss and gradient from each client and adds them in client order, as a federation has to;
    the last bits differ from those of the "whole".

    >>> import fedpage as fp
    >>> problem = fp.RobustRegression(fp.load("census", rows=200), clients=20)
    >>> history = fp.simulate(problem, fp.FedPAGE(S=2, K=5, eta_g=0.1), rounds=50, seed=0)
    >>> bool(history.last("grad_norm") < history["grad_norm"][0])
    True
    """
    options: dict[str, Any] = {"rounds": rounds, "seed": seed, "x0": x0, "record_every": record_every, "stop": stop,
                               "faults": faults, "policy": policy, "evaluate": evaluate}  # fmt: skip
    run = prepare(problem, method, threads=threads, chunk=chunk, **options)
    if out is None:
        if resume:
            raise InputError("resume=True needs out=, the directory of the run")
        return run.go(progress, None, callbacks)
    with RunDirectory(out, every=checkpoint_every) as directory:
        if resume and directory.exists():
            ended = directory.resume(run)
            if ended is not None:
                return ended
        else:
            directory.begin(run)
        return directory.finish(run.go(progress, directory, callbacks))


def prepare(
    problem: Problem, method: Method, *, rounds: int, seed: int, x0: Vector | None = None, record_every: int = 10,
    stop: Any = None, threads: int = 1, chunk: int | None = None, faults: Faults | None = None,
    policy: Policy | None = None, evaluate: str = "pooled",
) -> Run:  # fmt: skip
    """A run that has not begun; `simulate`'s options."""
    history = History()
    engine = Simulation(
        problem, method, seed=seed, x0=x0, threads=threads, chunk=chunk, faults=faults, policy=policy,
        evaluate=evaluate,
    )  # fmt: skip
    run = Run(engine, history, rounds=rounds, record_every=record_every, stop=stop)
    engine.rounds.tell = run.happened
    history.meta = provenance(
        problem, method, seed=seed, rounds=rounds, record_every=record_every, x0=x0, stop=stop
    )
    if evaluate != "pooled":
        history.meta["evaluate"] = evaluate
    if faults is not None:
        history.meta["faults"] = faults.describe()
    if policy is not None and policy != Policy():
        history.meta["policy"] = vars(policy).copy()
    return run


def provenance(
    problem: Problem,
    method: Method,
    *,
    seed: int,
    rounds: int,
    record_every: int,
    x0: Vector | None,
    stop: Any = None,
) -> dict[str, Any]:
    """Plain values that say which run this is: method, problem with digests, seed, start, versions."""
    named = stop is None or isinstance(stop, Stop)
    ending = (
        {k: v for k, v in vars(stop).items() if v is not None} if isinstance(stop, Stop) else {}
    )
    return {
        "method": describe(method),
        "problem": problem.describe(),
        "seed": int(seed),
        "rounds": int(rounds),
        "record_every": int(record_every),
        **start_described(problem, x0),
        "stop": ending if named else "a function",
        "versions": versions(),
    }


def start_described(problem: Problem, x0: Vector | None = None) -> dict[str, str]:
    """{"x0": what provenance says of where a run starts}."""
    if x0 is None and getattr(problem, "x0", None) is None:
        return {"x0": "zeros"}
    return {"x0": "sha256:" + hashlib.sha256(start_of(problem, x0).tobytes()).hexdigest()}


@cache
def versions() -> dict[str, str]:
    """Of this package, Python and the packages whose numbers a run depends on."""
    others = {name: importlib.metadata.version(name) for name in ("numpy", "numba", "scipy")}
    return {"fedpage": __version__, "python": platform.python_version(), **others}


def describe(method: Method) -> dict[str, Any]:
    """A method's name, hyper-parameters and effective step, as plain values."""
    parameters = {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]
    return {
        "name": method.name,
        "class": type(method).__name__,
        **parameters,
        "effective_step": method.effective_step,
    }


def sweep(
    problem: Problem,
    methods: Sequence[Method],
    *,
    rounds: int,
    seeds: int | Iterable[int] = 5,
    jobs: int | None = 1,
    progress: Callable[[int, int, History], None] | None = None,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> list[History]:
    """Every method with every seed: independent runs through joblib, in the order methods x seeds.

    seeds: how many (0..seeds-1), or which. jobs: processes; None leaves it to `joblib.parallel_config`, so that a
    cluster's backend (Dask, Ray) can be plugged in. Same seed, same coins and clients for every method, so that
    comparisons are paired. progress: called with runs done, runs in all, and the run. out: a directory with one for
    each run in it, so that the same call with resume=True goes on where this one died. Other options: `simulate`'s.
    """
    if options.get("callbacks"):
        raise InputError("sweep: callbacks watch one run each; give them to simulate")
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
    home = (
        None if out is None else Path(out).resolve()
    )  # a worker may have been started somewhere else
    places = [None if home is None else home / name for name in run_names(methods, chosen)]
    done: list[History] = []
    for history in _runs(problem, tasks, places, rounds, jobs, options):
        done.append(history)
        if progress:
            progress(len(done), len(tasks), history)
    return done


def run_names(methods: Sequence[Method], seeds: Sequence[int]) -> list[str]:
    """A name for each run of a sweep, in its order: where `out` has it.

    >>> import fedpage as fp
    >>> run_names([fp.FedPAGE(), fp.FedAvg()], [0, 1])
    ['0-fedpage-seed0', '0-fedpage-seed1', '1-fedavg-seed0', '1-fedavg-seed1']
    """
    short = [
        "".join(c if c.isalnum() or c in "-." else "_" for c in method.name.lower())
        for method in methods
    ]
    return [f"{number}-{name}-seed{seed}" for number, name in enumerate(short) for seed in seeds]


def _runs(
    problem: Problem, tasks: list[tuple[Method, int]], places: Sequence[Path | None], rounds: int, jobs: int | None,
    options: dict[str, Any],
) -> Iterator[History]:  # fmt: skip
    each: list[tuple[Method, dict[str, Any]]] = [
        (method, {"seed": seed, "out": out})
        for (method, seed), out in zip(tasks, places, strict=True)
    ]
    if jobs == 1:
        for method, own in each:
            yield simulate(problem, method, rounds=rounds, **own, **options)
        return
    from joblib import Parallel, delayed

    work = (
        delayed(simulate)(problem, method, rounds=rounds, **own, **options) for method, own in each
    )
    if (
        jobs is None
    ):  # a backend of the user's, which may not be able to hand results over one by one
        yield from Parallel()(work)
    else:
        yield from Parallel(n_jobs=min(jobs, len(tasks)), return_as="generator")(work)
