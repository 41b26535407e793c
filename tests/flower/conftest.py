"""These tests need Flower; without it they are skipped, and say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
HERE = Path(__file__).parent

try:
    import flwr  # noqa: F401
except ImportError:
    collect_ignore_glob = [
        "localgrid.py",
        "test_grid.py",
        "test_security.py",
        "test_processes.py",
        "test_networks.py",
    ]


@pytest.fixture
def config(tmp_path):
    """A run of FedPAGE over eight clients of very different sizes."""
    return {
        "method": "fedpage", "hyper": "S=3 K=3 eta_g=0.2 p=0.4", "data": "census:rows=300", "partition": "power-law",
        "partition-seed": 0, "objective": "robust", "alpha": 0.1, "weights": "uniform", "labels": "", "label": "",
        "features": 0, "clients": 8, "rounds": 10, "seed": 3, "record-every": 4, "target": 0.0, "deadline": 60.0,
        "wait": 10.0, "poll": 0.1, "retries": 2, "full-retries": 6, "patience": 10, "lost-after": 3,
        "out": str(tmp_path / "run"), "checkpoint-every": "1",
    }  # fmt: skip


@pytest.fixture
def federate(config, tmp_path):
    """Runs a federation in this process; the strategy, with its history and its grid."""
    from localgrid import LocalGrid

    from fedpage.flower.client_app import app
    from fedpage.flower.server_app import FedpageStrategy

    def run(fault=None, nodes=None, progress=None, prepare=None, **changes):
        settings = config | changes
        own = nodes or [
            {"partition-id": i, "memory": str(tmp_path / "memory")}
            for i in range(settings["clients"])
        ]
        grid = LocalGrid(app, own, settings, fault=fault)
        strategy = FedpageStrategy(settings, sleep=grid.sleep, clock=grid.clock)
        strategy.grid = grid
        if progress is not None:
            strategy._progress = progress
        if prepare is not None:
            prepare(grid)
        strategy.start(grid)
        return strategy

    return run


@pytest.fixture
def simulated(config):
    """The same run in the simulator."""
    import fedpage as fp
    from fedpage.flower.node import method_of
    from fedpage.runs import build
    from fedpage.runs.config import ProblemConfig, structure

    def run(problem=None, **changes):
        settings = config | changes
        if problem is None:
            alpha = settings["alpha"] if "-" in settings["objective"] else None
            names = ("data", "clients", "objective", "partition", "partition-seed", "weights")
            table = {name: settings[name] for name in names} | {"alpha": alpha}
            problem = build.build_problem(structure(ProblemConfig, table, "test"))
        return fp.simulate(problem, method_of(settings), rounds=settings["rounds"], seed=settings["seed"], record_every=settings["record-every"], options=fp.RunOptions(evaluate="per_client"))  # fmt: skip

    return run
