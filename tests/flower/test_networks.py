"""A torch model on Flower nodes has the same bits as in the simulator."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import fedpage as fp
from fedpage.flower.node_data import load_own_problem
from fedpage.runs.spec import start_of

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedpage[torch]'")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "networks"))
from network_models import MODELS  # noqa: E402 - where torch is installed

APP = Path(__file__).resolve().parents[2] / "examples" / "flower_digits"
NODES = """
import os
import torch
from torch import nn
import fedpage as fp
from network_models import MODELS

def rows(client):
    torch.manual_seed(client)
    return torch.randn(3 + 4 * client, 5), torch.randint(0, 3, (3 + 4 * client,))

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

def problem(client, clients):
    own = rows(90) if client is None else rows(client)
    return fp.TorchProblem(
        network(), nn.CrossEntropyLoss(), [own], metrics=["accuracy"], deterministic=True
    )

def whole(clients, **options):
    all_rows = [rows(i) for i in range(clients)]
    return fp.TorchProblem(
        network(), nn.CrossEntropyLoss(), all_rows, metrics=["accuracy"], deterministic=True,
        **options
    )

def tried(client, clients):
    own = [] if client is None else [client]
    return MODELS[os.environ["TRIED_MODEL"]].problem(own, deterministic=True)

def two(client, clients):
    return whole(2)

def wider(client, clients):
    if client is None:
        return problem(client, clients)
    torch.manual_seed(0)
    return fp.TorchProblem(nn.Linear(5, 3), nn.CrossEntropyLoss(), [rows(client)])

def elsewhere(client, clients):
    model = network()
    if client is None:
        model[0].bias.data[0] += 1
    return fp.TorchProblem(model, nn.CrossEntropyLoss(), [rows(client or 90)])

def broken(client, clients):
    return problem(client, clients) if client is None else [][client]
"""
NAMES = ["problem", "tried", "nothing", "rows", "two", "wider", "elsewhere", "broken"]
OWN = {"objective": "app_module:problem", "clients": 4, "rounds": 4, "metrics": "accuracy"}


@pytest.fixture
def imported(monkeypatch):
    """Return a function that imports an app's module for one test."""
    names = []

    def load(folder, name):
        monkeypatch.syspath_prepend(folder)
        load_own_problem.cache_clear()
        names.append(name)
        return importlib.import_module(name)

    yield load
    for name in names:
        del sys.modules[name]
    load_own_problem.cache_clear()


@pytest.fixture
def nodes(tmp_path, monkeypatch, imported):
    """Write the app's module and import it."""
    (tmp_path / "app_module.py").write_text(NODES)
    names = ["nowhere:problem", *(f"app_module:{name}" for name in NAMES)]
    monkeypatch.setenv("FEDPAGE_ALLOW", ",".join(names))
    return imported(tmp_path, "app_module")


@pytest.mark.parametrize(
    ("method", "hyper", "weights"),
    [
        ("fedpage", "S=2 K=3 eta_g=0.3 p=0.4 b3=4", "uniform"),
        ("scaffold", "S=2 K=3 b=4", "size"),
        ("fedavg", "S=3 K=2", "uniform"),
    ],
)
def test_bits_equal_the_simulator(federate, simulated, nodes, method, hyper, weights):
    settings = OWN | {"method": method, "hyper": hyper, "weights": weights}
    history = federate(**settings).history
    expected = simulated(problem=nodes.whole(4, weights=weights), **settings)
    assert history.x.dtype == np.float32
    assert history.x.tobytes() == expected.x.tobytes()
    assert "accuracy" in expected.columns
    for column in set(expected.columns) - {"seconds"}:
        np.testing.assert_array_equal(history[column], expected[column])
    server = nodes.problem(None, 4).evaluate(history.x)
    assert history.last("held_out_accuracy") == server["accuracy"]
    assert history.last("held_out_loss") == server["loss"]
    assert history["floats_up"][-1] * 4 == history["bytes_up"][-1]


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].flower == "yes"])
def test_models_on_flower(federate, simulated, nodes, monkeypatch, name):
    """The models of the table in docs/torch.md have the bits of the simulator."""
    monkeypatch.setenv("TRIED_MODEL", name)
    settings = {
        "objective": "app_module:tried", "clients": 2, "method": "fedavg",
        "hyper": "S=2 K=2 b=3 eta_l=0.1", "rounds": 2,
    }  # fmt: skip
    history = federate(**settings).history
    whole = MODELS[name].problem(deterministic=True)
    assert history.same(simulated(problem=whole, **settings))
    assert history.x.tobytes() != whole.x0.tobytes()


def test_secure_aggregation_of_a_network_equals_the_simulator(federate, simulated, nodes):
    """Numbers of 4 bytes are sent as whole numbers of 8."""
    settings = OWN | {
        "method": "scaffold", "hyper": "S=3 K=3 b=4", "weights": "size",
        "aggregation": "secure:bound=100", "evaluation": "values",
    }  # fmt: skip
    history = federate(**settings).history
    expected = simulated(problem=nodes.whole(4, weights="size"), **settings)
    assert history.x.dtype == np.float32
    assert history.x.tobytes() == expected.x.tobytes()
    for column in {*expected.columns} - {"seconds", "grad_norm"}:
        np.testing.assert_array_equal(history[column], expected[column])
    assert history["floats_up"][-1] * 8 == history["bytes_up"][-1]


def test_the_example_app(imported):
    imported(APP, "digits")
    server, node = (load_own_problem("digits:problem", client, 4) for client in (None, 2))
    assert (server.d, node.d, server.N, node.N) == (830, 830, 1, 1)
    assert start_of(server).tobytes() == start_of(node).tobytes()
    assert server.sizes[0] == 360


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_a_network_reads_its_own_sites_file_and_the_server_has_no_rows(
    federate, simulated, imported, tmp_path, weights
):
    """Columns have another order at each site; metrics come from the sites, with their weights."""
    app = imported(APP, "own_site")
    rng = np.random.default_rng(0)
    configs, rows = [], []
    for client, size in enumerate((12, 30, 21)):
        X = np.round(app.CENTRE + app.SPREAD * rng.normal(size=(size, 4)), 3)
        y = np.arange(size) % 2
        order = rng.permutation(5)
        table = [[*app.COLUMNS, "sick"], *([*row, b] for row, b in zip(X, y, strict=True))]
        path = tmp_path / f"site{client}.csv"
        path.write_text("".join(",".join(str(row[i]) for i in order) + "\n" for row in table))
        configs.append(
            {"partition-id": client, "data": str(path), "options": "label=sick"}
            | {"allow": "own_site:problem", "client-state-dir": str(tmp_path / "state")}
        )
        rows.append(((X - app.CENTRE) / app.SPREAD, y))
    settings = OWN | {
        "objective": "own_site:problem", "data": "", "clients": 3, "method": "scaffold",
        "hyper": "S=2 K=3 b=4", "weights": weights,
    }  # fmt: skip
    history = federate(nodes=configs, **settings).history
    whole = fp.TorchProblem(
        app.network(), torch.nn.CrossEntropyLoss(), rows,
        metrics=["accuracy"], dtype="float64", weights=weights,
    )  # fmt: skip
    assert history.same(simulated(problem=whole, **settings))
    assert not [name for name in history.columns if name.startswith("held_out")]
    if weights == "size":
        pooled = whole.evaluate(history.x)["accuracy"]
        assert history.last("accuracy") == pytest.approx(pooled, rel=1e-12)
    configs[1]["options"] = ""
    with pytest.raises(fp.InputError, match=r"client 1: .*details in its node's log"):
        federate(nodes=configs, **settings, out=str(tmp_path / "other"))


def test_a_model_without_rows(nodes):
    model = fp.TorchProblem(nodes.network(), torch.nn.CrossEntropyLoss(), [], metrics=["accuracy"])
    own = nodes.problem(1, 4)
    assert (model.N, model.d, model.sizes.tolist()) == (0, own.d, [])
    assert start_of(model).tobytes() == start_of(own).tobytes()
    assert model.start_digest == own.start_digest
    assert model.describe()["rows"] == 0
    for use in (model.loss, model.grad, model.evaluate):
        with pytest.raises(fp.InputError, match="there is a model but no rows"):
            use(model.x0)
    with pytest.raises(fp.InputError):
        fp.simulate(model, fp.FedAvg(S=1), rounds=1, seed=0)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("nowhere:problem", "'nowhere:problem' cannot be imported"),
        ("app_module:nothing", "cannot be imported"),
        ("app_module:rows", "takes 1 positional"),
        ("app_module:two", "with the rows of one client, not of 2"),
        ("app_module:wider", "its model has 18 parameters, that of the server 39"),
        ("app_module:elsewhere", "another model than the server, or other initial parameters"),
        ("app_module:broken", "app_module:broken failed: IndexError"),
    ],
)
def test_invalid_problems_are_refused(federate, nodes, node_log, objective, words):
    with pytest.raises(fp.InputError) as refused:
        federate(objective=objective, clients=3)
    reference = re.search("log under ([0-9a-f]{8})", str(refused.value))
    assert words in (node_log(reference[1]) if reference else str(refused.value))
