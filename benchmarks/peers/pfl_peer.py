"""Run pfl-research's FederatedAveraging, FedProx and SCAFFOLD on its simulated backend.

Server optimisers are those of torch, which pfl takes as the central optimiser of averaging.

Four details make pfl do the same work as the other peers:
- Minibatches are consecutive slices of a user's data set, so `user` draws K b rows per round.
- SCAFFOLD refuses local_num_steps. One epoch over K b rows in batches of b is K steps.
- The sampler reads the job's schedule, so that no client is called twice in a round.
- With option I, client states are copied when they are stored. Otherwise the control variates of
  all clients are one tensor, a buffer of the model that get_model_difference overwrites. (pfl's
  storage on disk fails to load with this torch because of weights_only.)
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")

import numpy as np
import torch
from common import Clients, Clock, NotInLibrary, main, versions
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
    """Call the clock after every round."""

    def __init__(self, clock: Clock, module: Model) -> None:
        self.clock, self.module = clock, module

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> Any:
        self.clock.tick(lambda: self.module.x.detach().numpy().copy())
        return False, Metrics()


class CopiedStates(InMemoryUserStateStorage):
    """A storage of client states that stores copies instead of references."""

    def save_state(self, state: Any, user_id: str, key: str | None = None) -> None:
        super().save_state(state.apply_elementwise(torch.clone), user_id, key)


def exchange_control_variates() -> None:
    """Exchange c and c_i in the local step, which corrects the sign of the control variates."""
    original = PyTorchSCAFFOLDBridge.do_control_variate_sgd

    def exchanged(
        model: Any, user_dataset: Any, train_params: Any, local_c: Any, server_c: Any
    ) -> None:
        original(model, user_dataset, train_params, local_c=server_c, server_c=local_c)

    PyTorchSCAFFOLDBridge.do_control_variate_sgd = staticmethod(exchanged)


def build_algorithm(job: dict[str, Any], N: int) -> tuple[Any, Any]:
    common = {
        "central_num_iterations": job["rounds"], "evaluation_frequency": 10**9,
        "train_cohort_size": job["S"], "val_cohort_size": 0,
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


def build_optimiser(job: dict[str, Any], parameters: Any) -> torch.optim.Optimizer:
    """Return the central optimiser: pfl takes any of torch, and has none of its own."""
    method = job["method"]
    if method in ("mime", "mimelite", "fedyogi"):
        raise NotInLibrary("has none" if method != "fedyogi" else "has none (nor has torch)")
    if method in ("fedavgm", "fednesterov"):
        nesterov = method == "fednesterov"
        return torch.optim.SGD(parameters, job["eta_g"], job["beta"], nesterov=nesterov)
    if method == "fedadam":
        betas = (job["beta1"], job["beta2"])
        return torch.optim.Adam(parameters, job["eta_g"], betas, eps=job["tau"])
    if method == "fedadagrad":
        return torch.optim.Adagrad(
            parameters, job["eta_g"], initial_accumulator_value=job["tau"] ** 2, eps=job["tau"]
        )
    return torch.optim.SGD(parameters, lr=1.0)


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
    model = PyTorchModel(module, torch.optim.SGD, build_optimiser(job, module.parameters()))
    algorithm, params = build_algorithm(job, clients.N)
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
        "called": job["schedule"] if job.get("report_clients") else None,
    }


if __name__ == "__main__":
    main(run)
