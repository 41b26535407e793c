"""What an operator sees of a federation, and how it waits for nodes that are away."""

import itertools
import json
import logging
import re

import numpy as np
import pytest
from faults import AWAY, DIED, At, texts, with_numbers

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.flower.operator import LogProgress
from fedpage.report.watch import FollowedRun, RunState

FULL = {"method": "vrl-sgd", "hyper": "K=2", "rounds": 6}
"""Every round needs all clients, and there is no fallback."""


def test_rounds_report_who_answered_and_who_was_slowest(federate):
    slow, away = (
        At(("late", 7.5), clients=[5], rounds=range(2, 9)),
        At(AWAY, clients=[2], rounds=range(3, 9)),
    )
    seen: list = []
    history = federate(
        lambda c, m: slow(c, m) or away(c, m),
        callbacks=[fp.FunctionCallback(on_round_end=seen.append)],
        method="fedavg", hyper="S=8 K=2", rounds=6, retries=1,
    ).history  # fmt: skip
    assert [info.round for info in seen] == [1, 2, 3, 4, 5, 6]
    assert [info.called for info in seen] == [8] * 6
    assert [info.answered for info in seen] == [8, 8, 8, 7, 7, 7]
    assert [info.slowest.client for info in seen[2:]] == [5] * 4
    assert all(7.5 <= info.slowest.seconds < 9 for info in seen[2:])
    assert [list(info.lost) for info in seen] == [[], [], [], [], [], [2]]
    for column in ("bytes_down", "bytes_up"):
        assert sum(getattr(info, column) for info in seen) == history.last(column)
    # a retry costs a message down, and brings no reply
    assert seen[3].bytes_down > seen[2].bytes_down
    assert seen[3].bytes_up < seen[2].bytes_up


# Waiting


class Times:
    """Keep the virtual times at which clients were asked in a round."""

    def __init__(self, fault, round=2):
        self.fault, self.asked = fault, At(None, rounds=[round])
        self.times: dict[int, list[float]] = {}
        self.grid = None

    def __call__(self, client, message):
        before = len(self.asked.seen)
        self.asked(client, message)
        if len(self.asked.seen) > before:
            self.times.setdefault(client, []).append(self.grid.now)
        return self.fault(client, message)

    def prepare(self, grid):
        self.grid = grid

    def pauses(self, client):
        return [b - a for a, b in itertools.pairwise(self.times[client])]


def from_round_2(fault):
    return At(fault, clients=[3], rounds=range(2, 99))


def test_pauses_between_retries_double_up_to_a_minute(federate):
    times = Times(from_round_2(DIED))
    history = federate(times, prepare=times.prepare, **FULL).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    pauses = times.pauses(3)
    assert len(pauses) == 10
    for pause, expected in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60], strict=True):
        assert expected <= pause < expected + 1.5
    words = "reply of client 3: its process died (Error: Process Died) (x11)"
    assert texts(history) == [words]


def test_the_first_pause_is_a_setting(federate):
    times = Times(from_round_2(DIED))
    federate(times, prepare=times.prepare, **FULL, **{"retry-pause": 10.0})
    assert times.pauses(3)[0] == pytest.approx(11, abs=0.5)


def test_a_pause_ends_when_the_missing_nodes_are_back(federate, simulated):
    """The node is away for 20 s; without a look at the nodes it would be asked after 31 s."""
    away = At(AWAY, clients=[3], rounds=[2])

    def prepare(grid):
        state = {"until": None, "node": None}
        times.grid, list_nodes = grid, grid.get_node_ids

        def leave(client, message):
            if state["until"] is not None or not away(client, message):
                return None
            state["node"], state["until"] = grid.node(3), grid.now + 20
            grid.online.discard(state["node"])
            return AWAY

        def list_and_return():
            if state["until"] is not None and grid.now >= state["until"]:
                grid.online.add(state["node"])
            return list_nodes()

        times.fault, grid.get_node_ids = leave, list_and_return

    times = Times(None)
    strategy = federate(times, prepare=prepare, **FULL)
    assert strategy.history.last("missing") > 0
    assert strategy.history.x.tobytes() == simulated(**FULL).x.tobytes()
    assert len(times.times[3]) == 2  # messages to a node that is away never reach it
    assert 20 <= times.pauses(3)[0] < 23


def test_invalid_replies_are_retried_at_once(federate):
    """A node that answers is there: waiting for it would not help."""
    times = Times(from_round_2(with_numbers(float("nan"))))
    history = federate(times, prepare=times.prepare, **FULL).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert max(times.pauses(3)) < 1.5
    assert texts(history) == ["reply of client 3: not finite (x11)"]


def test_the_first_attempt_of_a_fallback_does_not_wait(federate):
    """A sampled round that replaces a full one asks its clients at once."""
    times = Times(from_round_2(DIED))
    changes = {"method": "fedpage", "hyper": "S=3 K=2 eta_g=0.2 p=1", "rounds": 4}
    history = federate(times, prepare=times.prepare, **changes).history
    assert any(e["event"] == "fallback" and e["round"] == 2 for e in history.events)
    full = times.times[3][:7]
    others = sorted(t for client, ts in times.times.items() if client != 3 for t in ts[1:])
    assert others[0] - full[-1] < 1.5


# The log and the status


def test_every_round_has_one_line_in_the_log(federate, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    slow = At(("late", 3.0), clients=[5])
    with caplog.at_level(logging.INFO, logger="flwr"):
        federate(slow, method="fedavg", hyper="S=8 K=2", rounds=3, **{"record-every": 0})
    messages = [record.getMessage() for record in caplog.records]
    lines = [line for line in messages if "clients answered" in line]
    assert len(lines) == 3
    for number, line in enumerate(lines, start=1):
        left = r", about [\d.]+ m?s left" if number < 3 else ""
        pattern = (
            rf"fedpage: round {number} of 3: 8 of 8 clients answered, slowest 5 \([34](\.\d+)? s\)"
            rf", 7\.87 kB down, 7\.87 kB up, [\d.]+ m?s{left}"
        )
        assert re.fullmatch(pattern, line), line


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
    federate(from_round_2(DIED), **FULL)
    run.poll()
    assert run.state is RunState.FAILED
    assert run.status.detail == "round 2 failed: no valid reply from client 3"
    assert run.round == 2
    assert run.status.slowest_client >= 0
    federate(**FULL)
    run.poll()
    assert (run.state, run.round) == (RunState.FINISHED, 6)


def test_a_weak_epsilon_is_logged_once(caplog):
    progress = LogProgress()
    caplog.set_level(logging.INFO, logger="flwr")
    for number, epsilon in enumerate((9.0, 11.0, 12.0)):
        progress.on_record({"round": number, "loss": 1.0, "epsilon": epsilon}, np.zeros(1))
        assert f"epsilon {epsilon:g}" in caplog.text
        assert caplog.text.count("an epsilon above 10 is a weak guarantee") == (number > 0)


# Rules that end a run, the best model, trackers


METRIC = {
    "objective": "logistic", "rounds": 30, "record-every": 1, "hyper": "S=3 K=3 eta_g=2.0 p=0.4"
}  # fmt: skip
IDLE = {"early-stopping": 2, "monitor": "loss", "min-delta": 0.01}


@pytest.mark.parametrize(
    ("settings", "stop"),
    [
        ({"target": "accuracy:0.8"}, fp.Stop("accuracy:0.8")),
        ({"target": 0.2}, fp.Stop(0.2)),
        ({"target": "loss:0.6"}, fp.Stop("loss:0.6")),
        ({"budget": "bytes:50000"}, fp.Stop(budgets={"bytes": 50000.0})),
        ({"budget": "clients:20, bytes_up:1e9"}, fp.Stop(budgets={"clients": 20, "up": 1e9})),
        (IDLE, fp.Stop(patience=2, min_delta=0.01)),
    ],
)
def test_rules_end_the_run_as_in_the_simulator(federate, simulated, settings, stop):
    """The metric of a target is recorded, as `fedpage run --target` does."""
    history = federate(**METRIC, **settings).history
    assert history.stop_reason is not StopReason.FINISHED
    metrics = ["accuracy"] if "accuracy" in str(settings) else []
    data = fp.load("census", rows=300)
    problem = fp.LogisticRegression(data, fp.power_law(300, 8), metrics=metrics)
    assert history.same(simulated(problem, stop=stop, **METRIC))
    assert 1 < len(history.rows) < 30


def test_the_best_model_is_saved(federate, tmp_path):
    seen = []

    def keep(record, x):
        seen.append((record["accuracy"], record["round"], x.copy()))

    federate(best="accuracy", callbacks=[fp.FunctionCallback(on_record=keep)], **METRIC)
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
