"""Partitions: which client holds which rows of a data set.

To add one, write a function of `n` (rows) or `y` (labels), `clients`, if need be one parameter of
its own, and `seed` if it is random, and register it under the name that `--partition` takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import get_type_hints

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import permutation, uniforms
from fedpage.core.registry import Registry
from fedpage.core.types import Ints, Vector


@dataclass(frozen=True, eq=False)
class Partition:
    """Assign rows to clients: client i holds the rows `order[ptr[i]:ptr[i+1]]`.

    Attributes:
        name: the partition and its parameters, such as "iid(10, seed=0)".
        order: (used,) row numbers.
        ptr: (N+1,) where each client's rows begin in `order`.

    Raises:
        InputError: a client has no row, or a row is assigned twice.
    """

    name: str
    order: Ints
    ptr: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", np.ascontiguousarray(self.order, dtype=np.int64))
        object.__setattr__(self, "ptr", np.ascontiguousarray(self.ptr, dtype=np.int64))
        if self.N < 1:
            raise InputError(f"partition {self.name}: at least one client is needed")
        if (
            self.order.ndim != 1
            or self.ptr.ndim != 1
            or self.ptr[0] != 0
            or self.ptr[-1] != len(self.order)
        ):
            raise InputError(
                f"partition {self.name}: ptr must rise from 0 to the number of rows in order"
            )
        if len(self.order) and (
            int(self.order.min()) < 0 or len(np.unique(self.order)) < len(self.order)
        ):
            raise InputError(f"partition {self.name}: a row number is negative or occurs twice")
        sizes = np.diff(self.ptr)
        empty = int((sizes < 1).sum())
        if empty:
            first = int(np.argmax(sizes < 1))
            raise InputError(
                f"partition {self.name}: {empty} of {self.N} clients have no row "
                f"(the first is client {first}); "
                "use fewer clients or a less skewed partition"
            )

    @property
    def N(self) -> int:
        """The number of clients."""
        return len(self.ptr) - 1

    @property
    def sizes(self) -> Ints:
        """(N,) the number of rows M_i of each client."""
        return np.diff(self.ptr)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the rows that each client holds, in their order."""
        state = hashlib.sha256(f"fedpage-partition-1 {self.N}".encode())
        state.update(np.ascontiguousarray(self.ptr, dtype="<i8").tobytes())
        state.update(np.ascontiguousarray(self.order, dtype="<i8").tobytes())
        return state.hexdigest()

    def rows(self, client: int) -> Ints:
        """Return the row numbers of one client."""
        return self.order[self.ptr[client] : self.ptr[client + 1]]


def _check_counts(name: str, n: int, clients: int) -> int:
    """Check that n rows are enough for the clients, and return their number as an int."""
    for what, value in (("rows", n), ("clients", clients)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise InputError(
                f"{name}: the number of {what} must be a whole number of at least 1, not {value!r}"
            )
    if clients > n:
        raise InputError(
            f"{name}: {clients} clients need at least {clients} rows, and there are {n}; "
            "use fewer clients"
        )
    return int(clients)


def _check_real(name: str, what: str, value: float) -> float:
    """Check that a parameter is a finite number, and return it as a float."""
    if (
        not isinstance(value, (int, float, np.number))
        or isinstance(value, bool)
        or not np.isfinite(value)
    ):
        raise InputError(f"{name}: {what} must be a finite number, not {value!r}")
    return float(value)


def _equal_parts(order: Ints, clients: int, name: str) -> Partition:
    """Cut rows into equal parts in their order, and leave the remainder out."""
    each = len(order) // clients
    return Partition(name, order[: each * clients], np.arange(clients + 1, dtype=np.int64) * each)


def _from_owners(owner: Ints, clients: int, name: str) -> Partition:
    """Build a partition from each row's client (n,); a client's rows keep the order of the data."""
    ptr = np.zeros(clients + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=clients), out=ptr[1:])
    return Partition(name, np.argsort(owner, kind="stable").astype(np.int64), ptr)


PARTITIONS: Registry[Callable[..., Partition]] = Registry("partition")
"""The partitions by the names that `--partition` takes."""


@PARTITIONS.register("blocks")
def blocks(n: int, clients: int) -> Partition:
    """Give each client a block of floor(n/N) consecutive rows, as the paper does.

    Args:
        n: the number of rows; the n mod N last ones are not used.
        clients: the number of clients, N.

    >>> blocks(7, 3).rows(1).tolist()
    [2, 3]
    """
    clients = _check_counts("blocks", n, clients)
    return _equal_parts(np.arange(n, dtype=np.int64), clients, f"blocks({clients})")


@PARTITIONS.register("iid")
def iid(n: int, clients: int, seed: int = 0) -> Partition:
    """Shuffle the rows, then cut them into equal blocks, so that clients resemble each other."""
    clients = _check_counts("iid", n, clients)
    return _equal_parts(permutation(seed, 1, size=n), clients, f"iid({clients}, seed={seed})")


@PARTITIONS.register("label-shards")
def label_shards(y: Vector, clients: int, shards: int = 2, seed: int = 0) -> Partition:
    """Sort rows by label and deal `shards` equal pieces of them to each client at random.

    Args:
        y: (n,) labels.
        clients: the number of clients, N.
        shards: pieces that each client gets; fewer pieces mean more heterogeneous clients.
        seed: of the random deal.
    """
    n = len(y)
    clients = _check_counts("label_shards", n, clients)
    if (
        not isinstance(shards, (int, np.integer))
        or isinstance(shards, bool)
        or shards < 1
        or clients * shards > n
    ):
        raise InputError(
            f"label_shards: {clients} clients with {shards} shards each do not fit into {n} rows"
        )
    by_class = np.argsort(y, kind="stable").astype(np.int64)
    each = n // (clients * shards)
    pieces = by_class[: each * clients * shards].reshape(clients * shards, each)
    dealt = pieces[permutation(seed, 2, size=clients * shards)]
    return _equal_parts(
        dealt.ravel(), clients, f"label_shards({clients}, shards={shards}, seed={seed})"
    )


@PARTITIONS.register("dirichlet")
def dirichlet(y: Vector, clients: int, alpha: float, seed: int = 0) -> Partition:
    """Divide each label's rows among the clients in proportions drawn from Dirichlet(alpha).

    If a client is left without rows, the draw is repeated, up to 50 times.

    Args:
        y: (n,) labels.
        clients: the number of clients, N.
        alpha: concentration; where it is small, a client sees few labels and sizes differ much.
        seed: of the random proportions.

    Raises:
        InputError: after 50 draws a client still has no row.
    """
    from scipy.special import gammaincinv

    n = len(y)
    clients = _check_counts("dirichlet", n, clients)
    alpha = _check_real("dirichlet", "alpha", alpha)
    if not alpha > 0:
        raise InputError(f"dirichlet: alpha must be positive, not {alpha!r}")
    labels, which = np.unique(y, return_inverse=True)
    name = f"dirichlet({clients}, alpha={alpha:g}, seed={seed})"
    for attempt in range(50):
        owner = np.empty(n, dtype=np.int64)
        for label in range(len(labels)):
            rows = np.flatnonzero(which == label)
            rows = rows[permutation(seed, 3, attempt, label, size=len(rows))]
            share = gammaincinv(min(alpha, 1e280), uniforms(seed, 4, attempt, label, size=clients))
            if share.sum() <= 0:  # alpha is so small that every share underflows
                share[int(uniforms(seed, 5, attempt, label, size=1)[0] * clients)] = 1.0
            cuts = np.floor(np.cumsum(share) / share.sum() * len(rows) + 0.5).astype(np.int64)
            owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right").clip(
                max=clients - 1
            )
        if np.bincount(owner, minlength=clients).min() >= 1:
            break
    return _from_owners(owner, clients, name)


@PARTITIONS.register("power-law")
def power_law(n: int, clients: int, exponent: float = 1.0, seed: int = 0) -> Partition:
    """Shuffle the rows and give clients numbers of rows that fall like rank^-exponent.

    Every client has at least one row, and all n rows are used.
    """
    clients = _check_counts("power_law", n, clients)
    exponent = _check_real("power_law", "the exponent", exponent)
    if exponent < 0:
        raise InputError(f"power_law: the exponent must be 0 or more and finite, not {exponent!r}")
    weight = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    ideal = weight / weight.sum() * (n - clients)
    sizes = 1 + np.floor(ideal).astype(np.int64)
    short = n - int(sizes.sum())
    sizes[np.argsort(-(ideal - np.floor(ideal)), kind="stable")[:short]] += 1
    sizes = sizes[permutation(seed, 6, size=clients)]
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Partition(
        f"power_law({clients}, exponent={exponent:g}, seed={seed})",
        permutation(seed, 7, size=n),
        ptr,
    )


def partition_from_text(text: str, y: Vector, clients: int, seed: int = 0) -> Partition:
    """Make the partition that a text such as "iid" or "dirichlet:0.3" describes.

    Args:
        text: a name of PARTITIONS and, after a colon, the value of its own parameter.
        y: (n,) labels.
        clients: the number of clients, N.
        seed: of partitions that are random.

    Raises:
        InputError: the name is unknown, or its parameter is missing or not a number.

    >>> int(partition_from_text("power-law:1.5", np.ones(100), 4).sizes.sum())
    100
    """
    name, _, value = text.partition(":")
    name = name.replace("_", "-")
    if name not in PARTITIONS:
        raise InputError(f"{PARTITIONS.unknown(name).partition(' known are ')[0]} choose {usage()}")
    make = PARTITIONS[name]
    parameter = own_parameter(make)
    shared = {"n": len(y), "y": y, "clients": clients, "seed": seed}
    arguments = {key: shared[key] for key in signature(make).parameters if key in shared}
    if value and parameter is None:
        raise InputError(f"partition {text!r}: {name} has no parameter; leave {value!r} out")
    if parameter is not None and value:
        kind = get_type_hints(make)[parameter.name]
        try:
            arguments[parameter.name] = kind(value)
        except ValueError:
            noun = "whole number" if kind is int else "number"
            raise InputError(
                f"partition {short_repr(text)}: {parameter.name} must be a {noun}"
            ) from None
    elif parameter is not None and parameter.default is Parameter.empty:
        raise InputError(f"partition {name} needs its {parameter.name}, such as {name}:0.3")
    return make(**arguments)


def own_parameter(make: Callable[..., Partition]) -> Parameter | None:
    """Return a partition's own parameter, such as Dirichlet's alpha, or None."""
    shared = ("n", "y", "clients", "seed")
    return next((p for p in signature(make).parameters.values() if p.name not in shared), None)


def usage() -> str:
    """List the partitions as `--partition` takes them, with optional parameters in brackets.

    >>> usage()
    'blocks, iid, label-shards[:shards], dirichlet:alpha, power-law[:exponent]'
    """
    words = []
    for name, make in PARTITIONS.items():
        parameter = own_parameter(make)
        suffix = "" if parameter is None else f":{parameter.name}"
        optional = parameter is not None and parameter.default is not Parameter.empty
        words.append(f"{name}[{suffix}]" if optional else f"{name}{suffix}")
    return ", ".join(words)
