"""A federation's linear model with all that prediction needs: `fp.load_federated`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedpage.core.errors import InputError
from fedpage.core.files import check_file, put
from fedpage.core.types import Vector
from fedpage.data.dataset import Dataset, class_targets
from fedpage.data.encoding import (
    CategoryColumn,
    EncodedColumn,
    Encoding,
    NumberColumn,
    UnknownCategory,
)
from fedpage.data.files import table_suffix
from fedpage.data.partition import blocks
from fedpage.problems import OBJECTIVES

MODEL_FILE = "model.json"
"""The file in a run's directory that holds the model."""
_FORMAT = "fedpage-model-1"


@dataclass(frozen=True)
class FederatedModel:
    """A linear model and how the columns of a table become its features.

    Attributes:
        objective: The objective that it was trained with.
        x: The parameters (d,).
        intercept: Whether it has an intercept.
        classes: The labels of a classification, in the order of the class numbers.
        columns: How each column of a table is encoded; () if the rows were arrays.
        features: The number of features.
        label: The column of the labels, which new rows may have or not.
        left_out: Other columns that new rows may have or not.
        family: The family of a fit with standard errors, or "".
    """

    objective: str
    x: Vector
    intercept: bool
    classes: tuple[str | int | float, ...]
    columns: tuple[EncodedColumn, ...]
    features: int
    label: str = ""
    left_out: tuple[str, ...] = ()
    family: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features; () if the rows were arrays."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def has_probabilities(self) -> bool:
        """Whether `predict_proba` returns probabilities: for logistic losses and softmax."""
        return self.objective.partition("-")[0] in ("logistic", "softmax")

    def predict(self, rows: Any) -> NDArray[Any]:
        """Predict new rows.

        Args:
            rows: The path of a table, a frame, columns {name: values}, rows [{name: value}], or an
                array of the features (n, p). Columns that the model does not use are ignored.

        Returns:
            (n,) labels, means of a regression, or for a Cox model the risks exp(x.b).

        Raises:
            InputError: If a column is missing, or a cell cannot be encoded.
        """
        found = self._apply("predict", rows)
        return np.exp(found) if self.family == "cox" else found

    def predict_proba(self, rows: Any) -> Vector:
        """Compute the probability of each class (n, C), in the order of `classes`.

        Args:
            rows: As `predict` takes them.

        Raises:
            InputError: If the model has no probabilities, or the rows cannot be used.
        """
        return self._apply("predict_proba", rows)

    def _apply(self, method: str, rows: Any) -> NDArray[Any]:
        """Call a method of a problem that predicts new rows."""
        rows = _open(rows)
        try:
            return np.asarray(getattr(self._problem(_names(rows)), method)(self.x, rows))
        except UnknownCategory as error:
            fact = str(error).partition("; correct it")[0]
            raise UnknownCategory(f"{fact}; correct it or leave the row out") from None

    def _problem(self, others: tuple[str, ...]) -> Any:
        """Return a problem with the features and classes of the model, and rows of zeros.

        Args:
            others: The columns that new rows may have beside those of the features.
        """
        count = max(len(self.classes), 1)
        encoding = Encoding(self.columns, self.label or None, left_out=others)
        rows = Dataset(
            "the model's rows",
            np.zeros((count, self.features)),
            class_targets(np.arange(count), count),
            classes=self.classes or None,
            columns=self.names,
            encoding=encoding if self.columns else None,
        )
        objective = OBJECTIVES[self.objective]
        alpha = None if objective.reg == "none" else 1.0  # plays no part in a prediction
        return objective.problem(rows, blocks(count, 1), alpha=alpha, intercept=self.intercept)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model as JSON, with all digits."""
        table = asdict(self) | {"format": _FORMAT, "x": self.x.tolist()}
        put(Path(path), msgspec.json.format(msgspec.json.encode(table)))
        return Path(path)


def load_federated(path: str | os.PathLike[str]) -> FederatedModel:
    """Load the linear model of a federation's run, to predict new rows.

    Args:
        path: The run's directory on the server, or its model.json.

    Raises:
        InputError: If there is no such model.
    """
    file = Path(path) / MODEL_FILE if Path(path).is_dir() else Path(path)
    try:
        table = msgspec.json.decode(check_file(file).read_bytes())
        if table.pop("format") != _FORMAT:
            raise ValueError
        table["columns"] = tuple(
            msgspec.convert(column, CategoryColumn if "values" in column else NumberColumn)
            for column in table["columns"]
        )
        table["x"] = np.array(table["x"], dtype=np.float64)
        table["classes"], table["left_out"] = tuple(table["classes"]), tuple(table["left_out"])
        return FederatedModel(**table)
    except InputError as error:
        raise InputError(
            f"{error}; a run of a linear model over sites writes it when it ends"
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError, msgspec.MsgspecError):
        raise InputError(f"{file}: not a model that a federation has written") from None


def _names(rows: Any) -> tuple[str, ...]:
    """Return the names of the columns of a table, a frame, columns or rows; () of an array."""
    if isinstance(rows, (list, tuple)) and rows and isinstance(rows[0], Mapping):
        rows = rows[0]
    if isinstance(rows, Mapping):
        return tuple(rows)
    if hasattr(rows, "iloc"):  # of pandas, where a column may be called "names"
        return tuple(rows.columns)
    for attribute in ("names", "column_names", "columns"):  # an open file, pyarrow, others
        if (found := getattr(rows, attribute, None)) is not None and not callable(found):
            return tuple(found)
    return ()


def _open(rows: Any) -> Any:
    """Open the table of a path; other rows are returned."""
    if not isinstance(rows, (str, os.PathLike)):
        return rows
    if table_suffix(Path(rows)) in ("", ".npz"):
        raise InputError(f"{rows}: give a .csv, .tsv or .parquet table, or an array")
    from fedpage.data.tables import open_table  # it imports polars, which takes time

    return open_table(Path(rows))
