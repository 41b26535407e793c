"""The client state on a node: private, locked, of one run of one server, and removed at its end."""

import os
import stat
import time

import numpy as np
import pytest
from faults import At, ask

import fedpage as fp
from fedpage.flower import client_state, messages
from fedpage.flower.client_state import ClientStateStore
from fedpage.flower.node_errors import Code, NodeError
from fedpage.methods.scaffold import ClientState

SCAFFOLD = {"method": "scaffold", "hyper": "S=8 K=2", "rounds": 3}
ONES = ClientState(np.ones((1, 3)))
posix = pytest.mark.skipif(os.name != "posix", reason="permissions of files are those of POSIX")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def states(folder):
    return sorted(path.name for path in folder.glob("*.npz"))


def make_store(folder, run="run", client=0, d=3):
    return ClientStateStore(folder, run, client, ClientState, d)


@pytest.fixture
def folder(tmp_path):
    """Return a directory with the client state of round 1."""
    folder = tmp_path / "deep" / "state"
    make_store(folder).save("", "1 Controlled", ONES)
    return folder


@pytest.fixture(params=[0o000, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@posix
def test_states_and_keys_are_private_whatever_the_umask(umask, folder, tmp_path):
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    folder.chmod(0o755)
    make_store(folder).save("1 Controlled", "2 Controlled", ONES)
    assert mode(folder) == 0o700
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
def test_a_state_that_others_can_change_is_refused(which, folder, tmp_path):
    (file,) = folder.glob("*.npz")
    if which == "link":
        file.rename(tmp_path / "elsewhere.npz")
        file.symlink_to(tmp_path / "elsewhere.npz")
    else:
        (file if which == "file" else folder).chmod(0o662 if which == "file" else 0o722)
    store = make_store(folder)
    for use in (
        lambda: store.load("1 Controlled"), lambda: store.save("1 Controlled", "2 Controlled", ONES)
    ):  # fmt: skip
        with pytest.raises(NodeError) as error:
            use()
        assert error.value.code is Code.STATE_UNSAFE


@posix
def test_a_state_is_locked_while_it_is_written(folder, monkeypatch):
    import fcntl

    held = []
    original = client_state.pack  # type: ignore[attr-defined]

    def pack(*args):
        with open(folder / ".lock") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)
        return original(*args)

    monkeypatch.setattr(client_state, "pack", pack)
    make_store(folder).save("1 Controlled", "2 Controlled", ONES)
    assert held == [True]


def test_a_state_belongs_to_one_run_and_one_client(tmp_path):
    store = make_store(tmp_path, "../../run")
    store.save("", "4 Controlled", ONES)
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))
    assert store.load("4 Controlled").c.tolist() == [[1.0, 1.0, 1.0]]
    assert store.load("").c.tolist() == [[0.0, 0.0, 0.0]]
    for other in (make_store(tmp_path, "other"), make_store(tmp_path, "../../run", 1)):
        with pytest.raises(fp.InputError, match="no client state of round 4"):
            other.load("4 Controlled")
    with pytest.raises(fp.InputError, match="not the client state of this client"):
        make_store(tmp_path, "../../run", d=5).load("4 Controlled")


def test_the_last_versions_of_a_state_are_kept(folder):
    store = make_store(folder)
    for r in range(2, 9):
        state = ClientState(np.full((1, 3), float(r)))
        store.save(f"{r - 1} Controlled", f"{r} Controlled", state)
    assert store.load("4 Controlled").c[0, 0] == 4.0
    with pytest.raises(fp.InputError, match="no client state of round 1"):
        store.load("1 Controlled")
    # A message that is handled late must not replace newer versions.
    store.save("6 Controlled", "7 Other", ClientState(np.zeros((1, 3))))
    assert store.load("8 Controlled").c[0, 0] == 8.0
    assert store.load("7 Controlled").c[0, 0] == 7.0


# During and after a run


def test_two_servers_with_the_same_out_do_not_share_states(federate, tmp_path, monkeypatch):
    for count, server in ((8, "one"), (16, "two")):
        (tmp_path / server).mkdir()
        monkeypatch.chdir(tmp_path / server)
        federate(kill=2, out="run", **SCAFFOLD)
        assert len(states(tmp_path / "client-state")) == count
        assert mode(tmp_path / server / "run" / "token") == 0o600
    # Each server finds its own again.
    monkeypatch.chdir(tmp_path / "one")
    federate(out="run", **SCAFFOLD)
    assert len(states(tmp_path / "client-state")) == 8


def test_states_are_removed_when_a_run_has_ended(federate, tmp_path):
    """Those of a run that has failed stay, because it can be resumed."""
    failed = federate(At("drop", rounds=[2]), patience=1, **SCAFFOLD)
    assert failed.history.stop_reason is fp.StopReason.ROUND_FAILED
    assert len(states(tmp_path / "client-state")) == 8
    strategy = federate(**SCAFFOLD)
    assert [kind for _, kind in strategy.grid.sent].count(messages.FINISH) == 8
    assert states(tmp_path / "client-state") == []
    assert not (tmp_path / "run" / "token").exists()
    history = (tmp_path / "run" / "history.jsonl").read_bytes()
    with pytest.raises(fp.InputError, match="nodes have removed their client states"):
        federate(**SCAFFOLD | {"rounds": 5})
    assert (tmp_path / "run" / "history.jsonl").read_bytes() == history


def test_a_node_that_misses_the_end_removes_its_state_later(federate, tmp_path):
    federate(At("drop", messages.FINISH, [3]), **SCAFFOLD)
    (left,) = states(tmp_path / "client-state")
    assert left.endswith("-3.npz")
    path = tmp_path / "client-state" / left
    note = tmp_path / "client-state" / "note.npz"  # a file that is not fedpage's stays
    note.write_bytes(b"")
    for age in (29, 31):
        for file in (path, note):
            os.utime(file, (time.time() - age * 86400,) * 2)
        federate(**SCAFFOLD | {"out": str(tmp_path / f"run{age}")})
        assert path.exists() == (age < 30)
    assert note.exists()


def test_another_run_cannot_remove_a_state(config, folder):
    node = {"client-state-dir": str(folder)}
    for run, left in (("yours", 1), ("run", 0)):
        reply = ask(node, config, messages.FINISH, {"run": run})
        assert messages.decode_header(reply.content, messages.FinishReply).client == 0
        assert len(states(folder)) == left
