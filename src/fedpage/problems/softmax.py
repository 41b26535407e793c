"""Softmax regression: a linear model with an output for each of two or more classes."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.types import Vector
from fedpage.data.dataset import Dataset
from fedpage.problems import softmax_kernels
from fedpage.problems.kernels import Loss
from fedpage.problems.labels import Classes, class_numbers
from fedpage.problems.linear_model import LinearModel


def _of_one_margin(t: float, b: float) -> float:
    raise NotImplementedError("the softmax is a function of all margins of a row")


_LOSS = Loss(
    "softmax",
    "softmax regression",
    code=-1,
    value=_of_one_margin,
    slope=_of_one_margin,
    curvature=0.5,
    convex=True,
    needs_labels=True,
    fused=True,
)
"""Its Hessian by the margins, diag(q) - q q' for probabilities q, is at most 1/2.

Its losses are added up with the gradient, with which they share their exponentials.
"""


class Softmax(LinearModel):
    """f_ij(x) = log(sum_c exp(a.x_c)) - a.x_b + regulariser, for rows of any number of classes.

    x_c are the weights of class c and b is the row's class: the negative log-likelihood of
    multinomial logistic regression. The weights of feature l are x[l*C : (l+1)*C], and intercepts
    are the last C coordinates. L_ij = |a|^2/2 plus the regulariser's constant.

    It takes the arguments of `LinearModel` but for loss. Labels are text or whole numbers;
    `classes` lists them in the order of the outputs.
    """

    loss_name = "softmax"
    _kernels: ClassVar[ModuleType] = softmax_kernels

    @property
    def outputs(self) -> int:
        """The number of classes, C."""
        return 0 if self.classes is None else len(self.classes)

    @property
    def _loss_code(self) -> int:
        return self.outputs

    def _find_loss(self, loss: str | type) -> Loss:
        return _LOSS

    def _encode_labels(self, data: Dataset, classes: Classes | None) -> tuple[Vector, Classes]:
        numbers, found = class_numbers(self.name, data, classes)
        if len(found) == 1:
            raise InputError(
                f"{self.name}: the labels of {data.name!r} are all {found[0]!r}, "
                "which is a single class"
            )
        return numbers.astype(np.float64), found
