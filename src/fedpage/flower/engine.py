"""The engine whose clients are Flower's nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Literal, NamedTuple

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpage._version import __version__
from fedpage.codecs.wire import Ranks, Size, Wire
from fedpage.core.errors import InputError
from fedpage.core.metrics import Metric, client_quantiles, mean_metrics, row_metrics
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
from fedpage.runs.checkpoint import Snapshot
from fedpage.runs.fingerprint import method_digest

_MIN_DESCRIBE_DEADLINE = 180.0
"""Shortest deadline in seconds of a node's first message, which starts its processes."""


@dataclass(frozen=True)
class Wait:
    """How long replies may take, and how they are waited for.

    Args:
        deadline: Seconds after which a reply is late.
        poll: Seconds between checks for replies.
        sleep: Waits for some seconds; replaced in tests.
        clock: Returns seconds; replaced in tests.
    """

    deadline: float = 600.0
    poll: float = 0.2
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


class Node(NamedTuple):
    """The node of a client: its id, its rows and its code."""

    node_id: int
    rows: int
    features: int
    digest: str
    labels: str
    code: str
    """Digests of the code of the method and of the problem there."""


class GridTransport(Generic[StateT, MessageT, ReplyT, ClientStateT]):
    """Send calls to Flower's nodes and validate what comes back.

    Replies after their deadline are not read.

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
        self.state_versions: dict[int, str] = {}
        """The version of each client's state that holds: that of its last reply that counted."""
        self.run_name = ""
        """The name under which nodes keep client states."""
        self.events: list[Event] = []
        """Events of nodes since the last call of `pop_events`."""
        self._wire = Wire(method, d, dtype)
        self._version = ""
        self._refused: set[int] = set()

    @property
    def is_reliable(self) -> bool:
        """False: nodes may be missing."""
        return False

    def request(
        self, call: Call[MessageT], draws: Draws, attempt: int
    ) -> Iterable[Chunk[ReplyT, ClientStateT]]:
        """Send a message to nodes and wait for their replies."""
        now, message_type = draws.round, type(call.message)
        message = self._wire.receive(call.message)
        cohort = call.clients if call.cohort is None else call.cohort
        places = np.searchsorted(cohort, call.clients)
        arrays = self._wire.encode_message(call.message)
        self._version = messages.state_version(now, message_type)
        if attempt:
            self.find_new_nodes(now)
        sent = {}
        for client, place in zip(call.clients.tolist(), places.tolist(), strict=True):
            header = messages.TrainRequest(
                client=client,
                round=now,
                seed=self.seed,
                message=message_type.__name__,
                d=self.d,
                scale=float(self.scale[client]),
                run=self.run_name,
                state_version=self.state_versions.get(client, ""),
                rank=place,
                called=len(cohort),
            )
            content = messages.encode_arrays(arrays, header)
            sent[client] = self.make_message(client, messages.TRAIN, content, now)
        layout = self._wire.replies[message_type]
        valid: dict[int, ReplyT] = {}
        rejected: list[Rejection] = []
        gradients = evaluations = received = 0
        sizes: list[Size] = []
        for client, answered in sorted(self.exchange(sent).items()):
            own = np.array([client], dtype=np.int64)
            rank = Ranks(np.searchsorted(cohort, own), len(cohort))
            try:
                answer = messages.decode_header(content_of(answered), messages.TrainReply)
                check_sender(client, answer.client)
                if not (0 <= answer.gradients < 2**53 and 0 <= answer.evaluations < 2**53):
                    raise messages.ProtocolError("impossible counts of gradients")
                shapes = self._wire.reply_shapes(message_type, own, draws, rank)
                parts = list(messages.decode_arrays(answered.content, shapes).values())
                reply = messages.decode(self._wire.decode_reply, message, parts, own, draws, rank)
            except messages.ProtocolError as fault:
                rejected.append(Rejection(client, str(fault)))
                continue
            received += 1
            sizes.append(self._wire.measure_replies(message_type, own, draws, rank))
            gradients += answer.gradients
            evaluations += answer.evaluations
            if answer.round != now:
                reason = f"late: it belongs to round {answer.round}"
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
            replies = layout.build(np.stack(rows) for rows in columns)
        size = Size(*(sum(column) for column in zip(Size(0, 0, 0), *sizes, strict=True)))
        chunk = Chunk[ReplyT, ClientStateT](
            call.clients, clients, replies, None, gradients, evaluations, received, rejected, size
        )
        return (chunk,)

    def commit(self, clients: Ints, client_states: ClientStateT | None) -> None:
        """Record that these clients' states of this round are valid; the nodes store them."""
        if self.method.client_state is not None:
            self.state_versions |= dict.fromkeys(clients.tolist(), self._version)

    def make_message(
        self, client: int, message_type: str, content: RecordDict, now: int
    ) -> Message:
        """Return a message to a client's node."""
        node = self.nodes[client].node_id
        return Message(content, node, message_type, ttl=self.wait.deadline, group_id=str(now))

    def exchange(self, sent: Mapping[int, Message]) -> dict[int, Message]:
        """Send messages and wait for the replies, by client."""
        return exchange(self.grid, sent, self.wait)

    def find_new_nodes(self, now: int) -> None:
        """Find the clients of nodes without keys that reconnected under another id."""
        here = set(self.grid.get_node_ids())
        known = {node.node_id for node in self.nodes.values()}
        if not here - known or known <= here:
            return
        code = method_digest(self.method)
        for number in sorted(here - known - self._refused):
            try:
                new = describe_nodes(self.grid, [number], code=code, wait=self.wait)
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
        metrics: What to record, by name. Replies have the values of the metrics of rows among
            them, in their order; the server computes quantiles over the clients.
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
        weights: Literal["uniform", "size"] = "uniform",
        x0: Vector | None = None,
        metrics: Mapping[str, Metric] | None = None,
        held_out: Callable[[Vector], Mapping[str, float]] | None = None,
    ) -> None:
        start = np.zeros(d) if x0 is None else x0
        policy = Policy() if policy is None else policy
        sizes = np.array([nodes[i].rows for i in range(len(nodes))], dtype=np.int64)
        self._held_out, self._metrics = held_out, dict(metrics or {})
        self.transport = GridTransport(
            grid, nodes, method, d=d, dtype=start.dtype, seed=seed,
            scale=client_scale(weights, sizes), wait=Wait() if wait is None else wait,
        )  # fmt: skip
        super().__init__(method, len(nodes), start, self.transport, seed=seed, policy=policy)

    def pop_events(self) -> list[Event]:
        """Return and clear the events of nodes outside a round."""
        events, self.transport.events = self.transport.events, []
        return events

    def evaluate(self) -> Mapping[str, float]:
        """Return the loss, the gradient norm and the metrics of x, each the mean over clients.

        Losses and gradients are added in client order. Evaluations are not part of the costs.

        Raises:
            RoundFailed: No client sent a valid reply.
        """
        transport, now, x = self.transport, self.costs.round, self.x
        found: dict[int, messages.Evaluation] = {}
        not_finite: dict[int, messages.Evaluation] = {}
        for attempt in range(self.round.policy.full_retries + 1):
            if attempt:
                transport.find_new_nodes(now)
            missing = [client for client in range(self.N) if client not in found]
            for client, reply in transport.exchange(self._evaluate_messages(missing)).items():
                try:
                    evaluation = self._decode_evaluation(client, reply)
                    # A metric may be undefined on a client's rows, such as the AUC of one class.
                    if not is_finite((evaluation.loss, evaluation.gradient)):
                        not_finite[client] = evaluation
                        raise messages.ProtocolError("not finite")
                    found[client] = evaluation
                except messages.ProtocolError as error:
                    text = f"evaluation of client {client}: {error}"
                    transport.events.append(Event("rejected", now, text))
            if set(range(self.N)) <= {*found, *self.round.health.lost}:
                break
        if not found and len(not_finite) == self.N:
            found = not_finite  # the run has diverged
        if not found:
            raise RoundFailed(
                f"evaluation after round {now} failed: no valid reply from any client"
            )
        if len(found) < self.N:
            text = f"loss and gradient over {len(found)} of {self.N} clients"
            transport.events.append(Event("measured", now, text))
        each = [found[client] for client in sorted(found)]
        record = mean_evaluations((e.loss for e in each), (e.gradient[None, :] for e in each))
        sent = row_metrics(self._metrics)
        values = {name: np.array([e.metrics[i] for e in each]) for i, name in enumerate(sent)}
        record |= mean_metrics([values])
        losses = np.concatenate([e.loss for e in each]) / transport.scale[sorted(found)]
        record |= client_quantiles(self._metrics, {**values, "loss": losses})
        return record if self._held_out is None else {**record, **self._held_out(x)}

    def _evaluate_messages(self, clients: Iterable[int]) -> dict[int, Message]:
        """Return the messages that ask clients to evaluate x."""
        transport, now = self.transport, self.costs.round
        sent = {}
        for client in clients:
            header = messages.EvaluateRequest(
                client=client, round=now, d=transport.d, scale=float(transport.scale[client])
            )
            content = messages.encode_message(messages.Model(self.x), header)
            sent[client] = transport.make_message(client, messages.EVALUATE, content, now)
        return sent

    def _decode_evaluation(self, client: int, reply: Message) -> messages.Evaluation:
        """Return a client's evaluation; a ProtocolError if the reply is not one of this round."""
        answer = messages.decode_header(content_of(reply), messages.EvaluateReply)
        check_sender(client, answer.client)
        if answer.round != self.costs.round:
            raise messages.ProtocolError(f"late: it belongs to round {answer.round}")
        return messages.decode_evaluation(
            reply.content, self.transport.d, self.x.dtype, len(row_metrics(self._metrics))
        )

    def snapshot(self) -> Snapshot:
        """Return everything that the next rounds depend on; nodes keep client states."""
        versions = {str(client): name for client, name in self.transport.state_versions.items()}
        return {**super().snapshot(), "state_versions": versions}

    def restore(self, tree: Snapshot, source: str) -> None:
        """Return to a snapshot."""
        try:
            table = tree["state_versions"]
            versions = {int(client): name + "" for client, name in table.items()}
            if any(not 0 <= client < self.N for client in versions):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{source}: not a checkpoint of a federation") from None
        super().restore(tree, source)
        self.transport.state_versions = versions


def is_finite(arrays: Iterable[Vector]) -> bool:
    """Return whether every number is finite."""
    return all(bool(np.isfinite(array).all()) for array in arrays)


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
        ProtocolError: The reply is an error; the text says which, in one line.
    """
    if reply.has_error():
        reason = " ".join(str(reply.error.reason).split())
        raise messages.ProtocolError(f"{_ERRORS.get(reply.error.code, 'error')} ({reason[-200:]})")
    return reply.content


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
_TRANSIENT_ERRORS = (3, 4, 5, 8)
"""Errors of the connection or of a process, after which a node may answer again."""


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
    end = wait.clock() + wait.deadline + 5.0  # the SuperLink reports missed deadlines itself
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            if reply.metadata.reply_to_message_id in waiting:
                replies[waiting.pop(reply.metadata.reply_to_message_id)] = reply
        if not waiting or wait.clock() > end:
            break
        wait.sleep(wait.poll)
    return replies


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
        if reply.has_error() and reply.error.code in _TRANSIENT_ERRORS:
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
