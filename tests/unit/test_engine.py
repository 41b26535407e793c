"""simulate and sweep: costs, records, how a run ends, arguments."""

import inspect
import math
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support import refusal

import fedpage as fp
from fedpage.cli.options import RunConfig
from fedpage.core.columns import is_recorded
from fedpage.core.errors import InputError
from fedpage.core.messages import add_rows, mean_rows
from fedpage.engine.local import ClientStates
from fedpage.engine.simulate import Simulation
from fedpage.flower.config import parse_app_config, write_app
from fedpage.runs.config import structure, to_table

D = 123


def census(clients=50, rows=500):
    return fp.RobustRegression(fp.load("census", rows=rows), clients=clients)


# Costs


def test_costs_of_fedpage_are_counted_from_its_messages():
    method = fp.FedPAGE(S=5, K=4, eta_g=0.1, p=0.2, b3=2)
    history = fp.simulate(census(), method, rounds=40, seed=3, record_every=1)
    full = np.diff(history["full_rounds"])
    assert full[0] == 1
    assert 2 < full.sum() < 20
    clients = np.where(full == 1, 50, 5)
    # b1 = 10 rows; b2 = 10 at two points, then 3 times 2 at two
    work = np.where(full == 1, 10, 2 * 10 + 2 * 3 * 2)
    for column, expected in {
        "clients": clients, "floats_down": np.where(full == 1, 50 * D, 5 * 2 * D),
        "floats_up": clients * D, "gradients": clients * work,
        "evaluations": clients * np.where(full == 1, 1, 8),
    }.items():  # fmt: skip
        assert (np.diff(history[column]) == expected).all(), column
    assert (history["bytes_down"] == 8 * history["floats_down"]).all()
    assert (history["bytes_up"] == 8 * history["floats_up"]).all()
    np.testing.assert_allclose(np.diff(history["gradients_per_client"]), work)


# Records and the end of a run


@pytest.mark.parametrize(
    ("record_every", "rounds", "expected"),
    [(10, 25, [0, 10, 20, 25]), (0, 25, [25]), (7, 7, [0, 7])],
)
def test_a_record_is_of_the_model_after_that_many_rounds(record_every, rounds, expected):
    problem, method = census(), fp.FedPAGE(S=5)
    history = fp.simulate(problem, method, rounds=rounds, seed=2, record_every=record_every)
    assert history["round"].tolist() == expected
    assert (history.stop_reason, history.stop_detail) == (fp.StopReason.FINISHED, "")
    run = Simulation(problem, method, seed=2)
    losses = [problem.loss(run.x)]
    for _ in range(rounds):
        run.step()
        losses.append(problem.loss(run.x))
    assert history["loss"].tolist() == [losses[r] for r in expected]
    assert history.x.tobytes() == run.x.tobytes()


@pytest.mark.parametrize("record_every", [0, 7, 2000])
def test_divergence_is_found_for_any_record_every(record_every):
    """Far from the minimum the gradient of robust regression is tiny, but the loss is high."""
    problem, stop = census(), fp.Stop("0.05,hold=0")
    method = fp.FedPAGE(S=5, eta_g=1e6)
    given = {"rounds": 400, "seed": 0, "record_every": record_every}
    away = fp.simulate(problem, method, stop=stop, **given)
    assert away.diverged
    assert away.stop_reason is fp.StopReason.DIVERGED
    assert away.stop_detail.startswith("loss")
    # only x0 itself reaches it, if it was recorded
    assert away.cost_to("grad_norm:1e9,hold=0", "round") in (0.0, math.inf)
    assert away.first_loss == problem.loss(np.zeros(problem.d))


# Arguments


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"stop": 0.2}, "stop must be"), ({"stop": "x"}, "stop must be"),
        ({"progress": 5}, "progress must be"), ({"progress": print}, "see fp.FunctionCallback"),
        ({"options": {"threads": 2}}, "options must be RunOptions"),
        ({"options": fp.RunOptions(x0="abc")}, "x0 must be"),
        ({"options": fp.RunOptions(x0=np.zeros(D, dtype=complex))}, "x0 must be"),
        ({"options": fp.RunOptions(x0=np.zeros(3))}, "x0 must be 123"),
        ({"options": fp.RunOptions(x0=np.full(D, np.nan))}, "x0"),
        ({"options": fp.RunOptions(resume=True)}, "resume=True needs out="),
        ({"options": fp.RunOptions(threads=0)}, "threads"),
        ({"options": fp.RunOptions(chunk=0)}, "chunk"),
        ({"rounds": -1}, "rounds"), ({"rounds": 1.5}, "rounds"), ({"record_every": -1}, "record"),
        ({"seed": -1}, "seed"), ({"method": fp.FedAvg}, "method must be"),
        ({"problem": "census"}, "problem must be"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_simulate_are_refused(options, why):
    given = {"problem": census(), "method": fp.FedAvg(S=5), "rounds": 5, "seed": 0, **options}
    assert why in refusal(fp.simulate, **given)


@pytest.mark.parametrize(
    "options", [{"seeds": "ab"}, {"seeds": True}, {"seeds": 1.5}, {"jobs": 0}, {"methods": None}]
)
def test_wrong_arguments_of_sweep_are_refused(options):
    given = {"problem": census(), "methods": [fp.FedAvg(S=5)], "rounds": 1, "seeds": 1, **options}
    assert f"{next(iter(options))} must be" in refusal(fp.sweep, **given)
    assert "method must be" in refusal(fp.sweep, **{**given, "methods": [3], "seeds": 1, "jobs": 1})


def test_numpy_numbers_equal_python_numbers(tmp_path):
    problem = census()
    plain = fp.FedPAGE(S=2, K=10, eta_g=0.125, b3=1)
    odd = fp.FedPAGE(S=np.uint8(2), K=np.int8(10), eta_g=np.float32(0.125), b3=np.int64(1))
    assert odd == plain
    history = fp.simulate(problem, odd, rounds=20, seed=np.int64(3))
    assert history.same(fp.simulate(problem, plain, rounds=20, seed=3))
    history.to_jsonl(tmp_path / "a.jsonl")
    many = fp.FedAvg(S=np.uint8(20), K=np.uint8(200), b=np.uint8(4))
    assert fp.simulate(problem, many, rounds=2, seed=0).last("gradients") == 2 * 20 * 200 * 4
    assert fp.RobustRegression(fp.load("census", rows=2000), np.uint8(200)).N == 200


@pytest.mark.parametrize("function", [fp.simulate, fp.sweep])
def test_at_most_ten_arguments(function):
    assert len(inspect.signature(function).parameters) <= 10


def test_the_default_local_step_and_probability():
    assert fp.FedPAGE(S=10, K=10, eta_g=0.1).local_step == pytest.approx(1e-4)
    assert fp.FedPAGE(eta_l=0.01).local_step == 0.01
    history = fp.simulate(census(), fp.FedPAGE(S=25, K=2), rounds=400, seed=1, record_every=0)
    assert 160 < history.last("full_rounds") < 240  # p = S/N = 1/2


# Sweeps


def test_sweeps_are_paired_and_the_same_in_parallel():
    import joblib

    problem, chosen = census(), [fp.FedPAGE(S=5, K=1), fp.FedPAGE(S=5, K=4), fp.SCAFFOLD(S=5)]
    options = {"rounds": 20, "record_every": 5}
    alone = fp.sweep(problem, chosen, seeds=2, **options)
    together = fp.sweep(problem, chosen, seeds=[0, 1], jobs=2, **options)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        threads = fp.sweep(problem, chosen, seeds=2, jobs=None, **options)
    assert [h.meta["seed"] for h in alone] == [0, 1, 0, 1, 0, 1]
    for other in (together, threads):
        assert all(a.same(b) for a, b in zip(alone, other, strict=True))
    # the same coins for K = 1 and K = 4
    assert (alone[0]["full_rounds"] == alone[2]["full_rounds"]).all()


# Memory and sums


def test_full_rounds_hold_few_replies_at_a_time():
    """With d = 20,000 and 400 clients a table of all replies would take 64 MB."""
    N, d = 400, 20_000
    matrix = fp.data.Sparse(np.arange(N + 1), np.arange(N, dtype=np.int32), np.ones(N), d)
    data = fp.Dataset("wide", matrix, np.tile([1.0, -1.0], N // 2))
    run = Simulation(fp.RobustRegression(data, clients=N), fp.FedPAGE(S=2, K=2), seed=0)
    run.step()  # compiles
    run.costs.round = 0
    tracemalloc.start()
    run.step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.costs.full_rounds == 2
    assert peak < 12e6


def test_client_states_are_zero_until_written_and_take_memory_for_those_that_were():
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("the memory of a process is read from /proc")

    def resident():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    kind = fp.SCAFFOLD.client_state
    table = ClientStates(kind, 100_000, 1_000, np.dtype(np.float64))  # 800 MB
    before = resident()
    table.put(np.arange(0, 100_000, 1_000), kind(np.ones((100, 1_000))))
    assert resident() - before < 20e6
    assert table.get(np.array([0, 1, 99_000])).c.sum(axis=1).tolist() == [1_000, 0, 1_000]
    table.put(np.arange(0, 100_000, 400), kind(np.full((250, 1_000), 2.0)))  # 50 of them again
    found = table.get(np.array([99_600, 1, 99_000, 0])).c
    assert found.mean(axis=1).tolist() == [2, 0, 1, 2]
    assert len(table.find_written()) == 300
    assert ClientStates(None, 10, 3, np.dtype(np.float64)).get(np.array([1])) is None


def test_sums_are_in_row_order_in_one_dimension_too():
    rng = np.random.default_rng(0)
    for d in (1, 5):
        rows = rng.normal(size=(1000, d)) * 10.0 ** rng.integers(-8, 8, size=(1000, d))
        total = np.zeros(d)
        for row in rows:
            total = total + row
        assert add_rows(None, rows).tobytes() == total.tobytes()
        assert add_rows(add_rows(None, rows[:333]), rows[333:]).tobytes() == total.tobytes()
        assert mean_rows(rows).tobytes() == (total / 1000).tobytes()
        assert mean_rows(np.asfortranarray(rows)).tobytes() == (total / 1000).tobytes()
    assert add_rows(None, rows.astype(np.float32)).dtype == np.float32


# Which rounds are recorded


METHOD = fp.FedPAGE(S=3, K=2)
LOG_130 = [
    *range(11), 12, 14, 17, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100, 120, 130,
]  # fmt: skip


def quadratic() -> fp.Quadratic:
    return fp.Quadratic.random(6, 4, 3, seed=0)


def test_the_logarithmic_schedule_is_geometric():
    rounds = [done for done in range(1, 100_001) if is_recorded(done, "log")]
    assert rounds[:10] == list(range(1, 11))
    ratios = np.diff(rounds[9:]) / rounds[9:-1]
    assert 0.1 <= ratios.min() <= ratios.max() <= 0.25
    assert len(rounds) == 10 + 4 * 14
    assert [10 * done for done in rounds if 10 <= done < 1000] == [
        done for done in rounds if 100 <= done < 10_000
    ]


def test_a_run_records_the_schedule_its_start_and_its_end():
    history = fp.simulate(quadratic(), METHOD, rounds=130, seed=0, record_every="log")
    assert history["round"].tolist() == LOG_130
    assert history.meta["record_every"] == "log"
    every = fp.simulate(quadratic(), METHOD, rounds=130, seed=0, record_every=1)
    assert history.x.tobytes() == every.x.tobytes()
    for name in ("loss", "grad_norm", "bytes_up"):
        assert history[name].tolist() == every[name][LOG_130].tolist()
    target = float(np.sqrt(every["grad_norm"][30] * every["grad_norm"][35]))
    exact = every.cost_to(fp.Target("grad_norm", target, hold=0), "round")
    between = history.cost_to(fp.Target("grad_norm", target, hold=0), "round")
    assert between == pytest.approx(exact, rel=0.2)
    runs = fp.sweep(quadratic(), [METHOD], rounds=130, seeds=1, record_every="log")
    assert runs[0].same(history)


def test_configurations_take_the_word():
    config = structure(RunConfig, {"record_every": "log"}, "run.toml")
    assert config.record_every == "log"
    assert structure(RunConfig, to_table(config), "run.toml") == config
    assert structure(RunConfig, {"record_every": 3}, "run.toml").record_every == 3
    app = parse_app_config({"clients": 2, "rounds": 3, "record-every": "log"})
    assert app.record_every == "log"
    assert 'record-every = "log"' in write_app(app)


@pytest.mark.parametrize("value", ["lg", "", -1, 1.5, True, None])
def test_other_schedules_are_refused(value):
    with pytest.raises(InputError, match="record_every must be"):
        fp.simulate(quadratic(), METHOD, rounds=3, seed=0, record_every=value)
    with pytest.raises(InputError, match="record_every must be 'log' or a whole number of at le"):
        structure(RunConfig, {"record_every": value}, "run.toml")
