"""`fedpage study`: run, extend, inspect and export studies."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.cli.common import check_count, continues
from fedpage.cli.options import Command, JobsOption
from fedpage.cli.output import Document, console, with_json
from fedpage.cli.watch import print_runs
from fedpage.core.errors import InputError

if TYPE_CHECKING:
    from fedpage.report.tables import Table
    from fedpage.studies.claims import CheckedClaim
    from fedpage.studies.study import Study

app = typer.Typer(help="Run studies: problems x methods x grids x seeds.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(help="The study file, such as study.toml.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a value of the file: methods.fedpage.eta_g=[0.1,0.3]; may be repeated.",
        metavar="KEY=VALUE",
    ),
]
StoreOption = Annotated[
    Path, typer.Option("--store", help="Directory of the runs, which studies share.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Directory of the report, figures and tables (default runs/NAME)."),
]
_STORE = Path("runs") / "store"
_MOST_SHOWN = 50
"""The most runs that `study status` lists. With --json it lists all."""


def _load(file: Path, changes: list[str] | None, store: Path) -> Study:
    from fedpage.studies.study import Study

    return Study.load(file, changes=changes or (), store=store)


@app.command(cls=Command)
@with_json
def run(
    file: FileArgument,
    changes: SetOption = None,
    jobs: JobsOption = 1,
    store: StoreOption = _STORE,
    out: OutOption = None,
) -> Document:
    """Make the runs of a study that are not in the store, and write its report.

    The same command continues after an interruption.
    """
    return _execute(_load(file, changes, store), jobs, out)


@app.command(cls=Command)
@with_json
def status(file: FileArgument, changes: SetOption = None, store: StoreOption = _STORE) -> Document:
    """Show the state of every run of a study."""
    return print_runs(_load(file, changes, store).status(), limit=_MOST_SHOWN)


@app.command(cls=Command)
@with_json
def report(
    file: FileArgument,
    changes: SetOption = None,
    store: StoreOption = _STORE,
    out: OutOption = None,
) -> Document:
    """Write the report of the runs that have ended, and run nothing."""
    return _finish(_load(file, changes, store), out)


@app.command(cls=Command)
@with_json
def add(
    file: FileArgument,
    seeds: Annotated[int, typer.Option("--seeds", help="How many seeds to add.")] = 0,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="A method to add, such as fedprox:S=20; may be repeated."),
    ] = None,
    jobs: JobsOption = 1,
    store: StoreOption = _STORE,
    out: OutOption = None,
) -> Document:
    """Add seeds or methods to a study file, and run what is new."""
    from fedpage.core.files import put

    if not seeds and not method:
        raise InputError("say what to add: --seeds 3 or --method fedprox:S=20")
    check_count("--seeds", seeds, 0)
    study = _load(file, None, store)
    text = file.read_text(encoding="utf-8")
    if seeds:
        text = _add_seeds(text, study.config.seeds, seeds)
    for words in method or ():
        text = _add_method(text, words, study)
    scratch = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    scratch.write_text(text, encoding="utf-8")
    try:
        extended = _load(scratch, None, store)
    except InputError as error:
        why = str(error).removeprefix(f"{scratch}, ").replace(str(scratch), str(file))
        raise InputError(f"nothing was added: {why}") from None
    finally:
        scratch.unlink()
    expected = len(study.config.seed_list) + seeds
    if len(extended.config.seed_list) != expected:
        raise InputError(f"{file}: cannot find its seeds; edit the file by hand")
    put(file, text.encode("utf-8"))
    return _execute(_load(file, None, store), jobs, out)


@app.command(cls=Command)
def export(
    file: FileArgument,
    out: Annotated[Path, typer.Argument(help="The directory.")],
    changes: SetOption = None,
    store: StoreOption = _STORE,
    records: Annotated[
        str,
        typer.Option("--records", help="Format of the records.", metavar="[csv|parquet]"),
    ] = "csv",
) -> None:
    """Write the records, figures, tables and the report into a directory."""
    from fedpage.studies.results import export as write

    for path in write(_load(file, changes, store), out, records=records):
        print(path)


def _execute(study: Study, jobs: int, out: Path | None) -> Document:
    with show_progress(study.store or Path()) as progress:
        study.run(jobs=min(jobs, os.cpu_count() or 1), progress=progress)
    print(f"{study.new_runs} new runs; all runs are in {study.store}")
    return {"new_runs": study.new_runs, **_finish(study, out)}


@contextmanager
def show_progress(place: Path) -> Iterator[Callable[[int, int], None]]:
    """Show a bar over the runs that a command writes to a directory."""
    from fedpage.callbacks.progress import progress_bars

    with continues(place), progress_bars() as bars:
        task = bars.add_task("runs", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _rows(table: Table) -> list[Document]:
    """Return the rows of a table by its headings, for `--json`."""
    return [
        {heading: cell.text for heading, cell in zip(table.headings, row, strict=True)}
        for row in table.rows
    ]


def _finish(study: Study, out: Path | None) -> Document:
    """Print and return the tables of a study, and write its report, figures and tables."""
    from fedpage.studies import results

    folder = Path("runs") / study.config.name if out is None else out
    comparisons = study.comparisons()
    for comparison in comparisons.values():
        print("\n".join(["", str(comparison.table()), *comparison.sentences()]))
    claims = study.claims() if study.config.claims else []
    if claims:
        print_claims(claims)
    page = results.write_report(study, folder / "report.html")
    results.write_figures(study, folder / "figures")
    results.write_tables(comparisons, folder / "tables")
    print(f"Report: {page}; figures and tables are beside it.")
    return {
        "comparisons": {
            name: {"rows": _rows(each.table()), "sentences": list(each.sentences())}
            for name, each in comparisons.items()
        },
        "claims": claims,
        "report": page,
    }


def print_claims(claims: list[CheckedClaim]) -> None:
    """Print claims with their verdicts."""
    from rich.table import Table

    table = Table(show_lines=True)
    for heading in ("verdict", "claim", "comparisons"):
        table.add_column(heading, overflow="fold")
    for each in claims:
        detail = f"{each.counts}. {each.note}" if each.findings else each.note
        table.add_row(each.verdict, each.claim.text, detail)
    console().print(table)


def _add_seeds(text: str, old: int | list[int], more: int) -> str:
    """Change the line of the seeds in a study file, or add one before its first table."""
    if isinstance(old, int):
        new = str(old + more)
    else:
        new = str([*old, *range(max(old) + 1, max(old) + 1 + more)])
    head = re.search(r"^\s*\[", text, re.MULTILINE)
    end = len(text) if head is None else head.start()
    changed, count = re.subn(
        r"^(\s*seeds\s*=\s*)(\d+|\[[^\]]*\])", rf"\g<1>{new}", text[:end], count=1,
        flags=re.MULTILINE,
    )  # fmt: skip
    return (changed if count else f"seeds = {new}\n{text[:end]}") + text[end:]


def _add_method(text: str, words: str, study: Study) -> str:
    """Append the table of a method, such as that of "fedprox:S=20", to a study file."""
    from fedpage.runs.build import split_settings
    from fedpage.runs.toml import dumps

    name, settings = split_settings(words)
    label, number = name, 1
    while label in study.config.methods or f"[methods.{label}]" in text:
        number += 1
        label = f"{name}-{number}"
    table: dict[str, object] = {} if label == name else {"method": name}
    table |= {key: _number(value) for key, value in settings.items()}
    return text.rstrip() + "\n\n" + dumps({"methods": {label: table}})


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
