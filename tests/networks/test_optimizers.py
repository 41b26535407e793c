"""Compare client optimisers with torch.optim, and networks in a batch with a client alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import SIZES, mlp_problem, network, rows
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.optimizers import SGD, Adam, AdamW, Momentum
from fedpage.core.random import RoundDraws
from fedpage.methods.messages import Model

CASES = {
    "sgd": (SGD(weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": (Momentum(0.9), torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (
        Momentum(0.8, nesterov=True, weight_decay=0.05), torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
    ),
    "clip": (Momentum(0.9, clip=0.1), torch.optim.SGD, {"momentum": 0.9}),
    "adam": (Adam(), torch.optim.Adam, {}),
    "adam-decay": (
        Adam(0.5, 0.9, 1e-4, weight_decay=0.1, clip=0.2), torch.optim.Adam,
        {"betas": (0.5, 0.9), "eps": 1e-4, "weight_decay": 0.1},
    ),
    "adamw": (AdamW(weight_decay=0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
}  # fmt: skip


def train_with_torch(client, make, options, clip, K, eta):
    """Take K full-batch steps of a client as users of PyTorch write them."""
    model = network().double()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = make(model.parameters(), lr=eta, **options)
    inputs, targets = (torch.tensor(part) for part in rows(SIZES)[client])
    for _ in range(K):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs.double()), targets).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    moved = torch.nn.utils.parameters_to_vector(model.parameters()).detach() - start
    return moved.numpy()


@pytest.mark.parametrize("name", CASES)
def test_local_steps_are_those_of_torch(name):
    optimizer, make, options = CASES[name]
    problem = mlp_problem()
    method = fp.LocalTraining(S=1, K=7, eta_l=0.05, b=None, client_optimizer=optimizer)
    oracle = problem.oracle(np.arange(problem.N), RoundDraws(0, 0))
    reply, _ = method.client(Model(problem.x0), oracle, None)
    for client in (0, 3):
        wanted = train_with_torch(client, make, options, optimizer.clip, 7, 0.05)
        np.testing.assert_allclose(reply.dy[client], wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_client_alone_equals_its_row(name, dtype):
    problem = mlp_problem(dtype=dtype, deterministic=True)
    method = fp.LocalTraining(S=1, K=4, eta_l=0.05, b=3, client_optimizer=CASES[name][0])
    message = Model(problem.x0)
    everyone, draws = np.arange(problem.N), RoundDraws(1, 2)
    together, _ = method.client(message, problem.oracle(everyone, draws), None)
    assert together.dy.dtype == problem.x0.dtype
    for i in everyone:
        alone, _ = method.client(message, problem.oracle(np.array([i]), draws), None)
        assert alone.dy[0].tobytes() == together.dy[i].tobytes()


@pytest.mark.parametrize("optimizer", [None, Momentum(0.9, clip=0.5), Adam()], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_local_epochs_of_one_client_equal_its_row(optimizer, dtype):
    problem = mlp_problem(dtype=dtype, deterministic=True)
    method = fp.LocalTraining(S=1, epochs=2, eta_l=0.05, b=4, client_optimizer=optimizer)
    message = Model(problem.x0)
    everyone, draws = np.arange(problem.N), RoundDraws(1, 2)
    oracle = problem.oracle(everyone, draws)
    together, _ = method.client(message, oracle, None)
    assert oracle.gradients == 2 * problem.sizes.sum()
    for i in everyone:
        alone, _ = method.client(message, problem.oracle(np.array([i]), draws), None)
        assert alone.dy[0].tobytes() == together.dy[i].tobytes()


def test_local_epochs_are_those_of_a_loop_over_batches():
    problem = mlp_problem()
    method = fp.LocalTraining(S=1, epochs=2, eta_l=0.05, b=4, client_optimizer=Momentum(0.9))
    draws = RoundDraws(1, 2)
    reply, _ = method.client(Model(problem.x0), problem.oracle(np.arange(problem.N), draws), None)
    for client in range(problem.N):
        oracle = problem.oracle(np.array([client]), draws)
        model = network().double()
        start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        inputs, targets = (torch.tensor(part) for part in rows(SIZES)[client])
        for step in range(int(oracle.epoch_steps(4, 2)[0])):
            chosen, sizes, _ = oracle.epoch_batch(4, 2, step)
            own = slice(None) if chosen is None else chosen[0, : sizes[0]].astype(np.int64)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs.double()[own]), targets[own]).backward()
            optimizer.step()
        moved = torch.nn.utils.parameters_to_vector(model.parameters()).detach() - start
        np.testing.assert_allclose(reply.dy[client], moved.numpy(), rtol=0, atol=1e-10)


def test_schedules_epochs_early_stopping_best_model_and_tuning_of_a_network(tmp_path):
    """What training has works for networks together, and a resume has the same bits."""
    held_out = rows([40], seed=9)[0]
    problem = mlp_problem(metrics=["accuracy"], held_out=held_out)
    eta = fp.schedules.Warmup(2, fp.schedules.Cosine(0.2, rounds=20))
    method = fp.LocalTraining(
        S=4, epochs=1, b=4, eta_l=eta, client_optimizer=Momentum(0.9, clip=1.0)
    )
    best = fp.Best(problem, tmp_path / "best.npz", "held_out_accuracy")
    stop = fp.Stop(patience=3, monitor="held_out_accuracy")
    arguments = {"rounds": 60, "seed": 0, "record_every": 1, "stop": stop}
    history = fp.simulate(problem, method, callbacks=[best], **arguments)
    assert history.stop_reason == "no more progress"
    assert history.last("round") < 60
    model = network().double()
    fp.load_model(tmp_path / "best.npz", model)
    found = problem.evaluate_on(problem.from_module(model), held_out)
    assert found["accuracy"] == history.best("held_out_accuracy")
    out = tmp_path / "run"
    first = fp.simulate(problem, method, rounds=3, seed=0, record_every=1, out=out)
    options = fp.RunOptions(resume=True)
    whole = fp.simulate(problem, method, rounds=8, seed=0, record_every=1)
    longer = fp.simulate(
        problem, method, rounds=8, seed=0, record_every=1, out=out, options=options
    )
    assert first.last("round") == 3
    assert longer.same(whole)
    tuned = fp.tune(
        problem, method, target="held_out_accuracy:0.5", search={"step": [1e-6, 0.1]},
        fixed_grid=True, rounds=10, record_every=1, seeds=1, held_out_seeds=1,
    )  # fmt: skip
    assert isinstance(tuned.method.eta_l, fp.schedules.Warmup)
    assert tuned.method.eta_l.peak == pytest.approx(0.1, rel=1e-3)
