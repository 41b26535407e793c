"""Objectives by name: a loss with a regulariser, and the classes of the common losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedpage.core.errors import InputError
from fedpage.core.metrics import MetricsOption
from fedpage.core.spec import Registry
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition
from fedpage.problems.base import Weights
from fedpage.problems.linear import LinearModel
from fedpage.problems.losses import REGULARISERS, Reg


@dataclass(frozen=True)
class Objective:
    """A loss with a regulariser, under the name that the command line and study files use.

    The loss is the name of a loss of the library, or a user's class.
    """

    name: str
    loss: str | type
    reg: Reg
    model: type[LinearModel]
    minimum: float = -math.inf
    """A lower bound of its values on any rows."""

    def problem(
        self,
        data: Dataset,
        clients: int | Partition | None = None,
        *,
        alpha: float | None = None,
        intercept: bool | None = None,
        weights: Weights = "uniform",
        metrics: MetricsOption = (),
        held_out: Dataset | None = None,
    ) -> LinearModel:
        """Make the problem of this objective over partitioned data; see `LinearModel`.

        Raises:
            InputError: If alpha is given, but the objective has no regulariser.
        """
        if alpha is not None and self.reg == "none":
            raise InputError(
                f"alpha {alpha:g}: objective {self.name!r} has no regulariser; "
                f"choose {self.name}-l2, or leave alpha out"
            )
        return self.model(
            data, clients, loss=self.loss, reg=self.reg, alpha=alpha, intercept=intercept,
            weights=weights, metrics=metrics, held_out=held_out,
        )  # fmt: skip


OBJECTIVES: Registry[Objective] = Registry("objective")
L = TypeVar("L", bound=type[LinearModel])


def _register(loss: str, minimum: float = 0.0) -> Callable[[L], L]:
    """Register a class as the model of a loss: an objective for each regulariser.

    Regularisers are at least 0, so a loss and its objectives have the same lower bound.
    """

    def decorate(model: L) -> L:
        for reg in REGULARISERS:
            name = loss if reg == "none" else f"{loss}-{reg}"
            OBJECTIVES.add(name, Objective(name, loss, reg, model, minimum))
        return model

    return decorate


@_register("robust")
class RobustRegression(LinearModel):
    """f_ij(x) = log(1 + (a.x - b)^2/2), nonconvex and robust to outliers. L_ij = |a|^2.

    It takes the arguments of `LinearModel`, except loss.
    """

    loss_name = "robust"


@_register("logistic")
class LogisticRegression(LinearModel):
    """f_ij(x) = log(1 + exp(-b a.x)) + regulariser; the second of two labels is b = +1.

    L_ij = |a|^2/4 plus the regulariser's constant. It takes the arguments of `LinearModel`, except
    loss.
    """

    loss_name = "logistic"


@_register("squares")
class LeastSquares(LinearModel):
    """f_ij(x) = (a.x - b)^2/2 + regulariser. L_ij = |a|^2 plus the regulariser's constant.

    It takes the arguments of `LinearModel`, except loss.
    """

    loss_name = "squares"


@_register("squared-hinge")
class SquaredHinge(LinearModel):
    """f_ij(x) = max(0, 1 - b a.x)^2 + regulariser; the second of two labels is b = +1.

    L_ij = 2 |a|^2 plus the regulariser's constant. It takes the arguments of `LinearModel`, except
    loss.
    """

    loss_name = "squared-hinge"


@_register("huber")
class Huber(LinearModel):
    """f_ij(x) = r^2/2 of r = a.x - b up to |r| = 1, |r| - 1/2 beyond, + regulariser.

    L_ij = |a|^2 plus the regulariser's constant. It takes the arguments of `LinearModel`, except
    loss.
    """

    loss_name = "huber"


@_register("poisson", minimum=-math.inf)
class Poisson(LinearModel):
    """f_ij(x) = exp(a.x) - b a.x + regulariser, for counts b of at least 0.

    The mean of a row is exp(a.x). The gradient has no Lipschitz constant, so theory's step sizes
    are not defined. It takes the arguments of `LinearModel`, except loss.
    """

    loss_name = "poisson"


@_register("softmax")
class Softmax(LinearModel):
    """f_ij(x) = log(sum_c exp(a.x_c)) - a.x_b + regulariser, for rows of any number of classes.

    x_c are the weights of class c and b is the row's class: the negative log-likelihood of
    multinomial logistic regression. The weights of feature l are x[l*C : (l+1)*C], and intercepts
    are the last C coordinates. L_ij = |a|^2/2 plus the regulariser's constant.

    It takes the arguments of `LinearModel`, except loss. Labels are text or whole numbers;
    `classes` lists them in the order of the outputs.
    """

    loss_name = "softmax"
