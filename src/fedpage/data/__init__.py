"""Data sets and their division among clients."""

from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, blocks, by_label, dirichlet, power_law, shuffled
from fedpage.data.registry import load
from fedpage.data.synthetic import census

__all__ = ["Dataset", "Partition", "blocks", "by_label", "census", "dirichlet", "load", "power_law", "shuffled"]
