"""A node's own client: its rows, or the problem that the app's own function builds from them."""

from __future__ import annotations

import csv
import hashlib
import importlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import (
    ClientEvaluator,
    Problem,
    Vector,
)
from fedpage.data import Dataset, libsvm
from fedpage.data.dataset import Sparse, encode_labels
from fedpage.data.partition import Partition, partition_from_text
from fedpage.flower.config import AppConfig, NodeConfig
from fedpage.flower.node_errors import Code, NodeError
from fedpage.problems import OBJECTIVES
from fedpage.runs import build
from fedpage.runs.fingerprint import code_digest


@runtime_checkable
class NodeProblem(Problem, ClientEvaluator, Protocol):
    """A problem that can run on a node: it has one client, whose objective can be scaled."""

    def rescale(self, factor: float) -> Self:
        """Return the problem with every client's objective multiplied by a factor."""
        ...


@runtime_checkable
class ModelProblem(Protocol):
    """A problem with a model of its own, such as a TorchProblem."""

    @property
    def start_digest(self) -> str:
        """Digest of the model, its initial parameters, the loss and the dtype."""
        ...

    @property
    def code(self) -> Mapping[str, type]:
        """The user's classes that decide what is computed, by name."""
        ...


class NodeData(NamedTuple):
    """The client that a node holds."""

    client: int
    problem: NodeProblem
    """The client's objective over its own rows; a problem with one client."""
    digest: str
    """SHA-256 of the client's rows."""
    labels: str
    """Distinct labels in its file, "many" for more than two, or "" if the run config names them."""


@lru_cache(maxsize=256)
def load_node_data(node: NodeConfig, config: AppConfig, features: int = 0) -> NodeData:
    """Load a node's client from the node's own file, or as its part of the run's data set.

    Args:
        node: the node's configuration.
        config: the run's configuration.
        features: number of features d; 0 takes it from the configuration or from the data.

    Returns:
        The client, as a problem with one client.

    Raises:
        InputError: the configuration or the data cannot be used.
    """
    client, clients = node.partition_id, config.clients
    if client >= clients:
        raise NodeError(
            Code.BAD_CONFIG,
            f"node config: partition-id must be the number of one of the {clients} clients, "
            f"0 to {clients - 1}, not {client}",
        )
    if config.has_own_problem:
        problem = load_own_problem(config.objective, client, clients)
        return NodeData(client, problem, str(problem.describe().get("data_digest", "")), "")
    width = features or config.features or None
    labels = ""
    if node.data:
        data, labels = read_file(Path(node.data), width, config.labels, config.label)
        rows = np.arange(data.rows, dtype=np.int64)
    elif config.data:
        data = build.load_dataset(config.data)
        partition = partition_from_text(config.partition, data.y, clients, config.partition_seed)
        rows = partition.rows(client)
    else:
        raise NodeError(
            Code.NO_DATA,
            "node config: this node has no data; give --node-config 'data=\"/path/of/a/file\"'",
        )
    own_rows = Partition(f"client {client}", rows, np.array([0, len(rows)]))
    objective = OBJECTIVES[config.objective]
    alpha = None if objective.reg == "none" else config.alpha
    linear_model = objective.problem(data, own_rows, alpha=alpha, metrics=config.metric_names)
    digest = hashlib.sha256(f"{data.digest} {own_rows.digest}".encode()).hexdigest()
    return NodeData(client, linear_model, digest, labels)


def problem_digest(problem: Problem) -> str:
    """Return a digest of what must be equal everywhere: the problem's code and a model's start."""
    classes: list[type] = [type(problem)]
    start = ""
    if isinstance(problem, ModelProblem):
        start = problem.start_digest
        classes += [cls for _, cls in sorted(problem.code.items())]
    return hashlib.sha256(" ".join([start, *map(code_digest, classes)]).encode()).hexdigest()


@lru_cache(maxsize=256)
def load_own_problem(objective: str, client: int | None, clients: int) -> NodeProblem:
    """Build the problem of one client by calling the app's `module:function`.

    The function is called as function(client, clients). It returns a problem with one client: the
    rows of this node or, for the server, the held-out rows. The initial parameters x0, d and dtype
    must be the same on every node and on the server.

    Args:
        objective: "module:function".
        client: the client's number, or None for the server.
        clients: the number of clients.

    Returns:
        The problem.

    Raises:
        InputError: the function cannot be imported, fails, or returns something else.
    """
    module, _, name = objective.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"run config: objective {short_repr(objective)} cannot be imported ({error})"
        ) from None
    try:
        problem = function(client, clients)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{objective} failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
    if not isinstance(problem, NodeProblem):
        raise InputError(
            f"{objective}: must return a problem such as a TorchProblem, not {short_repr(problem)}"
        )
    if problem.N != 1:
        raise InputError(
            f"{objective}: must return a problem with the rows of one client, not of {problem.N}"
        )
    return problem


def read_file(path: Path, features: int | None, labels: str, label: str) -> tuple[Dataset, str]:
    """Read a node's own file: LIBSVM (plain or compressed), or .csv with a header.

    Args:
        path: the file.
        features: the number of features; None takes it from the file.
        labels: negative and positive label, such as "0,1"; "" takes them from the file.
        label: the label column of a .csv file; "" takes the last.

    Returns:
        The data set with labels -1 and +1, and the distinct labels that the file has: "0,1",
        "many" for more than two, or "" if `labels` is given.

    Raises:
        InputError: the file cannot be read, or its content cannot be used.
    """
    if path.suffix.lower() == ".csv":
        X, y = _read_csv(path, label)
        if features is not None and X.shape[1] != features:
            raise InputError(f"{path}: {X.shape[1]} feature columns, but {features} are expected")
        data = Dataset.from_arrays(X, np.zeros(len(y)), name=path.name)
        return _with_signed_labels(data, y, labels, path)
    parsed = libsvm.parse(libsvm.read_bytes(path), features=features, source=str(path))
    matrix = Sparse(parsed.indptr, parsed.indices, parsed.values, parsed.features)
    data = Dataset(path.name, matrix, parsed.y)
    return _with_signed_labels(data, parsed.y, labels, path)


def _with_signed_labels(data: Dataset, y: Vector, labels: str, path: Path) -> tuple[Dataset, str]:
    """Map labels to -1 and +1.

    A file with one label only does not tell which of the two it is, so the file's labels are
    returned too: the server compares those of all nodes.
    """
    distinct = ""
    if labels:
        try:
            low, high = (float(part) for part in labels.split(","))
        except ValueError:
            raise InputError(
                f"run config: labels must be two numbers such as '0,1', not {labels!r}"
            ) from None
        strange = np.flatnonzero((y != low) & (y != high))
        if len(strange):
            row = strange[0]
            raise NodeError(
                Code.BAD_LABEL, f"{path}: row {row + 1} has label {y[row]:g}, not one of {labels}"
            )
        y = np.where(y == high, 1.0, -1.0)
    else:
        found = np.unique(y)
        distinct = ",".join(f"{value:g}" for value in found) if len(found) <= 2 else "many"
        y, _ = encode_labels(data.name, y)
    return replace(data, y=y), distinct


def _read_csv(path: Path, label: str) -> tuple[Vector, Vector]:
    """Return (n, d) features and (n,) labels of a .csv file of numbers."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    reader = csv.reader(text.splitlines())
    header = next(reader, [])
    if len(header) < 2:
        raise InputError(
            f"{path}: the first line must name at least two columns, a feature and the label"
        )
    if label and label not in header:
        raise InputError(
            f"{path}: there is no column {label!r}; the columns are {', '.join(header)[:100]}"
        )
    column = header.index(label) if label else len(header) - 1
    rows: list[list[float]] = []
    for number, cells in enumerate(reader, start=2):
        if not cells:
            continue
        try:
            values = [float(cell) for cell in cells]
        except ValueError:
            raise InputError(f"{path}, line {number}: every cell must be a number") from None
        if len(values) != len(header) or not all(map(math.isfinite, values)):
            raise InputError(f"{path}, line {number}: {len(header)} finite numbers are expected")
        rows.append(values)
    if not rows:
        raise InputError(f"{path}: there is no row below the header")
    table = np.array(rows)
    return np.delete(table, column, axis=1), table[:, column]
