"""Codecs, schedules and client optimisers as texts: commands, run files, searches and refusals."""

import tomllib
from typing import Any

import pytest
from support import refusal

import fedpage as fp
from fedpage.core.optimizers import SGD, Adam, AdamW, Momentum
from fedpage.methods.schedules import Cosine, Step, Warmup
from fedpage.runs.build import build_method, hyper_words, split_settings
from fedpage.runs.config import MethodConfig

SMALL = ("--data", "census:rows=300", "--clients", "30", "--rounds", "20")


def small() -> fp.RobustRegression:
    """Make the problem of SMALL."""
    return fp.RobustRegression(fp.load("census", rows=300), clients=30)


RUNS: list[tuple[str, dict[str, str], Any]] = [
    (
        "fedpage",
        {"S": "4", "up": "randk:0.1", "down": "float32"},
        fp.FedPAGE(S=4, up="randk:0.1", down="float32"),
    ),
    (
        "fedavg",
        {"S": "3", "K": "2", "eta_l": "cosine:0.1:5:0.01"},
        fp.FedAvg(S=3, K=2, eta_l=Cosine(0.1, 5, 0.01)),
    ),
    (
        "fedavg-training",
        {"S": "3", "K": "2", "client_optimizer": "momentum:0.9+clip:1"},
        fp.LocalTraining(S=3, K=2, client_optimizer=Momentum(0.9, clip=1)),
    ),
    ("fedavg-training", {"S": "3", "epochs": "2", "b": "4"}, fp.LocalTraining(S=3, epochs=2, b=4)),
]


@pytest.mark.parametrize(("name", "hyper", "method"), RUNS)
def test_a_run_with_texts_is_written_and_resumed(run, tmp_path, name, hyper, method):
    words = [word for key, text in hyper.items() for word in (f"--{key.replace('_', '-')}", text)]
    code, _, err = run("run", name, *SMALL, *words, "--out", "first")
    assert code == 0, err
    written = tomllib.loads((tmp_path / "first" / "run.toml").read_text())
    assert written["command"]["method"]["hyper"] == hyper
    history = fp.History.load(tmp_path / "first")
    assert history.same(fp.simulate(small(), method, rounds=20, seed=0))
    shown = {key: history.meta["method"][key] for key in hyper}
    assert {key: str(value) for key, value in shown.items()} == hyper
    texts = [text for text in hyper.values() if ":" in text]
    page = (tmp_path / "first" / "report.html").read_text("utf-8")
    assert all(text in page for text in texts)
    assert run("resume", "first", "--rounds", "22")[0] == 0
    assert fp.History.load(tmp_path / "first").last("round") == 22


def test_compare_takes_codecs_and_epochs(run, tmp_path):
    methods = "fedpage,fedpage:up=randk:0.1:K=3,fedavg:up=natural:down=float32,pp-marina:up=permk"
    methods += ",fedavg-training:epochs=2"
    code, out, err = run("compare", *SMALL, "--S", "4", "--seeds", "1", "--methods", methods)
    assert code == 0, err
    found = sorted((tmp_path / "runs" / "compare" / "runs").glob("*/history.jsonl"))
    about = [fp.History.load(path).meta["method"] for path in found]
    assert {(a["name"], a["S"], a["up"], a["down"]) for a in about} == {
        ("FedPAGE", 4, "none", "none"), ("FedPAGE", 4, "randk:0.1", "none"),
        ("FedAvg", 8, "natural", "float32"), ("PP-MARINA", 4, "permk", "none"),
        ("FedAvg-training", 8, "none", "none"),
    }  # fmt: skip
    assert "up=randk:0.1" in " ".join(out.split())


def test_tune_searches_codecs(run, tmp_path):
    words = (
        "--search up=natural,randk:0.2,none --search step=0.1,0.2 --cost bytes --target 0.2 "
        "--seeds 1 --held-out-seeds 1 --S 3 --out search"
    )
    code, out, err = run("tune", "pp-marina", *SMALL, *words.split())
    assert code == 0, err
    assert (tmp_path / "search" / "search.png").exists()
    assert "randk:0.2" in out
    assert (tmp_path / "search" / "run.toml").exists()


@pytest.mark.parametrize(
    "method",
    [
        *(fp.FedPAGE(S=3, up=text) for text in
          ("none", "natural", "randk:0.1", "randk:12", "permk", "randk:2+natural", "float32")),
        *(fp.LocalTraining(S=3, K=2, client_optimizer=optimizer) for optimizer in
          (SGD(clip=2), SGD(weight_decay=1e-4), Momentum(0.95), Momentum(0.9, nesterov=True),
           Momentum(0.9, weight_decay=1e-4, clip=1.0), Adam(), Adam(0.8, 0.99, 1e-6, clip=0.5),
           AdamW(weight_decay=0.01))),
        fp.FedAvg(S=3, K=2, eta_l=Warmup(3, Cosine(0.1, 7)), eta_g=Step(1.0, 5)),
        fp.LocalTraining(S=3, epochs=2, b=4),
    ],
    ids=str,
)  # fmt: skip
def test_words_make_the_same_method_again(method):
    """The words of run.toml and of Flower's `hyper` give the method that they came from."""
    name = {"FedPAGE": "fedpage", "LocalTraining": "fedavg-training"}.get(
        type(method).__name__, "fedavg"
    )
    words = hyper_words(method)
    again = build_method(MethodConfig(name, words))
    assert again == method
    assert hash(again) == hash(method)
    assert all(isinstance(word, str) for word in words.values())
    assert "none" not in words.values()


def test_numbers_of_codecs_are_not_settings():
    assert split_settings("fedpage:up=randk:0.1:K=5") == ("fedpage", {"up": "randk:0.1", "K": "5"})
    assert split_settings("ef21:up=scaled(randk:12):eta=1") == (
        "ef21", {"up": "scaled(randk:12)", "eta": "1"},
    )  # fmt: skip
    for wrong in ("census:500", "census:skew"):
        assert "expected name:key=value" in refusal(split_settings, wrong)


def test_a_method_without_the_option_is_refused(refused):
    words = ["run", "scaffold", "--client-optimizer", "momentum:0.9"]
    refused(words, "SCAFFOLD has no hyper-parameter '--client-optimizer'")
    refused(["run", "fedavg", "--eta-l", "cosin:0.1:5"], "did you mean 'cosine'")
