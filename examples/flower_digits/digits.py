"""A convolutional network on scikit-learn's digits, divided among clients that each know a few digits only.

`fedpage` asks a Flower app for its problem by name: `objective = "digits:problem"` in pyproject.toml is this file's
`problem`. Each node calls it with its own number and gets its own rows; the server calls it with None and gets the rows
that no client has, on which it measures how good the model is.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedpage as fp

HELD_OUT = 360


def network():
    """830 parameters, the same ones wherever it is called."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def rows(clients):
    """(images, digits) of each client, by a Dirichlet split over labels; and those that are held out."""
    X, y = load_digits(return_X_y=True)
    X = X.reshape(-1, 1, 8, 8) / 16
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    division = fp.dirichlet(y[train], clients, alpha=0.1, seed=1)
    own = [train[division.rows(i)] for i in range(clients)]
    return [(X[mine], y[mine]) for mine in own], (X[test], y[test])


def problem(client, clients):
    """The problem of one client, or of the server (None)."""
    everyone, held_out = rows(clients)
    mine = held_out if client is None else everyone[client]
    return fp.TorchProblem(
        network(), nn.CrossEntropyLoss(), [mine], metrics=["accuracy"], dtype="float64"
    )
