"""One round, for any engine: call, ask, the mean in client order, server; what it costs, and what clients remember.

What to do about clients that do not answer, or answer nonsense, is here too, so that it is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedpage.core.aggregate import add_rows, mean_rows
from fedpage.core.errors import InputError
from fedpage.core.types import Call, Draws, Ints, Method, Replies
from fedpage.engine.policy import (
    Answer,
    ClientHealth,
    Form,
    Letter,
    Policy,
    Post,
    RoundFailed,
    finite,
    form_of,
)


@dataclass
class Costs:
    """What a run has cost so far; every field is cumulative."""

    round: int = 0
    clients: int = 0
    floats_down: int = 0
    floats_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    gradients: int = 0
    gradients_per_client: float = 0.0
    evaluations: int = 0
    full_rounds: int = 0
    missing: int = 0
    """Times that a client was asked and no sound reply came in time."""
    rejected: int = 0
    """Letters that came and did not count: late, not finite, of a wrong form, or an error."""
    fallbacks: int = 0
    """Full rounds that became sampled ones because someone was missing."""


class ClientStates:
    """What clients remember: a table (N, d) for each field, zero until a client is first called.

    The operating system gives memory to rows that are written, so a million clients of whom a thousand were called
    cost a thousand rows.
    """

    def __init__(self, kind: type[Any] | None, N: int, d: int, dtype: Any = np.float64) -> None:
        self._kind = kind
        try:
            self._tables = [np.zeros((N, d), dtype) for _ in getattr(kind, "_fields", ())]
            self._written = np.zeros(N if kind is not None else 0, dtype=bool)
        except (MemoryError, ValueError):
            raise InputError(
                f"{N} clients cannot each remember {d} numbers on this machine; use fewer"
            ) from None

    def get(self, clients: Ints) -> Any:
        """The called clients' memories: a NamedTuple of (n, d) copies, or None."""
        return (
            None
            if self._kind is None
            else self._kind(*[table.take(clients, axis=0) for table in self._tables])
        )

    def put(self, clients: Ints, client_state: Any) -> None:
        """Store what the called clients remember from now on."""
        if self._kind is not None:
            for table, rows in zip(self._tables, client_state, strict=True):
                table[clients] = rows
            self._written[clients] = True

    def everyone(self) -> Any:
        """All N clients' memories, (N, d) each; None if they remember nothing."""
        return None if self._kind is None else self._kind(*self._tables)

    def written(self) -> Ints:
        """(n,) clients that have been given something to remember."""
        return np.flatnonzero(self._written)


class _Sum(NamedTuple):
    """The replies of a call, added up in client order."""

    kind: Any
    means: list[Any]
    n: int


Tell = Callable[[int, str, str], None]
"""Called with a round, a kind of event ("rejected", "fallback", "lost", "back") and a sentence."""


class Rounds:
    """Plays rounds of a method: the mean of the replies in client order, the costs, and the policy for silence.

    The mean is a running sum, one client after the other, so neither chunks nor threads nor machines change a bit.
    """

    def __init__(self, method: Method, N: int, post: Post, *, policy: Policy | None = None) -> None:
        self.method, self.N, self.post = method, N, post
        self.policy = Policy() if policy is None else policy
        self.tell: Tell = lambda round, event, text: None
        """Whom to tell what happens to clients."""
        self.costs = Costs()
        self.roster = ClientHealth(self.policy.lost_after)
        self._forms: dict[type[Any], Form] = {}
        self._absent: set[int] = set()
        self._present: set[int] = set()

    def play(self, state: Any, draws: Draws) -> Any:
        """One round; returns the next state. RoundFailed: nothing but costs and who was missing has changed."""
        costs = self.costs
        called, computed = costs.clients, costs.gradients
        call = self.method.call(state, draws)
        got: _Sum | None = None
        wave = 0
        self._absent, self._present = set(), set()
        if call.require_all and call.fallback is not None and self.policy.fall_back:
            lost = self.roster.lost
            if not lost:
                got, missing = self._gather(call, draws, wave)
            if got is None:
                why = f"lost: {_names(lost)}" if lost else f"no reply from {_names(missing)}"
                self.tell(draws.round, "fallback", f"a sampled round instead of a full one; {why}")
                costs.fallbacks += 1
                call, wave = (
                    call.fallback(),
                    2 * (1 + self.policy.full_retries) + self.policy.patience,
                )
        if got is None:
            got, missing = self._gather(call, draws, wave)
        if self._absent or self.roster.misses:
            self._note(draws.round)
        if got is None:
            raise RoundFailed(
                f"gave up at round {draws.round}: no sound reply from {_names(missing)}"
            )
        costs.round += 1
        costs.full_rounds += len(call.clients) == self.N
        costs.gradients_per_client += (costs.gradients - computed) / (costs.clients - called)
        return self.method.server(state, Replies(got.kind(*got.means), got.n))

    def _gather(self, call: Call, draws: Draws, wave: int) -> tuple[_Sum | None, list[int]]:
        """The mean over a call's clients, or None where those who are missing (returned too) must not be."""
        policy, last = self.policy, wave + self.policy.patience
        strict = call.require_all and policy.fall_back
        retries = policy.retries
        if strict:
            retries = (
                policy.full_retries
                if call.fallback is not None
                else max(policy.full_retries, policy.patience)
            )
        while True:
            self._send(len(call.clients), call.message)
            answers = iter(self.post.ask(call.clients, call.message, wave))
            answer: Answer | None = next(answers)
            assert answer is not None
            if answer.letters is None and len(answer.clients) == len(
                call.clients
            ):  # all, at once, and sound
                return self._whole(answer, draws), []
            first, answer = [answer], None  # nobody but its reader may hold on to a part
            got, missing, kept, answered, unsound = self._parts(
                call, draws, wave, retries, first, answers
            )
            wave += 1 + retries
            if got is not None:
                break
            if (
                wave > last
            ):  # nobody will answer; but if everyone's numbers are not finite, the run has diverged
                if len(unsound) == len(call.clients):
                    got, missing = _added(unsound), []
                break
        self._absent.update(missing)
        self._present.update(answered)
        if got is None or (strict and missing):
            return None, missing
        for clients, client_state in kept:
            self.post.accept(clients, client_state)
        return got, missing

    def _whole(self, answer: Answer, draws: Draws) -> _Sum:
        replies, n = answer.replies, len(answer.clients)
        self._cost(answer)
        self._up(replies)
        if answer.client_state is not None:
            self.post.accept(answer.clients, answer.client_state)
        if self.roster.misses:
            self._present.update(answer.clients.tolist())
        return _Sum(type(replies), [mean_rows(rows) for rows in replies], n)

    def _parts(
        self,
        call: Call,
        draws: Draws,
        wave: int,
        retries: int,
        first: list[Answer],
        answers: Iterator[Answer],
    ) -> tuple[_Sum | None, list[int], list[tuple[Ints, Any]], list[int], list[Letter]]:
        """The mean where clients come in parts, or not at all: it, who is missing, new memories, who answered how."""
        kind: Any = None
        totals: list[Any] = []
        kept: list[tuple[Ints, Any]] = []
        missing: list[int] = []
        unsound: list[Letter] = []
        answered: list[int] = []
        count = 0
        answer: Answer | None = first.pop()
        while answer is not None:
            self._cost(answer)
            if answer.letters is None:
                parts, n = answer.replies, len(answer.clients)
                kind = type(parts)
                self._up(parts)
                if answer.client_state is not None:
                    self.post.accept(
                        answer.clients, answer.client_state
                    )  # an engine that answers so leaves nobody out
            else:
                letters, silent = self._read(answer, call, draws, wave, retries, unsound)
                missing += silent
                n = len(letters)
                parts = (
                    () if not n else tuple(zip(*(letter.reply for letter in letters), strict=True))
                )
                if n:
                    kind = type(letters[0].reply)
                    answered += [letter.client for letter in letters]
                    if self.policy.remember == "counted":
                        kept.append(_stacked(letters))
            count += n
            if n:
                before = totals or [None] * len(parts)
                totals = [
                    add_rows(total, _rows(rows)) for total, rows in zip(before, parts, strict=True)
                ]
            answer = parts = None  # one part is gone before the next is made
            answer = next(answers, None)
        got = _Sum(kind, [total / count for total in totals], count) if count else None
        return got, missing, kept, answered, unsound

    def _read(
        self,
        answer: Answer,
        call: Call,
        draws: Draws,
        wave: int,
        retries: int,
        unsound: list[Letter],
    ) -> tuple[list[Letter], list[int]]:
        """The letters that count, in client order, after asking the missing again; and who is still silent."""
        message = call.message
        if type(message) not in self._forms:
            self._forms[type(message)] = form_of(self.method, message)
        form = self._forms[type(message)]
        asked = answer.clients.tolist()
        wanted = set(asked)
        found: dict[int, Letter] = {}
        strays: list[Letter] = []
        bad: dict[int, Letter] = {}
        arrived = answer.letters or ()
        for attempt in range(retries + 1):
            self._sort(arrived, wanted, draws.round, form, found, strays, bad)
            silent = [client for client in asked if client not in found]
            self.costs.missing += len(silent)
            if not silent or attempt == retries:
                break
            self._send(len(silent), message)
            arrived = []
            for more in self.post.ask(
                np.array(silent, dtype=np.int64), message, wave + attempt + 1
            ):
                self._cost(more)
                arrived += as_letters(more, draws.round) if more.letters is None else more.letters
        unsound += [bad[client] for client in silent if client in bad]
        return sorted(strays, key=lambda one: one.client) + [
            found[client] for client in asked if client in found
        ], silent

    def _sort(
        self, arrived: Sequence[Letter], wanted: set[int], now: int, form: Form, found: dict[int, Letter],
        strays: list[Letter], bad: dict[int, Letter],
    ) -> None:  # fmt: skip
        """Put letters where they belong: those that count, those that do not, those that are not finite."""
        costs = self.costs
        for letter in arrived:
            if letter.reply is not None:
                costs.floats_up += form.floats
                costs.bytes_up += form.bytes
            if not self.policy.validate:
                if letter.reply is None or len(letter.reply) != len(form.shapes):
                    continue
                spread = [
                    np.broadcast_to(part, shape)
                    for part, shape in zip(letter.reply, form.shapes, strict=True)
                ]
                letter = letter._replace(reply=form.kind(*spread))
                if letter.round == now and letter.client in wanted:
                    found.setdefault(letter.client, letter)
                else:
                    strays.append(letter)
                continue
            fault = letter.error
            if letter.round != now:
                fault = f"late: it belongs to round {letter.round}"
            elif letter.client not in wanted:
                fault = "nobody asked it"
            elif letter.client in found:
                continue  # the same once more
            elif not fault:
                fault = form.fault(letter.reply)
                if not fault and not finite(letter.reply):
                    fault = "not finite"
                    bad[letter.client] = letter
            if fault:
                costs.rejected += 1
                self.tell(now, "rejected", f"reply of client {letter.client}: {fault}")
            else:
                found[letter.client] = letter

    def _send(self, n: int, message: Any) -> None:
        costs = self.costs
        costs.clients += n
        for part in message:
            size = part.nbytes
            costs.floats_down += n * (size // part.itemsize)
            costs.bytes_down += n * size

    def _up(self, parts: Any) -> None:
        """Count replies (n, d)."""
        costs = self.costs
        for rows in parts:
            size = rows.nbytes
            costs.floats_up += size // rows.itemsize
            costs.bytes_up += size

    def _cost(self, answer: Answer) -> None:
        self.costs.gradients += answer.gradients
        self.costs.evaluations += answer.evaluations

    def _note(self, now: int) -> None:
        """Once a round: who answered any of its calls, and who answered none."""
        back = self.roster.heard(sorted(self._present))
        if back:
            self.tell(now, "back", f"{_names(back)} answered again")
        gone = self.roster.missed(sorted(self._absent - self._present))
        if gone:
            self.tell(
                now, "lost", f"{_names(gone)} missing {self.policy.lost_after} times in a row"
            )


def _added(letters: list[Letter]) -> _Sum:
    """The mean of some letters."""
    parts = zip(*(letter.reply for letter in letters), strict=True)
    return _Sum(
        type(letters[0].reply),
        [add_rows(None, _rows(rows)) / len(letters) for rows in parts],
        len(letters),
    )


def _rows(rows: Any) -> Any:
    """(n, d) of n vectors, where they are numpy's; tensors of another library stay a list."""
    if isinstance(rows, tuple) and isinstance(rows[0], np.ndarray):
        return np.stack(rows)
    return rows


def as_letters(answer: Answer, now: int) -> list[Letter]:
    """An engine's sound answer as letters."""
    kind, client_state = type(answer.replies), answer.client_state
    return [
        Letter(
            client, now, kind(*(part[i] for part in answer.replies)),
            client_state=None if client_state is None else type(client_state)(*(part[i] for part in client_state)),
        )
        for i, client in enumerate(answer.clients.tolist())
    ]  # fmt: skip


def _stacked(letters: list[Letter]) -> tuple[Ints, Any]:
    """Clients and their memories, (n, d); None where there is none, or they keep them to themselves."""
    letters = [letter for letter in letters if letter.client_state is not None] or letters
    clients = np.array([letter.client for letter in letters], dtype=np.int64)
    if letters[0].client_state is None:
        return clients, None
    kind = type(letters[0].client_state)
    return clients, kind(
        *(np.stack(rows) for rows in zip(*(letter.client_state for letter in letters), strict=True))
    )


def _names(clients: list[int]) -> str:
    """Some clients in a few words."""
    few = ", ".join(str(client) for client in clients[:5])
    more = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    return f"client{'' if len(clients) == 1 else 's'} {few}{more}"
