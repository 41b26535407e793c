"""Check the predictions of linear models on new rows."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from support import refusal

import fedpage as fp

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(60, 3))


def labelled(labels) -> fp.Dataset:
    return fp.Dataset.from_arrays(ROWS, np.asarray(labels), name="mine")


def test_two_classes_are_predicted_as_users_wrote_them():
    data = labelled(np.where(ROWS[:, 0] > 0, "yes", "no"))
    problem = fp.LogisticRegression(data, 4)
    x = np.array([2.0, 0.0, 0.5])
    margins = ROWS @ x
    np.testing.assert_allclose(problem.margins(x, ROWS), margins)
    np.testing.assert_allclose(problem.margins(x, csr_array(ROWS)), margins)
    np.testing.assert_allclose(problem.margins(x, data), margins)
    assert problem.predict(x, ROWS).tolist() == np.where(margins > 0, "yes", "no").tolist()
    proba = problem.predict_proba(x, ROWS)
    np.testing.assert_allclose(proba[:, 1], 1 / (1 + np.exp(-margins)))
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    expected = np.mean((margins > 0) == (ROWS[:, 0] > 0))
    assert problem.score(x, data) == expected
    flipped = fp.Dataset.from_arrays(ROWS[:5], ["yes"] * 5)
    assert problem.score(x, flipped) == np.mean(margins[:5] > 0)


def test_intercepts_are_the_last_coordinates():
    data = labelled(ROWS[:, 0] > 0)
    problem = fp.LogisticRegression(data, 4, intercept=True)
    x = np.array([1.0, 2.0, 3.0, -1.5])
    coefficients, intercepts = problem.coefficients(x)
    assert coefficients.tolist() == [[1.0, 2.0, 3.0]]
    assert intercepts.tolist() == [-1.5]
    np.testing.assert_allclose(problem.margins(x, ROWS), ROWS @ x[:3] - 1.5)
    assert problem.predict(x, ROWS).dtype == bool


def test_a_softmax_has_an_output_for_each_class():
    labels = np.array(["a", "b", "c"])[ROWS.argmax(axis=1)]
    problem = fp.Softmax(labelled(labels), 4, intercept=True)
    table = np.vstack([3.0 * np.eye(3), np.zeros((1, 3))])  # (p + 1, C)
    x = table.ravel()
    coefficients, intercepts = problem.coefficients(x)
    np.testing.assert_array_equal(coefficients, 3.0 * np.eye(3))
    np.testing.assert_array_equal(intercepts, np.zeros(3))
    np.testing.assert_allclose(problem.margins(x, ROWS), 3.0 * ROWS)
    assert problem.predict(x, ROWS).tolist() == labels.tolist()
    np.testing.assert_allclose(problem.predict_proba(x, ROWS).sum(axis=1), 1.0)
    assert problem.score(x, problem.data) == 1.0
    assert problem.score(x, problem.data[:7]) == 1.0


def test_numbers_are_predicted_and_scored_by_r2():
    y = ROWS @ [1.0, 2.0, 3.0] + 0.1 * RANDOM.normal(size=60)
    problem = fp.LeastSquares(fp.Dataset("numbers", ROWS, y), 4)
    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(problem.predict(x, ROWS), ROWS @ x)
    residual = ((y - ROWS @ x) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert problem.score(x, problem.data) == pytest.approx(1 - residual)
    counts = fp.Poisson(fp.Dataset("counts", ROWS, np.arange(60.0)), 4)
    np.testing.assert_allclose(counts.predict(x, ROWS), np.exp(ROWS @ x))
    assert "has no probabilities" in refusal(counts.predict_proba, x, ROWS)


def test_a_sparse_file_may_lack_the_last_features():
    data = fp.Dataset.from_arrays(csr_array(np.eye(4)), [0, 1, 0, 1])
    problem = fp.LogisticRegression(data, 2)
    short = fp.Dataset.from_arrays(csr_array(np.eye(3)), [0, 1, 0])
    assert problem.margins(np.arange(4.0), short).tolist() == [0.0, 1.0, 2.0]


def test_arguments_that_cannot_be_used():
    problem = fp.LogisticRegression(labelled(ROWS[:, 0] > 0), 4)
    history = fp.simulate(problem, fp.FedAvg(S=2), rounds=1, seed=0)
    x, other = np.zeros(3), labelled(np.where(ROWS[:, 0] > 0, "x", "z"))
    for call, point, rows, word in (
        (problem.predict, x, np.ones((2, 4)), "must have 3 columns"),
        (problem.predict, x, np.ones(3), "must have 3 columns"),
        (problem.predict, x, [["a", "b", "c"]], "must be numbers"),
        (problem.predict, np.zeros(2), ROWS, "x must have shape (3,)"),
        (problem.score, x, ROWS, "score needs a Dataset"),
        (problem.score, x, other, "which the training rows do not have"),
        (problem.predict, history, ROWS, "history.x"),
        (problem.predict, {"age": [1.0]}, ROWS, "history.x"),
        (problem.predict, "history.x", ROWS, "history.x"),
    ):
        assert word in refusal(call, point, rows)
