"""Clients that send wrong numbers to a federation: named, excluded, and the run goes on."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpage.flower import messages

SIZES = [1e3, 1e6, 1e100, 1e308]


def with_numbers(value, only=None):
    """Return a fault that replaces all numbers of a reply, or of one of its fields."""

    def change(reply):
        arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
        for name in arrays if only is None else (only,):
            arrays[name] = np.full_like(arrays[name], value)
        records = {
            "arrays": ArrayRecord({k: Array(v) for k, v in arrays.items()}),
            "header": ConfigRecord(dict(reply.content["header"])),
        }
        reply.content = RecordDict({**dict(reply.content), **records})
        return reply

    return change


def from_client(wrong, fault, rounds):
    """Let a client answer wrongly in some rounds, in every attempt."""

    def choose(client, message):
        is_training = message.metadata.message_type == messages.TRAIN
        if is_training and client == wrong and int(message.metadata.group_id) in rounds:
            return fault
        return None

    return choose


class Once:
    """Let every client answer wrongly once, in different rounds."""

    def __init__(self, fault):
        self.fault, self.seen = fault, set()

    def __call__(self, client, message):
        if message.metadata.message_type != messages.TRAIN or client in self.seen:
            return None
        if int(message.metadata.group_id) <= len(self.seen):
            return None
        self.seen.add(client)
        return self.fault


def rejected(history):
    return [event["text"] for event in history.events if event["event"] == "rejected"]


@pytest.mark.parametrize("value", SIZES)
@pytest.mark.parametrize("method", ["fedpage", "scaffold", "fedavg"])
def test_a_wrong_reply_is_named_and_asked_for_again(federate, simulated, method, value):
    changes = {"method": method, "hyper": "S=3 K=2", "rounds": 10}
    history = federate(Once(with_numbers(value)), **changes).history
    assert len(rejected(history)) >= 4
    assert all("outlier" in text for text in rejected(history))
    assert history.x.tobytes() == simulated(**changes).x.tobytes()


@pytest.mark.parametrize("field", ["dy", "dc"])
def test_a_wrong_field_of_several_is_found(federate, simulated, field):
    changes = {"method": "scaffold", "hyper": "S=3 K=2 option=I", "rounds": 10}
    history = federate(Once(with_numbers(1e4, field)), **changes).history
    assert any(f"outlier: {field} of norm" in text for text in rejected(history))
    assert history.x.tobytes() == simulated(**changes).x.tobytes()
