"""The problems and the entrants of communication.py."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

import numpy as np
from scipy.sparse import csr_array

import fedpage as fp
from fedpage.codecs import Codec
from fedpage.core.errors import InputError
from fedpage.core.random import uniforms
from fedpage.data import Dataset
from fedpage.methods import METHODS, MethodEntry
from fedpage.problems import OBJECTIVES
from fedpage.report.methods import codecs_of
from fedpage.runs import build
from fedpage.runs.config import ProblemConfig

OURS = "secantpage"
"""The method that runs with its defaults and is not tuned, where no case says otherwise."""
FIXED = ("S", "K", "b", "b0", "b1", "b2", "b3", "eps")
"""Hyper-parameters that no search changes: clients, local steps and minibatches are equal."""


@dataclass(frozen=True)
class Terms:
    """Terms that are equal for all methods; a number for each target where there are several."""

    steps: tuple[float, ...] = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)
    """Effective steps of the screening, in units of 1/L, where L is the smoothness of f."""
    screening: tuple[float, ...] = (30_000, 60_000, 120_000)
    """Contacts to each target that a run of the screening may cost."""
    screening_between: int = 200
    """Contacts between two records in the screening."""
    factor: float = 3.0
    """Methods that cost more than this many times the best of the screening are not tuned."""
    most: tuple[int, ...] = (4, 4, 3)
    """The most methods that are tuned without codecs for each target."""
    most_with_codecs: tuple[int, ...] = (4, 4, 3)
    """The most methods that are tuned with codecs."""
    limits: tuple[float, ...] = (40_000, 100_000, 160_000)
    """Contacts that a run may cost; with codecs as many vectors of d numbers, up and down."""
    between: tuple[int, ...] = (100, 400, 1_000)
    """Contacts between two records of a run; costs in between are interpolated."""
    search_seeds: int = 3
    runs: int = 50
    """The most runs of a search."""
    seeds: int = 10
    """Fresh seeds of the final runs."""
    S: int = 10
    """Clients of a sampled round, of every method that samples, in the screening."""
    fixed: tuple[str, ...] = FIXED
    """Hyper-parameters that no search changes."""


@dataclass(frozen=True)
class Case:
    """A problem and its targets."""

    name: str
    title: str
    data: str
    clients: int
    objective: str = ""
    column: str = "grad_norm"
    targets: tuple[float, ...] = (1e-2, 1e-3, 1e-4)
    methods: tuple[str, ...] | None = None
    """The methods of this case; None: all."""
    terms: Terms = Terms()
    alpha: float | None = None
    """The weight of the regulariser; None: the default."""
    partition: str | None = None
    """The division of the rows; None: equal blocks of all rows in file order."""
    always: tuple[str, ...] = ("fedpage", "scaffold", "fedavg")
    """Methods that are tuned without codecs wherever the screening saw them reach the target. The
    first is tuned for the first target in any case."""
    starts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Hyper-parameters of methods by name that are not the defaults at the start."""
    is_ours_tuned: bool = False
    """Whether our method is tuned as all others are."""
    has_codecs: bool = True
    """Whether methods also run with codecs."""

    def problem(self) -> Any:
        """Return the problem.

        Raises:
            InputError: The data is not on this machine.
        """
        if self.data == "digits":
            return digits_network(self.clients)
        if self.data != "phishing-like":
            metrics = "" if self.column in ("grad_norm", "loss") else self.column
            config = ProblemConfig(
                data=self.data, clients=self.clients, objective=self.objective, alpha=self.alpha,
                partition=self.partition, metrics=metrics,
            )  # fmt: skip
            return build.build_problem(config)
        data = phishing_like()
        return OBJECTIVES[self.objective].problem(data, fp.blocks(data.rows, self.clients))


ROBUST, NONCONVEX = "robust regression", "logistic, nonconvex regulariser"
NETWORK = "digits-network"
NETWORK_METHODS = (
    "fedavg", "fedavgm", "scaffold", "page", "saga", "cofig",
)  # fmt: skip
"""The methods that run on the network, where a round takes a hundred times as long."""
NETWORK_TERMS = Terms(
    steps=(1 / 4, 1.0, 4.0), screening=(1_500, 3_000), limits=(2_000, 4_000),
    screening_between=50, between=(50, 50), search_seeds=2, runs=10, most=(4, 4),
    most_with_codecs=(2, 2),
)  # fmt: skip
CASES = (
    Case("a9a-robust", f"a9a, {ROBUST}", "a9a", 3250, "robust"),
    Case("a9a-logistic", f"a9a, {NONCONVEX}", "a9a", 3250, "logistic-nonconvex"),
    Case("w8a-robust", f"w8a, {ROBUST}", "w8a", 4974, "robust"),
    Case("w8a-logistic", f"w8a, {NONCONVEX}", "w8a", 4974, "logistic-nonconvex"),
    Case("mushrooms-logistic", f"mushrooms, {NONCONVEX}", "mushrooms", 812, "logistic-nonconvex"),
    Case(
        "phishing-like-logistic", f"phishing-like, {NONCONVEX}", "phishing-like", 1105,
        "logistic-nonconvex",
    ),
    Case(
        NETWORK, "digits, network 64-16-10", "digits", 179, column="loss",
        targets=(0.3, 0.1), methods=NETWORK_METHODS, terms=NETWORK_TERMS,
    ),
)  # fmt: skip
FEW_ALWAYS = ("newton", "secantpage", "scaffold", "cofig", "dane")
FEW_METHODS = (
    *FEW_ALWAYS, "fedavg", "fedpage", "fedpage-pass-start", "feddyn", "vrl-sgd", "scaffnew",
    "ef21-pp", "saber", "svrp", "s-dane", "i-cgm-rg-saga",
)  # fmt: skip
"""Those that reached the hard targets with many clients, and those that are meant for few."""
_EXACT: Mapping[str, Any] = {"S": None, "K": 100, "lam": 1.0}
FEW_STARTS = {"dane": _EXACT, "s-dane": _EXACT}
"""As published, all clients solve their problems nearly exactly."""
FEW_TERMS = Terms(
    steps=(1 / 4, 1.0, 4.0, 16.0, 64.0), screening=(600, 1_200, 2_400), screening_between=10,
    factor=math.inf, most=(4, 4, 4), limits=(1_000, 2_000, 4_000), between=(10, 10, 10),
    search_seeds=2, runs=16, S=1, fixed=FIXED[1:],
)  # fmt: skip
"""The clients of a round are searched too; the best methods are tuned, whatever they cost."""
FEW_ROBUST_TERMS = replace(FEW_TERMS, screening=(1_000, 2_500, 5_000), limits=(1_500, 4_000, 8_000))
PUBLISHED_TERMS = replace(
    FEW_TERMS, screening=(2_000, 6_000, 12_000), limits=(3_000, 9_000, 18_000), S=10,
    screening_between=80, between=(80, 80, 80), most=(6, 6, 6), runs=30,
)  # fmt: skip


def _few(name: str, title: str, data: str, clients: int, objective: str, **more: Any) -> Case:
    return Case(
        name, title, data, clients, objective, methods=FEW_METHODS, always=FEW_ALWAYS,
        starts=FEW_STARTS, is_ours_tuned=True, has_codecs=False, **{"terms": FEW_TERMS, **more},
    )  # fmt: skip


_PUBLISHED = {
    "column": "f_minus_fstar", "targets": (1e-3, 1e-6, 1e-9), "alpha": 1e-3,
    "terms": PUBLISHED_TERMS,
}  # fmt: skip
FEW_CASES = (
    *(
        _few(f"{data}-{short}-10", f"{data}, {title}, 10 sites", data, 10, objective, terms=terms)
        for data in ("a9a", "mushrooms", "w8a")
        for short, title, objective, terms in (
            ("robust", ROBUST, "robust", FEW_ROBUST_TERMS),
            ("logistic", NONCONVEX, "logistic-nonconvex", FEW_TERMS),
        )
    ),
    _few(
        "a9a-l2-80", "a9a, logistic, l2, 80 clients", "a9a", 80, "logistic-l2",
        partition="blocks:32560", **_PUBLISHED,
    ),
    _few(
        "w8a-l2-142", "w8a, logistic, l2, 142 clients", "w8a", 142, "logistic-l2",
        partition="blocks:49700", **_PUBLISHED,
    ),
)  # fmt: skip
"""Few sites; the last two have the data, the clients and the objective of FedNL's experiments."""


def phishing_like(rows: int = 11_055, features: int = 68, seed: int = 0) -> Dataset:
    """Generate rows of features with the values 0, 0.5 and 1, and labels of a planted model.

    The size is that of LIBSVM's phishing. A quarter of the entries are 0.5, a third are 1, with
    shares that differ between features; labels have logistic noise.
    """
    u = uniforms(seed, 1, size=rows * features).reshape(rows, features)
    shares = 0.5 + uniforms(seed, 2, size=features)
    X = 0.5 * (u < 0.6 * shares) + 0.5 * (u < 0.35 * shares)
    weights = 4.0 * (uniforms(seed, 3, size=features) - 0.5)
    v = uniforms(seed, 4, size=rows)
    score = (X - X.mean(axis=0)) @ weights + np.log(np.maximum(v, 1e-300)) - np.log1p(-v)
    labels = np.where(score > 0, 1.0, -1.0)
    return Dataset.from_arrays(csr_array(X), labels, "phishing-like", note="synthetic")


def has_torch() -> bool:
    """Say whether the packages of the network are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "sklearn"))


def digits_network(clients: int) -> Any:
    """Return a 64-16-10 network with tanh on scikit-learn's digits, in rows of file order."""
    if not has_torch():
        raise InputError(
            f"{NETWORK} needs torch and scikit-learn: pip install 'fedpage[torch]' scikit-learn"
        )
    import torch
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype("float64")
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10))
    model = torch.nn.Sequential(*layers).double()
    parts = np.array_split(np.arange(len(y)), clients)
    return fp.TorchProblem(model, torch.nn.CrossEntropyLoss(), [(X[i], y[i]) for i in parts])


@dataclass(frozen=True)
class Entrant:
    """A method of the library, with or without codecs.

    Attributes:
        name: Its name.
        codecs: Whether messages and replies go through codecs.
    """

    name: str
    codecs: bool

    @property
    def key(self) -> str:
        return f"{self.name}+codecs" if self.codecs else self.name

    @property
    def entry(self) -> MethodEntry:
        return METHODS[self.name]

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.entry.label

    @property
    def cost(self) -> str:
        """What its settings are chosen for: client contacts, or all bytes if it has codecs."""
        return "bytes" if self.codecs else "clients"


CODECS = {
    "casts": ("float16", "float32"),
    "unbiased": ("natural", "float16", "float32"),
    "contractive": ("topk:0.1+natural", "topk:0.3+natural", "natural"),
    "any": ("natural", "topk:0.1+natural", "topk:0.3+natural"),
}
"""Codecs of replies to search, by what a method takes; the first is used in the screening."""
CASTS = ("float32", "float16")
"""Codecs of messages to search."""
VARIANTS = ("fedpage-pass-start", "scaffold-momentum")
"""The variants that take part."""
OPTIONS = {"beta": (0.0, 0.9)}
"""Settings that are tried in the screening where a method has them with the first as default."""


def entrants(case: Case, names: Iterable[str] | None = None) -> list[Entrant]:
    """List every method of the registry without and with codecs, but each method only once.

    Minibatches are all rows here, so that names such as fedavg-full would be repetitions. Of
    other variants only some take part.
    """
    found: dict[Any, str] = {}
    for name in METHODS if names is None else names:
        is_apart = name == OURS and not case.is_ours_tuned
        if name in VARIANTS or not (is_apart or METHODS[name].variant_of):
            found.setdefault(base_method(name, case), name)
    modes = (False, True) if case.has_codecs else (False,)
    return [Entrant(name, codecs) for name in found.values() for codecs in modes]


def base_method(name: str, case: Case) -> Any:
    """Return a method with sampled clients, gradients of all rows, and defaults otherwise."""
    entry = METHODS[name]
    options: dict[str, Any] = {}
    for key, value in entry.hyper_parameters.items():
        if key in ("b", "b1", "b2", "b3") and value is not None:
            options[key] = None
        elif key == "S" and _accepts(entry, S=case.terms.S):
            options[key] = case.terms.S
    return entry(**options | case.starts.get(name, {}))


def _accepts(entry: MethodEntry, **options: Any) -> bool:
    try:
        entry(**options)
    except InputError:
        return False
    return True


def codec_choices(entrant: Entrant) -> dict[str, tuple[str, ...]]:
    """Return the codecs to search for replies and for messages."""
    if not entrant.codecs:
        return {}
    known = entrant.entry.hyper_parameters
    choices = {"up": CODECS.get(codecs_of(entrant.entry), ()), "down": CASTS}
    return {field: values for field, values in choices.items() if field in known and values}


def bases(entrant: Entrant, case: Case) -> list[Any]:
    """Return the methods that the screening tries, before their steps are chosen."""
    method = base_method(entrant.name, case)
    method = replace(method, **{key: values[0] for key, values in codec_choices(entrant).items()})
    known = entrant.entry.hyper_parameters
    options = {
        key: values for key, values in OPTIONS.items() if key in known and known[key] == values[0]
    }
    return [
        replace(method, **dict(zip(options, values, strict=True)))
        for values in product(*options.values())
    ]


def settings(method: Any) -> dict[str, Any]:
    """Return a method's hyper-parameters as plain values."""
    values = {field.name: getattr(method, field.name) for field in fields(method)}
    return {key: str(value) if isinstance(value, Codec) else value for key, value in values.items()}


def with_settings(entrant: Entrant, values: Mapping[str, Any]) -> Any:
    """Return an entrant's method with given hyper-parameters."""
    return entrant.entry.cls(**values)
