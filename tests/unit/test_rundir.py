"""Runs on disk: what is written, what is refused, what is mended, and that nothing changes a bit."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from support import methods, quadratic, uneven

import fedpage as fp
from fedpage.engine.loop import Interrupted
from fedpage.engine.simulate import prepare
from fedpage.runs import checkpoint, store, toml
from fedpage.runs.fingerprint import code_digest
from fedpage.runs.store import RunDirectory

ALL = methods(4, 3, 0.1)
FAULTS = fp.Faults(dropout=0.2, nan=0.05, late=0.2, gone=(7,), gone_from=20)


class Killed(BaseException):
    """A process that dies."""


def dying(round):
    """A progress hook after which nothing is written any more."""

    def progress(done, total, row):
        if done >= round:
            raise Killed

    return progress


def told(history):
    """What happened, whatever the order in which a round's clients were looked after."""
    return sorted((entry["round"], entry["event"], entry["text"]) for entry in history.events)


def die(out, round, problem, method, **options):
    with pytest.raises(Killed):
        fp.simulate(problem, method, out=out, progress=dying(round), checkpoint_every=7, **options)


@pytest.mark.parametrize("name", ALL)
def test_a_killed_run_ends_with_the_same_bits(name, tmp_path):
    problem, method = uneven(), ALL[name]
    for faults in (
        None,
        FAULTS if method.name != "VRL-SGD" else dataclasses.replace(FAULTS, gone=()),
    ):
        options = {"rounds": 40, "seed": 3, "record_every": 5, "faults": faults}
        whole = fp.simulate(problem, method, **options)
        out = tmp_path / f"run-{faults is None}"
        die(out, 15, problem, method, **options)
        die(out, 30, problem, method, resume=True, threads=3, chunk=2, **options)
        again = fp.simulate(problem, method, out=out, resume=True, checkpoint_every=7, **options)
        assert again.same(whole)
        assert told(again) == told(whole)
        stored = fp.History.load(out / "history.jsonl")
        assert stored.same(whole)
        assert told(stored) == told(whole)
        assert fp.simulate(problem, method, out=out, resume=True, **options).same(whole)


def test_every_moment_is_a_good_one_to_die(tmp_path, monkeypatch):
    """Die before and after each write, sync and rename of a run with a checkpoint every other round."""
    problem, method = quadratic(), fp.SCAFFOLD(S=3, K=2)
    options = {"rounds": 9, "seed": 0, "record_every": 2, "checkpoint_every": 2}
    whole = fp.simulate(problem, method, rounds=9, seed=0, record_every=2)
    calls = {"left": 10**9}

    def mortal(function, torn=None):
        def call(*args, **keywords):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise Killed
            done = function(*args, **keywords)
            calls["left"] -= 1
            if calls["left"] == 0:
                raise Killed
            return done

        return call

    for name in ("fsync", "replace", "truncate"):
        monkeypatch.setattr(os, name, mortal(getattr(os, name)))
    line = RunDirectory._line

    def tearing(self, entry):
        calls["left"] -= 1
        if calls["left"] == 0:
            self._stream.write(json.dumps(entry).encode()[:25])
            raise Killed
        line(self, entry)

    monkeypatch.setattr(RunDirectory, "_line", tearing)
    deaths = 0
    for moment in range(1, 1000):
        out = tmp_path / str(moment)
        calls["left"] = moment
        try:
            fp.simulate(problem, method, out=out, **options)
        except Killed:
            deaths += 1
        else:
            break
        calls["left"] = moment // 2 + 3  # and once more while resuming
        try:
            fp.simulate(problem, method, out=out, resume=True, **options)
        except Killed:
            deaths += 1
        calls["left"] = 10**9
        assert fp.simulate(problem, method, out=out, resume=True, **options).same(whole)
        shutil.rmtree(out)
    assert deaths > 50


def test_two_checkpoints_are_kept_and_are_plain_npz(tmp_path):
    problem = quadratic()
    fp.simulate(problem, fp.SCAFFOLD(S=3, K=2), rounds=20, seed=0, out=tmp_path, checkpoint_every=4)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert [name[:9] for name in names] == ["000000012", "000000016"]
    with np.load(tmp_path / "checkpoints" / names[1], allow_pickle=False) as box:
        outline = json.loads(box["outline"].tobytes())
        assert outline["tree"]["table"]["run"]["table"]["round"] == 16
        assert sum(box[name].size for name in box.files if name != "outline") > 0


@pytest.fixture
def died(tmp_path):
    """A run of 40 rounds that died after 30, with checkpoints at 21 and 28, and how to go on with it."""
    problem, method = quadratic(), fp.SCAFFOLD(S=3, K=2)
    options = {"rounds": 40, "seed": 3, "record_every": 5}
    whole = fp.simulate(problem, method, **options)
    die(tmp_path, 30, problem, method, **options)
    said = []

    def go():
        run = prepare(problem, method, **options)
        with RunDirectory(tmp_path, every=7, say=said.append) as directory:
            ended = directory.resume(run)
            start = run.engine.costs.round
            return ended or directory.finish(run.go(None, directory)), start

    go.said, go.out, go.whole = said, tmp_path, whole
    go.checkpoints = sorted((tmp_path / "checkpoints").iterdir())
    return go


def test_the_newest_checkpoint_is_taken(died):
    history, start = died()
    assert (start, history.same(died.whole), died.said) == (28, True, [])


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(died, damage):
    newest = died.checkpoints[-1]
    data = bytearray(newest.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "empty":
        data.clear()
    else:
        data = bytearray(b"PK not an archive")
    newest.write_bytes(bytes(data))
    history, start = died()
    assert start == 21
    assert history.same(died.whole)
    (said,) = died.said
    assert str(newest) in said
    assert "damaged (its checksum is another); falling back to the one before" in said


def test_without_a_sound_checkpoint_the_run_begins_again_and_says_so(died):
    for path in died.checkpoints:
        path.write_bytes(b"")
    history, start = died()
    assert start == 0
    assert history.same(died.whole)
    assert "no checkpoint to go on from; the run begins again" in died.said[-1]


def test_rejected_checkpoints_do_not_push_out_new_ones(died):
    for path in died.checkpoints:
        path.write_bytes(b"")
    run = prepare(quadratic(), fp.SCAFFOLD(S=3, K=2), rounds=40, seed=3, record_every=5)
    with RunDirectory(died.out, every=7, say=died.said.append) as directory:
        directory.resume(run)
        with pytest.raises(Killed):
            run.go(dying(15), directory)
    assert sorted(path.name[:9] for path in (died.out / "checkpoints").iterdir()) == [
        "000000007",
        "000000014",
    ]
    history, start = died()
    assert (start, history.same(died.whole)) == (14, True)


def test_a_whole_number_and_the_same_float_are_one_setting(tmp_path):
    problem, options = quadratic(), {"rounds": 40, "seed": 3, "record_every": 5}
    die(tmp_path, 30, problem, fp.FedPAGE(S=3, K=2, eta_g=1, p=1), **options)
    started = []
    history = fp.simulate(
        problem, fp.FedPAGE(S=3, K=2, eta_g=1.0, p=1.0), out=tmp_path, resume=True,
        progress=lambda done, *_: started.append(done), **options,
    )  # fmt: skip
    assert started[0] == 30
    assert history.same(fp.simulate(problem, fp.FedPAGE(S=3, K=2, eta_g=1.0, p=1.0), **options))


def test_a_torn_line_is_left_out_and_said(died):
    with open(died.out / "history.jsonl", "ab") as stream:
        stream.write(b'{"round": 31, "lo')
    assert fp.History.load(died.out / "history.jsonl").stopped == "cut off: the file has no end"
    history, start = died()
    assert start == 28
    assert history.same(died.whole)
    assert "its last line is torn, and is left out" in died.said[0]


def test_a_changed_history_is_not_gone_on_with(died):
    path = died.out / "history.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round": 20,', b'"round": 19,'))
    history, start = died()
    assert start == 0
    assert history.same(died.whole)
    assert "history.jsonl is not what it was" in died.said[0]


@pytest.mark.parametrize("line", [1, 3, 8])
def test_a_line_that_is_no_longer_one_is_not_gone_on_with(died, line):
    path = died.out / "history.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = b"\xff" + lines[line - 1][1:]
    path.write_bytes(b"".join(lines))
    history, start = died()
    assert start in (0, 21, 28)
    assert history.same(died.whole)
    assert fp.History.load(path).same(died.whole)
    assert f"line {line}: not a line of a fedpage history" in died.said[0]


def test_a_checkpoint_of_another_run_is_not_taken(died, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    die(other, 30, quadratic(), fp.SCAFFOLD(S=3, K=2), rounds=40, seed=4, record_every=5)
    for path in died.checkpoints:
        path.unlink()
    for path in (other / "checkpoints").iterdir():
        shutil.copy(path, died.out / "checkpoints")
    history, start = died()
    assert start == 0
    assert history.same(died.whole)
    assert "of another run" in died.said[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 50}, "rounds was 40 and is now 50"),
        ({"seed": 4}, "seed was 3 and is now 4"),
        ({"method": fp.SCAFFOLD(S=3, K=3)}, "method.K was 2 and is now 3"),
        ({"method": fp.FedAvg(S=3, K=2)}, "the code of FedAvg has changed"),
        (
            {"problem": fp.Quadratic.random(8, 5, 4, seed=9, spread=3.0, noise=0.0)},
            "problem.digest was",
        ),
        ({"faults": fp.Faults(nan=0.1)}, "faults.nan was None and is now 0.1"),
        ({"x0": np.ones(4)}, "x0 was 'zeros' and is now 'sha256:"),
        ({"stop": fp.Stop(loss=0.1)}, "stop.loss was None and is now 0.1"),
    ],
)
def test_another_run_is_refused_and_nothing_is_lost(died, change, words):
    given = {
        "problem": quadratic(),
        "method": fp.SCAFFOLD(S=3, K=2),
        "rounds": 40,
        "seed": 3,
        "record_every": 5,
    } | change
    before = {path: path.read_bytes() for path in sorted(died.out.rglob("*")) if path.is_file()}
    with pytest.raises(fp.InputError, match=re.escape(words)) as refusal:
        fp.simulate(given.pop("problem"), given.pop("method"), out=died.out, resume=True, **given)
    assert "cannot go on" in str(refusal.value)
    assert {
        path: path.read_bytes() for path in sorted(died.out.rglob("*")) if path.is_file()
    } == before


METHOD = """
from dataclasses import dataclass
from fedpage.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    name = "Mine"
    def server(self, state, replies):
        return super().server(state, replies)
"""


def test_a_methods_new_version_is_refused(run, tmp_path):
    (tmp_path / "mine.py").write_text(METHOD)
    words = [
        "mine.py@Mine",
        "--rounds",
        "30",
        "--clients",
        "40",
        "--S",
        "4",
        "--out",
        "r",
        "--checkpoint-every",
        "5",
    ]
    assert run("run", *words)[0] == 0
    history = tmp_path / "r" / "history.jsonl"
    history.write_bytes(
        b"".join(history.read_bytes().splitlines(keepends=True)[:-1])
    )  # as if it had not ended
    code, _, err = run("resume", "r")
    assert code == 0, err
    history.write_bytes(b"".join(history.read_bytes().splitlines(keepends=True)[:-1]))
    (tmp_path / "mine.py").write_text(METHOD.replace("return super", "return  super"))
    code, _, err = run("resume", "r")
    assert code == 2
    assert err.splitlines()[-1] == (
        "fedpage: r: cannot go on: the code of Mine has changed since the run began; begin a new run"
    )


def test_the_code_of_a_method_is_all_that_it_computes_with(tmp_path, monkeypatch):
    read = set()
    plain = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.add(self.name) or plain(self))
    code_digest(fp.SCAFFOLD)
    assert read == {
        "validate.py",
        "local.py",
        "scaffold.py",
        "local_steps.py",
        "random.py",
        "aggregate.py",
    }
    read.clear()
    code_digest(fp.LogisticRegression)
    assert {"kernels.py", "glm.py", "base.py"} <= read


def test_one_writer_at_a_time(tmp_path):
    problem, method = quadratic(), fp.FedAvg(S=3, K=2)
    with (
        RunDirectory(tmp_path),
        pytest.raises(fp.InputError, match="another process is writing this run"),
    ):
        fp.simulate(problem, method, rounds=2, seed=0, out=tmp_path)
    fp.simulate(problem, method, rounds=2, seed=0, out=tmp_path)


def test_a_full_disk_ends_the_run_in_one_line_and_it_goes_on_when_there_is_room(
    tmp_path, monkeypatch
):
    problem, method = quadratic(), fp.SCAFFOLD(S=3, K=2)
    options = {"rounds": 40, "seed": 3, "record_every": 5, "out": tmp_path, "checkpoint_every": 7}
    whole = fp.simulate(problem, method, rounds=40, seed=3, record_every=5)
    real = os.fsync
    room = {"left": 12}

    def full(number):
        room["left"] -= 1
        if room["left"] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match="No space left on device; the run is safe up to round 14: `fedpage resume"
    ):
        fp.simulate(problem, method, **options)
    assert not list((tmp_path / "checkpoints").glob(".*"))
    monkeypatch.undo()
    assert fp.simulate(problem, method, resume=True, **options).same(whole)


def test_interrupting_writes_a_checkpoint_first(tmp_path):
    problem, method = quadratic(), fp.FedPAGE(S=3, K=2)
    options = {"rounds": 40, "seed": 3, "record_every": 5, "out": tmp_path}

    def progress(done, total, row):
        if done == 15:
            store.ask_to_stop()

    try:
        with pytest.raises(Interrupted, match="interrupted after round 15"):
            fp.simulate(problem, method, progress=progress, **options)
    finally:
        store.ask_to_stop(False)
    assert [path.name[:9] for path in (tmp_path / "checkpoints").iterdir()] == ["000000015"]
    assert fp.simulate(problem, method, resume=True, **options).same(
        fp.simulate(problem, method, rounds=40, seed=3, record_every=5)
    )


def test_a_run_that_gave_up_can_go_on(tmp_path):
    options = {"rounds": 3, "seed": 0, "faults": fp.Faults(gone=(2,)), "out": tmp_path}
    gave_up = fp.simulate(quadratic(), fp.FedPAGE(S=2), **options)
    assert gave_up.stopped.startswith("gave up")
    assert fp.History.load(tmp_path / "history.jsonl").stopped.startswith("cut off")
    assert (
        fp.simulate(quadratic(), fp.FedPAGE(S=2), resume=True, **options).stopped == gave_up.stopped
    )


def test_a_sweep_goes_on_where_it_died(tmp_path):
    problem, chosen = quadratic(), [fp.FedAvg(S=3, K=2), fp.SCAFFOLD(S=3, K=2)]
    whole = fp.sweep(problem, chosen, rounds=20, seeds=2)

    def progress(done, total, run):
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        fp.sweep(problem, chosen, rounds=20, seeds=2, out=tmp_path, progress=progress)
    assert len(list(tmp_path.iterdir())) == 3
    again = fp.sweep(problem, chosen, rounds=20, seeds=2, out=tmp_path, resume=True)
    assert all(one.same(other) for one, other in zip(again, whole, strict=True))


def test_workers_that_were_started_elsewhere_write_to_the_right_place(tmp_path, monkeypatch):
    problem = quadratic()
    for number, K in (
        (1, 2),
        (2, 3),
    ):  # the second sweep finds the first one's workers, in the first one's directory
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        runs = fp.sweep(
            problem, [fp.FedAvg(S=3, K=K)], rounds=5, seeds=2, jobs=2, out="here", resume=True
        )
        stored = [
            fp.History.load(path / "history.jsonl")
            for path in sorted((tmp_path / str(number) / "here").iterdir())
        ]
        assert all(one.same(other) for one, other in zip(runs, stored, strict=True))


def test_the_state_of_a_method_of_ones_own_may_nest(tmp_path):
    template = fp.FedAvg(S=2).init(np.zeros(3), 8)
    nested = type(template)(template, 5)
    tree = checkpoint.unpack(checkpoint.pack({"s": checkpoint.outline_of(nested)}), "here")
    again = checkpoint.filled(nested, tree["s"], "here")
    assert type(again.x) is type(template)
    assert again.x.x.tolist() == [0.0, 0.0, 0.0]
    numbers = type(template)(np.float32(0.5), np.array(2.0))
    tree = checkpoint.unpack(checkpoint.pack({"s": checkpoint.outline_of(numbers)}), "here")
    back = checkpoint.filled(numbers, tree["s"], "here")
    assert [type(part) for part in back] == [np.float32, np.ndarray]
    assert [float(part) for part in back] == [0.5, 2.0]
    tree = checkpoint.unpack(checkpoint.pack({"s": checkpoint.outline_of(nested)}), "here")
    with pytest.raises(fp.InputError, match="another shape or type"):
        checkpoint.filled(fp.FedAvg(S=2).init(np.zeros(4), 8), tree["s"]["x"], "here")
    with pytest.raises(fp.InputError, match="cannot be kept in a checkpoint"):
        checkpoint.pack({"s": object()})


def test_every_number_survives_a_checkpoint():
    tree = {
        "a": np.array([[1.5, -0.0], [np.nan, np.inf]]), "b": np.arange(3), "c": np.zeros((0, 4)), "d": 0.1 + 0.2,
        "e": float("nan"), "f": -float("inf"), "g": 2**70, "h": None, "i": True, "j": ["x", {"k": np.array([True])}],
        "l": np.float32([0.1]), "m": "ü\n",
    }  # fmt: skip
    again = checkpoint.unpack(checkpoint.pack(tree), "here")
    assert repr(again) == repr(tree)
    assert again["a"].tobytes() == tree["a"].tobytes()
    assert checkpoint.pack(again) == checkpoint.pack(tree)


@pytest.mark.parametrize("every", ["", "0", "-1", "1.5", "s", "10x", True, "99999999999"])
def test_intervals_that_are_none(every):
    with pytest.raises(fp.InputError, match="checkpoints come every"):
        store.interval(every)


def test_settings_survive_writing_and_reading():
    table = {
        "format": 1, "text": 'a "quoted" \\ line\nand\ttab \x7f ü', "f": 1e-300, "big": 2**63 - 1, "list": [1, 2],
        "strings": ["a", "b"], "none": None, "on": True, "odd key": 1,
        "sub": {"x": 0.1, "deeper": {"y": "z"}, "empty": {}},
    }  # fmt: skip
    again = toml.loads(toml.dumps(table), "here")
    assert again == {key: value for key, value in table.items() if value is not None}
    assert tomllib.loads(toml.dumps({})) == {}
