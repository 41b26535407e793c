"""Encodings: what was done to a table's columns is done to new rows."""

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse
from support import refusal

import fedpage as fp
from fedpage.data.encoding import CategoryColumn, Encoding, NumberColumn

TABLE = {"age": [30, 50, 40], "ill": [True, False, True], "city": ["Rome", "Oslo", "Rome"]}


@pytest.fixture
def encoding():
    return Encoding.fit(TABLE, standardise=True)


def test_columns_and_names(encoding):
    assert encoding.columns == (
        NumberColumn("age", 40.0, pytest.approx(float(np.std([30, 50, 40])))),
        NumberColumn("ill", is_bool=True),
        CategoryColumn("city", ("Oslo", "Rome")),
    )
    assert encoding.feature_names == ("age", "ill", "city=Oslo", "city=Rome")
    assert "2 of numbers, 1 of categories; features: 4; standardised" in repr(encoding)
    assert pickle.loads(pickle.dumps(encoding)) == encoding


def test_new_rows_are_encoded_as_the_old_ones(encoding):
    old = encoding.transform(TABLE)
    assert (old[:, 0].mean(), old[:, 0].std()) == (pytest.approx(0.0), pytest.approx(1.0))
    rows = [{"city": "Rome", "ill": 1, "age": 50}, {"city": "Oslo", "ill": False, "age": 30.0}]
    expected = [[old[1, 0], 1, 0, 1], [old[0, 0], 0, 1, 0]]
    np.testing.assert_allclose(encoding.transform(rows), expected)
    words = {"age": ["50", "30"], "ill": ["TRUE", "false"], "city": ["Rome", "Oslo"]}
    assert encoding.transform(words).tolist() == encoding.transform(rows).tolist()


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_of_new_rows(encoding, library):
    frames = pytest.importorskip(library, reason="frames of this library are an extra")
    make = frames.table if library == "pyarrow" else frames.DataFrame
    assert encoding.transform(make(TABLE)).tolist() == encoding.transform(TABLE).tolist()


@pytest.mark.parametrize(
    ("change", "place", "word"),
    [
        ({"city": ["Rome", "Paris", "Oslo"]}, ", row 1 (the first is 0), column 'city'", "'Paris'"),
        ({"age": [1, "old", 2]}, ", row 1 (the first is 0), column 'age'", "'old' is not a number"),
        ({"age": [1, 2, None]}, ", row 2 (the first is 0), column 'age'", "missing"),
        ({"age": [1, 2, np.inf]}, ", row 2 (the first is 0), column 'age'", "inf"),
        ({"city": ["Rome", None, "x"]}, ", row 2 (the first is 0), column 'city'", "'x'"),
        ({"city": ["Rome", None, "Oslo"]}, ", row 1 (the first is 0), column 'city'", "missing"),
        ({"mood": [1, 2, 3]}, "", "'mood' was not there"),
        ({"City": TABLE["city"], "city": None}, "", "did you mean 'City'?"),
    ],
)
def test_rows_that_cannot_be_encoded(encoding, change, place, word):
    rows = {name: cells for name, cells in (TABLE | change).items() if cells is not None}
    said = refusal(encoding.transform, rows)
    assert said.startswith(f"new rows{place}: ")
    assert word in said


def test_unknown_categories_can_be_zeros(encoding):
    rows = {"age": [40, 40], "ill": [0, 0], "city": ["Paris", None]}
    assert encoding.transform(rows, unknown="ignore").tolist() == [[0, 0, 0, 0]] * 2
    assert "error, ignore" in refusal(encoding.transform, rows, unknown="zero")


def test_missing_cells_are_filled_in_new_rows():
    table = {"x": [1.0, None, 5.0], "c": ["u", None, "v"], "k": ["u", "v", "w"]}
    encoding = Encoding.fit(table, missing="mean")
    assert encoding.feature_names[:4] == ("x", "c=u", "c=v", "c=(missing)")
    rows = encoding.transform({"x": [None], "c": [None], "k": ["w"]})
    assert rows.tolist() == [[3, 0, 0, 1, 0, 0, 1]]
    said = refusal(encoding.transform, {"x": [1], "c": ["u"], "k": [None]})
    assert "column 'k': the value is missing" in said
    said = refusal(Encoding.fit, {"x": [1.0, None]}, standardise=True)
    assert "column 'x': the value is missing" in said
    constant = Encoding.fit({"x": [0.1, None, 0.1]}, standardise=True, missing="mean")
    assert constant.transform({"x": [0.1, None, 1.1]}).tolist() == [[0], [0], [1]]


def test_new_rows_may_have_more_columns_other_types_and_many_categories():
    encoding = Encoding((NumberColumn("x"),), label="y", client="id", left_out=("note",))
    rows = {"x": [1], "y": [None], "id": ["a"], "note": [b"anything"]}
    assert encoding.transform(rows).tolist() == [[1]]
    codes = Encoding.fit({"code": ["1", "10", "2"]})
    assert codes.transform({"code": [10, 1]}).tolist() == [[0, 1, 0], [1, 0, 0]]
    many = Encoding.fit({"c": [f"v{i}" for i in range(9)]}).transform({"c": ["v3", "v0"]})
    assert issparse(many)
    assert many.toarray()[:, :4].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]


TRAIN = {
    "age": [30.0, 50.0, 41.0, 20.0], "smoker": ["no", "yes", "no", "yes"], "zip": [1, 2, 1, 2],
    "who": ["u", "v", "u", "v"], "ill": ["n", "p", "p", "n"],
}  # fmt: skip
TEST = {"zip": [2, 2], "ill": ["p", "n"], "smoker": ["no", "no"], "age": [33, 44]}


@pytest.fixture(scope="module")
def problem():
    data = fp.Dataset.from_frame(
        TRAIN, label="ill", client="who", standardise=True, categorical="zip"
    )
    return fp.LogisticRegression(data, metrics=["accuracy"])


def test_test_rows_get_the_features_of_the_training_rows(problem, tmp_path):
    x, encoding = np.linspace(-1, 1, problem.d), problem.data.encoding
    test = fp.Dataset.from_frame(TEST, encoding=encoding)
    assert (test.columns, test.clients) == (problem.data.columns, None)
    np.testing.assert_array_equal(test.to_dense(), encoding.transform(TEST))
    np.testing.assert_array_equal(problem.margins(x, test), problem.margins(x, TEST))
    path = tmp_path / "test.csv"
    path.write_text("who,zip,ill,smoker,age\nw,2,p,no,33\nu,2,n,no,44\n")
    loaded = fp.load(path, encoding=encoding)
    assert (loaded.clients.tolist(), loaded.digest) == (["w", "u"], test.digest)
    held_out = fp.LogisticRegression(problem.data, held_out=loaded, metrics=["accuracy"])
    assert held_out.evaluate(x)["held_out_accuracy"] == problem.score(x, test)
    dropped = fp.Dataset.from_frame({**TEST, "age": [1, None]}, encoding=encoding, missing="drop")
    assert dropped.rows == 1


@pytest.mark.parametrize(
    "options", [{"standardise": True, "categorical": "zip"}, {"categorical": "zip"}, {}]
)
def test_rows_that_were_encoded_differently_are_refused(problem, options):
    """Standardised by itself, or with other categories, a feature means something else."""
    test = fp.Dataset.from_frame(TEST, label="ill", columns=["age", "smoker", "zip"], **options)
    for use in (
        lambda: problem.predict(np.zeros(problem.d), test),
        lambda: problem.score(np.zeros(problem.d), test),
        lambda: fp.LogisticRegression(problem.data, held_out=test),
    ):
        assert "encoded differently" in refusal(use)


@pytest.mark.parametrize(
    ("rows", "options", "word"),
    [
        ({**TEST, "smoker": ["no", "maybe"]}, {}, "'maybe' is not one"),
        ({k: v for k, v in TEST.items() if k != "ill"}, {}, "there is no column 'ill'"),
        (TEST, {"standardise": True}, "standardise cannot be given with encoding="),
        (TEST, {"missing": "mean"}, "missing cannot be given with encoding="),
        (TEST, {"drop": "age"}, "drop cannot be given with encoding="),
        (TEST, {"encoding": 3}, "encoding must be data.encoding"),
    ],
)
def test_test_rows_that_do_not_fit_are_refused(problem, rows, options, word):
    options = {"encoding": problem.data.encoding} | options
    assert word in refusal(fp.Dataset.from_frame, rows, **options)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_to_predict_must_be_finite(bad):
    problem = fp.LogisticRegression(fp.Dataset.from_arrays([[1.0], [2.0]], [0, 1]), 2)
    for rows in (np.array([[bad]]), csr_array(np.array([[bad]]))):
        assert "must be finite" in refusal(problem.predict, np.ones(1), rows)
