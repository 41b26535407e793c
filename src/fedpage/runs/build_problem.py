"""Build data sets, partitions and problems from their configuration."""

from __future__ import annotations

import dataclasses
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.metrics import METRICS, find_quantile
from fedpage.core.schedules import SCHEDULES
from fedpage.data import Dataset, load
from fedpage.data.partition import Partition, partition_from_text
from fedpage.data.registry import DATASETS, Embedded
from fedpage.data.tables import is_table
from fedpage.problems import OBJECTIVES, LinearModel
from fedpage.problems.losses import REGULARISERS, Reg
from fedpage.problems.objectives import Objective
from fedpage.runs.config import DataConfig, ProblemConfig, Target, field_values
from fedpage.runs.import_class import import_class

DEFAULT_CLIENTS = 3250
"""The number of clients where none is given: that of the paper's experiments on a9a."""
C = TypeVar("C", bound=DataConfig)


def split_settings(text: str) -> tuple[str, dict[str, str]]:
    """Split `name:key=value:key=value` into the name and its settings.

    A value may have colons of its own, such as up=randk:0.1 or eta_l=cosine:0.1:200.

    Raises:
        InputError: a part after the name is not key=value.

    >>> split_settings("census:skew=1:rows=500")
    ('census', {'skew': '1', 'rows': '500'})
    >>> split_settings("fedpage:up=randk:0.1:K=5")
    ('fedpage', {'up': 'randk:0.1', 'K': '5'})
    """
    name, *parts = text.split(":")
    settings: dict[str, str] = {}
    key = ""
    for part in parts:
        is_schedule = part in SCHEDULES or "@" in part
        if key and "=" not in part and (part[:1].isdigit() or is_schedule):
            settings[key] += f":{part}"  # a number of a codec, or the schedule after a warm-up
            continue
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise InputError(f"{text!r}: expected name:key=value, found {part!r}")
        settings[key] = value
    return name, settings


def split_names(text: str) -> list[str]:
    """Split names that are separated by commas.

    >>> split_names("age, name,")
    ['age', 'name']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


# --- data and partitions --------------------------------------------------------------------------


def load_dataset(text: str, **columns: Any) -> Dataset:
    """Load the data set that `--data` names, such as "a9a", "census:skew=1" or a path.

    Args:
        text: the name or path.
        **columns: how the columns of a table are used, as `load` takes them.

    Raises:
        InputError: the name or a setting is unknown, or the file cannot be read.
    """
    entry = DATASETS.get(text.partition(":")[0])
    if not isinstance(entry, Embedded):
        return load(text, **columns)
    name, settings = split_settings(text)
    hints = get_type_hints(entry.make)
    options = dataclasses.make_dataclass(
        name,
        [
            (key, hints[key], dataclasses.field(default=parameter.default))
            for key, parameter in signature(entry.make).parameters.items()
            if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
        ],
    )
    chosen = field_values(options, settings, f"--data {name}", words=True)
    return load(name, **columns, **chosen)


def load_data(config: DataConfig) -> Dataset:
    """Load the data of a configuration.

    Raises:
        InputError: the data cannot be read, or a column is unknown or cannot be used.
    """
    return load_dataset(
        config.data,
        label=config.label,
        client=config.client_column,
        standardise=config.standardise,
        missing=config.missing,
        drop=split_names(config.drop),
        categorical=split_names(config.categorical),
    )


def settle_partition(config: C, data: Dataset) -> C:
    """Choose the partition and the number of clients where a configuration leaves them out.

    Data with ids is divided by them, and the number of clients is then that of the ids. Other data
    is divided into blocks; a table must say into how many.

    Raises:
        InputError: `clients` contradicts the ids, or nothing says who holds the rows of a table.
    """
    partition = config.partition
    if partition is None:
        partition = "blocks" if data.clients is None else "by-id:drop"
    if partition.partition(":")[0].replace("_", "-") == "by-id":
        if config.clients is not None:
            raise InputError(
                f"--clients {config.clients}: with --partition {partition}, every id of "
                f"{data.name} is a client; leave --clients out, or choose another --partition, "
                "such as iid"
            )
        return dataclasses.replace(config, partition=partition)
    if config.clients is None and is_table_file(config.data):
        ids = "" if data.clients is not None else "--client-column COLUMN if a column says so, or "
        raise InputError(
            f"{data.name}: say who holds the rows: {ids}--clients N for N clients "
            f"({partition.partition(':')[0]})"
        )
    return dataclasses.replace(
        config, partition=partition, clients=config.clients or DEFAULT_CLIENTS
    )


def is_table_file(text: str) -> bool:
    """Say whether `--data` names a table: a .csv, .tsv, .parquet or .npz file."""
    return text.partition(":")[0] not in DATASETS and is_table(Path(text))


def build_partition(config: DataConfig, data: Dataset) -> Partition:
    """Divide rows as a configuration says in which `settle_partition` has chosen what was left out.

    Raises:
        InputError: the partition is unknown, or the rows do not suffice for it.
    """
    return partition_from_text(
        config.partition or "",
        data.y,
        config.clients or 1,
        config.partition_seed,
        min_rows=config.min_rows,
        ids=data.clients,
    )


# --- problems -------------------------------------------------------------------------------------


def settle(config: ProblemConfig, data: Dataset) -> ProblemConfig:
    """Choose what a configuration leaves to the data: partition, number of clients, objective.

    The objective of a table is logistic for two classes, softmax for more and squares for numbers,
    with an l2 regulariser if alpha is given. That of other data is robust, as in the paper.

    Raises:
        InputError: the configuration contradicts the data.
    """
    config = settle_partition(config, data)
    if config.objective is not None:
        return config
    objective = "robust"
    if is_table_file(config.data):
        classes = 0 if data.classes is None else len(data.classes)
        objective = {0: "squares", 2: "logistic"}.get(classes, "softmax")
        objective += "-l2" if config.alpha is not None else ""
    return dataclasses.replace(config, objective=objective)


def open_problem(config: ProblemConfig) -> tuple[ProblemConfig, LinearModel]:
    """Load the data, divide it among the clients, and return the objective over it.

    Returns:
        The configuration with all that the data has decided, and the problem.

    Raises:
        InputError: a name is unknown, or the data does not suffice for the clients.
    """
    given = None if config.objective is None else find_objective(config.objective)
    data, held_out = load_data(config), None
    config = settle(config, data)
    objective = given or find_objective(str(config.objective))
    if config.held_out:
        try:
            data, held_out = data.split(
                config.held_out, config.partition_seed, by=config.held_out_by
            )
        except InputError as error:
            raise InputError(f"--held-out {config.held_out:g}: {error}") from None
    elif config.held_out_by != "rows":
        raise InputError("--held-out-by clients: give the share too, such as --held-out 0.2")
    problem = objective.problem(
        data,
        build_partition(config, data),
        alpha=config.alpha,
        intercept=config.intercept,
        weights=config.weights,
        metrics=split_names(config.metrics),
        held_out=held_out,
    )
    return config, problem


def build_problem(config: ProblemConfig) -> LinearModel:
    """Load the data, divide it among the clients, and return the objective over it.

    Raises:
        InputError: a name is unknown, or the data does not suffice for the clients.
    """
    return open_problem(config)[1]


def record_target(config: ProblemConfig, target: Target) -> ProblemConfig:
    """Add the metric of a target to those that a problem records, if it is a registered one."""
    name = target.column.removeprefix("held_out_")
    is_metric = name in METRICS or find_quantile(name, METRICS, "--target") is not None
    if not is_metric or name in split_names(config.metrics):
        return config
    names = [name for name in (config.metrics, name) if name]
    return dataclasses.replace(config, metrics=",".join(names))


def find_objective(text: str) -> Objective:
    """Return the objective of a name, or of the loss that `file.py@Class` names.

    A regulariser follows the class as it follows a name: mine.py@Hinge-l2.

    Raises:
        InputError: the name is unknown, or the file has no such loss.
    """
    path, at, word = text.rpartition("@")
    if not at:
        if text not in OBJECTIVES:
            hint = did_you_mean(text, OBJECTIVES)
            losses = [name for name, entry in OBJECTIVES.items() if entry.reg == "none"]
            regs = [f"-{name}" for name in REGULARISERS if name != "none"]
            raise InputError(
                f"unknown objective {text!r}:{hint} losses are {', '.join(losses)}, or your own as "
                f"file.py@Class; a regulariser ({', '.join(regs)}) may follow"
            )
        return OBJECTIVES[text]
    name, dash, suffix = word.partition("-")
    reg: Reg | None = next((reg for reg in REGULARISERS if reg == suffix), None)
    if dash and (reg is None or reg == "none"):
        known = ", ".join(f"{name}-{reg}" for reg in REGULARISERS if reg != "none")
        raise InputError(f"objective {text!r}: with a regulariser it is {known}")
    loss = import_class(Path(path), name, "loss")
    if loss is None:
        raise InputError(f"{path}: has no class {name!r}")
    return Objective(word, loss, reg or "none", LinearModel)
