"""Hyper-parameters of all methods: impossible values, codecs, effective steps, and costs."""

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import ROWS
from support import make_method, quadratic, refusal

import fedpage as fp
from fedpage.methods import METHODS
from fedpage.methods.scaffnew import Begin

LINES = Path(__file__).with_name("refused_values.txt").read_text(encoding="utf-8").splitlines()
"""Methods with hyper-parameters that are refused, and the words that matter, a line each."""


def value_of(text: str) -> Any:
    """Return a number, True, or a text as it is."""
    known = {"nan": math.nan, "inf": math.inf, "HUGE": 10**400, "True": True}
    try:
        return known[text] if text in known else ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


@pytest.mark.parametrize("line", LINES)
def test_impossible_values_are_refused(line):
    call, _, words = line.partition(" -> ")
    name, *settings = call.split()
    options = {key: value_of(text) for key, _, text in (s.partition("=") for s in settings)}
    entry = METHODS[name]
    text = refusal(entry, **options)
    assert text.startswith((f"{entry.cls.name}: ", entry.label, "unknown codec"))
    assert all(part in text for part in words.split("; "))


QUADRATIC = quadratic()
NONCONVEX = fp.RobustRegression(fp.load("census", rows=100), clients=5)


@pytest.mark.parametrize(
    ("name", "problem", "options", "words"),
    [
        *((name, QUADRATIC, {"S": 99}, "cannot sample S=99 of N=8") for name in
          ("pp-marina", "cofig", "saga", "zerosarah", "frecon", "ef21-pp")),
        ("svrp", QUADRATIC, {"mu": 0.5, "S": 9}, "cannot sample S=9"),
        ("svrp", QUADRATIC, {"mu": 0.0}, "mu must be"),
        ("s-dane", QUADRATIC, {"delta": 0.0}, "delta must be"),
        ("s-dane", NONCONVEX, {}, "its theorem needs a convex objective"),
        ("i-cgm-rg-saga", QUADRATIC, {"S": 9}, "cannot sample S=9"),
        ("diana", QUADRATIC, {"mu": -1.0}, "mu must be"),
        ("scaffnew", QUADRATIC, {"mu": 1e9}, "mu must be at most L"),
        # randk:0.6 keeps one of two numbers: omega = 1
        *((name, fp.Quadratic.random(3, 2, 2, seed=0), {"up": "randk:0.6"}, "scaled(randk:0.6)")
          for name in ("ef21", "ef21-sgdm", "ef21-bc")),
    ],
    ids=str,
)  # fmt: skip
def test_steps_of_theory_are_refused_where_no_theorem_holds(name, problem, options, words):
    cls: Any = METHODS[name].cls
    assert words in refusal(cls.from_theory, problem, **options)


@pytest.mark.parametrize("name", [n for n in ROWS if getattr(make_method(n, 9, 1, 0.1), "S", 0)])
def test_more_clients_than_there_are_cannot_be_sampled(name):
    method = make_method(name, 9, 1, 0.1)
    assert "cannot sample S=9 of N=8" in refusal(method.init, np.zeros(4), 8)


def test_numbers_that_no_server_sends_are_refused():
    assert "delegate 8 is not one of the clients 0 to 7" in refusal(
        fp.METHODS["i-cgm-rg-saga"](S=2, delegate=8).init, np.zeros(4), 8
    )
    method, everyone = fp.Scaffnew(p=0.5), np.arange(8)
    oracle = QUADRATIC.oracle(everyone, fp.core.random.RoundDraws(0, 0))
    state = method.client_state(np.zeros((8, 4)), np.zeros((8, 4)))
    for K in (0.0, 76.0, 1.5, np.nan, np.inf):
        message = Begin(np.zeros(4), np.array([K]))
        text = refusal(method.client, message, oracle, state)
        assert "local steps, which p=0.5 never gives" in text


UNBIASED = {
    *("fedavg", "fedavg-full", "fedavg-training", "fedprox", "fedpage", "fedpage-full", "page"),
    *("fedpage-periodic", "fedpage-leak-free", "fedpage-pass-start", "secantpage", "cofig"),
    *("diana", "dasha", "dasha-pp", "fedexp", "fedavgm", "fednesterov", "fedadagrad", "fedadam"),
    *("fedyogi", "frecon", "pp-marina", "marina", "vr-marina", "mimelite", "mime", "scallion"),
}
CONTRACTIVE = {"ef21", "ef21-pp", "ef21-sgdm", "ef21-bc"}


@pytest.mark.parametrize("name", METHODS)
def test_each_method_takes_the_codecs_that_its_theorems_allow(name):
    make: Any = METHODS[name]
    kinds = {"float32": True, "natural": name in UNBIASED | CONTRACTIVE}
    kinds |= {"randk:2": name in UNBIASED, "topk:2": name in CONTRACTIVE}
    kinds |= {"scaled(randk:2)": name in CONTRACTIVE}
    for codec, is_taken in kinds.items():
        if is_taken:
            assert str(make(up=codec).up) == codec
        else:
            assert f"up={codec} " in refusal(make, up=codec)
    if "down" in METHODS[name].hyper_parameters:
        assert str(make(down="float32").down) == "float32"
        if name != "ef21-bc":
            assert "down=natural is not a cast" in refusal(make, down="natural")


@pytest.mark.parametrize(
    ("method", "step", "other", "same"),
    [
        (fp.FedPAGE(eta_g=0.2, eta_l=0.1), 0.2, 0.4, fp.FedPAGE(eta_g=0.4, eta_l=0.2)),
        (fp.FedPAGE(eta_g=0.2), 0.2, 0.4, fp.FedPAGE(eta_g=0.4)),
        (fp.SecantPAGE(), 0.25, 0.1, fp.SecantPAGE(damping=0.1)),
        (fp.SecantPAGE(eta=0.3), 0.3, 0.1, fp.SecantPAGE(eta=0.1)),
        (fp.FedAvgM(K=4, eta_l=0.1, eta_g=2.0, beta=0.75), 3.2, 6.4,
         fp.FedAvgM(K=4, eta_l=0.2, eta_g=2.0, beta=0.75)),
        (fp.FedNesterov(K=4, eta_l=0.1, eta_g=2.0, beta=0.75), 3.2, 6.4,
         fp.FedNesterov(K=4, eta_l=0.2, eta_g=2.0, beta=0.75)),
        (fp.FedAdam(eta_l=0.3, eta_g=0.2), 0.2, 0.7, fp.FedAdam(eta_l=0.3, eta_g=0.7)),
        (fp.FedExP(K=5, eta_l=0.1), 0.5, 1.0, fp.FedExP(K=5, eta_l=0.2)),
        (fp.Mime(K=5, eta_l=0.1, eta_g=3.0), 1.5, 3.0, fp.Mime(K=5, eta_l=0.2, eta_g=3.0)),
        (fp.EF21(eta=0.1, beta=0.75), 0.4, 0.2, fp.EF21(eta=0.05, beta=0.75)),
        (fp.SCALLION(K=5, eta_l=0.1, eta_g=2.0), 1.0, 2.0, fp.SCALLION(K=5, eta_l=0.2, eta_g=2.0)),
        (METHODS["scaffold-momentum"](K=2, eta_l=0.1, eta_g=1.5, beta=0.5), 0.6, 1.2,
         METHODS["scaffold-momentum"](K=2, eta_l=0.2, eta_g=1.5, beta=0.5)),
        (fp.FedDyn(mu=4.0, eta_l=0.1), 0.25, 0.5, fp.FedDyn(mu=2.0, eta_l=0.2)),
        (fp.FedDyn(mu=4.0), 0.25, 0.5, fp.FedDyn(mu=2.0)),
    ],
    ids=str,
)  # fmt: skip
def test_effective_steps(method, step, other, same):
    assert method.effective_step == pytest.approx(step, rel=1e-14)
    moved = method.with_step(other)
    for name, value in vars(same).items():
        if isinstance(value, float):
            assert getattr(moved, name) == pytest.approx(value, rel=1e-14), name
        else:
            assert getattr(moved, name) == value, name


NATURAL, HALF = 12 / 64, 0.5
"""The shares of 64 bits that a number has after the codecs natural and float32."""


@pytest.mark.parametrize(
    ("method", "rounds"),
    [  # called clients, vectors of d = 4 numbers down, and vectors of 64 bits up, for each round
        (fp.SVRP(S=2, p=1e-9), [(8, 1, 1), (2, 3, 1), (2, 3, 1)]),
        (fp.SVRP(S=2, p=1.0), [(8, 1, 1), (2, 3, 1), (8, 1, 1)]),
        (fp.SABER(S=2, p=1e-9), [(8, 1, 1), (2, 2, 1), (2, 3, 2)]),
        (fp.SABER(S=2, p=1.0), [(8, 1, 1), (2, 2, 1), (8, 1, 1)]),
        (fp.SABER(S=2, p=1.0, up="float32"), [(8, 1, HALF), (2, 2, HALF), (8, 1, HALF)]),
        (fp.DANE(S=2), [(2, 1, 1), (2, 2, 1)]),
        (fp.SDANE(), [(8, 1, 1), (8, 2, 2)]),
        (METHODS["i-cgm-rg-saga"](S=2), [(8, 1, 1), (1, 2.25, 1), (2, 2, 2)]),  # and K down
        (fp.ZeroSARAH(S=3), [(3, 1, 1), (3, 2, 2), (3, 2, 2)]),
        (fp.ZeroSARAH(S=3, up="float32"), [(3, 1, HALF), (3, 2, 1), (3, 2, 1)]),
        (fp.FRECON(S=3), [(3, 1, 1), (3, 2, 2)]),
        (fp.FRECON(S=3, up="natural"), [(3, 1, NATURAL), (3, 2, 2 * NATURAL)]),
        (fp.SAGA(S=3), [(3, 1, 1)] * 3),
        (fp.COFIG(S=3, up="natural"), [(3, 1, NATURAL)] * 3),
        (fp.COFIG(S=3, down="float32"), [(3, HALF, 1)] * 3),
        (fp.DIANA(up="randk:1"), [(8, 1, 1 / 4)] * 3),
        (fp.Mime(S=4), [(4, 1, 1), (4, 2, 1)] * 2),
        (fp.MimeLite(S=4, up="natural"), [(4, 2, 2 * NATURAL)] * 2),
        (fp.FedExP(S=4, up="natural"), [(4, 1, NATURAL + 1 / 4)] * 2),  # and a norm
        (fp.FedAdam(S=4, up="natural", down="float32"), [(4, HALF, NATURAL)] * 2),
        (fp.SCAFFOLD(S=5), [(5, 2, 1)] * 2),
        (METHODS["scaffold-option-i"](S=5), [(5, 2, 2)] * 2),
        (fp.Scaffnew(p=1.0), [(8, 1.25, 1)] * 2),  # and the number of steps, never rounded
        (fp.Scaffnew(p=1.0, down="float32"), [(8, HALF + 1 / 4, 1)] * 2),
        (fp.SCALLION(S=3), [(3, 2, 1)] * 2),
        (fp.SecantPAGE(S=4), [(4, 1, 1), (4, 2, 2), (4, 2, 2)]),
        (fp.SecantPAGE(S=4, up="natural"), [(4, 1, 1), (4, 2, 1 + NATURAL)]),
        (fp.SecantPAGE(S=4, up="float32"), [(4, 1, HALF), (4, 2, 1)]),
        (fp.SLocalSVRG(K=2, q=1e-9), [(8, 1, 5 / 4), (8, 2, 1), (8, 1, 1), (8, 1, 1)]),
        (fp.SLocalSVRG(S=3, K=2, q=1e-9), [(8, 1, 5 / 4), (3, 2, 1), (3, 2, 1)]),
    ],
    ids=str,
)  # fmt: skip
def test_costs_of_each_round(method, rounds):
    history = fp.simulate(QUADRATIC, method, rounds=len(rounds), seed=0, record_every=1)
    clients, down, up = (np.array(column) for column in zip(*rounds, strict=True))
    assert np.diff(history["clients"]).tolist() == clients.tolist()
    assert np.diff(history["bits_down"]).tolist() == (256 * clients * down).tolist()
    assert np.diff(history["bits_up"]).tolist() == (256 * clients * up).tolist()


def test_a_method_without_codecs_equals_one_with_none():
    for name in ("fedpage", "fedprox", "vrl-sgd", "s-local-svrg"):
        assert METHODS[name](up="none", down=None) == METHODS[name]()


SHARES: dict[str, Any] = {
    "none": 1, "float32": 1, "natural": NATURAL, "randk:5": 5 / 40, "bernoulli:0.25": 0.25,
    "permk": 1 / 3,
}  # fmt: skip


@pytest.mark.parametrize("up", SHARES)
def test_by_default_full_and_sampled_rounds_send_equally_many_bits(up):
    """N p times a full reply is S times a sampled one; FedPAGE and PAGE have p = S/N."""
    seen = []

    class Coins(fp.core.random.RoundDraws):
        def coin(self, p):
            seen.append(p)
            return False

    for method in (fp.PPMARINA(S=3, up=up), fp.PAGE(S=3, up=up)):
        method.call(method.init(np.zeros(40), 12), Coins(0, 1))
    assert seen == [pytest.approx(3 / 12 * SHARES[up]), pytest.approx(3 / 12)]
