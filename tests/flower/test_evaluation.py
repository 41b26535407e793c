"""Evaluation in a federation: riding on rounds, wrong and missing values, what sites send."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.flower import messages
from fedpage.flower.evaluation import Evaluator, ImpossibleValue

SCAFFOLD = {"method": "scaffold", "hyper": "S=3 K=2"}
PREFIX = "evaluation-"


class Killed(BaseException):
    pass


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
    """Let a client's evaluations be changed from a round on; None: they are missing."""

    def choose(client, message):
        now = message.metadata.group_id
        late = now.isdigit() and int(now) >= first
        return change_evaluation(change) if client == wrong and late else None

    return choose


def set_value(name, value):
    return lambda arrays: arrays[name].__setitem__(0, value)


def count_exchanges(counts):
    def prepare(grid):
        push = grid.push_messages

        def counted(sent):
            sent = list(sent)
            counts.append([message.metadata.message_type for message in sent])
            return push(sent)

        grid.push_messages = counted

    return prepare


def texts(history, event):
    return [e["text"] for e in history.events if e["event"] == event]


@pytest.mark.parametrize("every", [1, 2, 10, "log"])
@pytest.mark.parametrize("method", ["fedpage", "scaffold"])
def test_riding_changes_no_bit(federate, simulated, method, every):
    changes = {"method": method, "hyper": "S=3 K=2", "record-every": every}
    assert federate(**changes).history.same(simulated(**changes))


@pytest.mark.parametrize(("every", "expected"), [(1, 11), (2, 11), (0, 11)])
def test_a_record_in_every_round_needs_one_more_exchange(federate, every, expected):
    """Every evaluation but the last is sent together with the next round."""
    counts: list[list[str]] = []
    federate(prepare=count_exchanges(counts), **{"record-every": every})
    rounds = [types for types in counts if {messages.TRAIN, messages.EVALUATE} & set(types)]
    assert len(rounds) == expected
    assert set(rounds[-1]) == {messages.EVALUATE}
    assert max(map(len, rounds)) == 8


def test_an_evaluation_and_a_round_are_one_message_to_a_node(federate):
    """Eight nodes get eight messages in each round, although three of them train."""
    counts: list[list[str]] = []
    federate(prepare=count_exchanges(counts), **SCAFFOLD, **{"record-every": 1})
    joint = [types for types in counts if messages.TRAIN in types]
    assert [(types.count(messages.TRAIN), len(types)) for types in joint] == [(3, 8)] * 10


@pytest.mark.parametrize("changes", [{}, SCAFFOLD])
@pytest.mark.parametrize("at", [3, 6])
def test_a_round_that_was_sent_ahead_is_dropped_when_the_run_stops(
    federate, simulated, changes, at
):
    """The run ends at a record; the round after it has been computed, and counts nowhere."""
    changes = {**changes, "record-every": 1}
    norms = simulated(**changes)["grad_norm"]
    if norms[:at].min() <= norms[at]:
        pytest.skip("the norm is not the smallest so far")  # pragma: no cover
    history = federate(target=f"{float(norms[at])},hold=0", **changes).history
    expected = simulated(rounds=at, **changes)
    assert history.stop_reason is StopReason.TARGET
    kept = [{k: v for k, v in row.items() if k != "seconds"} for row in history.rows]
    assert kept == [{k: v for k, v in row.items() if k != "seconds"} for row in expected.rows]
    assert history.x.tobytes() == expected.x.tobytes()


@pytest.mark.parametrize("changes", [{}, SCAFFOLD])
@pytest.mark.parametrize("number", [9, 14, 21, 30, 33, 47, 64])
def test_a_run_killed_at_any_message_resumes_with_equal_bits(federate, simulated, changes, number):
    changes = {**changes, "record-every": 1, "rounds": 8}
    count = 0

    def die(client, message):
        nonlocal count
        count += message.metadata.message_type != messages.DESCRIBE
        if count == number:
            raise Killed

    with pytest.raises(Killed):
        federate(die, **changes)
    assert federate(**changes).history.same(simulated(**changes))


@pytest.mark.parametrize("hook", ["on_record", "on_round_end"])
def test_a_run_killed_after_a_round_was_sent_ahead_resumes(federate, simulated, hook):
    """The dropped round left newer client states on the nodes, which the resumed run ignores."""
    changes = {**SCAFFOLD, "record-every": 1}

    def die(info, *_):
        if (info["round"] if hook == "on_record" else info.round) == 5:
            raise Killed

    with pytest.raises(Killed):
        federate(callbacks=[fp.FunctionCallback(**{hook: die})], **changes)
    assert federate(**changes).history.same(simulated(**changes))


@pytest.mark.parametrize("changes", [{}, SCAFFOLD])
@pytest.mark.parametrize("fault", ["drop", "lost", ("error", 8, "died"), ("late", 1000.0)])
def test_faults_of_joint_messages_change_no_bit(federate, simulated, changes, fault):
    """A lost joint message costs a retry of the evaluation and one of the round."""
    seen = set()

    def choose(client, message):
        key = (client, message.metadata.group_id)
        if not key[1].isdigit() or client % 3 or key in seen:
            return None
        seen.add(key)
        return fault

    changes = {**changes, "record-every": 1, "rounds": 5}
    history = federate(choose, **changes).history
    expected = simulated(**changes)
    assert history.x.tobytes() == expected.x.tobytes()
    assert history["grad_norm"].tobytes() == expected["grad_norm"].tobytes()
    assert "measured_clients" not in history.columns


def test_an_evaluation_that_fails_does_not_harm_the_round(federate, simulated, monkeypatch):
    """A node that cannot evaluate still trains, and the record is of the others."""
    from fedpage.flower import client_app, node_evaluation

    evaluate = node_evaluation.evaluate_client
    calls: list[object] = []

    def fail(problem, x, config):
        calls.append(problem)
        if len(problem.data.y) and problem is calls[0]:
            raise ValueError("row 7 is labelled 41250.5")
        return evaluate(problem, x, config)

    monkeypatch.setattr(client_app, "evaluate_client", fail)
    history = federate(**{"record-every": 1}).history
    expected = simulated(**{"record-every": 1})
    assert history.x.tobytes() == expected.x.tobytes()
    assert set(history["measured_clients"]) == {7.0}
    assert history.last("missing") == 0
    assert not any("41250.5" in text for text in texts(history, "rejected"))


WRONG = {
    "its loss -1e+300 is below 0": set_value("loss", -1e300),
    "its loss is far above the others'": set_value("loss", 1e308),
    "its gradient is far above the others'": set_value("gradient", 1e300),
    "its accuracy 7 is not in 0 to 1": set_value("metrics", 7.0),
    "its accuracy -0.1 is not in 0 to 1": set_value("metrics", -0.1),
}


@pytest.mark.parametrize("words", WRONG)
def test_values_that_no_rows_can_have_are_rejected_and_named(federate, tmp_path, words):
    changes = {"metrics": "accuracy", "objective": "logistic-l2", "rounds": 6}
    every = {"record-every": 2}
    history = federate(of_client(5, WRONG[words], first=2), **changes, **every).history
    assert history.stop_reason is StopReason.FINISHED
    assert set(texts(history, "rejected")) == {f"evaluation of client 5: {words}"}
    assert [row.get("measured_clients") for row in history.rows] == [None, 7, 7, 7]
    assert texts(history, "measured") == ["7 of 8 clients evaluated the model"] * 3
    honest = federate(out=str(tmp_path / "honest"), **changes, **every).history
    assert history.x.tobytes() == honest.x.tobytes()
    assert np.all(np.abs(history["loss"] - honest["loss"]) < 0.5)


def test_wrong_values_cost_no_retries(federate):
    """A client that sends an impossible value would send it again."""
    counts: list[list[str]] = []
    fault = of_client(5, set_value("loss", -1e300))
    federate(fault, prepare=count_exchanges(counts), **{"record-every": 1, "rounds": 4})
    assert len([types for types in counts if messages.DESCRIBE not in types]) <= 6


def test_a_run_that_diverges_is_still_recognised(federate):
    history = federate(
        method="fedavg", hyper="S=8 K=2 eta_g=1 eta_l=1e6", objective="squares", rounds=40,
        **{"record-every": 1},
    ).history  # fmt: skip
    assert history.stop_reason is StopReason.DIVERGED


def test_a_target_is_not_reached_by_a_part_of_the_clients(federate, simulated, tmp_path):
    """Without client 5 the norm is below the target early; the run goes on."""
    changes = {"record-every": 1, "rounds": 8}
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


def test_values_without_gradients(federate, simulated):
    """No gradient of a site leaves it, the loss has the same bits, and a run resumes."""
    sizes = set()

    def look(client, message):
        def read(reply):
            for name, record in dict(reply.content).items():
                if name.endswith("arrays") and "gradient" in record:
                    sizes.add(record["gradient"].numpy().size)
            return reply

        return read

    changes = {"evaluation": "values", "metrics": "accuracy", "objective": "logistic"}

    def die(info):
        if info.round == 4:
            raise Killed

    with pytest.raises(Killed):
        federate(look, callbacks=[fp.FunctionCallback(on_round_end=die)], **changes)
    history = federate(look, **changes).history
    assert sizes == {0}
    data = fp.load("census", rows=300)
    problem = fp.LogisticRegression(data, fp.power_law(300, 8), metrics="accuracy")
    expected = simulated(problem)
    assert "grad_norm" not in history.columns
    for column in ("loss", "accuracy", "bytes_up"):
        assert history[column].tobytes() == expected[column].tobytes()
    assert history.x.tobytes() == expected.x.tobytes()


def test_a_run_without_evaluations(federate, simulated, tmp_path):
    """Sites measure nothing; the records have the costs, and the run can be resumed and read."""
    changes = {"evaluation": "none", **SCAFFOLD}

    def die(info):
        if info.round == 4:
            raise Killed

    with pytest.raises(Killed):
        federate(callbacks=[fp.FunctionCallback(on_round_end=die)], **changes)
    strategy = federate(**changes)
    history, expected = strategy.history, simulated(**SCAFFOLD)
    assert history.stop_reason is StopReason.FINISHED
    assert history.x.tobytes() == expected.x.tobytes()
    assert history["bytes_up"].tobytes() == expected["bytes_up"].tobytes()
    assert not {"loss", "grad_norm"} & set(history.columns)
    assert messages.EVALUATE not in {kind for _, kind in strategy.grid.sent}
    loaded = fp.History.load(tmp_path / "run")
    assert loaded.same(history)
    assert "loss" not in repr(loaded)
    assert loaded._repr_html_()
    assert fp.Runs(tmp_path / "run")._repr_html_()


@pytest.mark.parametrize("level", ["values", "none"])
def test_a_target_that_sites_do_not_send_is_refused(federate, level):
    with pytest.raises(fp.InputError, match="does not measure grad_norm"):
        federate(evaluation=level, target=0.1)


def test_a_metric_that_sites_do_not_send_is_no_target(federate):
    with pytest.raises(fp.InputError, match="does not measure accuracy"):
        federate(evaluation="none", objective="logistic", target="accuracy:0.9")


@pytest.mark.parametrize(
    ("asked", "allowed", "fits"),
    [
        ("gradients", "values", False), ("gradients", "none", False), ("values", "none", False),
        ("values", "values", True), ("none", "none", True), ("values", "gradients", True),
    ],
)  # fmt: skip
def test_a_site_may_send_less_than_a_run_asks_for(federate, tmp_path, asked, allowed, fits):
    nodes = [
        {"partition-id": i, "client-state-dir": str(tmp_path / f"state{i}")}
        | ({"evaluation": allowed} if i == 2 else {})
        for i in range(8)
    ]
    if fits:
        assert federate(nodes=nodes, evaluation=asked).history.stop_reason is StopReason.FINISHED
        return
    with pytest.raises(fp.InputError, match=r"more of an evaluation than .* allows \(evaluation;"):
        federate(nodes=nodes, evaluation=asked)


def test_a_node_refuses_an_evaluation_that_the_run_does_not_have(config, tmp_path, caplog):
    """A server that asks for values although the run's configuration says none gets a code."""
    from localgrid import LocalGrid

    from fedpage.flower.client_app import app

    nodes = [{"partition-id": 0, "client-state-dir": str(tmp_path / "state")}]
    settings = config | {"evaluation": "none", "clients": 1, "hyper": "S=1 K=3 eta_g=0.2 p=0.4"}
    grid = LocalGrid(app, nodes, settings)
    grid.get_node_ids()
    header = messages.EvaluateRequest(client=0, round=0, d=123, scale=1.0, agreement="", digest="")
    content = messages.encode_message(messages.ModelArrays(np.zeros(123)), header)
    [name] = grid.push_messages(
        [grid.create_message(content, messages.EVALUATE, grid.node(0), "0", 60.0)]
    )
    [reply] = grid.pull_messages([name])
    assert dict(reply.content["header"])["code"] == "protocol"
    assert "evaluates no model" in caplog.text
    assert set(dict(reply.content)) == {"header"}


def test_norms_of_evaluations_are_part_of_a_checkpoint(config):
    metrics = {"mse": fp.METRICS["mse"]}
    options = {
        "d": 2, "dtype": np.dtype(np.float64), "scale": np.ones(4), "level": "gradients",
        "minimum": 0.0, "factor": 1000.0,
    }  # fmt: skip

    def evaluation(size):
        return messages.Evaluation(np.array([size]), np.full(2, size), np.array([size]))

    evaluator, resumed = Evaluator(metrics, **options), Evaluator(metrics, **options)
    assert not evaluator.find_outliers({i: evaluation(1.0) for i in range(4)}, 0)
    resumed.restore(evaluator.snapshot())
    later = {i: evaluation(1e-9 if i else 0.5) for i in range(4)}
    assert not resumed.find_outliers(later, 1)  # client 0 has not grown; the others fit early
    assert set(Evaluator(metrics, **options).find_outliers(later, 1)) == {0}
    with pytest.raises(KeyError):
        evaluator.restore({"loss": {"largest": np.ones(4)}})


def test_a_loss_within_rounding_of_its_minimum_is_accepted():
    evaluator = Evaluator(
        {}, d=1, dtype=np.dtype(np.float64), scale=np.ones(1), level="values", minimum=0.0,
        factor=0.0,
    )  # fmt: skip

    class Reply:
        def __init__(self, loss):
            arrays = messages.Evaluation(np.array([loss]), np.zeros(0), np.zeros(0))
            self.content = messages.encode_message(arrays, messages.EvaluateReply(0, 3))

        def has_error(self):
            return False

    assert evaluator.decode(0, Reply(-1e-12), 3).loss[0] == -1e-12
    with pytest.raises(ImpossibleValue, match=r"its loss -0\.001 is below 0"):
        evaluator.decode(0, Reply(-1e-3), 3)


def test_the_time_of_a_joint_exchange_is_its_rounds(federate):
    """A look for replies takes a virtual second, and every round has one, before it begins."""
    seconds = federate(**{"record-every": 1}).history["seconds"]
    assert np.all(np.diff(seconds) >= 1.0)
