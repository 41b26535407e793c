"""Encodings: what was done to a table's columns is done to new rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.data.encoding import CategoryColumn, Encoding, NumberColumn

TABLE = {
    "age": [30, 50, 40],
    "ill": [True, False, True],
    "city": ["Rome", "Oslo", "Rome"],
}


@pytest.fixture
def encoding():
    return Encoding.fit(TABLE, standardise=True)


def test_columns_and_names(encoding):
    scale = float(np.std([30, 50, 40]))
    assert encoding.columns == (
        NumberColumn("age", 40.0, pytest.approx(scale)),
        NumberColumn("ill", is_bool=True),
        CategoryColumn("city", ("Oslo", "Rome")),
    )
    assert encoding.feature_names == ("age", "ill", "city=Oslo", "city=Rome")
    assert encoding.text_columns == {"city"}
    assert repr(encoding) == (
        "Encoding(columns: 2 of numbers, 1 of categories; features: 4; standardised)"
    )
    described = encoding.describe()
    assert described["numbers"] == 2
    assert described["categories"] == {"city": 2}
    assert json.loads(json.dumps(described)) == described


def test_new_rows_are_encoded_as_the_old_ones(encoding):
    old = encoding.transform(TABLE)
    assert old[:, 0].mean() == pytest.approx(0.0)
    assert old[:, 0].std() == pytest.approx(1.0)
    rows = [
        {"city": "Rome", "ill": 1, "age": 50},
        {"city": "Oslo", "ill": False, "age": 30.0},
    ]
    np.testing.assert_allclose(
        encoding.transform(rows), [[old[1, 0], 1, 0, 1], [old[0, 0], 0, 1, 0]]
    )
    words = {"age": ["50", "30"], "ill": ["TRUE", "false"], "city": ["Rome", "Oslo"]}
    assert encoding.transform(words).tolist() == encoding.transform(rows).tolist()


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_of_new_rows(encoding, library):
    frames = pytest.importorskip(library, reason="frames of this library are an extra")
    make = frames.table if library == "pyarrow" else frames.DataFrame
    assert encoding.transform(make(TABLE)).tolist() == encoding.transform(TABLE).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"city": ["Rome", "Paris", "Oslo"]},
            "new rows, row 1 (the first is 0), column 'city': 'Paris' is not one of the known "
            "values (Oslo, Rome); correct it, or encode the rows with encoding.transform(rows, "
            'unknown="ignore")',
        ),
        ({"age": [1, "old", 2]}, "new rows, row 1 (the first is 0), column 'age': 'old' is not a"),
        ({"age": [1, 2, None]}, "new rows, row 2 (the first is 0), column 'age': the value is mis"),
        ({"age": [1, 2, np.inf]}, "new rows, row 2 (the first is 0), column 'age': inf is not a f"),
        ({"city": ["Rome", None, "x"]}, "new rows, row 2 (the first is 0), column 'city': 'x' is"),
        ({"city": ["Rome", None, "Oslo"]}, "new rows, row 1 (the first is 0), column 'city': the "),
        (
            {"mood": [1, 2, 3]},
            "new rows: column 'mood' was not there when the data was encoded; leave it out (the "
            "columns are age, ill, city)",
        ),
    ],
)
def test_rows_that_cannot_be_encoded(encoding, change, message):
    with pytest.raises(InputError) as error:
        encoding.transform({**TABLE, **change})
    assert str(error.value).startswith(message)


def test_a_column_that_is_not_there(encoding):
    with pytest.raises(InputError, match=r"there is no column 'city'; did you mean 'City'\?"):
        encoding.transform({"age": [1], "ill": [0], "City": ["Rome"]})


def test_unknown_categories_can_be_zeros(encoding):
    rows = {"age": [40, 40], "ill": [0, 0], "city": ["Paris", None]}
    assert encoding.transform(rows, unknown="ignore").tolist() == [[0, 0, 0, 0]] * 2
    with pytest.raises(InputError, match="unknown must be one of error, ignore"):
        encoding.transform(rows, unknown="zero")


def test_missing_cells_are_filled_in_new_rows():
    table = {"x": [1.0, None, 5.0], "c": ["u", None, "v"], "k": ["u", "v", "w"]}
    encoding = Encoding.fit(table, missing="mean")
    assert encoding.feature_names[:4] == ("x", "c=u", "c=v", "c=(missing)")
    rows = encoding.transform({"x": [None], "c": [None], "k": ["w"]})
    assert rows.tolist() == [[3, 0, 0, 1, 0, 0, 1]]
    with pytest.raises(InputError, match=r"column 'k': the value is missing"):
        encoding.transform({"x": [1], "c": ["u"], "k": [None]})
    with pytest.raises(InputError, match=r"column 'x': the value is missing; .* give missing="):
        Encoding.fit({"x": [1.0, None]}, standardise=True)


def test_label_ids_and_left_out_columns_may_be_in_new_rows():
    encoding = Encoding((NumberColumn("x"),), label="y", client="id", left_out=("note",))
    rows = {"x": [1], "y": [None], "id": ["a"], "note": [b"anything"]}
    assert encoding.transform(rows).tolist() == [[1]]


def test_numbers_in_a_column_of_categories_are_compared_as_text():
    encoding = Encoding.fit({"code": ["1", "10", "2"]})
    assert encoding.transform({"code": [10, 1]}).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_many_categories_give_a_sparse_array():
    encoding = Encoding.fit({"c": [f"v{i}" for i in range(9)]})
    encoded = encoding.transform({"c": ["v3", "v0"]})
    assert issparse(encoded)
    assert encoded.toarray()[:, :4].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]


def test_json(encoding):
    for other in (encoding, Encoding.fit({"x": [0.1, None], "c": ["é", None]}, missing="mean")):
        again = Encoding.from_json(other.to_json())
        assert again == other
        assert hash(again) == hash(other)
    for text in (
        "",
        "[]",
        "{}",
        '{"format": "other"}',
        encoding.to_json().replace('"number"', '"tensor"'),
        encoding.to_json().replace("40.0", "NaN"),
        encoding.to_json().replace('"values"', '"value"'),
    ):
        with pytest.raises(InputError, match="not the JSON of an encoding"):
            Encoding.from_json(text)


def test_standardising_is_exact_for_a_constant_column_with_missing_cells():
    encoding = Encoding.fit({"x": [0.1, None, 0.1]}, standardise=True, missing="mean")
    assert encoding.transform({"x": [0.1, None, 1.1]}).tolist() == [[0], [0], [1]]


TRAIN = {
    "age": [30.0, 50.0, 41.0, 20.0], "smoker": ["no", "yes", "no", "yes"], "zip": [1, 2, 1, 2],
    "who": ["u", "v", "u", "v"], "ill": ["n", "p", "p", "n"],
}  # fmt: skip
TEST = {"zip": [2, 2], "ill": ["p", "n"], "smoker": ["no", "no"], "age": [33, 44]}


def trained():
    data = fp.Dataset.from_frame(
        TRAIN, label="ill", client="who", standardise=True, categorical="zip"
    )
    return fp.LogisticRegression(data, metrics=["accuracy"])


def test_test_rows_get_the_features_of_the_training_rows(tmp_path):
    problem = trained()
    x = np.linspace(-1, 1, problem.d)
    test = fp.Dataset.from_frame(TEST, encoding=problem.data.encoding)
    assert test.columns == problem.data.columns
    assert test.clients is None
    np.testing.assert_array_equal(test.to_dense(), problem.data.encoding.transform(TEST))
    np.testing.assert_array_equal(problem.margins(x, test), problem.margins(x, TEST))
    path = tmp_path / "test.csv"
    path.write_text("who,zip,ill,smoker,age\nw,2,p,no,33\nu,2,n,no,44\n")
    loaded = fp.load(path, encoding=problem.data.encoding)
    assert loaded.clients.tolist() == ["w", "u"]
    assert loaded.digest == test.digest
    held_out = fp.LogisticRegression(problem.data, held_out=loaded, metrics=["accuracy"])
    assert held_out.evaluate(x)["held_out_accuracy"] == problem.score(x, test)


def test_rows_that_were_encoded_differently_are_refused():
    """Standardised by itself, or with other categories, a feature means something else."""
    problem = trained()
    for options in ({"standardise": True, "categorical": "zip"}, {"categorical": "zip"}, {}):
        test = fp.Dataset.from_frame(TEST, label="ill", columns=["age", "smoker", "zip"], **options)
        for use in (
            lambda test=test: problem.predict(np.zeros(problem.d), test),
            lambda test=test: problem.score(np.zeros(problem.d), test),
            lambda test=test: fp.LogisticRegression(problem.data, held_out=test),
        ):
            with pytest.raises(InputError, match="encoded differently"):
                use()
    train, test = problem.data.split(0.5, stratify=False)
    fp.LogisticRegression(train, held_out=test).score(np.zeros(problem.d), test)
    plain = {name: TRAIN[name] for name in ("age", "smoker", "ill")}
    one = fp.Dataset.from_frame(plain, label="ill")
    other = fp.Dataset.from_frame({**plain, "smoker": ["no", "si", "no", "si"]}, label="ill")
    assert one.encoding.find_difference(other.encoding) == "smoker"
    fewer = fp.Dataset.from_frame(plain, label="ill", columns=["age"])
    assert one.encoding.find_difference(fewer.encoding) == "smoker"
    assert fewer.encoding.find_difference(one.encoding) == "smoker"
    again = fp.Dataset.from_frame(plain, label="ill", missing="mean")
    assert one.encoding.find_difference(again.encoding) == ""


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ({**TEST, "smoker": ["no", "maybe"]}, {}, "row 1 .*column 'smoker': 'maybe' is not one"),
        ({**TEST, "age": [1, None]}, {}, "row 1 .*column 'age': the value is missing; correct"),
        ({"ill": ["p", "n"], "age": [1, 2]}, {}, "frame: there is no column 'smoker'"),
        ({k: v for k, v in TEST.items() if k != "ill"}, {}, "there is no column 'ill'"),
        ({**TEST, "more": [1, 2]}, {}, "column 'more' was not there when the data was encoded"),
        (TEST, {"standardise": True}, "standardise cannot be given with encoding="),
        (TEST, {"missing": "mean"}, "missing cannot be given with encoding="),
        (TEST, {"drop": "age"}, "drop cannot be given with encoding="),
    ],
)
def test_test_rows_that_do_not_fit_are_refused(rows, options, said):
    with pytest.raises(InputError, match=said) as error:
        fp.Dataset.from_frame(rows, encoding=trained().data.encoding, **options)
    assert "\n" not in str(error.value)


def test_an_encoding_is_that_of_a_data_set():
    with pytest.raises(InputError, match=r"encoding must be data.encoding"):
        fp.Dataset.from_frame(TEST, encoding=trained().data)
    dropped = fp.Dataset.from_frame(
        {**TEST, "age": [1, None]}, encoding=trained().data.encoding, missing="drop"
    )
    assert dropped.rows == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_to_predict_must_be_finite(bad):
    data = fp.Dataset.from_arrays([[1.0], [2.0]], [0, 1])
    problem = fp.LogisticRegression(data, 2)
    for rows in (np.array([[bad]]), csr_array(np.array([[bad]]))):
        with pytest.raises(InputError, match="rows to predict must be finite, without NaN"):
            problem.predict(np.ones(1), rows)
