"""Objectives: what is minimised, and what a client may ask of its rows."""

from fedpage.problems.base import RowProblem
from fedpage.problems.glm import (
    OBJECTIVES,
    LeastSquares,
    LinearModel,
    LogisticRegression,
    RobustRegression,
)
from fedpage.problems.quadratic import Quadratic

__all__ = [
    "OBJECTIVES",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "Quadratic",
    "RobustRegression",
    "RowProblem",
]
