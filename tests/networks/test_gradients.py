"""Check gradients, methods and bits of torch models against references."""

import pickle

import numpy as np
import pytest
import torch
from nets import (
    SIZES,
    all_gradients,
    assert_resumes,
    image_problem,
    mlp_problem,
    plain_gradient,
    rows,
)
from support import Unfused, make_method, methods, refusal, uneven
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.codecs import IDENTITY
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch
from fedpage.engine.collect import Costs
from fedpage.engine.simulate import Simulation
from fedpage.studies.candidates import list_candidates

NAMES = [
    name
    for name, method in methods(4, 3, 0.1).items()
    if getattr(method, "up", None) in (None, IDENTITY) and name != "Newton"
]
"""Rows without a codec: a codec works on replies, whatever problem they come from.

Networks have no Hessians for Newton.
"""
both_types = pytest.mark.parametrize("dtype", ["float32", "float64"])


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
    found, expected = (p.evaluate_clients(np.array([1, 4]), x) for p in (problem, linear))
    for part in (0, 1):
        np.testing.assert_allclose(found[part], expected[part], atol=1e-13)
    np.testing.assert_allclose(problem.mean_labels(), linear.mean_labels(), atol=1e-14)


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


def smooth_problem(dtype="float64", **options):
    return fp.TorchProblem(Smooth(), F.cross_entropy, rows(SIZES), dtype=dtype, **options)


PROBLEMS = {"mlp": (mlp_problem, (6,)), "image": (image_problem, (1, 4, 4)),
            "smooth": (smooth_problem, (6,))}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"deterministic": True}], ids=str)
@both_types
@pytest.mark.parametrize("kind", PROBLEMS)
def test_gradients_are_those_of_autograd(kind, dtype, options):
    make, shape = PROBLEMS[kind]
    problem = make(dtype, **options)
    x = problem.x0 + problem.dtype.type(0.1)
    module, found = problem.to_module(x), all_gradients(problem, x)
    tolerance = 1e-14 if dtype == "float64" else 2e-6
    for i, (inputs, targets) in enumerate(rows(SIZES, shape)):
        outputs = module(torch.tensor(inputs, dtype=getattr(torch, dtype)))
        expected = plain_gradient(F.cross_entropy(outputs, torch.tensor(targets)), module)
        np.testing.assert_allclose(found[i], expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(problem.grad(x), found.mean(axis=0), rtol=0, atol=tolerance)


LOCAL = ["FedPAGE", "SCAFFOLD-I", "SCAFFOLD-II", "FedAvg", "FedProx", "VRL-SGD", "S-Local-SVRG",
         "Mime", "FedDyn", "Scaffnew", "SVRP", "DANE", "SecantPAGE"]  # fmt: skip
"""A method of each kind of local steps."""


@pytest.mark.parametrize("name", LOCAL)
def test_local_steps_on_the_device_agree_with_those_in_numpy(name):
    method = make_method(name, 3, 4, 0.1)
    device = fp.simulate(mlp_problem(), method, rounds=4, seed=3)
    host = fp.simulate(Unfused(mlp_problem()), method, rounds=4, seed=3)
    np.testing.assert_allclose(device.x, host.x, rtol=0, atol=1e-12)
    for column in vars(Costs()):
        np.testing.assert_array_equal(device[column], host[column])


@both_types
@pytest.mark.parametrize("make", [mlp_problem, image_problem])
def test_bits_of_a_client_do_not_depend_on_other_clients_or_threads_of_torch(make, dtype):
    problem, draws = make(dtype, deterministic=True), RoundDraws(1, 0)
    points = problem.x0 + np.arange(problem.N)[:, None].astype(problem.dtype) / 10
    together = all_gradients(problem, points)
    assert together.dtype == problem.dtype
    steps = {"K": 3, "eta": 0.1, "b": 7}  # clients of 1, 3 and 5 rows have fewer than 7
    moved = problem.oracle(np.arange(8), draws).local_sgd(problem.x0, **steps)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for i in range(problem.N):
                oracle = problem.oracle(np.array([i]), draws)
                single = oracle.grad(points[i], Batch(None, problem.sizes[[i]]))
                assert single[0].tobytes() == together[i].tobytes()
                oracle = problem.oracle(np.array([i]), draws)
                assert oracle.local_sgd(problem.x0, **steps)[0].tobytes() == moved[i].tobytes()
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


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


@pytest.mark.parametrize("options", [{}, {"deterministic": True}], ids=str)
def test_little_memory_changes_nothing_else(options):
    whole, small = mlp_problem(**options), mlp_problem(memory=2e-6, **options)
    x = whole.x0 + 0.1
    np.testing.assert_allclose(all_gradients(small, x), all_gradients(whole, x), rtol=0, atol=1e-14)
    np.testing.assert_allclose(small.grad(x), whole.grad(x), rtol=0, atol=1e-14)
    assert small.evaluate(x)["loss"] == pytest.approx(whole.evaluate(x)["loss"], rel=1e-14)


# Losses, and products of Hessians with vectors


@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"memory": 2e-6}], ids=str)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_losses_and_products_agree_with_differences(kind, options):
    """For all rows and for minibatches, each client at its point."""
    problem = PROBLEMS[kind][0]("float64", **options)
    clients, rng, h = np.array([0, 2, 5, 6]), np.random.default_rng(0), 1e-6
    y, v = problem.x0 + 0.1 * rng.normal(size=(4, problem.d)), rng.normal(size=(4, problem.d))
    for size in (None, 4):
        oracle = problem.oracle(clients, RoundDraws(1, 2))
        batch = oracle.batch(size)
        slopes, values = (
            [call(y + sign * h * v, batch) for sign in (1, -1)]
            for call in (oracle.grad, oracle.loss)
        )
        products = oracle.hvp(y, v, batch)
        np.testing.assert_allclose(products, (slopes[0] - slopes[1]) / (2 * h), atol=2e-7)
        along = (oracle.grad(y, batch) * v).sum(axis=1)
        np.testing.assert_allclose((values[0] - values[1])[:, 0] / (2 * h), along, atol=1e-7)
    other = PROBLEMS[kind][0]("float64", batched=False).oracle(clients, RoundDraws(1, 2))
    np.testing.assert_allclose(other.hvp(y, v, other.batch(4)), products, rtol=0, atol=1e-13)


def test_the_linear_model_in_torch_has_its_losses_and_products():
    linear = uneven("logistic-nonconvex", weights="size")
    x, clients = np.linspace(-1, 1, linear.d), np.arange(linear.N)
    problems = (linear, *(as_torch(linear, "nonconvex", weights="size", batched=b) for b in (1, 0)))
    found = []
    for problem in problems:
        oracle = problem.oracle(clients, RoundDraws(0, 0))
        before, batch = oracle.gradients, oracle.batch(None)
        found.append((oracle.loss(x, batch), oracle.hvp(x, x, batch)))
        assert oracle.gradients - before == 2 * linear.sizes.sum()
        assert found[-1][0].mean() == pytest.approx(problem.evaluate(x)["loss"], rel=1e-13)
    for losses, products in found[1:]:
        np.testing.assert_allclose(losses, found[0][0], rtol=1e-13)
        np.testing.assert_allclose(products, found[0][1], rtol=0, atol=1e-13)


class Absolute(nn.Module):
    """A loss that is linear in one parameter, and does not depend on another one."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))

    def forward(self, inputs):
        return inputs[:, 0] * self.used


@pytest.mark.parametrize("batched", [True, False])
def test_products_are_zero_where_gradients_are_constant(batched):
    problem = fp.TorchProblem(Absolute().double(), F.l1_loss, [rows([4])[0]] * 2, batched=batched)
    oracle = problem.oracle(np.arange(2), RoundDraws(0, 0))
    found = oracle.hvp(problem.x0, problem.x0, oracle.batch(None))
    assert found.shape == (2, 3)
    assert not found.any()


def test_one_client_alone_has_the_bits_of_its_row():
    problem = mlp_problem("float32", deterministic=True)
    points = problem.x0 + np.arange(problem.N)[:, None].astype(np.float32) / 10

    def compute(clients):
        oracle, y = problem.oracle(clients, RoundDraws(1, 0)), points[clients]
        batch = oracle.batch(None)
        return oracle.loss(y, batch), oracle.hvp(y, y - problem.x0, batch)

    together = compute(np.arange(problem.N))
    for i in range(problem.N):
        for whole, alone in zip(together, compute(np.array([i])), strict=True):
            assert whole.dtype == problem.dtype
            assert whole[i].tobytes() == alone[0].tobytes()


def test_networks_have_no_hessians_and_are_not_for_newton():
    problem = mlp_problem()
    kept, left_out = list_candidates(problem, methods=["newton", "page"])
    assert [each.name for each in kept] == ["page"]
    assert left_out["newton"] == refusal(fp.simulate, problem, fp.Newton(), rounds=1, seed=0)
    assert "no Hessians" in left_out["newton"]
    assert "SecantPAGE" in left_out["newton"]


@pytest.mark.slow
def test_compiled_gradients_agree():
    """One shape of minibatches is compiled to code; other tests trace further ones."""
    method = fp.SCAFFOLD(S=5, K=1, eta_l=0.1, b=4)
    eager = fp.simulate(mlp_problem(), method, rounds=3, seed=3)
    compiled = fp.simulate(mlp_problem(compile=True), method, rounds=3, seed=3)
    torch.compiler.reset()
    np.testing.assert_allclose(compiled.x, eager.x, rtol=0, atol=1e-12)


# Runs


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


@pytest.mark.parametrize("kind", [fp.FedPAGE, fp.SCAFFOLD])
def test_float32_states_messages_and_files(kind, tmp_path):
    problem, method = mlp_problem("float32"), kind(S=3, K=3)
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
    assert 0 < np.abs(wide.x - history.x).max() < 1e-4


@both_types
def test_a_resumed_run_has_the_same_bits_and_the_same_model(dtype, tmp_path):
    method = fp.SCAFFOLD(S=3, K=3, eta_l=0.1)
    assert_resumes(mlp_problem(dtype), method, tmp_path, rounds=12)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    other = fp.TorchProblem(model, F.cross_entropy, rows(SIZES), dtype=dtype)
    options = fp.RunOptions(resume=True, x0=mlp_problem(dtype).x0)
    with pytest.raises(fp.InputError, match=r"problem\.model_digest was"):
        fp.simulate(other, method, rounds=15, seed=0, out=tmp_path, options=options)


def test_pickled_and_scaled_problems():
    problem, method = mlp_problem("float32"), fp.SCAFFOLD(S=4, K=2, eta_l=0.1)
    copied = pickle.loads(pickle.dumps(problem))
    first, second = (fp.simulate(p, method, rounds=3, seed=0) for p in (problem, copied))
    assert second.same(first)
    assert copied.describe() == problem.describe()
    problem = mlp_problem()
    double, x = problem.rescale(2.0), problem.x0
    np.testing.assert_allclose(double.grad(x), 2 * problem.grad(x), rtol=1e-14)
    np.testing.assert_allclose(all_gradients(double, x), 2 * all_gradients(problem, x), rtol=1e-14)


def test_description_names_objective_and_model():
    problem = mlp_problem(metrics=["accuracy"], model_name="small network")
    about = problem.describe()
    assert about["objective"] == "torch model small network"
    assert mlp_problem().describe()["objective"] == "torch model Sequential"
    assert about["metrics"] == {"accuracy": True}
    assert problem.name == fp.TorchProblem.name == "torch model"


def test_directions_of_tiny_local_steps_keep_their_digits():
    """X - y_K has no digits where a step is smaller than the last digit of x."""
    problem, clients = mlp_problem("float32"), np.arange(8)
    x = problem.x0 + np.float32(1.0)
    found = problem.oracle(clients, RoundDraws(0, 0)).local_sgd(x, K=3, eta=1e-9, b=1)
    oracle = problem.oracle(clients, RoundDraws(0, 0))
    expected = sum(oracle.grad(x, oracle.batch(1)) for _ in range(3)) / 3
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.abs(expected).max() > 0.01
