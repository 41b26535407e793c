"""Check products of bfloat16: parameters, outputs, losses, gradients and messages are float32."""

import numpy as np
import pytest
import torch
from nets import (
    SIZES,
    all_gradients,
    convolution,
    image_problem,
    mlp_problem,
    network,
    plain_gradient,
    rows,
    run_chunks,
)
from torch import nn
from torch.nn import functional as F

import fedpage as fp

METHOD = fp.FedAvg(S=3, K=3, eta_l=0.1, b=3)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("make", [network, convolution])
def test_a_gradient_is_that_of_torch_under_autocast(make, deterministic):
    data, options = rows(SIZES, (6,) if make is network else (1, 4, 4)), {"autocast": "bfloat16"}
    options["deterministic"] = deterministic
    problem = fp.TorchProblem(make(), F.cross_entropy, data, **options)
    assert problem.mode == ("sequential" if deterministic else "batched")
    found = all_gradients(problem, problem.x0)
    full = all_gradients(fp.TorchProblem(make(), F.cross_entropy, data), problem.x0)
    model = make()
    for client in (3, 7):
        inputs, targets = map(torch.tensor, data[client])
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs)
        expected = plain_gradient(F.cross_entropy(outputs.float(), targets), model)
        # vmap sums in another order, so single products are rounded otherwise.
        tolerance = 1e-6 if deterministic else 0.01
        np.testing.assert_allclose(found[client], expected, rtol=0, atol=tolerance)
        assert np.abs(full[client] - expected).max() > 1e-5


def test_vectors_outputs_losses_and_statistics_are_float32():
    problem = mlp_problem("float32", autocast="bfloat16", metrics=["accuracy"])
    history = fp.simulate(problem, METHOD, rounds=8, seed=0)
    exact = fp.simulate(mlp_problem("float32"), METHOD, rounds=8, seed=0)
    assert history.x.dtype == np.float32
    assert problem.predict(problem.x0, rows(SIZES)[0][0]).dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in problem.to_module(history.x).parameters())
    assert history.last("loss") == pytest.approx(exact.last("loss"), rel=0.02)
    assert history.last("loss") != exact.last("loss")
    assert history.last("bytes_up") == exact.last("bytes_up")
    assert problem.describe()["autocast"] == "bfloat16"
    assert problem.start_digest != mlp_problem("float32").start_digest
    run_chunks(image_problem(deterministic=True, autocast="bfloat16"), METHOD, rounds=3)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    options = {"batch_norm": "aggregated", "autocast": torch.bfloat16, "deterministic": True}
    problem = fp.TorchProblem(model, F.cross_entropy, rows([16]), **options)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model[0](torch.tensor(rows([16])[0][0]))
    expected = torch.cat([-hidden.float().mean(0), 1 - hidden.float().var(0)]).detach()
    found = all_gradients(problem, problem.x0)[0, -10:]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"autocast": "float16"}, "would need scaled losses"),
        ({"autocast": "int8"}, "must be 'bfloat16' or None, not 'int8'"),
        ({"autocast": "bfloat16", "dtype": "float64"}, "give dtype='float32'"),
    ],
)
def test_refused_types(options, message):
    with pytest.raises(fp.InputError, match=message):
        mlp_problem(**{"dtype": "float32", **options})
