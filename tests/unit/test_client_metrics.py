"""Metrics by client: the worst value and percentiles in records, and tables of scores."""

import itertools
import math

import numpy as np
import pytest
from support import refusal

import fedpage as fp
from fedpage.core import metrics as m

ASKED = ["accuracy_worst", "accuracy_p10", "accuracy_p50", "accuracy_p90", "loss_worst", "loss_p90"]


@pytest.fixture(scope="module")
def hospitals():
    """Rows of 7 hospitals of different sizes, for training and for testing."""
    rows = fp.load("census", rows=400)
    rng = np.random.default_rng(0)
    ids = np.array([f"h{i}" for i in rng.choice(7, 400, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05])])
    data = fp.Dataset.from_arrays(rows.X, rows.y, clients=ids)
    return data.split(test=0.3, seed=0)


def point(problem, seed=0):
    return np.random.default_rng(seed).normal(size=problem.d)


def of_clients(problem, data, x, metric):
    """Compute a metric of each id by its definition."""
    margins = problem.margins(x, data)
    return np.array([
        m.METRICS[metric](margins[data.clients == i], data.y[data.clients == i])
        for i in sorted(set(data.clients))
    ])  # fmt: skip


# Names


def test_names_of_quantiles():
    found: dict = m.resolve_metrics(["auc_p5", "loss_worst", "mse", "mse_worst"], "p")
    assert list(found) == ["auc", "auc_p5", "loss_worst", "mse", "mse_worst"]
    assert found["auc_p5"].percent == 5
    assert found["auc_p5"].needs_labels
    assert found["mse_worst"].percent is None
    assert found["mse_worst"].base is m.METRICS["mse"]
    assert repr(found["auc_p5"]) == "Metric(auc_p5, higher is better)"
    renamed: dict = m.resolve_metrics({"poorest": "auc_worst"}, "p")
    assert renamed["poorest"].base.name == "auc"


def test_quantiles_of_functions():
    def mine(outputs, targets):
        return 1.0

    found = m.resolve_metrics(["mine_p50", mine], "p")
    assert list(found) == ["mine", "mine_p50"]
    said = refusal(m.resolve_metrics, [mine, "mine_worst"], "p")
    assert "which client is the worst is not known for 'mine_worst'" in said
    declared = m.Metric("mine", mine, higher_is_better=True)
    assert m.resolve_metrics([declared, "mine_worst"], "p")["mine_worst"].higher_is_better


@pytest.mark.parametrize(
    "name", ["accuracy_p0", "accuracy_p100", "accuracy_wurst", "nothing_p10", "f_minus_fstar_p10",
             "grad_norm_worst", "accuracy_p10_worst", "_worst"],
)  # fmt: skip
def test_names_that_are_no_quantiles(name):
    assert f"unknown metric '{name}'" in refusal(m.resolve_metrics, [name], "p")


def test_a_registered_name_comes_first():
    m.metric("odd_p10", higher_is_better=True)(lambda outputs, targets: 3.0)
    try:
        assert m.resolve_metrics(["odd_p10"], "p")["odd_p10"].on_rows
    finally:
        del m.METRICS["odd_p10"]


def test_quantiles_skip_undefined_values():
    values = np.array([3.0, math.nan, 1.0, 2.0, 10.0])
    asked = m.resolve_metrics(["auc_worst", "mse_worst", "mse_p50", "mse_p10"], "p")
    found = m.client_quantiles(asked, {"auc": values, "mse": values})
    assert found == {
        "auc_worst": 1.0, "mse_worst": 10.0, "mse_p50": 2.5, "mse_p10": pytest.approx(1.3)
    }  # fmt: skip
    assert found["mse_p10"] == pytest.approx(np.nanquantile(values, 0.1), rel=1e-15)
    shuffled = m.client_quantiles(asked, {"auc": values[::-1], "mse": values[::-1]})
    assert shuffled == found
    nothing = np.full(2, math.nan)
    undefined = m.client_quantiles(asked, {"auc": nothing, "mse": nothing})
    assert all(map(math.isnan, undefined.values()))
    asked = m.resolve_metrics(["mse_p90", "mse_p25"], "p")
    infinite = m.client_quantiles(asked, {"mse": np.array([1.0, math.inf, math.inf])})
    assert set(infinite.values()) == {math.inf}


@pytest.mark.parametrize("name", ["accuracy", "f1", "auc", "log_loss", "mse", "rmse", "mae", "r2"])
def test_groups_have_the_metric_of_their_rows(name):
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=40), rng.choice([-1.0, 1.0], 40)
    starts = np.array([0, 7, 8, 30, 40])
    found = m.evaluate_groups(m.METRICS[name], outputs, targets, starts)
    for i, (a, b) in enumerate(itertools.pairwise(starts.tolist())):
        expected = m.METRICS[name](outputs[a:b], targets[a:b])
        np.testing.assert_allclose(found[i], expected, rtol=1e-14)
    said = refusal(m.evaluate_groups, m.METRICS[name], outputs[:30], targets, starts)
    assert f"metric '{name}' cannot be computed on a client's rows" in said


# Records


def test_a_linear_model_records_quantiles(hospitals):
    train, test = hospitals
    problem = fp.LogisticRegression(train, alpha=0.1, metrics=ASKED, held_out=test, weights="size")
    x = point(problem)
    found = problem.evaluate(x)
    for data, prefix in ((train, ""), (test, "held_out_")):
        each = of_clients(problem, data, x, "accuracy")
        assert found[f"{prefix}accuracy_worst"] == each.min()
        for percent in (10, 50, 90):
            expected = np.quantile(each, percent / 100)
            assert found[f"{prefix}accuracy_p{percent}"] == pytest.approx(expected, rel=1e-14)
        losses = of_clients(problem, data, x, "log_loss")
        losses += 0.05 * x @ x if data is train else 0.0  # f_i has the regulariser
        assert found[f"{prefix}loss_worst"] == pytest.approx(losses.max(), rel=1e-12)
        assert found[f"{prefix}loss_p90"] == pytest.approx(np.quantile(losses, 0.9), rel=1e-12)
    plain = fp.LogisticRegression(
        train, alpha=0.1, metrics="accuracy", held_out=test, weights="size"
    )
    before = plain.evaluate(x)
    assert {name: found[name] for name in before} == before
    assert found == problem.evaluate(x, threads=3)


def test_held_out_rows_of_strangers(hospitals):
    train, test = hospitals
    whole = fp.LogisticRegression(train)
    x = point(whole)
    each = of_clients(whole, test, x, "accuracy")
    # the rows of a hospital that does not train count in the pooled column only
    worst = int(each.argmin())
    without = train[train.clients != f"h{worst}"]
    problem = fp.LogisticRegression(without, metrics="accuracy_worst", held_out=test)
    assert (
        problem.evaluate(x)["held_out_accuracy_worst"] == np.delete(each, worst).min() > min(each)
    )
    # after a split by clients, all held-out clients are new
    strangers = test[np.isin(test.clients, ["h0", "h3"])]
    known = train[~np.isin(train.clients, ["h0", "h3"])]
    problem = fp.LogisticRegression(known, metrics="accuracy_worst", held_out=strangers)
    assert problem.evaluate(x)["held_out_accuracy_worst"] == each[[0, 3]].min()
    # rows without ids have no clients
    plain = fp.Dataset.from_arrays(test.X, test.y)
    problem = fp.LogisticRegression(train, metrics="accuracy_worst", held_out=plain)
    assert "held_out_accuracy_worst" not in problem.evaluate(x)
    assert "held_out_accuracy" in problem.evaluate(x)


def test_runs_record_quantiles_in_the_same_bits(hospitals):
    train, test = hospitals
    problem = fp.LogisticRegression(train, metrics=[*ASKED, "auc_worst", "log_loss_p50"],
                                    held_out=test, weights="size")  # fmt: skip
    options = {"rounds": 6, "seed": 0, "record_every": 2}
    pooled = fp.simulate(problem, fp.FedAvg(S=3), **options)
    assert fp.simulate(
        problem, fp.FedAvg(S=3), **options, options=fp.RunOptions(threads=3, chunk=2)
    ).same(pooled)
    runs = [
        fp.simulate(problem, fp.FedAvg(S=3), **options, options=fp.RunOptions(
            evaluate="per_client", chunk=chunk))
        for chunk in (None, 2)
    ]  # fmt: skip
    assert runs[0].same(runs[1])
    for name in problem.metrics:
        if not problem.metrics[name].on_rows:
            np.testing.assert_allclose(runs[0][name], pooled[name], rtol=1e-13)
    assert pooled.best("held_out_accuracy_worst") == pooled["held_out_accuracy_worst"].max()
    assert pooled.cost_to("loss_worst:1e9,hold=0") == 0.0
    stopped = fp.simulate(
        problem, fp.FedAvg(S=3), **options, stop=fp.Stop("accuracy_p10:0.0,hold=0")
    )
    assert stopped.last("round") == 0


def test_poisson_metrics_compare_means_with_counts():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 3))
    data = fp.Dataset("counts", X, rng.poisson(2.0, 40).astype(float), clients=np.arange(40) % 4)
    problem = fp.Poisson(data, metrics=["rmse", "mae_worst"], held_out=data)
    x = np.array([0.1, -0.2, 0.3])
    found = problem.evaluate(x)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((np.exp(X @ x) - data.y) ** 2)))
    assert found["held_out_rmse"] == pytest.approx(found["rmse"])
    assert found["held_out_mae_worst"] == pytest.approx(found["mae_worst"])
    each = problem.evaluate_clients(np.arange(4), x).metrics["mae"]
    assert found["mae_worst"] == pytest.approx(each.max())
    error = m.METRICS["rmse"](problem.predict(x, data), data.y)
    assert found["rmse"] == pytest.approx(error)


def test_a_network_records_quantiles():
    torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'fedpage[torch]'")
    generator = torch.Generator().manual_seed(0)

    def rows(n):
        return torch.randn(n, 3, generator=generator), torch.randn(n, 1, generator=generator)

    clients, others = [rows(n) for n in (5, 8, 3)], [rows(4), rows(6)]
    model = torch.nn.Linear(3, 1)
    asked = ["mse_worst", "loss_worst", "loss_p50"]
    problem = fp.TorchProblem(
        model, torch.nn.MSELoss(), clients, metrics=asked, held_out=rows(4),
        held_out_clients=others, weights="size", dtype="float64",
    )  # fmt: skip
    found = problem.evaluate(problem.x0)
    each = [problem.evaluate_on(problem.x0, own)["loss"] for own in clients]
    strangers = [problem.evaluate_on(problem.x0, own)["loss"] for own in others]
    assert found["loss_worst"] == pytest.approx(max(each))
    assert found["loss_p50"] == pytest.approx(np.median(each))
    assert found["mse_worst"] == pytest.approx(max(each))
    assert found["held_out_clients_loss_worst"] == pytest.approx(max(strangers))
    assert "held_out_loss_worst" not in found
    assert list(problem.client_scores(problem.x0, metric="mse").values()) == pytest.approx(each)
    said = refusal(fp.TorchProblem, model, torch.nn.MSELoss(), clients, metrics="f_minus_fstar")
    assert "'f_minus_fstar' needs a reference solution" in said


# Tables of scores


def test_scores_of_hospitals(hospitals):
    train, test = hospitals
    problem = fp.LogisticRegression(train)
    x = point(problem)
    scores = problem.client_scores(x, test)
    assert list(scores) == [f"h{i}" for i in range(7)]
    assert list(scores.values()) == list(of_clients(problem, test, x, "accuracy"))
    assert scores.rows == {i: int((test.clients == i).sum()) for i in scores}
    assert scores[scores.worst] == min(scores.values())
    own = problem.client_scores(x, metric="auc")
    assert list(own.values()) == pytest.approx(list(of_clients(problem, train, x, "auc")))
    assert own.rows == dict(zip(own, problem.sizes, strict=True))
    losses = problem.client_scores(x, metric="loss")
    assert losses[losses.worst] == max(losses.values())
    lines = str(scores).splitlines()
    assert len(lines) == 8
    assert lines[0].split() == ["client", "accuracy", "rows"]
    assert repr(scores).startswith("ClientScores(accuracy of 7 clients, worst ")
    assert "<table" in scores._repr_html_()
    numbered = fp.LogisticRegression(train, 40).client_scores(x)
    assert list(numbered) == list(range(40))
    assert str(numbered).endswith("... and 20 more clients")


def test_undefined_scores():
    data = fp.Dataset.from_arrays(np.eye(4), [0, 1, 1, 1], clients=["a", "a", "b", "b"])
    scores = fp.LogisticRegression(data).client_scores(np.arange(4.0), metric="auc")
    assert scores["a"] == 1.0
    assert math.isnan(scores["b"])
    assert "undefined" in str(scores)
    assert scores.worst == "a"
    numbers = fp.Dataset.from_arrays(np.eye(4), np.arange(4.0))
    assert fp.LeastSquares(numbers, 2).client_scores(np.zeros(4)).metric == "rmse"
    only = fp.LogisticRegression(data, fp.by_id(["b", "b", "b", "a"], min_rows=1))
    assert len(only.client_scores(np.zeros(4))) == 2


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda p, x, t: p.client_scores(x, t.X), "says whose row each is"),
        (lambda p, x, t: p.client_scores(x, fp.Dataset.from_arrays(t.X, t.y)), "client=COLUMN"),
        (lambda p, x, t: p.client_scores(x, t, metric="acuracy"), "did you mean 'accuracy'"),
        (lambda p, x, t: p.client_scores(x, t, metric="accuracy_p10"), "client's rows"),
        (lambda p, x, t: p.client_scores(x, metric="f_minus_fstar"), "client's rows"),
        (lambda p, x, t: p.client_scores(x[:3], t), "must have shape"),
    ],
)
def test_scores_refuse_what_makes_no_sense(hospitals, call, why):
    train, test = hospitals
    problem = fp.LogisticRegression(train)
    assert why in refusal(call, problem, point(problem), test)
