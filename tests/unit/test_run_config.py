"""Settings of `fedpage run` from a file: --config and --set."""

from __future__ import annotations

import fedpage as fp
from fedpage.runs import toml

SMALL = ["--data", "census:rows=200", "--clients", "40", "--record-every", "7"]
RUN = ["run", "scaffold", *SMALL, "--S", "4"]
OWN = """
[method]
name = "fedpage"
S = 4
eta_g = 0.2

[problem]
clients = 40
data = "census:rows=200"

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
    assert run("run", "scaffold", *SMALL, "--S", "5", *other, "--out", "same")[0] == 0
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
