"""Exact fits over sites: every number equals the pooled analysis by statsmodels."""

import functools
import json
from typing import Any

import numpy as np
import polars
import pytest
from sklearn import datasets
from support import refusal

import fedpage as fp
from fedpage.inference import fit

COVARIANCES = ["model", "HC0", "cluster"]


def sites_of(n: int) -> np.ndarray:
    """Return site names of unequal sites, one much smaller than the others."""
    return np.repeat(
        ["north", "south", "west", "isle"], [n - n // 3 - n // 5 - 9, n // 3, n // 5, 9]
    )


@functools.cache
def table_of(family: str) -> tuple[polars.DataFrame, str]:
    """Return a table with a factor and columns of unlike units, and the outcome's column."""
    rng = np.random.default_rng(1)
    if family == "gaussian":
        X, y = datasets.load_diabetes(return_X_y=True, scaled=False)
        columns = {"age": X[:, 0], "bmi": X[:, 2], "ldl": 1e4 * X[:, 5] + 5e6}
    else:
        X, two = datasets.load_breast_cancer(return_X_y=True)
        columns = {"area": X[:, 3], "smooth": X[:, 4], "fractal": X[:, 9] * 1e-3}
        y = two if family == "logistic" else rng.poisson(np.exp(X[:, 0] / 10 - 1))
    stage = rng.choice(["I", "II", "III"], len(y))
    order = rng.permutation(len(y))
    columns |= {"stage": stage, "y": y, "site": sites_of(len(y))[np.argsort(order)]}
    return polars.DataFrame(columns), "y"


@functools.cache
def fit_table(family: str, **options):
    table, label = table_of(family)
    return fit(table, family, label=label, client="site", **options)


@functools.cache
def reference(family: str, covariance: str):
    """Return statsmodels' result on the pooled rows, with columns in our order."""
    sm = pytest.importorskip("statsmodels.api", reason="statsmodels is not installed")
    table, label = table_of(family)
    numbers = [name for name in table.columns if name not in ("stage", "y", "site")]
    X = np.column_stack(
        [*(table[name] for name in numbers), *(table["stage"] == level for level in ("II", "III")),
         np.ones(len(table))]
    ).astype(float)  # fmt: skip
    groups = np.unique(table["site"].to_numpy(), return_inverse=True)[1]
    kinds = {
        "model": {"cov_type": "nonrobust"}, "HC0": {"cov_type": "HC0"},
        "cluster": {"cov_type": "cluster", "cov_kwds": {"groups": groups}},
    }  # fmt: skip
    y = table[label].to_numpy()
    if family == "gaussian":
        return sm.OLS(y, X).fit(**kinds[covariance])
    own = sm.families.Binomial() if family == "logistic" else sm.families.Poisson()
    # statsmodels iterates on raw columns here, whose condition limits its last digits
    return sm.GLM(y, X, family=own).fit(tol=1e-14, maxiter=200, **kinds[covariance])


def close(ours, theirs, rtol=1e-6):
    np.testing.assert_allclose(ours, theirs, rtol=rtol)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("family", ["logistic", "gaussian", "poisson"])
def test_coefficients_and_errors_are_those_of_the_pooled_rows(family, covariance):
    ours, theirs = fit_table(family, covariance=covariance), reference(family, covariance)
    assert ours.names[-3:] == ("stage=II", "stage=III", "Intercept")
    close(ours.params, theirs.params)
    close(ours.bse, theirs.bse)
    close(ours.tvalues, theirs.tvalues)
    close(ours.cov_params(), theirs.cov_params())
    if covariance != "cluster":  # with few sites ours is Student's, which statsmodels leaves out
        small = np.abs(ours.tvalues) < 6
        close(ours.pvalues[small], theirs.pvalues[small])
        close(ours.conf_int(0.1), theirs.conf_int(alpha=0.1), 1e-5)
        q = np.eye(len(ours.params))[[3, 4]]
        theirs_test = theirs.wald_test(q, use_f=family == "gaussian" and covariance == "model",
                                       scalar=True)  # fmt: skip
        close(ours.wald_test("stage").statistic, theirs_test.statistic)
        close(ours.wald_test("stage").pvalue, theirs_test.pvalue)


@pytest.mark.parametrize("family", ["logistic", "gaussian", "poisson"])
def test_likelihoods_and_deviances_are_those_of_the_pooled_rows(family):
    ours, theirs = fit_table(family), reference(family, "model")
    close(ours.llf, theirs.llf, 1e-12)
    close(ours.aic, theirs.aic, 1e-12)
    if family == "gaussian":
        close(ours.bic, theirs.bic, 1e-12)
        close(ours.scale, theirs.scale, 1e-10)
        close(ours.lr_test().statistic, theirs.fvalue, 1e-9)
        close(ours.lr_test().pvalue, theirs.f_pvalue)
        return
    close(ours.bic, theirs.bic_llf, 1e-12)
    close(ours.deviance, theirs.deviance, 1e-10)
    close(ours.null_deviance, theirs.null_deviance, 1e-10)
    close(ours.llnull, theirs.llnull, 1e-10)
    close(ours.predict(fp.Dataset.from_frame(table_of(family)[0], label="y", client="site")),
          theirs.fittedvalues)  # fmt: skip


def test_with_few_sites_clustered_intervals_are_students_and_say_so():
    from scipy import stats

    found = fit_table("logistic", covariance="cluster")
    reach = found.conf_int()[:, 1] - found.params
    close(reach / found.bse, stats.t(3).ppf(0.975))
    assert "clustered by 4 sites" in found.summary()


def survival():
    rng = np.random.default_rng(2)
    n = 240
    age, dose = rng.normal(60, 10, n), rng.choice(["low", "mid", "high"], n)
    time = rng.exponential(np.exp(-0.03 * (age - 60) + 0.4 * (dose == "low")))
    return age, dose, np.ceil(8 * time) / 4, (rng.random(n) < 0.7).astype(int), sites_of(n)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_regression_is_stratified_by_site(ties):
    hazard = pytest.importorskip(
        "statsmodels.duration.hazard_regression", reason="statsmodels is not installed"
    )
    age, dose, time, event, site = survival()
    table = {"age": age + 1e6, "dose": dose, "time": time, "event": event, "site": site}
    ours = fit(table, "cox", label=("time", "event"), client="site", ties=ties,
               reference={"dose": "mid"})  # fmt: skip
    X = np.column_stack([age, dose == "high", dose == "low"]).astype(float)
    theirs = hazard.PHReg(time, X, status=event, strata=site, ties=ties).fit(tol=1e-12)
    assert ours.names == ("age", "dose=high", "dose=low")
    close(ours.params, theirs.params)
    close(ours.bse, theirs.bse)
    close(ours.llf, theirs.llf, 1e-12)
    assert (ours.events, ours.nobs, ours.deviance) == (event.sum(), 240, None)


LIFELINES: dict[str, Any] = {
    "params": [0.03442605553935316, -0.07874332284026411, -0.16301820692675414],
    "bse": [0.008637239391935298, 0.19034715225110257, 0.18933730244141553],
    "lr": 16.742229564471018,
    "aic": 1172.9908541828388,
}


def test_cox_regression_has_the_numbers_of_lifelines():
    """Lifelines 0.30.3, strata, Efron, precision=1e-10, r_precision=1e-14, on these rows."""
    age, dose, time, event, site = survival()
    data = fp.Dataset.from_frame(
        {"age": age, "dose": dose, "y": np.arange(240.0), "site": site}, label="y", client="site"
    )
    found = fit(data, "cox", time=time, event=event, reference={"dose": "mid"})
    errors = np.abs(found.params - LIFELINES["params"]) / found.bse
    assert errors.max() < 1e-5  # lifelines stops earlier than we do
    close(found.bse, LIFELINES["bse"])
    close(found.lr_test().statistic, LIFELINES["lr"])
    close(found.aic, LIFELINES["aic"])


def test_clustered_cox_without_ties():
    hazard = pytest.importorskip(
        "statsmodels.duration.hazard_regression", reason="statsmodels is not installed"
    )
    age, dose, _, event, site = survival()
    time = np.random.default_rng(5).permutation(240) + 1.0
    rows = {"age": age, "dose": dose, "t": time, "e": event, "site": site}
    ours = fit(rows, "cox", label=("t", "e"), client="site", covariance="cluster")
    X = np.column_stack([age, dose == "low", dose == "mid"]).astype(float)
    groups = np.unique(site, return_inverse=True)[1]
    theirs = hazard.PHReg(time, X, status=event, strata=site, ties="breslow").fit(
        groups=groups, tol=1e-12
    )
    close(ours.bse, theirs.bse)


def test_cox_derivatives_are_those_of_its_loss():
    age, dose, time, event, site = survival()
    data = fp.Dataset.from_arrays(
        np.column_stack([age / 10, dose == "low"]), np.zeros(240) + (age > 60), clients=site
    )
    for ties in ("efron", "breslow"):
        problem = fp.CoxModel(data, time, event, ties=ties)
        x, h = np.array([0.3, -0.4]), 1e-5
        H = np.array([problem.client_hessian(1, x)[i] for i in range(2)])
        for i, unit in enumerate(np.eye(2) * h):
            slope = (problem.client_loss(1, x + unit) - problem.client_loss(1, x - unit)) / (2 * h)
            bend = problem.client_grad(1, None, x + unit) - problem.client_grad(1, None, x - unit)
            close(problem.client_grad(1, None, x)[i], slope)
            close(H[i], bend / (2 * h))


def test_a_fit_takes_few_exchanges_and_counts_its_bytes():
    found = fit_table("logistic")
    d, sites = 6, 4
    newton = found.exchanges - 1
    assert 4 <= newton <= 10
    numbers = newton * (1 + d + d * (d + 1) // 2) + 2 * (d - 1) + 5
    assert found.bytes_up == 8 * sites * numbers
    assert found.bytes_down == 8 * sites * d * newton
    assert fit_table("logistic", covariance="HC0").exchanges == found.exchanges + 1
    assert fit_table("gaussian").exchanges <= 3


def test_summaries_have_every_parameter_in_every_format(tmp_path):
    found = fit_table("logistic")
    for format in ("text", "markdown", "latex", "csv", "json"):
        text = found.summary(format, ratios=True)
        assert all(name in text for name in ("area", "stage=II", "Intercept", "odds ratio"))
    read = json.loads(found.summary("json"))
    assert read["coefficients"][0]["coef"] == found.params[0]
    assert read["exchanges"] == found.exchanges
    assert found.save(tmp_path / "fit.tex").read_text().startswith("Logistic regression")
    assert "suffix" in refusal(found.save, tmp_path / "fit.doc")
    assert "<table>" in found._repr_html_()
    assert "differences" in refusal(fit_table("gaussian").ratios)


def test_the_forest_plot_shows_ratios_without_the_intercept():
    found = fit_table("logistic")
    (axes,) = found.plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found.names[:-1])
    assert axes.get_xscale() == "log"
    shown = axes.lines[1].get_xdata()
    close(shown, np.exp(found.params[:-1]))


ROWS: dict[str, list[Any]] = {
    "age": [40, 50, 60, 45, 55, 65, 70, 35, 52, 61],
    "group": ["a", "b", "a", "b", "a", "b", "c", "c", "a", "b"],
    "ill": [0, 0, 1, 1, 0, 1, 1, 0, 1, 0],
    "site": ["A"] * 6 + ["B"] * 4,
}


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"sum": [2 * age + 1 for age in ROWS["age"]]}, {}, ["age", "sum", "collinear"]),
        ({"one": [1] * 10}, {}, ["same value", "one"]),
        ({}, {"client": None}, ["client="]),
        ({}, {"family": "probit"}, ["family", "poisson"]),
        ({}, {"covariance": "HC3"}, ["covariance", "HC0"]),
        ({}, {"reference": {"group": "z"}}, ["'z'", "levels are a, b, c"]),
        ({}, {"reference": {"age": "40"}}, ["age", "categorical"]),
        ({}, {"family": "cox"}, ["time and event"]),
        ({}, {"max_exchanges": 1}, ["1 exchanges"]),
        ({"ill": [0] * 10}, {}, ["two kinds"]),
        ({"age": [*ROWS["age"][:9], None]}, {}, ["missing"]),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(change, options, words):
    settings = {"family": "logistic", "label": "ill", "client": "site"} | options
    text = refusal(fit, ROWS | change, **settings)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("kind", ["rare", "copy"])
def test_a_column_that_separates_is_named(kind):
    """A column that is 1 in a single row, with an event, or one that equals the outcome."""
    table, _ = table_of("logistic")
    y = table["y"].to_numpy()
    column = np.arange(len(y)) == np.argmax(y) if kind == "rare" else y == 1
    text = refusal(fit, table.with_columns(guilty=column), "logistic", label="y", client="site")
    assert "fit: guilty separates" in text


def test_the_command_prints_the_table(tmp_path, run):
    table, _ = table_of("logistic")
    path = tmp_path / "patients.csv"
    table.write_csv(path)
    code, out, _ = run("fit", str(path), "--label", "y", "--client-column", "site", "--ratios",
               "--figure", str(tmp_path / "f.png"), "--save", str(tmp_path / "t.csv"))  # fmt: skip
    assert code == 0
    assert "odds ratio" in out
    assert "exchanges" in out
    assert (tmp_path / "f.png").stat().st_size > 1000
    assert (tmp_path / "t.csv").read_text().count("\n") == 7


def test_a_file_of_each_site(tmp_path, run):
    rows = ["age,sex,ill", *(f"{30 + i},{'fm'[i % 2]},{int(i % 3 > i % 5)}" for i in range(60))]
    (tmp_path / "a.csv").write_text("\n".join(rows[:26]) + "\n")
    turned = [",".join(line.split(",")[::-1]) for line in (rows[0], *rows[26:])]
    (tmp_path / "b.csv").write_text("\n".join(turned) + "\n")
    (tmp_path / "all.csv").write_text("\n".join(rows) + "\n")
    found = fp.fit([tmp_path / "a.csv", tmp_path / "b.csv"], label="ill")
    data = fp.load(tmp_path / "all.csv", label="ill")
    expected = fp.fit(data, sites=fp.Partition("two", np.arange(60), np.array([0, 25, 60])))
    assert found.names == expected.names == ("age", "sex=m", "Intercept")
    np.testing.assert_allclose(found.params, expected.params, rtol=1e-12)
    assert found.sites == 2
    code, out, _ = run("fit", "a.csv", "b.csv", "--label", "ill", "--covariance", "cluster")
    assert code == 0
    assert "sex=m" in out
    code, out, _ = run(
        "fit", "a.csv", "b.csv", "--label", "ill", "--covariance", "cluster", "--json"
    )
    document = json.loads(out)
    assert "2 sites" in document["warnings"][0]
    assert any("sex=f" in note for note in document["notes"])
    (tmp_path / "c.csv").write_text("age,sex,ill\nold,m,1\n")
    (tmp_path / "d.csv").write_text("age,gender,ill\n50,m,1\n")
    (tmp_path / "gap.csv").write_text("age,sex,ill\n50,m,1\n,f,0\n")
    for words, what in (
        (["c.csv"], "c.csv, row 2, column 'age': it holds text at one site ('old')"),
        (["d.csv"], "not those of a.csv; missing: 'sex'; extra: 'gender'"),
        (["a.csv"], "given twice"),
        (["gap.csv"], "row 3 of gap.csv, column 'age': the value is missing"),
        (["b.csv", "--save", "t.docx"], "suffix must be one of"),
        (["b.csv", "--figure", "f.bmp"], "no such format of figures"),
        (["none.csv"], "no such file"),
        (["b.csv", "--client-column", "sex"], "leave client out"),
    ):
        code, _, err = run("fit", "a.csv", *words, "--label", "ill")
        assert code == 2
        assert what in err


def test_columns_left_out_may_differ_between_files(tmp_path):
    one, two = ROWS | {"note": list("abcdefghij")}, ROWS | {"note": range(10), "ward": [1] * 10}
    for name, rows in (("one", one), ("two", two)):
        polars.DataFrame(rows).write_csv(tmp_path / f"{name}.csv")
    paths = [tmp_path / "one.csv", tmp_path / "two.csv"]
    assert fit(paths, label="ill", drop=("note", "ward", "site")).nobs == 20
    assert fit(paths, label="ill", columns=("age",)).names == ("age", "Intercept")
    assert "extra: 'ward'" in refusal(fit, paths, label="ill", drop=("note", "site"))


def test_the_table_says_what_it_compares_and_leaves_out(tmp_path, run):
    rows = ROWS | {
        "age": [None, *ROWS["age"][1:]],
        "ill": ["yes" if y else "no" for y in ROWS["ill"]],
    }
    found = fit(rows, label="ill", client="site", missing="drop", reference={"group": "b"})
    expected = (
        "The event is ill=yes.",
        "Levels are compared with group=b.",
        "1 row with a missing value was left out.",
    )
    assert found.notes() == expected
    for format in ("text", "markdown", "latex", "json"):
        assert all(line in found.summary(format) for line in expected)
    polars.DataFrame(ROWS).write_csv(tmp_path / "rows.csv")
    words = ("--label", "ill", "--client-column", "site", "--level", "0.9", "--save", "new/t.csv")
    assert run("fit", "rows.csv", *words)[0] == 0
    assert "[0.05,0.95]" in (tmp_path / "new" / "t.csv").read_text()
    assert "not 4 (0, 1, 2, 3)" in refusal(
        fit, ROWS | {"ill": [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]}, label="ill", client="site"
    )


def test_cox_with_true_and_false_and_missing_outcomes():
    """A missing time and a missing event leave out both of their rows from both columns."""
    rng = np.random.default_rng(2)
    days, died = rng.exponential(9, 60).round(2) + 0.01, rng.random(60) < 0.7
    rows: dict[str, Any] = {
        "age": rng.normal(60, 9, 60), "site": ["A", "B"] * 30, "days": days, "died": died,
    }  # fmt: skip
    settings = {"label": ("days", "died"), "client": "site"}
    found = fit(rows, "cox", **settings)
    np.testing.assert_array_equal(
        found.params, fit(rows | {"died": died.astype(int)}, "cox", **settings).params
    )
    gaps = rows | {
        "days": [None if row == 3 else x for row, x in enumerate(days.tolist())],
        "died": [None if row == 50 else x for row, x in enumerate(died.tolist())],
    }
    found = fit(gaps, "cox", missing="drop", **settings)
    kept = [row for row in range(60) if row not in (3, 50)]
    rest = {name: [values[row] for row in kept] for name, values in rows.items()}
    np.testing.assert_array_equal(found.params, fit(rest, "cox", **settings).params)
    assert found.notes() == ("2 rows with a missing value were left out.",)
    text = refusal(fit, rows | {"died": ["yes", "no"] * 30}, "cox", **settings)
    assert "column 'died'" in text
    assert "write 1" in text


def test_counts_with_a_large_mean():
    """The first step leads to an infinite loss, which must not be accepted."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    counts = rng.poisson(2000 * np.exp(0.1 * x))
    table = {"x": x, "count": counts, "site": np.repeat(["a", "b"], 100)}
    found = fp.fit(table, "poisson", label="count", client="site")
    left = counts - np.exp(found.params[0] * x + found.params[1])
    np.testing.assert_allclose([left.sum(), left @ x], 0.0, atol=1e-5 * counts.sum())
