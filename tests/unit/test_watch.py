"""Follow runs: status.json, their states, `fedpage watch` and `fedpage deploy status`."""

import json
import shutil
import threading
import time

import pytest

import fedpage as fp
from fedpage.callbacks import checkpointing
from fedpage.callbacks.progress import Pace
from fedpage.core.errors import InputError
from fedpage.report.watch import FollowedRun, RunFollower, RunState
from fedpage.runs.status import RunStatus, read_status
from fedpage.runs.store import RunStore


def small_run(folder, rounds=40, **options):
    problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20, metrics=["accuracy"])
    method = fp.FedPAGE(S=2, K=2, eta_g=0.3)
    options = {"rounds": rounds, "seed": 0, "record_every": 10} | options
    return fp.simulate(problem, method, out=folder, **options)


@pytest.fixture
def path(tmp_path):
    """Return the directory of a finished run."""
    small_run(tmp_path / "all/run")
    return tmp_path / "all/run"


def follow(folder):
    run = FollowedRun(folder)
    run.poll()
    return run


def cut(run, count):
    """Leave so many lines of a run's history, and return the others."""
    file = run / "history.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:count]))
    return lines[count:]


def append(run, *lines):
    with open(run / "history.jsonl", "ab") as stream:
        stream.write(b"".join(lines))


# --- status.json ----------------------------------------------------------------------------------


def test_a_simulation_leaves_its_status(tmp_path):
    history = small_run(tmp_path)
    status = read_status(tmp_path)
    assert (status.round, status.rounds, status.end) == (40, 40, "finished")
    sent = {name: history.last(name) for name in ("bytes_down", "bytes_up")}
    assert {name: getattr(status, name) for name in sent} == sent
    assert status.called == status.answered > 0
    assert status.slowest_client == -1
    assert status.seconds_per_round > 0
    assert history.same(small_run(None))


def test_the_status_is_written_at_most_once_a_second(tmp_path, monkeypatch):
    now, written = [0.0], []

    def tick(info):
        now[0] += 0.3

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        checkpointing, "write_status", lambda folder, status: written.append(status.round)
    )
    small_run(tmp_path, rounds=10, callbacks=[fp.FunctionCallback(on_round_end=tick)])
    assert written == [0, 4, 8, 10]


def test_a_status_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "status.json").mkdir()
    assert small_run(tmp_path).stop_reason is fp.StopReason.FINISHED


@pytest.mark.parametrize("text", ["", "[]", json.dumps({**vars(RunStatus()), "round": "x"})])
def test_a_damaged_status_is_ignored(path, text):
    (path / "status.json").write_text(text)
    assert read_status(path) is None
    assert follow(path).state is RunState.FINISHED


def test_the_pace_is_that_of_the_last_rounds():
    now = iter([0.0, *(float(10 * i) for i in range(1, 11)), *(100.0 + i for i in range(1, 41))])
    pace = Pace(5, lambda: next(now))
    seen = {number: pace.observe(number) for number in range(6, 56)}
    assert (seen[6], seen[15]) == (10.0, 10.0)
    assert seen[55] == pytest.approx(1.0)


# --- states ---------------------------------------------------------------------------------------


def test_new_records_are_read_as_they_come(path):
    whole = fp.History.load(path)
    rest = cut(path, 2)
    (path / "status.json").unlink()
    run = follow(path)
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


def test_a_file_that_is_cut_or_begun_again_is_read_anew(path):
    run = follow(path)
    rest = cut(path, 3)  # as a resumed run does
    run.poll()
    assert (len(run.history), run.state) == (2, RunState.RUNNING)
    cut(path, 1)
    other = json.loads(rest[0]) | {"loss": 7.0, "round": 5}
    append(path, json.dumps(other).encode() + b"\n", *rest)  # longer than what was read
    run.poll()
    assert run.history.rows[0]["loss"] == 7.0


def test_the_states_of_a_run(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    out, states = tmp_path / "run", []

    def look(info):
        states.append(follow(out).state)
        if info.round == 7:
            raise Killed

    with pytest.raises(Killed):
        small_run(
            out, callbacks=[fp.FunctionCallback(on_round_end=look)],
            options=fp.RunOptions(checkpoint_every=1),
        )  # fmt: skip
    assert set(states) == {RunState.RUNNING}
    assert follow(out).state is RunState.INTERRUPTED
    assert "Killed" in follow(out).status.detail
    # a killed process writes no end: it is running to those who see its lock, then stale
    status = read_status(out)
    status.end, status.written = "", time.time() - 60
    (out / "status.json").write_text(json.dumps(vars(status)))
    monkeypatch.setattr("fedpage.report.watch._FRESH", 0.0)
    run = follow(out)
    assert (run.state, run.round) == (RunState.STALE, 6)  # the last round that ended
    with RunStore(out):
        assert run.state is RunState.RUNNING
    append(out, b"[]\n")
    assert follow(out).state is RunState.UNREADABLE
    assert "not a line of a fedpage history" in follow(out).error


def test_a_run_that_a_rule_ends_is_stopped(tmp_path):
    assert small_run(tmp_path, stop=fp.Stop(budgets={"round": 5})).stop_reason == "budget spent"
    assert follow(tmp_path).state is RunState.STOPPED


def test_runs_are_found_at_any_depth_or_given(path, tmp_path):
    shutil.copytree(path, path.with_name("second"))
    follower = RunFollower(path.parent)
    follower.poll()
    assert list(follower.runs) == ["run", "second"]
    shutil.rmtree(path)
    follower.poll()
    assert list(follower.runs) == ["second"]
    follower = RunFollower(tmp_path, {"first": path.with_name("second"), "other": path})
    follower.poll()
    assert [run.state for run in follower.runs.values()] == ["finished", "not begun"]
    with pytest.raises(InputError, match="is not a directory"):
        RunFollower(tmp_path / "nothing")


def test_running_runs_are_shown_first(path):
    cut(shutil.copytree(path, path.with_name("second")), 3)
    follower = RunFollower(path.parent)
    follower.poll()
    table = follower.table(limit=1)
    assert table.caption == "and 1 more"
    assert [str(cell) for cell in table.columns[1].cells] == ["running"]


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("watch", "all", "--once"), ("deploy", "status", "all/run")])
def test_the_commands_print_a_table(run, path, words):
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    for word in ("1 finished", "run", "40/40", "accuracy 0.", "gradient norm"):
        assert word in out
    code, out, _ = run(*words, "--json")
    (row,) = json.loads(out)["runs"]
    assert (code, row["state"], row["round"], row["rounds"]) == (0, "finished", 40, 40)
    assert (row["last"]["round"], row["status"]["slowest_client"]) == (40, -1)


def test_a_damaged_run_does_not_hide_the_others(run, refused, path):
    append(shutil.copytree(path, path.with_name("second")), b"rubbish\n")
    assert "1 unreadable, 1 finished" in run("watch", "all", "--once")[1]
    refused(["watch", "nowhere", "--once"], "nowhere: is not a directory")


def test_the_command_follows_a_run_until_its_end(run, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpage.cli.watch._INTERVAL", 0.05)
    started, seen = threading.Event(), threading.Event()

    def wait(info):
        if info.round == 3:
            started.set()
            seen.wait(30)

    callbacks = {"callbacks": [fp.FunctionCallback(on_round_end=wait)]}
    worker = threading.Thread(target=small_run, args=(tmp_path / "run",), kwargs=callbacks)
    worker.start()
    assert started.wait(30)
    assert follow(tmp_path / "run").state is RunState.RUNNING
    threading.Timer(0.5, seen.set).start()
    code, out, _ = run("deploy", "status", "run")
    worker.join()
    assert code == 0
    assert "finished" in out


def test_the_command_can_wait_for_a_run_to_begin(run, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpage.cli.watch._INTERVAL", 0.05)
    worker = threading.Timer(0.5, small_run, args=(tmp_path / "later",))
    worker.start()
    code, out, _ = run("deploy", "status", "later", "--wait", "60")
    worker.join()
    assert code == 0
    assert "finished" in out
    assert run("deploy", "status", "never", "--wait", "0.2")[0] == 2
