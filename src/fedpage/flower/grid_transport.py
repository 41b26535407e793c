"""Send a method's calls to Flower's nodes and validate their replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpage.callbacks.base import Event, Slowest
from fedpage.codecs.message_codec import MessageCodec, MessageSize, Ranks
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
from fedpage.core.validate import is_finite
from fedpage.engine.transport import Chunk, Rejection
from fedpage.flower import messages
from fedpage.flower.agreement import Agreement
from fedpage.flower.backoff import Backoff
from fedpage.flower.exchange import Wait, check_sender, content_of, exchange, is_error
from fedpage.flower.nodes import Node, Requirements, compare, describe_nodes, make_problem


class _Ahead(NamedTuple):
    """The replies to a request that was sent before its round began."""

    round: int
    call: Call[Any]
    replies: dict[int, Message]
    arrivals: dict[int, float]
    """The time at which each reply arrived."""
    began: float
    seconds: float
    """How long the exchange took."""


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
        self.agreement = Agreement()
        """What the sites agreed on before round 0; requests carry it."""
        self.requirements: Requirements | None = None
        """What nodes that join later must have; None: none may."""
        self.events: list[Event] = []
        """Events of nodes since the last call of `pop_events`."""
        self.backoff = Backoff(grid, wait)
        self.codec = MessageCodec(method, d, dtype)
        self.seconds_ahead = 0.0
        """Seconds that the requests of this round took before it began."""
        self._ahead: _Ahead | None = None
        self._version = ""
        self.begun_round = -1
        """The newest round of which a request was made."""
        self._began = 0.0
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
        message = self.codec.receive(call.message)
        cohort = call.clients if call.cohort is None else call.cohort
        self._version = messages.state_version(now, message_type)
        asked = call.clients.tolist()
        self.backoff.pause(now, {client: self.nodes[client].node_id for client in asked})
        arrivals: dict[int, float] = {}
        ahead = self._take_ahead(call, draws)
        if self.begun_round != now:
            self.begun_round, self.seconds_ahead = now, 0.0
            self._began = self.wait.clock()
        if ahead is not None:
            answers, arrivals = ahead.replies, ahead.arrivals
            self.seconds_ahead, self._began = ahead.seconds, ahead.began
        else:
            if attempt:
                self.find_new_nodes(now)
            requests = self.make_requests(call, draws)
            answers = self.exchange(messages.TRAIN, requests, now, arrivals)
        layout = self.codec.replies[message_type]
        valid: dict[int, ReplyT] = {}
        rejected: list[Rejection] = []
        gradients = evaluations = received = 0
        sizes: list[MessageSize] = []
        for client, answered in sorted(answers.items()):
            own = np.array([client], dtype=np.int64)
            rank = Ranks(np.searchsorted(cohort, own), len(cohort))
            try:
                content, _ = messages.split(content_of(answered))
                answer = messages.decode_header(content, messages.TrainReply)
                check_sender(client, answer.client)
                self.check_counts(answer)
                shapes = self.codec.reply_shapes(message_type, own, draws, rank)
                parts = list(messages.decode_arrays(content, shapes).values())
                reply = messages.decode(self.codec.decode_reply, message, parts, own, draws, rank)
            except messages.ProtocolError as fault:
                rejected.append(Rejection(client, str(fault)))
                continue
            received += 1
            sizes.append(self.codec.measure_replies(message_type, own, draws, rank))
            gradients += answer.gradients
            evaluations += answer.evaluations
            if answer.round != now:
                reason = f"late: it belongs to round {answer.round}"
                rejected.append(Rejection(client, reason))
            elif not all(map(is_finite, reply)):
                rejected.append(Rejection(client, "not finite", reply))
            else:
                valid[client] = reply
        self.backoff.note(asked, answers, valid)
        slowest = max((Slowest(c, arrivals[c] - self._began) for c in valid), default=None,
                      key=lambda each: each.seconds)  # fmt: skip
        clients, replies = call.clients, None
        if len(valid) < len(clients):
            clients = np.array(sorted(valid), dtype=np.int64)
        if valid:
            columns = zip(*(valid[client] for client in clients.tolist()), strict=True)
            replies = layout.build(np.stack(rows) for rows in columns)
        size = MessageSize(
            *(sum(column) for column in zip(MessageSize(0, 0, 0), *sizes, strict=True))
        )
        chunk = Chunk[ReplyT, ClientStateT](
            call.clients, clients, replies, None, gradients, evaluations, received, rejected, size,
            slowest=slowest,
        )  # fmt: skip
        return (chunk,)

    def make_requests(self, call: Call[MessageT], draws: Draws) -> dict[int, RecordDict]:
        """Return the content of the message to each called client."""
        cohort = call.clients if call.cohort is None else call.cohort
        places = np.searchsorted(cohort, call.clients)
        arrays = self.codec.encode_message(call.message)
        agreement = self.agreement.to_text()
        requests = {}
        for client, place in zip(call.clients.tolist(), places.tolist(), strict=True):
            header = messages.TrainRequest(
                client=client,
                round=draws.round,
                seed=self.seed,
                message=type(call.message).__name__,
                d=self.d,
                scale=float(self.scale[client]),
                run=self.run_name,
                state_version=self.state_versions.get(client, ""),
                rank=place,
                called=len(cohort),
                agreement=agreement,
                digest=self.nodes[client].digest,
            )
            requests[client] = messages.encode_arrays(arrays, header)
        return requests

    @staticmethod
    def check_counts(answer: messages.TrainReply) -> None:
        """Refuse impossible counts of gradients.

        Raises:
            ProtocolError: They are.
        """
        if not (0 <= answer.gradients < 2**53 and 0 <= answer.evaluations < 2**53):
            raise messages.ProtocolError("impossible counts of gradients")

    def request_ahead(
        self, call: Call[MessageT], draws: Draws, evaluations: Mapping[int, RecordDict]
    ) -> dict[int, Message]:
        """Send the first request of the next round together with requests to evaluate.

        A client that is in both gets one message. What the round's request brings is kept for
        `request`, and forgotten if another request comes first.

        Args:
            call: The first request of the next round.
            draws: The random numbers of that round.
            evaluations: The content of the request to evaluate, by client.

        Returns:
            The replies to the requests to evaluate, by client. Where a message for both failed,
            there is none: the round will report it.
        """
        training = self.make_requests(call, draws)
        sent = {}
        for client in sorted({*training, *evaluations}):
            if not self.nodes[client].node_id:
                continue
            message_type = messages.TRAIN if client in training else messages.EVALUATE
            parts = [part[client] for part in (training, evaluations) if client in part]
            content = messages.join(*parts) if len(parts) == 2 else parts[0]
            sent[client] = self.make_message(client, message_type, content, draws.round)
        began, arrivals = self.wait.clock(), dict[int, float]()
        replies = exchange(self.grid, sent, self.wait, arrivals)
        kept = {client: reply for client, reply in replies.items() if client in training}
        seconds = self.wait.clock() - began
        self._ahead = _Ahead(draws.round, call, kept, arrivals, began, seconds)
        return {
            client: reply
            for client, reply in replies.items()
            if client in evaluations and not (client in kept and is_error(reply))
        }

    def _take_ahead(self, call: Call[MessageT], draws: Draws) -> _Ahead | None:
        """Return the replies that are already here, if they are to this request."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.round != draws.round or not _is_same(call, ahead.call):
            return None
        return ahead

    def forget_ahead(self) -> None:
        """Forget replies to a request whose round has not begun."""
        self._ahead, self.begun_round = None, -1

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

    def exchange(
        self,
        message_type: str,
        contents: Mapping[int, RecordDict],
        now: int,
        arrivals: dict[int, float] | None = None,
    ) -> dict[int, Message]:
        """Send messages and wait for the replies, by client; some clients may have no node."""
        sent = {
            client: self.make_message(client, message_type, content, now)
            for client, content in contents.items()
            if self.nodes[client].node_id
        }
        return exchange(self.grid, sent, self.wait, arrivals)

    def find_new_nodes(self, now: int) -> None:
        """Find the clients of nodes without keys that reconnected under another id."""
        here = set(self.grid.get_node_ids())
        known = {node.node_id for node in self.nodes.values()}
        strangers = sorted(here - known - self._refused)
        if self.requirements is None or not strangers or known <= here:
            return
        found, refused = describe_nodes(self.grid, strangers, self.requirements, self.wait)
        for number, problem in refused.items():
            self._refuse_node(number, now, problem.text)
        for number, (client, node) in found.items():
            held = self.nodes[client]
            text = compare(node, self.agreement, is_named=not node.columns)
            if held.digest and held.digest != node.digest:
                text = "its rows are not those with which this run began"
            if text:
                self._refuse_node(number, now, make_problem(number, client, text).text)
            elif held.node_id not in here:
                self.nodes[client] = node if held.digest else node._replace(rows=held.rows)

    def _refuse_node(self, number: int, now: int, text: str) -> None:
        self._refused.add(number)
        self.events.append(Event("refused", now, text))


def _is_same(call: Call[Any], other: Call[Any]) -> bool:
    """Return whether two calls send the same message to the same clients."""
    return (
        type(call.message) is type(other.message)
        and call.cohort is other.cohort is None
        and np.array_equal(call.clients, other.clients)
        and all(map(np.array_equal, call.message, other.message))
    )
