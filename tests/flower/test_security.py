"""What a node and a server refuse, without a process or a socket."""

from __future__ import annotations

import io
import pickle
import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from localgrid import LocalGrid

import fedpage as fp
from fedpage.flower import client_app, messages
from fedpage.flower.server_app import FedpageStrategy

D = 123
SAY = {
    "client": 0,
    "round": 0,
    "seed": 3,
    "kind": "Refresh",
    "d": D,
    "scale": 1.0,
    "run": "r",
    "dated": "",
}


def sent(config, message_type="train.work", say=None, parts=None, records=None, app=client_app.app):
    """The reply of node 0 to one message."""
    grid = LocalGrid(app, [{"partition-id": 0}], config)
    grid.get_node_ids()
    content = RecordDict({
        "parts": ArrayRecord({"x": Array(np.zeros(D))} if parts is None else parts),
        "say": ConfigRecord(SAY | (say or {})),
        **(records or {}),
    })  # fmt: skip
    (name,) = grid.push_messages([Message(content, grid.node(0), message_type, ttl=60.0)])
    (reply,) = grid.pull_messages([name])
    return reply


def refused(reply):
    assert reply.has_error()
    assert reply.error.code == 2
    return reply.error.reason


def test_a_sound_message_is_answered(config):
    assert set(sent(config).content["parts"]) == {"g"}


@pytest.mark.parametrize(
    "kind", ["train", "train.steal", "evaluate", "evaluate.work", "query", "query.rows"]
)
def test_an_action_that_is_not_ours(config, kind):
    assert "No " in refused(sent(config, kind))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parts": {"x": Array(np.zeros(10**6))}}, "x of 8,000,128 bytes, where 984 were expected"),
        ({"parts": {"x": Array(np.zeros(7))}}, "x of shape (7,) instead of (123,)"),
        (
            {"parts": {"x": Array(np.zeros(D, dtype=np.float32))}},
            "x of type float32 instead of float64",
        ),
        ({"parts": {"y": Array(np.zeros(D))}}, "arrays y instead of x"),
        ({"parts": {}}, "arrays  instead of x"),
        (
            {"records": {"more": ConfigRecord({"a": 1})}},
            "not one record of arrays and one of words",
        ),
        ({"say": {"kind": "State"}}, "arrays x instead of x, x_prev, g, N"),
        ({"say": {"kind": "os"}}, "FedPAGE has no message 'os'"),
        ({"say": {"client": 1}}, "client 1 is meant, and this is client 0"),
        ({"say": {"d": 0}}, "0 parameters at scale 1 are not to be had here"),
        ({"say": {"d": 10**12}}, "parameters at scale 1 are not to be had here"),
        ({"say": {"d": 7}}, "has 123 features, and 7 are agreed on"),
        ({"say": {"scale": float("inf")}}, "parameters at scale inf are not to be had here"),
        ({"say": {"round": "0"}}, "'round' should be of type int, not str"),
        ({"say": {"extra": 1}}, "more words than were agreed on"),
    ],
)
def test_messages_that_are_not_sound(config, changes, words):
    assert words in refused(sent(config, **changes))


def header(shape, kind="<f8", version=b"\x01\x00"):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text


def made(data, stype="numpy.ndarray"):
    return Array(dtype="float64", shape=(3,), stype=stype, data=data)


def saved(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


HOSTILE = {
    "a terabyte, says its header": made(header((10**11,)) + bytes(24)),
    "too short": made(saved(np.zeros(3))[:-1]),
    "too long": made(saved(np.zeros(3)) + b"x"),
    "a pickle": made(pickle.dumps(np.zeros(3))),
    "objects": made(header((3,), "|O") + bytes(24)),
    "structured": made(header((3,), "<i8,<i8") + bytes(48)),
    "big-endian": made(saved(np.zeros(3, dtype=">f8"))),
    "another version": made(header((3,), version=b"\x02\x00") + bytes(24)),
    "a program": made(b"\x93NUMPY\x01\x00" + struct.pack("<H", 20) + b"__import__('os')    \n"),
    "nothing": made(b""),
    "an archive": made(b"PK\x03\x04" + bytes(100)),
    "two dimensions": made(saved(np.zeros((3, 1)))),
    "columns first": made(saved(np.asfortranarray(np.zeros((1, 3))).T)),
    "a negative shape": made(header((-3,)) + bytes(24)),
    "of another kind": made(saved(np.zeros(3)), stype="torch.Tensor"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_arrays_that_are_not_sound_are_neither_allocated_nor_unpickled(name, monkeypatch):
    def never(*args, **options):
        raise AssertionError("unpickled")

    for function in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, function, never)
    form = messages.vectors(messages.Point, 3)
    content = RecordDict({"parts": ArrayRecord({"x": HOSTILE[name]}), "say": ConfigRecord({})})
    with pytest.raises(messages.ProtocolError) as fault:
        messages.unpacked(content, form)
    assert "\n" not in str(fault.value)


def test_sound_arrays_keep_every_bit():
    numbers = np.array([-0.0, 5e-324, np.nan, -np.inf, 0.1])
    content = messages.packed(messages.Point(numbers), {})
    (again,) = messages.unpacked(content, messages.vectors(messages.Point, 5))
    assert again.tobytes() == numbers.tobytes()
    assert again.flags.writeable


def mods():
    from flwr.client.mod import fixedclipping_mod, secaggplus_mod
    from flwr.clientapp.mod import adaptiveclipping_mod

    def silent(message, context, call_next):
        return call_next(message, context)

    return {
        "secaggplus": secaggplus_mod,
        "clipping": fixedclipping_mod,
        "adaptive": adaptiveclipping_mod,
        "silent": silent,
    }


@pytest.mark.parametrize("name", ["secaggplus", "clipping", "silent"])
@pytest.mark.parametrize("place", ["app", "action"])
def test_mods_are_refused(config, name, place):
    mod = mods()[name]
    app = ClientApp(mods=[mod] if place == "app" else None)
    app.train("work", mods=[mod] if place == "action" else None)(client_app.work)
    assert "takes no mods" in refused(sent(config, app=app))
    plain = ClientApp()
    plain.train("work")(client_app.work)
    assert sent(config, app=plain).has_content()


def test_wrappers_of_the_strategy_are_refused_before_a_message_is_sent(config):
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


def test_memories_are_of_one_run_and_one_client(tmp_path):
    from fedpage.flower.node import ClientStateStore
    from fedpage.methods.scaffold import ClientState

    one = ClientStateStore(str(tmp_path), "../../run", 0, ClientState, 3)
    one.keep("", "4 Controlled", ClientState(np.ones((1, 3))))
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))
    assert one.get("4 Controlled").c.tolist() == [[1.0, 1.0, 1.0]]
    assert one.get("").c.tolist() == [[0.0, 0.0, 0.0]]
    for other in (
        ClientStateStore(str(tmp_path), "other", 0, ClientState, 3),
        ClientStateStore(str(tmp_path), "../../run", 1, ClientState, 3),
    ):
        with pytest.raises(fp.InputError, match="no memory of round 4"):
            other.get("4 Controlled")
    with pytest.raises(fp.InputError, match="not what this client remembers"):
        ClientStateStore(str(tmp_path), "../../run", 0, ClientState, 5).get("4 Controlled")
    for round in range(5, 12):
        one.keep(
            f"{round - 1} Controlled",
            f"{round} Controlled",
            ClientState(np.full((1, 3), float(round))),
        )
    assert one.get("7 Controlled").c[0, 0] == 7.0
    with pytest.raises(fp.InputError, match="no memory of round 4"):
        one.get("4 Controlled")
    one.keep(
        "9 Controlled", "10 Other", ClientState(np.zeros((1, 3)))
    )  # work that ends late spoils nothing
    assert one.get("11 Controlled").c[0, 0] == 11.0
    assert one.get("10 Controlled").c[0, 0] == 10.0
