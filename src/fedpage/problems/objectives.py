"""Objectives by name: a loss with a regulariser, and the classes of the common losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedpage.core.errors import InputError
from fedpage.core.metrics import MetricsOption
from fedpage.core.registry import Registry
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition
from fedpage.problems.base import Weights
from fedpage.problems.kernels import LOSSES, Reg
from fedpage.problems.linear_model import LinearModel
from fedpage.problems.softmax import Softmax


@dataclass(frozen=True)
class Objective:
    """A loss with a regulariser, under the name that the command line and study files use."""

    name: str
    loss: str
    reg: Reg
    model: type[LinearModel]

    def problem(
        self,
        data: Dataset,
        clients: int | Partition,
        *,
        alpha: float | None = None,
        weights: Weights = "uniform",
        metrics: MetricsOption = (),
        held_out: Dataset | None = None,
    ) -> LinearModel:
        """Make the problem of this objective over partitioned data; see `LinearModel`.

        Raises:
            InputError: alpha is given, but the objective has no regulariser.
        """
        if alpha is not None and self.reg == "none":
            raise InputError(f"alpha {alpha:g}: objective {self.name!r} has no regulariser")
        return self.model(
            data, clients, loss=self.loss, reg=self.reg, alpha=alpha, weights=weights,
            metrics=metrics, held_out=held_out,
        )  # fmt: skip


OBJECTIVES: Registry[Objective] = Registry("objective")
L = TypeVar("L", bound=type[LinearModel])


def _register(loss: str) -> Callable[[L], L]:
    """Register a class as the model of a loss: an objective for each regulariser the loss takes."""

    def decorate(model: L) -> L:
        for reg in (
            "none",
            *(LOSSES[loss].regularisers if loss in LOSSES else ("l2", "nonconvex")),
        ):
            name = loss if reg == "none" else f"{loss}-{reg}"
            OBJECTIVES.add(name, Objective(name, loss, reg, model))
        return model

    return decorate


@_register("robust")
class RobustRegression(LinearModel):
    """f_ij(x) = log(1 + (a.x - b)^2/2), nonconvex and robust to outliers. L_ij = |a|^2.

    It takes the arguments of `LinearModel` but for loss.
    """

    loss_name = "robust"


@_register("logistic")
class LogisticRegression(LinearModel):
    """f_ij(x) = log(1 + exp(-b a.x)) + regulariser, for labels b = -1 or +1.

    L_ij = |a|^2/4 plus the regulariser's constant. It takes the arguments of `LinearModel` but for
    loss.
    """

    loss_name = "logistic"


@_register("squares")
class LeastSquares(LinearModel):
    """f_ij(x) = (a.x - b)^2/2, with an l2 regulariser if alpha is given. L_ij = |a|^2 + alpha.

    It takes the arguments of `LinearModel` but for loss.
    """

    loss_name = "squares"


_register("softmax")(Softmax)
for _loss in LOSSES:  # a loss that has no class of its own
    if _loss not in OBJECTIVES:
        _register(_loss)(LinearModel)
