"""`fedpage study`: run, extend, inspect and export studies."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as RichTable

from fedpage.cli import options
from fedpage.cli.common import continues, progress_bar
from fedpage.cli.options import Document
from fedpage.cli.output import console
from fedpage.cli.watch import print_runs
from fedpage.core.errors import InputError
from fedpage.studies.claims import CheckedClaim
from fedpage.studies.extend import extend_file
from fedpage.studies.results import StudyResults
from fedpage.studies.study import Study

app = options.make_app("Run studies: problems x methods x grids x seeds.")

FileArgument = Annotated[Path, typer.Argument(help="The study file, such as study.toml.")]
StoreOption = Annotated[
    Path, typer.Option("--store", help="Directory of the runs, which studies share.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Directory of the report, figures and tables (default runs/NAME)."),
]
_STORE = Path("runs/store")
_MOST_SHOWN = 50
"""The most runs that `study status` lists. With --json it lists all."""


@dataclass(frozen=True)
class StudyFile:
    """Describe a study file, changes of its values, and the directory of the runs."""

    file: FileArgument
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a value of the file: methods.fedpage.eta_g=[0.1,0.3]; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None
    store: StoreOption = _STORE

    def load(self) -> Study:
        """Read the file."""
        return Study.load(self.file, changes=self.changes or (), store=self.store)


@options.command(app, "run")
def run(study: StudyFile, jobs: options.Jobs = 1, out: OutOption = None) -> Document:
    """Make the runs of a study that are not in the store, and write its report.

    The same command continues after an interruption.
    """
    return _execute(study.load(), jobs, out)


@options.command(app, "status")
def status(study: StudyFile) -> Document:
    """Show the state of every run of a study."""
    return print_runs(study.load().status(), limit=_MOST_SHOWN)


@options.command(app, "report")
def report(study: StudyFile, out: OutOption = None) -> Document:
    """Write the report of the runs that have ended, and run nothing."""
    return _finish(study.load(), out)


@options.command(app, "add")
def add(
    file: FileArgument,
    seeds: Annotated[int, typer.Option(help="How many seeds to add.")] = 0,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to add, such as fedprox:S=20; may be repeated."),
    ] = None,
    jobs: options.Jobs = 1,
    store: StoreOption = _STORE,
    out: OutOption = None,
) -> Document:
    """Add seeds or methods to a study file, and run what is new."""
    if seeds < 0 or not (seeds or method):
        raise InputError("say what to add: --seeds 3 or --method fedprox:S=20")
    extend_file(file, seeds, method or (), store)
    return _execute(Study.load(file, store=store), jobs, out)


@options.command(app, "export")
def export(
    study: StudyFile,
    out: Annotated[Path, typer.Argument(help="The directory.")],
    records: Annotated[
        str, typer.Option(help="Format of the records.", metavar="[csv|parquet]")
    ] = "csv",
) -> None:
    """Write the records, figures, tables and the report into a directory."""
    for path in StudyResults(study.load()).check().export(out, records=records):
        print(path)


def _execute(study: Study, jobs: int, out: Path | None) -> Document:
    with continues(study.store or Path()), progress_bar("runs") as progress:
        study.run(jobs=min(jobs, os.cpu_count() or 1), progress=progress)
    print(f"{study.new_runs} new runs; all runs are in {study.store}")
    return {"new_runs": study.new_runs, **_finish(study, out)}


def _finish(study: Study, out: Path | None) -> Document:
    """Print and return the tables of a study, and write its report, figures and tables."""
    folder = Path("runs") / study.config.name if out is None else out
    results, found = StudyResults(study).check(), {}
    for name, comparison in results.comparisons.items():
        table, sentences = comparison.table(), comparison.sentences()
        print("\n".join(["", str(table), *sentences]))
        rows = [dict(zip(table.headings, map(str, row), strict=True)) for row in table.rows]
        found[name] = {"rows": rows, "sentences": sentences}
    if results.claims:
        print_claims(results.claims)
    page = results.write_page(folder / "report.html")
    results.write_figures(folder / "figures")
    results.write_tables(folder / "tables")
    print(f"Report: {page}; figures and tables are beside it.")
    return {"comparisons": found, "claims": results.claims, "report": page}


def print_claims(claims: list[CheckedClaim]) -> None:
    """Print claims with their verdicts."""
    table = RichTable(show_lines=True)
    for heading in ("verdict", "claim", "comparisons"):
        table.add_column(heading, overflow="fold")
    for each in claims:
        detail = f"{each.counts}. {each.note}" if each.findings else each.note
        table.add_row(each.verdict, each.claim.text, detail)
    console().print(table)
