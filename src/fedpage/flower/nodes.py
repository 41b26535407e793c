"""Find the node of each client, and check that the nodes fit together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpage._version import __version__
from fedpage.core.errors import InputError
from fedpage.flower import messages
from fedpage.flower.exchange import TRANSIENT_ERRORS, Wait, content_of, exchange

_MIN_DESCRIBE_DEADLINE = 180.0
"""Shortest deadline in seconds of a node's first message, which starts its processes."""


class Node(NamedTuple):
    """The node of a client: its id, its rows and its code."""

    node_id: int
    rows: int
    features: int
    digest: str
    labels: str
    code: str
    """Digests of the code of the method and of the problem there."""


def describe_nodes(grid: Grid, ids: Iterable[int], *, code: str, wait: Wait) -> dict[int, Node]:
    """Ask nodes which client they hold; nodes that do not answer are left out.

    Args:
        grid: Flower's Grid.
        ids: The nodes' ids.
        code: Digest of the code of the method and its codecs on the server.
        wait: How long replies may take.

    Returns:
        The nodes by client.

    Raises:
        InputError: A node does not fit the run.
    """
    wait = replace(wait, deadline=max(_MIN_DESCRIBE_DEADLINE, wait.deadline))
    sent = {
        node: Message(RecordDict(), node, messages.DESCRIBE, ttl=wait.deadline, group_id="describe")
        for node in sorted(ids)
    }
    found: dict[int, Node] = {}
    for node, reply in exchange(grid, sent, wait).items():
        if reply.has_error() and reply.error.code in TRANSIENT_ERRORS:
            continue
        try:
            about = messages.decode_header(content_of(reply), messages.Description)
        except messages.ProtocolError as error:
            raise InputError(f"node {node} does not say which client it holds: {error}") from None
        client = about.client
        if about.fedpage != __version__:
            raise InputError(
                f"client {client} has fedpage {about.fedpage[:20]}, but the server has "
                f"{__version__}; install the same version everywhere"
            )
        if client in found:
            raise InputError(
                f"nodes {found[client].node_id} and {node} both say they hold client {client}"
            )
        if about.rows < 1 or about.features < 1:
            raise InputError(
                f"client {client} says it has {about.rows} rows of {about.features} features"
            )
        if about.code != code:
            raise InputError(
                f"client {client} has other code of the method or its codecs than the server; "
                "install the same version everywhere"
            )
        both = f"{about.code} {about.problem}"
        found[client] = Node(node, about.rows, about.features, about.digest, about.labels, both)
    return found


def check_nodes(nodes: Mapping[int, Node]) -> None:
    """Refuse nodes that do not fit together.

    Raises:
        InputError: They run different code, or their labels may mean different things.
    """
    if len({node.code for node in nodes.values()}) > 1:
        raise InputError(
            "nodes run different code of the problem; install the same version everywhere"
        )
    check_labels({client: node.labels for client, node in nodes.items()})


def check_labels(labels: Mapping[int, str]) -> None:
    """Refuse files whose labels may mean different things.

    Args:
        labels: The distinct labels of each client's file, as `Description.labels` has them.

    Raises:
        InputError: Files have different labels, or only one of the two.
    """
    files = {client: frozenset(text.split(",")) for client, text in labels.items() if text}
    every: frozenset[str] = frozenset().union(*files.values())
    if len(set(files.values())) < 2 or every == {"-1", "1"}:
        return
    if len(every) > 2:
        raise InputError(
            "nodes have different labels in their files; use the same two labels everywhere, or "
            "name them in the run config: labels"
        )
    client = next(client for client, found in files.items() if found != every)
    both = ",".join(sorted(every, key=float))
    raise InputError(
        f"client {client} has only one of the two labels; name both in the run config: "
        f'labels = "{both}"'
    )
