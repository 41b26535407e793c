"""The client state on a node: private, locked, of one run of one server, and removed at its end."""

from __future__ import annotations

import os
import stat
import time

import numpy as np
import pytest
from flwr.app import Message
from localgrid import LocalGrid

import fedpage as fp
from fedpage.flower import client_app, messages
from fedpage.flower.client_state import ClientStateStore
from fedpage.flower.node_errors import Code, NodeError
from fedpage.methods.scaffold import ClientState


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


posix = pytest.mark.skipif(os.name != "posix", reason="permissions of files are those of POSIX")


@posix
def test_state_files_are_private_whatever_the_umask(umask, tmp_path):
    folder = tmp_path / "deep" / "state"
    store = ClientStateStore(folder, "run", 0, ClientState, 3)
    store.save("", "1 Controlled", ClientState(np.ones((1, 3))))
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    folder.chmod(0o755)
    store.save("1 Controlled", "2 Controlled", ClientState(np.ones((1, 3))))
    assert mode(folder) == 0o700


@posix
def test_keys_are_private_whatever_the_umask(umask, tmp_path):
    pytest.importorskip("cryptography")
    from fedpage.flower.deploy.keys import create_keys

    paths = create_keys(tmp_path / "keys", hosts=["localhost"], nodes=1)
    assert mode(tmp_path / "keys") == 0o700
    secret = {path.name for path in paths if mode(path) == 0o600}
    assert secret == {"ca.key", "server.key", "node0"}
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(fp.InputError, match="other users can write"):
        create_keys(tmp_path / "open", hosts=["localhost"], nodes=1)


@posix
@pytest.mark.parametrize("which", ["file", "directory", "link"])
def test_a_state_that_others_can_change_is_refused(which, tmp_path):
    folder = tmp_path / "state"
    store = ClientStateStore(folder, "run", 0, ClientState, 3)
    store.save("", "1 Controlled", ClientState(np.ones((1, 3))))
    (file,) = folder.glob("*.npz")
    if which == "link":
        file.rename(tmp_path / "elsewhere.npz")
        file.symlink_to(tmp_path / "elsewhere.npz")
    else:
        (file if which == "file" else folder).chmod(0o662 if which == "file" else 0o722)
    for use in (
        lambda: store.load("1 Controlled"),
        lambda: store.save("1 Controlled", "2 Controlled", ClientState(np.ones((1, 3)))),
    ):
        with pytest.raises(NodeError) as error:
            use()
        assert error.value.code is Code.STATE_UNSAFE


def states(folder):
    return sorted(path.name for path in folder.glob("*.npz"))


SCAFFOLD = {"method": "scaffold", "hyper": "S=8 K=2", "rounds": 3}


class Killed(BaseException):
    pass


def kill(info):
    if info.round == 2:
        raise Killed


def test_two_servers_with_the_same_out_do_not_share_states(federate, tmp_path, monkeypatch):
    found = []
    for server in ("one", "two"):
        (tmp_path / server).mkdir()
        monkeypatch.chdir(tmp_path / server)
        with pytest.raises(Killed):
            federate(callbacks=[fp.FunctionCallback(on_round_end=kill)], out="run", **SCAFFOLD)
        found.append(states(tmp_path / "client-state"))
        assert mode(tmp_path / server / "run" / "token") == 0o600
    assert len(found[0]) == 8
    assert len(found[1]) == 16
    # Each server finds its own again.
    monkeypatch.chdir(tmp_path / "one")
    federate(out="run", **SCAFFOLD)
    assert len(states(tmp_path / "client-state")) == 8


def test_states_are_removed_when_a_run_has_ended(federate, tmp_path):
    strategy = federate(**SCAFFOLD)
    assert [kind for _, kind in strategy.grid.sent].count(messages.FINISH) == 8
    assert states(tmp_path / "client-state") == []
    assert not (tmp_path / "run" / "token").exists()
    history = (tmp_path / "run" / "history.jsonl").read_bytes()
    with pytest.raises(fp.InputError, match="nodes have removed their client states"):
        federate(**SCAFFOLD | {"rounds": 5})
    assert (tmp_path / "run" / "history.jsonl").read_bytes() == history


def test_a_run_that_has_failed_keeps_its_states(federate, tmp_path):
    def silent(client, message):
        return "drop" if message.metadata.group_id == "2" else None

    strategy = federate(fault=silent, patience=1, **SCAFFOLD)
    assert strategy.history.stop_reason is fp.StopReason.ROUND_FAILED
    assert len(states(tmp_path / "client-state")) == 8


def test_a_node_that_misses_the_end_removes_its_state_later(federate, tmp_path):
    def deaf(client, message):
        return "drop" if message.metadata.message_type == messages.FINISH and client == 3 else None

    federate(fault=deaf, **SCAFFOLD)
    (left,) = states(tmp_path / "client-state")
    assert left.endswith("-3.npz")
    path = tmp_path / "client-state" / left
    note = tmp_path / "client-state" / "note.npz"  # a file that is not fedpage's stays
    note.write_bytes(b"")
    days = [29, 31]
    for age in days:
        for file in (path, note):
            os.utime(file, (time.time() - age * 86400,) * 2)
        federate(**SCAFFOLD | {"out": str(tmp_path / f"run{age}")})
        assert path.exists() == (age < 30)
    assert note.exists()


def test_another_run_cannot_remove_a_state(config, tmp_path):
    folder = tmp_path / "state"
    ClientStateStore(folder, "mine", 0, ClientState, 3).save(
        "", "1 Controlled", ClientState(np.ones((1, 3)))
    )
    node = {"partition-id": 0, "client-state-dir": str(folder)}
    for run, left in (("yours", 1), ("mine", 0)):
        grid = LocalGrid(client_app.app, [node], config)
        grid.get_node_ids()
        content = messages.encode_header(messages.FinishRequest(run))
        (name,) = grid.push_messages([Message(content, grid.node(0), messages.FINISH, ttl=60.0)])
        (reply,) = grid.pull_messages([name])
        assert messages.decode_header(reply.content, messages.FinishReply).client == 0
        assert len(states(folder)) == left


@posix
def test_a_state_is_locked_while_it_is_written(tmp_path):
    import fcntl

    store = ClientStateStore(tmp_path / "state", "run", 0, ClientState, 3)
    store.save("", "1 Controlled", ClientState(np.ones((1, 3))))
    held = []

    def pack(*args):
        with open(tmp_path / "state" / ".lock") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)
        return original(*args)

    from fedpage.flower import client_state

    original = client_state.pack  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_state, "pack", pack)
        store.save("1 Controlled", "2 Controlled", ClientState(np.ones((1, 3))))
    assert held == [True]
