"""Ask nodes which client they hold, and refuse those that do not fit the run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpage._version import __version__
from fedpage.flower import messages
from fedpage.flower.agreement import Agreement, read_names
from fedpage.flower.exchange import TRANSIENT_ERRORS, Wait, content_of, exchange
from fedpage.flower.node_errors import Code, NodeRefused, describe_columns

MAX_PARAMETERS = 1 << 28
"""Largest number of parameters d of a run."""
_MAX_FEATURES = 1_000_000
"""Largest number of features that a node may claim where the run config names none."""
_MIN_DESCRIBE_DEADLINE = 180.0
"""Shortest deadline in seconds of a node's first message, which starts its processes."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,40}")


class Node(NamedTuple):
    """The node of a client: its id, its rows and its code."""

    node_id: int
    """0: the client has no node yet."""
    rows: int
    features: int
    """Features of a row; 0 for an objective of the app."""
    d: int
    """Parameters of the problem."""
    digest: str
    """SHA-256 of the client's rows."""
    columns: tuple[str, ...]
    """The feature columns of its file; () if the run config names them, or there are none."""
    code: str
    """Digests of the code of the method and of the problem there."""


NO_NODE = Node(0, 1, 0, 0, "", (), "")
"""Stands for the node of a client that was missing when the run started."""


@dataclass(frozen=True)
class Requirements:
    """What the server requires of every node's description.

    Attributes:
        clients: the number of clients N.
        code: digest of the code of the method and its codecs on the server.
        problem: digest of the code of the problem, and of a model's start, on the server.
        max_rows: the most rows that a node may claim.
        features: the number of features that the run config names; 0: none.
        outputs: the number of outputs of a linear model; 0: not known to the server.
        intercept: whether a linear model has an intercept.
        d: the number of parameters of an objective of the app; 0: it is a linear model.
    """

    clients: int
    code: str
    problem: str
    max_rows: int
    features: int = 0
    outputs: int = 0
    intercept: bool = False
    d: int = 0


class Answers(NamedTuple):
    """What nodes answered, by node id; nodes that did not answer are in neither."""

    found: dict[int, tuple[int, Node]]
    """The client and its description."""
    refused: dict[int, NodeRefusal]


class NodeRefusal(NamedTuple):
    """Why a node was refused."""

    client: int | None
    """The client that it says it holds, if it says one."""
    text: str
    """One line, which names the client or the node."""
    key: str
    """The same without what changes from one answer to the next."""


def describe_nodes(
    grid: Grid, ids: Iterable[int], requirements: Requirements, wait: Wait
) -> Answers:
    """Ask nodes which client they hold, and check each answer by itself.

    Args:
        grid: Flower's Grid.
        ids: The nodes' ids.
        requirements: What the server requires.
        wait: How long replies may take.

    Returns:
        The nodes that fit the run as far as each tells, and why the others do not.
    """
    wait = replace(wait, deadline=max(_MIN_DESCRIBE_DEADLINE, wait.deadline))
    sent = {
        node: Message(RecordDict(), node, messages.DESCRIBE, ttl=wait.deadline, group_id="describe")
        for node in sorted(ids)
    }
    answers = Answers({}, {})
    for node, reply in exchange(grid, sent, wait).items():
        if reply.has_error() and reply.error.code in TRANSIENT_ERRORS:
            continue
        client = None
        try:
            about = messages.decode_header(content_of(reply), messages.Description)
            client = about.client if 0 <= about.client < requirements.clients else None
            answers.found[node] = (about.client, _check(node, about, requirements))
        except NodeRefused as refusal:
            told = refusal.client if 0 <= refusal.client < requirements.clients else None
            answers.refused[node] = make_problem(node, told, str(refusal), refusal.code.value)
        except messages.ProtocolError as error:
            answers.refused[node] = make_problem(node, client, str(error))
    return answers


def make_problem(node: int, client: int | None, text: str, key: str = "") -> NodeRefusal:
    """Return why a node was refused, with its client's number or else its own."""
    who = f"node {node}" if client is None else f"client {client}"
    return NodeRefusal(client, f"{who}: {text}", f"{who}: {key or text}")


def _check(node: int, about: messages.Description, need: Requirements) -> Node:
    """Return the node of a description, none of which is trusted."""
    if not 0 <= about.client < need.clients:
        raise messages.ProtocolError(
            f"it says it holds client {_short(about.client)}, but the run has clients 0 to "
            f"{need.clients - 1}; correct partition-id in its node config"
        )
    if not _VERSION.fullmatch(about.fedpage) or about.fedpage != __version__:
        found = about.fedpage if _VERSION.fullmatch(about.fedpage) else "another version"
        raise messages.ProtocolError(
            f"it has fedpage {found}, but the server has {__version__}; install the same version"
        )
    if about.code != need.code:
        raise messages.ProtocolError(
            "it has other code of the method or its codecs than the server; install one version"
        )
    if not _DIGEST.fullmatch(about.digest):
        raise messages.ProtocolError("its digest of the rows is not one")
    if not 1 <= about.rows <= need.max_rows:
        raise messages.ProtocolError(
            f"it says it has {_short(about.rows)} rows, but 1 to {need.max_rows:,} are accepted; "
            "see max-rows in the run config"
        )
    _check_sizes(about, need)
    if about.problem != need.problem:
        raise messages.ProtocolError(
            "it has another model than the server, or other initial parameters"
            if need.d
            else "it has other code of the problem than the server; install the same version"
        )
    columns = read_names(about.columns)
    return Node(
        node, about.rows, about.features, about.d, about.digest, columns,
        f"{about.code} {about.problem}",
    )  # fmt: skip


def _check_sizes(about: messages.Description, need: Requirements) -> None:
    if need.d:
        if about.d != need.d or about.features:
            raise messages.ProtocolError(
                f"its model has {_short(about.d)} parameters, that of the server {need.d:,}"
            )
        return
    if need.features and about.features != need.features:
        raise messages.ProtocolError(
            f"it has {_short(about.features)} features, but {need.features:,} are agreed"
        )
    if not 1 <= about.features <= max(need.features, _MAX_FEATURES):
        raise messages.ProtocolError(
            f"it says it has {_short(about.features)} features, but 1 to {_MAX_FEATURES:,} are "
            "accepted; name a larger number in the run config: features"
        )
    width = about.features + need.intercept
    outputs = need.outputs or max(1, about.d // width)
    if about.d != width * outputs or about.d > MAX_PARAMETERS:
        raise messages.ProtocolError(
            f"its problem has {_short(about.d)} parameters, which its features do not explain"
        )


def _short(number: int) -> str:
    return f"{number:,}" if abs(number) < 10**12 else "too many"


def propose_agreement(nodes: Mapping[int, Node], columns: tuple[str, ...]) -> Agreement:
    """Return what most nodes have: their columns and their number of features.

    Args:
        nodes: The nodes by client.
        columns: The columns of the run config; () takes those of the nodes.

    Returns:
        The agreement. Columns are compared as sets, and the order is that of the lowest client
        among those that agree; so is the choice where equally many agree.
    """
    keys = {
        client: (frozenset(node.columns), node.features, node.d)
        for client, node in sorted(nodes.items())
    }
    counts = Counter(keys.values())
    most = max(counts.values())
    client = next(client for client, key in keys.items() if counts[key] == most)
    chosen = nodes[client]
    return Agreement(columns or chosen.columns, chosen.features, chosen.d)


def compare(node: Node, agreement: Agreement, *, is_named: bool) -> str:
    """Return how a node differs from what is agreed, in a sentence; "" if it does not.

    Args:
        node: The node.
        agreement: What is agreed.
        is_named: Whether the run config names the columns, so that nodes do not.
    """
    if not is_named and set(node.columns) != set(agreement.columns):
        if not node.columns or not agreement.columns:
            return (
                "some files have column names and others have not; use the same kind of file at "
                "every site"
            )
        missing = [name for name in agreement.columns if name not in node.columns]
        extra = [name for name in node.columns if name not in agreement.columns]
        return f"{Code.COLUMNS.sentence}{describe_columns(missing, extra)}"
    if agreement.levels:  # a node counts its features before the sites agree on categories
        return ""
    if node.features != agreement.features:
        return (
            f"it has {_short(node.features)} features, and other sites have "
            f"{_short(agreement.features)}; name the number in the run config: features"
        )
    if node.d != agreement.d:
        return f"its problem has {_short(node.d)} parameters, that of others {_short(agreement.d)}"
    return ""
