"""Run the usual PyTorch loop over clients: a module, autograd and torch.optim.SGD."""

from __future__ import annotations

from typing import Any

import torch
from common import Clients, Clock, main, versions
from losses_torch import Model, tensors


def run(job: dict[str, Any], clients: Clients, clock: Clock) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    dtype = getattr(torch, job["dtype"])
    first, second = tensors(clients, dtype)
    K, eta, b, controlled = job["K"], job["eta"], job["b"], job["method"] == "scaffold"
    mu = job["mu"] if job["method"] == "fedprox" else 0.0
    model = Model(clients, dtype)
    x, c = torch.zeros(clients.d, dtype=dtype), torch.zeros(clients.d, dtype=dtype)
    own = torch.zeros((clients.N, clients.d), dtype=dtype) if controlled else None
    clock.loaded()
    for called in job["schedule"]:
        dx, dc = torch.zeros_like(x), torch.zeros_like(x)
        for i in called:
            with torch.no_grad():
                model.x.copy_(x)
            optimiser = torch.optim.SGD(model.parameters(), lr=eta)
            for _ in range(K):
                if b is None:
                    batch = first[i], second[i]
                else:
                    rows = torch.randperm(first.shape[1])[:b]
                    batch = first[i, rows], second[i, rows]
                optimiser.zero_grad()
                loss = model.loss(*batch)
                if mu:
                    loss = loss + 0.5 * mu * ((model.x - x) ** 2).sum()
                loss.backward()
                if controlled:
                    model.x.grad += c - own[i]
                optimiser.step()
            move = model.x.detach() - x
            dx += move
            if controlled:
                new = own[i] - c - move / (K * eta)
                dc += new - own[i]
                own[i] = new
        x, c = x + dx / len(called), c + dc / clients.N
        clock.tick(lambda: x.numpy())  # noqa: B023
    results = {"versions": versions("torch", "numpy"), "label": torch.__version__}
    return {**results, "called": job["schedule"] if job.get("report_clients") else None}


if __name__ == "__main__":
    main(run)
