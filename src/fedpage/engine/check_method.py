"""Check a user's method against the laws that every method must obey."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fedpage.core.aggregate import mean_rows
from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import RoundDraws
from fedpage.core.schedules import at_peak
from fedpage.core.types import AnyMethod, Oracle, Replies, Vector
from fedpage.engine.faults import Faults
from fedpage.engine.simulate import Simulation, check_is_method
from fedpage.problems.quadratic import Quadratic
from fedpage.runs.spec import RunOptions

_ROUNDS = 12

AnySimulation: TypeAlias = Simulation[Any, Any, Any, Any]


class MethodError(AssertionError):
    """Raised by `check_method` when a method breaks a law."""


class Check(NamedTuple):
    """The result of one check."""

    law: str
    """What must hold."""
    fault: str
    """What was found instead; "" if the law holds."""
    applies: bool = True
    """False if the law says nothing about this method; `fault` then says why."""


class CheckReport(NamedTuple):
    """The results of all checks of a method."""

    method: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every law that applies holds."""
        return not any(check.applies and check.fault for check in self.checks)

    def __str__(self) -> str:
        lines = []
        for law, fault, applies in self.checks:
            verdict = "skipped" if not applies else "FAILS" if fault else "holds"
            lines.append(f"{verdict:8} {law}" + (f": {fault}" if fault else ""))
        return "\n".join(lines)


def check_method(method: AnyMethod, *, raise_on_fault: bool = True) -> CheckReport:
    """Run the laws that apply to any method, and say which fail.

    The method runs a few rounds on small quadratics. The laws ask that it declares what it sends,
    keeps nothing outside its state, changes none of its inputs, gives the same bits for any chunks,
    threads and after a resume, computes each client by itself, stays where all gradients vanish
    (with codecs, too), makes progress, and copes with clients that fail.

    Args:
        method: The method, with the hyper-parameters to check it at; schedules are checked at
            their largest values.
        raise_on_fault: Whether to raise if a law fails, rather than only report it.

    Returns:
        A report with a line for each law; `print` it.

    Raises:
        InputError: It is not a method at all.
        MethodError: A law fails.

    >>> import fedpage as fp
    >>> fp.check_method(fp.FedAvg(S=4, K=2, eta_l=0.05)).passed
    True
    """
    check_is_method(method)
    method = at_peak(method)
    checks: list[Check] = []
    for law, run in _LAWS.items():
        try:
            fault = run(method)
        except _NotApplicable as reason:
            checks.append(Check(law, str(reason), applies=False))
            continue
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        checks.append(Check(law, fault))
        if fault and law in (_DECLARED, _RUNS):  # nothing else can be said of it
            break
    report = CheckReport(type(method).__name__, tuple(checks))
    if raise_on_fault and not report.passed:
        faults = "; ".join(f"{c.law}: {c.fault}" for c in checks if c.applies and c.fault)
        raise MethodError(f"{report.method} breaks a law of methods: {faults}")
    return report


class _NotApplicable(Exception):
    """A law says nothing about this method."""


_DECLARED = "it declares name, paper, messages and client_state"
_RUNS = "it runs on a quadratic with 8 clients"


def _problem(noise: float = 0.3, spread: float = 3.0) -> Quadratic:
    return Quadratic.random(8, 5, 4, seed=3, spread=spread, noise=noise)


def _simulation(
    method: AnyMethod, problem: Quadratic | None = None, **options: Any
) -> AnySimulation:
    return Simulation(problem or _problem(), method, seed=1, options=RunOptions(**options))


def _trace(method: AnyMethod, **options: Any) -> list[bytes]:
    """Return the bits of the model after each round."""
    run = _simulation(method, **options)
    return [run.x.tobytes() for _ in _steps(run, _ROUNDS)]


def _steps(run: AnySimulation, rounds: int) -> Iterator[None]:
    for _ in range(rounds):
        with np.errstate(over="ignore", invalid="ignore"):
            run.step()
        yield


def _first_difference(one: list[bytes], other: list[bytes], what: str) -> str:
    for r, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            return f"{what}, the model differs after round {r}"
    return ""


def _check_declared(method: AnyMethod) -> str:
    for name in ("name", "paper", "messages", "client_state"):
        if not hasattr(type(method), name):
            return f"{name} is missing"
    if not isinstance(method.messages, Mapping) or not method.messages:
        return f"messages must map message types to reply types, not {short_repr(method.messages)}"
    named = [*method.messages, *method.messages.values()]
    named += [] if method.client_state is None else [method.client_state]
    for type_ in named:
        if not (isinstance(type_, type) and issubclass(type_, tuple) and hasattr(type_, "_fields")):
            return f"{short_repr(type_)} is not a NamedTuple of vectors"
    return ""


def _check_frozen(method: AnyMethod) -> str:
    if not dataclasses.is_dataclass(method):
        return "it is not a dataclass"
    for field in dataclasses.fields(method):
        try:
            setattr(method, field.name, getattr(method, field.name))
        except dataclasses.FrozenInstanceError:
            continue
        return f"{field.name} can be changed; use @dataclass(frozen=True)"
    return ""


def _check_runs(method: AnyMethod) -> str:
    run = _simulation(method)
    for _ in _steps(run, _ROUNDS):
        if run.x.shape != (4,):
            return f"the state's x has shape {run.x.shape} instead of (4,)"
    return ""


def _check_step(method: AnyMethod) -> str:
    wanted = 0.5 * float(method.effective_step)
    given = float(method.with_step(wanted).effective_step)
    if not np.isclose(given, wanted, rtol=1e-9):
        return f"with_step({wanted:g}) has effective_step {given:g}"
    return ""


def _check_repeats(method: AnyMethod) -> str:
    return _first_difference(_trace(method), _trace(method), "run twice with the same seed")


def _check_chunks(method: AnyMethod) -> str:
    plain = _trace(method)
    return _first_difference(plain, _trace(method, chunk=3), "with clients in chunks of 3") or (
        _first_difference(plain, _trace(method, chunk=2, threads=2), "with 2 threads")
    )


def _check_client_alone(method: AnyMethod) -> str:
    run = _simulation(method)
    for r, _ in enumerate(_steps(run, _ROUNDS)):
        draws = RoundDraws(1, r + 1)
        call = method.call(run.state, draws)
        states = run.client_states.get(call.clients)
        _, together = _work(method, call.message, run.problem.oracle(call.clients, draws), states)
        for i, client in enumerate(call.clients.tolist()):
            own = None if states is None else type(states)(*(part[i : i + 1] for part in states))
            oracle = run.problem.oracle(np.array([client]), draws)
            _, alone = _work(method, call.message, oracle, own)
            for name, part in together.items():
                if part[i].tobytes() != alone[name][0].tobytes():
                    return f"{name} of client {client} depends on who else is called"
    return ""


def _work(
    method: AnyMethod, message: Any, oracle: Oracle, states: Any
) -> tuple[Any, dict[str, Vector]]:
    """Return the replies, and their arrays and those of the new client states by name."""
    replies, kept = method.client(message, oracle, states)
    found = dict(replies._asdict())
    if kept is not None:
        update = getattr(method, "update_client_state", None)
        kept = kept if update is None else update(message, replies, kept)
        found |= {f"the state's {name}": part for name, part in kept._asdict().items()}
    return replies, found


def _check_inputs(method: AnyMethod) -> str:
    run = _simulation(method)
    for r, _ in enumerate(_steps(run, _ROUNDS)):
        draws = RoundDraws(1, r + 1)
        before = _copy(run.state)
        call = method.call(run.state, draws)
        sent, states = _copy(call.message), run.client_states.get(call.clients)
        kept = [] if states is None else _copy(states)
        oracle = run.problem.oracle(call.clients, draws)
        replies, _ = _work(method, call.message, oracle, states)
        mean = type(replies)(*map(mean_rows, replies))
        combined = _copy(mean)
        method.server(run.state, Replies(mean, call.clients))
        for what, now, then in (
            ("the server's state", run.state, before),
            ("the message", call.message, sent),
            ("the client state", states, kept),
            ("the mean of the replies", mean, combined),
        ):
            if now is not None and not _equal(now, then):
                return f"{what} is changed in place; make new arrays instead"
    return ""


def _copy(values: Iterable[Any]) -> list[ArrayLike]:
    return [v.copy() if isinstance(v, np.ndarray) else v for v in _parts(values)]


def _parts(values: Iterable[Any]) -> Iterator[ArrayLike]:
    """Iterate over the arrays and numbers of a NamedTuple, which may hold others."""
    for value in values:
        if isinstance(value, tuple):
            yield from _parts(value)
        else:
            yield value


def _equal(one: Iterable[Any], copied: list[ArrayLike]) -> bool:
    both = zip(_parts(one), copied, strict=True)
    return all(np.array_equal(a, b, equal_nan=False) for a, b in both)


def _check_resumes(method: AnyMethod) -> str:
    straight = _trace(method)
    run = _simulation(method)
    for _ in _steps(run, _ROUNDS // 2):
        pass
    other = _simulation(method)
    other.restore(run.snapshot(), "a snapshot")
    resumed = [other.x.tobytes() for _ in _steps(other, _ROUNDS - _ROUNDS // 2)]
    return _first_difference(straight[_ROUNDS // 2 :], resumed, "resumed from a snapshot")


def _common_optimum() -> Quadratic:
    """Return a quadratic whose clients differ, but have the same optimum.

    It is 0.75 in every coordinate: casts leave it alone, and other codecs do not.
    """
    A = _problem().A
    return Quadratic(A, np.repeat(0.75 * A.sum(axis=2)[:, None], 5, axis=1))


def _check_stationary(method: AnyMethod) -> str:
    problem = _common_optimum()
    run = _simulation(method, problem, x0=problem.x_star)
    for r, _ in enumerate(_steps(run, _ROUNDS)):
        away = float(np.abs(run.x - problem.x_star).max())
        if not away <= 1e-9:
            return f"from the common optimum of all clients it moves by {away:.3g} in round {r}"
    return ""


def _check_codecs(method: AnyMethod) -> str:
    """Run the method with a codec of each class that it accepts."""
    if not (dataclasses.is_dataclass(method) and hasattr(method, "up")):
        raise _NotApplicable("it has no field up")
    found = 0
    for text in ("float32", "natural", "topk:0.5"):
        try:
            coded = dataclasses.replace(method, up=text)
        except InputError:
            continue
        found += 1
        run, plain = _simulation(coded), _simulation(dataclasses.replace(method, up="none"))
        for _ in zip(_steps(run, _ROUNDS), _steps(plain, _ROUNDS), strict=True):
            pass
        if not run.costs.bits_up < plain.costs.bits_up:
            return f"up={text} sends as many bits as no codec"
        fault = "" if text == "float32" else _check_stationary(coded)
        if fault:
            return f"up={text}: {fault}; compress only what vanishes at the optimum"
    if not found:
        raise _NotApplicable("it accepts no codec")
    return ""


def _check_descends(method: AnyMethod) -> str:
    problem = _problem(noise=0.0, spread=0.0)
    step = 0.1 / problem.smoothness().client
    start = problem.x_star + 1.0
    run = _simulation(method.with_step(step), problem, x0=start)
    first = problem.loss(start)
    for _ in _steps(run, 40):
        pass
    last = problem.loss(run.x)
    if not last < first:
        return f"with effective step {step:.3g} the loss goes from {first:.4g} to {last:.4g}"
    return ""


def _check_direction(method: AnyMethod) -> str:
    """Compare the first move with a gradient step, where all clients and rows take part."""
    names = {field.name for field in dataclasses.fields(method)}
    changes: dict[str, int | None] = {"K": 1, "S": 8, "b": None, "b1": None, "b2": None, "b3": None}
    problem = _problem()
    x0: Vector = np.ones(4)
    try:
        plain = dataclasses.replace(method, **{k: v for k, v in changes.items() if k in names})
    except InputError as error:
        raise _NotApplicable(str(error)) from None
    run = _simulation(plain, problem, x0=x0)
    move = np.zeros(4)
    for _ in _steps(run, 3):
        move = run.x - x0
        if move.any():
            break
    if not float(move @ problem.grad(x0)) < 0.0:
        return "the first move is not downhill"
    return ""


def _check_failures(method: AnyMethod) -> str:
    run = _simulation(method, faults=Faults(dropout=0.1, nan=0.05, late=0.05))
    for _ in _steps(run, _ROUNDS):
        if not np.isfinite(run.x).all():
            return "the model is not finite any more when some clients fail"
    return ""


_LAWS: dict[str, Callable[[AnyMethod], str]] = {
    _DECLARED: _check_declared,
    "it is a frozen dataclass": _check_frozen,
    _RUNS: _check_runs,
    "with_step sets the effective step": _check_step,
    "the same seed gives the same bits": _check_repeats,
    "chunks and threads change no bit": _check_chunks,
    "a client's reply does not depend on other clients": _check_client_alone,
    "it changes none of its inputs": _check_inputs,
    "a resumed run has the same bits": _check_resumes,
    "it stays where all gradients vanish": _check_stationary,
    "it sends less with a codec, and stays there, too": _check_codecs,
    "the loss falls at a small step": _check_descends,
    "the first move is downhill": _check_direction,
    "it copes with clients that fail": _check_failures,
}
