"""Faults of a LocalGrid, single messages to a node, and what a history says about them."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from localgrid import LocalGrid

import fedpage as fp
from fedpage.flower import messages
from fedpage.flower.client_app import app

AWAY = ("error", 5, "Error: Node Unavailable")
DIED = ("error", 8, "Error: Process Died")
D = 123
OWN_FILES = {
    "clients": 3, "data": "", "label": "sick", "classes": "0,1", "objective": "logistic-l2",
    "alpha": 0.05, "method": "scaffold", "hyper": "S=2 K=2 eta_l=0.0001", "rounds": 5,
    "record-every": 1,
}  # fmt: skip
"""A run over the sites' own tables."""
SECURE = {
    "aggregation": "secure:bound=100", "method": "fedavg", "hyper": "S=5 K=2 eta_l=0.1",
    "rounds": 4, "record-every": 0, "evaluation": "values", "retries": 0,
}  # fmt: skip
REQUEST = messages.TrainRequest(0, 0, 3, "FullGradient", D, 1.0, "r", "", 0, 1, "", "")


class Killed(BaseException):
    """The server's process has died."""


def census():
    """Return the problem of the default run config."""
    return fp.RobustRegression(fp.load("census", rows=300), fp.power_law(300, 8))


class At:
    """Apply a fault to messages of a kind; keep the clients and rounds that it touched.

    Args:
        fault: a fault of LocalGrid.
        kind: the type of the messages; if None, all.
        clients: the clients; if None, all.
        rounds: the rounds; if None, all.
        once: spare further messages to the same client in the same round.
    """

    def __init__(self, fault, kind=messages.TRAIN, clients=None, rounds=None, once=False):
        self.fault, self.kind, self.clients = fault, kind, clients
        self.rounds, self.once = rounds, once
        self.seen: list[tuple[int, int]] = []

    def __call__(self, client, message):
        meta = message.metadata
        now = int(meta.group_id) if meta.group_id.isdigit() else -1
        if (
            self.kind not in (None, meta.message_type)
            or (self.clients is not None and client not in self.clients)
            or (self.rounds is not None and now not in self.rounds)
            or (self.once and (client, now) in self.seen)
        ):
            return None
        self.seen.append((client, now))
        return self.fault


def change_reply(change):
    """Return a fault that changes the arrays or the header of a reply.

    `change(arrays, header)` works in place, or returns other arrays.
    """

    def fault(reply):
        content = dict(reply.content)
        arrays = {name: array.numpy() for name, array in content["arrays"].items()}
        header = dict(content["header"])
        arrays = change(arrays, header) or arrays
        content["arrays"] = ArrayRecord({name: Array(part) for name, part in arrays.items()})
        content["header"] = ConfigRecord(header)
        reply.content = RecordDict(content)
        return reply

    return fault


def with_numbers(value, only=None):
    """Return a fault that replaces all numbers of a reply, or those of one of its arrays."""
    return change_reply(
        lambda arrays, header: {
            name: np.full_like(part, value) if only in (None, name) else part
            for name, part in arrays.items()
        }
    )


def ask(node, config, kind=messages.TRAIN, header=None, arrays=None, records=None):
    """Return the reply of a node that holds client 0 to one message."""
    grid = LocalGrid(app, [{"partition-id": 0, **node}], config)
    content = RecordDict({
        "arrays": ArrayRecord({"x": Array(np.zeros(D))} if arrays is None else arrays),
        "header": ConfigRecord(REQUEST._asdict() if header is None else header),
        **(records or {}),
    })  # fmt: skip
    return grid.send(0, kind, RecordDict() if kind == messages.DESCRIBE else content)


def refusal(reply):
    """Return a node's refusal."""
    assert not reply.has_error(), "Flower would send the text of an exception"
    return messages.decode_header(reply.content, messages.Refusal)


def texts(history, event="rejected"):
    """Return the texts of a kind of event."""
    return [found["text"] for found in history.events if found["event"] == event]
