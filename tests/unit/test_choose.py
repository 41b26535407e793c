"""`choose`: small problems with known answers, ties, refusals, and the command line."""

import re
import time
import tomllib
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import fedpage as fp
from fedpage.cli.run_config import read_run_command
from fedpage.core.columns import Cost
from fedpage.core.errors import InputError
from fedpage.flower.config import build_method, parse_app_config, write_app
from fedpage.methods import METHODS
from fedpage.methods.registry import describe_method
from fedpage.runs.build import hyper_words
from fedpage.studies import halving
from fedpage.studies.candidates import list_candidates
from fedpage.studies.statistics import CostSample
from fedpage.studies.trials import Question, Trials, parse_budget
from fedpage.studies.tuning_result import write_page

SMALL = {"seeds": 2, "held_out_seeds": 6, "budget": "1h"}
COMMAND = (
    "choose", "--data", "census:rows=200", "--clients", "20", "--objective", "logistic-l2",
    "--seeds", "2", "--held-out-seeds", "5", "--jobs", "1", "--budget", "1h",
)  # fmt: skip


@pytest.fixture(scope="module")
def problem():
    return fp.LogisticRegression(fp.load("census", rows=200), clients=20, reg="l2", alpha=0.1)


@pytest.fixture(scope="module")
def choose(problem):
    def call(*methods: Any, target: float = 0.05, cost: str = "clients", **more: Any) -> fp.Tuning:
        words = {"methods": methods, "target": target, "cost": cost, **SMALL, **more}
        return fp.choose(problem, **words)

    return call


@pytest.fixture(scope="module")
def choice(choose):
    return choose("saga", "page", target=0.02)


def quadratic() -> fp.Quadratic:
    """Return ten clients in two dimensions whose minimisers differ."""
    rng = np.random.default_rng(0)
    A = np.stack([np.diag(rng.uniform(0.5, 2.0, 2)) for _ in range(10)])
    return fp.Quadratic(A, 1.0 + rng.standard_normal((10, 1, 2)))


@dataclass(frozen=True)
class Planted(fp.PAGE):
    """PAGE that knows the minimiser of `quadratic()` and goes there in its first round."""

    name: ClassVar[str] = "Planted"

    def server(self, state, replies):
        new = super().server(state, replies)
        return new._replace(x=0.0 * new.x + quadratic().x_star)


# --- the search -----------------------------------------------------------------------------------


def test_a_planted_winner_is_found():
    methods = [fp.SCAFFOLD(S=5, K=2), Planted(S=2)]
    found = fp.choose(quadratic(), target=1e-6, cost="clients", methods=methods, **SMALL)
    assert found.recommended.label == "Planted"
    assert found.recommended.sample.reached == 6
    assert not found.ranking[1].is_tied
    assert "SCAFFOLD, the next, " in found.reason
    assert "The clients of Planted keep no state" in found.reason
    assert found.cut == ""


@pytest.mark.parametrize(("d", "cost"), [(30, "rounds"), (15, "bytes")])
def test_newton_is_chosen_for_few_sites(d, cost):
    """Ten sites with tables of a few columns in unlike units."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, d)) * 10.0 ** rng.uniform(-1, 1, d)
    margins = X @ (rng.normal(size=d) / X.std(axis=0)) + rng.logistic(size=200)
    data = fp.Dataset.from_arrays(X, np.where(margins > 0, 1.0, -1.0))
    few = fp.LogisticRegression(data, clients=10, reg="l2", alpha=1e-3)
    methods, short = ["newton", "secantpage", "cofig"], {"seeds": 1, "rounds": 100}
    found = fp.choose(few, target=1e-3, cost=cost, methods=methods, **SMALL | short)
    assert found.recommended.name == "newton"
    assert [each.name for each in found.ranking if each.is_tied] == ["newton"]


def test_methods_that_cost_about_the_same_are_tied(choose):
    """FedProx with a tiny mu is FedAvg up to the seventh digit."""
    found = choose(fp.FedProx(S=4, mu=1e-7), fp.FedAvg(S=4), target=0.1)
    assert [each.is_tied for each in found.ranking] == [True, True]
    other = next(f.label for f in found.ranking if f is not found.recommended)
    assert f"{other} is tied with it: 6 held-out seeds do not tell them apart" in found.reason


def test_equal_methods_are_searched_once(choose):
    found = choose("page", "pp-marina", codecs=False)
    (left,) = found.eliminated
    assert len(found.ranking) == 1
    assert found.eliminations() == [f"The same as {found.first.label} here: {left.label} (1.0x)."]


def test_only_the_best_and_the_best_without_states_reach_the_evaluation(choose, monkeypatch):
    stages = [stage._replace(methods=1) for stage in halving._STAGES]
    monkeypatch.setattr(halving, "_STAGES", stages)
    names = ["saga", "scaffold", "fedexp", "fedavg"]
    found = choose(*names, target=0.02)
    assert [each.is_stateless for each in found.ranking] == [False, True]
    assert {each.name for each in (*found.ranking, *found.eliminated)} == set(names)
    costs = [each.times for each in found.eliminated]
    assert costs == sorted(costs)


def test_a_finished_search_repeats_and_is_read_from_its_store(choice, choose, tmp_path):
    words = {"target": 0.02, "store": tmp_path / "t"}
    again = choose("saga", "page", **words)
    assert replace(again, seconds=0.0) == replace(choice, seconds=0.0)
    stored = choose("saga", "page", **words)
    assert again.runs >= stored.reused > stored.runs == 0
    assert stored.ranking == again.ranking


def test_table_and_report_show_the_runs_on_held_out_seeds(choice, problem, tmp_path):
    """Costs, curves and `simulate` with the found settings agree."""
    first, runs = choice.first, choice.histories()
    every = {"rounds": first.rounds, "record_every": choice.question.record_every}
    same = [
        fp.simulate(problem, first.method, seed=seed, **every) for seed in choice.held_out_seeds
    ]
    assert choice.held_out_seeds == tuple(range(10_000, 10_006))
    assert tuple(run.cost_to(0.02, "clients") for run in same) == first.sample.costs
    assert tuple(run.cost_to(0.02, "clients") for run in runs[:6]) == first.sample.costs
    assert len(runs) == 6 * len(choice.ranking)
    most = 10 * 2000 * 200  # ten times 2000 rounds, in each of which a method computes 200
    assert max(run.last("gradients") for run in runs) <= choice.question.gradients <= most
    assert [run.ends_at(0.02) for run in runs] == [True] * len(runs)
    table = choice.table()
    assert table.rows[0][table.headings.index("end at target")].text == "6/6"
    assert first.sample.text() in write_page(choice, tmp_path / "page.html", "Title").read_text()


def test_codecs_are_searched_where_bytes_count_and_a_method_without_them_is_named(choose):
    found = choose("page", "dane", cost="bytes")
    assert "DANE has no codec in at least one direction" in found.effort
    page = next(each for each in found.ranking if each.label == "PAGE")
    assert describe_method(page.method)["up"] != "none"
    assert "codec" not in choose("page", "dane", cost="rounds").effort


def test_the_target_is_recorded_often_enough(choose):
    """A method that needs a handful of rounds is evaluated with a record in every round."""
    found = choose("dane", "vrl-sgd", target=0.1, cost="rounds")
    assert found.question.record_every == 1
    assert all(cost == int(cost) for cost in found.first.sample.costs)


def test_defaults_are_kept_unless_tuning_saves_a_tenth(choose, monkeypatch):
    """With a threshold that no tuning meets, a method without step sizes keeps its defaults."""
    monkeypatch.setattr(halving, "DEFAULTS", 0.999)
    found = choose("secantpage", target=0.02)
    assert found.method == fp.SecantPAGE(S=10)
    assert "with the defaults and without tuning" in found.reason


def test_time_cuts_the_search_and_says_so(choose, monkeypatch):
    """With a clock that ticks at each look, the cut is the same every time."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(time, "monotonic", lambda: 0.1 * next(ticks))
    found = choose("fedavg", "page", target=0.02, held_out_seeds=20, budget=15)
    assert 6 <= len(found.held_out_seeds) < 20
    assert f"the evaluation to {len(found.held_out_seeds)} held-out seeds" in found.cut
    assert "more time may change the result" in found.effort
    found = choose("dane", "vrl-sgd", target=0.1, cost="rounds", budget=2)
    assert "cut the screening" in found.cut
    assert found.first.is_reached


def test_the_screen_tries_a_cast_beside_a_codec_that_leaves_gradients(problem):
    """Natural compression rounds SecantPAGE's differences only, float16 its gradients too."""
    (candidate,), _ = list_candidates(problem, methods=["secantpage"], codecs=True)
    question = Question(fp.Target("grad_norm", 0.05, hold=0), Cost.parse("bytes"))
    contender = halving.Contender(Trials(problem, question), candidate, True)
    assert [str(contender.method_at(point).up) for point in contender.design] == [
        "natural", "natural", "natural", "float16",
    ]  # fmt: skip


# --- the candidates -------------------------------------------------------------------------------


def test_every_registered_method_but_variants_is_a_candidate(problem):
    candidates, left_out = list_candidates(problem)
    names = {name for name, entry in METHODS.items() if not entry.variant_of}
    assert {candidate.name for candidate in candidates} | left_out.keys() == names
    demands = {candidate.name: candidate.demands for candidate in candidates}
    assert demands["scaffold"] == ("clients keep a state",)
    assert demands["page"] == ()
    assert "all clients in every round" in demands["vrl-sgd"]
    stateless, left_out = list_candidates(problem, stateless=True)
    assert {c.name for c in stateless} == {c.name for c in candidates if c.is_stateless}
    assert left_out["scaffold"] == "its clients keep a state"
    robust = fp.RobustRegression(fp.load("census", rows=100), clients=10)
    dane, svrp = list_candidates(robust, methods=["dane", "svrp"])[0]
    assert "heuristic here, because it assumes convexity" in dane.demands
    assert "heuristic here, because it assumes strong convexity" in svrp.demands


def test_methods_start_with_the_codecs_that_they_take(problem):
    plain, _ = list_candidates(problem, methods=["page", "ef21", "saga"])
    coded, _ = list_candidates(problem, methods=["page", "ef21", "saga"], codecs=True)
    settings = [describe_method(candidate.method) for candidate in (*plain, *coded)]
    assert [each["up"] for each in settings] == ["none"] * 3 + ["natural", "natural", "float32"]
    assert [each["down"] for each in settings[3:]] == ["float32"] * 3


def test_the_one_that_asks_less_is_recommended_among_tied(choice):
    saga, page = sorted(choice.ranking, key=lambda each: each.name, reverse=True)
    tied = replace(choice, ranking=(replace(saga, is_tied=True), replace(page, is_tied=True)))
    assert tied.recommended.name == "page"
    assert "SAGA has the lower median, but asks more: clients keep a state." in tied.reason
    apart = replace(choice, ranking=(saga, replace(page, is_tied=False)))
    assert apart.recommended is apart.first
    assert f"Without client states: PAGE, {page.sample.text()}." in apart.reason


@pytest.mark.parametrize(("costs", "name"), [((1.0, 2.0), "saga"), ((1.0, np.inf), "page")])
def test_a_method_that_fails_is_not_recommended_for_asking_less(choice, costs, name):
    """Two seeds never tell methods apart, so one that asks less would win by failing."""
    saga, page = sorted(choice.ranking, key=lambda each: each.name, reverse=True)
    page = replace(page, is_tied=True, sample=CostSample((1.0, np.inf)))
    saga = replace(saga, is_tied=True, sample=CostSample(costs))
    assert replace(choice, ranking=(saga, page)).recommended.name == name


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ({"target": "acuracy:0.1"}, "did you mean 'accuracy'"),
        ({"target": "gap:0"}, "above 0"),
        ({"budget": "5x"}, "a time such as 60s"),
        ({"methods": ["fedpge"]}, "did you mean 'fedpage'"),
        ({"methods": ["page", "page"]}, "named twice"),
        ({"methods": "page"}, "a list of methods"),
        ({"methods": [3]}, "neither a method"),
        ({"methods": ["scaffold"], "stateless": True}, "its clients keep a state"),
        ({"seeds": 0}, "seeds"),
        ({"held_out_seeds": 0}, "held_out_seeds"),
        ({"held_out_seeds": 5}, "at least 6"),
        ({"held_out_seeds": 3, "methods": ["page", "saga"]}, "at least 4"),
        (
            {"target": 1e-12, "methods": ["fedavg"], "rounds": 40, **SMALL},
            r"no method reached gradient norm 1e-12; the best was [\d.e-]+, by FedAvg; allow more "
            "rounds",
        ),
    ],
)
def test_mistakes_are_refused_in_one_line(problem, words, what):
    with pytest.raises(InputError, match=what) as error:
        fp.choose(problem, **{"target": 0.1, **words})
    assert "\n" not in str(error.value)


def test_a_budget_is_a_time():
    assert parse_budget("2m") == parse_budget(120)
    assert parse_budget(0.4) == 0.4
    for wrong in (0, -1.0, float("nan"), float("inf"), None, "5", "-5s"):
        with pytest.raises(InputError, match="must be a time such as"):
            parse_budget(wrong)


# --- the command line -----------------------------------------------------------------------------


def test_the_recommended_settings_and_the_app_are_written(run, tmp_path):
    words = ("--target", "gap:0.01", "--cost", "up+0.1*down", "--methods", "page,fedavg")
    code, out, _ = run(*COMMAND, *words, "--out", "found")
    assert code == 0
    (name,) = re.findall(r"Recommended: (\S+) \(", " ".join(out.split()))
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        ".lock", "app", "report.html", "run.toml", "trials.jsonl",
    }  # fmt: skip
    assert "flwr run found/app fl" in out
    text = (tmp_path / "found" / "app" / "pyproject.toml").read_text()
    config = parse_app_config(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
    assert write_app(config) == text
    assert (config.method, config.clients) == (name.lower(), 20)
    assert (config.data, config.objective) == ("census:rows=200", "logistic-l2")
    command = read_run_command(tmp_path / "found", [])
    assert str(config.target) == str(command.run.target)
    assert str(config.target).startswith("loss:0.")  # an app does not know the minimum
    assert hyper_words(build_method(config)) == command.method.hyper
    assert "up" in command.method.hyper
    assert "Run it: fedpage run --config found/run.toml\n" in out
    code, again, _ = run("run", "--config", "found/run.toml")
    assert code == 0
    assert name in again
    assert "target reached" in again
