"""`fedpage reproduce`: run the paper's experiments and check its claims."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from fedpage.cli import options
from fedpage.cli.common import continues, prepare_out, progress_bar
from fedpage.cli.options import Document
from fedpage.cli.output import print_table
from fedpage.cli.study import print_claims
from fedpage.core.errors import InputError
from fedpage.data import registry
from fedpage.report.tables import Table
from fedpage.runs.config import ProblemConfig, setting
from fedpage.studies import claims
from fedpage.studies.paper import book
from fedpage.studies.results import StudyResults, write_page
from fedpage.studies.study import Study

app = options.make_app()
_OUT = Path("paper-runs")
Search: TypeAlias = tuple[Study, str, book.TuningTable]
"""A study, one of its figures, and the step sizes to search for it."""


@dataclass(frozen=True)
class ReproduceConfig:
    """Describe which experiments run, and on how many seeds."""

    name: Annotated[str | None, typer.Argument(help="Name of a figure, or all.")] = None
    listing: Annotated[bool, typer.Option("--list", help="List the figures.")] = False
    seeds: int | None = setting(
        None, "Runs of each curve (default: 5, as in the figures).", at_least=1, at_most=100_000
    )
    jobs: options.Jobs = 1
    out: Path = setting(_OUT, "Directory; finished runs in it are reused.")
    quick: bool = setting(False, "Run 2 seeds and a tenth of the rounds, without verdicts.")
    data: str | None = setting(None, "Use other data, such as census; titles say so.")
    tune: bool = setting(False, "Search the step sizes of the local-steps figures.")


@options.command(app, "reproduce")
def reproduce(config: ReproduceConfig) -> Document:
    """Run the paper's experiments and check its claims.

    Finished runs are reused, so an interrupted reproduction can be started again.
    """
    if config.listing:
        return _list()
    name, out = config.name, config.out
    if name is None:
        raise InputError("name a figure of `fedpage reproduce --list`, or all")
    names = list(book.figures()) if name == "all" else [name]
    studies = book.load(
        names, store=out / "runs", seeds=config.seeds, data=config.data, quick=config.quick
    )
    for problem in (problem for study in studies for problem in _configs(study)):
        entry = registry.DATASETS.get(problem.data)
        if isinstance(entry, registry.LibsvmFile):
            try:
                registry.find_or_refuse(entry)
            except InputError as error:
                hint = "or use `--data census`, which is synthetic"
                raise InputError(f"{error}, {hint}") from None
    searches = [
        (study, figure, grid)
        for study in studies
        for figure in study.config.named_figures()
        if (grid := book.tuning(figure)) is not None
    ]
    if config.tune and not searches:
        raise InputError(
            "--tune: only local-steps/a9a and local-steps/w8a have step sizes to search"
        )
    prepare_out(out, force=True)
    jobs = min(config.jobs, os.cpu_count() or 1)
    began = time.perf_counter()
    if config.tune:
        return {"searched": _tune(searches, out, jobs)}
    for study in studies:
        with continues(out), progress_bar("runs") as progress:
            study.run(jobs=jobs, progress=progress)
    fresh = sum(study.new_runs for study in studies)
    known = {name: book.load_search(study, name, grid, out) for study, name, grid in searches}
    tuned = {name: rows for name, rows in known.items() if rows is not None}
    if name == "all" and not config.quick and config.data is None:
        tuned |= _tune([each for each in searches if each[1] not in tuned], out, jobs)
    results = [StudyResults(study) for study in studies]
    figures = {name: figure for part in results for name, figure in part.figures.items()}
    concerned = [claim for claim in book.claims() if set(claim.figures) & set(figures)]
    check_steps = partial(book.check_steps, tuned)
    checked = [claims.evaluate(claim, figures, check_steps) for claim in concerned]
    for part in results:
        part.write_figures(out / "figures")
    title = "FedPAGE: the paper's experiments"
    page = write_page(out / "report.html", results, title=title, claims=checked)
    print_claims(checked)
    spent = time.perf_counter() - began
    print(f"{fresh} new runs in {spent:.0f} s. Report: {page}")
    return {"claims": checked, "new_runs": fresh, "seconds": spent, "report": page}


def _list() -> Document:
    found, rows = [], []
    for name, (_, figure) in book.figures().items():
        (study,) = book.load([name], store="runs")
        entry = {
            "name": name,
            "paper": figure.note,
            "data": list(dict.fromkeys(problem.data for problem in _configs(study))),
            "panels": len({(curve.problem, curve.setting_text) for curve in study.curves}),
            "curves": list(dict.fromkeys(curve.label for curve in study.curves)),
            "rounds": study.config.rounds,
        }
        found.append(entry)
        cells = (v if isinstance(v, list) else [str(v)] for v in entry.values())
        rows.append(tuple(map(", ".join, cells)))
    print_table(Table.of_texts(found[0], rows), wrapped=("curves",))
    return {"figures": found}


def _configs(study: Study) -> list[ProblemConfig]:
    """Return the configurations of a study's problems."""
    return [source for source in study.sources().values() if isinstance(source, ProblemConfig)]


def _tune(searches: Sequence[Search], out: Path, jobs: int) -> dict[str, list[book.TunedCurve]]:
    """Search the step sizes of figures, and return and print what is found, by figure."""
    found = {}
    for study, name, grid in searches:
        with progress_bar("search") as progress:
            rows = book.search(study, name, grid, out, jobs, progress)
        table = book.search_table(name, grid, rows)
        print_table(table, wrapped=table.headings[-1:])
        found[name] = rows
    return found
