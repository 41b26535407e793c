"""Check which torch modules a problem accepts, and how it computes them."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from nets import SIZES, all_gradients, mlp_problem, network, rows
from network_models import MODELS, Recurrent, Tied, resnet18
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


def test_an_lstm_with_tied_embeddings_trains_one_client_at_a_time():
    words = torch.arange(24).reshape(6, 4) % 5
    clients = [(words, words[:, 0]), (words.flip(0), words.flip(0)[:, 0])]
    with pytest.warns(UserWarning, match=r"layer \(LSTM\) cannot be batched"):
        problem = fp.TorchProblem(Recurrent(nn.LSTM), F.cross_entropy, clients)
    assert problem.mode == "sequential"
    assert problem.d == sum(p.numel() for p in Recurrent(nn.LSTM).parameters())
    history = fp.simulate(problem, fp.FedAvg(S=2, K=3, eta_l=0.3, b=4), rounds=5, seed=0)
    assert history.last("loss") < history.rows[0]["loss"]


# The table of models in docs/torch.md

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch.md"
REFUSALS = {
    "no: recurrent layers": "cannot be compiled",
    "no: dropout": "compile=True is not possible with dropout",
    "no: statistics of batches": "compile=True is not possible with batch_norm",
}


@pytest.mark.filterwarnings("ignore:TorchProblem. .* cannot be batched")
@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    """It trains in the mode of the table, and deterministic chunks do not change a bit."""
    case = MODELS[name]
    problem = case.problem()
    assert problem.mode == case.mode
    method = fp.FedAvg(S=2, K=2, eta_l=case.eta, b=4)
    history = fp.simulate(problem, method, rounds=8, seed=0)
    assert history.last("loss") < history.rows[0]["loss"]
    exact = case.problem(deterministic=True)
    runs = [
        fp.simulate(exact, method, rounds=1, seed=0, options=fp.RunOptions(chunk=chunk))
        for chunk in (1, 2)
    ]
    assert runs[0].same(runs[1])
    if case.compile in REFUSALS:
        with pytest.raises(fp.InputError, match=REFUSALS[case.compile]):
            case.problem(compile=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in MODELS.items() if case.compile == "yes"])
def test_compiled_model(name, traced):
    case, method = MODELS[name], fp.FedAvg(S=2, K=2, eta_l=0.05, b=4)
    runs = [
        fp.simulate(case.problem(compile=value, dtype="float64"), method, rounds=2, seed=0).x
        for value in (False, True)
    ]
    np.testing.assert_allclose(runs[0], runs[1], rtol=0, atol=1e-10)


def test_the_table_of_models_is_that_of_the_tests():
    cell = r" (.+?) \|"
    lines = re.findall(rf"^\|{cell} (batched|sequential) \|{cell}{cell}$", PAGE.read_text(), re.M)
    cases = MODELS.values()
    assert lines == [(case.label, case.mode, case.compile, case.flower) for case in cases]


# Losses of sequences, whose outputs are (rows, classes, places)


def sequences(ignored=-100):
    torch.manual_seed(0)
    words = torch.randint(0, 5, (9, 4))
    targets = torch.randint(0, 3, (9, 4))
    targets[2, 1:], targets[5, 3:] = ignored, ignored
    return [(words[:4], targets[:4]), (words[4:], targets[4:])]


class Tagger(nn.Module):
    """One label for each word: outputs (w, 3, 4)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.linear = nn.Embedding(5, 6), nn.Linear(6, 3)

    def forward(self, words):
        return self.linear(self.embedding(words)).transpose(1, 2)


def test_cross_entropy_of_sequences_is_a_mean_over_rows_and_places():
    data = [(words, targets.clamp(min=0)) for words, targets in sequences()]
    problem = fp.TorchProblem(Tagger(), nn.CrossEntropyLoss(), data, dtype="float64")
    model = Tagger().double()
    losses = [F.cross_entropy(model(words), targets) for words, targets in data]
    parts = torch.autograd.grad(sum(losses) / 2, list(model.parameters()))
    expected = torch.cat([part.reshape(-1) for part in parts]).numpy()
    np.testing.assert_allclose(problem.grad(problem.x0), expected, rtol=0, atol=1e-14)
    gradients = all_gradients(problem, problem.x0)
    np.testing.assert_allclose(gradients.mean(0), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("options", [{"ignore_index": -100}, {"weight": WEIGHTS}], ids=str)
def test_ignored_or_weighted_places_are_refused_with_the_form_that_works(options):
    data = sequences() if "weight" not in options else sequences(ignored=0)
    with pytest.raises(fp.InputError, match=r"reduction='sum' divided by len\(targets\)"):
        fp.TorchProblem(Tagger(), nn.CrossEntropyLoss(**options), data, dtype="float64")

    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="sum", **options) / len(targets)

    problem = fp.TorchProblem(Tagger(), loss, data, dtype="float64")
    model = Tagger().double()
    losses = [loss(model(words), targets) for words, targets in data]
    parts = torch.autograd.grad(sum(losses) / 2, list(model.parameters()))
    expected = torch.cat([part.reshape(-1) for part in parts]).numpy()
    np.testing.assert_allclose(problem.grad(problem.x0), expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(all_gradients(problem, problem.x0).mean(0), expected, atol=1e-13)
