"""Show data sets and partitions in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpage.core.display import format_number, html_bars, html_card, html_facts
from fedpage.core.types import Ints

if TYPE_CHECKING:
    from fedpage.data.dataset import Dataset
    from fedpage.data.partition import Partition

_SHOWN = 10
"""The most classes or columns that are listed."""


def html_dataset(data: Dataset) -> str:
    """Show a data set: its shape, its labels, its columns, and whose rows they are."""
    sizes = None
    if data.clients is not None:
        sizes = np.unique(data.clients, return_counts=True)[1]
    facts = {
        "rows": f"{data.rows:,}",
        "features": f"{data.features:,} ({_shorten(data.columns)})" if data.columns
        else f"{data.features:,}",
        "stored as": "a dense array" if data.is_dense else f"{data.nonzeros:,} nonzeros",
        "labels" if data.classes is not None else "targets": _labels(data),
        "clients": "" if sizes is None else f"{len(sizes):,} ({describe_sizes(sizes)})",
        "note": data.note,
    }  # fmt: skip
    plot = "" if sizes is None else html_sizes(sizes)
    return html_card(f"Dataset {data.name}", html_facts(facts), plot)


def html_partition(partition: Partition) -> str:
    """Show a partition: its name, and the sizes of its clients."""
    sizes = partition.sizes
    facts = {
        "clients": f"{partition.N:,}",
        "rows": f"{len(partition.order):,} ({describe_sizes(sizes)})",
    }
    return html_card(f"Partition {partition.name}", html_facts(facts), html_sizes(sizes))


def html_sizes(sizes: Ints) -> str:
    """Draw the numbers of rows of clients where they differ; else return ""."""
    if int(sizes.min()) == int(sizes.max()):
        return ""
    return html_bars(sizes, "clients, largest first", "rows")


def describe_sizes(sizes: Ints) -> str:
    """Say how many rows clients have.

    >>> describe_sizes(np.array([3, 3])), describe_sizes(np.array([1, 2, 30]))
    ('3 each', '1 to 30 each, median 2')
    """
    low, high = int(sizes.min()), int(sizes.max())
    if low == high:
        return f"{low:,} each"
    return f"{low:,} to {high:,} each, median {float(np.median(sizes)):,g}"


def _labels(data: Dataset) -> str:
    """Count the rows of each class, or give the range of the targets."""
    if data.classes is None:
        low, mean, high = (format_number(float(v)) for v in _range(data))
        return f"{low} to {high}, mean {mean}"
    numbers = (data.y > 0) if len(data.classes) == 2 else data.y
    counts = np.bincount(numbers.astype(np.int64), minlength=len(data.classes)).tolist()
    words = [f"{label}: {count:,}" for label, count in zip(data.classes, counts, strict=True)]
    return _shorten(words)


def _range(data: Dataset) -> tuple[float, float, float]:
    return float(data.y.min()), float(data.y.mean()), float(data.y.max())


def _shorten(words: list[str] | tuple[str, ...]) -> str:
    more = f", and {len(words) - _SHOWN:,} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
