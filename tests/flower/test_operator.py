"""What an operator sees of a federation, and how it waits for nodes that are away."""

from __future__ import annotations

import itertools
import json
import logging
import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.flower import messages
from fedpage.flower.operator import LogProgress
from fedpage.report.watch import FollowedRun, RunState


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


def logged(caplog, words):
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


def test_every_round_has_one_line_in_the_log(federate, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    def slow(client, message):
        return ("late", 3.0) if is_train(message, 0) and client == 5 else None

    with caplog.at_level(logging.INFO, logger="flwr"):
        federate(slow, method="fedavg", hyper="S=8 K=2", rounds=3, **{"record-every": 0})
    lines = logged(caplog, "clients answered")
    pattern = (
        r"fedpage: round %d of 3: 8 of 8 clients answered, slowest 5 \([34](\.\d+)? s\), "
        r"7\.87 kB down, 7\.87 kB up, [\d.]+ m?s%s"
    )
    assert len(lines) == 3
    for number, line in enumerate(lines, start=1):
        left = r", about [\d.]+ m?s left" if number < 3 else ""
        assert re.fullmatch(pattern % (number, left), line), line


METRIC = {
    "objective": "logistic", "rounds": 30, "record-every": 1, "hyper": "S=3 K=3 eta_g=2.0 p=0.4"
}  # fmt: skip


def test_a_target_on_a_metric_ends_the_run_as_in_the_simulator(federate, simulated):
    """The metric is recorded because it is the target, as `fedpage run --target` does."""
    history = federate(target="accuracy:0.8", **METRIC).history
    assert history.stop_reason is StopReason.TARGET
    problem = fp.LogisticRegression(
        fp.load("census", rows=300), fp.power_law(300, 8), metrics=["accuracy"]
    )
    stop = fp.Stop("accuracy:0.8")
    assert history.same(simulated(problem, stop=stop, **METRIC))
    assert 1 < len(history.rows) < 30
    assert history.reached("accuracy:0.8")


@pytest.mark.parametrize(
    ("settings", "stop"),
    [
        ({"target": 0.2}, fp.Stop(0.2)),
        ({"target": "loss:0.6"}, fp.Stop("loss:0.6")),
        ({"budget": "bytes:50000"}, fp.Stop(budgets={"bytes": 50000.0})),
        ({"budget": "clients:20, bytes_up:1e9"}, fp.Stop(budgets={"clients": 20, "up": 1e9})),
        (
            {"early-stopping": 2, "monitor": "loss", "min-delta": 0.01},
            fp.Stop(patience=2, min_delta=0.01),
        ),
    ],
)
def test_other_rules_end_the_run_as_in_the_simulator(federate, simulated, settings, stop):
    history = federate(**METRIC, **settings).history
    assert history.stop_reason is not StopReason.FINISHED
    assert history.same(simulated(stop=stop, **METRIC))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target": "accuracy"}, "target: expected a number or column:number"),
        ({"budget": "bytes"}, "budget must be words such as bytes:1e9, not 'bytes'"),
        ({"budget": "apples:3"}, "run config: stop: .*apples"),
        ({"early-stopping": -1}, "early-stopping must be a whole number of at least 0"),
        ({"track": "notes"}, "run config: no tracker 'notes'"),
        ({"best": "score"}, "run config: Best: .*score"),
    ],
)
def test_rules_that_cannot_be_used_are_refused(federate, settings, words):
    with pytest.raises(fp.InputError, match=words):
        federate(**settings)


def test_the_best_model_is_saved(federate, tmp_path):
    seen = []

    class Models(fp.Callback):
        def on_record(self, record, x):
            seen.append((record["accuracy"], record["round"], x.copy()))

    federate(best="accuracy", callbacks=[Models()], **METRIC)
    value, number, x = max(seen, key=lambda each: each[0])
    with np.load(tmp_path / "run" / "best.npz") as saved:
        assert saved["x"].tobytes() == x.tobytes()
        about = json.loads(str(saved["about"]))
    assert about == {"column": "accuracy", "value": repr(value), "round": str(number)}
    assert number < 30


def test_trackers_write_to_the_runs_directory(federate, tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    federate(track="tensorboard", rounds=3)
    (run,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert run.name == "FedPAGE-seed-3"
    assert b"grad_norm" in b"".join(path.read_bytes() for path in run.iterdir())


def test_the_status_says_what_the_run_waits_for_and_why_it_failed(federate, tmp_path):
    run, states = FollowedRun(tmp_path / "run"), []

    def prepare(grid):
        list_nodes = grid.get_node_ids

        def look():
            run.poll()
            states.append((run.state, run.status.waiting))
            return list_nodes()

        grid.get_node_ids = look
        grid.online.discard(grid.node(6))

    with pytest.raises(fp.InputError, match="client 6: no node"):
        federate(prepare=prepare)
    waiting = "waiting for the nodes of 8 clients"
    assert states[0] == (RunState.WAITING, waiting)
    assert set(states[1:]) == {(RunState.WAITING, f"{waiting}: 7 connected")}
    run.poll()
    assert run.state is RunState.FAILED
    assert "waited 10 s for 8 clients" in run.status.detail
    federate()
    run.poll()
    assert (run.state, run.round) == (RunState.FINISHED, 10)


def test_the_status_of_a_failed_round(federate, tmp_path):
    federate(lambda client, m: DIED if is_train(m, 2) and client == 3 else None, **FULL)
    run = FollowedRun(tmp_path / "run")
    run.poll()
    assert run.state is RunState.FAILED
    assert run.status.detail == "round 2 failed: no valid reply from client 3"
    assert run.round == 2
    assert run.status.slowest_client >= 0


def test_a_weak_epsilon_is_logged_once(caplog):
    progress = LogProgress()
    caplog.set_level(logging.INFO, logger="flwr")
    for number, epsilon in enumerate((9.0, 11.0, 12.0)):
        progress.on_record({"round": number, "loss": 1.0, "epsilon": epsilon}, np.zeros(1))
        assert f"epsilon {epsilon:g}" in caplog.text
        assert caplog.text.count("an epsilon above 10 is a weak guarantee") == (number > 0)
