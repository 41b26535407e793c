"""Objectives, and the oracles that compute gradients of clients' rows."""

from fedpage.problems.base import RowProblem
from fedpage.problems.linear import LinearModel
from fedpage.problems.objectives import (
    OBJECTIVES,
    Huber,
    LeastSquares,
    LogisticRegression,
    Poisson,
    RobustRegression,
    Softmax,
    SquaredHinge,
)
from fedpage.problems.quadratic import Quadratic

__all__ = [
    "OBJECTIVES",
    "Huber",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "Poisson",
    "Quadratic",
    "RobustRegression",
    "RowProblem",
    "Softmax",
    "SquaredHinge",
]
