"""Momentum and adaptive servers, FedExP, and the Mime family."""

from __future__ import annotations

from typing import Any

import fedpage as fp
from rows.row import Row, Setting


def _biased(cls: str, descent: int | None = None, **options: Any) -> Row:
    """Return a row of a method that does not reach x* under sampling."""

    def make(s: Setting) -> Any:
        return getattr(fp, cls)(**s.local, **options).with_step(s.step)

    return Row(make, descent=descent, reaches=False, rests=False)


ROWS = {
    "FedAvgM": _biased("FedAvgM", eta_g=1.5, beta=0.6),
    "FedNesterov": _biased("FedNesterov", eta_g=1.5, beta=0.6),
    # the effective step of these is a length, so no setting of it is gradient descent
    "FedAdagrad": _biased("FedAdagrad", eta_l=0.02, tau=0.05),
    "FedAdam": _biased("FedAdam", eta_l=0.02, tau=0.05, beta2=0.9),
    "FedYogi": _biased("FedYogi", eta_l=0.02, tau=0.05, beta2=0.9),
    "FedAdam-natural": _biased("FedAdam", eta_l=0.02, tau=0.05, up="natural"),
    "FedExP": _biased("FedExP"),
    "FedExP-averaged": _biased("FedExP", averaged=True),
    "MimeLite": _biased("MimeLite", eta_g=1.5, beta=0.6),
    # Mime takes two exchanges for a step
    "Mime": _biased("Mime", eta_g=1.5, beta=0.6),
    "Mime-plain": _biased("Mime", descent=2, beta=0.0),
    "FedExP-natural": _biased("FedExP", up="natural"),
    "MimeLite-randk": _biased("MimeLite", up="randk:0.5"),
}
