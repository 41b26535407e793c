"""Deal rows to clients by a random table of counts, and see to it that no client has too few."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpage.core.random import permutation, uniforms
from fedpage.core.types import Ints, Vector
from fedpage.data.partition import Partition, from_owners

ATTEMPTS = 50
"""How often a random partition is drawn before rows are moved."""


def log_gammas(shape: Vector, seed: int, *words: int) -> Vector:
    """Draw logarithms of Gamma(shape) numbers (N,); normalised, the numbers are a Dirichlet's.

    Logarithms do not underflow where shapes are small: Gamma(a) is Gamma(a + 1) times U^(1/a).
    """
    from scipy.special import gammaincinv

    shape = np.clip(shape, 1e-300, 1e280)
    u, v = uniforms(seed, *words, size=2 * len(shape)).reshape(2, -1)
    drawn: Vector = np.log(gammaincinv(shape + 1, np.maximum(u, 2.0**-54))) + np.log1p(-v) / shape
    return drawn


def deal(which: Ints, counts: Ints, seed: int, *words: int) -> Ints:
    """Give clients at random as many rows of each label as a table says.

    Args:
        which: (n,) the number of each row's label.
        counts: (labels, N) rows of each label for each client.
        seed: of the random order of a label's rows.
        words: whole numbers that tell this use of the seed from others.

    Returns:
        (n,) each row's client, -1 where the table uses fewer rows.
    """
    labels, clients = counts.shape
    owner = np.full(len(which), -1, dtype=np.int64)
    ends = np.cumsum(np.bincount(which, minlength=labels))[:-1]
    for label, rows in enumerate(np.split(np.argsort(which, kind="stable"), ends)):
        rows = rows[permutation(seed, *words, label, size=len(rows))]
        owners = np.repeat(np.arange(clients), counts[label])
        owner[rows[: len(owners)]] = owners
    return owner


def divide(share: Vector, n: int) -> Ints:
    """Divide n rows in proportion to shares (N,): cut at the rounded cumulative sums."""
    cuts = np.floor(np.cumsum(share) / share.sum() * n + 0.5).astype(np.int64)
    cuts[-1] = n
    return np.asarray(np.diff(cuts, prepend=0))


def draw_partition(
    draw: Callable[[int], Ints],
    which: Ints,
    *,
    name: str,
    seed: int,
    min_rows: int,
    purpose: int,
) -> Partition:
    """Draw a table of counts until every client has `min_rows` rows, and deal the rows by it.

    If ATTEMPTS draws do not suffice, the first one is taken, and rows are moved by `_move_rows`.
    Where `min_rows` is 0, the first draw is taken and clients without rows are dropped. The
    partition's name says what was moved or dropped.

    Args:
        draw: returns the counts (labels, N) of an attempt; together they use every row.
        which: (n,) the number of each row's label.
        name: the partition and its parameters, such as "dirichlet(50, alpha=0.1, seed=0)".
        seed: of the random order of rows.
        min_rows: rows that every client must have.
        purpose: a whole number that tells this partition's random numbers from others'.
    """
    first = counts = draw(0)
    attempt = 0
    while counts.sum(axis=0).min() < min_rows and attempt + 1 < ATTEMPTS:
        attempt += 1
        counts = draw(attempt)
    is_enough = counts.sum(axis=0).min() >= min_rows
    if not is_enough:
        attempt, counts = 0, first
    owner = deal(which, counts, seed, purpose, attempt)
    sizes = counts.sum(axis=0)
    clients, what = len(sizes), "" if min_rows == 1 else f"min_rows={min_rows}"
    if not is_enough:
        owner, moved = _move_rows(owner, sizes, min_rows, seed)
        what = f"min_rows={min_rows}: {moved} row{'s' * (moved > 1)} moved"
    elif sizes.min() == 0:
        empty = int((sizes == 0).sum())
        owner, clients = (np.cumsum(sizes > 0) - 1)[owner], clients - empty
        what = f"min_rows=0: {empty} empty client{'s' * (empty > 1)} dropped"
    return from_owners(owner, clients, f"{name[:-1]}, {what})" if what else name)


def _move_rows(owner: Ints, sizes: Ints, min_rows: int, seed: int) -> tuple[Ints, int]:
    """Fill clients up to `min_rows` with rows of the largest clients.

    One row after another is taken from the client that is then the largest (of equal ones, the
    first), so the largest clients end with equal sizes. Which of its rows a client gives is random.

    Args:
        owner: (n,) each row's client.
        sizes: (N,) rows of each client, together n, which is at least N * min_rows.
        min_rows: rows that every client gets.
        seed: of the choice of rows.

    Returns:
        Each row's client (n,), and the number of moved rows.
    """
    lacking = np.maximum(min_rows - sizes, 0)
    moved = int(lacking.sum())
    low, high = min_rows, int(sizes.max())  # the size to which the largest clients are reduced
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if np.maximum(sizes - middle, 0).sum() >= moved else (low, middle - 1)
        )
    given = np.maximum(sizes - low, 0)
    too_many = int(given.sum()) - moved
    given[np.flatnonzero(given)[len(np.flatnonzero(given)) - too_many :]] -= 1
    order = np.lexsort((uniforms(seed, 42, size=len(owner)), owner))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    result = owner.copy()
    result[order[place < given[owner[order]]]] = np.repeat(np.arange(len(sizes)), lacking)
    return result, moved
