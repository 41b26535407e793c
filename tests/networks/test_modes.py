"""Check that a network has the same run in every mode, for any chunks, and after a resume."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nets import assert_resumes, image_problem, mlp_problem, network, rows, run_chunks
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws

SIZES = [6, 10, 4, 7]
"""Sizes of clients, none of which has a minibatch of one row at the end of an epoch."""


def layers(*inner: Callable[[], nn.Module], **given: Any) -> Callable[..., fp.TorchProblem]:
    """Return a function that makes a problem whose model has these layers in its middle."""

    def make(**options: Any) -> fp.TorchProblem:
        torch.manual_seed(0)
        made = [layer() for layer in inner]
        model = nn.Sequential(nn.Linear(6, 5), *made, nn.Tanh(), nn.Linear(5, 3)).double()
        return fp.TorchProblem(model, F.cross_entropy, rows(SIZES), **given, **options)

    return make


NORM, DROPOUT = lambda: nn.BatchNorm1d(5), lambda: nn.Dropout(0.4)
PROBLEMS: dict[str, Callable[..., fp.TorchProblem]] = {
    "plain": mlp_problem,
    "images": lambda **options: image_problem("float64", **options),
    "aggregated": layers(NORM, batch_norm="aggregated"),
    "silobn": layers(NORM, batch_norm="silobn"),
    "dropout": layers(DROPOUT),
    "both": layers(NORM, DROPOUT, batch_norm="aggregated"),
}
METHODS = [
    fp.FedAvg(S=3, K=3, eta_l=0.1, b=3),
    fp.LocalTraining(S=3, K=None, epochs=2, eta_l=0.1, b=4, client_optimizer="momentum:0.5"),
    fp.FedPAGE(S=2, K=3, eta_g=0.1, eta_l=0.1, p=0.3, b1=4, b2=3, b3=4),
    fp.PAGE(S=2, eta_g=0.1, p=0.3, b1=None, b3=4),
    fp.SCAFFOLD(S=2, K=2, eta_l=0.1, b=3),
    fp.Mime(S=2, K=2, eta_l=0.1, b=3),
]


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *((kind, method) for kind in ("plain", "both") for method in METHODS),
        *((kind, METHODS[2]) for kind in ("images", "aggregated", "silobn", "dropout")),
    ],
    ids=str,
)
def test_the_modes_agree_to_rounding_and_each_repeats_its_bits(kind, method):
    """With dropout they draw the same masks, and other seeds draw others."""
    fast, slow, exact = (
        PROBLEMS[kind](**options) for options in ({}, {"batched": False}, {"deterministic": True})
    )
    assert [p.mode for p in (fast, slow, exact)] == ["batched", "sequential", "sequential"]
    found = [fp.simulate(problem, method, rounds=4, seed=4) for problem in (fast, fast, slow)]
    assert found[0].same(found[1])
    expected = run_chunks(exact, method)
    for run in found:
        np.testing.assert_allclose(run.x, expected.x, rtol=0, atol=1e-11)
        np.testing.assert_allclose(run["grad_norm"], expected["grad_norm"], rtol=1e-10)
    other = fp.simulate(fast, method, rounds=4, seed=5)
    assert np.abs(other.x - expected.x).max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"batched": False}], ids=str)
@pytest.mark.parametrize("kind", ["silobn", "dropout"])
def test_products_have_the_masks_and_the_statistics_of_their_gradients(kind, options):
    problem, h = PROBLEMS[kind](**options), 1e-6
    oracle, v = problem.oracle(np.arange(4), RoundDraws(1, 2)), np.ones(problem.d)
    batch = oracle.batch(4)
    slopes = [oracle.grad(problem.x0 + sign * h * v, batch) for sign in (1, -1)]
    products = oracle.hvp(problem.x0, v, batch)
    np.testing.assert_allclose(products, (slopes[0] - slopes[1]) / (2 * h), atol=2e-7)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_resumed_runs_have_the_same_bits(kind, tmp_path):
    assert_resumes(PROBLEMS[kind](), METHODS[4], tmp_path)


def nine_clients(**options):
    """Compiled steps pad nine clients to ten."""
    data = rows([9, 12, 10, 11, 15, 9, 13, 10, 12])
    return fp.TorchProblem(network(), F.cross_entropy, data, dtype="float64", **options)


def bfloat16(**options):
    return mlp_problem("float32", autocast="bfloat16", **options)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "tolerance"), [(nine_clients, 1e-12), (bfloat16, 0.02)])
def test_compiled_steps_agree(make, tolerance, traced):
    problems = [make(), make(compile=True)]
    method = fp.SCAFFOLD(S=8, K=7, eta_l=0.1, b=4)
    eager, compiled = (fp.simulate(problem, method, rounds=2, seed=0).x for problem in problems)
    np.testing.assert_allclose(compiled, eager, rtol=0, atol=tolerance)
