"""The command line: what commands write, and one line for each mistake."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedpage as fp
from fedpage.codecs import CODECS
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


def test_run_does_not_overwrite_a_directory_in_use(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("dear")
    code, _, err = run("run", "fedavg", *SMALL, "--S", "5", "--out", "mine")
    assert code == 2
    assert "not empty" in err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes"]
    assert run("run", "fedavg", *SMALL, "--S", "5", "--out", "mine", "--force")[0] == 0
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


def test_compare_in_parallel_gives_equal_histories(run, tmp_path):
    words = ("compare", *SMALL, "--S", "4", "--seeds", "2", "--methods", "fedpage")
    assert run(*words, "--out", "one")[0] == 0
    assert run(*words, "--out", "two", "--jobs", "2")[0] == 0
    for path in (tmp_path / "one" / "runs").glob("*/history.jsonl"):
        assert fp.History.load(path).same(
            fp.History.load(tmp_path / "two" / "runs" / path.parent.name / path.name)
        )


def test_demo(run, tmp_path):
    code, out, _ = run("demo", "--rounds", "30", "--seeds", "1")
    assert code == 0
    assert all(
        name in out for name in ("FedPAGE", "SCAFFOLD", "FedAvg", "synthetic", "demo-report")
    )
    assert (tmp_path / "demo-report" / "report.html").exists()


def test_methods_lists_what_each_sends_and_explains_one(run):
    _, out, _ = run("methods")
    assert all(name in out for name in fp.METHODS)
    assert "Karimireddy" in out
    lines = [line.split("  ") for line in out.splitlines()]
    (page,) = [[cell.strip() for cell in line if cell] for line in lines if line[0] == "fedpage"]
    assert page[1:3] == ["1/1, 2/1", "-"]
    (svrg,) = [[c.strip() for c in line if c] for line in lines if line[0] == "s-local-svrg"]
    assert svrg[1:3] == ["1/1, 2/1", "w, h"]
    _, out, _ = run("methods", "fedpage")
    assert "eta_g/(100 K)" in out
    assert "x_prev, g → g" in out
    _, out, _ = run("methods", "fedpage-pass-start")
    assert "x, x_prev → g, y" in out
    _, out, _ = run("methods", "SCAFFOLD-full")
    assert "control variate" in out
    assert "Fixed by this name: b = None." in out
    assert "methods/scaffold.md" in out
    assert run("methods", "fedavg", "--markdown")[0] == 2
    _, out, _ = run("methods", f"{EXAMPLES / 'own_method.py'}@MomentumSGD")
    assert "@MomentumSGD" in out.replace("\n", "").replace(" ", "").replace("│", "")


def test_codecs_lists_classes_and_bits(run):
    _, out, _ = run("codecs", "--d", "100")
    lines = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.strip()}
    assert set(CODECS) <= {re.split(r"[:(]", name)[0] for name in lines} | {"chain"}
    assert lines["none"].startswith("none exact 6,400 1 ")
    assert lines["natural"].startswith("natural omega = 0.125 1,200 0.19 ")
    assert lines["randk:0.1"].startswith("randk:0.1 omega = 9 640 0.1 ")


def test_help_cuts_no_sentence_off(run):
    for words in ((), ("data",), ("deploy",)):
        _, out, _ = run(*words, "--help")
        assert "..." not in out.replace("[ARGS]...", "")


def test_data_commands(run, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPAGE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, out, _ = run("data", "list")
    assert code == 0
    assert all(
        name in out for name in ("census", "synthetic", "a9a", "pinned", "real-sim", "unpinned")
    )
    assert run("data", "path")[1].strip() == str(tmp_path)
    code, _, err = run("data", "verify", "a9a")
    assert (code, "fedpage data fetch a9a" in err) == (2, True)
    code, _, err = run("data", "fetch", "a9a", "nowhere")
    assert (code, "nowhere" in err) == (2, True)
    code, _, err = run("data", "fetch", "a9a", "--mirror", "http://127.0.0.1:1")
    assert code == 2
    assert "fedpage data add a9a" in err


def test_data_verify_reads_a_real_file(run, real):
    real("mushrooms")
    code, out, _ = run("data", "verify", "mushrooms")
    assert code == 0
    assert "8,124 x 112" in out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("run", "fedpge"), "did you mean 'fedpage'"),
        (("run",), "name a method, such as `fedpage run fedpage`"),
        (("run", "fedpage", "--data", "a9b"), "unknown data set 'a9b': did you mean 'a9a'"),
        (("run", "fedpage", "--data", "nowhere/x.txt"), "no such file"),
        (("run", "fedpage", "--eta", "0.1"), "has no hyper-parameter '--eta'"),
        (("run", "fedavg", "--epochs", "2"), "fedavg-training has it"),
        (("run", "fedpage", "--eta-g", "fast"), "eta_g must be a finite number"),
        (("run", "fedpage", "--eta-g", "nan"), "eta_g must be a finite number"),
        (("run", "fedpage", "--eta-g"), "--eta-g needs a value"),
        (("run", "fedpage", "--S", "4000"), "cannot sample S=4000 of N=3250"),
        (("run", "fedpage", "--K", "0"), "K must be a whole number from 1 to"),
        (("run", "fedpage", "--p", "2"), "p must be in (0, 1]"),
        (("run", "fedpage", "--clients", "0"), "--clients must be"),
        (("run", "fedpage", "--clients", "99999999"), "need at least"),
        (("run", "fedpage", "--clients", "many"), "'--clients'"),
        (("run", "fedpage", "--rounds", "-5"), "rounds must be"),
        (("run", "fedpage", "--objective", "robst"), "did you mean 'robust'"),
        (("run", "fedpage", "--partition", "bloks"), "unknown partition"),
        (("run", "fedpage", "--weights", "rows"), "weights must be"),
        (("run", "fedpage", "--data", "census:skew=x"), "with numbers"),
        (("run", "fedpage", "--data", "census:skew"), "with numbers"),
        (("run", "fedpage", "--seed", "-1"), "seed must be"),
        (("run", "fedpage", "extra"), "unexpected 'extra'"),
        (("run", "mine.py@Mine"), "no such file"),
        (("compare", "--methods", "fedpage,scafold"), "did you mean 'scaffold'"),
        (("compare", "--methods", "fedpage:eta=1"), "FedPAGE: unknown key 'eta'"),
        (("compare", "--methods", ","), "no method is named"),
        (("compare", "--seeds", "0"), "--seeds must be a whole number from 1"),
        (("compare", "--S", "0"), "at least 1"),
        (("compare", "--step", "-1"), "must be a finite number above 0"),
        (("compare", "--bogus", "1"), "No such option"),
        (("data", "fetch", "a9b"), "did you mean 'a9a'"),
        (("data", "verify", "census"), "is embedded"),
        (("methods", "nope"), "unknown method"),
        (("dmeo",), "No such command"),
        (("run", "fedpage", "--target", "nan"), "--target: a target must be a finite number"),
        (("compare", "--target", "0"), "--target: a gradient norm must be above 0"),
        (("run", "fedpage", "--target", "acc:0.9"), "no column 'acc' is recorded"),
        (("run", "fedpage", "--record-every", "-1"), "--record-every must be"),
        (("run", "fedpage", "--threads", "0"), "threads must be"),
        (("run", "fedpage", "--alpha", "0.5"), "has no regulariser"),
        (("run", "fedpage", "--data", ""), "unknown data set"),
        (("run", "fedpage", "--data", "a9a:skew=1"), "unknown 'skew'"),
        (("run", "fedpage", "--data", "census:foo=1"), "unknown 'foo'"),
        (("run", "fedpage", "--data", "census:rows=100000000000"), "rows must be a whole number"),
        (("run", "fedpage", "--partition", "dirichlet"), "dirichlet:ALPHA"),
        (("compare", "--methods", "fedpage,fedpage"), "occurs twice"),
        (("demo", "--seeds", "0"), "at least 1"),
        (("data", "fetch", "a9a", "--mirror", "foo"), "not an address"),
    ],
)
def test_bad_input_ends_with_one_line_and_code_2(refused, words, what, tmp_path):
    refused(words, what)
    assert list(tmp_path.iterdir()) == []


def test_out_that_cannot_be_written_is_refused(run, tmp_path):
    (tmp_path / "file").write_text("x")
    code, _, err = run("run", "fedavg", *SMALL, "--out", "file")
    assert (code, "is a file" in err) == (2, True)
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        code, _, err = run("run", "fedavg", *SMALL, "--out", "locked/run")
        assert (code, "cannot be written" in err) == (2, True)
    code, _, err = run("run", "fedavg", *SMALL, "--out", "file/below")
    assert (code, "cannot be written" in err) == (2, True)


def test_a_method_from_a_user_file_runs(run, tmp_path):
    source = "from fedpage import FedAvg\nfrom dataclasses import dataclass\n"
    (tmp_path / "mine.py").write_text(
        source + "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    name = 'Mine'\n"
    )
    code, out, _ = run(
        "compare", *SMALL, "--S", "4", "--seeds", "1", "--methods", "fedavg,mine.py@Mine"
    )
    assert code == 0
    assert "Mine" in out
    (tmp_path / "broken.py").write_text("1/0")
    code, _, err = run("run", "broken.py@Mine")
    assert (code, "ZeroDivisionError" in err) == (2, True)
    code, _, err = run("run", "mine.py@Yours")
    assert (code, "has no dataclass 'Yours'" in err) == (2, True)


def test_no_arguments_print_the_help(run):
    for words in ((), ("data",)):
        code, out, err = run(*words)
        assert (code, err) == (2, "")
        assert "Usage: fedpage" in out
        assert len(out.splitlines()) > 8


def test_a_method_file_cannot_end_the_program(run, tmp_path):
    (tmp_path / "exit.py").write_text("raise SystemExit(0)")
    code, _, err = run("run", "exit.py@C")
    assert (code, "cannot be imported" in err) == (2, True)


def test_demo_does_not_overwrite_other_directories(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("dear")
    code, _, err = run("demo", "--rounds", "5", "--seeds", "1", "--out", "mine")
    assert (code, "not empty" in err) == (2, True)
    assert (tmp_path / "mine" / "report.html").read_text() == "dear"


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


def test_version(run):
    code, out, _ = run("--version")
    assert (code, out.strip()) == (0, f"fedpage {fp.__version__}")


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
    with pytest.raises(AttributeError, match="did you mean 'COFIG'"):
        fp.COFG  # noqa: B018
