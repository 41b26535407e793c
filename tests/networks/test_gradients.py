"""Check gradients, methods and bits of torch models against references."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from nets import SIZES, all_gradients, image_problem, mlp_problem, network, rows
from rows import ROWS
from support import Unfused, make_method, methods, uneven
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.codecs import IDENTITY
from fedpage.core.random import RoundDraws
from fedpage.core.types import AnyMethod, Batch
from fedpage.engine.collect import Costs
from fedpage.engine.simulate import Simulation
from fedpage.problems.torch.gradients import BatchedGradients, padded_count
from fedpage.problems.torch.objective import padded_width

NAMES = [
    name
    for name, method in methods(4, 3, 0.1).items()
    if getattr(method, "up", None) in (None, IDENTITY)
]
"""Rows without a codec: a codec works on replies, whatever problem they come from."""


# References


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
    X = linear.data.to_dense()
    own = [linear.partition.rows(i) for i in range(linear.N)]
    clients = [(X[mine], linear.data.y[mine]) for mine in own]
    return fp.TorchProblem(Logistic(linear.d, reg).double(), logistic_loss, clients, **options)


@pytest.mark.parametrize("name", NAMES)
def test_logistic_regression_in_torch_gives_the_same_run(name):
    linear = uneven("logistic-nonconvex")
    method = make_method(name, 4, 3, 0.2)
    expected = fp.simulate(linear, method, rounds=12, seed=2, record_every=6)
    found = fp.simulate(as_torch(linear, "nonconvex"), method, rounds=12, seed=2, record_every=6)
    assert np.abs(expected.x - found.x).max() < 1e-10 * max(1.0, np.abs(expected.x).max())
    for column in ("loss", "grad_norm"):
        np.testing.assert_allclose(found[column], expected[column], rtol=1e-10, atol=1e-12)
    for column in vars(Costs()):
        np.testing.assert_array_equal(found[column], expected[column])
    assert np.abs(expected.x).max() > 0.02


def test_weights_by_size_agree_with_the_linear_model():
    linear = uneven("logistic", weights="size")
    problem = as_torch(linear, weights="size")
    x = np.linspace(-1, 1, linear.d)
    np.testing.assert_allclose(problem.grad(x), linear.grad(x), rtol=0, atol=1e-14)
    gradients = all_gradients(problem, x), all_gradients(linear, x)
    np.testing.assert_allclose(*gradients, rtol=0, atol=1e-13)
    assert problem.loss(x) == pytest.approx(linear.loss(x), abs=1e-13)
    clients = np.array([1, 4])
    found, expected = problem.evaluate_clients(clients, x), linear.evaluate_clients(clients, x)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-13)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-13)
    np.testing.assert_allclose(problem.mean_labels(), linear.mean_labels(), atol=1e-14)


@pytest.mark.parametrize(
    ("make", "shape"), [(mlp_problem, (6,)), (lambda: image_problem("float64"), (1, 4, 4))]
)
def test_gradients_agree_with_autograd(make, shape):
    problem = make()
    x = problem.x0 + 0.1
    module = problem.to_module(x)
    found = all_gradients(problem, x)
    for i, (inputs, targets) in enumerate(rows(SIZES, shape)):
        module.zero_grad()
        outputs = module(torch.tensor(inputs, dtype=torch.float64))
        F.cross_entropy(outputs, torch.tensor(targets)).backward()
        flat = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
        np.testing.assert_allclose(found[i], flat, rtol=0, atol=1e-14)
    np.testing.assert_allclose(problem.grad(x), found.mean(axis=0), rtol=0, atol=1e-14)


# Laws


@pytest.mark.parametrize("name", [name for name in NAMES if ROWS[name].descent is not None])
def test_one_full_local_step_of_all_clients_is_gradient_descent(name):
    problem = mlp_problem()
    method = make_method(name, problem.N, 1, 0.05, full=True)
    run = Simulation(problem, method, seed=1)
    for _ in range(6 * (ROWS[name].descent or 1)):
        run.step()
    x = problem.x0
    for _ in range(6):
        x = x - 0.05 * problem.grad(x)
    np.testing.assert_allclose(run.x, x, rtol=0, atol=1e-12)
    assert np.abs(x - problem.x0).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_local_steps_on_the_device_agree_with_those_in_numpy(name):
    method = make_method(name, 3, 4, 0.1)
    device = fp.simulate(mlp_problem(), method, rounds=4, seed=3)
    host = fp.simulate(Unfused(mlp_problem()), method, rounds=4, seed=3)
    np.testing.assert_allclose(device.x, host.x, rtol=0, atol=1e-12)
    for column in vars(Costs()):
        np.testing.assert_array_equal(device[column], host[column])


@pytest.mark.parametrize("make", [mlp_problem, image_problem])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["FedPAGE", "SCAFFOLD-I"])
def test_chunks_and_threads_do_not_change_bits_in_deterministic_mode(make, dtype, name):
    problem, method = make(dtype, deterministic=True), make_method(name, 3, 3, 0.1)

    def run(**given):
        options = fp.RunOptions(evaluate="per_client", **given)
        return fp.simulate(problem, method, rounds=3, seed=5, record_every=3, options=options)

    first = run()
    for chunk, threads in ((1, 1), (2, 2)):
        assert run(chunk=chunk, threads=threads).same(first)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [mlp_problem, image_problem])
def test_bits_of_a_gradient_do_not_depend_on_other_clients_or_threads_of_torch(make, dtype):
    problem = make(dtype, deterministic=True)
    points = problem.x0 + np.arange(problem.N)[:, None].astype(problem.dtype) / 10
    together = all_gradients(problem, points)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for i in range(problem.N):
                oracle = problem.oracle(np.array([i]), RoundDraws(0, 0))
                single = oracle.grad(points[i], Batch(None, problem.sizes[[i]]))
                assert single[0].tobytes() == together[i].tobytes()
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert together.dtype == problem.dtype


def test_bits_of_a_small_client_do_not_depend_on_other_clients():
    problem, draws = mlp_problem("float32", deterministic=True), RoundDraws(1, 0)
    steps = {"K": 3, "eta": 0.1, "b": 7}  # clients of 1, 3 and 5 rows have fewer than 7
    together = problem.oracle(np.arange(8), draws).local_sgd(problem.x0, **steps)
    for i in range(8):
        single = problem.oracle(np.array([i]), draws).local_sgd(problem.x0, **steps)
        assert single[0].tobytes() == together[i].tobytes()


class Smooth(nn.Module):
    """Functions whose vectorised loop and its remainder use different formulas in torch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last = nn.Linear(6, 7), nn.Linear(7, 3)

    def forward(self, x):
        h = self.first(x)
        h = sum(f(h) for f in (F.silu, F.gelu, F.elu, F.softplus, F.mish, F.selu, torch.sigmoid))
        h = h / (h.std(1, keepdim=True) + h.var(1, keepdim=True, correction=0).sqrt() + 1)
        square = h * h
        h = h + F.logsigmoid(h) + torch.exp(-square) + torch.log1p(square) + torch.sin(h)
        return self.last(h + (1 + square) ** 0.3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_smooth_functions_have_the_same_bits_for_any_number_of_clients(dtype):
    problem = fp.TorchProblem(
        Smooth(), F.cross_entropy, rows(SIZES), dtype=dtype, deterministic=True
    )
    assert problem.mode == "sequential"
    method = fp.SCAFFOLD(S=5, K=3, eta_l=0.1, b=3)

    def run(**given):
        options = fp.RunOptions(evaluate="per_client", **given)
        return fp.simulate(problem, method, rounds=4, seed=0, options=options)

    first = run()
    for chunk in (1, 3):
        assert run(chunk=chunk).same(first)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_smooth_functions_have_the_gradients_of_autograd(dtype, tolerance):
    problem = fp.TorchProblem(Smooth(), F.cross_entropy, rows([9]), dtype=dtype)
    module = problem.to_module(problem.x0)
    inputs, targets = rows([9])[0]
    outputs = module(torch.tensor(inputs, dtype=getattr(torch, dtype)))
    F.cross_entropy(outputs, torch.tensor(targets)).backward()
    flat = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
    assert np.abs(flat).max() > 0
    found = all_gradients(problem, problem.x0)[0]
    np.testing.assert_allclose(found, flat, rtol=0, atol=tolerance)


@pytest.mark.parametrize("make", [mlp_problem, image_problem])
def test_the_two_modes_agree_to_rounding_and_each_repeats_its_bits(make):
    method = make_method("FedPAGE", 8, 4, 0.1)
    found = []
    for options in ({}, {"batched": False}, {"deterministic": True}):
        first, second = (
            fp.simulate(make("float64", **options), method, rounds=6, seed=3) for _ in range(2)
        )
        assert first.same(second)
        found.append(first)
    batched, sequential, deterministic = found
    np.testing.assert_allclose(batched.x, sequential.x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(batched.x, deterministic.x, rtol=0, atol=1e-12)


def test_settings_of_torch_are_restored():
    threads = torch.get_num_threads()
    problem = mlp_problem(deterministic=True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        problem.grad(problem.x0)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    problem.grad(problem.x0)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("options", [{}, {"deterministic": True}], ids=["default", "deterministic"])
def test_little_memory_divides_rows_and_clients_and_changes_nothing_else(options):
    x = mlp_problem().x0 + 0.1
    whole, small = mlp_problem(**options), mlp_problem(memory=2e-6, **options)
    calls = []
    compute = small._objective._gradients

    def count(v, batches):
        calls.append((len(v), batches.targets.shape[1]))
        return compute(v, batches)

    small._objective._gradients = count
    np.testing.assert_allclose(all_gradients(small, x), all_gradients(whole, x), rtol=0, atol=1e-14)
    assert len(calls) > 8
    assert max(n * w for n, w in calls) < max(SIZES)
    np.testing.assert_allclose(small.grad(x), whole.grad(x), rtol=0, atol=1e-14)
    assert small.evaluate(x)["loss"] == pytest.approx(whole.evaluate(x)["loss"], rel=1e-14)


@pytest.mark.slow
def test_compiled_gradients_agree_and_few_shapes_are_compiled():
    method = fp.SCAFFOLD(S=5, K=3, eta_l=0.1, b=4)
    eager = fp.simulate(mlp_problem(), method, rounds=5, seed=3)
    compiled = fp.simulate(mlp_problem(compile=True), method, rounds=5, seed=3)
    torch.compiler.reset()
    np.testing.assert_allclose(compiled.x, eager.x, rtol=0, atol=1e-12)
    assert len({padded_count(n) for n in range(1, 1000)}) == 36  # 4 for each power of two


def test_padding_adds_at_most_a_quarter_and_few_widths():
    sizes = np.arange(1, 5000)
    widths = padded_width(sizes)
    assert (widths >= sizes).all()
    assert (widths[8:] <= 1.25 * sizes[8:]).all()
    assert len(np.unique(widths)) < 45


@pytest.mark.parametrize(
    ("method", "bits"),
    [
        (fp.COFIG(S=3, up="natural"), 3 * 9 * 53),
        (fp.SCALLION(S=3, K=2, up="randk:0.2+natural"), 3 * 9 * 11),
        (fp.EF21PP(S=3, up="topk:5"), 3 * 5 * (32 + 6)),
        (fp.FedAvg(S=3, K=2, up="dither:4"), 3 * (32 + 4 * 53)),
        (fp.FedAvg(S=3, K=2, up="float32"), 3 * 32 * 53),
    ],
    ids=lambda value: f"{value.name}-{value.up}" if hasattr(value, "up") else "",
)
def test_codecs_of_float32_models(method, bits):
    problem = mlp_problem("float32")
    history = fp.simulate(problem, method, rounds=4, seed=0)
    assert problem.d == 53
    assert history.last("bits_up") == 4 * bits
    assert history.x.dtype == np.float32
    assert np.isfinite(history.x).all()
    assert (history.x != problem.x0).any()


def test_float32_states_messages_and_files(tmp_path):
    problem = mlp_problem("float32")
    chosen: list[AnyMethod] = [fp.FedPAGE(S=3, K=3, eta_g=0.3), fp.SCAFFOLD(S=3, K=3, eta_l=0.1)]
    for method in chosen:
        run = Simulation(problem, method, seed=0)
        for _ in range(3):
            run.step()
        parts = [part for part in run.state if isinstance(part, np.ndarray)]
        arrays = [part for part in parts if part.dtype != np.bool_]  # which clients were seen
        arrays += list(run.client_states.get_all() or ())
        assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
    history = fp.simulate(problem, method, rounds=4, seed=0, out=tmp_path / "run")
    assert history.x.dtype == np.float32
    assert history.last("bytes_up") == 4 * history.last("floats_up")
    assert fp.History.load(tmp_path / "run" / "history.jsonl").same(history)
    wide = fp.simulate(mlp_problem(), method, rounds=4, seed=0)
    assert 0 < np.abs(wide.x - history.x).max() < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_resumed_run_has_the_same_bits(dtype, tmp_path):
    method = fp.SCAFFOLD(S=3, K=3, eta_l=0.1)
    whole = fp.simulate(mlp_problem(dtype), method, rounds=12, seed=0)

    class Interrupt(fp.Callback):
        def on_round_end(self, info):
            if info.round == 7:
                raise KeyboardInterrupt

    def run(problem, callbacks=(), **given):
        options = fp.RunOptions(checkpoint_every=2, **given)
        stored = {"out": tmp_path / "run", "callbacks": callbacks, "options": options}
        return fp.simulate(problem, method, rounds=12, seed=0, **stored)

    with pytest.raises(KeyboardInterrupt):
        run(mlp_problem(dtype), [Interrupt()])
    assert run(mlp_problem(dtype), resume=True).same(whole)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    other = fp.TorchProblem(model, F.cross_entropy, rows(SIZES), dtype=dtype)
    with pytest.raises(fp.InputError, match=r"problem\.model_digest was"):
        run(other, resume=True, x0=mlp_problem(dtype).x0)


def test_faults():
    faults = fp.Faults(dropout=0.2, nan=0.1, late=0.1, tied="labels")
    method = fp.FedPAGE(S=4, K=2, eta_g=0.2)
    options = fp.RunOptions(faults=faults)
    history = fp.simulate(mlp_problem(), method, rounds=10, seed=0, options=options)
    assert history.last("missing") > 0
    assert np.isfinite(history.last("loss"))


def test_a_pickled_problem_gives_the_same_run():
    problem, method = mlp_problem("float32"), fp.SCAFFOLD(S=4, K=2, eta_l=0.1)
    first = fp.simulate(problem, method, rounds=3, seed=0)
    copied = pickle.loads(pickle.dumps(problem))
    assert fp.simulate(copied, method, rounds=3, seed=0).same(first)
    assert copied.describe() == problem.describe()


def test_a_scaled_problem_has_scaled_gradients():
    problem = mlp_problem()
    double = problem.rescale(2.0)
    x = problem.x0
    np.testing.assert_allclose(double.grad(x), 2 * problem.grad(x), rtol=1e-14)
    np.testing.assert_allclose(all_gradients(double, x), 2 * all_gradients(problem, x), rtol=1e-14)


def test_description_names_objective_and_model():
    problem = mlp_problem(metrics=["accuracy"], model_name="small network")
    about = problem.describe()
    assert about["objective"] == "torch model small network"
    assert mlp_problem().describe()["objective"] == "torch model Sequential"
    assert about["metrics"] == {"accuracy": True}
    assert problem.name == fp.TorchProblem.name == "torch model"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD-II"])
def test_steps_that_are_compiled_together_agree_with_single_steps(name, traced, monkeypatch):
    data = rows([9, 12, 10, 11, 15, 9, 13, 10, 12])  # nine clients are padded to ten
    method = replace(methods(9, 7, 0.1)[name], b=4)

    def run(**options):
        problem = fp.TorchProblem(network(), F.cross_entropy, data, dtype="float64", **options)
        return fp.simulate(problem, method, rounds=2, seed=0).x

    calls = []
    take_steps = BatchedGradients.take_steps
    monkeypatch.setattr(
        BatchedGradients, "take_steps", lambda *a: calls.append(len(a[3])) or take_steps(*a)
    )
    compiled = run(compile=True)
    assert calls == [5, 5]  # of 7 steps in each of two rounds
    np.testing.assert_allclose(compiled, run(), rtol=0, atol=1e-12)


def test_directions_of_tiny_local_steps_keep_their_digits():
    """X - y_K has no digits where a step is smaller than the last digit of x."""
    problem = mlp_problem("float32")
    clients = np.arange(problem.N)
    x = problem.x0 + np.float32(1.0)
    found = problem.oracle(clients, RoundDraws(0, 0)).local_sgd(x, K=3, eta=1e-9, b=1)
    oracle = problem.oracle(clients, RoundDraws(0, 0))
    expected = sum(oracle.grad(x, oracle.batch(1)) for _ in range(3)) / 3
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.abs(expected).max() > 0.01
