"""The command line: what commands write, and one line for each mistake."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from freeze import commands

import fedpage as fp
from fedpage.cli.main import app
from fedpage.cli.options import to_json
from fedpage.runs import build

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("--data", "census:rows=500", "--clients", "50", "--rounds", "40")


def test_run_writes_a_history_that_equals_simulate(run, tmp_path):
    code, out, _ = run(
        "run", "fedpage", *SMALL, "--S", "5", "--eta-g", "0.2", "--b3=2", "--out", "first"
    )
    assert code == 0
    history = fp.History.load(tmp_path / "first" / "history.jsonl")
    assert history.meta["method"]["eta_g"] == 0.2
    assert history.meta["method"]["b3"] == 2
    problem = fp.RobustRegression(fp.load("census", rows=500), clients=50)
    assert history.same(fp.simulate(problem, fp.FedPAGE(S=5, eta_g=0.2, b3=2), rounds=40, seed=0))
    assert {p.name for p in (tmp_path / "first").iterdir()} == {
        "run.toml", "history.jsonl", "history.model.npz", "checkpoints", ".lock", "history.csv",
        "curves.png", "report.html", "status.json",
    }  # fmt: skip
    assert "FedPAGE" in out
    assert "report.html" in out


def test_a_directory_in_use_is_not_overwritten(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("dear")
    words = ("run", "fedavg", *SMALL, "--S", "5", "--out", "mine")
    for refused in (words, ("demo", "--rounds", "5", "--seeds", "1", "--out", "mine")):
        code, _, err = run(*refused)
        assert (code, "not empty" in err) == (2, True)
        assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes"]
    assert run(*words, "--force")[0] == 0
    assert (tmp_path / "mine" / "notes").read_text() == "dear"


def test_compare_gives_methods_equal_terms(run, tmp_path):
    code, _, _ = run(
        "compare", *SMALL, "--S", "4", "--seeds", "2", "--methods", "fedpage,scaffold,fedavg:b=2"
    )
    assert code == 0
    runs = [
        fp.History.load(p)
        for p in sorted((tmp_path / "runs" / "compare" / "runs").glob("*/history.jsonl"))
    ]
    assert len(runs) == 6
    about = {h.label: h.meta["method"] for h in runs}
    assert (about["FedPAGE"]["S"], about["SCAFFOLD"]["S"], about["FedAvg"]["S"]) == (4, 8, 8)
    assert (about["SCAFFOLD"]["b"], about["FedAvg"]["b"]) == (4, 2)
    assert {m["effective_step"] for m in about.values()} == {0.1}
    run("compare", *SMALL, "--S", "4", "--seeds", "1")
    assert (tmp_path / "runs" / "compare-2" / "report.html").exists()


def test_demo(run, tmp_path):
    code, out, _ = run("demo", "--rounds", "30", "--seeds", "1")
    assert code == 0
    assert all(
        name in out for name in ("FedPAGE", "SCAFFOLD", "FedAvg", "synthetic", "demo-report")
    )
    assert (tmp_path / "demo-report" / "report.html").exists()


def test_a_method_of_a_file_is_explained(run):
    """The texts about registered methods are in tests/frozen."""
    code, out, _ = run("methods", f"{EXAMPLES / 'own_method.py'}@MomentumSGD")
    assert code == 0
    assert "@MomentumSGD" in out.replace("\n", "").replace(" ", "").replace("│", "")


def test_data_commands(run, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPAGE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, out, _ = run("data", "list")
    assert code == 0
    assert all(
        name in out for name in ("census", "synthetic", "a9a", "pinned", "real-sim", "unpinned")
    )
    assert run("data", "path")[1].strip() == str(tmp_path)
    for words in (("verify", "a9a"), ("path", "a9a")):
        code, _, err = run("data", *words)
        assert (code, "fedpage data fetch a9a" in err) == (2, True)
    code, _, err = run("data", "fetch", "a9a", "--mirror", "http://127.0.0.1:1")
    assert code == 2
    assert "fedpage data add a9a" in err


def test_data_verify_reads_a_real_file(run, real):
    real("mushrooms")
    code, out, _ = run("data", "verify", "mushrooms")
    assert code == 0
    assert "8,124 x 112" in out


def test_no_arguments_print_the_help(run):
    for words in ((), ("data",)):
        code, out, err = run(*words)
        assert (code, err) == (2, "")
        assert "Usage: fedpage" in out
        assert len(out.splitlines()) > 8


def test_a_narrow_terminal_gets_fewer_columns(run, monkeypatch):
    from rich.console import Console

    from fedpage.cli import output

    monkeypatch.setattr(output, "console", lambda stderr=False: Console(stderr=stderr, width=80))
    _, out, _ = run("run", "scaffold", *SMALL, "--S", "5")
    assert "SCAFFOLD" in out
    assert max(len(line) for line in out.splitlines() if "│" in line) <= 80
    assert "…" not in out


def test_version_and_help_need_no_numpy():
    code = "import sys, fedpage.cli.main; sys.exit(bool({'numba', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_build_fair_method_takes_the_papers_terms():
    method: Any = build.build_fair_method("fedavg", N=325, M=100, S=1, K=10, step=0.03)
    assert (method.S, method.b) == (2, 22)
    assert method.effective_step == pytest.approx(0.03)
    method = build.build_fair_method("fedpage:eta_l=0.01", N=10, M=3250, S=1, K=10, step=0.5)
    assert (method.eta_l, method.S) == (0.01, 1)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [("cofig:eta=0.2", "eta", 0.2), ("s-dane:lam=5", "lam", 5.0), ("feddyn:mu=4", "mu", 4.0)],
)
def test_a_given_step_size_is_not_overwritten_by_the_equal_step(text, field, value):
    method: Any = build.build_fair_method(text, N=20, M=10, S=5, K=5, step=0.1)
    assert getattr(method, field) == value
    other: Any = build.build_fair_method("cofig:up=natural", N=20, M=10, S=5, K=5, step=0.1)
    assert other.effective_step == pytest.approx(0.1)


def test_completion_knows_every_method():
    assert {entry.cls.__name__ for entry in fp.METHODS.values()} <= set(dir(fp))


# --json: one document on standard output, and nothing else there


WITHOUT_TABLES = {
    "data add", "data fetch", "data path", "data verify", "deploy init", "deploy keys",
    "study export",
}  # fmt: skip
"""The commands that print sentences and paths only."""
SHORT = ["--clients", "40", "--rounds", "10"]


def test_every_command_that_prints_a_table_has_json():
    options = {
        " ".join(name): {option for parameter in command.params for option in parameter.opts}
        for name, command in commands(typer.main.get_command(app))
        if not hasattr(command, "commands")
    }
    assert {"run", "data list", "deploy check"} <= set(options)
    assert {name for name, own in options.items() if "--json" not in own} == WITHOUT_TABLES


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("tune fedavg --S 4 --K 2 --search eta_l=0.01,0.1 --fixed-grid --seeds 2 --target 0.5 "
         "--held-out-seeds 2 --out t --clients 40 --rounds 10", {"goal", "candidates", "command"}),
        ("choose --methods fedavg,fedpage --target 0.3 --rounds 50 --seeds 2 --held-out-seeds 4 "
         "--jobs 1 --no-codecs --clients 40", {"ranking", "command", "reason"}),
    ],
)  # fmt: skip
def test_the_standard_output_is_one_document(run, words, keys):
    """The documents of other commands are in tests/frozen."""
    code, out, err = run(*words.split(), "--json")
    assert code == 0, err
    assert keys <= set(json.loads(out))
    assert "NaN" not in out
    assert "Infinity" not in out


def test_a_resumed_run_and_a_comparison_print_their_documents(run, tmp_path):
    assert run("run", "fedavg", "--S", "4", *SHORT, "--out", "r")[0] == 0
    code, out, err = run("resume", "r", "--rounds", "20", "--json")
    assert code == 0
    assert "resuming after round 10" in err
    document = json.loads(out)
    assert document["runs"][0]["last"]["round"] == 20
    assert document["runs"][0]["end"] == "finished"
    history = fp.History.load(tmp_path / "r")
    assert document["runs"][0]["last"]["loss"] == history.last("loss")
    assert document["methods"][0]["method"] == "FedAvg"
    assert document["out"] == "r"


def test_a_command_that_fails_prints_its_document_and_exits_with_1(run, tmp_path):
    faults = "[faults]\ngone = [2]\n"
    (tmp_path / "f.toml").write_text(faults)
    words = ["run", "fedpage", "--S", "4", "--clients", "40", "--rounds", "10", "--faults"]
    code, out, _ = run(*words, "f.toml", "--json")
    assert code == 1
    assert json.loads(out)["runs"][0]["end"] == "round failed"


def test_an_error_leaves_the_standard_output_empty(run):
    code, out, err = run("run", "nothing", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("fedpage: unknown method")


def test_numbers_that_json_has_not_are_null():
    given = {"a": math.inf, "b": [math.nan, np.float64(2.0), np.int64(1)], 3: fp.StopReason.TARGET}
    expected = {"a": None, "b": [None, 2.0, 1], "3": "target reached", "c": "x"}
    assert json.loads(to_json(given | {"c": Path("x")})) == expected


STUDY = """
name = "steps"
rounds = 10
seeds = 2
target = "grad_norm:0.2"
[problems]
first = { data = "census:rows=100", clients = 10 }
[methods]
fedpage = { S = 2, K = 2 }
fedavg = { S = 4, K = 2 }
"""


def test_a_study_prints_its_documents(run, tmp_path):
    (tmp_path / "s.toml").write_text(STUDY)
    code, out, err = run("study", "run", "s.toml", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["new_runs"] == 4
    assert all(each["rows"] for each in document["comparisons"].values())
    code, out, _ = run("study", "status", "s.toml", "--json")
    assert code == 0
    assert [row["state"] for row in json.loads(out)["runs"]] == ["finished"] * 4
    code, out, _ = run("study", "report", "s.toml", "--json")
    assert (code, set(json.loads(out))) == (0, {"comparisons", "claims", "report"})
