"""Objectives, and the oracles that compute gradients of clients' rows."""

from fedpage.problems.base import RowProblem
from fedpage.problems.linear_model import LinearModel
from fedpage.problems.objectives import (
    OBJECTIVES,
    LeastSquares,
    LogisticRegression,
    RobustRegression,
)
from fedpage.problems.quadratic import Quadratic
from fedpage.problems.softmax import Softmax

__all__ = [
    "OBJECTIVES",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "Quadratic",
    "RobustRegression",
    "RowProblem",
    "Softmax",
]
