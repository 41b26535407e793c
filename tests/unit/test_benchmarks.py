"""Check the loops and workers with which `make bench` compares fedpage."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import fedpage as fp

ROOT = Path(__file__).resolve().parents[2]
SAMPLED = fp.FedPAGE(S=4, K=5, eta_g=0.1, eta_l=0.01, p=1e-12)


@pytest.fixture
def bench(monkeypatch):
    """Import a module of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module
    for name in ("c_loop", "rounds", "codec_costs", "scale", "softmax", "evaluation", "data"):
        sys.modules.pop(name, None)


@pytest.fixture
def problem():
    return fp.RobustRegression(fp.load("census", rows=200), clients=20)


def test_the_bare_loop_has_fedpages_iterates(bench, problem):
    c_loop = bench("c_loop")
    c_loop.check(None, problem, SAMPLED)
    loop, run = c_loop.BareLoop(problem, SAMPLED), fp.Simulation(problem, SAMPLED, seed=0)
    run.step()
    loop.x, loop.x_prev, loop.g = run.state.x, run.state.x_prev, run.state.g
    for _ in range(6):
        run.step()
    loop.rounds(6, seed=0)
    assert loop.x.tobytes() == run.x.tobytes()


def test_the_c_loop_has_fedpages_iterates(bench, problem):
    c_loop = bench("c_loop")
    library = c_loop.compile_loop()
    if library is None:
        pytest.skip("there is no C compiler (cc) here")
    c_loop.check(library, problem, SAMPLED)
    loop = c_loop.CLoop(library, problem, SAMPLED)
    loop.x[:], loop.g[:] = 0.1, -0.1
    loop.rounds(50, seed=1)
    assert np.isfinite(loop.x).all()
    assert (np.diff(loop.clients) > 0).all()
    assert 0 <= loop.clients.min() <= loop.clients.max() < problem.N
    assert loop.rows.max() < problem.sizes[0]
    assert len(np.unique(loop.rows)) > 3


def test_the_check_notices_a_wrong_loop(bench, problem, monkeypatch):
    c_loop = bench("c_loop")
    monkeypatch.setattr(c_loop, "mean_rows", lambda rows: rows[0])
    with pytest.raises(AssertionError, match="BareLoop: x differs in round 1"):
        c_loop.check(None, problem, SAMPLED)


def test_the_c_loop_refuses_other_work(bench, problem):
    c_loop = bench("c_loop")
    with pytest.raises(ValueError, match="b3 = 1"):
        c_loop.CLoop(None, problem, fp.FedPAGE(S=4, b3=2))


@pytest.mark.slow
def test_a_worker_times_rounds_of_a_tree(bench):
    rounds = bench("rounds")
    assert {case[0] for case in rounds.CASES.values()} == set(fp.METHODS)
    worker = rounds.Worker(ROOT)
    assert 0 < worker.time("FedPAGE") < 1
    worker.close()
    with pytest.raises(SystemExit, match="no src/fedpage there"):
        rounds.Worker(ROOT / "tests")


def test_costs_of_codecs_are_ratios_to_the_local_steps(bench, problem, capsys):
    costs = bench("codec_costs")
    ratios = costs.measure(problem, 4, repetitions=1, window=1)
    assert set(ratios) == set(costs.TEXTS)
    assert all(ratio > 0 for ratio in ratios.values())
    assert "n = 4, d = 123: local steps" in capsys.readouterr().out
    assert costs.wide_data(500).features == 500


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_the_benchmark_of_scale_measures_every_step(bench, capsys, name):
    scale = bench("scale")
    case = scale.CASES[name]._replace(clients=200)
    results = scale.measure(case)
    steps = {f"{label}, {what}" for label in scale.METHODS for what in ("first round", "round")}
    steps |= {"data set", "partition by id", "problem", "record, 1 thread", "record, 2 threads"}
    assert steps < set(results)
    assert min(results[step] for step in steps) > 0
    scale.show(name, case, results)
    out = capsys.readouterr().out
    assert f"{name}: 200 clients x {case.rows} rows" in out
    assert len(out.splitlines()) == len(results) + 4


def test_the_benchmark_of_evaluation_measures_shares(bench, capsys):
    evaluation = bench("evaluation")
    shares = evaluation.compare(rounds=20, runs=2, data=fp.load("census", rows=300))
    assert set(shares) == {
        f"{objective}, {every}, {threads}"
        for objective in ("robust", "logistic-nonconvex")
        for every in (10, "log")
        for threads in (1, 2)
    }
    assert all(0 < found.share < 1 for found in shares.values())
    out = capsys.readouterr().out
    assert "30 clients" in out
    assert len(out.splitlines()) == 4 + len(shares)


def test_the_benchmark_of_data_measures_arrays_and_a_loss(bench):
    data = bench("data")
    found = data.measure_arrays(0.001)
    assert found["data, GB"] == pytest.approx(0.0008)
    assert found["from_arrays, seconds"] > 0
    own = data.measure_own(0.01)
    assert own["seconds"] > 0
    problem = fp.LogisticRegression(fp.load("census", rows=300), 30)
    ratios = data.ratios(problem, problem, 1)
    assert len(ratios) == 5
    assert all(ratio > 0 for ratio in ratios.values())


@pytest.mark.slow
def test_the_benchmark_of_data_reads_csv_files_in_processes_of_their_own(bench):
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    data = bench("data")
    found = data.measure_csv(0.0005, processes=1)
    for digits in ("four decimals", "all digits"):
        assert all(found[f"{digits}: {reader}, seconds"] > 0 for reader in ("pandas", "fedpage"))
        assert found[f"{digits}: fedpage / pandas, processor's seconds"] > 0
