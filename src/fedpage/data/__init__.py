"""Data sets and their division among clients."""

from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, blocks, dirichlet, iid, label_shards, power_law
from fedpage.data.registry import load
from fedpage.data.synthetic import census

__all__ = [
    "Dataset",
    "Partition",
    "blocks",
    "census",
    "dirichlet",
    "iid",
    "label_shards",
    "load",
    "power_law",
]
