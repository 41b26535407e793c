"""The status of a run: the file in its directory, and `fedpage deploy status`."""

from __future__ import annotations

import json
import threading
import time

import pytest

import fedpage as fp
from fedpage.callbacks import checkpointing
from fedpage.callbacks.progress import Pace
from fedpage.report.watch import FollowedRun, RunState
from fedpage.runs.status import RunStatus, read_status


def small_run(folder, rounds=30, **options):
    problem = fp.LogisticRegression(fp.load("census", rows=200), clients=10, metrics=["accuracy"])
    method = fp.FedPAGE(S=2, K=2, eta_g=0.3)
    return fp.simulate(problem, method, rounds=rounds, seed=0, out=folder, **options)


def follow(folder):
    run = FollowedRun(folder)
    run.poll()
    return run


def test_a_simulation_leaves_its_status(tmp_path):
    history = small_run(tmp_path / "run")
    status = read_status(tmp_path / "run")
    assert (status.round, status.rounds, status.end) == (30, 30, "finished")
    assert (status.bytes_down, status.bytes_up) == (
        history.last("bytes_down"),
        history.last("bytes_up"),
    )
    assert status.called == status.answered > 0
    assert status.slowest_client == -1
    assert status.seconds_per_round > 0
    assert follow(tmp_path / "run").state is RunState.FINISHED


def test_the_status_is_written_at_most_once_a_second(tmp_path, monkeypatch):
    now, written = [0.0], []

    def tick(info):
        now[0] += 0.3

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        checkpointing, "write_status", lambda folder, status: written.append(status.round)
    )
    small_run(tmp_path / "run", rounds=10, callbacks=[fp.FunctionCallback(on_round_end=tick)])
    assert written == [0, 4, 8, 10]


def test_a_status_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "run" / "status.json").mkdir(parents=True)
    assert small_run(tmp_path / "run").stop_reason is fp.StopReason.FINISHED


def test_the_status_changes_no_bits(tmp_path):
    assert small_run(tmp_path / "run").same(small_run(None))


@pytest.mark.parametrize("text", ["", "[]", json.dumps({**vars(RunStatus()), "round": "x"})])
def test_a_damaged_status_is_ignored(tmp_path, text):
    small_run(tmp_path / "run")
    (tmp_path / "run" / "status.json").write_text(text)
    assert read_status(tmp_path / "run") is None
    assert follow(tmp_path / "run").state is RunState.FINISHED


def test_the_states_of_a_run(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def die(info):
        if info.round == 7:
            raise Killed

    out, states = tmp_path / "run", []

    class Look(fp.Callback):
        def on_round_end(self, info):
            states.append(follow(out).state)
            die(info)

    with pytest.raises(Killed):
        small_run(out, callbacks=[Look()], options=fp.RunOptions(checkpoint_every=1))
    assert set(states) == {RunState.RUNNING}
    assert follow(out).state is RunState.INTERRUPTED
    assert "Killed" in follow(out).status.detail
    # a killed process writes no end: it is running to those who see its lock, then stale
    status = read_status(out)
    status.end, status.written = "", time.time() - 60
    (out / "status.json").write_text(json.dumps(vars(status)))
    monkeypatch.setattr("fedpage.report.watch._FRESH", 0.0)
    assert follow(out).state is RunState.STALE
    assert follow(out).round == 6  # the last status before the end, of the last round that ended
    options = fp.RunOptions(resume=True)
    small_run(out, stop=None, options=options)
    assert follow(out).state is RunState.FINISHED
    stopped = small_run(tmp_path / "stopped", stop=fp.Stop(budgets={"round": 5}))
    assert stopped.stop_reason is fp.StopReason.BUDGET
    assert follow(tmp_path / "stopped").state is RunState.STOPPED


def test_the_pace_is_that_of_the_last_rounds():
    now = iter([0.0, *(float(10 * i) for i in range(1, 11)), *(100.0 + i for i in range(1, 41))])
    pace = Pace(5, lambda: next(now))
    assert pace.observe(6) == 10.0
    for number in range(7, 15):
        pace.observe(number)
    assert pace.observe(15) == 10.0
    for number in range(16, 55):
        pace.observe(number)
    assert pace.observe(55) == pytest.approx(1.0)
    assert RunStatus(round=55, rounds=155, seconds_per_round=1.0).seconds_left == 100.0


def test_the_command_prints_the_status(run, tmp_path):
    small_run(tmp_path / "run")
    code, out, err = run("deploy", "status", "run")
    assert (code, err) == (0, "")
    for words in ("1 finished", "30/30", "accuracy 0.", "gradient norm"):
        assert words in out
    code, out, _ = run("deploy", "status", "run", "--json")
    (row,) = json.loads(out)["runs"]
    assert (code, row["state"], row["round"], row["rounds"]) == (0, "finished", 30, 30)
    assert row["last"]["round"] == 30
    assert row["status"]["slowest_client"] == -1


def test_the_command_follows_a_run_until_its_end(run, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpage.cli.watch._INTERVAL", 0.05)
    started, seen = threading.Event(), threading.Event()

    class Wait(fp.Callback):
        def on_round_end(self, info):
            if info.round == 3:
                started.set()
                seen.wait(30)

    worker = threading.Thread(
        target=small_run, args=(tmp_path / "run",), kwargs={"callbacks": [Wait()]}
    )
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
