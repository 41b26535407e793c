"""A torch module as a problem: the same laws, the same bits, and what is refused."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from nets import SIZES, convolution, network, rows
from support import Unfused, methods, uneven
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch
from fedpage.engine.simulation import Simulation
from fedpage.problems.torch import gradients
from fedpage.problems.torch import problem as torch_problem
from fedpage.problems.torch.problem import padded

NAMES = list(methods(4, 3, 0.1))


def problem(dtype="float64", **options):
    return fp.TorchProblem(network(), F.cross_entropy, rows(SIZES), dtype=dtype, **options)


def images(dtype="float32", **options):
    return fp.TorchProblem(
        convolution(), F.cross_entropy, rows(SIZES, (1, 4, 4)), dtype=dtype, **options
    )


def everyone(made, x, batch=None):
    return made.oracle(np.arange(made.N), RoundDraws(0, 0)).grad(
        x, batch or Batch(None, made.sizes)
    )


# Against truth


class Logistic(nn.Module):
    """Logistic regression with labels -1/1, as a torch model that starts at zero."""

    def __init__(self, d, reg, alpha=0.1):
        super().__init__()
        self.w, self.reg, self.alpha = nn.Parameter(torch.zeros(d)), reg, alpha

    def forward(self, inputs):
        penalty = {"none": 0.0 * self.w, "nonconvex": self.w**2 / (1 + self.w**2)}[self.reg].sum()
        return inputs @ self.w, (self.alpha * penalty).expand(len(inputs))


def logistic_loss(outputs, targets):
    margins, penalty = outputs
    return (F.softplus(-targets * margins) + penalty).mean()


def as_torch(linear, reg="none", **options):
    X = np.zeros((len(linear.data.y), linear.d))
    for i, (a, b) in enumerate(zip(linear.data.indptr[:-1], linear.data.indptr[1:], strict=True)):
        X[i, linear.data.indices[a:b]] = linear.data.values[a:b]
    own = [linear.partition.rows(i) for i in range(linear.N)]
    clients = [(X[mine], linear.data.y[mine]) for mine in own]
    return fp.TorchProblem(Logistic(linear.d, reg).double(), logistic_loss, clients, **options)


@pytest.mark.parametrize("name", NAMES)
def test_logistic_regression_in_torch_is_the_same_run(name):
    linear = uneven("logistic-nonconvex")
    method = methods(4, 3, 0.2)[name]
    ours = fp.simulate(linear, method, rounds=12, seed=2, record_every=6)
    theirs = fp.simulate(as_torch(linear, "nonconvex"), method, rounds=12, seed=2, record_every=6)
    assert np.abs(ours.x - theirs.x).max() < 1e-10 * max(1.0, np.abs(ours.x).max())
    for column in ("loss", "grad_norm"):
        np.testing.assert_allclose(theirs[column], ours[column], rtol=1e-10, atol=1e-12)
    for column in fp.core.types.COSTS:
        np.testing.assert_array_equal(theirs[column], ours[column])
    assert np.abs(ours.x).max() > 0.02


def test_weights_by_size_are_the_same_too():
    linear = uneven("logistic", weights="size")
    made = as_torch(linear, weights="size")
    x = np.linspace(-1, 1, linear.d)
    np.testing.assert_allclose(made.grad(x), linear.grad(x), rtol=0, atol=1e-14)
    np.testing.assert_allclose(everyone(made, x), everyone(linear, x), rtol=0, atol=1e-13)
    assert made.loss(x) == pytest.approx(linear.loss(x), abs=1e-13)
    mine, theirs = (
        made.evaluate_clients(np.array([1, 4]), x),
        linear.evaluate_clients(np.array([1, 4]), x),
    )
    np.testing.assert_allclose(mine[0], theirs[0], atol=1e-13)
    np.testing.assert_allclose(mine[1], theirs[1], atol=1e-13)
    np.testing.assert_allclose(made.mean_labels(), linear.mean_labels(), atol=1e-14)


@pytest.mark.parametrize("make", [problem, lambda: images("float64")])
def test_gradients_are_autograds(make):
    made = make()
    x = made.x0 + 0.1
    module = made.to_module(x)
    found = everyone(made, x)
    for i, (inputs, targets) in enumerate(rows(SIZES, made._rows.inputs[0].shape[1:])):
        module.zero_grad()
        F.cross_entropy(
            module(torch.tensor(inputs, dtype=torch.float64)), torch.tensor(targets)
        ).backward()
        flat = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
        np.testing.assert_allclose(found[i], flat, rtol=0, atol=1e-14)
    np.testing.assert_allclose(made.grad(x), found.mean(axis=0), rtol=0, atol=1e-14)


# The laws


@pytest.mark.parametrize("name", NAMES)
def test_one_full_local_step_of_everyone_is_gradient_descent(name):
    made = problem()
    method = methods(made.N, 1, 0.05, full=True)[name]
    run = Simulation(made, method, seed=1)
    for _ in range(6 * (2 if isinstance(method, fp.SLocalSVRG) else 1)):
        run.step()
    x = made.x0
    for _ in range(6):
        x = x - 0.05 * made.grad(x)
    np.testing.assert_allclose(run.x, x, rtol=0, atol=1e-12)
    assert np.abs(x - made.x0).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_walks_on_the_device_are_the_walks(name):
    method = methods(3, 4, 0.1)[name]
    fused = fp.simulate(problem(), method, rounds=4, seed=3)
    plain = fp.simulate(Unfused(problem()), method, rounds=4, seed=3)
    np.testing.assert_allclose(fused.x, plain.x, rtol=0, atol=1e-12)
    for column in fp.core.types.COSTS:
        np.testing.assert_array_equal(fused[column], plain[column])


@pytest.mark.parametrize("make", [problem, lambda: problem("float32"), images])
@pytest.mark.parametrize("name", ["FedPAGE", "SCAFFOLD-I"])
def test_no_chunk_and_no_thread_changes_a_bit(make, name):
    made, method = make(), methods(3, 3, 0.1)[name]
    first = fp.simulate(
        made, method, rounds=3, seed=5, record_every=3, options=fp.RunOptions(evaluate="per_client")
    )
    for chunk, threads in ((1, 1), (2, 2)):
        again = fp.simulate(
            made,
            method,
            rounds=3,
            seed=5,
            record_every=3,
            options=fp.RunOptions(chunk=chunk, threads=threads, evaluate="per_client"),
        )
        assert again.same(first)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [problem, images])
def test_a_clients_gradient_depends_on_nobody_else_nor_on_torchs_threads(make, dtype):
    made = make(dtype)
    points = made.x0 + np.arange(made.N)[:, None].astype(made.dtype) / 10
    together = everyone(made, points)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for i in range(made.N):
                alone = made.oracle(np.array([i]), RoundDraws(0, 0)).grad(
                    points[i], Batch(None, made.sizes[[i]])
                )
                assert alone[0].tobytes() == together[i].tobytes()
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert together.dtype == made.dtype


def test_a_small_clients_minibatch_depends_on_nobody_else():
    made = problem("float32")
    method = fp.FedAvg(
        S=8, K=3, eta_l=0.1, b=7
    )  # clients of 1, 3 and 5 rows have fewer, one of 8 just enough
    draws = RoundDraws(1, 0)
    together = made.oracle(np.arange(8), draws).local_sgd(made.x0, K=3, eta=0.1, b=method.b)
    for i in range(8):
        alone = made.oracle(np.array([i]), draws).local_sgd(made.x0, K=3, eta=0.1, b=method.b)
        assert alone[0].tobytes() == together[i].tobytes()


class Smooth(nn.Module):
    """Every function that torch computes by one formula for whole vectors and by another for the rest of an array."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last = nn.Linear(6, 7), nn.Linear(7, 3)

    def forward(self, x):
        h = self.first(x)
        h = (
            torch.sigmoid(h)
            + F.silu(h)
            + F.gelu(h)
            + F.elu(h)
            + F.softplus(h)
            + F.mish(h)
            + F.selu(h)
        )
        h = h / (h.std(1, keepdim=True) + h.var(1, keepdim=True, correction=0).sqrt() + 1)
        h = (
            h
            + F.logsigmoid(h)
            + torch.exp(-h * h)
            + torch.log1p(h * h)
            + torch.sin(h)
            + (1 + h * h) ** 0.3
        )
        return self.last(h)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_smooth_functions_have_the_same_bits_in_any_company(dtype, monkeypatch):
    made = fp.TorchProblem(Smooth(), F.cross_entropy, rows(SIZES), dtype=dtype)
    assert made.way == "together"
    method = fp.SCAFFOLD(S=5, K=3, eta_l=0.1, b=3)
    first = fp.simulate(
        made, method, rounds=4, seed=0, options=fp.RunOptions(evaluate="per_client")
    )
    for chunk in (1, 3):
        assert fp.simulate(
            made,
            method,
            rounds=4,
            seed=0,
            options=fp.RunOptions(chunk=chunk, evaluate="per_client"),
        ).same(first)
    monkeypatch.setattr(gradients, "_OFTEN", 0)
    again = fp.TorchProblem(Smooth(), F.cross_entropy, rows(SIZES), dtype=dtype)
    assert fp.simulate(
        again, method, rounds=4, seed=0, options=fp.RunOptions(evaluate="per_client")
    ).same(first)
    x = torch.tensor(made.x0)
    assert np.abs(made.grad(made.x0)).max() > 0
    module = made.to_module(made.x0)
    inputs, targets = (np.concatenate(parts) for parts in zip(*rows([9]), strict=True))
    F.cross_entropy(module(torch.tensor(inputs, dtype=x.dtype)), torch.tensor(targets)).backward()
    flat = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
    one = fp.TorchProblem(Smooth(), F.cross_entropy, rows([9]), dtype=dtype)
    np.testing.assert_allclose(
        everyone(one, one.x0)[0], flat, rtol=0, atol=1e-6 if dtype == "float32" else 1e-14
    )


def test_traced_gradients_have_the_same_bits(monkeypatch):
    method = methods(8, 4, 0.1)["FedPAGE"]
    plain = fp.simulate(problem("float32"), method, rounds=8, seed=3)
    monkeypatch.setattr(gradients, "_OFTEN", 0)
    calls = []
    true = gradients.traced_function
    monkeypatch.setattr(
        gradients, "traced_function", lambda *words: calls.append(1) or true(*words)
    )
    made = problem("float32")
    traced = fp.simulate(made, method, rounds=8, seed=3)
    assert traced.same(plain)
    assert calls
    assert all(isinstance(one, torch.fx.GraphModule) for one in made._gradients._traced.values())


def test_blocks_of_rows_and_pieces_of_clients_add_up(monkeypatch):
    from fedpage.problems.torch import problem

    x = problem().x0 + 0.1
    whole, each = problem().grad(x), everyone(problem(), x)
    monkeypatch.setattr(torch_problem, "_BLOCK", 7)
    monkeypatch.setattr(gradients, "_PIECE", 600)
    made = problem()
    assert made._gradients._limit == 2
    np.testing.assert_allclose(made.grad(x), whole, rtol=0, atol=1e-14)
    np.testing.assert_allclose(everyone(made, x), each, rtol=0, atol=1e-14)
    assert made.evaluate(x, threads=2) == made.evaluate(x)


def test_padding_depends_on_the_size_alone_and_wastes_little():
    sizes = np.arange(1, 5000)
    wide = padded(sizes)
    assert (wide >= sizes).all()
    assert (wide[8:] <= 1.25 * sizes[8:]).all()
    assert len(np.unique(wide)) < 45


def test_float32_all_the_way(tmp_path):
    made = problem("float32")
    for method in (fp.FedPAGE(S=3, K=3, eta_g=0.3), fp.SCAFFOLD(S=3, K=3, eta_l=0.1)):
        run = Simulation(made, method, seed=0)
        for _ in range(3):
            run.step()
        arrays = [part for part in run.state if isinstance(part, np.ndarray)]
        arrays += list(run.client_states.get_all() or ())
        assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
    history = fp.simulate(made, method, rounds=4, seed=0, out=tmp_path / "run")
    assert history.x.dtype == np.float32
    assert history.last("bytes_up") == 4 * history.last("floats_up")
    assert fp.History.load(tmp_path / "run" / "history.jsonl").same(history)
    wide = fp.simulate(problem(), method, rounds=4, seed=0)
    assert 0 < np.abs(wide.x - history.x).max() < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_interrupted_and_resumed_it_has_the_same_bits(dtype, tmp_path):
    method = fp.SCAFFOLD(S=3, K=3, eta_l=0.1)
    whole = fp.simulate(problem(dtype), method, rounds=12, seed=0)

    class Stop(fp.Callback):
        def on_round_end(self, info):
            if info.round == 7:
                raise KeyboardInterrupt

    out = {"out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        fp.simulate(
            problem(dtype),
            method,
            rounds=12,
            seed=0,
            callbacks=[Stop()],
            options=fp.RunOptions(checkpoint_every=2),
            **out,
        )
    assert fp.simulate(
        problem(dtype), method, rounds=12, seed=0, **out, options=fp.RunOptions(resume=True)
    ).same(whole)
    other = fp.TorchProblem(
        nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
        F.cross_entropy,
        rows(SIZES),
        dtype=dtype,
    )
    with pytest.raises(fp.InputError, match=r"problem\.model_digest was"):
        fp.simulate(
            other,
            method,
            rounds=12,
            seed=0,
            **out,
            options=fp.RunOptions(resume=True, x0=problem(dtype).x0),
        )


def test_faults_take_it():
    made = problem()
    faults = fp.Faults(dropout=0.2, nan=0.1, late=0.1, tied="labels")
    history = fp.simulate(
        made,
        fp.FedPAGE(S=4, K=2, eta_g=0.2),
        rounds=10,
        seed=0,
        options=fp.RunOptions(faults=faults),
    )
    assert history.last("missing") > 0
    assert np.isfinite(history.last("loss"))


def test_a_worker_process_gets_the_same_problem():
    made, method = problem("float32"), fp.SCAFFOLD(S=4, K=2, eta_l=0.1)
    first = fp.simulate(made, method, rounds=3, seed=0)
    sent = pickle.loads(pickle.dumps(made))
    assert fp.simulate(sent, method, rounds=3, seed=0).same(first)
    assert sent.describe() == made.describe()


# What a module may be


def test_frozen_parameters_and_buffers_are_constants():
    model = network()
    model[0].weight.requires_grad_(False)
    model.register_buffer("scale", torch.tensor(2.0))
    made = fp.TorchProblem(model, F.cross_entropy, rows(SIZES))
    assert made.d == 5 + 15 + 3
    assert torch.equal(made.to_module(made.x0 + 1.0)[0].weight, model[0].weight)
    assert made.x0.tobytes() == made.from_module(model).tobytes()


def test_tied_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6, bias=False)
            self.b = nn.Linear(6, 6, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    made = fp.TorchProblem(Tied(), F.cross_entropy, rows(SIZES), dtype="float64")
    assert made.d == 36
    x, small = made.x0, 1e-6
    step = np.zeros(36)
    step[7] = small
    slope = (made.loss(x + step) - made.loss(x - step)) / (2 * small)
    assert made.grad(x)[7] == pytest.approx(slope, rel=1e-6)
    module = made.to_module(x + step)
    assert torch.equal(module.a.weight, module.b.weight)


def test_the_users_model_stays_as_it_is():
    model = network()
    before = copy.deepcopy(model.state_dict())
    made = fp.TorchProblem(model, F.cross_entropy, rows(SIZES), dtype="float64")
    fp.simulate(made, fp.FedAvg(S=2, K=2, eta_l=0.5), rounds=3, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32


def test_several_inputs_and_data_sets_of_torchs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(4, 6), nn.Linear(6, 3)

        def forward(self, x, kind):
            return self.out(x + self.embed(kind))

    plain = rows(SIZES)
    kinds = [np.arange(len(y)) % 4 for _, y in plain]
    torch.manual_seed(1)
    model = Two()
    pairs = fp.TorchProblem(
        model, nn.CrossEntropyLoss(), [((x, k), y) for (x, y), k in zip(plain, kinds, strict=True)]
    )
    tensors = [
        torch.utils.data.TensorDataset(*map(torch.as_tensor, (x, k, y)))
        for (x, y), k in zip(plain, kinds, strict=True)
    ]
    sets = fp.TorchProblem(model, nn.CrossEntropyLoss(), tensors)
    subsets = [torch.utils.data.Subset(one, range(len(one))) for one in tensors]
    indexed = fp.TorchProblem(model, nn.CrossEntropyLoss(), subsets)
    first = everyone(pairs, pairs.x0)
    assert np.abs(first[0]).max() > 0
    assert (
        everyone(sets, pairs.x0).tobytes()
        == first.tobytes()
        == everyone(indexed, pairs.x0).tobytes()
    )


class Stubborn(nn.Module):
    """Looks at its numbers, which vmap forbids."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        out = self.inner(x)
        return out if out.sum().item() < 1e9 else out * 0


class Within(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.stubborn = nn.Linear(6, 6), Stubborn()

    def forward(self, x):
        return self.stubborn(self.first(x))


def test_a_module_that_cannot_be_batched_is_named_and_computed_one_by_one():
    with pytest.warns(
        UserWarning, match=r"stubborn \(Stubborn\) cannot be batched .* one after the other"
    ):
        slow = fp.TorchProblem(
            Within(), F.cross_entropy, rows(SIZES), dtype="float64", metrics=["accuracy"]
        )
    Plain = type(
        "Plain", (Within,), {"forward": lambda self, x: self.stubborn.inner(self.first(x))}
    )
    fast = fp.TorchProblem(
        Plain(), F.cross_entropy, rows(SIZES), dtype="float64", metrics=["accuracy"]
    )
    assert (slow.batched, fast.batched) == (False, True)
    for name in ("FedPAGE", "SCAFFOLD-II"):
        method = methods(4, 3, 0.1)[name]
        one, many = (fp.simulate(made, method, rounds=5, seed=0) for made in (slow, fast))
        np.testing.assert_allclose(one.x, many.x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(one["loss"], many["loss"], rtol=1e-12)
        np.testing.assert_array_equal(one["accuracy"], many["accuracy"])


def test_batching_can_be_declined():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = problem(batched=False)
    np.testing.assert_allclose(made.grad(made.x0), problem().grad(made.x0), rtol=0, atol=1e-14)


def frozen_norm():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model[1].eval()
    return model


def test_a_frozen_batchnorm_and_a_sleeping_dropout_are_taken():
    with pytest.warns(UserWarning, match="other bits in company"):
        made = fp.TorchProblem(frozen_norm(), F.cross_entropy, rows(SIZES))
    assert made.way == "alone"
    method = fp.SCAFFOLD(S=4, K=2, eta_l=0.1, b=3)
    first = fp.simulate(made, method, rounds=3, seed=0)
    assert fp.simulate(made, method, rounds=3, seed=0, options=fp.RunOptions(chunk=1)).same(first)
    fp.TorchProblem(
        nn.Sequential(nn.Dropout(0.5).eval(), nn.Linear(6, 3)), F.cross_entropy, rows(SIZES)
    )
    fp.TorchProblem(nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 3)), F.cross_entropy, rows(SIZES))


class Random(nn.Linear):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, self.training)


class Mixing(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        return out - out.mean(0)


class Counting(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Infinite(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.bias.data[0] = np.nan


def weighted(outputs, targets):
    return F.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 2.0, 5.0]))


def nothing_to_train():
    model = nn.Linear(6, 3)
    model.requires_grad_(False)
    return model


HUNDRED = rows([30, 2])
SORTED = [(HUNDRED[0][0], np.sort(HUNDRED[0][1])), HUNDRED[1]]


class Frequent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 3, scale_grad_by_freq=True)

    def forward(self, x):
        return self.table(x)


def seldom(p):
    class Seldom(nn.Linear):
        def forward(self, x):
            return super().forward(x * (torch.rand_like(x) > p))

    return Seldom(6, 3)


@pytest.mark.parametrize(
    ("model", "loss", "data", "words"),
    [
        (nn.Linear(6, 3), weighted, SORTED, "mean of their own losses"),
        (
            nn.Linear(6, 1),
            nn.MSELoss(),
            [(x, y.astype("float32")) for x, y in SORTED],
            "mean of their own losses",
        ),
        (
            Frequent(),
            F.cross_entropy,
            [(np.array([0, 0, 1, 2, 0]), np.array([0, 1, 2, 1, 0]))],
            "scale_grad_by_freq",
        ),
        (seldom(1e-3), F.cross_entropy, HUNDRED, "draws random numbers"),
        (nn.Linear(6, 3), nn.CrossEntropyLoss(ignore_index=1), HUNDRED, "the loss of a row is nan"),
        (nn.Linear(6, 2), F.cross_entropy, HUNDRED, "cannot be computed on rows of the clients"),
        (nn.Embedding(5, 3, max_norm=1.0), F.cross_entropy, HUNDRED, "max_norm"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_what_only_some_rows_show(model, loss, data, words):
    with pytest.raises(fp.InputError, match=words) as error:
        fp.TorchProblem(model, loss, data)
    assert "\n" not in str(error.value)


def test_another_loss_is_another_run():
    def told(loss, model=None):
        return fp.TorchProblem(model or nn.Linear(6, 3), loss, HUNDRED, dtype="float64").describe()

    def smoothed(a):
        return lambda outputs, targets: F.cross_entropy(outputs, targets, label_smoothing=a)

    losses = [
        partial(F.cross_entropy, label_smoothing=0.1), partial(F.cross_entropy, label_smoothing=0.2), smoothed(0.1),
        smoothed(0.2), nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), F.cross_entropy,
    ]  # fmt: skip
    assert len({told(loss)["loss_digest"] for loss in losses}) == len(losses)
    assert told(smoothed(0.1))["loss_digest"] == told(smoothed(0.1))["loss_digest"]

    class Scaled(nn.Linear):
        def __init__(self, k):
            super().__init__(6, 3)
            self.k = k

        def forward(self, x):
            return self.k * super().forward(x)

    digests = [told(F.cross_entropy, Scaled(k))["model_digest"] for k in (1.0, 2.0, 1.0)]
    assert digests[0] == digests[2] != digests[1]


REFUSED = {
    "a class": (lambda: nn.Linear, F.cross_entropy, "must be a torch.nn.Module"),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), F.cross_entropy, r"1 \(BatchNorm1d\).*GroupNorm",
    ),
    "untracked norm": (
        lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)).eval(), F.cross_entropy,
        "BatchNorm1d",
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1)), F.cross_entropy, r"1 \(Dropout\).*\.eval\(\)"),
    "hidden dropout": (lambda: Random(6, 3), F.cross_entropy, "Random gives another loss for the same rows"),
    "batch statistics": (lambda: Mixing(6, 3), F.cross_entropy, "Mixing or cross_entropy mixes rows"),
    "own buffers": (lambda: Counting(6, 3), F.cross_entropy, "Counting changes its buffer 'calls'"),
    "class weights": (lambda: nn.Linear(6, 3), weighted, "mean of their own losses"),
    "a sum": (lambda: nn.Linear(6, 3), nn.CrossEntropyLoss(reduction="sum"), "sums where the mean is wanted"),
    "no reduction": (lambda: nn.Linear(6, 3), nn.CrossEntropyLoss(reduction="none"), "reduction='mean'"),
    "no loss": (lambda: nn.Linear(6, 3), "mse", "loss_fn must be a function"),
    "lazy": (lambda: nn.LazyLinear(3), F.cross_entropy, "has no shape yet"),
    "wrong width": (lambda: nn.Linear(7, 3), F.cross_entropy, r"cannot be computed .* shape \(32, 6\)"),
    "nothing to train": (nothing_to_train, F.cross_entropy, "nothing to train"),
    "not finite": (lambda: Infinite(6, 3), F.cross_entropy, "bias has a NaN"),
    "complex": (lambda: nn.Linear(6, 3, dtype=torch.complex64), F.cross_entropy, "complex64"),
    "half": (lambda: nn.Linear(6, 3).half(), F.cross_entropy, "dtype must be 'float32' or 'float64'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_models_and_losses_that_are_refused(case):
    make, loss, words = REFUSED[case]
    with pytest.raises(fp.InputError, match=words) as error:
        fp.TorchProblem(make(), loss, HUNDRED)
    assert "\n" not in str(error.value)


X, Y = HUNDRED[0]
BAD_ROWS = {
    "no list": ((X, Y), "client 0 must be"),
    "an array": (X, "list with"),
    "none": ([], "empty"),
    "no rows": ([(X, Y), (X[:0], Y[:0])], "client 1 has no rows"),
    "unequal": ([(X, Y[:-1])], "same number of rows"),
    "a NaN": ([(X, Y), (X * np.nan, Y)], "client 1 has a NaN"),
    "words": ([(np.array(["a"] * 30), Y)], "tensors or arrays"),
    "other width": ([(X, Y), (X[:, :5], Y)], "client 1 has rows"),
    "other type": ([(X, Y), (X, Y.astype(float))], "client 1 has rows"),
    "a loader": ([torch.utils.data.DataLoader([(X[0], Y[0])])], "DataLoader"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_are_refused(case):
    data, words = BAD_ROWS[case]
    with pytest.raises(fp.InputError, match=words) as error:
        fp.TorchProblem(nn.Linear(6, 3), F.cross_entropy, data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
        ({"device": "abacus"}, "device 'abacus'"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"metrics": ["f1"]}, "metric 'f1' must be a function"),
        ({"metrics": {"loss": F.mse_loss}}, "cannot be called 'loss'"),
        ({"metrics": {"bytes_up": F.mse_loss}}, "cannot be called 'bytes_up'"),
        ({"metrics": {"held_out_loss": F.mse_loss}}, "cannot be called 'held_out_loss'"),
        ({"metrics": None}, "metrics must be names"),
        (
            {"metrics": {"broken": lambda outputs, targets: outputs}},
            "metric 'broken' cannot be computed on the clients",
        ),
        ({"held_out": (X[:, :4], Y)}, "cannot be computed on rows of held_out"),
        ({"device": "meta"}, "meta"),
        ({"weights": [1.0]}, "weights must be"),
        ({"held_out": X}, "held_out must be"),
    ],
)
def test_options_that_are_refused(options, words):
    with pytest.raises(fp.InputError, match=words):
        fp.TorchProblem(nn.Linear(6, 3), F.cross_entropy, HUNDRED, **options)


def test_theory_says_that_it_knows_no_smoothness():
    with pytest.raises(fp.InputError, match="tune"):
        fp.FedPAGE.from_theory(problem(), S=2)
