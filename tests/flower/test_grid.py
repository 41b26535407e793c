"""A federation in one process: equal bits to the simulator, and every fault.

Messages cross the grid as bytes, as they do on a network.
"""

import json
import re
from collections import Counter

import freeze
import numpy as np
import pytest
from faults import AWAY, DIED, At, census, change_reply, texts, with_numbers
from flwr.app import Message, RecordDict
from localgrid import LocalGrid

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.engine.faults import FaultSampler
from fedpage.flower import exchange, messages, nodes
from fedpage.flower.client_app import app
from fedpage.flower.config import build_method, parse_app_config

FROZEN = json.loads((freeze.HERE / "bits.json").read_text(encoding="utf-8"))


def small(method):
    """Return hyper-parameters that fit eight clients, as text."""
    return " ".join(f"{name}={value}" for name, value in freeze.small(method).items())


OBJECTIVES = ("robust", "logistic-l2")


@pytest.mark.parametrize("method", fp.METHODS)
def test_history_equals_the_simulator(federate, simulated, method, tmp_path):
    """Federate each method with one of two objectives in turn; both have the frozen digests."""
    objective = OBJECTIVES[list(fp.METHODS).index(method) % 2]
    changes = {"method": method, "hyper": small(method), "objective": objective}
    short = changes | {"rounds": 5}
    history = simulated(**short)
    assert federate(**short).history.same(history)
    assert fp.History.load(tmp_path / "run" / "history.jsonl").same(history)
    if freeze.probe() == FROZEN["processor"]:
        for other in OBJECTIVES:
            digest = freeze.digest(simulated(**changes | {"objective": other}))
            assert digest == FROZEN["federations"][f"{method} {other}"]


DIGITS = {"data": "digits:classes=10", "partition": "label-shards", "objective": "softmax-l2"}
"""Clients have few of the ten classes, and still ten outputs."""


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("scaffold", {"objective": "logistic", "weights": "size"}),
        ("scaffold", {"objective": "logistic-nonconvex"}),
        ("scaffold", {"objective": "squares-l2", "weights": "size"}),
        *((method, DIGITS) for method in ("fedavg", "fedpage", "saga", "secantpage", "svrp")),
    ],
)
def test_other_objectives_and_weights(federate, simulated, method, changes):
    changes = {"method": method, "hyper": small(method), "rounds": 4, **changes}
    assert federate(**changes).history.same(simulated(**changes))


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_metrics_equal_the_simulator(federate, simulated, tmp_path, weights):
    """Nodes send their own values; the server computes means and quantiles over clients."""
    names = ["auc", "accuracy"] if weights == "uniform" else ["accuracy_worst", "loss_p10"]
    columns = names if weights == "uniform" else ["accuracy", *names]
    changes = {"objective": "logistic", "weights": weights}
    history = federate(metrics=", ".join(names), **changes).history
    data, division = fp.load("census", rows=300), fp.power_law(300, 8)
    problem = fp.LogisticRegression(data, division, metrics=names, weights=weights)
    assert history.same(simulated(problem, **changes))
    assert history.columns[-len(columns) :] == columns
    loaded = fp.History.load(tmp_path / "run" / "history.jsonl")
    assert [loaded.higher_is_better(name) for name in columns] == [
        not name.startswith("loss") for name in columns
    ]
    if weights == "size":  # the mean of the clients' accuracies is that of all rows
        pooled = problem.evaluate(history.x)
        for name in columns:
            assert history.last(name) == pytest.approx(pooled[name], rel=1e-12)
        each = list(problem.client_scores(history.x, metric="accuracy").values())
        assert abs(pooled["accuracy"] - float(np.mean(each))) > 1e-6


def once(fault, client=None, kind=messages.TRAIN):
    """Apply a fault to the first message of a kind to each client in a round, from round 2 on."""
    return At(fault, kind, None if client is None else [client], range(2, 99), once=True)


def first(arrays):
    return next(iter(arrays))


FAULTS = {
    "it raised an exception": ("error", 2, "<class 'ValueError'>:<'row 7'>"),
    "its process died": DIED,
    "its node is not connected": AWAY,
    "no reply in time": ("late", 1000.0),
    "not finite": change_reply(lambda a, h: a[first(a)].__setitem__(0, np.nan)),
    "has shape (1,) instead of (123,)": change_reply(
        lambda a, h: {name: part[:1] for name, part in a.items()}
    ),
    "has type float32 instead of float64": change_reply(
        lambda a, h: {n: p.astype(np.float32) for n, p in a.items()}
    ),
    "bytes, but 984 are expected": change_reply(lambda a, h: {n: np.zeros(10**6) for n in a}),
    "instead of v": change_reply(lambda a, h: {"other": a[first(a)]}),
    "late: it belongs to round": change_reply(lambda a, h: h.__setitem__("round", h["round"] - 1)),
    "it says it is client 99": change_reply(lambda a, h: h.__setitem__("client", 99)),
    "'gradients' must be of type int": change_reply(lambda a, h: h.__setitem__("gradients", 1.5)),
    "impossible counts of gradients": change_reply(lambda a, h: h.__setitem__("gradients", -1)),
    "the header has unknown fields": change_reply(lambda a, h: h.__setitem__("extra", 1)),
}


@pytest.mark.parametrize("words", FAULTS)
def test_rejected_replies_are_reported_and_retried_and_do_not_change_the_model(
    federate, simulated, words
):
    changes = {"method": "scaffold", "hyper": "S=3 K=2", "rounds": 5}
    history = federate(once(FAULTS[words]), **changes).history
    assert history.x.tobytes() == simulated(**changes).x.tobytes()
    assert texts(history)
    assert all(words in text for text in texts(history))
    named = [re.match(r"repl(?:y|ies) of clients? ([\d, ]+): ", text) for text in texts(history)]
    assert history.last("missing") == sum(1 + match[1].count(",") for match in named)


@pytest.mark.parametrize("fault", ["drop", "lost"])
def test_a_lost_message_or_reply_changes_neither_model_nor_client_state(federate, simulated, fault):
    changes = {"method": "scaffold", "hyper": "S=3 K=2", "rounds": 8}
    history = federate(once(fault), **changes).history
    assert history.last("missing") > 0
    assert history.x.tobytes() == simulated(**changes).x.tobytes()


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("fault", ["huge", "lost"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_the_faults_of_the_simulator_on_a_grid(federate, config, method, fault, retries):
    """The same replies are corrupted, or never arrive and leave the client's state as it was."""
    faults = fp.Faults(**{fault: 0.15})
    changes = {"method": method, "hyper": "S=4 K=2", "rounds": 12, "record-every": 0}
    changes["retries"] = retries
    sampler = FaultSampler(faults, census(), config["seed"])
    asked: Counter[tuple[int, int]] = Counter()
    given = with_numbers(1e9) if fault == "huge" else "lost"

    def choose(client, message):
        if message.metadata.message_type != messages.TRAIN:
            return None
        now = int(message.metadata.group_id)
        outcomes = sampler.sample_outcomes(np.array([client]), now, asked[client, now])
        asked[client, now] += 1
        return given if outcomes.any() else None

    history = federate(choose, **changes).history
    made = build_method(parse_app_config(config | changes))
    options = {"faults": faults, "evaluate": "per_client", "policy": fp.Policy(retries=retries)}
    run = fp.simulate(
        census(), made, rounds=12, seed=3, record_every=0, options=fp.RunOptions(**options)
    )
    assert history.last("rejected" if fault == "huge" else "missing") > 3
    for column in ("clients", "missing", "bytes_up", "bytes_down"):
        assert history.last(column) == run.last(column)
    assert history.x.tobytes() == run.x.tobytes()
    if fault == "huge":  # a server does not know what was computed for a reply that was lost
        assert history.same(run)
        assert texts(history) == texts(run)


def test_training_continues_without_a_lost_client(federate):
    """The loss is reported once, full rounds are no longer tried, and training continues.

    A server that was killed meanwhile resumes without it.
    """
    leave = At(AWAY, None, [5], range(3, 99))
    changes = {"rounds": 25, "hyper": "S=4 K=2 eta_g=0.2 p=0.5", "record-every": 1}
    federate(leave, kill=14, **changes)
    away = {"prepare": lambda grid: grid.online.discard(grid.node(5))}
    history = federate(leave, **away, **changes).history
    assert history.stop_reason is StopReason.FINISHED
    assert texts(history, "lost") == ["client 5 missing 3 times in a row"]
    alarm = next(e["round"] for e in history.events if e["event"] == "lost")
    assert np.diff(history["full_rounds"])[3:].max() == 0
    assert np.diff(history["clients"])[alarm + 1 :].max() <= 4 + 2
    assert any(e["text"] == "7 of 8 clients evaluated the model" for e in history.events)
    assert history.last("loss") < history["loss"][0]


def test_a_node_that_returns_with_another_node_id_is_used(federate, simulated):
    def prepare(grid):
        def move(client, message):
            if message.metadata.group_id != "4" or client != 2 or grid.node(2) == 4242:
                return None
            grid.move(2, 4242)
            return "drop"

        grid.fault = move

    changes = {"method": "scaffold", "hyper": "S=8 K=2"}
    strategy = federate(prepare=prepare, **changes)
    assert strategy.history.x.tobytes() == simulated(**changes).x.tobytes()
    assert strategy.grid.contexts.keys() - strategy.grid.online


@pytest.mark.parametrize("method", ["fedpage", "scaffold", "s-local-svrg", "secantpage"])
def test_a_killed_server_resumes_with_equal_bits(federate, simulated, method):
    """A new ServerApp has only the run's directory and the client state on the nodes."""
    changes = {"method": method, "hyper": small(method), "record-every": 1}
    federate(kill=4, **changes)
    with pytest.raises(fp.InputError, match="cannot resume: seed was 3 and is now 4"):
        federate(seed=4, **changes)
    again = federate(**changes)
    assert again.history.same(simulated(**changes))
    message_types = [message_type for _, message_type in again.grid.sent]
    assert message_types.count(messages.TRAIN) < again.history.last("clients")
    with pytest.raises(fp.InputError, match="this run is finished; give another out for a new run"):
        federate(**changes)


def test_a_lost_client_state_is_reported_and_not_replaced_by_zeros(federate, tmp_path):
    import shutil

    def forget(client, message):
        if message.metadata.group_id == "5":
            shutil.rmtree(tmp_path / "client-state", ignore_errors=True)

    history = federate(forget, method="scaffold", hyper="S=8 K=2").history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert history.stop_detail.startswith(
        "round 5 failed: no valid reply from clients 0, 1, 2, 3, 4 and 3 more"
    )
    assert any("no longer has the client state" in e["text"] for e in history.events)


def test_a_run_that_fails_in_an_evaluation_can_be_resumed(federate, simulated):
    """No client answers an evaluation: the run ends, and resumes when it is started again."""
    history = federate(At("drop", None, rounds=[4])).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert history.stop_detail == "evaluation after round 4 failed: no valid reply from any client"
    assert federate().history.same(simulated())


def test_an_evaluation_that_is_not_finite_is_retried(federate, simulated):
    spoil = change_reply(lambda a, h: a["loss"].__setitem__(0, np.nan))
    history = federate(once(spoil, kind=messages.EVALUATE)).history
    assert history.same(simulated())
    found = [e["text"] for e in history.events]
    assert "evaluations of clients 0, 1, 2, 3, 4, 5, 6, 7: not finite" in found
    assert all(text.startswith("evaluation") and ": not finite" in text for text in found)


def test_an_unknown_node_is_refused_and_the_run_continues(federate, simulated):
    def prepare(grid):
        def swap(client, message):
            if message.metadata.group_id == "4" and client == 2 and 77 not in grid.online:
                grid.move(2, 77, {"partition-id": 99})
                return "drop"
            return None

        grid.fault = swap

    history = federate(prepare=prepare, rounds=6, hyper="S=8 K=2 eta_g=0.2 p=0.01").history
    assert history.stop_reason is StopReason.FINISHED
    assert any(e["event"] == "refused" and "bad-client" in e["text"] for e in history.events)


def test_a_lost_describe_message_is_retried(federate, simulated):
    lose = At("drop", messages.DESCRIBE, [3], once=True)
    assert federate(lose, wait=3000.0).history.same(simulated())
    assert lose.seen


def test_a_run_needs_one_node_for_every_client(federate):
    def prepare(grid):
        grid.online.discard(grid.node(6))

    words = "waited 10 s for 8 clients; 1 cannot take part: client 6: no node is connected"
    with pytest.raises(fp.InputError, match=words):
        federate(prepare=prepare)
    twins = [{"partition-id": min(i, 6)} for i in range(8)]
    with pytest.raises(fp.InputError, match=r"client 6: nodes .* both say they hold it"):
        federate(nodes=twins)
    with pytest.raises(fp.InputError, match=r"client of this run \(bad-client"):
        federate(nodes=[{"partition-id": i + 1} for i in range(8)])
    with pytest.raises(fp.InputError, match="the node's configuration names no data"):
        federate(data="", objective="squares")


def test_another_version_of_fedpage_is_refused(federate, monkeypatch):
    monkeypatch.setattr(nodes, "__version__", "9.9.9")
    with pytest.raises(
        fp.InputError, match=r"client \d: it has fedpage 0.1.0, but the server has 9.9.9"
    ):
        federate()


def test_messages_that_the_grid_rejects(config):
    grid = LocalGrid(app, [{"partition-id": 0}], config)
    grid.get_node_ids()
    sent = {0: Message(RecordDict(), grid.node(0), messages.DESCRIBE, ttl=5.0)}
    grid.push_messages = lambda messages: [None]
    assert exchange.exchange(grid, sent, exchange.Wait(1.0, 0.1, grid.sleep, grid.clock)) == {}
