"""Data sets, and their partition among clients."""

from typing import TYPE_CHECKING

from fedpage.core.errors import suggest_names
from fedpage.data import bundled, synthetic
from fedpage.data.client_ids import by_id
from fedpage.data.dataset import Dataset, Sparse
from fedpage.data.huggingface import client_datasets, from_huggingface
from fedpage.data.label_skew import dirichlet, dirichlet_hsu, dirichlet_yurochkin, label_shards
from fedpage.data.partition import Partition, blocks, iid
from fedpage.data.quantity_skew import power_law, quantity_dirichlet
from fedpage.data.registry import load
from fedpage.data.shift import shift_features
from fedpage.data.synthetic import census

__all__ = [
    "Dataset",
    "Partition",
    "Sparse",
    "blocks",
    "bundled",
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
    "synthetic",
]

if not TYPE_CHECKING:
    __getattr__ = suggest_names(__name__, __all__)
