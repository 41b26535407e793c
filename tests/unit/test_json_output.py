"""`--json`: one JSON document on standard output, and nothing else there."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import typer.main
from freeze import commands

import fedpage as fp
from fedpage.cli.main import app
from fedpage.cli.options import to_json

WITHOUT_TABLES = {
    "data add", "data fetch", "data path", "data verify", "deploy init", "deploy keys",
    "study export",
}  # fmt: skip
"""The commands that print sentences and paths only."""
SMALL = ["--clients", "40", "--rounds", "10"]


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
    assert run("run", "fedavg", "--S", "4", *SMALL, "--out", "r")[0] == 0
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
