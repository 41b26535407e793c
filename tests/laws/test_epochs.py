"""Laws of local epochs: every row once in a pass, and what is computed is counted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support import Unfused, quadratic, softmax, uneven

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.core.optimizers import Adam, Momentum
from fedpage.core.random import RoundDraws
from fedpage.core.types import Batch
from fedpage.engine.simulate import Simulation
from fedpage.methods.messages import Model

OPTIMIZERS = [None, Momentum(0.9, weight_decay=0.01, clip=0.3), Adam()]
METHODS = [
    "fedavg-training",
    "fedprox",
    "fedavgm",
    "fednesterov",
    "fedadagrad",
    "fedadam",
    "fedyogi",
]


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
    assert passes(problem, b, epochs, RoundDraws(1, 6))[large] != found[large]
    assert passes(problem, b, epochs, RoundDraws(2, 5))[large] != found[large]
    assert passes(problem, b, epochs, RoundDraws(1, 5)) == found


def test_clients_have_different_orders():
    orders = RoundDraws(0, 0).row_orders(np.arange(2), np.full(2, 50), np.zeros(2, np.int64))
    assert orders[0].tolist() != orders[1].tolist()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_passes_of_one_batch_are_as_many_steps_over_all_rows(name, epochs):
    problem = uneven("logistic-nonconvex")
    steps = fp.METHODS[name](S=5, K=epochs, eta_l=0.1, b=None)
    for b in (None, int(problem.sizes.max())):
        other = fp.METHODS[name](S=5, epochs=epochs, eta_l=0.1, b=b)
        first, second = (fp.simulate(problem, each, rounds=6, seed=3) for each in (steps, other))
        np.testing.assert_allclose(second.x, first.x, rtol=0, atol=1e-12)
        assert first.last("gradients") == second.last("gradients")


def test_one_pass_of_one_batch_is_one_step_bit_for_bit():
    """A quadratic has no compiled local steps, whose sums may round otherwise."""
    problem = quadratic(noise=1.0)
    step, single = (
        fp.LocalTraining(S=5, eta_l=0.1, b=None, **k) for k in ({"K": 1}, {"epochs": 1})
    )
    first, second = (fp.simulate(problem, each, rounds=6, seed=3) for each in (step, single))
    assert first.x.tobytes() == second.x.tobytes()
    assert first["gradients"].tolist() == second["gradients"].tolist()


PROBLEMS = {
    "logistic": lambda: uneven("logistic-l2", weights="size"),
    "softmax": lambda: softmax("softmax-l2"),
    "quadratic": lambda: quadratic(noise=1.0),
}


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
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


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_one_client_alone_equals_its_row(kind, optimizer):
    problem, draws = PROBLEMS[kind](), RoundDraws(3, 1)
    method = fp.FedProx(epochs=2, b=3, eta_l=0.05, client_optimizer=optimizer)
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
        for options in ({}, {"chunk": 2}, {"chunk": 3, "threads": 3})
    ]
    for _ in range(4):
        for run in runs:
            run.step()
    other = Simulation(problem, method, seed=1)
    other.restore(runs[0].snapshot(), "test")
    for run in (*runs, other):
        run.step()
        assert run.x.tobytes() == runs[0].x.tobytes() or run is runs[0]
    assert other.x.tobytes() == runs[1].x.tobytes() == runs[2].x.tobytes()


def test_what_is_refused_and_what_a_change_keeps():
    with pytest.raises(InputError, match="give K or epochs, not both"):
        fp.LocalTraining(K=5, epochs=2)
    with pytest.raises(InputError, match="epochs must be a whole number"):
        fp.LocalTraining(epochs=0)
    with pytest.raises(InputError, match="K must be a whole number"):
        fp.FedAvg(K=None)
    method = fp.LocalTraining(epochs=2, eta_l=0.1)
    assert method.K is None
    assert dataclasses.replace(method, S=3).epochs == 2
    assert method.with_step(0.5).effective_step == pytest.approx(0.5)
    with pytest.raises(InputError, match="PlainOracle cannot pass over its clients' rows"):
        fp.simulate(Unfused(uneven()), dataclasses.replace(method, S=3), rounds=1, seed=0)
