"""Check client optimisers as values: their text, provenance, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.core.optimizers import SGD, Adam, AdamW, Momentum, Optimizer
from fedpage.runs.build import build_method, hyper_words
from fedpage.runs.config import MethodConfig


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(clip=2), SGD(weight_decay=1e-4), Momentum(0.95), Momentum(0.9, nesterov=True),
        Momentum(0.9, weight_decay=1e-4, clip=1.0), Adam(), Adam(0.8, 0.99, 1e-6, clip=0.5),
        AdamW(weight_decay=0.01),
    ],
    ids=str,
)  # fmt: skip
def test_text_reads_back(optimizer):
    assert Optimizer.from_text(str(optimizer)) == optimizer
    method = fp.LocalTraining(S=3, K=2, client_optimizer=optimizer)
    text: Any = str(optimizer)
    assert fp.LocalTraining(S=3, K=2, client_optimizer=text) == method
    assert build_method(MethodConfig("fedavg-training", hyper_words(method))) == method


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("momentm:0.9", "did you mean 'momentum'"),
        ("momentum:1.0", "beta must be in [0, 1)"),
        ("momentum:0.9:0.9", "write momentum:BETA"),
        ("momentum:x", "write momentum:BETA"),
        ("adam+clip:0", "clip must be a finite number above 0"),
        ("adam+decay:-1", "weight_decay must be a finite number of at least 0"),
        ("adam+warmup:3", "write decay:NUMBER or clip:NUMBER"),
        ("adam+clip:1+clip:2", "each once"),
        ("adam:0.9:0.99:0", "eps must be a finite number above 0"),
    ],
)
def test_bad_texts_are_refused_in_a_line(text, part):
    with pytest.raises(InputError) as error:
        Optimizer.from_text(text)
    assert part in str(error.value)
    assert len(str(error.value)) <= 200


def test_methods_without_one_refuse_in_a_sentence(run):
    wrong: Any = 0.9
    with pytest.raises(InputError, match="client_optimizer must be one such as"):
        fp.LocalTraining(client_optimizer=wrong)
    with pytest.raises(InputError, match="write one as text"):
        Optimizer(clip=1.0)
    code, _, err = run("run", "scaffold", "--client-optimizer", "momentum:0.9")
    assert code != 0
    assert "SCAFFOLD has no hyper-parameter '--client-optimizer'" in err


def test_the_command_line_and_provenance(run, tmp_path):
    words = "run fedavg-training --data census:rows=200 --clients 8 --rounds 5 --S 3 --K 2"
    chosen = "--client-optimizer momentum:0.9+clip:1 --out first"
    assert run(*words.split(), *chosen.split())[0] == 0
    history = fp.History.load(tmp_path / "first" / "history.jsonl")
    assert history.meta["method"]["client_optimizer"] == "momentum:0.9+clip:1"
    method = fp.LocalTraining(S=3, K=2, client_optimizer=Momentum(0.9, clip=1))
    problem = fp.RobustRegression(fp.load("census", rows=200), clients=8)
    assert history.same(fp.simulate(problem, method, rounds=5, seed=0))
    assert run("resume", "first")[0] == 0


def test_epochs_on_the_command_line(run, tmp_path):
    small = ("--data", "census:rows=200", "--clients", "8", "--rounds", "5")
    chosen = ("--S", "3", "--epochs", "2", "--b", "4", "--out", "first")
    code, _, err = run("run", "fedavg-training", *small, *chosen)
    assert code == 0, err
    history = fp.History.load(tmp_path / "first" / "history.jsonl")
    method = fp.LocalTraining(S=3, epochs=2, b=4)
    problem = fp.RobustRegression(fp.load("census", rows=200), clients=8)
    assert history.same(fp.simulate(problem, method, rounds=5, seed=0))
    assert history.last("gradients") == 5 * 3 * 2 * 25
    assert run("resume", "first", "--rounds", "7")[0] == 0
    assert build_method(MethodConfig("fedavg-training", hyper_words(method))) == method
    code, _, err = run("run", "fedavg-training", *small, "--epochs", "2", "--K", "5")
    assert code != 0
    assert "give K or epochs, not both" in err
    terms = "--S 3 --K 4 --seeds 1 --methods fedavg-training:epochs=2,fedavg:K=2"
    code, _, err = run("compare", *small, *terms.split())
    assert code == 0, err
