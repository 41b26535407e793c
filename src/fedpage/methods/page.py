"""PAGE over clients: FedPAGE with one local step.

Li, Bao, Zhang, Richtárik, "PAGE: A Simple and Optimal Probabilistic Gradient Estimator
for Nonconvex Optimization" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpage.core.errors import InputError
from fedpage.methods.fedpage import FedPAGE
from fedpage.methods.registry import register


@register(
    "page", group="variance-reduced", assumes="all clients reachable now and then"
)
@dataclass(frozen=True)
class PAGE(FedPAGE):
    """PAGE: FedPAGE with K = 1, where eta_l and b3 have no influence."""

    name: ClassVar[str] = "PAGE"
    paper: ClassVar[str] = "Li, Bao, Zhang, Richtárik 2021"

    K: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.K != 1:
            raise InputError(
                f"PAGE: K must be 1, not {self.K}; with local steps it is FedPAGE"
            )
