"""Deliver the replies of simulated clients: as computed, corrupted, rejected, or late."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpage.codecs.wire import Size
from fedpage.core.messages import Layout
from fedpage.core.types import AnyArray, ClientStateT, Fields, ReplyT
from fedpage.engine.chunks import select
from fedpage.engine.faults import FINE, HUGE, LATE, LOST, WRONG_SHAPE, corrupt
from fedpage.engine.transport import Chunk, Rejection


class LateReply(NamedTuple):
    """A reply that arrives in a later round than the one it belongs to."""

    client: int
    round: int
    reply: Fields
    """Fields (d,)."""
    size: Size
    """Its size as it was sent."""


def validate(
    chunk: Chunk[ReplyT, ClientStateT], outcomes: NDArray[np.int8] | None
) -> Chunk[ReplyT, ClientStateT]:
    """Keep the valid replies of a chunk and describe the faults of the others.

    Args:
        chunk: The replies of all clients that worked.
        outcomes: What becomes of each, (n,); None: all arrive as they were computed.
    """
    replies: Any = chunk.replies
    if outcomes is None and all(_is_finite(part) for part in replies):
        return chunk
    if outcomes is None:
        outcomes = np.zeros(len(chunk.clients), dtype=np.int8)
    delivered = (outcomes != LOST) & (outcomes != LATE)
    valid = delivered & ((outcomes == FINE) | (outcomes == HUGE))
    huge = np.flatnonzero(outcomes == HUGE)
    if len(huge):
        replies = replies._make([part.copy() for part in replies])
        for i in huge.tolist():
            for part, row in zip(replies, corrupt(take_row(replies, i), HUGE), strict=True):
                part[i] = row
        chunk = chunk._replace(replies=replies)
    for part in replies:
        valid &= np.isfinite(part).all(axis=1)
    rejected = []
    for i in np.flatnonzero(delivered & ~valid).tolist():
        reply = corrupt(take_row(replies, i), int(outcomes[i]))
        fault = _shape_fault(replies, reply) if outcomes[i] == WRONG_SHAPE else ""
        if outcomes[i] == WRONG_SHAPE and not fault:  # a shape of (1,) is right where d = 1
            valid[i] = all(np.isfinite(part).all() for part in reply)
            if valid[i]:
                continue
        client = int(chunk.clients[i])
        rejected.append(
            Rejection(client, fault) if fault else Rejection(client, "not finite", reply)
        )
    return select(chunk, valid)._replace(received=int(delivered.sum()), rejected=rejected)


def deliver_unchecked(
    chunk: Chunk[ReplyT, ClientStateT], outcomes: NDArray[np.int8] | None
) -> Chunk[ReplyT, ClientStateT]:
    """Deliver replies without validation; a number in place of a vector is repeated.

    Args:
        chunk: The replies of all clients that worked.
        outcomes: What becomes of each, (n,); None: all arrive as they were computed.
    """
    if outcomes is None:
        return chunk
    replies: Any = chunk.replies
    delivered = np.flatnonzero((outcomes != LOST) & (outcomes != LATE))
    rows = [corrupt(take_row(replies, i), int(outcomes[i])) for i in delivered.tolist()]
    return chunk._replace(
        clients=chunk.clients[delivered],
        replies=_stack(rows, replies) if rows else None,
        received=len(rows),
    )


def deliver_late(
    arrived: list[LateReply], layout: Layout[ReplyT], is_validated: bool
) -> Chunk[ReplyT, ClientStateT]:
    """Deliver replies of earlier rounds: rejected, or added by a policy that checks nothing.

    Args:
        arrived: The replies.
        layout: The fields of a reply of this round.
        is_validated: Whether late replies are rejected.
    """
    no_clients, n = np.empty(0, dtype=np.int64), len(arrived)
    size = Size(*map(sum, zip(*(late.size for late in arrived), strict=True)))
    arrived = sorted(arrived, key=lambda late: late.client)
    if is_validated:
        rejected = [
            Rejection(late.client, f"late: it belongs to round {late.round}") for late in arrived
        ]
        return Chunk(no_clients, no_clients, None, received=n, rejected=rejected, size=size)
    usable = [late for late in arrived if len(late.reply) == len(layout.sizes)]
    if not usable:
        return Chunk(no_clients, no_clients, None, received=n, size=size)
    columns = zip(*(late.reply for late in usable), strict=True)
    parts = [
        np.stack([np.broadcast_to(row, (size,)) for row in rows])
        for rows, size in zip(columns, layout.sizes, strict=True)
    ]
    clients = np.array([late.client for late in usable], dtype=np.int64)
    return Chunk(no_clients, clients, layout.build(parts), received=n, size=size)


def take_row(replies: Any, i: int) -> Any:
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
