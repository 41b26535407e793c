"""Settings of `fedpage run` from a file: --config and --set."""

from __future__ import annotations

import pytest

import fedpage as fp
from fedpage.runs import toml

RUN = ["run", "scaffold", "--clients", "40", "--S", "4", "--record-every", "7"]
OWN = """
[method]
name = "fedpage"
S = 4
eta_g = 0.2

[problem]
clients = 40
data = "census"

[run]
rounds = 12
target = 0.5
"""


def test_the_file_of_a_run_repeats_it_and_set_changes_it(run, tmp_path):
    assert run(*RUN, "--rounds", "20", "--out", "r")[0] == 0
    code, _, err = run("run", "--config", "r/run.toml", "--out", "again")
    assert code == 0, err
    first, again = (fp.History.load(tmp_path / name) for name in ("r", "again"))
    assert first.same(again)
    tables = [toml.read(tmp_path / name / "run.toml") for name in ("r", "again")]
    assert tables[0]["command"] == tables[1]["command"]
    changes = ["rounds=30", "method.K=3", "s=5", "problem.objective=logistic", "target=0.5"]
    words = [word for change in changes for word in ("--set", change)]
    code, _, err = run("run", "--config", "r", *words, "--out", "changed")
    assert code == 0, err
    other = ["--K", "3", "--objective", "logistic", "--rounds", "30", "--target", "0.5"]
    assert run("run", "scaffold", "--clients", "40", "--S", "5", "--record-every", "7",
               *other, "--out", "same")[0] == 0  # fmt: skip
    changed, same = (toml.read(tmp_path / name / "run.toml") for name in ("changed", "same"))
    assert changed["command"] == same["command"]
    assert fp.History.load(tmp_path / "changed").same(fp.History.load(tmp_path / "same"))


def test_a_file_of_ones_own_has_hyper_parameters_beside_the_name(run, tmp_path):
    (tmp_path / "own.toml").write_text(OWN)
    code, out, err = run("run", "--config", "own.toml", "--out", "r")
    assert code == 0, err
    assert "gradient norm 0.5" in out
    history = fp.History.load(tmp_path / "r")
    method = history.meta["method"]
    assert (method["name"], method["S"], method["eta_g"]) == ("FedPAGE", 4, 0.2)
    assert history.meta["rounds"] == 12


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--set", "ronds=3"], "did you mean 'rounds'?"),
        (["--set", "rn.rounds=3"], "there is no such setting"),
        (["--set", "run.ronds=3"], "own.toml with --set, [run]: unknown key 'ronds'; did you mean"),
        (["--set", "rounds"], "expected KEY=VALUE"),
        (["--set", "rounds=x"], "[run]: rounds must be a whole number of at least 0, not 'x'"),
        (["--set", "run.rounds.x=3"], "rounds is a value, not a table"),
        (["--set", "method.Q=1"], "FedPAGE: unknown key 'Q'"),
        (["--set", "method.name=fedavgg"], "unknown method 'fedavgg': did you mean 'fedavg'?"),
        (["--rounds", "5"], "--rounds cannot be given with --config"),
        (["--S", "5"], "--S cannot be given with --config"),
        (["--eta-g=5"], "--eta-g=5 cannot be given with --config"),
        (["--faults", "f.toml"], "--faults cannot be given with --config"),
        (["fedavg"], "fedavg cannot be given with --config"),
    ],
)
def test_what_does_not_fit_is_refused(refused, tmp_path, words, what):
    (tmp_path / "own.toml").write_text(OWN)
    refused(["run", "--config", "own.toml", *words], what)


def test_files_that_are_no_settings_of_a_run_are_refused(refused, tmp_path):
    refused(["run"], "name a method, such as `fedpage run fedpage`, or give --config run.toml")
    refused(["run", "fedpage", "--set", "rounds=3"], "give the file with --config")
    refused(["run", "--config", "none.toml"], "none.toml: there is no such file")
    (tmp_path / "a.toml").write_text("run = 3")
    refused(["run", "--config", "a.toml"], "a.toml: run must be a table, [run]")
    (tmp_path / "a.toml").write_text("[runs]\nrounds = 3")
    refused(["run", "--config", "a.toml"], "unknown key 'runs'; did you mean 'run'?")
    (tmp_path / "a.toml").write_text("[run]\nrounds = 3")
    refused(["run", "--config", "a.toml"], "'name' is missing")
    (tmp_path / "a.toml").write_text("[method]\nname = 'fedpage'\nhyper = 3")
    refused(["run", "--config", "a.toml"], "a.toml: method.hyper must be a table")
    (tmp_path / "a.toml").write_text("format = 1\n[command.compare]\nrounds = 3")
    refused(["run", "--config", "a.toml"], "a.toml: of a comparison")
    fp.simulate(
        fp.Quadratic.random(4, 3, 2, seed=0), fp.FedAvg(S=2), rounds=2, seed=0, out=tmp_path / "p"
    )
    refused(["run", "--config", "p"], "of a run that was not started by `fedpage run`")
