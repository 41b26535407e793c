"""Estimators with the interface of scikit-learn that are trained by a federated method.

They are for trying a federated method where scikit-learn's own models are used: in pipelines, in
grid searches, and beside other models. The clients are simulated in this process.
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeGuard

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedpage.core.columns import Target
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.random import permutation
from fedpage.core.types import AnyMethod, StopReason, Vector
from fedpage.core.validate import at_least_zero, check_whole, choice, positive
from fedpage.data import Dataset, Partition, by_id
from fedpage.data.dataset import Label, class_targets
from fedpage.engine.simulate import simulate
from fedpage.engine.stopping import Stop
from fedpage.methods import METHODS, SecantPAGE
from fedpage.methods.schedules import with_step
from fedpage.problems import OBJECTIVES, LinearModel
from fedpage.problems.losses import REGULARISERS
from fedpage.runs.history import History

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn before 1.6

    def validate_data(estimator: Any, *args: Any, **options: Any) -> Any:
        """Check the input as scikit-learn did before 1.6."""
        return estimator._validate_data(*args, **options)


_STEP = 0.9
"""The effective step of a method that is given by its name, in units of 1/L of the objective."""


@dataclass(eq=False, repr=False)
class _WithLoss:
    """The regressor's first argument: the last base of a dataclass has its first field."""

    loss: Literal["squares", "huber", "robust", "poisson"] = "squares"


@dataclass(eq=False, repr=False)
class _Federated(BaseEstimator):
    """What the classifier and the regressor have in common."""

    method: AnyMethod | str | None = None
    clients: int = 10
    _: dataclasses.KW_ONLY
    reg: str = "l2"
    alpha: float | None = None
    fit_intercept: bool = True
    standardise: bool = True
    rounds: int = 2000
    tol: float = 1e-4
    random_state: Any = 0

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters.

        Args:
            deep: Whether to add the hyper-parameters of a method that was given as an object, such
                as `method__S`.
        """
        params: dict[str, Any] = super().get_params(deep=deep)
        if deep and _is_method(self.method):
            for field in dataclasses.fields(self.method):
                params[f"method__{field.name}"] = getattr(self.method, field.name)
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `method__S=5` sets a hyper-parameter of the method.

        Raises:
            InputError: `method__...` is given, and the method is not an object.
        """
        changes = {}
        for name in [name for name in params if name.startswith("method__")]:
            changes[name.removeprefix("method__")] = params.pop(name)
        super().set_params(**params)
        if not changes:
            return self
        if not _is_method(self.method):
            raise InputError(
                f"method__{next(iter(changes))} needs a method that is an object, such as "
                f"method=fp.SecantPAGE(), not {short_repr(self.method)}"
            )
        known = [field.name for field in dataclasses.fields(self.method)]
        for name in changes.keys() - set(known):
            hint = did_you_mean(name, known)
            raise InputError(
                f"{type(self.method).__name__} has no {name};{hint} it has {', '.join(known)}"
            )
        self.method = dataclasses.replace(self.method, **changes)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a pickle, without the problem, which holds the training rows."""
        state = dict(super().__getstate__())
        state.pop("problem_", None)
        return state

    def _run(
        self,
        objective: str,
        X: Any,
        target: Vector,
        groups: Any,
        classes: tuple[Label, ...] | None = None,
        alpha_unit: float = 1.0,
    ) -> tuple[Vector, Vector]:
        """Run the method; return coefficients (outputs, p) and intercepts of the given features."""
        rows = X.shape[0]
        alpha = 1.0 / rows if self.alpha is None else self.alpha
        label = type(self).__name__
        check_whole("rounds", self.rounds, 1)
        positive(label, "tol", self.tol)
        at_least_zero(label, "alpha", alpha)
        choice(label, "reg", self.reg, list(REGULARISERS))
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        partition = self._partition(rows, groups, int(seed))
        is_dense = isinstance(X, np.ndarray)
        scaler = StandardScaler(with_mean=bool(self.fit_intercept)) if is_dense else MaxAbsScaler()
        if self.standardise:
            X = scaler.fit_transform(X)
        data = Dataset.from_arrays(X, np.zeros(rows), name="training data")
        data = dataclasses.replace(data, y=target, classes=classes)
        alpha = float(alpha) * alpha_unit
        has_reg = self.reg != "none" and alpha > 0
        problem = OBJECTIVES[f"{objective}-{self.reg}" if has_reg else objective].problem(
            data, partition, alpha=alpha if has_reg else None, weights="size",
            intercept=bool(self.fit_intercept),
        )  # fmt: skip
        self.problem_ = problem
        self.history_ = self._simulate(problem, int(seed))
        self.n_iter_ = int(self.history_.last("round"))
        coefficients, intercepts = problem.coefficients(np.asarray(self.history_.x))
        if self.standardise:
            coefficients = coefficients / scaler.scale_
            if is_dense and self.fit_intercept:
                intercepts = intercepts - coefficients @ scaler.mean_
        return coefficients, intercepts

    def _partition(self, rows: int, groups: Any, seed: int) -> Partition:
        """Give each group its client, or divide the shuffled rows into parts of equal size."""
        if groups is not None:
            groups = column_or_1d(groups)
            check_consistent_length(np.empty(rows), groups)
            return by_id(groups)
        check_whole("clients", self.clients, 1)
        N = min(int(self.clients), rows)
        edges = np.arange(N + 1, dtype=np.int64) * rows // N
        return Partition(f"iid({N}, seed={seed})", permutation(seed, 1, size=rows), edges)

    def _simulate(self, problem: LinearModel, seed: int) -> History:
        """Run the method until the gradient is small, and warn if it is not in time.

        Raises:
            InputError: The run diverged.
        """
        method = _choose_method(self.method, problem)
        first = problem.evaluate(np.zeros(problem.d))["grad_norm"]
        target = self.tol * max(1.0, first)
        history = simulate(
            problem, method, rounds=int(self.rounds), seed=seed,
            stop=Stop(Target(value=target, hold=0)),
            record_every=max(1, min(10, problem.N // getattr(method, "S", problem.N))),
        )  # fmt: skip
        if history.diverged:
            advice = "choose a smaller step, or method=None, which measures its own"
            if self.method is None:
                advice = "rescale the features or give standardise=True"
            raise InputError(
                f"{type(self).__name__}: {history.label} diverged ({history.stop_detail}); {advice}"
            )
        if history.stop_reason is not StopReason.TARGET:
            warnings.warn(
                f"{history.label} has a gradient norm of {history.last('grad_norm'):.2g} after "
                f"{self.rounds} rounds, above {target:.2g}; raise rounds or tol, standardise the "
                "features, or choose another method or step",
                ConvergenceWarning,
                stacklevel=4,
            )
        return history

    def _margins(self, X: Any) -> Vector:
        """Compute the linear model's outputs (n, outputs)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        coef = np.atleast_2d(self.coef_)
        return np.asarray(safe_sparse_dot(X, coef.T, dense_output=True) + self.intercept_)


@dataclass(eq=False, repr=False)
class FederatedClassifier(ClassifierMixin, _Federated):
    """Classify by logistic regression, or by softmax regression if there are more than two classes.

    The objective is the mean loss over all rows plus the regulariser, as in scikit-learn's
    LogisticRegression, and is the same for any division into clients. `sample_weight` is not
    supported.

    Args:
        method: A method such as `fp.FedPAGE(S=5, eta_g=0.5)`, or the name of one, such as
            "fedpage", with its defaults and the step 0.9/L. By default it is SecantPAGE, which
            measures its step. S is at most the number of clients.
        clients: The number of clients among which shuffled rows are divided if `fit` gets no
            groups. It is at most the number of rows.
        reg: The regulariser: "l2" (alpha |w|^2/2), "nonconvex", "smoothed-l1" or "none".
        alpha: Its weight. By default it is 1/n for n rows, as with C=1 in scikit-learn's
            LogisticRegression.
        fit_intercept: Whether to fit an intercept, which is not regularised.
        standardise: Whether to train on features of mean 0 and deviation 1, or on sparse features
            that are at most 1 in magnitude. The regulariser applies to the coefficients of these
            features; `coef_` and `intercept_` belong to the features that were given.
        rounds: The largest number of communication rounds.
        tol: The run ends when the gradient norm is at most tol times the first one, or tol if the
            first is below 1.
        random_state: The seed of the division into clients and of the method.

    Attributes:
        classes_: (C,) the labels, sorted.
        coef_: (1, p) for two classes, else (C, p).
        intercept_: (1,) or (C,).
        n_iter_: Communication rounds.
        history_: The record of the run: costs, losses, gradient norms.
        problem_: The problem that was solved, over standardised features. A pickle leaves it out
            because it holds the rows.
        n_features_in_: The number of features, p.
        feature_names_in_: (p,) the names of the columns, where X was a table.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(clients=20).fit(X, y)
    >>> model.predict(X[:3]).tolist(), model.score(X, y) > 0.95
    ([0, 0, 0], True)
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit the model.

        Args:
            X: (n, p) features: an array, a sparse matrix or a table of numbers.
            y: (n,) labels of any type.
            groups: (n,) the owner of each row; rows of one group are one client. By default the
                rows are shuffled and divided among `clients` clients.

        Returns:
            This estimator.

        Raises:
            InputError: An argument cannot be used, or the run diverged.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        self.classes_, number = np.unique(y, return_inverse=True)
        count = len(self.classes_)
        if count < 2:
            raise InputError(
                f"{type(self).__name__} needs rows of at least two classes, and these have one "
                f"class only, {self.classes_.tolist()[0]!r}"
            )
        target = class_targets(number.astype(np.int64), count)
        classes = tuple(self.classes_.tolist())
        objective = "logistic" if count == 2 else "softmax"
        self.coef_, self.intercept_ = self._run(objective, X, target, groups, classes)
        return self

    def decision_function(self, X: Any) -> Vector:
        """Return the margins: (n,) of the second of two classes, else (n, C)."""
        margins = self._margins(X)
        return margins.ravel() if len(self.classes_) == 2 else margins

    def predict_proba(self, X: Any) -> Vector:
        """Return the probability of each class, (n, C)."""
        margins = self.decision_function(X)
        if margins.ndim == 2:
            return np.asarray(softmax(margins, axis=1))
        return np.column_stack([expit(-margins), expit(margins)])

    def predict(self, X: Any) -> Any:
        """Return the most probable class of each row, (n,)."""
        margins = self.decision_function(X)
        number = margins.argmax(axis=1) if margins.ndim == 2 else (margins > 0).astype(np.int64)
        return self.classes_[number]


@dataclass(eq=False, repr=False)
class FederatedRegressor(RegressorMixin, _Federated, _WithLoss):
    """Predict numbers by a linear model: least squares, Huber, robust or Poisson regression.

    `sample_weight` is not supported.

    Args:
        loss: "squares"; "huber" or "robust" for data with outliers, with residuals in units of
            the deviation of y; or "poisson" for counts, with the prediction exp(w.x + b).
        method: See `FederatedClassifier`, as for the parameters without an explanation here.
        clients: The number of clients without groups.
        reg: The regulariser.
        alpha: Its weight. By default it is 1/n for n rows, as with alpha=1 in Ridge.
        fit_intercept: Whether to fit an intercept.
        standardise: Whether to scale the features.
        rounds: The largest number of communication rounds.
        tol: The tolerance, for targets of mean 0 and deviation 1 ("poisson": of mean 1).
        random_state: The seed.

    Attributes:
        coef_: (p,).
        intercept_: A number.
        n_iter_: Communication rounds.
        history_: The record of the run: costs, losses, gradient norms.
        problem_: The problem that was solved, over standardised features and targets. A pickle
            leaves it out, because it holds the rows.
        n_features_in_: The number of features, p.
        feature_names_in_: (p,) the names of the columns, where X was a table.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = FederatedRegressor(clients=20).fit(X, y)
    >>> round(model.score(X, y), 2)
    0.52
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit the model.

        Args:
            X: (n, p) features: an array, a sparse matrix or a table of numbers.
            y: (n,) numbers.
            groups: (n,) the owner of each row; see `FederatedClassifier.fit`.

        Returns:
            This estimator.

        Raises:
            InputError: An argument cannot be used, or the run diverged.
        """
        losses = ("squares", "huber", "robust", "poisson")
        choice(type(self).__name__, "loss", self.loss, losses)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        y = y.astype(np.float64)
        if self.loss == "poisson":
            mean = float(y.mean())
            if y.min() < 0 or mean == 0:
                raise InputError("poisson: the targets must be at least 0, and not all 0")
            # With y/m the objective is divided by m, and log m is part of the intercept.
            mean = mean if self.fit_intercept else 1.0
            coef, intercept = self._run(self.loss, X, y / mean, groups, alpha_unit=1.0 / mean)
            shift, unit = np.log(mean), 1.0
        else:
            # The solution does not depend on the units of y, and the tolerance has no unit.
            shift = float(y.mean()) if self.fit_intercept else 0.0
            unit = float(y.std()) or 1.0
            coef, intercept = self._run(self.loss, X, (y - shift) / unit, groups)
        self.coef_, self.intercept_ = unit * coef[0], float(unit * intercept[0] + shift)
        return self

    def predict(self, X: Any) -> Vector:
        """Return the predictions, (n,)."""
        margins = self._margins(X).ravel()
        return np.exp(margins) if self.loss == "poisson" else margins


def _is_method(method: object) -> TypeGuard[Any]:
    return dataclasses.is_dataclass(method) and not isinstance(method, type)


def _choose_method(method: AnyMethod | str | None, problem: LinearModel) -> AnyMethod:
    """Return the method to run, with at most as many sampled clients as there are."""
    if method is None:
        method = SecantPAGE()
    elif isinstance(method, str):
        method = METHODS[method]()
        if not getattr(method, "measures_step", False):
            method = with_step(method, _STEP / problem.smoothness().whole)
    elif not _is_method(method):
        raise InputError(
            "method must be a method such as fp.FedPAGE(S=5), the name of one, or None, "
            f"not {short_repr(method)}"
        )
    S = getattr(method, "S", None)
    if isinstance(S, int) and S > problem.N:
        method = dataclasses.replace(method, S=problem.N)
    return method
