"""Records that some of the clients measured: no end, no best value, no target, a gap in plots."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpage as fp
from fedpage.callbacks.best_model import Best
from fedpage.core.metrics import METRICS
from fedpage.core.types import StopReason
from fedpage.engine.stopping import Watch
from fedpage.problems import OBJECTIVES
from fedpage.report.bands import Summary, diverged_note
from fedpage.report.summary import summarise

PARTIAL = {"measured_clients": 7}


@pytest.fixture
def history():
    """Return a run whose records 1 and 3 of four are of seven clients."""
    run = fp.History()
    for number, (loss, more) in enumerate([(1.0, {}), (0.1, PARTIAL), (0.6, {}), (0.2, PARTIAL)]):
        run.append(
            {"round": 10 * number, "bytes_up": number, "bytes_down": 0, "loss": loss,
             "grad_norm": loss, "held_out_loss": loss, "clients": number, "seconds": 0.0, **more}
        )  # fmt: skip
    run.stop_reason = StopReason.FINISHED
    return run


def test_histories(history):
    assert history.complete().tolist() == [True, False, True, False]
    assert history.best("loss") == 0.6
    assert history.cost_to("loss:0.5,hold=0", "round") == math.inf
    assert history.cost_to("loss:0.7,hold=0", "round") == 20
    assert np.isnan(history.measured_by_all("grad_norm")).tolist() == [False, True, False, True]
    assert not np.isnan(history.measured_by_all("held_out_loss")).any()
    assert not np.isnan(history.measured_by_all("bytes_up")).any()
    history.first_loss = math.nan  # an unknown start does not hide progress
    assert history.progress().tolist() == [True, False, True, False]


def test_plots_have_gaps_and_tables_the_newest_complete_record(history):
    grid, band = Summary().compute([history], "round", "loss")
    assert grid.tolist() == [0, 10, 20, 30]
    assert np.isnan(band[1]).tolist() == [False, True, False, True]
    assert diverged_note([history]) == " (gaps: 2 records of some clients)"
    figure = fp.plot(history, y="loss")
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert any("gaps: 2 records of some clients" in text for text in texts)
    [row] = summarise([history], "loss:0.7,hold=0")
    assert (row["value"], row["loss"], row["rounds"]) == (0.6, 0.6, 20)


def test_targets_and_patience_wait_for_all_clients():
    watch = Watch(1.0, "effective step 0.1", fp.Stop("loss:0.5,hold=0", patience=2))
    below = {"round": 1, "loss": 0.1, "grad_norm": 0.1}
    assert watch.check({**below, **PARTIAL}) is None
    assert watch.best is None
    assert watch.check({"round": 2, "loss": 0.9, "grad_norm": 1.0}) is None
    for number in range(3, 9):
        assert watch.check({"round": number, "loss": 0.95, "grad_norm": 1.0, **PARTIAL}) is None
    assert watch.check(below).reason is StopReason.TARGET
    watch = Watch(1.0, "effective step 0.1")  # a partial record may show divergence
    row = {"round": 1, "loss": 1e9, "grad_norm": 1.0, **PARTIAL}
    assert watch.check(row).reason is StopReason.DIVERGED


@pytest.mark.parametrize("row", [{"round": 1}, {"round": 1, "loss": 0.4}])
def test_records_without_a_loss_or_a_gradient_are_judged(row):
    watch = Watch(math.nan, "effective step 0.1", fp.Stop("held_out_accuracy:0.9,hold=0"))
    assert watch.check({**row, "held_out_accuracy": 0.5}) is None
    assert watch.check({**row, "held_out_accuracy": 0.95}).reason is StopReason.TARGET


def test_the_best_model_is_of_all_clients(tmp_path):
    saved = []

    class Problem:
        def save(self, path, x, about=None):
            saved.append(about["value"])

        def about(self, path):
            return {}

        def check_model_path(self, path):
            return None

    best = Best(Problem(), tmp_path / "model.npz")
    for loss, more in [(0.9, {}), (0.1, PARTIAL), (0.8, {})]:
        best.on_record({"round": 1, "loss": loss, **more}, np.zeros(2))
    assert saved == ["0.9", "0.8"]


def test_a_metric_cannot_be_called_like_the_column():
    with pytest.raises(fp.InputError, match="cannot be called 'measured_clients'"):
        fp.metric("measured_clients", higher_is_better=True)(lambda outputs, targets: 1.0)


@pytest.mark.parametrize("name", [n for n, o in OBJECTIVES.items() if o.minimum > -math.inf])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.sampled_from([0.0, 1e-8, 1.0, 1e3, 1e100]))
def test_no_rows_have_a_loss_below_the_minimum(name, seed, size):
    data = (
        fp.load("digits", classes=10) if name.startswith("softmax") else fp.load("census", rows=40)
    )
    rng = np.random.default_rng(seed)
    problem = OBJECTIVES[name].problem(data, 4)
    found = problem.evaluate_clients(np.arange(4), size * rng.standard_normal(problem.d))
    losses = found.losses[np.isfinite(found.losses)]
    assert (losses >= OBJECTIVES[name].minimum - 1e-9).all()


@pytest.mark.parametrize("name", [n for n, m in METRICS.items() if m.on_rows])
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.sampled_from([-1.0, 1.0])), min_size=1, max_size=30
    )
)
def test_no_rows_have_a_metric_outside_its_range(name, rows):
    entry = METRICS[name]
    value = entry(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))
    assert math.isnan(value) or entry.minimum <= value <= entry.maximum
