"""Methods whose rounds depend on how similar the clients' Hessians are."""

from __future__ import annotations

from typing import Any

from fedpage.methods.icgm import ICGM
from fedpage.methods.saber import SABER
from fedpage.methods.sdane import DANE, SDANE, AccSDANE
from fedpage.methods.svrp import SVRP
from rows.row import Row, Setting


def _proximal(cls: type[SVRP] | type[SABER], s: Setting, gamma: float | None) -> Any:
    return cls(**s.local, gamma=gamma, eta_l=0.3).with_step(s.step)


def _dane(cls: type[DANE], s: Setting, **options: Any) -> Any:
    return cls(K=s.K, b=s.b, lam=1.0, eta_l=0.5, **options).with_step(s.step)


def _icgm(s: Setting) -> Any:
    return ICGM(S=s.S, lam=1.0, eta_l=0.5, p=1 / s.K).with_step(s.step)


ROWS = {
    # with S = N a full gradient comes before every round of local steps
    "SVRP": Row(lambda s: _proximal(SVRP, s, 1.0), descent=2, messages=2),
    "SVRP-no-prox": Row(lambda s: _proximal(SVRP, s, None), descent=2, messages=2),
    "SABER": Row(lambda s: _proximal(SABER, s, 1.0), descent=2, messages=3),
    "I-CGM-RG-SAGA": Row(_icgm, descent=2),
    # two rounds make a step
    "DANE": Row(lambda s: _dane(DANE, s), descent=2),
    "DANE-sampled": Row(lambda s: _dane(DANE, s, S=s.S), descent=2, reaches=False, rests=False),
    "S-DANE": Row(lambda s: _dane(SDANE, s), descent=None),
    "S-DANE-sampled": Row(
        lambda s: _dane(SDANE, s, S=s.S, mu=0.3), descent=None, reaches=False, rests=False
    ),
    "Acc-S-DANE": Row(lambda s: _dane(AccSDANE, s, mu=0.3), descent=None),
}
