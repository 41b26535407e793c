"""A user's own loss as a class, and the arguments of linear models that cannot be used."""

import decimal
import math

import numpy as np
import pytest
from support import refusal

import fedpage as fp

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
REAL = fp.Dataset.from_arrays(X, X @ [1.0, 2.0, 3.0])
BINARY = fp.Dataset.from_arrays(X, X[:, 0] > 0)
EXACT = decimal.Decimal(1)


class PseudoHuber:
    """A smooth loss with a constant of its own."""

    curvature = 1.0
    convex = True

    def value(t, b):
        return math.sqrt(1 + (t - b) ** 2) - 1

    def slope(t, b):
        return (t - b) / math.sqrt(1 + (t - b) ** 2)


class Logistic:
    """The logistic loss with functions of numpy."""

    curvature = 0.25
    convex = True
    needs_labels = True

    def value(t, b):
        return np.logaddexp(0.0, -b * t)

    def slope(t, b):
        return -b / (1 + np.exp(b * t))


def scaled_squares(factor):
    """Make a class whose functions use a number of this function."""

    class Scaled:
        curvature = float(factor)

        def value(t, b):
            return factor * (t - b) ** 2 / 2

        def slope(t, b):
            return factor * (t - b)

    return Scaled


def changed(**attributes):
    """Make squares with some attributes changed; None removes one."""
    functions = {
        "curvature": 1.0,
        "value": lambda t, b: (t - b) ** 2 / 2,
        "slope": lambda t, b: t - b,
        **attributes,
    }
    return type("Mine", (), {k: v for k, v in functions.items() if v is not None})


def test_an_own_loss_is_the_formula():
    x = np.array([0.3, -0.2, 0.5])
    residual = X @ x - REAL.y
    problem = fp.LinearModel(REAL, 6, loss=PseudoHuber)
    assert problem.loss(x) == pytest.approx((np.sqrt(1 + residual**2) - 1).mean(), rel=1e-13)
    expected = X.T @ (residual / np.sqrt(1 + residual**2)) / 60
    np.testing.assert_allclose(problem.grad(x), expected, rtol=0, atol=1e-14)
    assert problem.convex
    assert "PseudoHuber" in repr(problem)


def test_an_own_loss_runs_as_the_built_in_one():
    own = fp.LinearModel(BINARY, 6, loss=Logistic, alpha=0.1, intercept=True)
    built_in = fp.LogisticRegression(BINARY, 6, alpha=0.1, intercept=True)
    method = fp.FedPAGE(S=3, K=4, eta_g=0.5)
    one, other = (fp.simulate(problem, method, rounds=20, seed=0) for problem in (own, built_in))
    np.testing.assert_allclose(one.x, other.x, rtol=0, atol=1e-12)
    assert own.smoothness() == built_in.smoothness()
    assert own.describe()["loss_digest"]


def test_numbers_of_a_closure_are_part_of_the_loss():
    x = np.ones(3)
    once, twice = (fp.LinearModel(REAL, 6, loss=scaled_squares(c)) for c in (1.0, 2.0))
    assert twice.loss(x) == pytest.approx(2 * once.loss(x))
    assert once.describe()["loss_digest"] != twice.describe()["loss_digest"]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (changed(slope=None), "static function slope(t, b)"),
        (changed(value=lambda self, t, b: t), "static function value(t, b), not another"),
        (
            changed(value=lambda t, b: -((t - b) ** 2) / 2, slope=lambda t, b: b - t, convex=True),
            "convex = True, but",
        ),
        (changed(slope=lambda t, b: b - t), "slope must be the derivative of value by t; at t="),
        (changed(curvature=None), "curvature must be a positive number"),
        (changed(curvature=-1.0), "curvature must be a positive number"),
        (changed(curvature=0.1), "curvature = 0.1 is not a bound of the second derivative"),
        (changed(convex="yes"), "convex must be True or False"),
        (changed(value=lambda t, b: "x"), "must return a real number, not"),
        (changed(value=lambda t, b: (t - b) ** 2 / 2 + 0j), "must return a real number, not c"),
        (changed(value=lambda t, b: np.array([t])), "must return a real number, not array"),
        (changed(value=lambda t, b: math.nan), "value or slope is not finite at every t"),
        (changed(value=lambda t, b: EXACT * t), "numba cannot compile value"),
        (changed(value=lambda t, b: nowhere * t), "'nowhere'"),  # type: ignore[name-defined] # noqa: F821
        (PseudoHuber(), "give the class itself, without parentheses"),
        (lambda t, b: t, "expected the name of a loss or a class"),
        ("hubr", "unknown loss 'hubr': did you mean 'huber'"),
        (None, "LinearModel: give loss=, one of robust, logistic"),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused(loss, said):
    assert said in refusal(fp.LinearModel, REAL, 6, loss=loss)


def test_alpha_is_not_ignored():
    x = np.ones(3)
    plain = fp.LogisticRegression(BINARY, 20)
    regularised = fp.LogisticRegression(BINARY, 20, alpha=0.1)
    assert regularised.loss(x) - plain.loss(x) == pytest.approx(0.15)
    assert "l2 alpha=0.1" in repr(regularised)
    for number in (np.float32(0.5), np.int64(1), np.float64(0.25)):
        assert fp.LogisticRegression(BINARY, 20, alpha=number).alpha == float(number)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alpha": -1}, "alpha must be a finite number of at least 0, not -1"),
        ({"alpha": "1"}, "alpha must be a finite number"),
        ({"alpha": True}, "alpha must be a finite number"),
        ({"reg": "none", "alpha": 0.1}, "alpha=0.1 is the weight of a regulariser"),
        ({"reg": "L2"}, "not 'L2'; did you mean 'l2'"),
        ({"intercept": "yes"}, "intercept must be True or False, not 'yes'"),
        ({"clients": np.arange(60) % 3}, "give fp.by_id(ids)"),
        ({"clients": "6"}, "the number of clients must be a whole number of at least 1, not '6'"),
    ],
)
def test_arguments_that_cannot_be_used(options, said):
    assert said in refusal(fp.LogisticRegression, BINARY, **{"clients": 20, **options})


def test_a_regression_on_text_of_three_kinds_is_refused():
    colours = fp.Dataset.from_arrays(X, np.array(["r", "g", "b"])[np.arange(60) % 3])
    assert "3 classes such as 'b', and not numbers" in refusal(fp.LeastSquares, colours, 6)
    assert "must be of two kinds" in refusal(fp.LogisticRegression, colours, 6)
    two = fp.Dataset.from_arrays(X, np.array(["r", "g"])[np.arange(60) % 2])
    assert sorted(set(fp.LeastSquares(two, 6).data.y)) == [-1.0, 1.0]


OWN = """
import numpy as np

import fedpage as fp
from fedpage.data.partition import PARTITIONS, Partition


@fp.metric("missed", higher_is_better=False, minimum=0.0, maximum=1.0)
def false_negatives(outputs, targets):
    return float(np.mean(outputs[targets > 0] <= 0))


def mean_output(outputs, targets):
    return float(np.mean(outputs))


@PARTITIONS.register("in-turn")
def in_turn(n, clients, each=1):
    turns = np.arange(n) // each % clients
    order = np.argsort(turns, kind="stable")
    return Partition(f"in_turn({clients})", order, np.cumsum([0, *np.bincount(turns)]))
"""


@pytest.fixture
def own_file(tmp_path):
    from fedpage.core.metrics import METRICS
    from fedpage.data.partition import PARTITIONS

    path = tmp_path / "mine.py"
    path.write_text(OWN)
    yield path
    METRICS.pop("missed", None)
    PARTITIONS.pop("in-turn", None)


def test_own_metrics_and_partitions_on_the_command_line(run, own_file, tmp_path):
    words = ["run", "fedavg", "--data", "census:rows=200", "--clients", "10", "--rounds", "10"]
    words += ["--objective", "logistic", "--partition", "mine.py@in_turn:2"]
    words += ["--metrics", "accuracy,mine.py@false_negatives,mine.py@mean_output,missed_worst"]
    words += ["--target", "missed:0.9", "--out", str(tmp_path / "out")]
    code, _, err = run(*words)
    assert code == 0, err
    history = fp.History.load(tmp_path / "out" / "history.jsonl")
    assert {"missed", "missed_worst", "mean_output", "accuracy"} <= set(history.columns)
    assert not history.higher_is_better("missed")
    assert history.meta["problem"]["partition"] == "in_turn(10)"
    code, _, err = run(*words[:-6], "--metrics", "mine.py@nothing")
    assert (code, "has no function 'nothing'" in err) == (2, True)
    code, _, err = run(*words[:10], "--partition", "mine.py@mean_output")
    assert code == 2


def test_own_metrics_and_partitions_in_a_study_file(own_file, tmp_path):
    path = tmp_path / "deep" / "study.toml"
    path.parent.mkdir()
    path.write_text(
        'rounds = 4\nrecord_every = 1\nseeds = 1\ntarget = "missed:0.9"\n'
        "[methods]\nfedavg = {S = 2}\n"
        '[problems.one]\ndata = "census:rows=100"\nclients = 5\nobjective = "logistic"\n'
        'partition = "../mine.py@in_turn"\nmetrics = "accuracy, ../mine.py@false_negatives"\n'
    )
    study = fp.Study.load(path, store=tmp_path / "store").run(jobs=2)
    (history,) = study.runs().values()
    assert "missed" in history.columns
    assert study.run().new_runs == 0
    own_file.write_text(OWN.replace("<= 0", "< 0"))  # another metric has other records
    assert fp.Study.load(path, store=tmp_path / "store").run().new_runs == 1


def test_a_definition_that_is_executed_again_replaces_its_entry():
    from fedpage.core.spec import Registry

    shapes: Registry[object] = Registry("shape")
    for number in (1, 2):
        exec("def square(): return " + str(number), space := {"__name__": "mine"})
        shapes.add("square", space["square"])
    assert shapes["square"] is space["square"]
    assert "registered" in refusal(shapes.add, "square", len)
