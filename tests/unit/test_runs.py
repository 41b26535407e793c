"""Many runs as one table: `fp.Runs`."""

import math

import polars
import pytest
from support import quadratic, refusal

import fedpage as fp


@pytest.fixture(scope="module")
def histories():
    methods = [fp.FedPAGE(S=3, K=2), fp.FedAvg(S=3, K=2), fp.FedAvg(S=4, K=2, up="natural")]
    return fp.sweep(quadratic(), methods, rounds=20, seeds=2, record_every=5)


@pytest.fixture
def folder(tmp_path):
    """Write runs at several depths, one of them not ended, and two that are damaged."""
    problem = quadratic()
    methods = [fp.FedPAGE(S=3, K=2), fp.FedAvg(S=3, K=2)]
    fp.sweep(problem, methods, rounds=20, seeds=2, record_every=5, out=tmp_path / "c" / "runs")
    for name in ("open", "damaged", "torn"):
        fp.simulate(problem, fp.SCAFFOLD(S=3), rounds=20, seed=0, record_every=5,
                    out=tmp_path / name)  # fmt: skip
    lines = (tmp_path / "open" / "history.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "open" / "history.jsonl").write_bytes(b"".join(lines[:4]))
    (tmp_path / "open" / "history.model.npz").unlink()  # as if it had been killed
    (tmp_path / "damaged" / "history.jsonl").write_bytes(lines[0] + b"not a record\n" + lines[1])
    (tmp_path / "torn" / "history.jsonl").unlink()
    return tmp_path


def test_runs_are_a_sequence_of_histories(histories):
    runs = fp.Runs(histories)
    assert len(runs) == 6
    assert runs[0] is histories[0]
    assert runs[-1] is histories[-1]
    assert list(runs[1:3]) == histories[1:3]
    assert repr(runs) == "Runs(6 runs: FedPAGE x 2, FedAvg x 4)"
    assert repr(fp.Runs(histories[0])) == "Runs(1 run: FedPAGE x 1)"
    assert list(fp.Runs(fp.Runs(histories))) == histories


def test_the_table_has_a_row_a_record_and_a_column_a_setting(histories):
    columns = fp.Runs(histories).to_polars().to_dict(as_series=False)
    assert {len(values) for values in columns.values()} == {6 * 5}
    names = list(columns)
    assert {"run", "method.name", "method.S", "problem.N", "seed", "rounds", "end"} <= set(names)
    methods = [names.index(name) for name in names if name.startswith("method.")]
    assert methods == list(range(methods[0], methods[-1] + 1))
    assert names.index("end") < names.index("round")
    assert columns["round"][:5] == [0, 5, 10, 15, 20]
    assert columns["seed"] == [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5
    assert columns["loss"][:5] == list(histories[0]["loss"])
    assert columns["method.eta_g"][0] == histories[0].meta["method"]["eta_g"]
    assert columns["method.b3"][0] == histories[0].meta["method"]["b3"]
    assert columns["method.b3"][-1] is None  # FedAvg has none
    assert columns["method.up"][-1] == "natural"
    assert set(columns["end"]) == {"finished"}


def test_the_pandas_frame_has_the_same_numbers(histories):
    pytest.importorskip("pandas")
    frame, table = fp.Runs(histories).to_pandas(), fp.Runs(histories).to_polars()
    assert list(frame.columns) == table.columns
    for name in ("loss", "method.S", "method.name", "bytes_up", "seed"):
        assert list(frame[name]) == table[name].to_list(), name


def test_files_have_every_digit(histories, tmp_path):
    runs = fp.Runs(histories)
    table = runs.to_polars()
    assert polars.read_parquet(runs.to_parquet(tmp_path / "runs.parquet")).equals(table)
    rows = polars.read_csv(runs.to_csv(tmp_path / "new" / "runs.csv"))
    assert rows.columns == table.columns
    for name in ("loss", "method.b3", "method.name"):  # FedAvg has no b3: its cells are empty
        assert rows[name].to_list() == table[name].to_list()


def test_runs_are_filtered_by_their_settings(histories):
    runs = fp.Runs(histories)
    assert list(runs.filter(method="FedPAGE")) == histories[:2]
    assert list(runs.filter(method="FedAvg", S=3)) == histories[2:4]
    assert list(runs.filter(method__S=4, seed=1)) == [histories[5]]
    assert list(runs.filter(seed=[1, 7])) == histories[1::2]
    assert list(runs.filter(lambda run: run.meta["seed"] == 0, method="FedPAGE")) == [histories[0]]
    assert len(runs.filter(problem__N=5)) == len(runs.filter(N=5)) == 0
    assert repr(runs.filter(seed=9)) == "Runs(0 runs)"
    assert runs.filter(method="FedPAGE").names == ["0", "1"]
    assert "did you mean 'seed'?" in refusal(runs.filter, sed=0)


def test_a_directory_is_read_at_any_depth_and_damage_is_noted(folder):
    runs = fp.Runs(folder)
    assert runs.names == [
        "c/runs/0-fedpage-seed0", "c/runs/0-fedpage-seed1", "c/runs/1-fedavg-seed0",
        "c/runs/1-fedavg-seed1", "open",
    ]  # fmt: skip
    assert runs.problems == {
        str(folder / "damaged"): f"damaged: {folder / 'damaged' / 'history.jsonl'}, line 2: "
        "not a line of a fedpage history",
        str(folder / "open"): "not ended: records up to round 10 of 20",
        str(folder / "torn"): f"damaged: {folder / 'torn' / 'history.jsonl'}: cannot be read "
        "(No such file or directory)",
    }
    assert repr(runs).endswith("; 3 damaged or not ended)")
    assert fp.Runs(folder / "c").names == [f"runs/{name[7:]}" for name in runs.names[:4]]
    assert fp.Runs([folder / "c", runs[0]]).names[-1] == "4"
    assert fp.Runs(folder / "open").names == ["open"]
    assert fp.Runs(folder / "open" / "history.jsonl")[0].rows == runs[4].rows
    html = runs._repr_html_()
    assert "c/runs/0-fedpage-seed0" in html
    assert "records up to round 10 of 20" in html


def test_a_directory_without_runs_is_refused(tmp_path):
    for source, word in ((tmp_path, "no run in it"), ([], "empty"), (tmp_path / "x", "be read")):
        assert word in refusal(fp.Runs, source)


def test_history_load_names_runs_for_a_comparison(folder):
    place = folder / "c"
    assert f"has several runs; fp.Runs({str(place)!r})" in refusal(fp.History.load, place)
    assert "cannot be read" in refusal(fp.History.load, folder / "torn")


def test_columns_have_one_type():
    first, second = fp.History({"a": 1, "b": True, "c": 2**70, "d": [1, 2], "e": {}}), fp.History()
    second.meta = {"a": 0.5, "b": "x", "c": 1}
    for history in (first, second):
        history.append({"round": 0, "loss": math.nan})
    columns = fp.Runs([first, second]).to_polars().to_dict(as_series=False)
    assert columns["a"] == [1.0, 0.5]
    assert columns["b"] == ["true", "x"]
    assert columns["c"] == [2**70, 1]
    assert columns["d"] == ["[1, 2]", None]
    assert "e" not in columns
