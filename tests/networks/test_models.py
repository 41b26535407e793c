"""Check which torch modules a problem accepts, and how it computes them."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from nets import SIZES, all_gradients, mlp_problem, network, rows
from support import methods
from torch import nn
from torch.nn import functional as F

import fedpage as fp


def test_frozen_parameters_and_buffers_are_constants():
    model = network()
    model[0].weight.requires_grad_(False)
    model.register_buffer("scale", torch.tensor(2.0))
    problem = fp.TorchProblem(model, F.cross_entropy, rows(SIZES))
    assert problem.d == 5 + 15 + 3
    assert torch.equal(problem.to_module(problem.x0 + 1.0)[0].weight, model[0].weight)
    assert problem.x0.tobytes() == problem.from_module(model).tobytes()


def test_tied_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6, bias=False)
            self.b = nn.Linear(6, 6, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    problem = fp.TorchProblem(Tied(), F.cross_entropy, rows(SIZES), dtype="float64")
    assert problem.d == 36
    x, small = problem.x0, 1e-6
    step = np.zeros(36)
    step[7] = small
    slope = (problem.loss(x + step) - problem.loss(x - step)) / (2 * small)
    assert problem.grad(x)[7] == pytest.approx(slope, rel=1e-6)
    module = problem.to_module(x + step)
    assert torch.equal(module.a.weight, module.b.weight)


def test_a_run_does_not_change_the_users_model():
    model = network()
    before = copy.deepcopy(model.state_dict())
    problem = fp.TorchProblem(model, F.cross_entropy, rows(SIZES), dtype="float64")
    fp.simulate(problem, fp.FedAvg(S=2, K=2, eta_l=0.5), rounds=3, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.out = nn.Embedding(4, 6), nn.Linear(6, 3)

    def forward(self, x, group):
        return self.out(x + self.embed(group))


def test_several_inputs_as_tuples_and_as_torch_datasets():
    data = [((x, np.arange(len(y)) % 4), y) for x, y in rows(SIZES)]
    tensors = [
        torch.utils.data.TensorDataset(*map(torch.as_tensor, (x, group, y)))
        for (x, group), y in data
    ]
    subsets = [torch.utils.data.Subset(own, range(len(own))) for own in tensors]
    expected = None
    for clients in (data, tensors, subsets):
        problem = fp.TorchProblem(TwoInputs(), nn.CrossEntropyLoss(), clients)
        found = all_gradients(problem, problem.x0)
        expected = found if expected is None else expected
        assert found.tobytes() == expected.tobytes()
    assert np.abs(expected[0]).max() > 0


class ReadsValues(nn.Module):
    """Branch on a value, which vmap forbids."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        out = self.inner(x)
        return out if out.sum().item() < 1e9 else out * 0


class Unbatchable(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Linear(6, 6), ReadsValues()

    def forward(self, x):
        return self.second(self.first(x))


class Batchable(Unbatchable):
    def forward(self, x):
        return self.second.inner(self.first(x))


def test_sequential_mode_for_a_module_that_vmap_cannot_transform():
    options = {"dtype": "float64", "metrics": ["accuracy"]}
    message = r"second \(ReadsValues\) cannot be batched .* one after the other"
    with pytest.warns(UserWarning, match=message):
        slow = fp.TorchProblem(Unbatchable(), F.cross_entropy, rows(SIZES), **options)
    fast = fp.TorchProblem(Batchable(), F.cross_entropy, rows(SIZES), **options)
    assert (slow.mode, fast.mode) == ("sequential", "batched")
    for name in ("FedPAGE", "SCAFFOLD-II"):
        method = methods(4, 3, 0.1)[name]
        found, expected = (fp.simulate(p, method, rounds=5, seed=0) for p in (slow, fast))
        np.testing.assert_allclose(found.x, expected.x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-12)
        np.testing.assert_array_equal(found["accuracy"], expected["accuracy"])


def test_batched_false_is_sequential_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = mlp_problem(batched=False)
    assert problem.mode == "sequential"
    expected = mlp_problem().grad(problem.x0)
    np.testing.assert_allclose(problem.grad(problem.x0), expected, rtol=0, atol=1e-14)


def test_a_frozen_batch_norm_has_the_same_bits_alone_in_deterministic_mode():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model[1].eval()
    problem = fp.TorchProblem(model, F.cross_entropy, rows(SIZES), deterministic=True)
    method = fp.SCAFFOLD(S=4, K=2, eta_l=0.1, b=3)
    first = fp.simulate(problem, method, rounds=3, seed=0)
    single = fp.RunOptions(chunk=1)
    assert fp.simulate(problem, method, rounds=3, seed=0, options=single).same(first)


@pytest.mark.parametrize("dropout", [nn.Dropout(0.5).eval(), nn.Dropout(0.0)])
def test_dropout_that_does_nothing_is_accepted(dropout):
    model = nn.Sequential(dropout, nn.Linear(6, 3))
    assert fp.TorchProblem(model, F.cross_entropy, rows(SIZES)).mode == "batched"


def test_descriptions_name_the_mode():
    assert mlp_problem().describe()["deterministic"] is False
    assert mlp_problem(deterministic=True).describe()["deterministic"] is True


WEIGHTS = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def weighted(outputs, targets):
    total = F.cross_entropy(outputs, targets, weight=WEIGHTS, reduction="sum")
    return total / len(targets)


def without_class_one(outputs, targets):
    return F.cross_entropy(outputs, targets, ignore_index=1, reduction="sum") / len(targets)


@pytest.mark.parametrize(
    "loss", [weighted, without_class_one, nn.CrossEntropyLoss(label_smoothing=0.1)]
)
def test_forms_of_cross_entropy_that_are_means_over_rows(loss):
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    rows = [(torch.randn(n, 6).double(), torch.arange(n) % 3) for n in (7, 12)]
    problem = fp.TorchProblem(model, loss, rows)
    expected = [torch.autograd.grad(loss(model(X), y), list(model.parameters())) for X, y in rows]
    mean = sum(torch.cat([part.reshape(-1) for part in own]) for own in expected) / 2
    np.testing.assert_allclose(problem.grad(problem.x0), mean.numpy(), rtol=0, atol=1e-12)


def test_large_models_are_computed_one_client_at_a_time_unless_told_otherwise():
    rows = [(torch.randn(3, 600), torch.tensor([0, 1, 2])) for _ in range(2)]

    def mode(width, **options):
        return fp.TorchProblem(nn.Linear(600, width), F.cross_entropy, rows, **options).mode

    assert [mode(300), mode(600), mode(600, batched=True)] == ["batched", "sequential", "batched"]


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


def test_a_resnet_trains_with_group_norms_in_place_of_batch_norms():
    torch.manual_seed(0)
    plain = resnet18()
    clients = [(torch.randn(6, 3, 8, 8), torch.arange(6) % 3) for _ in range(2)]
    with pytest.raises(fp.InputError, match=r"fp.to_group_norm\(model\)"):
        fp.TorchProblem(plain, F.cross_entropy, clients)
    model = fp.to_group_norm(plain, groups=2)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    assert sum(isinstance(layer, nn.GroupNorm) for layer in model.modules()) == 20
    problem = fp.TorchProblem(model, F.cross_entropy, clients)
    assert problem.mode == "batched"
    history = fp.simulate(problem, fp.FedAvg(S=2, K=2, eta_l=0.05, b=6), rounds=4, seed=0)
    assert history.last("loss") < history.rows[0]["loss"]
    assert isinstance(plain[1], nn.BatchNorm2d)
    with pytest.raises(fp.InputError, match="groups must be at least 1"):
        fp.to_group_norm(plain, groups=0)


def test_a_group_norm_keeps_scales_and_shifts():
    layer = nn.BatchNorm1d(6).double()
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0))
        layer.bias.copy_(-torch.arange(6.0))
    norm = fp.to_group_norm(layer, groups=4)
    assert (norm.num_groups, norm.weight.dtype) == (2, torch.float64)
    assert torch.equal(norm.weight, layer.weight)
    assert torch.equal(norm.bias, layer.bias)


class Recurrent(nn.Module):
    """An LSTM over words, with the embedding tied to the output layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.lstm = nn.Embedding(5, 4), nn.LSTM(4, 4, batch_first=True)
        self.output = nn.Linear(4, 5)
        self.output.weight = self.embedding.weight

    def forward(self, words):
        return self.output(self.lstm(self.embedding(words))[0][:, -1])


def test_an_lstm_with_tied_embeddings_trains_one_client_at_a_time():
    words = torch.arange(24).reshape(6, 4) % 5
    clients = [(words, words[:, 0]), (words.flip(0), words.flip(0)[:, 0])]
    with pytest.warns(UserWarning, match=r"lstm \(LSTM\) cannot be batched"):
        problem = fp.TorchProblem(Recurrent(), F.cross_entropy, clients)
    assert problem.mode == "sequential"
    assert problem.d == sum(p.numel() for p in Recurrent().parameters())
    history = fp.simulate(problem, fp.FedAvg(S=2, K=3, eta_l=0.3, b=4), rounds=5, seed=0)
    assert history.last("loss") < history.rows[0]["loss"]
