"""A network for a table: ten clinics that see patients of different ages, and two that come later.

scikit-learn's diabetes data, divided by age. A metric of one's own (r2, the explained variance) is in every record, for
the clinics that take part and for two that never do. All rows are in every gradient, so FedAvg's only error is that
clinics pull in different directions: its gradient stops at a floor, which FedPAGE and SCAFFOLD pass. For the clinics
that were held out it makes no difference: there all three are equally good, and FedAvg got there first.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

import fedpage as fp


def r2(outputs, targets):
    """The share of the variance that is explained."""
    return 1 - (outputs - targets).square().mean() / targets.var(correction=0)


X, y = load_diabetes(return_X_y=True)
X, y = X / X.std(axis=0), (y - y.mean()) / y.std()
clinics = [
    (X[rows], y[rows, None]) for rows in np.array_split(np.argsort(X[:, 0], kind="stable"), 12)
]
later = [clinics.pop(8), clinics.pop(3)]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))
problem = fp.TorchProblem(
    model,
    nn.MSELoss(),
    clinics,
    metrics={"r2": r2},
    held_out_clients=later,
    weights="size",
    dtype="float64",
)
runs = {
    fp.FedAvg(S=5, K=10, eta_l=0.02, b=None): 200,
    fp.SCAFFOLD(S=5, K=10, eta_l=0.02, b=None): 100,
    fp.FedPAGE(S=5, K=10, eta_g=0.2, p=0.2, b3=None): 100,
}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for method, rounds in runs.items():
    history = fp.simulate(problem, method, rounds=rounds, seed=0, record_every=10, progress=True)
    print(
        f"{method.name:9} {history['bytes'][-1] / 1e3:4.0f} kB: loss {history.last('loss'):.3f}, gradient norm "
        f"{history.last('grad_norm'):.4f}, r2 {history.last('r2'):.2f}, at the clinics that came later "
        f"{history.last('held_out_clients_r2'):.2f}"
    )
    for axis, column in zip(axes, ("grad_norm", "held_out_clients_r2"), strict=True):
        axis.plot(history["bytes"] / 1e3, history[column], label=method.name)
axes[0].set(xlabel="kB up and down", ylabel="gradient norm", yscale="log")
axes[1].set(xlabel="kB up and down", ylabel="r2 at two clinics that came later", ylim=(0, 0.6))
axes[1].legend(frameon=False)
figure.savefig("diabetes_clinics.png", dpi=150)
