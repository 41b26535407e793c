"""Secure aggregation in one process: equal bits to the simulator, dropouts, and what is hidden."""

import os
import stat

import numpy as np
import pytest
from faults import SECURE, At, texts
from flwr.app import Message, RecordDict
from localgrid import transmit

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.engine.fixed_point import encode, scale_exponent
from fedpage.flower import messages
from fedpage.flower.secure_aggregation import primitives, protocol, server

ALL = SECURE | {"hyper": "S=8 K=2 eta_l=0.1"}
PHASES = [protocol.KEYS, protocol.SHARES, protocol.TRAIN, protocol.UNMASK]
METHODS = {
    "fedpage": "S=4 K=3 eta_g=0.2 p=0.4", "page": "S=4 eta_g=0.2 p=0.4",
    "fedpage-full": "S=4 K=3 p=0.4", "scaffold": "S=4 K=2 eta_l=0.1", "secantpage": "S=4",
    "vrl-sgd": "K=2", "s-local-svrg": "K=3 q=0.3", "fedprox": "S=4 K=2", "fedadam": "S=4 K=2",
    "saga": "S=4", "scaffnew": "",
}  # fmt: skip


def assert_equal_bits(federated, simulated):
    """Compare the model and every column that sites measure; they send no gradients."""
    assert federated.x.tobytes() == simulated.x.tobytes()
    columns = set(federated.columns) - {"seconds"}
    assert columns == set(simulated.columns) - {"grad_norm", "seconds"}
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
    data, options = fp.load("census", rows=300), {"metrics": ["auc", "accuracy"], "weights": "size"}
    problem = fp.LogisticRegression(data, fp.power_law(300, 8), **options)
    assert_equal_bits(history, simulated(problem, **changes))
    plain = simulated(problem, **changes | {"aggregation": "mean"})
    for name in ("loss", "auc", "accuracy"):
        np.testing.assert_allclose(history[name], plain[name], rtol=1e-12)


class Tap:
    """Keep every request and every reply that no fault touches."""

    def __init__(self, fault=None):
        self.fault = fault or (lambda client, message: None)
        self.requests: list[tuple[int, Message]] = []
        self.replies: list[tuple[int, str, str, RecordDict]] = []

    def __call__(self, client, message):
        meta = message.metadata
        self.requests.append((client, transmit(message)))

        def record(reply):
            content = transmit(reply).content
            self.replies.append((client, meta.message_type, meta.group_id, content))
            return reply

        return self.fault(client, message) or record

    def arrays(self, kind=protocol.TRAIN):
        """Return the arrays of replies by round and client."""
        return {
            (int(group), client): [array.numpy() for array in content["arrays"].values()]
            for client, found, group, content in self.replies
            if found == kind
        }

    def last(self, kind, group):
        """Return the last requests of a kind in a round, by client."""
        return {
            client: message
            for client, message in self.requests
            if (message.metadata.message_type, message.metadata.group_id) == (kind, group)
            and message.content["secure"]["message"] != protocol.EVALUATION
        }

    def survivors(self, group):
        return {
            m.content["secure"]["survivors"] for m in self.last(protocol.UNMASK, group).values()
        }


@pytest.fixture
def tapped(federate):
    """Run with all clients; return the tap and the grid."""
    tap = Tap()
    return tap, federate(tap, **ALL).grid


def code_of(reply):
    return dict(reply.content["header"]).get("code")


def send_changed(grid, node, kind, request, **fields):
    """Send a request again with changed fields; return the code of the refusal, if it is one."""
    content = dict(request.content)
    content["secure"] = type(content["secure"])(dict(content["secure"]) | fields)
    return code_of(grid.send(node, kind, RecordDict(content)))


def clear_numbers(federate, changes):
    """Return what the same clients send without secure aggregation, in fixed point."""
    tap = Tap()
    federate(tap, **changes | {"aggregation": "mean", "out": changes["out"] + "-clear"})
    exponent = scale_exponent(100.0, 8)
    return {
        key: encode(np.concatenate(parts), 100.0, exponent).view(np.uint64)
        for key, parts in tap.arrays(messages.TRAIN).items()
    }


# What the server learns


def test_what_reaches_the_server_tells_nothing_about_one_client(federate, tmp_path):
    changes = SECURE | {"out": str(tmp_path / "a")}
    first, second = Tap(), Tap()
    one = federate(first, **changes).history
    for path in (tmp_path / "client-state").iterdir():
        path.rename(tmp_path / f"old-{path.name}")
    two = federate(second, **changes | {"out": str(tmp_path / "b")}).history
    assert one.same(two)
    assert one.last("bytes_up") == sum(part.nbytes for (part,) in first.arrays().values())
    clear = clear_numbers(federate, changes)
    assert set(clear) == set(first.arrays()) == set(second.arrays())
    for key, words in clear.items():
        (sent,), (again,) = first.arrays()[key], second.arrays()[key]
        assert not (sent == again).any()
        for masked in (sent, again):
            assert not (masked == words).any()
            hidden = (masked - words).view(np.int64).astype(np.float64)
            numbers = words.view(np.int64).astype(np.float64)
            assert abs(np.corrcoef(numbers, hidden)[0, 1]) < 0.4
            assert 0.45 < np.unpackbits(masked.view(np.uint8)).mean() < 0.55


def test_no_reply_has_a_number_in_clear(tapped):
    """All other replies have keys and shares only, and headers have counts of rows at most."""
    tap, _ = tapped
    kinds = {kind for _, kind, _, _ in tap.replies}
    assert kinds == {messages.DESCRIBE, *PHASES, protocol.EVALUATE}
    for _, kind, _, content in tap.replies:
        arrays = dict(content).get("arrays")
        if kind in (protocol.TRAIN, protocol.EVALUATE):
            assert list(arrays) == [protocol.MASKED]
            assert arrays[protocol.MASKED].numpy().dtype == np.uint64
        else:
            assert arrays is None
        assert not any(isinstance(value, float) for value in dict(content["header"]).values())


def test_a_node_sends_nothing_in_clear(tapped):
    """A server that asks for ordinary replies in a run with secure aggregation gets none."""
    tap, grid = tapped
    for secure, plain in (
        (protocol.TRAIN, messages.TRAIN), (protocol.EVALUATE, messages.EVALUATE)
    ):  # fmt: skip
        request = next(m for _, m in tap.requests if m.metadata.message_type == secure)
        records = {name: record for name, record in request.content.items() if name != "secure"}
        reply = grid.send(records["header"]["client"], plain, RecordDict(records))
        assert code_of(reply) == "protocol"


def test_a_late_reply_is_useless_to_the_server(federate, config, monkeypatch):
    """The server has a client's masked numbers and its mask key, but not its self-mask."""
    attempts = []
    original = server.remove_masks
    monkeypatch.setattr(server, "remove_masks", lambda a: attempts.append(a) or original(a))
    tap = Tap(At(("late", 1000.0), protocol.TRAIN, [2], [1]))
    grid = federate(tap, **ALL).grid
    clear = clear_numbers(federate, config | ALL)[1, 2]
    attempt = next(a for a in attempts if a.sessions[0].round == 1 and 2 not in a.masked)
    reply = grid.send(2, protocol.TRAIN, tap.last(protocol.TRAIN, "1")[2].content)
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
    hidden = sent - clear
    assert len(set(hidden.tolist())) == len(hidden)
    assert not np.isin(sent, clear).any()
    # No node reveals a share of its self-mask any more: that needs another set of survivors.
    for client, request in tap.last(protocol.UNMASK, "1").items():
        everyone = {"survivors": "0,1,2,3,4,5,6,7"}
        assert send_changed(grid, client, protocol.UNMASK, request, **everyone) == "protocol"


# Clients that drop out


@pytest.mark.parametrize(
    ("phase", "fault"),
    [*((phase, "drop") for phase in PHASES), *((phase, ("late", 1000.0)) for phase in PHASES[2:])],
)
def test_a_client_that_drops_out_in_any_phase(federate, tmp_path, phase, fault):
    """Before its numbers are masked, its reply is missing; later, the others recover its mask."""
    secure = federate(At(fault, phase, [2, 5], [1, 2]), **ALL).history
    assert secure.stop_reason is StopReason.FINISHED
    counts = phase == protocol.UNMASK
    plain_fault = None if counts else At("drop", messages.TRAIN, [2, 5], [1, 2])
    changes = {"aggregation": "mean", "out": str(tmp_path / "plain")}
    plain = federate(plain_fault, **ALL | changes).history
    np.testing.assert_allclose(secure.x, plain.x, rtol=0, atol=1e-13)
    assert secure.last("missing") == plain.last("missing") == (0 if counts else 4)


@pytest.mark.parametrize("phase", PHASES)
def test_a_lost_message_is_retried_and_changes_no_bit(federate, simulated, phase):
    once = At("lost", phase, [1, 3, 5, 7], once=True)
    changes = SECURE | {"retries": 2, "method": "scaffold", "hyper": "S=5 K=2"}
    history = federate(once, **changes).history
    assert once.seen
    assert history.x.tobytes() == simulated(**changes).x.tobytes()
    assert history.last("missing") == 0


def test_a_full_round_is_never_a_sum_over_some_clients(federate):
    """FedPAGE's full rounds need all clients: if one is missing, a sampled round follows."""
    changes = SECURE | {
        "method": "fedpage-periodic", "hyper": "S=4 K=2 eta_g=0.2 p=0.5", "rounds": 6,
        "full-retries": 1, "lost-after": 9,
    }  # fmt: skip
    tap = Tap(At("drop", protocol.TRAIN, [7], [2]))
    history = federate(tap, **changes).history
    assert history.stop_reason is StopReason.FINISHED
    assert history.last("fallbacks") == 1
    # Three are left of the four of the sampled round, without client 7.
    assert {len(names.split(",")) for names in tap.survivors("2")} == {3}


def test_too_few_survivors_are_not_unmasked(federate):
    """Of five clients, more than two thirds must be left."""
    tap = Tap(At("drop", protocol.TRAIN, [0, 1, 2, 3], [2]))
    history = federate(tap, **SECURE | {"patience": 1}).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert "round 2 failed: no valid reply from" in history.stop_detail
    assert tap.last(protocol.TRAIN, "2")
    assert not tap.last(protocol.UNMASK, "2")


def test_a_reply_beyond_the_bound_is_refused_by_its_node(federate):
    changes = {"aggregation": "secure:bound=0.8", "patience": 1, "hyper": "S=5 K=2 eta_l=50"}
    history = federate(**SECURE | changes).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert texts(history)
    advice = "beyond the bound; raise bound in aggregation = 'secure:bound=...', or lower the steps"
    assert all(f"{advice} (bound; details" in text for text in texts(history))


def test_a_server_that_died_during_an_unmasking_computes_the_same_sum(federate):
    """All nodes have revealed their shares, but no reply arrived; one client was missing."""
    faults = At("drop", protocol.TRAIN, [3], [2]), At("lost", protocol.UNMASK, None, [2])
    failed = federate(lambda c, m: faults[0](c, m) or faults[1](c, m), **ALL | {"patience": 1})
    assert failed.history.stop_reason is StopReason.ROUND_FAILED
    tap = Tap()
    resumed = federate(tap, **ALL | {"patience": 1}).history
    assert resumed.stop_reason is StopReason.FINISHED
    assert tap.survivors("2") == {"0,1,2,4,5,6,7"}


def test_an_unmasking_that_failed_is_continued_with_the_same_clients(federate, simulated):
    once = At("lost", protocol.UNMASK, None, [2], once=True)
    tap = Tap(once)
    history = federate(tap, **SECURE | {"patience": 3}).history
    assert len(once.seen) == 5
    assert history.x.tobytes() == simulated(**SECURE).x.tobytes()


def test_a_node_whose_key_has_changed_is_left_out(federate, tmp_path):
    """It lost its directory: its peers would refuse its key, so the server does not call it."""

    def lose_key(client, message):
        if message.metadata.group_id == "2" and client == 4:
            for path in (tmp_path / "client-state").glob("*-4-secure/secret"):
                path.unlink()

    history = federate(lose_key, **ALL).history
    assert history.stop_reason is StopReason.FINISHED
    words = "reply of client 4: its key has changed during the run"
    assert any(words in text for text in texts(history))
    assert all("client 4" in text for text in texts(history))


def test_wrong_shares_are_noticed(federate, monkeypatch):
    """Shares of another seed than the client's would give a wrong sum."""
    original = primitives.commit
    where = "fedpage.flower.secure_aggregation.node.commit"
    monkeypatch.setattr(where, lambda seed, context: original(bytes(16), context))
    history = federate(**SECURE | {"patience": 1}).history
    assert history.stop_reason is StopReason.ROUND_FAILED
    assert any("the shares of its seed do not fit" in text for text in texts(history))


# What is refused


NOT_ALLOWED = [
    {"survivors": "0,1"}, {"survivors": ""}, {"survivors": "0,1,2,3,4,5,6"}, {"present": ""},
    {"sealed": b"short"}, {"clients": "0"}, {"clients": "1,0"}, {"nonce": b"other"}, {"round": -1},
    {"message": "../secret"}, {"client": 1}, {"mask_keys": b"\0" * 32},
]  # fmt: skip


def test_a_node_refuses_requests_that_the_protocol_does_not_allow(tapped):
    """Once it has unmasked one set of survivors, it unmasks no other."""
    tap, grid = tapped
    request = tap.last(protocol.UNMASK, "3")[0]
    for change in NOT_ALLOWED:
        assert send_changed(grid, 0, protocol.UNMASK, request, **change) == "protocol", change
        assert send_changed(grid, 0, protocol.UNMASK, request) is None, (
            change
        )  # so the change was the reason


def test_a_node_refuses_other_keys_too_few_clients_and_changed_shares(tapped):
    tap, grid = tapped
    request = tap.last(protocol.SHARES, "3")[0]
    record = request.content["secure"]
    keys, mask_keys = record["channel_keys"], record["mask_keys"]
    assert send_changed(grid, 0, protocol.SHARES, request, nonce=record["nonce"], round=3) is None

    def first(count, **fields):
        names = ",".join(map(str, range(count)))
        parts = {"channel_keys": keys[: 32 * count], "mask_keys": mask_keys[: 32 * count]}
        return {"clients": names, **parts, **fields}

    for change in (
        {"channel_keys": keys[:-32] + os.urandom(32)},  # of a peer, and of the node
        {"channel_keys": os.urandom(32) + keys[32:]},
        {"mask_keys": os.urandom(32) + mask_keys[32:]},
        first(2, round=99),
        first(7),  # the sum over eight was unmasked in this round
    ):
        assert send_changed(grid, 0, protocol.SHARES, request, **change) == "protocol", change
    request = tap.last(protocol.TRAIN, "3")[0]
    sealed = bytearray(request.content["secure"]["sealed"])
    assert send_changed(grid, 0, protocol.TRAIN, request) is None
    sealed[100] ^= 1
    assert send_changed(grid, 0, protocol.TRAIN, request, sealed=bytes(sealed)) == "protocol"


def test_files_are_private(federate, tmp_path):
    federate(**SECURE)
    folders = list((tmp_path / "client-state").glob("*-secure"))
    assert len(folders) == 8
    for folder in folders:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        files = list(folder.iterdir())
        assert {path.name.split("-")[0] for path in files} == {"secret", "peer", "revealed"}
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


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
        assert any("not-allowed" in text for text in (e["text"] for e in history.events))
