"""Laws of client optimisers and of local epochs: formulas, rows, and a client alone."""

import dataclasses
import math

import numpy as np
import pytest
from support import Unfused, quadratic, refusal, softmax, uneven

import fedpage as fp
from fedpage.core.optimizers import SGD, Adam, AdamW, Momentum, clip_rows, row_norms
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch
from fedpage.engine.simulate import Simulation
from fedpage.methods.messages import Model

OPTIMIZERS = [
    SGD(weight_decay=0.1), SGD(clip=0.05), Momentum(0.9), Momentum(0.8, nesterov=True),
    Momentum(0.5, weight_decay=0.2, clip=0.1), Adam(), Adam(0.5, 0.9, 1e-3, weight_decay=0.1),
    AdamW(weight_decay=0.1, clip=0.1),
]  # fmt: skip
SOME = [None, OPTIMIZERS[4], OPTIMIZERS[7]]
METHODS = [
    "fedavg-training", "fedprox", "fedavgm", "fednesterov", "fedadagrad", "fedadam", "fedyogi"
]  # fmt: skip
PROBLEMS = {
    "logistic": lambda: uneven("logistic-l2", weights="size"),
    "softmax": lambda: softmax("softmax-l2"),
    "quadratic": lambda: quadratic(noise=1.0),
    "unfused": lambda: Unfused(uneven("logistic")),
}

# Optimisers


def steps_of_one(optimizer, gradient, start, K, eta, mu=0.0):
    """Take the steps of one client with plain numbers, one coordinate after the other."""
    y, m, v = list(start), [0.0] * len(start), [0.0] * len(start)
    for k in range(1, K + 1):
        g = [float(each) for each in gradient(np.array(y))]
        g = [a + mu * (b - c) for a, b, c in zip(g, y, start, strict=True)]
        if optimizer.clip is not None:
            length = math.sqrt(math.fsum(each * each for each in g))
            factor = min(1.0, optimizer.clip / (length + 1e-6))
            g = [factor * each for each in g]
        w = optimizer.weight_decay
        if not isinstance(optimizer, AdamW):
            g, w = [a + w * b for a, b in zip(g, y, strict=True)], 0.0
        for j, each in enumerate(g):
            u = each
            if isinstance(optimizer, Momentum):
                m[j] = optimizer.beta * m[j] + each
                u = each + optimizer.beta * m[j] if optimizer.nesterov else m[j]
            if isinstance(optimizer, Adam):
                m[j] = optimizer.beta1 * m[j] + (1 - optimizer.beta1) * each
                v[j] = optimizer.beta2 * v[j] + (1 - optimizer.beta2) * each * each
                top = m[j] / (1 - optimizer.beta1**k)
                u = top / (math.sqrt(v[j] / (1 - optimizer.beta2**k)) + optimizer.eps)
            y[j] -= eta * (u + w * y[j])
    return np.array(y) - np.array(start)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_the_move_of_a_client_follows_the_formulas(optimizer, mu):
    problem, x = quadratic(), np.array([-1.0, 0.5, 1.0, 2.0])
    method = fp.FedProx(S=8, K=5, eta_l=0.03, b=None, mu=mu, client_optimizer=optimizer)
    oracle = problem.oracle(np.arange(8), RoundDraws(0, 0))
    reply, _ = method.client(Model(x), oracle, None)
    for i in range(8):
        A, b = problem.A[i], problem.b[i].mean(axis=0)
        wanted = steps_of_one(optimizer, lambda y, A=A, b=b: A @ y - b, x, 5, 0.03, mu)
        np.testing.assert_allclose(reply.dy[i], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("optimizer", [SGD(), Momentum(0.0), Momentum(0.0, nesterov=True)], ids=str)
def test_no_momentum_no_decay_no_clipping_is_plain_local_sgd(name, optimizer):
    problem = uneven("logistic-nonconvex")
    plain = fp.METHODS[name](S=5, K=4, eta_l=0.1)
    other = dataclasses.replace(plain, client_optimizer=optimizer)
    first, second = (fp.simulate(problem, method, rounds=8, seed=3) for method in (plain, other))
    np.testing.assert_allclose(second.x, first.x, rtol=0, atol=1e-12)
    assert first.last("gradients") == second.last("gradients")


def test_moments_begin_at_zero_in_every_round():
    """The second round is a first one from another model."""
    problem = quadratic()
    method = fp.LocalTraining(S=8, K=3, eta_l=0.02, b=None, client_optimizer=Momentum(0.9))
    run = Simulation(problem, method, seed=0)
    run.step()
    again = Simulation(problem, method, seed=0, options=fp.RunOptions(x0=run.x))
    run.step()
    again.step()
    assert run.x.tobytes() == again.x.tobytes()


def test_norms_and_clipping():
    rng = np.random.default_rng(0)
    for d in (1, 2, 3, 7, 64, 1001):
        rows = rng.normal(size=(5, d))
        wanted = np.linalg.norm(rows, axis=1)[:, None]
        np.testing.assert_allclose(row_norms(rows), wanted, rtol=1e-14)
        assert row_norms(rows[2:3]).tobytes() == row_norms(rows)[2:3].tobytes()
    clipped = clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    np.testing.assert_allclose(clipped, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)
    assert clipped[1].tolist() == [0.3, 0.4]


# Epochs: every row once in a pass, and only what is computed is counted


def passes(problem, b, epochs, draws):
    """Return the batches of every client, step by step, as lists of row numbers."""
    oracle = problem.oracle(np.arange(problem.N), draws)
    steps = oracle.epoch_steps(b, epochs)
    found: list[list[list[int]]] = [[] for _ in range(problem.N)]
    for step in range(int(steps.max())):
        rows, sizes, _ = oracle.epoch_batch(b, epochs, step)
        for i in range(problem.N):
            if sizes[i]:
                found[i].append(rows[i, : sizes[i]].tolist())
            assert bool(sizes[i]) == (step < steps[i])
    return found


def test_every_pass_has_every_row_once_in_an_order_of_its_own():
    problem, b, epochs = uneven("logistic"), 4, 3
    assert len({*problem.sizes.tolist()}) > 4
    found = passes(problem, b, epochs, RoundDraws(1, 5))
    for i, M in enumerate(problem.sizes.tolist()):
        batches = -(-M // b)
        assert [len(batch) for batch in found[i]] == (
            [min(b, M - b * j) for j in range(batches)] * epochs
        )
        rows = [row for batch in found[i] for row in batch]
        orders = [rows[M * e : M * (e + 1)] for e in range(epochs)]
        assert all(sorted(order) == list(range(M)) for order in orders)
        if M > 10:
            assert orders[0] != orders[1] != orders[2] != list(range(M)) != orders[0]
    large = int(problem.sizes.argmax())
    for draws in (RoundDraws(1, 6), RoundDraws(2, 5)):  # another round, and another seed
        assert passes(problem, b, epochs, draws)[large] != found[large]
    two = RoundDraws(0, 0).row_orders(np.arange(2), np.full(2, 50), np.zeros(2, np.int64))
    assert two[0].tolist() != two[1].tolist()  # of two clients


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_passes_of_one_batch_are_as_many_steps_over_all_rows(name, epochs):
    """A quadratic has no compiled local steps, whose sums may be rounded otherwise."""
    for problem in (uneven("logistic-nonconvex"), quadratic(noise=1.0)):
        steps = fp.METHODS[name](S=5, K=epochs, eta_l=0.1, b=None)
        for b in (None, int(problem.sizes.max())):
            other = fp.METHODS[name](S=5, epochs=epochs, eta_l=0.1, b=b)
            runs = [fp.simulate(problem, each, rounds=6, seed=3) for each in (steps, other)]
            np.testing.assert_allclose(runs[1].x, runs[0].x, rtol=0, atol=1e-12)
            assert runs[0].last("gradients") == runs[1].last("gradients")
    if epochs == 1 and name == "fedavg-training":
        assert runs[0].x.tobytes() == runs[1].x.tobytes()


@pytest.mark.parametrize("kind", ["logistic", "softmax", "quadratic"])
@pytest.mark.parametrize("optimizer", SOME, ids=str)
def test_a_client_takes_the_steps_of_its_batches(kind, optimizer):
    """Compare with steps over explicit rows of one client, without padding."""
    problem, b, epochs, eta = PROBLEMS[kind](), 2, 2, 0.05
    method = fp.LocalTraining(epochs=epochs, b=b, eta_l=eta, client_optimizer=optimizer)
    x, draws = np.linspace(-1, 1, problem.d), RoundDraws(3, 1)
    oracle = problem.oracle(np.arange(problem.N), draws)
    reply, _ = method.client(Model(x), oracle, None)
    batches = passes(problem, b, epochs, draws)
    for i in range(problem.N):
        single, y, moments = problem.oracle(np.array([i]), draws), x[None, :], ()
        for k, rows in enumerate(batches[i]):
            batch = Batch(np.array([rows], dtype=np.uint32), np.array([len(rows)]))
            u = single.grad(y, batch)
            if optimizer is not None:
                u, moments = optimizer.direction(u, y, moments, k + 1)
            y = y - eta * u
        np.testing.assert_allclose(reply.dy[i], (y - x)[0], rtol=0, atol=1e-12)
    assert oracle.gradients == epochs * problem.sizes.sum()
    assert oracle.evaluations == sum(map(len, batches))
    assert oracle.count_each().tolist() == (epochs * problem.sizes).tolist()


# Both: a client alone, threads, chunks and a resume


@pytest.mark.parametrize(
    ("kind", "length"),
    [(kind, length) for kind in PROBLEMS for length in ({"K": 4}, {"epochs": 2})
     if (kind, *length) != ("unfused", "epochs")],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("optimizer", [None, *OPTIMIZERS], ids=str)
def test_one_client_alone_equals_its_row(kind, length, optimizer):
    problem, draws = PROBLEMS[kind](), RoundDraws(3, 1)
    method = fp.FedProx(**length, b=3, eta_l=0.05, client_optimizer=optimizer)
    message = Model(np.linspace(-1, 1, problem.d))
    together, _ = method.client(message, problem.oracle(np.arange(problem.N), draws), None)
    for i in range(problem.N):
        alone, _ = method.client(message, problem.oracle(np.array([i]), draws), None)
        assert alone.dy[0].tobytes() == together.dy[i].tobytes()


def test_threads_chunks_and_a_resume_do_not_change_the_bits():
    problem = uneven("logistic")
    method = fp.LocalTraining(S=7, epochs=2, b=3, eta_l=0.1, client_optimizer=Momentum(0.9))
    runs = [
        Simulation(problem, method, seed=1, options=fp.RunOptions(**options))
        for options in ({}, {"chunk": 2}, {"chunk": 3, "threads": 3}, {})
    ]
    for _ in range(4):
        for run in runs[:3]:
            run.step()
    runs[3].restore(runs[0].snapshot(), "test")
    for run in runs:
        run.step()
    assert len({run.x.tobytes() for run in runs}) == 1


def test_what_is_refused_and_what_a_change_keeps():
    for kind, options, words in (
        (fp.LocalTraining, {"K": 5, "epochs": 2}, "give K or epochs, not both"),
        (fp.LocalTraining, {"epochs": 0}, "epochs must be a whole number"),
        (fp.FedAvg, {"K": None}, "K must be a whole number"),
    ):
        assert words in refusal(kind, **options)
    method = fp.LocalTraining(epochs=2, eta_l=0.1)
    assert (method.K, dataclasses.replace(method, S=3).epochs) == (None, 2)
    assert method.with_step(0.5).effective_step == pytest.approx(0.5)
    method = dataclasses.replace(method, S=3)
    text = refusal(fp.simulate, Unfused(uneven()), method, rounds=1, seed=0)
    assert "PlainOracle cannot pass over its clients' rows" in text
