"""Tuning: spaces, searches with known optima, trials and their store, `fedpage tune`."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from typing import Any, ClassVar

import numpy as np
import pytest

import fedpage as fp
from fedpage.cli.run_config import read_run_command
from fedpage.core.columns import Cost
from fedpage.core.errors import InputError
from fedpage.core.types import Smoothness
from fedpage.methods import METHODS
from fedpage.methods.fair import default_method
from fedpage.report.search_plot import search_panels
from fedpage.studies import trials as trial_files
from fedpage.studies.search import Search
from fedpage.studies.space import Axis, build_candidate, codec_axis, given_axes, search_space
from fedpage.studies.trials import (
    HELD_OUT_SEED,
    Question,
    SearchEnded,
    Trial,
    Trials,
    TrialStore,
    run_trial,
)
from fedpage.studies.tuning import coordinate
from fedpage.theory.planner import TimeModel

RATIO = 20.0
BEST = 2 / (1 + RATIO)
"""The best step of gradient descent on `quadratic`: 2/(L + mu)."""
DESCENT = fp.FedAvg(S=4, K=1, eta_g=1.0, b=None)
STEP_ONLY = {"fixed": ["S", "K", "b", "eta_g"], "record_every": 1, "seeds": 2, "held_out_seeds": 2}


def quadratic(wrong: float = 1.0) -> fp.Quadratic:
    """Return 4 equal clients with eigenvalues from 1 to 20, whose `smoothness` may be wrong."""

    class Mistaken(fp.Quadratic):
        def smoothness(self) -> Smoothness:
            return Smoothness(*(wrong * L for L in super().smoothness()))

    A = np.diag(np.geomspace(1.0, RATIO, 6))
    return Mistaken(np.stack([A] * 4), np.ones((4, 2, 6)))


@pytest.fixture(scope="module")
def problem():
    return fp.RobustRegression(fp.load("census", rows=500), clients=50)


# Spaces


def test_an_axis_continues_on_both_sides_to_its_bounds():
    axis = Axis("x", (1.0, 2.0), 0, 2.0, 4.0, least=0.1, most=100.0)
    assert [axis.at(index) for index in range(-4, 6)] == [
        0.1, 0.125, 0.25, 0.5, 1.0, 2.0, 8.0, 32.0, 100.0, 100.0,
    ]  # fmt: skip
    assert (axis.first, axis.last) == (-4, 4)
    assert axis.neighbours(0) == [-1, 1]
    assert axis.neighbours(-4) == [-3]
    assert axis.neighbours(3, stride=4) == [-1, 4]
    K = Axis("K", (10,), 0, 2.0, 2.0, least=1, whole=True)
    assert [K.at(index) for index in range(-4, 2)] == [1, 1, 2, 5, 10, 20]
    assert K.first == -3
    words = Axis("up", ("a", "b", "c"), ordered=False)
    assert words.neighbours(1) == [0, 2]


def test_natural_bounds_of_the_space(problem):
    space = search_space(fp.FedPAGE(S=10, K=10), problem)
    assert list(space) == ["step", "rho", "S", "K", "p", "b1", "b2", "b3"]
    assert space["S"].values == (1, 2, 5, 10, 20, 40, 50)
    assert (space["S"].first, space["S"].last) == (0, 6)
    assert space["b3"].values == (1, 2, 4, 8, None)  # clients have 10 rows
    assert space["p"].values[-1] == 1.0
    assert space["p"].values[space["p"].start] is None
    assert space["K"].at(space["K"].first) == 1
    assert space["p"].at(-3) < space["p"].values[0]
    step = space["step"]
    assert step.values[step.start] == pytest.approx(1 / problem.smoothness().whole, rel=1e-3)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_a_space_that_starts_from_it(problem, name):
    entry = METHODS[name]
    method = default_method(entry, {}, problem)
    space = search_space(method, problem, fixed=list(entry.preset))
    for axis in space.values():
        near = [axis.at(index) for index in axis.neighbours(axis.start)]
        assert near
        built = build_candidate(method, {axis.name: near[-1]})
        assert built != method
    starts = {n: axis.at(axis.start) for n, axis in space.items() if n != "step"}
    assert build_candidate(method, starts) == method


@pytest.mark.parametrize("name", ["fedpage", "scaffold", "svrp", "fedadam", "feddyn", "cofig"])
def test_a_given_value_is_never_changed(problem, name):
    method = default_method(METHODS[name], {}, problem)
    for field in dataclasses.fields(method):
        space = search_space(method, problem, fixed=[field.name])
        for axis in space.values():
            for index in axis.neighbours(axis.start):
                try:
                    built = build_candidate(method, {axis.name: axis.at(index)})
                except InputError:
                    continue
                assert getattr(built, field.name) == getattr(method, field.name), axis.name


def test_codecs_are_searched_where_bytes_count(problem):
    method = fp.PPMARINA(S=5, up="randk:0.1")
    assert "up" not in search_space(method, problem)
    strengths = codec_axis(method, problem)
    shares = [codec.k for codec in strengths.values]
    assert shares == sorted(shares)
    assert shares[strengths.start] == 0.1
    assert 1 / problem.d <= shares[0] < 0.02 < 0.7 < shares[-1] < 1
    both = search_space(method, problem, codecs=True)
    assert [str(codec) for codec in both["up"].values] == [
        "randk:0.1", "none", "float16", "float32", "natural",
    ]  # fmt: skip
    assert "up" not in search_space(method, problem, codecs=True, fixed=["up"])
    options = {"target": 0.05, "rounds": 100, "seeds": 1, "held_out_seeds": 1, "max_runs": 15}
    found = fp.tune(problem, fp.PAGE(S=5), cost="bytes", **options)
    assert found.codecs
    assert {"up", "down"} <= set(found.first.searched)
    assert "Codecs were searched" in found.effort
    found = fp.tune(problem, fp.PAGE(S=5, up="float32"), cost="bytes", **options)
    assert (str(found.method.up), "up" in found.first.searched) == ("float32", False)
    assert not fp.tune(problem, fp.PAGE(S=5), cost="clients", **options).codecs


def test_given_values(problem):
    axes = given_axes(fp.FedPAGE(), problem, {"eta_g": [0.4, 0.1], "S": [5, 10, 20], "rho": []})
    assert axes["eta_g"].values == (0.1, 0.4)
    assert axes["eta_g"].at(2) == pytest.approx(1.6)
    assert axes["eta_g"].at(-1) == pytest.approx(0.025)
    assert axes["S"].at(3) == 40
    assert axes["rho"] == search_space(fp.FedPAGE(), problem)["rho"]
    fixed = given_axes(fp.FedPAGE(), problem, {"eta_g": [0.4, 0.1]}, fixed=True)["eta_g"]
    assert (fixed.first, fixed.last) == (0, 1)
    assert fixed.is_at_edge(1)
    step = search_space(fp.FedPAGE(), problem)["step"]
    assert [step.is_at_edge(index) for index in (step.first, 0, step.last)] == [True, False, True]
    share = search_space(fp.FedPAGE(), problem)["p"]
    assert not share.is_at_edge(share.last)  # p = 1 is a natural bound
    assert "window" not in search_space(fp.SecantPAGE(metric="none"), problem)
    words = given_axes(fp.FedExP(), problem, {"averaged": [True, False]})["averaged"]
    assert not words.ordered
    with pytest.raises(InputError, match="no hyper-parameter 'eta'"):
        given_axes(fp.FedAvg(), problem, {"eta": [1.0]})
    with pytest.raises(InputError, match="rho is FedPAGE's"):
        given_axes(fp.FedAvg(), problem, {"rho": [1.0]})


# Known optima


@pytest.mark.parametrize("wrong", [1.0, 100.0, 0.01])
def test_the_best_step_is_found_also_far_beyond_the_design(wrong):
    found = fp.tune(quadratic(wrong), DESCENT, target=1e-4, **STEP_ONLY)
    assert found.first.is_local_optimum
    assert list(found.first.searched) == ["step"]
    step = found.method.effective_step
    assert BEST / 1.42 <= step <= BEST * 1.42
    assert found.first.sample.reached == 2
    run = fp.simulate(
        quadratic(wrong),
        found.method,
        rounds=found.first.rounds,
        seed=HELD_OUT_SEED,
        record_every=1,
    )
    assert found.first.sample.costs[0] == run.cost_to("grad_norm:1e-4,hold=0", "round")
    assert found.runs < 40


@pytest.mark.parametrize("values", [[2e-4, 4e-4, 8e-4], [3.0, 6.0, 12.0]])
def test_a_given_grid_grows_until_the_best_is_inside(values):
    options = {"target": 1e-4, "record_every": 1, "seeds": 2, "held_out_seeds": 2}
    found = fp.tune(quadratic(), DESCENT, search={"step": values}, **options)
    assert found.first.is_local_optimum
    assert BEST / 2.01 <= found.method.effective_step <= BEST * 2.01
    stuck = fp.tune(quadratic(), DESCENT, search={"step": values}, fixed_grid=True, **options)
    assert not stuck.first.is_local_optimum
    assert set(stuck.first.edges) == {"step"}
    assert "end of the fixed grid" in stuck.advice


@dataclasses.dataclass(frozen=True)
class Planted(fp.FedAvg):
    """Gradient descent that is fastest at planted values of S, K and p; no step makes up for it."""

    name: ClassVar[str] = "Planted"
    p: float = 0.5
    best: ClassVar[dict[str, float]] = {"S": 2, "K": 40, "p": 1 / 32}

    @property
    def effective_step(self) -> float:
        return self.eta_l

    def with_step(self, step: float) -> Any:
        return dataclasses.replace(self, eta_l=step)

    def client(self, message: Any, oracle: Any, client_state: None) -> Any:
        away = sum(math.log2(getattr(self, name) / value) ** 2 for name, value in self.best.items())
        once = dataclasses.replace(self, K=1)
        reply, kept = fp.FedAvg.client(once, message, oracle, client_state)
        slow = np.geomspace(math.exp(-0.05 * away), 1.0, reply.dy.shape[-1])
        return type(reply)(reply.dy * slow), kept


def test_planted_values_of_other_hyper_parameters_are_found():
    options = {
        "target": 1e-2,
        "fixed": ["b", "eta_g"],
        "seeds": 1,
        "held_out_seeds": 1,
        "rounds": 200,
    }
    found = fp.tune(quadratic(), Planted(S=4, b=None), **options)
    assert found.first.is_local_optimum
    assert {name: coordinate(found.method, name) for name in Planted.best} == pytest.approx(
        Planted.best, rel=1e-3
    )
    assert "K=40" in found.first.settings


def test_a_search_that_is_cut_says_so():
    cut = fp.tune(quadratic(0.01), DESCENT, target=1e-4, max_runs=7, **STEP_ONLY)
    assert cut.runs <= 7 + 2  # of the evaluation
    assert cut.first.sample is not None
    assert not cut.first.is_local_optimum
    assert "before a local optimum" in cut.advice
    assert "cut" in cut.effort
    with pytest.raises(InputError, match="before its first runs"):
        fp.tune(quadratic(), DESCENT, target=1e-4, max_runs=0, **STEP_ONLY)


def test_a_target_that_the_start_has_reached_is_refused(problem):
    with pytest.raises(InputError, match="is reached before the first round"):
        fp.tune(problem, fp.PAGE(S=5), target=10.0)


def test_a_target_that_nobody_reaches_is_not_evaluated(problem):
    search = {"eta_g": [0.01, 0.1, 0.2, 0.4]}
    found = fp.tune(
        problem, fp.PAGE(S=5), target=1e-9, search=search, rounds=20, seeds=1, held_out_seeds=1
    )
    assert found.first.sample is None
    assert not found.first.is_reached
    assert "No candidate reached the target" in found.advice


# Runs and their costs


def make_run(rounds, values, *, column="grad_norm", loss=None):
    history = fp.History({"problem": {"metrics": {"score": True}}})
    for number, (done, value) in enumerate(zip(rounds, values, strict=True)):
        row = {"round": done, "loss": 1.0 - 0.01 * number if loss is None else loss[number]}
        history.append(row | {column: value, "bytes_up": 10.0 * done, "bytes_down": 0.0})
    return history


def test_costs_between_records():
    run = make_run([0, 10, 20], [1.0, 0.1, 0.001])
    assert run.cost_to("grad_norm:0.01,hold=0", "round") == pytest.approx(15)
    assert run.cost_to("grad_norm:0.01,hold=0", "bytes") == pytest.approx(150)
    assert run.cost_to("grad_norm:0.1,hold=0", "round") == pytest.approx(10)
    assert run.cost_to("grad_norm:1e-9,hold=0", "round") == math.inf
    assert run.cost_to("grad_norm:2.0,hold=0", "round") == 0
    zero = make_run([0, 10], [1.0, 0.0])
    assert zero.cost_to("grad_norm:0.5,hold=0", "round") == pytest.approx(5)
    every = make_run([0, 1, 2], [1.0, 0.5, 0.1])  # a run cannot stop within a round
    assert every.cost_to("grad_norm:0.2,hold=0", "round") == 2
    score = make_run([0, 10], [0.0, 1.0], column="score")
    assert score.cost_to("score:0.3,hold=0", "round") == pytest.approx(3)
    far = make_run([0, 10, 20], [1.0, 1e-9, 0.001], loss=[1.0, 50.0, 0.5])
    assert far.cost_to("grad_norm:0.01,hold=0", "round") == 20  # f > f(x0) before


def test_every_cost(problem):
    history = fp.simulate(problem, fp.FedPAGE(S=5), rounds=600, seed=0)
    for cost in ("round", "clients", "bytes", "bytes_up", "bits_down", "gradients"):
        question = Question(fp.Target("grad_norm", 0.03, hold=0), Cost.parse(cost))
        exact = history.cost_to("grad_norm:0.03,hold=0", cost)
        assert 0.8 * exact < question.cost_of(history) <= exact
    rounds = history.cost_to("grad_norm:0.03,hold=0", "round")
    seconds = Question(
        fp.Target("grad_norm", 0.03, hold=0), Cost.parse("seconds"), link=TimeModel(latency=2.0)
    )
    assert seconds.cost_of(history) == pytest.approx(2 * rounds)
    work = Question(
        fp.Target("grad_norm", 0.03, hold=0), Cost.parse("seconds"), link=TimeModel(gradient=2.0)
    )
    per_client = history.cost_to("grad_norm:0.03,hold=0", "gradients_per_client")
    assert work.cost_of(history) == pytest.approx(2 * per_client)


def test_a_run_ends_at_its_cap_or_at_the_target(problem):
    question = Question(fp.Target("grad_norm", 0.05, hold=0), Cost.parse("clients"), limit=5000.0)
    spec = question.make_spec(problem, fp.PAGE(S=5), 0)
    whole, _ = run_trial(spec, question, math.inf)
    assert (whole.capped, whole.diverged) == (False, False)
    assert whole.cost <= whole.spent < 5000
    short, _ = run_trial(spec, question, 0.5 * whole.cost)
    assert (short.capped, short.cost) == (True, math.inf)
    assert 0.5 * whole.cost <= short.spent < whole.spent
    far, _ = run_trial(question.make_spec(problem, fp.PAGE(S=5, eta_g=1e9), 0), question, math.inf)
    assert (far.cost, far.capped) == (math.inf, False)
    lazy = dataclasses.replace(question, gradients=100.0)
    unfinished, _ = run_trial(lazy.make_spec(problem, fp.PAGE(S=5), 0), lazy, math.inf)
    assert unfinished.cost == math.inf


def test_a_run_ends_at_the_deadline_and_is_no_trial(problem):
    question = Question(fp.Target("grad_norm", 0.05, hold=0), Cost.parse("rounds"))
    spec = question.make_spec(problem, fp.PAGE(S=5), 0)
    assert run_trial(spec, question, math.inf, deadline=0.0) is None
    trials = Trials(problem, question, deadline=time.monotonic() + 0.05)
    never = Question(fp.Target("grad_norm", 1e-300, hold=0), Cost.parse("rounds"), rounds=10**7)
    trials.ask(never)
    with pytest.raises(SearchEnded):
        trials.run([(fp.PAGE(S=5, eta_g=1e-6), 0, math.inf)])
    assert trials.known(fp.PAGE(S=5, eta_g=1e-6), 0, math.inf) is None


def test_a_stored_trial_answers_for_smaller_caps_only(problem):
    question = Question(fp.Target("grad_norm", 0.05, hold=0), Cost.parse("clients"), limit=5000.0)
    trials = Trials(problem, question)
    method = fp.PAGE(S=5)
    (whole,) = trials.run([(method, 0, math.inf)])
    (seen,) = trials.run([(method, 0, 0.5 * whole.spent)])
    assert (seen.cost, seen.capped, trials.done) == (math.inf, True, 1)
    (short,) = trials.run([(method, 1, 50.0)])
    assert short.capped
    assert trials.run([(method, 1, 40.0)]) == [short]
    assert trials.done == 2
    (longer,) = trials.run([(method, 1, math.inf)])
    assert trials.done == 3
    assert math.isfinite(longer.cost)


def test_the_better_candidates_get_more_seeds_and_runs_are_paired(problem):
    search = {"eta_g": [0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5]}
    found = fp.tune(
        problem, fp.PAGE(S=5), target=0.04, search=search, rounds=300, seeds=5, held_out_seeds=2
    )
    seeds = [score.seeds for _, score in found.first.scores]
    assert seeds[0] == 5
    assert seeds[-1] == 1
    assert found.first.scores[0] == (found.method, found.first.scores[0][1])
    assert found.first.scores[0][1].ratio == 1.0
    full = [score.ratio for _, score in found.first.scores if score.seeds == 5]
    assert min(full) >= 0.98  # no neighbour is better by more than the margin
    runs = {
        seed: fp.simulate(problem, found.method, rounds=300, seed=seed)
        for seed in (*range(5), *found.held_out_seeds)
    }
    paid = [run.cost_to("grad_norm:0.04,hold=0", "round") for run in runs.values()]
    assert found.first.scores[0][1].cost == sorted(paid[:5])[2]
    assert found.first.sample.costs == tuple(paid[5:])


# The store


def test_a_search_resumes_and_is_the_same_in_parallel(problem, tmp_path):
    options = {"target": 0.04, "search": {"eta_g": [0.05, 0.1, 0.2, 0.4]}, "rounds": 300}
    options |= {"seeds": 3, "held_out_seeds": 2, "cost": "bytes"}
    store = tmp_path / "trials.jsonl"
    first = fp.tune(problem, fp.FedPAGE(S=5), **options, store=store)
    lines = store.read_text().splitlines()
    assert (first.runs, first.reused) == (len(lines), 0)
    store.write_text("\n".join(lines[:4]) + "\n" + lines[4][:25])  # killed in the middle of a line
    second = fp.tune(problem, fp.FedPAGE(S=5), **options, store=store, jobs=2)
    assert second.runs == first.runs - 4
    assert (second.method, second.first.sample, second.first.scores) == (
        first.method, first.first.sample, first.first.scores,
    )  # fmt: skip
    third = fp.tune(problem, fp.FedPAGE(S=5), **options, store=store)
    assert third.runs == 0
    other = fp.tune(problem, fp.FedPAGE(S=5), **{**options, "target": 0.05}, store=store)
    assert other.reused == 0  # another target is another question


def test_trials_of_other_code_or_data_are_not_used(problem, tmp_path, monkeypatch):
    question = Question(fp.Target("grad_norm", 0.05, hold=0), Cost.parse("rounds"))
    path, trial = tmp_path / "trials.jsonl", Trial(3.0, 0.04, False, 3.0, 30, False)
    about = question.describe(problem)
    TrialStore(path, about).put(fp.PAGE(S=5), 0, trial)
    assert TrialStore(path, about).get(fp.PAGE(S=5), 0) == trial
    assert TrialStore(path, about).get(fp.PAGE(S=5, p=0.1), 0) is None
    data = fp.load("census", rows=500)
    changed = fp.Dataset.from_arrays(data.to_dense() * 2, data.y, name="census")
    other = question.describe(fp.RobustRegression(changed, clients=50))
    assert TrialStore(path, other).get(fp.PAGE(S=5), 0) is None
    newer = question.describe(problem) | {"version": "99"}
    assert TrialStore(path, newer).get(fp.PAGE(S=5), 0) is None
    monkeypatch.setattr(trial_files, "method_digest", lambda method: "other code")
    assert TrialStore(path, about).get(fp.PAGE(S=5), 0) is None


# Metrics, networks, pictures


def test_any_recorded_column_is_a_target(problem):
    measured = fp.LogisticRegression(fp.load("census", rows=500), clients=50, metrics=["accuracy"])
    found = fp.tune(
        measured, fp.PAGE(S=5), target="accuracy:0.8", search={"eta_g": [1e-3, 1.0]},
        rounds=60, seeds=1, held_out_seeds=1,
    )  # fmt: skip
    assert found.first.is_reached
    assert found.goal == "rounds to accuracy 0.8"
    history = fp.simulate(measured, found.method, rounds=60, seed=HELD_OUT_SEED)
    assert history.reached("accuracy:0.8,hold=0")
    with pytest.raises(InputError, match="'accurcy' is not recorded"):
        fp.tune(problem, fp.PAGE(S=5), target="accurcy:0.9")
    with pytest.raises(InputError, match="needs at least one of latency"):
        fp.tune(problem, fp.PAGE(S=5), target=0.1, cost="seconds")
    with pytest.raises(InputError, match="has no hyper-parameter 'T'"):
        fp.tune(problem, fp.PAGE(S=5), target=0.1, fixed=["T"])


def test_a_network_is_tuned_around_the_methods_own_step():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)).astype(np.float32)
    y = (X @ [1.0, -2.0, 0.5] > 0).astype(np.int64)
    clients = [(X[i::4], y[i::4]) for i in range(4)]
    torch.manual_seed(0)
    problem = fp.TorchProblem(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, clients)
    found = fp.tune(
        problem, fp.FedAvg(S=2, K=2), target="loss:0.2", search={"step": []}, rounds=40,
        record_every=2, seeds=1, held_out_seeds=1,
    )  # fmt: skip
    assert found.first.is_local_optimum
    assert found.first.is_reached


def test_the_picture_has_a_panel_for_each_axis(problem, tmp_path):
    search = {"step": [0.003, 0.1, 0.3], "rho": [0.01, 1.0], "b3": [1, 2]}
    found = fp.tune(
        problem, fp.FedPAGE(S=5), target=0.04, search=search, rounds=300, seeds=1, held_out_seeds=1
    )
    assert search_panels(found.points, tmp_path / "a.png").stat().st_size > 10_000
    none = fp.tune(
        problem, fp.PAGE(S=5), target=1e-9, search={"eta_g": [0.1, 0.2]}, rounds=20, seeds=1,
        held_out_seeds=1,
    )  # fmt: skip
    assert search_panels(none.points, tmp_path / "b.png").stat().st_size > 3000


# The command line

SMALL = ("--data", "census:rows=500", "--clients", "50")


def test_tune_writes_a_file_that_repeats_its_runs(run, tmp_path):
    words: tuple[str, ...] = ("tune", "fedpage", *SMALL, "--S", "5", "--target", "0.04")
    words += ("--rounds", "300")
    words += ("--seeds", "2", "--held-out-seeds", "3", "--cost", "clients", "--out", "tuned")
    words += ("--search", "step", "--search", "p=0.1,0.2")
    words += ("--record-every", "1")
    code, out, err = run(*words)
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("On 3 held-out seeds: ")]
    assert "3 of 3 seeds (" in line
    assert "3 of 3 runs end at the target" in line
    assert "local optimum" in out
    assert "Given: S = 5 (default 10)" in out
    assert (tmp_path / "tuned" / "search.png").stat().st_size > 5000
    assert "Run it: fedpage run --config tuned/run.toml\n" in out
    costs = []
    for seed in (10_000, 10_001, 10_002):
        command = ("run", "--config", "tuned/run.toml", "--set", f"seed={seed}", "--json")
        costs.append(json.loads(run(*command)[1])["runs"][0]["cost_to_target"])
    assert all(np.isfinite(costs))
    code, out, _ = run(*words)
    assert " 0 runs and " in out


def test_tune_records_the_metric_of_its_target_and_writes_it_with_all_digits(run, tmp_path):
    words: tuple[str, ...] = (
        "tune",
        "page",
        *SMALL,
        "--S",
        "5",
        "--seeds",
        "1",
        "--held-out-seeds",
        "2",
    )
    words += ("--target", "accuracy:0.76212345", "--rounds", "200", "--search", "step=0.5,1,2")
    words += ("--objective", "logistic-l2", "--alpha", "0.1234567", "--out", "tuned")
    code, _, err = run(*words)
    assert code == 0, err
    command = read_run_command(tmp_path / "tuned" / "run.toml", [])
    assert str(command.run.target) == "accuracy:0.76212345"
    assert command.problem.alpha == 0.1234567


def test_tune_on_the_command_line_searches_all_that_is_not_given(run, tmp_path):
    words = ("tune", "fedavg", *SMALL, "--S", "5", "--b", "all", "--target", "0.06")
    code, out, err = run(
        *words,
        "--rounds",
        "60",
        "--seeds",
        "1",
        "--held-out-seeds",
        "1",
        "--out",
        "d",
        "--budget",
        "60s",
    )
    assert code == 0, err
    assert "Searched: step, K, eta_g." in out
    code, out, err = run(
        *words, "--seeds", "1", "--out", "e", "--search", "step=0.01,0.02", "--fixed-grid"
    )
    assert code == 0, err
    assert "at an end of the fixed grid (step = 0.02)" in out


def test_a_search_needs_a_candidate(problem):
    trials = Trials(problem, Question(fp.Target("grad_norm", 0.1, hold=0), Cost.parse("rounds")))
    axes = {"eta_g": Axis("eta_g", (-1.0, -2.0), fixed=True)}
    with pytest.raises(InputError, match="eta_g must be"):
        Search(trials, fp.PAGE(S=5), axes)
