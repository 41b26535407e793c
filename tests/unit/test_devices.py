"""Simulated time: rounds computed by hand, deadlines, profiles, files of measurements."""

import json
import math
import re

import numpy as np
import pytest
from support import make_method, quadratic, refusal, uneven

import fedpage as fp
from fedpage.core.columns import AXES, SIMULATED, Cost, list_axes
from fedpage.core.random import RoundDraws
from fedpage.engine.devices import PROFILES, Clock, Device, Devices
from fedpage.engine.simulate import Simulation
from fedpage.engine.transport import RoundFailed

SOME = {
    name: make_method(name, 4, 3, 0.1)
    for name in ("FedPAGE", "SCAFFOLD-II", "FedAvg", "Mime", "SAGA", "VRL-SGD", "COFIG-randk")
}
TWO = (Device(1.0, 100.0, 10.0, 0.5, 0), Device(2.0, 50.0, 20.0, 0.25, 1))


def two_clients():
    """Clients with 3 and 5 rows of 4 features; a vector is 32 bytes."""
    rng = np.random.default_rng(0)
    data = fp.Dataset.from_arrays(rng.normal(size=(8, 4)), rng.normal(size=8))
    parts = fp.Partition("two", np.arange(8), np.array([0, 3, 8]))
    return fp.LeastSquares(data, parts)


def run(problem, method, rounds, devices, **options):
    return fp.simulate(
        problem, method, rounds=rounds, seed=3, record_every=1,
        options=fp.RunOptions(devices=devices, **options),
    )  # fmt: skip


def test_a_round_takes_as_long_as_its_slowest_client():
    method = fp.FedAvg(S=2, K=2, b=4, eta_g=0.1)
    history = run(two_clients(), method, 3, Devices("two.csv", measured=TWO, overhead=0.125))
    first = 1.0 + 32 / 100 + 2 * 3 * 0.5 + 32 / 10  # 2 steps over min(4, 3) rows
    second = 2.0 + 32 / 50 + 2 * 4 * 0.25 + 32 / 20
    assert first > second
    np.testing.assert_allclose(np.diff(history[SIMULATED]), [0.125 + first] * 3, rtol=1e-14)


def test_only_called_clients_count_and_full_rounds_wait_for_all():
    method = fp.FedPAGE(S=1, K=1, eta_g=0.1, p=0.5)
    history = run(two_clients(), method, 12, Devices("two.csv", measured=TWO))
    full = 1.0 + 0.32 + 3 * 0.5 + 3.2, 2.0 + 0.64 + 5 * 0.25 + 1.6
    sampled = 1.0 + 0.64 + 2 * 3 * 0.5 + 3.2, 2.0 + 1.28 + 2 * 5 * 0.25 + 1.6
    assert sampled[0] > sampled[1]
    is_full = np.diff(history["full_rounds"]) == 1
    assert 1 < is_full.sum() < 11
    taken = np.diff(history[SIMULATED])
    np.testing.assert_allclose(taken[is_full], max(full))
    assert {round(float(each), 9) for each in taken[~is_full]} == {round(t, 9) for t in sampled}


def test_the_bytes_of_each_reply_count_as_the_codec_sends_them():
    problem = two_clients()
    method = fp.FedAvg(S=2, K=1, b=None, eta_g=0.1, up="bernoulli:0.5")
    speed = np.array([1.0, 2.0])
    free = [Device(0.0, 1e30, speed[client], 0.0, client) for client in (0, 1)]
    history = run(problem, method, 20, Devices("free.csv", measured=tuple(free)))
    per_round = np.diff(history["bytes_up"])
    taken = np.diff(history[SIMULATED])
    assert len(set(taken.tolist())) > 1
    wire = Simulation(problem, method, seed=3).transport.codec
    message, clients = next(iter(wire.replies)), np.array([0, 1])
    for r in range(20):
        each = wire.reply_bytes(message, clients, RoundDraws(3, r))
        assert each.sum() == per_round[r]
        assert (each / speed).max() == pytest.approx(taken[r])


@pytest.mark.parametrize("name", SOME)
def test_devices_without_a_deadline_change_no_bit_of_the_run(name):
    problem = uneven()
    plain = fp.simulate(problem, SOME[name], rounds=12, seed=3, record_every=1)
    timed = run(problem, SOME[name], 12, Devices())
    assert SIMULATED not in plain.columns
    assert (np.diff(timed[SIMULATED]) > 0).all()
    for row in timed.rows:
        del row[SIMULATED]
    assert timed.same(plain)


@pytest.mark.parametrize("name", SOME)
def test_time_does_not_depend_on_threads_and_chunks(name):
    options = {
        "faults": fp.Faults(dropout=0.1, lost=0.1, nan=0.05, late=0.05),
        "policy": fp.Policy(patience=60),
    }  # fmt: skip
    problem, devices = uneven(), Devices(deadline=0.15, overhead=0.01)
    one, other = (
        run(problem, SOME[name], 15, devices, **options, **given)
        for given in ({}, {"threads": 3, "chunk": 5})
    )
    assert other.same(one)
    assert one.last(SIMULATED) > 0


def test_a_resumed_run_has_the_same_time(tmp_path):
    problem, method, devices = uneven(), SOME["FedPAGE"], Devices(deadline=0.15)

    def stop(ended):
        if ended.round == 11:
            raise KeyboardInterrupt

    def simulate(devices, *callbacks, out=tmp_path, **options):
        return fp.simulate(
            problem, method, rounds=20, seed=3, record_every=1, out=out, callbacks=callbacks,
            options=fp.RunOptions(devices=devices, checkpoint_every=4, **options),
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        simulate(devices, fp.FunctionCallback(on_round_end=stop))
    again = simulate(devices, resume=True)
    assert again.same(simulate(devices, out=None))
    assert again.last("missing") > 0


def test_a_deadline_leaves_out_exactly_the_slow_clients():
    problem = uneven()
    devices = Devices(noise=0.0, deadline=0.15)
    method = fp.FedAvg(S=problem.N, K=2, b=3, eta_g=0.1)
    engine = Simulation(problem, method, seed=3, options=fp.RunOptions(devices=devices))
    work = 2 * np.minimum(problem.sizes, 3)
    everyone = np.arange(problem.N)
    seconds = devices.draw(problem.N, problem.d).seconds(
        everyone, 8 * problem.d, np.full(problem.N, 8 * problem.d), work
    )
    slow = everyone[seconds > 0.15]
    assert 0 < len(slow) < problem.N - 1
    for r in range(6):
        x = engine.x.copy()
        info = engine.step()
        fast = np.setdiff1d(everyone, slow)
        assert info.count == len(fast)
        _, message, *_ = method.call(engine.state._replace(x=x), RoundDraws(3, r))
        reply, _ = method.client(message, problem.oracle(fast, RoundDraws(3, r)), None)
        np.testing.assert_allclose(engine.x, x + method.eta_g * reply.dy.mean(axis=0), atol=1e-14)
    costs = engine.costs
    assert costs.missing == 6 * len(slow)  # they are not asked again in their round
    assert costs.rejected == 5 * len(slow)  # and answer in the next
    assert costs.clients == 6 * problem.N
    assert vars(costs)[SIMULATED] == pytest.approx(6 * 0.15)
    assert engine.health.misses == {}  # slow clients are not lost


def test_a_round_that_needs_every_client_has_no_deadline():
    problem = uneven()
    devices = Devices(noise=0.0, deadline=0.15)
    history = run(problem, fp.FedPAGE(S=4, K=2, eta_g=0.1, p=0.4), 20, devices)
    taken, is_full = np.diff(history[SIMULATED]), np.diff(history["full_rounds"]) == 1
    assert history.last("fallbacks") == 0
    assert 1 < is_full.sum() < 19
    assert (taken[is_full] > 0.15).all()
    assert taken[~is_full].max() == pytest.approx(0.15)
    assert taken[~is_full].min() < 0.15


def test_a_client_that_does_not_answer_is_waited_for_until_the_deadline():
    problem = two_clients()
    method = fp.FedAvg(S=2, K=1, b=None, eta_g=0.1)
    policy = fp.Policy(retries=2)
    gone = fp.Faults(gone=(1,))
    patient = run(
        problem, method, 2, Devices("two.csv", measured=TWO, deadline=50.0),
        faults=gone, policy=policy,
    )  # fmt: skip
    np.testing.assert_allclose(np.diff(patient[SIMULATED]), 3 * 50.0)  # a call and two retries
    free = run(problem, method, 2, Devices("two.csv", measured=TWO), faults=gone, policy=policy)
    np.testing.assert_allclose(np.diff(free[SIMULATED]), 1.0 + 0.32 + 3 * 0.5 + 3.2)


def test_a_failed_round_takes_time_too():
    devices = Devices("two.csv", measured=TWO, deadline=0.5)
    options = fp.RunOptions(devices=devices, policy=fp.Policy(retries=0, patience=3))
    engine = Simulation(two_clients(), fp.FedAvg(S=2, K=1, eta_g=0.1), seed=0, options=options)
    with pytest.raises(RoundFailed):
        engine.step()
    assert vars(engine.costs)[SIMULATED] == pytest.approx(4 * 0.5)


def test_devices_are_functions_of_seed_and_client():
    few, many = Devices(seed=5).draw(10, 20), Devices(seed=5).draw(1000, 20)
    for a, b in zip(few, many, strict=True):
        assert a.tolist() == b[:10].tolist()
    assert few.uplink.tolist() != Devices(seed=6).draw(10, 20).uplink.tolist()
    logs = np.log(np.array(many) / np.median(many, axis=1, keepdims=True))
    np.testing.assert_allclose(logs.std(axis=1), PROFILES["phones"].spread, rtol=0.1)
    assert np.abs(np.corrcoef(logs) - np.eye(4)).max() < 0.15
    exact = Devices("datacenter", latency=1.5, gradient=0.25, spread=0.0).draw(3, 20)
    assert exact.latency.tolist() == [1.5] * 3
    assert exact.gradient.tolist() == [0.25] * 3
    assert exact.uplink.tolist() == [1.25e9] * 3
    by_profile = Devices("phones", spread=0.0).draw(1, 1000).gradient[0]
    assert by_profile == pytest.approx(1000 * PROFILES["phones"].parameter)


def test_the_noise_is_one_per_call_and_depends_on_the_run():
    def measure(seed, round, attempt):
        clock = Clock(Devices(spread=0.0, noise=0.4), 2000, 1, seed)
        n = np.arange(2000)
        return clock.measure(n, 0, np.zeros(2000), np.zeros(2000), round, attempt)

    one = measure(0, 0, 0)
    assert np.log(one).std() == pytest.approx(0.4, rel=0.1)
    assert np.median(one) == pytest.approx(PROFILES["phones"].latency, rel=0.1)
    for other in (measure(1, 0, 0), measure(0, 1, 0), measure(0, 0, 1)):
        assert abs(np.corrcoef(np.log(one), np.log(other))[0, 1]) < 0.1


HEADER = "latency,downlink,uplink,gradient"


def test_measurements_are_read(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text(f"client,{HEADER}\n1,2,50,20,0.25\n0,1,100,10,0.5\n")
    devices = Devices.from_csv(path)
    assert [list(column) for column in devices.draw(2, 9)] == [[1, 2], [100, 50], [10, 20],
                                                              [0.5, 0.25]]  # fmt: skip
    assert repr(devices) == f"Devices(profile={str(path)!r})"
    assert devices.describe().keys() == {"measured"}
    assert "has no row for client 2, but clients are 0..2" in refusal(devices.draw, 3, 9)
    assert "names client 1, but clients are 0..0" in refusal(devices.draw, 1, 9)


def test_devices_are_drawn_from_rows_without_clients(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text(f" {HEADER}\n1,100,10,0.5\n2,50,20,0\n0,9,9,1e-6\n")
    drawn = Devices.from_text(f"{path}:seed=4,deadline=3").draw(300, 9)
    assert np.unique(drawn.latency).tolist() == [0.0, 1.0, 2.0]
    assert set(zip(drawn.latency, drawn.uplink, strict=True)) == {(0, 9), (1, 10), (2, 20)}
    counts = np.unique(drawn.latency, return_counts=True)[1]
    assert counts.min() > 70
    assert drawn.latency.tolist() != Devices.from_csv(path, seed=5).draw(300, 9).latency.tolist()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: column latency is missing"),
        ("latency,downlink,uplink\n1,1,1\n", "line 1: column gradient is missing"),
        (f"{HEADER},latency\n", "line 1: column latency occurs twice"),
        (f"{HEADER},uplnk\n", "line 1: unknown column 'uplnk'; did you mean 'uplink'?"),
        (f"{HEADER}\n", "has no devices"),
        (f"{HEADER}\n1,1,1,1\n1,x,1,1\n",
         "line 3: downlink must be a finite number above 0, not 'x'"),
        (f"{HEADER}\n1,1,0,1\n", "line 2: uplink"),
        (f"{HEADER}\n1,1,inf,1\n", "line 2: uplink"),
        (f"{HEADER}\n-1,1,1,1\n", "line 2: latency"),
        (f"{HEADER}\n1,1,1\n", "line 2: expected 4 cells"),
        (f"{HEADER}\n1,1,1,1,1\n", "line 2: expected 4 cells"),
        (f"{HEADER},client\n1,1,1,1,-1\n", "line 2: client"),
        (f"{HEADER},client\n1,1,1,1,0\n1,1,1,1,0\n",
         "line 3: client 0 occurs twice"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)  # fmt: skip
def test_wrong_files_are_named(tmp_path, text, fault):
    path = tmp_path / "devices.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    said = refusal(Devices.from_csv, path)
    assert said.startswith(str(path))
    assert fault in said


def test_misuse_in_python():
    said = refusal(Devices, "two.csv", measured=TWO, uplink=3.0)
    assert "uplink cannot be set, because two.csv has it" in said
    problem, method = two_clients(), fp.FedAvg(S=2)
    assert "devices must be a Devices, such as" in refusal(run, problem, method, 1, "phones")
    stop = fp.Stop(budgets={SIMULATED: 1.0})
    said = refusal(fp.simulate, problem, method, rounds=1, seed=0, stop=stop)
    assert "seconds_simulated needs devices" in said

    class Bare:
        def __init__(self, oracle):
            self.batch, self.grad = oracle.batch, oracle.grad
            self.gradients = self.evaluations = 0

    class Own(fp.LeastSquares):
        def oracle(self, clients, draws):
            return Bare(super().oracle(clients, draws))

    own = Own(problem.data, problem.partition)
    said = refusal(run, own, fp.FedAvg(S=2, K=1), 1, Devices())
    assert "Bare does not count the gradients of each client" in said


def test_simulated_seconds_are_a_budget_an_axis_and_a_cost():
    problem = quadratic()
    options = fp.RunOptions(devices=Devices())
    history = fp.simulate(
        problem, fp.FedAvg(S=2, K=1, eta_g=0.01), rounds=500, seed=0, record_every=1,
        options=options, stop=fp.Stop(budgets={SIMULATED: 5.0}),
    )  # fmt: skip
    assert history.stop_reason is fp.StopReason.BUDGET
    assert history[SIMULATED][-2] < 5.0 <= history.last(SIMULATED)
    assert Cost.parse("seconds_simulated").column.unit == "s"
    assert list_axes([history.columns]) == (*AXES, SIMULATED)
    bare = [name for name in history.columns if name != "gradients_per_client"]
    assert list_axes([history.columns, bare]) == (*AXES[:-1], SIMULATED)
    cost = history.cost_to(fp.Target("loss", history.last("loss"), hold=0), SIMULATED)
    assert math.isfinite(cost)
    assert 0 < cost <= history.last(SIMULATED)
    assert history.meta["devices"]["profile"] == "phones"


# Searches and the command line


SMALL_RUN = ("--data", "census:rows=300", "--clients", "30")
CSV = "latency,downlink,uplink,gradient\n1,1000,100,0.001\n2,500,200,0.01\n"


def census():
    return fp.LogisticRegression(fp.load("census", rows=300), clients=30)


def test_run_simulates_time_and_resumes_it(run, tmp_path):
    (tmp_path / "mine.csv").write_text(CSV)
    words = (
        "run",
        "fedavg",
        *SMALL_RUN,
        "--S",
        "3",
        "--rounds",
        "20",
        "--devices",
        "mine.csv:seed=2",
    )
    assert run(*words, "--out", "first")[0] == 0
    history = fp.History.load(tmp_path / "first")
    devices = fp.Devices.from_csv(tmp_path / "mine.csv", seed=2)
    problem = fp.RobustRegression(fp.load("census", rows=300), clients=30)
    same = fp.simulate(
        problem, fp.FedAvg(S=3), rounds=20, seed=0, options=fp.RunOptions(devices=devices)
    )
    assert history.same(same)
    text = (tmp_path / "first" / "run.toml").read_text()
    assert f"{tmp_path / 'mine.csv'}:seed=2" in text
    page = (tmp_path / "first" / "report.html").read_text()
    assert '<option value="seconds_simulated">simulated seconds</option>' in page
    assert run("resume", "first")[0] == 0
    (tmp_path / "mine.csv").write_text(CSV.replace("500", "501"))
    code, _, err = run("resume", "first")
    assert code == 2
    assert "cannot resume: devices.measured was" in err


def test_compare_judges_by_simulated_time(run, tmp_path):
    code, out, _ = run(
        "compare", *SMALL_RUN, "--S", "3", "--seeds", "2", "--rounds", "60",
        "--target", "0.2,hold=0", "--methods", "fedpage,fedavg",
        "--devices", "phones:noise=0", "--cost", "seconds_simulated", "--out", "both",
    )  # fmt: skip
    assert code == 0
    assert re.search(r"FedAvg: [\d.]+ s \[", out)
    loaded = fp.History.load(next((tmp_path / "both" / "runs").iterdir()))
    assert loaded.meta["devices"] == fp.Devices(noise=0.0).describe()
    page = (tmp_path / "both" / "report.html").read_text()
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0])
    assert SIMULATED in data["figures"][0]["panels"][0]["curves"][0]["costs"]
    assert run("resume", "both")[0] == 0


def test_tune_minimises_simulated_time():
    problem, devices = census(), fp.Devices("cross-silo", seed=1)
    found = fp.tune(
        problem, fp.FedAvg(S=3), target=0.15, cost=SIMULATED, search={"step": []}, seeds=2,
        held_out_seeds=2, devices=devices,
    )  # fmt: skip
    assert found.first.sample is not None
    history = fp.simulate(
        problem, found.method, rounds=found.first.rounds, seed=found.held_out_seeds[0],
        options=fp.RunOptions(devices=devices),
    )  # fmt: skip
    assert found.first.sample.costs[0] == found.question.cost_of(history)


def test_the_words_of_devices_are_read_again():
    for devices in (fp.Devices(), fp.Devices("datacenter", seed=3, deadline=0.25, noise=0.0)):
        assert fp.Devices.from_text(devices.text) == devices
