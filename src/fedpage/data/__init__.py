"""Data sets, and their partition among clients."""

from fedpage.data.builtin import census
from fedpage.data.dataset import Dataset, Sparse
from fedpage.data.huggingface import client_datasets, from_huggingface
from fedpage.data.partition import Partition, blocks, by_id, iid
from fedpage.data.registry import load
from fedpage.data.skew import (
    dirichlet,
    dirichlet_hsu,
    dirichlet_yurochkin,
    label_shards,
    power_law,
    quantity_dirichlet,
    shift_features,
)

__all__ = [
    "Dataset",
    "Partition",
    "Sparse",
    "blocks",
    "by_id",
    "census",
    "client_datasets",
    "dirichlet",
    "dirichlet_hsu",
    "dirichlet_yurochkin",
    "from_huggingface",
    "iid",
    "label_shards",
    "load",
    "power_law",
    "quantity_dirichlet",
    "shift_features",
]
