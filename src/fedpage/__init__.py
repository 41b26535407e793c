"""fedpage: federated optimisation with as little communication as possible.

>>> import fedpage as fp
>>> problem = fp.LogisticRegression(fp.load("census", rows=300), clients=30)
>>> history = fp.simulate(problem, fp.FedPAGE(S=3, K=5, eta_g=0.2), rounds=20, seed=0)
>>> history
History(FedPAGE, 20 rounds, ...)

Names are imported when they are first used, so that `import fedpage` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedpage._version import __version__

if TYPE_CHECKING:
    from fedpage import arrivals, data, draws, engine, faults, history, methods, plot, problems, theory, types
    from fedpage.arrivals import Policy
    from fedpage.callbacks import Best, Callback
    from fedpage.data import Dataset, Partition, blocks, by_label, census, dirichlet, load, power_law, shuffled
    from fedpage.engine import Simulation, simulate, sweep
    from fedpage.faults import Faults
    from fedpage.history import History
    from fedpage.methods import (
        METHODS,
        PAGE,
        SCAFFOLD,
        VRLSGD,
        FedAvg,
        FedAvgFull,
        FedPAGE,
        FedPAGEFull,
        FedProx,
        SCAFFOLDFull,
        SLocalSVRG,
    )  # fmt: skip
    from fedpage.problems import LeastSquares, LogisticRegression, Quadratic, RobustRegression, RowProblem
    from fedpage.problems.torch_files import load_model, save_model
    from fedpage.problems.torch_model import TorchProblem
    from fedpage.stopping import Stop
    from fedpage.trackers import Track
    from fedpage.types import InputError, Method, Oracle, Problem, Smoothness

_HOME = {
    "fedpage.arrivals": "Policy",
    "fedpage.callbacks": "Best Callback",
    "fedpage.faults": "Faults",
    "fedpage.data": "Dataset Partition blocks by_label census dirichlet load power_law shuffled",
    "fedpage.engine": "Simulation simulate sweep",
    "fedpage.history": "History",
    "fedpage.methods": "METHODS FedAvg FedAvgFull FedPAGE FedPAGEFull FedProx PAGE SCAFFOLD SCAFFOLDFull SLocalSVRG "
    "VRLSGD",
    "fedpage.problems": "LeastSquares LogisticRegression Quadratic RobustRegression RowProblem",
    "fedpage.problems.torch_files": "load_model save_model",
    "fedpage.problems.torch_model": "TorchProblem",
    "fedpage.stopping": "Stop",
    "fedpage.trackers": "Track",
    "fedpage.types": "InputError Method Oracle Problem Smoothness",
}
_WHERE = {name: home for home, names in _HOME.items() for name in names.split()}
_ROOMS = ("arrivals", "data", "draws", "engine", "faults", "history", "methods", "plot", "problems", "theory", "types")

__all__ = [  # noqa: RUF022 - in the order of the table above
    "__version__",
    "Dataset", "Partition", "blocks", "by_label", "census", "dirichlet", "load", "power_law", "shuffled",
    "Best", "Callback", "Faults", "Policy", "Simulation", "Stop", "Track", "simulate", "sweep",
    "History",
    "METHODS", "FedAvg", "FedAvgFull", "FedPAGE", "FedPAGEFull", "FedProx", "PAGE", "SCAFFOLD", "SCAFFOLDFull",
    "SLocalSVRG", "VRLSGD",
    "LeastSquares", "LogisticRegression", "Quadratic", "RobustRegression", "RowProblem", "TorchProblem",
    "load_model", "save_model",
    "InputError", "Method", "Oracle", "Problem", "Smoothness",
    "arrivals", "data", "draws", "engine", "faults", "history", "methods", "plot", "problems", "theory", "types",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name in _ROOMS:
        value = import_module(f"fedpage.{name}")
    else:
        raise AttributeError(f"module 'fedpage' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
