"""`structure`: dataclasses from TOML tables and words; `fedpage run --config` and `--set`."""

import tomllib
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from support import refusal

import fedpage as fp
from fedpage.cli.compare import CompareConfig
from fedpage.cli.options import RunConfig
from fedpage.cli.run_config import RunCommand
from fedpage.core.columns import Target
from fedpage.core.errors import did_you_mean
from fedpage.engine import faults
from fedpage.runs import build, toml
from fedpage.runs.build import build_method
from fedpage.runs.config import MethodConfig, ProblemConfig, setting, structure, to_table


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    numbers: tuple[int, ...] = ()
    pair: tuple[float, str] = (1.0, "a")


@dataclass(frozen=True)
class Outer:
    port: int
    name: str = "x"
    ratio: float = 0.5
    flag: bool = False
    limit: int | None = 3
    weights: Literal["uniform", "size"] = "uniform"
    colour: Colour = Colour.RED
    inner: Inner = Inner()
    items: list[Inner] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)
    path: Path | None = None
    number_or_word: float | str = 0.0
    batch_size: int = setting(1, at_least=1, at_most=10)
    step: float = setting(1.0, above=0)


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [
        ({"ratio": 2}, "ratio", 2.0),
        ({"limit": 7}, "limit", 7),
        ({"weights": "size"}, "weights", "size"),
        ({"colour": "blue"}, "colour", Colour.BLUE),
        ({"inner": {"numbers": [1, 2]}}, "inner", Inner((1, 2))),
        ({"inner": {"pair": [2, "b"]}}, "inner", Inner((), (2.0, "b"))),
        ({"items": [{"numbers": [3]}]}, "items", [Inner((3,))]),
        ({"table": {"a": 1}}, "table", {"a": 1}),
        ({"path": "a/b"}, "path", Path("a/b")),
        ({"number_or_word": "word"}, "number_or_word", "word"),
        ({"batch-size": 4}, "batch_size", 4),
    ],
    ids=str,
)
def test_values_of_tables_are_converted(table, name, value):
    assert getattr(structure(Outer, {"port": 1} | table, "f.toml"), name) == value


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ({"port": "80"}, "port", 80),
        ({"PORT": "80"}, "port", 80),
        ({"ratio": "1e-3"}, "ratio", 1e-3),
        ({"flag": "True"}, "flag", True),
        ({"flag": "no"}, "flag", False),
        ({"limit": "all"}, "limit", None),
        ({"limit": "5"}, "limit", 5),
        ({"inner": {"numbers": "1,2, 3"}}, "inner", Inner((1, 2, 3))),
        ({"batch-size": "4"}, "batch_size", 4),
    ],
    ids=str,
)
def test_words_are_parsed(words, name, value):
    table = words if "port" in {key.lower() for key in words} else {"port": "1"} | words
    assert getattr(structure(Outer, table, "words", words=True), name) == value


LINES = Path(__file__).with_name("refused_tables.txt").read_text(encoding="utf-8").splitlines()
"""Tables in TOML, and the words that matter, a line each."""


@pytest.mark.parametrize("line", LINES)
def test_errors_are_one_line_and_name_the_place(line):
    given, _, words = line.partition(" -> ")
    table = tomllib.loads(f"given = {{ {given} }}")["given"]
    assert words in refusal(structure, Outer, table, "f.toml")


def test_what_is_no_table_is_refused():
    said = refusal(structure, Outer, 3, "f.toml")
    assert said == "f.toml: must be a table of keys, not 3"


def test_options_are_named_with_dashes():
    said = refusal(structure, Outer, {"port": 1, "batch_size": 11}, "--")
    assert said.startswith("--batch-size must be a whole number from 1 to 10")


def test_errors_of_the_dataclass_itself_name_the_place_once():
    said = refusal(structure, fp.FedPAGE, {"K": 0}, "run config")
    assert said.startswith("run config: FedPAGE: K must be")
    assert refusal(structure, fp.FedPAGE, {"K": 0}, "FedPAGE").startswith("FedPAGE: K must be")


@pytest.mark.parametrize("name", [n for n, e in fp.METHODS.items() if "K" in e.hyper_parameters])
def test_methods_are_built_from_words(name):
    steps = 1 if name == "page" else 3
    method: Any = build_method(MethodConfig(name, {"k": str(steps)}))
    assert steps == method.K


def test_commands_survive_a_toml_file():
    problem = ProblemConfig(data="a9a", alpha=0.5, objective="logistic-l2")
    table: dict[str, Any] = {"faults": {"dropout": 0.1}}
    command = RunCommand(MethodConfig("fedavg", {"S": "3"}), problem, RunConfig(seed=4), table)
    text = toml.dumps(to_table(command))
    assert structure(RunCommand, toml.loads(text, "run.toml"), "run.toml") == command
    compare = CompareConfig(S=3, methods="fedpage")
    assert structure(CompareConfig, toml.loads(toml.dumps(to_table(compare)), "c"), "c") == compare


def test_faults_files_are_structured():
    table = {"faults": {"dropout": 0, "gone": [1, 2]}, "policy": {"retries": 4}}
    made, policy = faults.parse(table, "faults.toml")
    assert (made.dropout, made.gone, policy.retries) == (0.0, (1, 2), 4)
    said = refusal(faults.parse, {"policy": {"retry": 1}}, "faults.toml")
    assert "faults.toml, [policy]: unknown key 'retry'; did you" in said
    said = refusal(faults.parse, {"faults": {"dropout": 2.0}}, "faults.toml")
    assert "faults.toml, [faults]: faults: dropout must be" in said


def test_did_you_mean_ignores_capitals_and_dashes():
    assert did_you_mean("--ROUND", ["--rounds"]) == " did you mean '--rounds'?"
    assert did_you_mean("bogus", ["rounds"]) == ""


def test_a_new_field_is_an_option_of_the_command_line():
    from typer.testing import CliRunner

    from fedpage.cli.options import command, make_app

    @dataclass(frozen=True)
    class Config:
        depth: int = setting(2, "Depth of the tree.", at_least=1)

    def grow(config) -> None:
        print(f"depth {config.depth}")

    grow.__annotations__["config"] = Config
    app = make_app()
    command(app, "grow")(grow)
    assert "Depth of the tree." in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["--depth", "5"]).output == "depth 5\n"
    assert "--depth must be" in str(CliRunner().invoke(app, ["--depth", "0"]).exception)


def test_a_problem_records_its_metrics_and_the_targets():
    config = ProblemConfig(data="census:rows=200", clients=20, objective="logistic", metrics="auc")
    asked = build.record_target(config, Target("accuracy", 0.9))
    assert asked.metrics == "auc,accuracy"
    assert build.record_target(asked, Target("accuracy", 0.9)) == asked
    assert build.record_target(config, Target()) == config
    problem = build.build_problem(asked)
    assert {"auc", "accuracy"} <= set(problem.evaluate(np.zeros(problem.d)))


# --config and --set


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
