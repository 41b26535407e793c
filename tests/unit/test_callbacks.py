"""What watches a run: callbacks, the progress bar, and trackers, each with its real library."""

from __future__ import annotations

import io

import numpy as np
import pytest

import fedpage as fp


def linear():
    return fp.LogisticRegression(fp.load("census", rows=200), clients=20)


class Noting(fp.Callback):
    def __init__(self):
        self.calls = []

    def begin(self, meta, rounds, done):
        self.calls.append(("begin", meta["seed"], rounds, done))

    def record(self, row, x):
        self.calls.append(("record", row["round"], x.shape))

    def after_round(self, done):
        self.calls.append(("round", done))

    def end(self, history):
        self.calls.append(("end", history.stopped))


def test_callbacks_see_everything_and_change_nothing():
    noting = Noting()
    made = linear()
    history = fp.simulate(
        made, fp.FedPAGE(S=2), rounds=3, seed=4, record_every=2, callbacks=[noting, fp.Track()]
    )
    d = (made.d,)
    assert noting.calls == [
        ("begin", 4, 3, 0), ("record", 0, d), ("round", 1), ("round", 2), ("record", 2, d), ("round", 3),
        ("record", 3, d), ("end", "finished"),
    ]  # fmt: skip
    assert history.same(fp.simulate(made, fp.FedPAGE(S=2), rounds=3, seed=4, record_every=2))


def test_who_watches_does_not_steer():
    class Steering(fp.Callback):
        def record(self, row, x):
            row["loss"] = -5.0
            with pytest.raises(ValueError, match="read-only"):
                x += 1

    made = linear()
    history = fp.simulate(made, fp.FedPAGE(S=2), rounds=3, seed=4, callbacks=[Steering()])
    assert history.same(fp.simulate(made, fp.FedPAGE(S=2), rounds=3, seed=4))
    with pytest.raises(fp.InputError, match="callbacks watch one run each"):
        fp.sweep(made, [fp.FedPAGE(S=2)], rounds=2, seeds=1, callbacks=[fp.Track()])


def test_everyone_is_ended_whatever_another_does():
    class Bad(Noting):
        def end(self, history):
            raise RuntimeError("no")

    good = Noting()
    with pytest.raises(RuntimeError, match="no"):
        fp.simulate(linear(), fp.FedPAGE(S=2), rounds=1, seed=4, callbacks=[Bad(), good])
    assert good.calls[-1] == ("end", "finished")


def test_what_is_no_callback():
    for bad in ("bar", [fp.Track], [print], fp.Track()):
        with pytest.raises(fp.InputError, match="callbacks must be a list"):
            fp.simulate(linear(), fp.FedPAGE(S=2), rounds=1, seed=0, callbacks=bad)
    with pytest.raises(
        fp.InputError, match="no tracker 'tensorbord'; known are tensorboard, mlflow, wandb"
    ):
        fp.Track("tensorbord")


def test_the_bar_is_always_there(capsys):
    fp.simulate(linear(), fp.FedPAGE(S=2), rounds=4, seed=0, callbacks=[fp.Track()])
    out, err = capsys.readouterr()
    assert out == ""
    assert "FedPAGE" in err
    assert "4/4" in err
    assert "loss" in err


def test_tensorboard(tmp_path):
    pytest.importorskip(
        "tensorboard", reason="needs tensorboard: pip install 'fedpage[tensorboard]'"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = fp.simulate(
        linear(),
        fp.FedPAGE(S=2),
        rounds=6,
        seed=1,
        record_every=3,
        callbacks=[fp.Track(f"tensorboard:{tmp_path}")],
    )
    found = EventAccumulator(str(tmp_path / "FedPAGE-seed-1"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == set(history.columns) - {"round"}
    (settings,) = found.Tensors("run/text_summary")
    assert b"| method.S | 2 |" in settings.tensor_proto.string_val[0]
    fp.simulate(
        linear(), fp.FedPAGE(S=2), rounds=1, seed=1, callbacks=[fp.Track(f"tensorboard:{tmp_path}")]
    )
    assert (tmp_path / "FedPAGE-seed-1-2").is_dir()  # a second run has a place of its own
    events = found.Scalars("loss")
    assert [event.step for event in events] == [0, 3, 6]
    np.testing.assert_allclose([event.value for event in events], history["loss"], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow(tmp_path):
    pytest.importorskip("mlflow", reason="needs mlflow: pip install 'fedpage[mlflow]'")
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    history = fp.simulate(
        linear(),
        fp.FedPAGE(S=2),
        rounds=6,
        seed=1,
        record_every=3,
        callbacks=[fp.Track(f"mlflow:{uri}", name="mine")],
    )
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("fedpage").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status, run.data.tags["stopped"]) == (
        "mine",
        "FINISHED",
        "finished",
    )
    assert run.data.params["method.S"] == "2"
    assert run.data.params["problem.N"] == "20"
    found = sorted(client.get_metric_history(run.info.run_id, "loss"), key=lambda one: one.step)
    assert [one.step for one in found] == [0, 3, 6]
    assert [one.value for one in found] == history["loss"].tolist()


def leveldb_records(data, block=32768):
    """The records of a LevelDB log, which is what an offline run is kept in, after its seven bytes of header."""
    at, parts = 7, []
    while at + 7 <= len(data):
        if block - at % block < 7:  # too little of a block is left for a header
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def test_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs wandb: pip install 'fedpage[wandb]'")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    history = fp.simulate(
        linear(),
        fp.FedPAGE(S=2),
        rounds=6,
        seed=1,
        record_every=3,
        callbacks=[fp.Track("wandb:census")],
    )
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    losses = {}
    for data in leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            assert (record.run.project, record.run.display_name) == ("census", "FedPAGE seed 1")
        if record.WhichOneof("record_type") == "history":
            item = {
                one.key or ".".join(one.nested_key): one.value_json for one in record.history.item
            }
            losses[int(item["_step"])] = float(item["loss"])
    assert losses == dict(zip([0, 3, 6], history["loss"].tolist(), strict=True))


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_trackers_that_are_not_installed_say_how_to_install_them(name, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"pip install 'fedpage\[{name}\]'"):
        fp.Track(name)


def test_a_tracker_is_closed_when_a_run_is_interrupted():
    class Sink(io.StringIO):
        def begin(self, name, about):
            self.write(f"begin {name};")

        def log(self, round, row):
            if round == 2:
                raise KeyboardInterrupt

        def end(self, why):
            self.write(f"end {why}")

    sink = Sink()
    with pytest.raises(KeyboardInterrupt):
        fp.simulate(
            linear(), fp.FedPAGE(S=2), rounds=6, seed=1, record_every=2, callbacks=[fp.Track(sink)]
        )
    assert sink.getvalue() == "begin FedPAGE seed 1;end interrupted"


def test_the_command_line_tracks_too(run, refused, tmp_path):
    pytest.importorskip(
        "tensorboard", reason="needs tensorboard: pip install 'fedpage[tensorboard]'"
    )
    words = [
        "run",
        "fedpage",
        "--data",
        "census:rows=200",
        "--clients",
        "20",
        "--rounds",
        "4",
        "--S",
        "2",
    ]
    code, _, _ = run(*words, "--track", "tensorboard:logs")
    assert code == 0
    assert list((tmp_path / "logs" / "FedPAGE-seed-0").glob("events.*"))
    refused(
        [*words, "--track", "paper"],
        "--track: no tracker 'paper'; known are tensorboard, mlflow, wandb",
    )
