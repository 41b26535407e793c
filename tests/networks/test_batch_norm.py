"""Check batch normalisation whose statistics are aggregated, or stay at their clients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from nets import rows
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch

SIZES = [6, 9, 4, 9]
TYPE = torch.float64


def network(**options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5, **options), nn.Tanh(), nn.Linear(5, 3)
    ).to(TYPE)


def images(**options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3, **options),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 4),
        nn.BatchNorm1d(4, **options),
        nn.Linear(4, 3),
    ).to(TYPE)


def make(option, model=None, sizes=SIZES, shape=(6,), **options):
    model = network() if model is None else model
    return fp.TorchProblem(model, F.cross_entropy, rows(sizes, shape), batch_norm=option, **options)


def client_tensors(sizes=SIZES, shape=(6,)):
    return [(torch.tensor(x, dtype=TYPE), torch.tensor(y)) for x, y in rows(sizes, shape)]


def set_momentum(model, momentum):
    for layer in model.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.momentum = momentum


def average(states, shares):
    """Average whole state dicts, as many implementations of FedAvg do."""
    return {
        name: sum(share * state[name] for share, state in zip(shares, states, strict=True))
        if value.is_floating_point()
        else value
        for name, value in states[0].items()
    }


# Aggregated statistics


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(("b", "shape"), [(None, (6,)), (3, (6,)), (4, (1, 4, 4))])
def test_fedavg_is_the_loop_that_averages_state_dicts(b, shape, batched):
    """With momentum eta, parameters and running statistics are those of PyTorch."""
    model = network() if shape == (6,) else images()
    before = copy.deepcopy(model.state_dict())
    problem = make("aggregated", model, shape=shape, batched=batched)
    eta, K, rounds = 0.2, 3, 5
    history = fp.simulate(problem, fp.FedAvg(S=4, K=K, eta_l=eta, b=b), rounds=rounds, seed=0)
    set_momentum(model, eta)
    for t in range(rounds):
        states = []
        for client, (inputs, targets) in enumerate(client_tensors(shape=shape)):
            local = copy.deepcopy(model).train()
            optimizer = torch.optim.SGD(local.parameters(), lr=eta)
            oracle = problem.oracle(np.array([client]), RoundDraws(0, t))
            for _ in range(K):
                chosen, sizes, _ = oracle.batch(b).batch
                own = slice(None) if chosen is None else chosen[0, : sizes[0]].astype(np.int64)
                optimizer.zero_grad()
                F.cross_entropy(local(inputs[own]), targets[own]).backward()
                optimizer.step()
            states.append(local.state_dict())
        model.load_state_dict(average(states, [1 / 4] * 4))
    found = problem.to_module(history.x).state_dict()
    for name, value in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)
        if "running" in name:
            assert float((value - before[name]).abs().max()) > 0.01


def test_statistics_of_one_client_become_the_true_ones():
    problem = make("aggregated", sizes=[12])
    history = fp.simulate(problem, fp.FedAvg(S=1, K=5, eta_l=0.1, b=None), rounds=100, seed=0)
    module = problem.to_module(history.x)
    hidden = module[0](client_tensors([12])[0][0]).detach()
    # The statistics follow a hidden layer that still moves a little.
    torch.testing.assert_close(module[1].running_mean, hidden.mean(0), rtol=0, atol=1e-3)
    torch.testing.assert_close(module[1].running_var, hidden.var(0), rtol=0, atol=1e-3)
    frozen = problem.x0.copy()
    for _ in range(300):  # parameters stay, statistics move
        oracle = problem.oracle(np.array([0]), RoundDraws(0, 0))
        frozen[-10:] -= 0.1 * oracle.grad(frozen, oracle.batch(None))[0, -10:]
    hidden = network()[0](client_tensors([12])[0][0]).detach()
    np.testing.assert_allclose(frozen[-10:-5], hidden.mean(0), atol=1e-12)
    np.testing.assert_allclose(frozen[-5:], hidden.var(0), atol=1e-12)


@pytest.mark.parametrize("batched", [True, False])
def test_statistics_with_weights_are_weighted_means(batched):
    problem = make("aggregated", weights="size", batched=batched)
    x = problem.x0
    everyone = np.arange(4)
    for _ in range(100):
        oracle = problem.oracle(everyone, RoundDraws(0, 0))
        x = x.copy()
        x[-10:] -= 0.3 * oracle.grad(x, oracle.batch(None)).mean(0)[-10:]
    shares = np.array(SIZES) / sum(SIZES)
    hidden = [network()[0](inputs).detach() for inputs, _ in client_tensors()]
    means = sum(w * h.mean(0) for w, h in zip(shares, hidden, strict=True))
    np.testing.assert_allclose(x[-10:-5], means, atol=1e-10)


def test_statistics_are_the_last_coordinates_of_the_vector(tmp_path):
    model = images()
    model[1].running_mean += 0.5
    problem = make("aggregated", model, shape=(1, 4, 4))
    parameters = sum(p.numel() for p in model.parameters())
    assert problem.d == parameters + 2 * (3 + 4)
    expected = [model[i].get_buffer(f"running_{s}") for i in (1, 5) for s in ("mean", "var")]
    np.testing.assert_array_equal(problem.x0[parameters:], torch.cat(expected))
    x = problem.x0 + 0.01 * np.arange(problem.d)
    module = problem.to_module(x)
    np.testing.assert_array_equal(problem.from_module(module), x)
    np.testing.assert_array_equal(module[5].running_var, x[-4:])
    assert int(module[5].num_batches_tracked) == 0
    problem.save(tmp_path / "model.npz", x)
    loaded = fp.load_model(tmp_path / "model.npz", images())
    np.testing.assert_array_equal(problem.from_module(loaded), x)
    history = fp.simulate(problem, fp.FedAvg(S=2, K=1, eta_l=0.1), rounds=1, seed=0)
    assert history.last("bytes_up") == 2 * 8 * problem.d


def test_evaluations_are_those_of_the_module_in_eval_mode():
    held_out = rows([7], seed=3)[0]
    problem = make("aggregated", held_out=held_out, metrics=["accuracy"])
    history = fp.simulate(problem, fp.FedAvg(S=3, K=2, eta_l=0.2, b=3), rounds=6, seed=0)
    module = problem.to_module(history.x).eval()
    losses = [F.cross_entropy(module(x), y) for x, y in client_tensors()]
    loss = sum(losses) / 4
    parts = torch.autograd.grad(loss, list(module.parameters()))
    expected = torch.cat([part.reshape(-1) for part in parts])
    gradient = problem.grad(history.x)
    np.testing.assert_allclose(gradient[:-10], expected, rtol=0, atol=1e-14)
    assert not gradient[-10:].any()
    assert problem.loss(history.x) == pytest.approx(loss.item(), rel=1e-14)
    assert history.last("loss") == problem.loss(history.x)
    assert history.last("grad_norm") == pytest.approx(float(expected.norm()), rel=1e-12)
    inputs = torch.tensor(held_out[0], dtype=TYPE)
    torch.testing.assert_close(problem.predict(history.x, held_out[0]), module(inputs).detach())
    assert problem.predict(history.x, held_out[0][:1]).shape == (1, 3)
    own = problem.evaluate_clients(np.arange(4), history.x)
    np.testing.assert_allclose(own.losses, [own.item() for own in losses], rtol=1e-13)


def test_negative_variances_are_replaced_by_tiny_ones():
    problem = make("aggregated", network(eps=1e-3))
    x = problem.x0.copy()
    x[-2] = -0.5
    assert np.isfinite(problem.loss(x))
    module = problem.to_module(x).eval()
    outputs = module(client_tensors()[0][0]).detach()
    torch.testing.assert_close(problem.predict(x, rows(SIZES)[0][0]), outputs)


METHODS = [
    fp.FedAvg(S=3, K=3, eta_l=0.1, b=3),
    fp.LocalTraining(S=3, K=None, epochs=2, eta_l=0.1, b=4, client_optimizer="momentum:0.5"),
    fp.FedPAGE(S=2, K=3, eta_g=0.1, eta_l=0.1, p=0.3, b1=4, b2=3, b3=4),
    fp.SCAFFOLD(S=2, K=2, eta_l=0.1, b=3),
    fp.Mime(S=2, K=2, eta_l=0.1, b=3),
]
OPTIONS = ["aggregated", "silobn"]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_batched_sequential_and_deterministic_runs_agree(option, method):
    sizes = [6, 10, 4, 7]  # no minibatch of one row at the end of an epoch
    fast = make(option, sizes=sizes)
    assert fast.mode == "batched"
    exact = make(option, sizes=sizes, deterministic=True)
    runs = [fp.simulate(p, method, rounds=4, seed=4) for p in (fast, exact)]
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=0, atol=1e-11)
    np.testing.assert_allclose(runs[0]["grad_norm"], runs[1]["grad_norm"], rtol=1e-10)
    chunks = fp.RunOptions(threads=2, chunk=1)
    assert fp.simulate(exact, method, rounds=4, seed=4, options=chunks).same(runs[1])


@pytest.mark.parametrize("option", OPTIONS)
def test_memory_does_not_divide_a_batch(option):
    """Half a batch has other statistics; a client that exceeds the bound is one call anyway."""
    sizes, method = [40, 6, 30], fp.FedAvg(S=3, K=2, eta_l=0.1, b=None)
    problems = [make(option, sizes=sizes, memory=memory) for memory in (1.0, 1e-6)]
    runs = [fp.simulate(problem, method, rounds=2, seed=0) for problem in problems]
    outputs = [p.predict(p.x0, rows(sizes)[0][0]) for p in problems]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-13)
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(runs[0]["loss"], runs[1]["loss"], rtol=1e-12)


@pytest.mark.parametrize("option", OPTIONS)
def test_resumed_runs_have_the_same_bits(option, tmp_path):
    problem, method = make(option), fp.SCAFFOLD(S=2, K=2, eta_l=0.1, b=3)
    fp.simulate(problem, method, rounds=3, seed=0, out=tmp_path)
    resumed = fp.simulate(
        problem, method, rounds=6, seed=0, out=tmp_path, options=fp.RunOptions(resume=True)
    )
    assert resumed.same(fp.simulate(problem, method, rounds=6, seed=0))


# Statistics that stay at their clients


def test_silobn_evaluates_rows_by_their_own_statistics():
    held_out, other = rows([7], seed=3)[0], rows([5, 8], seed=4)
    problem = make(
        "silobn", held_out=held_out, held_out_clients=other, metrics=["accuracy"], weights="size"
    )
    assert problem.d == sum(p.numel() for p in network().parameters())
    history = fp.simulate(problem, fp.FedAvg(S=3, K=2, eta_l=0.2, b=3), rounds=6, seed=0)
    module = problem.to_module(history.x).train()

    def outputs(inputs):
        return module(torch.as_tensor(inputs, dtype=TYPE))

    def loss_of(data):
        return F.cross_entropy(outputs(data[0]), torch.as_tensor(data[1]))

    clients, shares = client_tensors(), np.array(SIZES) / sum(SIZES)
    loss = sum(w * loss_of(own) for w, own in zip(shares, clients, strict=True))
    gradient = torch.cat(
        [part.reshape(-1) for part in torch.autograd.grad(loss, list(module.parameters()))]
    )
    np.testing.assert_allclose(problem.grad(history.x), gradient, rtol=0, atol=1e-13)
    assert history.last("loss") == pytest.approx(loss.item(), rel=1e-13)
    right = [(outputs(x).argmax(1) == y).double() for x, y in clients]
    assert history.last("accuracy") == pytest.approx(torch.cat(right).mean().item(), rel=1e-13)
    scores = problem.client_scores(history.x, metric="accuracy")
    np.testing.assert_allclose(list(scores.values()), [own.mean().item() for own in right])
    assert history.last("held_out_loss") == pytest.approx(loss_of(held_out).item(), rel=1e-13)
    mean = np.mean([loss_of(own).item() for own in other])
    assert history.last("held_out_clients_loss") == pytest.approx(mean, rel=1e-13)
    torch.testing.assert_close(
        problem.predict(history.x, held_out[0]), outputs(held_out[0]).detach()
    )


def test_full_batch_gradients_of_silobn_are_those_of_the_objective():
    problem = make("silobn")
    oracle = problem.oracle(np.arange(4), RoundDraws(0, 0))
    x = problem.x0 + 0.1
    mean = oracle.grad(x, oracle.batch(None)).mean(0)
    np.testing.assert_allclose(mean, problem.grad(x), rtol=0, atol=1e-14)
    place, step = 7, np.zeros(problem.d)
    step[place] = 1e-6
    slope = (problem.loss(x + step) - problem.loss(x - step)) / 2e-6
    assert problem.grad(x)[place] == pytest.approx(slope, rel=1e-6)


def test_a_module_of_silobn_has_the_statistics_of_clients():
    problem = make("silobn", weights="size")
    x = problem.x0 + 0.1
    hidden = [problem.to_module(x)[0](inputs).detach() for inputs, _ in client_tensors()]
    own = problem.to_module(x, client=2)[1]
    torch.testing.assert_close(own.running_mean, hidden[2].mean(0))
    torch.testing.assert_close(own.running_var, hidden[2].var(0))
    mean = problem.to_module(x)[1]
    shares = np.array(SIZES) / sum(SIZES)
    pairs = list(zip(shares, hidden, strict=True))
    torch.testing.assert_close(mean.running_mean, sum(w * h.mean(0) for w, h in pairs))
    torch.testing.assert_close(mean.running_var, sum(w * h.var(0) for w, h in pairs))
    assert int(mean.num_batches_tracked) == 0
    for client in (4, -1):
        with pytest.raises(fp.InputError, match=r"client must be in 0\.\.3"):
            problem.to_module(x, client=client)
    with pytest.raises(fp.InputError, match="with batch_norm='silobn'"):
        make("aggregated").to_module(make("aggregated").x0, client=0)


def test_nothing_is_dropped_when_a_module_gets_its_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Linear(6, 3)).to(TYPE)
    module = make("silobn", model).to_module(make("silobn", model).x0, client=1)
    torch.testing.assert_close(module[1].running_mean, client_tensors()[1][0].mean(0))


# Options of layers


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
@pytest.mark.parametrize("affine", [True, False])
def test_layers_of_every_dimension(option, layer, affine):
    shape = {nn.BatchNorm1d: (4,), nn.BatchNorm2d: (4, 4), nn.BatchNorm3d: (4, 2, 2)}[layer]
    torch.manual_seed(0)
    model = nn.Sequential(layer(2, affine=affine), nn.Flatten(), nn.LazyLinear(3)).to(TYPE)
    inputs = torch.zeros(2, 2, *shape, dtype=TYPE)
    model(inputs)  # gives the last layer its size
    model = copy.deepcopy(model)
    data = rows([5, 7], (2, *shape))
    problem = fp.TorchProblem(model, F.cross_entropy, data, batch_norm=option)
    assert problem.mode == "batched"
    oracle = problem.oracle(np.arange(2), RoundDraws(0, 0))
    found = oracle.grad(problem.x0, oracle.batch(None))
    count = problem.d - (4 if option == "aggregated" else 0)
    for client, (x, y) in enumerate(data):
        loss = F.cross_entropy(model.train()(torch.tensor(x, dtype=TYPE)), torch.tensor(y))
        own = torch.autograd.grad(loss, list(model.parameters()))
        expected = torch.cat([part.reshape(-1) for part in own])
        np.testing.assert_allclose(found[client, :count], expected, rtol=0, atol=1e-13)


def test_the_momentum_of_a_layer_is_not_used():
    method = fp.FedAvg(S=2, K=2, eta_l=0.1)
    runs = [
        fp.simulate(make("aggregated", network(momentum=m)), method, rounds=2, seed=0).x
        for m in (0.1, 0.7, None)
    ]
    assert runs[0].tobytes() == runs[1].tobytes() == runs[2].tobytes()


def test_layers_without_running_statistics():
    model = network(track_running_stats=False)
    with pytest.raises(fp.InputError, match="keeps no statistics that could be aggregated"):
        make("aggregated", model)
    problem = make("silobn", model.eval())  # torch normalises by the batch in eval mode too
    x, expected = problem.x0, make("silobn")
    assert problem.grad(x).tobytes() == expected.grad(x).tobytes()
    inputs = client_tensors()[0][0]
    torch.testing.assert_close(problem.to_module(x)(inputs).detach(), problem.predict(x, inputs))


@pytest.mark.parametrize("option", OPTIONS)
def test_frozen_layers_stay_constants(option):
    model = images()
    model[1].eval()
    model[1].running_mean += 0.3
    problem = make(option, model, shape=(1, 4, 4))
    own = 2 * 4 if option == "aggregated" else 0
    assert problem.d == sum(p.numel() for p in model.parameters()) + own
    history = fp.simulate(problem, fp.FedAvg(S=2, K=2, eta_l=0.1, b=4), rounds=2, seed=0)
    module = problem.to_module(history.x)
    assert torch.equal(module[1].running_mean, model[1].running_mean)
    assert not torch.equal(module[5].running_mean, model[5].running_mean)


class Shared(nn.Module):
    """One layer under two names, which is called twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.out = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.again = self.norm

    def forward(self, x):
        return self.out(self.again(torch.tanh(self.norm(self.first(x)))))


@pytest.mark.parametrize("option", OPTIONS)
def test_a_layer_that_is_called_twice_counts_once_and_adds_both_terms(option):
    model = Shared().to(TYPE)
    problem = make(option, model)
    statistics = 10 if option == "aggregated" else 0
    assert problem.d == sum(p.numel() for p in model.parameters()) + statistics
    if option == "aggregated":
        oracle = problem.oracle(np.array([0]), RoundDraws(0, 0))
        found = oracle.grad(problem.x0, oracle.batch(None))[0, -10:-5]
        first = model.first(client_tensors()[0][0])
        second = torch.tanh(F.batch_norm(first, None, None, training=True))
        np.testing.assert_allclose(found, -(first.mean(0) + second.mean(0)).detach(), atol=1e-13)


def test_dropout_and_batch_norm_in_one_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    fast, exact = (
        make("aggregated", model, dtype="float64", deterministic=value) for value in (False, True)
    )
    method = fp.FedAvg(S=3, K=2, eta_l=0.1, b=4)
    runs = [fp.simulate(p, method, rounds=3, seed=1).x for p in (fast, exact)]
    np.testing.assert_allclose(runs[0], runs[1], rtol=0, atol=1e-12)


# Refusals


class OwnNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(2 * x)


class MixesRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x - x.mean(0))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (network(), {}, r"to_group_norm\(model\), .eval\(\) .*'aggregated' or .*'silobn'"),
        (network(), {"batch_norm": "fedbn"}, "must be 'aggregated' or 'silobn', not 'fedbn'"),
        (
            nn.Sequential(nn.Linear(6, 5), nn.SyncBatchNorm(5), nn.Linear(5, 3)),
            {"batch_norm": "aggregated"},
            r"1 \(SyncBatchNorm\) is not nn.BatchNorm1d",
        ),
        (
            nn.Sequential(OwnNorm(6), nn.Linear(6, 3)),
            {"batch_norm": "silobn"},
            r"0 \(OwnNorm\) is not nn.BatchNorm1d",
        ),
        (network(), {"batch_norm": "aggregated", "compile": True}, "not possible with batch_norm"),
        (MixesRows(), {"batch_norm": "aggregated"}, "MixesRows or cross_entropy mixes rows"),
        (MixesRows(), {"batch_norm": "silobn"}, "MixesRows or cross_entropy mixes rows"),
    ],
)
def test_refused_models(model, options, message):
    with pytest.raises(fp.InputError, match=message) as error:
        fp.TorchProblem(model, F.cross_entropy, rows(SIZES), dtype="float64", **options)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 200


@pytest.mark.parametrize("option", OPTIONS)
def test_batches_of_one_row_are_refused(option):
    message = r"1 \(BatchNorm1d\) needs a batch of 2 rows or more; use b >= 2"
    with pytest.raises(fp.InputError, match=f"client 1 has 1 rows, but {message}") as error:
        make(option, sizes=[5, 1])
    assert len(str(error.value)) <= 200
    problem = make(option)
    for method in (fp.FedAvg(S=2, K=1, b=1), fp.LocalTraining(S=4, epochs=1, b=4)):
        with pytest.raises(fp.InputError, match=message):
            fp.simulate(problem, method, rounds=1, seed=0)
    one = rows([1])[0]
    if option == "aggregated":
        make(option, held_out=one)
    else:
        with pytest.raises(fp.InputError, match=f"held_out has 1 rows, but {message}"):
            make(option, held_out=one)
    one_image = make(option, images(), shape=(1, 4, 4))
    assert one_image.mode == "batched"


def test_a_refused_batch_leaves_nothing_behind():
    """The first layer accepts one image, and the second refuses it."""
    used, fresh = (make("aggregated", images(), shape=(1, 4, 4)) for _ in range(2))
    with pytest.raises(fp.InputError, match=r"5 \(BatchNorm1d\) needs a batch of 2 rows"):
        fp.simulate(used, fp.FedAvg(S=2, K=1, b=1), rounds=1, seed=0)
    oracles = [p.oracle(np.arange(4), RoundDraws(0, 0)) for p in (used, fresh)]
    gradients = [oracle.grad(used.x0, oracle.batch(None)) for oracle in oracles]
    assert gradients[0].tobytes() == gradients[1].tobytes()


def test_one_image_has_statistics_of_its_own():
    """A convolutional layer has many values of a channel in one row."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3)).to(
        TYPE
    )
    problem = make("aggregated", model, [1, 3], (1, 4, 4))
    history = fp.simulate(problem, fp.FedAvg(S=2, K=1, eta_l=0.1, b=1), rounds=2, seed=0)
    assert np.isfinite(history.x).all()


def test_descriptions_and_digests_name_the_option():
    aggregated, siloed = make("aggregated"), make("silobn")
    assert aggregated.describe()["batch_norm"] == "aggregated"
    assert "batch_norm" not in make(None, network().eval()).describe()
    assert aggregated.start_digest != siloed.start_digest


def test_a_batch_by_hand_is_an_evaluation():
    problem = make("aggregated")
    oracle = problem.oracle(np.arange(4), RoundDraws(0, 0))
    gradients = oracle.grad(problem.x0, Batch(None, problem.sizes))
    np.testing.assert_allclose(gradients.mean(0), problem.grad(problem.x0), atol=1e-14)
