"""Data sets, and their partition among clients."""

from fedpage.data.builtin import census as census
from fedpage.data.dataset import Dataset as Dataset
from fedpage.data.dataset import Sparse as Sparse
from fedpage.data.huggingface import client_datasets as client_datasets
from fedpage.data.huggingface import from_huggingface as from_huggingface
from fedpage.data.partition import Partition as Partition
from fedpage.data.partition import blocks as blocks
from fedpage.data.partition import by_id as by_id
from fedpage.data.partition import iid as iid
from fedpage.data.registry import load as load
from fedpage.data.skew import dirichlet as dirichlet
from fedpage.data.skew import dirichlet_hsu as dirichlet_hsu
from fedpage.data.skew import dirichlet_yurochkin as dirichlet_yurochkin
from fedpage.data.skew import label_shards as label_shards
from fedpage.data.skew import power_law as power_law
from fedpage.data.skew import quantity_dirichlet as quantity_dirichlet
from fedpage.data.skew import shift_features as shift_features
