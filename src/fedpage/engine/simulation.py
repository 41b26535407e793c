"""`simulate`: rounds of any method on any problem, in one process, and many runs through joblib."""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import Draws, Ints, Method, Problem, Vector, dtype_of
from fedpage.engine.base import Server, mean_evaluations
from fedpage.engine.faults import Faults, FaultSampler, corrupted
from fedpage.engine.loop import check_whole
from fedpage.engine.policy import Answer, Letter, Policy
from fedpage.engine.round import ClientStates, as_letters

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
