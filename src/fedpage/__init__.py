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

from fedpage._version import __version__ as __version__

if TYPE_CHECKING:
    from fedpage import callbacks as callbacks
    from fedpage import codecs as codecs
    from fedpage import core as core
    from fedpage import data as data
    from fedpage import engine as engine
    from fedpage import methods as methods
    from fedpage import problems as problems
    from fedpage import runs as runs
    from fedpage import sklearn as sklearn
    from fedpage import studies as studies
    from fedpage import theory as theory
    from fedpage.callbacks.base import Callback as Callback
    from fedpage.callbacks.base import FunctionCallback as FunctionCallback
    from fedpage.callbacks.base import Stopped as Stopped
    from fedpage.callbacks.best_model import Best as Best
    from fedpage.callbacks.progress import Progress as Progress
    from fedpage.callbacks.trackers import Track as Track
    from fedpage.codecs import Bernoulli as Bernoulli
    from fedpage.codecs import BFloat16 as BFloat16
    from fedpage.codecs import Chain as Chain
    from fedpage.codecs import Codec as Codec
    from fedpage.codecs import Dither as Dither
    from fedpage.codecs import Float16 as Float16
    from fedpage.codecs import Float32 as Float32
    from fedpage.codecs import Identity as Identity
    from fedpage.codecs import Natural as Natural
    from fedpage.codecs import PermK as PermK
    from fedpage.codecs import RandK as RandK
    from fedpage.codecs import Scaled as Scaled
    from fedpage.codecs import ScaledSign as ScaledSign
    from fedpage.codecs import TopK as TopK
    from fedpage.core import optimizers as optimizers
    from fedpage.core.columns import Target as Target
    from fedpage.core.errors import InputError as InputError
    from fedpage.core.metrics import METRICS as METRICS
    from fedpage.core.metrics import Metric as Metric
    from fedpage.core.metrics import metric as metric
    from fedpage.core.types import Method as Method
    from fedpage.core.types import Oracle as Oracle
    from fedpage.core.types import Problem as Problem
    from fedpage.core.types import Smoothness as Smoothness
    from fedpage.core.types import StopReason as StopReason
    from fedpage.data import Dataset as Dataset
    from fedpage.data import Partition as Partition
    from fedpage.data import blocks as blocks
    from fedpage.data import by_id as by_id
    from fedpage.data import census as census
    from fedpage.data import client_datasets as client_datasets
    from fedpage.data import dirichlet as dirichlet
    from fedpage.data import dirichlet_hsu as dirichlet_hsu
    from fedpage.data import dirichlet_yurochkin as dirichlet_yurochkin
    from fedpage.data import from_huggingface as from_huggingface
    from fedpage.data import iid as iid
    from fedpage.data import label_shards as label_shards
    from fedpage.data import load as load
    from fedpage.data import power_law as power_law
    from fedpage.data import quantity_dirichlet as quantity_dirichlet
    from fedpage.data import shift_features as shift_features
    from fedpage.engine.aggregation import ClippedMean as ClippedMean
    from fedpage.engine.aggregation import TrimmedMean as TrimmedMean
    from fedpage.engine.devices import Devices as Devices
    from fedpage.engine.faults import Faults as Faults
    from fedpage.engine.fixed_point import FixedPointMean as FixedPointMean
    from fedpage.engine.policy import Policy as Policy
    from fedpage.engine.privacy import PrivateMean as PrivateMean
    from fedpage.engine.simulate import Simulation as Simulation
    from fedpage.engine.simulate import simulate as simulate
    from fedpage.engine.stopping import Stop as Stop
    from fedpage.inference import FitResult as FitResult
    from fedpage.inference import fit as fit
    from fedpage.methods import METHODS as METHODS
    from fedpage.methods import PAGE as PAGE
    from fedpage.methods import SCAFFOLD as SCAFFOLD
    from fedpage.methods import VRLSGD as VRLSGD
    from fedpage.methods import FedAvg as FedAvg
    from fedpage.methods import FedPAGE as FedPAGE
    from fedpage.methods import FedProx as FedProx
    from fedpage.methods import SecantPAGE as SecantPAGE
    from fedpage.methods import SLocalSVRG as SLocalSVRG
    from fedpage.methods import schedules as schedules
    from fedpage.problems import OBJECTIVES as OBJECTIVES
    from fedpage.problems import Huber as Huber
    from fedpage.problems import LeastSquares as LeastSquares
    from fedpage.problems import LinearModel as LinearModel
    from fedpage.problems import LogisticRegression as LogisticRegression
    from fedpage.problems import Poisson as Poisson
    from fedpage.problems import Quadratic as Quadratic
    from fedpage.problems import RobustRegression as RobustRegression
    from fedpage.problems import RowProblem as RowProblem
    from fedpage.problems import Softmax as Softmax
    from fedpage.problems import SquaredHinge as SquaredHinge
    from fedpage.problems.cox import CoxModel as CoxModel
    from fedpage.problems.reference import reference_solution as reference_solution
    from fedpage.problems.scores import ClientScores as ClientScores
    from fedpage.problems.torch.files import load_model as load_model
    from fedpage.problems.torch.files import save_model as save_model
    from fedpage.problems.torch.norms import to_group_norm as to_group_norm
    from fedpage.problems.torch.problem import TorchProblem as TorchProblem
    from fedpage.report import Report as Report
    from fedpage.report.partition_plot import plot_partition as plot_partition
    from fedpage.report.plots import plot as plot
    from fedpage.report.rank_plot import plot_critical_difference as plot_critical_difference
    from fedpage.runs.frame import Runs as Runs
    from fedpage.runs.history import History as History
    from fedpage.runs.spec import RunOptions as RunOptions
    from fedpage.studies.comparison import table as table
    from fedpage.studies.plan import plan as plan
    from fedpage.studies.ranks import rank_over_problems as rank_over_problems
    from fedpage.studies.study import Study as Study
    from fedpage.studies.sweep import sweep as sweep
    from fedpage.studies.tuning import choose as choose
    from fedpage.studies.tuning import tune as tune
    from fedpage.studies.tuning_result import Tuning as Tuning
    from fedpage.testing import check_method as check_method

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
    "fedpage.inference": "FitResult fit",
    "fedpage.problems.cox": "CoxModel",
    "fedpage.engine.simulate": "Simulation simulate",
    "fedpage.studies.study": "Study",
    "fedpage.studies.sweep": "sweep",
    "fedpage.studies.comparison": "table",
    "fedpage.studies.plan": "plan",
    "fedpage.studies.ranks": "rank_over_problems",
    "fedpage.studies.tuning": "choose tune",
    "fedpage.studies.tuning_result": "Tuning",
    "fedpage.engine.stopping": "Stop",
    "fedpage.core.columns": "Target",
    "fedpage.report.partition_plot": "plot_partition",
    "fedpage.report.plots": "plot",
    "fedpage.report.rank_plot": "plot_critical_difference",
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

_NAMES = sorted([*_MODULE_OF, *_PACKAGES, *_MODULES, "__version__"])
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = _NAMES


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

    return sorted({*_NAMES, *(entry.cls.__name__ for entry in METHODS.values())})
