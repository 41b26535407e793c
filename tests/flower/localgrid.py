"""A Grid in one process, for tests.

Messages and replies are serialised as on a network, tests choose the faults, and time is virtual.
Flower has no public way to do this, so private names of flwr are used here, and only here.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[int, Message], Any]
"""A function of the client and the message that returns a fault, or None.

A fault is "drop" (the message is lost), "lost" (the reply is lost), ("late", seconds),
("error", code, reason), or a function that changes the reply.
"""


def transmit(message: Message) -> Message:
    """Return the message as it is received: serialised and deserialised."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = name = message.object_id
        contents = {
            key: bytes(item.deflate()) for key, item in get_all_nested_objects(message).items()
        }
    received = inflate_object_from_contents(name, contents)
    received.metadata.__dict__["_message_id"] = name
    return received


def wire_bytes(message: Message) -> bytes:
    """Return everything of a message that crosses the network."""
    with no_object_id_recompute():
        return b"".join(bytes(item.deflate()) for item in get_all_nested_objects(message).values())


class LocalGrid(Grid):
    """Nodes with random ids, each with its own configuration and context.

    Args:
        app: the ClientApp.
        node_configs: the node config of each client.
        run_config: the run config.
        fault: chooses the fault of each message.
    """

    def __init__(self, app, node_configs, run_config, *, fault: Fault | None = None):
        rng = random.Random(0)
        self.app, self.now = app, 0.0
        self.fault: Fault = fault or (lambda client, message: None)
        self._run_id = 7
        self.contexts: dict[int, Context] = {}
        self.client_of: dict[int, int] = {}
        for client, node_config in enumerate(node_configs):
            self.add(rng.getrandbits(63), client, node_config, run_config)
        self.online = set(self.contexts)
        self._expires: dict[str, float] = {}
        self._ready: dict[str, tuple[float, Message]] = {}
        self.sent: list[tuple[int, str]] = []
        self.train_bytes = {"down": 0, "up": 0}
        """Bytes of the arrays in training messages and their replies, without .npy headers."""

    def add(self, node_id: int, client: int, node_config: dict, run_config: dict) -> None:
        self.contexts[node_id] = Context(
            self._run_id, node_id, dict(node_config), RecordDict(), dict(run_config)
        )
        self.client_of[node_id] = client

    def node(self, client: int) -> int:
        found = [node for node, held in self.client_of.items() if held == client]
        return next(node for node in found if node in self.online)

    def move(self, client: int, node_id: int, node_config: dict | None = None) -> None:
        """Disconnect a client's node, and connect one with another id."""
        old = self.node(client)
        config = self.contexts[old].node_config if node_config is None else node_config
        self.online.discard(old)
        self.add(node_id, client, config, self.contexts[old].run_config)
        self.online.add(node_id)

    def send(self, client: int, kind: str, content: RecordDict, group: str = "9") -> Message:
        """Send one message, as a server with other plans would, and return the node's reply."""
        self._identify()
        self.fault = lambda client, message: None
        message = Message(content, self.node(client), kind, ttl=60.0, group_id=group)
        (name,) = self.push_messages([message])
        return self._ready.pop(name)[1]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def set_run(self, run):
        pass

    @property
    def run(self):
        return Run.create_empty(self._run_id)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self):
        self._identify()
        return list(self.online)

    def _identify(self):
        """Set the sender, which Flower knows only inside a running app."""
        TaskIdentity.run_id, TaskIdentity.task_id = self._run_id, 11
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(transmit(message)) for message in messages]

    def _push(self, message: Message) -> str:
        meta, name = message.metadata, message.metadata.message_id
        self._expires[name] = self.now + meta.ttl
        if meta.dst_node_id not in self.online:
            code = ErrorCode.NODE_UNAVAILABLE
            self._answer(name, self._from_superlink(message, code, "Error: Node Unavailable"))
            return name
        client = self.client_of[meta.dst_node_id]
        self.sent.append((client, meta.message_type))
        fault = self.fault(client, message)
        if fault == "drop":
            return name
        if isinstance(fault, tuple) and fault[0] == "error":
            self._answer(name, Message(Error(fault[1], fault[2]), reply_to=message))
            return name
        reply = self._run_app(meta.dst_node_id, message)
        if meta.message_type == "train.client":
            self.train_bytes["down"] += _array_bytes(message)
            self.train_bytes["up"] += 0 if reply.has_error() else _array_bytes(transmit(reply))
        if fault == "lost":
            return name
        if callable(fault):
            reply = fault(reply)
        self._answer(name, reply, fault[1] if isinstance(fault, tuple) else 0.0)
        return name

    def _answer(self, name: str, reply: Message, after: float = 0.0) -> None:
        self._ready[name] = (self.now + after, transmit(reply))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.now += 1.0  # a look for replies takes a virtual second
        received = []
        for name in list(message_ids):
            if self._expires.get(name, -1.0) < self.now:  # the SuperLink answers after the deadline
                meta = (self._run_id, "", SUPERLINK_NODE_ID, SUPERLINK_NODE_ID, name)
                error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "Error: Message Unavailable")
                received.append(make_message(Metadata(*meta, "", 0.0, 0, "system"), error=error))
                self._expires.pop(name, None)
                self._ready.pop(name, None)
            elif name in self._ready and self._ready[name][0] <= self.now:
                received.append(self._ready.pop(name)[1])
                self._expires.pop(name)
        return received

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("fedpage sends and receives separately")

    def _run_app(self, node: int, message: Message) -> Message:
        """Run the app as a SuperNode does, in a context that is serialised too."""
        context = _copy_context(self.contexts[node])
        try:
            reply = self.app(message, context)
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        self.contexts[node] = _copy_context(context)
        return reply

    def _from_superlink(self, request: Message, code: int, reason: str) -> Message:
        m = request.metadata
        meta = Metadata(
            m.run_id, "", SUPERLINK_NODE_ID, SUPERLINK_NODE_ID, m.message_id, m.group_id,
            m.created_at, m.ttl, m.message_type,
        )  # fmt: skip
        return make_message(meta, error=Error(code, reason))


def _array_bytes(message: Message) -> int:
    """Return the bytes of a received message's arrays, without their .npy headers."""
    arrays: Any = message.content.get("arrays", {})
    headers = [10 + int.from_bytes(array.data[8:10], "little") for array in arrays.values()]
    return sum(len(a.data) - h for a, h in zip(arrays.values(), headers, strict=True))


def _copy_context(context: Context) -> Context:
    return context_from_proto(
        ProtoContext.FromString(context_to_proto(context).SerializeToString())
    )
