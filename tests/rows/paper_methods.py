"""The methods that the paper compares."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedpage as fp
from fedpage.methods.fedpage_variants import LeakFreeFedPAGE, PeriodicFedPAGE
from fedpage.methods.scaffold_variants import ScaffoldOptionI
from rows.row import Row, Setting


def fedpage(kind: type[fp.FedPAGE]) -> Any:
    """Return a function that makes FedPAGE or a variant."""
    return lambda s: kind(**_page(s), K=s.K, eta_l=0.3 / s.K, eta_g=1.0, p=0.3).with_step(s.step)


def _page(s: Setting) -> dict[str, Any]:
    b = None if s.full else 3
    return {"S": s.S, "b1": b, "b2": b, "b3": s.b}


def _slocalsvrg(s: Setting, **options: Any) -> fp.SLocalSVRG:
    q = 1.0 if s.K == 1 else 0.4
    return fp.SLocalSVRG(K=s.K, b=s.b, q=q, **options).with_step(s.step)


def _rest_control_variates(run: Any, gradients: np.ndarray) -> None:
    run.client_states.put(np.arange(run.N), run.method.client_state(gradients))


def _rest_vrl_sgd(run: Any, gradients: np.ndarray) -> None:
    state = run.method.client_state(gradients, np.tile(run.x, (run.N, 1)))
    run.client_states.put(np.arange(run.N), state)
    run.costs.round = 1


ROWS = {
    "FedPAGE": Row(fedpage(fp.FedPAGE)),
    "FedPAGE-periodic": Row(fedpage(PeriodicFedPAGE)),
    "FedPAGE-leak-free": Row(fedpage(LeakFreeFedPAGE)),
    "PAGE": Row(lambda s: fp.PAGE(**_page(s), p=0.3).with_step(s.step)),
    "FedAvg": Row(
        lambda s: fp.FedAvg(**s.local, eta_g=1.5).with_step(s.step), reaches=False, rests=False
    ),
    "SCAFFOLD-II": Row(
        lambda s: fp.SCAFFOLD(**s.local).with_step(s.step), rest=_rest_control_variates
    ),
    "SCAFFOLD-I": Row(
        lambda s: ScaffoldOptionI(**s.local, b0=None if s.full else 3).with_step(s.step),
        rest=_rest_control_variates,
    ),
    "FedProx": Row(
        lambda s: fp.FedProx(**s.local, mu=0.2).with_step(s.step), reaches=False, rests=False
    ),
    "VRL-SGD": Row(lambda s: fp.VRLSGD(K=s.K, b=s.b).with_step(s.step), rest=_rest_vrl_sgd),
    # S-Local-SVRG with q = 1 refreshes before every round of local steps
    "S-Local-SVRG": Row(_slocalsvrg, descent=2),
    "S-Local-SVRG-sampled": Row(lambda s: _slocalsvrg(s, S=s.S), descent=2, messages=2),
    "FedPAGE-Full": Row(
        lambda s: fp.METHODS["fedpage-full"](S=s.S, K=s.K, p=0.3).with_step(s.step)
    ),
    "SCAFFOLD-Full": Row(
        lambda s: fp.METHODS["scaffold-full"](S=s.S, K=s.K).with_step(s.step),
        rest=_rest_control_variates,
    ),
    "FedAvg-Full": Row(
        lambda s: fp.METHODS["fedavg-full"](S=s.S, K=s.K).with_step(s.step),
        reaches=False,
        rests=False,
    ),
}
