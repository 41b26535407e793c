"""EF21 and its variants, SAG, DASHA and SCALLION."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpage.codecs import as_codec
from fedpage.methods.dasha import DASHA, DASHAPP
from fedpage.methods.ef21 import EF21, EF21PP, EF21SGDM, SAG
from fedpage.methods.ef21_bc import EF21BC
from fedpage.methods.scallion import SCALLION
from rows.row import Row, Setting


def _rest(run: Any, gradients: np.ndarray) -> None:
    """Set every vector of the clients' states to the client's gradient at x*."""
    fields = run.method.client_state._fields
    state = run.method.client_state(*(gradients for _ in fields))
    run.client_states.put(np.arange(run.N), state)


def _rest_bc(run: Any, gradients: np.ndarray) -> None:
    """Round 0 sends x*, and w is 0."""
    zero = np.zeros_like(gradients)
    run.client_states.put(np.arange(run.N), run.method.client_state(gradients, zero, zero))


def _scallion(s: Setting, **options: Any) -> SCALLION:
    return SCALLION(**s.local, eta_g=1.5, **options).with_step(s.step)


ROWS = {
    "EF21": Row(lambda s: EF21(b=s.b).with_step(s.step), rest=_rest),
    "EF21-HB-TopK": Row(
        lambda s: EF21(b=s.b, beta=0.4, up=as_codec("topk:0.5")).with_step(s.step),
        descent=None,
        rest=_rest,
    ),
    "SAG": Row(lambda s: SAG(S=s.S, b=s.b).with_step(s.step), rest=_rest, scale=0.5),
    "EF21-PP-TopK": Row(
        lambda s: EF21PP(S=s.S, b=s.b, up=as_codec("topk:0.5")).with_step(s.step),
        descent=None,
        rest=_rest,
        scale=0.3,
    ),
    "EF21-SGDM": Row(
        lambda s: EF21SGDM(b=s.b, m=0.3, up=as_codec("scaled(randk:0.5)")).with_step(s.step),
        descent=None,
        rest=_rest,
    ),
    "EF21-BC": Row(lambda s: EF21BC(b=s.b).with_step(s.step), rest=_rest_bc),
    "EF21-BC-TopK": Row(
        lambda s: EF21BC(b=s.b, up=as_codec("topk:0.5"), down=as_codec("topk:0.5")).with_step(
            s.step
        ),
        descent=None,
        rest=_rest_bc,
    ),
    "DASHA": Row(
        lambda s: DASHA(up=as_codec("randk:0.5")).with_step(s.step), descent=None, rest=_rest
    ),
    "DASHA-PP": Row(lambda s: DASHAPP(S=s.S).with_step(s.step), rest=_rest, scale=0.5),
    "SCALLION": Row(_scallion, rest=_rest),
    "SCALLION-RandK": Row(
        lambda s: _scallion(s, up=as_codec("randk:0.5")), descent=None, rest=_rest, scale=0.5
    ),
}
