"""Evaluate a model on a node's rows, and send no more of it than the node's owner allows."""

from __future__ import annotations

from typing import get_args

import numpy as np

from fedpage.core.capabilities import NodeProblem
from fedpage.core.metrics import row_metrics
from fedpage.core.types import Vector
from fedpage.flower import messages
from fedpage.flower.config import AppConfig, EvaluationLevel, NodeConfig
from fedpage.flower.metrics import select_metrics
from fedpage.flower.node_errors import Code, NodeError

_ONLY_CLIENT = np.zeros(1, dtype=np.int64)
"""The number of the only client of a node's problem."""


def check_evaluation(config: AppConfig, node: NodeConfig) -> None:
    """Refuse a run that asks for more than the node's owner allows.

    Raises:
        NodeError: It does.
    """
    levels = get_args(EvaluationLevel)  # from the most to nothing
    if levels.index(config.evaluation) < levels.index(node.evaluation):
        raise NodeError(
            Code.EVALUATION,
            f'the run has evaluation = "{config.evaluation}", and this node at most '
            f'"{node.evaluation}"',
        )


def evaluate_client(problem: NodeProblem, x: Vector, config: AppConfig) -> messages.Evaluation:
    """Evaluate the loss, the gradient and the metrics of a node's client.

    Args:
        problem: The problem of the node's client.
        x: The model, (d,).
        config: The run's configuration: its metrics, and whether gradients may be sent.

    Raises:
        NodeError: The problem does not compute a metric.
    """
    found = problem.evaluate_clients(_ONLY_CLIENT, x)
    names = row_metrics(select_metrics(config.metric_names, problem))
    for name in names:
        if name not in found.metrics:
            raise NodeError(Code.NO_METRIC, f"the problem does not compute {name!r}")
    values = np.array([float(found.metrics[name][0]) for name in names])
    gradient = found.gradients[0] if config.evaluation == "gradients" else found.gradients[0][:0]
    return messages.Evaluation(found.losses, gradient, values)
