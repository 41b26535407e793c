"""A node's own client: its rows, or the problem that the app's own function builds from them."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpage.core.capabilities import HasCode, NodeProblem
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Problem
from fedpage.data import load
from fedpage.data.partition import Partition, partition_from_text
from fedpage.flower.agreement import Agreement
from fedpage.flower.config import AppConfig, NodeConfig
from fedpage.flower.node_errors import Code, NodeError
from fedpage.flower.schema import is_classification, parse_schema
from fedpage.flower.site_files import SiteStatistics, read_site_file, read_statistics
from fedpage.problems import OBJECTIVES
from fedpage.problems.cox import CoxModel
from fedpage.runs.fingerprint import code_digest


@dataclass(frozen=True)
class NodeContext:
    """What an objective of the app may know of the node on which it is called.

    Attributes:
        client: the number of the node's client; None on the server.
        clients: the number of clients.
        data: the file that the node's own configuration names; "" if it names none.
        options: the words of the node's own configuration, as {"folder": "/images"}.
    """

    client: int | None
    clients: int
    data: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


class NodeData(NamedTuple):
    """The client that a node holds."""

    client: int
    problem: NodeProblem
    """The client's objective over its own rows; a problem with one client."""
    digest: str
    """SHA-256 of the client's rows."""
    features: int
    """Features of a row; 0 for an objective of the app."""
    columns: tuple[str, ...]
    """The feature columns of its file; () for other data."""


def load_node_data(node: NodeConfig, config: AppConfig, agreement: str = "") -> NodeData:
    """Load a node's client from the node's own file, or as its part of the run's data set.

    Args:
        node: the node's configuration.
        config: the run's configuration.
        agreement: what the sites agreed on, as a request has it; "" before they did.

    Returns:
        The client, as a problem with one client.

    Raises:
        NodeError: the configuration or the data cannot be used.
    """
    return _load_node_data(node, config, agreement, _file_stamp(node.data))


def _file_stamp(path: str) -> tuple[int, int]:
    """Return what tells whether a file has changed since it was read."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return 0, 0
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=256)
def _load_node_data(
    node: NodeConfig, config: AppConfig, agreement: str, stamp: tuple[int, int]
) -> NodeData:
    client, clients = check_client(node, config), config.clients
    agreed = Agreement.from_text(agreement) if agreement else None
    if config.has_own_problem:
        problem = load_own_problem(config.objective, client, clients, node.data, node.options)
        rows = str(problem.describe().get("data_digest", ""))
        digest = hashlib.sha256(rows.encode()).hexdigest()
        return NodeData(client, problem, digest, 0, ())
    schema = parse_schema(config).resolve(agreed)
    columns: tuple[str, ...] = ()
    event = None
    if node.data:
        if schema.shares_statistics and not node.share_statistics:
            raise NodeError(
                Code.NO_STATISTICS,
                "node config: the run needs share-statistics=true, the mean and variance of "
                "each column",
            )
        if is_classification(config) and not schema.classes:
            raise NodeError(
                Code.NO_CLASSES, "run config: classes must be named, such as classes = '0,1'"
            )
        data, digest, columns, event = read_site_file(
            Path(node.data), schema, agreed, config.features
        )
        own = np.arange(data.rows, dtype=np.int64)
    elif config.data:
        data = load(config.data)
        partition = partition_from_text(config.partition, data.y, clients, config.partition_seed)
        own, digest = partition.rows(client), data.digest
    else:
        raise NodeError(
            Code.NO_DATA,
            "node config: this node has no data; give --node-config 'data=\"/path/of/a/file\"'",
        )
    own_rows = Partition(f"client {client}", own, np.array([0, len(own)]))
    digest = hashlib.sha256(f"{digest} {own_rows.digest}".encode()).hexdigest()
    if event is not None:
        cox = CoxModel(data, data.y, event, own_rows, ties=config.ties)
        return NodeData(client, cox, digest, data.features, columns)
    objective = OBJECTIVES[config.objective]
    alpha = None if objective.reg == "none" else config.alpha
    linear_model = objective.problem(
        data, own_rows, alpha=alpha, intercept=config.intercept, metrics=config.metric_names
    )
    return NodeData(client, linear_model, digest, data.features, columns)


def check_client(node: NodeConfig, config: AppConfig) -> int:
    """Return the number of a node's client.

    Raises:
        NodeError: it is not that of a client of the run.
    """
    if node.partition_id >= config.clients:
        raise NodeError(
            Code.BAD_CLIENT,
            f"node config: partition-id must be the number of one of the {config.clients} clients, "
            f"0 to {config.clients - 1}, not {node.partition_id}",
        )
    return node.partition_id


def load_statistics(node: NodeConfig, config: AppConfig, agreement: str) -> SiteStatistics:
    """Compute what a node tells of its own file before the sites agree.

    Args:
        node: the node's configuration.
        config: the run's configuration.
        agreement: the agreed columns, as a request has them.

    Returns:
        The categories that enough rows have, and the statistics if the run needs them.

    Raises:
        NodeError: the owner does not share the statistics, or the file cannot be used.
    """
    schema = parse_schema(config)
    is_asked = schema.open_columns or schema.shares_statistics
    is_kept = schema.shares_statistics and not node.share_statistics
    if not node.data or is_kept or not is_asked:
        raise NodeError(Code.NO_STATISTICS, "node config: share-statistics is not set")
    columns = Agreement.from_text(agreement).columns
    return read_statistics(Path(node.data), schema, columns, node.least_cell)


def problem_digest(problem: Problem) -> str:
    """Return a digest of what must be equal everywhere: the problem's code and a model's start."""
    if not isinstance(problem, HasCode) or not hasattr(problem, "start_digest"):
        return class_digest(type(problem))
    classes = [type(problem), *(cls for _, cls in sorted(problem.code.items()))]
    words = [problem.start_digest, *map(code_digest, classes)]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def class_digest(model: type) -> str:
    """Return the digest of the code of a linear model's class, as `problem_digest` does."""
    return hashlib.sha256(f" {code_digest(model)}".encode()).hexdigest()


@lru_cache(maxsize=256)
def load_own_problem(
    objective: str, client: int | None, clients: int, data: str = "", options: str = ""
) -> NodeProblem:
    """Build the problem of one client by calling the app's `module:function`.

    The function is called as function(client, clients, node), or without the last argument if it
    takes two. It returns a problem with one client, the rows of this node. For the server, whose
    client is None, it returns the held-out rows, or a problem without rows. The initial parameters
    x0, d and dtype must be the same on every node and on the server.

    Args:
        objective: "module:function".
        client: the client's number, or None for the server.
        clients: the number of clients.
        data: the file of the node's own configuration.
        options: the words of the node's own configuration.

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
    arguments: list[object] = [client, clients]
    if _takes_context(function):
        arguments.append(NodeContext(client, clients, data, _parse_options(options)))
    try:
        problem = function(*arguments)
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
    if problem.N != 1 and not (client is None and problem.N == 0):
        raise InputError(
            f"{objective}: must return a problem with the rows of one client, not of {problem.N}"
        )
    return problem


def _takes_context(function: object) -> bool:
    """Say whether a function takes a third argument, the node's context."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in parameters) >= 3


def _parse_options(text: str) -> dict[str, str]:
    """Read words such as "folder=/images size=64"; a value with spaces has quotes."""
    try:
        words = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise NodeError(Code.BAD_CONFIG, f"node config: options cannot be read ({error})") from None
    for name, equals, _ in words:
        if not name or not equals:
            raise NodeError(
                Code.BAD_CONFIG,
                f"node config: options must be words as folder=/images, not {short_repr(name)}",
            )
    return {name: value for name, _, value in words}
