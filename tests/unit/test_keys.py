"""Results are found again by code, data and version: those of others are not taken over."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from support import quadratic

import fedpage as fp
from fedpage.runs import fingerprint
from fedpage.studies.paper import tuning
from fedpage.studies.paper.book import TuningTable

METHOD = """
from dataclasses import dataclass
from fedpage.methods.fedavg import FedAvg
import own_helper
from own_helper import scale

@dataclass(frozen=True)
class Mine(FedAvg):
    name = "Mine"
    def server(self, state, replies):
        return super().server(state, replies._replace(mean=scale(replies.mean)))
"""
HELPER = """
FACTOR = 1.0
def scale(mean):
    return mean._make([part * FACTOR for part in mean])
"""
LOSS = """
class Loss:
    curvature = 1.0
    convex = True

    @staticmethod
    def value(t, b):
        return 0.5 * (t - b) ** 2

    @staticmethod
    def slope(t, b):
        return 1.0 * (t - b)
"""
STUDY = """
rounds = 8
seeds = 1
target = "0.2"
[problems.own]
data = "own.csv"
label = "y"
clients = 5
[methods.mine]
method = "mine.py@Mine"
S = 2
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write a method, its helper and data into the current directory."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "own_helper.py").write_text(HELPER)
    (tmp_path / "own_loss.py").write_text(LOSS)
    rows = [f"{i % 7},{(3 * i) % 5},{i % 3},{1 if i % 7 > 3 else -1}" for i in range(40)]
    (tmp_path / "own.csv").write_text("a,b,c,y\n" + "\n".join(rows) + "\n")
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def forget(name):
    import sys

    sys.modules.pop(name, None)


def edits(folder):
    """Return functions that change something which results depend on."""
    helper, method, data = folder / "own_helper.py", folder / "mine.py", folder / "own.csv"
    return {
        "method": lambda: method.write_text(METHOD.replace('"Mine"', '"Mine" ')),
        "helper": lambda: helper.write_text(HELPER.replace("1.0", "0.5")),
        "loss": lambda: (folder / "own_loss.py").write_text(
            LOSS.replace("0.5 * (t - b) ** 2", "(t - b) ** 2 / 2")
        ),
        "data": lambda: data.write_text(data.read_text().replace("0,0,0,-1", "0,1,0,-1", 1)),
    }


@pytest.mark.parametrize("what", ["method", "helper", "data"])
def test_a_study_runs_again_after_an_edit(run, files, what):
    words = ["study", "run", "study.toml", "--store", "store"]
    assert "1 new runs" in run(*words)[1]
    assert "0 new runs" in run(*words)[1]
    edits(files)[what]()
    forget("own_helper")
    code, out, err = run(*words)
    assert code == 0, err
    assert "1 new runs" in out
    forget("own_helper")


TUNE = [
    "tune", "mine.py@Mine", "--data", "own.csv", "--label", "y", "--clients", "5", "--S", "2",
    "--K", "2", "--search", "eta_l=0.01,0.02", "--fixed-grid", "--target", "0.001", "--rounds", "8",
    "--record-every", "4", "--seeds", "2", "--held-out-seeds", "2", "--out", "t",
]  # fmt: skip


@pytest.mark.parametrize("what", ["method", "helper", "loss", "data", "trial"])
def test_a_search_runs_again_after_an_edit(run, files, what):
    own = ["--objective", "own_loss.py@Loss"] if what == "loss" else []

    def made():
        code, out, err = run(*TUNE, *own)
        assert code == 0, err
        return re.search(r"(\d+) runs(?: and (\d+) from the store)?, ", out).groups()

    first, _ = made()
    assert made() == ("0", first)
    if what == "trial":
        path = files / "t" / "trials.jsonl"
        lines = path.read_text().splitlines()
        entry = json.loads(lines[0])
        lines[0] = json.dumps(entry | {"spent": entry["spent"] / 2})
        path.write_text("\n".join(lines) + "\n")
        assert made() == ("1", str(int(first) - 1))
        return
    edits(files)[what]()
    forget("own_helper")
    assert made()[1] is None
    forget("own_helper")


@pytest.mark.parametrize(("what", "whose"), [("method", "Mine"), ("loss", "the loss")])
def test_a_comparison_is_not_resumed_after_an_edit(run, files, what, whose):
    words = ["--data", "own.csv", "--label", "y", "--clients", "5", "--S", "2", "--rounds", "4"]
    words += ["--seeds", "1", "--out", "c"]
    words += ["--objective", "own_loss.py@Loss"] if what == "loss" else []
    assert run("compare", "--methods", "mine.py@Mine", *words)[0] == 0
    assert run("resume", "c")[0] == 0
    edits(files)[what]()
    code, _, err = run("resume", "c")
    assert code == 2
    assert f"cannot resume: the code of {whose} has changed since the run began; begin" in err
    forget("own_helper")


@pytest.mark.parametrize("what", ["method", "loss"])
def test_a_choice_runs_again_after_an_edit(run, files, what):
    words = ["choose", "--data", "own.csv", "--label", "y", "--clients", "4", "--methods"]
    words += ["mine.py@Mine", "--target", "0.5", "--no-codecs", "--rounds", "40", "--seeds", "2"]
    words += ["--held-out-seeds", "5", "--jobs", "1", "--out", "ch"]
    words += ["--objective", "own_loss.py@Loss"] if what == "loss" else []

    def count():
        code, _, err = run(*words)
        assert code == 0, err
        return len((files / "ch" / "trials.jsonl").read_text().splitlines())

    first = count()
    assert count() == first
    edits(files)[what]()
    assert count() == 2 * first
    forget("own_helper")


def test_results_of_another_version_are_not_taken_over(run, files, monkeypatch):
    words = ["study", "run", "study.toml", "--store", "store"]
    assert "1 new runs" in run(*words)[1]
    now = fingerprint.versions()
    monkeypatch.setattr(fingerprint, "versions", lambda: {**now, "fedpage": "0.0.9"})
    assert "1 new runs" in run(*words)[1]
    forget("own_helper")


def test_a_run_under_the_name_of_another_is_not_taken_over(tmp_path, caplog):
    def study(seeds=2):
        problem, methods = quadratic(), {"a": fp.FedAvg(S=2)}
        return fp.Study({"q": problem}, methods, rounds=4, seeds=seeds, store=tmp_path)

    study().run()
    first, second = sorted(tmp_path.iterdir())
    shutil.rmtree(first)
    shutil.copytree(second, first)
    assert [key.seed for key in study().runs()] == [1]
    assert f"{first}: the run in it is not the one that its name stands for" in caplog.text
    with pytest.raises(fp.InputError, match="seed was 1 and is now 0"):
        study().run()
    shutil.rmtree(first)
    assert study().run().new_runs == 1
    # A history of another run beside the right run.toml
    shutil.copy(second / "history.jsonl", first)
    shutil.copy(second / "history.model.npz", first)
    assert [key.seed for key in study().runs()] == [1]


def test_step_sizes_of_another_search_are_not_taken_over(tmp_path):
    problem = quadratic()
    study = fp.Study(
        {"q": problem}, {"a": fp.FedPAGE(S=2, K=1)}, rounds=4, seeds=1, store=tmp_path,
        figures=[{"name": "f"}],
    )  # fmt: skip
    grid = TuningTable(eta_g=[0.1, 0.2], rho=[1.0], target=1.0, seeds=1)
    rows = tuning.search(study, "f", grid, tmp_path, 1, lambda *_: None)
    path = tmp_path / "tuning" / "f.json"
    assert tuning.load(study, "f", grid, path) == rows
    other = TuningTable(eta_g=[0.1, 0.3], rho=[1.0], target=1.0, seeds=1)
    assert tuning.load(study, "f", other, path) is None
    assert tuning.load(study, "f", grid, tmp_path / "none.json") is None
    path.write_text(path.read_text().replace('"eta_g": 0.', '"eta_g": 1.'))
    with pytest.raises(fp.InputError, match="not a result of the search; remove it"):
        tuning.load(study, "f", grid, path)
