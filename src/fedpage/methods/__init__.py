"""Federated methods. To add one: a file here, and a line in METHODS."""

from typing import Any

from fedpage.methods.fedavg import FedAvg
from fedpage.methods.fedpage import FedPAGE
from fedpage.methods.fedprox import FedProx
from fedpage.methods.full import FedAvgFull, FedPAGEFull, SCAFFOLDFull
from fedpage.methods.page import PAGE
from fedpage.methods.scaffold import SCAFFOLD
from fedpage.methods.slocalsvrg import SLocalSVRG
from fedpage.methods.vrlsgd import VRLSGD

METHODS: dict[str, type[Any]] = {
    "fedpage": FedPAGE,
    "page": PAGE,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": SCAFFOLD,
    "vrl-sgd": VRLSGD,
    "s-local-svrg": SLocalSVRG,
    "fedpage-full": FedPAGEFull,
    "scaffold-full": SCAFFOLDFull,
    "fedavg-full": FedAvgFull,
}
"""Every method by the name that the command line uses."""

__all__ = [
    "METHODS",
    "PAGE",
    "SCAFFOLD",
    "VRLSGD",
    "FedAvg",
    "FedAvgFull",
    "FedPAGE",
    "FedPAGEFull",
    "FedProx",
    "SCAFFOLDFull",
    "SLocalSVRG",
]
