"""Tables at the edges: unusual values, empty columns, ids, and both readers of CSV files."""

from __future__ import annotations

import random

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.data import csv_blocks, delimited

CELLS = (
    "1", "2.5", "-3", "+4", "1e3", ".5", "5.", "inf", "Infinity", "nan", "NA", "", "  ", " 7", "8 ",
    "true", "False", "x", "y z", 'q"r', "a,b", "l\nm", "é", "1_000", "0x10", "1,5", "1.2.3", "007",
    "-0", "1e400", "1e-400", "123456789012345678901234567890", "3.14159265358979323846264338327950",
    "2.2250738585072011e-308", "\u0661", "1d5", "null", "NAN", "-", "--1", "1e", "\u00a05",
    "9\u2028", "1\x0b", "z\x85",
)  # fmt: skip


def refusal(make):
    with pytest.raises(InputError) as error:
        make()
    assert "\n" not in str(error.value)
    return str(error.value)


def load(tmp_path, text, name="t.csv", **options):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return fp.load(path, **{"label": "y", **options})


def random_csv(rng):
    """Write a table of a few rows, some of which are malformed."""
    delimiter, end = rng.choice(",,;\t|"), rng.choice(("\n", "\r\n", "\r"))
    numeric = [cell for cell in CELLS if delimited._parse_number(cell) is not None]
    pools = [
        rng.sample(rng.choice((numeric, CELLS, ("u", "v", "w "))), 3)
        for _ in range(rng.randint(1, 4))
    ]

    def write(cell):
        if rng.random() < 0.02:
            return cell
        needs_quotes = any(mark in cell for mark in (delimiter, '"', "\n", "\r"))
        quoted = '"' + cell.replace('"', '""') + '"'
        return quoted if needs_quotes or rng.random() < 0.1 else cell

    lines = [delimiter.join([*(f"c{at}" for at in range(len(pools))), "id", "y"])]
    for row in range(rng.randint(1, 12)):
        cells = [write(rng.choice(pool)) for pool in pools]
        lines.append(delimiter.join([*cells, rng.choice(("1", "2", "03")), str(row % 2)]))
        if rng.random() < 0.05:
            lines.append(rng.choice(("", " ", delimiter)))
    start = rng.choice(("", "", "\ufeff", end))
    return start + end.join(lines) + rng.choice(("", end))


def outcome(path, options):
    """Return what a table becomes, or the error."""
    try:
        data = fp.load(path, label="y", client="id", **options)
    except InputError as error:
        return str(error)
    return data.digest, data.columns, data.classes, data.clients.tolist(), data.encoding.to_json()


def test_both_readers_agree_on_random_tables(tmp_path, monkeypatch):
    read, compiled = delimited.Delimited._read_compiled, []

    def count(self, *arguments):
        table = read(self, *arguments)
        compiled.append(table is not None)
        return table

    monkeypatch.setattr(delimited.Delimited, "_read_compiled", count)
    path, accepted = tmp_path / "random.csv", 0
    for seed in range(300):
        rng = random.Random(seed)
        text = random_csv(rng)
        path.write_bytes(text.encode())
        options = {
            "missing": rng.choice(("error", "drop", "mean")),
            "standardise": rng.random() < 0.3,
        }
        slow = outcome(path, options)
        with monkeypatch.context() as small:
            small.setattr(delimited, "_SMALL", 0)
            small.setattr(csv_blocks, "BLOCK", rng.choice((3, 20, 1 << 20)))
            fast = outcome(path, options)
        assert fast == slow, (seed, text)
        accepted += isinstance(fast, tuple)
    assert accepted > 100
    assert sum(compiled) > 200


def test_a_row_is_named_by_its_line_in_an_editor(tmp_path):
    text = 'a,b,y\n\n"two\nlines",3,1\n' + '"x",2,0\n' * 30 + '"x",,1\n'
    assert text.split("\n").index('"x",,1') + 1 == 35
    said = refusal(lambda: load(tmp_path, text))
    assert "t.csv, row 35, column 'b': the value is missing" in said


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_a_column_without_values_is_named(tmp_path, missing):
    text = "a,b,y,\n1,2,0,\n3,4,1,\n"
    said = refusal(lambda: load(tmp_path, text, missing=missing))
    assert said == (
        "t.csv: column 'column 4' has no value in any row; leave it out with drop=('column 4',)"
    )
    assert load(tmp_path, text, drop="column 4").columns == ("a", "b")
    said = refusal(lambda: load(tmp_path, text, label="column 4", missing=missing))
    assert said == "t.csv: column 'column 4' has no value in any row; choose another column"
    frame = {"a": [None, None], "b": [1, 2], "y": [0, 1]}
    said = refusal(lambda: fp.Dataset.from_frame(frame, label="y", missing=missing))
    assert "frame: column 'a' has no value in any row" in said


def test_dates_of_a_csv_are_refused_as_those_of_a_frame(tmp_path):
    for value in ("2026-01-02", "2026-01-02 10:30", "2026-01-02T10:30:00.5+01:00"):
        said = refusal(lambda value=value: load(tmp_path, f"d,x,y\n{value},1,0\n{value},2,1\n"))
        assert "t.csv, column 'd': it holds dates or times; leave it out with drop=" in said
    said = refusal(lambda: fp.Dataset.from_arrays(np.array([["2026"]], dtype="M8[Y]"), [1.0]))
    assert "X must be a matrix of real numbers (dates or times)" in said
    said = refusal(lambda: fp.Dataset.from_arrays([[1.0]], np.array(["2026"], dtype="M8[Y]")))
    assert "y must be a vector of labels or real numbers (dates or times)" in said
    data = load(tmp_path, "d,x,y\n2026-01-02,1,0\n2026-01-03,2,1\n", categorical="d")
    assert data.columns == ("d=2026-01-02", "d=2026-01-03", "x")


def test_numbers_as_text_in_a_frame():
    frame = {"x": [f"{k}.5" for k in range(40)], "y": [0, 1] * 20}
    said = refusal(lambda: fp.Dataset.from_frame(frame, label="y"))
    assert "if they are numbers, convert the column, as by astype(float)" in said


def test_a_whole_number_beyond_float64_is_a_bad_cell():
    said = refusal(lambda: fp.Dataset.from_frame({"a": [1, -(10**400)], "y": [0, 1]}, label="y"))
    assert "frame, row 1 (the first is 0), column 'a': -inf is not a finite number" in said


def test_whole_numbers_that_a_frame_holds_as_floats():
    """A column of pandas has floats where some of its whole numbers are missing."""
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    frame = pd.DataFrame({"zip": [1, 2, 1], "who": [7, None, 8], "y": [0, 1, 1]})
    data = fp.Dataset.from_frame(frame, label="y", client="who", missing="drop", categorical="zip")
    assert data.clients.tolist() == [7, 8]
    new = pd.DataFrame({"zip": [1.0]})
    assert data.encoding.transform(new).tolist() == [[1.0]]
    trained = fp.Dataset.from_frame({"zip": ["1.0", "2.5"], "y": [0, 1]}, label="y")
    assert trained.encoding.transform({"zip": [1, 2.5]}).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_ids_that_differ_as_text_stay_apart(tmp_path):
    text = "x,who,y\n1,1.0,0\n2,1,1\n"
    assert load(tmp_path, text, client="who").clients.tolist() == ["1.0", "1"]
    assert load(tmp_path, text.replace(",1,", ",2.0,"), client="who").clients.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", None], "1 of 2 rows have no id (the first is row 1)"),
        ([0.5, 1.0], "ids must be all strings or all whole numbers"),
        (3, "there must be one id for each row, not shape ()"),
        ([["a"], ["b"]], "there must be one id for each row, not shape (2, 1)"),
    ],
)
def test_ids_of_arrays_are_checked(ids, said):
    found = refusal(lambda: fp.Dataset.from_arrays([[1.0], [2.0]], [0, 1], clients=ids))
    assert found.startswith("data set 'mine': ")
    assert said in found


def test_directories_and_single_arrays_are_refused(tmp_path):
    for suffix in ("csv", "parquet", "npz"):
        path = tmp_path / f"d.{suffix}"
        path.mkdir()
        options = {} if suffix == "npz" else {"label": "y"}
        assert "irectory" in refusal(lambda path=path, options=options: fp.load(path, **options))
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.eye(2))
    assert "a single array, as of an .npy" in refusal(lambda: fp.load(tmp_path / "one.npz"))


def test_a_table_without_columns():
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    said = refusal(lambda: fp.Dataset.from_frame(pd.DataFrame(), label="y"))
    assert said == "frame: there is no column 'y'; the table has no columns"
