"""A convolutional network on digits, twenty clients that each know a few digits: FedPAGE against FedAvg and SCAFFOLD.

Where FedPAGE wins, and where it does not: FedAvg takes large local steps and is the first at 90 % accuracy, by far. But
its clients pull in different directions, and its gradient stops shrinking and jumps; FedPAGE's goes down steadily, as
far as SCAFFOLD's. Who wants a good model soon takes FedAvg here; who wants a stationary point does not. FedAvg's local
step is the best of 0.1, 0.3, 0.6, and FedPAGE's eta_g of 0.1, 0.2, 0.4, 0.7, 1.2, by the loss at the end; SCAFFOLD's
is half of FedAvg's, and was not searched.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import fedpage as fp

sys.path.insert(0, str(Path(__file__).parent / "flower_digits"))
from digits import network, rows

clients, held_out = rows(20)
problem = fp.TorchProblem(
    network(),
    torch.nn.CrossEntropyLoss(),
    clients,
    metrics=["accuracy"],
    held_out=held_out,
    dtype="float64",
)
runs = {
    fp.FedAvg(S=5, K=5, eta_l=0.6, b=16): 160,
    fp.SCAFFOLD(S=5, K=5, eta_l=0.3, b=16): 80,  # two vectors each way
    fp.FedPAGE(S=5, K=2, eta_g=0.7, b3=16): 75,  # a quarter of its rounds ask everyone
}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for method, rounds in runs.items():
    best = fp.Best(problem, f"{method.name}.npz", "held_out_accuracy")
    history = fp.simulate(
        problem, method, rounds=rounds, seed=0, record_every=5, callbacks=[best], progress=True
    )
    reached = [row for row in history.rows if row["held_out_accuracy"] >= 0.9]
    soon = (
        f"{(reached[0]['bytes_up'] + reached[0]['bytes_down']) / 1e6:.1f} MB"
        if reached
        else "never"
    )
    print(
        f"{method.name:9} {history['bytes'][-1] / 1e6:5.1f} MB: 90 % held-out accuracy after {soon}, at the end "
        f"{history.last('held_out_accuracy'):.2f}, gradient norm {history.last('grad_norm'):.3f}"
    )
    for axis, column in zip(axes, ("held_out_accuracy", "grad_norm"), strict=True):
        axis.plot(history["bytes"] / 1e6, history[column], label=method.name)
axes[0].set(xlabel="MB up and down", ylabel="accuracy on digits that no client has")
axes[1].set(xlabel="MB up and down", ylabel="gradient norm", yscale="log")
axes[0].legend(frameon=False)
figure.savefig("digits_network.png", dpi=150)

model = fp.load_model(
    "FedAvg.npz", network().double()
)  # the best model of a run, in a file without pickle
images, digits = held_out
print("seen:", model(torch.tensor(images[:8])).argmax(1).tolist(), "true:", digits[:8].tolist())
