"""Federated methods. To add one: a file here, and a line in METHODS."""

from fedpage.methods.fedavg import FedAvg
from fedpage.methods.fedpage import FedPAGE
from fedpage.methods.page import PAGE
from fedpage.methods.scaffold import SCAFFOLD

METHODS = {
    "fedpage": FedPAGE,
    "page": PAGE,
    "fedavg": FedAvg,
    "scaffold": SCAFFOLD,
}
"""Every method by the name that the command line uses."""

__all__ = ["METHODS", "PAGE", "SCAFFOLD", "FedAvg", "FedPAGE"]
