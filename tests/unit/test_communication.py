"""Check benchmarks/communication.py: entrants, counts, screening, resuming, tables."""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedpage as fp
from fedpage.methods import METHODS
from fedpage.studies.statistics import CostSample

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("", "_cases", "_runs", "_screening", "_report")


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(FOLDER))
    try:
        import communication

        yield communication
    finally:
        sys.path.remove(str(FOLDER))
        for suffix in MODULES:
            sys.modules.pop(f"communication{suffix}", None)


@pytest.fixture(scope="module")
def cases(bench):
    return sys.modules["communication_cases"]


@pytest.fixture(scope="module")
def screening(bench):
    return sys.modules["communication_screening"]


@pytest.fixture(scope="module")
def runs_of(bench):
    return sys.modules["communication_runs"]


@pytest.fixture(scope="module")
def tiny(cases):
    terms = cases.Terms(
        steps=(0.25, 1.0), screening=(500, 800, 800), screening_between=50, limits=(600, 900, 900),
        between=(20, 50, 50), search_seeds=2, runs=12, seeds=3, most=(2, 2, 2),
        most_with_codecs=(2, 2, 2),
    )  # fmt: skip
    targets = (0.2, 0.12, 1e-9)
    return cases.Case(
        "tiny", "a tiny case", "census:rows=200", 20, "robust", targets=targets, terms=terms
    )


# --- entrants -------------------------------------------------------------------------------------


def test_every_method_of_the_registry_takes_part_once_with_equal_terms(cases):
    found = cases.entrants()
    plain = {entrant.name for entrant in found if not entrant.codecs}
    variants = {name for name, entry in METHODS.items() if entry.variant_of}
    assert set(METHODS) - plain - {cases.OURS} == variants - set(cases.VARIANTS)
    for name in plain:
        method = cases.base_method(name)
        assert getattr(method, "S", None) in (10, None), name
        rows = [getattr(method, key) for key in ("b", "b1", "b2", "b3") if hasattr(method, key)]
        assert rows == [None] * len(rows), name
    sampling = [name for name in plain if getattr(cases.base_method(name), "S", None) == 10]
    assert {"s-dane", "s-local-svrg", "saga", "scaffold", "page"} <= set(sampling)


def test_methods_accept_every_codec_that_is_searched(cases):
    for entrant in cases.entrants():
        choices = cases.codec_choices(entrant)
        assert bool(choices) == entrant.codecs
        for field, values in choices.items():
            for value in values:
                method = replace(cases.base_method(entrant.name), **{field: value})
                assert str(getattr(method, field)) == value


def test_the_screening_tries_momentum(cases):
    assert {m.beta for m in cases.bases(cases.Entrant("ef21", False))} == {0.0, 0.9}
    assert len(cases.bases(cases.Entrant("fedavgm", False))) == 1  # its momentum is its own
    (saga,) = cases.bases(cases.Entrant("saga", True))
    assert (str(saga.up), str(saga.down)) == ("float16", "float32")


def test_some_variants_take_part(cases):
    names = {entrant.name for entrant in cases.entrants()}
    assert {"fedpage", "fedpage-pass-start"} <= names
    assert not {"fedpage-leak-free", "fedavg-full"} & names


def test_settings_go_through_a_file(cases):
    entrant = cases.Entrant("cofig", True)
    method = fp.COFIG(S=10, eta=0.3, up="natural", down="float16")
    assert cases.with_settings(entrant, cases.settings(method)) == method


def test_the_phishing_like_data_is_always_the_same(cases):
    data = cases.phishing_like(rows=300)
    assert (data.rows, data.features) == (300, 68)
    assert set(np.unique(data.X.data)) == {0.5, 1.0}
    assert 0.2 < np.mean(data.X.data == 0.5) < 0.6
    assert 0.3 < np.mean(data.y > 0) < 0.7
    again = cases.phishing_like(rows=300)
    assert again.X.data.tobytes() == data.X.data.tobytes()
    assert again.y.tobytes() == data.y.tobytes()


# --- runs -----------------------------------------------------------------------------------------


def _history(values, losses=None):
    history = fp.History()
    losses = [1.0] * len(values) if losses is None else losses
    for place, (value, loss) in enumerate(zip(values, losses, strict=True)):
        history.append(
            {
                "round": 10 * place, "clients": 100 * place, "bytes_up": 8 * place,
                "bytes_down": 16 * place, "loss": loss, "grad_norm": value,
            }
        )  # fmt: skip
    return history


def test_costs_are_interpolated_in_the_logarithm(runs_of):
    found = runs_of.costs_to(_history([1.0, 1e-1, 1e-3]), "grad_norm", 1e-2)
    assert found == pytest.approx({"round": 15, "clients": 150, "bytes_up": 12, "bytes": 36})
    exact = runs_of.costs_to(_history([1.0, 1e-1, 1e-3]), "grad_norm", 1e-3)
    assert exact["clients"] == 200
    missed = runs_of.costs_to(_history([1.0, 1e-1]), "grad_norm", 1e-2)
    assert set(missed.values()) == {math.inf}


def test_a_target_counts_only_below_the_first_loss(runs_of):
    far = _history([1.0, 1e-3, 1e-3], losses=[1.0, 2.0, 0.5])
    assert runs_of.costs_to(far, "grad_norm", 1e-2)["clients"] == 200


def test_a_ladder_ends_a_run_at_its_last_target_or_at_a_limit(runs_of):
    rungs = [runs_of.Rung(0.5, 100), runs_of.Rung(0.1, 1_000)]

    def end(records):
        ladder = runs_of.Ladder("grad_norm", rungs, "clients")
        rows = [
            {"round": place, "clients": clients, "loss": loss, "grad_norm": norm}
            for place, (clients, norm, loss) in enumerate(records)
        ]
        verdicts = [ladder(row) for row in rows]
        assert not any(verdicts[:-1])
        return verdicts[-1]

    assert end([(0, 1.0, 1.0), (100, 0.9, 1.0)]) == "reached its limit"
    assert end([(0, 1.0, 1.0), (50, 0.4, 1.0), (900, 0.2, 1.0)]) is None
    assert end([(0, 1.0, 1.0), (50, 0.4, 1.0), (1_000, 0.2, 1.0)]) == "reached its limit"
    assert end([(0, 1.0, 1.0), (50, 0.05, 1.0)]) == "reached the last target"
    assert end([(0, 1.0, 1.0), (50, 0.05, 1.5)]) is None  # above f(x0)


def test_a_run_is_repeated_only_if_its_line_is_torn(runs_of, tiny, tmp_path):
    path = tmp_path / "runs.jsonl"
    rungs = [runs_of.Rung(0.2, 500)]

    def measure():
        runs = runs_of.Runs(path, tiny.problem())
        ladder = runs_of.Ladder("grad_norm", rungs, "clients")
        found = [runs.measure(fp.PAGE(S=5, eta_g=0.2), seed, ladder, 50) for seed in (0, 1)]
        return found, runs.new

    first, new = measure()
    assert new == 2
    assert math.isfinite(first[0]["costs"]["0.2"]["clients"])
    assert measure() == (first, 0)
    path.write_bytes(path.read_bytes()[:-30])
    assert measure() == (first, 1)
    assert measure() == (first, 0)


def test_costs_of_a_run_equal_a_count_by_hand(runs_of, tiny, tmp_path):
    runs = runs_of.Runs(tmp_path / "runs.jsonl", tiny.problem())
    ladder = runs_of.Ladder("grad_norm", [runs_of.Rung(1e-9, 200)], "clients")
    found = runs.measure(fp.SAGA(S=5, eta=0.1, up="float32"), 0, ladder, 5)
    assert found["costs"]["1e-09"]["clients"] == math.inf
    assert (found["round"], found["clients"]) == (40, 200)
    assert found["bytes_up"] == 200 * 4 * 123
    assert found["bytes"] == 200 * 12 * 123


# --- screening ------------------------------------------------------------------------------------


def _screened(screening, cases, name, contacts, codecs=False, best=1e-5):
    entrant = cases.Entrant(name, codecs)
    methods = (cases.bases(entrant)[0],) * len(contacts)
    return screening.Screened(entrant, contacts, methods, best)


def test_methods_near_the_best_are_tuned_and_some_always(screening, cases, runs_of, tiny, tmp_path):
    runs = runs_of.Runs(tmp_path / "runs.jsonl", tiny.problem())
    terms = replace(tiny.terms, factor=3.0, most=(3,), most_with_codecs=(3,))
    found = [
        _screened(screening, cases, "fedavg", (900.0,)),  # far, but always
        _screened(screening, cases, "fedprox", (1000.0,)),  # far
        _screened(screening, cases, "saga", (100.0,), best=2e-5),
        _screened(screening, cases, "cofig", (100.0,), best=2e-5),  # SAGA without a codec
        _screened(screening, cases, "scaffold", (150.0,)),
        _screened(screening, cases, "zerosarah", (250.0,)),
        _screened(screening, cases, "feddyn", (290.0,)),  # the fourth
        _screened(screening, cases, "fedpage", (math.inf,)),
        _screened(screening, cases, "ef21-pp", (250.0,), codecs=True),
    ]
    chosen = screening.selected(runs, found, 0, terms)
    plain = [entrant.name for entrant, _ in chosen if not entrant.codecs]
    coded = [entrant.name for entrant, _ in chosen if entrant.codecs]
    assert plain == ["saga", "scaffold", "zerosarah", "fedavg", "fedpage"]
    # bytes of a contact for a number: COFIG 12 + 32 bits, SAGA 16 + 32, EF21-PP 10 % of 12 + 32
    assert coded == ["cofig", "saga", "ef21-pp"]
    few = [each for each in found if each.entrant.name in ("fedavg", "fedpage", "fedprox")]
    names = [entrant.name for entrant, _ in screening.selected(runs, few, 0, terms)]
    assert names[:3] == ["fedavg", "fedprox", "fedpage"]  # the first three, if few reached


def test_bytes_of_a_contact_are_those_of_its_cheapest_codec(
    screening, cases, runs_of, tiny, tmp_path
):
    runs = runs_of.Runs(tmp_path / "runs.jsonl", tiny.problem())
    method = fp.COFIG(S=10, eta=0.1, up="float32", down="float16")
    expected = math.ceil(12 * 123 / 8) + 2 * 123  # natural
    found = screening.bytes_per_contact(runs, cases.Entrant("cofig", True), method)
    assert found == pytest.approx(expected)


# --- tables ---------------------------------------------------------------------------------------


def _found(bench, costs):
    scaled = {"clients": 1.0, "bytes_up": 1e6, "bytes": 2e6}
    judged = {
        name: CostSample(tuple(scale * cost for cost in costs)) for name, scale in scaled.items()
    }
    return bench.report.Found("step 0.1", judged, 1e-3)


def test_the_table_has_medians_worst_seeds_and_who_did_not_reach(bench):
    quick = tuple(100.0 + k for k in range(9))
    slow = tuple(200.0 + k for k in range(9))
    lines = [
        bench.report.Line("B", False, {1e-2: _found(bench, slow)}),
        bench.report.Line("A", True, {1e-2: _found(bench, quick)}),
        bench.report.Line("C", False, {1e-2: _found(bench, (*slow[:-1], math.inf))}),
        bench.report.Line("D", False, {1e-2: _found(bench, (math.inf,) * 9)}),
    ]
    rows = bench.report.table(lines, (1e-2,), "clients").splitlines()
    assert rows[0] == "| method | contacts to 1e-2 | MB up to 1e-2 | MB in all to 1e-2 |"
    assert rows[2] == "| **A** | **104** (108) | **104** (108) | **208** (216) |"
    assert rows[3] == "| B | 204 (208) | 204 (208) | 408 (416) |"
    assert rows[4] == "| C | 204 (8 of 9) | 204 (8 of 9) | 408 (8 of 9) |"
    assert rows[5] == "| D | - | - | - |"


def test_a_line_that_repeats_another_one_is_left_out(bench):
    one, near, far = ((100.0,) * 3, (100.4,) * 3, (102.0,) * 3)
    both = bench.report.Line("A", False, {1e-2: _found(bench, one), 1e-3: _found(bench, far)})
    same = bench.report.Line("B", False, {1e-2: _found(bench, near)})
    other = bench.report.Line("C", False, {1e-2: _found(bench, far)})
    ours = bench.report.Line("D", True, {1e-2: _found(bench, one)})
    assert bench.report.distinct([same, both, other, ours]) == [both, other, ours]


def test_methods_that_cannot_be_told_apart_are_both_bold(bench):
    lines = [
        bench.report.Line("A", False, {1e-2: _found(bench, (1.0, 3.0, 5.0, 7.0))}),
        bench.report.Line("B", False, {1e-2: _found(bench, (2.0, 4.0, 6.0, 8.0))}),
    ]
    rows = bench.report.table(lines, (1e-2,), "clients").splitlines()
    assert [row.count("**") for row in rows[2:]] == [6, 6]


def test_small_and_large_numbers_are_legible(bench):
    values = [0.1234, 1.26, 12.4, 99.7, 1234.0, math.inf]
    assert [bench.report.number(value) for value in values] == [
        "0.123", "1.26", "12.4", "100", "1,234", "-"
    ]  # fmt: skip


# --- the program ----------------------------------------------------------------------------------


@pytest.fixture
def program(bench, tiny, monkeypatch, capsys):
    monkeypatch.setattr(bench, "CASES", (tiny,))

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["communication.py", *map(str, words)])
        bench.main()
        return capsys.readouterr().out

    return call


def test_the_benchmark_screens_tunes_runs_and_resumes(bench, program, tmp_path):
    words = ("--out", tmp_path, "--methods", "saga,fedavg,cofig", "--targets", 2)
    text = program(*words)
    assert "### a tiny case" in text
    table = csv.DictReader(io.StringIO((tmp_path / "communication.csv").read_text()))
    rows = list(table)
    names = {(row["method"], row["codecs"]) for row in rows}
    assert {("SAGA", "no"), ("FedAvg", "no"), ("SecantPAGE", "no")} <= names
    assert {("COFIG", "yes"), ("SecantPAGE", "yes")} <= names
    assert {row["target"] for row in rows} == {"0.2", "0.12"}
    assert all(row["seeds"] == "3" for row in rows)
    ours = [row for row in rows if row["method"] == "SecantPAGE" and row["codecs"] == "yes"]
    assert all(row["settings"].startswith("up ") for row in ours)
    for name in ("communication.png", "communication-bytes.png", "tables.md"):
        assert (tmp_path / name).is_file()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    assert len(before) == 3  # runs, trials and tuned settings
    again = program(*words)
    assert again.partition("###")[2] == text.partition("###")[2]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")} == before


def test_without_torch_the_network_is_left_out(bench, cases, program, tiny, monkeypatch, tmp_path):
    network = next(case for case in cases.CASES if case.name == cases.NETWORK)
    monkeypatch.setattr(bench, "CASES", (tiny, network))
    for module in (bench, cases):
        monkeypatch.setattr(module, "has_torch", lambda: False)
    words = ("--out", tmp_path, "--methods", "saga", "--targets", 1, "--no-ours")
    text = program(*words)
    assert text.startswith("digits-network is left out: it needs torch and scikit-learn\n")
    assert "### a tiny case" in text
    with pytest.raises(SystemExit, match="digits-network needs torch and scikit-learn"):
        program(*words, "--cases", "digits-network")


def test_wrong_names_and_missing_data_are_one_line(bench, program, tiny, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="unknown case 'mnist'; known are tiny"):
        program("--cases", "mnist")
    with pytest.raises(SystemExit, match="unknown method 'sagaa'"):
        program("--methods", "sagaa", "--out", tmp_path)
    monkeypatch.setenv("FEDPAGE_DATA", str(tmp_path))
    monkeypatch.setattr(bench, "CASES", (replace(tiny, data="a9a", clients=3250),))
    with pytest.raises(SystemExit, match=r"'a9a' is not on this machine: run `fedpage data fetch"):
        program("--out", tmp_path)
