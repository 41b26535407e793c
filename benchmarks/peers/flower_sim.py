"""Run Flower's strategies in its simulation (on ray), with clients in numpy.

Flower has no strategy for SCAFFOLD. `Scaffold` below is written as users write it: the strategy
stores c, and clients store c_i in the state of their context. Flower samples the clients, and the
results report them. All arrays are float64.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip

import numpy as np
from common import Clients, Clock, NotInLibrary, main, slope, versions
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
from flwr.simulation import run_simulation

client_app = ClientApp()


@cache
def load(data: str) -> tuple[Clients, dict[str, np.ndarray]]:
    """Load the rows, once per process."""
    clients = Clients.load(data)
    return clients, clients.dense(np.float64)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Run K local steps."""
    settings, arrays, i = (
        message.content["config"],
        message.content["arrays"],
        int(context.node_config["partition-id"]),
    )
    clients, data = load(str(settings["data"]))
    K, eta, b, mu = (
        int(settings["K"]),
        float(settings["eta"]),
        int(settings["b"]),
        float(settings.get("proximal-mu", 0)),
    )
    x = arrays["x"].numpy()
    y, shift = x.copy(), 0.0
    if "c" in arrays:
        own = (
            context.state["scaffold"]["c"].numpy()
            if "scaffold" in context.state
            else np.zeros_like(x)
        )
        shift = arrays["c"].numpy() - own
    rng = np.random.default_rng([int(settings["seed"]), int(settings["server-round"]), i])
    rows = {name: array[i] for name, array in data.items()}
    for _ in range(K):
        if b:
            drawn = rng.permutation(data["y"].shape[1])[:b]
            rows = {name: array[i, drawn] for name, array in data.items()}
        g = slope(clients.kind, clients.alpha, rows, y) + shift
        if mu:
            away = y - x
            if settings["snippet"]:  # autograd's gradient of (mu/2) |y - x|, which is 0 at x
                length = np.linalg.norm(away)
                g = g + (0.5 * mu / length * away if length else 0.0)
            else:
                g = g + mu * away
        y = y - eta * g
    reply = {"x": Array(y)}
    if "c" in arrays:
        new = (x - y) / (K * eta) - shift
        context.state["scaffold"] = ArrayRecord({"c": Array(new)})
        reply["c"] = Array(new - own)
    metrics = MetricRecord({"num-examples": 1, "client": i})
    return Message(RecordDict({"arrays": ArrayRecord(reply), "metrics": metrics}), reply_to=message)


class Scaffold(FedAvg):
    """Set x to the mean of the clients' models, and add S/N of the mean change of c_i to c."""

    share = 1.0
    c: np.ndarray

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.c = self.c + self.share * arrays["c"].numpy()
        arrays["c"] = Array(self.c)
        return arrays, metrics


def build_strategy(job: dict[str, Any], common: dict[str, Any]) -> Any:
    """Return the strategy of the package for the job's method."""
    method = job["method"]
    if method == "fedprox":
        return FedProx(**common, proximal_mu=job["mu"])
    if method == "fedavgm":
        return FedAvgM(**common, server_learning_rate=job["eta_g"], server_momentum=job["beta"])
    if method == "fedadagrad":
        return FedAdagrad(**common, eta=job["eta_g"], tau=job["tau"])
    if method in ("fedadam", "fedyogi"):
        decays = {"beta_1": job["beta1"], "beta_2": job["beta2"]}
        kind = FedAdam if method == "fedadam" else FedYogi
        return kind(**common, eta=job["eta_g"], tau=job["tau"], **decays)
    if method != "fedavg":
        raise NotInLibrary("has none")
    return FedAvg(**common)


class Nodes:
    """A grid of which a strategy asks nothing but the numbers of its nodes, which start at 1."""

    def __init__(self, N: int) -> None:
        self.N = N

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.N + 1))


def drive(
    strategy: Any, arrays: ArrayRecord, settings: dict[str, Any], rounds: int, N: int, clock: Clock
) -> None:
    """Run a strategy's own rounds and the client app in this process, without ray.

    Flower has no public way to do this: it knows the sender of a message only in a running app.
    """
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    contexts = [
        Context(1, i + 1, {"partition-id": i}, state=RecordDict(), run_config={}) for i in range(N)
    ]
    for server_round in range(1, rounds + 1):
        config = ConfigRecord(settings | {"server-round": server_round})
        messages = strategy.configure_train(server_round, arrays, config, Nodes(N))
        replies = [client_app(sent, contexts[sent.metadata.dst_node_id - 1]) for sent in messages]
        arrays, _ = strategy.aggregate_train(server_round, replies)
        clock.tick(lambda: arrays["x"].numpy().copy())  # noqa: B023


def simulate(
    strategy: Any, arrays: ArrayRecord, settings: dict[str, Any], rounds: int, N: int, clock: Clock
) -> None:
    """Run a strategy in Flower's simulation."""
    server_app = ServerApp()

    def tick(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            clock.tick(lambda: arrays["x"].numpy().copy())

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        config = ConfigRecord(settings)
        strategy.start(grid, arrays, rounds, train_config=config, evaluate_fn=tick)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, N, backend_config=resources)


def run(job: dict[str, Any], clients: Clients, clock: Clock) -> dict[str, Any]:
    S, N, called = job["S"], clients.N, []

    def record_clients(replies: list[RecordDict], key: str) -> MetricRecord:
        called.append(sorted(int(reply["metrics"]["client"]) for reply in replies))
        return MetricRecord()

    common = {
        "fraction_train": 1.0 if S == N else 0.5 * S / N,
        "min_train_nodes": S, "min_available_nodes": N,
        "fraction_evaluate": 0.0, "train_metrics_aggr_fn": record_clients,
    }  # fmt: skip
    start, zero = {"x": Array(np.zeros(clients.d))}, np.zeros(clients.d)
    if job["method"] == "scaffold":
        strategy: Any = Scaffold(**common)
        strategy.c, strategy.share, start["c"] = zero, S / N, Array(zero)
    else:
        strategy = build_strategy(job, common)
    settings = {
        "data": job["data"],
        "K": job["K"],
        "eta": job["eta"],
        "b": job["b"] or 0,
        "seed": job["seed"],
    }
    settings["snippet"] = job.get("variant") == "snippet"
    clock.loaded()
    if job.get("in_process"):
        drive(strategy, ArrayRecord(start), settings, job["rounds"], N, clock)
    else:
        simulate(strategy, ArrayRecord(start), settings, job["rounds"], N, clock)
    if any(len(round_) != S for round_ in called) or len(called) != job["rounds"]:
        raise RuntimeError(
            "Flower lost replies: " + json.dumps([len(round_) for round_ in called][:20])
        )
    found = versions("flwr", "ray", "numpy")
    return {
        "versions": found,
        "label": found["flwr"],
        "called": called if job.get("report_clients") else None,
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import flower_sim  # ray's workers import the client by the name of its module

    main(flower_sim.run)
