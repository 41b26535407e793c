"""Check the study of SecantPAGE: what it counts, its tables, and that it resumes."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import pytest

import fedpage as fp

ROOT = Path(__file__).resolve().parents[2]
NAME = "a9a robust"


@pytest.fixture
def study(monkeypatch):
    """Import the study, with a small problem in place of a9a."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("secant_study")
    small = fp.RobustRegression(fp.load("census", rows=200), clients=20)
    monkeypatch.setattr(module, "problem", lambda name: small)
    monkeypatch.setattr(module, "TARGETS", (1e-1, 1e-12))
    monkeypatch.setitem(module.BUDGETS, "a9a", 100)
    yield module
    sys.modules.pop("secant_study", None)


def test_costs_are_those_of_the_first_record_at_a_target(study):
    row = study.run(NAME, "default", seed=0)
    history = fp.simulate(
        study.problem(NAME), fp.SecantPAGE(), rounds=10, seed=0, record_every=5
    )  # fmt: skip
    at = next(i for i, value in enumerate(history["grad_norm"]) if value <= 1e-1)
    assert row["clients"][0] == history["clients"][at] > 0
    assert row["bytes"][0] == history["bytes_up"][at] + history["bytes_down"][at]
    assert row["clients"][1] == math.inf


def test_every_variant_is_a_method(study):
    methods = {name: fp.SecantPAGE(**options) for name, options in study.VARIANTS.items()}
    assert len({repr(method) for method in methods.values()}) == len(methods)


def test_a_study_resumes_and_prints_medians_and_worst_seeds(study, tmp_path, capsys):
    out = tmp_path / "study.jsonl"
    rows = [
        {"problem": NAME, "variant": "default", "seed": seed, "clients": [cost, math.inf],
         "bytes": [2e3 * cost, math.inf]}
        for seed, cost in ((7, 1000.0), (8, 2000.0), (9, 6000.0))
    ]  # fmt: skip
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = out.read_text()
    study.main(["--out", str(out), "--seeds", "7:10", "--variants", "default", "--problems", NAME])
    assert out.read_text() == before
    text = capsys.readouterr().out
    assert f"| {NAME} | 2/6, -/- |" in text
    assert f"| {NAME} | 4/12, -/- |" in text
    study.main(["--out", str(out), "--seeds", "9:11", "--variants", "default", "--problems", NAME])
    assert [json.loads(line)["seed"] for line in out.read_text().splitlines()] == [7, 8, 9, 10]
