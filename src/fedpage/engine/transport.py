"""The protocol by which an engine sends requests and receives chunks of validated replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, Protocol

from fedpage.callbacks.base import Slowest
from fedpage.codecs.wire import Size
from fedpage.core.types import Call, ClientStateT, Draws, Ints, MessageT, ReplyT, Vector


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
    """Their new states, (n, d), to commit when the replies count; None: the client keeps them."""
    gradients: int = 0
    evaluations: int = 0
    received: int = 0
    """Replies that arrived, valid or not."""
    rejected: Sequence[Rejection] = ()
    size: Size | None = None
    """The size of the replies that arrived; None: all have the size of their layout."""
    seconds: Vector | None = None
    """The simulated seconds of each client that worked; None: time is not simulated."""
    slowest: Slowest | None = None
    """The client whose reply took longest; None: time is not measured."""
    expired: Ints | None = None
    """The clients that answer after the deadline and are not asked again in this round."""
    mean: ReplyT | None = None
    """The mean of the valid replies, fields (d,), where the transport does not know the replies."""
    responsive: Ints | None = None
    """The clients that answered, whether their replies count or not, where `mean` takes the place
    of replies; None: those with valid replies."""


class Transport(Protocol[MessageT, ReplyT, ClientStateT]):
    """Send a call to clients and validate their replies."""

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


class Event(NamedTuple):
    """A fault of clients in a round, as the history records it."""

    kind: str
    """"rejected", "fallback", "lost", "back", or an engine's own kind."""
    round: int
    text: str


class RoundFailed(Exception):
    """Raised when too few clients answered in all attempts of a round.

    Args:
        text: Which round failed, and who was missing.
        events: What happened in the round.
    """

    def __init__(self, text: str, events: Sequence[Event] = ()) -> None:
        super().__init__(text)
        self.events = tuple(events)
