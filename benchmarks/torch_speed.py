"""Compare the CPU time of a FedAvg round in fedpage, in PyTorch loops over clients, and in jax.

All run in turns in one process on one thread, and the smallest time of several turns counts.
Before the timing, fedpage and the loop compute the same rounds from the same minibatches in
float64, and must agree. jax is a reference only; its column is left out where it is missing.

- loop with copies: a copy of the model and an optimiser per client, as it is usually written;
- loop: one model and one optimiser, whose parameters are set for each client;
- fedpage: eager, with `compile=True`, and with `deterministic=True`;
- jax: vmap over clients, a scan over steps, compiled as one function of the round.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import argparse
import copy
import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.engine.simulate import Simulation

ETA = 0.05


class LastStep(nn.Module):
    """An LSTM over the rows of an image, and a linear layer on its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 64, batch_first=True)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.lstm(x)[0][:, -1])


class Case(NamedTuple):
    """A network, the shape of a row, and the numbers of a FedAvg round."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    S: int = 10
    K: int = 10
    b: int = 16
    N: int = 100


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 180),
        nn.ReLU(),
        nn.Linear(180, 10),
    )


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


CASES = {
    "MLP 64-64-10": Case(lambda: mlp(64, 64, 10), (64,)),
    "CNN, 98,950 parameters": Case(cnn, (1, 8, 8)),
    "MLP 784-512-512-10": Case(lambda: mlp(784, 512, 512, 10), (784,), S=8, K=3, b=32),
    "LSTM 8-64": Case(LastStep, (8, 8)),
}


class Loop:
    """Run FedAvg as a loop over clients, with or without a copy of the model for each."""

    def __init__(self, model: nn.Module, clients: list[Any], case: Case, copies: bool) -> None:
        self.model, self.clients, self.case, self.copies = model, clients, case, copies
        self.local = copy.deepcopy(model)
        self.optimiser = torch.optim.SGD(self.local.parameters(), lr=ETA)
        self.round = 0

    def step(self) -> None:
        case = self.case
        draws = RoundDraws(1, self.round)  # the clients and minibatches of fedpage
        chosen = draws.clients(case.N, case.S)
        sizes = np.array([len(self.clients[i][1]) for i in chosen])
        rows = draws.rows(chosen, sizes, case.b, 0, case.K).astype(np.int64)
        means = [torch.zeros_like(p) for p in self.model.parameters()]
        for place, i in enumerate(chosen):
            X, y = self.clients[i]
            if self.copies:
                self.local = copy.deepcopy(self.model)
                self.optimiser = torch.optim.SGD(self.local.parameters(), lr=ETA)
            else:
                self._copy(self.model.parameters(), self.local.parameters())
            for k in range(case.K):
                batch = torch.from_numpy(rows[place, k, : min(case.b, len(y))])
                self.optimiser.zero_grad()
                F.cross_entropy(self.local(X[batch]), y[batch]).backward()
                self.optimiser.step()
            with torch.no_grad():
                for mean, p in zip(means, self.local.parameters(), strict=True):
                    mean += p / case.S
        self._copy(means, self.model.parameters())
        self.round += 1

    @torch.no_grad()
    def _copy(self, sources: Any, targets: Any) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)


class Jax:
    """Run the rounds of a multilayer perceptron in jax, each as one compiled function."""

    def __init__(self, model: nn.Module, clients: list[Any], case: Case) -> None:
        import jax
        import jax.numpy as jnp

        self.case, self.round = case, 0
        layers = [layer for layer in model if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]
        self.x = [
            (jnp.array(layer.weight.detach().numpy()), jnp.array(layer.bias.detach().numpy()))
            for layer in layers
        ]
        self.X, self.y = (jnp.stack([jnp.array(c[k].numpy()) for c in clients]) for k in (0, 1))

        def loss(x: Any, a: Any, y: Any) -> Any:
            for place, (weight, bias) in enumerate(x):
                a = a @ weight.T + bias
                a = a if place == len(x) - 1 else jnp.maximum(a, 0)
            return -jnp.take_along_axis(jax.nn.log_softmax(a), y[:, None], 1).mean()

        def client(x: Any, X: Any, y: Any, rows: Any) -> Any:
            def step(x: Any, rows: Any) -> tuple[Any, None]:
                g = jax.grad(loss)(x, X[rows], y[rows])
                return jax.tree.map(lambda a, b: a - ETA * b, x, g), None

            return jax.lax.scan(step, x, rows)[0]

        def round_(x: Any, X: Any, y: Any, chosen: Any, rows: Any) -> Any:
            each = jax.vmap(client, (None, 0, 0, 0))(x, X[chosen], y[chosen], rows)
            return jax.tree.map(lambda a: a.mean(0), each)

        self._round, self._wait = jax.jit(round_), jax.block_until_ready

    def step(self) -> None:
        case = self.case
        draws = RoundDraws(1, self.round)
        chosen = draws.clients(case.N, case.S)
        sizes = np.full(case.S, self.y.shape[1])
        rows = draws.rows(chosen, sizes, case.b, 0, case.K).astype(np.int32)
        self.x = self._wait(self._round(self.x, self.X, self.y, chosen.astype(np.int32), rows))
        self.round += 1


def check_agreement(case: Case, model: nn.Module, clients: list[Any], method: fp.FedAvg) -> None:
    """Check in float64 that the loop and fedpage end at the same model."""
    wide = [(X.double(), y) for X, y in clients]
    loop = Loop(copy.deepcopy(model).double(), wide, case, copies=False)
    problem = fp.TorchProblem(model, F.cross_entropy, wide, dtype="float64")
    ours = Simulation(problem, method, seed=1)
    for _ in range(2):
        loop.step()
        ours.step()
    theirs = torch.cat([p.detach().reshape(-1) for p in loop.model.parameters()]).numpy()
    difference = float(np.abs(ours.x - theirs).max())
    assert difference < 1e-10, f"the models differ by {difference:g}"


def list_runs(
    case: Case, model: nn.Module, clients: list[Any], method: fp.FedAvg
) -> dict[str, Any]:
    """Return what is compared, by name; each has a method `step`."""
    runs: dict[str, Any] = {
        "loop with copies": Loop(copy.deepcopy(model), clients, case, copies=True),
        "loop": Loop(copy.deepcopy(model), clients, case, copies=False),
    }
    for name, options in {
        "fedpage": {},
        "compile": {"compile": True},
        "deterministic": {"deterministic": True},
    }.items():
        try:
            problem = fp.TorchProblem(model, F.cross_entropy, clients, **options)
        except fp.InputError as error:
            print(error)
            continue
        runs[name] = Simulation(problem, method, seed=1)
    try:
        import jax  # noqa: F401
    except ImportError:
        return runs
    if all(isinstance(layer, (nn.Linear, nn.ReLU)) for layer in model.children()):
        runs["jax"] = Jax(model, clients, case)
    return runs


def measure(runs: dict[str, Any], turns: int, seconds: float) -> dict[str, float]:
    """Return the smallest CPU milliseconds of a round, over turns of so many seconds each."""
    rounds = {}
    for name, run in runs.items():
        run.step()  # compiles
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            run.step()
            count += 1
        rounds[name] = max(1, count)
    best = dict.fromkeys(runs, np.inf)
    for _ in range(turns):
        for name, run in runs.items():
            began = time.process_time()
            for _ in range(rounds[name]):
                run.step()
            best[name] = min(best[name], 1e3 * (time.process_time() - began) / rounds[name])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--only", help="a word in the names of the networks to time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, FedAvg, one thread: CPU milliseconds a round, "
        f"smallest of {options.turns} turns; in brackets: times faster than 'loop'"
    )
    for name, case in CASES.items():
        if options.only and options.only not in name:
            continue
        torch.manual_seed(0)
        model, random = case.model(), np.random.default_rng(0)
        clients = [
            (
                torch.from_numpy(random.normal(size=(50, *case.shape)).astype(np.float32)),
                torch.from_numpy(random.integers(0, 10, 50)),
            )
            for _ in range(case.N)
        ]
        method = fp.FedAvg(S=case.S, K=case.K, eta_l=ETA, eta_g=1.0, b=case.b)
        check_agreement(case, model, clients, method)
        best = measure(list_runs(case, model, clients, method), options.turns, options.seconds)
        print(f"\n{name}, N={case.N} S={case.S} K={case.K} b={case.b}")
        for run, value in best.items():
            print(f"  {run:<20}{value:>9.2f}  ({best['loop'] / value:.2f})", flush=True)


if __name__ == "__main__":
    main()
