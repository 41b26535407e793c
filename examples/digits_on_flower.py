"""Train the network of digits_network.py on Flower, with the same bits as in the simulator.

The script starts Flower's simulation on this machine and submits the app in examples/flower_digits,
which has four nodes with their own rows. On four machines you would submit the same app with
`flwr run examples/flower_digits` (see docs/deploy.md). FedAvg runs in the simulator only, which is
faster and gives the bits that Flower would give.

After 20 rounds FedAvg, with its large local steps, has the better accuracy, and FedPAGE the smaller
gradient. Step sizes are the best of 0.7, 1.0, 1.4, 2.0 for FedPAGE and of 0.3, 0.6, 1.0 for FedAvg;
larger ones diverge.
"""

import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import fedpage as fp
from fedpage.flower.deploy.local_federation import SimulatedFederation

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "flower_digits"))
from digits import network, rows  # noqa: E402

ROUNDS = 20
with (
    tempfile.TemporaryDirectory() as scratch,
    SimulatedFederation(Path(scratch) / "home", 4, allow=["digits:problem"]) as federation,
):
    out = Path(scratch) / "run"
    federation.submit(
        HERE / "flower_digits", rounds=ROUNDS, record_every=4, out=str(out), poll=0.02
    )
    while not ((out / "history.jsonl").exists() and '"end"' in (out / "history.jsonl").read_text()):
        time.sleep(0.2)
    deployed = fp.History.load(out / "history.jsonl")

clients, held_out = rows(4)
problem = fp.TorchProblem(
    network(),
    torch.nn.CrossEntropyLoss(),
    clients,
    metrics=["accuracy"],
    held_out=held_out,
    dtype="float64",
)
options = {"rounds": ROUNDS, "seed": 0, "record_every": 4}
fedpage = fp.simulate(problem, fp.FedPAGE(S=2, K=2, eta_g=1.0, b3=16), **options)
fedavg = fp.simulate(problem, fp.FedAvg(S=2, K=5, eta_l=0.6, b=16), **options)
same = (deployed.x == fedpage.x).all()
print(f"FedPAGE's models on Flower and in the simulator are {'equal' if same else 'NOT EQUAL'}")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for history, label in ((fedavg, "FedAvg"), (deployed, "FedPAGE on Flower")):
    print(
        f"{label:17} {ROUNDS} rounds, {history['bytes'][-1] / 1e6:.2f} MB: accuracy "
        f"{history.last('held_out_accuracy'):.2f}, gradient norm {history.last('grad_norm'):.3f}"
    )
    for axis, column in zip(axes, ("held_out_accuracy", "grad_norm"), strict=True):
        axis.plot(history["bytes"] / 1e6, history[column], marker="o", label=label)
axes[0].set(xlabel="MB up and down", ylabel="held-out accuracy")
axes[1].set(xlabel="MB up and down", ylabel="gradient norm", yscale="log")
axes[0].legend(frameon=False)
figure.savefig("digits_on_flower.png", dpi=150)
