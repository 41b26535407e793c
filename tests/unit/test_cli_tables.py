"""The command line on tables: ids, held-out rows, objectives by the labels, losses of users."""

import shlex
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

import fedpage as fp
from fedpage.callbacks.checkpointing import request_interrupt
from fedpage.cli.choose import _write_app
from fedpage.cli.options import RunConfig
from fedpage.cli.run_config import write_run_command
from fedpage.core.columns import Target
from fedpage.flower.config import app_of_problem
from fedpage.runs import build, toml
from fedpage.runs.config import ProblemConfig, structure

SIZES = {"Bern": 24, "Cork": 1, "Graz": 12, "Oslo": 18, "Rome": 9}
COLUMNS = ("--label", "outcome", "--client-column", "hospital")
PATIENTS = ("--data", "patients.csv", *COLUMNS, "--standardise")
SHORT = ("--rounds", "12", "--S", "2")
HINGE = """
class Hinge:
    curvature, convex, needs_labels = 1.0, True, True

    @staticmethod
    def value(t, b):
        m = 1.0 - b * t
        return 0.0 if m <= 0.0 else 0.5 * m * m if m < 1.0 else m - 0.5

    @staticmethod
    def slope(t, b):
        m = 1.0 - b * t
        return 0.0 if m <= 0.0 else -b * m if m < 1.0 else -b
"""


@pytest.fixture
def patients(tmp_path):
    """Write tables of patients whose labels are two classes, three classes or numbers."""
    rng = np.random.default_rng(0)
    hospitals = rng.permutation([name for name, size in SIZES.items() for _ in range(size)])
    lines = {name: ["hospital,age,ward,smoker,outcome"] for name in ("patients", "three", "cost")}
    for hospital in hospitals:
        age, smoker = int(rng.integers(20, 90)), ("yes", "no")[int(rng.integers(2))]
        risk = (age - 55) / 10 + (smoker == "yes") + rng.normal()
        labels = {
            "patients": "ill" if risk > 0 else "well",
            "three": ("mild", "none", "severe")[int(rng.integers(3))],
            "cost": f"{risk:.3f}",
        }
        for name, label in labels.items():
            lines[name].append(f"{hospital},{age},{age % 3},{smoker},{label}")
    for name, text in lines.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(text) + "\n")
    return tmp_path / "patients.csv"


def stored(path):
    """Return what run.toml or compare.toml says of the problem."""
    return toml.read(path)["command"]["problem"]


def test_a_run_by_ids_with_held_out_rows_equals_simulate(run, patients, tmp_path):
    code, out, _ = run(
        "run", "fedpage", *PATIENTS, *SHORT, "--held-out", "0.25", "--partition-seed", "3",
        "--metrics", "accuracy", "--min-rows", "2", "--out", "one",
    )  # fmt: skip
    assert code == 0
    data = fp.load(patients, label="outcome", client="hospital", standardise=True)
    train, test = data.split(0.25, seed=3)
    clients = fp.by_id(train.clients, min_rows=2, small="drop")
    problem = fp.LogisticRegression(train, clients, metrics="accuracy", held_out=test)
    history = fp.History.load(tmp_path / "one" / "history.jsonl")
    assert history.same(fp.simulate(problem, fp.FedPAGE(S=2), rounds=12, seed=0))
    assert (problem.N, problem.intercept) == (4, True)
    accuracy, loss = history.last("held_out_accuracy"), history.last("held_out_loss")
    assert f"held-out loss {loss:.4g}, held-out accuracy {accuracy:.4g}" in out
    assert "logistic regression (--objective logistic) on patients.csv, 4 clients" in out
    scores = problem.client_scores(history.x, test)
    assert f"Held-out accuracy by client:\n{scores}\n" in out
    assert "Bern" in scores
    about = stored(tmp_path / "one" / "run.toml")
    assert about["data"] == str(patients)
    assert (about["objective"], about["partition"]) == ("logistic", "by-id:drop")
    assert "clients" not in about


def test_an_interrupted_run_on_a_table_is_resumed_from_another_directory(
    run, patients, tmp_path, monkeypatch
):
    words = ("run", "fedavg", *PATIENTS, *SHORT, "--held-out", "0.25", "--metrics", "auc")
    assert run(*words, "--out", "whole")[0] == 0
    request_interrupt()
    assert run(*words, "--out", "part")[0] == 130
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("resume", str(tmp_path / "part"))[0] == 0
    one, two = (fp.History.load(tmp_path / n / "history.jsonl") for n in ("whole", "part"))
    assert one.same(two)


def test_compare_samples_all_of_few_clients_and_prints_metrics(run, patients, tmp_path):
    code, out, _ = run(
        "compare", *PATIENTS, "--held-out", "0.3", "--held-out-by", "clients", "--rounds", "6",
        "--metrics", "accuracy", "--methods", "fedavg,fedpage", "--seeds", "1", "--out", "two",
    )  # fmt: skip
    assert code == 0
    assert toml.read(tmp_path / "two" / "compare.toml")["command"]["compare"]["S"] == 3
    assert out.count("held-out accuracy ") == 2
    history = fp.History.load(next((tmp_path / "two" / "runs").glob("*/history.jsonl")))
    held_out = fp.load(patients, label="outcome", client="hospital", standardise=True)
    assert history.meta["problem"]["N"] == 3
    assert history.meta["problem"]["held_out"] == held_out.split(0.3, by="clients")[1].digest


@pytest.mark.parametrize(
    ("words", "objective", "partition", "clients"),
    [
        ({"data": "patients.csv"}, "logistic", "by-id:drop", None),
        ({"data": "three.csv"}, "softmax", "by-id:drop", None),
        ({"data": "cost.csv"}, "squares", "by-id:drop", None),
        ({"data": "cost.csv", "alpha": 0.1}, "squares-l2", "by-id:drop", None),
        ({"data": "cost.csv", "objective": "huber"}, "huber", "by-id:drop", None),
        ({"data": "three.csv", "partition": "iid", "clients": 4}, "softmax", "iid", 4),
        ({"data": "census:rows=4000", "client_column": None}, "robust", "blocks", 3250),
    ],
)
def test_the_data_decides_what_is_not_given(
    patients, monkeypatch, words, objective, partition, clients
):
    monkeypatch.chdir(patients.parent)
    label = None if "census" in words["data"] else "outcome"
    config = ProblemConfig(**{"label": label, "client_column": "hospital", **words})
    settled, problem = build.open_problem(config)
    assert (settled.objective, settled.partition) == (objective, partition)
    assert (settled.clients, problem.N) == (clients, clients or len(SIZES))


def test_an_npz_file_is_divided_by_its_ids(run, tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), np.array(["a", "b"] * 15)
    np.savez(tmp_path / "mine.npz", X=X, y=y, clients=np.arange(30) % 5)
    code, out, _ = run("run", "fedavg", "--data", "mine.npz", *SHORT)
    assert code == 0
    assert "logistic regression (--objective logistic) on mine.npz, 5 clients (by_id(5))" in out


@pytest.mark.parametrize("step", ["1", "0.001"])
def test_a_table_without_standardised_columns_gets_a_hint(run, patients, step):
    words = ("run", "fedavg", "--data", "patients.csv", *COLUMNS, *SHORT, "--eta-l", step)
    assert "try --standardise" in run(*words)[1]
    assert "try --standardise" not in run(*words, "--standardise")[1]
    assert "try --standardise" not in run(*words[:-2], "--target", "loss:0.694,hold=0")[1]


# --- settings that are written --------------------------------------------------------------------

EVERY = ProblemConfig(
    data="patients.csv", label="outcome", client_column="hospital", standardise=True,
    missing="drop", drop="smoker", categorical="ward", partition="by-id:drop", min_rows=3,
    partition_seed=2, objective="logistic-l2", alpha=0.5, intercept=False, weights="size",
    metrics="accuracy", held_out=0.2, held_out_by="clients",
)  # fmt: skip


def test_a_file_for_config_has_every_setting_of_its_problem(run, patients, tmp_path):
    unset = [f.name for f in fields(EVERY) if getattr(EVERY, f.name) == f.default]
    assert unset == ["clients"]  # a partition by ids has no number of clients
    command = write_run_command(
        tmp_path / "a b.toml", "fedavg", fp.FedAvg(S=2), EVERY, RunConfig(rounds=2)
    )
    assert run(*shlex.split(command)[1:], "--out", "again")[0] == 0
    again = structure(ProblemConfig, stored(tmp_path / "again" / "run.toml"), "run.toml")
    assert again == replace(EVERY, data=str(patients))
    about = fp.History.load(tmp_path / "again" / "history.jsonl").meta["problem"]
    assert "intercept" not in about
    assert (about["alpha"], about["weights"]) == (0.5, "size")


def test_a_flower_app_says_what_it_leaves_out(patients, monkeypatch, capsys):
    monkeypatch.chdir(patients.parent)
    settled, problem = build.open_problem(
        ProblemConfig("patients.csv", "outcome", "hospital", held_out=0.25)
    )
    choice = SimpleNamespace(
        question=SimpleNamespace(target="grad_norm:0.1"),
        recommended=SimpleNamespace(name="fedavg", hyper="S=2", rounds=9),
    )
    config = app_of_problem(settled, clients=problem.N, rounds=9)
    assert (config.clients, config.objective, config.label) == (5, "logistic", "outcome")
    assert (config.data, config.partition) == ("", "blocks")
    _write_app(settled, choice, problem, patients.parent / "app")
    assert "leaves out --client-column, --held-out, the intercept" in capsys.readouterr().out
    named, census = build.open_problem(ProblemConfig("census:rows=200", clients=20))
    _write_app(named, choice, census, patients.parent / "app")
    assert "leaves out" not in capsys.readouterr().out


# --- losses of users ------------------------------------------------------------------------------


def test_a_loss_from_a_file_is_run_resumed_and_refused_after_a_change(run, patients, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(HINGE)
    code, out, _ = run(
        "run", "fedavg", *PATIENTS, *SHORT, "--objective", "mine.py@Hinge-l2", "--alpha", "0.01",
        "--out", "own",
    )  # fmt: skip
    assert code == 0
    assert "Problem: Hinge" in out
    assert stored(tmp_path / "own" / "run.toml")["objective"] == f"{mine}@Hinge-l2"
    about = fp.History.load(tmp_path / "own" / "history.jsonl").meta["problem"]
    assert (about["regulariser"], about["alpha"]) == ("l2", 0.01)
    assert run("resume", "own")[0] == 0
    mine.write_text(HINGE.replace("0.5 * m * m", "m * m * 0.5"))
    code, _, err = run("resume", "own")
    assert (code, "the code of the loss has changed" in err) == (2, True)


def test_a_loss_from_a_file_runs_in_other_processes_with_cached_kernels(run, patients, tmp_path):
    (tmp_path / "mine.py").write_text(HINGE)
    words = ("compare", *PATIENTS, "--rounds", "4", "--objective", "mine.py@Hinge", "--seeds", "2")
    assert run(*words, "--methods", "fedavg", "--out", "one")[0] == 0
    assert run(*words, "--methods", "fedavg", "--out", "two", "--jobs", "2")[0] == 0
    paths = sorted((tmp_path / "one" / "runs").glob("*/history.jsonl"))
    assert len(paths) == 2
    for path in paths:
        other = tmp_path / "two" / "runs" / path.parent.name / path.name
        assert fp.History.load(path).same(fp.History.load(other))


def test_a_target_is_recorded_also_of_held_out_rows_and_of_the_worst_client():
    config = ProblemConfig(metrics="auc")
    for column in ("accuracy", "held_out_accuracy", "accuracy_worst", "held_out_loss_p90"):
        metrics = build.record_target(config, Target(column, 0.5)).metrics
        assert metrics == f"auc,{column.removeprefix('held_out_')}"
    for column in ("grad_norm", "auc", "loss"):
        assert build.record_target(config, Target(column, 0.5)) == config


def test_a_default_number_of_clients_is_at_most_all_of_them(run, refused, patients):
    words = ("run", "fedavg", *PATIENTS, "--rounds", "2")
    assert "S = 5, every client in every round (--S); the default is 20" in run(*words)[1]
    assert "every client" not in run(*words, "--S", "5")[1]
    refused((*words, "--S", "6"), "cannot sample S=6 of N=5 clients")
    run(*words, "--out", "all")
    assert toml.read(patients.parent / "all" / "run.toml")["command"]["method"]["hyper"]["S"] == "5"


def test_a_plan_of_few_clients_samples_all(run, refused, patients):
    words = ("plan", *PATIENTS, "--target", "0.1")
    assert "S=5" in run(*words)[1]
    refused((*words, "--S", "6"), "S must be at most N=5, not 6")


# --- help and data show ---------------------------------------------------------------------------


def test_data_show_divides_as_a_run_does(run, refused, patients):
    words = ("data", "show", "patients.csv", *COLUMNS)
    _, out, _ = run(*words)
    assert "by_id(5)" in out
    assert "1 client has a single label" in out
    assert "single label" not in run(*words, "--min-rows", "2")[1]
    assert "1 id with 1 row dropped" in run(*words, "--min-rows", "2")[1]
    assert "iid(4, seed=0)" in run(*words, "--partition", "iid", "--clients", "4")[1]
    refused((*words, "--clients", "4"), "every id of patients.csv is a client")
    refused(("data", "show", "patients.csv", "--label", "outcome", "--min-rows", "2"), "--clients")
