"""Check products of bfloat16: parameters, outputs, losses, gradients and messages are float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import SIZES, convolution, image_problem, mlp_problem, network, rows
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws

METHOD = fp.FedAvg(S=3, K=3, eta_l=0.1, b=3)


def autocast_problem(**options):
    return mlp_problem("float32", autocast="bfloat16", **options)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("make", [network, convolution])
def test_a_gradient_is_that_of_torch_under_autocast(make, deterministic):
    data = rows(SIZES, (6,) if make is network else (1, 4, 4))
    problem = fp.TorchProblem(
        make(), F.cross_entropy, data, autocast="bfloat16", deterministic=deterministic
    )
    assert problem.mode == ("sequential" if deterministic else "batched")
    oracle = problem.oracle(np.arange(8), RoundDraws(0, 0))
    found = oracle.grad(problem.x0, oracle.batch(None))
    exact = fp.TorchProblem(make(), F.cross_entropy, data).oracle(np.arange(8), RoundDraws(0, 0))
    full = exact.grad(problem.x0, exact.batch(None))
    model = make()
    for client in (3, 7):
        inputs, targets = map(torch.tensor, data[client])
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs)
        loss = F.cross_entropy(outputs.float(), targets)
        parts = torch.autograd.grad(loss, list(model.parameters()))
        expected = torch.cat([part.reshape(-1) for part in parts]).numpy()
        # vmap sums in another order, so single products are rounded otherwise.
        tolerance = 1e-6 if deterministic else 0.01
        np.testing.assert_allclose(found[client], expected, rtol=0, atol=tolerance)
        assert np.abs(full[client] - expected).max() > 1e-5


def test_vectors_outputs_and_losses_are_float32():
    problem = autocast_problem(metrics=["accuracy"])
    history = fp.simulate(problem, METHOD, rounds=8, seed=0)
    exact = fp.simulate(mlp_problem("float32"), METHOD, rounds=8, seed=0)
    assert history.x.dtype == np.float32
    assert problem.predict(problem.x0, rows(SIZES)[0][0]).dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in problem.to_module(history.x).parameters())
    assert history.last("loss") == pytest.approx(exact.last("loss"), rel=0.02)
    assert history.last("loss") != exact.last("loss")
    assert history.last("bytes_up") == exact.last("bytes_up")


def test_deterministic_bits_do_not_depend_on_chunks():
    problem = image_problem(deterministic=True, autocast="bfloat16")
    first = fp.simulate(problem, METHOD, rounds=3, seed=0)
    chunks = fp.RunOptions(threads=2, chunk=1)
    assert fp.simulate(problem, METHOD, rounds=3, seed=0, options=chunks).same(first)


@pytest.mark.parametrize("deterministic", [False, True])
def test_statistics_of_batches_are_float32(deterministic):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    data = rows([16, 16])
    problem = fp.TorchProblem(
        model, F.cross_entropy, data,
        batch_norm="aggregated", autocast=torch.bfloat16, deterministic=deterministic,
    )  # fmt: skip
    oracle = problem.oracle(np.arange(2), RoundDraws(0, 0))
    found = oracle.grad(problem.x0, oracle.batch(None))
    for client, (inputs, _) in enumerate(data):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model[0](torch.tensor(inputs))
        assert hidden.dtype == torch.bfloat16
        # vmap adds the bias after the product, which rounds once more.
        tolerance = 1e-6 if deterministic else 5e-3
        expected = torch.cat([-hidden.float().mean(0), 1 - hidden.float().var(0)]).detach()
        np.testing.assert_allclose(found[client, -10:], expected, rtol=0, atol=tolerance)
    history = fp.simulate(problem, fp.FedAvg(S=2, K=3, eta_l=0.1, b=8), rounds=3, seed=0)
    assert history.last("loss") < history.rows[0]["loss"]


def test_descriptions_name_it():
    assert autocast_problem().describe()["autocast"] == "bfloat16"
    assert "autocast" not in mlp_problem().describe()
    assert autocast_problem().start_digest != mlp_problem("float32").start_digest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"autocast": "float16"}, "would need scaled losses"),
        ({"autocast": "int8"}, "must be 'bfloat16' or None, not 'int8'"),
        ({"autocast": "bfloat16", "dtype": "float64"}, "give dtype='float32'"),
    ],
)
def test_refused_types(options, message):
    with pytest.raises(fp.InputError, match=message) as error:
        mlp_problem(**{"dtype": "float32", **options})
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_compiled_products(traced):
    method = fp.FedAvg(S=3, K=2, eta_l=0.1, b=8)
    runs = [
        fp.simulate(autocast_problem(compile=value), method, rounds=2, seed=0).x
        for value in (False, True)
    ]
    np.testing.assert_allclose(runs[0], runs[1], rtol=0, atol=0.02)
