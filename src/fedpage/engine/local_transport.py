"""Reach simulated clients: compute their replies in this process, in chunks and on threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from fedpage.codecs.base import IDENTITY
from fedpage.codecs.wire import Ranks, Size, Wire
from fedpage.core.errors import InputError
from fedpage.core.messages import Layout, layout_of
from fedpage.core.schedules import at_round
from fedpage.core.types import (
    Call,
    ClientStateT,
    CountsEachClient,
    Draws,
    Fields,
    Ints,
    MessageT,
    Method,
    Oracle,
    Problem,
    ReplyT,
    StateT,
    Vector,
    dtype_of,
)
from fedpage.engine.client_states import ClientStates
from fedpage.engine.clock import Clock
from fedpage.engine.delivery import (
    LateReply,
    deliver_late,
    deliver_unchecked,
    take_row,
    validate,
)
from fedpage.engine.faults import LATE, LOST, FaultSampler
from fedpage.engine.policy import Policy
from fedpage.engine.transport import Chunk

_NO_SECONDS: Vector = np.empty(0)


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
        clock: Times the clients; None: time is not simulated.
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
        clock: Clock | None = None,
    ) -> None:
        self.problem, self.method, self.client_states = problem, method, client_states
        self.threads, self.chunk, self.policy = threads, chunk, policy
        self.late: list[LateReply] = []
        self._sampler, self._clock = sampler, clock
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
        if self._clock is None and len(call.clients) <= self.chunk:
            return (self._compute(call.clients, call, draws, attempt),)
        chunks = self._compute_chunks(self.split(call.clients), call, draws, attempt)
        return chunks if self._clock is None else self._wait_for_all(self._clock, chunks, attempt)

    def commit(self, clients: Ints, client_states: ClientStateT | None) -> None:
        """Store the new states of clients whose replies count."""
        if client_states is not None:
            self.client_states.put(clients, client_states)

    def split(self, clients: Ints) -> list[Ints]:
        """Cut clients into chunks."""
        if len(clients) <= self.chunk:
            return [clients]
        return [clients[i : i + self.chunk] for i in range(0, len(clients), self.chunk)]

    def _wait_for_all(
        self, clock: Clock, chunks: Iterable[Chunk[ReplyT, ClientStateT]], attempt: int
    ) -> Iterator[Chunk[ReplyT, ClientStateT]]:
        """Pass on chunks in which every called client answers, and wait for the slowest."""
        for chunk in chunks:
            assert chunk.seconds is not None
            clock.wait(attempt, chunk.seconds, is_required=True, has_silent=False)
            yield chunk

    def _compute(
        self, clients: Ints, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Chunk[ReplyT, ClientStateT]:
        """Compute, validate and compress the replies of some of the called clients."""
        message = call.message
        oracle = self.problem.oracle(clients, draws)
        states = self.client_states.get(clients)
        method = at_round(self.method, draws.round)
        result = method.client(message, oracle, states)
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
        seconds = None
        if self._clock is not None:
            seconds = self._time(self._clock, clients, call, draws, attempt, oracle)
        return Chunk(
            clients, clients, replies, states, oracle.gradients, oracle.evaluations, n, (), size,
            seconds,
        )  # fmt: skip

    def _time(
        self,
        clock: Clock,
        clients: Ints,
        call: Call[MessageT],
        draws: Draws,
        attempt: int,
        oracle: Oracle,
    ) -> Vector:
        """Return the simulated seconds of clients that have computed their replies, (n,)."""
        if not isinstance(oracle, CountsEachClient):
            raise InputError(
                f"devices: {type(oracle).__name__} does not count the gradients of each client; "
                "add a method count_each, or leave out the devices"
            )
        message = type(call.message)
        down = self._wire.message_size[message].bytes
        up = self._wire.reply_bytes(message, clients, draws, self._rank(clients, call))
        return clock.measure(clients, down, up, oracle.count_each(), draws.round, attempt)

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
        self, chunks: list[Ints], call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterator[Chunk[ReplyT, ClientStateT]]:
        """Compute chunk after chunk, on threads if there are several."""
        if self.threads == 1 or len(chunks) == 1:
            for clients in chunks:
                yield self._compute(clients, call, draws, attempt)
            return
        waiting: deque[Future[Chunk[ReplyT, ClientStateT]]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            for clients in chunks:
                if len(waiting) > self.threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(self._compute_on_thread, clients, call, draws, attempt))
            while waiting:
                yield waiting.popleft().result()

    def _compute_on_thread(
        self, clients: Ints, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Chunk[ReplyT, ClientStateT]:
        """Compute a chunk where the main thread's settings of numpy do not reach."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._compute(clients, call, draws, attempt)

    def _request_unreliable(
        self, sampler: FaultSampler, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterator[Chunk[ReplyT, ClientStateT]]:
        """Compute what clients that fail send, after the late replies of earlier rounds."""
        now = draws.round
        arrived = [late for late in self.late if late.round < now] if self.late else []
        if arrived:
            self.late = [late for late in self.late if late.round >= now]
            layout = self._layouts[type(call.message)]
            yield deliver_late(arrived, layout, self.policy.validate)
        requested = self.split(call.clients)
        working: list[Ints] = []
        for clients in requested:
            mask = sampler.sample_working(clients, now, attempt)
            working.append(clients if mask is None else clients[mask])
        computed = self._compute_chunks([c for c in working if len(c)], call, draws, attempt)
        for clients, able in zip(requested, working, strict=True):
            if not len(able):
                if self._clock is not None:
                    self._clock.wait(
                        attempt, _NO_SECONDS, is_required=call.require_all, has_silent=True
                    )
                yield Chunk(clients, able, None)
                continue
            chunk = next(computed)
            if self.policy.commit == "always":
                self.client_states.put(able, chunk.client_states)  # type: ignore[arg-type]
                chunk = chunk._replace(client_states=None)
            outcomes = sampler.sample_outcomes(able, now, attempt)
            if self._clock is not None:
                is_whole = len(able) == len(clients)
                chunk, outcomes = self._wait(
                    self._clock, chunk, outcomes, attempt, call.require_all, is_whole
                )
            if outcomes is not None:
                self._keep_late(chunk, outcomes, call, draws)
            deliver = validate if self.policy.validate else deliver_unchecked
            if able is not clients:
                chunk = chunk._replace(requested=clients)
            if outcomes is not None and chunk.size is not None:
                delivered = able[(outcomes != LOST) & (outcomes != LATE)]
                chunk = chunk._replace(size=self._measure(delivered, call, draws))
            yield deliver(chunk, outcomes)

    def _wait(
        self,
        clock: Clock,
        chunk: Chunk[ReplyT, ClientStateT],
        outcomes: NDArray[np.int8] | None,
        attempt: int,
        is_required: bool,
        is_whole: bool,
    ) -> tuple[Chunk[ReplyT, ClientStateT], NDArray[np.int8] | None]:
        """Wait for a chunk's replies; those after the deadline are late, except lost ones."""
        assert chunk.seconds is not None
        is_silent = outcomes is not None and bool(np.isin(outcomes, (LOST, LATE)).any())
        late = clock.wait(
            attempt, chunk.seconds, is_required=is_required, has_silent=is_silent or not is_whole
        )
        if late is None:
            return chunk, outcomes
        outcomes = np.zeros(len(late), dtype=np.int8) if outcomes is None else outcomes
        outcomes[late & (outcomes != LOST)] = LATE
        return chunk._replace(expired=chunk.clients[late]), outcomes

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
            self.late.append(
                LateReply(int(client[0]), draws.round, take_row(chunk.replies, i), size)
            )
