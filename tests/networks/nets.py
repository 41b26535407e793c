"""Small networks, and rows for clients of very different sizes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


def rows(sizes, shape=(6,), classes=3, seed=0):
    """(inputs, targets) for clients of these sizes, each with labels and a mean of its own."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(i % 3, 1.0, (m, *shape)).astype(np.float32),
            (rng.integers(0, 2, m) + i) % classes,
        )
        for i, m in enumerate(sizes)
    ]


SIZES = [1, 3, 8, 9, 20, 5, 17, 12]


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
