"""Exact models over a few sites, with standard errors: `fp.fit`."""

from fedpage.inference.fitting import fit
from fedpage.inference.result import FitResult, WaldTest

__all__ = ["FitResult", "WaldTest", "fit"]
