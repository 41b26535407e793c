"""A node's own client: its rows, its random numbers and its client state.

Only replies leave a node; its rows and its client state stay on it.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from fedpage.core.atomic import put
from fedpage.core.errors import InputError, short_repr
from fedpage.core.messages import field_names
from fedpage.core.random import RoundDraws
from fedpage.core.types import (
    ClientEvaluator,
    DType,
    Fields,
    Ints,
    Keys64,
    Problem,
    Rows,
    Vector,
)
from fedpage.data import Dataset, libsvm
from fedpage.data.dataset import Sparse, encode_labels
from fedpage.data.partition import Partition, partition_from_text
from fedpage.data.registry import DATASETS, platform_cache
from fedpage.flower.config import AppConfig, NodeConfig
from fedpage.problems import OBJECTIVES
from fedpage.runs import build
from fedpage.runs.checkpoint import pack, unpack
from fedpage.runs.fingerprint import code_digest

_STATE_VERSIONS = 6
"""Versions of the client state that a node keeps, for servers that resume an older checkpoint."""


@runtime_checkable
class NodeProblem(Problem, ClientEvaluator, Protocol):
    """A problem that can run on a node: it has one client, whose objective can be scaled."""

    def rescale(self, factor: float) -> Self:
        """Return the problem with every client's objective multiplied by a factor."""
        ...


T = TypeVar("T", bound=Fields)


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
        raise InputError(
            f"node config: partition-id must be the number of one of the {clients} clients, "
            f"0 to {clients - 1}, not {client}"
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
        # The server must not choose files on a node, so only names of data sets are accepted.
        if config.data.partition(":")[0] not in DATASETS:
            raise InputError(
                f"run config: there is no data set {short_repr(config.data)}; "
                "a file is named in the node's own config"
            )
        data = build.load_dataset(config.data)
        partition = partition_from_text(config.partition, data.y, clients, config.partition_seed)
        rows = partition.rows(client)
    else:
        raise InputError(
            "node config: this node has no data; give --node-config 'data=\"/path/of/a/file\"'"
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
            raise InputError(f"{path}: row {row + 1} has label {y[row]:g}, not one of {labels}")
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


class NodeDraws:
    """One round's random numbers for a node's client.

    The node's problem has one client, number 0; the random numbers are those of the client's number
    in the federation.

    Args:
        seed: the run's seed.
        round: the round's number.
        client: the client's number in the federation.
    """

    def __init__(self, seed: int, round: int, client: int) -> None:
        self._draws, self.round = RoundDraws(seed, round), round
        self._client = np.array([client], dtype=np.int64)

    def coin(self, p: float) -> bool:
        """Refuse: only the server draws the coin."""
        raise NotImplementedError("a client does not draw the server's coin")

    def geometric(self, p: float) -> int:
        """Refuse: only the server draws the number of steps, and sends it."""
        raise NotImplementedError("a client does not draw the number of steps")

    def clients(self, N: int, S: int, ago: int = 0) -> Ints:
        """Refuse: only the server samples clients."""
        raise NotImplementedError("a client does not sample clients")

    def order(self, N: int, number: int = 0) -> Ints:
        """Refuse: only the server orders the clients of a pass."""
        raise NotImplementedError("a client does not order the clients of a pass")

    def rows(self, clients: Ints, sizes: Ints, b: int, first: int, count: int) -> Rows:
        """Draw the rows (1, count, min(b, M)) of this client's minibatches."""
        return self._draws.rows(self._client, sizes, b, first, count)

    def client_keys(self, clients: Ints, field: int) -> Keys64:
        """Return the key of this client's own random numbers for a field of its reply, (1,)."""
        return self._draws.client_keys(self._client, field)

    def shared_key(self, field: int) -> np.uint64:
        """Return the key that all clients of the round share, for a field of their replies."""
        return self._draws.shared_key(field)


class ClientStateStore(Generic[T]):
    """The last versions of one client's state, in a file on the node.

    A version is named by the round and the message of the reply that it followed. The server says
    which version a client starts from. So a lost reply, a restarted node and a server that resumes
    an older checkpoint all use the right version, and a repeated message gets the same reply.

    Args:
        folder: directory of the file; "" takes the user's cache directory.
        run: digest that identifies the run.
        client: the client's number.
        state_type: `Method.client_state`.
        d: number of parameters.
        dtype: type of the numbers.
    """

    def __init__(
        self,
        folder: str,
        run: str,
        client: int,
        state_type: type[T],
        d: int,
        dtype: DType | type[np.float64] = np.float64,
    ) -> None:
        base = Path(folder) if folder else platform_cache() / "client-state"
        self._path = base / f"{hashlib.sha256(run.encode()).hexdigest()[:24]}-{client}.npz"
        self._type: Callable[..., T] = state_type
        self._count = len(field_names(state_type))
        self._d, self._dtype = d, np.dtype(dtype)

    def load(self, version: str) -> T:
        """Load a version of the client state.

        Args:
            version: the version's name; "" is the initial state.

        Returns:
            The state, a NamedTuple of (1, d) arrays; zeros for "".

        Raises:
            InputError: the node does not have this version, or the file is damaged.
        """
        if not version:
            return self._type(*(np.zeros((1, self._d), self._dtype) for _ in range(self._count)))
        versions = self._read()
        if version not in versions:
            raise InputError(
                f"this node has no client state of round {version.split()[0]}; "
                f"it was lost ({self._path})"
            )
        return self._type(*(field[None, :] for field in versions[version]))

    def save(self, previous: str, version: str, state: T) -> None:
        """Save a version of the client state beside the one it was computed from.

        Args:
            previous: name of the version that the client started from; it is kept.
            version: name of the new version.
            state: NamedTuple of (1, d) arrays.
        """
        versions = {name: fields for name, fields in self._read().items() if name != version}
        newest = [name for name in versions if name != previous][-(_STATE_VERSIONS - 2) :]
        kept = {name: versions[name] for name in versions if name in newest or name == previous}
        kept[version] = [field[0] for field in state]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        put(self._path, pack({"versions": kept}))

    def _read(self) -> dict[str, list[Vector]]:
        try:
            tree = unpack(self._path.read_bytes(), str(self._path))
        except FileNotFoundError:
            return {}
        versions = tree.get("versions")
        if not isinstance(versions, dict) or not all(map(self._is_state, versions.values())):
            raise InputError(f"{self._path}: not the client state of this client in this run")
        return versions

    def _is_state(self, fields: Sequence[Vector]) -> bool:
        return len(fields) == self._count and all(
            field.shape == (self._d,) and field.dtype == self._dtype for field in fields
        )
