"""Test methods: the laws that every method must obey, and replays of given random numbers.

`check_method` runs the laws on any method, fedpage's own and yours. `replay` runs a method with
coins, clients and minibatches that a script gives, so that it can be compared with a plain
implementation of its paper, round by round.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fedpage.core.errors import InputError, short_repr
from fedpage.core.messages import mean_rows
from fedpage.core.random import RoundDraws
from fedpage.core.types import AnyMethod, Ints, Oracle, Problem, Replies, Rows, Vector
from fedpage.engine.faults import Faults
from fedpage.engine.simulate import Simulation, check_is_method
from fedpage.methods.schedules import at_peak
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
            run(method)
            checks.append(Check(law, ""))
        except _NotApplicable as reason:
            checks.append(Check(law, str(reason), applies=False))
        except Exception as error:
            kind = "" if isinstance(error, MethodError) else f"{type(error).__name__}: "
            checks.append(Check(law, f"{kind}{error}"))
            if law in (_DECLARED, _RUNS):  # the other laws need these two
                break
    report = CheckReport(type(method).__name__, tuple(checks))
    if raise_on_fault and not report.passed:
        faults = "; ".join(f"{c.law}: {c.fault}" for c in checks if c.applies and c.fault)
        raise MethodError(f"{report.method} breaks a law of methods: {faults}")
    return report


class _NotApplicable(Exception):
    """A law says nothing about this method."""


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise MethodError(fault)


def _problem(noise: float = 0.3, spread: float = 3.0) -> Quadratic:
    return Quadratic.random(8, 5, 4, seed=3, spread=spread, noise=noise)


def _simulate(
    method: AnyMethod, problem: Quadratic | None = None, rounds: int = _ROUNDS, **options: Any
) -> Iterator[AnySimulation]:
    """Run some rounds, and yield the simulation after each."""
    run = AnySimulation(problem or _problem(), method, seed=1, options=RunOptions(**options))
    for _ in range(rounds):
        with np.errstate(over="ignore", invalid="ignore"):
            run.step()
        yield run


def _last(runs: Iterable[AnySimulation]) -> AnySimulation:
    *_, run = runs
    return run


def _trace(method: AnyMethod, **options: Any) -> list[bytes]:
    """Return the bits of the model after each round."""
    return [run.x.tobytes() for run in _simulate(method, **options)]


def _compare(one: list[bytes], other: list[bytes], what: str) -> None:
    for r, (a, b) in enumerate(zip(one, other, strict=True)):
        _require(a == b, f"{what}, the model differs after round {r}")


def _check_declared(method: AnyMethod) -> None:
    for name in ("name", "paper", "messages", "client_state"):
        _require(hasattr(type(method), name), f"{name} is missing")
    messages = method.messages
    _require(
        isinstance(messages, Mapping) and bool(messages),
        f"messages must map message types to reply types, not {short_repr(messages)}",
    )
    states = () if method.client_state is None else (method.client_state,)
    for kind in (*messages, *messages.values(), *states):
        is_named_tuple = isinstance(kind, type) and hasattr(kind, "_fields")
        _require(is_named_tuple, f"{short_repr(kind)} is not a NamedTuple of vectors")


def _check_frozen(method: AnyMethod) -> None:
    _require(dataclasses.is_dataclass(method), "it is not a dataclass")
    for field in dataclasses.fields(method):
        try:
            setattr(method, field.name, getattr(method, field.name))
        except dataclasses.FrozenInstanceError:
            continue
        raise MethodError(f"{field.name} can be changed; use @dataclass(frozen=True)")


def _check_runs(method: AnyMethod) -> None:
    for run in _simulate(method):
        _require(run.x.shape == (4,), f"the state's x has shape {run.x.shape} instead of (4,)")


def _check_step(method: AnyMethod) -> None:
    wanted = 0.5 * float(method.effective_step)
    given = float(method.with_step(wanted).effective_step)
    is_set = bool(np.isclose(given, wanted, rtol=1e-9))
    _require(is_set, f"with_step({wanted:g}) has effective_step {given:g}")


def _check_repeats(method: AnyMethod) -> None:
    _compare(_trace(method), _trace(method), "run twice with the same seed")


def _check_chunks(method: AnyMethod) -> None:
    plain = _trace(method)
    _compare(plain, _trace(method, chunk=3), "with clients in chunks of 3")
    _compare(plain, _trace(method, chunk=2, threads=2), "with 2 threads")


def _check_client_alone(method: AnyMethod) -> None:
    for r, run in enumerate(_simulate(method)):
        draws = RoundDraws(1, r + 1)
        call = method.call(run.state, draws)
        states = run.client_states.get(call.clients)
        oracle = run.problem.oracle(call.clients, draws)
        _, together = _work(method, call.message, oracle, states)
        for i, client in enumerate(call.clients.tolist()):
            own = None if states is None else type(states)(*(part[i : i + 1] for part in states))
            oracle = run.problem.oracle(np.array([client]), draws)
            _, alone = _work(method, call.message, oracle, own)
            for name, part in together.items():
                is_equal = part[i].tobytes() == alone[name][0].tobytes()
                _require(is_equal, f"{name} of client {client} depends on who else is called")


def _work(
    method: AnyMethod, message: Any, oracle: Oracle, states: Any
) -> tuple[Any, dict[str, Vector]]:
    """Return the replies, and by name the arrays of the replies and of the new client states."""
    replies, kept = method.client(message, oracle, states)
    found = dict(replies._asdict())
    if kept is not None:
        update = getattr(method, "update_client_state", None)
        kept = kept if update is None else update(message, replies, kept)
        found |= {f"the state's {name}": part for name, part in kept._asdict().items()}
    return replies, found


def _check_inputs(method: AnyMethod) -> None:
    for r, run in enumerate(_simulate(method)):
        draws = RoundDraws(1, r + 1)
        given: list[tuple[str, Any, Any]] = []

        def copied(what: str, value: Any, given: list[tuple[str, Any, Any]] = given) -> Any:
            given.append((what, value, copy.deepcopy(value)))
            return value

        call = method.call(copied("the server's state", run.state), draws)
        states = copied("the client state", run.client_states.get(call.clients))
        message = copied("the message", call.message)
        replies, _ = _work(method, message, run.problem.oracle(call.clients, draws), states)
        mean = copied("the mean of the replies", type(replies)(*map(mean_rows, replies)))
        method.server(run.state, Replies(mean, call.clients, message))
        for what, value, before in given:
            try:
                np.testing.assert_equal(value, before)
            except AssertionError:
                fault = f"{what} is changed in place; make new arrays instead"
                raise MethodError(fault) from None


def _check_resumes(method: AnyMethod) -> None:
    trace = _trace(method)
    for done, run in zip((5, 6), itertools.islice(_simulate(method), 4, 6), strict=True):
        other = AnySimulation(_problem(), method, seed=1)
        other.restore(run.snapshot(), "a snapshot")
        for r, x in enumerate(trace[done:], done):
            other.step()
            _require(other.x.tobytes() == x, f"resumed, the model differs after round {r}")


def _check_stationary(method: AnyMethod) -> None:
    A = _problem().A  # clients differ, but all have the optimum 0.75, which casts leave alone
    problem = Quadratic(A, np.repeat(0.75 * A.sum(axis=2)[:, None], 5, axis=1))
    for r, run in enumerate(_simulate(method, problem, x0=problem.x_star)):
        away = float(np.abs(run.x - problem.x_star).max())
        text = f"from the common optimum of all clients it moves by {away:.3g} in round {r}"
        _require(away <= 1e-9, text)


def _check_codecs(method: AnyMethod) -> None:
    """Run the method with a codec of each class that it accepts."""
    if not (dataclasses.is_dataclass(method) and hasattr(method, "up")):
        raise _NotApplicable("it has no field up")
    plain = _last(_simulate(dataclasses.replace(method, up="none")))
    found = 0
    for text in ("float32", "natural", "topk:0.5"):
        try:
            coded = dataclasses.replace(method, up=text)
        except InputError:
            continue
        found += 1
        sends_less = _last(_simulate(coded)).costs.bits_up < plain.costs.bits_up
        _require(sends_less, f"up={text} sends as many bits as no codec")
        try:
            if text != "float32":
                _check_stationary(coded)
        except MethodError as fault:
            raise MethodError(
                f"up={text}: {fault}; compress only what vanishes at the optimum"
            ) from None
    if not found:
        raise _NotApplicable("it accepts no codec")


def _check_descends(method: AnyMethod) -> None:
    problem = _problem(noise=0.0, spread=0.0)
    step, start = 0.1 / problem.smoothness().client, problem.x_star + 1.0
    run = _last(_simulate(method.with_step(step), problem, 40, x0=start))
    first, last = problem.loss(start), problem.loss(run.x)
    text = f"with effective step {step:.3g} the loss goes from {first:.4g} to {last:.4g}"
    _require(bool(last < first), text)


def _check_direction(method: AnyMethod) -> None:
    """Compare the first move with a gradient step, where all clients and rows take part."""
    names = {field.name for field in dataclasses.fields(method)}
    changes: dict[str, int | None] = {"K": 1, "S": 8, "b": None, "b1": None, "b2": None, "b3": None}
    problem, x0 = _problem(), np.ones(4)
    try:
        plain = dataclasses.replace(method, **{k: v for k, v in changes.items() if k in names})
    except InputError as error:
        raise _NotApplicable(str(error)) from None
    moves = (run.x - x0 for run in _simulate(plain, problem, 3, x0=x0))
    move = next((move for move in moves if move.any()), np.zeros(4))
    _require(float(move @ problem.grad(x0)) < 0.0, "the first move is not downhill")


def _check_failures(method: AnyMethod) -> None:
    for run in _simulate(method, faults=Faults(dropout=0.1, nan=0.05, late=0.05)):
        fault = "the model is not finite any more when some clients fail"
        _require(bool(np.isfinite(run.x).all()), fault)


_DECLARED = "it declares name, paper, messages and client_state"
_RUNS = "it runs on a quadratic with 8 clients"
_LAWS: dict[str, Callable[[AnyMethod], None]] = {
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


# --- replays --------------------------------------------------------------------------------------


class ScriptedDraws(RoundDraws):
    """The draws of one round, given instead of drawn.

    Args:
        round: The number of the round, from 0. Codecs draw from it and the seed 0.
        coin: The result of the round's coin.
        clients: The called clients, if not all are called.
        batches: The rows of each minibatch, by client, in the order of its steps.
        steps: The result of a geometric draw.
        orders: Orders of clients, by number.
    """

    def __init__(
        self,
        round: int,
        coin: bool,
        clients: list[int],
        batches: dict[int, list[list[int]]],
        steps: int = 1,
        orders: Sequence[list[int]] = (),
    ) -> None:
        super().__init__(0, round)
        self._steps, self._orders = steps, orders
        self._coin, self._clients, self._batches = coin, clients, batches

    def coin(self, p: float) -> bool:
        """Return the given coin."""
        return self._coin

    def geometric(self, p: float) -> int:
        """Return the given number of steps."""
        return self._steps

    def clients(self, N: int, S: int, ago: int = 0) -> Ints:
        """Return the given clients, or all of them if S >= N."""
        if S >= N:
            return np.arange(N, dtype=np.int64)
        _require(len(self._clients) == S, f"{S} clients are called, {len(self._clients)} given")
        return np.array(sorted(self._clients), dtype=np.int64)

    def weighted_clients(self, weights: Vector, S: int) -> Ints:
        """Return the given clients."""
        return self.clients(len(weights), S)

    def independent_clients(self, p: Vector) -> Ints:
        """Return the given clients, however many they are."""
        return np.array(sorted(self._clients), dtype=np.int64)

    def order(self, N: int, number: int = 0) -> Ints:
        """Return a given order of the clients."""
        return np.array(self._orders[number], dtype=np.int64)

    def rows(self, clients: Ints, sizes: Ints, b: int, first: int, count: int) -> Rows:
        """Return the given rows (clients, count, b)."""
        chosen = [self._batches[int(c)][first : first + count] for c in clients]
        return np.array(chosen, dtype=np.uint32)


class _Replay(Simulation[Any, Any, Any, Any]):
    """A simulation that takes the draws of each round from a list."""

    def __init__(self, script: Sequence[ScriptedDraws], *args: Any, **options: Any) -> None:
        super().__init__(*args, seed=0, options=RunOptions(**options))
        self._script = script

    def draws(self) -> Any:
        return self._script[self.costs.round]


def replay(
    problem: Problem,
    method: AnyMethod,
    script: Sequence[ScriptedDraws],
    expected: Sequence[ArrayLike] = (),
    *,
    x0: ArrayLike | None = None,
    tolerance: float = 1e-10,
) -> AnySimulation:
    """Run a method with given draws, and compare its model with a reference after every round.

    Args:
        problem: The problem.
        method: The method.
        script: The draws of each round.
        expected: The reference's models (rounds, d). If fewer than the script has rounds, the
            simulation stops there, and the caller may go on with `step`.
        x0: The first model (d,). If None, zeros.
        tolerance: The largest difference of a coordinate.

    Returns:
        The simulation after the last round of `expected`, with its `state` and `client_states`.

    Raises:
        MethodError: If a model differs.

    >>> import fedpage as fp
    >>> problem = fp.Quadratic.random(2, 1, 3, seed=0)
    >>> script = [ScriptedDraws(0, True, [], {0: [[0]], 1: [[0]]})]
    >>> run = replay(problem, fp.FedPAGE(S=2, eta_g=0.5), script)
    >>> run.step().called, run.costs.round
    (2, 1)
    """
    given = {} if x0 is None else {"x0": np.asarray(x0, dtype=np.float64)}
    run = _Replay(script, problem, method, **given)
    for number, reference in enumerate(expected):
        run.step()
        gap = float(np.abs(run.x - np.asarray(reference)).max())
        _require(gap <= tolerance, f"x differs by {gap:.3g} after round {number}")
    return run
