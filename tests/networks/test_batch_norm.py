"""Check batch normalisation whose statistics are aggregated, or stay at their clients."""

import copy

import numpy as np
import pytest
import torch
from nets import all_gradients, plain_gradient, refuse, rows
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws

SIZES = [6, 9, 4, 9]
SHARES = np.array(SIZES) / sum(SIZES)
TYPE = torch.float64
OPTIONS = ["aggregated", "silobn"]
both = pytest.mark.parametrize("option", OPTIONS)


def network(**options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5, **options), nn.Tanh(), nn.Linear(5, 3)
    ).to(TYPE)


def images():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(48, 4), nn.BatchNorm1d(4), nn.Linear(4, 3),
    ).to(TYPE)  # fmt: skip


def make(option, model=None, sizes=SIZES, shape=(6,), **options):
    model = network() if model is None else model
    return fp.TorchProblem(model, F.cross_entropy, rows(sizes, shape), batch_norm=option, **options)


def tensors(sizes=SIZES, shape=(6,), seed=0):
    data = rows(sizes, shape, seed=seed)
    return [(torch.tensor(x, dtype=TYPE), torch.tensor(y)) for x, y in data]


def hidden_of(module, sizes=SIZES):
    return [module[0](inputs).detach() for inputs, _ in tensors(sizes)]


def average(states):
    """Average whole state dicts, as many implementations of FedAvg do."""
    return {
        name: sum(state[name] for state in states) / len(states)
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
    for layer in model.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.momentum = eta
    for t in range(rounds):
        states = []
        for client, (inputs, targets) in enumerate(tensors(shape=shape)):
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
        model.load_state_dict(average(states))
    found = problem.to_module(history.x).state_dict()
    for name, value in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)
        if "running" in name:
            assert float((value - before[name]).abs().max()) > 0.01


@pytest.mark.parametrize("options", [{}, {"batched": False}, {"weights": "size"}], ids=str)
def test_statistics_become_the_true_ones_with_the_weights_of_clients(options):
    """Parameters stay and statistics move."""
    problem = make("aggregated", **options)
    x = problem.x0.copy()
    for _ in range(100):
        x[-10:] -= 0.3 * all_gradients(problem, x).mean(0)[-10:]
    shares = SHARES if "weights" in options else np.full(4, 0.25)
    hidden = list(zip(shares, hidden_of(network()), strict=True))
    np.testing.assert_allclose(x[-10:-5], sum(w * h.mean(0) for w, h in hidden), atol=1e-10)
    np.testing.assert_allclose(x[-5:], sum(w * h.var(0) for w, h in hidden), atol=1e-10)


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


@pytest.mark.parametrize("weights", ["uniform", "size"])
@both
def test_evaluations_are_those_of_the_module(option, weights):
    """In eval mode with aggregated statistics; with SiloBN by the statistics of the rows."""
    held_out, others = rows([7], seed=3)[0], rows([5, 8], seed=4)
    problem = make(
        option, held_out=held_out, held_out_clients=others, metrics=["accuracy"], weights=weights
    )
    history = fp.simulate(problem, fp.FedAvg(S=3, K=2, eta_l=0.2, b=3), rounds=6, seed=0)
    x, d = history.x, sum(p.numel() for p in network().parameters())
    module = problem.to_module(x).train(option == "silobn")
    shares = SHARES if weights == "size" else np.full(4, 0.25)
    losses = [F.cross_entropy(module(own), y) for own, y in tensors()]
    loss = sum(w * each for w, each in zip(shares, losses, strict=True))
    gradient = problem.grad(x)
    expected = plain_gradient(loss, module)
    np.testing.assert_allclose(gradient[:d], expected, rtol=0, atol=1e-13)
    assert not gradient[d:].any()
    assert history.last("loss") == problem.loss(x) == pytest.approx(loss.item(), rel=1e-13)
    assert history.last("grad_norm") == pytest.approx(np.linalg.norm(expected), rel=1e-12)
    own = problem.evaluate_clients(np.arange(4), x)
    scaled = [4 * w * each.item() for w, each in zip(shares, losses, strict=True)]
    np.testing.assert_allclose(own.losses, scaled, rtol=1e-13)
    right = [(module(own).argmax(1) == y).double().mean().item() for own, y in tensors()]
    scores = problem.client_scores(x, metric="accuracy")
    np.testing.assert_allclose(list(scores.values()), right)
    (held,), pair = tensors([7], seed=3), tensors([5, 8], seed=4)
    torch.testing.assert_close(problem.predict(x, held_out[0]), module(held[0]).detach())
    first, *rest = [F.cross_entropy(module(own), y).item() for own, y in (held, *pair)]
    assert history.last("held_out_loss") == pytest.approx(first, rel=1e-13)
    assert history.last("held_out_clients_loss") == pytest.approx(np.mean(rest), rel=1e-13)


def test_negative_variances_are_replaced_by_tiny_ones():
    problem = make("aggregated", network(eps=1e-3))
    x = problem.x0.copy()
    x[-2] = -0.5
    assert np.isfinite(problem.loss(x))
    outputs = problem.to_module(x).eval()(tensors()[0][0]).detach()
    torch.testing.assert_close(problem.predict(x, rows(SIZES)[0][0]), outputs)


@both
def test_memory_does_not_divide_a_batch(option):
    """Half a batch has other statistics; a client that exceeds the bound is one call anyway."""
    sizes, method = [40, 6, 30], fp.FedAvg(S=3, K=2, eta_l=0.1, b=None)
    problems = [make(option, sizes=sizes, memory=memory) for memory in (1.0, 1e-6)]
    runs = [fp.simulate(problem, method, rounds=2, seed=0) for problem in problems]
    outputs = [p.predict(p.x0, rows(sizes)[0][0]) for p in problems]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-13)
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(runs[0]["loss"], runs[1]["loss"], rtol=1e-12)


# Statistics that stay at their clients


def test_full_batch_gradients_of_silobn_are_those_of_the_objective():
    problem = make("silobn")
    x = problem.x0 + 0.1
    mean = all_gradients(problem, x).mean(0)
    np.testing.assert_allclose(mean, problem.grad(x), rtol=0, atol=1e-14)
    place, step = 7, np.zeros(problem.d)
    step[place] = 1e-6
    slope = (problem.loss(x + step) - problem.loss(x - step)) / 2e-6
    assert problem.grad(x)[place] == pytest.approx(slope, rel=1e-6)


def test_a_module_of_silobn_has_the_statistics_of_clients():
    problem = make("silobn", weights="size")
    x = problem.x0 + 0.1
    hidden = hidden_of(problem.to_module(x))
    own = problem.to_module(x, client=2)[1]
    torch.testing.assert_close(own.running_mean, hidden[2].mean(0))
    torch.testing.assert_close(own.running_var, hidden[2].var(0))
    mean, pairs = problem.to_module(x)[1], list(zip(SHARES, hidden, strict=True))
    torch.testing.assert_close(mean.running_mean, sum(w * h.mean(0) for w, h in pairs))
    torch.testing.assert_close(mean.running_var, sum(w * h.var(0) for w, h in pairs))
    assert int(mean.num_batches_tracked) == 0
    for client in (4, -1):
        with pytest.raises(fp.InputError, match=r"client must be in 0\.\.3"):
            problem.to_module(x, client=client)
    with pytest.raises(fp.InputError, match="with batch_norm='silobn'"):
        make("aggregated").to_module(make("aggregated").x0, client=0)
    dropped = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Linear(6, 3)).to(TYPE)
    problem = make("silobn", dropped)  # nothing is dropped while statistics are computed
    module = problem.to_module(problem.x0, client=1)
    torch.testing.assert_close(module[1].running_mean, tensors()[1][0].mean(0))


# Options of layers


@both
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm1d, (4,)), (nn.BatchNorm2d, (4, 4)), (nn.BatchNorm3d, (4, 2, 2))],
)
def test_layers_of_every_dimension(option, layer, affine, shape):
    torch.manual_seed(0)
    size = 2 * int(np.prod(shape))
    model = nn.Sequential(layer(2, affine=affine), nn.Flatten(), nn.Linear(size, 3)).to(TYPE)
    problem = make(option, model, [5, 7], (2, *shape))
    assert problem.mode == "batched"
    found = all_gradients(problem, problem.x0)
    for client, (x, y) in enumerate(tensors([5, 7], (2, *shape))):
        expected = plain_gradient(F.cross_entropy(model.train()(x), y), model)
        np.testing.assert_allclose(found[client, : len(expected)], expected, rtol=0, atol=1e-13)


def test_the_momentum_of_a_layer_is_not_used():
    method = fp.FedAvg(S=2, K=2, eta_l=0.1)
    bits = {
        fp.simulate(make("aggregated", network(momentum=m)), method, rounds=2, seed=0).x.tobytes()
        for m in (0.1, 0.7, None)
    }
    assert len(bits) == 1


def test_layers_without_running_statistics():
    model = network(track_running_stats=False)
    with pytest.raises(fp.InputError, match="keeps no statistics that could be aggregated"):
        make("aggregated", model)
    problem = make("silobn", model.eval())  # torch normalises by the batch in eval mode too
    x, inputs = problem.x0, tensors()[0][0]
    assert problem.grad(x).tobytes() == make("silobn").grad(x).tobytes()
    torch.testing.assert_close(problem.to_module(x)(inputs).detach(), problem.predict(x, inputs))


@both
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


@both
def test_a_layer_that_is_called_twice_counts_once_and_adds_both_terms(option):
    model = Shared().to(TYPE)
    problem = make(option, model)
    statistics = 10 if option == "aggregated" else 0
    assert problem.d == sum(p.numel() for p in model.parameters()) + statistics
    if option == "aggregated":
        found = all_gradients(problem, problem.x0)[0, -10:-5]
        first = model.first(tensors()[0][0])
        second = torch.tanh(F.batch_norm(first, None, None, training=True))
        np.testing.assert_allclose(found, -(first.mean(0) + second.mean(0)).detach(), atol=1e-13)


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


SYNCED = nn.Sequential(nn.Linear(6, 5), nn.SyncBatchNorm(5), nn.Linear(5, 3))
OWN = nn.Sequential(OwnNorm(6), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (network(), {}, r"to_group_norm\(model\), .eval\(\) .*'aggregated' or .*'silobn'"),
        (network(), {"batch_norm": "fedbn"}, "must be 'aggregated' or 'silobn', not 'fedbn'"),
        (SYNCED, {"batch_norm": "aggregated"}, r"1 \(SyncBatchNorm\) is not nn.BatchNorm1d"),
        (OWN, {"batch_norm": "silobn"}, r"0 \(OwnNorm\) is not nn.BatchNorm1d"),
        (network(), {"batch_norm": "aggregated", "compile": True}, "not possible with batch_norm"),
        (MixesRows(), {"batch_norm": "aggregated"}, "MixesRows or cross_entropy mixes rows"),
        (MixesRows(), {"batch_norm": "silobn"}, "MixesRows or cross_entropy mixes rows"),
    ],
)
def test_refused_models(model, options, message):
    refuse(message, model, F.cross_entropy, rows(SIZES), dtype="float64", **options)


@both
def test_batches_of_one_row_are_refused(option):
    message = r"1 \(BatchNorm1d\) needs a batch of 2 rows or more; use b >= 2"
    with pytest.raises(fp.InputError, match=f"client 1 has 1 rows, but {message}"):
        make(option, sizes=[5, 1])
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


def test_a_refused_batch_leaves_nothing_behind():
    """The first layer accepts one image, which has many values, and the second refuses it."""
    used, fresh = (make("aggregated", images(), shape=(1, 4, 4)) for _ in range(2))
    with pytest.raises(fp.InputError, match=r"5 \(BatchNorm1d\) needs a batch of 2 rows"):
        fp.simulate(used, fp.FedAvg(S=2, K=1, b=1), rounds=1, seed=0)
    gradients = [all_gradients(p, p.x0) for p in (used, fresh)]
    assert gradients[0].tobytes() == gradients[1].tobytes()
    model = nn.Sequential(*images()[:4], nn.Linear(48, 3)).to(TYPE)
    problem = make("aggregated", model, [1, 3], (1, 4, 4))
    history = fp.simulate(problem, fp.FedAvg(S=2, K=1, eta_l=0.1, b=1), rounds=2, seed=0)
    assert np.isfinite(history.x).all()


def test_descriptions_and_digests_name_the_option():
    aggregated, siloed = make("aggregated"), make("silobn")
    assert aggregated.describe()["batch_norm"] == "aggregated"
    assert "batch_norm" not in make(None, network().eval()).describe()
    assert aggregated.start_digest != siloed.start_digest
