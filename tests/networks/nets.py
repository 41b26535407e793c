"""Small networks, and rows for clients of very different sizes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch

SIZES = [1, 3, 8, 9, 20, 5, 17, 12]


def rows(sizes, shape=(6,), classes=3, seed=0):
    """Return (inputs, targets) for clients of these sizes, each with its own labels and mean."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(i % 3, 1.0, (m, *shape)).astype(np.float32),
            (rng.integers(0, 2, m) + i) % classes,
        )
        for i, m in enumerate(sizes)
    ]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def convolution(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def mlp_problem(dtype="float64", **options):
    return fp.TorchProblem(network(), F.cross_entropy, rows(SIZES), dtype=dtype, **options)


def image_problem(dtype="float32", **options):
    data = rows(SIZES, (1, 4, 4))
    return fp.TorchProblem(convolution(), F.cross_entropy, data, dtype=dtype, **options)


def all_gradients(problem, x):
    """Return the gradient of every client at x (d,), or at its own row of x (N, d)."""
    oracle = problem.oracle(np.arange(problem.N), RoundDraws(0, 0))
    return oracle.grad(x, Batch(None, problem.sizes))
