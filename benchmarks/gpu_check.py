"""Check fedpage on an accelerator in about a minute, and print a verdict.

    python benchmarks/gpu_check.py            # cuda, or mps, whichever is there
    python benchmarks/gpu_check.py --device cuda:1

It compares gradients and runs with those of the CPU, looks for copies between device and host
within a round, repeats a run, and times a round. The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.engine.simulate import Simulation

READS = ("numpy", "cpu", "item", "tolist", "__float__", "__int__", "__bool__")


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(128, 10),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"MLP": make_mlp, "CNN": make_cnn}
METHODS = {
    "FedAvg": fp.FedAvg(S=20, K=5, eta_l=0.05, b=16),
    "SCAFFOLD": fp.SCAFFOLD(S=20, K=5, eta_l=0.05, b=16),
    "FedPAGE": fp.FedPAGE(S=20, K=5, eta_g=0.2, b3=16),
    "FedAdam": fp.FedAdam(S=20, K=5, eta_l=0.05, eta_g=0.01, b=16),
}


def make_problem(model: str, device: str, clients: int) -> fp.TorchProblem:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    sizes = random.integers(20, 60, clients)
    data = [
        (random.normal(i % 3, 1, (n, 1, 16, 16)).astype("float32"), random.integers(0, 10, n))
        for i, n in enumerate(sizes)
    ]
    return fp.TorchProblem(MODELS[model](), F.cross_entropy, data, device=device)


class CountedReads:
    """Count the tensors that are copied from the device to the host."""

    def __enter__(self) -> CountedReads:
        self.count, self._before = 0, {name: getattr(torch.Tensor, name) for name in READS}
        for name, function in self._before.items():
            setattr(torch.Tensor, name, self._wrap(function))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._before.items():
            setattr(torch.Tensor, name, function)

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: torch.Tensor, *arguments: Any) -> Any:
            self.count += tensor.device.type != "cpu"
            return function(tensor, *arguments)

        return read


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    elif device.startswith("mps"):
        torch.mps.synchronize()


def time_round(run: Simulation[Any, Any, Any, Any], device: str, rounds: int) -> float:
    """Return the milliseconds of a round."""
    run.step()
    synchronise(device)
    began = time.perf_counter()
    for _ in range(rounds):
        run.step()
    synchronise(device)
    return 1e3 * (time.perf_counter() - began) / rounds


def check_model(model: str, device: str, rounds: int, clients: int) -> list[tuple[str, bool, str]]:
    """Return the checks of one model: name, verdict, detail."""
    results = []
    host, there = (make_problem(model, where, clients) for where in ("cpu", device))
    gap = float(np.abs(host.grad(host.x0) - there.grad(host.x0)).max())
    scale = float(np.abs(host.grad(host.x0)).max())
    results.append((f"{model}: gradient", gap < 1e-3 * scale, f"relative error {gap / scale:.1e}"))
    for name, method in METHODS.items():
        a, b, again = (Simulation(p, method, seed=1) for p in (host, there, there))
        for _ in range(rounds):
            a.step()
            again.step()
        with CountedReads() as reads:
            for _ in range(rounds):
                b.step()
        values = [problem.loss(run.x) for problem, run in ((host, a), (host, b))]
        off = abs(values[1] - values[0]) / abs(values[0])
        detail = f"loss {values[1]:.5f}, on the CPU {values[0]:.5f}"
        results.append((f"{model}, {name}: agrees with the CPU", off < 1e-2, detail))
        results.append(
            (f"{model}, {name}: no copies within a round", not reads.count, f"{reads.count} copies")
        )
        same = b.x.tobytes() == again.x.tobytes()
        detail = "same bits" if same else f"differs by {np.abs(b.x - again.x).max():.1e}"
        close = bool(np.allclose(b.x, again.x, rtol=0, atol=1e-3))
        results.append((f"{model}, {name}: a second run", close, detail))
    times = [
        time_round(Simulation(p, METHODS["FedAvg"], seed=1), where, rounds)
        for p, where in ((host, "cpu"), (there, device))
    ]
    detail = f"{times[1]:.1f} ms a round, {times[0]:.1f} ms on the CPU"
    results.append((f"{model}, FedAvg: time", True, detail))
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", help="such as cuda, cuda:1 or mps; cpu tries the script")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=200)
    options = parser.parse_args(arguments)
    device = options.device
    if device is None:
        found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        device = next((name for name, is_there in found.items() if is_there), None)
        if device is None:
            print("no accelerator: torch finds neither cuda nor mps; --device cpu tries the script")
            return 1
    print(f"fedpage {fp.__version__}, torch {torch.__version__}, device {device}")
    failed = 0
    for model in MODELS:
        for name, is_right, detail in check_model(model, device, options.rounds, options.clients):
            print(f"{'ok    ' if is_right else 'FAILED'}  {name}: {detail}", flush=True)
            failed += not is_right
    print(
        f"verdict: {'all checks passed' if not failed else f'{failed} checks failed'} on {device}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
