"""Compare client optimisers with torch.optim, and networks in a batch with a client alone."""

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


def train_with_torch(client, make, options, clip, batches):
    """Take steps of a client over some of its rows as users of PyTorch write them."""
    model = network().double()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = make(model.parameters(), lr=0.05, **options)
    inputs, targets = (torch.tensor(part) for part in rows(SIZES)[client])
    for own in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs.double()[own]), targets[own]).backward()
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
        wanted = train_with_torch(client, make, options, optimizer.clip, [slice(None)] * 7)
        np.testing.assert_allclose(reply.dy[client], wanted, rtol=0, atol=1e-10)


STEPS = {**{name: case[0] for name, case in CASES.items()}, "none": None}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("length", [{"K": 4, "b": 3}, {"epochs": 2, "b": 4}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_client_alone_equals_its_row(name, length, dtype):
    problem = mlp_problem(dtype=dtype, deterministic=True)
    method = fp.LocalTraining(S=1, **{"K": None} | length, eta_l=0.05, client_optimizer=STEPS[name])
    message, everyone, draws = Model(problem.x0), np.arange(problem.N), RoundDraws(1, 2)
    oracle = problem.oracle(everyone, draws)
    together, _ = method.client(message, oracle, None)
    assert together.dy.dtype == problem.x0.dtype
    assert "K" in length or oracle.gradients == 2 * problem.sizes.sum()
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
        batches = []
        for step in range(int(oracle.epoch_steps(4, 2)[0])):
            chosen, sizes, _ = oracle.epoch_batch(4, 2, step)
            whole = chosen is None
            batches.append(slice(None) if whole else chosen[0, : sizes[0]].astype(np.int64))
        moved = train_with_torch(client, torch.optim.SGD, {"momentum": 0.9}, None, batches)
        np.testing.assert_allclose(reply.dy[client], moved, rtol=0, atol=1e-10)
