"""What watches a run while it goes on: `Callback`, and `Best`, which keeps the best model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpage.core.errors import InputError
from fedpage.core.types import Vector

if TYPE_CHECKING:
    from fedpage.runs.history import History


LOW = ("loss", "norm", "error", "mse", "mae", "rmse", "perplexity")
HIGH = ("accuracy", "r2", "f1", "auc", "precision", "recall")


class Callback:
    """Give `simulate(callbacks=[...])` anything with these four methods; what they do must not change the run."""

    def begin(self, meta: Mapping[str, Any], rounds: int, done: int) -> None:
        """The run is about to do rounds `done`..`rounds`; meta says which run it is (done > 0: it is taken up)."""

    def record(self, row: Mapping[str, float], x: Vector) -> None:
        """A record was made at the model x (d,)."""

    def after_round(self, done: int) -> None:
        """A round is over."""

    def end(self, history: History) -> None:
        """The run is over, or was interrupted: then `history.stopped` is empty."""


class Best(Callback):
    """Saves the model with the best value of a column, whenever there is a better one.

    problem: one that can save a model, `save(path, x, about)`, and say what it said of it, `about(path)`, such as a
    `TorchProblem`: which value of which column, in which round. A run that is taken up goes on from that value.

    highest: whether large values are good; it need not be said of columns that end like LOW and HIGH. One file is for
    one run: a new run with the same path begins it anew.
    """

    def __init__(self, problem: Any, path: str | os.PathLike[str], column: str = "loss", *,
                 highest: bool | None = None) -> None:  # fmt: skip
        if not hasattr(problem, "save"):
            raise InputError(
                f"Best: {type(problem).__name__} cannot save models; it has no save(path, x, about)"
            )
        self.problem, self.path, self.column = problem, Path(path), column
        if not isinstance(column, str) or not column:
            raise InputError(
                f"Best: column must be the name of a column such as 'loss', not {column!r}"
            )
        if highest is None and not column.endswith(LOW + HIGH):
            raise InputError(
                f"Best: is {column} good when it is high, or low? Give highest=True or highest=False"
            )
        self.highest = column.endswith(HIGH) if highest is None else bool(highest)
        self.value, self.round = math.nan, -1
        check = getattr(problem, "check_model_path", None)
        if check is not None:
            check(self.path)

    def begin(self, meta: Mapping[str, Any], rounds: int, done: int) -> None:
        """A new run knows no best; one that is taken up reads which it was."""
        self.value, self.round = math.nan, -1
        if done and self.path.is_file():
            about = self.problem.about(self.path)
            try:
                value, found = float(about["value"]), int(about["round"])
            except (KeyError, ValueError):
                raise InputError(
                    f"{self.path}: does not say whose best model it is; give another path"
                ) from None
            if (
                about.get("column") == self.column and found <= done
            ):  # else the run went back to an older checkpoint
                self.value, self.round = value, found

    def record(self, row: Mapping[str, float], x: Vector) -> None:
        """Save, if it is better."""
        if self.column not in row:
            raise InputError(
                f"Best: there is no column {self.column!r}; there are {', '.join(row)}"
            )
        value = float(row[self.column])
        better = value > self.value if self.highest else value < self.value
        if math.isfinite(value) and (better or math.isnan(self.value)):
            self.value, self.round = value, int(row["round"])
            self.problem.save(
                self.path,
                x,
                {"column": self.column, "value": repr(value), "round": str(self.round)},
            )
