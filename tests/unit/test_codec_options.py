"""Codecs on the command line, in run files and in searches: any hyper-parameter's rules apply."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

import fedpage as fp
from fedpage.runs import build
from fedpage.runs.config import MethodConfig

SMALL = ("--data", "census:rows=300", "--clients", "30", "--rounds", "20")


def test_run_takes_codecs_and_can_be_resumed(run, tmp_path):
    options = ("--S", "4", "--up", "randk:0.1", "--down", "float32")
    code, out, err = run("run", "fedpage", *SMALL, *options, "--out", "coded")
    assert (code, err.count("unexpected")) == (0, 0)
    assert "FedPAGE" in out
    written = tomllib.loads((tmp_path / "coded" / "run.toml").read_text())
    assert written["command"]["method"]["hyper"] == {
        "S": "4", "up": "randk:0.1", "down": "float32",
    }  # fmt: skip
    assert written["fingerprint"]["method"]["up"] == "randk:0.1"
    history = fp.History.load(tmp_path / "coded" / "history.jsonl")
    method = fp.FedPAGE(S=4, up="randk:0.1", down="float32")
    problem = fp.RobustRegression(fp.load("census", rows=300), clients=30)
    assert history.same(fp.simulate(problem, method, rounds=20, seed=0))
    assert history.meta["method"]["down"] == "float32"
    assert run("resume", "coded")[0] == 0
    assert fp.History.load(tmp_path / "coded" / "history.jsonl").same(history)


@pytest.mark.parametrize("name", ["pp-marina", "marina", "vr-marina"])
def test_steps_from_theory(run, tmp_path, name):
    words = ["--up", "natural", "--steps", "theory", "--down", "float32"]
    words += ["--S", "4"] if name == "pp-marina" else []
    words += ["--b", "2"] if name == "vr-marina" else []
    code, out, _ = run("run", name, *SMALL, *words, "--out", "theory")
    assert code == 0
    assert "Steps from theory: " in out
    about = fp.History.load(tmp_path / "theory" / "history.jsonl").meta["method"]
    problem = fp.RobustRegression(fp.load("census", rows=300), clients=30)
    options = {"pp-marina": {"S": 4}, "marina": {}, "vr-marina": {"b": 2}}[name]
    cls: Any = fp.METHODS[name].cls
    expected = cls.from_theory(problem, up="natural", **options)
    assert (about["eta_g"], about["p"]) == (expected.eta_g, expected.p)
    assert (about["up"], about["down"]) == ("natural", "float32")


def test_compare_takes_codecs(run, tmp_path):
    methods = "fedpage,fedpage:up=randk:0.1:K=3,fedavg:up=natural:down=float32,pp-marina:up=permk"
    code, out, _ = run("compare", *SMALL, "--S", "4", "--seeds", "1", "--methods", methods)
    assert code == 0
    found = sorted((tmp_path / "runs" / "compare" / "runs").glob("*/history.jsonl"))
    about = [fp.History.load(path).meta["method"] for path in found]
    assert {(a["name"], a["up"], a["down"]) for a in about} == {
        ("FedPAGE", "none", "none"), ("FedPAGE", "randk:0.1", "none"),
        ("FedAvg", "natural", "float32"), ("PP-MARINA", "permk", "none"),
    }  # fmt: skip
    assert {a["name"]: a["S"] for a in about} == {"FedPAGE": 4, "FedAvg": 8, "PP-MARINA": 4}
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
    "text", ["none", "natural", "randk:0.1", "randk:12", "permk", "randk:2+natural", "float32"]
)
def test_words_make_the_same_codec_again(text):
    """The words of run.toml and of Flower's `hyper` give the method that they came from."""
    method = build.build_method(MethodConfig("fedpage", {"up": text, "S": "3"}))
    assert method == fp.FedPAGE(S=3, up=text)
    assert build.hyper_words(method) == {"S": "3"} | ({} if text == "none" else {"up": text})
    assert hash(method) == hash(fp.FedPAGE(S=3, up=text))


def test_numbers_of_codecs_are_not_settings():
    split = build.split_settings
    assert split("fedpage:up=randk:0.1:K=5") == ("fedpage", {"up": "randk:0.1", "K": "5"})
    assert split("ef21:up=scaled(randk:12):eta=1") == (
        "ef21", {"up": "scaled(randk:12)", "eta": "1"},
    )  # fmt: skip
    for wrong in ("census:500", "census:skew"):
        with pytest.raises(fp.InputError, match="expected name:key=value"):
            split(wrong)
