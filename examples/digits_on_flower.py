"""The same network on Flower: four nodes with their own rows, FedPAGE against FedAvg, bit for bit as in the simulator.

It starts Flower's simulation on this machine and submits the app in examples/flower_digits to it twice. The app is what
would run on four machines: `flwr run examples/flower_digits`, see docs/deploy.md. After so few rounds FedAvg, with its
large local steps, has the better accuracy; FedPAGE, which takes one careful step a round, has the smaller gradient.
(Steps are the best of 0.7, 1.0, 1.4, 2.0 for FedPAGE and of 0.3, 0.6, 1.0 for FedAvg; larger ones diverge.)
"""

import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import fedpage as fp
from fedpage.flower.loopback import Simulated

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "flower_digits"))
from digits import network, rows  # noqa: E402

RUNS = {
    "fedavg": (fp.FedAvg(S=2, K=5, eta_l=0.6, b=16), "S=2 K=5 eta_l=0.6 b=16"),
    "fedpage": (fp.FedPAGE(S=2, K=2, eta_g=1.0, b3=16), "S=2 K=2 eta_g=1.0 b3=16"),
}
ROUNDS = 20

clients, _ = rows(4)
problem = fp.TorchProblem(network(), torch.nn.CrossEntropyLoss(), clients, dtype="float64")
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
with tempfile.TemporaryDirectory() as scratch, Simulated(Path(scratch) / "home", 4) as federation:
    for name, (_, hyper) in RUNS.items():
        out = str(Path(scratch) / name)
        federation.submit(HERE / "flower_digits", method=name, hyper=hyper, rounds=ROUNDS, record=4, out=out, poll=0.02)
    for name, (method, _) in RUNS.items():
        path = Path(scratch) / name / "history.jsonl"
        while not (path.exists() and '"end"' in path.read_text()):
            time.sleep(0.2)
        history = fp.History.load(path)
        alone = fp.simulate(problem, method, rounds=ROUNDS, seed=0, record=0)
        print(
            f"{history.label:8} {ROUNDS} rounds, {history['bytes'][-1] / 1e6:.2f} MB: accuracy "
            f"{history.last('held_out_accuracy'):.2f}, gradient norm {history.last('grad_norm'):.3f}; "
            f"the simulator's model is {'the same' if (alone.x == history.x).all() else 'ANOTHER'}"
        )
        for axis, column in zip(axes, ("held_out_accuracy", "grad_norm"), strict=True):
            axis.plot(history["bytes"] / 1e6, history[column], marker="o", label=history.label)
axes[0].set(xlabel="MB up and down", ylabel="accuracy on the server's digits")
axes[1].set(xlabel="MB up and down", ylabel="gradient norm", yscale="log")
axes[0].legend(frameon=False)
figure.savefig("digits_on_flower.png", dpi=150)
