"""Histories: saved, loaded, compared, plotted and reported."""

import csv
import hashlib
import json
import math

import numpy as np
import pytest
from support import refusal

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.report import plots, summary
from fedpage.report.bands import Summary
from fedpage.report.titles import by_method


@pytest.fixture(scope="module")
def runs():
    problem = fp.RobustRegression(fp.load("census", rows=500), clients=50)
    return fp.sweep(
        problem, [fp.FedPAGE(S=5), fp.FedAvg(S=10), fp.FedPAGE(S=5, K=3)], rounds=60, seeds=3
    )


def test_json_lines_keep_everything(runs, tmp_path):
    path = runs[0].to_jsonl(tmp_path / "deep" / "run.jsonl")
    again = fp.History.load(path)
    assert again.same(runs[0])
    assert again.meta == runs[0].meta
    assert again.x.tobytes() == runs[0].x.tobytes()
    assert again["seconds"].tolist() == runs[0]["seconds"].tolist()
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.jsonl", "run.model.npz"]
    runs[0].to_jsonl(tmp_path / "run" / "history.jsonl")
    assert fp.History.load(tmp_path / "run").same(runs[0])


def test_csv_has_plain_columns(runs, tmp_path):
    path = runs[0].to_csv(tmp_path / "run.csv")
    with open(path, newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert float(rows[-1]["grad_norm"]) == runs[0].last("grad_norm")
    assert rows[-1]["round"] == "60"
    again = fp.History.load(path)
    for name in runs[0].columns:
        assert again[name].tolist() == runs[0][name].tolist()


def test_a_diverged_run_is_saved_as_valid_json(tmp_path):
    history = fp.History({"seed": 0})
    history.append({"round": 0, "loss": 1.0, "grad_norm": 1.0})
    history.append({"round": 1, "loss": math.inf, "grad_norm": math.nan})
    history.x = np.array([np.nan, -np.inf, 1.0])
    history.stop_reason, history.stop_detail = StopReason.DIVERGED, "loss not finite"
    path = history.to_jsonl(tmp_path / "d.jsonl")
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    again = fp.History.load(path)
    assert again.same(history)
    assert again.diverged


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_model_is_a_file_beside_the_history(tmp_path, dtype):
    history = fp.History({"seed": 0})
    history.append({"round": 0, "loss": 1.0})
    history.x, history.stop_reason = np.linspace(0, 1, 7, dtype=dtype), StopReason.FINISHED
    path = history.to_jsonl(tmp_path / "run.jsonl")
    end = json.loads(path.read_text().splitlines()[-1])
    file = tmp_path / "run.model.npz"
    assert end["model"] == hashlib.sha256(file.read_bytes()).hexdigest()
    with np.load(file, allow_pickle=False) as arrays:
        assert arrays["x"].dtype == dtype
    again = fp.History.load(path)
    assert again.x.dtype == dtype
    assert again.same(history)
    x = again.x
    again.x = x.astype(np.float32) if dtype == np.float64 else x.astype(np.float64)
    assert not again.same(history)
    file.unlink()
    assert "its model run.model.npz is missing" in refusal(fp.History.load, path)
    history.x = None
    assert fp.History.load(history.to_jsonl(path)).x is None


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_a_finished_run_without_its_model_is_computed_again(tmp_path, damage):
    problem = fp.RobustRegression(fp.load("census", rows=100), clients=10)
    options = {"rounds": 20, "seed": 0, "out": tmp_path}
    first = fp.simulate(problem, fp.FedPAGE(S=2), **options)
    model = tmp_path / "history.model.npz"
    written = model.read_bytes()
    if damage == "removed":
        model.unlink()
    else:
        model.write_bytes(written[:-1])
    resume = fp.RunOptions(resume=True)
    again = fp.simulate(problem, fp.FedPAGE(S=2), options=resume, **options)
    assert again.same(first)
    assert model.read_bytes() == written
    assert fp.History.load(tmp_path / "history.jsonl").same(first)


@pytest.mark.parametrize("reason", [None, *StopReason])
def test_every_end_is_written_and_read(tmp_path, reason):
    history = fp.History({"seed": 0})
    history.append({"round": 0, "loss": 1.0})
    history.stop_reason, history.stop_detail = reason, "at round 0"
    again = fp.History.load(history.to_jsonl(tmp_path / "run.jsonl"))
    assert (again.stop_reason, again.stop_detail) == (reason, "at round 0")
    assert again.same(history)
    assert again.diverged == (reason is StopReason.DIVERGED)
    unfinished = (None, StopReason.INTERRUPTED, StopReason.ROUND_FAILED)
    assert again.ended == (reason not in unfinished)


def climbing(**meta):
    """Return a run whose accuracy rises, with a third record above the first loss."""
    history = fp.History(meta)
    rows = ((0, 1.0, 0.5, 3.0), (10, 0.5, 0.7, 2.0), (20, 9.0, 1.0, 9.0), (30, 0.4, 0.9, 1.0))
    for r, loss, accuracy, mine in rows:
        history.append(
            {
                "round": r, "bytes_up": 10 * r, "bytes_down": r, "loss": loss, "grad_norm": loss,
                "test_accuracy": accuracy, "accuracy": accuracy, "mine": mine,
            }
        )  # fmt: skip
    return history


def test_targets_and_best_values_respect_the_direction():
    run = climbing()
    assert run.best("accuracy") == run.best("test_accuracy") == 0.9
    assert run.cost_to("test_accuracy:0.99,hold=0") == math.inf
    assert run.cost_to("test_accuracy:0.7,hold=0") == 110
    assert run.cost_to("test_accuracy:0.8,hold=0", "round") == 30
    assert run.cost_to("test_accuracy:0.4,hold=0") == 0.0
    assert run.best("loss") == 0.4
    assert run.cost_to("loss:0.5,hold=0") == 110
    assert run.best("bytes") == 0.0
    empty = fp.History()
    empty.append({"round": 0, "loss": 1.0, "accuracy": math.nan, "mae": math.nan})
    assert (empty.best("accuracy"), empty.best("mae")) == (-math.inf, math.inf)


def test_the_direction_of_an_own_metric_is_in_provenance():
    for higher, best, cost in ((True, 3.0, 0.0), (False, 1.0, 110.0)):
        run = climbing(problem={"metrics": {"mine": higher}})
        assert run.higher_is_better("held_out_mine") is higher
        assert (run.best("mine"), run.cost_to("mine:2.0,hold=0")) == (best, cost)
    unknown = climbing(problem={"metrics": {"mine": None}})
    assert "'mine': whether higher is better is not known" in refusal(unknown.best, "mine")


def test_a_history_without_a_loss_counts_every_record():
    history = fp.History()
    for r, value in enumerate((0.1, 0.3, 0.2)):
        history.append({"round": r, "accuracy": value})
    assert history.best("accuracy") == 0.3
    assert history.cost_to("accuracy:0.2,hold=0", "round") == 1
    assert repr(history) == "History(run, 2 rounds)"


def test_a_diverged_run_ends_where_it_was_last_finite(runs):
    away = fp.History(runs[0].meta)
    for r, loss in ((0, 1.0), (10, 2.0), (20, math.inf)):
        costs = {"round": r, "bytes_up": 100 * r, "bytes_down": 0}
        away.append({**costs, "loss": loss, "grad_norm": loss})
    away.stop_reason = StopReason.DIVERGED
    for x, end in (("round", 10), ("bytes", 1000)):
        grid, (_, middle, _) = Summary().compute([away], x, "loss")
        assert grid[np.isfinite(middle)].max() <= end
    (text,) = plots.curves(away).get_legend().get_texts()
    assert text.get_text() == "FedPAGE (diverged)"


def test_provenance(runs):
    meta = json.loads(json.dumps(runs[0].meta))
    assert meta["method"] == {
        "name": "FedPAGE", "class": "FedPAGE", "S": 5, "K": 10, "eta_g": 0.1, "eta_l": None,
        "p": None, "b1": None, "b2": None, "b3": 1, "up": "none", "down": "none",
        "effective_step": 0.1,
    }  # fmt: skip
    assert meta["problem"]["data_digest"] == fp.load("census", rows=500).digest
    assert meta["problem"]["partition_digest"] == fp.blocks(500, 50).digest
    assert meta["problem"]["data_note"].startswith("synthetic")
    assert (meta["seed"], meta["rounds"], meta["versions"]["fedpage"]) == (0, 60, fp.__version__)


def test_pandas(runs):
    pandas = pytest.importorskip(
        "pandas", reason="pandas is an extra: pip install 'fedpage[pandas]'"
    )
    frame = runs[0].to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["loss"].tolist() == runs[0]["loss"].tolist()
    assert frame.attrs["seed"] == 0


def test_groups_are_labelled_by_what_differs(runs):
    groups = by_method(runs)
    assert list(groups) == ["FedPAGE (K=10)", "FedAvg", "FedPAGE (K=3)"]
    assert all(len(group) == 3 for group in groups.values())


def test_the_band_is_the_quantiles_over_seeds(runs):
    grid, (low, middle, high) = Summary(quantiles=(0.0, 1.0)).compute(
        runs[:3], "round", "grad_norm"
    )
    values = np.array([run["grad_norm"] for run in runs[:3]])
    assert grid.tolist() == runs[0]["round"].tolist()
    np.testing.assert_array_equal(middle, np.median(values, axis=0))
    np.testing.assert_array_equal(low, values.min(axis=0))
    np.testing.assert_array_equal(high, values.max(axis=0))
    grid, (_, middle, _) = Summary().compute(runs[:1], "bytes", "loss")
    assert middle[-1] == runs[0].last("loss")
    assert middle[0] == runs[0]["loss"][0]


def test_nothing_to_draw_is_refused(runs, tmp_path):
    for nothing in ([], fp.History(), [fp.History()]):
        assert "histor" in refusal(plots.plot, nothing, tmp_path / "none.png")
    for quantiles in ((-1, 3), (0.9, 0.1)):
        assert "quantiles" in refusal(plots.curves, runs, quantiles=quantiles)
    assert "no record" in refusal(fp.History().last, "loss")


def test_the_summary(runs):
    rows = summary.summarise(runs, target=1e-9)
    assert [row["method"] for row in rows] == list(by_method(runs))
    assert rows[1]["value"] == np.median([run.last("grad_norm") for run in runs[3:6]])
    assert rows[0]["rounds"] == math.inf
    table = summary.table(rows)
    assert "not reached" in map(str, table.rows[0])
    assert table.headings[2] == "gradient norm"
    assert [row[0].text for row in table.rows] == list(by_method(runs))


def test_a_measured_step_is_said_to_be_measured():
    problem = fp.RobustRegression(fp.load("census", rows=100), clients=10)
    runs = [
        fp.simulate(problem, method, rounds=2, seed=0)
        for method in (fp.SecantPAGE(S=2), fp.SecantPAGE(S=2, eta=0.5))
    ]
    assert runs[0].meta["method"]["effective_step"] is None
    table = summary.table(summary.summarise(runs, target=0.1))
    assert [str(row[1]) for row in table.rows] == ["measured", "0.5"]
