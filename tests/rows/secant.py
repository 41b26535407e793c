"""SecantPAGE, and the averaging start of FedPAGE and PAGE."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import fedpage as fp
from rows.paper_methods import ROWS as PAPER
from rows.row import Row, Setting


def _secant(**options: Any) -> Any:
    """Return a function that makes SecantPAGE; its effective step is the damping or eta."""
    return lambda s: fp.SecantPAGE(S=s.S, b=s.b, **options).with_step(s.step)


def _averaging(name: str) -> Any:
    """Return a function that makes a row of the paper's methods with the averaging start."""

    def make(s: Setting) -> Any:
        return dataclasses.replace(PAPER[name].make(s), start="average")

    return make


def _rest_after_the_pass(run: Any, gradients: np.ndarray) -> None:
    after = {"passes": 1} if run.method.name == "SecantPAGE" else {"seen": run.state.seen | True}
    run.state = run.state._replace(g=gradients.mean(axis=0), **after)
    run.costs.round = 1


_rest: Any = {"rest": _rest_after_the_pass}
_two: Any = {"messages": 2, **_rest}

ROWS = {
    "SecantPAGE": Row(_secant(), descent=None, **_two),
    "SecantPAGE-window": Row(_secant(metric="window", window=3), descent=None, **_two),
    "SecantPAGE-none": Row(_secant(metric="none"), descent=None, **_two),
    "SecantPAGE-fixed": Row(_secant(metric="none", eta=1.0), **_two),
    "SecantPAGE-full-rounds": Row(_secant(renew="full"), descent=None, **_rest),
    "SecantPAGE+natural": Row(_secant(up="natural"), descent=None, **_two),
    "SecantPAGE+float32": Row(
        _secant(up="float32", down="float32"), descent=None, messages=2, rests=False
    ),
    "FedPAGE-average": Row(_averaging("FedPAGE"), messages=4, **_rest),
    "FedPAGE-leak-free-average": Row(_averaging("FedPAGE-leak-free"), messages=4, **_rest),
    "PAGE-average": Row(_averaging("PAGE"), messages=4, **_rest),
}
