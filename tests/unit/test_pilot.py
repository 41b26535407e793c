"""Pilots: extrapolated decays, the search of a step, conversion to costs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import fedpage as fp
from fedpage.codecs import IDENTITY, as_codec
from fedpage.core.errors import InputError
from fedpage.studies.extrapolate import Forecast, first_passages, forecast
from fedpage.studies.pilot import OUT_OF_TIME, Pilot, has_floor, pilot_methods, run_pilots
from fedpage.theory.planner import TimeModel

ROUNDS = np.arange(0.0, 601.0, 10.0)
DECAYS = {
    "exponential": (lambda r: np.exp(-r / 150), 0.0),
    "1/r": (lambda r: 1 / (1 + r / 20), 1.0),
    "1/r^2": (lambda r: (1 + r / 20) ** -2.0, 0.5),
    "1/sqrt(r)": (lambda r: (1 + r / 20) ** -0.5, 2.0),
}


def noisy(decay, seed: int, noise: float, rounds=ROUNDS) -> tuple[np.ndarray, np.ndarray]:
    """Return a run whose speed and whose records vary with the seed."""
    draws = np.random.default_rng(seed)
    speed = math.exp(noise * draws.standard_normal())
    wobble = np.exp(noise * draws.standard_normal(len(rounds)))
    wobble[0] = 1.0
    return rounds, decay(speed * rounds) * wobble


# --- extrapolation --------------------------------------------------------------------------------


def test_first_passages_are_interpolated_and_never_come_back():
    rounds, values = np.array([0.0, 10.0, 20.0, 30.0]), np.array([1.0, 0.1, 0.5, 0.01])
    levels = np.array([2.0, 1.0, 10**-0.5, 0.1, 0.05, 0.001])
    passed = first_passages(rounds, values, levels)
    assert passed[:4] == pytest.approx([0.0, 0.0, 5.0, 10.0])
    assert 20 < passed[4] < 30
    assert passed[5] == math.inf
    assert list(first_passages(rounds[:1], values[:1], np.array([1.0, 0.5]))) == [0.0, math.inf]
    hidden = np.array([1.0, math.inf, 0.5, 0.01])  # a record that does not count
    assert first_passages(rounds, hidden, np.array([0.5])) == pytest.approx([20.0])


@pytest.mark.parametrize("name", DECAYS)
def test_planted_decays_are_recovered(name):
    decay, shape = DECAYS[name]
    for end in (1000.0, 4000.0):
        found = forecast([(ROUNDS, decay(ROUNDS))], float(decay(end)))
        assert found.kind == "predicted"
        assert found.low < end < found.high
        assert found.rounds == pytest.approx(end, rel=0.15)
        assert found.shape == pytest.approx(shape, abs=0.15)


@pytest.mark.parametrize("name", DECAYS)
def test_intervals_hold_nine_in_ten_further_runs(name):
    decay, _ = DECAYS[name]
    target, held, total = float(decay(1500.0)), 0, 0
    long = np.arange(0.0, 20_001.0, 10.0)
    for trial in range(40):
        pilots = [noisy(decay, 10 * trial + seed, 0.15) for seed in range(4)]
        truth = first_passages(*noisy(decay, 10 * trial + 9, 0.15, long), np.array([target]))[0]
        found = forecast(pilots, target)
        if found.kind == "predicted":
            total += 1
            held += found.low <= truth <= found.high
    assert total >= 30
    assert held / total >= 0.8


def test_an_exponential_and_a_power_law_are_told_apart():
    """The same values halfway and at the end of the pilot, but another future."""
    ends = []
    for name in ("exponential", "1/r"):
        decay, _ = DECAYS[name]
        found = forecast([(ROUNDS, decay(ROUNDS))], 0.2 * float(decay(600.0)))
        ends.append(found.rounds / 600)
    assert ends[0] == pytest.approx(1 + math.log(5) * 150 / 600, rel=0.05)
    assert ends[1] > 4


@pytest.mark.parametrize("name", DECAYS)
def test_intervals_grow_with_the_distance(name):
    """A log error of at least 0.15 is assumed for every doubling of the rounds."""
    decay, _ = DECAYS[name]
    for end in (1000.0, 2000.0, 4000.0):
        found = forecast([(ROUNDS, decay(ROUNDS))], float(decay(end)))
        assert math.log(found.high / found.low) > 2 * 1.6 * 0.15 * math.log2(found.rounds / 600)


def test_a_target_that_every_run_reached_is_measured():
    decay, _ = DECAYS["exponential"]
    runs = [(ROUNDS, decay(speed * ROUNDS)) for speed in (0.9, 1.0, 1.25)]
    found = forecast(runs, float(decay(300.0)))
    assert found.kind == "measured"
    assert found.rounds == pytest.approx(300.0)
    assert found.low < 240
    assert 1000 / 3 < found.high < 600
    some = forecast(runs, float(decay(600.0)))  # one of three does not reach it
    assert some.kind == "predicted"
    assert some.rounds == pytest.approx(600.0)


def test_forecasts_are_refused_where_they_would_be_guesses():
    decay, _ = DECAYS["exponential"]
    stalled = (ROUNDS, np.maximum(decay(ROUNDS), 0.2))
    assert "stalls at 0.2" in forecast([stalled], 0.1).reason
    rising = (ROUNDS, 1 + ROUNDS)
    assert "no progress" in forecast([rising], 0.1).reason
    far = forecast([(ROUNDS, DECAYS["1/r"][0](ROUNDS))], 1e-4)
    assert "more than 16 times" in far.reason
    flat = 1 - ROUNDS / 4e4  # and then a sudden fall
    assert "too short" in forecast([(ROUNDS, np.where(ROUNDS < 500, flat, flat / 9))], 0.01).reason
    sudden = np.exp(-ROUNDS / 1000 - 2 * np.maximum(ROUNDS - 450, 0) / 50)
    assert "does not predict" in forecast([(ROUNDS, sudden)], 1e-4).reason
    apart = [(ROUNDS, decay(speed * ROUNDS)) for speed in (0.05, 1.0, 20.0)]
    assert "anything from" in forecast(apart, float(decay(650.0))).reason
    floor = forecast([(ROUNDS, decay(ROUNDS))], 1e-3, has_floor=True)
    assert "it has a floor" in floor.reason
    for found in (far, floor):
        assert (found.kind, found.rounds, found.low, found.high) == ("none", None, None, None)
    for target in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="target must be"):
            forecast([stalled], target)
    with pytest.raises(InputError, match="at least one run"):
        forecast([], 0.1)


# --- pilots ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quadratic() -> fp.Quadratic:
    """Clients that differ, and a condition number of 30."""
    draws = np.random.default_rng(0)
    scales = draws.uniform(0.7, 1.3, (20, 5))
    A = np.einsum("nd,de->nde", scales / scales.mean(axis=0), np.diag(np.geomspace(1 / 30, 1, 5)))
    return fp.Quadratic(A, draws.standard_normal((20, 3, 5)))


@pytest.mark.parametrize("label", ["PAGE", "FedPAGE", "SCAFFOLD", "SAGA", "gradient descent"])
def test_a_pilot_predicts_longer_runs(quadratic, label):
    methods = pilot_methods([label], quadratic.N, 4, 3, IDENTITY)
    target = 1e-4
    pilot = run_pilots(quadratic, methods, target=target, rounds=60)[label]
    assert pilot.forecast.kind == "predicted"
    assert pilot.forecast.rounds > 60
    held = 0
    for seed in range(10_000, 10_005):
        history = fp.simulate(
            quadratic, pilot.method, rounds=2000, seed=seed, record_every=1,
            stop=fp.Stop(grad_norm=target),
        )  # fmt: skip
        held += pilot.forecast.low <= history.last("round") <= pilot.forecast.high
    assert held >= 4
    again = run_pilots(quadratic, methods, target=target, rounds=60)[label]
    assert again == pilot  # the same arguments, the same prediction


@pytest.mark.parametrize("factor", [2.0**-6, 1.0, 2.0**6])
def test_doubling_finds_the_best_step_from_both_sides(quadratic, factor):
    """Gradient descent on a quadratic is fastest near 2/(L + mu)."""
    eigenvalues = np.linalg.eigvalsh(quadratic.A.mean(axis=0))
    best = 2 / (eigenvalues[0] + eigenvalues[-1])
    methods = pilot_methods(["gradient descent"], quadratic.N, 4, 3, IDENTITY)
    pilot = run_pilots(quadratic, methods, target=1e-9, first_step=best * factor, rounds=40)
    (found,) = pilot.values()
    assert found.step == pytest.approx(best)
    assert found.seeds == 2  # both seeds gave the same run


def test_a_step_that_is_stable_but_too_large_is_halved():
    steep = fp.Quadratic(np.diag([1.0, 0.5])[None], np.array([[[1.0, 0.1]]]))
    methods = pilot_methods(["gradient descent"], 1, 1, 1, IDENTITY)
    pilot = run_pilots(steep, methods, target=1e-9, first_step=1.99, rounds=40)
    assert pilot["gradient descent"].step == pytest.approx(1.99 / 2)


def test_a_pilot_that_reaches_the_target_is_a_measurement(quadratic):
    methods = pilot_methods(["gradient descent", "SAGA"], quadratic.N, 4, 3, IDENTITY)
    found = run_pilots(quadratic, methods, target=1e-2, rounds=200)
    pilot = found["gradient descent"]
    assert pilot.forecast.kind == "measured"
    history = fp.simulate(quadratic, pilot.method, rounds=200, seed=5, record_every=1)
    passed = first_passages(history["round"], history["grad_norm"], np.array([1e-2]))[0]
    assert pilot.forecast.rounds == pytest.approx(passed, rel=0.05)
    vectors = 8 * quadratic.d * quadratic.N * pilot.forecast.rounds
    assert pilot.cost("bytes_up")[0] == pytest.approx(vectors)
    assert pilot.cost("up+0.5*down")[0] == pytest.approx(1.5 * vectors)
    assert pilot.cost("bits")[0] == pytest.approx(16 * vectors)
    assert pilot.cost("clients")[0] == pytest.approx(quadratic.N * pilot.forecast.rounds)
    assert pilot.cost("rounds")[0] == pilot.forecast.rounds
    each = 2.0 + 8 * quadratic.d / 100 + 3 * 0.5
    seconds = pilot.cost("seconds", TimeModel(latency=2.0, uplink=100.0, gradient=0.5))
    assert seconds[0] == pytest.approx(each * pilot.forecast.rounds)
    with pytest.raises(InputError, match="a pilot has no seconds"):
        pilot.cost("seconds")
    with pytest.raises(InputError, match="a pilot has no floats_up"):
        pilot.cost("floats_up")
    assert Pilot(None, Forecast("none")).cost("bytes") is None


def test_a_gap_is_measured_from_the_minimum(quadratic):
    methods = pilot_methods(["gradient descent"], quadratic.N, 4, 3, IDENTITY)
    (pilot,) = run_pilots(quadratic, methods, target=1e-3, measure="gap", rounds=200).values()
    history = fp.simulate(quadratic, pilot.method, rounds=200, seed=5, record_every=1)
    gaps = history["loss"] - quadratic.loss(quadratic.x_star)
    assert pilot.forecast.rounds == pytest.approx(np.argmax(gaps <= 1e-3), abs=5)


def test_first_rounds_are_counted_once(quadratic):
    """FedPAGE's first round calls all clients; only later rounds have the average cost."""
    method = fp.PAGE(S=4, p=1e-9, eta_g=0.2)
    pilot = run_pilots(quadratic, {"PAGE": method}, target=1e-12, rounds=40)["PAGE"]
    assert pilot.traffic["clients"] == pytest.approx((quadratic.N - 4, 4.0, 0.0), abs=1e-9)


def test_costs_allow_for_full_rounds_that_come_by_a_coin(quadratic):
    """Runs of equal length differ in their cost, so the cost's interval is wider."""
    methods = pilot_methods(["PAGE", "SAGA"], quadratic.N, 2, 1, IDENTITY)
    found = run_pilots(quadratic, methods, target=1e-2, rounds=400)
    saga, page = found["SAGA"], found["PAGE"]
    assert saga.cost("clients") == pytest.approx([2 * each for each in saga.cost("rounds")])
    coin = 0.1 * 0.9 * (quadratic.N - 2) ** 2  # of a full round in place of two clients
    assert page.traffic["clients"].variance == pytest.approx(coin, rel=0.5)
    held = 0
    for seed in range(10_000, 10_010):
        history = fp.simulate(
            quadratic, page.method, rounds=1000, seed=seed, record_every=1,
            stop=fp.Stop(grad_norm=1e-2),
        )  # fmt: skip
        _, low, high = page.cost("clients")
        held += low <= history.last("clients") <= high
    assert held >= 8


def test_pilots_end_with_their_time(quadratic):
    methods = pilot_methods(["PAGE", "SAGA"], quadratic.N, 4, 3, IDENTITY)
    found = run_pilots(quadratic, methods, target=1e-3, budget=0.0)
    assert [pilot.forecast.reason for pilot in found.values()] == [OUT_OF_TIME] * 2
    for bad in ({"budget": -1.0}, {"budget": math.nan}, {"rounds": 5}, {"seeds": 1}):
        with pytest.raises(InputError, match=f"{next(iter(bad))} must be"):
            run_pilots(quadratic, methods, target=1e-3, **bad)
    for measure in ("grad_norm", "gap"):
        with pytest.raises(InputError, match="the start has a"):
            run_pilots(quadratic, methods, target=100.0, measure=measure)
    with pytest.raises(InputError, match="give first_step"):
        run_pilots(quadratic, methods, target=1e-3, first_step=0.0)


def test_a_method_that_measures_its_step_is_not_searched(quadratic):
    methods = pilot_methods(["SecantPAGE"], quadratic.N, 4, 3, IDENTITY)
    pilot = run_pilots(quadratic, methods, target=1e-6, rounds=200)["SecantPAGE"]
    assert (pilot.method, pilot.tried, pilot.step) == (fp.METHODS["secantpage"](S=4), 0, None)
    assert pilot.forecast.rounds is not None


def test_every_step_that_diverges_is_said(quadratic):
    methods = pilot_methods(["gradient descent"], quadratic.N, 4, 3, IDENTITY)
    found = run_pilots(quadratic, methods, target=1e-3, first_step=1e9, rounds=40)
    assert found["gradient descent"].forecast.reason == "the pilot diverges at every step tried"
    assert found["gradient descent"].step is None


def test_methods_of_pilots():
    labels = ["FedAvg", "SCAFFOLD", "PAGE", "COFIG", "S-DANE", "Scaffnew", "nobody's"]
    methods: dict[str, Any] = {**pilot_methods(labels, 100, 7, 5, as_codec("natural"))}
    assert list(methods) == labels[:-1]
    assert methods["FedAvg"] == fp.FedAvg(S=7, K=5, b=None)
    assert methods["SCAFFOLD"] == fp.SCAFFOLD(S=7, K=5, b=None)
    assert methods["PAGE"] == fp.PAGE(S=7)
    assert str(methods["COFIG"].up) == "natural"
    assert methods["S-DANE"].S is None  # its theorem needs all clients
    assert methods["Scaffnew"].p == 0.2
    coded = pilot_methods(["EF21-PP", "COFIG"], 100, 7, 5, as_codec("topk:0.1"))
    biased: dict[str, Any] = {**coded}
    assert str(biased["EF21-PP"].up) == "topk:0.1"
    assert str(biased["COFIG"].up) == "none"  # it takes unbiased codecs only
    floors = {name: has_floor(method) for name, method in methods.items()}
    assert [name for name, floor in floors.items() if floor] == ["FedAvg"]
    assert has_floor(dataclasses.replace(methods["SCAFFOLD"], b=2))
    assert not has_floor(fp.SLocalSVRG(b=2))
