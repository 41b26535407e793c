"""A network on tables: each site has its own file, and the server has no rows.

The app names it as `objective = "own_site:problem"`. Each node calls `problem` with its own
configuration, whose `data` is the site's file:

    flower-supernode ... --node-config 'partition-id=0 data="/data/site.csv"
        options="label=sick" allow="own_site:problem"'

The columns are taken by name. The server calls `problem` with None: it gets the model without rows,
and records the sites' loss and metrics.
"""

import numpy as np
import torch
from torch import nn

import fedpage as fp

COLUMNS = ("age", "bmi", "pressure", "sugar")
CENTRE = np.array([60.0, 25.0, 120.0, 5.0])
SPREAD = np.array([10.0, 4.0, 20.0, 0.5])


def network():
    """Return the network, with the same initial values on every machine."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(len(COLUMNS), 8), nn.Tanh(), nn.Linear(8, 2))


def read(path, label):
    """Return the (inputs, targets) of a site's table; the label is 0 or 1."""
    data = fp.load(path, label=label, columns=COLUMNS)
    X = (data.to_dense() - CENTRE) / SPREAD
    return X, (data.y > 0).astype(np.int64)


def problem(client, clients, node):
    """Return the problem of this node's file, or the model without rows (client None)."""
    rows = [] if client is None else [read(node.data, node.options["label"])]
    return fp.TorchProblem(
        network(), nn.CrossEntropyLoss(), rows, metrics=["accuracy"], dtype="float64"
    )
