"""A convolutional network on scikit-learn's digits, where each client has a few of the digits only.

The Flower app names its problem as `objective = "digits:problem"` in pyproject.toml: the function
`problem` below. Each node calls it with its client's number and gets that client's rows. The server
calls it with None and gets the held-out rows, on which it evaluates the model.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedpage as fp

HELD_OUT = 360


def network():
    """Return the network: 830 parameters with the same initial values on every machine."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def rows(clients):
    """Return each client's (images, digits), by a Dirichlet partition, and the held-out ones."""
    X, y = load_digits(return_X_y=True)
    X = X.reshape(-1, 1, 8, 8) / 16
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    division = fp.dirichlet(y[train], clients, alpha=0.1, seed=1)
    own_rows = [train[division.rows(i)] for i in range(clients)]
    return [(X[own], y[own]) for own in own_rows], (X[test], y[test])


def problem(client, clients):
    """Return the problem of one client, or of the server (None)."""
    client_rows, held_out = rows(clients)
    own = held_out if client is None else client_rows[client]
    return fp.TorchProblem(
        network(), nn.CrossEntropyLoss(), [own], metrics=["accuracy"], dtype="float64"
    )
