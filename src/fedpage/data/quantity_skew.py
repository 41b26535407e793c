"""Partitions whose clients have different numbers of rows, and the same distribution of labels."""

from __future__ import annotations

import numpy as np

from fedpage.core.errors import InputError, short_repr
from fedpage.core.random import check_seed, permutation
from fedpage.core.types import Ints
from fedpage.data.counts import divide, draw_partition, log_gammas
from fedpage.data.partition import (
    PARTITIONS,
    Partition,
    check_alpha,
    check_counts,
    check_min_rows,
    check_real,
)


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
    clients = check_counts("power_law", n, clients)
    min_rows = max(check_min_rows("power_law", n, clients, min_rows), 1)
    exponent = check_real("power_law", "the exponent", exponent)
    if exponent < 0:
        raise InputError(
            f"power_law: the exponent must be 0 or more and finite, not {short_repr(exponent)}"
        )
    weight = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    ideal = weight / weight.sum() * (n - clients * min_rows)
    sizes = min_rows + np.floor(ideal).astype(np.int64)
    short = n - int(sizes.sum())
    sizes[np.argsort(-(ideal - np.floor(ideal)), kind="stable")[:short]] += 1
    sizes = sizes[permutation(seed, 6, size=clients)]
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    what = "" if min_rows == 1 else f", min_rows={min_rows}"
    return Partition(
        f"power_law({clients}, exponent={exponent:g}, seed={seed}{what})",
        permutation(seed, 7, size=n),
        ptr,
    )


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
    clients = check_counts("quantity_dirichlet", n, clients)
    min_rows = check_min_rows("quantity_dirichlet", n, clients, min_rows)
    alpha = check_alpha("quantity_dirichlet", alpha)
    check_seed(seed)

    def draw(attempt: int) -> Ints:
        weight = log_gammas(np.full(clients, alpha), seed, 40, attempt)
        return divide(np.exp(weight - weight.max()), n)[None, :]

    name = f"quantity_dirichlet({clients}, alpha={alpha:g}, seed={seed})"
    which = np.zeros(n, dtype=np.int64)
    return draw_partition(draw, which, name=name, seed=seed, min_rows=min_rows, purpose=41)
