"""Evaluation in a federation: riding on rounds, wrong and missing values, what sites send."""

import numpy as np
import pytest
from faults import AWAY, At, Killed, ask, refusal, texts
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.flower import client_app, messages, node_evaluation

SCAFFOLD = {"method": "scaffold", "hyper": "S=3 K=2"}
EVERY = {"record-every": 1}
PREFIX = "evaluation-"


def change_evaluation(change):
    """Return a fault that changes the values in the reply to an evaluation, joined or alone."""

    def fault(reply):
        records = dict(reply.content)
        joined = [name for name in records if name.startswith(PREFIX)]
        is_alone = set(dict(records["header"])) == set(messages.EvaluateReply._fields)
        if not joined and not is_alone:
            return reply
        key = f"{PREFIX if joined else ''}arrays"
        arrays = {name: array.numpy() for name, array in records[key].items()}
        if change is None:
            records = {k: v for k, v in records.items() if k not in joined}
            if not joined:
                records["header"] = ConfigRecord({"client": 0})
        else:
            change(arrays)
            records[key] = ArrayRecord({k: Array(v) for k, v in arrays.items()})
        reply.content = RecordDict(records)
        return reply

    return fault


def of_client(wrong, change, first=0):
    """Let a client's evaluations be changed from a round on; if `change` is None, be missing."""

    def choose(client, message):
        now = message.metadata.group_id
        is_wrong = client == wrong and now.isdigit() and int(now) >= first
        return change_evaluation(change) if is_wrong else None

    return choose


def set_value(name, value):
    return lambda arrays: arrays[name].__setitem__(0, value)


def count_exchanges(counts):
    """Keep the types of the messages of each exchange."""

    def prepare(grid):
        push = grid.push_messages

        def counted(sent):
            sent = list(sent)
            counts.append([message.metadata.message_type for message in sent])
            return push(sent)

        grid.push_messages = counted

    return prepare


@pytest.mark.parametrize(
    ("method", "every"), [("fedpage", 1), ("fedpage", 10), ("scaffold", 2), ("scaffold", "log")]
)
def test_riding_changes_no_bit(federate, simulated, method, every):
    changes = {"method": method, "hyper": "S=3 K=2", "record-every": every}
    assert federate(**changes).history.same(simulated(**changes))


@pytest.mark.parametrize("every", [1, 2, 0])
def test_an_evaluation_and_a_round_are_one_message_to_a_node(federate, every):
    """Ten rounds need eleven exchanges, because only the last evaluation is sent alone."""
    counts: list[list[str]] = []
    history = federate(
        prepare=count_exchanges(counts), **SCAFFOLD, **{"record-every": every}
    ).history
    rounds = [types for types in counts if {messages.TRAIN, messages.EVALUATE} & set(types)]
    assert len(rounds) == 11
    assert rounds.pop() == [messages.EVALUATE] * 8
    assert [types.count(messages.TRAIN) for types in rounds] == [3] * 10
    if every == 1:  # eight nodes get eight messages, although three of them train
        assert {len(types) for types in rounds} == {8}
        # A look for replies takes a virtual second, and every round has one, before it begins.
        assert np.all(np.diff(history["seconds"]) >= 1.0)


@pytest.mark.parametrize("changes", [{}, SCAFFOLD])
@pytest.mark.parametrize("at", [3, 6])
def test_a_round_that_was_sent_ahead_is_dropped_when_the_run_stops(
    federate, simulated, changes, at
):
    """The run ends at a record; the round after it has been computed, and counts nowhere."""
    changes = {**changes, **EVERY}
    norms = simulated(**changes)["grad_norm"]
    assert norms[:at].min() > norms[at], "choose a round whose norm is the smallest so far"
    history = federate(target=f"{float(norms[at])},hold=0", **changes).history
    expected = simulated(rounds=at, **changes)
    assert history.stop_reason is StopReason.TARGET
    for column in set(expected.columns) - {"seconds"}:
        np.testing.assert_array_equal(history[column], expected[column])
    assert history.x.tobytes() == expected.x.tobytes()


@pytest.mark.parametrize("changes", [{}, SCAFFOLD])
@pytest.mark.parametrize("number", [9, 21, 33, 47])
def test_a_run_killed_at_any_message_resumes_with_equal_bits(federate, simulated, changes, number):
    changes = {**changes, **EVERY, "rounds": 8}
    count = 0

    def die(client, message):
        nonlocal count
        count += message.metadata.message_type != messages.DESCRIBE
        if count == number:
            raise Killed

    with pytest.raises(Killed):
        federate(die, **changes)
    assert federate(**changes).history.same(simulated(**changes))


@pytest.mark.parametrize("changes", [{}, SCAFFOLD])
@pytest.mark.parametrize("fault", ["drop", "lost", AWAY, ("late", 1000.0)])
def test_faults_of_joint_messages_change_no_bit(federate, simulated, changes, fault):
    """A lost joint message costs a retry of the evaluation and one of the round."""
    changes = {**changes, **EVERY, "rounds": 5}
    kinds = [
        At(fault, kind, [0, 3, 6], range(9), once=True)
        for kind in ("train.client", "evaluate.client")
    ]
    history = federate(lambda c, m: kinds[0](c, m) or kinds[1](c, m), **changes).history
    expected = simulated(**changes)
    assert history.x.tobytes() == expected.x.tobytes()
    assert history["grad_norm"].tobytes() == expected["grad_norm"].tobytes()
    assert "measured_clients" not in history.columns


def test_an_evaluation_that_fails_does_not_harm_the_round(federate, simulated, monkeypatch):
    """A node that cannot evaluate still trains, and the record is of the others."""
    evaluate = node_evaluation.evaluate_client
    calls: list[object] = []

    def fail(problem, x, config):
        calls.append(problem)
        if problem is calls[0]:
            raise ValueError("row 7 is labelled 41250.5")
        return evaluate(problem, x, config)

    monkeypatch.setattr(client_app, "evaluate_client", fail)
    history = federate(**EVERY).history
    assert history.x.tobytes() == simulated(**EVERY).x.tobytes()
    assert set(history["measured_clients"]) == {7.0}
    assert history.last("missing") == 0
    assert not any("41250.5" in text for text in texts(history))


WRONG = {
    "its loss -1e+300 is below 0": set_value("loss", -1e300),
    "its loss -0.001 is below 0": set_value("loss", -1e-3),
    "its loss is far above the others'": set_value("loss", 1e308),
    "its gradient is far above the others'": set_value("gradient", 1e300),
    "its accuracy 7 is not in 0 to 1": set_value("metrics", 7.0),
    "its accuracy -0.1 is not in 0 to 1": set_value("metrics", -0.1),
    "": set_value("loss", -1e-12),  # within rounding of the minimum
}


@pytest.mark.parametrize("words", WRONG)
def test_values_that_no_rows_can_have_are_rejected_and_named(federate, tmp_path, words):
    """They cost no retries: a client that sends an impossible value would send it again."""
    changes = {
        "metrics": "accuracy", "objective": "logistic-l2", "rounds": 6, "record-every": 2
    }  # fmt: skip
    counts: list[list[str]] = []
    fault = of_client(5, WRONG[words], first=2)
    history = federate(fault, prepare=count_exchanges(counts), **changes).history
    assert history.stop_reason is StopReason.FINISHED
    assert set(texts(history)) == ({f"evaluation of client 5: {words}"} if words else set())
    seven = [7] * 3 if words else [None] * 3
    assert [row.get("measured_clients") for row in history.rows] == [None, *seven]
    assert len(texts(history, "measured")) == (3 if words else 0)
    assert len([types for types in counts if messages.DESCRIBE not in types]) <= 8
    honest = federate(out=str(tmp_path / "honest"), **changes).history
    assert history.x.tobytes() == honest.x.tobytes()
    assert np.all(np.abs(history["loss"] - honest["loss"]) < 0.5)


def test_a_run_that_diverges_is_still_recognised(federate):
    history = federate(
        method="fedavg", hyper="S=8 K=2 eta_g=1 eta_l=1e6", objective="squares", rounds=12, **EVERY
    ).history
    assert history.stop_reason is StopReason.DIVERGED


def test_a_target_is_not_reached_by_a_part_of_the_clients(federate, simulated, tmp_path):
    """Without client 5 the norm is below the target early; the run goes on."""
    changes = {**EVERY, "rounds": 8}
    partial = federate(of_client(5, None), **changes).history
    assert set(partial["measured_clients"]) == {7.0}
    target = float(partial["grad_norm"].max()) + 1.0
    again = federate(of_client(5, None), target=target, out=str(tmp_path / "b"), **changes).history
    assert again.stop_reason is StopReason.FINISHED
    assert again.cost_to(fp.Target("grad_norm", target, hold=0), "round") == np.inf
    assert not again.reached("loss:1e9,hold=0")
    whole = federate(target=target, out=str(tmp_path / "c"), **changes).history
    assert whole.stop_reason is StopReason.TARGET
    assert again.x.tobytes() == simulated(**changes).x.tobytes()


def test_a_partial_mean_has_the_weights_of_its_clients(federate):
    """With weights by size the mean over some clients is divided by their weights."""
    fault = of_client(0, None)  # the largest client of the power law
    history = federate(fault, weights="size", objective="logistic", rounds=1).history
    assert history["measured_clients"].tolist() == [7.0, 7.0]
    assert history["loss"][0] == pytest.approx(np.log(2.0), rel=1e-12)  # of every row at x = 0


@pytest.mark.parametrize("level", ["values", "none"])
def test_sites_send_less_and_the_model_has_the_same_bits(federate, simulated, level, tmp_path):
    """No gradient leaves a site with "values", and nothing with "none"; runs resume and load."""
    sizes = set()

    def look(client, message):
        def read(reply):
            for name, record in dict(reply.content).items():
                if name.endswith("arrays") and "gradient" in record:
                    sizes.add(record["gradient"].numpy().size)
            return reply

        return read

    metrics = {"metrics": "accuracy"} if level == "values" else {}
    changes = {"evaluation": level, "objective": "logistic", **SCAFFOLD, **metrics}
    federate(look, kill=4, **changes)
    strategy = federate(look, **changes)
    data = fp.load("census", rows=300)
    problem = fp.LogisticRegression(data, fp.power_law(300, 8), metrics="accuracy")
    history, expected = strategy.history, simulated(problem, **SCAFFOLD)
    assert history.stop_reason is StopReason.FINISHED
    assert sizes == ({0} if level == "values" else set())
    measured = {"loss", "accuracy"} if level == "values" else set()
    assert (
        set(history.columns) == set(expected.columns) - {"grad_norm", "loss", "accuracy"} | measured
    )
    for column in ("bytes_up", *measured):
        assert history[column].tobytes() == expected[column].tobytes()
    assert history.x.tobytes() == expected.x.tobytes()
    kinds = {kind for _, kind in strategy.grid.sent}
    assert (messages.EVALUATE in kinds) == (level == "values")
    loaded = fp.History.load(tmp_path / "run")
    assert loaded.same(history)
    assert ("loss" in repr(loaded)) == (level == "values")
    assert loaded._repr_html_()
    assert fp.Runs(tmp_path / "run")._repr_html_()


@pytest.mark.parametrize(
    ("asked", "allowed", "fits"),
    [
        ("gradients", "values", False), ("gradients", "none", False), ("values", "none", False),
        ("values", "values", True), ("none", "none", True), ("values", "gradients", True),
    ],
)  # fmt: skip
def test_a_site_may_send_less_than_a_run_asks_for(federate, tmp_path, asked, allowed, fits):
    nodes = [{"partition-id": i, "client-state-dir": str(tmp_path / f"state{i}")} for i in range(8)]
    nodes[2]["evaluation"] = allowed
    if fits:
        assert federate(nodes=nodes, evaluation=asked).history.stop_reason is StopReason.FINISHED
    else:
        words = r"more of an evaluation than .* allows \(evaluation;"
        with pytest.raises(fp.InputError, match=words):
            federate(nodes=nodes, evaluation=asked)


def test_a_node_refuses_an_evaluation_that_the_run_does_not_have(config, node_log):
    """A server that asks for values although the run's configuration says none gets a code."""
    header = messages.EvaluateRequest(0, 0, 123, 1.0, "", "")._asdict()
    settings = config | {"evaluation": "none", "clients": 1, "hyper": "S=1 K=3 eta_g=0.2 p=0.4"}
    reply = ask({}, settings, messages.EVALUATE, header)
    assert refusal(reply).code == "protocol"
    assert "evaluates no model" in node_log(refusal(reply).reference)
    assert set(dict(reply.content)) == {"header"}
