"""Partitions whose clients have different distributions of labels, as the literature defines them.

| function | definition |
|---|---|
| `label_shards` | McMahan et al. (2017): rows sorted by label, two shards of them for each client |
| `dirichlet` | Yurochkin et al. (2019), as their text says it: p_k ~ Dir(alpha) for each label k |
| `dirichlet_yurochkin` | the same with the limit on sizes of their code, and of NIID-Bench's |
| `dirichlet_hsu` | Hsu, Qi and Brown (2019): q_i ~ Dir(alpha p) for each client i, equal sizes |
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import check_seed, permutation, uniforms
from fedpage.core.types import Ints, Vector
from fedpage.data.counts import deal, divide, draw_partition, log_gammas
from fedpage.data.partition import (
    PARTITIONS,
    Partition,
    check_alpha,
    check_counts,
    check_labels,
    check_min_rows,
    equal_parts,
    from_owners,
)


def _label_numbers(name: str, y: Any) -> tuple[Ints, Ints]:
    """Return each row's label as a number (n,), and the number of rows of each label (C,).

    Raises:
        InputError: nearly every row has a label of its own, as targets of a regression have.
    """
    labels, which, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(labels) > 100 and 10 * len(labels) > len(which):
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
    n = check_labels("label_shards", y)
    clients = check_counts("label_shards", n, clients)
    if (
        not isinstance(shards, (int, np.integer))
        or isinstance(shards, bool)
        or shards < 1
        or clients * shards > n
    ):
        raise InputError(
            f"label_shards: {clients} clients with {short_repr(shards)} shards each do not "
            f"fit into {n} rows; "
            f"use a whole number of shards from 1 to {n // clients}, or fewer clients"
        )
    by_class = np.argsort(y, kind="stable").astype(np.int64)
    each = n // (clients * shards)
    pieces = by_class[: each * clients * shards].reshape(clients * shards, each)
    dealt = pieces[permutation(seed, 2, size=clients * shards)]
    return equal_parts(
        dealt.ravel(), clients, f"label_shards({clients}, shards={shards}, seed={seed})"
    )


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
        min_rows: rows that every client has at least; 0 takes the first draw as it is and drops
            clients without rows.

    Raises:
        InputError: there are fewer than N * min_rows rows, or alpha is not positive.

    >>> dirichlet(np.arange(300) % 2, 50, alpha=0.1)
    Partition(dirichlet(50, alpha=0.1, seed=0, min_rows=1: 26 rows moved), 50 clients, ...)
    """
    from scipy.special import gammaincinv

    n = check_labels("dirichlet", y)
    clients = check_counts("dirichlet", n, clients)
    min_rows = check_min_rows("dirichlet", n, clients, min_rows)
    alpha = check_alpha("dirichlet", alpha)
    check_seed(seed)
    labels, which = np.unique(y, return_inverse=True)
    rows = np.bincount(which)

    def draw(attempt: int) -> Ints:
        counts = np.empty((len(labels), clients), dtype=np.int64)
        for label in range(len(labels)):
            share = gammaincinv(min(alpha, 1e280), uniforms(seed, 4, attempt, label, size=clients))
            if share.sum() <= 0:  # alpha is so small that every share underflows
                share[int(uniforms(seed, 5, attempt, label, size=1)[0] * clients)] = 1.0
            counts[label] = divide(share, int(rows[label]))
        return counts

    name = f"dirichlet({clients}, alpha={alpha:g}, seed={seed})"
    return draw_partition(draw, which, name=name, seed=seed, min_rows=min_rows, purpose=3)


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
    n = check_labels("dirichlet_yurochkin", y)
    clients = check_counts("dirichlet_yurochkin", n, clients)
    min_rows = check_min_rows("dirichlet_yurochkin", n, clients, min_rows)
    alpha = check_alpha("dirichlet_yurochkin", alpha)
    check_seed(seed)
    which, rows = _label_numbers("dirichlet_yurochkin", y)

    def draw(attempt: int) -> Ints:
        counts = np.zeros((len(rows), clients), dtype=np.int64)
        for label in range(len(rows)):
            weight = log_gammas(np.full(clients, alpha), seed, 50, attempt, label)
            is_full = counts.sum(axis=0) * clients >= n
            weight[is_full] = -np.inf
            counts[label] = divide(np.exp(weight - weight.max()), int(rows[label]))
        return counts

    name = f"dirichlet_yurochkin({clients}, alpha={alpha:g}, seed={seed})"
    return draw_partition(draw, which, name=name, seed=seed, min_rows=min_rows, purpose=51)


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
    n = check_labels("dirichlet_hsu", y)
    clients = check_counts("dirichlet_hsu", n, clients)
    alpha = check_alpha("dirichlet_hsu", alpha)
    check_seed(seed)
    which, left = _label_numbers("dirichlet_hsu", y)
    prior = left / n
    counts = np.zeros((len(left), clients), dtype=np.int64)
    for client in range(clients):
        weight = log_gammas(alpha * prior, seed, 60, client)
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
    owner = deal(which, counts, seed, 62)
    return from_owners(owner, clients, f"dirichlet_hsu({clients}, alpha={alpha:g}, seed={seed})")
