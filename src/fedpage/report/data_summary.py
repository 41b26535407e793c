"""Describe a data set and its partition in words, for the terminal."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from fedpage.core.types import Ints
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, equal_parts
from fedpage.report.partition_plot import count_labels
from fedpage.report.tables import Table

FEW = 20
"""Up to so many clients are listed one by one; of more, a histogram of sizes is shown."""
_MOST_LABELS = 12
_BAR = 40


def summarise_data(data: Dataset) -> list[tuple[str, str]]:
    """Describe a data set as headings and texts: rows, features, and the labels with their counts.

    >>> summarise_data(Dataset.from_arrays([[1.0], [2.0]], ["no", "yes"]))[1:]
    [('rows', '2'), ('features', '1, dense'), ('labels', 'no: 1 (50.0%), yes: 1 (50.0%)')]
    """
    share = data.nonzeros / (data.rows * data.features)
    stored = "dense" if data.is_dense else f"sparse ({share:.2%} stored)"
    lines = [
        ("data", f"{data.name}, {data.note}" if data.note else data.name),
        ("rows", f"{data.rows:,}"),
        ("features", f"{data.features:,}, {stored}"),
    ]
    every_row = equal_parts(np.arange(data.rows, dtype=np.int64), 1, "all rows")
    counted = count_labels(data, every_row)
    if counted is None:
        low, middle, high = np.quantile(data.y, (0, 0.5, 1))
        return [*lines, ("targets", f"{low:g} to {high:g}, median {middle:g}")]
    labels, counts = counted
    words = [
        f"{label}: {count:,} ({count / data.rows:.1%})"
        for label, count in zip(labels, counts[:, 0], strict=True)
    ]
    if len(words) > _MOST_LABELS:
        words[_MOST_LABELS:] = [f"and {len(words) - _MOST_LABELS} more"]
    return [*lines, ("labels", ", ".join(words))]


def summarise_partition(data: Dataset, partition: Partition) -> list[tuple[str, str]]:
    """Describe a partition as headings and texts: clients, their sizes, how their labels differ."""
    sizes = partition.sizes
    lines = [
        ("partition", partition.name),
        ("clients", f"{partition.N:,}"),
        ("rows of a client", _range(sizes)),
    ]
    unused = data.rows - int(sizes.sum())
    if unused:
        lines.append(("rows not used", f"{unused:,}"))
    counted = count_labels(data, partition)
    if counted is not None and len(counted[0]) > 1:
        held = (counted[1] > 0).sum(axis=0)
        single = int((held == 1).sum())
        clients = "client has" if single == 1 else "clients have"
        end = f"; {single:,} {clients} a single label" if single else ""
        lines.append(("labels of a client", _range(held) + end))
    return lines


def _range(values: Ints) -> str:
    low, high = values.min(), values.max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}, median {np.median(values):,g}"


def client_table(data: Dataset, partition: Partition) -> Table:
    """List the clients with their rows and labels, or count many clients by their size."""
    if partition.N > FEW:
        found = size_histogram(partition.sizes)
        texts = [(sizes, f"{count:,}", bar) for sizes, count, bar in found]
        return replace(Table.of_texts(("rows", "clients", ""), texts), align="rrl")
    counted = count_labels(data, partition)
    names = partition.ids or tuple(range(partition.N))
    headings = ["client", "rows"]
    table = [[str(name), f"{size:,}"] for name, size in zip(names, partition.sizes, strict=True)]
    if counted is not None and len(counted[0]) <= _MOST_LABELS:
        headings += counted[0]
        for cells, counts in zip(table, counted[1].T, strict=True):
            cells += [f"{count:,}" for count in counts]
    elif counted is None:
        headings += ["lowest", "median", "highest"]
        for client, cells in enumerate(table):
            cells += [f"{q:.4g}" for q in np.quantile(data.y[partition.rows(client)], (0, 0.5, 1))]
    return replace(Table.of_texts(headings, table), align="l" + "r" * (len(headings) - 1))


def size_histogram(sizes: Ints, bins: int = 8) -> list[tuple[str, int, str]]:
    """Count the clients by their number of rows.

    The classes are of equal width, or of equal ratio where sizes differ more than 20 times.

    Args:
        sizes: (N,) rows of each client.
        bins: The largest number of classes.

    Returns:
        For each class its range, the number of clients, and a bar of at most 40 characters.

    >>> for line in size_histogram(np.array([1, 1, 2, 3]), bins=2):
    ...     print(*line)
    1 to 2 3 ########################################
    3 1 ##############
    """
    low, high = int(sizes.min()), int(sizes.max())
    space = np.geomspace if high > 20 * low else np.linspace
    edges = space(low, high + 1, min(bins, high - low + 1) + 1)
    edges = np.unique(np.ceil(edges - 1e-9).astype(np.int64))
    counts = np.histogram(sizes, edges)[0]
    lengths = np.ceil(counts / counts.max() * _BAR).astype(np.int64)
    names = [
        f"{first:,}" if first == last - 1 else f"{first:,} to {last - 1:,}"
        for first, last in pairwise(edges.tolist())
    ]
    bars = ["#" * length for length in lengths.tolist()]
    return list(zip(names, counts.tolist(), bars, strict=True))
