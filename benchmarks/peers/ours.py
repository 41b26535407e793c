"""Run fedpage's Simulation.step(), the round that simulate() repeats, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from common import Clients, Clock, main, versions

import fedpage as fp
from fedpage.core.random import RoundDraws


def build_problem(clients: Clients) -> Any:
    arrays = clients.arrays
    if clients.kind == "quadratic":
        return fp.Quadratic(
            arrays["A"], np.einsum("nij,nj->ni", arrays["A"], arrays["b"])[:, None, :]
        )
    if clients.kind == "logistic":
        data = fp.Dataset.from_arrays(arrays["X"].reshape(-1, clients.d), arrays["y"].ravel())
        return fp.LogisticRegression(data, clients=clients.N, reg="l2", alpha=clients.alpha)
    ones = np.ones(len(arrays["indices"]))
    data = fp.Dataset(
        "rows", fp.data.Sparse(arrays["indptr"], arrays["indices"], ones, clients.d), arrays["y"]
    )
    return fp.RobustRegression(data, clients=clients.N)


SERVERS = {
    "fedavgm": ("eta_g", "beta"), "fednesterov": ("eta_g", "beta"),
    "fedadagrad": ("eta_g", "tau"), "fedadam": ("eta_g", "beta1", "beta2", "tau"),
    "fedyogi": ("eta_g", "beta1", "beta2", "tau"),
    "mime": ("eta_g", "beta"), "mimelite": ("eta_g", "beta"),
}  # fmt: skip


def build_method(job: dict[str, Any]) -> Any:
    common = {"S": job["S"], "K": job["K"], "eta_l": job["eta"], "b": job["b"]}
    if job["method"] in SERVERS:
        more = {name: job[name] for name in SERVERS[job["method"]]}
        return fp.METHODS[job["method"]](**common, **more)
    if job["method"] == "scaffold":
        name = "scaffold-option-i" if job.get("option") == "I" else "scaffold"
        return fp.METHODS[name](**common)
    return fp.FedProx(**common, mu=job["mu"]) if job["method"] == "fedprox" else fp.FedAvg(**common)


def run(job: dict[str, Any], clients: Clients, clock: Clock) -> dict[str, Any]:
    simulation = fp.Simulation(build_problem(clients), build_method(job), seed=job["seed"])
    exchanges = 2 if job["method"] == "mime" else 1  # each is a round of fedpage's
    clock.loaded()
    for _ in range(job["rounds"]):
        for _ in range(exchanges):
            simulation.step()
        clock.tick(lambda: simulation.x)
    results: dict[str, Any] = {"versions": versions("numpy", "numba"), "label": fp.__version__}
    if job.get("report_clients"):
        results["called"] = [
            RoundDraws(job["seed"], exchanges * r).clients(clients.N, job["S"]).tolist()
            for r in range(job["rounds"])
        ]
    return results


if __name__ == "__main__":
    main(run)
