"""Predictions of linear models on new rows, and the classes of Softmax."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from support import refusal

import fedpage as fp
from fedpage.core.random import RoundDraws

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


# Softmax: labels, held-out rows and data sets of several classes


def text_labels(rows: int = 90) -> fp.Dataset:
    """Make rows of three classes that lie in three directions, with text for labels."""
    rng = np.random.default_rng(0)
    numbers = np.arange(rows) % 3
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    names = np.array(["ash", "elm", "oak"])
    return fp.Dataset.from_arrays(centres[numbers] + rng.normal(size=(rows, 2)), names[numbers])


# --- labels ---------------------------------------------------------------------------------------


def test_labels_are_text_or_whole_numbers():
    data = text_labels()
    problem = fp.Softmax(data, 6, metrics="accuracy")
    assert problem.classes == ("ash", "elm", "oak")
    assert (problem.d, problem.outputs) == (6, 3)
    numbers = fp.Dataset.from_arrays(data.X, 10 * data.y - 3)  # -3, 7, 17
    same = fp.Softmax(numbers, 6, metrics="accuracy")
    assert same.classes == (-3, 7, 17)
    run = [fp.simulate(p, fp.FedPAGE(S=2, K=3), rounds=20, seed=0) for p in (problem, same)]
    assert run[0].same(run[1])
    assert run[0].last("accuracy") > 0.9


def test_two_classes_have_two_outputs():
    problem = fp.Softmax(fp.load("census", rows=60), 4, metrics=["accuracy", "f1", "log_loss"])
    assert problem.classes == (-1, 1)
    row = problem.evaluate(np.zeros(problem.d))
    assert row["loss"] == pytest.approx(np.log(2))
    assert row["log_loss"] == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "a", "a"], "are all 'a', which is a single class"),
        ([0.5, 1.5, 2.5], "3 different values"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    assert message in refusal(fp.Softmax, fp.Dataset.from_arrays(np.eye(3), labels), 1)


# --- evaluation -----------------------------------------------------------------------------------


def test_held_out_rows_have_the_classes_of_the_training_rows():
    data = text_labels()
    elm_or_oak = data.y > 0
    names = np.array(["ash", "elm", "oak"])[data.y.astype(int)]
    some = fp.Dataset.from_arrays(data.X[elm_or_oak], names[elm_or_oak])
    problem = fp.Softmax(data, 3, metrics="accuracy", held_out=some)
    toward_oak = np.zeros(6)
    toward_oak[[1, 2]], toward_oak[[4, 5]] = -1.0, [2.0, -2.0]
    assert problem.evaluate(toward_oak)["held_out_accuracy"] > 0.9
    other = fp.Dataset.from_arrays(np.eye(2), ["oak", "yew"])
    assert "'yew'" in refusal(fp.Softmax, data, 3, held_out=other)


def test_rescaled_clients_have_rescaled_gradients():
    problem = fp.Softmax(text_labels(), 3, alpha=0.1, reg="l2")
    x, everyone = np.linspace(-1, 1, problem.d), np.arange(3)
    twice = problem.rescale(2.0)
    for one, two in zip(
        *(p.evaluate_clients(everyone, x)[:2] for p in (problem, twice)), strict=True
    ):
        np.testing.assert_allclose(two, 2 * one, rtol=1e-14)
    oracles = [p.oracle(everyone, RoundDraws(0, 0)) for p in (problem, twice)]
    one, two = (oracle.grad(x, oracle.batch(2)) for oracle in oracles)
    np.testing.assert_allclose(two, 2 * one, rtol=1e-13)


# --- names, data sets, the optimum ----------------------------------------------------------------


def test_data_sets_of_several_classes():
    digits, ten = fp.load("digits"), fp.load("digits:classes=10")
    assert ten.classes == tuple(range(10))
    assert (ten.y % 2 == (digits.y + 1) / 2).all()
    assert (ten.X != digits.X).nnz == 0
    assert np.bincount(ten.y.astype(int))[:3].tolist() == [178, 182, 177]
    for name, rows, features in (("iris", 150, 4), ("wine", 178, 13)):
        data = fp.load(name)
        assert (data.rows, data.features, len(data.classes)) == (rows, features, 3)
        assert len(data.columns) == features
        np.testing.assert_allclose(data.X.mean(axis=0), 0, atol=1e-12)
    assert fp.load("iris").classes == ("setosa", "versicolor", "virginica")
