"""Damaged files of a run: a changed bit is noticed, and nothing else is lost."""

import logging
import shutil
import tomllib

import pytest
from support import quadratic, refusal

import fedpage as fp
from fedpage.report.watch import FollowedRun, RunState
from fedpage.runs.history_file import model_path
from fedpage.runs.lock import DirectoryLock

METHOD = fp.FedAvg(S=2, K=1, eta_g=0.1)
ARGUMENTS = {"rounds": 4, "seed": 0, "record_every": 4}
RESUME = fp.RunOptions(resume=True, checkpoint_every=2)


@pytest.fixture
def finished(tmp_path):
    """Return the directory of a small run that has ended, and its history."""
    history = fp.simulate(quadratic(), METHOD, out=tmp_path, options=RESUME, **ARGUMENTS)
    return tmp_path, history


def flips(data):
    """Yield the bytes with one bit changed, in every byte."""
    for place, byte in enumerate(data):
        yield data[:place] + bytes([byte ^ 1 << place % 8]) + data[place + 1 :]


def test_a_changed_bit_of_a_finished_history_is_noticed(finished):
    folder, history = finished
    file = folder / "history.jsonl"
    whole = file.read_bytes()
    for data in flips(whole):
        file.write_bytes(data)
        assert str(file) in refusal(fp.History.load, folder)
    file.write_bytes(whole)
    assert fp.History.load(folder).same(history)


def test_a_changed_bit_of_a_model_is_noticed(finished):
    folder, _ = finished
    file = folder / "history.model.npz"
    for data in flips(file.read_bytes()):
        file.write_bytes(data)
        assert "history.model.npz: damaged" in refusal(fp.History.load, folder)


def test_a_changed_bit_is_noticed_while_a_run_is_followed(finished):
    folder, _ = finished
    file = folder / "history.jsonl"
    whole = file.read_bytes()
    for data in list(flips(whole))[::7]:
        file.write_bytes(data)
        run = FollowedRun(folder)
        run.poll()
        # Without its last line feed, the last line is one that is still being written.
        assert run.state is RunState.UNREADABLE or not data.endswith(b"\n")


@pytest.mark.parametrize("line", [0, 1, -1])
def test_a_damaged_history_is_repaired_by_resuming_the_run(finished, line, caplog):
    folder, history = finished
    file = folder / "history.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"1", b"2", 1)
    file.write_bytes(b"".join(lines))
    assert "restore a copy, or resume the run" in refusal(fp.History.load, folder)
    with caplog.at_level(logging.WARNING, "fedpage"):
        again = fp.simulate(quadratic(), METHOD, out=folder, options=RESUME, **ARGUMENTS)
    assert "damaged (its checksum differs)" in caplog.text
    assert again.same(history)
    stored = fp.History.load(folder)
    assert stored.same(history)
    assert stored.meta == history.meta


def test_a_changed_bit_of_run_toml_is_noticed_or_changes_nothing(finished):
    folder, history = finished
    file = folder / "run.toml"
    whole = file.read_bytes()
    table = tomllib.loads(whole.decode())
    noticed = 0
    for data in flips(whole):
        try:
            if tomllib.loads(data.decode()) == table:
                continue  # a space became a tab, or 1e5 became 1E5
        except ValueError:
            pass
        file.write_bytes(data)
        arguments = {"out": folder, "options": RESUME, **ARGUMENTS}
        assert str(folder) in refusal(fp.simulate, quadratic(), METHOD, **arguments)
        noticed += 1
    assert noticed > len(whole) // 2
    file.write_bytes(whole)
    again = fp.simulate(quadratic(), METHOD, out=folder, options=RESUME, **ARGUMENTS)
    assert again.same(history)


def test_a_history_of_another_version_or_without_a_checksum_is_refused(finished):
    folder, _ = finished
    file = folder / "history.jsonl"
    text = file.read_text()
    file.write_text(text.replace("fedpage-history-", "fedpage-history-0"))
    assert "not a history of this version" in refusal(fp.History.load, folder)
    *lines, end = text.splitlines(keepends=True)
    file.write_text("".join(lines) + end.partition(', "digest": ')[0] + "}\n")
    assert "its checksum differs" in refusal(fp.History.load, folder)


def test_the_history_of_a_killed_run_is_read_with_a_warning(finished, caplog):
    folder, history = finished
    file = folder / "history.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    assert "cut short, only 2 records are left" in refusal(fp.History.load, folder)
    model_path(file).unlink()
    for part in (b"", lines[-1][:10], lines[-1][:-2]):
        caplog.clear()
        file.write_bytes(b"".join(lines[:-1]) + part)
        killed = fp.History.load(folder)
        assert killed.rows == history.rows
        assert killed.stop_reason is fp.StopReason.INTERRUPTED
        assert "history.jsonl: has no end" in caplog.text
    caplog.clear()
    with DirectoryLock(folder):  # a process is writing it
        fp.History.load(folder)
    assert caplog.text == ""


def test_a_damaged_run_of_a_study_is_named_and_the_others_are_read(tmp_path, caplog):
    problem = quadratic()

    def study():
        return fp.Study({"q": problem}, {"a": METHOD}, rounds=4, seeds=3, store=tmp_path)

    whole = study().run().runs()
    place = sorted(tmp_path.iterdir())[1]
    file = place / "history.jsonl"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with caplog.at_level(logging.WARNING, "fedpage"):
        found = study().runs()
    assert len(found) == 2
    assert caplog.text.count(str(file)) == 1
    again = study().run()
    assert again.new_runs == 1
    assert [run.same(whole[key]) for key, run in again.runs().items()] == [True] * 3
    runs = fp.Runs(tmp_path)
    assert len(runs) == 3
    model_path(file).unlink()
    assert list(fp.Runs(tmp_path).problems) == [str(place)]
    shutil.rmtree(place)
    assert len(fp.Runs(tmp_path)) == 2
