"""Collect the replies of a round: count them, ask missing clients again, fall back, and add up.

Faults of clients are handled here, so that they are handled alike in every engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeAlias

import numpy as np

from fedpage.callbacks.base import Event, Slowest
from fedpage.codecs.message_codec import MessageSize
from fedpage.core.messages import add_rows
from fedpage.core.types import Call, ClientStateT, Draws, Ints, MessageT, Replies, ReplyT, Vector
from fedpage.engine.aggregation import Accumulator, Aggregation
from fedpage.engine.outliers import OutlierCheck
from fedpage.engine.policy import ClientHealth, Policy
from fedpage.engine.transport import (
    Chunk,
    Rejection,
    RoundFailed,
    Transport,
    difference,
    join_request,
    merge,
)

_MOST_NAMES = 20
"""The most clients that an event about rejected replies names."""
_Chunks: TypeAlias = Iterator[Chunk[ReplyT, ClientStateT]]
Collected: TypeAlias = tuple[Replies[ReplyT], Call[MessageT], tuple[Event, ...], Slowest | None]
"""The mean of replies, the call that they answer, which may be a fallback, events, and the client
whose reply took longest, if the transport measures time."""


@dataclass
class Costs:
    """The cumulative costs of a run; `fedpage.core.columns.COLUMNS` explains them."""

    round: int = 0
    clients: int = 0
    floats_down: int = 0
    floats_up: int = 0
    bits_down: int = 0
    bits_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    gradients: int = 0
    gradients_per_client: float = 0.0
    evaluations: int = 0
    full_rounds: int = 0
    missing: int = 0
    rejected: int = 0
    fallbacks: int = 0

    def count_call(self, n: int, size: MessageSize) -> None:
        """Count a message of a given size to n clients."""
        self.clients += n
        self.floats_down += n * size[0]
        self.bits_down += n * size[1]
        self.bytes_down += n * size[2]

    def count(self, chunk: Chunk[Any, Any], reply_size: MessageSize) -> None:
        """Count a chunk; `reply_size` is the size of each reply if the chunk states none."""
        n, size = (chunk.received, reply_size) if chunk.size is None else (1, chunk.size)
        self.floats_up += n * size[0]
        self.bits_up += n * size[1]
        self.bytes_up += n * size[2]
        self.gradients += chunk.gradients
        self.evaluations += chunk.evaluations
        self.rejected += len(chunk.rejected)
        if chunk.clients is not chunk.requested:
            self.missing += len(chunk.missing)


@dataclass
class TimedCosts(Costs):
    """The costs of a run whose time is simulated."""

    seconds_simulated: float = 0.0


class Collector(Generic[MessageT, ReplyT, ClientStateT]):
    """Send calls to clients, and combine their replies.

    The attempts of a round are numbered from 0, because faults are drawn for each number. A call
    has one attempt and up to `retries` further ones for its missing clients. If no client has
    answered by then, it is repeated under the next numbers while these are at most `patience`. The
    numbers of a fallback start at `Policy.fallback_attempt`, beyond those of the full round.
    """

    def __init__(
        self,
        transport: Transport[MessageT, ReplyT, ClientStateT],
        policy: Policy,
        aggregation: Aggregation,
        costs: Costs,
        N: int,
        noise_key: bytes,
        scale: Vector | None = None,
    ) -> None:
        self.transport, self.policy, self.aggregation = transport, policy, aggregation
        self.costs, self.N, self.noise_key = costs, N, noise_key
        self.health = ClientHealth(policy.lost_after)
        codec = transport.codec
        self._needs_all = {message for message in codec.replies if codec.needs_all(message)}
        self._message_size = codec.message_size
        self._reply_size = {
            message: aggregation.measure_reply(layout) or codec.reply_size[message]
            for message, layout in codec.replies.items()
        }
        self.outliers: OutlierCheck | None = None
        factor = policy.outlier_factor if policy.validate else 0.0
        if scale is not None and factor and aggregation.compares_replies:
            self.outliers = OutlierCheck(codec, N, factor, scale)
        self._outcome: _RoundOutcome  # of a round in which a client has failed

    def collect(self, call: Call[MessageT], draws: Draws) -> Collected[ReplyT, MessageT]:
        """Return the mean of the replies to a call or its fallback.

        Raises:
            RoundFailed: Too few clients answered. Only costs and the clients' health have changed.
        """
        if not len(call.clients):  # independent sampling may choose no client
            layout = self.transport.codec.replies[type(call.message)]
            nothing = layout.build(map(np.zeros, layout.sizes, layout.dtypes))
            return Replies(nothing, call.clients, call.message), call, (), None
        if self._needs_all:
            call = self.require_all(call)
        if self.health.misses:
            return self._collect_or_fall_back(call, draws, None)
        chunks = self._send(call, draws, 0)
        chunk = next(chunks)
        answered = len(chunk.clients) if chunk.requested is call.clients else -1
        if answered != len(call.clients) or chunk.rejected:
            chunks = chain([chunk], chunks)
            del chunk  # a chunk is freed before the next is computed
            return self._collect_or_fall_back(call, draws, chunks)
        # The usual case: one chunk has valid replies of all called clients.
        self.costs.count(chunk, self._reply_size[type(call.message)])
        self.transport.commit(chunk.clients, chunk.client_states)
        mean: Any = chunk.mean
        if mean is None:
            rows: Any = chunk.replies
            mean = type(rows)(*self.aggregation.combine(rows, draws.round, self.noise_key, self.N))
        return Replies(mean, chunk.clients, call.message), call, (), chunk.slowest

    def require_all(self, call: Call[MessageT]) -> Call[MessageT]:
        """Require all clients of a call where the mean over some of them would be wrong."""
        if type(call.message) in self._needs_all:
            return call._replace(require_all=True)
        return call

    def find_lost(self, call: Call[MessageT]) -> list[int]:
        """Return the lost clients for which a call's fallback is sent at once."""
        if call.fallback is None or not self.policy.fall_back or not self.health.misses:
            return []
        called = set(call.clients.tolist())
        lost = [client for client in self.health.lost if client in called]
        return lost if call.require_all or len(lost) == len(called) else []

    def _send(
        self, call: Call[MessageT], draws: Draws, attempt: int
    ) -> _Chunks[ReplyT, ClientStateT]:
        """Send a call, count it, and return the chunks of the replies."""
        message = type(call.message)
        self.costs.count_call(len(call.clients), self._message_size[message])
        chunks = iter(self.transport.request(call, draws, attempt))
        if self.outliers is None:
            return chunks
        joined = join_request([*chunks], self._reply_size[message])
        return iter([self.outliers.screen(joined, call, draws.round)])

    def _collect_or_fall_back(
        self, call: Call[MessageT], draws: Draws, chunks: _Chunks[ReplyT, ClientStateT] | None
    ) -> Collected[ReplyT, MessageT]:
        """Collect the replies of some clients; `chunks` are those of the first attempt, if sent."""
        self._outcome = outcome = _RoundOutcome(draws)
        policy, lost = self.policy, self.find_lost(call)
        replies, missing = (None, lost) if lost else self._ask(call, 0, chunks)
        if replies is None and call.fallback is not None and policy.fall_back:
            why = f"{'lost:' if lost else 'no reply from'} {name_clients(missing)}"
            replaced = "a full one" if len(call.clients) == self.N else "one of the first pass"
            outcome.add_event("fallback", f"a sampled round replaces {replaced}; {why}")
            self.costs.fallbacks += 1
            call = self.require_all(call.fallback())
            replies, missing = self._ask(call, policy.fallback_attempt, None)
        if outcome.absent or self.health.misses:
            self._update_health()
        if replies is None:
            who = name_clients(missing or call.clients.tolist())
            text = f"round {draws.round} failed: no valid reply from {who}"
            if type(call.message) in self._needs_all:
                text += f"; up={self.transport.codec.up} needs all called clients"
            raise RoundFailed(text, outcome.events)
        replies = replies._replace(message=call.message)
        return replies, call, outcome.events, outcome.slowest

    def _ask(
        self, call: Call[MessageT], first: int, chunks: _Chunks[ReplyT, ClientStateT] | None
    ) -> tuple[Replies[ReplyT] | None, list[int]]:
        """Send a call until a client answers; return the mean, if any, and the missing clients."""
        policy, outcome = self.policy, self._outcome
        strict = call.require_all and policy.fall_back
        retries = policy.full_retries if strict else policy.retries
        if strict and call.fallback is None:
            retries = max(retries, policy.patience)
        for attempt in range(first, first + policy.patience + 1, 1 + retries):
            accumulator = self.aggregation.begin(outcome.draws.round, self.noise_key, self.N)
            total: _Total[ReplyT, ClientStateT] = _Total(accumulator)
            for chunk in chunks or self._send(call, outcome.draws, attempt):
                self._add(total, chunk, call, attempt, retries)
                del chunk
            chunks = None
            if total.clients:
                break
        replies, missing = total.mean(), total.missing
        if replies is None and len(total.not_finite) == len(call.clients):
            replies, missing = self._diverged(total.not_finite), []
        outcome.absent.update(missing)
        if outcome.absent or self.health.misses:  # a set of a million clients takes 80 MB
            for clients in total.clients:
                outcome.present.update(clients.tolist())
        if replies is None or (strict and missing):
            return None, missing
        for clients, client_states in total.client_states:
            self.transport.commit(clients, client_states)
        return replies, missing

    def _add(
        self,
        total: _Total[ReplyT, ClientStateT],
        chunk: Chunk[ReplyT, ClientStateT],
        call: Call[MessageT],
        attempt: int,
        retries: int,
    ) -> None:
        """Ask the missing clients of a chunk again, and add the replies of all attempts."""
        self._count(chunk, call)
        if self.transport.is_reliable:  # store states now: all of them may not fit in memory
            self.transport.commit(chunk.clients, chunk.client_states)
            total.add_replies(chunk)
            return
        parts = [chunk]
        for retry in range(1, retries + 1):
            again = _call_missing(call, parts)
            if again is None:
                break
            for part in self._send(again, self._outcome.draws, attempt + retry):
                self._count(part, call)
                parts.append(part)
        total.add(parts)

    def _count(self, chunk: Chunk[ReplyT, ClientStateT], call: Call[MessageT]) -> None:
        """Count a chunk, and note what happened to its clients."""
        self.costs.count(chunk, self._reply_size[type(call.message)])
        outcome = self._outcome
        if chunk.slowest is not None:
            slowest = outcome.slowest or chunk.slowest
            outcome.slowest = max(slowest, chunk.slowest, key=lambda each: each.seconds)
        for client, reason, _ in chunk.rejected:
            outcome.rejections.add(client, reason)
        if chunk.expired is not None:
            outcome.expired.update(chunk.expired.tolist())
        if chunk.responsive is not None:
            outcome.present.update(chunk.responsive.tolist())

    def _diverged(self, rejected: Sequence[Rejection]) -> Replies[ReplyT]:
        """Return the mean of replies that are all not finite, so that the run has diverged."""
        replies: list[Any] = [rejection.reply for rejection in rejected]
        clients = np.array([rejection.client for rejection in rejected], dtype=np.int64)
        means = [add_rows(None, np.stack(rows)) / len(rows) for rows in zip(*replies, strict=True)]
        if self.aggregation.is_private:
            means = [np.full_like(mean, np.nan) for mean in means]
        return Replies(replies[0]._make(means), clients)

    def _update_health(self) -> None:
        """Update the clients' health once per round."""
        outcome = self._outcome
        absent = outcome.absent - outcome.present - outcome.expired  # slow clients are not lost
        back, lost = self.health.update(outcome.present, absent)
        if back:
            outcome.add_event("back", f"{name_clients(back)} answered again")
        if lost:
            text = f"{name_clients(lost)} missing {self.policy.lost_after} times in a row"
            outcome.add_event("lost", text)


def _call_missing(
    call: Call[MessageT], parts: Sequence[Chunk[ReplyT, ClientStateT]]
) -> Call[MessageT] | None:
    """Return the call that asks the missing clients of a chunk again, or None if it has none."""
    if parts[-1].responsive is not None:  # the transport adds up all replies or none
        return call if parts[-1].mean is None else None
    clients = parts[0].requested
    for part in parts:
        clients = difference(clients, part.clients)
        if part.expired is not None:
            clients = difference(clients, part.expired)
    return call._replace(clients=clients, cohort=call.clients) if len(clients) else None


@dataclass
class _RoundOutcome:
    """The clients that answered and did not answer in one round, and its events."""

    draws: Draws
    present: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    rejections: RejectionCounts = field(default_factory=lambda: RejectionCounts("reply", "replies"))
    slowest: Slowest | None = None
    others: list[Event] = field(default_factory=list)

    def add_event(self, kind: str, text: str) -> None:
        self.others.append(Event(kind, self.draws.round, text))

    @property
    def events(self) -> tuple[Event, ...]:
        """Rejected replies in an order that no chunk changes, then the other events."""
        return (*self.rejections.list_events(self.draws.round), *self.others)


class _Total(Generic[ReplyT, ClientStateT]):
    """The sum of the replies to a call, and the clients that are missing in it."""

    def __init__(self, accumulator: Accumulator) -> None:
        self.clients: list[Ints] = []
        self.missing: list[int] = []
        self.not_finite: list[Rejection] = []
        self.client_states: list[tuple[Ints, ClientStateT | None]] = []
        self._type: Any = None
        self._accumulator = accumulator
        self._mean: ReplyT | None = None

    def add(self, parts: Sequence[Chunk[ReplyT, ClientStateT]]) -> None:
        """Add a chunk and the attempts after it."""
        chunk = merge(parts) if parts[-1].responsive is None else parts[-1]
        missing = chunk.missing.tolist()
        self.missing += missing
        newest = {r.client: r for part in parts for r in part.rejected if r.reply is not None}
        self.not_finite += [newest[client] for client in missing if client in newest]
        if len(chunk.clients):
            self.client_states.append((chunk.clients, chunk.client_states))
            self.add_replies(chunk)

    def add_replies(self, chunk: Chunk[ReplyT, ClientStateT]) -> None:
        """Add the replies of a chunk: rows, one client after the other, or a mean."""
        self.clients.append(chunk.clients)
        self._mean = chunk.mean
        if chunk.mean is None:
            rows: Any = chunk.replies
            self._type = type(rows)
            self._accumulator.add(rows)

    def mean(self) -> Replies[ReplyT] | None:
        """Return the mean over the clients that answered, or None if none did."""
        if not self.clients:
            return None
        clients = np.concatenate(self.clients)
        if self._mean is not None:
            return Replies(self._mean, clients)
        return Replies(self._type._make(self._accumulator.finish(len(clients))), clients)


class RejectionCounts:
    """Count what was rejected in a round, so that equal rejections make one event.

    >>> rejections = RejectionCounts("reply", "replies")
    >>> for client in (3, 7, 3, 7, 5):
    ...     rejections.add(client, "no reply in time" if client != 5 else "not finite")
    >>> [event.text for event in rejections.list_events(round=4)]
    ['replies of clients 3, 7: no reply in time (x2)', 'reply of client 5: not finite']
    """

    def __init__(self, singular: str, plural: str) -> None:
        self._singular, self._plural = singular, plural
        self._counts: Counter[tuple[int, str]] = Counter()

    def add(self, client: int, reason: str) -> None:
        """Count a rejection."""
        self._counts[client, reason] += 1

    def list_events(self, round: int) -> list[Event]:
        """Return an event for each reason and number of times, in the order of the first client."""
        groups: dict[tuple[str, int], list[int]] = {}
        for (client, reason), times in sorted(self._counts.items()):
            groups.setdefault((reason, times), []).append(client)
        events = []
        for (reason, times), clients in groups.items():
            what = self._singular if len(clients) == 1 else self._plural
            count = f" (x{times})" if times > 1 else ""
            text = f"{what} of {name_clients(clients, _MOST_NAMES)}: {reason}{count}"
            events.append(Event("rejected", round, text))
        return events


def name_clients(clients: Sequence[int], limit: int = 5) -> str:
    """Name some clients, and the number of the others.

    >>> name_clients([3]), name_clients([0, 1, 2, 3, 4, 5, 6])
    ('client 3', 'clients 0, 1, 2, 3, 4 and 2 more')
    """
    few = ", ".join(str(client) for client in clients[:limit])
    more = f" and {len(clients) - limit} more" if len(clients) > limit else ""
    return f"client{'' if len(clients) == 1 else 's'} {few}{more}"
