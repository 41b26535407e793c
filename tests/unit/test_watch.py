"""Follow runs that are being written: their states and the table of `fedpage watch`."""

from __future__ import annotations

import json
import shutil

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.report.watch import FollowedRun, RunFollower, RunState
from fedpage.runs.lock import is_in_use
from fedpage.runs.store import RunStore


@pytest.fixture
def folder(tmp_path):
    """Two finished runs below a directory."""
    problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20)
    fp.sweep(
        problem, [fp.FedAvg(S=2)], rounds=40, seeds=2, record_every=10, out=tmp_path / "all/runs"
    )
    return tmp_path / "all"


def cut(run, count):
    """Leave so many lines of a run's history, and return the others."""
    file = run / "history.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:count]))
    return lines[count:]


def append(run, *lines):
    with open(run / "history.jsonl", "ab") as stream:
        stream.write(b"".join(lines))


def test_new_records_are_read_as_they_come(folder):
    path = folder / "runs" / "0-fedavg-seed0"
    whole = fp.History.load(path)
    rest = cut(path, 2)
    run = FollowedRun(path)
    run.poll()
    assert (run.round, run.rounds, len(run.history)) == (0, 40, 1)
    assert str(run.state) == "running"  # the file has just been written
    append(path, rest[0], rest[1][:20])  # half a line is left for the next time
    run.poll()
    assert run.round == 10
    append(path, rest[1][20:], *rest[2:])
    run.poll()
    assert str(run.state) == "finished"
    assert run.history.rows == whole.rows
    assert run.rate > 0


def test_a_file_that_is_cut_or_begun_again_is_read_anew(folder):
    path = folder / "runs" / "0-fedavg-seed0"
    run = FollowedRun(path)
    run.poll()
    rest = cut(path, 3)  # as a resumed run does
    run.poll()
    assert (run.round, run.state) == (10, RunState.RUNNING)
    cut(path, 1)
    other = json.loads(rest[0]) | {"loss": 7.0, "round": 5}
    append(path, json.dumps(other).encode() + b"\n", *rest)  # longer than what was read
    run.poll()
    assert run.history.rows[0]["loss"] == 7.0


def test_states_without_an_end(folder, monkeypatch):
    path = folder / "runs" / "0-fedavg-seed0"
    cut(path, 3)
    monkeypatch.setattr("fedpage.report.watch._FRESH", -1.0)  # as if it were written long ago
    run = FollowedRun(path)
    run.poll()
    assert str(run.state) == "stale"
    with RunStore(path):
        assert is_in_use(path)
        assert str(run.state) == "running"
    assert not is_in_use(path)
    append(path, b"[]\n")
    run.poll()
    assert str(run.state) == "unreadable"
    assert "line 4: not a line of a fedpage history" in run.error


def test_runs_are_found_at_any_depth(folder, tmp_path):
    follower = RunFollower(folder)
    follower.poll()
    assert list(follower.runs) == ["runs/0-fedavg-seed0", "runs/0-fedavg-seed1"]
    shutil.rmtree(folder / "runs" / "0-fedavg-seed1")
    follower.poll()
    assert len(follower.runs) == 1
    with pytest.raises(InputError, match="is not a directory"):
        RunFollower(tmp_path / "nothing")


def test_given_runs_that_have_not_begun_are_listed(folder):
    places = {"first": folder / "runs" / "0-fedavg-seed0", "second": folder / "missing"}
    follower = RunFollower(folder, places)
    follower.poll()
    assert [str(run.state) for run in follower.runs.values()] == ["finished", "not begun"]


def test_watch_once(run, refused, folder):
    code, out, _ = run("watch", str(folder), "--once")
    assert code == 0
    assert "2 finished" in out
    assert "0-fedavg-seed1" in out
    assert "40/40" in out
    assert "gradient norm" in out
    code, out, _ = run("watch", str(folder), "--json")
    first = json.loads(out)["runs"][0]
    assert (first["run"], first["state"], first["round"]) == ("runs/0-fedavg-seed0", "finished", 40)
    assert first["last"]["round"] == 40
    refused(["watch", "nowhere", "--once"], "nowhere: is not a directory")


def test_a_damaged_run_does_not_hide_the_others(run, folder):
    append(folder / "runs" / "0-fedavg-seed0", b"rubbish\n")
    out = run("watch", str(folder), "--once")[1]
    assert "1 unreadable, 1 finished" in out


def test_running_runs_are_shown_first(folder):
    cut(folder / "runs" / "0-fedavg-seed1", 3)
    follower = RunFollower(folder)
    follower.poll()
    table = follower.table(limit=1)
    assert table.caption == "and 1 more"
    assert [str(cell) for cell in table.columns[1].cells] == ["running"]
