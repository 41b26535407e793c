"""The protocol by which an engine sends requests and receives chunks of validated replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpage.callbacks.base import Event, Slowest
from fedpage.codecs.message_codec import MessageCodec, MessageSize
from fedpage.core.types import Call, ClientStateT, Draws, Ints, MessageT, ReplyT, Vector

AnyMessageCodec: TypeAlias = MessageCodec[Any, Any, Any, Any]


class Rejection(NamedTuple):
    """A reply that failed validation."""

    client: int
    reason: str
    reply: tuple[object, ...] | None = None
    """The reply itself, fields (d,), if its only fault is that it is not finite."""


class Chunk(NamedTuple, Generic[ReplyT, ClientStateT]):
    """The validated replies of some of the requested clients, in client order."""

    requested: Ints
    """(m,) the requested clients of this chunk, ascending."""
    clients: Ints
    """(n,) those of them whose replies are valid, ascending."""
    replies: ReplyT | None
    """Their replies, each field (n, d); None if n = 0."""
    client_states: ClientStateT | None = None
    """Their new states, (n, d), to commit when the replies count; None if clients keep them."""
    gradients: int = 0
    evaluations: int = 0
    received: int = 0
    """Replies that arrived, valid or not."""
    rejected: Sequence[Rejection] = ()
    size: MessageSize | None = None
    """The size of the replies that arrived; None if each has the size of its layout."""
    seconds: Vector | None = None
    """The simulated seconds of each client that worked; None without a clock."""
    slowest: Slowest | None = None
    """The client whose reply took longest; None if time is not measured."""
    expired: Ints | None = None
    """The clients that answer after the deadline and are not asked again in this round."""
    mean: ReplyT | None = None
    """The mean of the valid replies, fields (d,), where the transport does not know the replies."""
    responsive: Ints | None = None
    """The clients that answered, whether their replies count or not, where `mean` takes the place
    of replies; None means the clients with valid replies."""

    @property
    def missing(self) -> Ints:
        """The requested clients that did not answer."""
        answered = self.clients if self.responsive is None else self.responsive
        return difference(self.requested, answered)

    def select(self, kept: NDArray[np.bool_]) -> Chunk[ReplyT, ClientStateT]:
        """Return a chunk with some of the replies only, (n,) true where one is kept."""
        replies: Any = self.replies
        states: Any = self.client_states
        return self._replace(
            clients=self.clients[kept],
            replies=replies._make([part[kept] for part in replies]),
            client_states=None if states is None else states._make([s[kept] for s in states]),
        )

    def reply_of(self, i: int) -> Any:
        """Return the reply of the i-th client, fields (d,)."""
        replies: Any = self.replies
        return replies._make([part[i] for part in replies])


class Transport(Protocol[MessageT, ReplyT, ClientStateT]):
    """Send a call to clients and validate their replies."""

    @property
    def codec(self) -> AnyMessageCodec:
        """The method's messages and replies as they travel; one for the whole run."""
        ...

    @property
    def is_reliable(self) -> bool:
        """Whether every requested client always answers, so that states may be stored at once."""
        ...

    def request(
        self, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterable[Chunk[ReplyT, ClientStateT]]:
        """Send the call's message to its clients.

        Args:
            call: The clients and the message.
            draws: The round's random numbers.
            attempt: The number of this attempt within the round, from 0.

        Returns:
            Chunks in client order that together cover all requested clients. Replies that were not
            requested come in a chunk of their own, without requested clients.
        """
        ...

    def commit(self, clients: Ints, client_states: ClientStateT | None) -> None:
        """Store the new states of clients whose replies count."""
        ...


class RoundFailed(Exception):
    """Raised when too few clients answered in all attempts of a round, with its events."""

    def __init__(self, text: str, events: Sequence[Event] = ()) -> None:
        super().__init__(text)
        self.events = tuple(events)


def merge(parts: Sequence[Chunk[ReplyT, ClientStateT]]) -> Chunk[ReplyT, ClientStateT]:
    """Join the replies of several attempts in client order."""
    requested = parts[0].requested
    parts = [part for part in parts if len(part.clients)] or parts[:1]
    if len(parts) == 1:
        return parts[0]._replace(requested=requested)
    clients = np.concatenate([part.clients for part in parts])
    order = np.argsort(clients, kind="stable")

    def join(values: list[Any]) -> Any:
        columns = zip(*values, strict=True)
        return values[0]._make([np.concatenate(column)[order] for column in columns])

    states = [part.client_states for part in parts]
    joined = None if any(state is None for state in states) else join(states)
    return Chunk(requested, clients[order], join([part.replies for part in parts]), joined)


def join_request(
    parts: Sequence[Chunk[ReplyT, ClientStateT]], reply_size: MessageSize
) -> Chunk[ReplyT, ClientStateT]:
    """Join all chunks of the replies to one request; `reply_size` is that of a single reply."""
    if len(parts) == 1:
        return parts[0]
    size = None
    if any(part.size is not None for part in parts):
        sizes = [
            part.size or MessageSize(*(part.received * n for n in reply_size)) for part in parts
        ]
        size = MessageSize(*map(sum, zip(*sizes, strict=True)))
    expired = [part.expired for part in parts if part.expired is not None]
    return merge(parts)._replace(
        requested=np.concatenate([part.requested for part in parts]),
        gradients=sum(part.gradients for part in parts),
        evaluations=sum(part.evaluations for part in parts),
        received=sum(part.received for part in parts),
        rejected=[rejection for part in parts for rejection in part.rejected],
        size=size,
        expired=np.concatenate(expired) if expired else None,
    )


def difference(clients: Ints, others: Ints) -> Ints:
    """Return the clients that are not among the others."""
    if not len(others) or not len(clients):
        return clients
    if others is clients:
        return clients[:0]
    return clients[~np.isin(clients, others, assume_unique=True)]
