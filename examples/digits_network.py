"""Train a convolutional network on digits with FedAvg, SCAFFOLD and FedPAGE, and compare them.

Twenty clients have a few digits each. FedAvg takes large local steps and reaches 90 % held-out
accuracy with by far the fewest bytes. Its clients disagree, however, so its gradient stops
shrinking. Those of SCAFFOLD and FedPAGE shrink steadily. Use FedAvg here for a good model soon, and
SCAFFOLD or FedPAGE for a stationary point.

Step sizes: FedAvg's eta_l is the best of 0.1, 0.3, 0.6, and FedPAGE's eta_g the best of 0.1, 0.2,
0.4, 0.7, 1.2, by the final loss. SCAFFOLD's is half of FedAvg's and was not tuned.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
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
    fp.SCAFFOLD(S=5, K=5, eta_l=0.3, b=16): 107,  # sends two vectors down, one up
    fp.FedPAGE(S=5, K=2, eta_g=0.7, b3=16): 75,  # calls all clients in a quarter of its rounds
}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for method, rounds in runs.items():
    best = fp.Best(problem, f"{method.name}.npz", "held_out_accuracy")
    history = fp.simulate(problem, method, rounds=rounds, seed=0, record_every=5, callbacks=[best])
    megabytes = history.cost_to("held_out_accuracy", 0.9) / 1e6
    needed = f"after {megabytes:.1f} MB" if np.isfinite(megabytes) else "never"
    print(
        f"{method.name:9} {history['bytes'][-1] / 1e6:5.1f} MB: 90 % held-out accuracy {needed}, "
        f"at the end {history.last('held_out_accuracy'):.2f}, "
        f"gradient norm {history.last('grad_norm'):.3f}"
    )
    for axis, column in zip(axes, ("held_out_accuracy", "grad_norm"), strict=True):
        axis.plot(history["bytes"] / 1e6, history[column], label=method.name)
axes[0].set(xlabel="MB up and down", ylabel="held-out accuracy")
axes[1].set(xlabel="MB up and down", ylabel="gradient norm", yscale="log")
axes[0].legend(frameon=False)
figure.savefig("digits_network.png", dpi=150)

# Load FedAvg's best model and use it.
model = fp.load_model("FedAvg.npz", network().double())
images, digits = held_out
predicted = model(torch.tensor(images[:8])).argmax(1)
print("predicted:", predicted.tolist(), "true:", digits[:8].tolist())
