"""Methods whose clients keep a table of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedpage as fp
from rows.row import Row, Setting


def _cofig(s: Setting, **options: Any) -> fp.COFIG:
    return fp.COFIG(S=s.S, b=s.b, **options).with_step(s.step)


def _diana(s: Setting, **options: Any) -> fp.DIANA:
    return fp.DIANA(b=s.b, **options).with_step(s.step)


def _frecon(s: Setting, **options: Any) -> fp.FRECON:
    return fp.FRECON(S=s.S, b=s.b, **options).with_step(s.step)


def _rest_tables(run: Any, gradients: np.ndarray) -> None:
    """Set every table to the gradients at x*, and the server's h to their mean."""
    run.client_states.put(np.arange(run.N), run.method.client_state(gradients))
    run.state = run.state._replace(h=gradients.mean(axis=0))


def _rest_differences(run: Any, gradients: np.ndarray) -> None:
    _rest_tables(run, gradients)
    run.costs.round = 1  # round 0 has no table yet


# a codec leaves no step of gradient descent
_COMPRESSED: dict[str, Any] = {"descent": None, "rest": _rest_tables}
_DIFFERENCES: dict[str, Any] = {"descent": None, "rest": _rest_differences}

ROWS = {
    "SAGA": Row(lambda s: fp.SAGA(S=s.S, b=s.b).with_step(s.step), rest=_rest_tables),
    "COFIG-natural": Row(lambda s: _cofig(s, up="natural"), **_COMPRESSED),
    "COFIG-randk": Row(lambda s: _cofig(s, up="randk:0.5"), **_COMPRESSED),
    "COFIG-half-rate": Row(lambda s: _cofig(s, a=0.5), rest=_rest_tables),
    "DIANA": Row(_diana, rest=_rest_tables),
    "DIANA-natural": Row(lambda s: _diana(s, up="natural"), **_COMPRESSED),
    "ZeroSARAH": Row(
        lambda s: fp.ZeroSARAH(S=s.S, b=s.b).with_step(s.step), rest=_rest_differences
    ),
    "FRECON": Row(_frecon, rest=_rest_differences),
    "FRECON-natural": Row(lambda s: _frecon(s, up="natural"), **_DIFFERENCES),
    "FRECON-randk": Row(lambda s: _frecon(s, up="randk:0.5"), **_DIFFERENCES),
}
