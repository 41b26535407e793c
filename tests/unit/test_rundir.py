"""The run directory: what it holds, what it refuses, and that a resumed run has the same bits."""

import dataclasses
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import KINDS
from support import FullDisk, KillAtWrite, Killed, make_method, quadratic, refusal, uneven

import fedpage as fp
from fedpage.callbacks.checkpointing import Checkpointing, request_interrupt
from fedpage.engine.loop import Interrupted
from fedpage.engine.simulate import prepare
from fedpage.runs import checkpoint, store, toml
from fedpage.runs.fingerprint import code_digest, method_digest
from fedpage.runs.spec import RunSpec
from fedpage.runs.store import RunStore

EVERYONE = ("VRL-SGD", "Scaffnew", "EF21-BC", "Newton")
"""Methods that need every client in every round."""
FAULTS = fp.Faults(dropout=0.2, nan=0.05, late=0.2, gone=(7,), gone_from=12)


class KillAfter(fp.Callback):
    """Kill the process at the end of a round, before its checkpoint."""

    def __init__(self, round):
        self.round = round
        self.start = None

    def on_run_start(self, info):
        self.start = info.start

    def on_round_end(self, info):
        if info.round >= self.round:
            raise Killed


class KillAtEnd(fp.Callback):
    """Kill the process after a run has ended."""

    def on_run_end(self, history):
        raise Killed


def kill(out, round, problem, method, *, run_options=None, **arguments):
    """Kill a run after `round` rounds, with a checkpoint every 7 rounds."""
    options = dataclasses.replace(run_options or fp.RunOptions(), checkpoint_every=7)
    with pytest.raises(Killed):
        fp.simulate(
            problem, method, out=out, callbacks=[KillAfter(round)], options=options, **arguments
        )


@pytest.mark.parametrize("name", KINDS)
def test_a_killed_run_resumes_to_the_same_bits(name, tmp_path):
    """Clients fail, too; the public laws resume every method without failures."""
    problem, method = uneven(), make_method(name, 4, 3, 0.1)
    faults = FAULTS if method.name not in EVERYONE else dataclasses.replace(FAULTS, gone=())
    arguments = {"rounds": 24, "seed": 3, "record_every": 5}
    first = fp.RunOptions(faults=faults)
    again = dataclasses.replace(first, resume=True, checkpoint_every=7)
    whole = fp.simulate(problem, method, options=first, **arguments)
    kill(tmp_path, 9, problem, method, run_options=first, **arguments)
    threads = dataclasses.replace(again, threads=3, chunk=2)
    kill(tmp_path, 18, problem, method, run_options=threads, **arguments)
    resumed = fp.simulate(problem, method, out=tmp_path, options=again, **arguments)
    stored = fp.History.load(tmp_path)
    for history in (resumed, stored):
        assert history.same(whole)
        assert history.events == whole.events
    assert fp.simulate(problem, method, out=tmp_path, options=again, **arguments).same(whole)


def test_a_run_survives_a_kill_before_and_after_every_write(tmp_path, monkeypatch):
    """Kill it at each write, sync and rename of a run with a checkpoint every other round."""
    problem, method = quadratic(), fp.SCAFFOLD(S=3, K=2)
    arguments = {"rounds": 9, "seed": 0, "record_every": 2}
    begin, resume = (fp.RunOptions(checkpoint_every=2, resume=resume) for resume in (False, True))
    whole = fp.simulate(problem, method, **arguments)
    killer, append = KillAtWrite(monkeypatch), RunStore.append

    def append_a_part(self, entry):
        try:
            killer.may_kill()
        except Killed:
            self._stream.write(json.dumps(entry).encode()[:25])
            raise
        append(self, entry)

    monkeypatch.setattr(RunStore, "append", append_a_part)
    kills = 0
    for moment in range(1, 1000):
        out = tmp_path / str(moment)
        killer.left = moment
        try:
            fp.simulate(problem, method, out=out, options=begin, **arguments)
        except Killed:
            kills += 1
        else:
            break
        killer.left = moment // 2 + 3  # and once more while it resumes
        try:
            fp.simulate(problem, method, out=out, options=resume, **arguments)
        except Killed:
            kills += 1
        killer.left = 0
        assert fp.simulate(problem, method, out=out, options=resume, **arguments).same(whole)
        assert fp.History.load(out / "history.jsonl").same(whole)
        shutil.rmtree(out)
    assert kills > 50


def test_two_checkpoints_are_kept_and_numpy_reads_them(tmp_path):
    options = fp.RunOptions(checkpoint_every=4)
    fp.simulate(
        quadratic(), fp.SCAFFOLD(S=3, K=2), rounds=20, seed=0, out=tmp_path, options=options
    )
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert [name[:9] for name in names] == ["000000016", "000000020"]
    with np.load(tmp_path / "checkpoints" / names[1], allow_pickle=False) as archive:
        outline = json.loads(archive["outline"].tobytes())
        assert outline["tree"]["run"]["round"] == 20
        assert sum(archive[name].size for name in archive.files if name != "outline") > 0


@pytest.fixture
def killed(tmp_path):
    """Kill a run of 40 rounds after round 30, with checkpoints at 21 and 28."""
    problem, method = quadratic(), fp.SCAFFOLD(S=3, K=2)
    arguments = {"rounds": 40, "seed": 3, "record_every": 5}
    whole = fp.simulate(problem, method, **arguments)
    kill(tmp_path, 30, problem, method, **arguments)

    class Killed:
        def __init__(self):
            self.out, self.whole = tmp_path, whole
            self.checkpoints = sorted((tmp_path / "checkpoints").iterdir())
            self.messages: list[str] = []

        def __call__(self, callbacks=()):
            """Return the history of the resumed run, and the round it resumed from."""
            run = prepare(RunSpec(problem, method, **arguments))
            self.messages.clear()
            with RunStore(tmp_path, checkpoint_every=7, notify=self.messages.append) as store:
                finished = store.open_run(run, resume=True)
                start = run.rounds_done
                if finished is not None:
                    return finished, start
                return run.run([*callbacks, Checkpointing(store)]), start

    return Killed()


def test_a_run_resumes_from_the_newest_checkpoint(killed):
    history, start = killed()
    assert (start, history.same(killed.whole)) == (28, True)
    assert killed.messages == [f"{killed.out}: resuming after round 28"]
    assert killed()[0].same(killed.whole)
    assert killed.messages == [f"{killed.out}: the run has already ended"]


def flip(data, at):
    """Return bytes with one bit changed."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def damage_line(data, number):
    """Return the lines of a file, one of which begins with a byte that is not UTF-8."""
    lines = data.splitlines(keepends=True)
    lines[number - 1] = b"\xff" + lines[number - 1][1:]
    return b"".join(lines)


NEWEST, HISTORY = "checkpoints/000000028-*", "history.jsonl"


@pytest.mark.parametrize(
    ("file", "change", "start", "message"),
    [
        (NEWEST, lambda data: flip(data, 0), 21, "damaged (its checksum differs)"),
        (NEWEST, lambda data: flip(data, len(data) // 2), 21, "damaged (its checksum differs)"),
        (NEWEST, lambda data: flip(data, -1), 21, "damaged (its checksum differs)"),
        (NEWEST, lambda data: data[: len(data) // 2], 21, "damaged (its checksum differs)"),
        (NEWEST, lambda data: b"", 21, "damaged (its checksum differs)"),
        (NEWEST, lambda data: b"PK no archive", 21, "damaged (its checksum differs)"),
        (HISTORY, lambda data: data + b'{"round": 31, "lo', 28, "the last line is incomplete"),
        (HISTORY, lambda data: data.replace(b": 20,", b": 19,"), 0, "jsonl has changed"),
        (HISTORY, lambda data: damage_line(data, 1), 28, "line 1: not a line of a fedpage history"),
        (HISTORY, lambda data: damage_line(data, 3), 0, "line 3: not a line of a fedpage history"),
        (HISTORY, lambda data: damage_line(data, 8), 28, "line 8: not a line of a fedpage history"),
    ],
)  # fmt: skip
def test_a_run_resumes_before_what_has_changed(killed, file, change, start, message):
    (path,) = killed.out.glob(file)
    path.write_bytes(change(path.read_bytes()))
    history, found = killed()
    assert (found, history.same(killed.whole)) == (start, True)
    assert fp.History.load(killed.out).same(killed.whole)
    assert path.name in killed.messages[0]
    assert message in killed.messages[0]


def test_rejected_checkpoints_do_not_replace_new_ones(killed):
    for path in killed.checkpoints:
        path.write_bytes(b"")
    with pytest.raises(Killed):
        killed([KillAfter(15)])
    assert "no checkpoint to resume from; the run begins again" in killed.messages[-1]
    names = sorted(path.name[:9] for path in (killed.out / "checkpoints").iterdir())
    assert names == ["000000007", "000000014"]
    history, start = killed()
    assert (start, history.same(killed.whole)) == (14, True)


def test_a_whole_number_and_the_same_float_are_one_setting(tmp_path):
    problem, arguments = quadratic(), {"rounds": 40, "seed": 3, "record_every": 5}
    kill(tmp_path, 30, problem, fp.FedPAGE(S=3, K=2, eta_g=1, p=1), **arguments)
    method, observer = fp.FedPAGE(S=3, K=2, eta_g=1.0, p=1.0), KillAfter(100)
    options = fp.RunOptions(resume=True)
    history = fp.simulate(
        problem, method, out=tmp_path, callbacks=[observer], options=options, **arguments
    )
    assert observer.start == 28
    assert history.same(fp.simulate(problem, method, **arguments))


def test_a_checkpoint_of_another_run_is_not_used(killed, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    kill(other, 30, quadratic(), fp.SCAFFOLD(S=3, K=2), rounds=40, seed=4, record_every=5)
    for path in killed.checkpoints:
        path.unlink()
    for path in (other / "checkpoints").iterdir():
        shutil.copy(path, killed.out / "checkpoints")
    history, start = killed()
    assert start == 0
    assert history.same(killed.whole)
    assert "belongs to another run" in killed.messages[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 20}, "30 are done; give at least 30"),
        ({"seed": 4}, "seed was 3 and is now 4"),
        ({"method": fp.SCAFFOLD(S=3, K=3)}, "method.K was 2 and is now 3"),
        ({"method": fp.FedAvg(S=3, K=2)}, "the code of FedAvg has changed"),
        ({"problem": fp.Quadratic.random(8, 5, 4, seed=9, spread=3.0)}, "problem.digest was"),
        ({"options": {"faults": fp.Faults(nan=0.1)}}, "faults.nan was None and is now 0.1"),
        ({"options": {"x0": np.ones(4)}}, "x0 was 'zeros' and is now 'sha256:"),
        (
            {"options": {"devices": fp.Devices(deadline=2.0)}},
            "devices.deadline was None and is now",
        ),
        ({"record_every": "log"}, "record_every was 5 and is now 'log'"),
        ({"stop": fp.Stop("loss:0.1,hold=0")}, "stop.target was None and is now ["),
    ],
)
def test_resuming_with_other_settings_is_refused_and_changes_no_file(killed, change, words):
    def contents():
        return {path: path.read_bytes() for path in killed.out.rglob("*") if path.is_file()}

    given = {"rounds": 40, "seed": 3, "record_every": 5, "out": killed.out} | change
    given["options"] = fp.RunOptions(resume=True, **change.get("options", {}))
    problem = given.pop("problem", quadratic())
    method = given.pop("method", fp.SCAFFOLD(S=3, K=2))
    before = contents()
    said = refusal(fp.simulate, problem, method, **given)
    assert words in said
    assert "cannot resume" in said
    assert contents() == before


def test_the_digest_of_a_method_includes_all_code_that_it_uses(tmp_path, monkeypatch):
    read = set()
    plain = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.add(self.name) or plain(self))
    code_digest(fp.SCAFFOLD)
    assert read == {
        "validate.py", "base.py", "local.py", "scaffold.py", "local_steps.py", "random.py",
        "messages.py",
    }  # fmt: skip
    read.clear()
    code_digest(fp.FedProx)
    assert "optimizers.py" in read  # of local_training, below its decorator
    read.clear()
    code_digest(fp.LogisticRegression)
    assert {"kernels.py", "linear.py", "base.py"} <= read


@pytest.mark.parametrize("up", ["randk:3", "scaled(randk:3)", "topk:3+natural"])
def test_the_digest_of_a_method_includes_its_codecs(monkeypatch, up):
    """A codec may contain others, so the code of all of them counts."""
    method = fp.EF21(up=up) if up != "randk:3" else fp.COFIG(up=up)
    before = method_digest(method)
    assert before == method_digest(dataclasses.replace(method))
    assert before != method_digest(dataclasses.replace(method, up="none"))
    plain = Path.read_bytes
    for name in ("sparse.py", "kernels.py", "quantise.py"):
        monkeypatch.setattr(
            Path, "read_bytes", lambda self, name=name: plain(self) + b"#" * (self.name == name)
        )
        assert method_digest(method) != before


def test_a_full_disk_ends_the_run_in_one_line_and_the_run_resumes(tmp_path, monkeypatch):
    problem, method = quadratic(), fp.SCAFFOLD(S=3, K=2)
    arguments = {"rounds": 40, "seed": 3, "record_every": 5, "out": tmp_path}
    options = fp.RunOptions(checkpoint_every=7)
    whole = fp.simulate(problem, method, rounds=40, seed=3, record_every=5)
    FullDisk(monkeypatch).left = 16
    with pytest.raises(
        OSError, match="No space left on device; the run is safe up to round 14: RunOptions"
    ):
        fp.simulate(problem, method, options=options, **arguments)
    assert not list((tmp_path / "checkpoints").glob(".*"))
    monkeypatch.undo()
    options = dataclasses.replace(options, resume=True)
    assert fp.simulate(problem, method, options=options, **arguments).same(whole)


def test_an_interrupted_run_writes_a_checkpoint_first(tmp_path):
    problem, method = quadratic(), fp.FedPAGE(S=3, K=2)
    arguments = {"rounds": 40, "seed": 3, "record_every": 5}
    histories: list[fp.History] = []

    def interrupt(info):
        if info.round == 13:
            request_interrupt()

    observer = fp.FunctionCallback(on_round_end=interrupt, on_run_end=histories.append)
    try:
        with pytest.raises(Interrupted, match="interrupted after round 13; RunOptions"):
            fp.simulate(problem, method, callbacks=[observer], out=tmp_path, **arguments)
    finally:
        request_interrupt(False)
    assert histories[0].stop_reason is fp.StopReason.INTERRUPTED
    assert [path.name[:9] for path in (tmp_path / "checkpoints").iterdir()] == ["000000013"]
    options = fp.RunOptions(resume=True)
    assert fp.simulate(problem, method, out=tmp_path, options=options, **arguments).same(
        fp.simulate(problem, method, **arguments)
    )


def test_a_run_whose_round_failed_can_be_resumed(tmp_path):
    faults = fp.Faults(gone=(2,))
    arguments = {"rounds": 3, "seed": 0, "out": tmp_path}
    choices = [fp.RunOptions(faults=faults, resume=resume) for resume in (False, True)]
    failed, again = (
        fp.simulate(quadratic(), fp.FedPAGE(S=2), options=options, **arguments)
        for options in choices
    )
    assert failed.stop_reason is again.stop_reason is fp.StopReason.ROUND_FAILED
    assert failed.stop_detail == again.stop_detail != ""
    stored = fp.History.load(tmp_path / "history.jsonl")
    assert stored.stop_reason is fp.StopReason.INTERRUPTED


def test_a_sweep_resumes_where_it_was_killed(tmp_path):
    problem, methods = quadratic(), [fp.FedAvg(S=3, K=2), fp.SCAFFOLD(S=3, K=2)]
    arguments = {"rounds": 20, "seeds": 2}
    whole = fp.sweep(problem, methods, **arguments)

    def make_callbacks(method, seed):
        return [KillAtEnd()] if method == methods[1] and seed == 0 else []

    with pytest.raises(Killed):
        fp.sweep(problem, methods, out=tmp_path, callbacks=make_callbacks, **arguments)
    assert len(list(tmp_path.iterdir())) == 3
    options = fp.RunOptions(resume=True)
    again = fp.sweep(problem, methods, out=tmp_path, options=options, **arguments)
    assert all(one.same(other) for one, other in zip(again, whole, strict=True))


def test_workers_started_in_another_directory_write_to_the_given_out(tmp_path, monkeypatch):
    problem = quadratic()
    arguments = {"rounds": 5, "seeds": 2, "jobs": 2, "options": fp.RunOptions(resume=True)}
    for K in (2, 3):  # the second sweep reuses the workers of the first
        place = tmp_path / str(K)
        place.mkdir()
        monkeypatch.chdir(place)
        runs = fp.sweep(problem, [fp.FedAvg(S=3, K=K)], out="here", **arguments)
        stored = [fp.History.load(path) for path in sorted((place / "here").iterdir())]
        assert all(one.same(other) for one, other in zip(runs, stored, strict=True))


def test_the_state_of_a_method_may_nest(tmp_path):
    template = fp.FedAvg(S=2).init(np.zeros(3), 8)
    nested = type(template)(template, 5)
    tree = checkpoint.unpack(checkpoint.pack({"s": checkpoint.state_to_tree(nested)}), "here")
    again: Any = checkpoint.state_from_tree(nested, tree["s"], "here")
    assert type(again.x) is type(template)
    assert again.x.x.tolist() == [0.0, 0.0, 0.0]
    numbers = type(template)(np.float32(0.5), np.array(2.0))
    tree = checkpoint.unpack(checkpoint.pack({"s": checkpoint.state_to_tree(numbers)}), "here")
    back = checkpoint.state_from_tree(numbers, tree["s"], "here")
    assert [type(part) for part in back] == [np.float32, np.ndarray]
    assert [float(part) for part in back] == [0.5, 2.0]
    tree = checkpoint.unpack(checkpoint.pack({"s": checkpoint.state_to_tree(nested)}), "here")
    other = fp.FedAvg(S=2).init(np.zeros(4), 8)
    said = refusal(checkpoint.state_from_tree, other, tree["s"]["x"], "here")
    assert "another shape or type" in said
    assert "cannot hold a object" in refusal(checkpoint.pack, {"s": object()})


def test_every_number_survives_a_checkpoint():
    array = np.array([[1.5, -0.0], [np.nan, np.inf]])
    tree = {
        "a": array, "b": np.arange(3), "c": np.zeros((0, 4)),
        "d": 0.1 + 0.2, "e": float("nan"), "f": -float("inf"), "g": 2**70, "h": None, "i": True,
        "j": ["x", {"k": np.array([True])}], "l": np.float32([0.1]), "m": "ü\n",
    }  # fmt: skip
    again = checkpoint.unpack(checkpoint.pack(tree), "here")
    assert repr(again) == repr(tree)
    assert again["a"].tobytes() == array.tobytes()
    assert checkpoint.pack(again) == checkpoint.pack(tree)


@pytest.mark.parametrize("every", ["", "0", "-1", "1.5", "s", "10x", True, "99999999999"])
def test_wrong_intervals_are_refused(every):
    assert "the interval between checkpoints" in refusal(store.parse_interval, every)


def test_settings_survive_writing_and_reading():
    table = {
        "format": 1, "text": 'a "quoted" \\ line\nand\ttab \x7f ü', "f": 1e-300, "big": 2**63 - 1,
        "list": [1, 2], "strings": ["a", "b"], "none": None, "on": True, "odd key": 1,
        "sub": {"x": 0.1, "deeper": {"y": "z"}, "empty": {}},
    }  # fmt: skip
    again = toml.loads(toml.dumps(table), "here")
    assert again == {key: value for key, value in table.items() if value is not None}
    assert tomllib.loads(toml.dumps({})) == {}


@pytest.mark.parametrize("is_hidden", [False, True])
def test_the_end_of_memory_names_the_round_to_resume_from(tmp_path, monkeypatch, is_hidden):
    """A BytesIO that cannot grow is closed, and zipfile then raises a ValueError."""

    def fail_to_write(stream, *_, **__):
        stream._fileobj.close()
        raise MemoryError

    def run_out_of_memory(info):
        if info.round == 8 and is_hidden:
            monkeypatch.setattr("numpy.lib.format.write_array", fail_to_write)
        elif info.round == 8:
            raise MemoryError("Unable to allocate 3 GiB")

    arguments = {"rounds": 20, "seed": 0, "out": tmp_path}
    options = fp.RunOptions(checkpoint_every=3)
    observer = fp.FunctionCallback(on_round_end=run_out_of_memory)
    problem, method = uneven(), fp.SCAFFOLD(S=4, K=2)
    with pytest.raises(MemoryError) as error:
        fp.simulate(problem, method, options=options, callbacks=[observer], **arguments)
    monkeypatch.undo()
    assert isinstance(error.value.__cause__, ValueError) == is_hidden
    what = "not enough memory" + ("" if is_hidden else " (Unable to allocate 3 GiB)")
    advice = "the run is safe up to round 6: RunOptions(resume=True) continues it"
    assert str(error.value) == f"{what}; {advice}"
    options = dataclasses.replace(options, resume=True)
    history = fp.simulate(problem, method, options=options, **arguments)
    assert history.same(fp.simulate(problem, method, rounds=20, seed=0))
