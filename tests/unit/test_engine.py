"""simulate and sweep: costs, records, how a run ends, arguments."""

from __future__ import annotations

import inspect
import math
import os
from pathlib import Path

import numpy as np
import pytest
from support import methods, quadratic, uneven

import fedpage as fp
from fedpage.core.aggregate import add_rows, mean_rows
from fedpage.core.errors import InputError
from fedpage.engine.local import ClientStates
from fedpage.engine.simulate import Simulation
from fedpage.methods.fair import fair_batch

TARGET, BUDGET, DIVERGED = fp.StopReason.TARGET, fp.StopReason.BUDGET, fp.StopReason.DIVERGED


def census(clients=50, rows=500):
    return fp.RobustRegression(fp.load("census", rows=rows), clients=clients)


def test_costs_of_fedpage_are_counted_from_its_messages():
    problem, d = census(), 123
    method = fp.FedPAGE(S=5, K=4, eta_g=0.1, p=0.2, b3=2)
    history = fp.simulate(problem, method, rounds=40, seed=3, record_every=1)
    full = np.diff(history["full_rounds"])
    assert full[0] == 1
    assert 2 < full.sum() < 20
    clients = np.where(full == 1, 50, 5)
    assert (np.diff(history["clients"]) == clients).all()
    assert (np.diff(history["floats_down"]) == np.where(full == 1, 50 * d, 5 * 2 * d)).all()
    assert (np.diff(history["floats_up"]) == clients * d).all()
    assert (history["bytes_down"] == 8 * history["floats_down"]).all()
    assert (history["bytes_up"] == 8 * history["floats_up"]).all()
    work = np.where(
        full == 1, 10, 2 * 10 + 2 * 3 * 2
    )  # b1 = 10 rows; b2 = 10 at two points, then 3 times 2 at two
    assert (np.diff(history["gradients"]) == clients * work).all()
    np.testing.assert_allclose(np.diff(history["gradients_per_client"]), work)
    assert (np.diff(history["evaluations"]) == clients * np.where(full == 1, 1, 8)).all()


@pytest.mark.parametrize(("kind", "down", "up"), [(fp.FedAvg, 1, 1), (fp.SCAFFOLD, 2, 1)])
def test_costs_of_the_others(kind, down, up):
    history = fp.simulate(census(), kind(S=7, K=3, b=4), rounds=10, seed=0)
    assert history.last("floats_down") == 10 * 7 * 123 * down
    assert history.last("floats_up") == 10 * 7 * 123 * up
    assert history.last("gradients") == 10 * 7 * 3 * 4
    assert history.last("gradients_per_client") == 10 * 3 * 4
    assert history.last("full_rounds") == 0


def test_floats_per_round_agree_with_the_paper():
    """In units of d, with the paper's S: FedPAGE 49 to 50, SCAFFOLD 80 (one vector up: 60)."""
    N, S, p = 3250, 10, 10 / 3250
    expected = p * 2 * N + (1 - p) * 3 * S
    assert 49 < expected < 50
    assert fair_batch(10, 10) == 4
    problem = fp.RobustRegression(fp.load("census"), clients=N)
    for method, floats in (
        (fp.ScaffoldOptionI(S=20), 80),
        (fp.SCAFFOLD(S=20), 60),
        (fp.FedAvg(S=20), 40),
    ):
        history = fp.simulate(problem, method, rounds=5, seed=0, record_every=0)
        assert (history.last("floats_up") + history.last("floats_down")) / 5 / 123 == floats


def test_gradients_are_counted_with_unequal_clients():
    problem = uneven()
    run = Simulation(problem, fp.FedAvg(S=problem.N, K=2, b=3), seed=0)
    run.step()
    assert run.costs.gradients == 2 * np.minimum(problem.sizes, 3).sum()


@pytest.mark.parametrize(
    ("record_every", "rounds", "expected"),
    [(10, 25, [0, 10, 20, 25]), (0, 25, [25]), (7, 7, [0, 7])],
)
def test_records(record_every, rounds, expected):
    history = fp.simulate(
        census(), fp.FedAvg(S=5), rounds=rounds, seed=0, record_every=record_every
    )
    assert history["round"].tolist() == expected
    assert (history.stop_reason, history.stop_detail) == (fp.StopReason.FINISHED, "")


def test_a_record_is_of_the_model_after_that_many_rounds():
    problem, method = census(), fp.FedPAGE(S=5)
    history = fp.simulate(problem, method, rounds=20, seed=2, record_every=5)
    run = Simulation(problem, method, seed=2)
    for r in range(21):
        if r % 5 == 0:
            assert history["loss"][r // 5] == problem.loss(run.x)
        if r < 20:
            run.step()
    assert history.x.tobytes() == run.x.tobytes()


def test_a_run_ends_at_a_target_at_a_budget_and_by_a_function():
    problem, method = census(), fp.FedPAGE(S=5)
    reached = fp.simulate(problem, method, rounds=5000, seed=0, stop=fp.Stop("0.05,hold=0"))
    assert reached.stop_reason is TARGET
    assert reached.stop_detail.startswith("reached grad_norm 0.05 at round")
    assert reached.last("grad_norm") <= 0.05 < reached["grad_norm"][-2]
    low = fp.simulate(problem, method, rounds=5000, seed=0, stop=fp.Stop("loss:0.25,hold=0"))
    assert low.stop_reason is TARGET
    assert low.last("loss") <= 0.25 < low["loss"][-2]
    spent = fp.simulate(problem, method, rounds=5000, seed=0, stop=fp.Stop(budgets={"bytes": 1e6}))
    assert spent.stop_reason is BUDGET
    assert spent.stop_detail.startswith("spent 1e+06 bytes")
    assert spent.last("bytes") >= 1e6
    assert spent.last("bytes") - 1e6 < 2 * 50 * 123 * 8
    mine = fp.simulate(
        problem,
        method,
        rounds=500,
        seed=0,
        stop=lambda row: "enough" if row["round"] >= 30 else None,
    )
    assert (mine.stop_reason, mine.stop_detail) == (fp.StopReason.CALLBACK, "enough")
    assert mine.last("round") == 30


def test_a_small_gradient_with_a_high_loss_reaches_no_target():
    """Far from the minimum the gradient of robust regression is tiny, but the loss is high."""
    history = fp.History()
    for r, loss, norm in [(0, 0.4, 0.5), (10, 20.0, 1e-9), (20, 0.3, 0.1)]:
        history.append({"round": r, "loss": loss, "grad_norm": norm})
    assert history.cost_to("grad_norm:1e-3,hold=0", "round") == math.inf
    assert history.cost_to("grad_norm:0.2,hold=0", "round") == 20
    assert history.best("grad_norm") == 0.1
    data = fp.load("census", rows=500)
    problem = fp.RobustRegression(data, clients=50)
    away = fp.simulate(
        problem, fp.FedPAGE(S=5, eta_g=1e6), rounds=2000, seed=0, stop=fp.Stop("0.05,hold=0")
    )
    assert away.diverged
    assert away.stop_reason is DIVERGED
    assert away.stop_detail.startswith("loss")
    assert away.last("round") < 2000


@pytest.mark.parametrize("record_every", [0, 7, 100, 200])
def test_divergence_is_found_for_any_record_every(record_every):
    problem = census()
    away = fp.simulate(
        problem, fp.FedPAGE(S=5, eta_g=1e6), rounds=400, seed=0, record_every=record_every
    )
    assert away.diverged
    assert away.stop_reason is DIVERGED
    assert away.stop_detail.startswith("loss")
    assert away.cost_to("grad_norm:1e9,hold=0", "round") in (
        0.0,
        math.inf,
    )  # only x0 itself, where it was recorded
    assert away.first_loss == problem.loss(np.zeros(problem.d))


def test_a_target_is_checked_at_the_end_without_records():
    near = fp.simulate(
        census(), fp.FedPAGE(S=5), rounds=300, seed=0, record_every=0, stop=fp.Stop("10.0,hold=0")
    )
    assert near.stop_detail == "reached grad_norm 10 at round 300"


def test_divergence_in_threads_is_reported():
    history = fp.simulate(
        quadratic(),
        fp.FedAvg(S=8, K=2, eta_l=50.0, b=None),
        rounds=3000,
        seed=0,
        options=fp.RunOptions(threads=2, chunk=2),
    )
    assert history.diverged


def test_divergence_is_reported():
    problem = quadratic()
    for record_every in (0, 10):
        history = fp.simulate(
            problem,
            fp.FedAvg(S=4, K=2, eta_l=50.0, b=None),
            rounds=3000,
            seed=0,
            record_every=record_every,
        )
        assert history.stop_reason is DIVERGED
        assert history.stop_detail
        assert history.last("round") < 3000
    assert not fp.simulate(
        problem, fp.FedAvg(S=4, K=2, eta_l=0.01, b=None), rounds=100, seed=0
    ).diverged


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"stop": 0.2}, "stop must be"),
        ({"stop": "x"}, "stop must be"),
        ({"progress": 5}, "progress must be"),
        ({"progress": print}, "see fp.FunctionCallback"),
        ({"options": {"threads": 2}}, "options must be RunOptions"),
        ({"options": fp.RunOptions(x0="abc")}, "x0 must be"),
        ({"options": fp.RunOptions(x0=np.zeros(123, dtype=complex))}, "x0 must be"),
        ({"options": fp.RunOptions(resume=True)}, "resume=True needs out="),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(options, why):
    with pytest.raises(InputError, match=why):
        fp.simulate(census(), fp.FedAvg(S=5), **{"rounds": 5, "seed": 0, **options})


def test_a_wrong_problem_or_method_is_refused():
    with pytest.raises(InputError, match="method must be"):
        fp.simulate(census(), fp.FedAvg, rounds=1, seed=0)
    with pytest.raises(InputError, match="problem must be"):
        fp.simulate(fp.load("census", rows=50), fp.FedAvg(), rounds=1, seed=0)
    with pytest.raises(InputError, match="methods must be"):
        fp.sweep(census(), fp.FedAvg(S=5), rounds=1)
    for bad in ("ab", True, 1.5):
        with pytest.raises(InputError, match="seeds must be"):
            fp.sweep(census(), [fp.FedAvg(S=5)], rounds=1, seeds=bad)
    with pytest.raises(InputError, match="jobs must be"):
        fp.sweep(census(), [fp.FedAvg(S=5)], rounds=1, seeds=1, jobs=0)


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


def test_full_rounds_hold_few_replies_at_a_time():
    """With d = 20,000 and 400 clients a table of all replies would take 64 MB."""
    import tracemalloc

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


def test_provenance_differs_for_another_start_or_stop():
    problem, method = census(), fp.FedAvg(S=5)
    e1, e2 = np.eye(123)[:2]
    metas = [
        fp.simulate(problem, method, rounds=1, seed=0, **o).meta
        for o in (
            {"options": fp.RunOptions(x0=e1)},
            {"options": fp.RunOptions(x0=e2)},
            {"stop": fp.Stop(budgets={"bytes": 1e9})},
            {},
        )
    ]
    assert len({str(meta) for meta in metas}) == 4


@pytest.mark.parametrize("function", [fp.simulate, fp.sweep])
def test_at_most_ten_arguments(function):
    assert len(inspect.signature(function).parameters) <= 10


def test_sweeps_are_paired_and_the_same_in_parallel():
    problem, chosen = census(), [fp.FedPAGE(S=5, K=1), fp.FedPAGE(S=5, K=4), fp.SCAFFOLD(S=5)]
    alone = fp.sweep(problem, chosen, rounds=20, seeds=2, record_every=5)
    together = fp.sweep(problem, chosen, rounds=20, seeds=[0, 1], record_every=5, jobs=2)
    assert [h.meta["seed"] for h in alone] == [0, 1, 0, 1, 0, 1]
    assert all(a.same(b) for a, b in zip(alone, together, strict=True))
    assert (
        alone[0]["full_rounds"] == alone[2]["full_rounds"]
    ).all()  # the same coins for K = 1 and K = 4


def test_jobs_none_uses_the_backend_of_joblib():
    import joblib

    problem = census()
    with joblib.parallel_config(backend="threading", n_jobs=2):
        runs = fp.sweep(problem, [fp.FedAvg(S=5)], rounds=5, seeds=2, jobs=None)
    assert runs[1].same(fp.simulate(problem, fp.FedAvg(S=5), rounds=5, seed=1))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rounds": -1}, "rounds"),
        ({"rounds": 1.5}, "rounds"),
        ({"record_every": -1}, "record"),
        ({"seed": -1}, "seed"),
        ({"options": fp.RunOptions(x0=np.zeros(3))}, "x0 must be 123"),
        ({"options": fp.RunOptions(x0=np.full(123, np.nan))}, "x0"),
        ({"options": fp.RunOptions(threads=0)}, "threads"),
        ({"options": fp.RunOptions(chunk=0)}, "chunk"),
    ],
)
def test_arguments_out_of_range_are_refused(options, why):
    with pytest.raises(InputError, match=why):
        fp.simulate(census(), fp.FedAvg(S=5), **{"rounds": 5, "seed": 0, **options})


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (fp.FedPAGE, {"S": 0}, "S must be a whole number from 1 to"),
        (fp.FedPAGE, {"S": 2.5}, "S must be"),
        (fp.FedPAGE, {"K": 0}, "K must be"),
        (fp.FedPAGE, {"p": 0.0}, r"p must be in \(0, 1\]"),
        (fp.FedPAGE, {"p": 1.1}, r"p must be in \(0, 1\]"),
        (fp.FedPAGE, {"p": math.nan}, "p must be"),
        (fp.FedPAGE, {"b1": 0}, "b1 must be"),
        (fp.FedPAGE, {"b2": -3}, "b2 must be"),
        (fp.FedPAGE, {"b3": 0}, "b3 must be"),
        (fp.FedPAGE, {"eta_g": math.inf}, "eta_g must be a finite number above 0"),
        (fp.FedPAGE, {"eta_g": -0.1}, "eta_g must be"),
        (fp.FedPAGE, {"eta_l": math.nan}, "eta_l must be"),
        (fp.PAGE, {"K": 2}, "K must be 1"),
        (fp.FedAvg, {"eta_l": 0}, "eta_l must be"),
        (fp.FedAvg, {"eta_g": "1"}, "eta_g must be"),
        (fp.FedAvg, {"b": 0}, "b must be"),
        (fp.FedAvg, {"K": True}, "K must be"),
        (fp.ScaffoldOptionI, {"b0": 0}, "b0 must be"),
        (fp.FedPAGE, {"K": 10**30}, "K must be"),
        (fp.FedPAGE, {"eta_g": 10**400}, "eta_g must be"),
        (fp.FedExP, {"averaged": 1}, "averaged must be True or False"),
        (fp.FedProx, {"mu": -1.0}, "mu must be a finite number of at least 0"),
        (fp.FedProx, {"mu": math.nan}, "mu must be"),
        (fp.VRLSGD, {"K": 0}, "K must be"),
        (fp.VRLSGD, {"eta_l": -1}, "eta_l must be"),
        (fp.SLocalSVRG, {"q": 0.0}, "q must be in"),
        (fp.SLocalSVRG, {"S": 0}, "S must be"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(kind, options, why):
    with pytest.raises(InputError, match=why):
        kind(**options)


@pytest.mark.parametrize(
    "name", [n for n, m in methods(9, 1, 0.1).items() if getattr(m, "S", None) is not None]
)
def test_more_clients_than_N_cannot_be_sampled(name):
    with pytest.raises(InputError, match="cannot sample S=9 of N=8 clients"):
        fp.simulate(quadratic(), methods(9, 1, 0.1)[name], rounds=1, seed=0)


def test_the_default_local_step_and_probability():
    method = fp.FedPAGE(S=10, K=10, eta_g=0.1)
    assert method.local_step == pytest.approx(1e-4)
    assert fp.FedPAGE(eta_l=0.01).local_step == 0.01
    problem = census(clients=50)
    history = fp.simulate(problem, fp.FedPAGE(S=25, K=2), rounds=400, seed=1, record_every=0)
    assert 160 < history.last("full_rounds") < 240  # p = S/N = 1/2


def test_client_states_are_zero_until_written():
    kind = fp.SCAFFOLD.client_state
    table = ClientStates(kind, 1000, 3, np.dtype(np.float64))
    assert (table.get(np.array([5, 999])).c == 0).all()
    table.put(np.array([5]), kind(np.ones((1, 3))))
    assert table.get(np.array([4, 5])).c.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert ClientStates(None, 10, 3, np.dtype(np.float64)).get(np.array([1])) is None


def test_client_states_take_memory_for_the_clients_that_were_called():
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("the memory of a process is read from /proc")

    def resident():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    kind = fp.SCAFFOLD.client_state
    table = ClientStates(kind, 100_000, 1_000, np.dtype(np.float64))  # 800 MB
    clients = np.arange(0, 100_000, 1_000)
    before = resident()
    table.put(clients, kind(np.ones((100, 1_000))))
    assert resident() - before < 20e6
    assert table.get(np.array([0, 1, 99_000])).c.sum(axis=1).tolist() == [1_000, 0, 1_000]


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
    single = rows.astype(np.float32)
    assert add_rows(None, single).dtype == np.float32
