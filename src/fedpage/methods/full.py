"""The Full variants of the paper's appendix: every gradient is over all rows of the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpage.core import validate
from fedpage.methods.fedavg import FedAvg
from fedpage.methods.fedpage import FedPAGE
from fedpage.methods.scaffold import SCAFFOLD


@dataclass(frozen=True)
class FedPAGEFull(FedPAGE):
    """FedPAGE with b1 = b2 = b3 = M."""

    name: ClassVar[str] = "FedPAGE-Full"

    b3: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.all_rows(self.name, b1=self.b1, b2=self.b2, b3=self.b3)


@dataclass(frozen=True)
class SCAFFOLDFull(SCAFFOLD):
    """SCAFFOLD with b = M."""

    name: ClassVar[str] = "SCAFFOLD-Full"

    b: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.all_rows(self.name, b=self.b, b0=self.b0)


@dataclass(frozen=True)
class FedAvgFull(FedAvg):
    """FedAvg with b = M."""

    name: ClassVar[str] = "FedAvg-Full"

    b: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.all_rows(self.name, b=self.b)
