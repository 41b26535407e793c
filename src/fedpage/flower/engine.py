"""The engine whose clients are Flower's nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpage._version import __version__
from fedpage.core.errors import InputError
from fedpage.core.messages import reply_layouts
from fedpage.core.types import (
    Call,
    ClientStateT,
    Draws,
    DType,
    Ints,
    MessageT,
    Method,
    ReplyT,
    StateT,
    Vector,
)
from fedpage.engine.base import Engine, mean_evaluations
from fedpage.engine.policy import Policy
from fedpage.engine.transport import Chunk, Event, Rejection, RoundFailed
from fedpage.flower import messages
from fedpage.problems.base import client_scale
from fedpage.runs.fingerprint import code_digest

DESCRIBED: dict[str, type] = {
    "client": int, "rows": int, "features": int, "digest": str, "labels": str, "fedpage": str, "code": str,
    "problem": str,
}  # fmt: skip
REPLIED: dict[str, type] = {
    "client": int,
    "round": int,
    "kind": str,
    "gradients": int,
    "evaluations": int,
}
MEASURED: dict[str, type] = {"client": int, "round": int}
_FIRST = 180.0
"""Seconds that the first answer may take, at least: a node's first call starts everything there."""


@dataclass(frozen=True)
class Wait:
    """How long replies may take, and how they are waited for.

    Args:
        deadline: Seconds after which a reply is late.
        poll: Seconds between looks for replies.
        sleep: Waits for some seconds; replaced in tests.
        clock: Returns seconds; replaced in tests.
    """

    deadline: float = 600.0
    poll: float = 0.2
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


class Node(NamedTuple):
    """Where a client is, and what it has."""

    node_id: int
    rows: int
    features: int
    digest: str
    labels: str
    code: str
    """Digests of the code of the method and of the problem there."""


class GridTransport(Generic[StateT, MessageT, ReplyT, ClientStateT]):
    """Send calls to Flower's nodes and validate what comes back.

    Replies that come after their deadline are never looked at.

    Args:
        grid: Flower's Grid.
        nodes: The node of each client 0..N-1.
        method: The method.
        d: The number of parameters.
        dtype: The type of the model's numbers.
        seed: The run's seed.
        scale: The factor of each client's objective, (N,).
        wait: How long replies may take and how they are waited for.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Mapping[int, Node],
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        *,
        d: int,
        dtype: DType,
        seed: int,
        scale: Vector,
        wait: Wait,
    ) -> None:
        self.grid, self.nodes, self.method, self.d = grid, dict(nodes), method, d
        self.seed, self.scale, self.wait = seed, scale, wait
        self.state_dates: dict[int, str] = {}
        """Round and message of each client's last reply that counted: which state it holds."""
        self.run_name = ""
        """The name under which nodes keep client states."""
        self.events: list[Event] = []
        """What happened to nodes since the events were last taken."""
        self._layouts = reply_layouts(method, d, dtype)
        self._date = ""
        self._refused: set[int] = set()

    @property
    def is_reliable(self) -> bool:
        """False: nodes may be missing."""
        return False

    def request(
        self, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterable[Chunk[ReplyT, ClientStateT]]:
        """Send a message to nodes and wait for their replies."""
        now, kind = draws.round, type(call.message).__name__
        self._date = f"{now} {kind}"
        if attempt:
            self.find_new_nodes(now)
        sent = {}
        for client in call.clients.tolist():
            fields = {
                "client": client, "round": now, "seed": self.seed, "kind": kind, "d": self.d,
                "scale": float(self.scale[client]), "run": self.run_name,
                "dated": self.state_dates.get(client, ""),
            }  # fmt: skip
            content = messages.packed(call.message, fields)
            sent[client] = self.make_message(client, "train.work", content, now)
        layout = self._layouts[type(call.message)]
        valid: dict[int, ReplyT] = {}
        rejected: list[Rejection] = []
        gradients = evaluations = received = 0
        for client, message in sorted(self.exchange(sent).items()):
            try:
                fields = messages.said(content_of(message), REPLIED)
                check_sender(client, fields)
                if not (0 <= fields["gradients"] < 2**53 and 0 <= fields["evaluations"] < 2**53):
                    raise messages.ProtocolError("impossible counts of gradients")
                reply = messages.unpacked(message.content, layout)
            except messages.ProtocolError as fault:
                rejected.append(Rejection(client, str(fault)))
                continue
            received += 1
            gradients += fields["gradients"]
            evaluations += fields["evaluations"]
            if fields["round"] != now:
                reason = f"late: it belongs to round {fields['round']}"
                rejected.append(Rejection(client, reason))
            elif not is_finite(reply):
                rejected.append(Rejection(client, "not finite", reply))
            else:
                valid[client] = reply
        clients, replies = call.clients, None
        if len(valid) < len(clients):
            clients = np.array(sorted(valid), dtype=np.int64)
        if valid:
            columns = zip(*(valid[client] for client in clients.tolist()), strict=True)
            replies = layout.type(*(np.stack(rows) for rows in columns))
        return (
            Chunk(call.clients, clients, replies, None, gradients, evaluations, received, rejected),
        )

    def commit(self, clients: Ints, client_states: ClientStateT | None) -> None:
        """Note that these clients' states of this round hold; the nodes keep them."""
        if self.method.client_state is not None:
            self.state_dates |= dict.fromkeys(clients.tolist(), self._date)

    def make_message(self, client: int, kind: str, content: RecordDict, now: int) -> Message:
        """Return a message to a client's node."""
        node = self.nodes[client].node_id
        return Message(content, node, kind, ttl=self.wait.deadline, group_id=str(now))

    def exchange(self, sent: Mapping[int, Message]) -> dict[int, Message]:
        """Send messages and wait for the replies, by client."""
        return exchange(self.grid, sent, self.wait)

    def find_new_nodes(self, now: int) -> None:
        """Find the client of a node that came back under another number, having no key."""
        here = set(self.grid.get_node_ids())
        known = {node.node_id for node in self.nodes.values()}
        if not here - known or known <= here:
            return
        code = code_digest(type(self.method))
        for number in sorted(here - known - self._refused):
            try:
                new = described(self.grid, [number], code=code, wait=self.wait)
            except InputError as error:
                self._refused.add(number)
                self.events.append(Event("refused", now, str(error)))
                continue
            for client, node in new.items():
                if client in self.nodes and self.nodes[client]._replace(node_id=number) == node:
                    if self.nodes[client].node_id not in here:
                        self.nodes[client] = node
                else:
                    self._refused.add(number)
                    text = f"node {number} is not a client of this run"
                    self.events.append(Event("refused", now, text))


class FlowerEngine(Engine[StateT, MessageT, ReplyT, ClientStateT]):
    """Run rounds whose clients are Flower's nodes.

    Args:
        grid: Flower's Grid.
        nodes: The node of each client 0..N-1.
        method: The method.
        d: The number of parameters.
        seed: The run's seed.
        policy: What to do about clients that fail.
        wait: How long replies may take and how they are waited for.
        weights: "uniform" or "size": the weight of each client's objective.
        x0: The start, (d,); None: zeros.
        held_out: What else the server records of a model, such as its accuracy on rows of its own.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Mapping[int, Node],
        method: Method[StateT, MessageT, ReplyT, ClientStateT],
        d: int,
        *,
        seed: int,
        policy: Policy | None = None,
        wait: Wait | None = None,
        weights: str = "uniform",
        x0: Vector | None = None,
        held_out: Callable[[Vector], Mapping[str, float]] | None = None,
    ) -> None:
        start = np.zeros(d) if x0 is None else x0
        policy = Policy() if policy is None else policy
        sizes = np.array([nodes[i].rows for i in range(len(nodes))], dtype=np.int64)
        self._held_out = held_out
        self.transport = GridTransport(
            grid, nodes, method, d=d, dtype=start.dtype, seed=seed,
            scale=client_scale(weights, sizes), wait=Wait() if wait is None else wait,
        )  # fmt: skip
        super().__init__(method, len(nodes), start, self.transport, seed=seed, policy=policy)

    def pop_events(self) -> list[Event]:
        """Return what happened to nodes outside a round, and forget it."""
        events, self.transport.events = self.transport.events, []
        return events

    def evaluate(self) -> Mapping[str, float]:
        """Return loss and gradient norm of x: every client's own, added in client order.

        It is not part of the costs.
        """
        transport, now, x = self.transport, self.costs.round, self.x
        found: dict[int, messages.Measures] = {}
        not_finite: dict[int, messages.Measures] = {}
        for attempt in range(self.round.policy.full_retries + 1):
            if attempt:
                transport.find_new_nodes(now)
            sent = {}
            for client in range(self.N):
                if client not in found:
                    fields = {
                        "client": client, "round": now, "d": transport.d,
                        "scale": float(transport.scale[client]),
                    }  # fmt: skip
                    content = messages.packed(messages.Point(x), fields)
                    sent[client] = transport.make_message(client, "evaluate.measure", content, now)
            for client, reply in transport.exchange(sent).items():
                try:
                    fields = messages.said(content_of(reply), MEASURED)
                    check_sender(client, fields)
                    if fields["round"] != now:
                        raise messages.ProtocolError(f"late: it belongs to round {fields['round']}")
                    measures = messages.unpacked_measures(reply.content, transport.d, x.dtype)
                    if not is_finite(measures):
                        not_finite[client] = measures
                        raise messages.ProtocolError("not finite")
                    found[client] = measures
                except messages.ProtocolError as fault:
                    text = f"evaluation of client {client}: {fault}"
                    transport.events.append(Event("rejected", now, text))
            if set(range(self.N)) <= {*found, *self.round.health.lost}:
                break
        if not found and len(not_finite) == self.N:
            found = not_finite  # everyone's: the run has diverged
        if not found:
            raise RoundFailed(f"evaluation after round {now} failed: no valid reply from anyone")
        if len(found) < self.N:
            text = f"loss and gradient over {len(found)} of {self.N} clients"
            transport.events.append(Event("measured", now, text))
        there = [found[client] for client in sorted(found)]
        means = mean_evaluations((m.loss for m in there), (m.grad[None, :] for m in there))
        return means if self._held_out is None else {**means, **self._held_out(x)}

    def snapshot(self) -> dict[str, Any]:
        """Return everything that the next rounds depend on; nodes keep client states."""
        dates = {str(client): date for client, date in self.transport.state_dates.items()}
        return {**super().snapshot(), "dated": dates}

    def restore(self, tree: Mapping[str, Any], source: str) -> None:
        """Return to a snapshot."""
        try:
            dates = {int(client): date + "" for client, date in tree["dated"].items()}
            if any(not 0 <= client < self.N for client in dates):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{source}: not a checkpoint of a federation") from None
        super().restore(tree, source)
        self.transport.state_dates = dates


def is_finite(parts: Iterable[Vector]) -> bool:
    """Whether every number is finite."""
    return all(bool(np.isfinite(part).all()) for part in parts)


def check_sender(client: int, fields: Mapping[str, Any]) -> None:
    """Refuse a reply that says it comes from another client."""
    if fields["client"] != client:
        raise messages.ProtocolError(f"it says it is client {fields['client']}")


def content_of(reply: Message) -> RecordDict:
    """What a reply holds; an error's reason, in one line, if it is one."""
    if reply.has_error():
        reason = " ".join(str(reply.error.reason).split())
        raise messages.ProtocolError(f"{_ERRORS.get(reply.error.code, 'error')} ({reason[-200:]})")
    return reply.content


_ERRORS = {
    1: "its app cannot be loaded", 2: "it raised an exception", 3: "no reply in time", 4: "its reply came too late",
    5: "its node is not there", 6: "a mod refused", 7: "its app is not sound", 8: "its process died",
}  # fmt: skip


def exchange(grid: Grid, sent: Mapping[int, Message], wait: Wait) -> dict[int, Message]:
    """Send messages and wait until every one is answered or the deadline is over.

    Replies are matched to messages by Flower's own identifiers, not by what they claim.

    Args:
        grid: Flower's Grid.
        sent: Messages by any key, such as a client number.
        wait: How long to wait.

    Returns:
        Replies by the same keys.
    """
    waiting: dict[str, int] = {}
    for key, message_id in zip(sent, list(grid.push_messages(list(sent.values()))), strict=False):
        if message_id:
            waiting[message_id] = key
    replies: dict[int, Message] = {}
    end = wait.clock() + wait.deadline + 5.0  # the SuperLink itself says when a deadline is over
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            if reply.metadata.reply_to_message_id in waiting:
                replies[waiting.pop(reply.metadata.reply_to_message_id)] = reply
        if not waiting or wait.clock() > end:
            break
        wait.sleep(wait.poll)
    return replies


def described(grid: Grid, ids: Iterable[int], *, code: str, wait: Wait) -> dict[int, Node]:
    """Ask nodes which client they are; nodes that do not answer are left out.

    Raises:
        InputError: A node does not fit the run.
    """
    wait = replace(wait, deadline=max(_FIRST, wait.deadline))
    sent = {
        node: Message(RecordDict(), node, "query.describe", ttl=wait.deadline, group_id="describe")
        for node in sorted(ids)
    }
    found: dict[int, Node] = {}
    for node, reply in exchange(grid, sent, wait).items():
        if reply.has_error() and reply.error.code in (3, 4, 5, 8):  # on the way, not at the node
            continue
        try:
            say = messages.said(content_of(reply), DESCRIBED)
        except messages.ProtocolError as fault:
            raise InputError(f"node {node} does not say which client it is: {fault}") from None
        client = say["client"]
        if say["fedpage"] != __version__:
            raise InputError(
                f"client {client} has fedpage {say['fedpage'][:20]}, and the server {__version__}; install the same"
            )
        if client in found:
            raise InputError(
                f"nodes {found[client].node_id} and {node} both say they are client {client}"
            )
        if say["rows"] < 1 or say["features"] < 1:
            raise InputError(
                f"client {client} says it has {say['rows']} rows of {say['features']} features"
            )
        if say["code"] != code:
            raise InputError(
                f"client {client} has other code of the method than the server; install the same everywhere"
            )
        both = f"{say['code']} {say['problem']}"
        found[client] = Node(node, say["rows"], say["features"], say["digest"], say["labels"], both)
    return found


def one_federation(nodes: Mapping[int, Node]) -> None:
    """Refuse sites that do not belong together."""
    if len({node.code for node in nodes.values()}) > 1:
        raise InputError(
            "nodes run different code of the problem; install the same version everywhere"
        )
    _one_meaning({client: node.labels for client, node in nodes.items()})


def _one_meaning(kinds: Mapping[int, str]) -> None:
    """Refuse sites whose labels could mean different things."""
    files = {client: frozenset(text.split(",")) for client, text in kinds.items() if text}
    every: frozenset[str] = frozenset().union(*files.values())
    if len(set(files.values())) < 2 or every == {"-1", "1"}:
        return
    if len(every) > 2:
        raise InputError(
            "sites disagree about what labels there are; give labels of two kinds everywhere, or say which: labels"
        )
    few = next(client for client, found in files.items() if found != every)
    both = ",".join(sorted(every, key=float))
    raise InputError(
        f'client {few} has labels of one kind only; say in the run config which there are: labels = "{both}"'
    )
