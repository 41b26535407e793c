"""Clients that send wrong numbers to a federation: named, excluded, and the run goes on."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.engine.aggregation import Aggregation
from fedpage.engine.faults import FaultSampler
from fedpage.engine.loop import Run
from fedpage.flower import messages
from fedpage.flower.config import build_method, parse_app_config
from fedpage.flower.server_app import FedpageStrategy

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
    changes = {"method": "scaffold-option-i", "hyper": "S=3 K=2", "rounds": 10}
    history = federate(Once(with_numbers(1e4, field)), **changes).history
    assert any(f"outlier: {field} of norm" in text for text in rejected(history))
    assert history.x.tobytes() == simulated(**changes).x.tobytes()


def test_a_client_that_is_wrong_again_and_again_is_lost(federate):
    fault = from_client(5, with_numbers(1e6), range(3, 100))
    changes = {"hyper": "S=4 K=2 eta_g=0.2 p=0.5", "rounds": 25, "record-every": 1}
    history = federate(fault, **changes).history
    assert history.stop_reason is StopReason.FINISHED
    assert all("client 5" in text for text in rejected(history))
    lost = [event["text"] for event in history.events if event["event"] == "lost"]
    assert lost == ["client 5 missing 3 times in a row"]
    assert history.last("loss") < history["loss"][0]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_corrupted_replies_are_those_of_the_simulator(federate, config, method):
    """The grid corrupts the replies that the simulator's faults corrupt."""
    faults = fp.Faults(huge=0.15)
    changes = {"method": method, "hyper": "S=4 K=2", "rounds": 12}
    problem = fp.RobustRegression(fp.load("census", rows=300), fp.power_law(300, 8))
    sampler = FaultSampler(faults, problem, config["seed"])
    asked: Counter[tuple[int, int]] = Counter()

    def fault(client, message):
        if message.metadata.message_type != messages.TRAIN:
            return None
        now = int(message.metadata.group_id)
        attempt = asked[client, now]
        asked[client, now] += 1
        outcomes = sampler.sample_outcomes(np.array([client]), now, attempt)
        return with_numbers(1e9) if outcomes.any() else None

    history = federate(fault, **changes).history
    options = fp.RunOptions(faults=faults, evaluate="per_client")
    run = fp.simulate(
        problem, build_method(parse_app_config(config | changes)), rounds=12, seed=config["seed"],
        record_every=4, options=options,
    )  # fmt: skip
    assert history.last("rejected") > 3
    assert history.same(run)
    assert [e["text"] for e in history.events] == [e["text"] for e in run.events]


class Killed(fp.Callback):
    """Kill the server after a round, before its checkpoint."""

    def __init__(self, round):
        self.round = round

    def on_round_end(self, info):
        if info.round == self.round:
            raise KeyboardInterrupt


def test_a_resumed_server_knows_how_long_replies_were(federate, simulated):
    """With one client in a round, only earlier rounds tell that a reply is wrong."""
    changes = {"method": "fedavg", "hyper": "S=1 K=2", "rounds": 12}
    with pytest.raises(KeyboardInterrupt):
        federate(callbacks=[Killed(8)], **changes)
    history = federate(Once(with_numbers(1e5)), **changes).history
    assert len(rejected(history)) >= 3
    assert history.x.tobytes() == simulated(**changes).x.tobytes()


@pytest.mark.parametrize("method", ["fedpage", "scaffold"])
def test_a_federation_that_has_diverged_is_resumed_from_before(federate, simulated, method):
    changes = {"method": method, "hyper": "S=3 K=2", "rounds": 14, "outlier-factor": 0.0}
    fault = from_client(2, with_numbers(1e7), range(6, 14))
    failed = federate(fault, **changes).history
    assert failed.diverged
    history = federate(**changes).history
    assert history.stop_reason is StopReason.FINISHED
    assert history.same(simulated(**changes))


def test_a_resumed_federation_may_have_another_policy_and_says_so(federate):
    changes = {"method": "fedavg", "hyper": "S=3 K=2", "rounds": 14}
    fault = from_client(2, with_numbers(1e7), range(6, 14))
    assert federate(fault, **changes, **{"outlier-factor": 0.0}).history.diverged
    history = federate(fault, **changes, **{"outlier-factor": 50.0, "retries": 0}).history
    assert history.stop_reason is StopReason.FINISHED
    assert history.last("loss") < history["loss"][0]
    assert all("client 2" in text for text in rejected(history))
    resumed = [event for event in history.events if event["event"] == "resumed"]
    assert len(resumed) == 1
    assert "outlier_factor=50.0" in resumed[0]["text"]
    with pytest.raises(fp.InputError, match="cannot resume: aggregation"):
        federate(**changes, aggregation="clipped:bound=1.0")


# --- other means ------------------------------------------------------------------------------


def simulate_alike(config, changes, key=None):
    """Run the config in the simulator with the same aggregation and key."""
    settings = parse_app_config(config | changes)
    engine = fp.Simulation(
        fp.RobustRegression(fp.load("census", rows=300), fp.power_law(300, 8)),
        build_method(settings),
        seed=settings.seed,
        options=fp.RunOptions(
            evaluate="per_client", aggregation=Aggregation.from_text(settings.aggregation)
        ),
    )
    engine.collector.noise_key = key
    return Run(
        engine, fp.History({}), rounds=settings.rounds, record_every=settings.record_every
    ).run()


@pytest.mark.parametrize("aggregation", ["trimmed:share=0.34", "clipped:bound=0.01"])
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedadam"])
def test_robust_means_equal_the_simulator(federate, simulated, config, method, aggregation):
    changes = {"method": method, "hyper": "S=3 K=2", "aggregation": aggregation}
    history = federate(**changes).history
    assert history.same(simulate_alike(config, changes))
    assert not history.same(simulated(method=method, hyper="S=3 K=2"))


def test_a_trimmed_mean_is_the_mean_without_a_wrong_client(federate):
    """Without the comparison of norms, one wrong client in each cohort does no harm."""
    changes = {
        "method": "fedavg", "hyper": "S=8 K=2", "rounds": 12, "outlier-factor": 0.0,
        "aggregation": "trimmed:share=0.2",
    }  # fmt: skip
    history = federate(from_client(2, with_numbers(1e6), range(100)), **changes).history
    assert history.stop_reason is StopReason.FINISHED
    assert history.last("loss") < history["loss"][0]


PRIVATE = {
    "method": "fedavg", "hyper": "S=3 K=2", "aggregation": "private:clip=0.1,noise=1",
    "record-every": 1,
}  # fmt: skip


@pytest.fixture
def accountant():
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")


@pytest.mark.usefixtures("accountant")
def test_a_private_federation_equals_the_simulator_with_its_key(federate, config, tmp_path):
    history = federate(**PRIVATE).history
    key = tmp_path / "run" / "noise.key"
    assert key.stat().st_mode & 0o177 == 0
    assert history.same(simulate_alike(config, PRIVATE, key.read_bytes()))
    epsilon = history["epsilon"]
    assert len(epsilon) == 11
    assert epsilon[0] == 0.0
    assert (np.diff(epsilon) >= 0).all()
    assert epsilon[-1] > 1.0
    other = federate(**PRIVATE, out=str(tmp_path / "other")).history
    assert not other.same(history)
    assert (tmp_path / "other" / "noise.key").read_bytes() != key.read_bytes()


@pytest.mark.usefixtures("accountant")
def test_a_killed_private_federation_resumes_with_equal_bits(federate, config, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        federate(callbacks=[Killed(6)], **PRIVATE)
    history = federate(**PRIVATE).history
    key = (tmp_path / "run" / "noise.key").read_bytes()
    assert history.same(simulate_alike(config, PRIVATE, key))
    lines = (tmp_path / "run" / "releases.jsonl").read_text().splitlines()
    assert len(lines) == history.last("round")


@pytest.mark.usefixtures("accountant")
def test_a_mean_that_was_released_before_a_resume_counts(federate, tmp_path):
    """The server is killed after round 6; when it repeats it, one client does not answer."""
    everyone = PRIVATE | {"hyper": "S=8 K=2", "retries": 0}
    undisturbed = federate(**everyone, out=str(tmp_path / "undisturbed")).history
    with pytest.raises(KeyboardInterrupt):
        federate(callbacks=[Killed(6)], **everyone)
    missing = from_client(2, "drop", [5])
    history = federate(missing, **everyone).history
    lines = (tmp_path / "run" / "releases.jsonl").read_text().splitlines()
    rounds = [json.loads(line)[0] for line in lines]
    assert rounds == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    assert history["epsilon"][5] == undisturbed["epsilon"][5]
    assert (history["epsilon"][6:] > undisturbed["epsilon"][6:]).all()


@pytest.mark.usefixtures("accountant")
def test_the_journal_of_releases_must_be_there(federate, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        federate(callbacks=[Killed(6)], **PRIVATE)
    (tmp_path / "run" / "releases.jsonl").unlink()
    with pytest.raises(fp.InputError, match="the privacy budget is not known"):
        federate(**PRIVATE)


@pytest.mark.usefixtures("accountant")
@pytest.mark.parametrize(
    ("method", "aggregation", "words"),
    [
        ("fedpage", "trimmed:share=0.1", "FedPAGE needs the mean of the replies"),
        ("scaffold", "private:clip=1,noise=1", "SCAFFOLD needs the mean of the replies"),
        ("fedavg", "private:clip=1,noise=1,cohort=secret", "nodes receive the seed"),
        ("fedavg", "private:clip=1,noise=1,delta=0.5", "delta must be below 1/N"),
        ("fedavg", "median", "there is no 'median'"),
    ],
)
def test_aggregations_that_cannot_be_used_are_refused(config, method, aggregation, words):
    with pytest.raises(fp.InputError, match=words) as error:
        FedpageStrategy(config | {"method": method, "hyper": "S=3", "aggregation": aggregation})
    assert len(str(error.value)) < 200
