"""Apple's pfl-research: its FederatedAveraging, FedProx and SCAFFOLD on its simulated backend, in one process.

What a user has to know to drive it so that it does this work:
- minibatches are consecutive slices of what make_dataset_fn returns, so that function draws the round's K b rows;
- local_num_steps ends with the data and SCAFFOLD refuses it; one epoch over K b rows in batches of b is K steps;
- the sampler decides who is called: it reads the job's schedule, so that nobody is called twice in a round;
- with option I the states are copied when they are kept: otherwise all clients' control variates are one tensor, the
  model's own buffer, which get_model_difference overwrites. (pfl's storage on disk would do, but it fails to load with
  this torch: weights_only.)
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")

import numpy as np
import torch
from common import Clients, Clock, main, versions
from losses_torch import Model, tensors
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.bridge.pytorch.scaffold import PyTorchSCAFFOLDBridge
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Tick(TrainingProcessCallback):
    """Tells the clock of every round."""

    def __init__(self, clock: Clock, module: Model) -> None:
        self.clock, self.module = clock, module

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> Any:
        self.clock.tick(lambda: self.module.x.detach().numpy().copy())
        return False, Metrics()


class CopiedStates(InMemoryUserStateStorage):
    """Keeps copies, not references."""

    def save_state(self, state: Any, user_id: str, key: str | None = None) -> None:
        super().save_state(state.apply_elementwise(torch.clone), user_id, key)


def exchange_control_variates() -> None:
    """The step grad - c + c_i instead of grad + c - c_i, which is right for control variates of the other sign."""
    right = PyTorchSCAFFOLDBridge.do_control_variate_sgd

    def exchanged(
        model: Any, user_dataset: Any, train_params: Any, local_c: Any, server_c: Any
    ) -> None:
        right(model, user_dataset, train_params, local_c=server_c, server_c=local_c)

    PyTorchSCAFFOLDBridge.do_control_variate_sgd = staticmethod(exchanged)


def algorithm_of(job: dict[str, Any], N: int) -> tuple[Any, Any]:
    common = {
        "central_num_iterations": job["rounds"], "evaluation_frequency": 10**9, "train_cohort_size": job["S"],
        "val_cohort_size": 0,
    }  # fmt: skip
    if job["method"] == "scaffold":
        if job.get("variant") == "exchanged":
            exchange_control_variates()
        option = job.get("option", "II") == "I"
        states = CopiedStates() if option else InMemoryUserStateStorage()
        return SCAFFOLD(), SCAFFOLDParams(
            **common,
            population=N,
            use_gradient_as_control_variate=option,
            user_state_storage=states,
        )
    if job["method"] == "fedprox":
        return FedProx(), FedProxParams(**common, mu=job["mu"])
    return FederatedAveraging(), NNAlgorithmParams(**common)


def run(job: dict[str, Any], clients: Clients, clock: Clock) -> dict[str, Any]:
    torch.set_num_threads(1)
    np.random.seed(job["seed"])  # noqa: NPY002
    dtype = getattr(torch, job["dtype"])
    first, second = tensors(clients, dtype)
    rng, K, b, M = np.random.default_rng(job["seed"]), job["K"], job["b"], first.shape[1]

    def user(i: int) -> PyTorchTensorDataset:
        if b is None:
            return PyTorchTensorDataset((first[i], second[i]), user_id=str(i))
        rows = torch.from_numpy(np.concatenate([rng.permutation(M)[:b] for _ in range(K)]))
        return PyTorchTensorDataset((first[i, rows], second[i, rows]), user_id=str(i))

    order = iter([i for called in job["schedule"] for i in called])
    users = FederatedDataset(user, lambda: next(order))
    module = Model(clients, dtype)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    algorithm, params = algorithm_of(job, clients.N)
    steps = NNTrainHyperParams(
        local_batch_size=b, local_num_epochs=K if b is None else 1, local_learning_rate=job["eta"]
    )
    clock.loaded()
    algorithm.run(
        params, SimulatedBackend(users, users, postprocessors=[WeightByUser()]), model, steps,
        callbacks=[Tick(clock, module)], send_metrics_to_platform=False,
    )  # fmt: skip
    found = versions("pfl", "torch", "numpy")
    return {
        "versions": found,
        "label": found["pfl"],
        "called": job["schedule"] if job.get("tell") else None,
    }


if __name__ == "__main__":
    main(run)
