"""SCAFFOLD with momentum, FedDyn and Scaffnew: local steps with control variates."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedpage as fp
from fedpage.methods.scaffold_variants import ScaffoldMomentum
from rows.row import Row, Setting


def _rest_momentum(run: Any, gradients: np.ndarray) -> None:
    run.client_states.put(np.arange(run.N), run.method.client_state(gradients))


def _feddyn(s: Setting) -> fp.FedDyn:
    return fp.FedDyn(**s.local, mu=1.0, eta_l=0.1).with_step(s.step)


def _rest_feddyn(run: Any, gradients: np.ndarray) -> None:
    state = run.method.client_state(-gradients / run.method.mu)
    run.client_states.put(np.arange(run.N), state)


def _scaffnew(s: Setting) -> fp.Scaffnew:
    return fp.Scaffnew(p=1 / s.K, b=s.b).with_step(s.step)


def _rest_scaffnew(run: Any, gradients: np.ndarray) -> None:
    state = run.method.client_state(gradients, np.tile(run.x, (run.N, 1)))
    run.client_states.put(np.arange(run.N), state)
    run.costs.round = 1


ROWS = {
    "SCAFFOLD-momentum": Row(
        lambda s: ScaffoldMomentum(**s.local, beta=0.5, eta_g=1.5).with_step(s.step),
        descent=None,
        rest=_rest_momentum,
    ),
    "FedDyn": Row(_feddyn, descent=None, rest=_rest_feddyn),
    "Scaffnew": Row(_scaffnew, rest=_rest_scaffnew),
}
