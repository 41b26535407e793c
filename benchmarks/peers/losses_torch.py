"""The three objectives for the peers that use PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from common import Clients


def tensors(clients: Clients, dtype: Any) -> list[torch.Tensor]:
    """Return (X, y) or (A, b) of shape (clients, rows, ...); a quadratic has one row per client."""
    arrays = clients.dense(np.float64 if dtype == torch.float64 else np.float32)
    names = ("A", "b") if clients.kind == "quadratic" else ("X", "y")
    found = [torch.from_numpy(arrays[name]) for name in names]
    return [t[:, None] for t in found] if clients.kind == "quadratic" else found


class Model(torch.nn.Module):
    """A module with one parameter x, and its mean loss over rows."""

    def __init__(self, clients: Clients, dtype: Any) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(clients.d, dtype=dtype))
        self.kind, self.alpha = clients.kind, clients.alpha

    def loss(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        if self.kind == "quadratic":
            away = self.x - second[0]
            return 0.5 * away @ (first[0] @ away)
        margins = first @ self.x
        if self.kind == "robust":
            return torch.log1p(0.5 * (margins - second) ** 2).mean()
        return (
            torch.nn.functional.softplus(-second * margins).mean()
            + 0.5 * self.alpha * self.x @ self.x
        )

    def metrics(self, first: torch.Tensor, second: torch.Tensor) -> dict[str, Any]:
        return {}  # pfl requires this function
