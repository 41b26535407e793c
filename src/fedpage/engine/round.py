"""Run a round of a method: call, replies, their mean in client order, server.

What happens to clients that do not answer, or answer wrongly, is decided here, so that it is the
same in every engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias

import numpy as np

from fedpage.callbacks.base import Slowest
from fedpage.codecs.wire import Wire
from fedpage.core.aggregate import mean_rows
from fedpage.core.schedules import at_round
from fedpage.core.types import (
    Call,
    ClientStateT,
    Draws,
    DType,
    Ints,
    MessageT,
    Method,
    Replies,
    ReplyT,
    StateT,
    Vector,
)
from fedpage.engine.aggregation import Accumulator, Aggregation, Mean
from fedpage.engine.chunks import difference, join_request, mean_of_rejected, merge
from fedpage.engine.fixed_point import FixedPointMean
from fedpage.engine.outliers import OutlierCheck
from fedpage.engine.policy import ClientHealth, Policy
from fedpage.engine.privacy import PrivacyLedger, PrivateMean
from fedpage.engine.rejections import Rejections, name_clients
from fedpage.engine.transport import Chunk, Event, Rejection, RoundFailed, Transport


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


@dataclass
class TimedCosts(Costs):
    """The costs of a run whose time is simulated."""

    seconds_simulated: float = 0.0


class RoundInfo(NamedTuple):
    """What a round reports besides the next state."""

    round: int
    """The number of the round, from 0."""
    count: int  # type: ignore[assignment]  # a tuple's own method `count` is never needed here
    """The number of clients whose replies were averaged."""
    events: tuple[Event, ...] = ()
    called: int = 0
    """The number of clients that were called."""
    slowest: Slowest | None = None
    """The client whose reply took longest, if the transport measures time."""
    seconds_ahead: float = 0.0
    """The seconds that its requests took before `step` was called, if they were sent ahead."""


_Opened: TypeAlias = tuple[Chunk[ReplyT, ClientStateT], Iterator[Chunk[ReplyT, ClientStateT]]]
"""The first chunk of the replies to a request, and the iterator of the others."""


class _Outcome:
    """The clients that answered and did not answer in one round, and its events."""

    def __init__(self, round: int) -> None:
        self.round = round
        self.present: set[int] = set()
        self.absent: set[int] = set()
        self.expired: set[int] = set()
        self.rejections = Rejections("reply", "replies")
        self.slowest: Slowest | None = None
        self._events: list[Event] = []

    def add_event(self, kind: str, text: str) -> None:
        self._events.append(Event(kind, self.round, text))

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened: rejected replies first, in an order that no chunk changes."""
        return (*self.rejections.list_events(self.round), *self._events)


class Round(Generic[StateT, MessageT, ReplyT, ClientStateT]):
    """Run rounds of a method over a transport, and count their costs.

    The mean is a running sum in client order, so it has the same bits for any chunks, threads and
    machines. Another aggregation may take its place.

    Args:
        method: The method.
        N: The number of clients.
        d: The number of parameters.
        dtype: The type of the model's numbers.
        transport: How clients are reached.
        policy: What to do about clients that fail.
        costs: The counters of costs; None: `Costs()`.
        aggregation: How replies are combined; None: by their mean.
        noise_key: Where the random numbers of an aggregation come from.
        compared: The factor N w_i of each client's objective, (N,), if the norms of replies are
            compared because clients may send wrong numbers; None: they are not.

    Raises:
        InputError: The aggregation does not suit the method.
    """

    def __init__(
        self,
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        N: int,
        d: int,
        dtype: DType,
        transport: Transport[MessageT, ReplyT, ClientStateT],
        policy: Policy,
        costs: Costs | None = None,
        aggregation: Aggregation | None = None,
        noise_key: bytes = b"",
        compared: Vector | None = None,
    ) -> None:
        self.method, self.N, self.transport, self.policy = method, N, transport, policy
        self.aggregation = Mean() if aggregation is None else aggregation
        self.aggregation.check(method, N)
        self.ledger: PrivacyLedger | None = None
        """The privacy budget spent, if the aggregation is private."""
        if isinstance(self.aggregation, PrivateMean):
            self.ledger = self.aggregation.make_ledger(method, N)
        self._is_mean = isinstance(self.aggregation, Mean)
        self.noise_key = noise_key
        """Where the random numbers of an aggregation come from."""
        self.costs = Costs() if costs is None else costs
        self.health = ClientHealth(policy.lost_after)
        wire = Wire(method, d, dtype)
        self._up = wire.up
        self.outliers: OutlierCheck | None = None
        """The comparison of clients' replies, if there is one."""
        factor = policy.outlier_factor if policy.validate else 0.0
        if compared is not None and factor and self.aggregation.compares_replies:
            self.outliers = OutlierCheck(wire, N, factor, compared)
        self._needs_all = {message for message in method.messages if wire.needs_all(message)}
        self._reply_size, self._message_size = wire.reply_size, wire.message_size
        if isinstance(self.aggregation, FixedPointMean):
            measure = self.aggregation.measure
            self._reply_size = {name: measure(layout) for name, layout in wire.replies.items()}

    def step(self, state: StateT, draws: Draws) -> tuple[StateT, RoundInfo]:
        """Run one round.

        Args:
            state: The server's state.
            draws: The round's random numbers.

        Returns:
            The next state, and what happened.

        Raises:
            RoundFailed: Too few clients answered. Only costs and the clients' health have changed.
        """
        costs = self.costs
        called, computed = costs.clients, costs.gradients
        method = at_round(self.method, draws.round)
        call = method.call(state, draws)
        if self._needs_all:
            call = self._require_all(call)
        events: tuple[Event, ...] = ()
        opened = None if self.health.misses else self._send(call, draws, 0)
        chunk = None if opened is None else opened[0]
        if (
            chunk is not None
            and chunk.requested is call.clients
            and len(chunk.clients) == len(call.clients)
            and not chunk.rejected
        ):  # the usual case: one chunk has valid replies of all called clients
            replies, slowest = self._average(chunk, call.message, draws.round), chunk.slowest
        else:
            replies, call, outcome = self._gather_or_fall_back(call, draws, opened)
            events, slowest = outcome.events, outcome.slowest
        costs.round += 1
        costs.full_rounds += len(call.clients) == self.N
        costs.gradients_per_client += (costs.gradients - computed) / (costs.clients - called)
        if self.ledger is not None:
            mean: Any = replies.mean
            self.ledger.add(draws.round, mean, replies.clients, len(call.clients))
        state = method.server(state, replies)
        return state, RoundInfo(draws.round, replies.count, events, len(call.clients), slowest)

    def first_call(self, state: StateT, draws: Draws) -> Call[MessageT]:
        """Return the call that `step` sends first, for engines that send it ahead of the round."""
        method = at_round(self.method, draws.round)
        call = self._require_all(method.call(state, draws))
        if call.fallback is not None and self.policy.fall_back and self._lost(call):
            return self._require_all(call.fallback())
        return call

    def _require_all(self, call: Call[MessageT]) -> Call[MessageT]:
        """Require all clients of a call where the mean over some of them would be wrong."""
        if type(call.message) in self._needs_all:
            return call._replace(require_all=True)
        return call

    def _send(
        self, call: Call[MessageT], draws: Draws, attempt: int
    ) -> _Opened[ReplyT, ClientStateT]:
        """Send a call, count it, and return the first chunk of the replies and the others."""
        costs, n = self.costs, len(call.clients)
        costs.clients += n
        floats, bits, nbytes = self._message_size[type(call.message)]
        costs.floats_down += n * floats
        costs.bits_down += n * bits
        costs.bytes_down += n * nbytes
        chunks = iter(self.transport.request(call, draws, attempt))
        if self.outliers is not None:
            whole = join_request([*chunks], self._reply_size[type(call.message)])
            return self.outliers.screen(whole, call, draws.round), iter(())
        return next(chunks), chunks

    def _average(
        self, chunk: Chunk[ReplyT, ClientStateT], message: MessageT, round: int
    ) -> Replies[ReplyT]:
        """Return the mean of a chunk that has valid replies of all called clients."""
        self._count_received(chunk, message)
        self.transport.commit(chunk.clients, chunk.client_states)
        replies: Any = chunk.replies
        if chunk.mean is not None:
            return Replies(chunk.mean, chunk.clients)
        if self._is_mean:
            return Replies(type(replies)(*map(mean_rows, replies)), chunk.clients)
        accumulator = self.aggregation.begin(round, self.noise_key, self.N)
        accumulator.add(replies)
        return Replies(replies._make(accumulator.finish(len(chunk.clients))), chunk.clients)

    def _gather_or_fall_back(
        self,
        call: Call[MessageT],
        draws: Draws,
        opened: _Opened[ReplyT, ClientStateT] | None,
    ) -> tuple[Replies[ReplyT], Call[MessageT], _Outcome]:
        """Return the mean over the clients that answer, the call they answered, and who did."""
        replies: Replies[ReplyT] | None = None
        outcome, attempt = _Outcome(draws.round), 0
        if call.fallback is not None and self.policy.fall_back:
            missing = self._lost(call)
            why = f"lost: {name_clients(missing)}"
            if not missing:
                replies, missing = self._gather(call, draws, attempt, outcome, opened)
                why = f"no reply from {name_clients(missing)}"
            if replies is None:
                replaced = "a full one" if len(call.clients) == self.N else "one of the first pass"
                outcome.add_event("fallback", f"a sampled round replaces {replaced}; {why}")
                self.costs.fallbacks += 1
                call, opened = self._require_all(call.fallback()), None
                attempt = 2 * (1 + self.policy.full_retries) + self.policy.patience
        if replies is None:
            replies, missing = self._gather(call, draws, attempt, outcome, opened)
        if outcome.absent or self.health.misses:
            self._update_health(outcome)
        if replies is None:
            who = name_clients(missing or call.clients.tolist())
            text = f"round {draws.round} failed: no valid reply from {who}"
            if type(call.message) in self._needs_all:
                text += f"; up={self._up} needs all called clients"
            raise RoundFailed(text, outcome.events)
        return replies, call, outcome

    def _lost(self, call: Call[MessageT]) -> list[int]:
        """Return the called clients that are lost, if the call is hopeless because of them."""
        if not self.health.misses:
            return []
        called = set(call.clients.tolist())
        lost = [client for client in self.health.lost if client in called]
        return lost if call.require_all or len(lost) == len(called) else []

    def _gather(
        self,
        call: Call[MessageT],
        draws: Draws,
        attempt: int,
        outcome: _Outcome,
        opened: _Opened[ReplyT, ClientStateT] | None,
    ) -> tuple[Replies[ReplyT] | None, list[int]]:
        """Return the mean reply (None if too few answered) and the clients that are missing."""
        policy = self.policy
        last = attempt + policy.patience
        strict = call.require_all and policy.fall_back
        retries = policy.retries
        if strict:
            retries = policy.full_retries
            if call.fallback is None:
                retries = max(retries, policy.patience)
        while True:
            if opened is None:
                opened = self._send(call, draws, attempt)
            gathered = _Gathered[ReplyT, ClientStateT](
                self.aggregation.begin(draws.round, self.noise_key, self.N)
            )
            self._gather_chunks(gathered, call, draws, attempt, retries, opened, outcome)
            opened = None
            attempt += 1 + retries
            if gathered.clients or attempt > last:
                break
        replies, missing = gathered.mean(), gathered.missing
        if replies is None and len(gathered.not_finite) == len(call.clients):
            replies, missing = self._diverged(gathered.not_finite), []
        outcome.absent.update(missing)
        outcome.present.update(gathered.answered)
        if replies is None or (strict and missing):
            return None, missing
        for clients, client_states in gathered.client_states:
            self.transport.commit(clients, client_states)
        return replies, missing

    def _diverged(self, rejected: list[Rejection]) -> Replies[ReplyT]:
        """Return the mean of rejected replies of all called clients: NaN where it is private."""
        replies: Replies[ReplyT] = mean_of_rejected(rejected)
        if self.ledger is None:
            return replies
        mean: Any = replies.mean
        return replies._replace(mean=mean._make([np.full_like(part, np.nan) for part in mean]))

    def _gather_chunks(
        self,
        gathered: _Gathered[ReplyT, ClientStateT],
        call: Call[MessageT],
        draws: Draws,
        attempt: int,
        retries: int,
        opened: _Opened[ReplyT, ClientStateT],
        outcome: _Outcome,
    ) -> None:
        """Add up chunks, and retry the missing clients of each before the next is read."""
        chunk: Chunk[ReplyT, ClientStateT] | None
        chunk, chunks = opened
        while chunk is not None:
            self._count_received(chunk, call.message, outcome)
            if self.transport.is_reliable:  # store states now: all of them may not fit in memory
                self.transport.commit(chunk.clients, chunk.client_states)
                gathered.add_replies(chunk)
                chunk = None  # frees it before the next chunk is computed
                chunk = next(chunks, None)
                continue
            if chunk.responsive is not None:
                self._gather_mean(gathered, chunk, call, draws, attempt, retries, outcome)
                return
            parts, rejected = [chunk], list(chunk.rejected)
            missing = difference(chunk.requested, chunk.clients)
            reachable = _without_expired(missing, chunk, outcome)
            for retry in range(1, retries + 1):
                if not len(reachable):
                    break
                self.costs.missing += len(reachable)
                retried = call._replace(clients=reachable, cohort=call.clients)
                again = self._send(retried, draws, attempt + retry)
                for part in (again[0], *again[1]):
                    self._count_received(part, call.message, outcome)
                    parts.append(part)
                    rejected += part.rejected
                    missing = difference(missing, part.clients)
                    reachable = difference(reachable, part.clients)
                    reachable = _without_expired(reachable, part, outcome)
            self.costs.missing += len(missing)
            gathered.add(merge(parts), missing.tolist(), rejected)
            del parts, chunk
            chunk = next(chunks, None)

    def _gather_mean(
        self,
        gathered: _Gathered[ReplyT, ClientStateT],
        chunk: Chunk[ReplyT, ClientStateT],
        call: Call[MessageT],
        draws: Draws,
        attempt: int,
        retries: int,
        outcome: _Outcome,
    ) -> None:
        """Take a mean that the transport computes, and retry the whole call where it cannot."""
        for retry in range(retries + 1):
            if retry:
                chunk = self._send(call, draws, attempt + retry)[0]
                self._count_received(chunk, call.message, outcome)
            assert chunk.responsive is not None
            missing = difference(chunk.requested, chunk.responsive)
            self.costs.missing += len(missing)
            outcome.present.update(chunk.responsive.tolist())
            if chunk.mean is not None:
                break
        gathered.add(chunk, missing.tolist(), [])

    def _count_received(
        self,
        chunk: Chunk[ReplyT, ClientStateT],
        message: MessageT,
        outcome: _Outcome | None = None,
    ) -> None:
        costs, received = self.costs, chunk.received
        if chunk.size is None:
            floats, bits, nbytes = self._reply_size[type(message)]
            costs.floats_up += received * floats
            costs.bits_up += received * bits
            costs.bytes_up += received * nbytes
        else:
            costs.floats_up += chunk.size.floats
            costs.bits_up += chunk.size.bits
            costs.bytes_up += chunk.size.bytes
        costs.gradients += chunk.gradients
        costs.evaluations += chunk.evaluations
        if outcome is not None:
            costs.rejected += len(chunk.rejected)
            outcome.slowest = _slower(outcome.slowest, chunk.slowest)
            for client, reason, _ in chunk.rejected:
                outcome.rejections.add(client, reason)

    def _update_health(self, outcome: _Outcome) -> None:
        """Update the clients' health once per round."""
        present = outcome.present
        absent = outcome.absent - present - outcome.expired  # slow clients are not lost
        back, lost = self.health.update(present, absent)
        if back:
            outcome.add_event("back", f"{name_clients(back)} answered again")
        if lost:
            text = f"{name_clients(lost)} missing {self.policy.lost_after} times in a row"
            outcome.add_event("lost", text)


class _Gathered(Generic[ReplyT, ClientStateT]):
    """The aggregate of the chunks of a call, and the clients that are missing in it."""

    def __init__(self, accumulator: Accumulator) -> None:
        self.clients: list[Ints] = []
        self.answered: list[int] = []
        self.missing: list[int] = []
        self.not_finite: list[Rejection] = []
        self.client_states: list[tuple[Ints, ClientStateT | None]] = []
        self._type: Any = None
        self._accumulator = accumulator
        self._mean: ReplyT | None = None

    def add(
        self,
        chunk: Chunk[ReplyT, ClientStateT],
        missing: list[int],
        rejected: list[Rejection],
    ) -> None:
        """Add a chunk's replies, one client after the other."""
        self.missing += missing
        newest = {r.client: r for r in rejected if r.reply is not None}
        self.not_finite += [newest[client] for client in missing if client in newest]
        if len(chunk.clients):
            self.answered += chunk.clients.tolist()
            self.client_states.append((chunk.clients, chunk.client_states))
            self.add_replies(chunk)

    def add_replies(self, chunk: Chunk[ReplyT, ClientStateT]) -> None:
        """Add a chunk's replies to the aggregate."""
        self.clients.append(chunk.clients)
        if chunk.mean is not None:
            self._mean = chunk.mean
            return
        assert chunk.replies is not None
        self._type = type(chunk.replies)
        self._accumulator.add(chunk.replies)

    def mean(self) -> Replies[ReplyT] | None:
        """Return the mean over the clients that answered; None if none did."""
        if not self.clients:
            return None
        clients = np.concatenate(self.clients)
        if self._mean is not None:
            return Replies(self._mean, clients)
        return Replies(self._type._make(self._accumulator.finish(len(clients))), clients)


def _without_expired(missing: Ints, chunk: Chunk[ReplyT, ClientStateT], outcome: _Outcome) -> Ints:
    """Return the missing clients whose deadline has not passed, and note the others."""
    if chunk.expired is None:
        return missing
    outcome.expired.update(chunk.expired.tolist())
    return difference(missing, chunk.expired)


def _slower(one: Slowest | None, other: Slowest | None) -> Slowest | None:
    """Return the client that took longer."""
    if one is None or other is None:
        return one or other
    return one if one.seconds >= other.seconds else other
