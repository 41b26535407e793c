"""Compare the time of a FedAvg round in fedpage and in the usual PyTorch loop over clients.

scikit-learn's digits, a 64-64-10 network, 100 clients, S = 10, K = 10, minibatches of 16, one
thread. Both run in turns in one process. Before the timing, both compute the same rounds from the
same minibatches, and must agree.
"""

from __future__ import annotations

import copy
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.engine.simulation import Simulation

N, S, K, B, ETA = 100, 10, 10, 16, 0.1


class Loop:
    """Run FedAvg as it is usually written: a copy of the model and an optimiser per client."""

    def __init__(
        self, model: nn.Module, clients: list[tuple[torch.Tensor, torch.Tensor]], seed: int
    ) -> None:
        self.model, self.clients, self.seed, self.round = model, clients, seed, 0

    def step(self) -> None:
        draws = RoundDraws(self.seed, self.round)  # the clients and minibatches of fedpage
        chosen = draws.clients(N, S)
        sizes = np.array([len(self.clients[i][1]) for i in chosen])
        rows = draws.rows(chosen, sizes, B, 0, K).astype(np.int64)
        states = []
        for place, i in enumerate(chosen):
            X, y = self.clients[i]
            local = copy.deepcopy(self.model)
            optimiser = torch.optim.SGD(local.parameters(), lr=ETA)
            for k in range(K):
                batch = torch.from_numpy(rows[place, k, : min(B, len(y))])
                optimiser.zero_grad()
                F.cross_entropy(local(X[batch]), y[batch]).backward()
                optimiser.step()
            states.append(local.state_dict())
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        self.model.load_state_dict(mean)
        self.round += 1


def check_agreement(
    model: nn.Module, clients: list[tuple[np.ndarray, np.ndarray]], method: fp.FedAvg
) -> None:
    """Check in float64 that both end at the same model."""
    tensors = [(torch.from_numpy(X).double(), torch.from_numpy(y)) for X, y in clients]
    loop = Loop(copy.deepcopy(model).double(), tensors, seed=1)
    ours = Simulation(
        fp.TorchProblem(model, F.cross_entropy, clients, dtype="float64"), method, seed=1
    )
    for _ in range(5):
        loop.step()
        ours.step()
    theirs = torch.cat([p.detach().reshape(-1) for p in loop.model.parameters()]).numpy()
    difference = float(np.abs(ours.x - theirs).max())
    assert difference < 1e-10, f"the models differ by {difference:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=5, help="rounds per turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    print(
        f"torch {torch.__version__}; FedAvg, N={N} S={S} K={K} b={B}, one thread; "
        f"min of {options.turns} turns"
    )
    print(
        f"{'clients':<28}{'loop, ms a round':>18}{'fedpage':>10}{'ratio':>8}"
        f"{'deterministic=False':>22}{'ratio':>8}"
    )
    splits = {
        "equal sizes (iid)": fp.iid(len(y), N, seed=0),
        "Dirichlet(0.5) over labels": fp.dirichlet(y, N, alpha=0.5, seed=0),
    }
    for name, partition in splits.items():
        clients = [(X[partition.rows(i)], y[partition.rows(i)]) for i in range(N)]
        tensors = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in clients]
        method = fp.FedAvg(S=S, K=K, eta_l=ETA, eta_g=1.0, b=B)
        problems = [
            fp.TorchProblem(model, F.cross_entropy, clients, deterministic=deterministic)
            for deterministic in (True, False)
        ]
        runs = [Simulation(problem, method, seed=1) for problem in problems]
        loop = Loop(copy.deepcopy(model), tensors, seed=1)
        check_agreement(model, clients, method)
        for _ in range(60):  # fedpage traces its gradients meanwhile
            for run in (loop, *runs):
                run.step()
        best = [np.inf] * 3
        for _ in range(options.turns):
            for place, run in enumerate((loop, *runs)):
                began = time.perf_counter()
                for _ in range(options.rounds):
                    run.step()
                best[place] = min(best[place], 1e3 * (time.perf_counter() - began) / options.rounds)
        a, b, c = best
        print(f"{name:<28}{a:>18.2f}{b:>10.2f}{a / b:>7.1f}x{c:>22.2f}{a / c:>7.1f}x")


if __name__ == "__main__":
    main()
