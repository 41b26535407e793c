"""Check the estimators by scikit-learn's own checks, against its models, and in its tools."""

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix
from sklearn import config_context, datasets
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedpage as fp
from fedpage.sklearn import FederatedClassifier, FederatedRegressor


@parametrize_with_checks([FederatedClassifier(), FederatedRegressor()])
def test_scikit_learns_own_check(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # some checks warn on purpose
        check(estimator)


def load(name):
    return getattr(datasets, f"load_{name}")(return_X_y=True)


def scaled(model):
    return make_pipeline(StandardScaler(), model)


@pytest.mark.parametrize(
    ("name", "units"),
    [("breast_cancer", 1.0), ("breast_cancer", 1e4), ("digits", 1.0), ("iris", 1.0), ("wine", 1e4)],
)
def test_the_defaults_classify_as_scikit_learn_does(name, units):
    X, y = load(name)
    X, y = (X[:300], y[:300]) if name == "digits" else (X, y)
    X = X * np.geomspace(1 / units, units, X.shape[1])
    model = FederatedClassifier(tol=1e-6).fit(X, y)
    reference = scaled(LogisticRegression(tol=1e-8, max_iter=5000)).fit(X, y)
    np.testing.assert_allclose(
        model.predict_proba(X), reference.predict_proba(X), atol=1e-3, rtol=0.0
    )
    assert (FederatedClassifier().fit(X, y).predict(X) == reference.predict(X)).mean() > 0.99


def test_least_squares_finds_the_coefficients_of_ridge():
    X, y = load("diabetes")
    model = FederatedRegressor(tol=1e-7, standardise=False, alpha=1.0 / len(y)).fit(X, y)
    reference = Ridge(alpha=1.0).fit(X, y)
    np.testing.assert_allclose(model.coef_, reference.coef_, rtol=1e-4, atol=1e-3)
    assert model.intercept_ == pytest.approx(reference.intercept_)
    scale = scaled(Ridge()).fit(X, y)
    assert FederatedRegressor().fit(X, y).score(X, y) == pytest.approx(scale.score(X, y), abs=1e-4)


def test_a_model_without_an_intercept():
    X, y = load("diabetes")
    model = FederatedRegressor(tol=1e-7, standardise=False, fit_intercept=False, alpha=0.001)
    reference = Ridge(alpha=0.001 * len(y), fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(model.fit(X, y).coef_, reference.coef_, rtol=1e-4, atol=1e-3)
    assert model.intercept_ == 0.0
    X, y = load("breast_cancer")
    model = FederatedClassifier(fit_intercept=False).fit(X, y)
    assert model.intercept_.tolist() == [0.0]
    assert model.score(X, y) > 0.9


def test_poisson_finds_the_coefficients_of_scikit_learn():
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 3))
    y = random.poisson(np.exp(2.0 + X @ [0.3, -0.2, 0.1]))
    model = FederatedRegressor("poisson", tol=1e-7, standardise=False, alpha=0.01).fit(X, y)
    reference = PoissonRegressor(alpha=0.01, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(model.coef_, reference.coef_, rtol=1e-3)
    assert model.intercept_ == pytest.approx(reference.intercept_, rel=1e-4)
    np.testing.assert_allclose(model.predict(X), reference.predict(X), rtol=1e-3)


def test_groups_are_the_clients():
    X, y = load("iris")
    ids = np.array([f"hospital {i % 7}" for i in range(len(y))])
    model = FederatedClassifier().fit(X, y, groups=ids)
    assert model.problem_.N == 7
    assert model.problem_.sizes.sum() == len(y)
    # the objective is the mean over all rows, so that the division does not matter
    other = FederatedClassifier(clients=4, tol=1e-6).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), atol=0.01)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedClassifier().fit(X, y, groups=ids[1:])


def test_the_grid_search_over_alpha_and_the_methods_settings():
    X, y = load("iris")
    model = FederatedClassifier(method=fp.SecantPAGE(S=5), rounds=300, tol=1e-2)
    grid = {"alpha": [1e-3, 100.0], "method__S": [2, 5]}
    search = GridSearchCV(model, grid, cv=3).fit(X, y)
    assert search.best_params_["alpha"] == 1e-3
    assert search.best_params_["method__S"] == search.best_estimator_.method.S
    assert search.best_estimator_.problem_.alpha == 1e-3
    methods = {"method": [fp.SecantPAGE(S=2), fp.SecantPAGE(S=5, damping=0.5), "secantpage"]}
    assert GridSearchCV(model, methods, cv=2).fit(X, y).best_score_ > 0.8


def test_a_method_is_cloned_with_its_settings():
    model = FederatedClassifier(method=fp.FedPAGE(S=3, eta_g=0.25), alpha=0.5)
    twin: Any = clone(model)
    assert twin.method == model.method
    assert twin.get_params()["method__eta_g"] == 0.25
    twin.set_params(method__S=4, clients=8)
    assert (twin.method.S, twin.method.eta_g, twin.clients) == (4, 0.25, 8)
    assert model.get_params()["method__S"] == 3
    with pytest.raises(fp.InputError, match="FedPAGE has no eta_G; did you mean 'eta_g'"):
        twin.set_params(method__eta_G=1.0)
    with pytest.raises(fp.InputError, match="needs a method that is an object"):
        FederatedClassifier(method="fedpage").set_params(method__S=2)


def test_groups_are_routed_to_the_splitter_and_to_fit():
    X, y = load("breast_cancer")
    groups = np.arange(len(y)) % 12
    with config_context(enable_metadata_routing=True):
        model = FederatedClassifier(tol=1e-2).set_fit_request(groups=True)
        search = GridSearchCV(model, {"alpha": [1e-3, 1e-2]}, cv=GroupKFold(3))
        search.fit(X, y, groups=groups)
        assert search.best_estimator_.problem_.N == 12
        assert search.best_score_ > 0.9
        pipeline = make_pipeline(StandardScaler(), model)
        assert pipeline.fit(X, y, groups=groups)[-1].problem_.N == 12
    plain = GridSearchCV(FederatedClassifier(tol=1e-2), {"alpha": [1e-2]}, cv=GroupKFold(3))
    assert plain.fit(X, y, groups=groups).best_estimator_.problem_.N == 10


def test_pipelines_with_tables():
    pandas = pytest.importorskip("pandas", reason="the table of this test is pandas'")
    frame = pandas.DataFrame(
        {"age": [30.0, 45, 28, 60, 51, 33] * 5, "ward": ["a", "b", "a", "c", "b", "a"] * 5}
    )
    label = np.where(frame["age"] > 40, "ill", "well")
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["ward"]))
    model = make_pipeline(columns, FederatedClassifier(clients=3)).fit(frame, label)
    assert model.score(frame, label) == 1.0
    assert set(model.predict(frame)) == {"ill", "well"}
    numbers = frame[["age"]].assign(height=1.0)
    own = FederatedClassifier(clients=3).fit(numbers, label)
    assert own.feature_names_in_.tolist() == ["age", "height"]
    with pytest.raises(ValueError, match="feature names"):
        own.predict(numbers.rename(columns={"age": "Age"}))


@pytest.mark.parametrize("sparse", [csr_array, csr_matrix])
def test_sparse_features_stay_sparse_and_give_the_same_model(sparse):
    data = fp.load("census", rows=300)
    X, y = data.X.toarray(), data.y
    dense = FederatedClassifier(tol=1e-6, standardise=False).fit(X, y)
    model = FederatedClassifier(tol=1e-6, standardise=False).fit(sparse(data.X), y)
    assert not model.problem_.data.is_dense
    np.testing.assert_allclose(model.coef_, dense.coef_, atol=1e-3)
    with_units = FederatedClassifier(tol=1e-6).fit(sparse(data.X), y)
    assert not with_units.problem_.data.is_dense
    np.testing.assert_allclose(
        with_units.predict_proba(X), with_units.predict_proba(sparse(data.X)), atol=1e-12
    )


@pytest.mark.parametrize("name", ["fedpage", "scaffold", "page", "saga", "secantpage"])
def test_a_method_by_its_name_has_a_step_that_works(name):
    X, y = load("breast_cancer")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = FederatedClassifier(name, rounds=300).fit(X, y)
    assert model.history_.meta["method"]["name"] == fp.METHODS[name].label
    assert model.score(X, y) > 0.95


def test_a_run_that_is_too_short_warns():
    X, y = load("iris")
    with pytest.warns(ConvergenceWarning, match="SecantPAGE has a gradient norm of .* 3 rounds"):
        model = FederatedClassifier(rounds=3).fit(X, y)
    assert model.n_iter_ == 3
    assert FederatedClassifier(tol=1e-2).fit(X, y).n_iter_ < FederatedClassifier().fit(X, y).n_iter_


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (FederatedRegressor(method=fp.FedAvg(S=5, eta_l=50.0)), "choose a smaller step"),
        (FederatedClassifier(standardise=False), "rescale the features"),
    ],
)
def test_a_run_that_diverges_is_an_error(model, advice):
    X, y = load("breast_cancer")
    with pytest.raises(fp.InputError, match=f"diverged .*; {advice}"):
        model.fit(1e6 * X, y)


def test_a_pickle_holds_the_model_and_not_the_rows():
    X, y = load("breast_cancer")
    model = FederatedClassifier().fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert hasattr(model, "problem_")
    assert not hasattr(again, "problem_")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.history_.same(model.history_)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": 3}, "method must be"),
        ({"method": "fedpag"}, "did you mean 'fedpage'"),
        ({"clients": 0}, "clients"),
        ({"rounds": 0}, "rounds"),
        ({"reg": "l1"}, "reg must be one of none, l2"),
        ({"alpha": -1.0}, "alpha"),
        ({"tol": 0.0}, "tol"),
        ({"tol": "small"}, "tol"),
    ],
)
def test_bad_settings_are_refused_in_fit(options, text):
    with pytest.raises(fp.InputError, match=text):
        FederatedClassifier(**options).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize(
    ("model", "targets", "text"),
    [
        (FederatedRegressor("square"), [1, 2], "loss must be one of squares, huber"),
        (FederatedRegressor("poisson"), [1, -2], "poisson: the targets must be at least 0"),
        (FederatedClassifier(), [1, 1], "one class"),
        (FederatedClassifier(), [0.5, 1], "Unknown label type"),
    ],
)
def test_bad_targets_are_refused(model, targets, text):
    with pytest.raises(ValueError, match=text):
        model.fit([[0.0], [1.0]], targets)
