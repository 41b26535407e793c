"""Run a plain numpy loop over clients with dense float64 rows, as in benchmarks/reference.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from common import Clients, Clock, main, slope, versions


def run(job: dict[str, Any], clients: Clients, clock: Clock) -> dict[str, Any]:
    arrays = clients.dense(np.float64)
    rng, K, eta, b = np.random.default_rng(job["seed"]), job["K"], job["eta"], job["b"]
    x, c, own = np.zeros(clients.d), np.zeros(clients.d), np.zeros((clients.N, clients.d))
    controlled, mu = job["method"] == "scaffold", job.get("mu", 0.0)
    clock.loaded()
    for called in job["schedule"]:
        dx, dc = np.zeros(clients.d), np.zeros(clients.d)
        for i in called:
            y, shift = x.copy(), c - own[i]
            for _ in range(K):
                if b is None:
                    rows = {name: array[i] for name, array in arrays.items()}
                else:
                    drawn = rng.permutation(arrays["y"].shape[1])[:b]
                    rows = {name: array[i, drawn] for name, array in arrays.items()}
                g = slope(clients.kind, clients.alpha, rows, y)
                if controlled:
                    g += shift
                elif mu:
                    g += mu * (y - x)
                y -= eta * g
            dx += y - x
            if controlled:
                new = (x - y) / (K * eta) - shift
                dc += new - own[i]
                own[i] = new
        x, c = x + dx / len(called), c + dc / clients.N
        clock.tick(lambda: x)  # noqa: B023
    return {
        "versions": versions("numpy"),
        "label": np.__version__,
        "called": job["schedule"] if job.get("report_clients") else None,
    }


if __name__ == "__main__":
    main(run)
