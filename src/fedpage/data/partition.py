"""Partitions: which client holds which rows of a data set.

To add one, write a function of `n` (rows) or `y` (labels), `clients`, if need be one parameter of
its own, `seed` if it is random and `min_rows` if clients' sizes differ, and register it under the
name that `--partition` takes. `client_ids`, `label_skew` and `quantity_skew` beside this file hold
the others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import Any, get_type_hints

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import permutation
from fedpage.core.registry import Registry
from fedpage.core.types import Ints, Vector
from fedpage.core.validate import as_array, as_number, check_whole

_MOST = 2**31 - 1
"""The most rows of a partition."""


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """Assign rows to clients: client i holds the rows `order[ptr[i]:ptr[i+1]]`.

    Attributes:
        name: the partition and its parameters, such as "iid(10, seed=0)".
        order: (used,) row numbers.
        ptr: (N+1,) where each client's rows begin in `order`.
        ids: the name of each client, or None where clients have numbers only.

    Raises:
        InputError: a client has no row, or a row is assigned twice, or an id is.
    """

    name: str
    order: Ints
    ptr: Ints
    ids: tuple[str | int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InputError(f"partition: the name must be a text, not {short_repr(self.name)}")
        for name in ("order", "ptr"):
            rows = as_array(f"partition {self.name}: {name}", getattr(self, name), np.int64)
            object.__setattr__(self, name, rows)
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
        rows = np.sort(self.order)
        if len(rows) and (rows[0] < 0 or bool((rows[1:] == rows[:-1]).any())):
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
        if self.ids is not None and not isinstance(self.ids, tuple):
            raise InputError(
                f"partition {self.name}: ids must be a tuple, not {short_repr(self.ids)}"
            )
        if self.ids is not None and len(set(self.ids)) != self.N:
            raise InputError(
                f"partition {self.name}: {self.N} clients need as many different ids, "
                f"and there are {len(set(self.ids))}"
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

    def __repr__(self) -> str:
        sizes = self.sizes
        low, high = int(sizes.min()), int(sizes.max())
        clients = f"{self.N} client{'s' * (self.N > 1)}"
        if low == high:
            return f"Partition({self.name}, {clients} of {low} row{'s' * (low > 1)})"
        median = float(np.median(sizes))
        return f"Partition({self.name}, {clients}, rows {low}..{high}, median {median:g})"


def check_counts(name: str, n: int, clients: int) -> int:
    """Check that n rows are enough for the clients, and return their number as an int."""
    for what, value in (("rows", n), ("clients", clients)):
        check_whole(f"{name}: the number of {what}", value, 1, _MOST)
    if clients > n:
        raise InputError(
            f"{name}: {clients} clients need at least {clients} rows, and there are {n}; "
            "use fewer clients"
        )
    return int(clients)


def check_labels(name: str, y: Any) -> int:
    """Check that labels are a vector, and return their number."""
    try:
        dimensions = np.ndim(y)
    except ValueError:  # lists of different depths
        dimensions = 0
    if dimensions != 1:
        raise InputError(
            f"{name}: y must be a vector of labels, such as data.y of a Dataset, not "
            f"{short_repr(y)}"
        )
    return len(y)


def check_real(name: str, what: str, value: float) -> float:
    """Check that a parameter is a finite number, and return it as a float."""
    number = as_number(value)
    if not math.isfinite(number):
        raise InputError(f"{name}: {what} must be a finite number, not {short_repr(value)}")
    return number


def check_alpha(name: str, alpha: float) -> float:
    """Check the concentration of a Dirichlet distribution, and return it as a float."""
    alpha = check_real(name, "alpha", alpha)
    if not alpha > 0:
        raise InputError(f"{name}: alpha must be positive, not {short_repr(alpha)}")
    return alpha


def equal_parts(order: Ints, clients: int, name: str) -> Partition:
    """Cut rows into equal parts in their order, and leave the remainder out."""
    each = len(order) // clients
    return Partition(name, order[: each * clients], np.arange(clients + 1, dtype=np.int64) * each)


def check_min_rows(name: str, n: int, clients: int, min_rows: int) -> int:
    """Check that n rows are enough for clients of `min_rows` rows each, and return it as an int."""
    check_whole(f"{name}: min_rows", min_rows, 0, _MOST)
    if clients * min_rows > n:
        raise InputError(
            f"{name}: {clients} clients of at least {min_rows} rows need {clients * min_rows:,} "
            f"rows, and there are {n:,}; use at most {n // min_rows} clients, "
            f"or min_rows of at most {n // clients}"
        )
    return int(min_rows)


def from_owners(
    owner: Ints, clients: int, name: str, ids: tuple[str | int, ...] | None = None
) -> Partition:
    """Build a partition from each row's client (n,), which is -1 for rows that are not used.

    A client's rows keep the order of the data.
    """
    ptr = np.zeros(clients + 1, dtype=np.int64)
    unused = int((owner < 0).sum())
    np.cumsum(np.bincount(owner[owner >= 0], minlength=clients), out=ptr[1:])
    return Partition(name, np.argsort(owner, kind="stable").astype(np.int64)[unused:], ptr, ids)


PARTITIONS: Registry[Callable[..., Partition]] = Registry("partition")
"""The partitions by the names that `--partition` takes."""


@PARTITIONS.register("blocks")
def blocks(n: int, clients: int, rows: int = 0) -> Partition:
    """Give each client a block of floor(n/N) consecutive rows, as the paper does.

    Args:
        n: the number of rows; the n mod N last ones are not used.
        clients: the number of clients, N.
        rows: use the first rows only, so many; 0 uses all.

    >>> blocks(7, 3).rows(1).tolist()
    [2, 3]
    """
    clients = check_counts("blocks", n, clients)
    check_whole("blocks: rows", rows, 0, _MOST)
    if rows:
        if rows > n:
            raise InputError(
                f"blocks: rows must be from 1 to {n:,}, the rows there are, not {rows:,}"
            )
        clients = check_counts("blocks", rows, clients)
        n = rows
    return equal_parts(np.arange(n, dtype=np.int64), clients, f"blocks({clients})")


@PARTITIONS.register("iid")
def iid(n: int, clients: int, seed: int = 0) -> Partition:
    """Shuffle the rows, then cut them into equal blocks, so that clients resemble each other."""
    clients = check_counts("iid", n, clients)
    return equal_parts(permutation(seed, 1, size=n), clients, f"iid({clients}, seed={seed})")


SHARED = ("n", "y", "ids", "clients", "seed", "min_rows")
"""The parameters of partitions that come from elsewhere than the text of `--partition`."""


def partition_from_text(
    text: str,
    y: Vector,
    clients: int,
    seed: int = 0,
    *,
    min_rows: int | None = None,
    ids: Any = None,
) -> Partition:
    """Make the partition that a text such as "iid" or "dirichlet:0.3" describes.

    Args:
        text: a name of PARTITIONS and, after a colon, the value of its own parameter.
        y: (n,) labels.
        clients: the number of clients, N; "by-id" has as many as there are ids.
        seed: of partitions that are random.
        min_rows: rows that every client must have; None for the partition's own default.
        ids: (n,) whose row each is, for "by-id"; None where the data does not say.

    Raises:
        InputError: the name is unknown, or its parameter is missing or not a number, or a client
            has fewer than `min_rows` rows.

    >>> int(partition_from_text("power-law:1.5", np.ones(100), 4).sizes.sum())
    100
    """
    name, _, value = text.partition(":")
    name = name.replace("_", "-")
    if name not in PARTITIONS:
        raise InputError(f"{PARTITIONS.unknown(name).partition(' known are ')[0]} choose {usage()}")
    make = PARTITIONS[name]
    parameter, takes = own_parameter(make), signature(make).parameters
    shared = {"n": len(y), "y": y, "ids": ids, "clients": clients, "seed": seed}
    arguments = {key: shared[key] for key in takes if key in shared}
    if "ids" in takes and ids is None:
        raise InputError(
            f"partition {name}: the data does not say whose row each is; "
            "name the column of ids when you load it (--client-column), or choose another partition"
        )
    if value and parameter is None:
        raise InputError(f"partition {text!r}: {name} has no parameter; leave {value!r} out")
    if parameter is not None and value:
        kind = get_type_hints(make)[parameter.name]
        try:
            arguments[parameter.name] = kind(value) if kind in (int, float) else value
        except ValueError:
            noun = "whole number" if kind is int else "number"
            raise InputError(
                f"partition {short_repr(text)}: {parameter.name} must be a {noun}"
            ) from None
    elif parameter is not None and parameter.default is Parameter.empty:
        raise InputError(f"partition {name} needs its {parameter.name}, such as {name}:0.3")
    if min_rows is None:
        return make(**arguments)
    if "min_rows" in takes:
        return make(**arguments, min_rows=min_rows)
    check_min_rows(name, len(y), clients, min_rows)  # the others have clients of equal sizes
    return make(**arguments)


def own_parameter(make: Callable[..., Partition]) -> Parameter | None:
    """Return a partition's own parameter, such as Dirichlet's alpha, or None."""
    return next((p for p in signature(make).parameters.values() if p.name not in SHARED), None)


def usage() -> str:
    """List the partitions as `--partition` takes them, with optional parameters in brackets.

    >>> usage().startswith("blocks[:rows], iid, by-id[:small], label-shards[:shards], dirichlet")
    True
    """
    words = []
    for name, make in PARTITIONS.items():
        parameter = own_parameter(make)
        suffix = "" if parameter is None else f":{parameter.name}"
        optional = parameter is not None and parameter.default is not Parameter.empty
        words.append(f"{name}[{suffix}]" if optional else f"{name}{suffix}")
    return ", ".join(words)
