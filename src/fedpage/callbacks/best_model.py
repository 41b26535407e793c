"""Save the best model of a run."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedpage.callbacks.base import Callback, RunInfo
from fedpage.core import metrics
from fedpage.core.capabilities import SavesModels
from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import put
from fedpage.core.types import Problem, Vector
from fedpage.runs.history import is_complete


class VectorFiles:
    """Save the models of problems that have no files of their own: the array x of an .npz file."""

    def save(
        self, path: str | os.PathLike[str], x: Vector, about: Mapping[str, str] | None = None
    ) -> None:
        """Write x (d,) as the array "x", and the texts as a JSON table "about"."""
        buffer = io.BytesIO()
        np.savez(buffer, x=x, about=np.array(json.dumps(dict(about or {}))))
        put(Path(path), buffer.getvalue())

    def about(self, path: str | os.PathLike[str]) -> Mapping[str, str]:
        """Read the table of texts of a saved model; an empty one if it cannot be read."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                table = json.loads(str(arrays["about"]))
        except Exception:  # numpy and zipfile raise several types for bytes that are no archive
            return {}
        return table if isinstance(table, dict) else {}

    def check_model_path(self, path: Path) -> None:
        """Refuse a file name that does not end in .npz."""
        if path.suffix != ".npz":
            raise InputError(f"{path}: the name of a saved model must end in .npz")


class Best(Callback):
    """Save the model whenever a column of the records reaches a better value.

    The file also holds the column, its value and its round, so that a resumed run continues from
    them. A new run with the same path replaces the file.

    Args:
        problem: The problem. If it can save models, as a `TorchProblem` can, the file is its own;
            otherwise, and for None, it is an .npz file with the model as the array "x".
        path: The file, `.npz` or, for a network, `.safetensors`.
        column: The column to compare.
        higher_is_better: Whether large values are good; by default what the column's metric says.

    Raises:
        InputError: If it is not a problem, or the column's direction is unknown.
    """

    def __init__(
        self,
        problem: Problem | SavesModels | None,
        path: str | os.PathLike[str],
        column: str = "loss",
        *,
        higher_is_better: bool | None = None,
    ) -> None:
        if not isinstance(problem, SavesModels):
            if problem is not None and not hasattr(problem, "oracle"):
                raise InputError(f"Best: {short_repr(problem)} is not a problem")
            problem = VectorFiles()
        if not isinstance(column, str) or not column:
            raise InputError(
                f"Best: column must be a column's name such as 'loss', not {short_repr(column)}"
            )
        if higher_is_better is None:
            try:
                higher_is_better = metrics.higher_is_better(column)
            except InputError as error:
                raise InputError(f"Best: {error}, or give Best(higher_is_better=...)") from None
        self.problem, self.path, self.column = problem, Path(path), column
        self.higher_is_better = higher_is_better
        self.value, self.round = math.nan, -1
        problem.check_model_path(self.path)

    def __repr__(self) -> str:
        return f"Best({self.column}, {str(self.path)!r})"

    def on_run_start(self, info: RunInfo) -> None:
        """Forget the best value of an earlier run, or read that of the run that resumes."""
        self.value, self.round = math.nan, -1
        if not info.start or not self.path.is_file():
            return
        about = self.problem.about(self.path)
        try:
            value, round = float(about["value"]), int(about["round"])
        except (KeyError, ValueError):
            raise InputError(
                f"{self.path}: holds no best value of a run; give another path"
            ) from None
        # A file of a later round was written after the checkpoint that the run resumes from.
        if about.get("column") == self.column and round <= info.start:
            self.value, self.round = value, round

    def on_record(self, record: Mapping[str, float], x: Vector) -> None:
        """Save the model if its value is the best of the run; see `is_complete`."""
        if not is_complete(record):
            return
        if self.column not in record:
            raise InputError(
                f"Best: there is no column {self.column!r}; there are {', '.join(record)}"
            )
        value = float(record[self.column])
        better = value > self.value if self.higher_is_better else value < self.value
        if math.isfinite(value) and (better or math.isnan(self.value)):
            self.value, self.round = value, int(record["round"])
            about = {"column": self.column, "value": repr(value), "round": str(self.round)}
            self.problem.save(self.path, x, about)
