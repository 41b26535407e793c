"""Small networks, rows for clients of very different sizes, and loops of plain PyTorch."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.random import RoundDraws

SIZES = [1, 3, 8, 9, 20, 5, 17, 12]


def rows(sizes, shape=(6,), classes=3, seed=0):
    """Return (inputs, targets) for clients of these sizes, each with its own labels and mean."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(i % 3, 1.0, (m, *shape)).astype(np.float32),
            (rng.integers(0, 2, m) + i) % classes,
        )
        for i, m in enumerate(sizes)
    ]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def convolution(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2),
        nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def mlp_problem(dtype="float64", **options):
    return fp.TorchProblem(network(), F.cross_entropy, rows(SIZES), dtype=dtype, **options)


def image_problem(dtype="float32", **options):
    data = rows(SIZES, (1, 4, 4))
    return fp.TorchProblem(convolution(), F.cross_entropy, data, dtype=dtype, **options)


def all_gradients(problem, x):
    """Return the gradient of every client at x (d,), or at its own row of x (N, d)."""
    oracle = problem.oracle(np.arange(problem.N), RoundDraws(0, 0))
    return oracle.grad(x, oracle.batch(None))


def plain_gradient(loss, model):
    """Return the gradient of a loss by autograd, as one array."""
    parts = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
    return torch.cat([part.reshape(-1) for part in parts]).numpy()


def run_chunks(problem, method, rounds=4, **given):
    """Run a problem in deterministic mode, and check that chunks and threads change no bit."""

    def run(**chunks):
        options = fp.RunOptions(evaluate="per_client", **chunks)
        return fp.simulate(problem, method, rounds=rounds, options=options, **{"seed": 4} | given)

    first = run()
    for chunks in ({"chunk": 1}, {"chunk": 3, "threads": 2}):
        assert run(**chunks).same(first)
    return first


def assert_resumes(problem, method, out, rounds=6):
    """Check that a run that is continued has the bits of a run without a break."""
    whole = fp.simulate(problem, method, rounds=rounds, seed=0)
    fp.simulate(problem, method, rounds=rounds // 2, seed=0, out=out)
    options = fp.RunOptions(resume=True)
    resumed = fp.simulate(problem, method, rounds=rounds, seed=0, out=out, options=options)
    assert resumed.same(whole)


def refuse(message, *arguments, **options):
    """Check that a problem is refused in one line with this text."""
    import pytest

    with pytest.raises(fp.InputError, match=message) as error:
        fp.TorchProblem(*arguments, **options)
    assert "\n" not in str(error.value)
