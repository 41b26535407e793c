"""Check studies: the file, the grids, the store of runs, and what is made of them."""

import csv
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.runs.store import RunStore
from fedpage.studies.results import StudyResults
from fedpage.studies.study import Study

TEXT = """
name = "steps"
rounds = 20
record_every = 5
seeds = 2
target = "grad_norm:0.2"
cost = "bytes"
[defaults.problem]
clients = 10
[problems]
first = { data = "census:rows=100", objective = "robust" }
second = { like = "first", objective = "logistic", title = "The second" }
[methods]
fedpage = { S = 2, K = [2, 4] }
scaffold = { S = 4, K = 2 }
slow = { like = "scaffold", step = 0.01 }
[grid]
step = [0.1, 0.3]
[[figures]]
panels = ["problem", "step"]
x = "bytes"
"""


@pytest.fixture
def write(tmp_path):
    def write(text=TEXT):
        path = tmp_path / "study.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def load(write, tmp_path):
    def load(text=TEXT, **options):
        return Study.load(write(text), store=tmp_path / "store", **options)

    return load


def count_runs(folder):
    return len(list(folder.glob("*/history.jsonl")))


def test_grids_multiply(load):
    study = load()
    found = [(c.problem, c.label, c.setting_text) for c in study.curves if c.problem == "first"]
    assert found == [
        ("first", "FedPAGE", "step=0.1, K=2"), ("first", "FedPAGE", "step=0.1, K=4"),
        ("first", "FedPAGE", "step=0.3, K=2"), ("first", "FedPAGE", "step=0.3, K=4"),
        ("first", "SCAFFOLD", "step=0.1"), ("first", "SCAFFOLD", "step=0.3"),
        ("first", "SCAFFOLD (slow)", ""),
    ]  # fmt: skip
    methods = [curve.value for curve in study.curves]
    assert methods[1] == fp.FedPAGE(S=2, K=4).with_step(0.1)
    assert methods[6] == fp.SCAFFOLD(S=4, K=2).with_step(0.01)
    source = study.sources()["second"]
    assert (source.data, source.objective, source.clients) == ("census:rows=100", "logistic", 10)
    assert study.problems["second"].title == "The second"
    assert "2 problems x 3 methods: 14 curves x 2 seeds" in repr(study)


def test_a_problem_may_change_methods_and_grids(load):
    change = "[problems.third]\nlike = 'first'\nmethods.fedpage = { S = 1 }\ngrid.step = [0.2]\n"
    study = load(TEXT.replace("[methods]", change + "[methods]"))
    third = [c for c in study.curves if c.problem == "third"]
    assert [c.setting_text for c in third][:2] == ["step=0.2, K=2", "step=0.2, K=4"]
    assert third[0].value == fp.FedPAGE(S=1, K=2).with_step(0.2)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("rounds = 20", "rouds = 20", "study.toml: unknown key 'rouds'; did you mean 'rounds'"),
        ("rounds = 20", "", "'rounds' is missing"),
        ("objective = \"robust\"", "objectiv = 1", "[problems.first]: unknown key 'objectiv'; did"),
        ("S = 2,", "SS = 2,", "[methods.fedpage]: unknown key 'SS'"),
        ("K = [2, 4]", "K = [2, 4.5]", "[methods.fedpage]: K must be a whole number"),
        ("K = [2, 4]", "K = []", "[methods.fedpage]: the list of K is empty"),
        ('like = "first"', 'like = "frst"', "like = 'frst' is not there; did you mean 'first'"),
        ('like = "first"', 'like = "second"', "like = 'second' leads back to itself"),
        ("slow = { like = \"scaffold\",", "slow = {", "unknown method 'slow'"),
        ('panels = ["problem", "step"]', 'panels = "stp"', "[figures] 1: panels: unknown 'stp'"),
        ('x = "bytes"', 'x = "byts"', "byts"),
        ('x = "bytes"', 'methods = ["fedpge"]', "methods: unknown 'fedpge'; did you mean"),
        ("seeds = 2", "seeds = 0", "seeds must be a number from 1"),
        ("seeds = 2", "seeds = [1, 1]", "seeds must be a number from 1"),
        ('name = "steps"', 'name = "a/b"', "name must consist of letters"),
        ("S = 4", "S = 40", "SCAFFOLD on first: "),
        ("census:", "cens:", "cens"),
        ("step = [0.1, 0.3]", "step = [-1.0]", "step must be a finite number above 0"),
        ("S = 4, K = 2", "S = 4, rho = 1.0", "rho is FedPAGE's"),
        ("rounds = 20", "rounds = ", "not TOML"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_that_names_the_place(load, old, new, fault):
    assert old in TEXT
    with pytest.raises(InputError) as error:
        _ = load(TEXT.replace(old, new)).plans
    assert fault in str(error.value)
    assert "study.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_values_of_the_file_can_be_changed(load):
    changes = ["methods.fedpage.K=[1,2,3]", "rounds=5", "problems.first.objective=logistic"]
    study = load(changes=changes)
    assert len({c.value.K for c in study.curves if c.method == "fedpage"}) == 3
    assert study.config.rounds == 5
    assert study.sources()["first"].objective == "logistic"
    for wrong, fault in (("rounds", "--set"), ("=3", "--set"), ("methods.fedpage.KK=3", "'KK'")):
        with pytest.raises(InputError, match=fault):
            load(changes=[wrong])


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "rows.csv").write_text("a,label\n" + "1,0\n2,1\n" * 10)
    (tmp_path / "study.toml").write_text(
        'rounds = 2\n[problems]\nown = { data = "rows.csv", label = "label", clients = 2 }\n'
        "[methods]\nfedavg = { S = 2 }\n"
    )
    monkeypatch.chdir(Path(__file__).parent)
    study = Study.load(tmp_path / "study.toml", store=tmp_path / "store").run()
    assert len(study.runs()) == 5
    assert study.config.name == "study"


def test_only_what_is_new_is_run(load, tmp_path):
    study = load()
    seen = []
    study.run(progress=lambda done, total: seen.append((done, total)))
    assert (study.new_runs, seen[0], seen[-1]) == (28, (0, 28), (28, 28))
    assert count_runs(tmp_path / "store") == 28
    assert load().run().new_runs == 0
    assert load(TEXT.replace("seeds = 2", "seeds = 3")).run().new_runs == 14
    more = TEXT.replace("[grid]", "fedavg = { S = 4 }\n[grid]")
    assert load(more).run().new_runs == 2 * 2 * 2
    assert load(TEXT.replace("step = [0.1, 0.3]", "step = [0.3, 0.5]")).run().new_runs == 12
    assert load(TEXT.replace("rounds = 20", "rounds = 25")).run().new_runs == 28


def test_runs_have_the_bits_of_simulate_for_any_number_of_jobs(load, tmp_path):
    runs = load().run().runs()
    history = runs["first", "fedpage", "step=0.3, K=4", 1]
    problem = fp.RobustRegression(fp.load("census", rows=100), clients=10)
    alone = fp.simulate(
        problem, fp.FedPAGE(S=2, K=4).with_step(0.3), rounds=20, seed=1, record_every=5
    )
    assert history.same(alone)
    both = Study.load(tmp_path / "study.toml", store=tmp_path / "other").run(jobs=2)
    assert both.new_runs == 28
    assert all(history.same(runs[key]) for key, history in both.runs().items())


def test_a_study_of_objects_equals_that_of_tables(load, tmp_path):
    problem = fp.RobustRegression(fp.load("census", rows=100), clients=10)
    study = Study(
        {"first": problem},
        {"fedpage": fp.FedPAGE(S=2), "scaffold": {"S": 4, "K": 2}},
        rounds=20, record_every=5, seeds=[0, 1], grid={"step": [0.1, 0.3]},
        store=tmp_path / "store",
    )  # fmt: skip
    assert study.curves[1].value == fp.FedPAGE(S=2).with_step(0.3)
    study.run()
    assert len(study.runs()) == 8
    assert load().run().new_runs == 28 - 4  # those of SCAFFOLD are shared
    with pytest.raises(InputError, match=r"methods must be a table"):
        Study({"first": problem}, [fp.FedPAGE()], rounds=3)
    with pytest.raises(InputError, match=r"\[methods.fedpage\]: unknown key 'Q'"):
        Study({"first": problem}, {"fedpage": fp.FedPAGE()}, rounds=3, grid={"Q": [1]})


def test_a_run_that_another_process_has_is_awaited(load, tmp_path):
    study = load()
    plan = next(iter(study.plans.values()))
    lock = RunStore(plan.place)
    lock.__enter__()
    states = [run.state.value for run in study.status().runs.values()]
    assert states == ["waiting"] + ["not begun"] * 27
    thread = threading.Timer(1.0, lambda: lock.__exit__(None, None, None))
    thread.start()
    study.run()
    thread.join()
    assert study.new_runs == 27
    assert len(study.runs()) == 28
    assert {run.state.value for run in study.status().runs.values()} == {"finished"}


def test_figures_have_panels_and_labels(load):
    study = load().run()
    (figure,) = study.figures().values()
    titles = [panel.title for panel in figure.panels]
    assert titles[:3] == ["first, step 0.1", "first, step 0.3", "first, step 0.01"]
    assert "The second, step 0.1" in titles
    assert list(figure.panels[0].curves) == ["FedPAGE (K=2)", "FedPAGE (K=4)", "SCAFFOLD"]
    assert [len(runs) for runs in figure.panels[0].curves.values()] == [2, 2, 2]
    one = load(TEXT.replace('panels = ["problem", "step"]', 'panels = "clients"'))
    (figure,) = one.figures().values()
    assert [panel.title for panel in figure.panels] == ["10 clients"]
    assert "SCAFFOLD (second, step=0.3)" in figure.panels[0].curves


def test_a_best_setting_is_in_every_name_and_at_an_edge_it_is_said(load):
    best = "best = true\nwhere = { step = [0.1, 0.3] }\n"
    text = TEXT.replace('panels = ["problem", "step"]', 'panels = "problem"\n' + best)
    study = load(text + "[[tables]]\n" + best).run()
    (figure,) = study.figures().values()
    runs = study.runs()
    for panel, comparison in zip(figure.panels, study.comparisons().values(), strict=True):
        assert list(panel.curves) == list(comparison.costs)  # one setting has one name
        medians = {
            setting: sum(
                runs[panel.values["problem"], "scaffold", setting, s].cost_to(0.2) for s in (0, 1)
            )
            for setting in ("step=0.1", "step=0.3")
        }
        (chosen,) = (setting for setting in medians if f"SCAFFOLD ({setting})" in panel.curves)
        assert medians[chosen] == min(medians.values())
        assert all(re.search(r"step=0\.[13]", label) for label in panel.curves)
        assert any("K=" in label for label in panel.curves)
        edges = comparison.table().notes[-1]
        assert "edge" in edges
        assert all(label in edges for label in comparison.costs)
    inside = load(text.replace("step = [0.1, 0.3]\n", "step = [0.0001, 0.1, 100]\n")
                  .replace(", K = [2, 4]", "").replace(best, "best = true\nmethods = ['fedpage']\n")
                  + "[[tables]]\nbest = true\nmethods = ['fedpage']\n")  # fmt: skip
    for comparison in inside.run().comparisons().values():
        assert list(comparison.costs) == ["FedPAGE (step=0.1)"]
        assert not any("edge" in note for note in comparison.table().notes)


def test_a_study_in_memory_is_the_sweep():
    problem = fp.LogisticRegression(fp.load("census", rows=100), clients=10)
    methods = {"page": fp.PAGE(S=4), "fedavg": fp.FedAvg(S=4)}
    settings = {"rounds": 30, "seeds": 2, "record_every": 2}
    study = Study({"p": problem}, methods, store=None, target="0.2", **settings).run()
    assert study.new_runs == 4
    assert study.run().new_runs == 0
    runs = fp.sweep(problem, list(methods.values()), **settings)
    assert all(a.same(b) for a, b in zip(runs, study.runs().values(), strict=True))


def test_claims_are_checked(load):
    claim = '[[claims]]\ntext = "t"\nkind = "faster"\ncurves = ["SCAFFOLD"]\n'
    (found,) = load(TEXT + claim).run().claims()
    assert [finding.comparison for finding in found.findings] == ["SCAFFOLD: step 0.3 > 0.1"] * 2
    assert "2 of 5 seeds" in found.note


def test_export_writes_records_figures_tables_and_the_page(load, tmp_path):
    study = load()
    with pytest.raises(InputError, match="no run has ended"):
        StudyResults(study).check()
    results = StudyResults(study.run())
    files = results.export(tmp_path / "out")
    names = {path.name for path in files}
    assert {"report.html", "figure.pdf", "costs-first.tex", "records.csv"} <= names
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The second: Bytes to gradient norm 0.2" in page
    rows = list(csv.DictReader((tmp_path / "out" / "records.csv").read_text().splitlines()))
    assert len(rows) == 28 * 5
    assert list(rows[0])[:5] == ["problem", "method", "step", "K", "seed"]
    path = results.write_records(tmp_path / "records.parquet")
    assert len(polars.read_parquet(path)) == 28 * 5
    with pytest.raises(InputError, match=r"\.csv or \.parquet"):
        results.write_records(tmp_path / "records.xls")


FEW = TEXT.partition("[[figures]]")[0].replace("[2, 4]", "2").replace("[0.1, 0.3]", "[0.1]")
"""Three curves of each problem, and no figure."""


def test_the_commands(run, refused, write, tmp_path):
    file = str(write(FEW))
    code, out, _ = run("study", "status", file)
    assert (code, "12 not begun" in out) == (0, True)
    refused(("study", "report", file), "no run has ended")
    code, out, err = run("study", "run", file, "--set", "problems.first.objective=logistic")
    assert code == 0, err
    assert "6 new runs" in out  # the two problems are then the same
    assert "no verdict" in out.lower()
    assert (tmp_path / "runs" / "steps" / "report.html").is_file()
    code, out, _ = run("study", "run", file)
    assert "6 new runs" in out
    code, out, err = run("study", "add", file, "--seeds", "1", "--method", "fedavg:S=4:K=2")
    assert code == 0, err
    assert "12 new runs" in out  # 6 for the seed, 2 x 3 for the method
    assert "seeds = 3" in Path(file).read_text()
    assert "[methods.fedavg]\nS = 4" in Path(file).read_text()
    code, out, _ = run("study", "status", file)
    assert "24 finished" in out
    code, out, _ = run("study", "export", file, "out", "--records", "csv")
    assert (code, (tmp_path / "out" / "records.csv").is_file()) == (0, True)
    code, out, _ = run("study", "report", file, "--out", "there")
    assert (code, (tmp_path / "there" / "report.html").is_file()) == (0, True)


def test_add_keeps_comments_and_refuses_what_it_cannot_add(run, refused, write):
    file = write("# a comment\n" + FEW.replace("seeds = 2", "seeds = [4, 7] # two"))
    before = file.read_text()
    refused(("study", "add", str(file)), "say what to add")
    refused(("study", "add", str(file), "--method", "fedavgg"), "did you mean 'fedavg'")
    assert file.read_text() == before
    code, _, err = run("study", "add", str(file), "--seeds", "2")
    assert code == 0, err
    assert file.read_text() == before.replace("[4, 7]", "[4, 7, 8, 9]")


def test_the_study_of_the_documentation_is_fifteen_lines(load):
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
    text = re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1]
    assert len(text.splitlines()) <= 15
    small = ["seeds=1", "rounds=2", "grid.step=[0.1, 0.3]", "defaults.problem.clients=20"]
    small += [f"problems.{name}.data=census:rows=100" for name in ("a9a", "w8a")]
    study = load(text, changes=small)
    assert len(load(text).curves) * 5 == 120
    assert study.run().new_runs == 3 * 2  # on the same data
    assert [len(panel.curves) for panel in study.figures()["figure"].panels] == [6, 6]


def _tables(folder):
    return {path.name: path.read_text() for path in sorted((folder / "tables").iterdir())}


def _start(folder, store):
    script = "import sys; from fedpage.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", script, "study", "run", "study.toml", "--store", store, "--out",
         f"out-{store}", "--jobs", "1"],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ,
    )  # fmt: skip


@pytest.mark.slow
def test_two_studies_at_once_and_a_killed_one_end_with_the_same_tables(write, tmp_path):
    """Two processes make each run once; one that is killed three times goes on where it was."""
    study = Study.load(write(FEW.replace("rounds = 20", "rounds = 300")), store=tmp_path / "shared")
    both = [_start(tmp_path, "shared") for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert count_runs(tmp_path / "shared") == 12
    assert {run.state.value for run in study.status().runs.values()} == {"finished"}
    for last in range(3):
        process = _start(tmp_path, "killed")
        while count_runs(tmp_path / "killed") <= last:  # until a run has begun since the last kill
            assert process.poll() is None
            time.sleep(0.001)
        process.kill()
        process.wait()
    assert _start(tmp_path, "killed").wait() == 0
    assert _tables(tmp_path / "out-killed") == _tables(tmp_path / "out-shared")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dask and of its sockets
def test_a_local_dask_cluster_runs_a_study(load, tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask needs pip install fedpage[dask]")
    import joblib

    alone = load().run().runs()
    study = Study.load(tmp_path / "study.toml", store=tmp_path / "other")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        study.run(jobs=None)
    assert study.new_runs == 28
    assert all(history.same(alone[key]) for key, history in study.runs().items())
