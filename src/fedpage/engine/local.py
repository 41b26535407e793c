"""Reach simulated clients: compute their replies in this process, in chunks and on threads."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpage.codecs.base import IDENTITY
from fedpage.codecs.message_codec import NO_RANKS, MessageCodec, MessageSize, Ranks
from fedpage.core.capabilities import DeviceArrays
from fedpage.core.errors import InputError
from fedpage.core.messages import Layout, field_names, layout_of
from fedpage.core.types import (
    AnyArray,
    Call,
    ClientStateT,
    Draws,
    DType,
    Fields,
    Ints,
    MessageT,
    Method,
    Problem,
    ReplyT,
    StateT,
    Vector,
)
from fedpage.core.validate import is_finite
from fedpage.engine.devices import Clock
from fedpage.engine.faults import FINE, HUGE, LATE, LOST, WRONG_SHAPE, FaultSampler, corrupt
from fedpage.engine.policy import Policy
from fedpage.engine.transport import Chunk, Rejection
from fedpage.methods.schedules import at_round, schedules_of

_NO_CLIENTS: Ints = np.empty(0, dtype=np.int64)
_NO_SECONDS: Vector = np.empty(0)
_SMALL_TABLE = 1 << 26
"""Tables of fewer bytes have the clients' rows in the order of their numbers."""


class ClientStates(Generic[ClientStateT]):
    """Keep every client's state: a table (N, d) for each field, zero until it is first written.

    The operating system assigns memory to the rows that are written. In large tables a client's row
    is the next one that is free when the client is first called. So a million clients of whom a
    thousand were called cost a thousand rows, which lie side by side. `type_` is the method's
    `client_state`, which may be None, and `device` keeps the tables, if not the host.
    """

    def __init__(
        self,
        type_: type[ClientStateT] | None,
        N: int,
        d: int,
        dtype: DType,
        device: DeviceArrays | None = None,
    ) -> None:
        self._type: Callable[..., ClientStateT] | None = type_
        self._N, self._used = N, 0
        self._is_large = device is None and N * d * dtype.itemsize >= _SMALL_TABLE
        try:
            names = () if type_ is None else field_names(type_)
            zeros = partial(_zeros, dtype=dtype) if device is None else device.zeros
            self._tables: list[Any] = [zeros(N, d) for _ in names]
            self._written = np.zeros(N if names else 0, dtype=bool)
            self._places: Ints = np.full(N if self._is_large else 0, -1, dtype=np.int64)
            """(N,) each client's row in large tables, or -1."""
        except (MemoryError, OSError, OverflowError, ValueError, RuntimeError):
            raise InputError(
                f"the states of {N} clients with {d} numbers each do not fit in memory; "
                "use fewer clients"
            ) from None

    def get(self, clients: Ints) -> ClientStateT:
        """Return copies of some clients' states, (n, d) each; None if the method keeps none."""
        if self._type is None:
            return None  # type: ignore[return-value]  # ClientStateT is None then
        if not self._is_large:
            return self._type(*[table[clients] for table in self._tables])
        places = self._places[clients]
        parts = [table[places] for table in self._tables]
        for part in parts:
            part[places < 0] = 0.0
        return self._type(*parts)

    def put(self, clients: Ints, client_states: ClientStateT) -> None:
        """Store the new states of some clients, (n, d) each."""
        if client_states is None:
            return
        places = clients
        if self._is_large:
            new = clients[~self._written[clients]]
            self._places[new] = np.arange(self._used, self._used + len(new))
            self._used += len(new)
            places = self._places[clients]
        for table, rows in zip(self._tables, client_states, strict=True):
            table[places] = rows
        self._written[clients] = True

    def get_all(self) -> ClientStateT:
        """Return copies of all N clients' states, (N, d) each; None if the method keeps none."""
        return self.get(np.arange(self._N))

    def find_written(self) -> Ints:
        """Return the clients whose state has been written, (n,)."""
        return np.flatnonzero(self._written)


def _zeros(N: int, d: int, dtype: DType) -> Vector:
    """Return zeros (N, d) that take memory in small pages, which numpy would not ask for."""
    size = N * d * dtype.itemsize
    if size < _SMALL_TABLE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros((N, d), dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.ndarray((N, d), dtype, memory)


class LateReply(NamedTuple):
    """A reply that arrives in a later round than the one it belongs to."""

    client: int
    round: int
    reply: tuple[AnyArray, ...]
    """Its fields, (d,) each."""
    size: MessageSize
    """Its size as it was sent."""


class LocalTransport(Generic[StateT, MessageT, ReplyT, ClientStateT]):
    """Compute the replies of simulated clients, at most `chunk` clients at once on each thread.

    Clients fail if there is a sampler of faults, and their time is simulated if there is a clock.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        codec: MessageCodec[StateT, MessageT, ReplyT, ClientStateT],
        client_states: ClientStates[ClientStateT],
        policy: Policy,
        *,
        threads: int,
        chunk: int,
        sampler: FaultSampler | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.problem, self.method, self.codec = problem, method, codec
        self.client_states, self.policy = client_states, policy
        self.threads, self.chunk = threads, chunk
        self.is_reliable = sampler is None
        self.late: list[LateReply] = []
        self._sampler, self._clock = sampler, clock
        self._is_scheduled = bool(schedules_of(method))
        self._is_coded = codec.is_active or codec.updates_client_state
        self._state_layout: Layout[Fields] | None = None
        if method.client_state is not None:
            self._state_layout = layout_of(method.client_state, codec.d, codec.dtype)

    def request(
        self, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterable[Chunk[ReplyT, ClientStateT]]:
        """Compute the called clients' replies, in chunks in client order."""
        if self.codec.down is not IDENTITY:
            call = call._replace(message=self.codec.receive(call.message))
        if self._sampler is not None:
            return self._request_unreliable(self._sampler, call, draws, attempt)
        if self._clock is None and len(call.clients) <= self.chunk:
            return (self._compute(call.clients, call, draws, attempt),)
        chunks = self._compute_chunks(self.split(call.clients), call, draws, attempt)
        return chunks if self._clock is None else map(partial(self._wait, attempt), chunks)

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
        self, clients: Ints, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Chunk[ReplyT, ClientStateT]:
        """Compute, validate and compress the replies of some of the called clients."""
        message = call.message
        oracle = self.problem.oracle(clients, draws)
        method = at_round(self.method, draws.round) if self._is_scheduled else self.method
        result = method.client(message, oracle, self.client_states.get(clients))
        n = len(clients)
        try:
            replies, states = result
            layout = self.codec.replies[type(message)]
        except (KeyError, TypeError, ValueError):
            raise InputError(self._describe_fault(message, result)) from None
        if fault := layout.find_fault(replies, n):
            name, sent = type(self.method).__name__, type(message).__name__
            raise InputError(f"{name}.client: the reply to {sent} {fault}")
        if self._state_layout is not None:
            self._check_states(states, n)
        size = seconds = None
        if self._is_coded:
            ranks = self._rank(clients, call)
            replies, states = self.codec.finish(message, replies, states, clients, draws, ranks)
            size = self._measure(clients, call, draws)
            if self._state_layout is not None:
                self._check_states(states, n)
        if self._clock is not None:
            if not hasattr(oracle, "count_each"):
                raise InputError(
                    f"devices: {type(oracle).__name__} does not count the gradients of each "
                    "client; add a method count_each, or leave out the devices"
                )
            up = self.codec.reply_bytes(type(message), clients, draws, self._rank(clients, call))
            down, gradients = self.codec.message_size[type(message)].bytes, oracle.count_each()
            seconds = self._clock.measure(clients, down, up, gradients, draws.round, attempt)
        return Chunk(
            clients, clients, replies, states, oracle.gradients, oracle.evaluations, n, (), size,
            seconds,
        )  # fmt: skip

    def _rank(self, clients: Ints, call: Call[MessageT]) -> Ranks:
        """Return the places of clients among all that are called, if the codec needs them."""
        if not self.codec.needs_ranks:
            return NO_RANKS
        cohort = call.clients if call.cohort is None else call.cohort
        return Ranks(np.searchsorted(cohort, clients), len(cohort))

    def _measure(self, clients: Ints, call: Call[MessageT], draws: Draws) -> MessageSize | None:
        """Return the size of these clients' replies; None if each has the size of its layout."""
        if self.codec.has_fixed_size:
            return None
        ranks = self._rank(clients, call)
        return self.codec.measure_replies(type(call.message), clients, draws, ranks)

    def _describe_fault(self, message: MessageT, result: object) -> str:
        """Describe the fault in the result of `Method.client`, or in the declared messages."""
        name = type(self.method).__name__
        if not isinstance(result, tuple) or len(result) != 2:
            return f"{name}.client: must return (reply, client_state), not {type(result).__name__}"
        known = ", ".join(one.__name__ for one in self.codec.replies)
        return f"{name}: sends {type(message).__name__}, but `messages` declares {known} only"

    def _check_states(self, states: ClientStateT, n: int) -> None:
        """Raise an InputError if new client states have not the declared layout."""
        assert self._state_layout is not None
        if fault := self._state_layout.find_fault(states, n):
            name = type(self.method).__name__
            raise InputError(f"{name}.client: the new client state {fault}")

    def _compute_chunks(
        self, chunks: list[Ints], call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterator[Chunk[ReplyT, ClientStateT]]:
        """Compute chunk after chunk, on threads if there are several."""
        if self.threads == 1 or len(chunks) == 1:
            for clients in chunks:
                yield self._compute(clients, call, draws, attempt)
            return

        def compute(clients: Ints) -> Chunk[ReplyT, ClientStateT]:
            with np.errstate(over="ignore", invalid="ignore"):  # numpy sets them for each thread
                return self._compute(clients, call, draws, attempt)

        waiting: deque[Future[Chunk[ReplyT, ClientStateT]]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            for clients in chunks:
                if len(waiting) > self.threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(compute, clients))
            while waiting:
                yield waiting.popleft().result()

    def _wait(
        self, attempt: int, chunk: Chunk[ReplyT, ClientStateT]
    ) -> Chunk[ReplyT, ClientStateT]:
        """Wait for the slowest client of a chunk in which every called client answers."""
        assert self._clock is not None
        assert chunk.seconds is not None
        self._clock.wait(attempt, chunk.seconds, is_required=True, has_silent=False)
        return chunk

    def _request_unreliable(
        self, sampler: FaultSampler, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterator[Chunk[ReplyT, ClientStateT]]:
        """Compute the replies of clients that may fail, after the late ones of earlier rounds."""
        now = draws.round
        arrived = [late for late in self.late if late.round < now]
        if arrived:
            self.late = [late for late in self.late if late.round >= now]
            layout = self.codec.replies[type(call.message)]
            yield deliver_late(arrived, layout, self.policy.validate)
        requested = self.split(call.clients)
        working: list[Ints] = []
        for clients in requested:
            mask = sampler.sample_working(clients, now, attempt)
            working.append(clients if mask is None else clients[mask])
        computed = self._compute_chunks([c for c in working if len(c)], call, draws, attempt)
        for clients, able in zip(requested, working, strict=True):
            chunk = next(computed) if len(able) else Chunk[ReplyT, ClientStateT](able, able, None)
            if self.policy.commit == "always" and len(able):
                self.commit(able, chunk.client_states)
                chunk = chunk._replace(client_states=None)
            outcomes = sampler.sample_outcomes(able, now, attempt)
            if self._clock is not None:
                silent = len(able) < len(clients) or not _delivered(outcomes).all()
                seconds = _NO_SECONDS if chunk.seconds is None else chunk.seconds
                is_late = self._clock.wait(
                    attempt, seconds, is_required=call.require_all, has_silent=silent
                )
                if is_late is not None:
                    outcomes[is_late & (outcomes != LOST)] = LATE
                    chunk = chunk._replace(expired=able[is_late])
            if able is not clients:
                chunk = chunk._replace(requested=clients)
            if not len(able):
                yield chunk
                continue
            for i in np.flatnonzero(outcomes == LATE).tolist():
                size = self._measure(able[i : i + 1], call, draws)
                size = size or self.codec.reply_size[type(call.message)]
                self.late.append(LateReply(int(able[i]), now, tuple(chunk.reply_of(i)), size))
            if chunk.size is not None and outcomes.any():
                size = self._measure(able[_delivered(outcomes)], call, draws)
                chunk = chunk._replace(size=size)
            deliver = validate if self.policy.validate else deliver_unchecked
            yield deliver(chunk, outcomes)


def _delivered(outcomes: NDArray[np.int8]) -> NDArray[np.bool_]:
    arrived: NDArray[np.bool_] = (outcomes != LOST) & (outcomes != LATE)
    return arrived


def validate(
    chunk: Chunk[ReplyT, ClientStateT], outcomes: NDArray[np.int8]
) -> Chunk[ReplyT, ClientStateT]:
    """Keep the valid replies of a chunk by their outcomes, (n,), and describe the other faults."""
    replies: Any = chunk.replies
    if not outcomes.any() and all(map(is_finite, replies)):
        return chunk
    delivered = _delivered(outcomes)
    valid = delivered & ((outcomes == FINE) | (outcomes == HUGE))
    huge = np.flatnonzero(outcomes == HUGE).tolist()
    if huge:
        replies = replies._make([part.copy() for part in replies])
        for i in huge:
            for part, row in zip(replies, corrupt(chunk.reply_of(i), HUGE), strict=True):
                part[i] = row
        chunk = chunk._replace(replies=replies)
    for part in replies:
        valid &= np.isfinite(part).all(axis=1)
    rejected = []
    for i in np.flatnonzero(delivered & ~valid).tolist():
        reply = corrupt(chunk.reply_of(i), int(outcomes[i]))
        fault = _shape_fault(replies, reply) if outcomes[i] == WRONG_SHAPE else ""
        if outcomes[i] == WRONG_SHAPE and not fault:  # a shape of (1,) is right where d = 1
            valid[i] = all(np.isfinite(part).all() for part in reply)
            if valid[i]:
                continue
        what = (fault, None) if fault else ("not finite", reply)
        rejected.append(Rejection(int(chunk.clients[i]), *what))
    return chunk.select(valid)._replace(received=int(delivered.sum()), rejected=rejected)


def deliver_unchecked(
    chunk: Chunk[ReplyT, ClientStateT], outcomes: NDArray[np.int8]
) -> Chunk[ReplyT, ClientStateT]:
    """Deliver replies without validation; a number in place of a vector is repeated."""
    if not outcomes.any():
        return chunk
    replies: Any = chunk.replies
    delivered = np.flatnonzero(_delivered(outcomes))
    rows = [corrupt(chunk.reply_of(i), int(outcomes[i])) for i in delivered.tolist()]
    sizes = [part.shape[1] for part in replies]
    return chunk._replace(
        clients=chunk.clients[delivered],
        replies=replies._make(_stack(rows, sizes)) if rows else None,
        received=len(rows),
    )


def deliver_late(
    arrived: list[LateReply], layout: Layout[ReplyT], is_validated: bool
) -> Chunk[ReplyT, ClientStateT]:
    """Deliver replies of earlier rounds: rejected, or added by a policy that checks nothing."""
    arrived = sorted(arrived, key=lambda late: late.client)
    chunk = Chunk[ReplyT, ClientStateT](
        _NO_CLIENTS, _NO_CLIENTS, None, received=len(arrived),
        size=MessageSize(*map(sum, zip(*(late.size for late in arrived), strict=True))),
    )  # fmt: skip
    if is_validated:
        texts = [(late.client, f"late: it belongs to round {late.round}") for late in arrived]
        return chunk._replace(rejected=[Rejection(*text) for text in texts])
    usable = [late for late in arrived if len(late.reply) == len(layout.sizes)]
    if not usable:
        return chunk
    clients = np.array([late.client for late in usable], dtype=np.int64)
    parts = _stack([late.reply for late in usable], layout.sizes)
    return chunk._replace(clients=clients, replies=layout.build(parts))


def _stack(rows: list[Any], sizes: Iterable[int]) -> list[Vector]:
    """Join replies of single clients, each field broadcast to its size."""
    return [
        np.stack([np.broadcast_to(row, (size,)) for row in column])
        for column, size in zip(zip(*rows, strict=True), sizes, strict=True)
    ]


def _shape_fault(replies: Any, reply: Any) -> str:
    """Name the field of a client's reply that has the wrong shape."""
    for name, part, row in zip(replies._fields, replies, reply, strict=True):
        if row.shape != part.shape[1:]:
            return f"{name} of shape {row.shape} instead of {part.shape[1:]}"
    return ""
