"""`fedpage data list | fetch | verify | path`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedpage.cli.common import console

app = typer.Typer(help="Data sets: list, fetch, verify, path.", no_args_is_help=True)


@app.command(name="list")
def data_list() -> None:
    """Every known data set: shape, labels, whether its content is pinned, and where it lies."""
    from rich.table import Table

    from fedpage.data import registry

    table = Table()
    for heading in ("name", "rows", "features", "labels", "content", "where"):
        table.add_column(
            heading, overflow="fold", justify="right" if heading in ("rows", "features") else "left"
        )
    shapes = {
        "census": ("32,561", "123"),
        "breast_cancer": ("569", "30"),
        "digits": ("1,797", "64"),
    }
    notes = {
        "census": "synthetic",
        "breast_cancer": "real, scikit-learn's",
        "digits": "real, scikit-learn's",
    }
    for name in registry.EMBEDDED:
        table.add_row(name, *shapes[name], "-1, 1", notes[name], "embedded")
    for item in registry.REGISTRY.values():
        path = registry.find(item)
        labels = ", ".join(map(str, item.labels))
        content = "pinned" if item.pinned else "unpinned"
        where = str(path) if path else "not here: fedpage data fetch " + item.name
        table.add_row(item.name, f"{item.rows:,}", f"{item.features:,}", labels, content, where)
    console().print(table)
    print(
        "pinned: checked to the last bit. unpinned: no copy was seen yet; rows, labels and index range are checked."
    )


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A data set of `fedpage data list`.")],
    mirror: Annotated[
        str | None, typer.Option("--mirror", help="Another address that holds the same files.")
    ] = None,
) -> None:
    """Download a data set into the cache; goes on where an interrupted download ended."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    from fedpage.data import registry
    from fedpage.data.download import fetch as download

    item = registry.entry(name)
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console(stderr=True))
    tasks: list[TaskID] = []

    def report(have: int, whole: int | None) -> None:
        if not tasks:  # no bar before the first byte
            bars.start()
            tasks.append(bars.add_task(name, total=whole))
        bars.update(tasks[0], completed=have, total=whole)

    try:
        path = download(item, mirror=mirror, report=report)
    finally:
        if tasks:
            bars.stop()
    print(f"{name} is in {path}")


@app.command()
def verify(name: Annotated[str, typer.Argument(help="A data set of `fedpage data list`.")]) -> None:
    """Read a data set's file and check it against the registry."""
    from fedpage.core.errors import InputError
    from fedpage.data import registry

    item = registry.entry(name)
    path = registry.find(item)
    if path is None:
        raise InputError(f"data set {name!r} is not here: run `fedpage data fetch {name}`")
    data = registry.verify(item, path)
    what = (
        f"digest {data.digest}"
        if item.pinned
        else "rows, labels and the range of indices agree; its digest is not pinned"
    )
    print(f"{path}: {data.rows:,} x {data.features:,}, {data.nonzeros:,} nonzeros, {what}")


@app.command()
def path(
    name: Annotated[str | None, typer.Argument(help="A data set; none: the directory.")] = None,
) -> None:
    """Where data is kept, or where one data set's file lies."""
    from fedpage.core.errors import InputError
    from fedpage.data import registry

    if name is None:
        print(registry.cache_dir())
        return
    found = registry.find(registry.entry(name))
    if found is None:
        raise InputError(f"data set {name!r} is not here: run `fedpage data fetch {name}`")
    print(found)
