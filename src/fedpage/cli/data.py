"""`fedpage data`: list, show, fetch, add and verify data sets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedpage.cli import options
from fedpage.cli.options import Document
from fedpage.cli.output import console, print_grid, print_table
from fedpage.core.errors import InputError
from fedpage.data import download, registry
from fedpage.report import data_summary
from fedpage.report.data_summary import plot_partition
from fedpage.report.tables import Table
from fedpage.runs.build import divide_rows, load_data
from fedpage.runs.config import DataConfig, setting

app = options.make_app("List, show, fetch, add and verify data sets.")


@options.command(app, "list")
def data_list() -> Document:
    """List the known data sets with their shapes, labels and files."""
    sets, rows = [], []
    for name, item in registry.DATASETS.items():
        if isinstance(item, registry.Embedded):
            labels, content, file = "-1, 1", item.note, "embedded"
        else:
            path = registry.find(item)
            labels = ", ".join(map(str, item.labels))
            content = "pinned" if item.digest else "unpinned"
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


@options.command(app, "show")
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
    config = replace(config, data=name)
    rows = load_data(config)
    lines = data_summary.summarise_data(rows)
    division = None
    if config.clients is not None or rows.clients is not None or config.partition == "by-id":
        _, division = divide_rows(config, rows)
        lines += data_summary.summarise_partition(rows, division)
    elif config.partition or figure or config.min_rows is not None:
        raise InputError("give the number of clients with --clients, such as --clients 20")
    print_grid([(f"[bold]{heading}", escape(text)) for heading, text in lines])
    if division is not None:
        print_table(data_summary.client_table(rows, division))
    if figure is not None:
        plot_partition(rows, division, figure)
        print(f"wrote {figure}")
    document: Document = {"data": dict(lines)}
    if division is not None:
        document["clients"] = {"N": division.N, "rows": division.sizes.tolist()}
    return document


@options.command(app, "fetch")
def fetch(
    names: Annotated[
        list[str], typer.Argument(help="Names of data sets (see `fedpage data list`).")
    ],
    mirror: Annotated[
        str | None, typer.Option("--mirror", help="Address of another server that has the files.")
    ] = None,
) -> None:
    """Download data sets into the cache."""
    for item in [registry.libsvm_file(name) for name in names]:
        bar = _Bar(item.name)
        try:
            path = download.fetch(item, mirror=mirror, progress=bar)
        finally:
            bar.close()
        print(f"{item.name} is in {path}")


class _Bar:
    """Show the calls of pooch's downloader as a progress bar of rich."""

    def __init__(self, name: str) -> None:
        columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.bars = Progress(*columns, console=console(stderr=True))
        self.task, self.total = self.bars.add_task(name), 0

    def update(self, count: int) -> None:
        self.bars.start()
        self.bars.update(self.task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self.bars.reset(self.task)

    def close(self) -> None:
        if self.bars.live.is_started:
            self.bars.stop()


@options.command(app, "add")
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
    for added in download.add(files, name):
        print(f"{added.item.name} is {'' if added.is_new else 'already '}in {added.path}")


@options.command(app, "verify")
def verify(
    name: Annotated[str, typer.Argument(help="Name of a data set (see `fedpage data list`).")],
) -> None:
    """Check the file of a data set.

    Its shape, labels and digest are compared with the known ones.
    """
    item, path = _find(name)
    data = registry.verify(item, path)
    what = "rows, labels and the range of indices agree; its digest is not pinned"
    what = f"digest {data.digest}" if item.digest else what
    print(f"{path}: {data.rows:,} x {data.features:,}, {data.nonzeros:,} nonzeros, {what}")


@options.command(app, "path")
def path(
    name: Annotated[
        str | None, typer.Argument(help="Name of a data set; without it, the directory.")
    ] = None,
) -> None:
    """Print the directory for data, or the path of a data set's file."""
    print(registry.cache_dir() if name is None else _find(name)[1])


def _find(name: str) -> tuple[registry.LibsvmFile, Path]:
    """Return the entry and the file of a data set, or refuse one that is not on this machine."""
    item = registry.libsvm_file(name)
    return item, registry.find_or_refuse(item)
