"""Messages, arrays, mods and wrappers that a node or a server refuses. No process or socket."""

import io
import pickle
import struct

import numpy as np
import pytest
from faults import REQUEST, D, ask, refusal
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from localgrid import LocalGrid

from fedpage.core.messages import layout_of
from fedpage.flower import client_app, messages
from fedpage.flower.server_app import FedpageStrategy


def test_a_valid_message_is_answered(config):
    assert set(ask({}, config).content["arrays"]) == {"g"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "train"}, "unknown message type 'train'"),
        ({"kind": "train.steal"}, "unknown message type 'train.steal'"),
        ({"kind": "evaluate.work"}, "unknown message type 'evaluate.work'"),
        ({"kind": "query"}, "unknown message type 'query'"),
        ({"arrays": {"x": Array(np.zeros(10**6))}}, "x has 8,000,128 bytes, but 984 are expected"),
        ({"arrays": {"x": Array(np.zeros(7))}}, "x has shape (7,) instead of (123,)"),
        (
            {"arrays": {"x": Array(np.zeros(D, np.float32))}},
            "x has type float32 instead of float64",
        ),
        ({"arrays": {"y": Array(np.zeros(D))}}, "arrays y instead of x"),
        ({"arrays": {}}, "arrays none instead of x"),
        ({"records": {"more": ConfigRecord({"a": 1})}}, "must have one record of arrays and one"),
        ({"message": "State"}, "FedPAGE has no message 'State'"),
        ({"message": "os"}, "FedPAGE has no message 'os'"),
        ({"client": 1}, "the message is for client 1, but this node holds client 0"),
        ({"d": 0}, "d = 0 and scale = 1 are out of the accepted range"),
        ({"d": 10**12}, "are out of the accepted range"),
        ({"d": 7}, "has 123 parameters, but 7 are expected"),
        ({"scale": float("inf")}, "scale = inf are out of the accepted range"),
        ({"round": "0"}, "'round' must be of type int, not str"),
        ({"extra": 1}, "the header has unknown fields"),
    ],
)
def test_invalid_messages_are_refused(config, changes, words, node_log):
    given = {name: changes[name] for name in ("kind", "arrays", "records") if name in changes}
    header = REQUEST._asdict() | ({} if given else changes)
    found = refusal(ask({}, config, header=header, **given))
    assert found.code in ("protocol", "bad-size")
    assert words in node_log(found.reference)


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
    from flwr.clientapp.mod import fixedclipping_mod

    with pytest.raises(TypeError, match="mods"):
        client_app.FedpageClientApp(mods=[fixedclipping_mod])  # type: ignore[call-arg]
    with pytest.raises(RuntimeError, match="takes no functions and no mods"):
        getattr(client_app.app, register)("client", mods=[fixedclipping_mod])


def test_strategy_wrappers_are_refused_before_a_message_is_sent(config):
    from flwr.serverapp import strategy

    for side in ("Server", "Client"):
        wrapper = getattr(strategy, f"DifferentialPrivacy{side}SideFixedClipping")
        grid = LocalGrid(client_app.app, [{"partition-id": i} for i in range(8)], config)
        wrapped = wrapper(FedpageStrategy(config), 0.1, 1.0, 3)
        with pytest.raises(RuntimeError, match="cannot be wrapped"):
            wrapped.start(grid, ArrayRecord({"x": Array(np.zeros(D))}), num_rounds=1)
        assert grid.sent == []
