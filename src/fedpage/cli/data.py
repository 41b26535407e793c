"""`fedpage data`: list, show, fetch, add and verify data sets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.options import Command, with_config_options
from fedpage.cli.output import Document, console, print_table, with_json
from fedpage.core.errors import InputError
from fedpage.runs.config import DataConfig, setting

if TYPE_CHECKING:
    from fedpage.data import Dataset, Partition
    from fedpage.data.registry import LibsvmFile

app = typer.Typer(help="List, show, fetch, add and verify data sets.", no_args_is_help=True)


@app.command(name="list", cls=Command)
@with_json
def data_list() -> Document:
    """List the known data sets with their shapes, labels and files."""
    from fedpage.data.registry import DATASETS, Embedded, find
    from fedpage.report.tables import Table

    sets, rows = [], []
    for name, item in DATASETS.items():
        if isinstance(item, Embedded):
            labels, content, file = "-1, 1", item.note, "embedded"
        else:
            path = find(item)
            labels = ", ".join(map(str, item.labels))
            content = "pinned" if item.is_pinned else "unpinned"
            file = str(path) if path else "not here"
        rows.append((name, f"{item.rows:,}", f"{item.features:,}", labels, content, file))
        about = {"name": name, "rows": item.rows, "features": item.features, "labels": labels}
        sets.append({**about, "content": content, "file": None if file == "not here" else file})
    headings = ("name", "rows", "features", "labels", "content", "file")
    table = replace(Table.of_texts(headings, rows), align="lrrlll")
    print_table(table, wrapped=("file", "content", "labels"))
    print(
        "Download one: fedpage data fetch NAME. Use a downloaded file: fedpage data add FILE.\n"
        "pinned: every bit of the file is checked.\n"
        "unpinned: only rows, labels and the range of indices are checked."
    )
    return {"data": sets}


@dataclass(frozen=True)
class ShowConfig(DataConfig):
    """Describe the data to show, which is named by the command's argument."""

    data: str = setting("", option=False)
    clients: int | None = setting(None, "Number of clients, N.", at_least=1)


@app.command(cls=Command)
@with_json
@with_config_options
def show(
    name: Annotated[str, typer.Argument(metavar="DATA", help="Name of a data set, or a file.")],
    config: ShowConfig,
    figure: Annotated[
        Path | None, typer.Option(help="Draw labels and sizes of the clients into this file.")
    ] = None,
) -> Document:
    """Show a data set, and how clients divide its rows.

    Without --clients, and without a column of ids, only the data set is shown.
    """
    from rich.markup import escape
    from rich.table import Table

    from fedpage.report import data_summary
    from fedpage.report.partition_plot import plot_partition
    from fedpage.runs.build import divide_rows, load_data

    config = replace(config, data=name)
    rows = load_data(config)
    lines = data_summary.summarise_data(rows)
    division = None
    if config.clients is not None or rows.clients is not None or config.partition == "by-id":
        _, division = divide_rows(config, rows)
        lines += data_summary.summarise_partition(rows, division)
    elif config.partition or figure or config.min_rows is not None:
        raise InputError("give the number of clients with --clients, such as --clients 20")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for heading, text in lines:
        grid.add_row(heading, escape(text))
    console().print(grid)
    if division is not None:
        _print_clients(rows, division)
    if figure is not None:
        plot_partition(rows, division, figure)
        print(f"wrote {figure}")
    document: Document = {"data": dict(lines)}
    if division is not None:
        document["clients"] = {"N": division.N, "rows": division.sizes.tolist()}
    return document


def _print_clients(data: Dataset, division: Partition) -> None:
    """List the clients, or count many of them by their size."""
    from fedpage.report import data_summary
    from fedpage.report.tables import Table

    if division.N <= data_summary.FEW:
        headings, cells = data_summary.client_table(data, division)
    else:
        headings = ["rows", "clients", ""]
        found = data_summary.size_histogram(division.sizes)
        cells = [[text, f"{count:,}", bar] for text, count, bar in found]
    align = "".join("l" if heading in ("client", "") else "r" for heading in headings)
    print_table(replace(Table.of_texts(headings, cells), align=align))


@app.command(cls=Command)
def fetch(
    names: Annotated[
        list[str], typer.Argument(help="Names of data sets (see `fedpage data list`).")
    ],
    mirror: Annotated[
        str | None, typer.Option("--mirror", help="Address of another server that has the files.")
    ] = None,
) -> None:
    """Download data sets into the cache."""
    from fedpage.data import registry

    for item in [registry.libsvm_file(name) for name in names]:
        _download(item, mirror)


def _download(item: LibsvmFile, mirror: str | None) -> None:
    """Download a file and show its progress."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from fedpage.data.download import fetch as download

    class Bar:
        """Show the calls of pooch's downloader as a progress bar of rich."""

        total = 0

        def update(self, count: int) -> None:
            bars.start()
            bars.update(task, advance=count, total=self.total or None)

        def reset(self) -> None:
            bars.reset(task)

        def close(self) -> None:
            bars.stop()

    columns = (TextColumn(item.name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console(stderr=True))
    task = bars.add_task(item.name)
    try:
        path = download(item, mirror=mirror, progress=Bar())
    finally:
        if bars.live.is_started:
            bars.stop()
    print(f"{item.name} is in {path}")


@app.command(cls=Command)
def add(
    files: Annotated[list[str], typer.Argument(help="Downloaded files, plain, .xz, .bz2 or .gz.")],
    name: Annotated[
        str | None,
        typer.Option("--as", help="Name of the data set, where the file's name does not say it."),
    ] = None,
) -> None:
    """Verify downloaded files and copy them into the cache.

    If one is not what its name says, nothing is copied.
    """
    from fedpage.data.download import add as add_files

    for added in add_files(files, name):
        print(f"{added.item.name} is {'' if added.is_new else 'already '}in {added.path}")


@app.command(cls=Command)
def verify(
    name: Annotated[str, typer.Argument(help="Name of a data set (see `fedpage data list`).")],
) -> None:
    """Check the file of a data set.

    Its shape, labels and digest are compared with the known ones.
    """
    from fedpage.data import registry

    item = registry.libsvm_file(name)
    path = registry.find(item)
    if path is None:
        raise InputError(
            f"data set {name!r} is not on this machine: run `fedpage data fetch {name}`"
        )
    data = registry.verify(item, path)
    what = (
        f"digest {data.digest}"
        if item.is_pinned
        else "rows, labels and the range of indices agree; its digest is not pinned"
    )
    print(f"{path}: {data.rows:,} x {data.features:,}, {data.nonzeros:,} nonzeros, {what}")


@app.command(cls=Command)
def path(
    name: Annotated[
        str | None, typer.Argument(help="Name of a data set; without it, the directory.")
    ] = None,
) -> None:
    """Print the directory for data, or the path of a data set's file."""
    from fedpage.data import registry

    if name is None:
        print(registry.cache_dir())
        return
    found = registry.find(registry.libsvm_file(name))
    if found is None:
        raise InputError(
            f"data set {name!r} is not on this machine: run `fedpage data fetch {name}`"
        )
    print(found)
