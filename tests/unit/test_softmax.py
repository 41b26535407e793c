"""Check Softmax as users meet it: labels, metrics, held-out rows, names, and the known optimum."""

import numpy as np
import pytest
from support import refusal

import fedpage as fp
from fedpage.core.random import RoundDraws


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
