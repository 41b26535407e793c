"""Check that models, losses, rows and options that cannot be used are refused in one line."""

from functools import partial

import numpy as np
import pytest
import torch
from nets import mlp_problem, refuse, rows
from torch import nn
from torch.nn import functional as F

import fedpage as fp

DATA = rows([30, 2])
SORTED = [(DATA[0][0], np.sort(DATA[0][1])), DATA[1]]


def class_weights(outputs, targets):
    return F.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 2.0, 5.0]))


class RandomOutputs(nn.Linear):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, self.training)


class RarelyRandom(nn.Linear):
    def forward(self, x):
        return super().forward(x * (torch.rand_like(x) > 1e-3))


class MixesRows(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        return out - out.mean(0)


class CountsCalls(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class ScalesByFrequency(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 3, scale_grad_by_freq=True)

    def forward(self, x):
        return self.table(x)


def not_finite():
    model = nn.Linear(6, 3)
    model.bias.data[0] = np.nan
    return model


def linear():
    torch.manual_seed(0)  # with other weights a loss may agree by chance, and the gradient differ
    return nn.Linear(6, 3)


MODELS = {
    "a class": (lambda: nn.Linear, "must be a torch.nn.Module"),
    "batch norm": (
        lambda: nn.Sequential(linear(), nn.BatchNorm1d(3)),
        r"1 \(BatchNorm1d\).*to_group_norm",
    ),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), linear()).eval(),
        "BatchNorm1d",
    ),
    "functional dropout": (
        lambda: RandomOutputs(6, 3),
        "RandomOutputs gives another loss for the same rows",
    ),
    "rare random numbers": (lambda: RarelyRandom(6, 3), "draws random numbers"),
    "batch statistics": (lambda: MixesRows(6, 3), "MixesRows or cross_entropy mixes rows"),
    "changed buffer": (lambda: CountsCalls(6, 3), "CountsCalls changes its buffer 'calls'"),
    "max_norm": (lambda: nn.Embedding(5, 3, max_norm=1.0), "max_norm"),
    "lazy": (lambda: nn.LazyLinear(3), "has no shape yet"),
    "input width": (lambda: nn.Linear(7, 3), r"cannot be computed .* inputs \(8, 6\)"),
    "too few classes": (lambda: nn.Linear(6, 2), "cannot be computed on rows of the clients"),
    "nothing to train": (lambda: linear().requires_grad_(False), "nothing to train"),
    "not finite": (not_finite, "bias has a NaN"),
    "complex": (lambda: nn.Linear(6, 3, dtype=torch.complex64), "complex64"),
    "half": (lambda: linear().half(), "dtype must be 'float32' or 'float64'"),
}


@pytest.mark.parametrize("case", MODELS)
def test_refused_models(case):
    make, message = MODELS[case]
    refuse(message, make(), F.cross_entropy, DATA)


LOSSES = {
    "class weights": (class_weights, "mean of their own losses"),
    "class weights, sorted": (class_weights, "mean of their own losses"),
    "class weights of torch": (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        r"reduction='sum' divided by len\(targets\)",
    ),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), "sums over them; use the mean"),
    "no reduction": (nn.CrossEntropyLoss(reduction="none"), "reduction='mean'"),
    "a word": ("mse", "loss_fn must be a function"),
    "ignored targets": (
        nn.CrossEntropyLoss(ignore_index=1),
        "with weight or ignore_index use its reduction='sum'",
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_refused_losses(case):
    loss, message = LOSSES[case]
    refuse(message, linear(), loss, SORTED if "sorted" in case else DATA)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_refused_broadcast_of_targets():
    data = [(x, y.astype("float32")) for x, y in SORTED]
    refuse("mean of their single losses", nn.Linear(6, 1), nn.MSELoss(), data)


def test_refused_gradients_that_depend_on_the_batch():
    data = [(np.array([0, 0, 1, 2, 0]), np.array([0, 1, 2, 1, 0]))]
    refuse("scale_grad_by_freq", ScalesByFrequency(), F.cross_entropy, data)


X, Y = DATA[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
        ({"device": "abacus"}, "device 'abacus'"),
        ({"device": "meta"}, "meta"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"metrics": ["f2"]}, "unknown metric 'f2'"),
        ({"metrics": {"loss": F.mse_loss}}, "cannot be called 'loss'"),
        ({"metrics": {"bytes_up": F.mse_loss}}, "cannot be called 'bytes_up'"),
        ({"metrics": {"held_out_loss": F.mse_loss}}, "cannot be called 'held_out_loss'"),
        ({"metrics": None}, "metrics must be names"),
        (
            {"metrics": {"broken": lambda outputs, targets: outputs}},
            "metric 'broken' cannot be computed on the clients",
        ),
        ({"held_out": (X[:, :4], Y)}, "cannot be computed on rows of held_out"),
        ({"held_out": X}, "held_out must be"),
        ({"weights": [1.0]}, "weights must be"),
    ],
)
def test_refused_options(options, message):
    refuse(message, linear(), F.cross_entropy, DATA, **options)


def test_theory_refuses_a_model_of_unknown_smoothness():
    with pytest.raises(fp.InputError, match="tune"):
        fp.FedPAGE.from_theory(mlp_problem(), S=2)


# Digests


def describe(loss, model=None):
    return fp.TorchProblem(model or linear(), loss, DATA, dtype="float64").describe()


def smoothed(a):
    return lambda outputs, targets: F.cross_entropy(outputs, targets, label_smoothing=a)


def test_digests_of_losses_differ_by_their_options():
    losses = [
        partial(F.cross_entropy, label_smoothing=0.1),
        partial(F.cross_entropy, label_smoothing=0.2),
        smoothed(0.1),
        smoothed(0.2),
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        F.cross_entropy,
    ]
    assert len({describe(loss)["loss_digest"] for loss in losses}) == len(losses)
    again = describe(smoothed(0.1))["loss_digest"]
    assert again == describe(smoothed(0.1))["loss_digest"]


class Scaled(nn.Linear):
    def __init__(self, factor):
        super().__init__(6, 3)
        self.factor = factor

    def forward(self, x):
        return self.factor * super().forward(x)


def test_digests_of_models_differ_by_their_attributes():
    models = [Scaled(factor) for factor in (1.0, 2.0, 1.0)]
    digests = [describe(F.cross_entropy, model)["model_digest"] for model in models]
    assert digests[0] == digests[2] != digests[1]
