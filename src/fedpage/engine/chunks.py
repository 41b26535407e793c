"""Join, select and compare chunks of replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpage.codecs.wire import Size
from fedpage.core.aggregate import add_rows
from fedpage.core.types import ClientStateT, Ints, Replies, ReplyT
from fedpage.engine.transport import Chunk, Rejection


def merge(parts: Sequence[Chunk[ReplyT, ClientStateT]]) -> Chunk[ReplyT, ClientStateT]:
    """Join the replies of several attempts in client order."""
    parts = [part for part in parts if len(part.clients)] or parts[:1]
    first = parts[0]
    if len(parts) == 1:
        return first
    clients = np.concatenate([part.clients for part in parts])
    order = np.argsort(clients, kind="stable")

    def join(values: list[Any]) -> Any:
        columns = zip(*values, strict=True)
        return values[0]._make([np.concatenate(column)[order] for column in columns])

    states = [part.client_states for part in parts]
    joined = None if any(state is None for state in states) else join(states)
    return Chunk(first.requested, clients[order], join([p.replies for p in parts]), joined)


def join_request(
    parts: Sequence[Chunk[ReplyT, ClientStateT]], reply_size: Size
) -> Chunk[ReplyT, ClientStateT]:
    """Join all chunks of the replies to one request.

    Args:
        parts: The chunks.
        reply_size: The size of a reply in a chunk that does not state its size.
    """
    if len(parts) == 1:
        return parts[0]
    size = None
    if any(part.size is not None for part in parts):
        sizes = [part.size or Size(*(part.received * n for n in reply_size)) for part in parts]
        size = Size(*map(sum, zip(*sizes, strict=True)))
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


def select(
    chunk: Chunk[ReplyT, ClientStateT], kept: NDArray[np.bool_]
) -> Chunk[ReplyT, ClientStateT]:
    """Return a chunk with some of its replies only, (n,) true where one is kept."""
    replies: Any = chunk.replies
    states: Any = chunk.client_states
    return chunk._replace(
        clients=chunk.clients[kept],
        replies=replies._make([part[kept] for part in replies]),
        client_states=None if states is None else states._make([s[kept] for s in states]),
    )


def difference(requested: Ints, answered: Ints) -> Ints:
    """Return the requested clients that have not answered."""
    if not len(answered) or not len(requested):
        return requested
    return requested[~np.isin(requested, answered, assume_unique=True)]


def mean_of_rejected(rejected: Sequence[Rejection]) -> Any:
    """Return the mean of rejected replies of all called clients, so that the run has diverged."""
    replies: list[Any] = [rejection.reply for rejection in rejected]
    means = [add_rows(None, np.stack(rows)) / len(rows) for rows in zip(*replies, strict=True)]
    clients = np.array([rejection.client for rejection in rejected], dtype=np.int64)
    return Replies(replies[0]._make(means), clients)
