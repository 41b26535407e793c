"""Build data sets, problems and methods from their configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedpage.core import spec
from fedpage.core.columns import Target
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.files import import_object
from fedpage.core.metrics import METRICS, find_quantile
from fedpage.core.types import AnyMethod, HyperParameter
from fedpage.data import Dataset, load
from fedpage.data.files import table_suffix
from fedpage.data.partition import Partition, partition_from_text
from fedpage.data.registry import DATASETS
from fedpage.methods import METHODS, MethodEntry
from fedpage.methods.fair import (
    at_step,
    match_terms,
    replace_given,
    step_sizes,
)
from fedpage.problems import OBJECTIVES, LinearModel
from fedpage.problems.losses import REGULARISERS, Reg
from fedpage.problems.objectives import Objective
from fedpage.runs.config import (
    DataConfig,
    MethodConfig,
    ProblemConfig,
    dataclass_fields,
    field_types,
    field_values,
)

DEFAULT_CLIENTS = 3250
"""The default number of clients, as in the paper's experiments on a9a."""
_METHOD_ATTRIBUTES = (
    "init", "call", "client", "server", "effective_step", "client_state", "name", "messages",
)  # fmt: skip
C = TypeVar("C", bound=DataConfig)


def split_settings(text: str) -> tuple[str, dict[str, str]]:
    """Split `name:key=value:key=value` into the name and its settings.

    Raises:
        InputError: If a part after the name is not key=value.

    >>> split_settings("fedpage:up=randk:0.1:K=5")
    ('fedpage', {'up': 'randk:0.1', 'K': '5'})
    """
    parsed = spec.parse(text)
    if parsed.values or text.endswith(":"):
        found = "".join(parsed.values[:1])
        raise InputError(f"{text!r}: expected name:key=value, found {found!r}")
    return parsed.name, parsed.settings


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _import_own(path: str, name: str, noun: str, kind: str) -> Any:
    """Import a class or a function from the user's file."""

    def resolve_types(found: object) -> None:  # while the module can be looked up
        if isinstance(found, type) and dataclasses.is_dataclass(found):
            field_types(found)

    found = import_object(Path(path), name, noun, resolve_types)
    is_right = callable(found) if kind == "function" else isinstance(found, type)
    if not is_right or (kind == "dataclass" and not dataclasses.is_dataclass(found)):
        raise InputError(f"{path}: has no {kind} {name!r}")
    return found


# --- data and partitions --------------------------------------------------------------------------


def load_data(config: DataConfig) -> Dataset:
    """Load the data of a configuration.

    Raises:
        InputError: If the data cannot be read, or a column is unknown or cannot be used.
    """
    return load(
        config.data,
        label=config.label,
        client=config.client_column,
        standardise=config.standardise,
        missing=config.missing,
        drop=_split_names(config.drop),
        categorical=_split_names(config.categorical),
    )


def divide_rows(config: C, data: Dataset) -> tuple[C, Partition]:
    """Divide the rows among clients, and choose what a configuration leaves out.

    Data with ids is divided by them, and every id is a client. Other data is divided into blocks; a
    table must say into how many. The partition may be a function of the user's file, such as
    mine.py@halves or mine.py@halves:3.

    Returns:
        The configuration with these choices, and the partition.

    Raises:
        InputError: If `clients` contradicts the ids, nothing says who holds a table's rows, the
            partition is unknown, or the rows do not suffice for it.
    """
    text, clients = config.partition, config.clients
    if text is None:
        text = "blocks" if data.clients is None else "by-id:drop"
    name = text.partition(":")[0]
    if name.replace("_", "-") == "by-id":
        if clients is not None:
            raise InputError(
                f"--clients {clients}: with --partition {text}, every id of {data.name} is a "
                "client; leave --clients out, or choose another --partition, such as iid"
            )
    elif clients is None:
        if _is_table_file(config.data):
            ids = "--client-column COLUMN if a column says so, or " if data.clients is None else ""
            raise InputError(
                f"{data.name}: say who holds the rows: {ids}--clients N for N clients ({name})"
            )
        clients = DEFAULT_CLIENTS
    path, at, made = text.rpartition("@")
    own = _import_own(path, made.partition(":")[0], "partition", "function") if at else None
    partition = partition_from_text(
        made,
        data.y,
        clients or 1,
        config.partition_seed,
        min_rows=config.min_rows,
        ids=data.clients,
        make=own,
    )
    return dataclasses.replace(config, partition=text, clients=clients), partition


def _is_table_file(text: str) -> bool:
    return text.partition(":")[0] not in DATASETS and bool(table_suffix(Path(text)))


# --- problems -------------------------------------------------------------------------------------


def open_problem(config: ProblemConfig) -> tuple[ProblemConfig, LinearModel]:
    """Load the data, divide it among the clients, and return the objective over it.

    By default the objective of a table is logistic for two classes, softmax for more and squares
    for numbers, with an l2 regulariser if alpha is given; that of other data is robust, as in the
    paper.

    Returns:
        The configuration with the choices that depend on the data, and the problem.

    Raises:
        InputError: If a name is unknown, or the data does not suffice for the clients.
    """
    given = None if config.objective is None else find_objective(config.objective)
    data, held_out = load_data(config), None
    if config.objective is None:
        objective = "robust"
        if _is_table_file(config.data):
            classes = 0 if data.classes is None else len(data.classes)
            objective = {0: "squares", 2: "logistic"}.get(classes, "softmax")
            objective += "-l2" if config.alpha is not None else ""
        config = dataclasses.replace(config, objective=objective)
    if config.held_out:
        try:
            data, held_out = data.split(
                config.held_out, config.partition_seed, by=config.held_out_by
            )
        except InputError as error:
            raise InputError(f"--held-out {config.held_out:g}: {error}") from None
    elif config.held_out_by != "rows":
        raise InputError("--held-out-by clients: give the share too, such as --held-out 0.2")
    config, partition = divide_rows(config, data)
    problem = (given or find_objective(str(config.objective))).problem(
        data,
        partition,
        alpha=config.alpha,
        intercept=config.intercept,
        weights=config.weights,
        metrics=find_metrics(config.metrics),
        held_out=held_out,
    )
    return config, problem


def build_problem(config: ProblemConfig) -> LinearModel:
    """Return the problem of `open_problem`."""
    return open_problem(config)[1]


def find_metrics(text: str) -> list[str | Callable[..., float]]:
    """Return the metrics that a text names: registered ones, or functions as file.py@name.

    Raises:
        InputError: If a file has no such function.
    """
    words = (word.rpartition("@") for word in _split_names(text))
    return [_import_own(path, n, "metric", "function") if at else n for path, at, n in words]


def record_target(config: ProblemConfig, target: Target) -> ProblemConfig:
    """Add the metric of a target to those that a problem records, if it is a registered one."""
    name = target.column.removeprefix("held_out_")
    is_metric = name in METRICS or find_quantile(name, METRICS, "--target") is not None
    recorded = [word.rpartition("@")[2] for word in _split_names(config.metrics)]
    if not is_metric or name in recorded:
        return config
    return dataclasses.replace(config, metrics=",".join(filter(None, (config.metrics, name))))


def find_objective(text: str) -> Objective:
    """Return the objective of a name, or of the loss that `file.py@Class` names.

    A regulariser follows the class as it follows a name: mine.py@Hinge-l2.

    Raises:
        InputError: If the name is unknown, or the file has no such loss.
    """
    if text in OBJECTIVES:
        return OBJECTIVES[text]
    path, at, word = text.rpartition("@")
    name, dash, suffix = word.partition("-")
    reg: Reg | None = next((reg for reg in REGULARISERS if reg == suffix != "none"), None)
    if not at or (dash and reg is None):
        hint = "" if at else did_you_mean(text, OBJECTIVES)
        losses = [loss for loss, entry in OBJECTIVES.items() if entry.reg == "none"]
        regs = [f"-{reg}" for reg in REGULARISERS if reg != "none"]
        raise InputError(
            f"unknown objective {text!r}:{hint} losses are {', '.join(losses)}, or your own as "
            f"file.py@Class; a regulariser ({', '.join(regs)}) may follow"
        )
    loss = _import_own(path, name, "loss", "class")
    return Objective(word, loss, reg or "none", LinearModel)


# --- methods --------------------------------------------------------------------------------------


def find_method(name: str) -> MethodEntry:
    """Return the entry of a method's name, or of the class that `file.py@Class` names.

    Raises:
        InputError: If the name is unknown, or the file has no such method.
    """
    if name.lower() in METHODS:
        return METHODS[name.lower()]
    path, at, class_name = name.rpartition("@")
    if not at:
        raise InputError(
            f"unknown method {name!r}:{did_you_mean(name, METHODS)} `fedpage methods` lists all; "
            "one of your own is file.py@ClassName"
        )
    cls = _import_own(path, class_name, "method", "dataclass")
    missing = [name for name in _METHOD_ATTRIBUTES if not hasattr(cls, name)]
    if missing:
        raise InputError(f"{path}: {class_name} is not a method: it lacks {', '.join(missing)}")
    return MethodEntry(cls, cls.name)


def parse_hyper_parameters(
    entry: MethodEntry, words: Mapping[str, str]
) -> dict[str, HyperParameter]:
    """Convert the given hyper-parameters of a method from words to their types.

    Raises:
        InputError: If a name is unknown, or a value is not of its type.
    """
    return field_values(entry.cls, words, entry.label, words=True)


def build_method(config: MethodConfig) -> AnyMethod:
    """Return the method with the given hyper-parameters and its defaults for the others."""
    entry = find_method(config.name)
    return entry(**parse_hyper_parameters(entry, config.hyper))


def build_fair_method(text: str, *, N: int, M: int, S: int, K: int, step: float) -> AnyMethod:
    """Return a method on the paper's equal terms, such as "fedavg" or "fedpage:eta_l=0.01".

    Args:
        text: Its name, or file.py@Class, and hyper-parameters that are not on equal terms.
        N: The number of clients.
        M: Rows of a client, from which minibatches are chosen.
        S: Clients that FedPAGE samples.
        K: Local steps.
        step: The effective step, unless a step size is given.
    """
    name, settings = split_settings(text)
    entry = find_method(name)
    given = parse_hyper_parameters(entry, settings)
    method = match_terms(entry, N=N, M=M, S=S, K=int(given.get("K") or K), step=step)
    sizes = step_sizes(method)
    method = replace_given(entry, method, given)
    return method if sizes & given.keys() or not given else at_step(method, step)


def hyper_words(method: AnyMethod) -> dict[str, str]:
    """Return a method's hyper-parameters as words, where they are not defaults.

    `parse_hyper_parameters` reads them, and every number is written with all its digits.

    >>> from fedpage.methods import FedPAGE
    >>> hyper_words(FedPAGE(S=5, eta_g=0.1 / 3, b3=None, up="natural"))
    {'S': '5', 'eta_g': '0.03333333333333333', 'b3': 'all', 'up': 'natural'}
    """
    found = {}
    for key, field in dataclass_fields(type(method)).items():
        value = getattr(method, key)
        if value != field.default:
            found[key] = "all" if value is None else str(value).removesuffix(".0")
    return found
