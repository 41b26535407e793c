"""What a node knows: its own rows, which client it is, what it remembers. Nothing of it leaves the node but replies."""

from __future__ import annotations

import csv
import hashlib
import importlib
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpage.core.atomic import put
from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import RoundDraws
from fedpage.core.types import Ints, Rows, Vector
from fedpage.data import Dataset, libsvm
from fedpage.data.dataset import signed
from fedpage.data.partition import Partition, partition_from_text
from fedpage.data.registry import DATASETS, platform_cache
from fedpage.runs import build, toml
from fedpage.runs.checkpoint import pack, unpack
from fedpage.runs.fingerprint import code_digest

CONFIG: dict[str, type] = {
    "method": str, "hyper": str, "data": str, "partition": str, "partition-seed": int, "objective": str, "alpha": float,
    "weights": str, "labels": str, "label": str, "features": int, "clients": int, "rounds": int, "seed": int,
    "record-every": int, "target": float, "deadline": float, "wait": float, "poll": float, "retries": int,
    "full-retries": int, "patience": int, "lost-after": int, "out": str, "checkpoint-every": str,
}  # fmt: skip
"""The run's configuration, [tool.flwr.app.config]: what server and nodes are told alike."""
_VERSIONS = 6
"""Replies whose memory a node keeps, so that a server may go back to an older checkpoint."""


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The run's configuration, whole and of the right types."""
    toml.known(config, CONFIG, "run config", set())
    table = dict(config)
    for name in ("clients", "rounds"):
        if table[name] < 1:
            raise InputError(f"run config: {name} must be at least 1, not {table[name]}")
    for name in ("features", "record-every"):
        if table[name] < 0:
            raise InputError(f"run config: {name} must be 0 or more, not {table[name]}")
    for name in ("alpha", "target", "deadline", "wait", "poll"):
        table[name] = float(table[name])  # TOML's 1 and 1.0 are the same setting
    if table["target"] < 0:
        raise InputError(f"run config: target must be 0 or more, not {table['target']}")
    for name in ("deadline", "wait", "poll"):
        if not 0 < table[name] < 1e7:
            raise InputError(f"run config: {name} must be seconds, more than 0, not {table[name]}")
    if table["weights"] not in ("uniform", "size"):
        raise InputError(
            f"run config: weights must be 'uniform' or 'size', not {short_repr(table['weights'])}"
        )
    return table


def method_of(config: Mapping[str, Any]) -> Any:
    """The method that a run's configuration names: `method` and `hyper`, such as "S=2 K=10 eta_g=0.1"."""
    kind = build.find_method(str(config["method"]))
    words = {}
    for word in str(config["hyper"]).split():
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise InputError(
                f"run config: hyper must be words such as S=2 K=10, not {short_repr(word)}"
            )
        words[name.replace("-", "_")] = value
    return kind(**build.parse_hyper_parameters(kind, words))


class NodeData(NamedTuple):
    """A node's own client."""

    client: int
    problem: Any
    """Its objective over its own rows: a problem with this one client."""
    digest: str
    """Of its rows; it tells whether they are still the same."""
    labels: str
    """The kinds of labels in its file, or "many"; "" if somebody has said which they are."""


def site_of(node: Mapping[str, Any], run: Mapping[str, Any], features: int = 0) -> NodeData:
    """The node's client: from the file that the node's own configuration names, or its part of the run's data set."""
    return _site(tuple(sorted(node.items())), tuple(sorted(run.items())), features)


@lru_cache(maxsize=256)
def _site(
    node: tuple[tuple[str, Any], ...], run: tuple[tuple[str, Any], ...], features: int
) -> NodeData:
    own, config = dict(node), dict(run)
    client, clients = own.get("partition-id"), int(config["clients"])
    if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client < clients:
        raise InputError(
            f"node config: partition-id must say which of the {clients} clients this is, 0 to {clients - 1}, "
            f"not {short_repr(client)}"
        )
    if ":" in str(config["objective"]):
        mine = own_problem(str(config["objective"]), client, clients)
        return NodeData(client, mine, str(mine.describe().get("data_digest", "")), "")
    width = features or int(config["features"]) or None
    path, kinds = own.get("data"), ""
    if path:
        data, kinds = read(Path(str(path)), width, str(config["labels"]), str(config["label"]))
        rows = np.arange(data.rows, dtype=np.int64)
    elif config["data"]:
        if (
            str(config["data"]).partition(":")[0] not in DATASETS
        ):  # a server names no files on a node
            raise InputError(
                f"run config: there is no data set {short_repr(config['data'])}; the node's own config names files"
            )
        data = build.load_dataset(str(config["data"]))
        rows = partition_from_text(
            str(config["partition"]), data.y, clients, int(config["partition-seed"])
        ).rows(client)
    else:
        raise InputError(
            "node config: this node has no data; give --node-config 'data=\"/path/of/a/file\"'"
        )
    alone = Partition(f"client {client}", rows, np.array([0, len(rows)]))
    alpha = (
        None if config["objective"] in ("robust", "logistic", "squares") else float(config["alpha"])
    )
    problem = build.build_objective(data, alone, str(config["objective"]), alpha)
    digest = hashlib.sha256(f"{data.digest} {alone.digest}".encode()).hexdigest()
    return NodeData(client, problem, digest, kinds)


def problem_digest(problem: Any) -> str:
    """Of what must be the same everywhere: a problem's code, and a model's code and start."""
    kinds = [type(problem), *(kind for _, kind in sorted(getattr(problem, "code", {}).items()))]
    start = getattr(problem, "start_digest", "")  # of a model, where it starts
    return hashlib.sha256(" ".join([start, *map(code_digest, kinds)]).encode()).hexdigest()


@lru_cache(maxsize=256)
def own_problem(objective: str, client: int | None, clients: int) -> Any:
    """The problem that `module:function` of the app makes for one client; for the server where client is None.

    The function is called as function(client, clients) and returns a problem with one client: the rows of this node,
    or on the server those to hold out. Its start x0, its d and its dtype must be the same everywhere.
    """
    module, _, name = objective.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"run config: objective {short_repr(objective)} cannot be imported ({error})"
        ) from None
    try:
        problem = make(client, clients)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{objective} failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
    lacking = [
        word
        for word in ("oracle", "evaluate", "evaluate_clients", "scaled", "describe")
        if not hasattr(problem, word)
    ]
    if lacking or problem.N != 1:
        why = f"it lacks {', '.join(lacking)}" if lacking else f"it has {problem.N} clients"
        raise InputError(
            f"{objective}: must return a problem with the rows of one client, such as a TorchProblem; {why}"
        )
    return problem


def read(path: Path, features: int | None, labels: str, label: str) -> tuple[Dataset, str]:
    """A site's own file, LIBSVM (plain or packed) or .csv with a header and a column of labels; its labels' kinds."""
    if path.suffix.lower() == ".csv":
        X, y = _csv(path, label)
        if features is not None and X.shape[1] != features:
            raise InputError(
                f"{path}: {X.shape[1]} feature columns, where {features} are agreed on"
            )
        made = Dataset.from_arrays(X, np.zeros(len(y)), name=path.name)
        return _labelled(made, y, labels, path)
    parsed = libsvm.parse(libsvm.read_bytes(path), features=features, source=str(path))
    made = Dataset(
        path.name, parsed.indptr, parsed.indices, parsed.values, parsed.y, parsed.features
    )
    return _labelled(made, parsed.y, labels, path)


def _labelled(data: Dataset, y: Vector, labels: str, path: Path) -> tuple[Dataset, str]:
    """Labels as -1/+1. A site may have one kind only, and must not guess which that is: the server looks at all."""
    kinds = ""
    if labels:
        parts = labels.split(",")
        try:
            low, high = (float(part) for part in parts)
        except ValueError:
            raise InputError(
                f"run config: labels must be two numbers such as '0,1', not {labels!r}"
            ) from None
        strange = np.flatnonzero((y != low) & (y != high))
        if len(strange):
            raise InputError(
                f"{path}: row {strange[0] + 1} is labelled {y[strange[0]]:g}, which is not one of {labels}"
            )
        y = np.where(y == high, 1.0, -1.0)
    else:
        found = np.unique(y)
        kinds = ",".join(f"{value:g}" for value in found) if len(found) <= 2 else "many"
        y = signed(y)
    return Dataset(data.name, data.indptr, data.indices, data.values, y, data.features), kinds


def _csv(path: Path, label: str) -> tuple[Vector, Vector]:
    """(n, d) features and (n,) labels; the column of labels is named, or the last one."""
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
            f"{path}: the first line must name at least two columns, features and the label"
        )
    if label and label not in header:
        raise InputError(
            f"{path}: there is no column {label!r}; there are {', '.join(header)[:100]}"
        )
    where = header.index(label) if label else len(header) - 1
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
        raise InputError(f"{path}: there is no row below its header")
    table = np.array(rows)
    return np.delete(table, where, axis=1), table[:, where]


class NodeDraws:
    """A round's random numbers for one client: its number in the federation, not in its own problem, counts."""

    def __init__(self, seed: int, round: int, client: int) -> None:
        self._draws, self.round = RoundDraws(seed, round), round
        self._client = np.array([client], dtype=np.int64)

    def coin(self, p: float) -> bool:
        """The server's coin is none of a client's business."""
        raise NotImplementedError("clients toss no coins")

    def clients(self, N: int, S: int) -> Ints:
        """Nor is whom it calls."""
        raise NotImplementedError("clients choose no clients")

    def rows(self, clients: Ints, sizes: Ints, b: int, first: int, count: int) -> Rows:
        """(1, count, min(b, M)): this client's minibatches."""
        return self._draws.rows(self._client, sizes, b, first, count)


class ClientStateStore:
    """What a client remembers, in a file of its own on the node, by the round and message that it dates from.

    The server says which memory counts. So a reply that was lost, a node that was restarted and a server that
    went back to a checkpoint all find the memory that belongs to them, and a call that comes twice gets the same reply.
    """

    def __init__(
        self, folder: str, run: str, client: int, kind: type[Any], d: int, dtype: Any = np.float64
    ) -> None:
        base = Path(folder) if folder else platform_cache() / "memory"
        self._path = base / f"{hashlib.sha256(run.encode()).hexdigest()[:24]}-{client}.npz"
        self._kind, self._d, self._dtype = kind, d, np.dtype(dtype)

    def get(self, dated: str) -> Any:
        """(1, d) the memory after the client's reply to `dated`, such as "4 Walk"; all zero for ""."""
        if not dated:
            return self._kind(*(np.zeros((1, self._d), self._dtype) for _ in self._kind._fields))
        rounds = self._rounds()
        if dated not in rounds:
            raise InputError(
                f"this node has no memory of round {dated.split()[0]}; it has been lost ({self._path})"
            )
        return self._kind(*(part[None, :] for part in rounds[dated]))

    def keep(self, dated: str, now: str, memory: Any) -> None:
        """Remember what a reply to `now` leads to, and what it came from; of others the last few."""
        rounds = {key: parts for key, parts in self._rounds().items() if key != now}
        newest = [key for key in rounds if key != dated][-(_VERSIONS - 2) :]
        kept = {key: rounds[key] for key in rounds if key in newest or key == dated}
        kept[now] = [part[0] for part in memory]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        put(self._path, pack({"rounds": kept}))

    def _rounds(self) -> dict[str, list[Vector]]:
        try:
            tree = unpack(self._path.read_bytes(), str(self._path))
        except FileNotFoundError:
            return {}
        rounds = tree.get("rounds")
        n = len(self._kind._fields)
        sound = isinstance(rounds, dict) and all(
            isinstance(key, str)
            and len(parts) == n
            and all(part.shape == (self._d,) and part.dtype == self._dtype for part in parts)
            for key, parts in rounds.items()
        )
        if not sound:
            raise InputError(f"{self._path}: not what this client remembers of this run")
        found: dict[str, list[Vector]] = tree["rounds"]
        return found
