"""Objectives, and the oracles that compute gradients of clients' rows."""

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
