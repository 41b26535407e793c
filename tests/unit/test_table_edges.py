"""Tables at the edges: unusual values, empty columns and ids."""

from __future__ import annotations

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError


def refusal(make):
    with pytest.raises(InputError) as error:
        make()
    assert "\n" not in str(error.value)
    return str(error.value)


def load(tmp_path, text, name="t.csv", **options):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return fp.load(path, **{"label": "y", **options})


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
    assert "column 'column 4': the value is missing" in said
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
    assert "column 'a': a number is too large" in said


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
    assert "not an .npz file" in refusal(lambda: fp.load(tmp_path / "one.npz"))


def test_a_table_without_columns():
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    said = refusal(lambda: fp.Dataset.from_frame(pd.DataFrame(), label="y"))
    assert said.startswith("frame: there is no column 'y'")


def test_a_column_name_with_a_comma_is_quoted_in_a_list():
    frame = {"height, cm": [1.0, 2.0], "y": [0, 1]}
    said = refusal(lambda: fp.Dataset.from_frame(frame, label="label"))
    assert "the columns are 'height, cm', y" in said
