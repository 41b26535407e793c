"""Show a data set and who holds which of its rows: in words, in tables and as a picture."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpage.core.display import new_figure
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Ints, Vector
from fedpage.data.dataset import Dataset
from fedpage.data.partition import Partition, by_id, equal_parts
from fedpage.report.figure_file import write_figure
from fedpage.report.style import ACCENT, PALE
from fedpage.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 20
"""Up to so many clients are listed one by one; of more, a histogram of sizes is shown."""
_MOST_LISTED = 12
_BAR = 40
MANY = 60
"""With more clients than this, they are sorted and not named."""
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles of a client's targets that are drawn."""
_MOST_LABELS = 100
"""With more different whole numbers than this, labels are targets of a regression."""
_NAMED = 30
"""With more clients than this, the axis has numbers instead of ids."""


def count_labels(data: Dataset, partition: Partition) -> tuple[list[str], Ints] | None:
    """Count the rows of each label at each client.

    Returns:
        The labels (C,) as text, and the counts (C, N). It is None for targets of a regression:
        numbers that are not whole, or more than 100 different ones.
    """
    values, which = np.unique(data.y, return_inverse=True)
    if data.classes is not None:
        binary = len(data.classes) == 2
        which = (data.y > 0).astype(np.int64) if binary else data.y.astype(np.int64)
        names = [str(label) for label in data.classes]
    elif len(values) > _MOST_LABELS or bool((values != np.floor(values)).any()):
        return None
    else:
        names = [f"{value:g}" for value in values]
    client = np.repeat(np.arange(partition.N), partition.sizes)
    cells = which[partition.order] * partition.N + client
    counts = np.bincount(cells, minlength=len(names) * partition.N)
    return names, counts.reshape(len(names), partition.N).astype(np.int64)


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
    if len(words) > _MOST_LISTED:
        words[_MOST_LISTED:] = [f"and {len(words) - _MOST_LISTED} more"]
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
    if counted is not None and len(counted[0]) <= _MOST_LISTED:
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


# --- a picture ------------------------------------------------------------------------------------


def plot_partition(
    problem_or_data: Any,
    partition: Partition | str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw the labels and the number of rows of each client.

    Below the sizes is a map with a cell for each label of each client, whose shade is the number of
    rows. Targets of a regression are drawn by their quantiles at each client. More than 60 clients
    are sorted by their labels or targets.

    Args:
        problem_or_data: A problem over rows, such as `LogisticRegression`, or a Dataset.
        partition: The rows of each client. By default it is the partition of the problem, or the
            one by the ids of the data set. It may be left out before a path.
        path: A file to write; its suffix chooses PNG, PDF or SVG.

    Returns:
        The matplotlib Figure.

    Raises:
        InputError: There is no partition, it does not fit the data, or the file's suffix is
            unknown.
    """
    if isinstance(partition, (str, os.PathLike)) and path is None:
        partition, path = None, partition
    data, partition = _find_rows(problem_or_data, partition)
    counted = count_labels(data, partition)
    if counted is None:
        rows = (partition.rows(i) for i in range(partition.N))
        shown = np.array([np.quantile(data.y[own], _QUANTILES) for own in rows]).T
        order, height = np.argsort(shown[2], kind="stable"), 1.8
    else:
        labels, shown = counted
        shares = shown / shown.sum(axis=0)
        order = np.lexsort((np.arange(len(labels)) @ shares, shares.argmax(axis=0)))
        height = min(max(0.35 * len(labels), 1.2), 8.0)
    is_sorted = partition.N > MANY
    if not is_sorted:
        order = np.arange(partition.N)
    figure = new_figure(figsize=(9.0, 4.0), layout="constrained")
    title = f"{_shorten(data.name, 40)}, {_shorten(partition.name, 80)}"
    figure.suptitle(title, fontsize=10)
    sizes, content = figure.subplots(2, 1, sharex=True, height_ratios=(1.1, height))
    for ax in (sizes, content):
        ax.spines[["top", "right"]].set_visible(False)
    _draw_sizes(sizes, partition.sizes[order])
    if counted is None:
        _draw_targets(content, shown[:, order])
    else:
        _draw_counts(figure, content, labels, shown[:, order])
    if is_sorted:
        content.set_xlabel(f"clients, sorted by their {'targets' if counted is None else 'labels'}")
        names = 0.0
    else:
        names = _name_clients(content, partition)
    figure.set_size_inches(9.0, 2.0 + height + names)
    if path is not None:
        write_figure(figure, path, dpi=160)
    return figure


def _find_rows(given: Any, partition: object) -> tuple[Dataset, Partition]:
    """Find the rows and the partition."""
    data = given if isinstance(given, Dataset) else getattr(given, "data", None)
    if not isinstance(data, Dataset):
        raise InputError(
            "plot_partition: give a Dataset or a problem over one, such as LogisticRegression, "
            f"not {type(given).__name__}"
        )
    partition = getattr(given, "partition", None) if partition is None else partition
    if partition is None and data.clients is not None:
        partition = by_id(data.clients)
    if not isinstance(partition, Partition):
        why = f"{data.name!r} has no client ids; " if partition is None else ""
        found = short_repr(partition)
        raise InputError(
            f"plot_partition: {why}give a partition, such as fp.dirichlet(data.y, 20, 0.1), "
            f"not {found}"
        )
    if int(partition.order.max()) >= data.rows:
        raise InputError(
            f"plot_partition: partition {partition.name} names rows that {data.name!r} does not "
            "have"
        )
    return data, partition


def _draw_sizes(ax: Axes, sizes: Ints) -> None:
    """Draw the numbers of rows, on a logarithmic axis where they differ much."""
    from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

    if len(sizes) > MANY:
        ax.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True, color=ACCENT)
    else:
        ax.bar(np.arange(len(sizes)), sizes, color=ACCENT, width=0.8)
    if sizes.max() > 50 * sizes.min():
        ax.set_yscale("log")
        ax.set_ylim(0.7, 1.5 * sizes.max())
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(0, 1.05 * sizes.max())
        ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.set_ylabel("rows")


def _draw_counts(figure: Figure, ax: Axes, labels: list[str], counts: Ints) -> None:
    """Draw a cell for each label of each client; a darker one has more rows, a white one none."""
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator

    image = ax.imshow(
        np.ma.masked_equal(counts, 0), aspect="auto", origin="lower", interpolation="nearest",
        cmap="YlGnBu", norm=PowerNorm(0.5, vmin=0),
    )  # fmt: skip
    every = -(-len(labels) // 30)
    names = [_shorten(name) for name in labels[::every]]
    ax.set_yticks(range(0, len(labels), every), names, fontsize=8)
    ax.set_ylabel("label")
    scale = figure.colorbar(image, ax=ax, fraction=0.04, pad=0.01, label="rows")
    scale.ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    scale.ax.tick_params(labelsize=8)


def _draw_targets(ax: Axes, quantiles: Vector) -> None:
    """Draw the quantiles of each client's targets, (5, N)."""
    low, lower, middle, upper, high = quantiles
    clients, width = np.arange(len(middle)), min(5.0, 400 / len(middle))
    ax.vlines(clients, low, high, color=PALE, linewidth=0.3 * width, label="5% to 95%")
    ax.vlines(clients, lower, upper, color=ACCENT, linewidth=width, label="25% to 75%")
    ax.plot(clients, middle, "ok", markersize=width, label="median")
    ax.set_ylabel("target")
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _name_clients(ax: Axes, partition: Partition) -> float:
    """Write clients' ids below the axis where they are few, and numbers otherwise.

    Returns:
        The height that the names need, in inches.
    """
    ids, clients = partition.ids, partition.N
    if ids is None or clients > _NAMED:
        ax.set_xticks(range(0, clients, 1 if clients <= 20 else 5))
        ax.set_xlabel("client" if ids is None else "client, in the order of ids")
        return 0.0
    names = [_shorten(str(name)) for name in ids]
    longest = max(map(len, names))
    is_tight = longest * clients > 90
    ax.set_xticks(range(clients), names, fontsize=8, rotation=90 if is_tight else 0)
    return 0.075 * longest if is_tight else 0.0


def _shorten(name: str, most: int = 22) -> str:
    """Shorten a text in the middle, for names often differ at their ends; $ begins no formula."""
    name = " ".join(name.split())
    if len(name) > most:
        tail = (most - 1) // 2
        name = name[: most - 1 - tail] + "\N{HORIZONTAL ELLIPSIS}" + name[-tail:]
    return name.replace("$", r"\$")
