"""Fixtures for the Flower tests. Without Flower the tests are skipped."""

import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

try:
    import flwr  # noqa: F401
except ImportError:
    alone = {"conftest.py", "test_deploy.py", "test_without.py"}  # they say that Flower is missing
    collect_ignore = [p.name for p in Path(__file__).parent.glob("*.py") if p.name not in alone]


@pytest.fixture
def node_log():
    """Return a function that returns what the node's log says under a reference."""
    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(self.format(record))

    keep = Keep()
    logging.getLogger("flwr").addHandler(keep)

    def read(reference):
        (entry,) = [text for text in records if f"refused {reference}" in text]
        return entry

    yield read
    logging.getLogger("flwr").removeHandler(keep)


@pytest.fixture
def config(tmp_path):
    """Return a run config: FedPAGE over eight clients of very different sizes."""
    return {
        "method": "fedpage",
        "hyper": "S=3 K=3 eta_g=0.2 p=0.4",
        "data": "census:rows=300",
        "partition": "power-law",
        "objective": "robust",
        "clients": 8,
        "rounds": 10,
        "seed": 3,
        "record-every": 4,
        "deadline": 60.0,
        "wait": 10.0,
        "poll": 0.1,
        "out": str(tmp_path / "run"),
    }


@pytest.fixture
def federate(config, tmp_path):
    """Return a function that runs a federation in this process and returns its strategy."""
    from faults import Killed
    from localgrid import LocalGrid

    import fedpage as fp
    from fedpage.flower.client_app import app
    from fedpage.flower.server_app import FedpageStrategy

    def run(fault=None, nodes=None, prepare=None, callbacks=(), kill=None, **changes):
        """Start a server. With `kill` it dies after that round, before the checkpoint."""

        def die(info):
            if info.round == kill:
                raise Killed

        settings = config | changes
        node_configs = nodes or [
            {"partition-id": i, "client-state-dir": str(tmp_path / "client-state")}
            for i in range(settings["clients"])
        ]
        grid = LocalGrid(app, node_configs, settings, fault=fault)
        callbacks = [*callbacks, fp.FunctionCallback(on_round_end=die)]
        strategy = FedpageStrategy(
            settings, sleep=grid.sleep, clock=grid.clock, callbacks=callbacks
        )
        strategy.grid = grid
        if prepare is not None:
            prepare(grid)
        if kill is None:
            strategy.start(grid)
        else:
            with pytest.raises(Killed):
                strategy.start(grid)
        return strategy

    return run


@pytest.fixture
def simulated(config):
    """Return a function that runs the same config in the simulator."""
    import fedpage as fp
    from fedpage.engine.aggregation import Aggregation
    from fedpage.flower.config import build_method, parse_app_config
    from fedpage.runs import build
    from fedpage.runs.config import ProblemConfig, structure

    def run(problem=None, stop=None, **changes):
        settings = parse_app_config(config | changes)
        if problem is None:
            table = {
                "data": settings.data,
                "clients": settings.clients,
                "objective": settings.objective,
                "partition": settings.partition,
                "weights": settings.weights,
                "alpha": settings.alpha if "-" in settings.objective else None,
            }
            problem = build.build_problem(structure(ProblemConfig, table, "test"))
        return fp.simulate(
            problem,
            build_method(settings),
            rounds=settings.rounds,
            seed=settings.seed,
            record_every=settings.record_every,
            stop=stop,
            options=fp.RunOptions(
                evaluate="per_client", aggregation=Aggregation.from_text(settings.aggregation)
            ),
        )

    return run
