"""Callbacks: their hooks, the progress bar, the trackers (each with its real library)."""

import sys
import time

import numpy as np
import pytest
from support import quadratic, refusal

import fedpage as fp
from fedpage.callbacks.progress import progress_bars
from fedpage.studies.study import study_of_methods


def linear():
    return fp.LogisticRegression(fp.load("census", rows=200), clients=20)


def simulate(*callbacks, **options):
    """Run FedPAGE with callbacks."""
    options = {"rounds": 3, "seed": 4} | options
    return fp.simulate(linear(), fp.FedPAGE(S=2), callbacks=callbacks, **options)


class Recorder(fp.Callback):
    """Note every call."""

    def __init__(self):
        self.calls = []

    def on_run_start(self, info):
        self.calls.append(("start", info.meta["seed"], info.rounds, info.start))

    def on_event(self, event):
        self.calls.append(("event", event.kind, event.round))

    def on_record(self, record, x):
        self.calls.append(("record", record["round"], x.shape))

    def on_round_end(self, info):
        self.calls.append(("round", info.round, info.is_last))

    def on_run_end(self, history):
        self.calls.append(("end", history.stop_reason))


def test_the_hooks_are_called_in_order_and_change_no_bit():
    recorder, d = Recorder(), (linear().d,)
    history = simulate(recorder, record_every=2)
    assert recorder.calls == [
        ("start", 4, 3, 0),
        ("record", 0, d),
        ("round", 1, False),
        ("record", 2, d),
        ("round", 2, False),
        ("record", 3, d),
        ("round", 3, True),
        ("end", fp.StopReason.FINISHED),
    ]
    assert history.same(simulate(record_every=2))


def test_callbacks_get_the_events_of_the_history():
    recorder, options = Recorder(), fp.RunOptions(faults=fp.Faults(nan=0.2))
    history = fp.simulate(
        quadratic(), fp.FedAvg(S=4), rounds=20, seed=0, callbacks=[recorder], options=options
    )
    events = [call[1:] for call in recorder.calls if call[0] == "event"]
    assert events == [(event["event"], event["round"]) for event in history.events] != []


def test_a_callback_cannot_change_the_run():
    class Meddler(fp.Callback):
        def on_run_start(self, info):
            self.info = info

        def on_record(self, record, x):
            record["loss"] = -5.0
            with pytest.raises(ValueError, match="read-only"):
                x += 1

        def on_round_end(self, info):
            state = self.info.snapshot()["engine"]["state"]
            with pytest.raises(ValueError, match="read-only"):
                state["x"] += 1
            state["x"] = None

    assert simulate(Meddler()).same(simulate())


@pytest.mark.parametrize("hook", ["on_run_start", "on_record", "on_round_end", "on_run_end"])
def test_a_callback_that_raises_does_not_keep_others_from_ending(hook):
    def fail(*_):
        raise RuntimeError("the callback's own")

    first, bad, last = Recorder(), Recorder(), Recorder()
    setattr(bad, hook, fail)
    with pytest.raises(RuntimeError, match="the callback's own"):
        simulate(first, bad, last, rounds=1)
    reason = fp.StopReason.FINISHED if hook == "on_run_end" else fp.StopReason.INTERRUPTED
    assert first.calls[-1] == ("end", reason)
    if hook == "on_run_start":
        assert last.calls == []  # it was never started
        assert bad.calls == [("end", reason)]
    else:
        assert last.calls[-1] == ("end", reason)


def test_a_callback_can_end_the_run():
    def stop_after_three(info):
        return fp.Stopped(fp.StopReason.CALLBACK, "three") if info.round == 3 else None

    recorder = Recorder()
    observer = fp.FunctionCallback(on_round_end=stop_after_three)
    history = simulate(observer, recorder, rounds=9)
    assert (history.stop_reason, history.stop_detail) == (fp.StopReason.CALLBACK, "three")
    assert history["round"].tolist() == [0, 3]
    assert recorder.calls[-1] == ("end", fp.StopReason.CALLBACK)


RUN = {"problem": linear(), "method": fp.FedPAGE(S=2), "rounds": 1, "seed": 0}
SWEEP = {"problem": linear(), "methods": [fp.FedPAGE(S=2)], "rounds": 2, "seeds": 1}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fp.simulate(**RUN, callbacks="bar"), "callbacks must be a list"),
        (lambda: fp.simulate(**RUN, callbacks=[fp.Progress]), "callbacks must be a list"),
        (lambda: fp.simulate(**RUN, callbacks=[print]), "callbacks must be a list"),
        (lambda: fp.simulate(**RUN, callbacks=fp.Progress()), "callbacks must be a list"),
        (lambda: fp.sweep(**SWEEP, callbacks=[fp.Progress()]), "callbacks=lambda method, seed"),
        (lambda: fp.FunctionCallback(on_record=5), "on_record must be a function, not 5"),
        (lambda: fp.Track("tensorbord"), "known are tensorboard, mlflow, wandb"),
        (lambda: fp.Track(), "name a tracker"),
        (lambda: fp.Track(5), "5 is not a tracker"),
    ],
)
def test_wrong_callbacks_are_refused(call, words):
    assert words in refusal(call)


def test_progress_shows_a_bar_on_stderr(capsys):
    history = simulate(rounds=4, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "FedPAGE" in err
    assert "4/4" in err
    assert f"loss {history.last('loss'):.4g}" in err
    simulate(rounds=4)
    assert capsys.readouterr() == ("", "")


def test_several_runs_share_bars(capsys):
    with progress_bars() as bars:
        task = bars.add_task("both", total=8, note="")
        for seed in (0, 1):
            bar = fp.Progress(bars, task, offset=4 * seed)
            simulate(bar, rounds=4, seed=seed)
        assert bars.tasks[0].completed == 8
        assert len(bars.tasks) == 1
    assert "8/8" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_makes_the_callbacks_of_each_run(tmp_path, jobs):
    class Writer(fp.Callback):
        def __init__(self, path):
            self.path = path

        def on_run_end(self, history):
            self.path.write_text(f"{history.label} {history.meta['seed']}")

    methods = [fp.FedPAGE(S=2), fp.FedAvg(S=2)]
    study = study_of_methods(linear(), methods, [3, 5], rounds=2)
    study.run(
        jobs=jobs, callbacks=lambda method, seed: [Writer(tmp_path / f"{method.name}-{seed}")]
    )
    assert [run.meta["seed"] for run in study.runs().values()] == [3, 5, 3, 5]
    texts = sorted(path.read_text() for path in tmp_path.iterdir())
    assert texts == ["FedAvg 3", "FedAvg 5", "FedPAGE 3", "FedPAGE 5"]


def test_tensorboard(tmp_path):
    pytest.importorskip(
        "tensorboard", reason="needs tensorboard: pip install 'fedpage[tensorboard]'"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = simulate(fp.Track(f"tensorboard:{tmp_path}"), rounds=6, seed=1, record_every=3)
    found = EventAccumulator(str(tmp_path / "FedPAGE-seed-1"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == set(history.columns) - {"round"}
    (settings,) = found.Tensors("run/text_summary")
    assert b"| method.S | 2 |" in settings.tensor_proto.string_val[0]
    simulate(fp.Track(f"tensorboard:{tmp_path}"), rounds=1, seed=1)
    assert (tmp_path / "FedPAGE-seed-1-2").is_dir()  # a second run has a place of its own
    events = found.Scalars("loss")
    assert [event.step for event in events] == [0, 3, 6]
    np.testing.assert_allclose([event.value for event in events], history["loss"], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow(tmp_path):
    pytest.importorskip("mlflow", reason="needs mlflow: pip install 'fedpage[mlflow]'")
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    history = simulate(fp.Track(f"mlflow:{uri}", name="mine"), rounds=6, seed=1, record_every=3)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("fedpage").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.tags["stop_reason"] == "finished"
    assert run.data.params["method.S"] == "2"
    assert run.data.params["problem.N"] == "20"
    metrics = sorted(client.get_metric_history(run.info.run_id, "loss"), key=lambda m: m.step)
    assert [metric.step for metric in metrics] == [0, 3, 6]
    assert [metric.value for metric in metrics] == history["loss"].tolist()


def test_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs wandb: pip install 'fedpage[wandb]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    history = simulate(fp.Track("wandb:census"), rounds=6, seed=1, record_every=3)
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    wanted = {
        text.encode() for text in ("census", "FedPAGE seed 1", *map(repr, history["loss"].tolist()))
    }
    deadline = time.monotonic() + 30
    while not all(text in path.read_bytes() for text in wanted):  # a process of wandb's writes it
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_trackers_that_are_not_installed_say_how_to_install_them(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"pip install 'fedpage\[{name}\]'"):
        fp.Track(name)


class MemoryTracker:
    def __init__(self, fail_at=None):
        self.calls, self.fail_at = [], fail_at

    def start(self, name, settings):
        self.calls.append(f"start {name}")

    def log(self, round, values):
        self.calls.append(f"log {round}")
        if round == self.fail_at:
            raise KeyboardInterrupt

    def finish(self, reason, detail):
        self.calls.append(f"finish {reason}: {detail}")
        if self.fail_at is not None:
            raise RuntimeError("cannot finish")


def test_every_tracker_is_closed_when_a_run_is_interrupted():
    bad, good = MemoryTracker(fail_at=2), MemoryTracker()
    with pytest.raises(RuntimeError, match="cannot finish"):
        simulate(fp.Track(good, bad), rounds=6, seed=1, record_every=2)
    expected = ["start FedPAGE seed 1", "log 0", "log 2", "finish interrupted: KeyboardInterrupt:"]
    assert good.calls == bad.calls == expected


def test_the_command_line_tracks_too(run, refused, tmp_path):
    pytest.importorskip(
        "tensorboard", reason="needs tensorboard: pip install 'fedpage[tensorboard]'"
    )
    words = (
        "run", "fedpage", "--data", "census:rows=200", "--clients", "20", "--rounds", "4",
        "--S", "2", "--track",
    )  # fmt: skip
    assert run(*words, "tensorboard:logs")[0] == 0
    assert list((tmp_path / "logs" / "FedPAGE-seed-0").glob("events.*"))
    refused([*words, "paper"], "--track: no tracker 'paper'")
