"""The models of the table in docs/torch.md, with rows of two clients."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import fedpage as fp


class Block(nn.Module):
    """Two convolutions with batch normalisation and a shortcut, as in ResNet-18."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def resnet18(width=4):
    """ResNet-18 for small images: four stages of two blocks."""
    stages = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        for block in range(2):
            stages.append(Block(before, width * 2**stage, 2 if stage and not block else 1))
            before = width * 2**stage
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 3))


class Recurrent(nn.Module):
    """A recurrent layer over words, with the embedding tied to the output layer."""

    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.layer = nn.Embedding(5, 4), layer(4, 4, batch_first=True)
        self.output = nn.Linear(4, 5)
        self.output.weight = self.embedding.weight

    def forward(self, words):
        return self.output(self.layer(self.embedding(words))[0][:, -1])


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 6, bias=False)
        self.b = nn.Linear(6, 6, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class Words(nn.Module):
    """The mean of embeddings."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, words):
        return self.linear(self.embedding(words).mean(1))


class Encoder(nn.Module):
    """A transformer encoder with torch's default dropout."""

    def __init__(self, batch_first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.embedding = nn.Embedding(5, 8)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.linear, self.batch_first = nn.Linear(8, 5), batch_first

    def forward(self, words):
        x = self.embedding(words)
        x = self.encoder(x if self.batch_first else x.transpose(0, 1))
        return self.linear(x.mean(1 if self.batch_first else 0))


def perceptron():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def normalised():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout2d(0.2), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 3),
    )  # fmt: skip


def frozen_base():
    """Return a base with frozen parameters and statistics, and a new last layer."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 3),
    )  # fmt: skip
    model[:5].requires_grad_(False).eval()
    return model


def features(client):
    torch.manual_seed(10 + client)
    return torch.randn(8, 6) + client, torch.arange(8) % 3


def words(client):
    torch.manual_seed(20 + client)
    inputs = torch.randint(0, 5, (8, 4))
    return inputs, inputs[:, client]


def pictures(client):
    torch.manual_seed(30 + client)
    targets = torch.arange(8) % 3
    return torch.randn(8, 3, 8, 8) + targets[:, None, None, None], targets


class Case(NamedTuple):
    """A row of the table."""

    label: str
    make: Callable[[], nn.Module]
    rows: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    mode: str = "batched"
    compile: str = "yes"
    eta: float = 0.1
    options: Mapping[str, Any] = MappingProxyType({})
    flower: str = "yes"

    def problem(self, clients=(0, 1), **options):
        """Return the problem of some of the clients."""
        data = [self.rows(client) for client in clients]
        options = {**self.options, **options}
        torch.manual_seed(0)
        return fp.TorchProblem(self.make(), F.cross_entropy, data, **options)


NORMS = "no: statistics of batches"
MODELS = {
    "mlp": Case("multilayer perceptron", perceptron, features),
    "aggregated": Case(
        'perceptron, `batch_norm="aggregated"`', normalised, features,
        compile=NORMS, options={"batch_norm": "aggregated"},
    ),
    "silobn": Case(
        'perceptron, `batch_norm="silobn"`', normalised, features,
        compile=NORMS, options={"batch_norm": "silobn"},
    ),
    "tied": Case("two layers with tied weights", Tied, features),
    "embeddings": Case("mean of embeddings", Words, words, eta=1.0),
    "lstm": Case(
        "LSTM, embedding tied to the output", lambda: Recurrent(nn.LSTM), words,
        "sequential", "no: recurrent layers", 0.3,
    ),
    "gru": Case(
        "GRU, embedding tied to the output", lambda: Recurrent(nn.GRU), words,
        "sequential", "no: recurrent layers", 0.3,
    ),
    "encoder": Case("transformer encoder with dropout", Encoder, words, compile="no: dropout"),
    "convolutions": Case(
        "convolutions with dropout", convolutions, pictures, compile="no: dropout"
    ),
    "frozen": Case("frozen base with BatchNorm, new last layer", frozen_base, pictures, eta=0.3),
    "resnet_group_norm": Case(
        "ResNet-18, narrow, `fp.to_group_norm`", lambda: fp.to_group_norm(resnet18(), 2), pictures,
        compile="not tested", flower="not tested",
    ),
    "resnet_aggregated": Case(
        'ResNet-18, narrow, `batch_norm="aggregated"`', resnet18, pictures,
        eta=0.02, compile=NORMS, flower="not tested", options={"batch_norm": "aggregated"},
    ),
    "resnet_silobn": Case(
        'ResNet-18, narrow, `batch_norm="silobn"`', resnet18, pictures,
        eta=0.02, compile=NORMS, flower="not tested", options={"batch_norm": "silobn"},
    ),
}  # fmt: skip
