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
    g, seen = gradients.mean(axis=0), np.ones(run.N, dtype=bool)
    run.state = run.state._replace(g=g, seen=seen)
    run.costs.round = 1


_rest: Any = {"rest": _rest_after_the_pass}

ROWS = {
    "SecantPAGE": Row(_secant(), descent=None, **_rest),
    "SecantPAGE-window": Row(_secant(metric="window", window=3), descent=None, **_rest),
    "SecantPAGE-none": Row(_secant(metric="none"), descent=None, **_rest),
    "SecantPAGE-fixed": Row(_secant(metric="none", eta=1.0), **_rest),
    "SecantPAGE+natural": Row(_secant(up="natural"), descent=None, **_rest),
    "SecantPAGE+float32": Row(_secant(up="float32"), descent=None, rests=False),
    "FedPAGE-average": Row(_averaging("FedPAGE"), messages=3, **_rest),
    "FedPAGE-leak-free-average": Row(_averaging("FedPAGE-leak-free"), messages=3, **_rest),
    "PAGE-average": Row(_averaging("PAGE"), messages=3, **_rest),
}
