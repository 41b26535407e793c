"""`simulate`: run a method on a problem in this process."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from fedpage._version import __version__
from fedpage.core.errors import InputError
from fedpage.core.types import AnyMethod, Problem, Vector
from fedpage.engine.faults import Faults
from fedpage.engine.loop import Progress, Run, Watcher
from fedpage.engine.policy import Policy
from fedpage.engine.simulation import Evaluation, Simulation, start_of
from fedpage.engine.stopping import Stop
from fedpage.runs.history import History
from fedpage.runs.store import RunDirectory


def simulate(
    problem: Problem,
    method: AnyMethod,
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
    evaluate: Evaluation = "pooled",
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
    problem: Problem, method: AnyMethod, *, rounds: int, seed: int, x0: Vector | None = None, record_every: int = 10,
    stop: Any = None, threads: int = 1, chunk: int | None = None, faults: Faults | None = None,
    policy: Policy | None = None, evaluate: Evaluation = "pooled",
) -> Run:  # fmt: skip
    """A run that has not begun; `simulate`'s options."""
    history = History()
    engine = Simulation(
        problem, method, seed=seed, x0=x0, threads=threads, chunk=chunk, faults=faults, policy=policy,
        evaluate=evaluate,
    )  # fmt: skip
    run = Run(engine, history, rounds=rounds, record_every=record_every, stop=stop)
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
    method: AnyMethod,
    *,
    seed: int,
    rounds: int,
    record_every: int,
    x0: Vector | None,
    stop: Any = None,
) -> dict[str, Any]:
    """Plain values that say which run this is: method, problem with digests, seed, start, versions."""
    named = stop is None or isinstance(stop, Stop)
    ending = stop.describe() if isinstance(stop, Stop) else {}
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


def describe(method: AnyMethod) -> dict[str, Any]:
    """A method's name, hyper-parameters and effective step, as plain values."""
    parameters = {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]
    return {
        "name": method.name,
        "class": type(method).__name__,
        **parameters,
        "effective_step": method.effective_step,
    }
