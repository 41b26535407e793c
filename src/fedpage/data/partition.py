"""Who holds which rows: ways to divide a data set among clients, each with a digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

import numpy as np

from fedpage.core.errors import InputError
from fedpage.core.random import permutation, uniforms
from fedpage.core.types import Ints, Vector


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows `order[ptr[i]:ptr[i+1]]` belong to client i. Shapes: order (used,), ptr (N+1,)."""

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
            raise InputError(f"partition {self.name}: a row number is negative or there twice")
        sizes = np.diff(self.ptr)
        empty = int((sizes < 1).sum())
        if empty:
            first = int(np.argmax(sizes < 1))
            raise InputError(
                f"partition {self.name}: {empty} of {self.N} clients have no row (the first is client {first}); "
                "use fewer clients or a milder division"
            )

    @property
    def N(self) -> int:
        """Clients."""
        return len(self.ptr) - 1

    @property
    def sizes(self) -> Ints:
        """(N,) rows M_i of each client."""
        return np.diff(self.ptr)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of which rows each client holds, in which order."""
        state = hashlib.sha256(f"fedpage-partition-1 {self.N}".encode())
        state.update(np.ascontiguousarray(self.ptr, dtype="<i8").tobytes())
        state.update(np.ascontiguousarray(self.order, dtype="<i8").tobytes())
        return state.hexdigest()

    def rows(self, client: int) -> Ints:
        """Row numbers of one client."""
        return self.order[self.ptr[client] : self.ptr[client + 1]]


def _enough(name: str, n: int, clients: int) -> int:
    """The number of clients, if n rows are enough for them."""
    for what, value in (("rows", n), ("clients", clients)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise InputError(
                f"{name}: the number of {what} must be a whole number of at least 1, not {value!r}"
            )
    if clients > n:
        raise InputError(
            f"{name}: {clients} clients need at least {clients} rows, and there are {n}"
        )
    return int(clients)


def _real(name: str, what: str, value: float) -> float:
    """A finite number."""
    if (
        not isinstance(value, (int, float, np.number))
        or isinstance(value, bool)
        or not np.isfinite(value)
    ):
        raise InputError(f"{name}: {what} must be a finite number, not {value!r}")
    return float(value)


def _even(order: Ints, clients: int, name: str) -> Partition:
    each = len(order) // clients
    return Partition(name, order[: each * clients], np.arange(clients + 1, dtype=np.int64) * each)


def _ragged(owner: Ints, clients: int, name: str) -> Partition:
    """From each row's owner (n,); a client's rows stay in the order of the data."""
    ptr = np.zeros(clients + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=clients), out=ptr[1:])
    return Partition(name, np.argsort(owner, kind="stable").astype(np.int64), ptr)


def blocks(n: int, clients: int) -> Partition:
    """Equal consecutive blocks of floor(n/N) rows, the remainder dropped: the paper's division.

    >>> blocks(7, 3).rows(1).tolist()
    [2, 3]
    """
    clients = _enough("blocks", n, clients)
    return _even(np.arange(n, dtype=np.int64), clients, f"blocks({clients})")


def iid(n: int, clients: int, seed: int = 0) -> Partition:
    """As blocks, after a random reordering of the rows: clients that resemble each other."""
    clients = _enough("iid", n, clients)
    return _even(permutation(seed, 1, size=n), clients, f"iid({clients}, seed={seed})")


def label_shards(y: Vector, clients: int, shards: int = 2, seed: int = 0) -> Partition:
    """Rows sorted by label, cut into N*shards equal pieces, `shards` pieces dealt to each client at random."""
    n = len(y)
    clients = _enough("label_shards", n, clients)
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
    return _even(dealt.ravel(), clients, f"label_shards({clients}, shards={shards}, seed={seed})")


def dirichlet(y: Vector, clients: int, alpha: float, seed: int = 0) -> Partition:
    """Each label's rows are divided among the clients in proportions drawn from Dirichlet(alpha).

    Small alpha: a client sees few labels and clients differ much in size. If someone stays without rows, the draw is
    repeated up to 50 times before it is refused.
    """
    from scipy.special import gammaincinv

    n = len(y)
    clients = _enough("dirichlet", n, clients)
    alpha = _real("dirichlet", "alpha", alpha)
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
            if (
                share.sum() <= 0
            ):  # alpha so small that every share underflows: one client takes the label
                share[int(uniforms(seed, 5, attempt, label, size=1)[0] * clients)] = 1.0
            cuts = np.floor(np.cumsum(share) / share.sum() * len(rows) + 0.5).astype(np.int64)
            owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right").clip(
                max=clients - 1
            )
        if np.bincount(owner, minlength=clients).min() >= 1:
            break
    return _ragged(owner, clients, name)


def power_law(n: int, clients: int, exponent: float = 1.0, seed: int = 0) -> Partition:
    """Shuffled rows; client sizes fall like rank^-exponent, everyone holding at least one row. All n rows are used."""
    clients = _enough("power_law", n, clients)
    exponent = _real("power_law", "the exponent", exponent)
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


def by_name(text: str, y: Vector, clients: int, seed: int = 0) -> Partition:
    """The partition that a word names: blocks, iid, label-shards[:shards], dirichlet:alpha, power-law[:exponent].

    >>> by_name("power-law:1.5", np.ones(100), 4).sizes.sum()
    np.int64(100)
    """
    kind, _, value = text.partition(":")
    n = len(y)
    try:
        match kind.replace("_", "-"):
            case "blocks" if not value:
                return blocks(n, clients)
            case "iid" if not value:
                return iid(n, clients, seed)
            case "label-shards":
                return label_shards(y, clients, int(value or 2), seed)
            case "dirichlet" if value:
                return dirichlet(y, clients, float(value), seed)
            case "power-law":
                return power_law(n, clients, float(value or 1.0), seed)
    except InputError:
        raise
    except ValueError:
        raise InputError(f"partition {text!r}: {value!r} is not a number") from None
    if kind == "dirichlet":
        raise InputError("partition dirichlet needs its alpha, such as dirichlet:0.3")
    near = get_close_matches(
        kind.lower(), ("blocks", "iid", "label-shards", "dirichlet", "power-law"), n=1, cutoff=0.5
    )
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(
        f"unknown partition {text!r}: {hint}choose blocks, iid, label-shards[:shards], dirichlet:alpha or "
        "power-law[:exponent]"
    )
