"""The Full variants of the paper's appendix: every gradient is over all rows of the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpage.methods import checks
from fedpage.methods.fedavg import FedAvg
from fedpage.methods.fedpage import FedPAGE
from fedpage.methods.scaffold import SCAFFOLD


@dataclass(frozen=True)
class FedPAGEFull(FedPAGE):
    """FedPAGE with b1 = b2 = b3 = M."""

    title: ClassVar[str] = "FedPAGE-Full"

    b3: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.all_rows(self.title, b1=self.b1, b2=self.b2, b3=self.b3)


@dataclass(frozen=True)
class SCAFFOLDFull(SCAFFOLD):
    """SCAFFOLD with b = M."""

    title: ClassVar[str] = "SCAFFOLD-Full"

    b: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.all_rows(self.title, b=self.b, b0=self.b0)


@dataclass(frozen=True)
class FedAvgFull(FedAvg):
    """FedAvg with b = M."""

    title: ClassVar[str] = "FedAvg-Full"

    b: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.all_rows(self.title, b=self.b)
