"""Exact models over a few sites, with standard errors: `fp.fit`."""

from fedpage.inference.fitting import fit
from fedpage.inference.model import FederatedModel, load_federated
from fedpage.inference.result import FitResult, WaldTest

__all__ = ["FederatedModel", "FitResult", "WaldTest", "fit", "load_federated"]
