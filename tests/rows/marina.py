"""Methods with codecs: FedPAGE, the MARINA family, and local methods whose replies are cast."""

from __future__ import annotations

import dataclasses
from typing import Any

import fedpage as fp
from rows.paper_methods import ROWS as UNCOMPRESSED
from rows.row import Row, Setting


def _with(name: str, **codecs: str) -> Any:
    """Return a function that makes a row of the paper's methods with codecs."""
    return lambda s: dataclasses.replace(UNCOMPRESSED[name].make(s), **codecs)


def _marina(cls: Any, up: str, **options: Any) -> Any:
    def make(s: Setting) -> Any:
        return cls(p=0.3, up=up, **{k: v(s) for k, v in options.items()}).with_step(s.step)

    return make


def _sampled(s: Setting) -> int:
    return s.S


def _rows(s: Setting) -> int | None:
    return s.b


ROWS = {
    # a share of the numbers, because the laws' problems have 4 or 123 of them
    "FedPAGE+randk": Row(_with("FedPAGE", up="randk:0.5"), descent=None, messages=2),
    "FedPAGE+natural": Row(_with("FedPAGE", up="natural"), descent=None, messages=2),
    "FedPAGE+float32": Row(
        _with("FedPAGE", up="float32", down="float32"), descent=None, messages=2, rests=False
    ),
    "FedPAGE-leak-free+natural": Row(
        _with("FedPAGE-leak-free", up="natural"), descent=None, messages=2
    ),
    "PAGE+natural": Row(_with("PAGE", up="natural"), descent=None, messages=2),
    "PP-MARINA": Row(_marina(fp.PPMARINA, "none", S=_sampled, b=_rows)),
    "PP-MARINA+natural": Row(_marina(fp.PPMARINA, "natural", S=_sampled, b=_rows), descent=None),
    "MARINA+randk": Row(_marina(fp.MARINA, "randk:0.5"), descent=None),
    "VR-MARINA+natural": Row(_marina(fp.VRMARINA, "natural", b=_rows), descent=None),
    "FedAvg+natural": Row(_with("FedAvg", up="natural"), descent=None, reaches=False, rests=False),
    "FedAvg+float32": Row(
        _with("FedAvg", up="float32", down="float32"), descent=None, reaches=False, rests=False
    ),
    "FedProx+randk": Row(
        _with("FedProx", up="randk:0.5"), descent=None, reaches=False, rests=False
    ),
    "VRL-SGD+float32": Row(
        _with("VRL-SGD", up="float32"), descent=None, rest=UNCOMPRESSED["VRL-SGD"].rest
    ),
    "S-Local-SVRG+float32": Row(_with("S-Local-SVRG", up="float32"), descent=None, rests=False),
}
