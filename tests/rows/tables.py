"""Methods whose clients keep a table of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedpage as fp
from rows.row import Row, Setting


def _zerosarah(s: Setting, **options: Any) -> fp.ZeroSARAH:
    return fp.ZeroSARAH(S=s.S, b=s.b, **options).with_step(s.step)


def _rest_tables(run: Any, gradients: np.ndarray) -> None:
    """Set every table to the gradients at x*, and the server's h to their mean."""
    run.client_states.put(np.arange(run.N), run.method.client_state(gradients))
    run.state = run.state._replace(h=gradients.mean(axis=0))


def _rest_differences(run: Any, gradients: np.ndarray) -> None:
    _rest_tables(run, gradients)
    run.costs.round = 1  # round 0 has no table yet


ROWS = {
    "ZeroSARAH": Row(_zerosarah, rest=_rest_differences),
}
