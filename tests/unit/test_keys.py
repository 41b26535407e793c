"""Results are found again by code, data and version: those of others are not taken over."""

import json
import shutil
import sys

import pytest
from support import quadratic, refusal

import fedpage as fp
from fedpage.runs import fingerprint

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


def edits(folder):
    """Return functions that change something which results depend on."""
    helper, method, data = folder / "own_helper.py", folder / "mine.py", folder / "own.csv"
    return {
        "method": lambda: method.write_text(METHOD.replace('"Mine"', '"Mine" ')),
        "helper": lambda: helper.write_text(HELPER.replace("part * FACTOR", "FACTOR * part")),
        "loss": lambda: (folder / "own_loss.py").write_text(
            LOSS.replace("0.5 * (t - b) ** 2", "(t - b) ** 2 / 2")
        ),
        "data": lambda: data.write_text(data.read_text().replace("0,0,0,-1", "0,1,0,-1", 1)),
    }


OWN = ["--data", "own.csv", "--label", "y", "--clients", "5"]
COMMANDS = {
    "study": (["study", "run", "study.toml", "--store", "store"], "store"),
    "tune": ([
        "tune", "mine.py@Mine", *OWN, "--S", "2", "--K", "2", "--search", "eta_l=0.01,0.02",
        "--fixed-grid", "--target", "0.001", "--rounds", "8", "--record-every", "4", "--seeds", "2",
        "--held-out-seeds", "2", "--out", "out",
    ], "out/trials.jsonl"),
}  # fmt: skip
"""The words of a command, and where it keeps results: a directory each, or a line each."""


def count_results(run, files, command, what=""):
    """Run a command, and count the results that it has kept."""
    words, place = COMMANDS[command]
    own = ["--objective", "own_loss.py@Loss"] if what == "loss" else []
    code, _, err = run(*words, *own)
    sys.modules.pop("own_helper", None)
    assert code == 0, err
    kept = files / place
    return len(list(kept.iterdir()) if kept.is_dir() else kept.read_text().splitlines())


@pytest.mark.parametrize(
    ("command", "what"),
    [("study", "helper"), ("study", "data"), ("tune", "loss"), ("tune", "method")],
)
def test_results_are_computed_again_after_an_edit(run, files, command, what):
    first = count_results(run, files, command, what)
    assert count_results(run, files, command, what) == first
    edits(files)[what]()
    assert count_results(run, files, command, what) == 2 * first


def test_a_damaged_result_of_a_search_is_computed_again(run, files):
    first = count_results(run, files, "tune")
    path = files / "out" / "trials.jsonl"
    lines = path.read_text().splitlines()
    entry = json.loads(lines[0])
    lines[0] = json.dumps(entry | {"trial": {**entry["trial"], "cost": 0.5}})
    path.write_text("\n".join(lines) + "\n")
    assert count_results(run, files, "tune") == first + 1


@pytest.mark.parametrize(("what", "whose"), [("method", "Mine"), ("loss", "the loss")])
def test_a_comparison_is_not_resumed_after_an_edit(run, files, what, whose):
    words = [*OWN, "--S", "2", "--rounds", "4", "--seeds", "1", "--out", "c"]
    words += ["--objective", "own_loss.py@Loss"] if what == "loss" else []
    assert run("compare", "--methods", "mine.py@Mine", *words)[0] == 0
    assert run("resume", "c")[0] == 0
    edits(files)[what]()
    code, _, err = run("resume", "c")
    assert code == 2
    assert f"cannot resume: the code of {whose} has changed since the run began; begin" in err
    sys.modules.pop("own_helper", None)


def test_results_of_another_version_are_not_taken_over(run, files, monkeypatch):
    assert count_results(run, files, "study") == 1
    now = fingerprint.versions()
    monkeypatch.setattr(fingerprint, "versions", lambda: {**now, "fedpage": "0.0.9"})
    assert count_results(run, files, "study") == 2


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
    assert "seed was 1 and is now 0" in refusal(study().run)
    shutil.rmtree(first)
    assert study().run().new_runs == 1
    # A history of another run beside the right run.toml
    shutil.copy(second / "history.jsonl", first)
    shutil.copy(second / "history.model.npz", first)
    assert [key.seed for key in study().runs()] == [1]
