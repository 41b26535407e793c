"""Federated methods, a file each; a file added here registers its method by itself."""

from importlib import import_module
from pkgutil import iter_modules

from fedpage.methods.fedavg import FedAvg
from fedpage.methods.fedavg_variants import FedProx
from fedpage.methods.fedpage import FedPAGE
from fedpage.methods.fedpage_variants import PAGE
from fedpage.methods.registry import METHODS, MethodEntry
from fedpage.methods.scaffold import SCAFFOLD
from fedpage.methods.secantpage import SecantPAGE
from fedpage.methods.slocalsvrg import SLocalSVRG
from fedpage.methods.vrlsgd import VRLSGD

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "METHODS",
    "PAGE",
    "SCAFFOLD",
    "VRLSGD",
    "FedAvg",
    "FedPAGE",
    "FedProx",
    "MethodEntry",
    "SLocalSVRG",
    "SecantPAGE",
]
