"""Metrics: their values, their directions, and their columns in every problem's records."""

import math

import numpy as np
import pytest
from support import OwnSquares, quadratic, refusal

import fedpage as fp
from fedpage.core import metrics as m
from fedpage.core.capabilities import ClientEvaluations
from fedpage.problems.losses import LOSSES
from fedpage.problems.objectives import OBJECTIVES

NAMES = ["accuracy", "f1", "auc", "log_loss", "mse", "rmse", "mae", "r2"]
AGAINST_REFERENCE = ["f_minus_fstar", "distance_to_optimum"]
LABELS = np.array([1, -1, 1, 1, -1, -1, 1, -1])
MARGINS = np.array([0.3, -2.0, -0.5, 4.0, 0.1, -0.1, 0.1, 0.2])


@pytest.fixture(scope="module")
def data():
    return fp.load("census", rows=300), fp.load("census", rows=80, seed=7)


def margins_of(dataset, x):
    return dataset.to_dense() @ x


# Values and directions


def test_every_registered_metric_has_a_row_here():
    assert list(m.METRICS) == NAMES + AGAINST_REFERENCE
    assert list(m.row_metrics(m.METRICS)) == NAMES


def test_metrics_of_binary_margins():
    probability = 1 / (1 + np.exp(-MARGINS))
    likely = np.where(LABELS > 0, probability, 1 - probability)
    pairs = [(a, b) for a in MARGINS[LABELS > 0] for b in MARGINS[LABELS < 0]]
    ranked = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert m.accuracy(MARGINS, LABELS) == 5 / 8
    assert m.f1(MARGINS, LABELS) == 2 * 3 / (2 * 3 + 2 + 1)
    assert m.auc(MARGINS, LABELS) == ranked
    assert m.log_loss(MARGINS, LABELS) == pytest.approx(-np.log(likely).mean(), rel=1e-15)
    assert math.isfinite(m.log_loss(np.array([1e300, -1e300]), [1, -1]))
    assert math.isnan(m.auc(MARGINS, np.ones(8)))
    for function in (m.accuracy, m.f1, m.auc, m.log_loss):
        assert function(MARGINS, LABELS > 0) == function(MARGINS, LABELS)


def test_metrics_of_several_classes():
    scores = np.array([[0.1, 0.7, 0.2], [2.0, 1.0, 0.0], [0.0, 0.0, 5.0], [3.0, 1.0, 0.0]])
    true = np.array([1, 0, 2, 1])
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert m.accuracy(scores, true) == 0.75
    assert m.f1(scores, true) == pytest.approx(np.mean([2 / 3, 2 / 3, 1.0]))
    assert m.log_loss(scores, true) == pytest.approx(-np.log(shares[range(4), true]).mean())
    # each class against the rest: the shares of pairs in order, where a tie is a half
    assert m.auc(scores, true) == pytest.approx(np.mean([2 / 3, 2.5 / 4, 1.0]))
    assert math.isnan(m.auc(scores, np.ones(4)))
    without_2 = m.auc(scores[[0, 1, 3]], true[[0, 1, 3]])
    assert without_2 == pytest.approx(np.mean([0.5, 0.5 * (0.5 + 0.0)]))


def test_metrics_of_regressions():
    outputs, targets = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0])
    assert m.mse(outputs, targets) == pytest.approx(5 / 3)
    assert m.rmse(outputs, targets) == pytest.approx(math.sqrt(5 / 3))
    assert m.mae(outputs, targets) == 1.0
    assert m.r2(outputs, targets) == pytest.approx(1 - 5 / 2)
    assert math.isnan(m.r2(outputs, np.ones(3)))
    assert m.mse(outputs[:, None], targets) == m.mse(outputs, targets)
    with pytest.raises(ValueError, match="3 targets"):
        m.mse(outputs[:2], targets)


def test_metrics_take_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'fedpage[torch]'")
    outputs = torch.tensor(MARGINS, requires_grad=True)
    for name, entry in m.row_metrics(m.METRICS).items():
        assert entry(outputs, torch.tensor(LABELS)) == entry(MARGINS, LABELS), name


def test_directions():
    higher = {name for name in NAMES if m.higher_is_better(name)}
    assert higher == {"accuracy", "f1", "auc", "r2"}
    for prefix in ("", "held_out_", "held_out_clients_", "test_"):
        for name in ("accuracy", "accuracy_worst"):
            assert m.higher_is_better(prefix + name)
        for name in ("loss", "loss_p10", "rmse_worst", "f_minus_fstar"):
            assert not m.higher_is_better(prefix + name)
    assert not any(
        m.higher_is_better(name) for name in ("grad_norm", "bytes", "seconds", "clients")
    )
    assert m.higher_is_better("test_mine", {"mine": True})
    assert m.higher_is_better("mine_p90", {"mine": True})
    for name in ("acuracy", "acuracy_p10"):
        assert "did you mean 'accuracy'" in refusal(m.higher_is_better, name)


def mine(outputs, targets):
    return 0.0


def test_what_metrics_accepts(data):
    entry = m.Metric("other", mine, higher_is_better=True)
    found = m.resolve_metrics(["auc", mine, entry], "p")
    assert list(found) == ["auc", "mine", "other"]
    assert found["mine"].higher_is_better is None
    assert m.resolve_metrics([m.accuracy], "p") == m.resolve_metrics("accuracy", "p")
    renamed = m.resolve_metrics({"area": "auc", "mine": mine}, "p")
    assert renamed["area"].higher_is_better
    problem = fp.LeastSquares(data[0], 10, metrics=["accuracy", mine], held_out=data[1])
    assert problem.describe()["metrics"] == {"accuracy": True, "mine": None}
    assert problem.describe()["held_out"] == data[1].digest
    assert not {"metrics", "held_out"} & fp.LeastSquares(data[0], 10).describe().keys()


NO_CLASSES = fp.Dataset.from_arrays(np.eye(3), [0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda d: m.resolve_metrics(["acuracy"], "p"), "did you mean 'accuracy'"),
        (lambda d: m.resolve_metrics([3], "p"), "must be names"),
        (lambda d: m.resolve_metrics({"loss": mine}, "p"), "'loss'"),
        (lambda d: m.resolve_metrics({"held_out_x": mine}, "p"), "'held_out_x'"),
        (lambda d: m.resolve_metrics({"two words": mine}, "p"), "'two words'"),
        (lambda d: m.resolve_metrics([lambda a, b: 0.0], "p"), "<lambda>"),
        (lambda d: m.metric("auc", higher_is_better=False)(mine), "registered already"),
        (lambda d: fp.LogisticRegression(d, 10, metrics=3), "must be names"),
        (lambda d: fp.LogisticRegression(d, 10, held_out="a9a"), "held_out"),
        (
            lambda d: fp.LogisticRegression(
                d, 10, held_out=fp.Dataset.from_arrays(np.eye(200), np.arange(200) % 2)
            ),
            "200 features",
        ),
        (lambda d: fp.LogisticRegression(d, 10, held_out=NO_CLASSES), "labels"),
        (lambda d: fp.LeastSquares(NO_CLASSES, 1, metrics="auc"), "needs labels"),
        (lambda d: fp.LogisticRegression(d, 20, reg="none", alpha=0.1), "alpha"),
        (lambda d: fp.LogisticRegression(d, 20, reg="l1"), "must be one of"),
        (lambda d: fp.LogisticRegression(d, 20, loss="robust"), "leave loss out"),
        (lambda d: fp.problems.LinearModel(d, 20, loss="hinge"), "unknown loss"),
        (lambda d: fp.problems.LinearModel(d, 20), "give loss="),
    ],
)
def test_wrong_metrics_held_out_rows_and_regularisers_are_refused(data, make, word):
    assert word in refusal(make, data[0])


def test_the_mean_over_clients_skips_undefined_values_and_is_exact():
    values = np.array([0.1, math.nan, 1e16, -1e16, 0.2])
    whole = m.mean_metrics([{"a": values}])
    assert whole == m.mean_metrics([{"a": values[:2]}, {"a": values[2:]}])
    assert whole["a"] == math.fsum([0.1, 0.2]) / 4
    assert math.isnan(m.mean_metrics([{"a": values[1:2]}])["a"])
    assert m.mean_metrics([]) == {}
    halves, factors = [{"a": values[:2]}, {"a": values[2:3] * 1e-16}], np.array([0.5, 2.0, 0.5])
    assert m.mean_metrics(halves, factors)["a"] == pytest.approx(0.55)


# Problems


def test_a_linear_model_records_metrics_and_held_out_columns(data):
    rows, test = data
    problem = fp.LogisticRegression(rows, 10, reg="l2", metrics=NAMES, held_out=test)
    x = np.random.default_rng(0).normal(size=problem.d)  # no two margins tie
    found = problem.evaluate(x)
    plain = fp.LogisticRegression(rows, 10, reg="l2").evaluate(x)
    assert {name: found[name] for name in plain} == plain
    margins, unseen = margins_of(rows, x), margins_of(test, x)
    for name in NAMES:
        assert found[name] == pytest.approx(m.METRICS[name](margins, rows.y), rel=1e-12)
        assert found[f"held_out_{name}"] == pytest.approx(
            m.METRICS[name](unseen, test.y), rel=1e-12
        )
    assert found["held_out_loss"] == pytest.approx(m.log_loss(unseen, test.y), rel=1e-12)
    assert list(found)[-9:] == [f"held_out_{name}" for name in ("loss", *NAMES)]
    assert found == problem.evaluate(x, threads=3)
    assert fp.LogisticRegression(rows, 10, held_out=test).evaluate(x).keys() == {
        "loss", "grad_norm", "held_out_loss",
    }  # fmt: skip


def test_clients_evaluate_metrics_on_their_own_rows(data):
    rows, test = data
    division = fp.power_law(300, 12, exponent=1.6, seed=1)
    problem = fp.LogisticRegression(
        rows, division, metrics=["accuracy", "auc"], weights="size", held_out=test
    )
    x = np.random.default_rng(0).normal(size=problem.d)  # no two margins tie
    clients = np.array([0, 5, 11])
    found = problem.evaluate_clients(clients, x)
    assert isinstance(found, ClientEvaluations)
    margins = margins_of(rows, x)
    for row, client in enumerate(clients):
        own = division.rows(client)
        for name in ("accuracy", "auc"):
            expected = m.METRICS[name](margins[own], rows.y[own])
            np.testing.assert_allclose(found.metrics[name][row], expected, rtol=1e-12)
    options = {"rounds": 4, "seed": 0, "record_every": 2}
    per_client = fp.RunOptions(evaluate="per_client")
    run = fp.simulate(problem, fp.FedAvg(S=3), options=per_client, **options)
    everyone = problem.evaluate_clients(np.arange(12), run.x).metrics
    share = problem.sizes / problem.sizes.sum()
    assert run.last("accuracy") == pytest.approx(float(share @ everyone["accuracy"]))
    known = ~np.isnan(everyone["auc"])
    assert run.last("auc") == pytest.approx(
        np.average(everyone["auc"][known], weights=share[known])
    )
    assert run.last("held_out_auc") == problem.evaluate(run.x)["held_out_auc"]
    assert fp.simulate(
        problem, fp.FedAvg(S=3), **options, options=fp.RunOptions(chunk=5, evaluate="per_client")
    ).same(run)


def test_a_metric_that_fails_is_named(data):
    def broken(outputs, targets):
        raise RuntimeError("two\nlines")

    problem = fp.LogisticRegression(data[0], 10, metrics=[broken])
    said = refusal(problem.evaluate, np.zeros(problem.d))
    assert said.startswith("metric 'broken' cannot be computed on ")
    assert said.endswith(": two lines")


def test_a_quadratic_measures_the_distance_to_its_minimiser():
    base = quadratic()
    problem = fp.Quadratic(base.A, base.b, metrics=["rmse"])
    x = np.ones(problem.d)
    distance = np.linalg.norm(x - problem.x_star) / math.sqrt(problem.d)
    assert problem.evaluate(x)["rmse"] == pytest.approx(distance)
    for options in ({"metrics": ["accuracy"]}, {"held_out": base}):
        assert "quadratic" in refusal(fp.Quadratic, base.A, base.b, **options)


class Mute(OwnSquares):
    """Least squares without predictions."""

    client_predictions = fp.RowProblem.client_predictions


def test_an_own_problem_records_metrics_and_a_held_out_problem():
    rng = np.random.default_rng(0)
    A, y = rng.normal(size=(21, 3)), rng.normal(size=21)
    unseen = OwnSquares(rng.normal(size=(6, 3)), rng.normal(size=6), 2)
    asked = ["mse", "mse_worst", "loss_worst", "f_minus_fstar", "distance_to_optimum"]
    problem = OwnSquares(A, y, 4, metrics=asked, held_out=unseen, weights="size")
    x = np.ones(3)
    found = problem.evaluate(x)
    assert found["mse"] == pytest.approx(2 * found["loss"]) == pytest.approx(m.mse(A @ x, y))
    assert found["held_out_loss"] == unseen.loss(x)
    assert found["held_out_mse"] == pytest.approx(2 * unseen.loss(x))
    assert found["mse_worst"] == pytest.approx(2 * found["loss_worst"])
    assert found["loss_worst"] == max(problem.client_loss(i, x) for i in range(4))
    worst = max(unseen.client_loss(i, x) for i in range(2))
    assert found["held_out_mse_worst"] == pytest.approx(2 * worst)
    best = np.linalg.lstsq(A, y, rcond=None)[0]
    assert found["distance_to_optimum"] == pytest.approx(np.linalg.norm(x - best), rel=1e-6)
    each = problem.evaluate_clients(np.arange(4), x)
    assert each.losses.mean() == pytest.approx(found["loss"])
    np.testing.assert_allclose(each.gradients.mean(axis=0), problem.grad(x), atol=1e-13)
    assert each.metrics["mse"].shape == (4,)
    per_client = fp.RunOptions(evaluate="per_client")
    run = fp.simulate(problem, fp.FedAvg(S=2), rounds=3, seed=0, options=per_client)
    expected = {*asked, "held_out_loss", "held_out_mse", "held_out_mse_worst"}
    assert expected <= set(run.columns)
    assert Mute(A, y, 4).evaluate_clients(np.array([1]), x).metrics == {}
    for options, why in (
        ({"metrics": "mse"}, "Mute.client_predictions"),
        ({"held_out": quadratic()}, "held_out must be a RowProblem"),
    ):
        assert why in refusal(Mute, A, y, 4, **options)


# Objectives


def test_objectives_come_from_the_losses(data):
    losses = ("robust", "logistic", "squares", "squared-hinge", "huber", "poisson", "softmax")
    suffixes = ("", "-l2", "-nonconvex", "-smoothed-l1")
    assert list(OBJECTIVES) == [loss + suffix for loss in losses for suffix in suffixes]
    for name, objective in OBJECTIVES.items():
        if objective.loss in ("softmax", "poisson"):  # no loss of one margin; needs counts
            continue
        problem = objective.problem(data[0], 10)
        assert (problem.name, problem.reg) == (LOSSES[str(objective.loss)].title, objective.reg)
        assert problem.alpha == (0.0 if objective.reg == "none" else 0.1)
        general = fp.problems.LinearModel(data[0], 10, loss=objective.loss, reg=objective.reg)
        x = np.linspace(-1, 1, problem.d)
        assert general.evaluate(x) == problem.evaluate(x), name
        assert general.describe() == problem.describe()
        assert problem.convex == (objective.loss != "robust" and objective.reg != "nonconvex")
    assert OBJECTIVES["squares-l2"].problem(data[0], 10, alpha=0.5).alpha == 0.5
    robust = OBJECTIVES["robust"].problem
    assert "'robust' has no regulariser" in refusal(robust, data[0], 10, alpha=0.5)
    assert "did you mean 'logistic-l2'" in refusal(OBJECTIVES.__getitem__, "logistic-l")


def test_a_weak_epsilon_is_called_weak(run):
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    words = ("run", "fedavg", "--data", "census:rows=100", "--clients", "5", "--S", "5")
    for noise, count in ((0.3, 1), (30, 0)):
        aggregation = f"private:clip=0.1,noise={noise},delta=0.01"
        code, out, _ = run(*words, "--rounds", "2", "--aggregation", aggregation)
        assert code == 0
        assert out.count("an epsilon above 10 is a weak guarantee; raise noise") == count
