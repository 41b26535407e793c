"""Partitions: which client holds which rows of a data set.

To add one, write a function of `n` (rows) or `y` (labels), `clients`, at most one further
parameter, `seed` if it is random and `min_rows` if clients' sizes differ, and register it under the
name that `--partition` takes. `skew.py` holds those whose clients differ on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import permutation
from fedpage.core.spec import Registry, parse
from fedpage.core.types import Ints, Vector
from fedpage.core.validate import as_array, check_whole, choice
from fedpage.data.dataset import clean_ids

_MOST = 2**31 - 1
"""The most rows of a partition."""


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """Assign rows to clients: client i holds the rows `order[ptr[i]:ptr[i+1]]`.

    Attributes:
        name: the partition and its parameters, such as "iid(10, seed=0)".
        order: (used,) row numbers.
        ptr: (N+1,) where each client's rows begin in `order`.
        ids: the name of each client, or None if clients have numbers only.

    Raises:
        InputError: a client has no row, or a row or an id is assigned twice.
    """

    name: str
    order: Ints
    ptr: Ints
    ids: tuple[str | int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.ids, (tuple, type(None))):
            raise InputError("partition: the name must be a text, and ids a tuple or None")
        for name in ("order", "ptr"):
            rows = as_array(f"partition {self.name}: {name}", getattr(self, name), np.int64)
            object.__setattr__(self, name, rows.ravel())
        if self.N < 1 or self.ptr[0] != 0 or self.ptr[-1] != len(self.order):
            raise InputError(f"partition {self.name}: ptr must rise from 0 to len(order)")
        rows = np.sort(self.order)
        if len(rows) and (rows[0] < 0 or bool((rows[1:] == rows[:-1]).any())):
            raise InputError(f"partition {self.name}: a row number is negative or occurs twice")
        empty = np.flatnonzero(self.sizes < 1)
        if len(empty):
            raise InputError(
                f"partition {self.name}: {len(empty)} of {self.N} clients have no row "
                f"(the first is client {empty[0]}); use fewer clients or a less skewed partition"
            )
        if self.ids is not None and len(set(self.ids)) != self.N:
            raise InputError(
                f"partition {self.name}: {self.N} clients have {len(set(self.ids))} different ids"
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


PARTITIONS: Registry[Callable[..., Partition]] = Registry("partition")
"""The partitions by the names that `--partition` takes."""


def check_counts(name: str, n: int, clients: int, min_rows: int = 1) -> int:
    """Check that n rows are enough, and return the number of clients as an int.

    Raises:
        InputError: they are not, or a number is not a whole one.
    """
    for what, value in (("the number of rows", n), ("the number of clients", clients)):
        check_whole(f"{name}: {what}", value, 1, _MOST)
    check_whole(f"{name}: min_rows", min_rows, 0, _MOST)
    clients, each = int(clients), max(int(min_rows), 1)
    if clients * each > n:
        raise InputError(
            f"{name}: {clients} clients of at least {each} rows need at least {clients * each:,} "
            f"rows, and there are {n:,}; use at most {n // each} clients"
            f"{f', or min_rows of at most {n // clients}' if min_rows > 1 else ''}"
        )
    return clients


def equal_parts(order: Ints, clients: int, name: str) -> Partition:
    """Cut rows into equal parts in their order, and leave the remainder out."""
    each = len(order) // clients
    return Partition(name, order[: each * clients], np.arange(clients + 1, dtype=np.int64) * each)


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


@PARTITIONS.register("blocks")
def blocks(n: int, clients: int, rows: int = 0) -> Partition:
    """Give each client a block of floor(n/N) consecutive rows, as the paper does.

    Args:
        n: the number of rows; the n mod N last ones are not used.
        clients: the number of clients, N.
        rows: the number of rows to use, from the first one on; 0 uses all.

    >>> blocks(7, 3).rows(1).tolist()
    [2, 3]
    """
    check_whole("blocks: rows", rows, 0, _MOST)
    clients = check_counts("blocks", n, clients)
    if rows > n:
        raise InputError(f"blocks: rows must be from 1 to {n:,}, the rows there are, not {rows:,}")
    check_counts("blocks", rows or n, clients)
    return equal_parts(np.arange(rows or n, dtype=np.int64), clients, f"blocks({clients})")


@PARTITIONS.register("iid")
def iid(n: int, clients: int, seed: int = 0) -> Partition:
    """Shuffle the rows, then cut them into equal blocks, so that clients resemble each other."""
    clients = check_counts("iid", n, clients)
    return equal_parts(permutation(seed, 1, size=n), clients, f"iid({clients}, seed={seed})")


@PARTITIONS.register("by-id")
def by_id(ids: Any, small: str = "error", *, min_rows: int = 1) -> Partition:
    """Make a client of the rows of each id, such as a hospital or a user.

    Args:
        ids: (n,) whose row each is: strings or whole numbers, as an array, a list or a Series.
        small: what to do about clients with fewer than `min_rows` rows: "error" refuses them,
            "drop" does not use their rows, "merge" makes them one client, the last one, with the
            id "(other)".
        min_rows: the fewest rows of a client that is not small.

    Returns:
        The clients in the order of their sorted ids, which are in `Partition.ids`.

    Raises:
        InputError: an id is missing, or is neither a string nor a whole number, or a client has
            fewer than `min_rows` rows.

    >>> clinics = by_id(["Rome", "Bern", "Rome"])
    >>> clinics.ids, clinics.rows(1).tolist()
    (('Bern', 'Rome'), [0, 2])
    """
    names, owner = np.unique(clean_ids("by_id", ids), return_inverse=True)
    check_whole("by_id: min_rows", min_rows, 0, _MOST)
    choice("by_id", "small", small, ("error", "drop", "merge"))
    sizes = np.bincount(owner)
    is_small = sizes < min_rows
    kept: list[str | int] = names[~is_small].tolist()
    what = "" if min_rows <= 1 else f", min_rows={min_rows}"
    if is_small.any():
        count, rows = int(is_small.sum()), int(sizes[is_small].sum())
        found = (
            f"by_id: {count} of {len(names)} clients have fewer than min_rows={min_rows} rows "
            f"(such as {short_repr(names[is_small][0].item())} with {sizes[is_small][0]})"
        )
        is_hopeless = rows < min_rows if small == "merge" else not kept
        if small == "error" or is_hopeless:
            advice = ", or use by-id:drop or by-id:merge" * (not is_hopeless)
            raise InputError(f"{found}; lower min_rows{advice}")
        number = np.full(len(names), len(kept) if small == "merge" else -1)
        number[~is_small] = np.arange(len(kept))
        owner = number[owner]
        if small == "merge":
            kept.append("(other)")
        done = "dropped" if small == "drop" else "merged"
        what += f": {count} id{'s' * (count > 1)} with {rows} row{'s' * (rows > 1)} {done}"
    return from_owners(owner, len(kept), f"by_id({len(kept)}{what})", tuple(kept))


def partition_from_text(
    text: str,
    y: Vector,
    clients: int,
    seed: int = 0,
    *,
    min_rows: int | None = None,
    ids: Any = None,
    make: Callable[..., Partition] | None = None,
) -> Partition:
    """Make the partition that a text such as "iid" or "dirichlet:0.3" describes.

    Args:
        text: a name of PARTITIONS and, after a colon, the value of its further parameter.
        y: (n,) labels.
        clients: the number of clients, N; "by-id" has as many as there are ids.
        seed: the seed of partitions that are random.
        min_rows: rows that every client must have; None for the partition's default.
        ids: (n,) whose row each is, for "by-id"; None if the data does not say.
        make: the function of the partition; by default the one that the text names.

    Raises:
        InputError: the name is unknown, or its parameter is missing or not a number, or a client
            has fewer than `min_rows` rows.

    >>> int(partition_from_text("power-law:1.5", np.ones(100), 4).sizes.sum())
    100
    """
    spec = parse(text)
    name = spec.name.replace("_", "-")
    if make is None:
        if name not in PARTITIONS:
            unknown = PARTITIONS.unknown(name).partition(" known are ")[0]
            raise InputError(f"{unknown} choose {usage()}, or your own as file.py@name")
        make = PARTITIONS[name]
    takes = signature(make).parameters
    if "ids" in takes and ids is None:
        raise InputError(
            f"partition {name}: the data does not say whose row each is; name the column of ids "
            "when you load it (--client-column)"
        )
    shared = {"n": len(y), "y": y, "ids": ids, "clients": clients, "seed": seed}
    if min_rows is not None:
        shared["min_rows"] = min_rows
        if "min_rows" not in takes:  # its clients have equal sizes
            check_counts(name, len(y), clients, min_rows)
    given = {key: value for key, value in shared.items() if key in takes}
    found = spec.build(make, "partition", **given)
    if not isinstance(found, Partition):
        raise InputError(f"partition {name}: must return a Partition, not {short_repr(found)}")
    return found


def own_parameter(make: Callable[..., Partition]) -> Parameter | None:
    """Return a partition's further parameter, such as Dirichlet's alpha, or None."""
    shared = ("n", "y", "ids", "clients", "seed", "min_rows")
    return next((p for p in signature(make).parameters.values() if p.name not in shared), None)


def usage() -> str:
    """List the partitions as `--partition` takes them, with optional parameters in brackets.

    >>> usage().startswith("blocks[:rows], iid, by-id[:small], label-shards[:shards], dirichlet")
    True
    """
    words = []
    for name, make in PARTITIONS.items():
        own = own_parameter(make)
        if own is not None:
            name += f":{own.name}" if own.default is Parameter.empty else f"[:{own.name}]"
        words.append(name)
    return ", ".join(words)
