"""Send messages to Flower's nodes and wait for their replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpage.flower import messages
from fedpage.flower.node_errors import NodeRefused


@dataclass(frozen=True)
class Wait:
    """How long replies may take, and how they are waited for.

    Args:
        deadline: Seconds after which a reply is late.
        poll: Seconds between checks for replies.
        sleep: Waits for some seconds; replaced in tests.
        clock: Returns seconds; replaced in tests.
        pause: Seconds before a silent client is asked again for the first time (see `Backoff`).
    """

    deadline: float = 600.0
    poll: float = 0.2
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    pause: float = 1.0


def check_sender(client: int, sender: int) -> None:
    """Refuse a reply that claims to come from another client.

    Raises:
        ProtocolError: It does.
    """
    if sender != client:
        raise messages.ProtocolError(f"it says it is client {sender}")


def content_of(reply: Message) -> RecordDict:
    """Return the content of a reply.

    Raises:
        NodeRefused: The node refused the request; the text has the code and the reference.
        ProtocolError: The reply is an error of Flower; the text says which, in one line.
    """
    if reply.has_error():
        reason = " ".join(str(reply.error.reason).split())
        raise messages.ProtocolError(f"{_ERRORS.get(reply.error.code, 'error')} ({reason[-200:]})")
    raise_refusal(reply.content)
    return reply.content


def raise_refusal(content: RecordDict) -> None:
    """Raise the refusal that a content is, if it is one.

    Raises:
        NodeRefused: It is; the text has the code and the reference.
        ProtocolError: It is one that cannot be read.
    """
    header = dict(content).get(messages.HEADER)
    if isinstance(header, ConfigRecord) and set(header) == set(messages.Refusal._fields):
        raise NodeRefused(messages.decode_header(content, messages.Refusal))


def is_error(reply: Message) -> bool:
    """Return whether a reply has no content but an error."""
    try:
        content_of(reply)
    except messages.ProtocolError:
        return True
    return False


_ERRORS = {
    1: "its app cannot be loaded",
    2: "it raised an exception",
    3: "no reply in time",
    4: "its reply came too late",
    5: "its node is not connected",
    6: "a mod refused",
    7: "its app is invalid",
    8: "its process died",
}
"""Flower's error codes."""
NOT_CONNECTED = 5
"""The error of a node that is away."""
TRANSIENT_ERRORS = (3, 4, 5, 8)
"""Errors of the connection or of a process, after which a node may answer again."""


def exchange(
    grid: Grid,
    sent: Mapping[int, Message],
    wait: Wait,
    arrivals: dict[int, float] | None = None,
) -> dict[int, Message]:
    """Send messages and wait until every one is answered or the deadline is over.

    Replies are matched to messages by Flower's own identifiers, not by what they claim.

    Args:
        grid: Flower's Grid.
        sent: Messages by any key, such as a client number.
        wait: How long to wait.
        arrivals: A table that gets the time at which each reply arrived, by the same keys.

    Returns:
        Replies by the same keys.
    """
    waiting: dict[str, int] = {}
    for number, message_id in zip(
        sent, list(grid.push_messages(list(sent.values()))), strict=False
    ):
        if message_id:
            waiting[message_id] = number
    replies: dict[int, Message] = {}
    end = wait.clock() + wait.deadline + 5.0  # the SuperLink reports missed deadlines itself
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            if reply.metadata.reply_to_message_id in waiting:
                key = waiting.pop(reply.metadata.reply_to_message_id)
                replies[key] = reply
                if arrivals is not None:
                    arrivals[key] = wait.clock()
        if not waiting or wait.clock() > end:
            break
        wait.sleep(wait.poll)
    return replies
