"""Check the paper's figures as studies, and their runs."""

from dataclasses import replace
from typing import Any

import pytest

import fedpage as fp
from fedpage.studies.paper import book


def load(name, **options):
    (study,) = book.load([name], store="runs", **options)
    return study


def panels(name):
    """Return the methods by label of each panel, by its clients and step."""
    study = load(name)
    found: dict[tuple[int, float | None], dict[str, Any]] = {}
    for curve in study.curves:
        clients = study.problems[curve.problem].source.clients
        place = (clients, curve.setting.get("step"))
        found.setdefault(place, {})[curve.label] = curve.value
    return found


def test_every_figure_of_the_paper_exists():
    assert list(book.figures()) == [
        "local-steps/a9a", "local-steps/w8a",
        "comparison/a9a-robust", "comparison/w8a-robust",
        "comparison/a9a-logistic", "comparison/w8a-logistic",
        "clients/a9a-robust",
        "full/a9a-robust", "full/w8a-robust", "full/a9a-logistic", "full/w8a-logistic",
    ]  # fmt: skip
    notes = [figure.note for _, figure in book.figures().values()]
    assert notes == sorted(notes)


def test_settings_agree_with_the_paper():
    for name in book.figures():
        study = load(name)
        assert study.config.seeds == 5
        for problem in study.sources().values():
            rows = {"a9a": 32_500, "w8a": 48_000}[problem.data]
            assert problem.partition == f"blocks:{rows}"
            assert rows % problem.clients == 0
        for (_, step), methods in panels(name).items():
            for method in methods.values():
                if step is not None:
                    assert method.effective_step == pytest.approx(step)
                if not name.startswith("local-steps"):
                    assert method.K == 10
    assert [step for _, step in panels("full/w8a-logistic")] == [0.3, 0.1, 0.03, 0.01]
    assert [step for _, step in panels("full/a9a-robust")] == [0.1, 0.03, 0.01]
    clients = panels("clients/a9a-robust")
    assert len(clients) == 9
    rivals = {n: methods["SCAFFOLD"] for (n, _), methods in clients.items()}
    assert {n: (m.S, m.b) for n, m in rivals.items()} == {3250: (20, 4), 325: (2, 22), 10: (2, 652)}
    assert {n: m["FedPAGE"].S for (n, _), m in clients.items()} == {3250: 10, 325: 1, 10: 1}
    local = panels("local-steps/a9a")[3250, None]
    assert {label: method.K for label, method in local.items()} == {
        "FedPAGE-1": 1, "FedPAGE-10": 10, "FedPAGE-20": 20,
    }  # fmt: skip
    tuned = panels("local-steps/w8a")[10, None]["FedPAGE-20"]
    assert (tuned.S, tuned.eta_g, tuned.eta_l) == (1, 0.8, pytest.approx(0.04))
    both = panels("comparison/a9a-robust")[3250, 0.1]
    assert both["FedPAGE"].eta_l is None
    assert both["FedPAGE, eta_l = eta_g/K"].eta_l == pytest.approx(0.01)


def test_figures_share_their_runs(real):
    real("a9a")
    studies = book.load(["comparison/a9a-robust", "clients/a9a-robust"], store="runs", seeds=1)
    places = {plan.place for study in studies for plan in study.plans.values()}
    assert len(places) == 9 * 4  # the comparison's 12 curves are among the 36


def test_the_search_for_tuned_steps(tmp_path):
    study = fp.Study(
        {"tiny": {"data": "census:rows=600", "objective": "robust", "clients": 50}},
        {"one": {"method": "fedpage", "S": 5, "K": 1}, "five": {"like": "one", "K": 5}},
        rounds=200, figures=[{"name": "tiny/one"}], store=tmp_path,
    )  # fmt: skip
    grid, seen = book.TuningTable([0.003, 0.3], [0.01, 1.0], 0.08, 2), []

    def search():
        report = lambda done, total, what: seen.append(what)  # noqa: E731
        return book.search(study, "tiny/one", grid, tmp_path, 1, report)

    rows = search()
    names = [f"FedPAGE ({name})" for name in ("one", "five")]
    assert [(r["label"], r["hold"], r["eta_g"]) for r in rows] == [
        (name, hold, 0.3) for name in names for hold in (0.25, 0.0)
    ]
    for held, touched in (rows[:2], rows[2:]):
        assert held["rounds_on_held_out_seeds"][1] >= touched["rounds_on_held_out_seeds"][1]
    assert (rows[0]["rho"], rows[0]["within_tenth"]) == (None, [0.3])
    assert rows[2]["rho"] in (0.01, 1.0)
    assert {f"50 clients, {name}" for name in names} == set(seen)
    assert book.load_search(study, "tiny/one", grid, tmp_path) == rows == search()
    assert book.load_search(study, "tiny/one", replace(grid, target=0.07), tmp_path) is None
    assert book.load_search(study, "tiny/one", grid, tmp_path / "elsewhere") is None


def test_other_data_is_marked_in_the_title():
    study = load("comparison/w8a-logistic", data="census")
    assert "census instead of w8a" in study.config.figures[0].title
    (problem,) = study.sources().values()
    assert (problem.data, problem.partition, problem.clients) == ("census", "blocks", 4800)
    (problem,) = load("comparison/a9a-robust", data="census").sources().values()
    assert problem.partition == "blocks:32500"  # census has 32,561 rows


def test_a_quick_look_is_short_and_says_so():
    study = load("clients/a9a-robust", quick=True, seeds=4)
    assert (study.config.rounds, study.config.record_every, study.config.seeds) == (600, 10, 2)
    assert study.config.figures[0].title.endswith("[quick look]")


def test_reproduce_on_the_command_line(run, tmp_path):
    code, out, _ = run("reproduce", "--list")
    assert code == 0
    assert all(name in out for name in book.figures())
    words = ("reproduce", "comparison/a9a-robust", "--data", "census", "--quick", "--seeds", "2")
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


def test_missing_data_files_are_named_with_the_command_that_fetches_them(
    run, monkeypatch, tmp_path
):
    monkeypatch.setenv("FEDPAGE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, _, err = run("reproduce", "comparison/a9a-robust")
    assert (code, "fedpage data fetch a9a" in err, "--data census" in err) == (2, True, True)
