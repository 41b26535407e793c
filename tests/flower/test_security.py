"""Messages, arrays, mods and wrappers that a node or a server refuses. No process or socket."""

from __future__ import annotations

import io
import pickle
import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from localgrid import LocalGrid

import fedpage as fp
from fedpage.core.messages import layout_of
from fedpage.flower import client_app, messages
from fedpage.flower.server_app import FedpageStrategy

D = 123
REQUEST = messages.TrainRequest(0, 0, 3, "FullGradient", D, 1.0, "r", "", 0, 1, "", "")


def send(config, message_type=messages.TRAIN, header=None, arrays=None, records=None):
    """Return the reply of node 0 to one message."""
    grid = LocalGrid(client_app.app, [{"partition-id": 0}], config)
    grid.get_node_ids()
    content = RecordDict({
        "arrays": ArrayRecord({"x": Array(np.zeros(D))} if arrays is None else arrays),
        "header": ConfigRecord(REQUEST._asdict() | (header or {})),
        **(records or {}),
    })  # fmt: skip
    (name,) = grid.push_messages([Message(content, grid.node(0), message_type, ttl=60.0)])
    (reply,) = grid.pull_messages([name])
    return reply


def refusal(reply):
    """Return the code and the reference of a refusal."""
    header = messages.decode_header(reply.content, messages.Refusal)
    return header.code, header.reference


def test_a_valid_message_is_answered(config):
    assert set(send(config).content["arrays"]) == {"g"}


@pytest.mark.parametrize(
    "message_type", ["train", "train.steal", "evaluate", "evaluate.work", "query", "query.rows"]
)
def test_unknown_message_types_are_refused(config, message_type, node_log):
    code, reference = refusal(send(config, message_type))
    assert code == "protocol"
    assert f"unknown message type '{message_type}'" in node_log(reference)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arrays": {"x": Array(np.zeros(10**6))}}, "x has 8,000,128 bytes, but 984 are expected"),
        ({"arrays": {"x": Array(np.zeros(7))}}, "x has shape (7,) instead of (123,)"),
        (
            {"arrays": {"x": Array(np.zeros(D, dtype=np.float32))}},
            "x has type float32 instead of float64",
        ),
        ({"arrays": {"y": Array(np.zeros(D))}}, "arrays y instead of x"),
        ({"arrays": {}}, "arrays none instead of x"),
        (
            {"records": {"more": ConfigRecord({"a": 1})}},
            "the message must have one record of arrays and one header",
        ),
        ({"header": {"message": "State"}}, "FedPAGE has no message 'State'"),
        ({"header": {"message": "os"}}, "FedPAGE has no message 'os'"),
        ({"header": {"client": 1}}, "the message is for client 1, but this node holds client 0"),
        ({"header": {"d": 0}}, "d = 0 and scale = 1 are out of the accepted range"),
        ({"header": {"d": 10**12}}, "are out of the accepted range"),
        ({"header": {"d": 7}}, "has 123 parameters, but 7 are expected"),
        ({"header": {"scale": float("inf")}}, "scale = inf are out of the accepted range"),
        ({"header": {"round": "0"}}, "'round' must be of type int, not str"),
        ({"header": {"extra": 1}}, "the header has unknown fields"),
    ],
)
def test_invalid_messages_are_refused(config, changes, words, node_log):
    code, reference = refusal(send(config, **changes))
    assert code in ("protocol", "bad-size")
    assert words in node_log(reference)


def npy_header(shape, dtype="<f8", version=b"\x01\x00"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text


def array(data, stype="numpy.ndarray"):
    return Array(dtype="float64", shape=(3,), stype=stype, data=data)


def save(values):
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


HOSTILE = {
    "a header that declares a terabyte": array(npy_header((10**11,)) + bytes(24)),
    "too short": array(save(np.zeros(3))[:-1]),
    "too long": array(save(np.zeros(3)) + b"x"),
    "a pickle": array(pickle.dumps(np.zeros(3))),
    "objects": array(npy_header((3,), "|O") + bytes(24)),
    "structured": array(npy_header((3,), "<i8,<i8") + bytes(48)),
    "big-endian": array(save(np.zeros(3, dtype=">f8"))),
    "another .npy version": array(npy_header((3,), version=b"\x02\x00") + bytes(24)),
    "a program": array(b"\x93NUMPY\x01\x00" + struct.pack("<H", 20) + b"__import__('os')    \n"),
    "empty": array(b""),
    "an archive": array(b"PK\x03\x04" + bytes(100)),
    "two dimensions": array(save(np.zeros((3, 1)))),
    "columns first": array(save(np.asfortranarray(np.zeros((1, 3))).T)),
    "a negative shape": array(npy_header((-3,)) + bytes(24)),
    "another serialisation": array(save(np.zeros(3)), stype="torch.Tensor"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_arrays_are_neither_allocated_nor_unpickled(name, monkeypatch):
    def never(*args, **options):
        raise AssertionError("unpickled")

    for function in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, function, never)
    layout = layout_of(messages.ModelArrays, 3, np.float64)
    content = RecordDict({"arrays": ArrayRecord({"x": HOSTILE[name]}), "header": ConfigRecord({})})
    with pytest.raises(messages.ProtocolError) as error:
        messages.decode_fields(content, layout)
    assert "\n" not in str(error.value)


def test_arrays_keep_every_bit():
    numbers = np.array([-0.0, 5e-324, np.nan, -np.inf, 0.1])
    content = messages.encode_message(messages.ModelArrays(numbers), messages.EvaluateReply(0, 0))
    (again,) = messages.decode_fields(content, layout_of(messages.ModelArrays, 5, np.float64))
    assert again.tobytes() == numbers.tobytes()
    assert again.flags.writeable


@pytest.mark.parametrize("register", ["train", "evaluate", "query"])
def test_the_client_app_takes_no_mods_and_no_functions(register):
    from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod

    for mod in (fixedclipping_mod, adaptiveclipping_mod):
        with pytest.raises(TypeError, match="mods"):
            client_app.FedpageClientApp(mods=[mod])  # type: ignore[call-arg]
        with pytest.raises(RuntimeError, match="takes no functions and no mods"):
            getattr(client_app.app, register)("client", mods=[mod])


def test_strategy_wrappers_are_refused_before_a_message_is_sent(config):
    from flwr.serverapp.strategy import (
        DifferentialPrivacyClientSideFixedClipping,
        DifferentialPrivacyServerSideFixedClipping,
    )

    for wrapper in (
        DifferentialPrivacyServerSideFixedClipping,
        DifferentialPrivacyClientSideFixedClipping,
    ):
        grid = LocalGrid(client_app.app, [{"partition-id": i} for i in range(8)], config)
        wrapped = wrapper(
            FedpageStrategy(config), noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=3
        )
        with pytest.raises(RuntimeError, match="cannot be wrapped"):
            wrapped.start(grid, ArrayRecord({"x": Array(np.zeros(D))}), num_rounds=1)
        assert grid.sent == []


def test_client_state_belongs_to_one_run_and_one_client(tmp_path):
    from fedpage.flower.client_state import ClientStateStore
    from fedpage.methods.scaffold import ClientState

    store = ClientStateStore(tmp_path, "../../run", 0, ClientState, 3)
    store.save("", "4 Controlled", ClientState(np.ones((1, 3))))
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))
    assert store.load("4 Controlled").c.tolist() == [[1.0, 1.0, 1.0]]
    assert store.load("").c.tolist() == [[0.0, 0.0, 0.0]]
    for other in (
        ClientStateStore(tmp_path, "other", 0, ClientState, 3),
        ClientStateStore(tmp_path, "../../run", 1, ClientState, 3),
    ):
        with pytest.raises(fp.InputError, match="no client state of round 4"):
            other.load("4 Controlled")
    with pytest.raises(fp.InputError, match="not the client state of this client"):
        ClientStateStore(tmp_path, "../../run", 0, ClientState, 5).load("4 Controlled")


def test_the_last_versions_of_a_client_state_are_kept(tmp_path):
    from fedpage.flower.client_state import ClientStateStore
    from fedpage.methods.scaffold import ClientState

    store = ClientStateStore(tmp_path, "run", 0, ClientState, 3)
    for round in range(4, 12):
        previous = f"{round - 1} Controlled" if round > 4 else ""
        store.save(previous, f"{round} Controlled", ClientState(np.full((1, 3), float(round))))
    assert store.load("7 Controlled").c[0, 0] == 7.0
    with pytest.raises(fp.InputError, match="no client state of round 4"):
        store.load("4 Controlled")
    # A message that is handled late must not replace newer versions.
    store.save("9 Controlled", "10 Other", ClientState(np.zeros((1, 3))))
    assert store.load("11 Controlled").c[0, 0] == 11.0
    assert store.load("10 Controlled").c[0, 0] == 10.0
