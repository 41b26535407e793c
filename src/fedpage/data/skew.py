"""Partitions whose clients differ, as the literature defines them, and shifted features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import check_seed, permutation, uniforms
from fedpage.core.types import Ints, Vector
from fedpage.core.validate import at_least_zero, check_whole, finite, positive
from fedpage.data.dataset import Dataset
from fedpage.data.partition import PARTITIONS, Partition, check_counts, equal_parts, from_owners

_ATTEMPTS = 50
"""How often a random partition is drawn before rows are moved."""


def _number_labels(name: str, y: Any, *, allow_targets: bool = False) -> tuple[Ints, Ints]:
    """Return each row's label as a number (n,), and the number of rows of each label (C,)."""
    try:
        labels, which, counts = np.unique(y, return_inverse=True, return_counts=True)
        is_vector = np.ndim(y) == 1
    except (TypeError, ValueError):  # lists of different depths
        is_vector = False
    if not is_vector:
        raise InputError(
            f"{name}: y must be a vector of labels, such as data.y, not {short_repr(y)}"
        )
    if len(labels) > 100 and 10 * len(labels) > len(which) and not allow_targets:
        raise InputError(
            f"{name}: y has {len(labels):,} different values in {len(which):,} rows, which are "
            "targets of a regression and not labels; use iid, blocks or quantity_dirichlet, "
            "or give labels, such as np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))"
        )
    return which.astype(np.int64), counts.astype(np.int64)


@PARTITIONS.register("label-shards")
def label_shards(y: Vector, clients: int, shards: int = 2, seed: int = 0) -> Partition:
    """Sort rows by label and deal `shards` equal pieces of them to each client at random.

    With two shards this is the pathological partition of McMahan et al. (2017).

    Args:
        y: (n,) labels.
        clients: the number of clients, N.
        shards: pieces that each client gets; fewer pieces mean more heterogeneous clients.
        seed: of the random deal.
    """
    n = len(_number_labels("label_shards", y, allow_targets=True)[0])
    clients = check_counts("label_shards", n, clients)
    check_whole("label_shards: shards", shards, 1)
    if clients * shards > n:
        raise InputError(
            f"label_shards: {clients} clients with {shards} shards each do not fit into {n} rows; "
            f"use at most {n // clients} shards, or fewer clients"
        )
    by_class = np.argsort(y, kind="stable").astype(np.int64)
    each = n // (clients * shards)
    pieces = by_class[: each * clients * shards].reshape(clients * shards, each)
    dealt = pieces[permutation(seed, 2, size=clients * shards)]
    name = f"label_shards({clients}, shards={shards}, seed={seed})"
    return equal_parts(dealt.ravel(), clients, name)


@PARTITIONS.register("dirichlet")
def dirichlet(
    y: Vector, clients: int, alpha: float, seed: int = 0, *, min_rows: int = 1
) -> Partition:
    """Divide each label's rows among the clients in proportions drawn from Dirichlet(alpha).

    This is the definition in the text of Yurochkin et al. (2019): labels and sizes are both
    skewed. The proportions are drawn anew until every client has `min_rows` rows. If 50 draws do
    not suffice, which is common where alpha is 0.1 and labels are few, the first draw is taken and
    each client that lacks rows gets them from the client that is then the largest; the partition's
    name says how many rows were moved.

    Args:
        y: (n,) labels.
        clients: the number of clients, N.
        alpha: concentration; where it is small, a client sees few labels and sizes differ much.
        seed: of the random proportions.
        min_rows: rows that every client has at least; 0 takes the first draw and drops
            clients without rows.

    Raises:
        InputError: there are fewer than N * min_rows rows, or alpha is not positive.

    >>> dirichlet(np.arange(300) % 2, 50, alpha=0.1)
    Partition(dirichlet(50, alpha=0.1, seed=0, min_rows=1: 26 rows moved), 50 clients, ...)
    """
    from scipy.special import gammaincinv

    which, _ = _number_labels("dirichlet", y, allow_targets=True)

    def draw(attempt: int, label: int, held: Ints) -> Vector:
        uniform = uniforms(seed, 4, attempt, label, size=len(held))
        share: Vector = gammaincinv(min(alpha, 1e280), uniform)
        if share.sum() <= 0:  # alpha is so small that every share underflows
            share[int(uniforms(seed, 5, attempt, label, size=1)[0] * len(held))] = 1.0
        return share

    return _allocate("dirichlet", which, clients, alpha, seed, min_rows, draw, purpose=3)


@PARTITIONS.register("dirichlet-yurochkin")
def dirichlet_yurochkin(
    y: Vector, clients: int, alpha: float, seed: int = 0, *, min_rows: int = 1
) -> Partition:
    """Divide labels as `dirichlet` does, but only among clients that have fewer than n/N rows.

    This is the code of Yurochkin et al. (2019), which NIID-Bench (Li et al. 2022) and many others
    use: label by label, clients that already hold n/N rows get none, and the proportions of the
    others are normalised again. So sizes differ less than with `dirichlet`. Their code asks for
    `min_rows=10` and draws until it has them; here rows are moved after 50 draws, as in
    `dirichlet`.

    Args:
        y: (n,) labels.
        clients: the number of clients, N.
        alpha: concentration; where it is small, a client sees few labels.
        seed: of the random proportions.
        min_rows: rows that every client has at least; 0 drops clients without rows.

    Raises:
        InputError: there are fewer than N * min_rows rows, or alpha is not positive, or y holds
            targets of a regression.
    """
    which, _ = _number_labels("dirichlet_yurochkin", y)

    def draw(attempt: int, label: int, held: Ints) -> Vector:
        weight = _log_gammas(np.full(len(held), alpha), seed, 50, attempt, label)
        weight[held * len(held) >= len(which)] = -np.inf
        return np.asarray(np.exp(weight - weight.max()))

    return _allocate("dirichlet_yurochkin", which, clients, alpha, seed, min_rows, draw, purpose=51)


@PARTITIONS.register("dirichlet-hsu")
def dirichlet_hsu(y: Vector, clients: int, alpha: float, seed: int = 0) -> Partition:
    """Give clients floor(n/N) rows each, of labels in proportions q ~ Dirichlet(alpha p).

    This is the definition of Hsu, Qi and Brown (2019). p (C,) is the share of each label in y.
    Client after client draws the labels of its rows from its q. A label that has run out is left
    out, and q is normalised over the others; so the last clients depend on what is left.

    Args:
        y: (n,) labels.
        clients: the number of clients, N; the n mod N rows that are left are not used.
        alpha: concentration; clients have one label as it goes to 0, and p as it grows. As p sums
            to 1, a label's parameter is alpha * p_k: about alpha/C, and not alpha as in
            `dirichlet`.
        seed: of the random proportions and labels.

    Raises:
        InputError: there are fewer rows than clients, or alpha is not positive, or y holds targets
            of a regression.
    """
    which, left = _number_labels("dirichlet_hsu", y)
    n = len(which)
    positive("dirichlet_hsu", "alpha", alpha)
    check_seed(seed)
    clients = check_counts("dirichlet_hsu", n, clients)
    prior = left / n
    counts = np.zeros((len(left), clients), dtype=np.int64)
    for client in range(clients):
        weight = _log_gammas(alpha * prior, seed, 60, client)
        lacking, attempt = n // clients, 0
        while lacking:  # at most once for each label that runs out
            weight[left == 0] = -np.inf
            cdf = np.cumsum(np.exp(weight - weight.max()))
            u = uniforms(seed, 61, client, attempt, size=lacking) * cdf[-1]
            drawn = np.bincount(np.searchsorted(cdf, u, side="right"), minlength=len(left))
            taken = np.minimum(drawn, left)
            counts[:, client] += taken
            left -= taken
            lacking -= int(taken.sum())
            attempt += 1
    owner = _deal(which, counts, seed, 62)
    return from_owners(owner, clients, f"dirichlet_hsu({clients}, alpha={alpha:g}, seed={seed})")


@PARTITIONS.register("power-law")
def power_law(
    n: int, clients: int, exponent: float = 1.0, seed: int = 0, *, min_rows: int = 1
) -> Partition:
    """Shuffle the rows and give clients numbers of rows that fall like rank^-exponent.

    Every client has `min_rows` rows, and the others are divided by the power law; all n are used.

    Args:
        n: the number of rows.
        clients: the number of clients, N.
        exponent: 0 for equal sizes; the larger, the more rows the first clients have.
        seed: of the order of rows and clients.
        min_rows: rows that every client has at least; 1 or more.
    """
    clients = check_counts("power_law", n, clients, min_rows)
    at_least_zero("power_law", "exponent", exponent)
    min_rows = max(min_rows, 1)
    weight = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    ideal = weight / weight.sum() * (n - clients * min_rows)
    sizes = min_rows + np.floor(ideal).astype(np.int64)
    largest_remainders = np.argsort(-(ideal % 1), kind="stable")[: n - int(sizes.sum())]
    sizes[largest_remainders] += 1
    sizes = sizes[permutation(seed, 6, size=clients)]
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    what = "" if min_rows == 1 else f", min_rows={min_rows}"
    name = f"power_law({clients}, exponent={exponent:g}, seed={seed}{what})"
    return Partition(name, permutation(seed, 7, size=n), ptr)


@PARTITIONS.register("quantity-dirichlet")
def quantity_dirichlet(
    n: int, clients: int, alpha: float, seed: int = 0, *, min_rows: int = 1
) -> Partition:
    """Shuffle the rows and give clients shares of them that are drawn from Dirichlet(alpha).

    This is the quantity skew of Li et al. (2022, NIID-Bench): sizes differ, labels do not. As
    there, shares are drawn anew until every client has `min_rows` rows; if 50 draws do not
    suffice, rows of the largest clients are moved, and the partition's name says how many.

    Args:
        n: the number of rows.
        clients: the number of clients, N.
        alpha: concentration; where it is small, sizes differ much.
        seed: of the shares and of the order of rows.
        min_rows: rows that every client has at least; 0 drops clients without rows.
    """
    check_counts("quantity_dirichlet", n, clients, min_rows)

    def draw(attempt: int, label: int, held: Ints) -> Vector:
        weight = _log_gammas(np.full(len(held), alpha), seed, 40, attempt)
        return np.asarray(np.exp(weight - weight.max()))

    which = np.zeros(n, dtype=np.int64)  # all rows are of one label
    return _allocate("quantity_dirichlet", which, clients, alpha, seed, min_rows, draw, purpose=41)


def _log_gammas(shape: Vector, seed: int, *words: int) -> Vector:
    """Draw logarithms of Gamma(shape) numbers (N,); normalised, the numbers are a Dirichlet's.

    Logarithms do not underflow where shapes are small: Gamma(a) is Gamma(a + 1) times U^(1/a).
    """
    from scipy.special import gammaincinv

    shape = np.clip(shape, 1e-300, 1e280)
    u, v = uniforms(seed, *words, size=2 * len(shape)).reshape(2, -1)
    drawn: Vector = np.log(gammaincinv(shape + 1, np.maximum(u, 2.0**-54))) + np.log1p(-v) / shape
    return drawn


def _deal(which: Ints, counts: Ints, seed: int, *words: int) -> Ints:
    """Deal rows of labels `which` (n,) at random by a table (labels, N); return owners (n,)."""
    labels, clients = counts.shape
    owner = np.full(len(which), -1, dtype=np.int64)
    ends = np.cumsum(np.bincount(which, minlength=labels))[:-1]
    for label, rows in enumerate(np.split(np.argsort(which, kind="stable"), ends)):
        rows = rows[permutation(seed, *words, label, size=len(rows))]
        owners = np.repeat(np.arange(clients), counts[label])
        owner[rows[: len(owners)]] = owners
    return owner


def _allocate(
    name: str,
    which: Ints,
    clients: int,
    alpha: float,
    seed: int,
    min_rows: int,
    draw: Callable[[int, int, Ints], Vector],
    *,
    purpose: int,
) -> Partition:
    """Divide each label's rows in random proportions until every client has `min_rows` rows.

    `draw(attempt, label, held)` returns the proportions (N,), where `held` (N,) are the rows that
    clients have of earlier labels. If _ATTEMPTS do not suffice, take the first and move rows.
    """
    positive(name, "alpha", alpha)
    check_seed(seed)
    clients = check_counts(name, len(which), clients, min_rows)
    rows = np.bincount(which)
    for attempt in (*range(_ATTEMPTS), 0):
        counts, sizes = np.zeros((len(rows), clients), np.int64), np.zeros(clients, np.int64)
        for label, n in enumerate(rows.tolist()):
            share = draw(attempt, label, sizes)
            cuts = np.floor(np.cumsum(share) / share.sum() * n + 0.5).astype(np.int64)
            cuts[-1] = n
            counts[label] = np.diff(cuts, prepend=0)
            sizes += counts[label]
        is_enough = sizes.min() >= min_rows
        if is_enough:
            break
    owner = _deal(which, counts, seed, purpose, attempt)
    name = f"{name}({clients}, alpha={alpha:g}, seed={seed})"
    what = "" if min_rows == 1 else f"min_rows={min_rows}"
    if not is_enough:
        owner, moved = _move_rows(owner, sizes, min_rows, seed)
        what = f"min_rows={min_rows}: {moved} row{'s' * (moved > 1)} moved"
    elif sizes.min() == 0:
        empty = int((sizes == 0).sum())
        owner, clients = (np.cumsum(sizes > 0) - 1)[owner], clients - empty
        what = f"min_rows=0: {empty} empty client{'s' * (empty > 1)} dropped"
    return from_owners(owner, clients, f"{name[:-1]}, {what})" if what else name)


def _move_rows(owner: Ints, sizes: Ints, min_rows: int, seed: int) -> tuple[Ints, int]:
    """Fill clients up to `min_rows` with random rows of those that are then the largest.

    Return each row's client (n,), and the number of moved rows.
    """
    lacking = np.maximum(min_rows - sizes, 0)
    moved = int(lacking.sum())
    given, largest = np.zeros_like(sizes), [(-size, at) for at, size in enumerate(sizes.tolist())]
    heapify(largest)
    for _ in range(moved):
        size, at = largest[0]
        heapreplace(largest, (size + 1, at))
        given[at] += 1
    order = np.lexsort((uniforms(seed, 42, size=len(owner)), owner))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    result = owner.copy()
    result[order[place < given[owner[order]]]] = np.repeat(np.arange(len(sizes)), lacking)
    return result, moved


def shift_features(
    data: Dataset, partition: Partition, *, noise: float = 0.0, rotate: float = 0.0, seed: int = 0
) -> Dataset:
    """Rotate the features of each client and add noise to them, the more the higher its number.

    Client i of N, counted from 1, gets rotate * i/N degrees and noise of variance noise * i/N. The
    noise is the feature skew of Li et al. (2022, NIID-Bench). The rotation is in planes of two
    features each; every client has its own random pairs of features. Lengths of rows do not
    change, nor does one of an odd number of features.

    Args:
        data: the rows. Sparse data becomes dense.
        partition: which client holds which rows; rows that no client holds do not change.
        noise: variance of the Gaussian noise of the last client.
        rotate: degrees by which the last client's features are rotated.
        seed: of the noise and of the pairs of features.

    Returns:
        A dense data set with the same rows, labels and ids; its note says what was done.

    Raises:
        InputError: a number is out of range, or the partition does not fit.
    """
    at_least_zero("shift_features", "noise", noise)
    finite("shift_features", "rotate", rotate)
    check_seed(seed)
    if int(partition.order.max()) >= data.rows:
        raise InputError(
            f"shift_features: partition {partition.name} is not of {data.name!r}, which has fewer "
            "rows"
        )
    from scipy.special import ndtri

    X = data.to_dense().copy()
    pairs = data.features // 2
    for client in range(partition.N):
        rows, level = partition.rows(client), (client + 1) / partition.N
        own = X[rows]
        if rotate:
            pair = permutation(seed, 70, client, size=data.features)[: 2 * pairs].reshape(2, pairs)
            angle = np.deg2rad(rotate * level)
            first, second = own[:, pair[0]], own[:, pair[1]]
            own[:, pair[0]] = np.cos(angle) * first - np.sin(angle) * second
            own[:, pair[1]] = np.sin(angle) * first + np.cos(angle) * second
        if noise:
            u = uniforms(seed, 71, client, size=own.size)
            own += np.sqrt(noise * level) * ndtri(np.maximum(u, 2.0**-54)).reshape(own.shape)
        X[rows] = own
    done = f"features shifted by shift_features({partition.name}, noise={noise:g}, "
    done += f"rotate={rotate:g}, seed={seed})"
    return replace(data, matrix=X, note=f"{data.note}; {done}" if data.note else done)
