"""Simulated time in searches and on the command line."""

from __future__ import annotations

import json
import re

import numpy as np

import fedpage as fp
from fedpage.core.columns import SIMULATED

SMALL = ("--data", "census:rows=300", "--clients", "30")
CSV = "latency,downlink,uplink,gradient\n1,1000,100,0.001\n2,500,200,0.01\n"


def census():
    return fp.LogisticRegression(fp.load("census", rows=300), clients=30)


def test_run_simulates_time_and_resumes_it(run, tmp_path):
    (tmp_path / "mine.csv").write_text(CSV)
    words = ("run", "fedavg", *SMALL, "--S", "3", "--rounds", "20", "--devices", "mine.csv:seed=2")
    assert run(*words, "--out", "first")[0] == 0
    history = fp.History.load(tmp_path / "first")
    devices = fp.Devices.from_csv(tmp_path / "mine.csv", seed=2)
    problem = fp.RobustRegression(fp.load("census", rows=300), clients=30)
    same = fp.simulate(
        problem, fp.FedAvg(S=3), rounds=20, seed=0, options=fp.RunOptions(devices=devices)
    )
    assert history.same(same)
    text = (tmp_path / "first" / "run.toml").read_text()
    assert f"{tmp_path / 'mine.csv'}:seed=2" in text
    page = (tmp_path / "first" / "report.html").read_text()
    assert '<option value="seconds_simulated">simulated seconds</option>' in page
    assert run("resume", "first")[0] == 0
    (tmp_path / "mine.csv").write_text(CSV.replace("500", "501"))
    code, _, err = run("resume", "first")
    assert code == 2
    assert "cannot resume: devices.measured was" in err


def test_compare_judges_by_simulated_time(run, tmp_path):
    code, out, _ = run(
        "compare", *SMALL, "--S", "3", "--seeds", "2", "--rounds", "60", "--target", "0.2,hold=0",
        "--methods", "fedpage,fedavg", "--devices", "phones:noise=0", "--cost", "seconds_simulated",
        "--out", "both",
    )  # fmt: skip
    assert code == 0
    assert re.search(r"FedAvg: [\d.]+ s \[", out)
    loaded = fp.History.load(next((tmp_path / "both" / "runs").iterdir()))
    assert loaded.meta["devices"] == fp.Devices(noise=0.0).describe()
    page = (tmp_path / "both" / "report.html").read_text()
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0])
    assert SIMULATED in data["figures"][0]["panels"][0]["curves"][0]["costs"]
    assert run("resume", "both")[0] == 0


def test_tune_and_choose_minimise_simulated_time():
    problem, devices = census(), fp.Devices("cross-silo", seed=1)
    found = fp.tune(
        problem, fp.FedAvg(S=3), target=0.15, cost=SIMULATED, search={"step": []}, seeds=2,
        held_out_seeds=2, devices=devices,
    )  # fmt: skip
    assert found.first.sample is not None
    history = fp.simulate(
        problem, found.method, rounds=found.first.rounds, seed=found.held_out_seeds[0],
        options=fp.RunOptions(devices=devices),
    )  # fmt: skip
    assert found.first.sample.costs[0] == found.question.cost_of(history)
    slower = fp.tune(
        problem, fp.FedAvg(S=3), target=0.15, cost=SIMULATED, search={"step": []}, seeds=2,
        held_out_seeds=2, devices=fp.Devices("cross-silo", seed=1, overhead=1.0),
    )  # fmt: skip
    assert slower.first.sample is not None
    assert slower.first.sample.median > found.first.sample.median
    choice = fp.choose(
        problem, target=0.15, cost=SIMULATED, methods=["page", "fedavg"], seeds=1, held_out_seeds=5,
        codecs=False, devices=devices,
    )  # fmt: skip
    assert np.isfinite(choice.first.sample.median)
    assert choice.question.cost.column.unit == "s"


def test_the_words_of_devices_are_read_again():
    for devices in (fp.Devices(), fp.Devices("datacenter", seed=3, deadline=0.25, noise=0.0)):
        assert fp.Devices.from_text(devices.text) == devices
