"""Check the paper's figures as data, and their runs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.studies.paper import figures, runs, tuning

TEXT = """
name = "tiny/one"
title = "Tiny"
paper = "none"
data = "census:rows=600"
rows = 500
objective = "robust"
rounds = 40
record_every = 10
seeds = 2
[[panel]]
clients = 50
step = 0.1
[[panel]]
clients = 50
step = 0.05
[[method]]
name = "fedpage"
label = "FedPAGE"
S = 5
[[method]]
name = "fedavg"
label = "FedAvg"
S = 10
b = 4
"""


def test_every_figure_of_the_paper_exists():
    assert figures.names() == [
        "local-steps/a9a", "local-steps/w8a",
        "comparison/a9a-robust", "comparison/w8a-robust",
        "comparison/a9a-logistic", "comparison/w8a-logistic",
        "clients/a9a-robust",
        "full/a9a-robust", "full/w8a-robust", "full/a9a-logistic", "full/w8a-logistic",
    ]  # fmt: skip


def test_settings_agree_with_the_paper():
    for name in figures.names():
        figure = figures.load(name)
        assert figure.rows == {"a9a": 32_500, "w8a": 48_000}[figure.data]
        for panel in figure.panels:
            assert figure.rows % panel.clients == 0
            for variant in panel.variants:
                if panel.step is not None:
                    assert variant.method.effective_step == pytest.approx(panel.step)
                if not name.startswith("local-steps"):
                    assert variant.method.K == 10
    steps = {
        name: [p.step for p in figures.load(name).panels]
        for name in figures.names()
        if "full" in name
    }
    assert steps["full/w8a-logistic"] == [0.3, 0.1, 0.03, 0.01]
    assert steps["full/a9a-robust"] == [0.1, 0.03, 0.01]
    clients = figures.load("clients/a9a-robust")
    rivals = {p.clients: p.variants[2].method for p in clients.panels}
    assert {n: (m.S, m.b) for n, m in rivals.items()} == {3250: (20, 4), 325: (2, 22), 10: (2, 652)}
    assert {p.clients: p.variants[0].method.S for p in clients.panels} == {3250: 10, 325: 1, 10: 1}
    assert (len(clients.panels), clients.columns) == (9, 3)
    local = figures.load("local-steps/a9a")
    assert [v.method.K for v in local.panels[0].variants] == [1, 10, 20]
    both = figures.load("comparison/a9a-robust").panels[0].variants
    assert both[0].method.eta_l is None
    assert both[1].method.eta_l == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("rounds = 40", "rouds = 40", "unknown key 'rouds'; did you mean 'rounds'"),
        ("rounds = 40", "", "'rounds' is missing"),
        ("rounds = 40", 'rounds = "40"', "rounds must be a whole number"),
        ("rounds = 40", "rounds = true", "rounds must be a whole number"),
        ("step = 0.05", "stp = 0.05", "[panel] 2: unknown key 'stp'"),
        ("step = 0.05", "", "a panel needs step"),
        ('name = "fedavg"', 'name = "fedavgg"', "unknown method 'fedavgg'"),
        ("b = 4", "bb = 4", "[method] 2: unknown key 'bb'"),
        ("b = 4", "b = 0", "b must be a whole number from 1 to"),
        ("rounds = 40", "rounds = ", "not TOML"),
    ],
)
def test_mistakes_in_a_figure_are_errors(old, new, fault):
    with pytest.raises(InputError) as error:
        figures.parse(TEXT.replace(old, new), "tiny")
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


def test_finished_runs_are_stored_and_not_repeated(tmp_path):
    figure = figures.parse(TEXT, "tiny")
    todo = runs.list_tasks([figure], 2)
    assert len(todo) == 2 * 2 * 2
    seen = []
    assert runs.run(todo[:3], tmp_path, 1, lambda done, whole: seen.append((done, whole))) == 3
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    torn = todo[1].path(tmp_path)
    torn.write_text(torn.read_text()[:-50])  # a partial file, as of a kill during a write
    assert runs.run(todo, tmp_path, 2, lambda *_: None) == 6
    assert runs.run(todo, tmp_path, 1, lambda *_: None) == 0
    found = runs.load_histories(figure, 2, tmp_path)
    assert list(found) == ["N50-step0.1", "N50-step0.05"]
    assert [len(group) for group in found["N50-step0.1"].values()] == [2, 2]
    problem = fp.RobustRegression(fp.load("census", rows=600), fp.blocks(500, 50))
    alone = fp.simulate(problem, figure.panels[0].variants[0].method, rounds=40, seed=1)
    assert found["N50-step0.1"]["FedPAGE"][1].same(alone)
    longer = dataclasses.replace(figure, rounds=50)
    assert runs.load_finished(runs.list_tasks([longer], 1)[0], tmp_path) is None


@pytest.mark.slow
def test_a_killed_process_loses_only_unfinished_runs(tmp_path):
    words = [
        "reproduce",
        "comparison/a9a-robust",
        "--data",
        "census",
        "--quick",
        "--out",
        "r",
    ]
    script = (
        "import sys; from fedpage.cli.main import main; "
        "sys.argv = ['fedpage', *sys.argv[1:]]; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("r/runs/*/*.jsonl"))) < 4 and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept = {path: path.read_bytes() for path in tmp_path.glob("r/runs/*/*.jsonl")}
    assert 4 <= len(kept) < 24
    figure = dataclasses.replace(
        figures.on_other_data(figures.load("comparison/a9a-robust"), "census", 32_561),
        rounds=600,
        record_every=10,
    )
    assert runs.run(runs.list_tasks([figure], 2), tmp_path / "r", 1, lambda *_: None) == 24 - len(
        kept
    )
    assert all(path.read_bytes() == content for path, content in kept.items())


def test_figures_share_their_runs(tmp_path):
    both = [figures.load("comparison/a9a-robust"), figures.load("clients/a9a-robust")]
    paths = {task.path(tmp_path) for task in runs.list_tasks(both, 1)}
    assert len(paths) == 9 * 4  # the comparison's 12 curves are among the 36


def test_the_same_coins_for_every_variant(tmp_path):
    text = TEXT.replace('name = "fedavg"', 'name = "fedpage"').replace(
        "S = 10\nb = 4", "S = 5\nrho = 1.0"
    )
    figure = figures.parse(text, "tiny")
    runs.run(runs.list_tasks([figure], 1), tmp_path, 1, lambda *_: None)
    found = runs.load_histories(figure, 1, tmp_path)["N50-step0.1"]
    assert (found["FedPAGE"][0]["clients"] == found["FedAvg"][0]["clients"]).all()


def test_the_search_for_tuned_steps(tmp_path):
    panel = "[[panel]]\nclients = 50\nS = 5\neta_g = [0.1, 0.1]\nrho = [0.01, 0.01]\n"
    search = "[tuning]\neta_g = [0.003, 0.3]\nrho = [0.01, 1.0]\ntarget = 0.08\nseeds = 2\n"
    head = TEXT.split("[[panel]]")[0].replace("rounds = 40", "rounds = 200")
    methods = (
        '[[method]]\nname = "fedpage"\nlabel = "one"\nK = 1\n'
        '[[method]]\nname = "fedpage"\nlabel = "five"\nK = 5\n'
    )
    figure = figures.parse(head + search + panel + methods, "tiny")
    seen = []
    rows = tuning.search(figure, tmp_path, 1, lambda what, done, whole, note: seen.append(what))
    assert [(r["label"], r["eta_g"]) for r in rows] == [("one", 0.3), ("five", 0.3)]
    assert rows[0]["rho"] is None
    assert rows[1]["rho"] in (0.01, 1.0)
    assert rows[0]["within_tenth"] == [0.3]
    assert json.loads((tmp_path / "tuning" / "tiny" / "one.json").read_text()) == rows
    assert {"N50 one", "N50 five"} == set(seen)
    assert tuning.search(figure, tmp_path, 1, lambda *_: None) == rows
    with pytest.raises(InputError, match="nothing to tune"):
        tuning.search(figures.parse(TEXT, "tiny"), tmp_path, 1, lambda *_: None)


def test_other_data_is_marked_in_the_title():
    figure = figures.on_other_data(figures.load("comparison/w8a-robust"), "census", 32_561)
    assert "census instead of w8a" in figure.title
    assert figure.rows == 32_561


def test_reproduce_on_the_command_line(run, tmp_path):
    code, out, _ = run("reproduce", "--list")
    assert code == 0
    assert all(name in out for name in figures.names())
    words = (
        "reproduce",
        "comparison/a9a-robust",
        "--data",
        "census",
        "--quick",
        "--seeds",
        "2",
    )
    code, out, _ = run(*words)
    assert code == 0, out
    assert "24 new runs" in out
    page = (tmp_path / "paper-runs" / "report.html").read_text()
    assert "census instead of a9a" in page
    assert "synthetic" in page
    assert "quick look" in page
    assert {p.name for p in (tmp_path / "paper-runs" / "figures").iterdir()} >= {
        "comparison-a9a-robust.png", "comparison-a9a-robust.pdf",
    }  # fmt: skip
    code, out, _ = run(*words)
    assert "0 new runs" in out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("reproduce",), "name a figure"),
        (("reproduce", "comparison/a9a"), "did you mean 'comparison/a9a-robust'"),
        (("reproduce", "all", "--seeds", "0"), "at least 1"),
        (("reproduce", "comparison/a9a-robust", "--data", "nope"), "unknown data set"),
        (("reproduce", "comparison/a9a-robust", "--tune", "--data", "census"), "only local-steps"),
    ],
)
def test_bad_input_is_one_line(refused, words, what):
    refused(words, what)


def test_missing_data_files_are_named_with_the_command_that_fetches_them(
    run, monkeypatch, tmp_path
):
    monkeypatch.setenv("FEDPAGE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, _, err = run("reproduce", "comparison/a9a-robust")
    assert (code, "fedpage data fetch a9a" in err, "--data census" in err) == (2, True, True)
