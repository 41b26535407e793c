"""The engine whose clients are Flower's nodes: fedpage's rounds over a Grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpage._version import __version__
from fedpage.core.errors import InputError
from fedpage.core.types import Ints, Vector
from fedpage.engine.base import Server, mean_evaluations
from fedpage.engine.policy import Answer, Letter, Policy, RoundFailed, finite, form_of
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


class Node(NamedTuple):
    """Where a client is, and what it has."""

    node_id: int
    rows: int
    features: int
    digest: str
    labels: str
    code: str
    """Digests of the code of the method and of the problem there."""


class FlowerEngine(Server):
    """An engine whose clients are Flower's nodes.

    nodes: by client number 0..N-1. d: parameters. deadline: seconds after which a reply is late. poll: seconds between
    looks for replies. x0: zero by default. held_out: what else the server says of a model, such as its accuracy on
    rows of its own. sleep, clock: for tests. Replies that come after their deadline are never looked at.
    """

    def __init__(
        self, grid: Grid, nodes: Mapping[int, Node], method: Any, d: int, *, seed: int, policy: Policy | None = None,
        deadline: float = 600.0, poll: float = 0.2, weights: str = "uniform", x0: Vector | None = None,
        held_out: Callable[[Vector], Mapping[str, float]] | None = None,
        sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        start = np.zeros(d) if x0 is None else x0
        super().__init__(method, len(nodes), start, seed=seed, policy=policy)
        self._held_out = held_out
        self.grid, self.nodes, self.d = grid, dict(nodes), d
        self.deadline, self.poll, self.sleep, self.clock = deadline, poll, sleep, clock
        self._scale = client_scale(
            weights, np.array([nodes[i].rows for i in range(len(nodes))], dtype=np.int64)
        )
        self._dated: dict[int, str] = {}
        """Round and message of each client's last reply that counted: which of its memories holds."""
        self._kind = ""
        self._refused: set[int] = set()
        self.run_name = ""
        """Under which clients keep what they remember."""

    def ask(self, clients: Ints, message: Any, wave: int) -> Iterable[Answer]:
        """Send a message to nodes, and wait for what comes back."""
        now, kind = self.costs.round, type(message).__name__
        self._kind = kind
        if wave:
            self._look_for_new_nodes()
        sent = {
            client: self._message(
                client, "train.work",
                messages.packed(message, {
                    "client": client, "round": now, "seed": self.seed, "kind": kind, "d": self.d,
                    "scale": float(self._scale[client]), "run": self.run_name, "dated": self._dated.get(client, ""),
                }),
            )
            for client in clients.tolist()
        }  # fmt: skip
        form = form_of(self.method, message)
        letters: list[Letter] = []
        gradients = evaluations = 0
        for client, reply in self._exchange(sent, self.deadline).items():
            try:
                say = messages.said(_content(reply), REPLIED)
                self._mine(client, say)
                if not (0 <= say["gradients"] < 2**53 and 0 <= say["evaluations"] < 2**53):
                    raise messages.ProtocolError("counts that cannot be")
                letters.append(Letter(client, say["round"], messages.unpacked(reply.content, form)))
                gradients, evaluations = (
                    gradients + say["gradients"],
                    evaluations + say["evaluations"],
                )
            except messages.ProtocolError as fault:
                letters.append(Letter(client, now, None, error=str(fault)))
        return (Answer(clients, letters=letters, gradients=gradients, evaluations=evaluations),)

    def accept(self, clients: Ints, memory: Any) -> None:
        """From now on these clients remember what they did in this round."""
        if self.method.client_state is not None:
            self._dated |= dict.fromkeys(clients.tolist(), f"{self.costs.round} {self._kind}")

    def evaluate(self) -> Mapping[str, float]:
        """Loss and gradient norm of x: every client's own, added in client order. It is no part of the costs."""
        form, now = messages.measures(self.d, self.x.dtype), self.costs.round
        found: dict[int, messages.Measures] = {}
        strange: dict[int, messages.Measures] = {}
        for wave in range(self.rounds.policy.full_retries + 1):
            if wave:
                self._look_for_new_nodes()
            sent = {
                client: self._message(
                    client, "evaluate.measure",
                    messages.packed(messages.Point(self.x), {
                        "client": client, "round": now, "d": self.d, "scale": float(self._scale[client]),
                    }),
                )
                for client in range(self.N) if client not in found
            }  # fmt: skip
            for client, reply in self._exchange(sent, self.deadline).items():
                try:
                    say = messages.said(_content(reply), MEASURED)
                    self._mine(client, say)
                    if say["round"] != now:
                        raise messages.ProtocolError(f"late: it belongs to round {say['round']}")
                    one = messages.unpacked(reply.content, form)
                    if not finite(one):
                        strange[client] = one
                        raise messages.ProtocolError("not finite")
                    found[client] = one
                except messages.ProtocolError as fault:
                    self.rounds.tell(now, "rejected", f"measures of client {client}: {fault}")
            if set(range(self.N)) <= {*found, *self.rounds.roster.lost}:
                break
        if not found and len(strange) == self.N:
            found = strange  # everyone's: the run has diverged
        if not found:
            raise RoundFailed(f"gave up measuring after round {now}: no sound reply from anyone")
        if len(found) < self.N:
            self.rounds.tell(
                now, "measured", f"loss and gradient over {len(found)} of {self.N} clients"
            )
        there = [found[client] for client in sorted(found)]
        found_out = mean_evaluations(
            (one.loss for one in there), (one.grad[None, :] for one in there)
        )
        return found_out if self._held_out is None else {**found_out, **self._held_out(self.x)}

    def _mine(self, client: int, say: Mapping[str, Any]) -> None:
        if say["client"] != client:
            raise messages.ProtocolError(f"it says it is client {say['client']}")

    def _message(self, client: int, kind: str, content: RecordDict) -> Message:
        node = self.nodes[client].node_id
        return Message(content, node, kind, ttl=self.deadline, group_id=str(self.costs.round))

    def _exchange(self, sent: Mapping[int, Message], deadline: float) -> dict[int, Message]:
        return exchange(
            self.grid, sent, deadline=deadline, poll=self.poll, sleep=self.sleep, clock=self.clock
        )

    def _look_for_new_nodes(self) -> None:
        """A node without a key of its own comes back under another number: find the client that it is."""
        here = set(self.grid.get_node_ids())
        known = {node.node_id for node in self.nodes.values()}
        if not here - known or known <= here:
            return
        options: dict[str, Any] = {"poll": self.poll, "sleep": self.sleep, "clock": self.clock}
        for number in sorted(here - known - self._refused):
            try:
                new = described(
                    self.grid,
                    [number],
                    code=code_digest(type(self.method)),
                    deadline=self.deadline,
                    **options,
                )
            except InputError as error:
                self._refused.add(number)
                self.rounds.tell(self.costs.round, "refused", str(error))
                continue
            for client, node in new.items():
                if client in self.nodes and self.nodes[client]._replace(node_id=number) == node:
                    if self.nodes[client].node_id not in here:
                        self.nodes[client] = node
                else:
                    self._refused.add(number)
                    self.rounds.tell(
                        self.costs.round, "refused", f"node {number} is no client of this run"
                    )

    def snapshot(self) -> dict[str, Any]:
        """All that the coming rounds depend on; what clients remember is theirs."""
        return {
            **super().snapshot(),
            "dated": {str(client): said for client, said in self._dated.items()},
        }

    def restore(self, tree: Mapping[str, Any], source: str) -> None:
        """Go back to a snapshot."""
        try:
            dated = {int(client): said + "" for client, said in tree["dated"].items()}
            if any(not 0 <= client < self.N for client in dated):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{source}: not a checkpoint of a federation") from None
        super().restore(tree, source)
        self._dated = dated


def _content(reply: Message) -> RecordDict:
    """What a reply holds; an error's reason, in one line, if it is one."""
    if reply.has_error():
        reason = " ".join(str(reply.error.reason).split())
        raise messages.ProtocolError(f"{_ERRORS.get(reply.error.code, 'error')} ({reason[-200:]})")
    return reply.content


_ERRORS = {
    1: "its app cannot be loaded", 2: "it raised an exception", 3: "no reply in time", 4: "its reply came too late",
    5: "its node is not there", 6: "a mod refused", 7: "its app is not sound", 8: "its process died",
}  # fmt: skip


def exchange(
    grid: Grid, sent: Mapping[int, Message], *, deadline: float, poll: float,
    sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic,
) -> dict[int, Message]:  # fmt: skip
    """Send messages and wait until every one is answered or the deadline is over; replies by the same keys.

    Replies are told apart by the message that they answer, which Flower vouches for, not by what they say.
    """
    waiting: dict[str, int] = {}
    for client, name in zip(sent, list(grid.push_messages(list(sent.values()))), strict=False):
        if name:
            waiting[name] = client
    replies: dict[int, Message] = {}
    end = clock() + deadline + 5.0  # the SuperLink itself says when a deadline is over
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            if reply.metadata.reply_to_message_id in waiting:
                replies[waiting.pop(reply.metadata.reply_to_message_id)] = reply
        if not waiting or clock() > end:
            break
        sleep(poll)
    return replies


def described(grid: Grid, ids: Iterable[int], *, code: str, **options: Any) -> dict[int, Node]:
    """Which clients some nodes are; those that gave no answer are left out. An InputError says what does not fit."""
    sent = {
        node: Message(
            RecordDict(),
            node,
            "query.describe",
            ttl=max(_FIRST, options["deadline"]),
            group_id="describe",
        )
        for node in sorted(ids)
    }
    options["deadline"] = max(_FIRST, options["deadline"])
    found: dict[int, Node] = {}
    for node, reply in exchange(grid, sent, **options).items():
        if reply.has_error() and reply.error.code in (3, 4, 5, 8):  # on the way, not at the node
            continue
        try:
            say = messages.said(_content(reply), DESCRIBED)
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
