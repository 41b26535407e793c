"""Reach simulated clients: compute their replies in this process, in chunks and on threads."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpage.codecs.base import IDENTITY
from fedpage.codecs.wire import Ranks, Size, Wire
from fedpage.core.errors import InputError
from fedpage.core.messages import Layout, layout_of
from fedpage.core.types import (
    AnyArray,
    Call,
    ClientStateT,
    Draws,
    Fields,
    Ints,
    MessageT,
    Method,
    Problem,
    ReplyT,
    StateT,
    dtype_of,
)
from fedpage.engine.client_states import ClientStates
from fedpage.engine.faults import (
    FINE,
    LATE,
    LOST,
    WRONG_SHAPE,
    FaultSampler,
    corrupt,
)
from fedpage.engine.policy import Policy
from fedpage.engine.transport import Chunk, Rejection


class LateReply(NamedTuple):
    """A reply that arrives in a later round than the one it belongs to."""

    client: int
    round: int
    reply: Fields
    """Fields (d,)."""
    size: Size
    """Its size as it was sent."""


class LocalTransport(Generic[StateT, MessageT, ReplyT, ClientStateT]):
    """Compute the replies of simulated clients.

    Args:
        problem: The problem, whose oracle has the clients' rows.
        method: The method.
        client_states: The states of all clients.
        threads: The number of threads that compute chunks.
        chunk: The largest number of clients computed at once.
        sampler: Draws the faults of clients; None: clients do not fail.
        policy: Whether replies are validated, and when client states are committed.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        client_states: ClientStates[ClientStateT],
        *,
        threads: int,
        chunk: int,
        sampler: FaultSampler | None,
        policy: Policy,
    ) -> None:
        self.problem, self.method, self.client_states = problem, method, client_states
        self.threads, self.chunk, self.policy = threads, chunk, policy
        self.late: list[LateReply] = []
        self._sampler = sampler
        dtype = dtype_of(problem)
        self._wire = Wire(method, problem.d, dtype)
        self._layouts = self._wire.replies
        self._is_coded = self._wire.is_active or self._wire.has_keep
        self._state_layout: Layout[Fields] | None = None
        if method.client_state is not None:
            self._state_layout = layout_of(method.client_state, problem.d, dtype)

    @property
    def is_reliable(self) -> bool:
        """Whether clients never fail."""
        return self._sampler is None

    def request(
        self, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterable[Chunk[ReplyT, ClientStateT]]:
        """Compute the called clients' replies, in chunks in client order."""
        if self._wire.down is not IDENTITY:
            call = call._replace(message=self._wire.receive(call.message))
        if self._sampler is not None:
            return self._request_unreliable(self._sampler, call, draws, attempt)
        if len(call.clients) <= self.chunk:
            return (self._compute(call.clients, call, draws),)
        return self._compute_chunks(self.split(call.clients), call, draws)

    def commit(self, clients: Ints, client_states: ClientStateT | None) -> None:
        """Store the new states of clients whose replies count."""
        if client_states is not None:
            self.client_states.put(clients, client_states)

    def split(self, clients: Ints) -> list[Ints]:
        """Cut clients into chunks."""
        if len(clients) <= self.chunk:
            return [clients]
        return [clients[i : i + self.chunk] for i in range(0, len(clients), self.chunk)]

    def _compute(
        self, clients: Ints, call: Call[MessageT], draws: Draws
    ) -> Chunk[ReplyT, ClientStateT]:
        """Compute, validate and compress the replies of some of the called clients."""
        message = call.message
        oracle = self.problem.oracle(clients, draws)
        states = self.client_states.get(clients)
        result = self.method.client(message, oracle, states)
        n = len(clients)
        try:
            replies, states = result
            layout = self._layouts[type(message)]
        except (KeyError, TypeError, ValueError):
            raise InputError(self._describe_fault(message, result)) from None
        kept = self._state_layout
        if not layout.matches(replies, n) or (kept is not None and not kept.matches(states, n)):
            raise InputError(self._describe_fault(message, result, n))
        size = None
        if self._is_coded:
            ranks = self._rank(clients, call)
            replies, states = self._wire.finish(message, replies, states, clients, draws, ranks)
            size = self._measure(clients, call, draws)
            if kept is not None and not kept.matches(states, n):
                raise InputError(self._describe_fault(message, (replies, states), n))
        return Chunk(
            clients, clients, replies, states, oracle.gradients, oracle.evaluations, n, (), size
        )

    def _rank(self, clients: Ints, call: Call[MessageT]) -> Ranks | None:
        """Return the places of clients among all that are called, if the codec needs them."""
        if not self._wire.needs_ranks:
            return None
        cohort = call.clients if call.cohort is None else call.cohort
        return Ranks(np.searchsorted(cohort, clients), len(cohort))

    def _measure(self, clients: Ints, call: Call[MessageT], draws: Draws) -> Size | None:
        """Return the size of these clients' replies; None if each has the size of its layout."""
        if self._wire.has_fixed_size:
            return None
        ranks = self._rank(clients, call)
        return self._wire.measure_replies(type(call.message), clients, draws, ranks)

    def _describe_fault(self, message: MessageT, result: object, n: int = 0) -> str:
        """Describe the fault in what `Method.client` returned."""
        name, sent = type(self.method).__name__, type(message).__name__
        if not isinstance(result, tuple) or len(result) != 2:
            return f"{name}.client: must return (reply, client_state), not {type(result).__name__}"
        if type(message) not in self._layouts:
            known = ", ".join(one.__name__ for one in self._layouts)
            return f"{name}: sends {sent}, but `messages` declares {known} only"
        replies, states = result
        fault = self._layouts[type(message)].find_fault(replies, n)
        if fault:
            return f"{name}.client: the reply to {sent} {fault}"
        assert self._state_layout is not None
        fault = self._state_layout.find_fault(states, n)
        return f"{name}.client: the new client state {fault}"

    def _compute_chunks(
        self, chunks: list[Ints], call: Call[MessageT], draws: Draws
    ) -> Iterator[Chunk[ReplyT, ClientStateT]]:
        """Compute chunk after chunk, on threads if there are several."""
        if self.threads == 1 or len(chunks) == 1:
            for clients in chunks:
                yield self._compute(clients, call, draws)
            return
        waiting: deque[Future[Chunk[ReplyT, ClientStateT]]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            for clients in chunks:
                if len(waiting) > self.threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(self._compute_on_thread, clients, call, draws))
            while waiting:
                yield waiting.popleft().result()

    def _compute_on_thread(
        self, clients: Ints, call: Call[MessageT], draws: Draws
    ) -> Chunk[ReplyT, ClientStateT]:
        """Compute a chunk where the main thread's settings of numpy do not reach."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._compute(clients, call, draws)

    def _request_unreliable(
        self, sampler: FaultSampler, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterator[Chunk[ReplyT, ClientStateT]]:
        """Compute what clients that fail send, after the late replies of earlier rounds."""
        now = draws.round
        arrived = [late for late in self.late if late.round < now] if self.late else []
        if arrived:
            self.late = [late for late in self.late if late.round >= now]
            size = Size(*map(sum, zip(*(late.size for late in arrived), strict=True)))
            arrived = sorted(arrived, key=lambda late: late.client)
            yield self._deliver_late(arrived, call)._replace(size=size)
        requested = self.split(call.clients)
        working: list[Ints] = []
        for clients in requested:
            mask = sampler.sample_working(clients, now, attempt)
            working.append(clients if mask is None else clients[mask])
        computed = self._compute_chunks([c for c in working if len(c)], call, draws)
        for clients, able in zip(requested, working, strict=True):
            if not len(able):
                yield Chunk(clients, able, None)
                continue
            chunk = next(computed)
            if self.policy.commit == "always":
                self.client_states.put(able, chunk.client_states)  # type: ignore[arg-type]
                chunk = chunk._replace(client_states=None)
            outcomes = sampler.sample_outcomes(able, now, attempt)
            if outcomes is not None:
                self._keep_late(chunk, outcomes, call, draws)
            deliver = self._validate if self.policy.validate else self._deliver_unchecked
            if able is not clients:
                chunk = chunk._replace(requested=clients)
            if outcomes is not None and chunk.size is not None:
                delivered = able[(outcomes != LOST) & (outcomes != LATE)]
                chunk = chunk._replace(size=self._measure(delivered, call, draws))
            yield deliver(chunk, outcomes)

    def _keep_late(
        self,
        chunk: Chunk[ReplyT, ClientStateT],
        outcomes: NDArray[np.int8],
        call: Call[MessageT],
        draws: Draws,
    ) -> None:
        for i in np.flatnonzero(outcomes == LATE).tolist():
            client = chunk.clients[i : i + 1]
            size = self._measure(client, call, draws) or self._wire.reply_size[type(call.message)]
            self.late.append(LateReply(int(client[0]), draws.round, _row(chunk.replies, i), size))

    def _validate(
        self, chunk: Chunk[ReplyT, ClientStateT], outcomes: NDArray[np.int8] | None
    ) -> Chunk[ReplyT, ClientStateT]:
        """Keep the valid replies of a chunk and describe the faults of the others."""
        replies: Any = chunk.replies
        if outcomes is None and all(_is_finite(part) for part in replies):
            return chunk
        if outcomes is None:
            outcomes = np.zeros(len(chunk.clients), dtype=np.int8)
        delivered = (outcomes != LOST) & (outcomes != LATE)
        valid = delivered & (outcomes == FINE)
        for part in replies:
            valid &= np.isfinite(part).all(axis=1)
        rejected = []
        for i in np.flatnonzero(delivered & ~valid).tolist():
            reply = corrupt(_row(replies, i), int(outcomes[i]))
            fault = _shape_fault(replies, reply) if outcomes[i] == WRONG_SHAPE else ""
            if outcomes[i] == WRONG_SHAPE and not fault:  # a shape of (1,) is right where d = 1
                valid[i] = all(np.isfinite(part).all() for part in reply)
                if valid[i]:
                    continue
            client = int(chunk.clients[i])
            rejected.append(
                Rejection(client, fault) if fault else Rejection(client, "not finite", reply)
            )
        states: Any = chunk.client_states
        return chunk._replace(
            clients=chunk.clients[valid],
            replies=replies._make([part[valid] for part in replies]),
            client_states=None if states is None else states._make([s[valid] for s in states]),
            received=int(delivered.sum()),
            rejected=rejected,
        )

    def _deliver_unchecked(
        self, chunk: Chunk[ReplyT, ClientStateT], outcomes: NDArray[np.int8] | None
    ) -> Chunk[ReplyT, ClientStateT]:
        """Deliver replies without validation; a number in place of a vector is repeated."""
        if outcomes is None:
            return chunk
        replies: Any = chunk.replies
        delivered = np.flatnonzero((outcomes != LOST) & (outcomes != LATE))
        rows = [corrupt(_row(replies, i), int(outcomes[i])) for i in delivered.tolist()]
        return chunk._replace(
            clients=chunk.clients[delivered],
            replies=_stack(rows, replies) if rows else None,
            received=len(rows),
        )

    def _deliver_late(
        self, arrived: list[LateReply], call: Call[MessageT]
    ) -> Chunk[ReplyT, ClientStateT]:
        """Deliver replies of earlier rounds: rejected, or added by a policy that checks nothing."""
        no_clients, n = call.clients[:0], len(arrived)
        if self.policy.validate:
            rejected = [
                Rejection(late.client, f"late: it belongs to round {late.round}")
                for late in arrived
            ]
            return Chunk(no_clients, no_clients, None, received=n, rejected=rejected)
        layout = self._layouts[type(call.message)]
        usable = [late for late in arrived if len(late.reply) == len(layout.sizes)]
        if not usable:
            return Chunk(no_clients, no_clients, None, received=n)
        columns = zip(*(late.reply for late in usable), strict=True)
        parts = [
            np.stack([np.broadcast_to(row, (size,)) for row in rows])
            for rows, size in zip(columns, layout.sizes, strict=True)
        ]
        clients = np.array([late.client for late in usable], dtype=np.int64)
        return Chunk(no_clients, clients, layout.build(parts), received=n)


def _row(replies: Any, i: int) -> Any:
    """Return one client's reply, fields (d,)."""
    return replies._make([part[i] for part in replies])


def _stack(rows: list[Any], replies: Any) -> Any:
    """Join replies of single clients, each broadcast to the right size."""
    columns = zip(*rows, strict=True)
    return replies._make(
        [
            np.stack([np.broadcast_to(row, part.shape[1:]) for row in column])
            for column, part in zip(columns, replies, strict=True)
        ]
    )


def _shape_fault(replies: Any, reply: Any) -> str:
    """Name the field of a client's reply that has the wrong shape."""
    for name, part, row in zip(replies._fields, replies, reply, strict=True):
        if row.shape != part.shape[1:]:
            return f"{name} of shape {row.shape} instead of {part.shape[1:]}"
    return ""


def _is_finite(part: AnyArray) -> bool:
    """Return whether every number is finite; a dot product decides unless it overflows."""
    flat = part.reshape(-1)
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(part).all())
