"""Check schedules as values: their steps, their text, their own kinds, and what is refused."""

import dataclasses
import math

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.methods.schedules import (
    Constant,
    Cosine,
    OfFunction,
    ScaledSchedule,
    Schedule,
    Step,
    Warmup,
    at_peak,
    at_round,
    effective_step,
)
from fedpage.report.methods import scheduled

OWN = """
from dataclasses import dataclass
from fedpage.methods.schedules import Schedule

SCALE = 0.5

def decay(round):
    return SCALE / (1 + round)

@dataclass(frozen=True)
class Root(Schedule):
    first: float
    power: float = 0.5

    def at(self, round):
        return self.first / (1 + round) ** self.power
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN, encoding="utf-8")
    return path


def problem(**options):
    return fp.LogisticRegression(fp.load("census", rows=200), clients=8, **options)


def test_values_follow_their_formulas():
    cosine = Cosine(0.3, rounds=10, final=0.1)
    assert cosine.at(0) == 0.3
    assert cosine.at(5) == pytest.approx(0.2, rel=1e-15)
    assert cosine.at(3) == pytest.approx(0.1 + 0.2 * (1 + math.cos(0.3 * math.pi)) / 2, rel=1e-15)
    assert cosine.at(10) == cosine.at(999) == 0.1
    assert Cosine(0.3, 10).final == pytest.approx(0.003)
    steps = Step(0.8, every=3, factor=0.5)
    assert [steps.at(t) for t in (0, 2, 3, 5, 6)] == [0.8, 0.8, 0.4, 0.4, 0.2]
    warm = Warmup(4, then=Step(0.8, every=3, factor=0.5))
    assert [warm.at(t) for t in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert [warm.at(t) for t in (4, 6, 7)] == [0.8, 0.8, 0.4]
    assert Constant(0.7).at(12345) == 0.7


@pytest.mark.parametrize(
    "schedule",
    [
        Constant(0.25), Cosine(0.1, 200, 0.001), Step(1e-3, 50, 0.3), Warmup(3, 0.5),
        Warmup(3, Cosine(0.1, 7)), ScaledSchedule(3.0, Step(0.1, 5)),
        Warmup(2, Warmup(3, Step(1.0, 4))),
    ],
    ids=str,
)  # fmt: skip
def test_text_and_peak_and_scale(schedule):
    assert Schedule.from_text(str(schedule)) == schedule
    values = [schedule.at(t) for t in range(300)]
    assert schedule.peak == pytest.approx(max(values), rel=1e-12)
    doubled = schedule.scaled(2.0)
    assert [doubled.at(t) for t in range(300)] == pytest.approx([2 * v for v in values])


def test_a_method_computes_with_the_numbers_of_a_round():
    method = fp.FedAvg(S=3, eta_l=Step(0.4, 2, 0.5), eta_g=Warmup(2, 2.0))
    now = at_round(method, 3)
    assert (now.eta_l, now.eta_g) == (0.2, 2.0)
    assert now == dataclasses.replace(method, eta_l=0.2, eta_g=2.0)
    assert at_peak(method).eta_l == 0.4
    plain = fp.FedAvg(S=3)
    assert at_round(plain, 7) is plain
    with pytest.raises(InputError, match="has no single value"):
        method.effective_step  # noqa: B018


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda s: fp.VRLSGD(eta_l=s), "cannot be a schedule: corrections"),
        (lambda s: fp.METHODS["scaffnew"](eta=s), "cannot be a schedule: corrections"),
        (lambda s: fp.METHODS["marina"](eta_g=s), "cannot be a schedule: clients compute x"),
        (lambda s: fp.METHODS["ef21-bc"](eta=s), "cannot be a schedule: clients move x"),
        (lambda s: fp.FedPAGE(eta_g=s), "cannot be a schedule"),
        (lambda s: fp.FedProx(mu=s), "mu must be a finite number"),
        (lambda s: fp.FedAvg(K=s), "K must be a whole number"),
        (lambda s: fp.FedPAGE(p=s), r"p must be in \(0, 1\]"),
    ],
)
def test_what_needs_a_constant_refuses_a_schedule(make, part):
    with pytest.raises(InputError, match=part) as error:
        make(Cosine(0.1, 20))
    assert len(str(error.value)) <= 200


def test_a_step_that_the_method_refuses_names_its_round():
    method = fp.FedAvg(S=3, K=2, eta_l=OfFunction(lambda r: 0.3 - 0.1 * r))
    with pytest.raises(InputError, match="round 3: FedAvg: eta_l must be a finite number above 0"):
        fp.simulate(problem(), method, rounds=5, seed=0)
    method = fp.FedAvg(S=3, K=2, eta_l=OfFunction(lambda r: 1 / (2 - r)))
    with pytest.raises(InputError, match=r"fails in round 2 \(ZeroDivisionError"):
        fp.simulate(problem(), method, rounds=5, seed=0)


# Own schedules


def test_functions_and_classes_of_a_file(own):
    decay = Schedule.from_text(f"{own}@decay")
    assert [decay.at(t) for t in (0, 1, 4)] == [0.5, 0.25, 0.1]
    assert str(decay) == f"{own}@decay"
    assert Schedule.from_text(str(decay)) == decay
    half = Schedule.from_text(f"{own}@decay:0.5")
    assert half.at(1) == 0.125
    assert Schedule.from_text(str(half)) == half
    root = Schedule.from_text(f"{own}@Root:0.3")
    assert root.at(3) == pytest.approx(0.15)
    assert str(root) == f"{own}@Root:0.3:0.5"
    warm = Schedule.from_text(f"warmup:2:{own}@decay")
    assert [warm.at(t) for t in (0, 1, 2, 3)] == [0.25, 0.5, 0.5, 0.25]
    with pytest.raises(InputError, match="function of the round"):
        Schedule.from_text(f"{own}@SCALE")


def test_a_function_is_known_by_its_code(own):
    before = Schedule.from_text(f"{own}@decay")
    own.write_text(OWN.replace("SCALE = 0.5", "SCALE = 0.25"), encoding="utf-8")
    assert Schedule.from_text(f"{own}@decay") != before


def test_a_resume_with_other_code_of_the_schedule_is_refused(own, tmp_path):
    def run(rounds, resume):
        method = fp.FedAvg(S=3, K=2, eta_l=Schedule.from_text(f"warmup:2:{own}@decay"))
        options = fp.RunOptions(resume=resume)
        out = tmp_path / "run"
        return fp.simulate(problem(), method, rounds=rounds, seed=1, out=out, options=options)

    run(6, False)
    own.write_text(OWN.replace("SCALE = 0.5", "SCALE = 0.25"), encoding="utf-8")
    with pytest.raises(InputError, match="the code of the schedule of eta_l has changed"):
        run(6, True)


# Text, provenance, commands


def test_a_divergence_says_that_the_step_was_scheduled():
    data = fp.load("census", rows=200)
    method = fp.FedAvg(S=8, K=5, eta_l=Warmup(3, 1e9))
    history = fp.simulate(fp.LeastSquares(data, clients=8), method, rounds=20, seed=0)
    assert "effective step at most 5e+09" in history.stop_detail


def test_tuning_scales_a_schedule_and_a_sweep_varies_it():
    method = fp.FedAvg(S=4, K=2, b=None, eta_l=Cosine(0.01, 30))
    options = {"target": 0.05, "rounds": 60, "seeds": 1, "held_out_seeds": 1, "fixed_grid": True}
    found = fp.tune(problem(), method, search={"step": [0.05, 1.6]}, **options)
    assert isinstance(found.method.eta_l, Cosine)
    assert found.method.eta_l.rounds == 30
    assert effective_step(found.method) == pytest.approx(1.6, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("fedavg", ["eta_l", "eta_g"]), ("fedpage", ["eta_l"]), ("vrl-sgd", []), ("marina", []),
        ("svrp", ["gamma", "eta_l"]), ("cofig", ["eta"]),
    ],
)  # fmt: skip
def test_the_help_of_a_method_names_the_steps_that_may_be_schedules(run, name, sizes):
    assert scheduled(fp.METHODS[name]) == sizes
    _, out, _ = run("methods", name)
    assert ("may follow a schedule" in out) == bool(sizes)
