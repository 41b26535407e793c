"""A federation in one process: equal bits to the simulator, and every fault.

Messages cross the grid as bytes, as they do on a network.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from importlib.resources import files

import freeze
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from localgrid import LocalGrid

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.flower import exchange, messages, nodes
from fedpage.flower.client_app import app
from fedpage.flower.config import AppConfig
from fedpage.flower.server_app import FedpageStrategy

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
    history = simulated(**changes)
    assert federate(**changes).history.same(history)
    assert fp.History.load(tmp_path / "run" / "history.jsonl").same(history)
    if freeze.probe() == FROZEN["processor"]:
        for other in OBJECTIVES:
            digest = freeze.digest(simulated(**changes | {"objective": other}))
            assert digest == FROZEN["federations"][f"{method} {other}"]


@pytest.mark.parametrize(
    "objective", ["logistic", "logistic-l2", "logistic-nonconvex", "squares-l2"]
)
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_history_equals_the_simulator_for_objectives_and_weights(
    federate, simulated, objective, weights
):
    changes = {
        "objective": objective,
        "weights": weights,
        "method": "scaffold",
        "hyper": "S=3 K=2 eta_l=0.1",
    }
    assert federate(**changes).history.same(simulated(**changes))


@pytest.mark.parametrize("method", [name for name in fp.METHODS if not fp.METHODS[name].preset])
def test_softmax_equals_the_simulator(federate, simulated, method):
    """Clients of a label shard have few of the ten classes, and still ten outputs."""
    changes = {
        "data": "digits:classes=10",
        "partition": "label-shards",
        "rounds": 4,
        "objective": "softmax-l2",
        "method": method,
        "hyper": small(method),
    }
    history = federate(**changes).history
    assert history.same(simulated(**changes))
    assert len(history.x) == 640


def test_metrics_equal_the_simulator(federate, simulated, tmp_path):
    metrics = ["auc", "accuracy"]
    history = federate(metrics="auc, accuracy", objective="logistic").history
    data = fp.load("census", rows=300)
    problem = fp.LogisticRegression(data, fp.power_law(300, 8), metrics=metrics)
    assert history.same(simulated(problem))
    assert history.columns[-2:] == metrics
    assert history.best("accuracy") == history["accuracy"].max()
    assert fp.History.load(tmp_path / "run" / "history.jsonl").directions == {
        "auc": True,
        "accuracy": True,
    }


def test_recorded_metrics_have_the_clients_weights(federate, simulated):
    """With weights by size the mean of the clients' accuracies is that of all rows."""
    changes = {"metrics": "accuracy", "objective": "logistic", "weights": "size"}
    history = federate(**changes).history
    problem = fp.LogisticRegression(
        fp.load("census", rows=300), fp.power_law(300, 8), metrics=["accuracy"], weights="size"
    )
    assert history.same(simulated(problem, weights="size"))
    pooled = problem.evaluate(history.x)["accuracy"]
    assert history.last("accuracy") == pytest.approx(pooled, rel=1e-12)
    each = list(problem.client_scores(history.x, metric="accuracy").values())
    assert abs(pooled - float(np.mean(each))) > 1e-6


def test_quantiles_over_clients_equal_the_simulator(federate, simulated, tmp_path):
    """Nodes send their own values; the server computes quantiles, of losses without weights."""
    metrics = ["accuracy_worst", "auc_p50", "loss_worst", "loss_p10"]
    changes = {"metrics": ", ".join(metrics), "objective": "logistic", "weights": "size"}
    history = federate(**changes).history
    problem = fp.LogisticRegression(
        fp.load("census", rows=300), fp.power_law(300, 8), metrics=metrics, weights="size"
    )
    run = simulated(problem, weights="size")
    assert history.same(run)
    assert history.columns[-6:] == ["accuracy", "auc", *metrics]
    pooled = problem.evaluate(history.x)
    for name in metrics:
        assert history.last(name) == pytest.approx(pooled[name], rel=1e-12)
    assert history.higher_is_better("auc_p50")


def test_size_weights_change_the_model(federate, tmp_path):
    uniform = federate().history
    sized = federate(weights="size", out=str(tmp_path / "sized")).history
    assert uniform.x.tobytes() != sized.x.tobytes()


class Once:
    """Apply a fault to the first message of a type to each client in a round, from round 2 on."""

    def __init__(self, fault, client=None, message_type=messages.TRAIN):
        self.fault, self.client, self.message_type, self.seen = fault, client, message_type, set()

    def __call__(self, client, message):
        key = (client, message.metadata.group_id)
        other = self.client is not None and client != self.client
        if (
            message.metadata.message_type != self.message_type
            or other
            or key in self.seen
            or int(key[1]) < 2
        ):
            return None
        self.seen.add(key)
        return self.fault


def tampered(change):
    """Return a fault that changes the arrays or the header of a reply."""

    def fault(reply):
        content = reply.content
        arrays = {name: array.numpy() for name, array in content["arrays"].items()}
        header = dict(content["header"])
        changed = change(arrays, header) or arrays
        records = {
            "arrays": ArrayRecord({k: Array(v) for k, v in changed.items()}),
            "header": ConfigRecord(header),
        }
        reply.content = RecordDict({**dict(content), **records})
        return reply

    return fault


def first(arrays):
    return next(iter(arrays))


FAULTS = {
    "it raised an exception": ("error", 2, "<class 'ValueError'>:<'row 7'>"),
    "its process died": ("error", 8, "ClientApp stopped responding."),
    "its node is not connected": ("error", 5, "Error: Node Unavailable"),
    "no reply in time": ("late", 1000.0),
    "not finite": tampered(lambda a, h: a[first(a)].__setitem__(0, np.nan)),
    "has shape (1,) instead of (123,)": tampered(
        lambda a, h: {name: part[:1] for name, part in a.items()}
    ),
    "has type float32 instead of float64": tampered(
        lambda a, h: {n: p.astype(np.float32) for n, p in a.items()}
    ),
    "bytes, but 984 are expected": tampered(lambda a, h: {n: np.zeros(10**6) for n in a}),
    "instead of v": tampered(lambda a, h: {"other": a[first(a)]}),
    "late: it belongs to round": tampered(lambda a, h: h.__setitem__("round", h["round"] - 1)),
    "it says it is client 99": tampered(lambda a, h: h.__setitem__("client", 99)),
    "'gradients' must be of type int": tampered(lambda a, h: h.__setitem__("gradients", 1.5)),
    "impossible counts of gradients": tampered(lambda a, h: h.__setitem__("gradients", -1)),
    "the header has unknown fields": tampered(lambda a, h: h.__setitem__("extra", 1)),
}


@pytest.mark.parametrize("words", FAULTS)
def test_rejected_replies_are_reported_and_retried_and_do_not_change_the_model(
    federate, simulated, words
):
    changes = {"method": "scaffold", "hyper": "S=3 K=2", "rounds": 6}
    strategy = federate(Once(FAULTS[words]), **changes)
    expected = simulated(**changes)
    assert strategy.history.x.tobytes() == expected.x.tobytes()
    texts = [e["text"] for e in strategy.history.events if e["event"] == "rejected"]
    assert texts
    assert all(words in text for text in texts)
    named = [re.match(r"repl(?:y|ies) of clients? ([\d, ]+): ", text) for text in texts]
    assert strategy.history.last("missing") == sum(1 + match[1].count(",") for match in named)


@pytest.mark.parametrize("fault", ["drop", "lost"])
def test_a_lost_message_or_reply_changes_neither_model_nor_client_state(federate, simulated, fault):
    changes = {"method": "scaffold", "hyper": "S=3 K=2", "rounds": 8}
    strategy = federate(Once(fault), **changes)
    assert strategy.history.last("missing") > 0
    assert strategy.history.x.tobytes() == simulated(**changes).x.tobytes()


def test_a_reply_that_never_arrives_does_not_change_the_client_state(federate, simulated, tmp_path):
    """A client whose reply is lost in every attempt of a round keeps its earlier client state."""
    lost = []

    def fault(client, message):
        if message.metadata.message_type == messages.TRAIN and message.metadata.group_id in (
            "2",
            "3",
        ):
            lost.append(client)
            return "lost" if client % 2 else None
        return None

    changes = {"method": "scaffold", "hyper": "S=4 K=2", "rounds": 12, "retries": 0}
    strategy = federate(fault, **changes)
    assert any(client % 2 for client in lost)
    engine = fp.Simulation(
        fp.RobustRegression(fp.load("census", rows=300), fp.power_law(300, 8)),
        strategy.method,
        seed=3,
        options=fp.RunOptions(policy=fp.Policy(retries=0)),
    )
    request = engine.transport.request

    def lose_odd_replies(call, draws, attempt):
        for chunk in request(call, draws, attempt):
            if draws.round in (2, 3):
                kept = chunk.clients % 2 == 0
                chunk = chunk._replace(
                    clients=chunk.clients[kept],
                    replies=chunk.replies._make([field[kept] for field in chunk.replies]),
                    client_states=chunk.client_states._make(
                        [field[kept] for field in chunk.client_states]
                    ),
                )
            yield chunk

    engine.transport.request = lose_odd_replies
    for _ in range(12):
        engine.step()
    assert strategy.history.x.tobytes() == engine.x.tobytes()


def test_training_continues_without_a_lost_client(federate):
    """The loss is reported once, full rounds are no longer tried, and training continues."""

    def leave(client, message):
        if (
            message.metadata.group_id.isdigit()
            and int(message.metadata.group_id) >= 3
            and client == 5
        ):
            return ("error", 5, "Error: Node Unavailable")
        return None

    history = federate(
        leave, rounds=25, hyper="S=4 K=2 eta_g=0.2 p=0.5", **{"record-every": 1}
    ).history
    assert history.stop_reason is StopReason.FINISHED
    assert [e["text"] for e in history.events if e["event"] == "lost"] == [
        "client 5 missing 3 times in a row"
    ]
    alarm = next(e["round"] for e in history.events if e["event"] == "lost")
    assert np.diff(history["full_rounds"])[3:].max() == 0
    assert np.diff(history["clients"])[alarm + 1 :].max() <= 4 + 2
    assert any(e["text"] == "7 of 8 clients evaluated the model" for e in history.events)
    assert history.last("loss") < history["loss"][0]


def test_a_node_that_returns_with_another_node_id_is_used(federate, simulated):
    def prepare(grid):
        def move(client, message):
            old = grid.node(2)
            if message.metadata.group_id != "4" or client != 2 or old == 4242:
                return None
            grid.online.discard(old)
            grid.add(4242, 2, grid.contexts[old].node_config, grid.contexts[old].run_config)
            grid.online.add(4242)
            return "drop"

        grid.fault = move

    changes = {"method": "scaffold", "hyper": "S=8 K=2"}
    strategy = federate(prepare=prepare, **changes)
    assert strategy.history.x.tobytes() == simulated(**changes).x.tobytes()
    assert strategy.grid.contexts.keys() - strategy.grid.online


class Killed(BaseException):
    pass


@pytest.mark.parametrize("method", ["fedpage", "scaffold", "s-local-svrg", "secantpage"])
def test_a_killed_server_resumes_with_equal_bits(federate, simulated, method):
    """A new ServerApp has only the run's directory and the client state on the nodes."""

    def die(info):
        if info.round == 4:
            raise Killed

    changes = {"method": method, "hyper": small(method), "record-every": 1}
    with pytest.raises(Killed):
        federate(callbacks=[fp.FunctionCallback(on_round_end=die)], **changes)
    with pytest.raises(fp.InputError, match="cannot resume: seed was 3 and is now 4"):
        federate(seed=4, **changes)
    again = federate(**changes)
    assert again.history.same(simulated(**changes))
    message_types = [message_type for _, message_type in again.grid.sent]
    assert messages.DESCRIBE in message_types
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

    def silent(client, message):
        return "drop" if message.metadata.group_id == "4" else None

    history = federate(silent).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert history.stop_detail == "evaluation after round 4 failed: no valid reply from any client"
    assert federate().history.same(simulated())


def test_an_evaluation_that_is_not_finite_is_retried(federate, simulated):
    spoil = tampered(lambda a, h: a["loss"].__setitem__(0, np.nan))
    history = federate(Once(spoil, message_type=messages.EVALUATE)).history
    assert history.same(simulated())
    texts = [e["text"] for e in history.events]
    assert "evaluations of clients 0, 1, 2, 3, 4, 5, 6, 7: not finite" in texts
    assert all(text.startswith("evaluation") and ": not finite" in text for text in texts)


def test_a_run_resumes_without_a_lost_client(federate):
    def leave(client, message):
        late = message.metadata.group_id.isdigit() and int(message.metadata.group_id) >= 2
        return ("error", 5, "Error: Node Unavailable") if late and client == 5 else None

    def die(info):
        if info.round == 8:
            raise Killed

    changes = {"rounds": 14, "record-every": 1, "hyper": "S=6 K=2 eta_g=0.2 p=0.5"}
    with pytest.raises(Killed):
        federate(leave, callbacks=[fp.FunctionCallback(on_round_end=die)], **changes)
    history = federate(
        leave, prepare=lambda grid: grid.online.discard(grid.node(5)), **changes
    ).history
    assert history.stop_reason is StopReason.FINISHED
    assert history.last("round") == 14


def test_an_unknown_node_is_refused_and_the_run_continues(federate, simulated):
    def prepare(grid):
        def swap(client, message):
            if message.metadata.group_id == "4" and client == 2 and 77 not in grid.online:
                grid.add(77, 2, {"partition-id": 99}, next(iter(grid.contexts.values())).run_config)
                grid.online |= {77}
                grid.online.discard(grid.node(2))
                return "drop"
            return None

        grid.fault = swap

    history = federate(prepare=prepare, rounds=6, hyper="S=8 K=2 eta_g=0.2 p=0.01").history
    assert history.stop_reason is StopReason.FINISHED
    assert any(e["event"] == "refused" and "bad-client" in e["text"] for e in history.events)


def test_a_lost_describe_message_is_retried(federate, simulated):
    seen: list[int] = []

    def lose(client, message):
        if message.metadata.message_type == messages.DESCRIBE and client == 3 and not seen:
            seen.append(client)
            return "drop"
        return None

    assert federate(lose, wait=3000.0).history.same(simulated())
    assert seen


def test_methods_with_client_state_need_a_checkpoint_every_round(config):
    with pytest.raises(fp.InputError, match="checkpoint-every must be 1 for SCAFFOLD"):
        FedpageStrategy(config | {"method": "scaffold", "hyper": "S=2", "checkpoint-every": 10})


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 0}, "clients must be a whole number of at least 1"),
        ({"deadline": 0.0}, "deadline must be a finite number above 0"),
        ({"weights": "rows"}, "weights must be 'uniform' or 'size'"),
        ({"hyper": "S"}, "hyper must be words such as S=2"),
        ({"hyper": "Z=2"}, "FedPAGE: unknown key 'Z'"),
        ({"method": "fedpag"}, "did you mean 'fedpage'"),
        ({"bogus": 1}, "unknown key 'bogus'"),
        ({"metrics": "acuracy"}, "did you mean 'accuracy'"),
        ({"metrics": "f_minus_fstar"}, "needs the reference solution, which takes all clients'"),
        ({"rounds": "many"}, "rounds must be a whole number"),
    ],
)
def test_invalid_run_configs(config, change, words):
    with pytest.raises(fp.InputError, match=words):
        FedpageStrategy(config | change)


def test_messages_that_the_grid_rejects(config):
    grid = LocalGrid(app, [{"partition-id": 0}], config)
    grid.get_node_ids()
    sent = {0: Message(RecordDict(), grid.node(0), messages.DESCRIBE, ttl=5.0)}
    grid.push_messages = lambda messages: [None]
    assert exchange.exchange(grid, sent, exchange.Wait(1.0, 0.1, grid.sleep, grid.clock)) == {}


def test_app_toml_has_exactly_the_keys_of_the_dataclass():
    table = tomllib.loads(files("fedpage.flower").joinpath("app.toml").read_text(encoding="utf-8"))
    keys = {field.name.replace("_", "-") for field in dataclasses.fields(AppConfig)}
    assert set(table["tool"]["flwr"]["app"]["config"]) == keys
