"""A torch model on Flower's nodes, over a Grid whose messages cross the wire's bytes: the simulator's bits."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fedpage as fp
from fedpage.flower.node import own_problem

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedpage[torch]'")
APP = Path(__file__).resolve().parents[2] / "examples" / "flower_digits"
NODES = """
import torch
from torch import nn
import fedpage as fp

def rows(client):
    torch.manual_seed(client)
    return torch.randn(3 + 4 * client, 5), torch.randint(0, 3, (3 + 4 * client,))

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

def problem(client, clients):
    mine = rows(90) if client is None else rows(client)
    return fp.TorchProblem(network(), nn.CrossEntropyLoss(), [mine], metrics=["accuracy"])

def whole(clients, **options):
    everyone = [rows(i) for i in range(clients)]
    return fp.TorchProblem(network(), nn.CrossEntropyLoss(), everyone, **options)

def two(client, clients):
    return whole(2)

def wider(client, clients):
    if client is None:
        return problem(client, clients)
    torch.manual_seed(0)
    return fp.TorchProblem(nn.Linear(5, 3), nn.CrossEntropyLoss(), [rows(client)])

def elsewhere(client, clients):
    made = network()
    if client is None:
        made[0].bias.data[0] += 1
    return fp.TorchProblem(made, nn.CrossEntropyLoss(), [rows(client or 90)])

def broken(client, clients):
    return [][client]
"""


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """The module that the app has."""
    (tmp_path / "nodes_of_mine.py").write_text(NODES)
    monkeypatch.syspath_prepend(tmp_path)
    own_problem.cache_clear()
    yield __import__("nodes_of_mine")
    sys.modules.pop("nodes_of_mine")
    own_problem.cache_clear()


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize(
    ("method", "hyper"),
    [
        ("fedpage", "S=2 K=3 eta_g=0.3 p=0.4 b3=4"),
        ("scaffold", "S=2 K=3 b=4"),
        ("fedavg", "S=3 K=2"),
    ],
)
def test_the_same_bits_as_in_the_simulator(
    federate, simulated, nodes, method, hyper, weights, tmp_path
):
    settings = {"objective": "nodes_of_mine:problem", "clients": 4, "method": method, "hyper": hyper, "rounds": 6,
                "weights": weights}  # fmt: skip
    found = federate(**settings).history
    whole = simulated(problem=nodes.whole(4, weights=weights), **settings)
    assert found.x.dtype == np.float32
    assert found.x.tobytes() == whole.x.tobytes()
    for column in whole.columns:
        if column != "seconds":
            np.testing.assert_array_equal(found[column], whole[column])
    server = nodes.problem(None, 4)
    assert found.last("held_out_accuracy") == server.evaluate(found.x)["accuracy"]
    assert found.last("held_out_loss") == server.evaluate(found.x)["loss"]
    assert found["floats_up"][-1] * 4 == found["bytes_up"][-1]


def test_the_example_is_such_a_problem(monkeypatch):
    monkeypatch.syspath_prepend(APP)
    own_problem.cache_clear()
    server, node = own_problem("digits:problem", None, 4), own_problem("digits:problem", 2, 4)
    assert (server.d, node.d, server.N, node.N) == (830, 830, 1, 1)
    assert server.x0.tobytes() == node.x0.tobytes()
    assert server.sizes[0] == 360
    sys.modules.pop("digits")


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("nowhere:problem", "'nowhere:problem' cannot be imported"),
        ("nodes_of_mine:nothing", "cannot be imported"),
        ("nodes_of_mine:rows", "takes 1 positional"),
        ("nodes_of_mine:two", "it has 2 clients"),
        ("nodes_of_mine:wider", "another number on a node"),
        (
            "nodes_of_mine:elsewhere",
            "is another model on a node than on the server, or starts elsewhere",
        ),
        ("nodes_of_mine:broken", "nodes_of_mine:broken failed: IndexError"),
    ],
)
def test_problems_that_are_none(federate, nodes, objective, words):
    with pytest.raises((fp.InputError, TypeError), match=words):
        federate(objective=objective, clients=3)
