"""Check which torch modules a problem accepts, and how it computes them."""

import copy
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from nets import (
    SIZES,
    all_gradients,
    mlp_problem,
    network,
    plain_gradient,
    refuse,
    rows,
    run_chunks,
)
from network_models import MODELS, Tied, resnet18
from support import methods
from torch import nn
from torch.nn import functional as F

import fedpage as fp


def make(model, **options):
    return fp.TorchProblem(model, F.cross_entropy, rows(SIZES), **options)


def test_frozen_parameters_and_buffers_are_constants():
    model = network()
    model[0].weight.requires_grad_(False)
    model.register_buffer("scale", torch.tensor(2.0))
    problem = make(model)
    assert problem.d == 5 + 15 + 3
    assert torch.equal(problem.to_module(problem.x0 + 1.0)[0].weight, model[0].weight)
    assert problem.x0.tobytes() == problem.from_module(model).tobytes()


def test_tied_parameters_count_once():
    problem = make(Tied(), dtype="float64")
    assert problem.d == 36
    x, step = problem.x0, np.zeros(36)
    step[7] = 1e-6
    slope = (problem.loss(x + step) - problem.loss(x - step)) / 2e-6
    assert problem.grad(x)[7] == pytest.approx(slope, rel=1e-6)
    module = problem.to_module(x + step)
    assert torch.equal(module.a.weight, module.b.weight)


def test_a_run_does_not_change_the_users_model():
    model = network()
    before = copy.deepcopy(model.state_dict())
    fp.simulate(make(model, dtype="float64"), fp.FedAvg(S=2, K=2, eta_l=0.5), rounds=3, seed=0)
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
    problems = [
        fp.TorchProblem(TwoInputs(), nn.CrossEntropyLoss(), own) for own in (data, tensors, subsets)
    ]
    found = [all_gradients(problem, problem.x0).tobytes() for problem in problems]
    assert found[0] == found[1] == found[2]


# Modes


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
        slow = make(Unbatchable(), **options)
    fast = make(Batchable(), **options)
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
    assert problem.describe()["deterministic"] is False
    assert mlp_problem(deterministic=True).describe()["deterministic"] is True


def test_large_models_are_computed_one_client_at_a_time_unless_told_otherwise():
    data = [(torch.randn(3, 600), torch.tensor([0, 1, 2])) for _ in range(2)]

    def mode(width, **options):
        return fp.TorchProblem(nn.Linear(600, width), F.cross_entropy, data, **options).mode

    assert [mode(300), mode(600), mode(600, batched=True)] == ["batched", "sequential", "batched"]


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(6).eval(), nn.Dropout(0.5).eval(), nn.Dropout(0.0)]
)
def test_layers_that_are_frozen_or_do_nothing_are_accepted(layer):
    model = nn.Sequential(layer, nn.Linear(6, 3))
    assert make(model).mode == "batched"
    method = fp.SCAFFOLD(S=4, K=2, eta_l=0.1, b=3)
    run_chunks(make(model, deterministic=True), method, rounds=2)


# Group norms


def test_a_resnet_takes_group_norms_in_place_of_batch_norms():
    """MODELS below has it train."""
    plain = resnet18()
    clients = [(torch.randn(6, 3, 8, 8), torch.arange(6) % 3) for _ in range(2)]
    refuse(r"fp.to_group_norm\(model\)", plain, F.cross_entropy, clients)
    model = fp.to_group_norm(plain, groups=2)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    assert sum(isinstance(layer, nn.GroupNorm) for layer in model.modules()) == 20
    assert isinstance(plain[1], nn.BatchNorm2d)
    with pytest.raises(fp.InputError, match="groups must be at least 1"):
        fp.to_group_norm(plain, groups=0)
    layer = nn.BatchNorm1d(6).double()
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0))
        layer.bias.copy_(-torch.arange(6.0))
    norm = fp.to_group_norm(layer, groups=4)
    assert (norm.num_groups, norm.weight.dtype) == (2, torch.float64)
    assert torch.equal(norm.weight, layer.weight)
    assert torch.equal(norm.bias, layer.bias)


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
    parameters = [p for p in problem.to_module(problem.x0).parameters() if p.requires_grad]
    statistics = case.options.get("batch_norm") == "aggregated"
    assert statistics or problem.d == sum(p.numel() for p in parameters)
    method = fp.FedAvg(S=2, K=2, eta_l=case.eta, b=4)
    history = fp.simulate(problem, method, rounds=8, seed=0)
    assert history.last("loss") < history.rows[0]["loss"]
    run_chunks(case.problem(deterministic=True), method, rounds=1)
    if case.compile in REFUSALS:
        with pytest.raises(fp.InputError, match=REFUSALS[case.compile]):
            case.problem(compile=True)


def test_recurrent_layers_are_named_in_a_warning():
    with pytest.warns(UserWarning, match=r"layer \(LSTM\) cannot be batched"):
        MODELS["lstm"].problem()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in MODELS.items() if case.compile == "yes"])
def test_compiled_model(name, traced):
    case, method = MODELS[name], fp.FedAvg(S=2, K=2, eta_l=0.05, b=4)
    problems = [case.problem(compile=value, dtype="float64") for value in (False, True)]
    eager, compiled = (fp.simulate(problem, method, rounds=2, seed=0).x for problem in problems)
    np.testing.assert_allclose(compiled, eager, rtol=0, atol=1e-10)


def test_the_table_of_models_is_that_of_the_tests():
    cell = r" (.+?) \|"
    lines = re.findall(rf"^\|{cell} (batched|sequential) \|{cell}{cell}$", PAGE.read_text(), re.M)
    cases = MODELS.values()
    assert lines == [(case.label, case.mode, case.compile, case.flower) for case in cases]


# Losses that are means over rows, also of sequences, whose outputs are (rows, classes, places)

WEIGHTS = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


class Tagger(nn.Module):
    """One label for each word: outputs (w, 3, 4)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.linear = nn.Embedding(5, 6), nn.Linear(6, 3)

    def forward(self, words):
        return self.linear(self.embedding(words)).transpose(1, 2)


def sequences(ignored):
    torch.manual_seed(0)
    words, targets = torch.randint(0, 5, (9, 4)), torch.randint(0, 3, (9, 4))
    targets[2, 1:], targets[5, 3:] = ignored, ignored
    return [(words[:4], targets[:4]), (words[4:], targets[4:])]


def classes():
    return [(torch.tensor(x).double(), torch.tensor(y)) for x, y in rows([7, 12])]


def sum_over_rows(**options):
    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="sum", **options) / len(targets)

    return loss


@pytest.mark.parametrize(
    ("model", "loss", "data", "refused"),
    [
        (nn.Linear(6, 3), nn.CrossEntropyLoss(label_smoothing=0.1), classes(), None),
        (nn.Linear(6, 3), sum_over_rows(weight=WEIGHTS), classes(), None),
        (nn.Linear(6, 3), sum_over_rows(ignore_index=1), classes(), None),
        (Tagger(), nn.CrossEntropyLoss(), sequences(0), None),
        (Tagger(), sum_over_rows(), sequences(-100), {"ignore_index": -100}),
        (Tagger(), sum_over_rows(weight=WEIGHTS), sequences(0), {"weight": WEIGHTS}),
    ],
    ids=["smoothing", "weights", "ignored", "places", "ignored places", "weighted places"],
)
def test_forms_of_cross_entropy_that_are_means_over_rows(model, loss, data, refused):
    """Those that are not are refused, with the form that works."""
    model = model.double()
    problem = fp.TorchProblem(model, loss, data)
    mean = sum(plain_gradient(loss(model(X), y), model) for X, y in data) / 2
    np.testing.assert_allclose(problem.grad(problem.x0), mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(all_gradients(problem, problem.x0).mean(0), mean, atol=1e-12)
    if refused:
        message = r"reduction='sum' divided by len\(targets\)"
        refuse(message, model, nn.CrossEntropyLoss(**refused), data)
