"""Clients that send wrong numbers to a federation: named, excluded, and the run goes on."""

import numpy as np
import pytest
from faults import At, census, texts, with_numbers

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.engine.aggregation import Aggregation
from fedpage.engine.loop import Run
from fedpage.flower import messages
from fedpage.flower.config import build_method, parse_app_config


def each_client_once(fault):
    """Return a fault that touches every client once, in different rounds."""
    seen: set[int] = set()

    def choose(client, message):
        is_training = message.metadata.message_type == messages.TRAIN
        if not is_training or client in seen or int(message.metadata.group_id) <= len(seen):
            return None
        seen.add(client)
        return fault

    return choose


@pytest.mark.parametrize("value", [1e3, 1e308])
@pytest.mark.parametrize("method", ["fedpage", "scaffold", "fedavg"])
def test_a_wrong_reply_is_named_and_asked_for_again(federate, simulated, method, value):
    changes = {"method": method, "hyper": "S=3 K=2", "rounds": 10}
    history = federate(each_client_once(with_numbers(value)), **changes).history
    assert len(texts(history)) >= 4
    assert all("outlier" in text for text in texts(history))
    assert history.x.tobytes() == simulated(**changes).x.tobytes()


def test_a_resumed_server_knows_how_long_replies_were(federate, simulated):
    """With one client in a round, only earlier rounds tell that a reply is wrong."""
    changes = {"method": "fedavg", "hyper": "S=1 K=2", "rounds": 12}
    federate(kill=8, **changes)
    history = federate(each_client_once(with_numbers(1e5)), **changes).history
    assert len(texts(history)) >= 3
    assert history.x.tobytes() == simulated(**changes).x.tobytes()


@pytest.mark.parametrize("method", ["fedpage", "scaffold"])
def test_a_federation_that_has_diverged_is_resumed_from_before(federate, simulated, method):
    changes = {"method": method, "hyper": "S=3 K=2", "rounds": 14, "outlier-factor": 0.0}
    fault = At(with_numbers(1e7), clients=[2], rounds=range(6, 14))
    assert federate(fault, **changes).history.diverged
    history = federate(**changes).history
    assert history.stop_reason is StopReason.FINISHED
    assert history.same(simulated(**changes))


def test_a_resumed_federation_may_have_another_policy_and_says_so(federate):
    changes = {"method": "fedavg", "hyper": "S=3 K=2", "rounds": 14}
    fault = At(with_numbers(1e7), clients=[2], rounds=range(6, 14))
    assert federate(fault, **changes, **{"outlier-factor": 0.0}).history.diverged
    history = federate(fault, **changes, **{"outlier-factor": 50.0, "retries": 0}).history
    assert history.stop_reason is StopReason.FINISHED
    assert history.last("loss") < history["loss"][0]
    assert all("client 2" in text for text in texts(history))
    (resumed,) = texts(history, "resumed")
    assert "outlier_factor=50.0" in resumed
    with pytest.raises(fp.InputError, match="cannot resume: aggregation"):
        federate(**changes, aggregation="clipped:bound=1.0")


# Robust and private means


@pytest.mark.parametrize("aggregation", ["trimmed:share=0.34", "clipped:bound=0.01"])
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedadam"])
def test_robust_means_equal_the_simulator(federate, simulated, method, aggregation):
    changes = {"method": method, "hyper": "S=3 K=2", "aggregation": aggregation}
    history = federate(**changes).history
    assert history.same(simulated(**changes))
    assert not history.same(simulated(method=method, hyper="S=3 K=2"))


PRIVATE = {
    "method": "fedavg", "hyper": "S=3 K=2", "aggregation": "private:clip=0.1,noise=1",
    "record-every": 1,
}  # fmt: skip


@pytest.fixture
def accountant():
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")


def simulate_with_key(config, key):
    """Run PRIVATE in the simulator, with the secret key of the noise."""
    settings = parse_app_config(config | PRIVATE)
    options = fp.RunOptions(
        evaluate="per_client", aggregation=Aggregation.from_text(settings.aggregation)
    )
    engine = fp.Simulation(census(), build_method(settings), seed=settings.seed, options=options)
    engine.collector.noise_key = key
    return Run(engine, fp.History({}), rounds=settings.rounds, record_every=1).run()


@pytest.mark.usefixtures("accountant")
@pytest.mark.parametrize("kill", [None, 6])
def test_a_private_federation_equals_the_simulator_with_its_key(federate, config, tmp_path, kill):
    """Also after its server was killed: it noises no round twice, and counts each once."""
    if kill:
        federate(kill=kill, **PRIVATE)
    history = federate(**PRIVATE).history
    key = tmp_path / "run" / "noise.key"
    assert key.stat().st_mode & 0o177 == 0
    assert history.same(simulate_with_key(config, key.read_bytes()))
    releases = (tmp_path / "run" / "releases.jsonl").read_text().splitlines()
    assert len(releases) == history.last("round") == 10
    epsilon = history["epsilon"]
    assert epsilon[0] == 0.0
    assert (np.diff(epsilon) >= 0).all()
    assert epsilon[-1] > 1.0
    other = federate(**PRIVATE, out=str(tmp_path / "other")).history
    assert not other.same(history)
    assert (tmp_path / "other" / "noise.key").read_bytes() != key.read_bytes()


@pytest.mark.usefixtures("accountant")
def test_the_journal_of_releases_must_be_there(federate, tmp_path):
    federate(kill=6, **PRIVATE)
    (tmp_path / "run" / "releases.jsonl").unlink()
    with pytest.raises(fp.InputError, match="the privacy budget is not known"):
        federate(**PRIVATE)
