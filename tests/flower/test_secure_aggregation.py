"""Secure aggregation in one process: equal bits to the simulator, dropouts, and what is hidden."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from localgrid import transmit

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.engine.fixed_point import encode, scale_exponent
from fedpage.flower import messages
from fedpage.flower.secure_aggregation import primitives, protocol, server

SECURE = {
    "aggregation": "secure:bound=100",
    "method": "fedavg",
    "hyper": "S=5 K=2 eta_l=0.1",
    "rounds": 4,
    "record-every": 0,
    "evaluation": "values",
    "retries": 0,
}
PHASES = [protocol.KEYS, protocol.SHARES, protocol.TRAIN, protocol.UNMASK]
METHODS = {
    "fedpage": "S=4 K=3 eta_g=0.2 p=0.4",
    "page": "S=4 eta_g=0.2 p=0.4",
    "fedpage-full": "S=4 K=3 p=0.4",
    "scaffold": "S=4 K=2 eta_l=0.1",
    "secantpage": "S=4",
    "vrl-sgd": "K=2",
    "s-local-svrg": "K=3 q=0.3",
    "fedprox": "S=4 K=2",
    "fedadam": "S=4 K=2",
    "saga": "S=4",
    "scaffnew": "",
}


def assert_equal_bits(federated, simulated):
    """Compare the model and every column that sites measure; they send no gradients."""
    assert federated.x.tobytes() == simulated.x.tobytes()
    columns = [name for name in federated.columns if name != "seconds"]
    assert set(simulated.columns) - set(columns) <= {"grad_norm", "seconds"}
    assert {"loss", "bytes_up", "missing"} <= set(columns)
    assert "grad_norm" not in columns
    for name in columns:
        assert federated[name].tobytes() == simulated[name].tobytes(), name


@pytest.mark.parametrize("method", METHODS)
def test_the_history_equals_the_simulator(federate, simulated, method):
    changes = {"method": method, "hyper": METHODS[method], "rounds": 6}
    changes = SECURE | changes | {"aggregation": "secure:bound=10000"}
    assert_equal_bits(federate(**changes).history, simulated(**changes))


def test_weights_and_metrics_equal_the_simulator(federate, simulated):
    """The AUC of a client with one class is undefined; it counts as a missing value."""
    changes = SECURE | {"objective": "logistic", "weights": "size", "metrics": "auc, accuracy"}
    history = federate(**changes).history
    problem = fp.LogisticRegression(
        fp.load("census", rows=300),
        fp.power_law(300, 8),
        metrics=["auc", "accuracy"],
        weights="size",
    )
    assert_equal_bits(history, simulated(problem, **changes))
    plain = fp.simulate(
        problem, fp.FedAvg(S=5, K=2, eta_l=0.1), rounds=4, seed=3, record_every=0,
        options=fp.RunOptions(evaluate="per_client"),
    )  # fmt: skip
    for name in ("loss", "auc", "accuracy"):
        np.testing.assert_allclose(history[name], plain[name], rtol=1e-12)


class Tap:
    """Record every reply of a message type, and apply a fault to some."""

    def __init__(self, fault=None, client=None, message_type=None, rounds=None):
        self.fault, self.client, self.message_type, self.rounds = (
            fault,
            client,
            message_type,
            rounds,
        )
        self.requests: list[tuple[int, Message]] = []
        self.replies: list[tuple[int, str, str, RecordDict]] = []

    def __call__(self, client, message):
        meta = message.metadata
        self.requests.append((client, transmit(message)))
        chosen = (
            self.fault is not None
            and (self.client is None or client in self.client)
            and meta.message_type == self.message_type
            and (self.rounds is None or int(meta.group_id) in self.rounds)
        )

        def record(reply):
            content = transmit(reply).content
            self.replies.append((client, meta.message_type, meta.group_id, content))
            return reply

        return self.fault if chosen else record


def masked(tap):
    """Return the masked numbers of training replies, by round and client."""
    return {
        (int(group), client): content["arrays"][protocol.MASKED].numpy()
        for client, kind, group, content in tap.replies
        if kind == protocol.TRAIN
    }


def clear_numbers(federate, config):
    """Return what the same clients send without secure aggregation, in fixed point."""
    tap = Tap()
    federate(tap, **config | {"aggregation": "mean", "out": config["out"] + "-clear"})
    exponent = scale_exponent(100.0, 8)
    return {
        (int(group), client): encode(
            np.concatenate([array.numpy() for array in content["arrays"].values()]), 100.0, exponent
        )
        for client, kind, group, content in tap.replies
        if kind == messages.TRAIN
    }


def test_what_reaches_the_server_tells_nothing_about_one_client(federate, tmp_path):
    changes = SECURE | {"out": str(tmp_path / "a")}
    first, second = Tap(), Tap()
    one = federate(first, **changes).history
    for path in (tmp_path / "client-state").iterdir():
        path.rename(tmp_path / f"old-{path.name}")
    two = federate(second, **changes | {"out": str(tmp_path / "b")}).history
    assert one.same(two)
    clear = clear_numbers(federate, changes)
    assert set(clear) == set(masked(first)) == set(masked(second))
    for key, numbers in clear.items():
        words = numbers.view(np.uint64)
        for sent in (masked(first)[key], masked(second)[key]):
            assert not (sent == words).any()
            hidden = (sent - words).view(np.int64).astype(np.float64)
            assert abs(np.corrcoef(numbers.astype(np.float64), hidden)[0, 1]) < 0.4
            bits = np.unpackbits(sent.view(np.uint8)).mean()
            assert 0.45 < bits < 0.55
        assert not (masked(first)[key] == masked(second)[key]).any()


def test_no_reply_has_a_number_in_clear(federate, config):
    """All other replies have keys and shares only, and headers have counts of rows at most."""
    tap = Tap()
    federate(tap, **SECURE)
    kinds = {kind for _, kind, _, _ in tap.replies}
    assert kinds == {messages.DESCRIBE, *PHASES, protocol.EVALUATE}
    for _, kind, _, content in tap.replies:
        arrays = dict(content).get("arrays")
        if kind in (protocol.TRAIN, protocol.EVALUATE):
            assert list(arrays) == [protocol.MASKED]
            assert arrays[protocol.MASKED].numpy().dtype == np.uint64
        else:
            assert arrays is None
        header = dict(content["header"])
        assert not any(isinstance(value, float) for value in header.values())


@pytest.mark.parametrize(
    ("phase", "fault"),
    [*((phase, "drop") for phase in PHASES), *((phase, ("late", 1000.0)) for phase in PHASES[2:])],
)
def test_a_client_that_drops_out_in_any_phase(federate, config, tmp_path, phase, fault):
    """Before its numbers are masked, its reply is missing; later, the others recover its mask."""
    tap = Tap(fault, [2, 5], phase, {1, 2})
    secure = federate(tap, **SECURE | {"hyper": "S=8 K=2 eta_l=0.1"}).history
    assert secure.stop_reason is StopReason.FINISHED
    counts = phase == protocol.UNMASK
    plain_fault = None if counts else Tap("drop", [2, 5], messages.TRAIN, {1, 2})
    changes = {"aggregation": "mean", "hyper": "S=8 K=2 eta_l=0.1", "out": str(tmp_path / "plain")}
    plain = federate(plain_fault, **SECURE | changes).history
    np.testing.assert_allclose(secure.x, plain.x, rtol=0, atol=1e-13)
    assert secure.last("missing") == plain.last("missing") == (0 if counts else 4)


@pytest.mark.parametrize("phase", PHASES)
def test_a_lost_message_is_retried_and_changes_no_bit(federate, simulated, phase):
    seen = set()

    def once(client, message):
        key = (client, message.metadata.group_id)
        if message.metadata.message_type == phase and client % 2 and key not in seen:
            seen.add(key)
            return "lost"
        return None

    changes = SECURE | {"retries": 2, "method": "scaffold", "hyper": "S=5 K=2"}
    history = federate(once, **changes).history
    assert seen
    assert history.x.tobytes() == simulated(**changes).x.tobytes()
    assert history.last("missing") == 0


def test_a_full_round_is_never_a_sum_over_some_clients(federate, simulated):
    """FedPAGE's full rounds need all clients: where one is missing, a sampled round follows."""
    changes = SECURE | {
        "method": "fedpage-periodic", "hyper": "S=4 K=2 eta_g=0.2 p=0.5", "rounds": 6,
        "full-retries": 1, "lost-after": 9,
    }  # fmt: skip
    tap = Tap("drop", [7], protocol.TRAIN, {2})
    history = federate(tap, **changes).history
    assert history.stop_reason is StopReason.FINISHED
    assert history.last("fallbacks") == 1
    survivors = {
        len(message.content["secure"]["survivors"].split(","))
        for message in last_requests(tap, protocol.UNMASK, "2").values()
    }
    assert survivors == {3}  # of the four of the sampled round, without client 7


def test_too_few_survivors_are_not_unmasked(federate):
    """Of five clients, more than two thirds must be left."""
    tap = Tap("drop", [0, 1, 2, 3], protocol.TRAIN, {2})
    history = federate(tap, **SECURE | {"patience": 1}).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert "round 2 failed: no valid reply from" in history.stop_detail
    assert last_requests(tap, protocol.TRAIN, "2")
    assert not last_requests(tap, protocol.UNMASK, "2")


def test_a_reply_beyond_the_bound_is_refused_by_its_node(federate):
    changes = {"aggregation": "secure:bound=0.8", "patience": 1, "hyper": "S=5 K=2 eta_l=50"}
    history = federate(**SECURE | changes).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    events = [e["text"] for e in history.events if e["event"] == "rejected"]
    assert events
    advice = "beyond the bound; raise bound in aggregation = 'secure:bound=...', or lower the steps"
    assert all(f"{advice} (bound; details in its node's log" in text for text in events)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hyper": "S=1 K=2"}, "FedAvg adds up 1 replies"),
        ({"hyper": "S=2 K=2"}, "at least 3 are required"),
        ({"method": "fedpage", "hyper": "S=4 up=float32"}, "use up=none"),
        ({"metrics": "accuracy_worst", "objective": "logistic"}, "accuracy_worst"),
        ({"evaluation": "gradients"}, 'set evaluation = "values"'),
    ],
)
def test_runs_that_secure_aggregation_cannot_protect_are_refused(federate, changes, words):
    with pytest.raises(fp.InputError, match=words):
        federate(**SECURE | changes)


def refusal(reply):
    return dict(reply.content["header"]).get("code")


def send(grid, client, message_type, content):
    """Send a message past the server, as one with other plans would."""
    grid.fault = lambda client, message: None
    grid._identify()
    message = Message(content, grid.node(client), message_type, ttl=60.0, group_id="9")
    name = grid.push_messages([message])[0]
    return grid._ready.pop(name)[1]


def last_requests(tap, message_type, group):
    return {
        client: message
        for client, message in tap.requests
        if message.metadata.message_type == message_type
        and message.metadata.group_id == group
        and message.content["secure"]["message"] != protocol.EVALUATION
    }


def changed(request, **fields):
    content = dict(request.content)
    record = dict(content["secure"]) | fields
    return RecordDict({**content, "secure": type(content["secure"])(record)})


def test_a_node_unmasks_one_set_of_survivors_only(federate):
    tap = Tap()
    grid = federate(tap, **SECURE).grid
    requests = last_requests(tap, protocol.UNMASK, "3")
    client = min(requests)
    survivors = requests[client].content["secure"]["survivors"].split(",")
    again = send(grid, client, protocol.UNMASK, requests[client].content)
    assert refusal(again) is None
    others = [name for name in survivors if name != survivors[-1]]
    smaller = changed(requests[client], survivors=",".join(others))
    assert refusal(send(grid, client, protocol.UNMASK, smaller)) == "protocol"


NOT_ALLOWED = [
    {"survivors": "0,1"},
    {"survivors": ""},
    {"present": ""},
    {"sealed": b"short"},
    {"clients": "0"},
    {"clients": "1,0"},
    {"nonce": b"other"},
    {"round": -1},
    {"message": "../secret"},
    {"client": 1},
    {"mask_keys": b"\0" * 32},
]


def test_a_node_refuses_requests_that_the_protocol_does_not_allow(federate):
    tap = Tap()
    grid = federate(tap, **SECURE | {"hyper": "S=8 K=2"}).grid
    request = last_requests(tap, protocol.UNMASK, "3")[0]
    for change in NOT_ALLOWED:
        assert refusal(send(grid, 0, protocol.UNMASK, changed(request, **change))) == "protocol", (
            change
        )
        unchanged = send(grid, 0, protocol.UNMASK, request.content)
        assert refusal(unchanged) is None, change  # so the change was the reason


def test_a_node_refuses_a_roster_with_another_key_or_too_few_clients(federate):
    tap = Tap()
    grid = federate(tap, **SECURE | {"hyper": "S=8 K=2"}).grid
    request = last_requests(tap, protocol.SHARES, "3")[0]
    keys = request.content["secure"]["channel_keys"]
    other = keys[:-32] + os.urandom(32)
    fields = {"nonce": request.content["secure"]["nonce"], "round": 3}
    assert refusal(send(grid, 0, protocol.SHARES, changed(request, **fields))) is None
    swapped = changed(request, channel_keys=other)
    assert refusal(send(grid, 0, protocol.SHARES, swapped)) == "protocol"
    few = changed(
        request, clients="0,1", channel_keys=keys[:64],
        mask_keys=request.content["secure"]["mask_keys"][:64], round=99,
    )  # fmt: skip
    assert refusal(send(grid, 0, protocol.SHARES, few)) == "protocol"


def test_a_node_refuses_shares_that_were_changed(federate):
    tap = Tap()
    grid = federate(tap, **SECURE | {"hyper": "S=8 K=2"}).grid
    request = last_requests(tap, protocol.TRAIN, "3")[0]
    sealed = bytearray(request.content["secure"]["sealed"])
    assert refusal(send(grid, 0, protocol.TRAIN, request.content)) is None
    sealed[100] ^= 1
    tampered = changed(request, sealed=bytes(sealed))
    assert refusal(send(grid, 0, protocol.TRAIN, tampered)) == "protocol"


def test_a_node_sends_nothing_in_clear(federate, config):
    """A server that asks for ordinary replies in a run with secure aggregation gets none."""
    tap = Tap()
    grid = federate(tap, **SECURE).grid
    request = next(m for _, m in tap.requests if m.metadata.message_type == protocol.TRAIN)
    records = {name: record for name, record in request.content.items() if name != "secure"}
    client = records["header"]["client"]
    assert refusal(send(grid, client, messages.TRAIN, RecordDict(records))) == "protocol"
    request = next(m for _, m in tap.requests if m.metadata.message_type == protocol.EVALUATE)
    records = {name: record for name, record in request.content.items() if name != "secure"}
    client = records["header"]["client"]
    assert refusal(send(grid, client, messages.EVALUATE, RecordDict(records))) == "protocol"


def test_a_late_reply_is_useless_to_the_server(federate, config, monkeypatch):
    """The server has a client's masked numbers and its mask key, but not its self-mask."""
    attempts = []
    original = server.remove_masks

    def spy(attempt):
        attempts.append(attempt)
        return original(attempt)

    monkeypatch.setattr(server, "remove_masks", spy)
    tap = Tap(("late", 1000.0), [2], protocol.TRAIN, {1})
    grid = federate(tap, **SECURE | {"hyper": "S=8 K=2 eta_l=0.1"}).grid
    clear = clear_numbers(federate, {**config, **SECURE, "hyper": "S=8 K=2 eta_l=0.1"})[1, 2]
    attempt = next(a for a in attempts if a.sessions[0].round == 1 and 2 not in a.masked)
    request = last_requests(tap, protocol.TRAIN, "1")[2]
    reply = send(grid, 2, protocol.TRAIN, request.content)
    sent = reply.content["arrays"][protocol.MASKED].numpy()
    # All that the server can remove: the masks that client 2 shares with the others.
    seed = server.find_seed(attempt, 2)
    key = primitives.private_key(seed, "mask key", b"")
    for client, peer in zip(attempt.roster.clients, attempt.roster.mask_keys, strict=True):
        if client != 2:
            sent = sent - primitives.pairwise_mask(
                key, peer, attempt.purpose, adds=client > 2, size=len(sent)
            )
    assert primitives.commit(seed, attempt.sessions[2].context) != attempt.commitments[2]
    hidden = sent - clear.view(np.uint64)
    assert len(set(hidden.tolist())) == len(hidden)
    assert not np.isin(sent, clear.view(np.uint64)).any()
    # No node reveals a share of its self-mask any more: that needs another set of survivors.
    codes = set()
    for client, request in last_requests(tap, protocol.UNMASK, "1").items():
        everyone = changed(request, survivors="0,1,2,3,4,5,6,7")
        codes.add(refusal(send(grid, client, protocol.UNMASK, everyone)))
    assert codes == {"protocol"}


def test_a_server_that_died_during_an_unmasking_computes_the_same_sum(federate, simulated):
    """All nodes have revealed their shares, but no reply arrived; one client was missing."""

    def fault(client, message):
        if message.metadata.group_id != "2":
            return None
        if message.metadata.message_type == protocol.TRAIN and client == 3:
            return "drop"
        return "lost" if message.metadata.message_type == protocol.UNMASK else None

    changes = SECURE | {"hyper": "S=8 K=2 eta_l=0.1", "patience": 1}
    failed = federate(fault, **changes).history
    assert failed.stop_reason is StopReason.ROUND_FAILED
    tap = Tap()
    resumed = federate(tap, **changes).history
    assert resumed.stop_reason is StopReason.FINISHED
    survivors = {
        message.content["secure"]["survivors"]
        for message in last_requests(tap, protocol.UNMASK, "2").values()
    }
    assert survivors == {"0,1,2,4,5,6,7"}


def test_an_unmasking_that_failed_is_continued_with_the_same_clients(federate, simulated):
    tries = []

    def fault(client, message):
        if message.metadata.message_type == protocol.UNMASK and message.metadata.group_id == "2":
            tries.append(client)
            return "lost" if len(tries) <= 5 else None
        return None

    changes = SECURE | {"patience": 3}
    history = federate(fault, **changes).history
    assert len(tries) == 10
    assert history.x.tobytes() == simulated(**changes).x.tobytes()


def test_a_node_whose_key_has_changed_is_left_out(federate, tmp_path):
    """It lost its directory: its peers would refuse its key, so the server does not call it."""
    state = tmp_path / "client-state"

    def fault(client, message):
        if message.metadata.group_id == "2" and client == 4:
            for path in state.glob("*-4-secure/secret"):
                path.unlink()
        return

    history = federate(fault, **SECURE | {"hyper": "S=8 K=2 eta_l=0.1"}).history
    assert history.stop_reason is StopReason.FINISHED
    texts = [e["text"] for e in history.events if e["event"] == "rejected"]
    assert any("reply of client 4: its key has changed during the run" in text for text in texts)
    assert all("client 4" in text for text in texts)


def test_wrong_shares_are_noticed(federate, monkeypatch):
    """Shares of another seed than the client's own would give a wrong sum."""
    original = primitives.commit
    monkeypatch.setattr(
        "fedpage.flower.secure_aggregation.node.commit",
        lambda seed, context: original(bytes(16), context),
    )
    history = federate(**SECURE | {"patience": 1}).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert any("the shares of its seed do not fit" in e["text"] for e in history.events)


def test_files_are_private(federate, tmp_path):
    federate(**SECURE)
    folders = list((tmp_path / "client-state").glob("*-secure"))
    assert len(folders) == 8
    for folder in folders:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        files = list(folder.iterdir())
        assert {path.name.split("-")[0] for path in files} == {"secret", "peer", "revealed"}
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_counted_bytes_are_the_bytes_sent(federate):
    tap = Tap()
    history = federate(tap, **SECURE).history
    assert history.last("bytes_up") == sum(values.nbytes for values in masked(tap).values())


@pytest.mark.parametrize(
    ("aggregation", "least", "answers"),
    [("mean", 3, False), ("secure:bound=100", 4, False), ("secure:bound=100,least=4", 4, True)],
)
def test_a_nodes_owner_may_require_secure_aggregation(
    federate, tmp_path, aggregation, least, answers
):
    nodes = [
        {"partition-id": i, "client-state-dir": str(tmp_path / str(i)), "require-secure": least}
        for i in range(8)
    ]
    changes = {"aggregation": aggregation, "rounds": 1, "patience": 1, "full-retries": 0}
    history = federate(nodes=nodes, **SECURE | changes).history
    assert (history.stop_reason is StopReason.FINISHED) == answers
    if not answers:
        assert any("not-allowed" in event["text"] for event in history.events)
