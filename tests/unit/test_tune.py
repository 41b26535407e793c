"""Tuning: spaces, searches with known optima, trials and their store, `fedpage tune`."""

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
from fedpage.report.diagrams import format_setting, search_panels
from fedpage.studies import trials as trial_files
from fedpage.studies.space import Axis, build_candidate, codec_axis, given_axes, search_space
from fedpage.studies.trials import HELD_OUT_SEED, Question, SearchEnded, Trials, run_trial
from fedpage.studies.tuning_result import coordinate
from fedpage.theory.planner import TimeModel

RATIO = 20.0
BEST = 2 / (1 + RATIO)
"""The best step of gradient descent on `quadratic`: 2/(L + mu)."""
DESCENT = fp.FedAvg(S=4, K=1, eta_g=1.0, b=None)
EXACT = {"target": 1e-4, "record_every": 1, "seeds": 2, "held_out_seeds": 2}
STEP_ONLY = {"fixed": ["S", "K", "b", "eta_g"], **EXACT}
ONE = {"seeds": 1, "held_out_seeds": 1}
SMALL = ("--data", "census:rows=500", "--clients", "50", "--S", "5")


def quadratic(wrong: float = 1.0) -> fp.Quadratic:
    """Return 4 equal clients with eigenvalues from 1 to 20, whose `smoothness` may be wrong."""

    class Mistaken(fp.Quadratic):
        def smoothness(self) -> Smoothness:
            return Smoothness(*(wrong * L for L in super().smoothness()))

    A = np.diag(np.geomspace(1.0, RATIO, 6))
    return Mistaken(np.stack([A] * 4), np.ones((4, 2, 6)))


def question(value: float = 0.05, cost: str = "clients", **more: Any) -> Question:
    return Question(fp.Target("grad_norm", value, hold=0), Cost.parse(cost), **more)


@pytest.fixture(scope="module")
def problem():
    return fp.RobustRegression(fp.load("census", rows=500), clients=50)


# Spaces


def test_neighbours_are_clipped_and_words_have_no_order():
    axis = Axis("x", (1, 2, 4, 8, 16), 2)
    assert axis.neighbours(0) == [1]
    assert axis.neighbours(2) == [1, 3]
    assert axis.neighbours(3, stride=4) == [0, 4]
    assert Axis("up", ("a", "b", "c"), is_ordered=False).neighbours(1) == [0, 2]


def test_natural_bounds_of_the_space(problem):
    space = search_space(fp.FedPAGE(S=10, K=10), problem)
    assert list(space) == ["step", "rho", "S", "K", "p", "b1", "b2", "b3"]
    assert space["S"].values == (1, 2, 5, 10, 20, 40, 50)
    assert space["K"].values[:6] == (1, 2, 5, 10, 20, 40)
    assert space["b3"].values == (1, 2, 4, 8, None)  # clients have 10 rows
    p, step = space["p"], space["step"]
    assert (p.values[-1], p.values[p.start]) == (1.0, None)
    assert p.edges == (0,)  # p = 1 is a natural bound
    assert step.edges == (0, len(step.values) - 1)
    assert step.values[step.start] == pytest.approx(1 / problem.smoothness().whole, rel=1e-3)
    assert step.values[step.start + 2] == pytest.approx(2 * step.values[step.start], rel=1e-3)
    assert "window" not in search_space(fp.SecantPAGE(metric="none"), problem)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_a_space_that_starts_from_it(problem, name):
    entry = METHODS[name]
    method = default_method(entry, {}, problem)
    space = search_space(method, problem, fixed=list(entry.preset))
    for axis in space.values():
        near = [axis.values[index] for index in axis.neighbours(axis.start)]
        assert build_candidate(method, {axis.name: near[-1]}) != method
    starts = {n: axis.values[axis.start] for n, axis in space.items() if n != "step"}
    assert build_candidate(method, starts) == method


@pytest.mark.parametrize("name", ["fedpage", "scaffold", "svrp", "fedadam", "feddyn", "cofig"])
def test_a_given_value_is_never_changed(problem, name):
    method = default_method(METHODS[name], {}, problem)
    for field in dataclasses.fields(method):
        for axis in search_space(method, problem, fixed=[field.name]).values():
            for index in axis.neighbours(axis.start):
                try:
                    built = build_candidate(method, {axis.name: axis.values[index]})
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
    options = {"target": 0.05, "rounds": 100, "max_runs": 15, **ONE}
    found = fp.tune(problem, fp.PAGE(S=5), cost="bytes", **options)
    assert found.codecs
    assert {"up", "down"} <= set(found.first.searched)
    assert "Codecs were searched" in found.effort
    found = fp.tune(problem, fp.PAGE(S=5, up="float32"), cost="bytes", **options)
    assert (str(found.method.up), "up" in found.first.searched) == ("float32", False)
    assert not fp.tune(problem, fp.PAGE(S=5), cost="clients", **options).codecs


def test_given_values_continue_on_both_sides_unless_they_are_fixed(problem):
    search = {"eta_g": [0.4, 0.1], "S": [5, 10, 20], "p": [0.5, 0.7], "rho": []}
    axes, points = given_axes(fp.FedPAGE(), problem, search)
    assert len(points) == 2 * 3 * 2  # rho stays at its start
    around = {n: a.values[a.start - len(search[n]) // 2 - 2 :] for n, a in axes.items()}
    assert around["eta_g"][:5] == (0.00625, 0.025, 0.1, 0.4, 1.6)
    assert around["S"][:6] == (1, 2, 5, 10, 20, 40)
    assert around["p"][2:] == (0.5, 0.7, 0.98, 1.0)
    assert axes["rho"] == search_space(fp.FedPAGE(), problem)["rho"]
    fixed = given_axes(fp.FedPAGE(), problem, {"eta_g": [0.4, 0.1]}, is_fixed=True)[0]["eta_g"]
    assert (fixed.values, fixed.edges) == ((0.1, 0.4), (0, 1))
    words = given_axes(fp.FedExP(), problem, {"averaged": [True, False]})[0]["averaged"]
    assert not words.is_ordered


def test_a_value_in_short():
    values = {"b": None, "beta": None, "eta_g": 0.123456, "averaged": True}
    words = [format_setting(name, value) for name, value in values.items()]
    assert words == ["all", "by rule", "0.1235", "True"]


# Known optima


@pytest.mark.parametrize("wrong", [1.0, 100.0, 0.01])
def test_the_best_step_is_found_also_far_beyond_the_design(wrong):
    found = fp.tune(quadratic(wrong), DESCENT, **STEP_ONLY)
    assert found.first.is_local_optimum
    assert found.first.searched == ("step",)
    assert BEST / 1.42 <= found.method.effective_step <= BEST * 1.42
    every = {"rounds": found.first.rounds, "seed": HELD_OUT_SEED, "record_every": 1}
    run = fp.simulate(quadratic(wrong), found.method, **every)
    assert found.first.sample.costs[0] == run.cost_to("grad_norm:1e-4,hold=0", "round")
    assert found.runs < 40


@pytest.mark.parametrize("values", [[2e-4, 4e-4, 8e-4], [3.0, 6.0, 12.0]])
def test_a_given_grid_grows_until_the_best_is_inside(values):
    found = fp.tune(quadratic(), DESCENT, search={"step": values}, **EXACT)
    assert found.first.is_local_optimum
    assert BEST / 2.01 <= found.method.effective_step <= BEST * 2.01
    stuck = fp.tune(quadratic(), DESCENT, search={"step": values}, fixed_grid=True, **EXACT)
    assert not stuck.first.is_local_optimum
    assert stuck.first.edges == ("step",)
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
    method, fixed = Planted(S=4, b=None), ["b", "eta_g"]
    found = fp.tune(quadratic(), method, target=1e-2, fixed=fixed, rounds=200, **ONE)
    assert found.first.is_local_optimum
    values = {name: coordinate(found.method, name) for name in Planted.best}
    assert values == pytest.approx(Planted.best, rel=1e-3)
    assert "K=40" in found.first.settings


def test_a_search_that_is_cut_says_so_and_compares_with_the_best():
    cut = fp.tune(quadratic(0.01), DESCENT, max_runs=7, **STEP_ONLY)
    assert cut.runs <= 7 + 2  # of the evaluation
    assert cut.first.sample is not None
    assert not cut.first.is_local_optimum
    assert "before a local optimum" in cut.advice
    assert "cut" in cut.effort
    early = fp.tune(quadratic(), DESCENT, max_runs=5, **STEP_ONLY)  # before an incumbent
    (_, best), (_, second), *_ = early.first.scores
    assert best.ratio == 1
    assert second.ratio == pytest.approx(second.cost / best.cost)
    assert second.ratio > 2


def test_a_target_that_nobody_reaches_is_not_evaluated(problem, tmp_path):
    search = {"eta_g": [0.01, 0.1, 0.2, 0.4]}
    found = fp.tune(problem, fp.PAGE(S=5), target=1e-9, search=search, rounds=20, **ONE)
    assert found.first.sample is None
    assert not found.first.is_reached
    assert "No candidate reached the target" in found.advice
    assert search_panels(found.points, tmp_path / "b.png").stat().st_size > 3000


def test_the_better_candidates_get_more_seeds_and_runs_are_paired(problem):
    search = {"eta_g": [0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5]}
    found = fp.tune(
        problem, fp.PAGE(S=5), target=0.04, search=search, rounds=300, seeds=5, held_out_seeds=2
    )
    scores = [score for _, score in found.first.scores]
    assert (scores[0].seeds, scores[-1].seeds, scores[0].ratio) == (5, 1, 1.0)
    assert found.first.scores[0][0] == found.method
    full = [score.ratio for score in scores if score.seeds == 5]
    assert min(full) >= 0.98  # no neighbour is better by more than the margin
    paid = []
    for seed in (*range(5), *found.held_out_seeds):
        run = fp.simulate(problem, found.method, rounds=300, seed=seed)
        paid.append(run.cost_to("grad_norm:0.04,hold=0", "round"))
    assert scores[0].cost == sorted(paid[:5])[2]
    assert found.first.sample.costs == tuple(paid[5:])


# Runs and their costs


@pytest.mark.parametrize(
    ("rounds", "values", "target", "paid"),
    [
        ((0, 10, 20), (1.0, 0.1, 0.001), "0.01", 15),  # the logarithm is interpolated
        ((0, 10, 20), (1.0, 0.1, 0.001), "0.1", 10),
        ((0, 10, 20), (1.0, 0.1, 0.001), "1e-9", math.inf),
        ((0, 10, 20), (1.0, 0.1, 0.001), "2.0", 0),
        ((0, 10), (0.0, 1.0), "score:0.3", 3),  # higher is better
        ((0, 10), (1.0, 0.0), "0.5", 5),
        ((0, 10, 20), (1.0, 1e-9, 0.001), "0.01", 20),  # f(x) > f(x0) before
        ((0, 1, 2), (1.0, 0.5, 0.1), "0.2", 2),  # nothing is between rounds
    ],
)
def test_costs_between_records(rounds, values, target, paid):
    history = fp.History({"problem": {"metrics": {"score": True}}})
    for done, value in zip(rounds, values, strict=True):
        loss = 50.0 if value == 1e-9 else 1.0
        row = {"round": done, "loss": loss, "grad_norm": value, "score": value}
        history.append(row | {"bytes_up": 10.0 * done, "bytes_down": 0.0})
    assert history.cost_to(f"{target},hold=0", "round") == pytest.approx(paid)
    assert history.cost_to(f"{target},hold=0", "bytes") == pytest.approx(10 * paid)


def test_seconds_are_estimated_for_each_client_in_turn(problem):
    history = fp.simulate(problem, fp.FedPAGE(S=5), rounds=300, seed=0)
    target = "grad_norm:0.05,hold=0"
    for name, column in (("latency", "round"), ("gradient", "gradients_per_client")):
        paid = question(0.05, "seconds", link=TimeModel(**{name: 2.0})).cost_of(history)
        assert paid == pytest.approx(2 * history.cost_to(target, column))
    link = TimeModel(uplink=4.0, downlink=2.0)
    each = history["bytes_up"] / 4.0 + history["bytes_down"] / 2.0
    seconds = question(0.05, "seconds", link=link).costs(history)
    called = np.maximum(1, history["clients"])
    np.testing.assert_allclose(seconds, history["round"] * each / called)


def test_a_run_ends_at_its_cap_at_the_target_or_at_a_deadline(problem):
    asked, page = question(), fp.PAGE(S=5)
    spec = asked.make_spec(problem, page, 0)
    whole, _ = run_trial(spec, asked, 5000.0)
    assert not whole.capped
    assert whole.cost <= whole.spent < 5000
    short, _ = run_trial(spec, asked, 0.5 * whole.cost)
    assert (short.capped, short.cost) == (True, math.inf)
    assert 0.5 * whole.cost <= short.spent < whole.spent
    far, _ = run_trial(asked.make_spec(problem, fp.PAGE(S=5, eta_g=1e9), 0), asked, 5000.0)
    assert (far.cost, far.capped) == (math.inf, False)
    lazy = dataclasses.replace(asked, gradients=100.0)
    unfinished, _ = run_trial(lazy.make_spec(problem, page, 0), lazy, 5000.0)
    assert unfinished.cost == math.inf
    assert run_trial(spec, asked, math.inf, deadline=0.0) is None
    never, tiny = question(1e-300, rounds=10**7), fp.PAGE(S=5, eta_g=1e-6)
    trials = Trials(problem, never, deadline=time.monotonic() + 0.05)
    with pytest.raises(SearchEnded):
        trials.run([(tiny, 0, math.inf)])
    assert trials.known(tiny, 0, math.inf) is None


def test_a_stored_trial_answers_for_smaller_caps_only(problem):
    trials, method = Trials(problem, question(), limit=5000.0), fp.PAGE(S=5)
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


# The store


def test_a_search_resumes_and_is_the_same_in_parallel(problem, tmp_path):
    store = tmp_path / "trials.jsonl"
    options = {"search": {"eta_g": [0.05, 0.1, 0.2, 0.4]}, "rounds": 300, "store": store}
    options |= {"target": 0.04, "seeds": 3, "held_out_seeds": 2, "cost": "bytes"}
    first = fp.tune(problem, fp.FedPAGE(S=5), **options)
    lines = store.read_text().splitlines()
    assert (first.runs, first.reused) == (len(lines), 0)
    damaged = lines[3].replace('"cost": ', '"cost": 1')
    kept = [*lines[:3], damaged, lines[4][:25]]  # killed in the middle of a line
    store.write_text("\n".join(kept))
    second = fp.tune(problem, fp.FedPAGE(S=5), **options, jobs=2)
    assert (second.runs, second.reused) == (first.runs - 3, 3)
    assert second.ranking == first.ranking
    assert fp.tune(problem, fp.FedPAGE(S=5), **options).runs == 0
    other = fp.tune(problem, fp.FedPAGE(S=5), **{**options, "target": 0.05})
    assert other.reused == 0  # another target is another question


def test_trials_of_another_method_code_version_or_data_are_not_used(problem, tmp_path, monkeypatch):
    path, task = tmp_path / "trials.jsonl", (fp.PAGE(S=5), 0, math.inf)
    Trials(problem, question(), store=path).run([task])

    def is_known(other: Any = problem, method: fp.PAGE = task[0]) -> bool:
        return Trials(other, question(), store=path).known(method, 0, math.inf) is not None

    assert is_known()
    assert not is_known(method=fp.PAGE(S=5, p=0.1))
    data = fp.load("census", rows=500)
    changed = fp.Dataset.from_arrays(data.to_dense() * 2, data.y, name="census")
    assert not is_known(fp.RobustRegression(changed, clients=50))
    with monkeypatch.context() as patch:
        patch.setattr("fedpage.runs.fingerprint.versions", lambda: {"fedpage": "99"})
        assert not is_known()
    monkeypatch.setattr(trial_files, "method_digest", lambda method: "other code")
    assert not is_known()


# What is refused, metrics, networks, pictures

PAGE = fp.PAGE(S=5)


@pytest.mark.parametrize(
    ("method", "words", "what"),
    [
        (PAGE, {"target": 10.0}, "reached before the first round"),
        (PAGE, {"target": "accurcy:0.9"}, "'accurcy' is recorded"),
        (PAGE, {"target": "gap:0.01"}, "convex objectives only"),
        (PAGE, {"cost": "seconds"}, "at least one of latency"),
        (PAGE, {"cost": "seconds_simulated"}, "needs devices"),
        (PAGE, {"fixed": ["T"]}, "has no hyper-parameter 'T'"),
        (PAGE, {"search": {"eta": [1.0]}}, "no hyper-parameter 'eta'"),
        (DESCENT, {"search": {"rho": [1.0]}}, "rho is FedPAGE's"),
        (PAGE, {"search": {"eta_g": [-1.0, -2.0]}}, "eta_g must be"),
        (fp.FedExP(), {"search": {"averaged": []}}, "give the values of averaged"),
        (fp.PAGE(S=500), {}, "cannot sample"),
        (PAGE, {"max_runs": 0}, "before its first runs"),
        (PAGE, {"budget": "5"}, "a time such as 60s"),
        (PAGE, {"rounds": 0}, "rounds must be"),
        (PAGE, {"record_every": "log"}, "record_every must be"),
        (PAGE, {"seeds": 0}, "seeds must be"),
        (PAGE, {"held_out_seeds": 1.5}, "held_out_seeds must be"),
    ],
)
def test_mistakes_are_refused_in_one_line(problem, method, words, what):
    with pytest.raises(InputError, match=what) as error:
        fp.tune(problem, method, **{"target": 0.1, **words})
    assert "\n" not in str(error.value)


def test_any_recorded_column_is_a_target():
    data = fp.load("census", rows=500)
    measured = fp.LogisticRegression(data, clients=50, metrics=["accuracy"])
    found = fp.tune(
        measured, PAGE, target="accuracy:0.8", search={"eta_g": [1e-3, 1.0]}, rounds=60, **ONE
    )
    assert found.first.is_reached
    assert found.goal == "rounds to accuracy 0.8"
    history = fp.simulate(measured, found.method, rounds=60, seed=HELD_OUT_SEED)
    assert history.reached("accuracy:0.8,hold=0")
    gap = Question(fp.Target.parse("gap:0.01"), Cost.parse("rounds"))
    asked = gap.checked(measured).target
    assert asked.column == "loss"
    assert asked.value == pytest.approx(fp.theory.reference(measured).loss + 0.01, abs=1e-9)


def test_a_network_is_tuned_around_the_methods_own_step():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)).astype(np.float32)
    y = (X @ [1.0, -2.0, 0.5] > 0).astype(np.int64)
    torch.manual_seed(0)
    clients = [(X[i::4], y[i::4]) for i in range(4)]
    problem = fp.TorchProblem(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, clients)
    options = {"target": "loss:0.2", "search": {"step": []}, "rounds": 40, "record_every": 2}
    found = fp.tune(problem, fp.FedAvg(S=2, K=2), **options, **ONE)
    assert found.first.is_local_optimum
    assert found.first.is_reached


# The command line


@pytest.fixture
def tuned(run):
    """Run `fedpage tune` with options that are given as a text, and return its output."""

    def call(words: str) -> str:
        code, out, err = run("tune", *words.split(), *SMALL, "--out", "tuned")
        assert code == 0, err
        return out

    return call


def test_tune_writes_a_file_that_repeats_its_runs(tuned, run, tmp_path):
    words = (
        "fedpage --target 0.04 --rounds 300 --seeds 2 --held-out-seeds 3 --cost clients "
        "--record-every 1 --search step --search p=0.1,0.2"
    )
    out = tuned(words)
    (line,) = [line for line in out.splitlines() if line.startswith("On 3 held-out seeds: ")]
    assert "3 of 3 seeds (" in line
    assert "3 of 3 runs end at the target" in line
    assert "local optimum" in out
    assert "Given: S = 5 (default 10)" in out
    assert (tmp_path / "tuned" / "search.png").stat().st_size > 5000
    assert "Run it: fedpage run --config tuned/run.toml\n" in out
    command = ("run", "--config", "tuned/run.toml", "--set", "seed=10000", "--json")
    assert json.loads(run(*command)[1])["runs"][0]["cost_to_target"] < math.inf
    assert " 0 runs and " in tuned(words)


@pytest.mark.parametrize(
    ("target", "written"), [("accuracy:0.76212345", "accuracy:0.76212345"), ("gap:0.05", "loss:")]
)
def test_tune_writes_its_target_with_all_digits_and_a_gap_as_a_loss(
    tuned, tmp_path, target, written
):
    tuned(
        f"page --seeds 1 --held-out-seeds 2 --rounds 200 --target {target} "
        "--search step=0.5,1,2 --objective logistic-l2 --alpha 0.1234567"
    )
    command = read_run_command(tmp_path / "tuned" / "run.toml", [])
    assert str(command.run.target).startswith(written)
    assert command.problem.alpha == 0.1234567


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("", "Searched: step, K, eta_g."),
        ("--search step=0.01,0.02 --fixed-grid", "end of the fixed grid (step = 0.02)"),
    ],
)
def test_tune_on_the_command_line_searches_all_that_is_not_given(tuned, more, text):
    words = "fedavg --b all --target 0.06 --seeds 1 --held-out-seeds 1 --rounds 60 --budget 60s"
    assert text in tuned(f"{words} {more}")
