"""Data sets, and their partition among clients."""

from fedpage.data import bundled, synthetic
from fedpage.data.dataset import Dataset, Sparse
from fedpage.data.huggingface import client_datasets, from_huggingface
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
    "client_datasets",
    "dirichlet",
    "from_huggingface",
    "iid",
    "label_shards",
    "load",
    "power_law",
    "synthetic",
]
