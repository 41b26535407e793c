"""Predict with a linear model: margins, labels, probabilities and a score for new rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.data.dataset import Dataset, is_finite
from fedpage.problems.evaluation import Evaluation
from fedpage.problems.labels import class_numbers


class Prediction(Evaluation):
    """Predict new rows with parameters x; `LinearModel` adds the rows it was trained on."""

    def coefficients(self, x: Vector) -> tuple[Vector, Vector]:
        """Divide parameters into coefficients and intercepts.

        Args:
            x: (d,) the parameters, such as `history.x`.

        Returns:
            Coefficients (C, p) and intercepts (C,), zero without an intercept; C is the number of
            classes of a softmax and 1 of every other model.
        """
        table = self._point(x).reshape(-1, self.outputs).T
        if not self.intercept:
            return table, np.zeros(self.outputs)
        return table[:, :-1], table[:, -1]

    def margins(self, x: Vector, X: Any) -> Vector:
        """Compute the linear model's outputs a.x + intercept for new rows.

        Args:
            x: (d,) the parameters, such as `history.x`.
            X: n rows: an array or sparse matrix (n, p), a `Dataset`, or a table of the columns that
                the training data was made from, which are encoded in the same way.

        Returns:
            (n,) margins, or (n, C) of a softmax.

        Raises:
            InputError: the rows do not have the features of the training data.
        """
        coefficients, intercepts = self.coefficients(x)
        outputs = np.asarray(self._features(X) @ coefficients.T) + intercepts
        return outputs if self.outputs > 1 else outputs[:, 0]

    def predict(self, x: Vector, X: Any) -> NDArray[Any]:
        """Predict new rows.

        Args:
            x: (d,) the parameters, such as `history.x`.
            X: n rows, as of `margins`.

        Returns:
            (n,) labels as they were given in the training data, or numbers of a regression.
        """
        margins = self.margins(x, X)
        if self.classes is None:
            return self._predictions(margins)
        number = margins.argmax(axis=1) if self.outputs > 1 else (margins > 0).astype(np.int64)
        return np.asarray(np.asarray(self.classes)[number])

    def predict_proba(self, x: Vector, X: Any) -> Vector:
        """Compute the probability of each class.

        Args:
            x: (d,) the parameters, such as `history.x`.
            X: n rows, as of `margins`.

        Returns:
            (n, C) probabilities, in the order of `classes`.

        Raises:
            InputError: the model has no probabilities.
        """
        if self._loss.name not in ("logistic", "softmax"):
            raise InputError(
                f"{self.name} has no probabilities; use logistic or softmax, or `margins`"
            )
        margins = self.margins(x, X)
        from scipy.special import expit, softmax

        if self.outputs > 1:
            return np.asarray(softmax(margins, axis=1))
        return np.column_stack([expit(-margins), expit(margins)])

    def score(self, x: Vector, data: Dataset) -> float:
        """Score the predictions: the accuracy of classes, R^2 of a regression.

        Args:
            x: (d,) the parameters, such as `history.x`.
            data: rows with labels or targets, such as those of `Dataset.split`.

        Returns:
            The share of correct labels, or 1 - (sum of squared residuals)/(that of the mean).

        Raises:
            InputError: data is not a Dataset, has other features, or labels unknown to the model.
        """
        if not isinstance(data, Dataset):
            raise InputError(
                f"{self.name}: score needs a Dataset with labels, not {type(data).__name__}; "
                "see fp.Dataset.from_arrays"
            )
        if self.classes is None:
            residuals = data.y - self.predict(x, data)
            spread = float(((data.y - data.y.mean()) ** 2).sum())
            error = float((residuals**2).sum())
            return 1.0 - error / spread if spread > 0 else float(error == 0.0)
        margins = self.margins(x, data)
        number = margins.argmax(axis=1) if self.outputs > 1 else (margins > 0).astype(np.int64)
        return float((number == class_numbers(self.name, data, self.classes)[0]).mean())

    def _features(self, X: Any) -> Any:
        """Return new rows as a matrix (n, p), dense or sparse."""
        from scipy.sparse import csr_array, issparse

        p = self.data.features
        if isinstance(X, Dataset):
            check_encoding(self.name, self.data, X)
            matrix = X.X
            if X.features < p and not X.is_dense:  # the last features do not occur in a sparse file
                matrix = csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(X.rows, p))
        elif self.data.encoding is not None and not issparse(X) and not isinstance(X, np.ndarray):
            matrix = self.data.encoding.transform(X)
        else:
            try:
                matrix = X if issparse(X) else np.asarray(X, dtype=np.float64)
            except (TypeError, ValueError):
                raise InputError(
                    f"{self.name}: the rows to predict must be numbers (n, {p}), "
                    f"not {short_repr(X)}"
                ) from None
            if not is_finite(np.asarray(matrix.data if issparse(matrix) else matrix)):
                raise InputError(
                    f"{self.name}: the rows to predict must be finite, without NaN or infinity"
                )
        if matrix.ndim != 2 or matrix.shape[1] != p:
            raise InputError(
                f"{self.name}: the rows to predict must have {p} columns as the training data "
                f"has, not the shape {matrix.shape}"
            )
        return matrix


def check_encoding(owner: str, training: Dataset, data: Dataset) -> None:
    """Check that a data set made from a table has the features of the training data.

    Args:
        owner: the problem's name, for the error message.
        training: the rows that the model is trained on.
        data: rows to predict or to evaluate.

    Raises:
        InputError: the tables were encoded differently, so that features mean different things.
    """
    if training.encoding is None or data.encoding is None:
        return
    column = training.encoding.find_difference(data.encoding)
    if column:
        raise InputError(
            f"{owner}: column {column!r} of {data.name!r} is encoded differently from that of "
            f"{training.name!r}; load {data.name!r} with encoding=data.encoding of the training "
            "data, or divide one table by data.split"
        )
