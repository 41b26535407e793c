"""What an operator sees of a federation, and how it waits for nodes that are away."""

from __future__ import annotations

import itertools

import pytest
from flwr.app import Array, ArrayRecord, RecordDict

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.flower import messages


def is_train(message, at_least):
    """Return whether a message asks a client to train, in this round or a later one."""
    metadata = message.metadata
    return metadata.message_type == messages.TRAIN and int(metadata.group_id) >= at_least


AWAY = ("error", 5, "Error: Node Unavailable")
DIED = ("error", 8, "Error: Process Died")


class Rounds(fp.Callback):
    """Keep what callbacks are told about rounds."""

    def __init__(self):
        self.rounds = []

    def on_round_end(self, info):
        self.rounds.append(info)


def test_rounds_report_who_answered_and_who_was_slowest(federate):
    def slow(client, message):
        if is_train(message, 2) and client == 5:
            return ("late", 7.5)
        if is_train(message, 3) and client == 2:
            return AWAY
        return None

    seen = Rounds()
    changes = {"method": "fedavg", "hyper": "S=8 K=2", "rounds": 6, "retries": 1}
    history = federate(slow, callbacks=[seen], **changes).history
    assert [info.round for info in seen.rounds] == [1, 2, 3, 4, 5, 6]
    assert [info.called for info in seen.rounds] == [8] * 6
    assert [info.answered for info in seen.rounds] == [8, 8, 8, 7, 7, 7]
    assert [info.slowest.client for info in seen.rounds[2:]] == [5] * 4
    assert all(7.5 <= info.slowest.seconds < 9 for info in seen.rounds[2:])
    assert [info.lost for info in seen.rounds] == [(), (), (), [], [], [2]]
    for column in ("bytes_down", "bytes_up"):
        assert sum(getattr(info, column) for info in seen.rounds) == history.last(column)
    # a retry costs a message down, and brings no reply
    assert seen.rounds[3].bytes_down > seen.rounds[2].bytes_down
    assert seen.rounds[3].bytes_up < seen.rounds[2].bytes_up


class Times:
    """A fault that keeps the virtual times at which clients were asked in a round."""

    def __init__(self, fault, round):
        self.fault, self.round, self.times, self.grid = fault, round, {}, None

    def __call__(self, client, message):
        if is_train(message, self.round) and int(message.metadata.group_id) == self.round:
            self.times.setdefault(client, []).append(self.grid.now)
        return self.fault(client, message)

    def prepare(self, grid):
        self.grid = grid

    def pauses(self, client):
        times = self.times[client]
        return [b - a for a, b in itertools.pairwise(times)]


FULL = {"method": "vrl-sgd", "hyper": "K=2", "rounds": 6}
"""Every round needs all clients, and there is no fallback."""


def test_pauses_between_retries_double_up_to_a_minute(federate):
    times = Times(lambda client, m: DIED if is_train(m, 2) and client == 3 else None, 2)
    history = federate(times, prepare=times.prepare, **FULL).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    waited = times.pauses(3)
    assert len(waited) == 10
    for pause, expected in zip(waited, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60], strict=True):
        assert expected <= pause < expected + 1.5
    assert [e["text"] for e in history.events if e["event"] == "rejected"] == [
        "reply of client 3: its process died (Error: Process Died) (x11)"
    ]


def test_the_first_pause_is_a_setting(federate):
    times = Times(lambda client, m: DIED if is_train(m, 2) and client == 3 else None, 2)
    federate(times, prepare=times.prepare, **FULL, **{"retry-pause": 10.0})
    assert times.pauses(3)[0] == pytest.approx(11, abs=0.5)
    with pytest.raises(fp.InputError, match="retry-pause must be a finite number from 0 to 60"):
        federate(**FULL, **{"retry-pause": 61.0})


def test_a_pause_ends_when_the_missing_nodes_are_back(federate, simulated):
    """The node is away for 20 s; without a look at the nodes it would be asked after 31 s."""

    def prepare(grid):
        state = {"until": None, "node": None}
        times.grid, list_nodes = grid, grid.get_node_ids

        def leave(client, message):
            if is_train(message, 2) and client == 3 and state["until"] is None:
                state["node"], state["until"] = grid.node(3), grid.now + 20
                grid.online.discard(state["node"])
                return AWAY
            return None

        def list_and_return():
            if state["until"] is not None and grid.now >= state["until"]:
                grid.online.add(state["node"])
            return list_nodes()

        times.fault, grid.get_node_ids = leave, list_and_return

    times = Times(None, 2)
    strategy = federate(times, prepare=prepare, **FULL)
    assert strategy.history.same(simulated(**FULL)) is False  # a client was missing for a while
    assert strategy.history.x.tobytes() == simulated(**FULL).x.tobytes()
    asked = times.times[3]
    assert len(asked) == 2  # messages to a node that is away never reach it
    assert 20 <= asked[1] - asked[0] < 23


def test_invalid_replies_are_retried_at_once(federate):
    """A node that answers is there: waiting for it would not help."""
    times = Times(lambda client, m: _not_finite if is_train(m, 2) and client == 3 else None, 2)
    history = federate(times, prepare=times.prepare, **FULL).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert max(times.pauses(3)) < 1.5
    texts = [e["text"] for e in history.events if e["event"] == "rejected"]
    assert texts == ["reply of client 3: not finite (x11)"]


def _not_finite(reply):
    arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
    for array in arrays.values():
        array[...] = float("nan")
    records = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    reply.content = RecordDict({"arrays": records, "header": reply.content["header"]})
    return reply


def test_the_first_attempt_of_a_fallback_does_not_wait(federate):
    """A sampled round that replaces a full one asks its clients at once."""
    times = Times(lambda client, m: DIED if is_train(m, 2) and client == 3 else None, 2)
    history = federate(
        times, prepare=times.prepare, method="fedpage", hyper="S=3 K=2 eta_g=0.2 p=1", rounds=4
    ).history
    assert any(e["event"] == "fallback" and e["round"] == 2 for e in history.events)
    full = times.times[3][:7]
    others = sorted(t for client, ts in times.times.items() if client != 3 for t in ts[1:])
    assert others[0] - full[-1] < 1.5
