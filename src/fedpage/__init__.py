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
    from fedpage import (
        callbacks,
        codecs,
        core,
        data,
        engine,
        methods,
        problems,
        runs,
        sklearn,
        studies,
        theory,
    )
    from fedpage.callbacks.base import Callback, FunctionCallback, Stopped
    from fedpage.callbacks.best_model import Best
    from fedpage.callbacks.progress import Progress
    from fedpage.callbacks.trackers import Track
    from fedpage.codecs import (
        Bernoulli,
        BFloat16,
        Chain,
        Codec,
        Dither,
        Float16,
        Float32,
        Identity,
        Natural,
        PermK,
        RandK,
        Scaled,
        ScaledSign,
        TopK,
    )
    from fedpage.core import optimizers
    from fedpage.core.errors import InputError
    from fedpage.core.metrics import METRICS, Metric, metric
    from fedpage.core.target import Target
    from fedpage.core.types import Method, Oracle, Problem, Smoothness, StopReason
    from fedpage.data import (
        Dataset,
        Partition,
        blocks,
        by_id,
        census,
        client_datasets,
        dirichlet,
        dirichlet_hsu,
        dirichlet_yurochkin,
        from_huggingface,
        iid,
        label_shards,
        load,
        power_law,
        quantity_dirichlet,
        shift_features,
    )
    from fedpage.engine.aggregation import ClippedMean, TrimmedMean
    from fedpage.engine.devices import Devices
    from fedpage.engine.faults import Faults
    from fedpage.engine.fixed_point import FixedPointMean
    from fedpage.engine.policy import Policy
    from fedpage.engine.privacy import PrivateMean
    from fedpage.engine.simulate import Simulation, simulate
    from fedpage.engine.stopping import Stop
    from fedpage.methods import (
        METHODS,
        PAGE,
        SCAFFOLD,
        VRLSGD,
        FedAvg,
        FedPAGE,
        FedProx,
        SecantPAGE,
        SLocalSVRG,
        schedules,
    )
    from fedpage.problems import (
        OBJECTIVES,
        Huber,
        LeastSquares,
        LinearModel,
        LogisticRegression,
        Poisson,
        Quadratic,
        RobustRegression,
        RowProblem,
        Softmax,
        SquaredHinge,
    )
    from fedpage.problems.reference import reference_solution
    from fedpage.problems.scores import ClientScores
    from fedpage.problems.torch.files import load_model, save_model
    from fedpage.problems.torch.norms import to_group_norm
    from fedpage.problems.torch.problem import TorchProblem
    from fedpage.report import Report
    from fedpage.report.partition_plot import plot_partition
    from fedpage.report.plots import plot
    from fedpage.runs.frame import Runs
    from fedpage.runs.history import History
    from fedpage.runs.spec import RunOptions
    from fedpage.studies.comparison import table
    from fedpage.studies.plan import plan
    from fedpage.studies.ranks import plot_critical_difference, rank_over_problems
    from fedpage.studies.study import Study
    from fedpage.studies.sweep import sweep
    from fedpage.studies.tuning import choose, tune
    from fedpage.studies.tuning_result import Tuning
    from fedpage.testing import check_method

    report: Report

_EXPORTS = {
    "fedpage.data": "Dataset Partition blocks by_id census client_datasets dirichlet dirichlet_hsu "
    "dirichlet_yurochkin from_huggingface iid label_shards load power_law "
    "quantity_dirichlet shift_features",
    "fedpage.callbacks.base": "Callback FunctionCallback Stopped",
    "fedpage.callbacks.best_model": "Best",
    "fedpage.callbacks.progress": "Progress",
    "fedpage.callbacks.trackers": "Track",
    "fedpage.codecs": "BFloat16 Bernoulli Chain Codec Dither Float16 Float32 Identity Natural "
    "PermK RandK Scaled ScaledSign TopK",
    "fedpage.engine.aggregation": "ClippedMean TrimmedMean",
    "fedpage.engine.devices": "Devices",
    "fedpage.engine.faults": "Faults",
    "fedpage.engine.fixed_point": "FixedPointMean",
    "fedpage.engine.policy": "Policy",
    "fedpage.engine.privacy": "PrivateMean",
    "fedpage.testing": "check_method",
    "fedpage.engine.simulate": "Simulation simulate",
    "fedpage.studies.study": "Study",
    "fedpage.studies.sweep": "sweep",
    "fedpage.studies.comparison": "table",
    "fedpage.studies.plan": "plan",
    "fedpage.studies.ranks": "plot_critical_difference rank_over_problems",
    "fedpage.studies.tuning": "choose tune",
    "fedpage.studies.tuning_result": "Tuning",
    "fedpage.engine.stopping": "Stop",
    "fedpage.core.target": "Target",
    "fedpage.report.partition_plot": "plot_partition",
    "fedpage.report.plots": "plot",
    "fedpage.runs.frame": "Runs",
    "fedpage.runs.history": "History",
    "fedpage.runs.spec": "RunOptions",
    "fedpage.methods": "METHODS FedAvg FedPAGE FedProx PAGE SCAFFOLD SLocalSVRG SecantPAGE VRLSGD",
    "fedpage.problems": "Huber LeastSquares LinearModel LogisticRegression OBJECTIVES Poisson "
    "Quadratic RobustRegression RowProblem Softmax SquaredHinge",
    "fedpage.problems.scores": "ClientScores",
    "fedpage.problems.reference": "reference_solution",
    "fedpage.problems.torch.problem": "TorchProblem",
    "fedpage.problems.torch.files": "load_model save_model",
    "fedpage.problems.torch.norms": "to_group_norm",
    "fedpage.core.errors": "InputError",
    "fedpage.core.metrics": "METRICS Metric metric",
    "fedpage.core.types": "Method Oracle Problem Smoothness StopReason",
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}
_PACKAGES = (
    "callbacks", "codecs", "core", "data", "engine", "methods", "problems", "report", "runs",
    "sklearn", "studies", "theory",
)  # fmt: skip

_MODULES = {"optimizers": "fedpage.core.optimizers", "schedules": "fedpage.methods.schedules"}
"""Modules that users reach by a short name."""

__all__ = [
    "METHODS",
    "METRICS",
    "OBJECTIVES",
    "PAGE",
    "SCAFFOLD",
    "VRLSGD",
    "BFloat16",
    "Bernoulli",
    "Best",
    "Callback",
    "Chain",
    "ClientScores",
    "ClippedMean",
    "Codec",
    "Dataset",
    "Devices",
    "Dither",
    "Faults",
    "FedAvg",
    "FedPAGE",
    "FedProx",
    "FixedPointMean",
    "Float16",
    "Float32",
    "FunctionCallback",
    "History",
    "Huber",
    "Identity",
    "InputError",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "Method",
    "Metric",
    "Natural",
    "Oracle",
    "Partition",
    "PermK",
    "Poisson",
    "Policy",
    "PrivateMean",
    "Problem",
    "Progress",
    "Quadratic",
    "RandK",
    "RobustRegression",
    "RowProblem",
    "RunOptions",
    "Runs",
    "SLocalSVRG",
    "Scaled",
    "ScaledSign",
    "SecantPAGE",
    "Simulation",
    "Smoothness",
    "Softmax",
    "SquaredHinge",
    "Stop",
    "StopReason",
    "Stopped",
    "Study",
    "Target",
    "TopK",
    "TorchProblem",
    "Track",
    "TrimmedMean",
    "Tuning",
    "__version__",
    "blocks",
    "by_id",
    "callbacks",
    "census",
    "check_method",
    "choose",
    "client_datasets",
    "codecs",
    "core",
    "data",
    "dirichlet",
    "dirichlet_hsu",
    "dirichlet_yurochkin",
    "engine",
    "from_huggingface",
    "iid",
    "label_shards",
    "load",
    "load_model",
    "methods",
    "metric",
    "optimizers",
    "plan",
    "plot",
    "plot_critical_difference",
    "plot_partition",
    "power_law",
    "problems",
    "quantity_dirichlet",
    "rank_over_problems",
    "reference_solution",
    "report",
    "runs",
    "save_model",
    "schedules",
    "shift_features",
    "simulate",
    "sklearn",
    "studies",
    "sweep",
    "table",
    "theory",
    "to_group_norm",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _PACKAGES:
        value = import_module(f"fedpage.{name}")
    else:
        value = _find_method(name)
    globals()[name] = value
    return value


def _find_method(name: str) -> Any:
    """Return the registered method of that class name: one in a file that was added to methods/.

    Raises:
        AttributeError: There is none; it suggests a name.
    """
    if not name.startswith("_"):
        from fedpage.methods import METHODS

        for entry in METHODS.values():
            if entry.cls.__name__ == name:
                return entry.cls
    from fedpage.core.errors import attribute_error

    raise attribute_error("fedpage", name, () if name.startswith("_") else __dir__())


def __dir__() -> list[str]:
    from fedpage.methods import METHODS

    return sorted({*__all__, *(entry.cls.__name__ for entry in METHODS.values())})
