"""Data sets, and their partition among clients."""

from typing import TYPE_CHECKING

from fedpage.core.errors import suggest_names
from fedpage.data import bundled, synthetic
from fedpage.data.dataset import Dataset, Sparse
from fedpage.data.partition import Partition, blocks, dirichlet, iid, label_shards, power_law
from fedpage.data.registry import load
from fedpage.data.synthetic import census

__all__ = [
    "Dataset",
    "Partition",
    "Sparse",
    "blocks",
    "bundled",
    "census",
    "dirichlet",
    "iid",
    "label_shards",
    "load",
    "power_law",
    "synthetic",
]

if not TYPE_CHECKING:
    __getattr__ = suggest_names(__name__, __all__)
